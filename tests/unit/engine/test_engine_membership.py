"""Workers come, prove that they live, and go."""

from typing import Any

import pytest

from dsched.engine.settings import EngineSettings
from dsched.testing.engine_bench import BenchWorker, EngineBench, response
from dsched.wire.messages import Error, Heartbeat, Register, RegisterAck, ResumeAck, RunningAttempt


def running(request: Any, started: bool = True, elapsed_ms: float = 0.0) -> RunningAttempt:
    return RunningAttempt(request.task_id, request.job_id, request.attempt, request.fence, started, elapsed_ms)


def with_tasks(bench: EngineBench, shards: int = 3, **job: Any) -> tuple[BenchWorker, str]:
    """Return a worker that has all shards of a run; the first two run."""
    bench.job(sharding_total=shards, **job)
    worker = bench.worker(slots=shards)
    run_id = bench.run()
    worker.start(*worker.requests[:2])
    return worker, run_id


def statuses(bench: EngineBench, run_id: str) -> list[str]:
    return [row.status for row in bench.tasks(run_id)]


def test_registration_is_answered_and_kept() -> None:
    bench = EngineBench()
    worker = bench.register("w1")
    ack = worker.received[0]
    assert isinstance(ack, RegisterAck) and ack.worker_id == "w1" and ack.features
    assert not bench.engine.sessions()
    worker.resume(3, ["b", "a"], "gpu")
    row = bench.store.worker("w1")
    assert row is not None
    assert (row.state, row.group_name, row.slots, row.handlers, row.host) == ("ready", "gpu", 3, '["a","b"]', "there")
    assert worker.of(ResumeAck) == [ResumeAck([], 1)]
    assert [session.worker_id for session in bench.engine.sessions()] == ["w1"]


def test_resume_comes_in_chunks() -> None:
    bench = EngineBench()
    bench.job("b", handler="two")
    worker = bench.register("w1")
    worker.resume(2, ["one"], last=False)
    worker.resume(0, ["two"], "ignored", last=False)
    run_id = bench.run("b")
    assert not worker.requests and worker.session.slots == 0
    worker.resume(0, ["three"], "ignored")
    assert worker.task_ids == [f"{run_id}:0"]
    assert (worker.session.group_name, worker.session.slots) == ("default", 2)
    assert worker.session.handlers == frozenset({"one", "two", "three"})
    worker.resume(9, ["late"])
    assert worker.session.slots == 2


def test_what_is_refused_at_the_door() -> None:
    bench = EngineBench()
    worker = bench.register("w1").resume(0)
    assert worker.of(Error)[0].code == "slots" and worker.close_reason is not None
    twice = bench.worker("w2")
    bench.tell(bench.engine.register, twice.session_id, "", Register("w9", incarnation="i", features=[]))
    assert twice.of(Error)[0].code == "registered_twice" and twice.close_reason is not None
    nameless = BenchWorker(bench, "w3", 77, "i")
    bench.workers[77] = nameless
    bench.tell(bench.engine.register, 77, "", Register("w3", features=[]))
    assert nameless.of(Error)[0].code == "incarnation" and nameless.close_reason is not None
    bench.advance(120)
    assert not bench.engine.membership.sessions


def test_a_worker_must_speak_what_the_core_speaks_and_bear_plain_names() -> None:
    bench = EngineBench()
    partly = BenchWorker(bench, "w4", 78, "i")
    bench.workers[78] = partly
    bench.tell(bench.engine.register, 78, "", Register("w4", incarnation="i", features=["started"]))
    assert partly.of(Error)[0].code == "features" and "resume" in partly.of(Error)[0].message
    for resume in ({"handlers": ["a b"]}, {"group": "a/b"}):
        worker = bench.register("w5").resume(1, **resume)
        assert worker.of(Error)[0].code == "resume" and worker.close_reason is not None
    assert not bench.engine.sessions()


