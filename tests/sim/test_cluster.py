"""Whole clusters on simulated time: the paths of the main job, and of what goes wrong with a worker or the core."""

import pytest

from dsched.testing.cluster import SimCluster
from dsched.testing.world import SimWorld
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
