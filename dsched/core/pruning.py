"""Old history goes while the core works: short portions in the thread that commits, and long pauses between them."""

from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from dsched.clock import Clock
from dsched.core.threads import Threads
from dsched.errors import EpochLost, StoreUnavailable
from dsched.store.interface import Pruned, Store

__all__ = ["ROLLUP_DAYS", "Pruner"]

DAY_MS: Final = 86_400_000
ROLLUP_DAYS: Final = 400
"""How long counters are kept; never shorter than history."""
PASS_S: Final = 300.0
FIRST_S: Final = 5.0
"""How long a pass waits: right after a start there is more important work."""
PORTION_S: Final = 0.02
"""How long a portion should take at most: a commit may have to wait for it."""
PAUSE: Final = 5
"""How many times longer than a portion the pause after it is."""
FEWEST, MOST, FIRST = 10, 5_000, 100


class Pruner:
    """Deletes runs that ended more than `history_days` days ago, for one term. Reactor thread only."""

    log = Logger()

    def __init__(self, store: Store, writer: Threads, clock: Clock, epoch: int, history_days: int) -> None:
        self._store = store
        self._writer = writer
        self._clock = clock
        self._epoch = epoch
        self._days = history_days
        self._limit = FIRST
        self._stopped = False
        self._loop = clock.every(PASS_S, self._tick, name="prune history", at_once=True)

    def stop(self) -> None:
        """Delete nothing more, but what is under way."""
        self._stopped = True
        self._loop.stop()

    def _tick(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._pass())

    async def _pass(self) -> None:
        await self._clock.sleep(FIRST_S)
        before_ms = self._clock.wall_ms() - self._days * DAY_MS
        counters_ms = self._clock.wall_ms() - max(self._days, ROLLUP_DAYS) * DAY_MS
        runs = rows = 0
        after: str | None = None
        rest = False
        try:
            while not self._stopped:
                if rest:
                    done = await self._portion(self._store.prune_rest, before_ms, counters_ms, self._limit)
                else:
                    done = await self._portion(self._store.prune, before_ms, None, self._limit, after)
                runs, rows, after = runs + done.runs, rows + done.rows, done.next
                if after is None:
                    if rest:
                        break
                    rest = True
        except EpochLost:
            return  # Whoever leads now goes on with it.
        except StoreUnavailable as error:
            self.log.warn("history is pruned later, the store is away: {error}", error=error.message)  # noqa: G010
        if rows:
            self.log.info("pruned {runs} runs, {rows} tasks and other old rows", runs=runs, rows=rows)

    async def _portion(self, prune: Any, *args: Any) -> Pruned:
        """Delete a portion, and wait. Fewer rows the next time when it took long, more when it was done at once."""

        def timed() -> tuple[Pruned, float]:
            # In the thread itself: the wait for its turn is no work.
            began_s = self._clock.monotonic()
            done: Pruned = prune(*args, epoch=self._epoch)
            return done, self._clock.monotonic() - began_s

        done: Pruned
        done, took_s = await self._writer.run(timed)
        if took_s > PORTION_S:
            self._limit = max(FEWEST, self._limit // 2)
        elif took_s < PORTION_S / 2:
            self._limit = min(MOST, self._limit + self._limit // 4)
        await self._clock.sleep(max(PORTION_S, took_s * PAUSE))
        return done
