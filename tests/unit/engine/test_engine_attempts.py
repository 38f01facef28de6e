"""How attempts end, and what becomes of their tasks."""

from typing import Any

import pytest

from dsched.engine.settings import EngineSettings
from dsched.testing.engine_bench import BenchWorker, EngineBench, response
from dsched.wire.encoding import decode_any
from dsched.wire.messages import ResponseIn


def one(bench: EngineBench, **job: Any) -> tuple[BenchWorker, str, Any]:
    """Return a worker, a task that it was given, and the request."""
    bench.job(**job)
    worker = bench.worker(slots=4)
    task_id = f"{bench.run()}:0"
    return worker, task_id, worker.requests[-1]


def test_a_success_is_stored_then_acknowledged() -> None:
    bench = EngineBench()
    worker, task_id, request = one(bench)
    assert bench.task(task_id).status == "DISPATCHED"
    worker.start(request)
    row = bench.task(task_id)
    assert (row.status, row.started_at, row.deadline) == ("RUNNING", bench.wall_ms, bench.wall_ms + 30_000)
    bench.paused = True
    worker.succeed(request, b'{"n":9007199254740993,"s":"a\\u0000b"}')
    assert bench.task(task_id).status == "RUNNING" and not worker.acks
    bench.paused = False
    bench.pump()
    row = bench.task(task_id)
    assert (row.status, row.result, row.error_msg) == ("SUCCESS", '{"n":9007199254740993,"s":"a\\u0000b"}', None)
    assert worker.acks == [(task_id, 1)]
    assert bench.status(request.run_id) == "SUCCESS" and bench.ended == [request.run_id]
    assert not bench.engine.state.tasks and not bench.engine.state.runs


def test_a_request_says_all_that_an_attempt_needs() -> None:
    bench = EngineBench()
    bench.job(sharding_total=2, params={"x": 2**60}, preload_keys=["user:{item}", "k{n}"], timeout=7)
    worker = bench.worker(slots=2)
    run_id = bench.run(key="k")
    second = worker.requests[1]
    assert (second.job_name, second.handler, second.params) == ("job", "work", '{"x":1152921504606846976}')
    assert (second.sharding_total, second.sharding_item, second.timeout) == (2, 1, 7)
    assert (second.task_id, second.run_id, second.attempt, second.retry_count) == (f"{run_id}:1", run_id, 1, 0)
    assert second.preload_keys == ["user:1", *(f"k{n}" for n in range(10))]
    row = bench.task(second.task_id)
    assert (second.job_id, second.fence, second.epoch) == (row.job_id, row.fence, 1)
    assert worker.requests[0].fence < second.fence and worker.requests[0].job_id < second.job_id


def test_a_result_may_come_before_started() -> None:
    bench = EngineBench()
    worker, task_id, request = one(bench)
    bench.advance(1)
    worker.succeed(request, duration_ms=400.0)
    row = bench.task(task_id)
    assert (row.status, row.started_at) == ("SUCCESS", bench.wall_ms - 400)
    worker.start(request)
    assert bench.task(task_id) == row


@pytest.mark.parametrize("duration_ms", [1e300, 1e15, 86_400_000.0])
def test_nothing_began_before_its_run_was_created(duration_ms: float) -> None:
    bench = EngineBench()
    worker, task_id, request = one(bench)
    created_ms = bench.wall_ms
    bench.advance(1)
    worker.succeed(request, duration_ms=duration_ms)
    assert bench.task(task_id).started_at == created_ms


def test_an_error_waits_longer_each_time_and_then_fails() -> None:
    bench = EngineBench()
    worker, task_id, request = one(bench)
    for number, delay_s in enumerate((10, 20, 40), 1):
        assert (request.attempt, request.retry_count) == (number, number - 1)
        worker.fail(request, "broken", error_type="ValueError", traceback="Traceback…")
        row = bench.task(task_id)
        assert row.status == "PENDING" and row.retry_count == number and row.not_before is not None
        assert delay_s * 0.9 <= (row.not_before - bench.wall_ms) / 1000 <= delay_s * 1.1
        bench.advance(delay_s * 0.9 - 0.01)
        assert worker.requests[-1] is request
        bench.advance(delay_s * 0.2 + 0.02)
        worker.beat()
        request = worker.requests[-1]
        assert bench.task(task_id).not_before is None
    worker.fail(request, "broken for good", error_type="ValueError", traceback="Traceback…")
    row = bench.task(task_id)
    assert (row.status, row.attempt, row.retry_count, row.error_msg) == ("FAILED", 4, 3, "broken for good")
    error = decode_any((row.error or "").encode())
    assert error == {"type": "ValueError", "message": "broken for good", "traceback": "Traceback…"}
    assert bench.outcomes(task_id) == ["ERROR"] * 3
    assert bench.status(request.run_id) == "FAILED"