def test_reconciliation_results_then_adoption_then_the_rest() -> None:
    bench = EngineBench()
    worker, run_id = with_tasks(bench, 5)
    requests = list(worker.requests)
    worker.close()
    assert statuses(bench, run_id) == ["RUNNING"] * 2 + ["DISPATCHED"] * 3
    bench.advance(3)
    again = bench.register("w1")
    assert statuses(bench, run_id) == ["RUNNING"] * 2 + ["DISPATCHED"] * 3
    again.resume(5, running=[running(requests[1], elapsed_ms=9_000), running(requests[2], False)],
                 results=[response(requests[3], success=True)])  # fmt: skip
    # 0 ran and is lost; 1 and 2 are adopted; 3 has its result; 4 never arrived.
    assert sorted(again.task_ids) == [f"{run_id}:0", f"{run_id}:4"]
    assert statuses(bench, run_id) == ["DISPATCHED", "RUNNING", "DISPATCHED", "SUCCESS", "DISPATCHED"]
    assert bench.outcomes(f"{run_id}:0") == ["LOST"] and bench.outcomes(f"{run_id}:4") == ["UNDELIVERED"]
    assert [row.retry_count for row in bench.tasks(run_id)] == [1, 0, 0, 0, 0]
    # What it brought just now is acknowledged as any result is: that depends on the commit of this very batch.
    assert again.of(ResumeAck)[0].terminal == [] and again.acks == [(f"{run_id}:3", 1)]
    assert again.session.load == 4
    for request in (*requests[1:3], *again.requests):
        again.succeed(request)
    assert bench.status(run_id) == "SUCCESS"
    bench.advance(30)
    assert again.close_reason is None


def test_an_adopted_attempt_keeps_its_clock() -> None:
    bench = EngineBench()
    worker, run_id = with_tasks(bench, 1, timeout=20, retries=0)
    request = worker.requests[0]
    deadline_ms = bench.tasks(run_id)[0].deadline
    bench.advance(10)
    worker.close()
    bench.advance(2)
    again = bench.register("w1").resume(1, running=[running(request, elapsed_ms=12_000)])
    assert bench.tasks(run_id)[0].deadline == deadline_ms
    bench.advance(12.9)
    assert statuses(bench, run_id) == ["RUNNING"]
    bench.advance(0.2)
    assert statuses(bench, run_id) == ["TIMEOUT"] and again.cancels


def test_a_handler_that_ends_its_process_at_once_is_not_run_for_ever() -> None:
    bench = EngineBench()
    bench.job(retries=2, retry_backoff=0)
    worker, run_id, executions = bench.worker(), bench.run(), 0
    for number in range(5):
        executions += len(worker.requests)
        # It dies before it says `started`, and is there again within the resume grace.
        worker.close()
        worker = bench.register("w1", f"again-{number}").resume(1)
        bench.advance(1)
    assert executions == 3 and bench.status(run_id) == "FAILED"


def test_another_incarnation_brings_results_but_adopts_nothing() -> None:
    bench = EngineBench()
    worker, run_id = with_tasks(bench, 3, retries=1)
    requests = list(worker.requests)
    worker.close()
    again = bench.register("w1", "i2").resume(
        3, running=[running(requests[0])], results=[response(requests[1], success=True)]
    )  # fmt: skip
    assert [cancel.task_id for cancel in again.cancels] == [f"{run_id}:0"]
    assert bench.outcomes(f"{run_id}:0") == ["LOST"] and bench.outcomes(f"{run_id}:2") == ["LOST"]
    assert sorted(again.task_ids) == [f"{run_id}:0", f"{run_id}:2"]
    assert statuses(bench, run_id)[1] == "SUCCESS"


def test_what_was_rescued_meanwhile_is_dropped_and_keeps_a_slot_until_it_ends() -> None:
    bench = EngineBench()
    worker, run_id = with_tasks(bench, 1)
    request = worker.requests[0]
    worker.close()
    bench.advance(5.1)
    other = bench.worker("w2")
    assert other.task_ids == [f"{run_id}:0"]
    again = bench.register("w1").resume(2, running=[running(request)])
    assert [cancel.attempt for cancel in again.cancels] == [1] and again.session.load == 1
    assert again.of(ResumeAck)[0].terminal == []
    again.answer(request, success=False, outcome="CANCELLED")
    assert again.session.load == 0 and bench.stale(request.task_id) == 0
    other.succeed(other.requests[0])
    assert bench.status(run_id) == "SUCCESS"


