"""One seed, one simulated hour: real cores and workers, a workload, faults, and every invariant.

`python -m dsched.testing.scenario --seeds 0:300 --jobs 2` runs many; a seed that fails is printed with the command that
repeats it.
"""

import random
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from dsched.clock import Clock
from dsched.core.service import CoreService
from dsched.jobs import JobContext, JobDeclaration
from dsched.model.rows import RunRow, TaskRow
from dsched.store.interface import Store
from dsched.store.memory import MemoryStore
from dsched.store.sqlite import SqliteStore
from dsched.testing.clients import Clients
from dsched.testing.cluster import CORE_PORT, SimCluster
from dsched.testing.contacts import Contacts
from dsched.testing.coverage import Coverage
from dsched.testing.executions import Execution, Executions
from dsched.testing.faults import Fault, draw_faults
from dsched.testing.injector import Injector
from dsched.testing.invariants import Invariants, Violation
from dsched.testing.memory_check import check_memory, check_quiet
from dsched.testing.outgoing import Outgoing
from dsched.testing.plain_worker import PlainWorker
from dsched.testing.sim_node import SimNode
from dsched.testing.sim_store import SimStore
from dsched.testing.sim_threads import SimThreads
from dsched.testing.workload import (
    LONGEST_HANG_S,
    Conduct,
    JobPlan,
    Request,
    draw_conduct,
    draw_jobs,
    draw_requests,
)
from dsched.testing.world import SimWorld
from dsched.wire.encoding import decode_any

__all__ = ["Mode", "Plan", "Report", "draw_plan", "run_plan"]

CHECK_S = 20.0
HOUR_S = 3600.0


class Mode(StrEnum):
    """Safety: faults until the end. Liveness: then all is healed, and everything accepted must end in time."""

    SAFETY = "safety"
    LIVENESS = "liveness"


@dataclass(frozen=True, slots=True)
class Plan:
    """All that happens to a cluster from outside, drawn from one seed; parts of it may be left out."""

    seed: int
    mode: Mode
    span_s: float
    slots: tuple[int, ...]
    plain: int | None
    same_host: bool
    sqlite: bool
    clocks: tuple[tuple[int, float], ...]
    jobs: tuple[JobPlan, ...]
    requests: tuple[Request, ...]
    faults: tuple[Fault, ...]


@dataclass(slots=True)
class Report:
    """How a run went. `error` is None, or the text to show."""

    seed: int
    mode: Mode
    digest: str
    faults: int
    tasks: int
    executions: int
    steps: int
    coverage: Coverage
    error: str | None = None


def draw_plan(seed: int, mode: Mode, hours: float = 1.0) -> Plan:
    """Return the plan of a seed."""
    rng = random.Random(f"{seed}/plan")
    span_s = HOUR_S * hours
    workers = 5
    jobs = draw_jobs(random.Random(f"{seed}/jobs"), span_s)
    return Plan(
        seed,
        mode,
        span_s,
        tuple(rng.choice((1, 2, 2, 4, 4, 8)) for _ in range(workers)),
        rng.randrange(workers) if rng.random() < 0.3 else None,
        rng.random() < 0.2,
        rng.random() < 0.03,
        tuple((rng.choice((0, 0, rng.randint(-5000, 5000))), rng.uniform(-200, 200)) for _ in range(3 + workers)),
        tuple(jobs),
        tuple(draw_requests(random.Random(f"{seed}/requests"), jobs, span_s)),
        tuple(draw_faults(random.Random(f"{seed}/faults"), span_s, cores=3, workers=workers)),
    )


class ScenarioCluster(SimCluster):
    """A cluster whose parts are watched."""

    def __init__(self, world: SimWorld, plan: Plan, store: Store) -> None:
        self.plan = plan
        timeouts = {job.name: job.timeout_s for job in plan.jobs}
        self.executions = Executions(
            lambda task_id, attempt, timeout_s: draw_conduct(plan.seed, task_id, attempt, timeout_s),
            timeouts.__getitem__,
            self._began,
        )
        super().__init__(
            world, self.executions.handlers, cores=3, workers=len(plan.slots), store=store, same_host=plan.same_host
        )
        self.contacts = Contacts(self.settings.lease_s, self.settings.resume_grace_s)
        self.invariants = Invariants(world.reactor.seconds, self.contacts, self._result_of)
        self.invariants.executions_of = lambda task_id: self.executions.of_task.get(task_id, [])
        self.injector = Injector(self, self.invariants, Coverage())
        world.network.write_hooks.append(Outgoing(self.invariants))
        for node, (skew_ms, drift_ppm) in zip((*self.cores, *self.workers), plan.clocks, strict=True):
            node.wall = type(node.wall)(world.reactor.seconds, skew_ms=skew_ms, drift_ppm=drift_ppm)

    def store_of(self, node: SimNode) -> Store:
        return SimStore(self.store, node, self.invariants, self.injector.refusals)  # type: ignore[return-value]

    def threads(self, node: SimNode, name: str) -> SimThreads:
        pool = super().threads(node, name)
        pool.hooks.append(self.injector.hook)
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


