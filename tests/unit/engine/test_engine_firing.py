"""Triggers fire, requests make runs, jobs come and go."""

import hashlib
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsched.engine.definition import RunRequest, parse_run_request
from dsched.engine.settings import EngineSettings
from dsched.errors import Conflict, DschedError, NotFound, TooLarge
from dsched.model.limits import MAX_PARAMS_BYTES
from dsched.testing.engine_bench import EngineBench

EVERY_10 = {"type": "interval", "seconds": 10}


def fired(bench: EngineBench, job: str = "job") -> list[int]:
    """Return the dues of all runs that a trigger made."""
    page = bench.store.runs(1000, None, {"job": job})
    return sorted(row.due for row in page.items if row.due is not None)


def delete(bench: EngineBench, name: str) -> None:
    answer = bench.ask(lambda token: bench.engine.delete_job(name, token, bench.now))
    assert answer is None or answer.error is None


def test_each_due_fires_once_in_the_batch_that_moves_the_next() -> None:
    bench = EngineBench()
    start_ms = bench.wall_ms
    bench.job(trigger=EVERY_10, sharding_total=3)
    worker = bench.worker(slots=3)
    for _ in range(100):
        bench.advance(1)
        worker.beat()
        for request in worker.requests[len(worker.requests) - worker.session.load :]:
            worker.succeed(request)
    dues = [start_ms + 10_000 * number for number in range(1, 11)]
    assert fired(bench) == dues
    assert [request.run_id for request in worker.requests[::3]] == [f"job@{due}" for due in dues]
    assert [request.due for request in worker.requests[::3]] == dues
    firings = [batch for batch in bench.batches if batch.dues]
    assert len(firings) == 10
    for batch, due in zip(firings, dues, strict=True):
        assert [row.run_id for row in batch.runs_new] == [f"job@{due}"] and len(batch.tasks_new) == 3
        assert [(row.name, row.version, row.next_due) for row in batch.dues] == [("job", 1, due + 10_000)]
    assert bench.store.job("job").next_due == dues[-1] + 10_000  # type: ignore[union-attr]


@pytest.mark.parametrize("down_s", [0.5, 9.0, 10.0, 35.0, 86_400.0])
def test_downtime_gives_one_run_that_counts_what_was_missed(down_s: float) -> None:
    """Case B040: one run for all that was missed, then on time."""
    bench = EngineBench()
    start_ms = bench.wall_ms
    bench.job(trigger=EVERY_10)
    bench.advance(15)
    bench.mono_s += down_s
    bench.wall_ms += int(down_s * 1000)
    bench.restart()
    bench.engine.advance(bench.now)
    bench.pump()
    worker = bench.worker(slots=9)
    dues_since = (bench.wall_ms - start_ms) // 10_000 - 1
    assert len(fired(bench)) == 1  # with nobody there, further dues count on the one that waits
    reason = bench.store.run(f"job@{start_ms + 10_000}").reason or ""  # type: ignore[union-attr]
    assert reason.startswith(f"{dues_since} further due instants") if dues_since else not reason
    bench.advance(10 - (bench.wall_ms - start_ms) % 10_000 / 1000)
    assert fired(bench)[1:] == [bench.wall_ms] and len(worker.requests) == 2


def test_a_minute_job_catches_up_once_and_goes_on_time() -> None:
    """Case B040: stopped for 112 due instants; one run stands for all of them, and the next is on time."""
    bench = EngineBench()
    bench.job(trigger={"type": "interval", "seconds": 60})
    first_ms = bench.wall_ms + 60_000
    bench.advance(30)
    bench.mono_s += 112 * 60
    bench.wall_ms += 112 * 60_000
    bench.restart()
    worker = bench.worker()
    bench.advance(5)
    last_ms = first_ms + 111 * 60_000
    assert [request.due for request in worker.requests] == [last_ms]
    assert (bench.store.runs(9, None, {}).items[0].reason or "").startswith("stands for 111 missed due instants")
    worker.succeed(worker.requests[0])
    bench.advance(25)
    assert bench.wall_ms == last_ms + 60_000
    assert [request.due for request in worker.requests] == [last_ms, last_ms + 60_000]


def test_a_thousand_jobs_are_ready_quickly_after_a_month() -> None:
    """Case B040: nobody walks 30 days minute by minute."""
    bench = EngineBench()
    for number in range(1000):
        bench.job(f"j{number}", trigger={"type": "interval", "seconds": 60})
    bench.mono_s += 30 * 86_400
    bench.wall_ms += 30 * 86_400_000
    begin_s = time.process_time()
    bench.restart()
    bench.tell(bench.engine.advance)
    assert time.process_time() - begin_s < 10
    rows = bench.store.runs(2000, None, {}).items
    assert len(rows) == len({row.job for row in rows}) == 1000
    assert {(row.reason or "").split(" missed")[0] for row in rows} == {f"stands for {30 * 1440 - 1}"}


