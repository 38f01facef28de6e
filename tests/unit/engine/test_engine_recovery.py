"""A new term goes on with what the last one stored."""

import pytest

from dsched.model.task import OPEN
from dsched.testing.engine_bench import BenchWorker, EngineBench, response
from dsched.wire.messages import ResumeAck, RunningAttempt


def running(request: object, elapsed_ms: float = 0.0) -> RunningAttempt:
    return RunningAttempt(
        request.task_id, request.job_id, request.attempt, request.fence, True, elapsed_ms  # type: ignore[attr-defined]
    )  # fmt: skip


def mixed(bench: EngineBench) -> tuple[BenchWorker, str]:
    """Return a run whose shards are: success, running, dispatched, waiting for a retry, pending."""
    bench.job(sharding_total=5, retry_backoff=100, timeout=50)
    worker = bench.worker(slots=1)
    run_id = bench.run()
    worker.close()
    bench.advance(6)
    worker = bench.worker("w1", 4, "i2")
    by_item = {request.sharding_item: request for request in worker.requests}
    assert len(by_item) == 4
    waiting = next(item for item in range(5) if item not in by_item)
    first, second, third, fourth = sorted(by_item)
    worker.drain()
    worker.start(by_item[second])
    worker.succeed(by_item[first])
    worker.fail(by_item[fourth])
    assert sorted(row.status for row in bench.tasks(run_id)) == [
        "DISPATCHED", "PENDING", "PENDING", "RUNNING", "SUCCESS"
    ]  # fmt: skip
    assert bench.tasks(run_id)[waiting].status == "PENDING" and third in by_item
    return worker, run_id


def test_open_attempts_wait_for_the_grace_and_then_everything_ends() -> None:
    bench = EngineBench()
    _, run_id = mixed(bench)
    before = bench.tasks(run_id)
    bench.restart()
    assert bench.tasks(run_id) == before
    worker = bench.worker("w2", 9)
    assert len(worker.requests) == 1  # what was pending; the retry waits, open attempts may still be claimed
    bench.advance(4.9)
    assert len(worker.requests) == 1
    bench.advance(0.2)
    assert len(worker.requests) == 3
    for _ in range(5):
        bench.advance(30)
        worker.beat()
        for request in worker.requests[len(worker.requests) - worker.session.load :]:
            worker.succeed(request)
    assert bench.status(run_id) == "SUCCESS"
    assert sorted(row.retry_count - old.retry_count for row, old in zip(bench.tasks(run_id), before, strict=True)) == [
        0, 0, 0, 1, 1
    ]  # fmt: skip


def test_a_longer_grace_when_another_core_led() -> None:
    bench = EngineBench()
    _, run_id = mixed(bench)
    bench.restart(grace_s=60)
    bench.advance(59)
    assert [row.status for row in bench.tasks(run_id)].count("RUNNING") == 1
    bench.advance(2)
    assert [row.status for row in bench.tasks(run_id)].count("RUNNING") == 0


def test_claimed_attempts_go_on_and_the_clock_with_them() -> None:
    """B049: a long job on a healthy worker, with two restarts of the core: one execution, no rescue."""
    bench = EngineBench()
    bench.job(timeout=600)
    worker = bench.worker()
    run_id = bench.run()
    request = worker.requests[0]
    worker.start(request)
    for restart in range(2):
        for _ in range(3):
            bench.advance(30)
            worker.beat()
        bench.restart()
        bench.advance(3)
        worker = bench.register("w1").resume(1, running=[running(request, (restart + 1) * 93_000.0)])
        assert worker.of(ResumeAck)[0].epoch == restart + 2
    for _ in range(4):
        bench.advance(30)
        worker.beat()
    worker.succeed(request)
    row = bench.tasks(run_id)[0]
    assert (row.status, row.attempt, row.retry_count) == ("SUCCESS", 1, 0)


def test_the_deadline_survives() -> None:
    bench = EngineBench()
    bench.job(timeout=20, retries=0)
    worker = bench.worker()
    run_id = bench.run()
    request = worker.requests[0]
    worker.start(request)
    bench.advance(15)
    bench.restart()
    worker = bench.register("w1").resume(1, running=[running(request, 15_000)])
    bench.advance(9.9)
    assert bench.tasks(run_id)[0].status == "RUNNING"
    bench.advance(0.2)
    assert bench.tasks(run_id)[0].status == "TIMEOUT"


