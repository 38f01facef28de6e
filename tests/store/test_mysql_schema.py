"""Schemas on MySQL and MariaDB, where no migration is a transaction: made once, finished after a kill, taken over."""

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from twisted.logger import LogLevel, capturedLogs, formatEvent

from dsched.errors import ConfigError, StoreUnavailable
from dsched.store.adoption import CONSEQUENCE
from dsched.store.migrations import Migration, Upgrade, load_migrations
from dsched.store.mysql import MySqlStore, parse_url
from dsched.store.statements import ATTEMPT, JOB, LEADER, LOG, RUN, TASK, WORKER
from dsched.testing.mariadb import Databases

REAL = load_migrations("mysql")
NEWEST = REAL[-1].version
NEXT = Migration(NEWEST + 1, "x_add.sql", "CREATE TABLE added (x INTEGER);\nINSERT INTO added VALUES (1); -- one\n")
BROKEN = Migration(NEWEST + 1, "x_broken.sql", "CREATE TABLE added (x INTEGER);\nINSERT INTO nowhere VALUES (1);\n")

LEGACY = """
CREATE TABLE schedule_job (
  job_id BIGINT PRIMARY KEY, task_id VARCHAR(128) UNIQUE, job_name VARCHAR(128), params TEXT, sharding_total INT,
  sharding_item INT, timeout INT, target_worker VARCHAR(64), status VARCHAR(16), retry_count INT, error_msg TEXT,
  create_time TIMESTAMP DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  update_time TIMESTAMP NULL{extra}
) {options}
"""
OLD_ROWS = [
    (11, "old-1", "sweep", '{"a":1}', 2, 0, 30, "w1", "SUCCESS", 0, None, "2020-01-01 00:00:00", "2020-01-01 00:00:09"),
    (12, "old-2", "sweep", "5", 2, 1, 30, None, "RUNNING", 1, "late", "2020-01-01 00:00:00", "2020-01-01 00:00:09"),
    (13, "old-3", "sweep", None, 1, 0, 30, None, "PENDING", 0, None, "2020-01-01 00:00:00", None),
]


def opened(url: str, *further: Migration) -> MySqlStore:
    store = MySqlStore(parse_url(url, os.environ), migrations=[*REAL, *further])
    store.open()
    return store


def schema(databases: Databases, url: str) -> dict[str, Any]:
    """Return all that a database says about its columns and indexes."""
    tables = [row[0] for row in databases.execute(url, "SHOW TABLES")]
    return {
        table: (
            databases.execute(url, f"SHOW FULL COLUMNS FROM {table}"),
            sorted((row[2], row[3], row[4]) for row in databases.execute(url, f"SHOW INDEX FROM {table}")),
        )
        for table in tables
        if table != "schema_progress"
    }


@pytest.fixture(scope="module")
def fresh(databases: Databases) -> dict[str, Any]:
    url = databases.fresh()
    opened(url).close()
    found = schema(databases, url)
    databases.drop(url)
    return found


def legacy(databases: Databases, url: str, extra: str = "", options: str = "") -> None:
    databases.execute(url, LEGACY.format(extra=extra, options=options))
    names = ", ".join(TASK.columns[:13])
    for row in OLD_ROWS:
        values = ", ".join("NULL" if value is None else repr(value) for value in row)
        databases.execute(url, f"INSERT INTO schedule_job ({names}) VALUES ({values})")


def test_numbers_are_whole_and_the_same_as_for_sqlite() -> None:
    assert [migration.version for migration in REAL] == list(range(1, len(REAL) + 1))
    assert [migration.name for migration in REAL] == [migration.name for migration in load_migrations("sqlite")]


@pytest.mark.parametrize("table", [JOB, RUN, TASK, ATTEMPT, WORKER, LOG, LEADER], ids=lambda table: table.name)
def test_the_schema_is_what_the_row_types_say(fresh: dict[str, Any], table: Any) -> None:
    columns = [row for row in fresh[table.name][0] if row[0] != "id"]
    assert tuple(row[0] for row in columns) == table.columns
    assert {row[0] for row in columns if row[3] == "YES"} == table.optional
    assert {row[2] for row in columns} <= {None, "utf8mb4_bin"}
    assert not any("on update" in row[6].lower() for row in columns)


