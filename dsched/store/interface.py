"""What dsched needs of a store. Every implementation passes the same conformance suite (`tests/store`).

All methods block and run in threads that the core owns: `commit` and the other writes in one, reads in `readers`
others, each with its own connection. Every method may raise `StoreUnavailable`; whether a write that raised it happened
is then unknown, and `leader()` tells.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from dsched.engine.changes import Batch
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
from dsched.store.rollups import Counters

__all__ = ["Active", "Page", "Pruned", "Store"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list; `next` is the cursor of the page after it, None at the end.

    However many rows are asked for, it has about 8 MiB of them at most, and at least one if there is any.
    """

    items: Sequence[T]
    next: str | None


@dataclass(frozen=True, slots=True)
class Active:
    """All that a starting leader needs: every job, and every run that is neither terminal nor in the backlog with all
    of its tasks. The closed attempts of those tasks are not needed to go on, so they are not here. Rows ascend by key.

    `counts` are the open tasks by status, those of the backlog too. Of the backlog there are the lanes, the names of
    all jobs with runs in it, which may be gone, and the newest run of each job's trigger, where that is in it.
    """

    jobs: Sequence[JobRow]
    runs: Sequence[RunRow]
    tasks: Sequence[TaskRow]
    counts: Mapping[str, int]
    lanes: Sequence[LaneRow] = ()
    parked_jobs: Sequence[str] = ()
    newest_due: Sequence[ParkedRun] = ()


class Pruned(NamedTuple):
    """What a portion of pruning deleted: runs, and tasks or other rows; `next` is where to go on, None at the end."""

    runs: int
    rows: int
    next: str | None


class Store(Protocol):
    """A durable store of jobs, runs, tasks and attempts, guarded by the epoch of the leader."""

    url: str
    readers: int
    """How many threads may read at once to some profit."""

    def open(self) -> None:
        """Connect, and bring the schema up to date under a lock. Refuses a schema newer than this code
        (`ConfigError`)."""

    def close(self) -> None:
        """Close every connection; idempotent."""

    # -- leadership

    def leader(self) -> LeaderRow:
        """Return the leader row; epoch 0 when nobody ever led."""

    def take_leadership(self, seen: LeaderRow, owner: str, address: str, admin_url: str) -> LeaderRow | None:
        """Raise the epoch by one if the row is still as `seen` (same epoch and renewal) and return the new row.

        Returns None when somebody else was faster. `batch` starts again at 0; `last_id` and `last_fence` are kept,
        raised to the highest stored `job_id` and fence where those are higher.
        """

    def resign(self, epoch: int) -> None:
        """Clear the owner, if `epoch` still leads: a core that stops in order lets the next one lead at once."""

    # -- writes

    def commit(self, batch: Batch) -> None:
        """Write all of `batch`, or nothing of it.

        Raises `EpochLost` when the leader row is not (`batch.epoch`, `batch.number - 1`); `BatchRefused` when the
        content is refused: a constraint, a value that cannot be stored, or a row of `*_set` whose version in the
        store is not the one before.
        """

    # -- old history

    def prune(
        self, before_ms: int, job: str | None, limit: int, after: str | None = None, *,
        epoch: int | None = None, dry: bool = False,
    ) -> Pruned:  # fmt: skip
        """Delete a portion of the runs (of one job) that were created, and have ended, before an instant, with their
        tasks, attempts and logs: at most `limit` runs and as many tasks, in one transaction.

        `after` is the `next` of the portion before. Rows without a run are never touched. `dry` only counts. Raises
        `EpochLost` when `epoch` is given and does not lead.
        """

    def prune_rest(self, before_ms: int, rollups_before_ms: int, limit: int, *, epoch: int | None = None) -> Pruned:
        """Delete a portion of the log lines and the lost workers from before an instant, and of older counters."""

    # -- the schema

    def versions(self) -> tuple[int, int]:
        """Return the version that the schema has (0: there is none), and the one that this code makes of it.

        May be called before `open`, and changes nothing.
        """

    # -- reads; each sees committed state only

    def load_active(self) -> Active:
        """Return what a leader has in memory when it starts."""

    def lanes(self) -> Sequence[LaneRow]:
        """Return what the backlog holds for each handler, priority and group."""

    def parked(self, lane: tuple[str, str, int], after: int, last: int, tasks: int) -> Sequence[ParkedRun]:
        """Return the next runs of a lane (group, handler, priority) in the backlog whose `seq` is above `after` and at
        most `last`, ascending.

        They have about `tasks` tasks together, fewer where they are large, and there is at least one run if there are
        any.
        """

    def parked_of_job(self, job: str, after: int, last: int, tasks: int) -> Sequence[ParkedRun]:
        """Return the next runs of a job in the backlog, likewise."""

    def parked_run(self, run_id: str) -> ParkedRun | None:
        """Return a run, if it is in the backlog."""

    def job(self, name: str) -> JobRow | None:
        """Return one job."""

    def jobs(self, limit: int, cursor: str | None, filters: Mapping[str, str]) -> Page[JobRow]:
        """List jobs by name. Filters: `group`, `enabled` ("true" or "false")."""

    def run(self, run_id: str) -> RunRow | None:
        """Return one run."""

    def runs_by_id(self, run_ids: Sequence[str]) -> Sequence[RunRow]:
        """Return those of `run_ids` (any number) that exist."""

    def runs(self, limit: int, cursor: str | None, filters: Mapping[str, str]) -> Page[RunRow]:
        """List runs, newest first (by creation, then id). Filters: `job`, `status`, `group`, and of the creation
        `since` and `until` (exclusive), RFC 3339 instants.

        A page looks at a bounded part of history, and may come back short, or empty, with `next` where it stopped.
        """

    def task(self, task_id: str) -> TaskRow | None:
        """Return one task."""

    def tasks_of(self, run_id: str, limit: int, cursor: str | None, filters: Mapping[str, str]) -> Page[TaskRow]:
        """List the tasks of a run by shard item. Filters: `status`, `worker`."""

    def tasks(self, limit: int, cursor: str | None, filters: Mapping[str, str]) -> Page[TaskRow]:
        """List tasks of all runs, newest first (by `job_id`). Filters: `job`, `status`, `worker`, `since`, `until`.

        Pages are bounded as those of `runs` are. Adopted rows, which have no run, are not in it.
        """

    def task_counts(self, run_ids: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        """Return per run how many of its tasks are in each status (for runs that are not terminal)."""

    def open_counts(self) -> Mapping[str, int]:
        """Return how many tasks there are in each status that is not terminal."""

    def stats(self, since_ms: int, until_ms: int, job: str | None) -> Counters:
        """Return how many tasks (of one job) ended, from the counters of the hours that begin in this span."""

    def attempts(self, task_id: str) -> Sequence[AttemptRow]:
        """Return the closed attempts of a task whose end did not end the task, by number."""

    def attempts_of(self, task_ids: Sequence[str]) -> Mapping[str, Sequence[AttemptRow]]:
        """Return `attempts` of each of `task_ids` that has any."""

    def logs(self, task_id: str) -> Sequence[LogRow]:
        """Return what is kept about a task, oldest first."""

    def worker(self, worker_id: str) -> WorkerRow | None:
        """Return the last that was known of a worker."""

    def statuses(self, task_ids: Sequence[str]) -> Mapping[str, str]:
        """Return the status of those of `task_ids` that exist."""
