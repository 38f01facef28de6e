"""Leadership through one row of the store, the same way for one core as for many.

A core takes over at once when nobody owns the row, or when the stored owner is its own host and it has bound the
stored worker address: the owner must be dead then. Any other core takes over when the row has not been renewed for 12
s of its own monotonic clock, so that no two clocks are ever compared. Taking over raises the epoch; whatever an older
leader still tries is refused.
"""

from collections.abc import Callable

from twisted.logger import Logger

from dsched.clock import Clock
from dsched.core.service import Victory
from dsched.core.threads import Threads
from dsched.model.rows import LeaderRow
from dsched.store.interface import Store

__all__ = ["LOOK_S", "StoreElection"]

TAKEOVER_S = 12.0
LOOK_S = 1.0


class StoreElection:
    """Campaigns for the leader row. The core's worker address must be bound before `campaign` is called."""

    log = Logger()

    def __init__(
        self,
        store: Store,
        writer: Threads,
        clock: Clock,
        *,
        identity: str,
        address: str,
        admin_url: str,
        look_s: float = LOOK_S,
    ) -> None:
        self._store = store
        self._writer = writer
        self._clock = clock
        self._identity = identity
        self._address = address
        self._admin_url = admin_url
        self._look_s = look_s
        # Kept from one campaign to the next: a store that is away for a moment does not make the row any younger.
        self._seen: LeaderRow | None = None
        self._since_s = 0.0

    async def campaign(self, on_seen: Callable[[LeaderRow], None]) -> Victory:
        """Return once this core leads; tell `on_seen` who leads until then. Raises `StoreUnavailable`."""
        while True:
            row: LeaderRow = await self._writer.run(self._store.leader)
            now_s = self._clock.monotonic()
            seen = self._seen
            if seen is None or (row.epoch, row.renewal) != (seen.epoch, seen.renewal):
                if (seen is None or row.epoch != seen.epoch) and row.owner and not self._is_own(row):
                    self.log.info("{address} leads; standing by", address=row.address)
                self._seen, self._since_s = row, now_s
            on_seen(row)
            is_dead = not row.owner or self._is_own(row)
            if is_dead or now_s - self._since_s >= TAKEOVER_S:
                taken: LeaderRow | None = await self._writer.run(
                    self._store.take_leadership, row, self._identity, self._address, self._admin_url
                )
                if taken is not None:
                    return Victory(taken, is_dead)
                continue
            await self._clock.sleep(self._look_s)

    def _is_own(self, row: LeaderRow) -> bool:
        return row.owner == self._identity and row.address == self._address
