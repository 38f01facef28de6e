"""`dsched db` on a file, and on a real server."""

import json
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dsched.cli.main import cli
from dsched.engine.changes import Batch
from dsched.errors import ConfigError
from dsched.model.rows import RunRow, TaskRow
from dsched.store.adoption import CONSEQUENCE
from dsched.store.migrations import Upgrade, load_migrations
from dsched.store.mysql import parse_url
from dsched.store.mysql.connection import connect
from dsched.store.mysql.schema import LOCK, migrate
from dsched.store.sql_store import SqlStore
from dsched.store.sqlite import SqliteStore
from dsched.store.url import open_store
from dsched.testing.mariadb import Databases

DAY_MS = 86_400_000
NOTHING: dict[str, Any] = {"backup": None, "adopted": []}
NEWEST = load_migrations("sqlite")[-1].version


def run_of(run_id: str, status: str, at: int, total: int = 1) -> RunRow:
    return RunRow(
        run_id, run_id.split("~")[0], None, status, None, "api", None, None, None, None, "default", 0, 1, "{}",
        "null", total, 0, "{}", at, at, at, 1,
    )  # fmt: skip


def task_of(job_id: int, run_id: str, item: int, status: str) -> TaskRow:
    at = "2026-11-30 21:22:47.123"
    return TaskRow(
        job_id, f"{run_id}:{item}", run_id.split("~")[0], "null", 1, item, 30, None, status, 0, None, at, at, run_id,
        "default", 0, None, 0, 0, 0, None, None, None, None, None, None, 1,
    )  # fmt: skip


def fill(url: str) -> None:
    """Two old runs of job a (3 tasks), one of b (1), one new, one open."""
    store = open_store(url)
    store.open()
    row = store.take_leadership(store.leader(), "somebody", "127.0.0.1:8080", "")
    assert row is not None
    old, new = int(time.time() * 1000) - 40 * DAY_MS, int(time.time() * 1000) - DAY_MS
    batch = Batch(row.epoch, 1, 0, 0)
    batch.runs_new = [
        run_of("a~1", "SUCCESS", old, 2), run_of("a~2", "FAILED", old), run_of("b~1", "SUCCESS", old),
        run_of("a~3", "SUCCESS", new), run_of("a~4", "RUNNING", old),
    ]  # fmt: skip
    batch.tasks_new = [
        task_of(1, "a~1", 0, "SUCCESS"), task_of(2, "a~1", 1, "SUCCESS"), task_of(3, "a~2", 0, "FAILED"),
        task_of(4, "b~1", 0, "SUCCESS"), task_of(5, "a~3", 0, "SUCCESS"), task_of(6, "a~4", 0, "RUNNING"),
    ]  # fmt: skip
    store.commit(batch)
    store.close()


def db(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["db", *arguments])


def answer(*arguments: str) -> Any:
    result = db(*arguments, "--json")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return json.loads(result.output)


