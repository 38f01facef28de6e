"""Migrations on MySQL and MariaDB, where each statement on a schema commits by itself.

So the progress is written down: `schema_progress` names the statement that was begun. What a killed process began is
run again, and may then say that it is done already. A lock of the server lets one process at a time in.
"""

from collections.abc import Sequence
from typing import Any, Final

import pymysql

from dsched.errors import ConfigError, StoreUnavailable
from dsched.store.migrations import Migration, Upgrade, outstanding
from dsched.store.mysql.adoption import adopt, is_there
from dsched.store.mysql.faults import RIGHTS, code_of, is_answer, text_of, will_stay

__all__ = ["LOCK", "migrate", "needs_migration", "schema_version"]

LOCK: Final = "CONCAT('dsched:', SHA1(DATABASE()))"
"""The name of the server's lock that whoever migrates holds."""
_LOCK_WAIT_S: Final = 30
_DONE_ALREADY: Final = frozenset({1050, 1060, 1061, 1051, 1091})
"""Table, column or key exists; table or key does not exist."""
_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS schema_version ("
    "version INTEGER NOT NULL PRIMARY KEY, applied_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP) ENGINE = InnoDB",
    "CREATE TABLE IF NOT EXISTS schema_progress ("
    "version INTEGER NOT NULL PRIMARY KEY, statement INTEGER NOT NULL, begun INTEGER NOT NULL) ENGINE = InnoDB",
)


def needs_migration(cursor: Any, migrations: Sequence[Migration], store: str) -> bool:
    """Tell whether the schema lacks something; raises `ConfigError` for a newer one."""
    return bool(outstanding(schema_version(cursor), migrations, store))


def migrate(connection: Any, migrations: Sequence[Migration], store: str, now_ms: int, upgrade: Upgrade) -> None:
    """Bring the schema up to date; one process does, others wait and find it done.

    `now_ms` is the wall clock's. What is done is written down in `upgrade`, step by step, for each one stays.
    """
    cursor = connection.cursor()
    cursor.execute(f"SELECT GET_LOCK({LOCK}, {_LOCK_WAIT_S})")
    if cursor.fetchone()[0] != 1:
        raise StoreUnavailable(f"MySQL: another process brings the schema of {store} up to date")
    connection.rollback()  # what was seen before the wait is old
    current = schema_version(cursor)
    steps = outstanding(current, migrations, store)
    if not steps:
        return
    if not current and is_there(cursor):
        # First: what it refuses it leaves as it was.
        upgrade.adopted = adopt(cursor, migrations[0], now_ms)
    for statement in _TABLES:
        cursor.execute(statement)
    upgrade.before = current
    for migration in steps:
        _apply(connection, cursor, migration)
        upgrade.after = migration.version
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
    if will_stay(error) and code_of(error) not in RIGHTS:
        raise ConfigError(f"store: the migration {migration.name} cannot be made: {text_of(error)}") from error


def _note(cursor: Any, version: int, statement: int, begun: int) -> None:
    cursor.execute("REPLACE INTO schema_progress VALUES (%s, %s, %s)", (version, statement, begun))
