"""The store in a MySQL or MariaDB database; see `docs/mysql.md` for what it needs of the server."""

import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final, TypeVar
from urllib.parse import quote

from twisted.logger import Logger

from dsched.errors import BatchRefused, ConfigError
from dsched.model.rows import LeaderRow
from dsched.model.task import OPEN, TaskState
from dsched.store.adoption import tell
from dsched.store.migrations import Migration, Upgrade, load_migrations
from dsched.store.mysql.connection import Connections, MySqlSettings, connect
from dsched.store.mysql.faults import DRIVER_ERRORS, refusal
from dsched.store.mysql.runner import Runner
from dsched.store.mysql.schema import migrate, needs_migration, schema_version
from dsched.store.mysql.statements import MARK, MySqlWrites
from dsched.store.reads import leader_row
from dsched.store.sql_store import SqlStore
from dsched.store.statements import LEADER

__all__ = ["MySqlStore"]

T = TypeVar("T")

_VERSION: Final = re.compile(r"(\d+)\.(\d+)")
_OLDEST: Final = {"MariaDB": (10, 6), "MySQL": (8, 0)}
_STATEMENT_LIMIT_S: Final = 60
"""When the server itself ends a read: long after whoever asked has gone, long enough to load what is active."""
_HINT: Final = "FORCE INDEX ({})"
_PACKET: Final = 16 << 20
"""What a statement of many rows, and any single row, should be able to fill."""
_LOOK_LIMIT_S: Final = 10.0
_MIGRATION_LIMIT_S: Final = 3600.0
_OPEN_TASK: Final = (
    "status IN (" + ", ".join(f"'{state.value}'" for state in TaskState if state in OPEN) + ") AND version > 0"
)
"""Open tasks, from the index alone. Adopted rows have version 0, all others more."""