def test_what_ended_meanwhile_is_named_as_terminal() -> None:
    bench = EngineBench()
    worker, run_id = with_tasks(bench, 1, retries=0)
    request = worker.requests[0]
    worker.close()
    bench.advance(5.1)
    assert bench.status(run_id) == "FAILED"
    again = bench.register("w1").resume(1, running=[running(request)], results=[response(request, success=True)])
    assert again.of(ResumeAck)[0].terminal == [f"{run_id}:0"] and again.acks == [(f"{run_id}:0", 1)]
    assert bench.status(run_id) == "FAILED" and bench.stale(f"{run_id}:0") == 1


@pytest.mark.parametrize("grace_s", [0.0, 5.0, 20.0])
def test_the_resume_grace(grace_s: float) -> None:
    bench = EngineBench(settings=EngineSettings(resume_grace_s=grace_s))
    worker, run_id = with_tasks(bench, 2)
    other = bench.worker("w2", slots=2)
    had = [request for request in (*worker.requests, *other.requests)]
    assert len(had) == 2
    loser, keeper = (worker, other) if worker.requests else (other, worker)
    loser.close()
    if grace_s:
        bench.advance(grace_s - 0.1)
        assert len(keeper.requests) + len(loser.requests) == 2
        bench.advance(0.2)
    assert sorted(keeper.task_ids + loser.task_ids).count(loser.task_ids[0]) == 2


def test_a_superseded_connection_changes_nothing() -> None:
    """B058: link 1 is frozen, the same process comes on link 2, link 1 is reset later."""
    bench = EngineBench()
    worker, run_id = with_tasks(bench, 1)
    request = worker.requests[0]
    again = bench.register("w1").resume(1, running=[running(request)])
    assert worker.close_reason == "the worker has connected again"
    engine = bench.engine
    bench.tell(engine.closed, worker.session_id)
    bench.tell(engine.results, worker.session_id, [response(request, success=False)])
    bench.tell(engine.draining, worker.session_id)
    worker.resume(9)
    worker.start(request)
    bench.tell(engine.seen, worker.session_id)
    bench.tell(engine.flushed, worker.session_id, False)
    assert [(session.worker_id, session.slots, session.load) for session in engine.sessions()] == [("w1", 1, 1)]
    again.succeed(request)
    assert bench.status(run_id) == "SUCCESS" and bench.task(f"{run_id}:0").attempt == 1


def test_a_second_process_is_refused_while_the_first_is_alive() -> None:
    """Case B058: two healthy processes with one id."""
    bench = EngineBench()
    first, run_id = with_tasks(bench, 1)
    second = bench.register("w1", "i2")
    assert first.of(Heartbeat) == [Heartbeat(ping=True)] and not second.received
    second.resume(1)  # It was not asked.
    bench.advance(1.9)
    third = bench.register("w1", "i3")
    assert third.of(Error)[0].code == "id_in_use" and third.close_reason is not None
    first.beat()
    assert second.of(Error)[0].code == "id_in_use" and second.close_reason is not None
    bench.advance(5)
    first.beat()
    assert [session.incarnation for session in bench.engine.sessions()] == ["i1"]
    first.succeed(first.requests[0])
    assert bench.status(run_id) == "SUCCESS"


def test_a_second_process_takes_over_from_a_silent_one() -> None:
    bench = EngineBench()
    first, run_id = with_tasks(bench, 1)
    second = bench.register("w1", "i2")
    bench.advance(1.9)
    assert not second.received
    bench.advance(0.2)
    assert first.close_reason == "the worker has connected again"
    second.resume(1)
    assert second.task_ids == [f"{run_id}:0"] and bench.outcomes(f"{run_id}:0") == ["LOST"]


