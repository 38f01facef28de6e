"""Over a bound new runs wait in the store, in order, and come in as there is room."""

from typing import Any

import pytest

from dsched.engine.changes import Batch
from dsched.engine.settings import EngineSettings
from dsched.errors import NotFound
from dsched.model.rows import ParkedRun
from dsched.testing.engine_bench import BenchWorker, EngineBench

SMALL = EngineSettings(waiting_tasks=4, lane_tasks=2, page_below=2, page_tasks=2)


def bench_with(runs: int, **job: Any) -> tuple[EngineBench, list[str]]:
    """Return a bench of small bounds on which so many runs of one shard wait, and their ids."""
    bench = EngineBench(settings=SMALL)
    bench.job(**job)
    return bench, [bench.run(key=f"k{number}") for number in range(runs)]


def parked(bench: EngineBench) -> list[str]:
    """Return the runs in the backlog, by lane and order."""
    return [
        one.run.run_id
        for lane in bench.store.lanes()
        for one in bench.store.parked((lane.group_name, lane.handler, lane.priority), 0, lane.last, 10_000)
    ]


def finish_all(bench: EngineBench, worker: BenchWorker, done: int = 0) -> list[str]:
    """Let the worker succeed with all that comes, one by one, and return the order of all that came."""
    while len(worker.requests) > done:
        worker.succeed(worker.requests[done])
        done += 1
    return [request.run_id for request in worker.requests]


def test_what_is_over_the_bound_waits_in_the_store_only() -> None:
    bench, runs = bench_with(10)
    assert parked(bench) == runs[4:]
    assert sorted(bench.engine.state.runs) == sorted(runs[:4])
    assert bench.engine.open_counts() == {"PENDING": 10}
    assert [bench.status(run_id) for run_id in runs] == ["PENDING"] * 10


def test_what_is_not_parked_costs_no_row() -> None:
    bench = EngineBench()
    bench.job()
    finish = bench.worker()
    for _ in range(5):
        bench.run()
    finish_all(bench, finish)
    assert not any(batch.backlog_new or batch.backlog_gone for batch in bench.batches)


def test_all_run_once_and_in_order() -> None:
    bench, runs = bench_with(30)
    assert finish_all(bench, bench.worker()) == runs
    assert bench.open_statuses(runs) == []
    assert parked(bench) == [] and not bench.engine.state.runs and not bench.engine.backlog.lanes


def test_a_new_run_waits_behind_older_ones_even_where_there_is_room() -> None:
    bench, runs = bench_with(8)
    bench.no_pages = True
    worker = bench.worker()
    finish_all(bench, worker)
    assert not bench.engine.state.runs
    runs.append(bench.run())
    assert parked(bench) == runs[4:]
    bench.no_pages = False
    bench.pump()
    assert [run_id for run_id in runs if bench.status(run_id) == "PENDING"] == runs[5:]
    assert finish_all(bench, worker, done=4) == runs


def test_other_lanes_are_not_held_up() -> None:
    bench, _ = bench_with(20)
    bench.job("far", handler="other")
    run_id = bench.run("far")
    assert run_id in bench.engine.state.runs
    assert bench.worker(handlers=["other"]).requests[0].run_id == run_id


def test_a_run_with_many_shards_comes_in_whole() -> None:
    bench, _ = bench_with(6)
    run_id = bench.run(shards=50)
    assert parked(bench)[-1] == run_id
    worker = bench.worker()
    finish_all(bench, worker)
    assert bench.status(run_id) == "SUCCESS"
    assert [request.sharding_item for request in worker.requests[-50:]] == list(range(50))
    assert [request.job_id for request in worker.requests] == [bench.task(one).job_id for one in worker.task_ids]


def test_the_same_key_gives_the_parked_run_back() -> None:
    bench, runs = bench_with(6)
    bench.paused = True
    token = bench.run_later("late")
    again = bench.run_later("late")  # before it is committed
    bench.paused = False
    bench.pump()
    assert [row.run_id for row in bench.answers[token].value] == ["job~late"]
    assert bench.answers[again].value == bench.answers[token].value
    assert bench.run(key="late") == "job~late"  # and after
    assert parked(bench) == [*runs[4:], "job~late"]


def test_a_parked_run_is_cancelled_once_it_was_read() -> None:
    bench, runs = bench_with(6)
    with pytest.raises(NotFound):
        bench.cancel(runs[-1])
    bench.take_in(runs[-1])
    answer = bench.cancel(runs[-1])
    assert answer is not None and answer.error is None
    assert bench.status(runs[-1]) == "CANCELLED"
    assert parked(bench) == runs[4:-1]
    assert finish_all(bench, bench.worker()) == runs[:-1]


def test_a_run_that_is_parked_but_not_committed_can_be_cancelled() -> None:
    bench, runs = bench_with(6)
    bench.paused = True
    bench.run_later("now")
    bench.cancel("job~now")
    bench.run_later("later")
    batch, effects, _ = bench.engine.take_batch(bench.now)
    assert batch is not None
    bench.cancel("job~later")  # while its commit is under way
    bench.store.commit(batch)
    bench.engine.committed(batch)
    bench.act(effects)
    bench.paused = False
    bench.pump()
    assert (bench.status("job~now"), bench.status("job~later")) == ("CANCELLED", "CANCELLED")
    assert parked(bench) == runs[4:]


