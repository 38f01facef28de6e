"""Workers that speak the plain protocol only."""

from typing import Any

import pytest

from dsched.testing.engine_bench import BenchWorker, EngineBench, response
from dsched.wire.encoding import to_builtins


def plain(bench: EngineBench, worker_id: str = "p1") -> BenchWorker:
    return bench.register(worker_id, None)


def test_it_gets_exactly_nine_fields_and_sixteen_tasks() -> None:
    bench = EngineBench()
    bench.job(sharding_total=40, handler="anything", params={"a": 1}, preload_keys=["k{item}"], timeout=9)
    worker = plain(bench)
    run_id = bench.run()
    assert len(worker.requests) == 16
    assert to_builtins(worker.requests[3]) == {
        "jobId": bench.task(f"{run_id}:3").job_id, "jobName": "job", "params": '{"a":1}', "shardingTotal": 40,
        "shardingItem": 3, "timeout": 9, "taskId": f"{run_id}:3", "retryCount": 0, "preloadKeys": ["k3"],
    }  # fmt: skip
    for number in range(40):
        worker.succeed(worker.requests[number])
    assert bench.status(run_id) == "SUCCESS"


@pytest.mark.parametrize(
    ("params", "text"),
    [(None, ""), ('a"b\0', 'a"b\0'), ("null", "null"), (3, "3"), ([1, "x"], '[1,"x"]'), ("", ""), ("😀", "😀")],
)
def test_a_string_goes_raw_and_null_as_nothing(params: Any, text: str) -> None:
    bench = EngineBench()
    bench.job(params=params)
    worker = plain(bench)
    bench.run()
    assert worker.requests[0].params == text


def test_clocks_run_from_the_dispatch_and_restart_with_each_result() -> None:
    bench = EngineBench()
    bench.job(timeout=10, retries=0)
    worker = plain(bench)
    runs = [bench.run() for _ in range(4)]
    for number in range(3):
        bench.advance(14)
        assert bench.open_statuses(runs) == ["DISPATCHED"] * (4 - number)
        worker.succeed(worker.requests[number])
    bench.advance(14.9)
    assert bench.status(runs[3]) == "RUNNING"
    bench.advance(0.2)
    assert bench.tasks(runs[3])[0].status == "TIMEOUT"


def test_an_answer_for_a_closed_attempt_restarts_the_clocks_too() -> None:
    bench = EngineBench()
    bench.job("short", timeout=5, retries=0)
    bench.job("long", timeout=20, retries=0)
    worker = plain(bench)
    first, second = bench.run("short"), bench.run("long")
    bench.advance(20)
    assert bench.status(first) == "FAILED"
    worker.succeed(worker.requests[0])
    bench.advance(24)
    assert bench.status(second) == "RUNNING"
    worker.succeed(worker.requests[1])
    assert bench.status(second) == "SUCCESS"


def test_no_timeout_waits_for_ever() -> None:
    bench = EngineBench()
    bench.job(timeout=0)
    worker = plain(bench)
    run_id = bench.run()
    for _ in range(20):
        bench.advance(59)
        worker.beat()
    assert bench.status(run_id) == "RUNNING"


def timed_out_and_retried() -> tuple[EngineBench, BenchWorker, str]:
    """Return a worker that has attempts 1 (closed) and 2 (open) of one task, both unanswered."""
    bench = EngineBench()
    bench.job(timeout=5, retries=1, retry_backoff=0)
    worker = plain(bench)
    task_id = f"{bench.run()}:0"
    bench.advance(10.1)
    assert [request.retry_count for request in worker.requests] == [0, 1]
    assert bench.task(task_id).attempt == 2 and worker.session.load == 2
    return bench, worker, task_id


def test_a_success_closes_the_current_attempt() -> None:
    bench, worker, task_id = timed_out_and_retried()
    worker.succeed(worker.requests[0], b'"first"')
    assert bench.task(task_id).status == "SUCCESS" and bench.task(task_id).result == '"first"'
    assert worker.session.load == 1
    worker.succeed(worker.requests[1], b'"second"')
    assert bench.task(task_id).result == '"first"' and bench.stale(task_id) == 1 and worker.session.load == 0


