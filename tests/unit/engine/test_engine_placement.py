"""Who gets which task, and when."""

from typing import Any

import pytest

from dsched.engine.definition import RunRequest
from dsched.engine.ring import Ring
from dsched.engine.routing import Prefetch, preload_keys
from dsched.engine.session import MAX_UNSENT_BYTES
from dsched.engine.settings import EngineSettings
from dsched.testing.engine_bench import BenchWorker, EngineBench, response


def owner_of(workers: list[BenchWorker], job: str, item: int) -> BenchWorker:
    ring = Ring()
    for worker in workers:
        ring.add(worker.worker_id)
    owner = ring.owner(f"{job}/{item}")
    return next(worker for worker in workers if worker.worker_id == owner)


def items(worker: BenchWorker) -> list[int]:
    return [request.sharding_item for request in worker.requests]


def test_each_shard_goes_to_its_owner_and_returns_to_it() -> None:
    bench = EngineBench()
    bench.job("census", sharding_total=10)
    workers = [bench.worker(f"worker-{letter}", slots=16) for letter in "abc"]
    for _ in range(2):
        bench.run("census")
    # The golden values: c, a, c, b, a, b, b, b, a, a.
    assert items(workers[0]) == [1, 4, 8, 9] * 2
    assert items(workers[1]) == [3, 5, 6, 7] * 2
    assert items(workers[2]) == [0, 2] * 2
    for worker in workers:
        assert {request.sharding_total for request in worker.requests} == {10}


def two_workers(**job: Any) -> tuple[EngineBench, BenchWorker, BenchWorker]:
    """Return a bench whose job `job` has shard 0 with the first worker, which has one slot."""
    bench = EngineBench()
    bench.job(**job)
    workers = [bench.worker("w1", slots=1), bench.worker("w2", slots=1)]
    owner = owner_of(workers, "job", 0)
    return bench, owner, workers[1 - workers.index(owner)]


def test_a_full_owner_is_waited_for_at_most_a_second() -> None:
    bench, owner, other = two_workers()
    runs = [bench.run() for _ in range(3)]
    # One runs, one is held (as many as there are slots), the third goes on at once.
    assert owner.task_ids == [f"{runs[0]}:0"] and other.task_ids == [f"{runs[2]}:0"]
    other.succeed(other.requests[0])
    assert other.task_ids == [f"{runs[2]}:0", f"{runs[1]}:0"]  # The idle one takes the oldest that waits.
    other.succeed(other.requests[1])
    held = bench.run()
    bench.advance(0.99)
    assert len(owner.requests) == 1 and len(other.requests) == 2
    bench.advance(0.02)
    assert other.task_ids[2:] == [f"{held}:0"]


def test_the_owner_takes_what_was_held_for_it_first() -> None:
    bench, owner, other = two_workers()
    runs = [bench.run() for _ in range(5)]  # runs, held, other, lane, lane
    bench.advance(0.5)
    owner.succeed(owner.requests[0])
    assert owner.task_ids == [f"{runs[0]}:0", f"{runs[1]}:0"]
    owner.succeed(owner.requests[1])
    other.succeed(other.requests[0])
    assert owner.task_ids[2:] == [f"{runs[3]}:0"] and other.task_ids[1:] == [f"{runs[4]}:0"]


def test_what_was_held_keeps_its_order_when_the_second_is_over() -> None:
    bench = EngineBench()
    bench.job()
    worker = bench.worker(slots=3)
    runs = [bench.run() for _ in range(9)]  # three run, three are held, three wait in the lane
    bench.advance(1.5)
    while len(worker.requests) < 9:
        worker.succeed(worker.requests[len(worker.requests) - 3])
    assert worker.task_ids == [f"{run_id}:0" for run_id in runs]


def test_what_was_held_for_a_lost_worker_goes_before_what_waits() -> None:
    bench, owner, other = two_workers()
    runs = [bench.run() for _ in range(5)]
    owner.close()
    other.succeed(other.requests[0])
    other.succeed(other.requests[1])
    assert other.task_ids[:3] == [f"{runs[2]}:0", f"{runs[1]}:0", f"{runs[3]}:0"]


