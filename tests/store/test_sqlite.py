"""What is particular to SQLite: locks, full disks, broken connections, kills, plans."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dsched.engine.changes import Batch
from dsched.errors import ConfigError, StoreUnavailable
from dsched.model.run import RunState
from dsched.store.paging import JOBS, RUNS, TASKS, Condition
from dsched.store.sqlite import SqliteStore
from tests.store.plans import asked


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(str(path), busy_timeout_s=0.05)
    store.open()
    yield store
    store.close()


@pytest.fixture
def leader(store: SqliteStore, leader_of: Any) -> Any:
    return leader_of(store)


# -- opening


def test_settings_are_those_promised(store: SqliteStore) -> None:
    with store._writer.use() as database:
        names = ("journal_mode", "synchronous", "foreign_keys")
        assert [database.execute(f"PRAGMA {name}").fetchone()[0] for name in names] == ["wal", 2, 0]
    with store._reader.use() as database, pytest.raises(sqlite3.OperationalError, match="readonly"):
        database.execute("DELETE FROM job")


def test_normal_is_only_for_who_asks(path: Path) -> None:
    store = SqliteStore(str(path), synchronous="NORMAL")
    store.open()
    with store._writer.use() as database:
        assert database.execute("PRAGMA synchronous").fetchone()[0] == 1
    store.close()


def test_nothing_works_before_open_and_after_close(path: Path) -> None:
    store = SqliteStore(str(path))
    with pytest.raises(StoreUnavailable, match="closed"):
        store.leader()
    store.open()
    store.leader()
    store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        store.leader()
    assert not path.with_name("store.db-wal").exists()
    store.open()
    assert store.leader().epoch == 0
    store.close()


def test_a_path_may_look_like_anything(tmp_path: Path) -> None:
    path = tmp_path / "100%20 a?b#c ü'.db"
    store = SqliteStore(str(path))
    store.open()
    store.leader()
    store.close()
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder .*nowhere"):
        SqliteStore(str(tmp_path / "nowhere" / "store.db")).open()


def test_what_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"not a database at all " * 200)
    with pytest.raises(ConfigError, match="not a database"):
        SqliteStore(str(path)).open()
    assert path.read_bytes().startswith(b"not a database")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        SqliteStore(str(tmp_path)).open()


# -- trouble


def test_a_lock_of_another_process_means_unavailable_and_passes(
    store: SqliteStore, leader: Any, rows: Any, path: Path
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            leader.commit(jobs_new=[rows.job()])
        assert store.job("census") is None
        with pytest.raises(StoreUnavailable, match="locked"):
            store.take_leadership(store.leader(), "b", "", "")
        other.execute("ROLLBACK")
    leader.commit(jobs_new=[rows.job()])
    assert store.job("census") == rows.job()


def test_a_full_disk_means_unavailable_and_leaves_nothing(store: SqliteStore, leader: Any, rows: Any) -> None:
    with store._writer.use() as database:
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages + 5}")
    with pytest.raises(StoreUnavailable, match="full"):
        leader.commit(jobs_new=[rows.job("small"), rows.job("large", definition="x" * 200_000)])
    assert store.job("small") is None
    assert store.leader().batch == 0
    leader.commit(jobs_new=[rows.job("small")])
    with store._writer.use() as database:
        assert not database.in_transaction
        database.execute("PRAGMA max_page_count = 1000000")
    leader.commit(jobs_new=[rows.job("large", definition="x" * 200_000)])


@pytest.mark.parametrize("which", ["_writer", "_reader"])
def test_a_broken_connection_is_opened_again(store: SqliteStore, leader: Any, rows: Any, which: str) -> None:
    leader.commit(jobs_new=[rows.job()])
    with getattr(store, which).use() as database:
        pass
    database.close()
    with pytest.raises(StoreUnavailable, match="closed database"):
        leader.commit(jobs_new=[rows.job("b")]) if which == "_writer" else store.job("census")
    leader.commit(jobs_new=[rows.job("b")])
    assert store.job("b") == rows.job("b")


def test_a_file_that_vanished_is_no_empty_store(store: SqliteStore, leader: Any, rows: Any, path: Path) -> None:
    for file in path.parent.iterdir():
        file.unlink()
    for connection in (store._writer, store._reader):
        with connection.use() as database:
            database.close()
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            leader.commit(jobs_new=[rows.job()])
        with pytest.raises(StoreUnavailable):
            store.leader()
    assert not path.exists()


def test_any_exception_leaves_no_transaction(store: SqliteStore, leader: Any, rows: Any) -> None:
    with pytest.raises(TypeError):
        leader.commit(jobs_new=[rows.job()], runs_new=[5])
    with store._writer.use() as database:
        assert not database.in_transaction
    assert store.job("census") is None
    leader.commit(jobs_new=[rows.job()])


def test_who_commits_may_also_ask_who_leads(store: SqliteStore, leader: Any, rows: Any) -> None:
    # After a lost answer the committing thread reads the leader row, while the other thread may be in a long read.
    answers: list[int] = []
    with store.reading() as execute:
        execute("SELECT count(*) FROM job").fetchall()
        leader.commit(jobs_new=[rows.job()])
        thread = threading.Thread(target=lambda: answers.append(store.leader().batch))
        thread.start()
    thread.join(10)
    assert answers == [1]


def test_readers_see_whole_commits_only(store: SqliteStore, leader: Any, rows: Any) -> None:
    torn: list[Any] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            active = store.load_active()
            if len(active.tasks) != 20 * len(active.runs):
                torn.append((len(active.runs), len(active.tasks)))

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(30):
        run_id = f"census~{number:03}"
        tasks = [rows.task(number * 20 + item, run_id, item) for item in range(20)]
        leader.commit(runs_new=[rows.run(run_id)], tasks_new=tasks)
    done.set()
    thread.join(60)
    assert torn == []
    assert len(store.load_active().runs) == 30


# -- kill -9

COMMIT_FOR_EVER = """
import sys
sys.path.insert(0, sys.argv[2])
import conftest
from dsched.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
store.open()
leader, rows = conftest.Leader(store), conftest.Rows()
before, old = [], None
while True:
    number = leader.number + 1
    run = rows.run(f"e{leader.epoch}~{number:06}")
    base = (leader.epoch << 40) + number * 100
    tasks = [rows.task(base + item, run.run_id, item, params="x" * 500) for item in range(60)]
    done = [task._replace(status="SUCCESS", result=str(number), version=2) for task in before]
    ended = [old._replace(status="SUCCESS", version=2)] if old else []
    leader.commit(runs_new=[run], tasks_new=tasks, runs_set=ended, tasks_set=done, logs=[rows.log(run.run_id, number)])
    before, old = tasks, run
    print(leader.number, flush=True)