def test_a_success_is_not_of_an_attempt_that_was_never_sent() -> None:
    bench = EngineBench()
    bench.job(timeout=5, retries=1, retry_backoff=1)
    worker = plain(bench)
    run_id = bench.run()
    bench.paused = True
    bench.advance(12)  # its time was up, and the retry is decided, all in one batch that is not yet stored
    worker.succeed(worker.requests[0])
    bench.paused = False
    bench.pump()
    row = bench.tasks(run_id)[0]
    assert (row.status, row.attempt, len(worker.requests)) == ("DISPATCHED", 2, 2)
    assert bench.stale(f"{run_id}:0") == 1 and worker.session.load == 1
    worker.succeed(worker.requests[1])
    assert bench.status(run_id) == "SUCCESS" and worker.session.load == 0


def test_a_failure_closes_the_oldest_unanswered_one() -> None:
    bench, worker, task_id = timed_out_and_retried()
    worker.fail(worker.requests[0])
    assert bench.task(task_id).status == "DISPATCHED" and bench.stale(task_id) == 1
    worker.fail(worker.requests[1])
    assert bench.task(task_id).status == "FAILED" and worker.session.load == 0


def test_results_are_matched_by_job_id_and_session() -> None:
    bench = EngineBench()
    bench.job()
    worker = plain(bench)
    other = plain(bench, "p2")
    run_id = bench.run()
    has, has_not = (worker, other) if worker.requests else (other, worker)
    request = has.requests[0]
    has_not.send(response(request, success=True))
    has.send(response(request, success=True).__class__(request.job_id + 1, request.task_id, True))
    assert bench.status(run_id) == "RUNNING" and bench.stale(request.task_id) == 2
    has.succeed(request)
    assert bench.status(run_id) == "SUCCESS"


def test_closed_means_lost_at_once() -> None:
    bench = EngineBench()
    bench.job()
    worker = plain(bench)
    run_id = bench.run()
    worker.close()
    row = bench.tasks(run_id)[0]
    assert (row.status, row.retry_count, bench.outcomes(row.task_id)) == ("PENDING", 1, ["LOST"])
    assert plain(bench, "p2").task_ids == [row.task_id]


def test_a_new_connection_supersedes_and_inherits_nothing() -> None:
    bench = EngineBench()
    bench.job()
    worker = plain(bench)
    run_id = bench.run()
    again = plain(bench)
    assert worker.close_reason == "the worker has connected again"
    assert again.task_ids == [f"{run_id}:0"] and bench.outcomes(f"{run_id}:0") == ["LOST"]
    bench.tell(bench.engine.closed, worker.session_id)
    again.succeed(again.requests[0])
    assert bench.status(run_id) == "SUCCESS"


def test_after_a_core_restart_its_tasks_wait_for_the_grace() -> None:
    bench = EngineBench()
    bench.job()
    plain(bench)
    run_id = bench.run()
    bench.restart()
    other = plain(bench, "p2")
    bench.advance(4.9)
    assert not other.requests
    bench.advance(0.2)
    assert other.task_ids == [f"{run_id}:0"]


def test_a_worker_with_features_under_the_id_of_a_plain_one() -> None:
    bench = EngineBench()
    bench.job()
    worker = plain(bench, "w1")
    run_id = bench.run()
    new = bench.worker("w1")
    assert worker.close_reason is not None
    assert bench.outcomes(f"{run_id}:0") == ["LOST"] and new.task_ids == [f"{run_id}:0"]


def test_silence_is_death_and_it_is_never_pinged() -> None:
    bench = EngineBench()
    bench.job(timeout=0)
    worker = plain(bench)
    bench.run()
    bench.advance(59.9)
    assert worker.close_reason is None and len(worker.received) == 2
    bench.advance(0.2)
    assert worker.close_reason == "no frame for 60 s"


def test_a_cancelled_task_ends_at_once_and_keeps_its_slot() -> None:
    bench = EngineBench()
    bench.job()
    worker = plain(bench)
    run_id = bench.run()
    bench.cancel(run_id)
    row = bench.tasks(run_id)[0]
    assert (bench.status(run_id), row.status) == ("CANCELLED", "CANCELLED")
    assert "cannot confirm" in (row.error_msg or "")
    assert worker.session.load == 1
    worker.succeed(worker.requests[0])
    assert bench.task(row.task_id) == row and worker.session.load == 0
