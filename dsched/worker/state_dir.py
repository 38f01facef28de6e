"""Where a worker keeps what must survive its end: a folder per worker id below the one that `--state-dir` names.

A folder belongs to one process at a time. A worker without an `--id` takes the folder of such a worker that does not
run any more, and with it the id, or makes a new one: so a worker that is started again is the same worker, and two that
run side by side are two.
"""

import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote

from dsched.errors import ConfigError

__all__ = ["FileOnDisk", "StateDir", "default_state_dir"]

LOCK = "lock"
LEDGER = "ledger"
GENERATED = "generated"
"""In the folder of a worker that was given no id: its id was made up."""

_held: set[int] = set()


def _let_go() -> None:
    """In a forked child: a child that outlives the worker must not keep its folder."""
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


def default_state_dir(environ: Mapping[str, str]) -> Path:
    """Return where programs of this user keep their state, by the XDG rules: `~/.local/state/dsched`.

    Raises `ConfigError` for a user without a home.
    """
    base = environ.get("XDG_STATE_HOME", "")
    try:
        return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "dsched"
    except RuntimeError:
        raise ConfigError("--state-dir: this user has no home folder, so it must be given") from None


class FileOnDisk:
    """The file of a ledger (a `dsched.worker.ledger.LedgerFile`).

    Nothing is synced: what was written survives kill -9 in the page cache of the kernel. A loss of power may take the
    last results, and then their tasks run again, as they do when a machine is lost for good.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def read(self) -> bytes:
        """Return everything."""
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def append(self, data: bytes) -> None:
        """Add to the end. Raises `OSError` once where the file was deleted; the next call makes a new one."""
        if self._descriptor is not None and not os.fstat(self._descriptor).st_nlink:
            # What is written to a file without a name is lost with the process, and the system does not mind.
            self.close()
            raise FileNotFoundError(errno.ENOENT, "it was deleted while in use", str(self._path))
        if self._descriptor is None:
            self._descriptor = self._open(self._path, os.O_APPEND)
        _write_all(self._descriptor, data)

    def replace(self, data: bytes) -> None:
        """Write a new file and put it in the place of the old one."""
        new = self._path.with_name(f"{self._path.name}.new")
        descriptor = self._open(new, os.O_TRUNC | os.O_APPEND)
        try:
            _write_all(descriptor, data)
            new.replace(self._path)
        except OSError:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor = descriptor

    def move_aside(self) -> str:
        """Rename the file; of several only the last is kept."""
        self.close()
        aside = self._path.with_name(f"{self._path.name}.damaged")
        self._path.replace(aside)
        return str(aside)

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @staticmethod
    def _open(path: Path, flags: int) -> int:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


class StateDir:
    """The folder of one worker, held until `close` or the end of the process."""

    def __init__(self, worker_id: str, folder: Path, lock: int) -> None:
        self.worker_id = worker_id
        self.folder = folder
        self.ledger_file = FileOnDisk(folder / LEDGER)
        self._lock: int | None = lock

    @classmethod
    def open(cls, state_dir: Path, worker_id: str, made_up: str) -> Self:
        """Take the folder of `worker_id`; where that is empty, of a worker whose id was made up, or else of `made_up`.

        Raises `ConfigError` when another process holds it, or it cannot be used.
        """
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            if worker_id:
                return cls._open_own(state_dir, worker_id)
            for folder in _generated(state_dir):
                state = cls._try(folder, unquote(folder.name))
                if state is not None:
                    return state
            return cls._open_new(state_dir, made_up)
        except OSError as error:
            reason = error.strerror or str(error)
            place = f": {error.filename}" if error.filename else ""
            raise ConfigError(f"--state-dir {state_dir}: {reason}{place}") from None

    @classmethod
    def _open_own(cls, state_dir: Path, worker_id: str) -> Self:
        folder = state_dir / _folder_name(worker_id)
        state = cls._try(folder, worker_id)
        if state is None:
            holder = (folder / LOCK).read_text(encoding="utf-8", errors="replace").strip()
            raise ConfigError(
                f"worker {worker_id} runs already with --state-dir {state_dir} (process {holder or 'unknown'}); "
                "each process needs its own --id, each cluster its own --state-dir"
            )
        return state

    @classmethod
    def _open_new(cls, state_dir: Path, worker_id: str) -> Self:
        state = cls._open_own(state_dir, worker_id)
        # Only now, so that nobody takes the folder before it is locked.
        (state.folder / GENERATED).touch(mode=0o600)
        return state

    @classmethod
    def _try(cls, folder: Path, worker_id: str) -> Self | None:
        """Lock a folder; None when another process has it."""
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(lock, 0)
            os.write(lock, f"{os.getpid()}\n".encode())
        except BlockingIOError:
            os.close(lock)
            return None
        except OSError as error:
            os.close(lock)
            # What fails with a descriptor knows no name.
            raise OSError(error.errno, error.strerror, str(folder / LOCK)) from None
        _held.add(lock)
        return cls(worker_id, folder, lock)

    def close(self) -> None:
        """Let go of the folder; idempotent."""
        self.ledger_file.close()
        if self._lock is not None:
            _held.discard(self._lock)
            os.close(self._lock)
            self._lock = None


def _folder_name(worker_id: str) -> str:
    name = quote(worker_id, safe="@:")
    # `.` and `..` are worker ids too.
    return name.replace(".", "%2E") if set(name) == {"."} else name


def _generated(state_dir: Path) -> Iterator[Path]:
    """Return the folders of workers without an id of their own, the one that was used last first."""

    def used_s(folder: Path) -> float:
        try:
            return (folder / LEDGER).stat().st_mtime
        except OSError:
            return 0.0

    yield from sorted((found.parent for found in state_dir.glob(f"*/{GENERATED}")), key=used_s, reverse=True)