def test_versions_are_recorded_once(databases: Databases, mysql_url: str) -> None:
    for _ in range(2):
        opened(mysql_url).close()
    versions = databases.execute(mysql_url, "SELECT version FROM schema_version ORDER BY version")
    assert [row[0] for row in versions] == list(range(1, NEWEST + 1))
    assert databases.execute(mysql_url, "SELECT * FROM schema_progress") == []


def test_a_newer_schema_is_refused_and_left_alone(databases: Databases, mysql_url: str) -> None:
    opened(mysql_url, NEXT).close()
    before = schema(databases, mysql_url)
    with pytest.raises(ConfigError, match=f"schema version {NEWEST + 1}, this dsched knows {NEWEST}"):
        opened(mysql_url)
    assert schema(databases, mysql_url) == before


def test_a_migration_that_fails_goes_on_where_it_failed(databases: Databases, mysql_url: str) -> None:
    opened(mysql_url).close()
    for _ in range(2):
        with pytest.raises(ConfigError, match="nowhere"):
            opened(mysql_url, BROKEN)
    databases.execute(mysql_url, "CREATE TABLE nowhere (x INTEGER)")
    opened(mysql_url, BROKEN).close()
    assert databases.execute(mysql_url, "SELECT * FROM nowhere") == [(1,)]


def test_a_table_of_somebody_else_is_in_the_way(databases: Databases, mysql_url: str) -> None:
    databases.execute(mysql_url, "CREATE TABLE job (mine TEXT)")
    for _ in range(2):
        with pytest.raises(ConfigError, match="'job' already exists"):
            opened(mysql_url)
    databases.execute(mysql_url, "DROP TABLE job")
    opened(mysql_url).close()


@pytest.mark.parametrize("done", range(len(REAL[0].statements())))
def test_a_migration_that_was_cut_off_is_finished(
    databases: Databases, mysql_url: str, fresh: dict[str, Any], done: int
) -> None:
    """The connection dies after `done` statements; then as if the process had died before it noted the last of them."""
    first = REAL[0].statements()[:done]
    cut = Migration(1, "cut.sql", ";\n".join([*first, "KILL CONNECTION CONNECTION_ID()"]) + ";\n")
    with pytest.raises(StoreUnavailable):
        MySqlStore(parse_url(mysql_url, os.environ), migrations=[cut]).open()
    if done and not first[-1].startswith("INSERT"):
        databases.execute(mysql_url, f"UPDATE schema_progress SET statement = {done - 1}, begun = 1")
    opened(mysql_url).close()
    assert schema(databases, mysql_url) == fresh
    assert databases.execute(mysql_url, "SELECT epoch FROM leader") == [(0,)]


# -- several at once, and kills

OPEN = """
import sys
from dsched.store.mysql import MySqlStore, parse_url
store = MySqlStore(parse_url(sys.argv[1], {}))
print("ready", flush=True)
sys.stdin.readline()
store.open()
print(store.upgrade.after)
store.leader()
store.close()
"""


