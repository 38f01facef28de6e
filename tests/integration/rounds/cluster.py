"""One cluster of real processes under load, round after round, in a folder and on ports of its own."""

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from dsched.cli.processes import CoreProcess, RoleFailed, WorkerProcess, wait_until
from dsched.testing.mariadb import MariaDbServer
from tests.integration.rounds import judge
from tests.integration.rounds.evidence import Attempt, Evidence, Line, Trace, wall_ms
from tests.integration.rounds.load import Load
from tests.integration.rounds.stores import RoundStore, StoreFile, StoreServer

__all__ = ["LIMIT_S", "RoundCluster", "RoundFailed"]

LIMIT_S = 60.0
WORKERS = 3
SLOTS = 20
LEVEL = 120
"""So many tasks are open under load: twice what runs, so that there is always something to dispatch."""
IN_FLIGHT = 50
TICK_S = 1
_FILE = "dsched.db"  # as cores name it
_DATABASE = "rounds"


class RoundFailed(AssertionError):
    """Something that must never happen has happened; the text tells the story of the first tasks that it hit."""


class RoundCluster:
    """Cores on one store, workers that know them all, a load, and what is needed to judge.

    The store is a file, or with `on_server` a database on a MariaDB server that is only theirs; enter the cluster in a
    thread that lives longer. `timeout_s` is that of the jobs.

    Every round begins with `begin` and ends with `finish`, when everything has ended.
    """

    def __init__(
        self, folder: Path, rng: random.Random, *, on_server: bool = False, cores: int = 1, timeout_s: int = 30
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.rng = rng
        self.folder = folder
        self.trace = Trace(folder / "executions")
        self._server = MariaDbServer() if on_server else None
        self.store: RoundStore = StoreServer(self._server, _DATABASE) if self._server else StoreFile(folder / _FILE)
        self.cores = [
            CoreProcess(folder, name=f"core-{number}", store=self.store.url) for number in range(1, cores + 1)
        ]
        environ = {"ROUNDS_TRACE": str(self.trace.path)}
        jobs = [str(Path(__file__).with_name("work_jobs.py"))]
        others = [f"--core={core.address}" for core in self.cores[1:]]
        self.workers = [
            WorkerProcess(
                folder, f"worker-{number}", self.cores[0].address, jobs, slots=SLOTS, options=others, environ=environ
            )
            for number in range(1, WORKERS + 1)
        ]
        self.load: Load
        self._timeout_s = timeout_s
        self._stack = ExitStack()
        self._round = 0
        self._since_ms = 0

    @property
    def core(self) -> CoreProcess:
        """The core that leads, as the store says."""
        if len(self.cores) > 1:
            address = self.store.leader().address
            return next((core for core in self.cores if core.address == address), self.cores[0])
        return self.cores[0]

    @property
    def server(self) -> MariaDbServer:
        """The server that the store is on."""
        assert self._server is not None
        return self._server

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self) -> None:
        if self._server is not None:
            self._stack.enter_context(self._server)
            self._server.create_database(_DATABASE)
        self._stack.enter_context(self.cores[0])
        self.cores[0].wait_ready(LIMIT_S)
        for process in [*self.cores[1:], *self.workers]:
            self._stack.enter_context(process)
        self.core.wait_for_workers(self.workers, LIMIT_S)
        common = {"timeout": self._timeout_s, "retry_backoff": 1}
        for name in ("in_reactor", "in_thread"):
            self.core.client.create_job({"name": name, "handler": name, **common})
        self.core.client.create_job({"name": "tick", "trigger": {"type": "interval", "seconds": TICK_S}, **common})
        self._since_ms = wall_ms(time.monotonic())

    # -- a round

    def begin(self) -> None:
        """Put the cluster under load, and wait until enough of it is in flight."""
        self._round += 1
        urls = [core.url for core in self.cores]
        # The seconds make keys new when a folder with a store is used again.
        self.load = Load(urls, f"r{self._round}-{self._since_ms}", LEVEL, random.Random(self.rng.random()))
        self.load.start()
        self.wait_for_flight()

    def wait_for_flight(self) -> None:
        """Wait until at least 50 tasks are in flight."""
        self.wait(lambda: self._in_flight() >= IN_FLIGHT + 2, "enough tasks in flight")

    def _in_flight(self) -> int:
        states = self.core.client.pending()["by_status"]
        return int(states.get("RUNNING", 0)) + int(states.get("DISPATCHED", 0))

    def finish(self) -> Evidence:
        """End the load, wait until all that was ever asked for has ended, and return what there is to judge."""
        self.load.stop()
        try:
            self.load.ask_again()
        finally:
            self.load.close()
        since_ms = self._since_ms
        until_ms = self._since_ms = wall_ms(time.monotonic())
        try:
            self.wait(lambda: self.store.count_open(since_ms, until_ms) == 0, "the end of everything")
        except RoleFailed as error:
            raise RoundFailed(f"{error.message}: {self.core.client.pending()}\n{self._logs()}") from None
        evidence = self.store.evidence(since_ms, until_ms, self.trace.lines())
        self.trace.forget({task.task_id for task in evidence.tasks})
        return evidence

    def judge(self, evidence: Evidence, may_close: Callable[[Attempt], str | None], *more: str) -> None:
        """Raise `RoundFailed` if anything is not as it must be; `more` are problems that were found elsewhere."""
        problems = [*self.load.unexpected, *more]
        problems += judge.accepted(self.load.answered, self.load.shards, evidence)
        problems += judge.ended(evidence)
        problems += judge.executions(evidence, may_close)
        problems += judge.fired(self.store.fired("tick"), TICK_S * 1000)
        if problems:
            named = [task.task_id for task in evidence.tasks if any(task.task_id in each for each in problems)]
            stories = [line for task_id in named[:3] for line in judge.story(evidence, task_id)]
            text = "\n".join([f"{len(problems)} problems in round {self._round} of {self.folder}:", *problems[:20]])
            raise RoundFailed("\n".join([text, *stories, self._logs()]))

    def _logs(self) -> str:
        said = {each.name: each.log_tail(12) for each in [*self.cores, *self.workers]}
        if self._server is not None:
            said["server"] = self._server.log_tail(12)
        return "\n".join(f"--- {name}\n{text}" for name, text in said.items())

    # -- what rounds ask

    def first_start(self, holds: Callable[[Line], bool]) -> Line | None:
        """Return the first execution of this round that `holds`."""
        starts = (line for line in self.trace.lines() if line.event == "start" and holds(line))
        return min(starts, key=lambda line: line.at_s, default=None)

    def running(self, pid: int) -> bool:
        """Tell whether a process of a worker runs anything, as far as its handlers have written."""
        mine = [line for line in self.trace.lines() if line.pid == pid]
        started = {(line.task, line.attempt) for line in mine if line.event == "start"}
        return started != {(line.task, line.attempt) for line in mine if line.event == "end"}

    def wait(self, holds: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
        """Wait until `holds`; raises `RoleFailed`."""
        wait_until(holds, limit_s, what)
