"""Group commit: all changes since the last commit go to the store as one transaction, then their effects run.

While a commit is under way the next batch gathers, so a busy core batches and an idle one commits at once. When the
answer of a commit is lost the leader row tells: it has the batch's number, committed; the number before, repeat;
a higher epoch, leadership is gone.
"""

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from dsched.clock import Clock
from dsched.core.threads import Threads
from dsched.engine.changes import Batch, Effect, Key
from dsched.engine.engine import Engine
from dsched.engine.split import Part, split
from dsched.errors import BatchRefused, EpochLost, StoreUnavailable
from dsched.model.rows import RunRow, TaskRow
from dsched.store.interface import Store

__all__ = ["Journal"]

RENEW_S = 3.0
SLOW_S = 2.0
"""A commit that takes longer counts as a store that is away: nothing more is decided on top of it."""
_SLOW = f"no answer to a commit for {SLOW_S:g} s: it is slow, or somebody else holds a lock"
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_TOLD_EVERY_S = 10.0
_FULL_BYTES = 16 * 1024 * 1024
"""A batch may gather results of so many bytes; larger ones would keep the store for longer than it may seem away."""
_PAGE = 1000


class Journal:
    """Commits what one engine decides, for one term.

    `act` runs effects; `lost` is called once when this term must end; `away` is told why the store is away, and None
    when it is back: in between nothing may be decided.
    """

    log = Logger()

    def __init__(
        self,
        engine: Engine,
        store: Store,
        writer: Threads,
        reader: Threads,
        clock: Clock,
        act: Callable[[Sequence[Effect]], None],
        lost: Callable[[Exception], None],
        away: Callable[[str | None], None],
    ) -> None:
        self._engine = engine
        self._store = store
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._act = act
        self._lost = lost
        self._tell_away = away
        self._busy = False
        self._stopped = False
        self._renewal_due = False
        self._committed_at_s = clock.monotonic()
        self._told_at_s = -_TOLD_EVERY_S
        self._idle_waiters: list[Deferred[None]] = []
        self._room_waiters: list[Callable[[], None]] = []
        self._gathered_bytes = 0
        self.is_away = False
        self.batches = 0
        self._loop = clock.every(RENEW_S / 3, self._renew, name="renew leadership")

    def flush(self) -> None:
        """Commit what there is to commit, unless a commit is under way: then it goes with the next."""
        if self._busy or self._stopped or not (self._renewal_due or self._engine.has_changes()):
            return
        self._busy = True
        Deferred.fromCoroutine(self._run()).addErrback(self._failed)

    def settled(self) -> Deferred[None]:
        """Return a Deferred that fires when what is decided so far is committed and acted on, or the term is over."""
        done: Deferred[None] = Deferred()
        if self._busy:
            self._idle_waiters.append(done)
        else:
            done.callback(None)
        return done

    def gathered(self, size: int) -> None:
        """The next batch has got results of so many bytes."""
        self._gathered_bytes += size

    @property
    def is_full(self) -> bool:
        """Tell whether the next batch should get no more results until the present one is stored."""
        return self._busy and not self.is_away and self._gathered_bytes >= _FULL_BYTES

    def when_room(self, call: Callable[[], None]) -> None:
        """Call `call` once the next batch is taken, or the store is away, or the term is over."""
        self._room_waiters.append(call)

    def _make_room(self) -> None:
        waiters, self._room_waiters = self._room_waiters, []
        for waiter in waiters:
            self._clock.call_later(0, waiter)

    def stop(self) -> None:
        """Commit nothing more; what is under way may still succeed."""
        self._stopped = True
        self._loop.stop()
        self._make_room()

    def _renew(self) -> None:
        if self._clock.monotonic() - self._committed_at_s >= RENEW_S * 2 / 3:
            self._renewal_due = True
            self.flush()

    def _failed(self, failure: Any) -> None:
        self._settle()
        if self._stopped:
            return
        self.stop()
        if not failure.check(EpochLost):
            self.log.failure("the journal failed; this core drops its memory and reads again", failure)
        self._lost(failure.value)

    async def _run(self) -> None:
        while not self._stopped and (self._renewal_due or self._engine.has_changes()):
            batch, effects, units = self._engine.take_batch(self._clock.moment(), force=self._renewal_due)
            self._renewal_due = False
            self._gathered_bytes = 0
            self._make_room()
            if batch is not None:
                try:
                    await self._commit(batch)
                except BatchRefused as error:
                    await self._commit_parts(batch, effects, units, error)
                    continue
                self._engine.committed(batch)
            if self._stopped:
                break
            self._act(effects)
        self._settle()

    def _settle(self) -> None:
        self._busy = False
        self._make_room()
        waiters, self._idle_waiters = self._idle_waiters, []
        for waiter in waiters:
            waiter.callback(None)

    async def _commit(self, batch: Batch) -> None:
        """Store `batch`, however long that takes; raises `BatchRefused` or `EpochLost`."""
        pause_s = _FIRST_PAUSE_S
        while True:
            watch = self._clock.call_later(SLOW_S, self._set_away, _SLOW)
            try:
                await self._writer.run(self._store.commit, batch)
            except StoreUnavailable as error:
                self._clock.cancel(watch)
                if not await self._find_out(batch, error, pause_s):
                    pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                    continue
            finally:
                self._clock.cancel(watch)
            self._committed_at_s = self._clock.monotonic()
            self.batches += 1
            self._set_away(None)
            return

    async def _find_out(self, batch: Batch, error: StoreUnavailable, pause_s: float) -> bool:
        """Wait for the store to return, at least `pause_s`, and tell whether it has `batch`.

        A store may answer reads and yet take nothing, with a full disk or as a copy that only reads: so the pauses of
        one batch grow.
        """
        now_s = self._clock.monotonic()
        if now_s - self._told_at_s >= _TOLD_EVERY_S:
            self._told_at_s = now_s
            text = "the store did not answer batch {number}: {error}"
            self.log.warn(text, number=batch.number, error=error.message)  # noqa: G010
        leader = await self._persist(self._writer, self._store.leader, pause_s=pause_s, why=error.message)
        if leader.epoch != batch.epoch or leader.batch not in (batch.number, batch.number - 1):
            raise EpochLost(f"epoch {leader.epoch} leads, batch {leader.batch}; this was {batch.epoch}")
        return bool(leader.batch == batch.number)

    async def _persist(
        self, threads: Threads, read: Callable[..., Any], *args: Any, pause_s: float = 0.0, why: str = ""
    ) -> Any:
        """Return what the store says, however long it is away; `EpochLost` when the term ends meanwhile."""
        while not self._stopped:
            if pause_s:
                self._set_away(why)
                await self._clock.sleep(pause_s)
            try:
                return await threads.run(read, *args)
            except StoreUnavailable as error:
                why = error.message
                pause_s = min(max(pause_s * 2, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        raise EpochLost("the term has ended")

    def _set_away(self, why: str | None) -> None:
        if self.is_away is (why is None):
            self.is_away = why is not None
            self._make_room()
            self._tell_away(why)

    async def _commit_parts(
        self, batch: Batch, effects: Sequence[Effect], units: dict[str, Key], error: BatchRefused
    ) -> None:
        """Commit a refused batch event by event, so that only the offender fails."""
        text = "the store refused batch {number}: {error}"
        self.log.warn(text, number=batch.number, error=error.message)  # noqa: G010
        number = batch.number - 1
        for part in split(batch, effects, units):
            part.batch.number = number + 1
            try:
                await self._commit(part.batch)
            except BatchRefused as refusal:
                await self._give_up(part, refusal)
                continue
            number += 1
            self._act(part.effects)
        self._engine.renumber(number)
        counts = await self._persist(self._reader, self._store.open_counts)
        self._engine.recount(counts, await self._persist(self._reader, self._store.lanes))
        self._set_away(None)

    async def _give_up(self, part: Part, error: BatchRefused) -> None:
        self.log.error("the store refused {key}: {error}", key=part.key, error=error.message)
        runs: dict[str, tuple[RunRow | None, Sequence[TaskRow]]] = {}
        for run_id in part.run_ids():
            runs[run_id] = (await self._persist(self._reader, self._store.run, run_id), await self._tasks_of(run_id))
        jobs = {name: await self._persist(self._reader, self._store.job, name) for name in part.job_names()}
        self._engine.refused(part, error, runs, jobs, self._clock.moment())

    async def _tasks_of(self, run_id: str) -> list[TaskRow]:
        rows: list[TaskRow] = []
        cursor: str | None = None
        while True:
            page = await self._persist(self._reader, self._store.tasks_of, run_id, _PAGE, cursor, {})
            rows += page.items
            cursor = page.next
            if cursor is None:
                return rows
