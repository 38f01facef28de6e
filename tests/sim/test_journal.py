"""The journal's rules on a whole simulated core: lost answers, a store that goes away, rows that it refuses."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from dsched.core.service import CoreService
from dsched.errors import BatchRefused, Conflict, StoreUnavailable
from dsched.testing.cluster import SimCluster
from dsched.testing.sim_threads import Crash, FailAfter, FailBefore, Hang, ThreadCall, ThreadFault
from dsched.testing.world import SimWorld
from tests.sim.work import Work

AWAY = StoreUnavailable("the wire was cut")


def ready(world: SimWorld, work: Work) -> SimCluster:
    cluster = SimCluster(world, work.handlers, workers=2, slots=4)
    cluster.start()
    cluster.until_ready()
    cluster.ask(lambda core: core.create_job({"name": "work", "sharding_total": 3}))
    return cluster


class OnCommit:
    """Strikes the commits that `chooses` picks, `times` times."""

    def __init__(self, fault: ThreadFault, chooses: Callable[[Any], bool], times: int = 1) -> None:
        self.fault = fault
        self.chooses = chooses
        self.left = times

    def __call__(self, call: ThreadCall) -> ThreadFault | None:
        if self.left and call.function.endswith(".commit") and self.chooses(call.args[0]):
            self.left -= 1
            return self.fault
        return None


def creates_tasks(batch: Any) -> bool:
    return bool(batch.tasks_new)


def sets_results(batch: Any) -> bool:
    return any(row.status == "SUCCESS" for row in batch.tasks_set)


@pytest.mark.parametrize("fault", [FailBefore(AWAY), FailAfter(AWAY), Hang(3.0), Hang(3.0, before=True)])
@pytest.mark.parametrize("chooses", [creates_tasks, sets_results])
@pytest.mark.parametrize("seed", range(2))
def test_a_commit_whose_answer_is_lost_or_late_counts_once(
    fault: ThreadFault, chooses: Callable[[Any], bool], seed: int
) -> None:
    with SimWorld(seed) as world:
        work = Work()
        cluster = ready(world, work)
        cluster.thread_hooks.append(OnCommit(fault, chooses))
        run = cluster.ask(lambda core: core.trigger("work", {"key": "k"}))
        ended = cluster.until_ended(run["id"], 60.0)
        assert ended["counts"] == {"SUCCESS": 3}
        assert set(work.begun.values()) == {1}


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("chooses", [creates_tasks, sets_results])
@pytest.mark.parametrize("seed", range(3))
def test_a_core_that_dies_at_a_commit_loses_and_doubles_nothing(
    before: bool, chooses: Callable[[Any], bool], seed: int
) -> None:
    with SimWorld(seed) as world:
        work = Work()
        cluster = ready(world, work)
        cluster.thread_hooks.append(OnCommit(Crash(before=before), chooses))
        leader = cluster.leader
        assert leader is not None

        def ask(core: CoreService) -> Any:
            return core.trigger("work", {"key": "k"})

        answers: list[Any] = []
        Deferred.fromCoroutine(ask(leader)).addBoth(answers.append)
        world.run_for(3.0)
        assert not cluster.cores[0].alive
        cluster.start_core(cluster.cores[0])
        cluster.until_ready()
        run = cluster.ask(ask)
        ended = cluster.until_ended(run["id"], 60.0)
        assert ended["counts"] == {"SUCCESS": 3}
        assert set(work.begun.values()) == {1}


def test_while_the_store_is_away_nothing_is_decided_and_requests_are_told_to_repeat() -> None:
    with SimWorld(5) as world:
        work = Work()
        cluster = ready(world, work)
        away = [True]

        def gone(call: ThreadCall) -> ThreadFault | None:
            return FailBefore(AWAY) if away[0] else None

        run = cluster.ask(lambda core: core.trigger("work", {}))
        world.run_for(0.5)
        cluster.thread_hooks.append(gone)
        with pytest.raises(StoreUnavailable):
            cluster.ask(lambda core: core.trigger("work", {"key": "later"}), 10.0)
        world.run_for(120.0)
        leader = cluster.cores[0].app
        assert len(leader.workers()) == 2  # They were answered all the time, and nobody was declared dead.
        away[0] = False
        assert cluster.until_ended(run["id"], 30.0)["counts"] == {"SUCCESS": 3}
        later = cluster.ask(lambda core: core.trigger("work", {"key": "later"}))
        assert cluster.until_ended(later["id"], 30.0)["counts"] == {"SUCCESS": 3}
        assert set(work.begun.values()) == {1}


def refusing(cluster: SimCluster, poisoned: Callable[[Any], bool]) -> None:
    """Let the store refuse every batch with a row that `poisoned` picks."""
    commit = cluster.store.commit

    def strict(batch: Any) -> None:
        rows = [*batch.runs_new, *batch.runs_set, *batch.tasks_new, *batch.tasks_set, *batch.dues]
        if any(poisoned(row) for row in rows):
            raise BatchRefused("a row that cannot be stored")
        commit(batch)

    cluster.store.commit = strict  # type: ignore[method-assign]


def test_a_refused_request_fails_alone() -> None:
    with SimWorld(6) as world:
        work = Work()
        cluster = ready(world, work)
        refusing(cluster, lambda row: getattr(row, "params", "") == '"poison"')
        leader = cluster.leader
        assert leader is not None
        answers: dict[str, Any] = {}
        for key, params in (("a", 1), ("b", "poison"), ("c", 3)):
            asked: Deferred[Any] = Deferred.fromCoroutine(leader.trigger("work", {"key": key, "params": params}))
            asked.addBoth(partial(answers.__setitem__, key))
        world.run_until(lambda: len(answers) == 3, 30.0)
        assert answers["b"].check(BatchRefused)
        answers["b"].trap(BatchRefused)
        for key in ("a", "c"):
            assert cluster.until_ended(answers[key]["id"], 30.0)["counts"] == {"SUCCESS": 3}
        assert cluster.store.run("work~b") is None
        assert cluster.leader is leader
        assert leader.pending() == {"pending": 0, "by_status": {}}


def test_a_result_that_the_store_refuses_fails_its_attempt_for_good() -> None:
    with SimWorld(8) as world:
        work = Work()
        cluster = ready(world, work)
        refusing(cluster, lambda row: getattr(row, "result", None) == '"poison"')
        run = cluster.ask(lambda core: core.trigger("work", {"params": "poison", "sharding_total": 1}))
        other = cluster.ask(lambda core: core.trigger("work", {"params": 1}))
        assert cluster.until_ended(run["id"], 60.0)["status"] == "FAILED"
        task = cluster.ask(lambda core: core.task(run["id"] + ":0"))
        assert "refused" in task["attempts"][-1]["message"]
        assert cluster.until_ended(other["id"], 60.0)["counts"] == {"SUCCESS": 3}
        assert work.begun[run["id"] + ":0"] == 1


def test_a_due_that_the_store_refuses_is_passed_over() -> None:
    with SimWorld(9) as world:
        work = Work()
        cluster = ready(world, work)
        trigger = {"type": "interval", "seconds": 10}
        cluster.ask(lambda core: core.create_job({"name": "tick", "handler": "work", "trigger": trigger}))
        world.run_for(15.0)
        first = [row for row in cluster.store.runs(100, None, {"job": "tick"}).items]
        assert len(first) == 1
        assert first[0].due is not None
        refused = first[0].due + 10_000
        refusing(cluster, lambda row: getattr(row, "due", None) == refused)
        world.run_for(30.0)
        dues = sorted(row.due for row in cluster.store.runs(100, None, {"job": "tick"}).items if row.due is not None)
        assert dues == [first[0].due, first[0].due + 20_000, first[0].due + 30_000]


def test_the_same_key_gives_the_same_run_over_a_restart_and_another_body_is_a_conflict() -> None:
    with SimWorld(10) as world:
        work = Work()
        cluster = ready(world, work)
        first = cluster.ask(lambda core: core.trigger("work", {"key": "k", "params": 1}))
        cluster.until_ended(first["id"], 30.0)
        cluster.cores[0].crash()
        cluster.start_core(cluster.cores[0])
        cluster.until_ready()
        again = cluster.ask(lambda core: core.trigger("work", {"key": "k", "params": 1}))
        assert again["id"] == first["id"]
        assert again["status"] == "SUCCESS"
        with pytest.raises(Conflict):
            cluster.ask(lambda core: core.trigger("work", {"key": "k", "params": 2}))
        assert sum(work.begun.values()) == 3


def test_a_store_that_answers_and_takes_nothing_is_asked_ever_more_rarely() -> None:
    """A full disk, or a server that only reads: a newcomer's log grew by twenty lines a second."""
    with SimWorld(7) as world:
        work = Work()
        cluster = ready(world, work)
        commits: list[float] = []
        takes = [False]

        def only_reads(call: ThreadCall) -> ThreadFault | None:
            if not call.function.endswith(".commit") or takes[0]:
                return None
            commits.append(world.reactor.seconds())
            return FailBefore(StoreUnavailable("it only reads"))

        run = cluster.ask(lambda core: core.trigger("work", {}))
        cluster.thread_hooks.append(only_reads)
        world.run_for(120.0)
        assert 40 < len(commits) < 80
        takes[0] = True
        world.run_for(5.0)
        assert cluster.until_ended(run["id"], 30.0)["counts"] == {"SUCCESS": 3}


def test_large_results_wait_for_room_and_do_not_make_the_store_seem_away() -> None:
    """A newcomer's 340 results of 255 KiB were one batch, and it took longer than a store may take."""
    with SimWorld(8) as world:
        work = Work(work_s=0.0, value="x" * 255_000)
        cluster = SimCluster(world, work.handlers, workers=4, slots=100)
        cluster.start()
        cluster.until_ready()
        cluster.ask(lambda core: core.create_job({"name": "work", "sharding_total": 400}))
        sizes: list[int] = []

        def slow(call: ThreadCall) -> ThreadFault | None:
            if not call.function.endswith(".commit"):
                return None
            sizes.append(sum(len(row.result or "") for row in call.args[0].tasks_set))
            return Hang(1.0, before=True)

        cluster.thread_hooks.append(slow)
        run = cluster.ask(lambda core: core.trigger("work", {}))
        assert cluster.until_ended(run["id"], 600.0)["counts"] == {"SUCCESS": 400}
        assert sum(sizes) >= 400 * 255_000
        assert max(sizes) < 24 * 1024 * 1024
