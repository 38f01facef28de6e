"""Child processes, with all that they start themselves: run in a folder, logged there, and ended for certain."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Child", "ChildFailed"]

_POLL_S = 0.02


class ChildFailed(Exception):
    """A process is not installed, or ended too early; the message holds the end of its log."""


class Child:
    """One command and its descendants, as a process group of their own; output goes to `FOLDER/NAME.log`."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        guard = shutil.which("setpriv")
        # When this process is killed, it ends too: politely, so that it can end what it has started.
        guarded = [guard, "--pdeathsig", "TERM"] if guard else []
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*guarded, *command], cwd=folder, env={**os.environ, **(environ or {})}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def check(self) -> None:
        """Raise `ChildFailed` when the command has ended."""
        if self._process.poll() is not None:
            raise ChildFailed(f"{self.name} ended with {self._process.returncode}\n{self.log_tail()}")

    def stop(self, limit_s: float = 5.0) -> None:
        """End everything: politely, then after `limit_s` by force; idempotent."""
        if self._process.returncode is not None:
            return
        self._process.terminate()
        # It is not reaped before its group has been killed: until then nobody else can get its number.
        deadline_s = time.monotonic() + limit_s
        while os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if time.monotonic() > deadline_s:
                break
            time.sleep(_POLL_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def log_tail(self, lines: int = 20) -> str:
        """Return the end of what has been said."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