@pytest.fixture(params=["sqlite", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "mariadb":
        return str(request.getfixturevalue("mysql_url"))
    return f"sqlite:///{tmp_path / 'store.db'}"


def test_migrate_makes_the_schema_once(url: str) -> None:
    assert answer("migrate", "--store", url) == {"from": 0, "to": NEWEST, "by_another": False, **NOTHING}
    assert answer("migrate", "--store", url) == {"from": NEWEST, "to": NEWEST, "by_another": False, **NOTHING}
    assert db("migrate", "--store", url).output == f"schema version {NEWEST}: nothing to do\n"


def test_migrate_tells_where_the_older_file_is(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(str(path), migrations=load_migrations("sqlite")[:1])
    store.open()
    store.close()
    result = db("migrate", "--store", f"sqlite:///{path}")
    assert result.output == f"schema version 1 -> {NEWEST}\nas it was before: {path}.v1.backup\n"
    assert (tmp_path / "store.db.v1.backup").exists()


def test_migrate_tells_where_the_file_of_others_is(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE schedule_job (job_id INTEGER PRIMARY KEY, task_id TEXT UNIQUE)")
    result = db("migrate", "--store", f"sqlite:///{path}")
    assert f"schema version {NEWEST} created\nas it was before: {path}.v0.backup\n" in result.output
    assert (tmp_path / "store.db.v0.backup").exists()


OLD_TABLE = "CREATE TABLE schedule_job (job_id INTEGER PRIMARY KEY{}, task_id VARCHAR(200) UNIQUE)"


def test_migrate_tells_what_it_has_changed_of_a_table_of_others(databases: Databases, mysql_url: str) -> None:
    databases.execute(mysql_url, OLD_TABLE.format(" AUTO_INCREMENT"), "CREATE TABLE job (mine TEXT)")
    failed = db("migrate", "--store", mysql_url)
    assert isinstance(failed.exception, ConfigError)
    first, second, *rest, last = failed.stderr.splitlines()
    assert first == "table schedule_job was there, and was adopted:"
    assert second == "  job_id: int(11) NOT NULL AUTO_INCREMENT -> bigint(20) NOT NULL"
    assert rest[-1].startswith("  added columns: job_name, params") and last == CONSEQUENCE
    databases.execute(mysql_url, "DROP TABLE schedule_job", "DROP TABLE job", OLD_TABLE.format(" AUTO_INCREMENT"))
    assert db("migrate", "--store", mysql_url).output.splitlines() == [
        f"schema version {NEWEST} created", first, second, *rest, last,
    ]  # fmt: skip


def test_migrate_tells_what_it_has_added_to_a_file_of_others(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "store.db")) as database:
        database.execute(OLD_TABLE.format(""))
    [told] = answer("migrate", "--store", f"sqlite:///{tmp_path / 'store.db'}")["adopted"]
    assert told.startswith("added columns: job_name, params, ")


@pytest.mark.parametrize("as_json", [True, False])
def test_migrate_tells_that_another_process_was_faster(databases: Databases, mysql_url: str, as_json: bool) -> None:
    """It has seen a database without a schema, and waits for the lock until there is one."""
    settings = parse_url(mysql_url, {})
    waiting = f"SELECT 1 FROM information_schema.processlist WHERE db = '{settings.database}' AND state = 'User lock'"
    with closing(connect(settings, timeout_s=30.0)) as faster, ThreadPoolExecutor(1) as pool:
        cursor = faster.cursor()
        cursor.execute(f"SELECT GET_LOCK({LOCK}, 0)")
        slower = pool.submit(db, "migrate", "--store", mysql_url, *(["--json"] if as_json else []))
        deadline_s = time.monotonic() + 30
        while not databases.execute(mysql_url, waiting):
            assert not slower.done() and time.monotonic() < deadline_s
        upgrade = Upgrade()
        migrate(faster, load_migrations("mysql"), mysql_url, 1_000, upgrade)
        assert upgrade == Upgrade(0, NEWEST)
        cursor.execute("SELECT RELEASE_ALL_LOCKS()")
        output = slower.result(60).output
    if as_json:
        assert json.loads(output) == {"from": 0, "to": NEWEST, "by_another": True, **NOTHING}
    else:
        assert output == f"schema version {NEWEST}: another process has migrated it meanwhile\n"


@pytest.mark.parametrize("command", [["check"], ["prune", "--older-than", "1d"]])
def test_an_older_schema_is_left_alone(tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(str(path), migrations=load_migrations("sqlite")[:1])
    store.open()
    store.close()
    for file, told in ((path, "has schema version 1"), (tmp_path / "none.db", "has no schema")):
        result = db(*command, "--store", f"sqlite:///{file}")
        assert isinstance(result.exception, ConfigError)
        assert told in str(result.exception) and "dsched db migrate" in str(result.exception)
    assert [file.name for file in tmp_path.iterdir()] == ["store.db"]


@pytest.mark.parametrize("command", [["migrate"], ["check"], ["prune", "--older-than", "1d"]])
def test_a_newer_schema_wants_the_newer_dsched(url: str, command: list[str]) -> None:
    store = open_store(url)
    store.open()
    assert isinstance(store, SqlStore)
    store.writing(lambda execute: execute(f"INSERT INTO schema_version VALUES ({NEWEST + 1}, CURRENT_TIMESTAMP)"))
    store.close()
    result = db(*command, "--store", url)
    assert isinstance(result.exception, ConfigError)
    assert "start the newer dsched" in str(result.exception) and "migrate" not in str(result.exception)


def test_check_finds_nothing_wrong(url: str) -> None:
    fill(url)
    assert answer("check", "--store", url) == {
        "schema": NEWEST, "leader": "127.0.0.1:8080", "epoch": 1, "jobs": 0, "workers": 0, "open_runs": 1,
        "open_tasks": 1, "problems": [],
    }  # fmt: skip
    assert db("check", "--store", url).output.splitlines()[-1] == "runs and tasks agree"


def test_check_tells_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    url = f"sqlite:///{path}"
    fill(url)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE schedule_job SET status = 'SUCCESS' WHERE job_id = 6")
        database.execute("UPDATE schedule_job SET status = 'PENDING' WHERE job_id = 1")
        database.execute("UPDATE schedule_job SET status = 'PENDING', run_id = 'gone' WHERE job_id = 4")
    database.close()
    result = db("check", "--store", url)
    assert result.exit_code == 1
    assert result.output.splitlines()[2:] == [
        "WRONG: run a~4 is open and has no open task", "WRONG: task a~1:0 is open, and its run has ended",
        "WRONG: task b~1:0 is open and has no run",
    ]  # fmt: skip
    assert len(answer("check", "--store", url)["problems"]) == 3


def test_check_tells_which_tables_somebody_has_changed(url: str) -> None:
    fill(url)
    store = open_store(url)
    assert isinstance(store, SqlStore)
    store.open()
    for statement in ("DROP TABLE attempt", "ALTER TABLE run DROP COLUMN counts"):
        store.writing(lambda execute, text=statement: execute(text))  # type: ignore[misc]
    store.close()
    result = db("check", "--store", url)
    assert result.exit_code == 1
    told = [line for line in result.output.splitlines() if line.startswith("WRONG")]
    assert [line.split(" cannot ")[0] for line in told] == ["WRONG: table run", "WRONG: table attempt"]
    assert "counts" in told[0] and "agree" not in result.output


def test_prune_deletes_what_is_old(url: str) -> None:
    fill(url)
    old = ("prune", "--store", url, "--older-than", "30d")
    assert db(*old, "--dry-run").output == "would delete 3 runs with 4 tasks\n"
    assert answer(*old, "--job", "b", "--dry-run") == {"runs": 1, "tasks": 1, "other_rows": 0, "dry_run": True}
    assert db(*old, "--job", "b").output == "deleted 1 runs with 1 tasks\n"
    assert answer(*old) == {"runs": 2, "tasks": 3, "other_rows": 0, "dry_run": False}
    assert answer(*old)["runs"] == 0
    assert answer("check", "--store", url)["problems"] == []


@pytest.mark.parametrize("age", ["", "30", "0d", "-1d", "1m", "d", "1.5d", "9999999d"])
def test_what_is_no_age(tmp_path: Path, age: str) -> None:
    result = db("prune", "--store", f"sqlite:///{tmp_path}/x.db", "--older-than", age)
    assert result.exit_code == 2 and "such as 30d" in result.output


@pytest.mark.parametrize("command", [["migrate"], ["check"], ["prune", "--older-than", "1d"]])
@pytest.mark.parametrize("url", ["memory:", "postgres://x", "sqlite:////no/such/folder/x.db"])
def test_a_store_that_cannot_be_used(command: list[str], url: str) -> None:
    result = db(*command, "--store", url)
    assert isinstance(result.exception, ConfigError) and "\n" not in str(result.exception)
