"""What a worker brings back after its end, and when it leaves a core that hangs."""

import pytest

from dsched.testing.cluster import SimCluster
from dsched.testing.sim_node import CrashKind
from dsched.testing.world import SimWorld
from tests.sim.work import Work

SEEDS = range(3)


def running(world: SimWorld, work: Work, *, workers: int = 1, timeout: int = 120, **options: int) -> SimCluster:
    """Return a cluster in which a run of 4 shards is under way."""
    cluster = SimCluster(world, work.handlers, workers=workers, slots=4, **options)  # type: ignore[arg-type]
    cluster.start()
    cluster.until_ready()
    cluster.ask(lambda core: core.create_job({"name": "work", "sharding_total": 4, "timeout": timeout}))
    cluster.ask(lambda core: core.trigger("work", {"key": "k"}))
    world.run_until(lambda: len(work.begun) == 4, 5.0)
    return cluster


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("core_first", [True, False])
def test_a_killed_worker_delivers_after_its_restart_what_it_had_finished(seed: int, core_first: bool) -> None:
    with SimWorld(seed) as world:
        work = Work(5.0)
        cluster = running(world, work)
        [core], [worker] = cluster.cores, cluster.workers
        core.crash()
        world.run_for(6.0)
        assert len(work.ended) == 4
        worker.crash()
        if core_first:
            cluster.start_core(core)
            world.run_for(2.0)
            cluster.start_worker(worker)
        else:
            cluster.start_worker(worker)
            world.run_for(20.0)
            cluster.start_core(core)
        run = cluster.until_ended("work~k")
        assert run["counts"] == {"SUCCESS": 4}
        assert set(work.begun.values()) == {1}
        tasks = cluster.ask(lambda core: core.tasks("work~k", 100, None, {}))["items"]
        assert [len(task["attempts"]) for task in tasks] == [1] * 4
        world.run_for(1.0)
        assert len(worker.app.session.ledger) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_task_that_was_given_up_is_not_done_again_by_who_has_done_it(seed: int) -> None:
    with SimWorld(seed) as world:
        work = Work(5.0)
        cluster = running(world, work)
        [core], [worker] = cluster.cores, cluster.workers
        core.crash()
        world.run_for(6.0)
        worker.crash()
        cluster.start_core(core)
        # Its attempts are lost by now, and wait for somebody to run them.
        world.run_for(30.0)
        leader = cluster.leader
        assert leader is not None
        assert leader.pending() == {"pending": 4, "by_status": {"PENDING": 4}}
        cluster.start_worker(worker)
        run = cluster.until_ended("work~k")
        assert run["counts"] == {"SUCCESS": 4}
        assert set(work.begun.values()) == {1}
        tasks = cluster.ask(lambda core: core.tasks("work~k", 100, None, {}))["items"]
        assert [[attempt["outcome"] for attempt in task["attempts"]] for task in tasks] == [["LOST", "SUCCESS"]] * 4
        world.run_for(1.0)
        assert len(worker.app.session.ledger) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_worker_whose_disk_is_gone_costs_repeated_work_only(seed: int) -> None:
    with SimWorld(seed) as world:
        work = Work(5.0)
        cluster = running(world, work)
        [core], [worker] = cluster.cores, cluster.workers
        core.crash()
        world.run_for(6.0)
        worker.crash(CrashKind.SILENT)
        cluster.ledgers.clear()
        cluster.start_worker(worker)
        cluster.start_core(core)
        assert cluster.until_ended("work~k")["counts"] == {"SUCCESS": 4}
        assert set(work.begun.values()) == {2}


@pytest.mark.parametrize("seed", SEEDS)
def test_workers_leave_a_leader_that_hangs_before_they_have_to_stop(seed: int) -> None:
    with SimWorld(seed) as world:
        work = Work(100.0)
        cluster = running(world, work, workers=2, timeout=200, cores=2)
        paused = next(node for node in cluster.cores if node.app is cluster.leader)
        paused.pause()
        world.run_for(45.0)
        other = next(node for node in cluster.cores if node is not paused)
        assert other.app.status()["role"] == "leader"
        assert len(other.app.workers()) == 2
        paused.resume()
        run = cluster.until_ended("work~k")
        assert run["counts"] == {"SUCCESS": 4}
        assert set(work.begun.values()) == {1}