def test_runs_longer_than_their_period_overlap() -> None:
    """Case B047: every 60 s, 63 s each; none is dropped, and none is run again."""
    bench = EngineBench()
    start_s = bench.mono_s
    bench.job(trigger={"type": "interval", "seconds": 60}, timeout=100)
    worker = bench.worker(slots=4)
    starts_s: list[float] = []
    for second in range(1, 661):
        bench.advance(1)
        worker.beat()
        for request in worker.requests[len(starts_s) :]:
            starts_s.append(bench.mono_s - start_s)
            worker.start(request)
        while worker.session.load and starts_s[-worker.session.load] + 63 <= second:
            worker.succeed(worker.requests[len(starts_s) - worker.session.load])
    assert starts_s == [60.0 * number for number in range(1, 12)]
    rows = sorted(bench.store.runs(99, None, {}).items, key=lambda row: row.created_at)
    assert [row.status for row in rows] == ["SUCCESS"] * 9 + ["RUNNING"] * 2


def test_a_busy_core_that_was_paused_catches_up_once() -> None:
    bench = EngineBench()
    start_ms = bench.wall_ms
    bench.job(trigger=EVERY_10)
    bench.worker(slots=9)
    bench.mono_s += 42
    bench.wall_ms += 42_000
    bench.engine.refresh_leases(bench.now)
    bench.tell(bench.engine.advance)
    assert fired(bench) == [start_ms + 40_000]
    row = bench.store.run(f"job@{start_ms + 40_000}")
    assert row is not None and (row.reason or "").startswith("stands for 3 missed due instants since")
    bench.advance(8)
    assert fired(bench) == [start_ms + 40_000, start_ms + 50_000]


def test_with_no_worker_one_run_waits_and_counts() -> None:
    """B103 in small: on arrival as many runs as jobs, not as many as dues."""
    bench = EngineBench()
    for number in range(3):
        bench.job(f"job{number}", trigger={"type": "interval", "seconds": 1}, sharding_total=2)
    bench.worker("w9", handlers=["another"])
    bench.advance(30)
    bench.restart()
    bench.advance(30)
    assert [len(fired(bench, f"job{number}")) for number in range(3)] == [1, 1, 1]
    run_id = f"job0@{fired(bench, 'job0')[0]}"
    reason = bench.store.run(run_id).reason or ""  # type: ignore[union-attr]
    assert reason == "59 further due instants came while no worker could run it"
    assert len(bench.engine.state.tasks) == 6
    worker = bench.worker("w1", slots=100)
    assert len(worker.requests) == 6
    bench.advance(1)
    assert len(worker.requests) == 12


def test_missed_dues_and_further_ones_are_both_told() -> None:
    bench = EngineBench()
    bench.job(trigger=EVERY_10)
    bench.mono_s += 42
    bench.wall_ms += 42_000
    bench.tell(bench.engine.advance)
    bench.advance(20)
    row = bench.store.runs(1, None, {"job": "job"}).items[0]
    first, _, second = (row.reason or "").partition("; ")
    assert first.startswith("stands for 3 missed due instants since 2027-")
    assert second == "2 further due instants came while no worker could run it"


@given(st.lists(st.tuples(st.integers(-7_200_000, 50_000), st.integers(1, 15)), max_size=4))
@settings(max_examples=40, deadline=None)
def test_the_wall_clock_may_step(steps: list[tuple[int, int]]) -> None:
    """B038: no gap of more than two periods, no due twice, whatever the wall clock does."""
    bench = EngineBench()
    bench.job(trigger=EVERY_10)
    bench.job("none")
    worker = bench.worker(slots=1000)
    starts_s: list[float] = []
    ids: list[int] = []
    last_fence = last_id = 0
    for step_ms, waits in [(0, 5), *steps]:
        bench.wall_ms += step_ms
        bench.run("none")
        for _ in range(waits):
            bench.advance(5)
            worker.beat()
            for request in worker.requests[len(worker.requests) - worker.session.load :]:
                assert request.fence > last_fence and request.job_id > last_id
                last_fence, last_id = request.fence, request.job_id
                if request.job_name == "job":
                    starts_s.append(bench.mono_s)
                    ids.append(request.due)
                worker.succeed(request)
    assert len(set(ids)) == len(ids)
    assert not bench.refusals or sum(step < 0 for step, _ in steps) > 1
    gaps = [later - earlier for earlier, later in zip(starts_s, starts_s[1:], strict=False)]
    assert all(gap <= 25 + 20 * bench.refusals for gap in gaps), gaps


