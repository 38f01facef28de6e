"""Whole clusters in a simulated world: the real core and the real worker, on simulated time, network and threads.

Only what touches the operating system is replaced. The store is given and outlives every crash, as a disk does.
"""

from collections.abc import Callable, Iterable
from typing import Any

from twisted.internet.defer import Deferred

from dsched.clock import Clock
from dsched.cluster.election import LOOK_S, StoreElection
from dsched.core.service import CoreService
from dsched.engine.settings import EngineSettings
from dsched.jobs import JobDeclaration
from dsched.store.interface import Store
from dsched.store.memory import MemoryStore
from dsched.testing.sim_ledger import SimLedgerFile
from dsched.testing.sim_node import SimNode
from dsched.testing.sim_threads import SimThreads, ThreadCall, ThreadFault, ThreadHook
from dsched.testing.world import SimWorld
from dsched.worker.handlers import HandlerRegistry
from dsched.worker.ledger import Ledger
from dsched.worker.service import WorkerService
from dsched.worker.settings import WorkerSettings

__all__ = ["CORE_PORT", "SimCluster"]

CORE_PORT = 8080

Handlers = Callable[[SimNode, Clock], Iterable[JobDeclaration]]


class SimCluster:
    """Cores and workers of one world.

    `handlers(node, clock)` gives the jobs of a worker; handlers in a simulation are coroutines, and wait with
    `clock.sleep`. Node names are `core1`, `core2`, … and `worker1`, …; a worker's id is its node's name.
    """

    def __init__(
        self,
        world: SimWorld,
        handlers: Handlers,
        *,
        cores: int = 1,
        workers: int = 3,
        slots: int = 2,
        settings: EngineSettings | None = None,
        store: Store | None = None,
        same_host: bool = False,
    ) -> None:
        self.world = world
        self.store: Store = store if store is not None else MemoryStore()
        self.settings = settings or EngineSettings()
        self.slots = slots
        self.same_host = same_host
        self.thread_hooks: list[ThreadHook] = []
        """Faults of the store, by core and call; they outlive restarts."""
        self.ledgers: dict[str, bytearray] = {}
        """The files of the workers' ledgers, by node; they outlive restarts. Without its file a worker forgets."""
        self.look_s = LOOK_S
        """How often a core that stands by looks at the leader row."""
        self._handlers = handlers
        self.cores = [world.node(f"core{number + 1}") for number in range(cores)]
        self.workers = [world.node(f"worker{number + 1}") for number in range(workers)]

    def start(self) -> None:
        """Start every node."""
        for node in self.cores:
            self.start_core(node)
        for node in self.workers:
            self.start_worker(node)

    def start_core(self, node: SimNode) -> CoreService:
        """Start a core, or start it again after a crash."""
        return node.start(self._build_core)

    def start_worker(self, node: SimNode) -> WorkerService:
        """Start a worker, or start it again after a crash; each start is a new incarnation."""
        return node.start(self._build_worker)

    # -- what a scenario may want different

    def store_of(self, node: SimNode) -> Store:
        """Return the store as the core on `node` sees it."""
        return self.store

    def threads(self, node: SimNode, name: str) -> SimThreads:
        """Return a pool for the present life of a core."""
        return self.world.threads(node, name)

    def slots_of(self, node: SimNode) -> int:
        """Return the slots of the worker on `node`."""
        return self.slots

    def _build_core(self, node: SimNode) -> CoreService:
        clock = Clock(node.reactor, wall=node.wall.seconds)
        store = self.store_of(node)
        writer, reader = self.threads(node, "writer"), self.threads(node, "reader")
        for threads in (writer, reader):
            threads.hooks.append(self._thread_fault)
        address = f"{node.ip}:{CORE_PORT}"
        identity = "host" if self.same_host else node.name
        election = StoreElection(
            store, writer, clock, identity=identity, address=address, admin_url="", look_s=self.look_s
        )
        core = CoreService(
            clock=clock,
            store=store,
            writer=writer,
            reader=reader,
            election=election,
            endpoint=self.world.network.listen(node, CORE_PORT),
            settings=self.settings,
            rng=self.world.derive_rng(f"{node.name}.{node.lives}"),
            address=address,
            admin_url="",
            version="simulated",
        )
        core.startService()
        return core

    def _thread_fault(self, call: ThreadCall) -> ThreadFault | None:
        faults = (hook(call) for hook in self.thread_hooks)
        return next((fault for fault in faults if fault is not None), None)

    def _build_worker(self, node: SimNode) -> WorkerService:
        clock = Clock(node.reactor, wall=node.wall.seconds)
        settings = WorkerSettings(
            cores=tuple((core.ip, CORE_PORT) for core in self.cores), worker_id=node.name, slots=self.slots_of(node)
        )
        endpoints = {
            f"{core.ip}:{CORE_PORT}": self.world.network.connect(node, f"{core.name}:{CORE_PORT}")
            for core in self.cores
        }
        registry = HandlerRegistry(self._handlers(node, clock))
        ledger = Ledger(SimLedgerFile(node.reactor, self.ledgers.setdefault(node.name, bytearray())))
        rng = self.world.derive_rng(f"{node.name}.{node.lives}")
        worker = WorkerService(settings, clock, rng, registry, endpoints, ledger)
        worker.startService()
        return worker

    # -- looking and asking

    @property
    def leader(self) -> CoreService | None:
        """Return the core that leads, by its own opinion."""
        for node in self.cores:
            core: CoreService | None = node.app if node.alive else None
            if core is not None and core.status()["role"] == "leader" and core.readiness()[0]:
                return core
        return None

    def until_ready(self, limit_s: float = 60.0) -> None:
        """Run until a core leads and every worker that is alive is online."""

        def ready() -> bool:
            leader = self.leader
            alive = sum(node.alive for node in self.workers)
            return leader is not None and len(leader.workers()) >= alive

        self.world.run_until(ready, limit_s)

    def ask(self, request: Callable[[CoreService], Any], limit_s: float = 60.0) -> Any:
        """Return the answer of the leader to `request(core)`; raises what it raises."""
        leader = self.leader
        assert leader is not None, "no core leads"
        answers: list[Any] = []
        Deferred.fromCoroutine(request(leader)).addBoth(answers.append)
        self.world.run_until(lambda: bool(answers), limit_s)
        answer = answers[0]
        if hasattr(answer, "raiseException"):
            answer.raiseException()
        return answer

    def until_ended(self, run_id: str, limit_s: float = 600.0) -> dict[str, Any]:
        """Run until the run has ended, by the store, and return it as people see it."""

        def ended() -> bool:
            row = self.store.run(run_id)
            return row is not None and row.finished_at is not None and self.leader is not None

        self.world.run_until(ended, limit_s)
        found: dict[str, Any] = self.ask(lambda core: core.run(run_id, 0))
        return found
