"""Schemas: made once, never downgraded, backed up before they change, and taken over where there was one before."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import LogLevel, capturedLogs, formatEvent

from dsched.errors import ConfigError
from dsched.store.adoption import CONSEQUENCE
from dsched.store.migrations import Migration, Upgrade, load_migrations
from dsched.store.sqlite import SqliteStore
from dsched.store.statements import ATTEMPT, JOB, LEADER, LOG, RUN, TASK, WORKER

NEWEST = load_migrations("sqlite")[-1].version
ALL = [(version,) for version in range(1, NEWEST + 1)]
NEXT = Migration(NEWEST + 1, "9999_add.sql", "CREATE TABLE added (x INTEGER);\nINSERT INTO added VALUES (1); -- one\n")
BROKEN = Migration(NEWEST + 1, "9999_broken.sql", "CREATE TABLE added (x INTEGER);\nINSERT INTO nowhere VALUES (1);\n")

LEGACY = """
CREATE TABLE schedule_job (
  job_id BIGINT PRIMARY KEY, task_id VARCHAR(128) UNIQUE, job_name VARCHAR(128), params TEXT, sharding_total INT,
  sharding_item INT, timeout INT, target_worker VARCHAR(64), status VARCHAR(16), retry_count INT, error_msg TEXT,
  create_time TIMESTAMP, update_time TIMESTAMP{extra}
);
"""
OLD_ROWS = [
    (11, "old-1", "sweep", '{"a":1}', 2, 0, 30, "w1", "SUCCESS", 0, None, "2020-01-01 00:00:00", "2020-01-01 00:00:09"),
    (12, "old-2", "sweep", "5", 2, 1, 30, None, "RUNNING", 1, "late", "2020-01-01 00:00:00", "2020-01-01 00:00:09"),
    (13, "old-3", "sweep", None, 1, 0, 30, None, "PENDING", 0, None, "2020-01-01 00:00:00", None),
]


def run_sql(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(script)


def ask(path: Path, question: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(question).fetchall()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def opened(path: Path, *further: Migration) -> SqliteStore:
    store = SqliteStore(str(path), migrations=[*load_migrations("sqlite"), *further])
    store.open()
    return store


def legacy(path: Path, extra: str = "") -> None:
    run_sql(path, LEGACY.format(extra=extra))
    with closing(sqlite3.connect(path)) as database:
        names = ", ".join(TASK.columns[:13])
        database.executemany(f"INSERT INTO schedule_job ({names}) VALUES ({','.join('?' * 13)})", OLD_ROWS)
        database.commit()


def test_numbers_are_whole_and_files_are_found() -> None:
    found = load_migrations("sqlite")
    assert [migration.version for migration in found] == list(range(1, len(found) + 1))


def test_statements_end_at_semicolons_at_line_ends() -> None:
    migration = Migration(1, "x", "-- a; comment;\nA 'x;y'; -- b\n\nB\n  c;\n;\n")
    assert migration.statements() == ["A 'x;y'", "B\n  c"]


@pytest.mark.parametrize("table", [JOB, RUN, TASK, ATTEMPT, WORKER, LOG, LEADER], ids=lambda table: table.name)
def test_the_schema_is_what_the_row_types_say(path: Path, table: Any) -> None:
    opened(path).close()
    described = ask(path, f"PRAGMA table_info({table.name})")
    columns = [row for row in described if row[1] != "id"]
    assert tuple(row[1] for row in columns) == table.columns
    assert {row[1] for row in columns if not row[3] and not row[5]} == table.optional


def test_versions_are_recorded_once(path: Path) -> None:
    for _ in range(2):
        opened(path).close()
    assert ask(path, "SELECT version FROM schema_version ORDER BY 1") == ALL


def test_an_older_store_is_backed_up_and_brought_up_to_date(path: Path, rows: Any, leader_of: Any) -> None:
    store = opened(path)
    leader_of(store).commit(jobs_new=[rows.job()])
    # Left open: what a crash leaves is in the WAL, and belongs into the backup.
    newer = opened(path, NEXT)
    assert newer.job("census") == rows.job()
    newer.close()
    store.close()
    backup = path.with_name(f"store.db.v{NEWEST}.backup")
    assert ask(backup, "SELECT version FROM schema_version ORDER BY 1") == ALL
    assert ask(backup, "SELECT name FROM job") == [("census",)]
    assert ask(path, "SELECT version FROM schema_version ORDER BY 1") == [*ALL, (NEWEST + 1,)]
    assert ask(path, "SELECT x FROM added") == [(1,)]
    assert sorted(file.name for file in path.parent.iterdir()) == ["store.db", backup.name]


def test_a_new_store_needs_no_backup(path: Path) -> None:
    opened(path, NEXT).close()
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]


def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    opened(path, NEXT).close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=f"schema version {NEWEST + 1}, this dsched knows {NEWEST}"):
        opened(path)
    assert path.read_bytes() == before


def test_a_migration_that_fails_leaves_the_schema_as_it_was(path: Path) -> None:
    opened(path).close()
    with pytest.raises(ConfigError, match="nowhere"):
        opened(path, BROKEN)
    assert ask(path, "SELECT name FROM sqlite_master WHERE name = 'added'") == []
    assert ask(path, "SELECT version FROM schema_version ORDER BY 1") == ALL
    opened(path, NEXT).close()


def test_a_table_of_somebody_else_is_in_the_way(path: Path) -> None:
    run_sql(path, "CREATE TABLE job (mine TEXT);")
    with pytest.raises(ConfigError, match="table job already exists"):
        opened(path)
    assert ask(path, "SELECT name FROM sqlite_master") == [("job",)]


# -- a table that was there before


@pytest.mark.parametrize("there", ["schedule_job", "another"])
def test_a_file_of_others_is_backed_up_first(path: Path, there: str) -> None:
    if there == "schedule_job":
        legacy(path)
    else:
        run_sql(path, "CREATE TABLE another (x); INSERT INTO another VALUES (5);")
    before = ask(path, "SELECT sql FROM sqlite_master"), ask(path, f"SELECT * FROM {there}")
    store = opened(path)
    backup = path.with_name("store.db.v0.backup")
    assert (store.upgrade.before, store.upgrade.after, store.upgrade.backup) == (0, NEWEST, backup)
    store.close()
    assert (ask(backup, "SELECT sql FROM sqlite_master"), ask(backup, f"SELECT * FROM {there}")) == before
    store.open()
    assert store.upgrade == Upgrade()
    store.close()


def test_old_rows_are_kept_and_never_active(path: Path, rows: Any, leader_of: Any) -> None:
    legacy(path, extra=", owner TEXT DEFAULT 'ops'")
    store = opened(path)
    assert store.load_active().tasks == []
    assert store.open_counts() == {}
    assert store.statuses(["old-1", "old-2", "old-3"]) == {"old-1": "SUCCESS", "old-2": "RUNNING", "old-3": "PENDING"}
    for old in OLD_ROWS:
        task = store.task(old[1])
        assert task is not None and task[:13] == old
        assert (task.run_id, task.group_name, task.attempt, task.fence, task.version) == (None, "default", 0, 0, 0)
    leader = leader_of(store)
    assert store.leader().last_id == 13
    new = rows.task(14)
    leader.commit(runs_new=[rows.run()], tasks_new=[new])
    assert store.load_active().tasks == [new]
    leader.commit(tasks_set=[new._replace(status="SUCCESS", result="5", version=2)])
    assert store.task(new.task_id) == new._replace(status="SUCCESS", result="5", version=2)
    store.close()
    # Whoever queried the table before still can, with the columns of their own.
    assert ask(path, "SELECT job_id, owner FROM schedule_job") == [(n, "ops") for n in (11, 12, 13, 14)]


def test_adopted_tables_get_the_indexes_of_new_ones(path: Path, tmp_path: Path) -> None:
    legacy(path)
    fresh = tmp_path / "fresh.db"
    opened(path).close()
    opened(fresh).close()
    named = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql NOT NULL ORDER BY name"
    assert ask(path, named) == ask(fresh, named)


def test_columns_are_known_in_any_case(path: Path, rows: Any, leader_of: Any) -> None:
    run_sql(path, "CREATE TABLE Schedule_Job (JOB_ID INTEGER PRIMARY KEY, Task_Id TEXT UNIQUE, Job_Name TEXT);")
    run_sql(path, "INSERT INTO schedule_job VALUES (1, 'a', 'old');")
    store = opened(path)
    old = store.task("a")
    assert old is not None and (old.job_id, old.job_name) == (1, "old")
    leader_of(store).commit(runs_new=[rows.run()], tasks_new=[rows.task(14)])
    assert store.load_active().tasks == [rows.task(14)]
    store.close()
    assert len([row for row in ask(path, "PRAGMA index_list(schedule_job)") if row[2]]) == 1


def test_what_adoption_changes_is_told(path: Path) -> None:
    run_sql(path, "CREATE TABLE schedule_job (job_id INTEGER PRIMARY KEY, task_id TEXT, STATUS TEXT);")
    with capturedLogs() as events:
        store = opened(path)
    store.close()
    added = [name for name in TASK.columns[2:] if name != "status"]
    told = [f"added columns: {', '.join(added)}", "added unique keys: task_id"]
    assert store.upgrade.adopted == told
    warnings = [formatEvent(event) for event in events if event["log_level"] is LogLevel.warn]
    assert warnings == [*(f"table schedule_job was adopted: {change}" for change in told), CONSEQUENCE]


def test_keys_that_were_not_unique_become_so(path: Path, rows: Any) -> None:
    run_sql(path, "CREATE TABLE schedule_job (job_id BIGINT, task_id VARCHAR(128));")
    run_sql(path, "INSERT INTO schedule_job VALUES (1, 'a'), (2, 'b');")
    opened(path).close()
    assert ask(path, "SELECT job_id, task_id, params, retry_count FROM schedule_job") == [
        (1, "a", None, 0),
        (2, "b", None, 0),
    ]
    with pytest.raises(sqlite3.IntegrityError):
        run_sql(path, "INSERT INTO schedule_job (job_id, task_id) VALUES (3, 'a');")


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("CREATE TABLE schedule_job (task_id TEXT)", "no column job_id"),
        ("CREATE TABLE schedule_job (job_id BIGINT, task_id TEXT, tenant TEXT NOT NULL)", "tenant"),
        ("CREATE TABLE schedule_job (job_id BIGINT, task_id TEXT, target_worker TEXT NOT NULL)", "target_worker"),
        (
            "CREATE TABLE schedule_job (job_id BIGINT, task_id TEXT, params JSON)",
            "params has type JSON, which changes text that looks like a number",
        ),
        (
            "CREATE TABLE schedule_job (job_id TEXT, task_id TEXT)",
            "job_id has type TEXT, which changes whole numbers: make it INTEGER",
        ),
        (
            "CREATE TABLE schedule_job (job_id DOUBLE, task_id TEXT)",
            "job_id has type DOUBLE, which changes whole numbers: make it INTEGER",
        ),
        (
            "CREATE TABLE schedule_job (job_id BIGINT, task_id TEXT); INSERT INTO schedule_job VALUES (1,'a'),(1,'b')",
            "UNIQUE constraint failed",
        ),
    ],
)
def test_a_table_that_cannot_be_written_is_refused_untouched(path: Path, table: str, says: str) -> None:
    run_sql(path, table)
    before = ask(path, "SELECT sql FROM sqlite_master")
    with pytest.raises(ConfigError, match=says):
        opened(path)
    assert ask(path, "SELECT sql FROM sqlite_master") == before


BOUND = 1_000_000 << 16  # what dsched gives out 1000 s after the epoch


@pytest.mark.parametrize(
    ("kind", "job_id", "says"),
    [
        ("BIGINT", f"{BOUND + 1}", f"largest job_id is {BOUND + 1}, .* {BOUND} now.* renumber"),
        ("INTEGER PRIMARY KEY", f"{(1 << 63) - 1}", f"largest job_id is {(1 << 63) - 1}, .* {BOUND} now.* renumber"),
        ("BIGINT", "'x'", "largest job_id is 'x', no whole number"),
        ("BIGINT", "1e19", r"largest job_id is 1e\+19, no whole number"),
    ],
)
def test_ids_above_those_of_today_are_refused_untouched(path: Path, kind: str, job_id: str, says: str) -> None:
    run_sql(path, f"CREATE TABLE schedule_job (job_id {kind}, task_id TEXT);")
    run_sql(path, f"INSERT INTO schedule_job VALUES ({job_id}, 'a'), (9, 'b');")
    before = ask(path, "SELECT sql FROM sqlite_master")
    with pytest.raises(ConfigError, match=says):
        SqliteStore(str(path), time_s=lambda: 1000.0).open()
    assert ask(path, "SELECT sql FROM sqlite_master") == before
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]


def test_ids_up_to_those_of_today_are_taken_over(path: Path) -> None:
    run_sql(path, f"CREATE TABLE schedule_job (job_id, task_id); INSERT INTO schedule_job VALUES ({BOUND}, 'a');")
    store = SqliteStore(str(path), time_s=lambda: 1000.0)
    store.open()
    assert store.statuses(["a"]) == {"a": None}
    store.close()


# -- several at once

OPEN = """
import sys
from dsched.store.migrations import Migration, Upgrade, load_migrations
from dsched.store.sqlite import SqliteStore
steps = load_migrations("sqlite")
further = [Migration(int(sys.argv[2]), "9999_x.sql", "CREATE TABLE added (x);\\n")]
store = SqliteStore(sys.argv[1], migrations=[*steps, *further][: int(sys.argv[2])])
sys.stdin.readline()
store.open()
print(store.upgrade.after)
store.leader()
store.close()
"""


@pytest.mark.parametrize("start", ["new", "legacy", "older"])
def test_processes_that_open_at_once_migrate_once(path: Path, start: str) -> None:
    if start == "legacy":
        legacy(path)
    elif start == "older":
        opened(path).close()
    version = str(NEWEST + 1 if start == "older" else NEWEST)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, str(path), version],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(5)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    done = []
    for process in processes:
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
        done.append(int(output))
    assert sorted(done) == [0, 0, 0, 0, int(version)]  # each knows whether it was the one
    assert len(ask(path, "SELECT version FROM schema_version")) == int(version)
    assert ask(path, "SELECT epoch FROM leader") == [(0,)]