def test_a_handler_can_forbid_another_try() -> None:
    bench = EngineBench()
    worker, task_id, request = one(bench)
    worker.fail(request, retryable=False)
    assert bench.task(task_id).status == "FAILED" and bench.task(task_id).retry_count == 0


def test_all_causes_count_together() -> None:
    bench = EngineBench()
    worker, task_id, request = one(bench, retry_backoff=0)
    worker.start(request)
    worker.answer(request, success=False, outcome="TIMEOUT")  # 1
    bench.advance(0.1)
    worker.start(worker.requests[-1])
    bench.advance(36)  # 2: it does not come back by itself
    assert worker.cancels[-1].attempt == 2
    other = bench.worker("w2", slots=4)
    request = other.requests[-1]
    other.close()
    bench.advance(5.1)  # 3: lost
    assert bench.outcomes(task_id) == ["TIMEOUT", "TIMEOUT", "LOST"]
    third = bench.worker("w3")
    third.fail(third.requests[-1])
    row = bench.task(task_id)
    assert (row.status, row.attempt, row.retry_count) == ("FAILED", 4, 3)


def test_only_the_first_loss_is_tried_again_at_once() -> None:
    bench = EngineBench(settings=EngineSettings(resume_grace_s=0))
    bench.job()
    first, second = bench.worker("w1"), bench.worker("w2")
    task_id = f"{bench.run()}:0"
    owner, other = (first, second) if first.requests else (second, first)
    owner.start(owner.requests[0])
    owner.close()
    assert other.task_ids == [task_id]
    other.start(other.requests[0])
    other.close()
    row = bench.task(task_id)
    assert (row.status, row.retry_count, row.lost_count) == ("PENDING", 2, 2)
    assert row.not_before is not None and row.not_before - bench.wall_ms >= 18_000
    third = bench.worker("w3")
    bench.advance(17)
    assert not third.requests
    bench.advance(6)
    assert third.task_ids == [task_id]


def test_the_core_closes_an_attempt_five_seconds_after_its_time() -> None:
    bench = EngineBench()
    worker, task_id, request = one(bench, timeout=10, retries=0)
    bench.advance(40)
    worker.start(request)  # The clock starts here, not at the dispatch.
    worker.beat()
    bench.advance(14.9)
    assert bench.task(task_id).status == "RUNNING"
    bench.advance(0.2)
    assert bench.task(task_id).status == "TIMEOUT"
    assert [(cancel.task_id, cancel.attempt) for cancel in worker.cancels] == [(task_id, 1)]
    # Its slot stays taken until the worker says that it is over (B051: late and twice, nothing changes).
    assert worker.session.load == 1
    row = bench.task(task_id)
    worker.succeed(request)
    worker.succeed(request)
    assert bench.task(task_id) == row and worker.session.load == 0
    assert bench.stale(task_id) == 2
    assert worker.acks == [(task_id, 1)] * 2


def test_a_late_success_while_the_retry_waits_changes_nothing() -> None:
    bench = EngineBench()
    worker, task_id, request = one(bench, timeout=10)
    worker.start(request)
    bench.advance(15.1)
    before = bench.task(task_id)
    assert before.status == "PENDING" and before.retry_count == 1
    worker.succeed(request)
    assert bench.task(task_id) == before and worker.acks == [(task_id, 1)]
    assert bench.stale(task_id) == 1
    bench.advance(12)
    assert worker.requests[-1].attempt == 2


def test_a_worker_that_says_nothing_for_a_while_is_not_taken_for_failed() -> None:
    """Case B053: 12 s without a word after the dispatch are no reason for another one."""
    bench = EngineBench()
    worker, task_id, request = one(bench)
    other = bench.worker("w2", slots=4)
    bench.advance(12)
    assert bench.task(task_id).status == "DISPATCHED" and not other.requests
    worker.start(request)
    worker.succeed(request)
    bench.advance(200)
    row = bench.task(task_id)
    assert (row.status, row.attempt, row.retry_count) == ("SUCCESS", 1, 0)
    assert not other.requests and worker.task_ids == [task_id] and not bench.outcomes(task_id)


def test_no_timeout_for_ever() -> None:
    bench = EngineBench()
    worker, task_id, request = one(bench, timeout=0)
    worker.start(request)
    for _ in range(100):
        bench.advance(50)
        worker.beat()
    assert bench.task(task_id).status == "RUNNING" and bench.task(task_id).deadline is None
    worker.succeed(request)
    assert bench.task(task_id).status == "SUCCESS"