def run_plan(plan: Plan) -> Report:
    """Run a plan to its end and report; a violation is in the report, not raised."""
    replay = f"python -m dsched.testing.scenario --replay {plan.seed} --mode {plan.mode.value} --hours " + (
        f"{plan.span_s / HOUR_S:g}"
    )
    with tempfile.TemporaryDirectory() as folder:
        store: Store = SqliteStore(str(Path(folder) / "dsched.db"), synchronous="NORMAL") if plan.sqlite else MemoryStore()
        store.open()
        world = SimWorld(plan.seed, replay=replay)
        scenario = Scenario(world, plan, store)
        error: str | None = None
        try:
            with world:
                scenario.run()
        except AssertionError as failure:
            notes = "\n".join(getattr(failure, "__notes__", ()))
            error = f"{type(failure).__name__}: {failure}\n{notes}"
        finally:
            store.close()
    cluster = scenario.cluster
    return Report(
        plan.seed,
        plan.mode,
        world.trace.digest(),
        cluster.injector.injected,
        len(cluster.invariants.tasks),
        cluster.executions.begun,
        world.reactor.steps,
        cluster.injector.coverage,
        error,
    )


class Scenario:
    """One run of a plan."""

    def __init__(self, world: SimWorld, plan: Plan, store: Store) -> None:
        self.world = world
        self.plan = plan
        self.cluster = ScenarioCluster(world, plan, store)
        self.clients = Clients(self.cluster, self.cluster.invariants, world.derive_rng("clients"))
        world.invariants.append(self.cluster.invariants.raise_first)

    def run(self) -> None:
        """Run it to its end; raises `AssertionError` for whatever is wrong."""
        cluster, plan = self.cluster, self.plan
        cluster.start()
        self.clients.schedule(plan.jobs, plan.requests)
        cluster.injector.schedule(plan.faults)
        self._advance(plan.span_s)
        if plan.mode is Mode.LIVENESS:
            self._heal_and_wait()
        self._compare_with_store()

    def _advance(self, seconds: float) -> None:
        left_s = seconds
        while left_s > 0:
            step_s = min(CHECK_S, left_s)
            self.world.run_for(step_s)
            left_s -= step_s
            check_memory(self.cluster)

    def bound_s(self) -> float:
        """Return how long everything accepted may take to end once nothing is wrong any more."""
        jobs = [job.body for job in self.plan.jobs]
        backoff_s = max((job["retry_backoff"] * 2 ** (max(job["retries"], 1) - 1) * 1.1 for job in jobs), default=0.0)
        # Without a timeout of its own a handler takes 30 s at most; one that hangs keeps its slot longer.
        tries_s = max((((job["timeout"] or 30) + LONGEST_HANG_S) * (job["retries"] + 1) for job in jobs), default=0.0)
        return self.cluster.settings.lease_s + min(300.0, backoff_s) + tries_s + 60.0

    def _heal_and_wait(self) -> None:
        cluster, invariants = self.cluster, self.cluster.invariants
        accepted = list(invariants.runs)
        cluster.injector.heal()
        self._advance(self.bound_s())
        late = invariants.unfinished({**dict.fromkeys(accepted), **self.clients.accepted})
        if late:
            raise Violation(f"I25: {len(late)} runs have not ended {self.bound_s():.0f} s after the last fault: {late[:5]}")
        if self.clients.open_calls > LOOKING:
            raise Violation(f"I25: {self.clients.open_calls} requests have no answer")
        self.clients.stopped = True
        for name in list(invariants.jobs):
            self.clients.stopped = False
            self.clients.delete(name)
        self._advance(self.bound_s())
        late = invariants.unfinished()
        if late:
            raise Violation(f"I3: runs without an end: {late[:5]}")
        if invariants.jobs:
            raise Violation(f"I25: jobs cannot be deleted: {sorted(invariants.jobs)}")
        check_quiet(self.cluster)

    def _compare_with_store(self) -> None:
        """The rows that were watched are those that are stored."""
        invariants, store = self.cluster.invariants, self.cluster.store
        for run_id, run in invariants.runs.items():
            stored = store.run(run_id)
            if stored is None or (stored.status, stored.version) != (run.status, run.version):
                raise Violation(f"I2: run {run_id} is stored as {stored}, watched as {run}")
        for task_id, task in invariants.tasks.items():
            found = store.task(task_id)
            if found is None or (found.status, found.version, found.attempt) != (
                task.status, task.version, task.attempt,
            ):  # fmt: skip
                raise Violation(f"I2: task {task_id} is stored as {found}, watched as {task}")


LOOKING = 0

if __name__ == "__main__":
    from dsched.testing.campaign import main

    sys.exit(main(sys.argv[1:]))