def test_a_disabled_job_is_never_due_but_runs_on_request() -> None:
    bench = EngineBench()
    bench.job(trigger=EVERY_10, enabled=False)
    assert bench.store.job("job").next_due is None  # type: ignore[union-attr]
    bench.advance(100)
    bench.restart()
    bench.advance(100)
    assert not fired(bench)
    run_id = bench.run()
    assert bench.worker().task_ids == [f"{run_id}:0"]


def test_a_window_ends() -> None:
    bench = EngineBench()
    from dsched.model.instant import format_instant

    bench.job(trigger={**EVERY_10, "end": format_instant(bench.wall_ms + 25_000)})
    bench.worker(slots=9)
    bench.advance(50)
    assert len(fired(bench)) == 2
    assert bench.store.job("job").next_due is None  # type: ignore[union-attr]


def test_a_deleted_job_takes_what_waits_with_it() -> None:
    bench = EngineBench()
    bench.job(trigger=EVERY_10, sharding_total=2, retry_backoff=0)
    bench.job("other")
    worker = bench.worker(slots=1)
    started = bench.run()
    waiting = bench.run()
    other = bench.run("other")
    delete(bench, "job")
    assert bench.store.job("job") is None and "job" not in bench.engine.state.jobs
    assert bench.status(waiting) == "CANCELLED" and bench.status(other) == "PENDING"
    assert bench.store.run(waiting).reason == "the job was deleted"  # type: ignore[union-attr]
    worker.fail(worker.requests[0])
    bench.advance(0.1)
    while worker.session.load:
        worker.succeed(worker.requests[-1])
        bench.advance(0.01)
    assert bench.status(started) == "SUCCESS" and bench.status(other) == "SUCCESS"
    bench.advance(50)
    assert not fired(bench)
    with pytest.raises(NotFound):
        delete(bench, "job")
    with pytest.raises(NotFound):
        bench.run()
    bench.job()


def test_jobs_come_and_go_within_one_batch() -> None:
    bench = EngineBench()
    bench.paused = True
    bench.job("a")
    delete(bench, "a")
    bench.job("b", trigger=EVERY_10)
    delete(bench, "b")
    bench.job("b", description="second")
    bench.paused = False
    bench.pump()
    assert bench.store.job("a") is None
    assert "second" in bench.store.job("b").definition  # type: ignore[union-attr]
    bench.paused = True
    delete(bench, "b")
    bench.job("b", description="third")
    bench.paused = False
    bench.pump()
    assert "third" in bench.store.job("b").definition  # type: ignore[union-attr]


def test_a_name_is_taken_once() -> None:
    bench = EngineBench()
    bench.job()
    with pytest.raises(Conflict):
        bench.job()


# -- requests


def test_a_request_without_key_gets_an_ascending_id() -> None:
    bench = EngineBench()
    bench.job()
    ids = [bench.run() for _ in range(5)]
    bench.wall_ms -= 3_600_000
    ids += [bench.run() for _ in range(5)]
    assert ids == sorted(set(ids)) and all(run_id.startswith("job~") for run_id in ids)


def test_the_same_key_and_body_give_the_same_run() -> None:
    bench = EngineBench()
    bench.job(sharding_total=2)
    same = RunRequest("job", "1", None, "k")
    first, twin, other = bench.request(same, same, RunRequest("job", "1", None, "k2"))
    assert first.run_id == twin.run_id == "job~k" and other.run_id == "job~k2"
    assert bench.request(same)[0].run_id == "job~k"  # in memory
    worker = bench.worker(slots=4)
    assert sorted(worker.task_ids) == ["job~k2:0", "job~k2:1", "job~k:0", "job~k:1"]
    for request in list(worker.requests):
        worker.succeed(request)
    row = bench.request(same)[0]  # in the store only
    assert (row.run_id, row.status) == ("job~k", "SUCCESS")
    bench.restart()
    assert bench.request(same)[0] == row
    assert not bench.engine.state.tasks