def test_what_does_not_start_is_withdrawn_and_goes_elsewhere() -> None:
    bench = EngineBench()
    worker, task_id, request = one(bench, retries=0)
    bench.advance(59)
    worker.beat()
    other = bench.worker("w2")
    assert bench.task(task_id).status == "DISPATCHED"
    bench.advance(1.1)
    assert worker.cancels[0].attempt == 1
    assert other.task_ids == [task_id] and other.requests[0].attempt == 2
    assert bench.outcomes(task_id) == ["UNDELIVERED"] and bench.task(task_id).retry_count == 0
    worker.answer(request, success=False, outcome="CANCELLED")  # The expected answer, not news.
    assert bench.stale(task_id) == 0 and worker.session.load == 0


def test_a_withdrawn_task_does_not_return_to_who_still_has_it() -> None:
    bench = EngineBench()
    worker, task_id, request = one(bench)
    bench.advance(30)
    worker.beat()
    bench.advance(31)
    assert worker.task_ids == [task_id] and bench.task(task_id).status == "PENDING"
    worker.answer(request, success=False, outcome="CANCELLED")
    assert worker.task_ids == [task_id] * 2


def test_a_rejecting_worker_is_avoided_longer_each_time() -> None:
    bench = EngineBench()
    worker, task_id, request = one(bench, retries=0)
    for delay_s in (10, 20, 40):
        worker.reject(worker.requests[-1])
        count = len(worker.requests)
        for _ in range(int(delay_s) - 1):
            bench.advance(1)
            worker.beat()
        assert len(worker.requests) == count
        bench.advance(1.1)
        assert len(worker.requests) == count + 1
    row = bench.task(task_id)
    assert (row.attempt, row.retry_count, row.status) == (4, 0, "DISPATCHED")
    assert bench.outcomes(task_id) == ["REJECTED"] * 3


def test_an_avoided_worker_gets_other_tasks_but_not_that_one() -> None:
    bench = EngineBench()
    worker, task_id, request = one(bench)
    others = [bench.run() for _ in range(6)]
    worker.reject(request)
    for other in list(worker.requests[1:]):
        worker.succeed(other)
    for request in list(worker.requests[4:]):
        worker.succeed(request)
    assert task_id not in worker.task_ids[1:]
    assert all(bench.status(run_id) == "SUCCESS" for run_id in others)
    second = bench.worker("w2")
    assert second.task_ids == [task_id]


def test_a_rejection_after_the_start_is_a_failure() -> None:
    bench = EngineBench()
    worker, task_id, request = one(bench, retries=0)
    worker.start(request)
    worker.reject(request)
    assert bench.task(task_id).status == "FAILED"


def test_a_foreign_result_changes_nothing() -> None:
    bench = EngineBench()
    worker, task_id, request = one(bench)
    other = bench.worker("w2")
    before = bench.task(task_id)
    other.send(response(request, success=True))
    assert bench.task(task_id) == before
    assert bench.stale(task_id) == 1 and other.acks == [(task_id, 1)]
    worker.send(response(request, success=True, attempt=7))
    assert bench.task(task_id) == before
    worker.succeed(request)
    assert bench.task(task_id).status == "SUCCESS"


def test_results_and_starts_of_nobody_are_ignored() -> None:
    """Case B069: also of a task whose id holds a NUL."""
    bench = EngineBench()
    worker, task_id, request = one(bench)
    bench.engine.results(999, [response(request, success=True)], bench.now)
    bench.engine.bad_result(999, task_id, bench.now)
    bench.engine.bad_result(worker.session_id, "no:0", bench.now)
    bench.engine.flushed(999, True, bench.now)
    assert not bench.engine.has_changes()
    worker.send(ResponseIn(1, "a\0b:0", True, attempt=1))
    assert worker.acks == [("a\0b:0", 1)] and bench.store.task("a\0b:0") is None
    worker.succeed(request)
    assert bench.task(task_id).status == "SUCCESS"


def test_a_result_that_nobody_can_read_fails_its_attempt_and_frees_the_slot() -> None:
    """Case B073, what the third one does."""
    bench = EngineBench()
    bench.job()
    worker = bench.worker(slots=1)
    first, second = bench.run(), bench.run()
    bench.tell(bench.engine.bad_result, worker.session_id, f"{first}:0")
    assert bench.status(first) == "FAILED" and worker.acks == [(f"{first}:0", 1)]
    assert worker.task_ids == [f"{first}:0", f"{second}:0"]
    worker.close()
    plain = bench.register("p1", None)
    third = bench.run()
    bench.tell(bench.engine.bad_result, plain.session_id, f"{third}:0")
    assert bench.status(third) == "FAILED"


