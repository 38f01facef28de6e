"""Looks into a store that does not answer."""

import pytest

from dsched.core.looks import READ_LIMIT_S
from dsched.errors import StoreUnavailable
from dsched.testing.cluster import SimCluster
from dsched.testing.sim_threads import FailBefore, Hang, ThreadCall, ThreadFault
from dsched.testing.world import SimWorld
from tests.sim.work import Work


def stuck_look(call: ThreadCall) -> ThreadFault | None:
    return Hang(120.0) if call.function.endswith(".jobs") else None


@pytest.mark.parametrize("seed", range(3))
def test_whoever_waits_for_a_look_that_hangs_is_told_in_time_and_commits_go_on(seed: int) -> None:
    """Case B087: who waits is told after 5 s, and commits go on."""
    with SimWorld(seed) as world:
        work = Work()
        cluster = SimCluster(world, work.handlers)
        cluster.start()
        cluster.until_ready()
        cluster.ask(lambda core: core.create_job({"name": "work", "sharding_total": 3}))
        cluster.thread_hooks.append(stuck_look)
        began_s = world.reactor.seconds()
        with pytest.raises(StoreUnavailable, match="did not answer within 5 s"):
            cluster.ask(lambda core: core.jobs(10, None, {}))
        assert world.reactor.seconds() - began_s == pytest.approx(READ_LIMIT_S, abs=0.1)
        # The only reader hangs: its queue is told, and the writer does its work.
        with pytest.raises(StoreUnavailable):
            cluster.ask(lambda core: core.job("work"))
        body = {"runs": [{"job": "work"}]}
        [run_id] = cluster.ask(lambda core: core.create_runs(body))["ids"]
        world.run_for(150.0)
        assert cluster.until_ended(run_id)["status"] == "SUCCESS"
        assert cluster.ask(lambda core: core.job("work"))["name"] == "work"


def test_a_core_whose_reads_fail_is_not_ready_until_they_do_not() -> None:
    """A newcomer took all connections but the writer's: `/readyz` said ready, and every request failed."""
    with SimWorld(4) as world:
        cluster = SimCluster(world, Work().handlers)
        cluster.start()
        cluster.until_ready()
        fails = [True]

        def no_connection(call: ThreadCall) -> ThreadFault | None:
            if fails[0] and call.pool == "reader":
                return FailBefore(StoreUnavailable("too many connections"))
            return None

        cluster.thread_hooks.append(no_connection)
        leader = cluster.leader
        assert leader is not None
        assert leader.readiness()[0]
        with pytest.raises(StoreUnavailable, match="too many"):
            cluster.ask(lambda core: core.jobs(10, None, {}))
        for _ in range(3):
            assert leader.readiness() == (
                False, {"ready": False, "reason": "the store cannot be read: too many connections"},
            )  # fmt: skip
            world.run_for(1.0)
        fails[0] = False
        leader.readiness()
        world.run_for(1.0)
        assert leader.readiness()[0]
