"""A task, one shard of one run: its states, and the only table that changes them.

Everything that affects a task's state lives in this file. A pair (state, event) that the table lacks raises
`InvalidTransition` with the task's story: a silent detour would hide a bug.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from dsched.errors import InvalidTransition

if TYPE_CHECKING:
    from dsched.model.run import Run

__all__ = ["OPEN", "TERMINAL", "TRANSITIONS", "Outcome", "Task", "TaskEvent", "TaskState"]


class TaskState(StrEnum):
    """Where a task is, as stored and shown."""

    PENDING = "PENDING"
    DISPATCHED = "DISPATCHED"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    CANCELLED = "CANCELLED"

    # Enum's own __hash__ is a Python function; states are looked up several times a task.
    __hash__ = str.__hash__


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCESS = "SUCCESS"
    ERROR = "ERROR"
    TIMEOUT = "TIMEOUT"
    LOST = "LOST"
    REJECTED = "REJECTED"
    UNDELIVERED = "UNDELIVERED"
    CANCELLED = "CANCELLED"

    __hash__ = str.__hash__


class TaskEvent(StrEnum):
    """What happens to a task."""

    DISPATCH = "dispatch"  # a new attempt is given to a worker
    START = "start"  # the worker says that the handler runs
    RETURN = "return"  # the attempt never started: rejected or undelivered
    RETRY = "retry"  # the attempt ended badly and another is allowed
    SUCCEED = "succeed"
    FAIL = "fail"
    EXPIRE = "expire"  # its time was up and no other attempt is allowed
    CANCEL = "cancel"  # a person asked
    DROP = "drop"  # a cancelled attempt ended, however

    __hash__ = str.__hash__


_S, _E = TaskState, TaskEvent

OPEN = frozenset({_S.PENDING, _S.DISPATCHED, _S.RUNNING, _S.CANCELLING})
TERMINAL = frozenset(TaskState) - OPEN

TRANSITIONS: dict[TaskState, dict[TaskEvent, TaskState]] = {
    _S.PENDING: {
        _E.DISPATCH: _S.DISPATCHED,
        _E.CANCEL: _S.CANCELLED,
    },
    _S.DISPATCHED: {
        _E.START: _S.RUNNING,
        _E.RETURN: _S.PENDING,
        _E.RETRY: _S.PENDING,
        _E.SUCCEED: _S.SUCCESS,
        _E.FAIL: _S.FAILED,
        _E.EXPIRE: _S.TIMEOUT,
        _E.CANCEL: _S.CANCELLING,
    },
    _S.RUNNING: {
        _E.RETRY: _S.PENDING,
        _E.SUCCEED: _S.SUCCESS,
        _E.FAIL: _S.FAILED,
        _E.EXPIRE: _S.TIMEOUT,
        _E.CANCEL: _S.CANCELLING,
    },
    _S.CANCELLING: {
        _E.START: _S.CANCELLING,
        _E.DROP: _S.CANCELLED,
    },
    _S.SUCCESS: {},
    _S.FAILED: {},
    _S.TIMEOUT: {},
    _S.CANCELLED: {},
}


class Task:
    """The row of one task in memory.

    Only `apply` assigns the state. Times are milliseconds UTC. `attempt` is the number of the current (or last)
    attempt; `retry_count` counts retries granted, attempts that never started are not among them.
    """

    __slots__ = (
        "attempt",
        "avoid",
        "deadline_ms",
        "error",
        "fence",
        "finished_ms",
        "incarnation",
        "item",
        "job_id",
        "live",
        "lost_count",
        "message",
        "not_before_ms",
        "queued",
        "result",
        "retry_count",
        "run",
        "started_ms",
        "state",
        "stored_state",
        "task_id",
        "timer",
        "touched",
        "version",
        "worker_id",
    )

    def __init__(self, job_id: int, task_id: str, run: "Run", item: int) -> None:
        self.job_id = job_id
        self.task_id = task_id
        self.run = run
        self.item = item
        self.state = TaskState.PENDING
        self.attempt = 0
        self.retry_count = 0
        self.lost_count = 0
        self.worker_id: str | None = None
        self.incarnation: str | None = None
        self.fence = 0
        self.not_before_ms: int | None = None
        self.started_ms: int | None = None
        self.deadline_ms: int | None = None
        self.finished_ms: int | None = None
        self.result: str | None = None
        self.message: str | None = None
        self.error: str | None = None
        self.version = 0
        # Book-keeping of the engine, never stored: the live attempt, the timer, workers to avoid until when,
        # where the task waits, whether this batch already holds it, and the state that is committed.
        self.live: Any = None
        self.timer: Any = None
        self.avoid: dict[str, tuple[float, int]] | None = None
        self.queued = False
        self.touched = False
        self.stored_state: TaskState | None = None

    def apply(self, event: TaskEvent) -> TaskState:
        """Change the state as the table says and return the new one; raises `InvalidTransition`."""
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            raise InvalidTransition(self.story(event), task_id=self.task_id, state=str(self.state), event=str(event))
        self.state = after
        return after

    def story(self, event: TaskEvent) -> str:
        """Return one line that tells what the task has been through, for an error message."""
        return (
            f"task {self.task_id} cannot {event.value} in state {self.state.value}: attempt {self.attempt} "
            f"(fence {self.fence}) on worker {self.worker_id or 'none'}, {self.retry_count} retries, "
            f"row version {self.version}"
        )
