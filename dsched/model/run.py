"""A run, one firing of a job, with the snapshot of the job that it was created from."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dsched.model.task import Task, TaskState

__all__ = ["Cause", "Run", "RunState", "Snapshot"]


class RunState(StrEnum):
    """Where a run is, as stored and shown."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    PARTIAL = "PARTIAL"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"

    __hash__ = str.__hash__

    @property
    def is_terminal(self) -> bool:
        """Tell whether the run has ended."""
        return self not in (RunState.PENDING, RunState.RUNNING)


class Cause(StrEnum):
    """Why a run exists."""

    SCHEDULE = "schedule"
    API = "api"
    CHILD = "child"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a run keeps of its job, so that a later edit touches later runs only. `text` is this, as JSON."""

    job: str
    version: int
    handler: str
    group: str
    timeout_s: int
    retries: int
    retry_backoff_s: float
    priority: int
    routing: str
    preload_keys: tuple[str, ...]
    text: str


class Run:
    """A run in memory. Times are milliseconds UTC; `params` is compact JSON text; `open` counts tasks not yet
    terminal."""

    __slots__ = (
        "cancel_requested",
        "cause",
        "created_ms",
        "due_ms",
        "finished_ms",
        "key",
        "open",
        "params",
        "parent",
        "parked",
        "reason",
        "request_hash",
        "run_id",
        "seq",
        "sharding_total",
        "snapshot",
        "started_ms",
        "state",
        "stored",
        "tasks",
        "touched",
        "unit",
        "version",
    )

    def __init__(
        self,
        run_id: str,
        snapshot: Snapshot,
        params: str,
        sharding_total: int,
        created_ms: int,
        *,
        cause: Cause,
        due_ms: int | None = None,
        key: str | None = None,
        parent: str | None = None,
        request_hash: str | None = None,
    ) -> None:
        self.run_id = run_id
        self.snapshot = snapshot
        self.params = params
        self.sharding_total = sharding_total
        self.created_ms = created_ms
        self.cause = cause
        self.due_ms = due_ms
        self.key = key
        self.parent = parent
        self.request_hash = request_hash
        self.state = RunState.PENDING
        self.reason: str | None = None
        self.started_ms: int | None = None
        self.finished_ms: int | None = None
        self.cancel_requested = False
        self.version = 0
        self.tasks: list[Task] = []
        self.open = sharding_total
        # Book-keeping of the engine: whether this batch holds the run, whether its row is committed, and what else
        # must be committed or refused together with it (the other runs of one request).
        self.touched = False
        self.stored = False
        self.unit: Any = None
        # The key of its row in the backlog, 0 without one; and whether its tasks wait there, and in no lane.
        self.seq = 0
        self.parked = False

    def counts(self) -> dict[str, int]:
        """Return how many tasks are in each state, states without tasks left out."""
        counts: dict[str, int] = {}
        for task in self.tasks:
            counts[task.state] = counts.get(task.state, 0) + 1
        return {str(state): count for state, count in counts.items()}

    def final_state(self) -> RunState:
        """Return how a run ends whose tasks are all terminal (design section 5, in this order)."""
        if self.cancel_requested:
            return RunState.CANCELLED
        succeeded = sum(task.state is TaskState.SUCCESS for task in self.tasks)
        if succeeded == len(self.tasks):
            return RunState.SUCCESS
        return RunState.PARTIAL if succeeded else RunState.FAILED
