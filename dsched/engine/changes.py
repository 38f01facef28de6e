"""What the engine hands over: row changes for the store (`Batch`), and effects for the shell.

Effects run only when the rows that they depend on are committed; the shell keeps that promise by taking both together
with `Engine.take_batch`.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dsched.model.rows import AttemptRow, JobRow, LogRow, RunRow, TaskRow, WorkerRow

__all__ = ["Answer", "Batch", "Close", "Effect", "RunEnded", "Send", "Unit"]

Unit = Any


class Send(NamedTuple):
    """Send one encoded frame to a session."""

    session_id: int
    data: bytes


class Answer(NamedTuple):
    """Answer the request that was given `token`: with `value`, or with `error`."""

    token: Any
    value: Any
    error: Exception | None = None


class Close(NamedTuple):
    """Close a session, after what was sent to it before; `reason` is for the log."""

    session_id: int
    reason: str


class RunEnded(NamedTuple):
    """A run has reached its terminal state: wake whoever waits for it."""

    run_id: str


Effect = Send | Answer | Close | RunEnded


@dataclass(slots=True)
class Batch:
    """All row changes of one transaction.

    `*_new` are complete rows to insert; `*_set` are complete rows whose mutable columns replace those of the row with
    the same key and version `row.version - 1`. Tasks are in ascending order of `job_id`, runs of `run_id` for updates.
    The first statement of the transaction moves the leader row from `number - 1` to `number` under `epoch`.
    """

    epoch: int
    number: int
    last_id: int
    last_fence: int
    jobs_new: list[JobRow] = field(default_factory=list)
    jobs_set: list[JobRow] = field(default_factory=list)
    jobs_gone: list[str] = field(default_factory=list)
    runs_new: list[RunRow] = field(default_factory=list)
    runs_set: list[RunRow] = field(default_factory=list)
    tasks_new: list[TaskRow] = field(default_factory=list)
    tasks_set: list[TaskRow] = field(default_factory=list)
    attempts: list[AttemptRow] = field(default_factory=list)
    workers: list[WorkerRow] = field(default_factory=list)
    logs: list[LogRow] = field(default_factory=list)

    def is_empty(self) -> bool:
        """Tell whether there is nothing to write but the leader row."""
        return not (
            self.runs_new or self.runs_set or self.tasks_new or self.tasks_set or self.attempts or self.logs
            or self.jobs_new or self.jobs_set or self.jobs_gone or self.workers
        )  # fmt: skip
