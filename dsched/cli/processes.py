"""Roles of twistd as child processes: start them, wait until they are ready, stop them, read their logs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from dsched.client import Client
from dsched.errors import DschedError, NotLeader
from dsched.net.ports import LOOPBACK, free_port
from dsched.store.mysql import PASSWORD_VARIABLE

__all__ = ["CoreProcess", "RoleFailed", "RoleProcess", "WorkerProcess", "role_command", "wait_until"]

_POLL_S = 0.05


class RoleFailed(DschedError):
    """A child process ended, or did not get ready in time; the message holds the end of its log."""

    code = "role_failed"


def role_command(role: str, *options: str) -> list[str]:
    """Return the command that runs a role in the foreground, under this interpreter."""
    twistd = "from twisted.scripts.twistd import run; run()"
    return [sys.executable, "-c", twistd, "-n", "--pidfile=", role, *options]


def wait_until(holds: Callable[[], bool], limit_s: float, what: str) -> None:
    """Ask again and again until `holds`; raises `RoleFailed` after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            raise RoleFailed(f"waited {limit_s:g} s for {what}")
        time.sleep(_POLL_S)


class RoleProcess:
    """One role as a child process. Its output goes to `FOLDER/NAME.log`; its settings come from `options` alone."""

    role = ""

    def __init__(
        self, name: str, folder: Path, options: Sequence[str], *, environ: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.folder = folder
        self.log_path = folder / f"{name}.log"
        self._command = role_command(self.role, *options)
        own = {key: value for key, value in os.environ.items() if not key.startswith("DSCHED_")}
        self._environ = {**own, "PYTHONUNBUFFERED": "1", **(environ or {})}
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id; only after `start`."""
        assert self._child is not None
        return self._child.pid

    @property
    def is_running(self) -> bool:
        """Tell whether the process lives."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start the process, or start it again; does not wait."""
        assert not self.is_running
        with self.log_path.open("ab") as log:
            self._child = subprocess.Popen(
                self._command,
                cwd=self.folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        """End the process with SIGKILL."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended; does not wait."""
        if self._child is not None and self.is_running:
            self._child.send_signal(number)

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM); does not wait."""
        self.signal(signal.SIGTERM)

    def wait(self, limit_s: float) -> int:
        """Wait for the end of the process and return its exit code; raises `RoleFailed` after `limit_s`."""
        assert self._child is not None
        try:
            return self._child.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise RoleFailed(f"{self.name} still runs after {limit_s:g} s\n{self.log_tail()}") from None

    def stop(self, limit_s: float = 10.0) -> None:
        """End the process: politely, then after `limit_s` by force; idempotent."""
        self.terminate()
        try:
            if self._child is not None:
                self._child.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def log_tail(self, lines: int = 15) -> str:
        """Return the end of what the process has said."""
        try:
            said = self.log_path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(said.splitlines()[-lines:])

    def wait_for(self, holds: Callable[[], bool], limit_s: float, what: str) -> None:
        """Wait until `holds`; raises `RoleFailed` when the process ends before, or after `limit_s`."""

        def holds_or_died() -> bool:
            if not self.is_running:
                raise RoleFailed(f"{self.name} ended while it was waited for\n{self.log_tail()}")
            return holds()

        try:
            wait_until(holds_or_died, limit_s, what)
        except RoleFailed as error:
            raise RoleFailed(f"{error.message}\n{self.log_tail()}" if self.is_running else error.message) from None


class CoreProcess(RoleProcess):
    """A core on two ports of loopback; `store` is its URL, by default a file in `folder`."""

    role = "dsched-core"

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "core",
        store: str | None = None,
        options: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        self.admin_port = free_port()
        self.store = store or f"sqlite:///{quote(str(folder / 'dsched.db'))}"
        ports = [f"--listen={LOOPBACK}:{self.port}", f"--admin={LOOPBACK}:{self.admin_port}"]
        # Not as an option: every user of the machine can read those, and this may hold a password.
        told = {"DSCHED_STORE": self.store}
        if PASSWORD_VARIABLE in os.environ:
            told[PASSWORD_VARIABLE] = os.environ[PASSWORD_VARIABLE]
        super().__init__(name, folder, [*ports, *options], environ={**told, **(environ or {})})
        self.client = Client(self.url)
        self._is_stopped = False

    @property
    def address(self) -> str:
        """Where workers connect to."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def url(self) -> str:
        """Where the HTTP interface is."""
        return f"http://{LOOPBACK}:{self.admin_port}"

    def start(self) -> None:
        """Start the process, or start it again; does not wait."""
        if self._is_stopped:
            self.client = Client(self.url)
            self._is_stopped = False
        super().start()

    def wait_ready(self, limit_s: float = 30.0) -> None:
        """Wait until the core leads; raises `RoleFailed`."""
        self.wait_for(self.client.leads, limit_s, f"{self.name} to lead")

    def wait_for_workers(self, workers: Sequence[RoleProcess], limit_s: float = 30.0) -> None:
        """Wait until every one of `workers` is online; raises `RoleFailed` as soon as one of them has ended."""
        wanted = {worker.name for worker in workers}

        def all_online() -> bool:
            for worker in workers:
                if not worker.is_running:
                    raise RoleFailed(f"{worker.name} ended while it was waited for\n{worker.log_tail()}")
            try:
                return wanted <= {worker["worker_id"] for worker in self.client.workers()}
            except NotLeader:
                return False

        self.wait_for(all_online, limit_s, f"the workers {', '.join(sorted(wanted))}")

    def stop(self, limit_s: float = 10.0) -> None:
        """End the process and close the connections to it."""
        super().stop(limit_s)
        self.client.close()
        self._is_stopped = True


class WorkerProcess(RoleProcess):
    """A worker named `worker_id` of the core at `address`, which offers the handlers of the modules `jobs`.

    Its state is in `FOLDER/state`.
    """

    role = "dsched-worker"

    def __init__(
        self,
        folder: Path,
        worker_id: str,
        address: str,
        jobs: Sequence[str],
        *,
        slots: int = 8,
        options: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        said = [f"--id={worker_id}", f"--core={address}", f"--slots={slots}", f"--state-dir={folder / 'state'}"]
        said += [f"--jobs={module}" for module in jobs]
        super().__init__(worker_id, folder, [*said, *options], environ=environ)
