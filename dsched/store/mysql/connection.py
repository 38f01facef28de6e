"""Connections to a MySQL or MariaDB server, and whose they are: one for each thread."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pymysql
import pymysql.converters
from pymysql.constants import CLIENT, CR, FIELD_TYPE, SERVER_STATUS
from twisted.enterprise.adbapi import ConnectionPool

from dsched.errors import ConfigError, StoreUnavailable

__all__ = ["Connections", "MySqlSettings", "TlsMode", "connect"]

TlsMode = Literal["off", "prefer", "require", "verify"]

SQL_MODE: Final = "STRICT_ALL_TABLES,STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO"
"""What is refused instead of bent. Without ANSI_QUOTES, NO_BACKSLASH_ESCAPES and NO_ZERO_DATE."""

_PLAIN: Final = frozenset({FIELD_TYPE.TIMESTAMP, FIELD_TYPE.DATETIME})
_CONVERTERS: Final = {kind: decode for kind, decode in pymysql.converters.conversions.items() if kind not in _PLAIN}
"""Instants stay the text that the server sends; reading them into objects would cost time and lose zeros."""


@dataclass(frozen=True, slots=True)
class MySqlSettings:
    """Where a database is and how to log in. `tls` "verify" checks the server's certificate and name."""

    host: str
    port: int
    user: str
    password: bytes = field(repr=False)
    database: str
    tls: TlsMode = "prefer"
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    @property
    def doubt(self) -> str:
        """What a login may be refused for besides the user and the password; empty if nothing is known."""
        if self.tls == "off":
            return "the server may demand TLS: tls=require"
        return "" if self.cert else "the server may demand a certificate: cert=PATH"

    def context(self) -> ssl.SSLContext | None:
        """Return how to speak TLS, None to leave that to the driver; raises `ConfigError` for unusable files."""
        if self.tls in ("off", "prefer") and not (self.ca or self.cert):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.tls != "verify":
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.cert:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigError(f"store: TLS files cannot be used (ca, cert, key): {error}") from None
        return context


def connect(
    settings: MySqlSettings, *, timeout_s: float, context: ssl.SSLContext | None = None
) -> "pymysql.connections.Connection[Any]":
    """Return a new connection. Its transactions begin by themselves and end with `commit` or `rollback`.

    Each wait for the server, the login included, ends after `timeout_s`. Row counts are those matched, not those
    changed: what compares and sets relies on that.
    """
    with _logging_in():
        return pymysql.connect(**_arguments(settings, timeout_s, context))


@contextmanager
def _logging_in() -> Iterator[None]:
    """Make an error of the driver of the RuntimeError that it raises when a login needs a package that is not there."""
    try:
        yield
    except RuntimeError as error:
        raise pymysql.err.OperationalError(CR.CR_AUTH_PLUGIN_CANNOT_LOAD, str(error)) from error


def _arguments(settings: MySqlSettings, timeout_s: float, context: ssl.SSLContext | None) -> dict[str, Any]:
    return {
        "host": settings.host,
        "port": settings.port,
        "user": settings.user,
        "password": settings.password,
        "database": settings.database or None,
        "charset": "utf8mb4",
        "collation": "utf8mb4_bin",
        "sql_mode": SQL_MODE,
        "client_flag": CLIENT.FOUND_ROWS,
        "conv": _CONVERTERS,
        "autocommit": False,
        "init_command": "SET SESSION time_zone = '+00:00'",
        "connect_timeout": timeout_s,
        "read_timeout": timeout_s,
        "write_timeout": timeout_s,
        "ssl": context,
        "ssl_disabled": settings.tls == "off",
    }


class _NoReactor:
    """What adbapi's pool asks of a reactor when nobody uses its threads: nothing ever starts."""

    def callWhenRunning(self, start: Callable[[], Any]) -> None:
        """Forget `start`: it would start the pool's own threads."""


class Connections:
    """One connection for each thread that asks, opened when it is needed and dropped when it broke.

    Kept by adbapi's `ConnectionPool`, whose threads and transactions are not used: the core owns the threads, and
    adbapi hands a broken connection out again. `opened` is called with each new connection.
    """

    def __init__(
        self,
        settings: MySqlSettings,
        *,
        timeout_s: float,
        context: ssl.SSLContext | None,
        opened: Callable[["pymysql.connections.Connection[Any]"], None],
    ) -> None:
        self._arguments = _arguments(settings, timeout_s, context)
        self._opened = opened
        self._idle = threading.Condition()
        self._lent: set[int] = set()
        self._pool: ConnectionPool | None = None

    @property
    def is_open(self) -> bool:
        """Tell whether connections are given out."""
        return self._pool is not None

    def open(self) -> None:
        """Give out connections from now on; connects to nothing yet."""
        with self._idle:
            if self._pool is None:
                self._pool = ConnectionPool(
                    "pymysql", cp_reactor=_NoReactor(), cp_openfun=self._prepare, **self._arguments
                )

    def close(self) -> None:
        """Wait until nobody uses a connection, which the time limits bound, and close them all; idempotent."""
        with self._idle:
            pool, self._pool = self._pool, None
            self._idle.wait_for(lambda: not self._lent)
        if pool is not None:
            for connection in list(pool.connections.values()):
                _close(connection)
            pool.connections.clear()

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Keep the pool open while this thread works with its connection. One thread never needs two at once."""
        thread = threading.get_ident()
        with self._idle:
            if self._pool is None:
                raise StoreUnavailable("MySQL: the store is closed")
            if thread in self._lent:
                raise RuntimeError("this thread has a connection already: a second one could wait for the first")
            self._lent.add(thread)
        try:
            yield
        finally:
            with self._idle:
                self._lent.discard(thread)
                self._idle.notify_all()

    def mine(self) -> "pymysql.connections.Connection[Any]":
        """Return this thread's connection, a new one if it has none; only inside `lend`."""
        pool = self._pool
        if pool is None:  # closed while it was lent
            raise StoreUnavailable("MySQL: the store is closing")
        with _logging_in():
            connection: pymysql.connections.Connection[Any] = pool.connect()
        return connection

    def has_mine(self) -> bool:
        """Tell whether this thread has a connection that was used before."""
        pool = self._pool
        return pool is not None and pool.threadID() in pool.connections

    def drop(self) -> None:
        """Throw this thread's connection away; the server rolls back what it was at. Never raises."""
        pool = self._pool
        if pool is not None:
            connection = pool.connections.pop(pool.threadID(), None)
            if connection is not None:
                _close(connection)

    def _prepare(self, connection: "pymysql.connections.Connection[Any]") -> None:
        try:
            if connection.server_status & SERVER_STATUS.SERVER_STATUS_NO_BACKSLASH_ESCAPES:
                raise ConfigError("store: the server insists on sql_mode NO_BACKSLASH_ESCAPES; turn it off for dsched")
            self._opened(connection)
        except BaseException:
            _close(connection)
            raise


def _close(connection: "pymysql.connections.Connection[Any]") -> None:
    try:
        connection.close()
    except (pymysql.err.Error, OSError):
        return  # it is gone either way