@pytest.mark.parametrize("how", ["closed", "newcomer closed", "comes back", "dies"])
def test_how_a_takeover_may_end(how: str) -> None:
    bench = EngineBench()
    first, run_id = with_tasks(bench, 1)
    if how == "dies":
        bench.advance(59)
    second = bench.register("w1", "i2")
    if how == "closed":
        first.close()
        assert isinstance(second.received[0], RegisterAck)
    elif how == "newcomer closed":
        second.close()
        bench.advance(5)
        assert [session.incarnation for session in bench.engine.sessions()] == ["i1"]
        first.beat()
        return
    elif how == "comes back":
        again = bench.register("w1", "i1").resume(1, running=[running(first.requests[0])])
        assert second.of(Error)[0].code == "id_in_use"
        again.succeed(first.requests[0])
        assert bench.status(run_id) == "SUCCESS"
        return
    else:
        bench.advance(1.1)
        assert first.close_reason is not None and isinstance(second.received[0], RegisterAck)
    second.resume(1)
    assert second.task_ids == [f"{run_id}:0"]
    assert bench.task(f"{run_id}:0").retry_count == 1
    assert len(bench.engine.membership.sessions) == 1


def test_ping_at_45_dead_at_60_rescued_once() -> None:
    """Case B061: counted from the last frame."""
    bench = EngineBench()
    worker, run_id = with_tasks(bench, 1, timeout=0)
    bench.advance(10)
    worker.beat()
    bench.advance(44.9)
    assert not worker.of(Heartbeat)
    bench.advance(0.2)
    assert worker.of(Heartbeat) == [Heartbeat(ping=True)]
    bench.advance(14.8)
    assert worker.close_reason is None
    bench.advance(0.2)
    assert worker.close_reason == "no frame for 60 s"
    row = bench.tasks(run_id)[0]
    assert (row.status, row.retry_count, bench.outcomes(row.task_id)) == ("PENDING", 1, ["LOST"])
    worker.close()
    bench.advance(10)
    assert bench.tasks(run_id)[0] == row
    assert bench.store.worker("w1").state == "lost"  # type: ignore[union-attr]


def test_any_frame_is_life_and_one_lost_beat_is_not_death() -> None:
    bench = EngineBench()
    worker = bench.worker()
    for _ in range(20):
        bench.advance(59.5)
        worker.beat()
    assert worker.close_reason is None and len(worker.of(Heartbeat)) == 20


def test_time_in_which_nobody_could_be_heard_does_not_count() -> None:
    bench = EngineBench()
    worker = bench.worker()
    bench.mono_s += 300
    bench.engine.refresh_leases(bench.now)
    bench.tell(bench.engine.advance)
    assert worker.close_reason is None
    bench.advance(59)
    assert worker.close_reason is None
    bench.advance(2)
    assert worker.close_reason is not None


def test_what_was_dispatched_while_nobody_could_be_told_has_its_full_time_to_start() -> None:
    bench = EngineBench()
    bench.job()
    worker = bench.worker()
    bench.paused = True  # The store is away, so the frame waits.
    bench.run_later()
    bench.mono_s += 300
    bench.paused = False
    bench.engine.refresh_leases(bench.now)
    bench.tell(bench.engine.advance)
    assert [request.attempt for request in worker.requests] == [1] and not worker.cancels
    for _ in range(59):
        bench.advance(1)
        worker.beat()
    assert not worker.cancels
    bench.advance(2)
    assert [cancel.attempt for cancel in worker.cancels] == [1]


def test_lost_workers_are_forgotten_after_an_hour() -> None:
    bench = EngineBench()
    worker, _ = with_tasks(bench, 1, retries=0)
    worker.close()
    bench.advance(3600)
    assert "w1" in bench.engine.membership.workers
    bench.advance(10)
    assert not bench.engine.membership.workers and not len(bench.engine.state.wheel)


def test_a_worker_that_returns_is_not_forgotten() -> None:
    bench = EngineBench()
    bench.worker().close()
    bench.advance(3000)
    worker = bench.worker()
    for _ in range(30):
        bench.advance(40)
        worker.beat()
    assert [session.worker_id for session in bench.engine.sessions()] == ["w1"]


def test_a_registered_worker_that_says_no_more_dies_too() -> None:
    bench = EngineBench()
    worker = bench.register("w1")
    bench.advance(60.1)
    assert worker.close_reason is not None and not bench.engine.membership.sessions


def test_more_than_a_resume_may_bring() -> None:
    bench = EngineBench()
    worker = bench.register("w1").resume(1, ["h"] * 100_001, last=False)
    assert worker.of(Error)[0].code == "resume" and worker.close_reason is not None