def test_first_in_first_out_within_a_priority_and_the_higher_first() -> None:
    bench = EngineBench()
    bench.job("low", priority=-1)
    bench.job("mid")
    bench.job("high", priority=9)
    expected: list[str] = []
    for name in ("low", "mid", "high"):
        expected = [f"{bench.run(name)}:0" for _ in range(5)] + expected
    worker = bench.worker(slots=1)
    for number in range(15):
        worker.succeed(worker.requests[number])
    assert worker.task_ids == expected


def test_equal_priorities_of_different_handlers_are_fair() -> None:
    bench = EngineBench()
    bench.job("a", handler="x")
    bench.job("b", handler="y")
    expected = [f"{bench.run(name)}:0" for name in "abab"]
    worker = bench.worker(slots=1, handlers=["x", "y"])
    for number in range(4):
        worker.succeed(worker.requests[number])
    assert worker.task_ids == expected


def test_a_retried_task_is_older_than_what_waits() -> None:
    bench = EngineBench()
    bench.job("other")
    bench.job(retry_backoff=0)
    worker = bench.worker(slots=1)
    first, second = bench.run(), bench.run("other")
    third = bench.run("other")
    worker.fail(worker.requests[0])
    assert worker.task_ids == [f"{first}:0", f"{second}:0"]
    bench.advance(0.01)
    worker.succeed(worker.requests[1])
    assert worker.task_ids[2:] == [f"{first}:0"]
    worker.succeed(worker.requests[2])
    assert worker.task_ids[3:] == [f"{third}:0"]


def test_only_who_offers_the_handler_gets_the_task() -> None:
    bench = EngineBench()
    bench.job("a", handler="x")
    worker = bench.worker("w1", slots=4, handlers=["y"])
    run_id = bench.run("a")
    assert not worker.requests and not bench.engine.attempts.dispatcher.can_run("default", "x")
    able = bench.worker("w2", handlers=["x"])
    assert able.task_ids == [f"{run_id}:0"]
    assert bench.engine.attempts.dispatcher.can_run("default", "x")


def test_groups_are_apart() -> None:
    bench = EngineBench()
    bench.job("a", group="gpu")
    near, run_id = bench.worker("w1", slots=4), bench.run("a")
    far = bench.worker("w2", group="gpu")
    assert not near.requests and far.task_ids == [f"{run_id}:0"]


def test_a_draining_worker_gets_nothing_and_finishes() -> None:
    bench, owner, other = two_workers()
    runs = [bench.run() for _ in range(4)]
    owner.drain()
    assert bench.store.worker(owner.worker_id).state == "draining"  # type: ignore[union-attr]
    owner.succeed(owner.requests[0])
    assert len(owner.requests) == 1 and bench.status(runs[0]) == "SUCCESS"
    for number in range(3):
        other.succeed(other.requests[number])
    assert all(bench.status(run_id) == "SUCCESS" for run_id in runs)
    assert [session.worker_id for session in bench.engine.sessions()] == ["w1", "w2"]


def test_a_worker_that_does_not_read_gets_nothing_more() -> None:
    """Case B094: no more dispatch to it, others go on."""
    bench, owner, other = two_workers()
    owner.writable = False
    bench.tell(bench.engine.flushed, owner.session_id, False)
    held, second = bench.run(), bench.run()
    assert other.task_ids == [f"{second}:0"]
    other.succeed(other.requests[0])
    assert other.task_ids[1:] == [f"{held}:0"] and not owner.requests
    third = bench.run()
    owner.writable = True
    bench.tell(bench.engine.flushed, owner.session_id, True)
    assert owner.task_ids == [f"{third}:0"]


def test_an_idle_worker_that_does_not_read_steals_nothing() -> None:
    bench, owner, other = two_workers()
    other.writable = False
    bench.tell(bench.engine.flushed, other.session_id, False)
    bench.run()
    bench.run()
    bench.tell(bench.engine.attempts.dispatcher.fill, other.session)
    assert not other.requests


