"""Migrations and adoption on MySQL and MariaDB, where each statement on a schema commits by itself.

So the progress is written down: `schema_progress` names the statement that was begun. What a killed process began is
run again, and may then say that it is done already. A lock of the server lets one process at a time in.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pymysql

from dsched.errors import ConfigError, StoreUnavailable
from dsched.store.adoption import Column, missing, missing_keys, objections
from dsched.store.migrations import Migration, outstanding
from dsched.store.mysql.faults import code_of, is_answer, text_of, will_stay
from dsched.store.statements import TASK

__all__ = ["migrate", "needs_migration", "schema_version"]

_LOCK: Final = "CONCAT('dsched:', SHA1(DATABASE()))"
_LOCK_WAIT_S: Final = 30
_DONE_ALREADY: Final = frozenset({1050, 1060, 1061, 1051, 1091})
"""Table, column or key exists; table or key does not exist."""
_RIGHTS: Final = frozenset({1044, 1142, 1143, 1227, 1370})
"""What is said about rights has advice of its own."""
_CREATE: Final = f"CREATE TABLE IF NOT EXISTS {TASK.name} "
_WANTED: Final = "dsched_wanted"
_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS schema_version ("
    "version INTEGER NOT NULL PRIMARY KEY, applied_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP) ENGINE = InnoDB",
    "CREATE TABLE IF NOT EXISTS schema_progress ("
    "version INTEGER NOT NULL PRIMARY KEY, statement INTEGER NOT NULL, begun INTEGER NOT NULL) ENGINE = InnoDB",
)
_TYPE: Final = re.compile(r"([a-z]+)(?:\((\d+)\))?(.*)")
_TEXTS: Final = ("tinytext", "text", "mediumtext", "longtext")


def needs_migration(cursor: Any, migrations: Sequence[Migration], store: str) -> bool:
    """Tell whether the schema lacks something; raises `ConfigError` for a newer one."""
    return bool(outstanding(schema_version(cursor), migrations, store))


def migrate(connection: Any, migrations: Sequence[Migration], store: str) -> None:
    """Bring the schema up to date; one process does, others wait and find it done."""
    cursor = connection.cursor()
    cursor.execute(f"SELECT GET_LOCK({_LOCK}, {_LOCK_WAIT_S})")
    if cursor.fetchone()[0] != 1:
        raise StoreUnavailable(f"MySQL: another process brings the schema of {store} up to date")
    connection.rollback()  # what was seen before the wait is old
    current = schema_version(cursor)
    steps = outstanding(current, migrations, store)
    if not steps:
        return
    for statement in _TABLES:
        cursor.execute(statement)
    if not current and _columns(cursor, TASK.name):
        _adopt(cursor, migrations[0])
    for migration in steps:
        _apply(connection, cursor, migration)
    # The lock goes with the connection.


def schema_version(cursor: Any) -> int:
    """Return the version of the schema, 0 where there is none."""
    cursor.execute(
        "SELECT count(*) FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND table_name = 'schema_version'"
    )
    if not cursor.fetchone()[0]:
        return 0
    cursor.execute("SELECT coalesce(max(version), 0) FROM schema_version")
    version: int = cursor.fetchone()[0]
    return version


def _apply(connection: Any, cursor: Any, migration: Migration) -> None:
    cursor.execute("SELECT statement, begun FROM schema_progress WHERE version = %s", (migration.version,))
    first, begun = cursor.fetchone() or (0, 0)
    for number, statement in enumerate(migration.statements()):
        if number < first:
            continue
        _note(cursor, migration.version, number, 1)
        connection.commit()
        try:
            cursor.execute(statement)
        except pymysql.err.MySQLError as error:
            if not (begun and number == first and code_of(error) in _DONE_ALREADY):
                _note_failure(connection, cursor, error, migration, number)
                raise
        _note(cursor, migration.version, number + 1, 0)
        connection.commit()
    cursor.execute("INSERT INTO schema_version (version) VALUES (%s)", (migration.version,))
    cursor.execute("DELETE FROM schema_progress WHERE version = %s", (migration.version,))
    connection.commit()


def _note_failure(connection: Any, cursor: Any, error: Exception, migration: Migration, statement: int) -> None:
    """Remember that a statement was not done, if that is known; raises `ConfigError` if it never can be."""
    if not is_answer(error):
        return
    connection.rollback()
    _note(cursor, migration.version, statement, 0)
    connection.commit()
    if will_stay(error) and code_of(error) not in _RIGHTS:
        raise ConfigError(f"store: the migration {migration.name} cannot be made: {text_of(error)}") from error


def _note(cursor: Any, version: int, statement: int, begun: int) -> None:
    cursor.execute("REPLACE INTO schema_progress VALUES (%s, %s, %s)", (version, statement, begun))


# -- a table that was there before


class _Described(NamedTuple):
    """A column as SHOW FULL COLUMNS has it."""

    name: str
    type: str
    collation: str | None
    null: str
    key: str
    default: str | None
    extra: str

    def column(self) -> Column:
        return Column(self.name, self.type, self.null == "NO" and self.key != "PRI", self.default)


def _columns(cursor: Any, table: str) -> list[_Described]:
    """Return the columns of a table, none where it does not exist."""
    try:
        cursor.execute(f"SHOW FULL COLUMNS FROM {table}")
    except pymysql.err.ProgrammingError as error:
        if code_of(error) == 1146:
            return []
        raise
    return [_Described(*row[:7]) for row in cursor.fetchall()]


def _adopt(cursor: Any, migration: Migration) -> None:
    """Give `schedule_job` the columns, types and keys that dsched needs; its rows stay. May be cut off and repeated."""
    [create] = [text for text in migration.statements() if text.startswith(_CREATE)]
    cursor.execute(f"CREATE TEMPORARY TABLE {_WANTED} {create.removeprefix(_CREATE)}")
    wanted = _columns(cursor, _WANTED)
    cursor.execute(f"DROP TEMPORARY TABLE {_WANTED}")
    existing = _columns(cursor, TASK.name)
    have, want = [column.column() for column in existing], [column.column() for column in wanted]
    problems = list(objections(have, want))
    if problems:
        raise _refused(*problems)
    described = {column.name: column for column in wanted}
    clauses = [f"ADD COLUMN {_declare(cursor, described[c.name], adding=True)}" for c in missing(have, want)]
    for column in existing:
        ours = described.get(column.name)
        if ours is not None and not _holds(column, ours):
            clauses.append(f"MODIFY COLUMN {_declare(cursor, _widened(column, ours))}")
    clauses += [f"ADD UNIQUE KEY schedule_job_{key} ({key})" for key in missing_keys(_unique(cursor))]
    cursor.execute(
        "SELECT engine, row_format FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = %s",
        (TASK.name,),
    )
    engine, row_format = cursor.fetchone()
    if engine != "InnoDB" or row_format != "Dynamic":
        clauses += ["ENGINE = InnoDB", "ROW_FORMAT = DYNAMIC"]
    if clauses:
        try:
            cursor.execute(f"ALTER TABLE {TASK.name} {', '.join(clauses)}")
        except pymysql.err.MySQLError as error:
            if code_of(error) in _RIGHTS or not will_stay(error):
                raise
            raise _refused(text_of(error)) from error


def _refused(*problems: str) -> ConfigError:
    return ConfigError(*(f"table {TASK.name} cannot be taken over: {problem}" for problem in problems))


def _unique(cursor: Any) -> list[tuple[str, ...]]:
    """Return the groups of columns that are unique over all rows."""
    cursor.execute(f"SHOW INDEX FROM {TASK.name} WHERE Non_unique = 0")
    groups: dict[str, list[str]] = {}
    for _, _, name, _, column, *_ in cursor.fetchall():
        groups.setdefault(name, []).append(column)
    return [tuple(columns) for columns in groups.values()]


def _split(kind: str) -> tuple[str, int, str]:
    match = _TYPE.match(kind.lower())
    assert match is not None
    return match[1], int(match[2] or 0), match[3].strip()


def _holds(column: _Described, wanted: _Described) -> bool:
    """Tell whether everything that fits `wanted` fits `column`, unchanged."""
    kind, size, rest = _split(column.type)
    goal, least, _ = _split(wanted.type)
    if goal == "bigint":
        return kind == goal and not rest
    if goal == "timestamp":
        return kind in ("timestamp", "datetime") and size >= least and "on update" not in column.extra.lower()
    if column.collation != wanted.collation:
        return False
    if goal == "varchar":
        return kind == goal and size >= least
    return kind in _TEXTS and _TEXTS.index(kind) >= _TEXTS.index(goal)


def _widened(column: _Described, wanted: _Described) -> _Described:
    """Return `column` with the type of `wanted`, and what it has of nulls and defaults."""
    kind, size, _ = _split(column.type)
    goal, least, _ = _split(wanted.type)
    type_ = wanted.type
    if goal == "varchar" and kind in ("varchar", "char"):
        type_ = f"varchar({max(size, least)})"
    elif goal == "timestamp" and kind == "datetime":
        type_ = f"datetime({max(size, least)})"
    elif kind in _TEXTS and goal in _TEXTS:
        type_ = max(kind, goal, key=_TEXTS.index)
    return column._replace(type=type_, collation=wanted.collation, extra="")


def _declare(cursor: Any, column: _Described, *, adding: bool = False) -> str:
    """Return the declaration; a new column without a default is null in the rows that are there."""
    text = f"`{column.name}` {column.type}"
    if column.collation is not None:
        text += f" CHARACTER SET {column.collation.split('_')[0]} COLLATE {column.collation}"
    is_null = column.null == "YES" or (adding and column.default is None)
    text += " NULL" if is_null else " NOT NULL"
    if column.default is None:
        return text
    if column.default.lower().startswith("current_timestamp"):
        return f"{text} DEFAULT CURRENT_TIMESTAMP({_split(column.type)[1] or ''})".replace("()", "")
    return f"{text} DEFAULT {cursor.connection.escape(column.default)}"
