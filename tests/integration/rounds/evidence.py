"""What is left after a round: the rows of the store, and the lines that the handlers wrote."""

import json
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "Attempt",
    "Evidence",
    "Leader",
    "Line",
    "Log",
    "Run",
    "StoreFile",
    "Task",
    "Trace",
    "wall_ms",
    "without_cpu_s",
]


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


class StoreFile:
    """The SQLite file of one cluster, read with plain SQL."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=30)) as database:
            yield database

    def count_open(self, since_ms: int, until_ms: int) -> int:
        """Count the runs created in that time that have not ended. Only while a core has the file open."""
        with self._open() as database:
            [count] = database.execute(
                "SELECT COUNT(*) FROM run WHERE created_at >= ? AND created_at < ? AND finished_at IS NULL",
                (since_ms, until_ms),
            ).fetchone()
            return int(count)

    def leader(self) -> Leader:
        """Return who leads. Only while a core has the file open."""
        with self._open() as database:
            return Leader(*database.execute("SELECT epoch, address, last_fence FROM leader").fetchone())

    def highest_fence(self) -> int:
        """Return the fence of the last dispatch. Only while a core has the file open."""
        with self._open() as database:
            return int(database.execute("SELECT MAX(fence) FROM schedule_job").fetchone()[0] or 0)

    def at_the_kill(self) -> tuple[int, int]:
        """Return how many tasks are in flight, and the highest fence.

        Reads a copy: opening and closing the file itself would tidy up after the dead core, which is what the next one
        must be able to do.
        """
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy.db"
            for suffix in ("", "-wal"):
                source = self.path.with_name(self.path.name + suffix)
                if source.exists():
                    shutil.copyfile(source, copy.with_name(copy.name + suffix))
            with closing(sqlite3.connect(copy)) as database:
                [count, fence] = database.execute(
                    "SELECT SUM(status IN ('DISPATCHED', 'RUNNING', 'CANCELLING')), MAX(fence) FROM schedule_job"
                ).fetchone()
            return int(count or 0), int(fence or 0)

    def evidence(self, since_ms: int, until_ms: int, lines: Sequence[Line]) -> Evidence:
        """Return what there is about the runs created in that time."""
        period = (since_ms, until_ms)
        of_period = "IN (SELECT run_id FROM run WHERE created_at >= ? AND created_at < ?)"
        of_tasks = f"IN (SELECT task_id FROM schedule_job WHERE run_id {of_period})"
        with self._open() as database:
            database.execute("BEGIN")  # One state of everything.

            def rows(columns: Sequence[str], table: str, condition: str) -> list[tuple]:
                query = f"SELECT {', '.join(columns)} FROM {table} WHERE {condition}"
                return database.execute(query, period).fetchall()

            return Evidence(
                runs=[Run(*row) for row in rows(Run._fields, "run", f"run_id {of_period}")],
                tasks=[Task(*row) for row in rows(Task._fields, "schedule_job", f"run_id {of_period}")],
                attempts=[Attempt(*row) for row in rows(Attempt._fields, "attempt", f"task_id {of_tasks}")],
                logs=[Log(*row) for row in rows(Log._fields, "log", f"run_id {of_period} ORDER BY id")],
                connected_ms=dict(database.execute("SELECT worker_id, connected_at FROM worker")),
                lines=lines,
            )

    def fired(self, job: str) -> list[tuple[int, str | None]]:
        """Return the due instants of a job that have a run, ascending, each with the run's reason."""
        with self._open() as database:
            query = "SELECT due, reason FROM run WHERE job = ? AND due IS NOT NULL ORDER BY due"
            return database.execute(query, (job,)).fetchall()