"""


def test_kill_at_any_moment_leaves_whole_batches(path: Path) -> None:
    rng = random.Random(7)
    for round_ in range(1, 6):
        child = subprocess.Popen(
            [sys.executable, "-c", COMMIT_FOR_EVER, str(path), str(Path(__file__).parent)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        acknowledged = 0
        for _ in range(rng.randint(5, 60)):
            acknowledged = int(child.stdout.readline())
        # A busy loop of a random length: the kill lands anywhere in a commit.
        for _ in range(rng.randint(0, 100_000)):
            pass
        os.kill(child.pid, signal.SIGKILL)
        acknowledged = int((child.stdout.read().split() or [str(acknowledged)])[-1])
        child.wait()
        child.stdout.close()
        check_whole(path, round_, acknowledged)


def check_whole(path: Path, epoch: int, acknowledged: int) -> None:
    """Check that batches 1 to the leader row's number are there in full, and nothing of the one after."""
    store = SqliteStore(str(path))
    store.open()
    leader = store.leader()
    assert leader.epoch == epoch
    assert leader.batch in (acknowledged, acknowledged + 1)
    with store.reading() as execute:
        like = f"e{epoch}~%"
        runs = execute("SELECT status, count(*) FROM run WHERE run_id LIKE ? GROUP BY status", (like,)).fetchall()
        tasks = execute(
            "SELECT status, version, count(*) FROM schedule_job WHERE run_id LIKE ? GROUP BY status, version", (like,)
        ).fetchall()
        logs = execute("SELECT count(*) FROM log WHERE task_id LIKE ?", (like,)).fetchone()[0]
        assert execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    store.close()
    assert sorted(runs) == [("RUNNING", 1), ("SUCCESS", leader.batch - 1)]
    assert sorted(tasks) == [("PENDING", 1, 60), ("SUCCESS", 2, 60 * (leader.batch - 1))]
    assert logs == leader.batch


