"""A MariaDB server of one's own, for tests and benchmarks: on a free port of loopback, in a temporary folder.

It is a real server, with `innodb_flush_log_at_trx_commit=1`, that can be killed, frozen and started again on what it
has. Nothing of it is left behind: not even when this process is killed, where `setpriv` is there to see to that.
"""

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

from dsched.errors import DschedError
from dsched.net.ports import LOOPBACK, free_port
from dsched.store.mysql.address import parse_url
from dsched.store.mysql.connection import MySqlSettings, connect

__all__ = ["Databases", "MariaDbServer", "ServerFailed"]

_POLL_S = 0.02
_READY_S = 60.0
_PLACES = "/usr/sbin:/usr/local/sbin:/sbin"


class ServerFailed(DschedError):
    """The server is not installed, or did not start; the message holds the end of its log."""

    code = "server_failed"


def _program(*names: str) -> str:
    """Return the path of the first of `names` that is installed; Debian keeps servers off a user's PATH."""
    for name in names:
        found = shutil.which(name) or shutil.which(name, path=_PLACES)
        if found:
            return found
    raise ServerFailed(f"{names[0]} is not installed; on Debian or Ubuntu: apt-get install mariadb-server")


class MariaDbServer:
    """One server; `options` go to `mariadbd` as they are.

    Call `start` from a thread that lives as long as the server is wanted.
    """

    def __init__(self, *, buffer_pool_mib: int = 64, options: Sequence[str] = ()) -> None:
        # Short, because the path of a socket may have 107 bytes only.
        self.folder = Path(tempfile.mkdtemp(prefix="dsched-db-"))
        self.port = free_port()
        self._buffer_pool_mib = buffer_pool_mib
        self._options = tuple(options)
        self._child: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._frozen = False
        atexit.register(self.stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- life

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "data"

    @property
    def pid(self) -> int:
        """The process id; only while it runs."""
        assert self._child is not None
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """Tell whether the process lives, be it frozen."""
        return self._child is not None and self._child.poll() is None

    def prepare(self) -> None:
        """Make the data folder, unless there is one."""
        if self.data.exists():
            return
        command = [
            _program("mariadb-install-db", "mysql_install_db"), "--no-defaults", f"--datadir={self.data}",
            # A server that starts removes what it takes for leftovers from its tmpdir: two at once need two.
            f"--tmpdir={self.folder}",
            f"--user={_user()}", "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve",
            "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0", "--skip-innodb-doublewrite",
        ]  # fmt: skip
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServerFailed(f"mariadb-install-db failed: {(done.stdout + done.stderr)[-2000:]}")

    def start(self, *options: str) -> None:
        """Start the process, again on the same port and data, and wait until it answers; `options` for this time."""
        assert not self.is_running
        self.prepare()
        command = [
            _program("mariadbd", "mysqld"), "--no-defaults", f"--datadir={self.data}", f"--user={_user()}",
            f"--tmpdir={self.folder}", f"--socket={self.folder / 's'}", f"--pid-file={self.folder / 'pid'}",
            f"--bind-address={LOOPBACK}", f"--port={self.port}", "--skip-name-resolve", "--skip-log-bin",
            "--innodb-flush-log-at-trx-commit=1", f"--innodb-buffer-pool-size={self._buffer_pool_mib}M",
            "--innodb-log-file-size=16M", "--performance-schema=OFF", "--max-connections=300",
            *self._options, *options,
        ]  # fmt: skip
        guard = shutil.which("setpriv")
        if guard:
            command = [guard, "--pdeathsig", "KILL", *command]
        with self._log_path.open("ab") as log:
            self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._frozen = False
        self._wait_ready()

    def kill(self) -> None:
        """End the process with SIGKILL."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def freeze(self) -> None:
        """Halt the process (SIGSTOP) and wait until it stands still: it keeps its connections and answers nothing."""
        assert self.is_running
        os.kill(self.pid, signal.SIGSTOP)
        # On a busy machine threads may still answer for a while after the signal was sent.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._frozen = True

    def resume(self) -> None:
        """Let a frozen process go on."""
        if self.is_running:
            os.kill(self.pid, signal.SIGCONT)
        self._frozen = False

    def shut_down(self, limit_s: float = 30.0) -> None:
        """End the process in order, with all data in its files."""
        if self.is_running:
            assert self._child is not None
            self.resume()
            self._child.terminate()
            try:
                self._child.wait(limit_s)
            except subprocess.TimeoutExpired:
                self.kill()

    def stop(self) -> None:
        """End the process by force and remove the folder; idempotent."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.stop)

    # -- use

    def url(self, database: str, user: str = "root", password: str = "") -> str:
        """Return the store URL of a database."""
        secret = f":{quote(password, safe='')}" if password else ""
        return f"mysql://{quote(user, safe='')}{secret}@{LOOPBACK}:{self.port}/{quote(database, safe='')}"

    def create_database(self, name: str | None = None) -> str:
        """Create an empty database, with a name of its own if none is given, and return the name."""
        if name is None:
            self._databases += 1
            name = f"dsched_{os.getpid()}_{self._databases}"
        self.execute(f"CREATE DATABASE `{name}`")
        return name

    def execute(self, *statements: str, database: str = "") -> list[tuple[Any, ...]]:
        """Run statements as root, each committed, and return the rows of the last one."""
        return _run(MySqlSettings(LOOPBACK, self.port, "root", b"", database, "off"), statements)

    def connections(self, database: str) -> list[int]:
        """Return the ids of the server's connections to a database."""
        query = f"SELECT id FROM information_schema.processlist WHERE db = '{database}'"
        return [row[0] for row in self.execute(query)]

    def kill_connections(self, database: str) -> int:
        """Cut all connections to a database from the server's side; return how many there were."""
        ids = self.connections(database)
        self.execute(*(f"KILL CONNECTION {number}" for number in ids))
        return len(ids)

    def log_tail(self, lines: int = 20) -> str:
        """Return the end of what the server has said."""
        if not self._log_path.exists():
            return ""
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-lines:])

    @property
    def _log_path(self) -> Path:
        return self.folder / "log"

    def _wait_ready(self) -> None:
        deadline_s = time.monotonic() + _READY_S
        while True:
            if not self.is_running:
                raise ServerFailed(f"mariadbd ended while it was waited for\n{self.log_tail()}")
            if time.monotonic() > deadline_s:
                raise ServerFailed(f"mariadbd did not answer within {_READY_S:g} s\n{self.log_tail()}")
            try:
                self.execute("SELECT 1")
            except Exception:
                time.sleep(_POLL_S)
                continue
            return


