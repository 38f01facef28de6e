"""The store of one cluster, read with plain SQL: a file of SQLite, or a database on a MariaDB server of its own."""

import shutil
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from dsched.testing.mariadb import MariaDbServer
from tests.integration.rounds.evidence import Attempt, Evidence, Leader, Line, Log, Run, Task

__all__ = ["RoundStore", "StoreFile", "StoreServer"]

_IN_FLIGHT = "SELECT SUM(status IN ('DISPATCHED', 'RUNNING', 'CANCELLING')), MAX(fence) FROM schedule_job"


class _Read(Protocol):
    def __call__(self, *queries: str) -> list[list[tuple[Any, ...]]]:
        """Return the rows of each query."""


class RoundStore:
    """What the rounds ask of a store. `read` returns the rows of each of its queries, all of one state."""

    def __init__(self, url: str | None, read: _Read) -> None:
        self.url = url
        self._read = read

    def count_open(self, since_ms: int, until_ms: int) -> int:
        """Count the runs created in that time that have not ended. Only while a core has the store open."""
        query = f"SELECT COUNT(*) FROM run WHERE {_created(since_ms, until_ms)} AND finished_at IS NULL"
        [[[count]]] = self._read(query)
        return int(count)

    def leader(self) -> Leader:
        """Return who leads. Only while a core has the store open."""
        [[row]] = self._read("SELECT epoch, batch, address, last_fence FROM leader")
        return Leader(*row)

    def highest_fence(self) -> int:
        """Return the fence of the last dispatch. Only while a core has the store open."""
        return self.in_flight()[1]

    def in_flight(self) -> tuple[int, int]:
        """Return how many tasks are in flight, and the highest fence. Only while a core has the store open."""
        [[[count, fence]]] = self._read(_IN_FLIGHT)
        return int(count or 0), int(fence or 0)

    def at_the_kill(self) -> tuple[int, int]:
        """Return how many tasks are in flight, and the highest fence, while nobody is there to change them."""
        raise NotImplementedError

    def evidence(self, since_ms: int, until_ms: int, lines: Sequence[Line]) -> Evidence:
        """Return what there is about the runs created in that time."""
        of_period = f"IN (SELECT run_id FROM run WHERE {_created(since_ms, until_ms)})"
        of_tasks = f"IN (SELECT task_id FROM schedule_job WHERE run_id {of_period})"
        runs, tasks, attempts, logs, workers = self._read(
            f"SELECT {', '.join(Run._fields)} FROM run WHERE run_id {of_period}",
            f"SELECT {', '.join(Task._fields)} FROM schedule_job WHERE run_id {of_period}",
            f"SELECT {', '.join(Attempt._fields)} FROM attempt WHERE task_id {of_tasks}",
            f"SELECT {', '.join(Log._fields)} FROM log WHERE run_id {of_period} ORDER BY id",
            "SELECT worker_id, connected_at FROM worker",
        )
        return Evidence(
            runs=[Run(*row) for row in runs],
            tasks=[Task(*row) for row in tasks],
            attempts=[Attempt(*row) for row in attempts],
            logs=[Log(*row) for row in logs],
            connected_ms={worker_id: connected_ms for worker_id, connected_ms in workers},
            lines=lines,
        )

    def fired(self, job: str) -> list[tuple[int, str | None]]:
        """Return the due instants of a job that have a run, ascending, each with the run's reason."""
        query = f"SELECT due, reason FROM run WHERE job = '{job}' AND due IS NOT NULL ORDER BY due"
        [rows] = self._read(query)
        return [(due, reason) for due, reason in rows]


def _created(since_ms: int, until_ms: int) -> str:
    return f"created_at >= {since_ms} AND created_at < {until_ms}"


class StoreFile(RoundStore):
    """The SQLite file of one cluster."""

    def __init__(self, path: Path) -> None:
        super().__init__(None, self._query)
        self.path = path

    def _query(self, *queries: str) -> list[list[tuple[Any, ...]]]:
        with closing(sqlite3.connect(self.path, timeout=30)) as database:
            database.execute("BEGIN")
            return [database.execute(query).fetchall() for query in queries]

    def at_the_kill(self) -> tuple[int, int]:
        """Read a copy: opening and closing the file itself would tidy up after the dead core.

        That is what the next core must be able to do.
        """
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy.db"
            for suffix in ("", "-wal"):
                source = self.path.with_name(self.path.name + suffix)
                if source.exists():
                    shutil.copyfile(source, copy.with_name(copy.name + suffix))
            return StoreFile(copy).in_flight()


class StoreServer(RoundStore):
    """The database of one cluster, on a server that is its own; only while the server runs."""

    def __init__(self, server: MariaDbServer, database: str) -> None:
        super().__init__(server.url(database), self._query)
        self._server = server
        self.database = database

    def _query(self, *queries: str) -> list[list[tuple[Any, ...]]]:
        # What the rounds ask in several queries is about what has ended: no transaction is needed for that.
        return [self._server.execute(query, database=self.database) for query in queries]

    def at_the_kill(self) -> tuple[int, int]:
        """Wait for the end of what the dead core had begun, of which the server may not know yet, and look."""
        self._query("SELECT epoch FROM leader FOR UPDATE")
        return self.in_flight()
