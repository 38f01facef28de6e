"""What is left after a round: the rows of the store, and the lines that the handlers wrote."""

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

__all__ = ["Attempt", "Evidence", "Leader", "Line", "Log", "Run", "Task", "Trace", "wall_ms", "without_cpu_s"]


class Run(NamedTuple):
    run_id: str
    job: str
    due: int | None
    status: str
    reason: str | None
    sharding_total: int


class Task(NamedTuple):
    task_id: str
    run_id: str
    sharding_item: int
    status: str
    target_worker: str | None
    attempt: int
    fence: int
    result: str | None


class Attempt(NamedTuple):
    """An attempt that ended without ending its task."""

    task_id: str
    number: int
    worker_id: str
    outcome: str
    started_at: int | None
    finished_at: int
    message: str | None


class Log(NamedTuple):
    task_id: str | None
    at: int
    kind: str
    worker_id: str | None
    attempt: int | None
    message: str


class Leader(NamedTuple):
    epoch: int
    batch: int
    address: str
    last_fence: int


@dataclass(frozen=True, slots=True)
class Line:
    """What a handler wrote. `at_s` is the machine's monotonic time."""

    event: str
    task: str
    attempt: int
    fence: int
    worker: str
    pid: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything about the runs that were created in one round."""

    runs: Sequence[Run]
    tasks: Sequence[Task]
    attempts: Sequence[Attempt]
    logs: Sequence[Log]
    connected_ms: dict[str, int]
    """When each worker registered last."""
    lines: Sequence[Line]


def wall_ms(mono_s: float) -> int:
    """Return the wall time, as the store writes it, of an instant of monotonic time."""
    return round((time.time() - time.monotonic() + mono_s) * 1000)


def without_cpu_s(pid: int) -> float:
    """Return how long a process has waited for a CPU so far, because the machine had other things to do."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0  # Not every kernel counts.


class Trace:
    """The file that the handlers of one cluster write to, read piece by piece."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._lines: list[Line] = []

    def lines(self) -> list[Line]:
        """Return every line, but for those that were forgotten."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read)
                whole = file.read()
            whole = whole[: whole.rfind(b"\n") + 1]
            self._read += len(whole)
            self._lines += [Line(**json.loads(line)) for line in whole.splitlines()]
        return self._lines

    def forget(self, task_ids: Collection[str]) -> None:
        """Drop the lines of tasks that are judged."""
        self._lines = [line for line in self._lines if line.task not in task_ids]