# -- plans: what is asked often never reads history


def plan(store: SqliteStore, text: str, values: list[Any]) -> str:
    with store._reader.use() as database:
        return " | ".join(row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {text}", values))


@pytest.mark.parametrize(
    ("listing", "filters", "index"),
    [
        (JOBS, {}, "sqlite_autoindex_job_1"),
        (JOBS, {"group": "g"}, "job_group"),
        (JOBS, {"enabled": "true"}, "job_enabled"),
        (RUNS, {}, "run_created"),
        (RUNS, {"job": "a"}, "run_job"),
        (RUNS, {"group": "a"}, "run_group"),
        *((RUNS, {"status": str(state)}, "run_status") for state in RunState),
        (RUNS, {"status": "FAILED", "job": "a"}, "run_"),
        (RUNS, {"status": "FAILED", "job": "a", "group": "g"}, "run_"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_lists_walk_an_index(
    store: SqliteStore, rows: Any, listing: Any, filters: Any, index: str, is_first: bool
) -> None:
    cursor = None if is_first else listing.cursor(rows.job() if listing is JOBS else rows.run())
    found = plan(store, *asked(store, listing, filters, cursor))
    assert f"USING INDEX {index}" in found
    assert "TEMP B-TREE" not in found and " | " not in found
    assert found.startswith("SEARCH") or (is_first and not filters)


@pytest.mark.parametrize("filters", [{}, {"status": "PENDING"}, {"worker": "w"}])
def test_tasks_of_a_run_walk_an_index(store: SqliteStore, rows: Any, filters: Any) -> None:
    within = (Condition("run_id", "=", "a"),)
    found = plan(store, *asked(store, TASKS, filters, TASKS.cursor(rows.task(1)), within))
    assert found.startswith("SEARCH schedule_job USING INDEX schedule_job_run") and "TEMP" not in found


def test_open_tasks_and_active_rows_are_found_by_partial_index(store: SqliteStore) -> None:
    seen: list[str] = []
    with store._reader.use() as database:
        database.set_trace_callback(seen.append)
    with store._writer.use() as database:
        database.set_trace_callback(seen.append)
    store.open_counts()
    store.load_active()
    store.take_leadership(store.leader(), "a", "", "")
    store.take_leadership(store.leader(), "b", "", "")
    texts = [text for text in seen if "schedule_job" in text or "FROM run" in text]
    plans = {text: plan(store, text, []) for text in texts}
    assert len(plans) >= 5
    for text, found in plans.items():
        if "max(fence)" in text and "WHERE" not in text:
            continue  # the first leader ever looks at all of them
        assert "SCAN schedule_job" not in found.replace("SCAN schedule_job USING COVERING INDEX schedule_job_open", "")
        assert "SCAN run" not in found, (text, found)


def test_updates_find_their_rows_by_key(store: SqliteStore) -> None:
    from dsched.store.statements import JOB, RUN, TASK, bulk_dues, bulk_update

    bulks = [bulk_update(JOB, "?"), bulk_update(RUN, "?"), bulk_update(TASK, "?"), bulk_dues("?")]
    for bulk in bulks:
        for size in (1, 512):
            with store._writer.use() as database:
                steps = database.execute(f"EXPLAIN QUERY PLAN {bulk.text(size)}", [None] * (bulk.width * size))
                found = " | ".join(row[3] for row in steps)
            assert "SCAN v" in found and "AUTOMATIC" not in found
            assert "SEARCH" in found and "SCAN job" not in found and "SCAN run" not in found


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_deleted_or_replaced_is_noticed(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "dsched.db"
    store = SqliteStore(str(path))
    store.open()
    leader = store.take_leadership(store.leader(), "me", "a:1", "")
    assert leader is not None
    kept = path.rename(tmp_path / "kept.db")
    if replaced:
        path.touch()
    with pytest.raises(StoreUnavailable, match="deleted or replaced"):
        store.commit(Batch(leader.epoch, 1, 0, 0))
    with pytest.raises(StoreUnavailable, match="deleted or replaced"):
        store.leader()
    kept.replace(path)
    store.commit(Batch(leader.epoch, 1, 0, 0))
    store.close()