def test_a_run_that_left_the_backlog_while_it_was_read_is_passed_over() -> None:
    bench, runs = bench_with(5)
    old = bench.store.parked_run(runs[4])
    assert old is not None
    bench.no_pages = True
    worker = bench.worker()
    for request in worker.requests:
        worker.succeed(request)
    finish_all(bench, worker)
    page = bench.engine.next_page()
    assert page is not None
    bench.take_in(runs[4])
    bench.cancel(runs[4])
    bench.deliver(page, [old])
    assert runs[4] not in bench.engine.state.runs
    assert bench.status(runs[4]) == "CANCELLED" and bench.refusals == 0


def test_a_page_stops_before_what_is_not_committed_as_a_whole() -> None:
    """Parts of a refused batch are committed one by one, and in another order than their runs were created in."""
    bench, runs = bench_with(5)
    bench.no_pages = True
    page = bench.engine.next_page()
    assert page is None or page.last < 2**62
    bench.paused = True
    tokens = [bench.run_later(key) for key in ("one", "two", "three")]
    bench.refuse = lambda batch: any(row.run_id == "job~two" for row in batch.runs_new)
    bench.paused = bench.no_pages = False
    bench.pump()
    assert [bench.answers[token].error is None for token in tokens] == [True, False, True]
    expected = [*runs, "job~one", "job~three"]
    assert finish_all(bench, bench.worker()) == expected
    assert parked(bench) == [] and not bench.engine.state.runs


def test_a_refused_dispatch_of_a_parked_run_is_tried_again_and_leaves_no_row() -> None:
    bench, runs = bench_with(6)
    failed: list[str] = []

    def refuse(batch: Batch) -> bool:
        hit = any(row.run_id == runs[4] for row in batch.tasks_set) and len(failed) < 2
        failed.extend([runs[4]] * hit)
        return hit

    bench.refuse = refuse
    worker = bench.worker()
    for _ in range(20):
        finish_all_later(bench, worker)
    assert sorted(request.run_id for request in worker.requests) == sorted(runs)
    assert bench.open_statuses(runs) == [] and parked(bench) == []


def finish_all_later(bench: EngineBench, worker: BenchWorker) -> None:
    """Succeed with what came and was not yet answered, and let a second pass."""
    for request in worker.requests:
        if (request.task_id, request.attempt) not in worker.acks:
            worker.succeed(request)
    worker.beat()
    bench.advance(1)


def test_deleting_a_job_cancels_its_parked_runs_and_not_those_of_its_successor() -> None:
    bench, runs = bench_with(12)
    bench.ask(lambda token: bench.engine.delete_job("job", token, bench.now))
    bench.job()
    later = bench.run()
    bench.advance(1)
    assert {bench.status(run_id) for run_id in runs} == {"CANCELLED"}
    assert bench.status(later) == "PENDING"
    assert finish_all(bench, bench.worker()) == [later]
    assert parked(bench) == []


def test_a_restart_goes_on_with_a_deletion() -> None:
    bench, runs = bench_with(12)
    bench.no_pages = True
    bench.ask(lambda token: bench.engine.delete_job("job", token, bench.now))
    assert parked(bench) == runs[4:]
    bench.no_pages = False
    bench.restart()
    bench.advance(1)
    assert {bench.status(run_id) for run_id in runs} == {"CANCELLED"}
    assert parked(bench) == [] and bench.engine.open_counts() == {}


def test_a_restart_loses_nothing() -> None:
    bench, runs = bench_with(12)
    worker = bench.worker(slots=2)
    for request in worker.requests[:2]:
        worker.succeed(request)
    bench.restart()
    assert len(bench.engine.state.tasks) < len(runs)
    assert sum(bench.engine.open_counts().values()) == len(runs) - 2
    bench.advance(10)  # nobody comes back for what was under way
    finish_all(bench, bench.worker("w2", slots=2))
    bench.advance(20)
    assert bench.open_statuses(runs) == [] and parked(bench) == []


def test_dues_are_counted_on_one_parked_run_without_workers() -> None:
    bench, _ = bench_with(20)
    bench.job("tick", trigger={"type": "interval", "seconds": 5})
    bench.advance(60)
    waiting = [row for row in bench.store.runs(100, None, {"job": "tick"}).items]
    assert [row.status for row in waiting] == ["PENDING"]
    assert waiting[0].reason is not None and "further due instants" in waiting[0].reason
    bench.restart()
    bench.advance(60)
    assert len(bench.store.runs(100, None, {"job": "tick"}).items) == 1


def test_a_run_that_is_in_memory_is_not_placed_twice() -> None:
    bench, runs = bench_with(8)
    lane = next(iter(bench.engine.backlog.lanes.values()))
    lane.after = 0  # as where all of a lane is read once more
    bench.pump()
    assert finish_all(bench, bench.worker()) == runs


def test_large_params_count_as_well() -> None:
    bench = EngineBench(settings=EngineSettings(waiting_bytes=1000))
    bench.job()
    runs = [bench.run(params='"' + "x" * 400 + '"') for _ in range(6)]
    assert len(parked(bench)) >= 3
    assert finish_all(bench, bench.worker()) == runs
    assert bench.engine.state.params_size == 0


def test_a_parked_run_in_memory_is_placed_when_its_page_comes() -> None:
    bench, runs = bench_with(6)
    bench.take_in(runs[-1])
    found = bench.store.parked_run(runs[-1])
    assert isinstance(found, ParkedRun)
    run = bench.engine.state.runs[runs[-1]]
    assert run.parked and not any(task.queued for task in run.tasks)
    assert finish_all(bench, bench.worker()) == runs
