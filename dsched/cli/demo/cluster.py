"""A core and some workers as child processes in a temporary folder."""

import shutil
import signal
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from dsched.cli.processes import CoreProcess, RoleFailed, RoleProcess, WorkerProcess

__all__ = ["Cluster"]

_STOP_S = 10.0
_SETTLE_S = 0.1


class Cluster:
    """Processes that live as long as the `with` block. The folder is removed if the block ended well and `succeed` was
    called; else it stays, with the logs."""

    def __init__(self, workers: int, jobs: str, *, slots: int, store: str | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dsched-demo-"))
        self.core = CoreProcess(self.folder, store=store)
        self.workers = {
            name: WorkerProcess(self.folder, name, self.core.address, [jobs], slots=slots)
            for name in (f"worker-{number}" for number in range(1, workers + 1))
        }
        self.killed: str | None = None
        self._succeeded = False

    def __enter__(self) -> Self:
        try:
            self.core.start()
            self.core.wait_ready()
            for worker in self.workers.values():
                worker.start()
            self.core.wait_for_workers(list(self.workers.values()))
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(politely=self._succeeded)
        # Whoever interrupts has seen enough.
        if self._succeeded or (kind is not None and not issubclass(kind, Exception)):
            shutil.rmtree(self.folder, ignore_errors=True)

    def succeed(self) -> None:
        """Say that nobody will need the logs."""
        self._succeeded = True

    def check(self) -> None:
        """Raise `RoleFailed` when a process has ended that nobody killed."""
        for process in self._processes():
            if process.name != self.killed and not process.is_running:
                raise RoleFailed(f"{process.name} has ended by itself\n{process.log_tail()}")

    def kill_in_mid_run(self, name: str, run_id: str) -> list[str]:
        """Kill a worker with SIGKILL while it has shards of the run; return the ids of those.

        It is halted first, so that what it has cannot end between the look and the kill. When it turns out to have
        nothing any more it goes on, and the list is empty.
        """
        worker = self.workers[name]
        worker.signal(signal.SIGSTOP)
        time.sleep(_SETTLE_S)
        held = [
            task["task_id"]
            for task in self.core.client.tasks(run_id)
            if task["worker_id"] == name and task["status"] in ("DISPATCHED", "RUNNING")
        ]
        if held:
            worker.kill()
            self.killed = name
        else:
            worker.signal(signal.SIGCONT)
        return held

    def _processes(self) -> list[RoleProcess]:
        return [self.core, *self.workers.values()]

    def _end(self, *, politely: bool) -> None:
        for worker in self.workers.values():
            worker.terminate() if politely else worker.kill()
        for process in reversed(self._processes()):
            process.stop(_STOP_S)