def opener(url: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", OPEN, url]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


@pytest.mark.parametrize("start", ["new", "legacy"])
def test_processes_that_open_at_once_migrate_once(databases: Databases, mysql_url: str, start: str) -> None:
    if start == "legacy":
        legacy(databases, mysql_url)
    processes = [opener(mysql_url) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        go(process)
    done = []
    for process in processes:
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
        done.append(int(output))
    assert sorted(done) == [0, 0, NEWEST]  # each knows whether it was the one
    assert databases.execute(mysql_url, "SELECT count(*) FROM schema_version") == [(NEWEST,)]
    assert databases.execute(mysql_url, "SELECT epoch FROM leader") == [(0,)]


def test_a_process_may_be_killed_at_any_moment_of_a_migration(databases: Databases, fresh: dict[str, Any]) -> None:
    for wait_s in (0.01, 0.03, 0.06):
        url = databases.fresh()
        process = opener(url)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        go(process)
        time.sleep(wait_s)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        opened(url).close()
        assert schema(databases, url) == fresh
        databases.drop(url)


# -- a table that was there before


@pytest.mark.parametrize(
    "options",
    [
        "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4",
        "ENGINE=InnoDB ROW_FORMAT=COMPACT DEFAULT CHARSET=latin1",
        "ENGINE=MyISAM DEFAULT CHARSET=utf8mb3",
        "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_unicode_ci",
    ],
)
def test_old_rows_are_kept_and_never_active(
    databases: Databases, mysql_url: str, rows: Any, leader_of: Any, options: str
) -> None:
    legacy(databases, mysql_url, extra=", owner VARCHAR(20) NOT NULL DEFAULT 'ops'", options=options)
    store = opened(mysql_url)
    assert store.load_active().tasks == []
    assert store.open_counts() == {}
    assert store.statuses(["old-1", "old-2", "old-3"]) == {"old-1": "SUCCESS", "old-2": "RUNNING", "old-3": "PENDING"}
    for old in OLD_ROWS:
        task = store.task(old[1])
        times = tuple(text and f"{text}.000" for text in old[11:])
        assert task is not None and task[:13] == (*old[:11], *times)
        assert (task.run_id, task.group_name, task.attempt, task.fence, task.version) == (None, "default", 0, 0, 0)
    leader = leader_of(store)
    assert store.leader().last_id == 13
    new = rows.task(14, params="🦕" * 65_536)
    leader.commit(runs_new=[rows.run()], tasks_new=[new])
    assert store.load_active().tasks == [new]
    done = new._replace(status="SUCCESS", result="🦕\0", update_time="2026-12-01 00:00:00.001", version=2)
    leader.commit(tasks_set=[done])
    assert store.task(new.task_id) == done
    store.close()
    # Whoever queried the table before still can, with the columns of their own.
    counted = "SELECT status, COUNT(*) FROM schedule_job WHERE job_name = 'sweep' GROUP BY status"
    assert dict(databases.execute(mysql_url, counted)) == {"SUCCESS": 1, "RUNNING": 1, "PENDING": 1}
    owners = databases.execute(mysql_url, "SELECT job_id, owner FROM schedule_job ORDER BY job_id")
    assert owners == [(n, "ops") for n in (11, 12, 13, 14)]


def test_adopted_tables_get_the_columns_and_indexes_of_new_ones(
    databases: Databases, mysql_url: str, fresh: dict[str, Any]
) -> None:
    legacy(databases, mysql_url)
    opened(mysql_url).close()
    columns, indexes = schema(databases, mysql_url)["schedule_job"]
    wanted, keys = fresh["schedule_job"]
    # The key on task_id has the name that it had.
    assert len(indexes) == len(keys) and {index for index in indexes if index[0] != "task_id"} <= set(keys)
    types = {row[0]: (row[1], row[2]) for row in columns}
    expected = {row[0]: (row[1], row[2]) for row in wanted}
    assert types == expected | {"job_name": ("varchar(128)", "utf8mb4_bin")}


def test_columns_are_known_in_any_case(databases: Databases, mysql_url: str, rows: Any, leader_of: Any) -> None:
    databases.execute(
        mysql_url,
        "CREATE TABLE schedule_job (JOB_ID INT PRIMARY KEY, Task_Id VARCHAR(99) UNIQUE, Job_Name CHAR(9), STATUS TEXT)",
        "INSERT INTO schedule_job VALUES (1, 'a', 'old', 'DONE')",
    )
    store = opened(mysql_url)
    old = store.task("a")
    assert old is not None and (old.job_id, old.job_name, old.status) == (1, "old", "DONE")
    leader_of(store).commit(runs_new=[rows.run()], tasks_new=[rows.task(14)])
    assert store.load_active().tasks == [rows.task(14)]
    store.close()
    names = [row[0] for row in databases.execute(mysql_url, "SHOW COLUMNS FROM schedule_job")]
    assert names[:4] == ["JOB_ID", "Task_Id", "Job_Name", "STATUS"]  # those who query them may care
    unique = databases.execute(mysql_url, "SHOW INDEX FROM schedule_job WHERE Non_unique = 0")
    assert sorted(row[4] for row in unique) == ["JOB_ID", "Task_Id"]


def test_a_column_of_others_may_number_or_compute_itself(
    databases: Databases, mysql_url: str, rows: Any, leader_of: Any
) -> None:
    databases.execute(
        mysql_url,
        "CREATE TABLE schedule_job (job_id BIGINT, task_id VARCHAR(200), id INT NOT NULL AUTO_INCREMENT UNIQUE,"
        " twice BIGINT AS (job_id * 2) STORED)",
    )
    store = opened(mysql_url)
    leader_of(store).commit(runs_new=[rows.run()], tasks_new=[rows.task(14)])
    store.close()
    assert databases.execute(mysql_url, "SELECT id, twice FROM schedule_job") == [(1, 28)]


@pytest.mark.parametrize(
    ("columns", "changed"),
    [
        (
            "job_id INT NOT NULL AUTO_INCREMENT PRIMARY KEY COMMENT 'who''s', {task_id}",
            ["job_id: int(11) NOT NULL AUTO_INCREMENT COMMENT 'who''s' -> bigint(20) NOT NULL COMMENT 'who''s'"],
        ),
        (
            "job_id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, {task_id}",
            ["job_id: bigint(20) NOT NULL AUTO_INCREMENT -> bigint(20) NOT NULL"],
        ),
        (
            "job_id BIGINT NOT NULL PRIMARY KEY, {task_id},"
            " update_time TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)",
            [
                "update_time: timestamp(3) NOT NULL DEFAULT current_timestamp(3) ON UPDATE current_timestamp(3)"
                " -> timestamp(3) NOT NULL DEFAULT current_timestamp(3)"
            ],
        ),
        (
            "job_id BIGINT NOT NULL PRIMARY KEY, {task_id},"
            " Create_Time TIMESTAMP(6) NULL ON UPDATE CURRENT_TIMESTAMP(6), update_time DATETIME(6)"
            " DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)",
            [
                "Create_Time: timestamp(6) NULL DEFAULT NULL ON UPDATE current_timestamp(6)"
                " -> timestamp(6) NULL DEFAULT NULL",
                "update_time: datetime(6) DEFAULT current_timestamp(6) ON UPDATE current_timestamp(6)"
                " -> datetime(6) DEFAULT current_timestamp(6)",
            ],
        ),
        (
            "job_id BIGINT NOT NULL PRIMARY KEY, {task_id}, timeout INT CHECK (timeout < 9)",
            ["timeout: int(11) DEFAULT NULL CHECK (`timeout` < 9) -> bigint(20) DEFAULT NULL"],
        ),
        (
            "job_id BIGINT NOT NULL DEFAULT NEXTVAL(numbers) PRIMARY KEY, {task_id}",
            ["job_id: bigint(20) NOT NULL DEFAULT nextval(`DATABASE`.`numbers`) -> bigint(20) NOT NULL"],
        ),
        ("job_id BIGINT NOT NULL PRIMARY KEY, {task_id}", []),
    ],
)
def test_what_adoption_changes_is_told(
    databases: Databases, mysql_url: str, rows: Any, leader_of: Any, columns: str, changed: list[str]
) -> None:
    """Numbers and times are given by dsched; what the table did by itself must not collide with it."""
    task_id = "task_id VARCHAR(192) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin UNIQUE"
    databases.execute(
        mysql_url,
        "CREATE SEQUENCE numbers",
        f"CREATE TABLE schedule_job ({columns.format(task_id=task_id)}) ENGINE=InnoDB ROW_FORMAT=DYNAMIC",
    )
    changed = [text.replace("DATABASE", parse_url(mysql_url, os.environ).database) for text in changed]
    with capturedLogs() as events:
        store = opened(mysql_url)
    added = [name for name in TASK.columns[2:] if name not in columns.lower()]
    told = [*changed, f"added columns: {', '.join(added)}"]
    assert store.upgrade == Upgrade(0, NEWEST, None, told)
    warnings = [formatEvent(event) for event in events if event["log_level"] is LogLevel.warn]
    assert warnings == [*(f"table schedule_job was adopted: {change}" for change in told), CONSEQUENCE]
    found = databases.execute(mysql_url, "SHOW FULL COLUMNS FROM schedule_job")
    assert {row[6] for row in found} == {""}
    task = rows.task(14)._replace(timeout=8)
    leader_of(store).commit(runs_new=[rows.run()], tasks_new=[task])
    done = task._replace(status="SUCCESS", version=2)
    store.close()
    store.open()
    assert store.upgrade == Upgrade()
    leader_of(store).commit(tasks_set=[done])
    found_task = store.task(task.task_id)
    assert found_task is not None and found_task.update_time[:23] == done.update_time
    store.close()


def test_adoption_tells_of_keys_and_of_the_engine(databases: Databases, mysql_url: str) -> None:
    databases.execute(mysql_url, "CREATE TABLE schedule_job (job_id BIGINT NOT NULL, task_id TEXT) ENGINE=MyISAM")
    store = opened(mysql_url)
    assert store.upgrade.adopted[2:] == [
        "added unique keys: job_id, task_id",
        "engine and row format: MyISAM, Dynamic -> InnoDB, Dynamic",
    ]
    assert store.upgrade.adopted[0].startswith("task_id: text")
    store.close()


def test_adoption_is_told_of_when_what_follows_fails(databases: Databases, mysql_url: str) -> None:
    """It stays, and the next time there is nothing of it left to tell."""
    legacy(databases, mysql_url)
    databases.execute(mysql_url, "CREATE TABLE job (mine TEXT)")
    store = MySqlStore(parse_url(mysql_url, os.environ))
    with capturedLogs() as events, pytest.raises(ConfigError, match="'job' already exists"):
        store.open()
    assert store.upgrade.after == 0 and store.upgrade.adopted
    assert CONSEQUENCE in [formatEvent(event) for event in events]


def test_no_setting_of_the_server_brings_on_update_back(databases: Databases, mysql_url: str) -> None:
    databases.execute(
        mysql_url,
        "CREATE TABLE schedule_job (job_id BIGINT, task_id TEXT, create_time TIMESTAMP NOT NULL)",
        "SET GLOBAL explicit_defaults_for_timestamp = 0",
    )
    try:
        opened(mysql_url).close()
    finally:
        databases.execute(mysql_url, "SET GLOBAL explicit_defaults_for_timestamp = 1")
    assert not any("on update" in row[6] for row in databases.execute(mysql_url, "SHOW FULL COLUMNS FROM schedule_job"))


def test_keys_that_were_not_unique_become_so(databases: Databases, mysql_url: str) -> None:
    databases.execute(
        mysql_url,
        "CREATE TABLE schedule_job (job_id INT, task_id TEXT)",
        "INSERT INTO schedule_job VALUES (1, 'a'), (2, 'b')",
    )
    opened(mysql_url).close()
    found = databases.execute(mysql_url, "SELECT job_id, task_id, params, retry_count FROM schedule_job ORDER BY 1")
    assert found == [(1, "a", None, 0), (2, "b", None, 0)]
    with pytest.raises(Exception, match="Duplicate entry"):
        databases.execute(mysql_url, "INSERT INTO schedule_job (job_id, task_id) VALUES (3, 'a')")


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("CREATE TABLE schedule_job (task_id TEXT)", "no column job_id"),
        ("CREATE TABLE schedule_job (job_id BIGINT, task_id TEXT, tenant TEXT NOT NULL)", "tenant"),
        ("CREATE TABLE schedule_job (job_id BIGINT, task_id TEXT, target_worker TEXT NOT NULL)", "target_worker"),
        (
            "CREATE TABLE schedule_job (job_id BIGINT, task_id TEXT, params DOUBLE)",
            r"params has type double, which holds no text: make it mediumtext",
        ),
        (
            "CREATE TABLE schedule_job (job_id BIGINT, task_id TEXT, Status ENUM('PENDING', 'DONE'))",
            r"Status has type enum\('PENDING','DONE'\), which takes its own values only: make it varchar\(32\)",
        ),
        (
            "CREATE TABLE schedule_job (job_id BIGINT, task_id TEXT, error_msg SET('a', 'b'))",
            r"error_msg has type set\('a','b'\), which takes its own values only: make it text",
        ),
        (
            "CREATE TABLE schedule_job (job_id BIGINT, task_id TEXT, timeout ENUM('10', '20'))",
            r"timeout has type enum\('10','20'\), which holds no whole numbers: make it bigint",
        ),
        (
            "CREATE TABLE schedule_job (job_id BIGINT, task_id TEXT, create_time BIGINT)",
            r"create_time has type bigint\(20\), which holds no instants: make it timestamp\(3\)",
        ),
        (
            "CREATE TABLE schedule_job (job_id BIGINT, task_id TEXT, params TEXT AS ('x') VIRTUAL)",
            r"params is computed, dsched writes there",
        ),
        (
            "CREATE TABLE schedule_job (job_id BIGINT UNIQUE, task_id TEXT, tenant INT PRIMARY KEY)",
            r"tenant must be given and dsched does not know it",
        ),
        (
            "CREATE TABLE schedule_job (job_id BIGINT, task_id TEXT); INSERT INTO schedule_job VALUES (1,'a'),(1,'b')",
            "Duplicate entry",
        ),
        (
            "CREATE TABLE schedule_job (job_id TEXT, task_id TEXT); INSERT INTO schedule_job VALUES ('x', 'a')",
            "incorrect INTEGER value",
        ),
        (
            "CREATE TABLE schedule_job (job_id INT, task_id TEXT);"
            "INSERT INTO schedule_job VALUES (1, repeat('x', 5000))",
            "Data too long",
        ),
    ],
)
def test_a_table_that_cannot_be_written_is_refused_untouched(
    databases: Databases, mysql_url: str, table: str, says: str
) -> None:
    databases.execute(mysql_url, *table.split("; " if "; " in table else ";"))
    before = databases.execute(mysql_url, "SHOW CREATE TABLE schedule_job")
    with pytest.raises(ConfigError, match=says):
        opened(mysql_url)
    assert databases.execute(mysql_url, "SHOW CREATE TABLE schedule_job") == before
    assert databases.execute(mysql_url, "SHOW TABLES") == [("schedule_job",)]