class Databases:
    """Fresh databases, one after the other, on the server of `url`, whose user may create them.

    Without a URL it is a server of its own, started when the first database is asked for.
    """

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._server: MariaDbServer | None = None
        self._count = 0

    def fresh(self) -> str:
        """Create an empty database and return its store URL."""
        if self._url is None:
            if self._server is None:
                self._server = MariaDbServer()
                self._server.start()
            self._url = self._server.url("mysql")
        self._count += 1
        name = f"dsched_test_{os.getpid()}_{self._count}"
        url = urlsplit(self._url)._replace(path=f"/{name}").geturl()
        self._admin(f"DROP DATABASE IF EXISTS `{name}`", f"CREATE DATABASE `{name}`")
        return url

    def drop(self, url: str) -> None:
        """Remove a database that `fresh` made."""
        self._admin(f"DROP DATABASE IF EXISTS `{parse_url(url, os.environ).database}`")

    def execute(self, url: str, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in a database, each committed, and return the rows of the last one."""
        return _run(parse_url(url, os.environ), statements)

    def close(self) -> None:
        """Stop the server, if it was one of its own."""
        if self._server is not None:
            self._server.stop()

    def _admin(self, *statements: str) -> None:
        assert self._url is not None
        _run(replace(parse_url(self._url, os.environ), database=""), statements)


def _run(settings: MySqlSettings, statements: Sequence[str]) -> list[tuple[Any, ...]]:
    with closing(connect(settings, timeout_s=30.0, context=settings.context())) as connection:
        connection.autocommit(True)
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def _user() -> str:
    """Return who runs the server: mariadbd wants to be told when that is root."""
    return pwd.getpwuid(os.geteuid()).pw_name