class MySqlStore(SqlStore):
    """A store in one database; the contract is `dsched.store.interface.Store`.

    Every thread that calls gets a connection of its own, and one more if it both reads and writes. A wait for the
    server ends after `reader_s` or `writer_s` seconds, a wait for a lock after `lock_wait_s`. A connection that
    writes and says nothing for `pause_s` seconds is ended by the server, with its transaction: a core that stands still
    must not keep the leader row from the next one. `rng` and `sleep` are for the pauses after deadlocks, `time_s` is
    the wall clock, which the ids of a table that was there before are held against. `migrations` are for tests.
    """

    log = Logger()
    open_task = _OPEN_TASK
    locking = "FOR UPDATE"
    looks_by_index = 1_500  # each is a page of its own to read, once history is larger than the buffer pool
    _writes: MySqlWrites

    @staticmethod
    def by_index(name: str) -> str:
        """Force it: after a large load, a table's statistics may say for minutes that it is nearly empty."""
        return _HINT.format(name)

    def __init__(
        self,
        settings: MySqlSettings,
        *,
        readers: int = 3,
        reader_s: float = 5.0,
        writer_s: float = 10.0,
        lock_wait_s: int = 2,
        pause_s: int = 8,
        migrations: Sequence[Migration] | None = None,
        rng: random.Random | None = None,
        sleep: Callable[[float], None] = time.sleep,
        time_s: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(MARK, _HINT, MySqlWrites(), "PRIMARY")
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"mysql://{quote(settings.user, safe='')}@{host}:{settings.port}/{quote(settings.database, safe='')}"
        self.readers = readers
        self._settings = settings
        self._context = settings.context()
        self._lock_wait_s = lock_wait_s
        self._pause_s = pause_s
        self.upgrade = Upgrade()
        self._time_s = time_s
        self._migrations = load_migrations("mysql") if migrations is None else tuple(migrations)
        self._readers = Connections(
            settings, timeout_s=reader_s, context=self._context, opened=self._prepare_reader
        )  # fmt: skip
        self._writers = Connections(
            settings, timeout_s=writer_s, context=self._context, opened=self._prepare_writer
        )  # fmt: skip
        rng = rng if rng is not None else random.Random()
        self._looks = Runner(self._readers, rng=rng, sleep=sleep)
        self._runner = Runner(self._writers, rng=rng, sleep=sleep)

    # -- connections

    def open(self) -> None:
        """Connect, and bring the schema up to date.

        Raises `ConfigError` where waiting cannot help: login, rights, no such database, an old server.
        """
        self.upgrade = Upgrade()
        self._readers.open()
        self._writers.open()
        try:
            with self._readers.lend():
                cursor = self._readers.mine().cursor()
                _check_version(cursor)
                self._check_packet(cursor)
                outstanding = needs_migration(cursor, self._migrations, self.url)
                self._readers.mine().rollback()
            if outstanding:
                with closing(connect(self._settings, timeout_s=_MIGRATION_LIMIT_S, context=self._context)) as own:
                    migrate(own, self._migrations, self.url, round(self._time_s() * 1000), self.upgrade)
        except DRIVER_ERRORS as error:
            self.close()
            raise refusal(error, self.url, self._settings.doubt) from error
        except BaseException:
            self.close()
            raise
        finally:
            tell(self.log, self.upgrade)

    def close(self) -> None:
        """Close every connection; idempotent. Waits for what runs, within its time limit."""
        self._readers.close()
        self._writers.close()

    def _check_packet(self, cursor: Any) -> None:
        cursor.execute("SELECT @@max_allowed_packet")
        [packet] = cursor.fetchone()
        if packet < _PACKET:
            self.log.warn(  # noqa: G010
                "the server takes packets of {packet} bytes: set its max_allowed_packet to {wanted} (16M) or more",
                packet=packet, wanted=_PACKET,
            )  # fmt: skip

    def _prepare_reader(self, connection: Any) -> None:
        cursor = connection.cursor()
        # One look is several statements and must see one state.
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        is_maria = "MariaDB" in connection.get_server_info()
        limit = f"max_statement_time = {_STATEMENT_LIMIT_S}"
        if not is_maria:
            limit = f"max_execution_time = {_STATEMENT_LIMIT_S * 1000}"
        cursor.execute(f"SET SESSION lock_wait_timeout = {self._lock_wait_s}, {limit}")

    def _prepare_writer(self, connection: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute(
            f"SET SESSION lock_wait_timeout = {self._lock_wait_s}, innodb_lock_wait_timeout = {self._lock_wait_s}"
        )
        # The server cannot see that a machine stands still, or is out of reach; without this it would wait for hours.
        cursor.execute(f"SET SESSION wait_timeout = {self._pause_s}")
        cursor.execute("SELECT @@max_allowed_packet")
        [self._writes.packet] = cursor.fetchone()

    @contextmanager
    def reading(self) -> Iterator[Callable[..., Any]]:
        """Lend `execute` of this thread's reading connection for one consistent look."""
        with self._looks.reading() as execute:
            yield execute

    # -- leadership

    def leader(self) -> LeaderRow:
        """Return the leader row. After a COMMIT without an answer it waits until the server has decided about that."""
        if not self._runner.is_unsure:
            return super().leader()

        def read(execute: Any) -> LeaderRow:
            return leader_row(execute(LEADER.select(self.locking)).fetchone())

        row = self._runner.write(read)
        self._runner.is_unsure = False
        return row

    # -- writes

    def writing(self, work: Callable[[Any], T]) -> T:
        """Return what `work` returns, committed."""
        try:
            return self._runner.write(work)
        except (OverflowError, ValueError) as error:
            raise BatchRefused(str(error)) from error

    def versions(self) -> tuple[int, int]:
        """Return the version that the schema has, 0 for none, and the newest one."""
        try:
            with closing(connect(self._settings, timeout_s=_LOOK_LIMIT_S, context=self._context)) as own:
                return schema_version(own.cursor()), self._migrations[-1].version
        except DRIVER_ERRORS as error:
            raise refusal(error, self.url, self._settings.doubt) from error


def _check_version(cursor: Any) -> None:
    cursor.execute("SELECT version()")
    [text] = cursor.fetchone()
    kind = "MariaDB" if "mariadb" in text.lower() else "MySQL"
    match = _VERSION.match(text)
    found = (int(match[1]), int(match[2])) if match else (0, 0)
    if found < _OLDEST[kind]:
        wanted = " or ".join(f"{name} {a}.{b}" for name, (a, b) in _OLDEST.items())
        raise ConfigError(f"store: the server is {kind} {text}; dsched needs {wanted} or newer")
