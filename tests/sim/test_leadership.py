"""Who leads, who follows, and what workers and people see of a change."""

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from dsched.errors import NotLeader, StoreUnavailable
from dsched.testing.cluster import SimCluster
from dsched.testing.sim_node import CrashKind
from dsched.testing.sim_threads import FailBefore, ThreadCall, ThreadFault
from dsched.testing.world import SimWorld
from tests.sim.work import Work

SEEDS = range(3)


def ready(world: SimWorld, work: Work, **options: Any) -> SimCluster:
    cluster = SimCluster(world, work.handlers, cores=2, workers=2, slots=4, **options)
    cluster.start()
    cluster.until_ready()
    cluster.ask(lambda core: core.create_job({"name": "work", "sharding_total": 4, "timeout": 120}))
    return cluster


def follower_of(cluster: SimCluster) -> Any:
    return next(node.app for node in cluster.cores if node.app is not cluster.leader)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_leads_and_the_other_follows_and_says_who_leads(seed: int) -> None:
    with SimWorld(seed) as world:
        cluster = ready(world, Work())
        world.run_for(60.0)
        leader, follower = cluster.leader, follower_of(cluster)
        assert leader is not None
        assert follower.status()["role"] == "follower"
        assert follower.leader() == leader.leader()
        answers: list[Any] = []
        Deferred.fromCoroutine(follower.trigger("work", {})).addBoth(answers.append)
        world.run_for(1.0)
        failure = answers[0]
        failure.trap(NotLeader)
        assert failure.value.details["leader"]["address"] == leader.leader()["address"]
        reads: list[Any] = []
        Deferred.fromCoroutine(follower.job("work")).addBoth(reads.append)
        world.run_for(1.0)
        assert reads[0]["name"] == "work"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_tells_no_figures_that_only_the_leader_has(seed: int) -> None:
    with SimWorld(seed) as world:
        cluster = ready(world, Work())
        leader, follower = cluster.leader, follower_of(cluster)
        assert leader is not None
        for ask in (follower.workers, follower.pending):
            with pytest.raises(NotLeader) as caught:
                ask()
            assert caught.value.details["leader"]["address"] == leader.leader()["address"]
        assert (follower.status()["workers"], follower.status()["pending"]) == (None, None)
        assert (leader.status()["workers"], leader.status()["pending"]) == (2, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_waits_for_a_run_at_a_follower_waits(seed: int) -> None:
    with SimWorld(seed) as world:
        cluster = ready(world, Work(10.0))
        follower = follower_of(cluster)
        run = cluster.ask(lambda core: core.trigger("work", {}))
        seen: list[dict[str, Any]] = []
        for wait_s in (2.0, 60.0):
            Deferred.fromCoroutine(follower.run(run["id"], wait_s)).addCallback(seen.append)
        given_up = Deferred.fromCoroutine(follower.run(run["id"], 60.0))
        given_up.addErrback(lambda failure: failure.trap(CancelledError))
        world.run_for(1.9)
        assert seen == []
        given_up.cancel()
        world.run_for(0.2)
        assert [answer["status"] for answer in seen] == ["RUNNING"]
        world.run_for(12.0)
        assert [answer["status"] for answer in seen] == ["RUNNING", "SUCCESS"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_dead_leaders_work_goes_on_under_the_next(seed: int) -> None:
    with SimWorld(seed) as world:
        work = Work(30.0)
        cluster = ready(world, work)
        run = cluster.ask(lambda core: core.trigger("work", {}))
        world.run_for(2.0)
        epoch = cluster.leader.status()["epoch"]  # type: ignore[union-attr]
        dead = next(node for node in cluster.cores if node.app is cluster.leader)
        dead.crash()
        began = world.reactor.seconds()
        world.run_until(lambda: cluster.leader is not None, 14.0)
        assert world.reactor.seconds() - began <= 14.0
        assert cluster.leader.status()["epoch"] == epoch + 1  # type: ignore[union-attr]
        assert cluster.until_ended(run["id"], 90.0)["counts"] == {"SUCCESS": 4}
        assert set(work.begun.values()) == {1}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_on_the_same_address_takes_over_at_once(seed: int) -> None:
    with SimWorld(seed) as world:
        work = Work(10.0)
        cluster = ready(world, work)
        run = cluster.ask(lambda core: core.trigger("work", {}))
        world.run_for(2.0)
        node = next(node for node in cluster.cores if node.app is cluster.leader)
        node.crash()
        cluster.start_core(node)
        world.run_until(lambda: cluster.leader is node.app, 1.0)
        assert cluster.until_ended(run["id"], 60.0)["counts"] == {"SUCCESS": 4}
        assert set(work.begun.values()) == {1}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_core_that_stops_in_order_leaves_no_gap(seed: int) -> None:
    with SimWorld(seed) as world:
        cluster = ready(world, Work())
        leader = cluster.leader
        assert leader is not None
        leader.stopService()
        world.run_until(lambda: cluster.leader is not None and cluster.leader is not leader, 3.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_paused_leader_is_replaced_and_what_it_still_writes_is_refused(seed: int) -> None:
    with SimWorld(seed) as world:
        work = Work(40.0)
        cluster = ready(world, work)
        run = cluster.ask(lambda core: core.trigger("work", {}))
        world.run_for(2.0)
        old = next(node for node in cluster.cores if node.app is cluster.leader)
        other = next(node for node in cluster.cores if node is not old)
        epoch = old.app.status()["epoch"]
        old.pause(20.0)
        world.run_until(lambda: other.app.status()["role"] == "leader", 16.0)
        assert cluster.store.leader().epoch == epoch + 1
        world.run_for(30.0)
        assert old.app.status()["role"] == "follower"
        assert cluster.store.leader().epoch == epoch + 1
        assert cluster.until_ended(run["id"], 200.0)["counts"] == {"SUCCESS": 4}
        assert set(work.begun.values()) == {1}


def any_call(call: ThreadCall) -> bool:
    return True


def bare_renewal(call: ThreadCall) -> bool:
    """Tell whether a call renews the lease and stores nothing besides."""
    rows = ("runs_new", "runs_set", "tasks_new", "tasks_set", "dues")
    return call.function.endswith(".commit") and not any(getattr(call.args[0], name) for name in rows)


@pytest.mark.parametrize("chooses", [any_call, bare_renewal])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_whose_renewals_fail_steps_down_and_doubles_nothing(
    seed: int, chooses: Callable[[ThreadCall], bool]
) -> None:
    """Case B063: an election error kept a stale leader for 19 days, and each cron row came twice."""
    with SimWorld(seed) as world:
        cluster = ready(world, Work())
        trigger = {"type": "interval", "seconds": 5}
        cluster.ask(lambda core: core.create_job({"name": "tick", "handler": "work", "trigger": trigger}))
        old = next(node for node in cluster.cores if node.app is cluster.leader)
        fault = FailBefore(StoreUnavailable("its own connection is gone"))
        struck = [True]

        def strike(call: ThreadCall) -> ThreadFault | None:
            return fault if struck and call.node == old.name and chooses(call) else None

        cluster.thread_hooks.append(strike)
        world.run_for(40.0)
        new = cluster.leader
        assert new is not None
        assert new is not old.app
        struck.clear()
        world.run_for(30.0)
        assert old.app.status()["role"] == "follower"
        dues = [row.due for row in cluster.store.runs(1000, None, {"job": "tick"}).items]
        assert len(dues) == len(set(dues))


def test_a_machine_without_power_is_replaced_too() -> None:
    with SimWorld(11) as world:
        work = Work(5.0)
        cluster = ready(world, work)
        node = next(node for node in cluster.cores if node.app is cluster.leader)
        run = cluster.ask(lambda core: core.trigger("work", {}))
        node.crash(CrashKind.SILENT)
        world.run_until(lambda: cluster.leader is not None, 14.0)
        assert cluster.until_ended(run["id"], 200.0)["counts"] == {"SUCCESS": 4}


def test_who_waits_for_a_commit_hears_when_the_term_ends() -> None:
    with SimWorld(12) as world:
        cluster = ready(world, Work(30.0))
        run = cluster.ask(lambda core: core.trigger("work", {}))
        old = next(node for node in cluster.cores if node.app is cluster.leader)
        fault = FailBefore(StoreUnavailable("its own connection is gone"))
        struck = [True]
        cluster.thread_hooks.append(lambda call: fault if struck and call.node == old.name else None)
        world.run_for(4.0)  # Renewals fail by now, and the journal looks for the store.
        settled: list[Any] = []
        old.app._term.journal.settled().addBoth(settled.append)
        world.run_for(20.0)
        struck.clear()
        world.run_for(10.0)
        assert settled == [None]
        assert cluster.until_ended(run["id"], 200.0)["counts"] == {"SUCCESS": 4}


def test_a_core_that_met_something_unexpected_tries_to_lead_again() -> None:
    """A newcomer emptied the table of the leader for a while: the core listened on, and led nothing any more."""
    with SimWorld(9) as world:
        work = Work()
        cluster = SimCluster(world, work.handlers, workers=1)
        left = [3]

        def broken(call: ThreadCall) -> ThreadFault | None:
            if left[0] and call.function.endswith(".load_active"):
                left[0] -= 1
                return FailBefore(TypeError("nobody thought of this"))
            return None

        cluster.thread_hooks.append(broken)
        world.errors.expect(TypeError)
        cluster.start()
        cluster.until_ready()
        assert (left, world.errors.expected_seen) == ([0], 3)


def test_whoever_waits_for_a_run_at_a_follower_is_told_of_its_end() -> None:
    with SimWorld(10) as world:
        work = Work(work_s=3.0)
        cluster = ready(world, work)
        run = cluster.ask(lambda core: core.trigger("work", {}))
        [follower] = [node.app for node in cluster.cores if node.app is not cluster.leader]
        answers: list[Any] = []
        Deferred.fromCoroutine(follower.run(run["id"], 30.0)).addBoth(answers.append)
        world.run_until(lambda: bool(answers), 30.0)
        assert answers[0]["status"] == "SUCCESS"
