"""The stores under test, and rows to put into them. A new kind of store joins by one more entry in `FACTORIES`."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dsched.engine.changes import Batch
from dsched.model.rows import AttemptRow, JobRow, LogRow, RunRow, TaskRow, WorkerRow
from dsched.store.interface import Store
from dsched.store.memory import MemoryStore
from dsched.store.sqlite import SqliteStore
from dsched.store.url import open_store

FACTORIES: dict[str, Callable[[pytest.FixtureRequest], Store]] = {
    "memory": lambda request: MemoryStore(),
    "sqlite": lambda request: SqliteStore(str(request.getfixturevalue("tmp_path") / "store.db")),
    "mariadb": lambda request: open_store(request.getfixturevalue("mysql_url")),
}


class Rows:
    """Makes complete rows; what a test does not care about gets a plain value."""

    def job(self, name: str = "census", **changed: Any) -> JobRow:
        return JobRow(name, "default", '{"handler":"census"}', 1, 1, None, 1000, 1000)._replace(**changed)

    def run(self, run_id: str = "census~1", **changed: Any) -> RunRow:
        return RunRow(
            run_id, run_id.replace("@", "~").split("~")[0], None, "RUNNING", None, "api", "1", "hash", None, None,
            "default", 0, 1, '{"handler":"census"}', "null", 1, 0, None, 1000, None, None, 1,
        )._replace(**changed)  # fmt: skip

    def task(self, job_id: int, run_id: str = "census~1", item: int = 0, **changed: Any) -> TaskRow:
        at = "2026-11-30 21:22:47.123"
        return TaskRow(
            job_id, f"{run_id}:{item}", "census", "null", 1, item, 30, None, "PENDING", 0, None, at, at, run_id,
            "default", 0, None, 0, 0, 0, None, None, None, None, None, None, 1,
        )._replace(**changed)  # fmt: skip

    def attempt(self, task_id: str, number: int, **changed: Any) -> AttemptRow:
        return AttemptRow(task_id, number, "w1", "i1", 7, "ERROR", "no", 1, 2)._replace(**changed)

    def worker(self, worker_id: str = "w1", **changed: Any) -> WorkerRow:
        return WorkerRow(worker_id, "i1", "default", "host", 8, 1, '["census"]', "[]", "ready", 1, 2)._replace(
            **changed
        )

    def log(self, task_id: str | None, at: int, **changed: Any) -> LogRow:
        return LogRow(task_id, None, at, "STALE", "w1", 1, "late")._replace(**changed)


class Leader:
    """Leads a store and commits batch after batch."""

    def __init__(self, store: Store) -> None:
        self.store = store
        row = store.take_leadership(store.leader(), "owner", "127.0.0.1:8080", "http://127.0.0.1:8081")
        assert row is not None
        self.epoch = row.epoch
        self.number = 0

    def batch(self, **lists: Any) -> Batch:
        """Return the next batch without committing it."""
        return Batch(self.epoch, self.number + 1, 0, 0, **lists)

    def commit(self, **lists: Any) -> None:
        self.store.commit(self.batch(**lists))
        self.number += 1


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def leader_of() -> type[Leader]:
    return Leader


@pytest.fixture(params=sorted(FACTORIES))
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    store = FACTORIES[request.param](request)
    store.open()
    yield store
    store.close()


@pytest.fixture
def leader(store: Store) -> Leader:
    return Leader(store)