BOUND = 1_000_000 << 16  # what dsched gives out 1000 s after the epoch


@pytest.mark.parametrize(
    ("kind", "job_id"),
    [
        ("BIGINT", BOUND + 1),
        ("BIGINT PRIMARY KEY", (1 << 63) - 1),
        ("BIGINT UNSIGNED PRIMARY KEY", (1 << 64) - 1),
        ("VARCHAR(20)", BOUND + 1),
        ("DECIMAL(30)", 10**29),
    ],
)
def test_ids_above_those_of_today_are_refused_untouched(
    databases: Databases, mysql_url: str, kind: str, job_id: int
) -> None:
    databases.execute(
        mysql_url,
        f"CREATE TABLE schedule_job (job_id {kind}, task_id TEXT)",
        f"INSERT INTO schedule_job VALUES ({job_id}, 'a'), (9, 'b')",
    )
    before = databases.execute(mysql_url, "SHOW CREATE TABLE schedule_job")
    with pytest.raises(ConfigError, match=f"largest job_id is {job_id}, .* {BOUND} now.* renumber"):
        MySqlStore(parse_url(mysql_url, os.environ), time_s=lambda: 1000.0).open()
    assert databases.execute(mysql_url, "SHOW CREATE TABLE schedule_job") == before
    assert databases.execute(mysql_url, "SHOW TABLES") == [("schedule_job",)]


def test_ids_up_to_those_of_today_are_taken_over(databases: Databases, mysql_url: str) -> None:
    databases.execute(
        mysql_url,
        "CREATE TABLE schedule_job (job_id BIGINT, task_id TEXT)",
        f"INSERT INTO schedule_job VALUES ({BOUND}, 'a')",
    )
    store = MySqlStore(parse_url(mysql_url, os.environ), time_s=lambda: 1000.0)
    store.open()
    assert store.statuses(["a"]) == {"a": None}
    store.close()
