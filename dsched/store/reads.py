"""The reads of a store that speaks SQL, the same text in every dialect."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

from dsched.errors import StoreUnavailable
from dsched.model.rows import (
    AttemptRow,
    JobRow,
    LaneRow,
    LeaderRow,
    LogRow,
    ParkedRun,
    RunRow,
    TaskRow,
    WorkerRow,
)
from dsched.store.backlog import BacklogReads
from dsched.store.checking import Findings, examine
from dsched.store.interface import Active, Page
from dsched.store.paging import ALL_TASKS, JOBS, RUNS, Condition, Listing, is_storable, tasks_of
from dsched.store.rollups import Counters, summed
from dsched.store.scan import MOST_LOOKED_AT, Scanner
from dsched.store.statements import (
    ATTEMPT,
    JOB,
    LEADER,
    LOG,
    OPEN_TASK,
    RUN,
    TASK,
    WORKER,
    Bulk,
    Table,
    chunks,
    where_in,
)

__all__ = ["SqlReads", "leader_row"]

R = TypeVar("R", bound=tuple[Any, ...])
Execute = Callable[..., Any]

_FETCH: Final = 10_000
_MOST_IDS: Final = 512


class SqlReads(ABC):
    """Implement the reads of `dsched.store.interface.Store` over one method that lends a cursor.

    `mark` is how the dialect writes a parameter, `hint` how it is told which index to use, and `primary` what that of
    the key is called.
    """

    open_task = OPEN_TASK
    """The condition of open tasks, in words that the dialect has an index for."""
    looks_by_index = MOST_LOOKED_AT
    """How many rows a page of a list looks at through an index that is not the key's."""

    def __init__(self, mark: str, hint: str, primary: str = "") -> None:
        self._mark = mark
        self.scanner = Scanner(mark, hint, primary, self.looks_by_index)
        self._runs_by_id = where_in(RUN.select(), "run_id", mark)
        self._tasks_of_runs = where_in(TASK.select(self.by_index("schedule_job_run")), "run_id", mark)
        self._backlog = BacklogReads(mark, self.by_index)
        self._attempts_of = where_in(ATTEMPT.select(), "task_id", mark)
        self._statuses = where_in("SELECT task_id, status FROM schedule_job", "task_id", mark)
        self._task_counts = where_in(
            "SELECT run_id, status, count(*) FROM schedule_job", "run_id", mark, "GROUP BY run_id, status"
        )

    @staticmethod
    def by_index(name: str) -> str:
        """Return what makes a statement use an index, where the dialect's planner would not always know better."""
        return ""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Execute]:
        """Lend `execute(text, values) -> cursor` of the reader's connection, for one consistent look."""

    def leader(self) -> LeaderRow:
        """Return the leader row."""
        with self.reading() as execute:
            return leader_row(execute(LEADER.select()).fetchone())

    def load_active(self) -> Active:
        """Return every job, every run that is neither terminal nor in the backlog, and what is in the backlog."""
        backlog = self._backlog
        with self.reading() as execute:
            jobs = _fetch(execute, JOB, JOB.select())
            runs = backlog.open_runs(execute)
            tasks: list[TaskRow] = []
            for part in chunks([row.run_id for row in runs], _MOST_IDS):
                tasks += _fetch(execute, TASK, self._tasks_of_runs.text(len(part)), part)
            counts = self._open_counts(execute)
            parked_jobs = backlog.jobs(execute)
            lanes, newest = backlog.lanes(execute), backlog.newest_due(execute, parked_jobs, jobs)
        # By key; sorted here, because the database would sort whole rows, and spill them to disk.
        jobs.sort(key=lambda row: row.name)
        runs.sort(key=lambda row: row.run_id)
        tasks.sort(key=lambda row: row.job_id)
        return Active(jobs, runs, tasks, counts, lanes, parked_jobs, newest)

    def lanes(self) -> Sequence[LaneRow]:
        """Return what the backlog holds for each handler, priority and group."""
        with self.reading() as execute:
            return self._backlog.lanes(execute)

    def parked(self, lane: tuple[str, str, int], after: int, last: int, tasks: int) -> Sequence[ParkedRun]:
        """Return the next runs of a lane in the backlog."""
        with self.reading() as execute:
            return self._backlog.lane(execute, lane, after, last, tasks)

    def parked_of_job(self, job: str, after: int, last: int, tasks: int) -> Sequence[ParkedRun]:
        """Return the next runs of a job in the backlog."""
        with self.reading() as execute:
            return self._backlog.of_job(execute, job, after, last, tasks)

    def parked_run(self, run_id: str) -> ParkedRun | None:
        """Return a run, if it is in the backlog."""
        if not is_storable(run_id):
            return None
        with self.reading() as execute:
            return self._backlog.run(execute, run_id)

    def job(self, name: str) -> JobRow | None:
        """Return one job."""
        return self._one(JOB, "name", name)

    def jobs(self, limit: int, cursor: str | None, filters: Mapping[str, str]) -> Page[JobRow]:
        """List jobs by name."""
        return self._page(JOBS, limit, cursor, filters)

    def run(self, run_id: str) -> RunRow | None:
        """Return one run."""
        return self._one(RUN, "run_id", run_id)

    def runs_by_id(self, run_ids: Sequence[str]) -> Sequence[RunRow]:
        """Return those of `run_ids` that exist."""
        return [RunRow._make(row) for row in self._many(self._runs_by_id, run_ids)]

    def runs(self, limit: int, cursor: str | None, filters: Mapping[str, str]) -> Page[RunRow]:
        """List runs, newest first."""
        return self._page(RUNS, limit, cursor, filters)

    def task(self, task_id: str) -> TaskRow | None:
        """Return one task."""
        return self._one(TASK, "task_id", task_id)

    def tasks_of(self, run_id: str, limit: int, cursor: str | None, filters: Mapping[str, str]) -> Page[TaskRow]:
        """List the tasks of a run by shard item."""
        if not is_storable(run_id):
            return Page((), None)
        return self._page(tasks_of(run_id), limit, cursor, filters, (Condition("run_id", "=", run_id),))

    def tasks(self, limit: int, cursor: str | None, filters: Mapping[str, str]) -> Page[TaskRow]:
        """List tasks of all runs, newest first."""
        return self._page(ALL_TASKS, limit, cursor, filters)

    def task_counts(self, run_ids: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        """Return per run how many of its tasks are in each status."""
        counts: dict[str, dict[str, int]] = {}
        for run_id, status, count in self._many(self._task_counts, run_ids):
            counts.setdefault(run_id, {})[status] = count
        return counts

    def open_counts(self) -> Mapping[str, int]:
        """Return how many tasks there are in each status that is not terminal."""
        with self.reading() as execute:
            return self._open_counts(execute)

    def _open_counts(self, execute: Execute) -> dict[str, int]:
        text = f"SELECT status, count(*) FROM schedule_job WHERE {self.open_task} GROUP BY status"
        return dict(execute(text).fetchall())

    def stats(self, since_ms: int, until_ms: int, job: str | None) -> Counters:
        """Return how many tasks (of one job) ended, from the counters of the hours that begin in this span."""
        where = f"WHERE hour >= {self._mark} AND hour < {self._mark}"
        values: list[Any] = [since_ms, until_ms]
        if job is not None:
            if not is_storable(job):
                return Counters((), ())
            where += f" AND job = {self._mark}"
            values.append(job)
        with self.reading() as execute:
            found = [
                execute(f"SELECT {by}, status, sum(count) FROM rollup {where} GROUP BY {by}, status", values).fetchall()
                for by in ("hour", "job")
            ]
        return summed(*found)

    def examine(self) -> Findings:
        """Return how much is stored, and what is wrong with it."""
        return examine(self.reading, self.open_task)

    def attempts(self, task_id: str) -> Sequence[AttemptRow]:
        """Return the closed attempts of a task by number."""
        return self._all(ATTEMPT, "task_id", task_id, "ORDER BY number")

    def attempts_of(self, task_ids: Sequence[str]) -> Mapping[str, Sequence[AttemptRow]]:
        """Return per task its closed attempts by number; tasks without one are left out."""
        found: dict[str, list[AttemptRow]] = {}
        for row in sorted(map(AttemptRow._make, self._many(self._attempts_of, task_ids)), key=lambda row: row.number):
            found.setdefault(row.task_id, []).append(row)
        return found

    def logs(self, task_id: str) -> Sequence[LogRow]:
        """Return what is kept about a task, oldest first."""
        return self._all(LOG, "task_id", task_id, "ORDER BY id")

    def worker(self, worker_id: str) -> WorkerRow | None:
        """Return the last that was known of a worker."""
        return self._one(WORKER, "worker_id", worker_id)

    def statuses(self, task_ids: Sequence[str]) -> Mapping[str, str]:
        """Return the status of those of `task_ids` that exist."""
        return dict(self._many(self._statuses, task_ids))

    def _one(self, table: Table[R], column: str, value: str) -> R | None:
        rows = self._all(table, column, value)
        return rows[0] if rows else None

    def _all(self, table: Table[R], column: str, value: str, rest: str = "") -> list[R]:
        if not is_storable(value):
            return []
        with self.reading() as execute:
            return _fetch(execute, table, table.select(f"WHERE {column} = {self._mark} {rest}"), [value])

    def _many(self, bulk: Bulk, ids: Sequence[str]) -> list[tuple[Any, ...]]:
        """Run a statement for any number of ids, each once, in as many pieces as the dialect needs."""
        wanted = [name for name in dict.fromkeys(ids) if is_storable(name)]
        found: list[tuple[Any, ...]] = []
        with self.reading() as execute:
            for part in chunks(wanted, _MOST_IDS):
                found += execute(bulk.text(len(part)), part).fetchall()
        return found

    def _page(
        self,
        listing: Listing[R],
        limit: int,
        cursor: str | None,
        filters: Mapping[str, str],
        within: tuple[Condition, ...] = (),
    ) -> Page[R]:
        with self.reading() as execute:
            return self.scanner.read(execute, listing, limit, cursor, filters, within)


def leader_row(row: tuple[Any, ...] | None) -> LeaderRow:
    """Return the leader row; raises `StoreUnavailable` where somebody has deleted it, until it is back."""
    if row is None:
        raise StoreUnavailable("the table leader is empty: restore its row, or delete and restore the whole database")
    return LeaderRow._make(row)


def _fetch(execute: Execute, table: Table[R], text: str, values: Sequence[Any] = ()) -> list[R]:
    make: Callable[[tuple[Any, ...]], R] = table.row._make  # type: ignore[attr-defined]
    rows: list[R] = []
    cursor = execute(text, values)
    while part := cursor.fetchmany(_FETCH):
        rows.extend(map(make, part))
    return rows
