"""The store in an SQLite file.

Two connections: one writes, in the thread that commits; one only reads, in the thread that answers. WAL lets them work
at the same time, and a reader sees whole commits only.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from twisted.logger import Logger

from dsched.errors import BatchRefused, ConfigError, DschedError, StoreUnavailable
from dsched.store.adoption import Column, additions, plan, tell
from dsched.store.migrations import Migration, Upgrade, apply, load_migrations, outstanding
from dsched.store.sql_store import SqlStore
from dsched.store.statements import TASK, Table
from dsched.store.writes import Writes

__all__ = ["SqliteStore"]

T = TypeVar("T")

_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL)
_CONTENT: Final = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    ValueError,
)
_MARK: Final = "?"
_HINT: Final = "INDEXED BY {}"
_MOST_ROWS: Final = 512  # per statement: beyond it nothing gets faster, and the first use of a text gets slower


class _Connection:
    """A connection that opens when it is needed, is dropped when it broke, and serves one caller at a time."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self.is_open = False

    @contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection. What is raised meanwhile leaves no transaction open; sqlite3's errors become ours."""
        with self._lock:
            try:
                if not self.is_open:
                    raise StoreUnavailable("SQLite: the store is closed")
                if self._database is None:
                    self._database = self._connect()
                yield self._database
            except BaseException as error:
                works = self._roll_back()
                if isinstance(error, DschedError) or not isinstance(error, (sqlite3.Error, ValueError, OverflowError)):
                    raise
                if works and isinstance(error, _CONTENT):
                    raise BatchRefused(str(error)) from error
                if _code(error) not in _BUSY:
                    self._drop()
                raise StoreUnavailable(f"SQLite: {error}") from error

    def close(self) -> None:
        """Close; idempotent."""
        with self._lock:
            self.is_open = False
            self._drop()

    def _roll_back(self) -> bool:
        """End the open transaction, if any; return whether the connection still works."""
        if self._database is None:
            return False
        try:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
        except sqlite3.Error:
            self._drop()
            return False
        return True

    def _drop(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            try:
                database.close()
            except sqlite3.Error:
                return  # it is gone either way


class SqliteStore(SqlStore):
    """A store in one SQLite file; the contract is `dsched.store.interface.Store`.

    `synchronous` FULL makes a commit survive a power cut, NORMAL only a crash of the process. `busy_timeout_s` is how
    long a lock of another process is waited for before `StoreUnavailable`. `time_s` is the wall clock, which the ids of
    a table that was there before are held against. `migrations` are for tests.
    """

    log = Logger()
    readers = 1

    def __init__(
        self,
        path: str,
        *,
        synchronous: str = "FULL",
        url: str | None = None,
        busy_timeout_s: float = 5.0,
        migrations: Sequence[Migration] | None = None,
        time_s: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(_MARK, _HINT, Writes(_MARK, most_rows=_MOST_ROWS, variables=999))
        self.url = url if url is not None else f"sqlite:///{quote(path)}"
        self.path = Path(path).absolute()
        self._synchronous = synchronous
        self._busy_timeout_s = busy_timeout_s
        self._migrations = load_migrations("sqlite") if migrations is None else tuple(migrations)
        self.upgrade = Upgrade()
        self._time_s = time_s
        self._file: tuple[int, int] | None = None
        self._writer = _Connection(self._connect_writer)
        self._reader = _Connection(self._connect_reader)

    # -- connections

    def open(self) -> None:
        """Connect, and bring the schema up to date; raises `ConfigError` for a file that cannot become a store."""
        if sqlite3.sqlite_version_info < (3, 33):
            raise ConfigError(f"store: SQLite 3.33 or newer is needed, Python brings {sqlite3.sqlite_version}")
        if not self.path.parent.is_dir():
            raise ConfigError(f"store: there is no folder {self.path.parent}: create it, or name another file")
        try:
            # Only here a missing file is created: one that vanishes later is an error, not an empty store.
            self._connect("rwc").close()
            self._writer.is_open = self._reader.is_open = True
            with self._writer.use() as database:
                self._migrate(database)
        except sqlite3.Error as error:
            raise self._refusal(error) from error
        except (StoreUnavailable, BatchRefused) as error:
            self.close()
            cause = error.__cause__
            if isinstance(cause, sqlite3.Error) and _code(cause) not in (*_BUSY, sqlite3.SQLITE_IOERR):
                raise self._refusal(cause) from cause
            raise
        except BaseException:
            self.close()
            raise

    def _refusal(self, error: sqlite3.Error) -> ConfigError:
        return ConfigError(f"store: {self.path} cannot be used: {error}")

    def close(self) -> None:
        """Close both connections; idempotent."""
        # The writer last: the last connection to close folds the WAL back into the file, and a reader may not.
        self._reader.close()
        self._writer.close()

    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"file:{quote(str(self.path))}?mode={mode}",
            uri=True,
            timeout=self._busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=512,
        )

    def _connect_writer(self) -> sqlite3.Connection:
        database = self._connect("rw")
        try:
            self._switch_to_wal(database)
            database.execute(f"PRAGMA synchronous = {self._synchronous}")
            # Checkpoints run inside a commit: rarely, and then for many batches. Pages written often are copied once.
            database.execute("PRAGMA wal_autocheckpoint = 4000")
            database.execute("PRAGMA journal_size_limit = 67108864")
            database.execute("PRAGMA cache_size = -65536")
            database.execute("PRAGMA temp_store = MEMORY")
        except BaseException:
            database.close()
            raise
        self._writes.variables = database.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
        self._file = self._identity()
        return database

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _check_file(self) -> None:
        """What is written to a file without a name is lost with the process, and SQLite does not mind."""
        if self._identity() != self._file:
            raise StoreUnavailable(f"SQLite: {self.path} was deleted or replaced while in use; put it back, or restart")

    def _switch_to_wal(self, database: sqlite3.Connection) -> None:
        """Turn WAL on, which lasts. SQLite may not wait by itself for others that open the file at this moment."""
        database.execute("PRAGMA busy_timeout = 0")
        for _ in range(100):
            try:
                mode = database.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                break
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY:
                    raise
                time.sleep(self._busy_timeout_s / 100)
        else:
            raise StoreUnavailable(f"SQLite: {self.path} is locked by another process")
        if mode != "wal":
            raise ConfigError(f"store: {self.path} is on a file system without WAL; use a local disk")
        database.execute(f"PRAGMA busy_timeout = {round(self._busy_timeout_s * 1000)}")

    def _connect_reader(self) -> sqlite3.Connection:
        database = self._connect("ro")
        database.execute("PRAGMA cache_size = -16384")
        return database

    @contextmanager
    def reading(self) -> Iterator[Callable[..., Any]]:
        """Lend the reader's `execute` for one consistent look."""
        with self._reader.use() as database:
            self._check_file()
            database.execute("BEGIN")
            yield database.execute
            database.execute("COMMIT")

    # -- schema

    def versions(self) -> tuple[int, int]:
        """Return the version that the schema has, 0 for none, and the newest one."""
        newest = self._migrations[-1].version
        if not self.path.exists():
            return 0, newest
        try:
            database = self._connect("rw")  # A reader would leave its WAL behind.
            try:
                return _schema_version(database), newest
            finally:
                database.close()
        except sqlite3.Error as error:
            raise self._refusal(error) from error

    def backup_path(self, version: int) -> Path:
        """Return where a migration keeps the file as it was with that version."""
        return self.path.with_name(f"{self.path.name}.v{version}.backup")

    def _migrate(self, database: sqlite3.Connection) -> None:
        self.upgrade = Upgrade()
        if not outstanding(_schema_version(database), self._migrations, str(self.path)):
            return
        database.execute("BEGIN IMMEDIATE")
        current = _schema_version(database)  # again: another process may have migrated while this one waited
        steps = outstanding(current, self._migrations, str(self.path))
        if steps:
            upgrade = Upgrade(current, steps[-1].version)
            existing = [] if current else _columns(database, TASK)
            adoption = self._adoption(database, existing, upgrade) if existing else []
            if _has_content(database):
                self._back_up(current)
                upgrade.backup = self.backup_path(current)
            for statement in adoption:
                database.execute(statement)
            apply(database.execute, steps)
            database.execute("COMMIT")
            self.upgrade = upgrade
            tell(self.log, upgrade)
        else:
            database.execute("ROLLBACK")

    def _back_up(self, version: int) -> None:
        """Copy the file as it is before a migration, beside it; complete or not there at all."""
        target = self.backup_path(version)
        partial = target.with_name(target.name + ".partial")
        partial.unlink(missing_ok=True)
        source, copy = self._connect("ro"), sqlite3.connect(partial)
        try:
            source.backup(copy)
        finally:
            source.close()
            copy.close()
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(target)

    def _adoption(self, database: sqlite3.Connection, existing: Sequence[Column], upgrade: Upgrade) -> list[str]:
        """Return the statements that adopt a table of tasks; what they change is noted in `upgrade`."""
        fresh = sqlite3.connect(":memory:")
        try:
            for statement in self._migrations[0].statements():
                fresh.execute(statement)
            wanted = _columns(fresh, TASK)
        finally:
            fresh.close()
        unique = _unique(database, TASK)
        upgrade.adopted = additions(existing, wanted, unique)
        return plan(database.execute, existing, wanted, unique, round(self._time_s() * 1000))

    # -- writes

    def writing(self, work: Callable[[Callable[..., Any]], T]) -> T:
        """Return what `work` returns, committed."""
        with self._writer.use() as database:
            self._check_file()
            database.execute("BEGIN IMMEDIATE")
            result = work(database.execute)
            database.execute("COMMIT")
            return result


def _code(error: BaseException) -> int:
    """Return SQLite's primary result code of an error, 0 where it has none."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def _schema_version(database: sqlite3.Connection) -> int:
    known = database.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema_version'").fetchone()
    if known is None:
        return 0
    version: int = database.execute("SELECT coalesce(max(version), 0) FROM schema_version").fetchone()[0]
    return version


def _has_content(database: sqlite3.Connection) -> bool:
    return database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None


def _columns(database: sqlite3.Connection, table: Table[Any]) -> list[Column]:
    """Return the columns of a table, none where it does not exist. A key column is never null."""
    rows = database.execute(f"PRAGMA table_info({table.name})").fetchall()
    return [Column(name, kind, bool(required) and not key, default) for _, name, kind, required, default, key in rows]


def _unique(database: sqlite3.Connection, table: Table[Any]) -> list[tuple[str, ...]]:
    """Return the groups of columns that are unique over all rows of a table."""
    key = [row[1] for row in database.execute(f"PRAGMA table_info({table.name})").fetchall() if row[5]]
    found = [tuple(key)]
    for _, index, unique, _, partial in database.execute(f"PRAGMA index_list({table.name})").fetchall():
        if unique and not partial:
            found.append(tuple(row[2] for row in database.execute(f"PRAGMA index_info({index!r})").fetchall()))
    return found