def test_results_of_any_incarnation_are_taken() -> None:
    bench = EngineBench()
    bench.job(retries=0)
    first = bench.worker("w1", 4, "i1")
    one = bench.run()
    first.start(first.requests[0])
    # The next process registers while what the last one left still waits; then the core dies too.
    two = bench.run()
    assert len(first.requests) == 2
    bench.restart()
    worker = bench.register("w1", "i9").resume(
        4, results=[response(request, success=True) for request in first.requests]
    )
    assert [bench.status(run_id) for run_id in (one, two)] == ["SUCCESS", "SUCCESS"]
    assert len(worker.acks) == 2


def test_retries_are_counted_on_and_their_wait_goes_on() -> None:
    bench = EngineBench()
    bench.job(retries=1, retry_backoff=100)
    worker = bench.worker()
    run_id = bench.run()
    worker.fail(worker.requests[0])
    not_before = bench.tasks(run_id)[0].not_before
    assert not_before is not None
    bench.advance(30)
    bench.restart()
    worker = bench.worker("w1", 1, "i2")
    while not worker.requests:
        bench.advance(1)
        worker.beat()
    assert 0 <= bench.wall_ms - not_before <= 1000
    worker.fail(worker.requests[0])
    assert bench.tasks(run_id)[0].status == "FAILED" and bench.tasks(run_id)[0].attempt == 2


@pytest.mark.parametrize(("failures", "longest_s"), [(1, 2), (3, 8), (9, 330)])
def test_a_stored_wait_is_cut_to_the_longest_that_it_can_be_of(failures: int, longest_s: int) -> None:
    """Simulated seed 4883: a core whose clock was an hour behind let a wait of 4 s last 330 s."""
    bench = EngineBench()
    bench.job(retries=failures, retry_backoff=1.5)
    worker = bench.worker()
    run_id = bench.run()
    for number in range(failures):
        worker.fail(worker.requests[number])
        while number + 1 < failures and len(worker.requests) == number + 1:
            bench.advance(30)
            worker.beat()
    bench.wall_ms -= 86_400_000
    bench.restart()
    worker = bench.worker()
    for _ in range(longest_s):
        bench.advance(1)
        worker.beat()
    assert worker.task_ids == [f"{run_id}:0"]


def test_numbers_go_on_when_the_clock_went_back() -> None:
    bench = EngineBench()
    bench.job()
    old = bench.worker(slots=9)
    first = bench.run()
    bench.wall_ms -= 86_400_000
    bench.restart()
    new = bench.worker(slots=9)
    second = bench.run()
    assert sorted(new.task_ids) == [f"{first}:0", f"{second}:0"] and first < second
    assert bench.tasks(second)[0].job_id > bench.tasks(first)[0].job_id > bench.wall_ms << 16
    fences = [request.fence for request in (*old.requests, *new.requests)]
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("cut", range(12))
def test_a_crash_after_any_commit(cut: int) -> None:
    """I3, I8: whatever was stored last, the task ends, and the count of executions holds."""
    bench = EngineBench()
    bench.job(sharding_total=2, retries=1, retry_backoff=1)
    worker, step = bench.worker(slots=1), 0
    run_id = bench.run()

    def crash_at(number: int) -> None:
        nonlocal worker, step
        step += 1
        if step == number:
            bench.restart()
            worker = bench.worker("w1", 1, "i2")

    for _ in range(8):
        for request in list(worker.requests[-1:]):
            crash_at(cut)
            worker.start(request)
            crash_at(cut)
            worker.fail(request) if step % 3 else worker.succeed(request)
        crash_at(cut)
        bench.advance(3)
        worker.beat()
    for _ in range(20):
        bench.advance(3)
        worker.beat()
        for request in worker.requests:
            worker.succeed(request)
    assert not [row for row in bench.tasks(run_id) if row.status in OPEN]
    for row in bench.tasks(run_id):
        assert row.attempt <= 2 + bench.outcomes(row.task_id).count("UNDELIVERED") and row.retry_count <= 1
    assert not bench.engine.state.tasks
