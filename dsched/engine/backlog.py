"""Which runs wait in the store instead of in memory, and when they come in.

What is parked is a whole run of which nothing was ever dispatched: no worker knows of it, so what workers report is in
memory or has ended, as ever. A new run is parked when too much waits in memory already, or when older runs of its lane
(group, handler, priority) are parked, so that their order stays. It is stored like any other, with a row in the backlog
beside it, and leaves the memory once that is committed. The shell asks with `next_page` what to read and hands it over
in portions. The row goes with the commit in which its run leaves PENDING.

Three numbers per lane tell where it is: all runs up to `after` were read, those up to `newest` are committed, and those
up to `decided` are parked or about to be. A page never reaches beyond `newest`, which moves only when a whole batch is
committed: parts of a refused batch come in another order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsched.engine.changes import Batch
from dsched.engine.dispatch import Dispatcher
from dsched.engine.state import State
from dsched.model.instant import Moment
from dsched.model.rows import LaneRow
from dsched.model.run import Run

__all__ = ["Backlog", "Lane", "Page"]

LaneKey = tuple[str, str, int]

_UNSTORED_TASKS = 4_000
"""With more changed tasks than this not yet in a batch, nothing is read that may only have to be cancelled."""


class Lane:
    """Where the backlog of one handler, priority and group is. Numbers are those of `BacklogRow.seq`."""

    __slots__ = ("after", "decided", "key", "newest")

    def __init__(self, key: LaneKey, after: int, newest: int, decided: int) -> None:
        self.key = key
        self.after = after
        self.newest = newest
        self.decided = decided


@dataclass(frozen=True, slots=True)
class Page:
    """What to read next: runs of a lane or, where that is None, of a deleted job, above `after` and up to `last`."""

    lane: LaneKey | None
    job: str
    after: int
    last: int
    tasks: int


class Backlog:
    """Knows what is parked. Where nothing is, it costs a look into an empty dictionary."""

    def __init__(self, state: State, dispatcher: Dispatcher) -> None:
        self._state = state
        self._settings = state.settings
        self._most_tasks = state.settings.waiting_tasks
        self._most_bytes = state.settings.waiting_bytes
        self._dispatcher = dispatcher
        self.lanes: dict[LaneKey, Lane] = {}
        self.doomed: dict[str, tuple[int, int]] = {}
        """Deleted jobs: how far their parked runs were read, and the last that is theirs."""
        self._committed = state.batch_number
        self._left: dict[str, int] = {}
        """Runs that left PENDING in a batch that a page under way may not have seen, by its number."""

    # -- parking

    def parks(self, run: Run) -> bool:
        """Tell whether a new run, whose tasks are in memory already, waits in the store; if so, count it in its
        lane."""
        if not self.lanes and not self._is_full():
            return False
        snapshot = run.snapshot
        key = (snapshot.group, snapshot.handler, snapshot.priority)
        lane = self.lanes.get(key)
        if lane is None:
            if not self._is_full():
                return False
            waiting = self._dispatcher.waiting(*key)
            if not waiting or waiting + run.sharding_total <= self._least():
                return False
            lane = self.lanes[key] = Lane(key, run.tasks[0].job_id - 1, 0, 0)
        run.parked = True
        run.seq = lane.decided = run.tasks[0].job_id
        return True

    def _is_full(self) -> bool:
        state = self._state
        return len(state.tasks) > self._most_tasks or state.params_size > self._most_bytes

    def _least(self) -> int:
        """Return how many waiting tasks each lane may have however much there is of others."""
        if self._state.params_size > self._settings.waiting_bytes:
            return 1
        return max(1, min(self._settings.lane_tasks, self._settings.waiting_tasks // (len(self.lanes) + 1)))

    def release(self, run: Run | None) -> None:
        """Forget a parked run that was kept in memory, now that nobody needs it there.

        One that has changed since it was created stays until its page comes: a read under way may hold its old row.
        """
        if run is None or not run.parked or run.touched or run.version != 1:
            return
        if run.run_id not in self._state.parking:
            self._state.drop_run(run)

    def place(self, run: Run, now: Moment) -> None:
        """Let a parked run wait in memory."""
        run.parked = False
        for task in run.tasks:
            self._dispatcher.place(task, now)

    # -- commits

    def left(self, batch: Batch) -> None:
        """Note what leaves the backlog with a batch that is to be committed."""
        for key in batch.backlog_gone:
            self._left[key.run_id] = batch.number

    def committed(self, batch: Batch) -> None:
        """A whole batch is stored."""
        self._committed = batch.number
        for row in batch.backlog_new:
            lane = self.lanes.get((row.group_name, row.handler, row.priority))
            if lane is not None:
                lane.newest = max(lane.newest, row.seq)
        self._settle()

    def recount(self, rows: Iterable[LaneRow], number: int) -> None:
        """Parts of a batch were refused, and `number` is the last that was not: take from the store what it has."""
        self._committed = number
        for row in rows:
            key = (row.group_name, row.handler, row.priority)
            lane = self.lanes.get(key)
            if lane is None:
                # All of it should be in memory. It is read again, and what is there is passed over.
                lane = self.lanes[key] = Lane(key, row.first - 1, row.last, row.last)
            lane.newest = max(lane.newest, row.last)
            lane.decided = max(lane.decided, row.last)
        self._settle()

    def _settle(self) -> None:
        """Drop the runs that are now parked in the store."""
        parking, self._state.parking = self._state.parking, {}
        for run in parking.values():
            if self._state.runs.get(run.run_id) is run and run.parked and not run.touched and not self._is_needed(run):
                self._state.drop_run(run)

    def _is_needed(self, run: Run) -> bool:
        """Tell whether a parked run stays in memory: further dues may be counted on it, or it is to be cancelled."""
        job = self._state.jobs.get(run.snapshot.job)
        return job is None or job.waiting_run == run.run_id or self.is_doomed(run)

    # -- deleted jobs

    def doom(self, job: str) -> None:
        """Have all parked runs of a job read, which is deleted; a later job of the same name is another."""
        if self.lanes:
            self.doomed[job] = (0, self._state.ids.last)

    def is_doomed(self, run: Run) -> bool:
        """Tell whether the job of a parked run was deleted."""
        name = run.snapshot.job
        return name not in self._state.jobs or (name in self.doomed and run.seq <= self.doomed[name][1])

    # -- pages

    def load(self, rows: Sequence[LaneRow], jobs: Iterable[str]) -> None:
        """Take what the store has when a term begins; `jobs` are those with parked runs, existing or not."""
        for row in rows:
            key = (row.group_name, row.handler, row.priority)
            self.lanes[key] = Lane(key, row.first - 1, row.last, row.last)
        for job in jobs:
            if job not in self._state.jobs:
                self.doom(job)

    def next_page(self) -> Page | None:
        """Return what is wanted from the store now; until `page_ended` nothing else may be asked for."""
        if not self.lanes or (self.doomed and self._state.unstored_tasks() >= _UNSTORED_TASKS):
            return None
        is_full = self._is_full()
        least = self._least() if is_full else self._settings.page_below
        best: Lane | None = None
        fewest = least
        for lane in self.lanes.values():
            if lane.newest > lane.after:
                waiting = self._dispatcher.waiting(*lane.key)
                if waiting < fewest:
                    best, fewest = lane, waiting
        if best is None:
            if not self.doomed:
                return None
            job, (after, last) = next(iter(self.doomed.items()))
            return self._page(None, job, after, last, self._settings.page_tasks)
        tasks = min(self._settings.page_tasks, least - fewest) if is_full else self._settings.page_tasks
        return self._page(best.key, "", best.after, best.newest, tasks)

    def _page(self, lane: LaneKey | None, job: str, after: int, last: int, tasks: int) -> Page:
        self.begin_read()
        return Page(lane, job, after, last, tasks)

    def begin_read(self) -> None:
        """Something of the backlog is read from now on: forget what it will see itself."""
        self._left = {run_id: number for run_id, number in self._left.items() if number > self._committed}

    def has_left(self, run_id: str) -> bool:
        """Tell whether a run that was read as waiting has left the backlog meanwhile."""
        return run_id in self._left

    def read_up_to(self, page: Page, seq: int) -> None:
        """All runs of a page up to `seq` are in memory, or need not be."""
        if page.lane is None:
            if page.job in self.doomed and self.doomed[page.job][1] == page.last:
                self.doomed[page.job] = (seq, page.last)
            return
        lane = self.lanes.get(page.lane)
        if lane is not None:
            lane.after = max(lane.after, seq)

    def page_ended(self, page: Page, is_last: bool) -> None:
        """A page is in memory. `is_last`: there was no more between its ends."""
        if not is_last:
            return
        if page.lane is None:
            if page.job in self.doomed and self.doomed[page.job][1] == page.last:
                del self.doomed[page.job]
            return
        self.read_up_to(page, page.last)
        lane = self.lanes.get(page.lane)
        if lane is not None and lane.after >= lane.decided:
            del self.lanes[page.lane]
            if not self.lanes:
                self.doomed.clear()  # All that was parked is in memory.
