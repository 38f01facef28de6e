"""The cluster of a scenario: three real cores and five real workers (one may be plain), with every part watched."""

from typing import Any

from dsched.clock import Clock
from dsched.core.service import CoreService
from dsched.jobs import JobContext
from dsched.model.rows import RunRow, TaskRow
from dsched.store.interface import Store
from dsched.testing.cluster import CORE_PORT, SimCluster
from dsched.testing.contacts import Contacts
from dsched.testing.coverage import Coverage
from dsched.testing.executions import Execution, Executions
from dsched.testing.injector import Injector
from dsched.testing.invariants import Invariants
from dsched.testing.outgoing import Outgoing
from dsched.testing.plain_worker import PlainWorker
from dsched.testing.plan import Plan
from dsched.testing.sim_clock import WallClock
from dsched.testing.sim_node import SimNode
from dsched.testing.sim_store import SimStore
from dsched.testing.sim_threads import SimThreads, ThreadHook
from dsched.testing.workload import draw_conduct
from dsched.testing.world import SimWorld
from dsched.wire.encoding import decode_any

__all__ = ["ScenarioCluster"]


class ScenarioCluster(SimCluster):
    """A cluster whose parts are watched."""

    def __init__(self, world: SimWorld, plan: Plan, store: Store, cores: int) -> None:
        self.plan = plan
        self.more_hooks: list[ThreadHook] = []
        timeouts = {job.name: job.timeout_s for job in plan.jobs}
        self.executions = Executions(
            lambda task_id, attempt, timeout_s: draw_conduct(plan.seed, task_id, attempt, timeout_s),
            timeouts.__getitem__,
            self._began,
        )
        super().__init__(
            world, self.executions.handlers, cores=cores, workers=len(plan.slots), store=store,
            settings=plan.settings, same_host=plan.same_host,
        )  # fmt: skip
        # Two standby cores that look each second are a third of all steps, and nothing else happens in these.
        self.look_s = 3.0
        self.contacts = Contacts(self.settings.lease_s, self.settings.resume_grace_s)
        self.invariants = Invariants(world.reactor.seconds, self.contacts, self._result_of)
        self.invariants.executions_of = lambda task_id: self.executions.of_task.get(task_id, [])
        self.injector = Injector(self, self.invariants, Coverage())
        world.network.write_hooks.append(Outgoing(self.invariants))
        for node, (skew_ms, drift_ppm) in zip((*self.cores, *self.workers), plan.clocks, strict=True):
            node.wall = WallClock(world.reactor.seconds, skew_ms=skew_ms, drift_ppm=drift_ppm)

    def store_of(self, node: SimNode) -> Store:
        return SimStore(self.store, node, self.invariants, self.injector.refusals)

    def threads(self, node: SimNode, name: str) -> SimThreads:
        pool = super().threads(node, name)
        pool.hooks += [self.injector.hook, *self.more_hooks]
        return pool

    def slots_of(self, node: SimNode) -> int:
        return self.plan.slots[self.workers.index(node)]

    def start_core(self, node: SimNode) -> CoreService:
        core = super().start_core(node)
        life = node.lives

        def failed(_: Any) -> None:
            # The process ends with a message, and whoever watches over it starts it again.
            self.world.reactor.callLater(0, self._exit, node, life)

        core.started.addErrback(failed)
        return core

    def _exit(self, node: SimNode, life: int) -> None:
        if node.lives == life and node.alive:
            node.crash()
            self.world.reactor.callLater(1.0, self._start_again, node)

    def _start_again(self, node: SimNode) -> None:
        if not node.alive:
            self.start_core(node)

    def _build_core(self, node: SimNode) -> CoreService:
        core = super()._build_core(node)
        self.contacts.listen(node, core._peers)
        return core

    def start_worker(self, node: SimNode) -> Any:
        if self.plan.plain == self.workers.index(node):
            return node.start(self._build_plain)
        return super().start_worker(node)

    def _build_plain(self, node: SimNode) -> PlainWorker:
        clock = Clock(node.reactor, wall=node.wall.seconds)
        endpoints = [self.world.network.connect(node, f"{core.name}:{CORE_PORT}") for core in self.cores]
        worker = PlainWorker(
            node, clock, self.world.derive_rng(f"{node.name}.{node.lives}"), endpoints, self.executions
        )
        worker.start()
        return worker

    def _began(self, execution: Execution, context: JobContext | None) -> None:
        if context is not None:
            self.invariants.began(execution, context.params, context.fence)

    def _result_of(self, row: TaskRow, run: RunRow) -> Any:
        params = decode_any(run.params.encode())
        if self.plan.plain is not None and row.target_worker == self.workers[self.plan.plain].name:
            text = "" if params is None else params if isinstance(params, str) else run.params
            return {"task": row.task_id, "text": text}
        return {"task": row.task_id, "params": params}
