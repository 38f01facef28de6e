"""Runs are cancelled: cancel wins or loses, never both."""

from typing import Any

import pytest

from dsched.errors import NotFound
from dsched.testing.engine_bench import BenchWorker, EngineBench
from dsched.wire.messages import RunningAttempt


def running_task(bench: EngineBench, **job: Any) -> tuple[BenchWorker, str, Any]:
    bench.job(**job)
    worker = bench.worker(slots=2)
    run_id = bench.run()
    worker.start(worker.requests[0])
    return worker, run_id, worker.requests[0]


def test_what_nobody_has_ends_at_once() -> None:
    bench = EngineBench()
    bench.job(sharding_total=3)
    run_id = bench.run()
    answer = bench.cancel(run_id)
    assert answer is not None and answer.error is None and answer.value.status == "CANCELLED"
    assert {row.status for row in bench.tasks(run_id)} == {"CANCELLED"} and bench.status(run_id) == "CANCELLED"
    assert bench.store.run(run_id).reason == "cancelled by request"  # type: ignore[union-attr]
    assert not bench.worker().requests


def test_a_retry_that_waits_is_cancelled_with_its_timer() -> None:
    bench = EngineBench()
    worker, run_id, request = running_task(bench)
    worker.fail(request)
    bench.cancel(run_id)
    assert bench.tasks(run_id)[0].status == "CANCELLED"
    assert len(bench.engine.state.wheel) == 1  # the lease
    bench.advance(30)
    assert len(worker.requests) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"success": False, "outcome": "CANCELLED"},
        {"success": False, "message": "broken"},
        {"success": False, "retryable": False},
        {"success": False, "outcome": "TIMEOUT"},
        {"success": False, "outcome": "REJECTED"},
        {"success": True},
    ],
)
@pytest.mark.parametrize("started", [True, False])
def test_every_end_is_cancelled(fields: dict[str, Any], started: bool) -> None:
    bench = EngineBench()
    bench.job()
    worker = bench.worker()
    run_id = bench.run()
    request = worker.requests[0]
    if started:
        worker.start(request)
    answer = bench.cancel(run_id)
    assert answer is not None and answer.value.status == "RUNNING"
    assert bench.tasks(run_id)[0].status == "CANCELLING"
    assert [(cancel.task_id, cancel.attempt) for cancel in worker.cancels] == [(request.task_id, 1)]
    if not started:
        worker.start(request)
        assert bench.tasks(run_id)[0].status == "CANCELLING"
    worker.answer(request, **fields)
    row = bench.tasks(run_id)[0]
    assert (row.status, row.attempt, row.retry_count) == ("CANCELLED", 1, 0)
    assert row.result == ("null" if fields["success"] else None)
    assert bench.status(run_id) == "CANCELLED" and worker.acks == [(request.task_id, 1)]
    bench.advance(30)
    assert len(worker.requests) == 1


@pytest.mark.parametrize("how", ["time", "close", "silence", "unstarted"])
def test_a_worker_that_does_not_answer(how: str) -> None:
    bench = EngineBench()
    bench.job(timeout=20 if how == "time" else 0)
    worker = bench.worker()
    run_id = bench.run()
    if how != "unstarted":
        worker.start(worker.requests[0])
    bench.cancel(run_id)
    if how == "close":
        worker.close()
    elif how == "unstarted":
        bench.advance(30)
        worker.beat()
    bench.advance(61)
    assert bench.status(run_id) == "CANCELLED" and bench.tasks(run_id)[0].status == "CANCELLED"


def test_it_is_asked_again_after_adoption() -> None:
    bench = EngineBench()
    worker, run_id, request = running_task(bench)
    bench.cancel(run_id)
    for restart in (False, True):
        if restart:
            bench.restart()
        else:
            worker.close()
        report = RunningAttempt(request.task_id, request.job_id, 1, request.fence, True, 1.0)
        worker = bench.register("w1").resume(2, running=[report])
        assert [cancel.attempt for cancel in worker.cancels] == [1]
        assert bench.tasks(run_id)[0].status == "CANCELLING"
    worker.answer(request, success=False, outcome="CANCELLED")
    assert bench.status(run_id) == "CANCELLED"


def test_how_runs_end() -> None:
    bench = EngineBench()
    bench.job(sharding_total=2, retries=0)
    worker = bench.worker(slots=2)
    ends = []
    for wins in (2, 1, 0):
        run_id = bench.run()
        for item, request in enumerate(worker.requests[-2:]):
            worker.answer(request, success=item < wins)
        ends.append((bench.status(run_id), bench.store.run(run_id).counts))  # type: ignore[union-attr]
    assert ends == [
        ("SUCCESS", '{"SUCCESS":2}'), ("PARTIAL", '{"SUCCESS":1,"FAILED":1}'), ("FAILED", '{"FAILED":2}')
    ]  # fmt: skip
    run_id = bench.run()
    worker.succeed(worker.requests[-2])
    bench.cancel(run_id)
    worker.succeed(worker.requests[-1])
    assert bench.status(run_id) == "CANCELLED"
    assert [row.status for row in bench.tasks(run_id)] == ["SUCCESS", "CANCELLED"]


def test_twice_is_as_good_as_once() -> None:
    bench = EngineBench()
    worker, run_id, request = running_task(bench)
    first, second = bench.cancel(run_id), bench.cancel(run_id)
    assert first is not None and second is not None and second.error is None
    assert len(worker.cancels) == 1


def test_what_has_ended_cannot_be_cancelled() -> None:
    bench = EngineBench()
    worker, run_id, request = running_task(bench)
    bench.paused = True
    worker.succeed(request)
    with pytest.raises(NotFound, match="open run"):
        bench.cancel(run_id)
    bench.paused = False
    bench.pump()
    assert bench.status(run_id) == "SUCCESS"
    assert bench.store.run(run_id).cancel_requested == 0  # type: ignore[union-attr]
    assert run_id not in bench.engine.state.runs


def test_a_shard_that_waits_behind_a_running_one_never_starts() -> None:
    bench = EngineBench()
    bench.job(sharding_total=4)
    worker = bench.worker(slots=2)
    run_id = bench.run()
    bench.cancel(run_id)
    for request in list(worker.requests):
        worker.succeed(request)
    assert len(worker.requests) == 2 and bench.status(run_id) == "CANCELLED"
