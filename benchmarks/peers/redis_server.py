"""A Redis server of one's own: on a free port of loopback, in a temporary folder, gone afterwards.

It keeps nothing on disk, which is how the peers are fastest: dsched, which is measured beside them, does.
"""

import random
import re
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from children import Child, ChildFailed

__all__ = ["RedisServer"]

_LOOPBACK = "127.0.0.1"
_PORTS = (20_000, 32_000)  # below those that systems give to outgoing connections
_PLACES = "/usr/sbin:/usr/local/sbin:/usr/local/bin"
_POLL_S = 0.02
_READY_S = 20.0


class RedisServer:
    """One server, started on entry and ended on exit."""

    def __init__(self) -> None:
        program = shutil.which("redis-server") or shutil.which("redis-server", path=_PLACES)
        if program is None:
            raise ChildFailed("redis-server is not installed; on Debian or Ubuntu: apt-get install redis-server")
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="dsched-redis-"))
        self.port = _free_port()
        self._child: Child | None = None

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"redis://{_LOOPBACK}:{self.port}/0"

    def version(self) -> str:
        """Return the version of the program."""
        said = subprocess.run([self._program, "--version"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"\bv=(\S+)", said)
        return found[1] if found else said.strip()

    def __enter__(self) -> Self:
        command = [
            self._program, "--port", str(self.port), "--bind", _LOOPBACK, "--dir", str(self._folder),
            "--save", "", "--appendonly", "no", "--daemonize", "no",
        ]  # fmt: skip
        try:
            self._child = Child("redis-server", command, self._folder)
            self._wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process and remove the folder; idempotent."""
        if self._child is not None:
            self._child.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_ready(self) -> None:
        assert self._child is not None
        deadline_s = time.monotonic() + _READY_S
        while not self._answers():
            self._child.check()
            if time.monotonic() > deadline_s:
                raise ChildFailed(f"redis-server did not answer within {_READY_S:g} s\n{self._child.log_tail()}")
            time.sleep(_POLL_S)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((_LOOPBACK, self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


def _free_port() -> int:
    while True:
        port = random.randrange(*_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((_LOOPBACK, port))
            except OSError:
                continue
        return port