def test_one_failure_gives_one_retry_whatever_comes_after() -> None:
    """The three hazards of the timings: a silent worker times out first, and is dead later (case B061)."""
    bench = EngineBench()
    worker, task_id, request = one(bench)
    worker.start(request)
    bench.advance(35.1)
    assert bench.task(task_id).retry_count == 1
    other = bench.worker("w2")
    bench.advance(15)
    other.start(other.requests[-1])
    assert bench.task(task_id).status == "RUNNING"
    bench.advance(10)
    assert worker.close_reason == "no frame for 60 s"
    row = bench.task(task_id)
    assert (row.status, row.attempt, row.retry_count, row.lost_count) == ("RUNNING", 2, 1, 0)
    assert bench.outcomes(task_id) == ["TIMEOUT"]
    other.succeed(other.requests[-1])
    assert bench.task(task_id).status == "SUCCESS"
    bench.advance(200)
    assert len(bench.store.attempts(task_id)) == 1


def test_waiting_behind_others_is_not_running() -> None:
    """Five tasks of 8 s on one slot: the fourth does not time out at 30 s."""
    bench = EngineBench()
    bench.job(timeout=10)
    worker = bench.worker(slots=1)
    runs = [bench.run() for _ in range(5)]
    for _ in runs:
        worker.start(worker.requests[-1])
        bench.advance(8)
        worker.beat()
        worker.succeed(worker.requests[-1])
    assert [bench.status(run_id) for run_id in runs] == ["SUCCESS"] * 5


def test_a_handler_that_outlives_its_timeout_holds_its_slot_until_it_returns() -> None:
    bench = EngineBench()
    worker = bench.worker(slots=1)
    bench.job(retries=0, timeout=1)
    first, second = bench.run(), bench.run()
    [request] = worker.requests
    worker.start(request)
    bench.advance(1.0)
    worker.answer(request, success=False, outcome="TIMEOUT", still_running=True)
    assert bench.status(first) == "FAILED"
    assert len(worker.requests) == 1
    assert bench.status(second) == "PENDING"
    worker.answer(request, success=False, outcome="CANCELLED")
    assert len(worker.requests) == 2
    assert bench.status(second) == "RUNNING"
    assert bench.stale(f"{first}:0") == 0


def outlive(bench: EngineBench, worker: BenchWorker) -> None:
    """Let the newest request of a worker start, time out, and hang on."""
    request = worker.requests[-1]
    worker.start(request)
    bench.advance(1.0)
    worker.answer(request, success=False, outcome="TIMEOUT", still_running=True)


def test_a_task_that_hung_goes_to_another_worker_first() -> None:
    bench = EngineBench()
    workers = [bench.worker("w1", slots=2), bench.worker("w2", slots=2)]
    bench.job(retries=2, timeout=1, retry_backoff=0)
    bench.run()
    [first] = [worker for worker in workers if worker.requests]
    [second] = [worker for worker in workers if not worker.requests]
    outlive(bench, first)
    assert [len(worker.requests) for worker in (first, second)] == [1, 1]


def test_a_task_that_hung_goes_back_to_its_worker_before_it_waits_for_ever() -> None:
    """A newcomer's task stayed PENDING, with a free slot, for as long as its old attempt did not return."""
    bench = EngineBench()
    worker = bench.worker(slots=3)
    bench.job(retries=2, timeout=1, retry_backoff=4)
    run_id = bench.run()
    outlive(bench, worker)
    bench.advance(10)
    assert len(worker.requests) == 1
    bench.advance(5)
    assert [request.attempt for request in worker.requests] == [1, 2]
    outlive(bench, worker)
    bench.advance(30)
    worker.beat()
    outlive(bench, worker)
    assert bench.status(run_id) == "FAILED"
    assert bench.task(f"{run_id}:0").attempt == 3
    # All three come back late: each frees its slot and changes nothing.
    for request in worker.requests:
        worker.answer(request, success=False, outcome="CANCELLED")
    assert bench.stale(f"{run_id}:0") == 0
    bench.run(shards=3)
    assert len(worker.requests) == 6


def test_who_stopped_before_its_task_had_ended_is_said_to_have_stopped() -> None:
    bench = EngineBench()
    worker = bench.worker()
    bench.job(retries=0)
    run_id = bench.run()
    worker.start(worker.requests[0])
    worker.drain()
    worker.close()
    bench.advance(5)
    assert bench.task(f"{run_id}:0").error_msg == "worker w1 stopped before this had ended"
