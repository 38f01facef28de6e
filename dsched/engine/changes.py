"""What the engine hands over: row changes for the store (`Batch`), and effects for the shell.

Effects run only when the rows that they depend on are committed; the shell keeps that promise by taking both together
with `Engine.take_batch`. Each effect has a `key`: what it belongs to, so that one refused row takes only its own
effects with it. A run's key is its id (or that of the request that it came with), a job's is `job:NAME`.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dsched.model.rows import AttemptRow, BacklogRow, JobRow, LogRow, RunRow, TaskRow, WorkerRow

__all__ = [
    "Ack", "Answer", "Batch", "Close", "DueRow", "Effect", "Key", "ParkedKey", "RunEnded", "Send", "job_key",
    "runs_told",
]  # fmt: skip

Key = str


def job_key(name: str) -> Key:
    """Return the key of what belongs to a job's own row."""
    return f"job:{name}"


class Send(NamedTuple):
    """Send encoded frames to a session."""

    session_id: int
    data: bytes
    key: Key | None


class Ack(NamedTuple):
    """Tell a worker that the result of an attempt is stored; many of them share a frame.

    `is_open`: it is a success that came too late, and its task goes on.
    """

    session_id: int
    task_id: str
    attempt: int
    key: Key | None
    is_open: bool = False


class Answer(NamedTuple):
    """Answer the request that was given `token`: with `value`, or with `error`."""

    token: Any
    value: Any
    error: Exception | None
    key: Key | None


class Close(NamedTuple):
    """Close a session, after what was sent to it before; `reason` is for the log."""

    session_id: int
    reason: str
    key: Key | None = None


class RunEnded(NamedTuple):
    """A run has reached its terminal state: wake whoever waits for it."""

    run_id: str
    key: Key | None


Effect = Send | Ack | Answer | Close | RunEnded


def runs_told(effect: Effect) -> set[Key]:
    """Return the runs that an effect tells a requester of: none of them may be in doubt when it happens."""
    value = effect.value if isinstance(effect, Answer) else None
    return {row.run_id for row in value} if isinstance(value, list) else set()


class DueRow(NamedTuple):
    """Move the next due of a job on, unless the job was edited since (another `version`)."""

    name: str
    version: int
    next_due: int | None


class ParkedKey(NamedTuple):
    """Names a row of the backlog."""

    seq: int
    run_id: str


@dataclass(slots=True)
class Batch:
    """All row changes of one transaction.

    `*_new` are complete rows to insert; `*_set` are complete rows whose mutable columns replace those of the row with
    the same key and version `row.version - 1`. Updates ascend by `job_id` or `run_id`. The first statement of the
    transaction moves the leader row from `number - 1` to `number` under `epoch`. `backlog_gone` are rows to delete, if
    they are there. `count_changes` is not stored: how
    many more or fewer tasks are in each state that is not terminal once this is committed.
    """

    epoch: int
    number: int
    last_id: int
    last_fence: int
    jobs_new: list[JobRow] = field(default_factory=list)
    jobs_set: list[JobRow] = field(default_factory=list)
    jobs_gone: list[str] = field(default_factory=list)
    dues: list[DueRow] = field(default_factory=list)
    runs_new: list[RunRow] = field(default_factory=list)
    runs_set: list[RunRow] = field(default_factory=list)
    tasks_new: list[TaskRow] = field(default_factory=list)
    tasks_set: list[TaskRow] = field(default_factory=list)
    attempts: list[AttemptRow] = field(default_factory=list)
    workers: list[WorkerRow] = field(default_factory=list)
    logs: list[LogRow] = field(default_factory=list)
    backlog_new: list[BacklogRow] = field(default_factory=list)
    backlog_gone: list[ParkedKey] = field(default_factory=list)
    count_changes: dict[str, int] = field(default_factory=dict)

    def is_empty(self) -> bool:
        """Tell whether there is nothing to write but the leader row."""
        return not (
            self.runs_new or self.runs_set or self.tasks_new or self.tasks_set or self.attempts or self.logs
            or self.jobs_new or self.jobs_set or self.jobs_gone or self.dues or self.workers or self.backlog_new
            or self.backlog_gone
        )  # fmt: skip
