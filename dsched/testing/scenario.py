"""One seed, one simulated hour: real cores and workers, a workload, faults, and every invariant.

`python -m dsched.testing.scenario --seeds 0:300 --jobs 2` runs many; a seed that fails is printed with the command that
repeats it.
"""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dsched.store.interface import Store
from dsched.store.memory import MemoryStore
from dsched.store.sqlite import SqliteStore
from dsched.testing.clients import Clients
from dsched.testing.coverage import Coverage
from dsched.testing.invariants import Violation
from dsched.testing.memory_check import check_memory, check_quiet, idle_term
from dsched.testing.plan import HOUR_S, Mode, Plan
from dsched.testing.scenario_cluster import ScenarioCluster
from dsched.testing.workload import LONGEST_HANG_S
from dsched.testing.world import SimWorld

__all__ = ["Report", "Scenario", "run_plan"]

CHECK_S = 20.0


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


def run_plan(plan: Plan) -> Report:
    """Run a plan to its end and report; a violation is in the report, not raised."""
    replay = f"python -m dsched.testing.scenario --replay {plan.seed} --mode {plan.mode.value} --hours " + (
        f"{plan.span_s / HOUR_S:g}"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "dsched.db")
        store: Store = SqliteStore(path, synchronous="NORMAL") if plan.sqlite else MemoryStore()
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

    def __init__(self, world: SimWorld, plan: Plan, store: Store, cores: int = 3) -> None:
        self.world = world
        self.plan = plan
        self.cluster = ScenarioCluster(world, plan, store, cores)
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

    def _advance(self, seconds: float, is_over: Callable[[], bool] = lambda: False) -> None:
        left_s = seconds
        while left_s > 0 and not is_over():
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
        cluster, invariants, clients = self.cluster, self.cluster.invariants, self.clients
        cluster.injector.heal()
        accepted = list(invariants.runs)

        def open_runs() -> list[str]:
            return invariants.unfinished({**dict.fromkeys(accepted), **clients.accepted})

        self._advance(self.bound_s(), lambda: not open_runs() and not clients.open_calls)
        if late := open_runs():
            raise Violation(f"I25: {len(late)} runs are open {self.bound_s():.0f} s after the last fault: {late[:5]}")
        if clients.open_calls:
            raise Violation(f"I25: {clients.open_calls} requests have no answer")
        for name in list(invariants.jobs):
            clients.delete(name)
        self._advance(self.bound_s(), lambda: not invariants.unfinished() and not invariants.jobs)
        if late := invariants.unfinished():
            raise Violation(f"I3: runs without an end: {late[:5]}")
        if invariants.jobs:
            raise Violation(f"I25: jobs cannot be deleted: {sorted(invariants.jobs)}")
        self.world.run_for(CHECK_S)
        self.world.run_until(lambda: idle_term(cluster) is not None, 60.0)
        check_quiet(cluster)

    def _compare_with_store(self) -> None:
        """The rows that were watched are those that are stored."""
        invariants, store = self.cluster.invariants, self.cluster.store
        lanes = {lane[:3] for lane in store.lanes()}
        if lanes != {(row.group_name, row.handler, row.priority) for row in invariants.parking.rows.values()}:
            raise Violation(f"I28: the backlog has the lanes {sorted(lanes)}, others were watched")
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


if __name__ == "__main__":
    from dsched.testing.campaign import main

    sys.exit(main(sys.argv[1:]))
