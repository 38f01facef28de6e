"""Reads runs that wait in the store into the engine of one term, page by page, as room is made for them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger

from dsched.clock import Clock
from dsched.core.threads import Threads
from dsched.engine.backlog import Page
from dsched.engine.engine import Engine
from dsched.errors import StoreUnavailable
from dsched.model.instant import Moment
from dsched.model.rows import ParkedRun
from dsched.store.interface import Store

__all__ = ["Paging"]

PORTION_TASKS = 250
"""So many tasks are taken in one turn: a few milliseconds."""
RETRY_S = 1.0


class Paging:
    """One read at a time. Reactor thread only.

    `tell` gives an event to the engine, `failed` is called when that can go on no longer.
    """

    log = Logger()

    def __init__(
        self, engine: Engine, store: Store, reader: Threads, clock: Clock, tell: Callable[..., None],
        failed: Callable[[Exception], None],
    ) -> None:  # fmt: skip
        self._engine = engine
        self._store = store
        self._reader = reader
        self._clock = clock
        self._tell = tell
        self._failed = failed
        self._lock = DeferredLock()
        self._stopped = False

    def go_on(self) -> None:
        """Read what is wanted, unless a read is under way. Cheap where nothing is parked."""
        if self._lock.locked or self._stopped:
            return
        page = self._engine.next_page()
        if page is None:
            return
        self._lock.acquire()
        Deferred.fromCoroutine(self._bring(page)).addErrback(self._give_up)

    def stop(self) -> None:
        """Read nothing more."""
        self._stopped = True

    async def take_in(self, run_id: str) -> None:
        """Take one run into memory, if it waits in the store; raises `StoreUnavailable`."""
        await self._lock.acquire()
        try:
            self._engine.backlog.begin_read()
            parked = await self._reader.run(self._store.parked_run, run_id)
            if parked is not None:
                self._tell(self._engine.take_parked, parked)
        finally:
            self._release()

    async def _bring(self, page: Page) -> None:
        try:
            found = await self._read(page)
            for portion in _portions(found):
                self._tell(self._engine.paged_in, page, portion)
                await self._clock.sleep(0.0)
            self._tell(self._engine.page_ended, page, not found or found[-1].seq >= page.last)
        except StoreUnavailable as error:
            self.log.warn("what waits in the store could not be read: {error}", error=error.message)  # noqa: G010
            await self._clock.sleep(RETRY_S)
        self._release()

    async def _read(self, page: Page) -> Sequence[ParkedRun]:
        span = (page.after, page.last, page.tasks)
        if page.lane is None:
            found = await self._reader.run(self._store.parked_of_job, page.job, *span)
        else:
            found = await self._reader.run(self._store.parked, page.lane, *span)
        rows: Sequence[ParkedRun] = found
        return rows

    def _release(self) -> None:
        if self._stopped:
            self._lock.release()
        else:
            self._tell(self._free)

    def _free(self, now: Moment) -> None:
        """Let the next read begin, which the event that this is asks for.

        Told like what was read, and so after it: while the store is away both wait, and a read that began meanwhile
        would make the engine forget what has left the backlog since the first one.
        """
        self._lock.release()

    def _give_up(self, failure: Any) -> None:
        if not self._stopped:
            self.log.failure("what waits in the store cannot be read", failure)
            self._failed(failure.value)


def _portions(found: Sequence[ParkedRun]) -> Iterator[Sequence[ParkedRun]]:
    """Cut a page into portions of some tasks each, at least one run."""
    start = tasks = 0
    for index, parked in enumerate(found):
        if tasks >= PORTION_TASKS:
            yield found[start:index]
            start, tasks = index, 0
        tasks += parked.run.sharding_total
    if start < len(found):
        yield found[start:]
