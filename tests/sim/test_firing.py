"""What becomes of due instants when clocks step, processes die and leaders change."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from twisted.logger import ILogObserver, LogEvent, formatEvent, globalLogPublisher

from dsched.errors import StoreUnavailable
from dsched.testing.cluster import SimCluster
from dsched.testing.sim_threads import Crash, FailAfter, FailBefore, ThreadCall, ThreadFault
from dsched.testing.world import SimWorld
from tests.sim.work import Work


@contextmanager
def logged() -> Iterator[list[LogEvent]]:
    """Collect what is logged."""
    events: list[LogEvent] = []
    observer = cast(ILogObserver, events.append)
    globalLogPublisher.addObserver(observer)
    try:
        yield events
    finally:
        globalLogPublisher.removeObserver(observer)


def ticking(world: SimWorld, work: Work, seconds: float, **options: Any) -> SimCluster:
    """Return a cluster with the job `tick`, which is due every `seconds`."""
    job = options.pop("job", {})
    cluster = SimCluster(world, work.handlers, **options)
    cluster.start()
    cluster.until_ready()
    trigger = {"type": "interval", "seconds": seconds}
    cluster.ask(lambda core: core.create_job({"name": "tick", "handler": "work", "trigger": trigger, **job}))
    return cluster


def runs(cluster: SimCluster) -> list[Any]:
    """Return the runs of `tick`, oldest first."""
    return sorted(cluster.store.runs(2000, None, {"job": "tick"}).items, key=lambda row: row.created_at)


@pytest.mark.parametrize("step_s", [-7200, 7200])
def test_a_step_of_the_wall_clock_stops_no_job_and_is_told(step_s: int) -> None:
    """Case B038: the clock goes two hours back; jobs go on by elapsed time."""
    with SimWorld(38) as world, logged() as events:
        work = Work(0.1)
        cluster = ticking(world, work, 10)
        world.run_for(60.0)
        cluster.cores[0].wall.step(step_s * 1000)
        begun_s: list[float] = []
        for _ in range(600):
            count = sum(work.begun.values())
            world.run_for(1.0)
            begun_s += [world.reactor.seconds()] * (sum(work.begun.values()) - count)
        gaps = [later - earlier for earlier, later in zip(begun_s, begun_s[1:], strict=False)]
        assert max(gaps) <= 20
        assert len(begun_s) >= 55
        dues = [row.due for row in runs(cluster)]
        assert len(dues) == len(set(dues))
        texts = [formatEvent(event) for event in events]
        assert [text for text in texts if "clock stepped" in text] == [f"the wall clock stepped {step_s:+d} s"]


def fires(batch: Any) -> bool:
    return bool(batch.dues)


def starts(batch: Any) -> bool:
    return any(row.status == "RUNNING" for row in batch.tasks_set)


@pytest.mark.parametrize(
    ("chooses", "before"),
    [(fires, False), (starts, True), (fires, True)],
    ids=["after the due moved", "after the frame", "before the commit"],
)
def test_a_core_that_dies_while_it_fires_leaves_one_run_of_that_due(chooses: Any, before: bool) -> None:
    """Case B042."""
    with SimWorld(42) as world:
        work = Work(3.0)
        cluster = ticking(world, work, 10)
        [core] = cluster.cores
        left = [1]

        def strike(call: ThreadCall) -> ThreadFault | None:
            if left[0] and call.function.endswith(".commit") and chooses(call.args[0]):
                left[0] = 0
                return Crash(before=before)
            return None

        cluster.thread_hooks.append(strike)
        world.run_until(lambda: not core.alive, 20.0)
        cluster.start_core(core)
        cluster.until_ready()
        world.run_until(lambda: len(runs(cluster)) == 3, 40.0)
        first, second, _ = runs(cluster)
        assert first.due is not None
        assert second.due == first.due + 10_000
        ended = cluster.until_ended(first.run_id, 30.0)
        assert ended["counts"] == {"SUCCESS": 1}
        tasks = cluster.ask(lambda core: core.tasks(first.run_id, 10, None, {}))["items"]
        outcomes = [attempt["outcome"] for task in tasks for attempt in task["attempts"]]
        assert outcomes.count("SUCCESS") == 1
        assert work.begun[f"{first.run_id}:0"] == 1


def test_a_worker_and_a_core_that_die_leave_no_job_stuck() -> None:
    """Case B045: what looked as if it ran is run again, and later dues fire."""
    with SimWorld(45) as world:
        work = Work(50.0)
        cluster = ticking(world, work, 10, workers=2, slots=8, job={"timeout": 100})
        world.run_until(lambda: bool(work.begun), 15.0)
        [(task_id, [victim])] = work.on.items()
        world.run_for(5.0)
        next(node for node in cluster.workers if node.name == victim).crash()
        world.run_for(3.0)
        cluster.cores[0].crash()
        cluster.start_core(cluster.cores[0])
        run = cluster.until_ended(task_id.rpartition(":")[0], 120.0)
        assert run["counts"] == {"SUCCESS": 1}
        task = cluster.ask(lambda core: core.task(task_id))
        assert [attempt["outcome"] for attempt in task["attempts"]] == ["LOST", "SUCCESS"]
        dues = [row.due for row in runs(cluster)]
        assert len(dues) >= 6
        assert [later - earlier for earlier, later in zip(dues, dues[1:], strict=False)] == [10_000] * (len(dues) - 1)


def test_what_is_due_in_hours_runs_once_whoever_leads_then() -> None:
    """Case B055: due in 6 h, and the leader dies every 50 min."""
    with SimWorld(55) as world:
        work = Work(1.0)
        cluster = ticking(world, work, 6 * 3600, cores=3, workers=1)
        cluster.look_s = 5.0
        begin_s = world.reactor.seconds()
        leaders = set()
        for number in range(1, 8):
            world.run_for(begin_s + number * 3000 - world.reactor.seconds())
            assert not work.begun
            node = next(node for node in cluster.cores if node.alive and node.app is cluster.leader)
            leaders.add(node.name)
            node.crash()
            world.run_for(60.0)
            cluster.start_core(node)
            cluster.until_ready()
        assert len(leaders) > 1
        world.run_for(begin_s + 6 * 3600 - 5.0 - world.reactor.seconds())
        assert not work.begun
        world.run_for(10.0)
        assert list(work.begun.values()) == [1]
        world.run_for(600.0)
        assert list(work.begun.values()) == [1]
        assert [row.status for row in runs(cluster)] == ["SUCCESS"]


def test_a_store_that_fails_now_and_then_costs_no_due_and_doubles_none() -> None:
    """Case B086: every twentieth commit fails, with or without effect, for a thousand dues under three cores."""
    with SimWorld(86) as world:
        work = Work(0.1)
        rng = world.derive_rng("faults")
        cluster = ticking(world, work, 1, cores=3)
        [job] = cluster.store.jobs(1, None, {}).items
        away = StoreUnavailable("deadlock found")

        def strike(call: ThreadCall) -> ThreadFault | None:
            if call.function.endswith(".commit") and rng.random() < 0.05:
                return rng.choice((FailBefore(away), FailAfter(away)))
            return None

        cluster.thread_hooks.append(strike)
        world.run_for(1000.0)
        cluster.thread_hooks.clear()
        world.run_for(5.0)
        rows = runs(cluster)
        assert job.next_due is not None
        dues = [row.due for row in rows]
        assert dues == list(range(job.next_due, job.next_due + 1000 * len(dues), 1000))
        assert len(dues) >= 1000
        assert {row.status for row in rows[:-2]} == {"SUCCESS"}
        assert set(work.begun.values()) == {1}