def test_what_is_on_the_way_to_one_worker_is_bounded() -> None:
    """Case B094."""
    bench = EngineBench()
    bench.job(params="x" * 200_000)
    worker = bench.worker(slots=100)
    bench.paused = True
    bench.request(*[RunRequest("job", None, None, None)] * 20)
    assert worker.session.load == worker.session.sent_bytes // 200_000 == -(-MAX_UNSENT_BYTES // 200_000)
    bench.paused = False
    bench.pump()  # Each flush takes more.
    assert len(worker.requests) == 20


def test_credit_is_what_is_free() -> None:
    bench = EngineBench()
    bench.job(sharding_total=50)
    workers = [bench.worker("w1", slots=3), bench.worker("w2", slots=5), bench.register("p1", None)]
    bench.run()
    assert [len(worker.requests) for worker in workers] == [3, 5, 16]


def test_only_short_handlers_are_sent_ahead() -> None:
    bench = EngineBench()
    bench.job()
    bench.job("slow", handler="slow")
    worker = bench.worker(slots=2, handlers=["work", "slow"])
    for _ in range(800):
        bench.run("job")
    for _ in range(50):
        bench.run("slow")
    assert worker.session.load == 2
    worker.succeed(worker.requests[0])
    assert worker.session.load == 2  # It did not say how long it took.
    worker.succeed(worker.requests[1], duration_ms=0.4)
    assert worker.session.load == 2 + int(2 * 40 / 0.4)
    worker.succeed(worker.requests[2], duration_ms=200.0)
    assert worker.session.load == 201  # Too long now: what is there is worked off first.


def test_prefetch_learns() -> None:
    prefetch = Prefetch(EngineSettings())
    assert prefetch.beyond_slots("h", 8) == 0
    prefetch.learn("h", 0.0)
    assert prefetch.beyond_slots("h", 8) == 512 and prefetch.beyond_slots("g", 8) == 0
    prefetch.learn("h", 99.0)
    assert prefetch.beyond_slots("h", 8) == int(8 * 40 / 9.9)
    prefetch.learn("h", 99.0)
    assert prefetch.beyond_slots("h", 8) == 0
    for number in range(10_001):
        prefetch.learn(f"h{number}", 0.1)
    assert len(prefetch._average_ms) <= 10_000


@pytest.mark.parametrize(
    ("templates", "keys"),
    [((), []), (("a", "b{item}"), ["a", "b7"]), (("{item}:{n}",), [f"7:{n}" for n in range(10)]), (("{m}",), ["{m}"])],
)
def test_preload_keys(templates: tuple[str, ...], keys: list[str]) -> None:
    assert preload_keys(templates, 7) == keys


def test_a_cancelled_task_at_the_end_of_a_lane_hides_nobody() -> None:
    """A free worker that may not have the one task that waits still gets the next one."""
    bench = EngineBench()
    bench.job()
    worker = bench.worker(slots=2)
    first = bench.run()
    second = bench.run()
    worker.reject(worker.requests[0])  # waits, avoiding the only worker, which is full again at once
    bench.run()
    assert worker.session.load == 2
    held = [bench.run() for _ in range(2)]
    gone = bench.run()
    for run_id in (*held, gone):
        bench.cancel(run_id)
    worker.succeed(worker.requests[1])
    assert bench.status(second) == "SUCCESS"
    late = bench.run()
    assert worker.task_ids[-1] == f"{late}:0"
    assert bench.status(first) == "RUNNING" and bench.tasks(first)[0].status == "PENDING"


def test_a_thousand_in_one_request_are_each_dispatched_once() -> None:
    bench = EngineBench()
    bench.job()
    workers = [bench.worker(f"w{number}", slots=7) for number in range(5)]
    rows = bench.request(*[RunRequest("job", None, None, None)] * 1000)
    assert [row.run_id for row in rows] == sorted({row.run_id for row in rows})
    done = 0
    while done < 1000:
        for worker in workers:
            ready = worker.requests[worker.session.load * -1 :]
            worker.send(*(response(request, success=True) for request in ready))
            done += len(ready)
    assert sorted(task_id for worker in workers for task_id in worker.task_ids) == [f"{row.run_id}:0" for row in rows]
    assert not bench.engine.state.tasks and bench.engine.open_counts() == {}
