"""Whole clusters on simulated time: the paths of the main job, and of what goes wrong with a worker or the core."""

import math

import pytest

from dsched.errors import InvalidValue
from dsched.testing.cluster import SimCluster
from dsched.testing.sim_node import CrashKind
from dsched.testing.world import SimWorld
from dsched.wire.encoding import dump_strict, load_strict
from tests.sim.work import Work

SEEDS = range(3)


def started(world: SimWorld, work: Work, **options: object) -> tuple[SimCluster, str]:
    cluster = SimCluster(world, work.handlers, **options)  # type: ignore[arg-type]
    cluster.start()
    cluster.until_ready()
    cluster.ask(lambda core: core.create_job({"name": "work", "sharding_total": 10}))
    run = cluster.ask(lambda core: core.trigger("work", {}))
    return cluster, run["id"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sharded_run_ends_with_each_shard_run_once(seed: int) -> None:
    with SimWorld(seed) as world:
        work = Work()
        cluster, run_id = started(world, work)
        run = cluster.until_ended(run_id)
        assert run["status"] == "SUCCESS"
        assert run["counts"] == {"SUCCESS": 10}
        tasks = cluster.ask(lambda core: core.tasks(run_id, 100, None, {}))["items"]
        assert [task["result"] for task in tasks] == list(range(10))
        assert set(work.begun.values()) == {1}
        assert len(work.begun) == 10


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_workers_tasks_are_started_elsewhere_within_the_grace_and_a_second(seed: int) -> None:
    with SimWorld(seed) as world:
        work = Work(work_s=8.0)
        cluster, run_id = started(world, work, slots=4)
        world.run_for(1.0)
        victim = cluster.workers[0]
        struck = [task_id for task_id, names in work.on.items() if names == [victim.name]]
        assert struck
        victim.crash()
        world.run_for(cluster.settings.resume_grace_s + 1.0)
        for task_id in struck:
            # Those that no slot is free for start as soon as one is.
            assert len(work.on[task_id]) == 2 or cluster.leader is not None
        run = cluster.until_ended(run_id)
        assert run["status"] == "SUCCESS"
        tasks = cluster.ask(lambda core: core.tasks(run_id, 100, None, {}))["items"]
        for task in tasks:
            outcomes = [attempt["outcome"] for attempt in task["attempts"]]
            assert outcomes == (["LOST", "SUCCESS"] if task["task_id"] in struck else ["SUCCESS"])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_core_that_is_killed_and_started_again_adopts_what_runs(seed: int) -> None:
    with SimWorld(seed) as world:
        work = Work(work_s=20.0)
        cluster, run_id = started(world, work, slots=4)
        world.run_for(1.0)
        cluster.cores[0].crash()
        world.run_for(0.5)
        cluster.start_core(cluster.cores[0])
        run = cluster.until_ended(run_id)
        assert run["status"] == "SUCCESS"
        assert set(work.begun.values()) == {1}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_short_cut_of_a_connection_repeats_nothing(seed: int) -> None:
    with SimWorld(seed) as world:
        work = Work(work_s=10.0)
        cluster, run_id = started(world, work, slots=4)
        world.run_for(1.0)
        for connection in list(world.network.connections.values()):
            world.network.cut(connection)
        run = cluster.until_ended(run_id)
        assert run["status"] == "SUCCESS"
        assert set(work.begun.values()) == {1}


def test_a_worker_that_falls_silent_is_dead_after_a_minute_and_its_tasks_move_once() -> None:
    with SimWorld(7) as world:
        work = Work(work_s=5.0)
        cluster = SimCluster(world, work.handlers, workers=2, slots=8)
        cluster.start()
        cluster.until_ready()
        cluster.ask(lambda core: core.create_job({"name": "work", "sharding_total": 10, "timeout": 0}))
        run = cluster.ask(lambda core: core.trigger("work", {}))
        world.run_for(1.0)
        victim = cluster.workers[0]
        struck = [task_id for task_id, names in work.on.items() if names == [victim.name]]
        assert struck
        world.network.isolate(victim)
        world.run_for(50.0)
        assert all(len(work.on[task_id]) == 1 for task_id in struck)
        world.run_for(15.0)
        assert all(len(work.on[task_id]) == 2 for task_id in struck)
        world.network.heal()
        assert cluster.until_ended(run["id"])["status"] == "SUCCESS"
        world.run_for(120.0)
        leader = cluster.leader
        assert leader is not None
        assert len(leader.workers()) == 2
        assert all(len(work.on[task_id]) == 2 for task_id in struck)


def test_a_worker_that_drains_finishes_and_leaves() -> None:
    with SimWorld(3) as world:
        work = Work(work_s=4.0)
        cluster, run_id = started(world, work, slots=2)
        world.run_for(1.0)
        leaving = cluster.workers[1]
        done: list[object] = []
        leaving.app.stopService().addBoth(done.append)
        run = cluster.until_ended(run_id)
        assert done == [None]
        assert run["status"] == "SUCCESS"
        assert set(work.begun.values()) == {1}


def test_a_cancelled_run_ends_and_starts_nothing_more() -> None:
    with SimWorld(4) as world:
        work = Work(work_s=30.0)
        cluster, run_id = started(world, work, slots=2)
        world.run_for(1.0)
        begun = sum(work.begun.values())
        cluster.ask(lambda core: core.cancel_run(run_id))
        run = cluster.until_ended(run_id, 5.0)
        assert run["status"] == "CANCELLED"
        assert run["counts"] == {"CANCELLED": 10}
        world.run_for(60.0)
        assert sum(work.begun.values()) == begun
        assert not work.ended


def test_a_silent_worker_costs_its_task_one_retry_and_comes_back_by_itself() -> None:
    """Case B061: every packet between the core and one worker is lost from now on, with one task in flight."""
    with SimWorld(61) as world:
        work = Work(25.0)
        cluster = SimCluster(world, work.handlers, workers=2)
        cluster.start()
        cluster.until_ready()
        cluster.ask(lambda core: core.create_job({"name": "work", "timeout": 30}))
        run_id = cluster.ask(lambda core: core.trigger("work", {}))["id"]
        world.run_until(lambda: bool(work.begun), 5.0)
        world.run_for(1.0)
        [[victim]] = work.on.values()
        node = next(node for node in cluster.workers if node.name == victim)
        [core] = cluster.cores
        world.network.partition(node, core)
        began_s = world.reactor.seconds()
        world.run_until(lambda: len(core.app.workers()) == 1, 62.0)
        # The last frame may have come a moment before the cut.
        assert 57.0 <= world.reactor.seconds() - began_s <= 61.0
        task = cluster.ask(lambda core: core.task(f"{run_id}:0"))
        assert [attempt["outcome"] for attempt in task["attempts"]][0] == "TIMEOUT"
        assert not world.network.between(node, core) or node.app.session.state.name != "READY"
        world.network.heal()
        world.run_until(lambda: len(core.app.workers()) == 2, 45.0)
        assert cluster.until_ended(run_id)["counts"] == {"SUCCESS": 1}
        task = cluster.ask(lambda core: core.task(f"{run_id}:0"))
        assert [attempt["outcome"] for attempt in task["attempts"]] == ["TIMEOUT", "SUCCESS"]
        assert task["retry_count"] == 1


def test_the_reset_of_a_frozen_link_does_not_touch_the_next_one() -> None:
    """Case B058: link 1 freezes, the worker comes on link 2, link 1 is reset a second later."""
    with SimWorld(58) as world:
        work = Work(60.0)
        cluster = SimCluster(world, work.handlers, workers=1, slots=4)
        cluster.start()
        cluster.until_ready()
        cluster.ask(lambda core: core.create_job({"name": "work", "sharding_total": 4, "timeout": 120}))
        run_id = cluster.ask(lambda core: core.trigger("work", {}))["id"]
        world.run_until(lambda: len(work.begun) == 4, 5.0)
        [worker], [core] = cluster.workers, cluster.cores
        [frozen] = world.network.between(worker, core)
        world.network.stall(frozen)

        def on_another_link() -> bool:
            return any(link is not frozen for link in world.network.between(worker, core))

        world.run_until(on_another_link, 45.0)
        world.run_for(1.0)
        world.network.release(frozen)
        if frozen in world.network.between(worker, core):
            world.network.cut(frozen)
        world.run_for(5.0)
        [seen] = core.app.workers()
        assert (seen["worker_id"], seen["slots"]) == ("worker1", 4)
        assert cluster.until_ended(run_id)["counts"] == {"SUCCESS": 4}
        assert set(work.begun.values()) == {1}


def test_the_end_of_a_worker_repeats_nothing_that_has_ended() -> None:
    """Case B057: the run is done, and its worker dies four minutes later."""
    with SimWorld(57) as world:
        work = Work(5.0)
        cluster, run_id = started(world, work, slots=4)
        assert cluster.until_ended(run_id)["counts"] == {"SUCCESS": 10}
        world.run_for(240.0)
        for node in cluster.workers[:2]:
            node.crash()
        world.run_for(600.0)
        assert len(work.begun) == 10
        assert set(work.begun.values()) == {1}


@pytest.mark.parametrize("kind", list(CrashKind))
def test_shards_of_a_worker_that_died_a_moment_before_move_within_a_minute(kind: CrashKind) -> None:
    """Case B074: killed at T-1, a run of ten shards at T."""
    with SimWorld(74) as world:
        work = Work(2.0)
        cluster = SimCluster(world, work.handlers, workers=3, slots=4)
        cluster.start()
        cluster.until_ready()
        cluster.ask(lambda core: core.create_job({"name": "work", "sharding_total": 10}))
        cluster.workers[1].crash(kind)
        world.run_for(1.0)
        begin_s = world.reactor.seconds()
        run_id = cluster.ask(lambda core: core.trigger("work", {}))["id"]
        world.run_until(lambda: len(work.begun) == 10, 61.0)
        assert cluster.until_ended(run_id)["counts"] == {"SUCCESS": 10}
        assert world.reactor.seconds() - begin_s <= 64.0
        assert set(work.begun.values()) == {1}
        assert work.totals == {10}
        tasks = cluster.ask(lambda core: core.tasks(run_id, 100, None, {}))["items"]
        assert [task["result"] for task in tasks] == list(range(10))
        moved = [task for task in tasks if len(task["attempts"]) > 1]
        assert bool(moved) is (kind is CrashKind.SILENT)


@pytest.mark.parametrize("value", [math.nan, math.inf, {"deep": [-math.inf]}])
def test_a_result_that_is_no_json_fails_and_harms_no_list(value: object) -> None:
    """Case B072."""
    with SimWorld(72) as world:
        work = Work(0.1, value)
        cluster, run_id = started(world, work)
        assert cluster.until_ended(run_id)["counts"] == {"FAILED": 10}
        assert set(work.begun.values()) == {1}
        listed = cluster.ask(lambda core: core.tasks(run_id, 100, None, {}))
        assert load_strict(dump_strict(listed))["items"][0]["status"] == "FAILED"
        assert "the result is not JSON" in listed["items"][0]["attempts"][0]["message"]


@pytest.mark.parametrize("text", ["\0", "x\0y"])
def test_a_null_byte_goes_through_and_comes_back(text: str) -> None:
    """Case B069."""
    with SimWorld(69) as world:
        work = Work(0.1)
        cluster, _ = started(world, work)
        run_id = cluster.ask(lambda core: core.trigger("work", {"params": {"a": text}}))["id"]
        assert cluster.until_ended(run_id)["counts"] == {"SUCCESS": 10}
        tasks = cluster.ask(lambda core: core.tasks(run_id, 100, None, {}))["items"]
        assert [task["result"] for task in tasks] == [{"a": text}] * 10
        with pytest.raises(InvalidValue):
            cluster.ask(lambda core: core.create_job({"name": "a\0b"}))
        with pytest.raises(InvalidValue):
            cluster.ask(lambda core: core.trigger("work", {"key": "a\0b"}))
        assert cluster.ask(lambda core: core.job("work"))["name"] == "work"