@pytest.mark.parametrize("where", ["memory", "store", "request"])
@pytest.mark.parametrize("other", [{"params": "2"}, {"sharding_total": 2}, {"params": None}])
def test_the_same_key_with_another_body_conflicts(where: str, other: dict[str, Any]) -> None:
    bench = EngineBench()
    bench.job()
    same = RunRequest("job", "1", None, "k")
    changed = RunRequest("job", other.get("params", "1"), other.get("sharding_total"), "k")
    if where != "request":
        bench.request(same)
    if where == "store":
        worker = bench.worker()
        worker.succeed(worker.requests[0])
    before = len(bench.batches)
    with pytest.raises(Conflict) as caught:
        bench.request(RunRequest("job", None, None, "fine"), *([same] if where == "request" else []), changed)
    assert caught.value.details == {"job": "job", "key": "k"}
    assert len(bench.batches) == before and bench.store.run("job~fine") is None
    assert len(bench.engine.state.runs) == (1 if where == "memory" else 0)


def test_the_same_key_of_two_jobs_is_two_keys() -> None:
    bench = EngineBench()
    bench.job("a")
    bench.job("b")
    rows = bench.request(RunRequest("a", None, None, "k"), RunRequest("b", "1", None, "k"))
    assert [row.run_id for row in rows] == ["a~k", "b~k"]


@pytest.mark.parametrize(
    ("bad", "kind"),
    [(RunRequest("nobody", None, None, None), NotFound), (RunRequest("job", None, 991, None), TooLarge)],
)
def test_all_or_none(bad: RunRequest, kind: type[DschedError]) -> None:
    bench = EngineBench(settings=EngineSettings(tasks_per_request=1000))
    bench.job(sharding_total=10)
    bench.request(RunRequest("job", None, 990, "fits"), RunRequest("job", None, None, "too"))
    with pytest.raises(kind):
        bench.request(RunRequest("job", None, None, "half"), bad)
    assert not bench.engine.has_changes() and bench.store.run("job~half") is None


def test_a_run_is_answered_when_it_is_stored() -> None:
    bench = EngineBench()
    bench.job()
    bench.paused = True
    assert bench.ask(lambda token: bench.engine.request_runs(
        [RunRequest("job", None, None, "k")], {}, token, bench.now)) is None  # fmt: skip
    assert bench.store.run("job~k") is None and bench.engine.open_counts() == {}
    bench.paused = False
    bench.pump()
    assert len(bench.answers) == 2 and bench.store.run("job~k") is not None
    assert bench.engine.open_counts() == {"PENDING": 1}


def test_shards_are_exactly_the_items() -> None:
    bench = EngineBench()
    bench.job(sharding_total=100, params=[1])
    run_id = bench.run()
    rows = bench.tasks(run_id)
    assert [row.sharding_item for row in rows] == list(range(100))
    assert [row.task_id for row in rows] == [f"{run_id}:{item}" for item in range(100)]
    assert {row.sharding_total for row in rows} == {100} and {row.params for row in rows} == {"[1]"}
    assert [row.job_id for row in rows] == sorted({row.job_id for row in rows})


@pytest.mark.parametrize(
    "size", [255, 256, 512, 513, 65_535, 65_536, 262_144, 262_145, 1_000_000, 1_048_576, 5_000_000]
)
def test_params_arrive_whole_at_every_shard_or_are_refused(size: int) -> None:
    """Case B067: nothing is cut, and nothing is taken that cannot be delivered."""
    text = "x" * (size - 2)
    bench = EngineBench()
    bench.job(sharding_total=4)
    worker = bench.worker(slots=4)
    if size > MAX_PARAMS_BYTES:
        with pytest.raises(TooLarge):
            parse_run_request("job", {"params": text}, bench.settings)
        with pytest.raises(TooLarge):
            bench.job("own", params=text)
        assert bench.store.job("own") is None
        return
    bench.request(parse_run_request("job", {"params": text}, bench.settings))
    digests = {hashlib.sha256(request.params.encode()).hexdigest() for request in worker.requests}
    assert digests == {hashlib.sha256(f'"{text}"'.encode()).hexdigest()}
    assert sorted(request.sharding_item for request in worker.requests) == [0, 1, 2, 3]


def test_large_params_are_kept_once() -> None:
    bench = EngineBench()
    bench.job(sharding_total=3, params="x" * 5000)
    worker = bench.worker(slots=3)
    run_id = bench.run()
    assert {row.params for row in bench.tasks(run_id)} == {""}
    assert {request.params for request in worker.requests} == {'"' + "x" * 5000 + '"'}
    bench.restart()
    again = bench.worker("w2", slots=3)
    bench.advance(6)
    assert {request.params for request in again.requests} == {'"' + "x" * 5000 + '"'}
