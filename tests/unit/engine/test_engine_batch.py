"""What one event changes is stored together; what the store refuses harms nobody else."""

from typing import Any

import pytest

from dsched.engine.changes import Ack, Answer, Batch, Close, DueRow, Effect, RunEnded, Send
from dsched.engine.definition import RunRequest
from dsched.engine.split import split
from dsched.errors import BatchRefused
from dsched.model.rows import AttemptRow, LogRow, WorkerRow
from dsched.testing.engine_bench import EngineBench, response

NAMES = (
    "jobs_new", "jobs_set", "jobs_gone", "dues", "runs_new", "runs_set", "tasks_new", "tasks_set", "attempts",
    "workers", "logs",
)  # fmt: skip


def take(bench: EngineBench) -> tuple[Batch, list[Any], dict[str, str]]:
    batch, effects, units = bench.engine.take_batch(bench.now)
    assert batch is not None
    return batch, effects, units


def store(bench: EngineBench, batch: Batch, effects: list[Any]) -> None:
    bench.store.commit(batch)
    bench.engine.committed(batch)
    bench.act(effects)


def test_transitions_inside_one_batch_are_one_row() -> None:
    bench = EngineBench()
    bench.job(retry_backoff=0)
    worker = bench.worker(slots=2)
    run_id = bench.run()
    request = worker.requests[0]
    bench.paused = True
    worker.start(request)
    worker.fail(request)
    bench.advance(0.1)  # dispatched once more
    second = RunRequest("job", None, None, None)
    bench.request(second, second)
    bench.cancel(run_id)
    bench.paused = False
    batch, effects, units = take(bench)
    assert [row.task_id for row in batch.tasks_set] == [f"{run_id}:0"]
    row = batch.tasks_set[0]
    assert (row.status, row.attempt, row.version) == ("CANCELLING", 2, 2)
    assert [(row.outcome, row.number) for row in batch.attempts] == [("ERROR", 1)]
    assert [row.status for row in batch.runs_new] == ["RUNNING", "PENDING"]
    assert [row.version for row in batch.tasks_new] == [row.version for row in batch.runs_new] == [1, 1]
    assert batch.number == bench.store.leader().batch + 1
    assert [type(effect) for effect in effects] == [Ack, Send, Send, Answer, Send, Answer]
    store(bench, batch, effects)
    assert not bench.engine.has_changes()


def test_updates_ascend_and_versions_grow_by_one() -> None:
    bench = EngineBench()
    bench.job(sharding_total=20)
    worker = bench.worker(slots=200)
    for _ in range(10):
        bench.run()
    requests = list(worker.requests)
    bench.rng.shuffle(requests)
    bench.paused = True
    for request in requests:
        worker.succeed(request)
    bench.paused = False
    batch, effects, _ = take(bench)
    assert [row.job_id for row in batch.tasks_set] == sorted(row.job_id for row in batch.tasks_set)
    assert [row.run_id for row in batch.runs_set] == sorted(row.run_id for row in batch.runs_set)
    assert len(batch.tasks_set) == 200 and len(batch.runs_set) == 10
    assert {row.version for row in batch.tasks_set} == {row.version for row in batch.runs_set} == {2}
    assert sum(isinstance(effect, RunEnded) for effect in effects) == 10
    store(bench, batch, effects)
    assert bench.engine.open_counts() == {}


def test_nothing_is_no_batch_unless_forced() -> None:
    bench = EngineBench()
    assert bench.engine.take_batch(bench.now) == (None, [], {})
    batch, effects, units = bench.engine.take_batch(bench.now, force=True)
    assert batch is not None and batch.is_empty() and not effects and not units
    bench.store.commit(batch)


def test_effects_without_rows_need_no_batch() -> None:
    bench = EngineBench()
    worker = bench.worker()
    bench.paused = True
    bench.advance(46)
    batch, effects, _ = bench.engine.take_batch(bench.now)
    assert batch is None and [type(effect) for effect in effects] == [Send]
    bench.act(effects)
    assert worker.received


def test_counts_follow_the_store_not_the_decisions() -> None:
    bench = EngineBench()
    bench.job(sharding_total=3)
    worker = bench.worker(slots=2)
    bench.run()
    assert bench.engine.open_counts() == {"DISPATCHED": 2, "PENDING": 1}
    bench.paused = True
    worker.start(worker.requests[0])
    worker.succeed(worker.requests[1])
    assert bench.engine.open_counts() == {"DISPATCHED": 2, "PENDING": 1}
    bench.paused = False
    bench.pump()
    assert bench.engine.open_counts() == {"DISPATCHED": 1, "RUNNING": 1} == dict(bench.store.open_counts())
    worker.succeed(worker.requests[0])
    bench.restart()
    assert bench.engine.open_counts() == {"DISPATCHED": 1}


# -- split


def everything(bench: EngineBench) -> tuple[Batch, list[Any], dict[str, str]]:
    """Return a batch with rows of every kind."""
    bench.job("old")
    bench.job("tick", trigger={"type": "interval", "seconds": 10})
    bench.job()
    worker = bench.worker(slots=3)
    run_ids = [bench.run() for _ in range(3)]
    bench.paused = True
    bench.job("new")
    bench.ask(lambda token: bench.engine.delete_job("old", token, bench.now))
    request = RunRequest("job", None, None, None)
    bench.ask(lambda token: bench.engine.request_runs([request] * 2, {}, token, bench.now))
    worker.succeed(worker.requests[0])
    worker.fail(worker.requests[1])
    worker.succeed(worker.requests[1])  # stale
    worker.send(response(worker.requests[1], success=True).__class__(1, "x", True, attempt=1))  # of no run
    bench.cancel(run_ids[2])
    bench.advance(10.5)
    worker.drain()
    bench.register("w2")
    bench.paused = False
    return take(bench)


def test_split_puts_each_row_and_effect_into_exactly_one_part() -> None:
    bench = EngineBench()
    batch, effects, units = everything(bench)
    for name in NAMES:
        assert name == "jobs_set" or getattr(batch, name), name
    parts = split(batch, effects, units)
    for name in NAMES:
        assert sorted(map(str, getattr(batch, name))) == sorted(
            str(row) for part in parts for row in getattr(part.batch, name)
        )
    assert sorted(map(str, effects)) == sorted(str(effect) for part in parts for effect in part.effects)
    assert len({part.key for part in parts}) == len(parts)
    assert parts[-1].key == "" and parts[-1].batch.is_empty() and parts[-1].effects
    by_run: dict[str, int] = {}
    for number, part in enumerate(parts):
        for run_id in part.run_ids():
            assert by_run.setdefault(run_id, number) == number
        assert (part.batch.epoch, part.batch.last_id) == (batch.epoch, batch.last_id)
    # Runs of one request, and a due with its run, stay together.
    together = [{row.run_id for row in part.batch.runs_new} for part in parts if part.batch.runs_new]
    assert sorted(map(len, together)) == [1, 2]
    assert [len(part.batch.runs_new) for part in parts if part.batch.dues] == [1]
    assert {name for part in parts for name in part.job_names()} == {"old", "tick", "new"}


def test_parts_can_be_committed_one_by_one() -> None:
    bench, other = EngineBench(), EngineBench()
    batch, effects, units = everything(bench)
    whole, whole_effects, _ = everything(other)
    store(other, whole, whole_effects)
    for number, part in enumerate(split(batch, effects, units)):
        part.batch.number = batch.number + number
        bench.store.commit(part.batch)
        bench.act(part.effects)
    assert bench.store.load_active() == other.store.load_active()
    assert bench.store.open_counts() == other.store.open_counts()


def test_split_keeps_the_order_of_effects_of_a_part() -> None:
    batch = Batch(1, 1, 0, 0)
    batch.logs = [LogRow(None, None, 0, "STALE", None, None, "")]
    batch.workers = [WorkerRow("w", None, "g", "", 1, 1, "[]", "[]", "ready", 0, 0)]
    batch.attempts = [AttemptRow("r:1", 1, None, None, 1, "LOST", None, None, 0)]
    batch.dues = [DueRow("j", 1, None)]
    effects: list[Effect] = [
        Send(1, b"a", "r"),
        Close(2, "x"),
        Send(1, b"b", "r"),
        Ack(1, "r:1", 1, "u"),
        Send(1, b"c", None),
    ]
    parts = {part.key: part for part in split(batch, effects, {"r": "u"})}
    assert set(parts) == {"job:j", "no run", "u", "worker:w", ""}
    assert parts["u"].effects == [effects[0], effects[2], effects[3]]
    assert parts["u"].batch.attempts == batch.attempts and parts[""].effects == [effects[1], effects[4]]


# -- refused


def refuse_results(text: str) -> Any:
    return lambda batch: any(text in (row.result or "") for row in batch.tasks_set)


def test_a_refused_result_fails_without_retry_and_harms_nobody() -> None:
    bench = EngineBench()
    bench.job()
    worker = bench.worker(slots=3)
    runs = [bench.run() for _ in range(3)]
    bench.refuse = refuse_results("poison")
    bench.paused = True
    for number, data in enumerate((b'"fine"', b'"poison"', b'"good"')):
        worker.succeed(worker.requests[number], data)
    waiting = bench.run_later()
    bench.paused = False
    bench.pump()
    assert [bench.status(run_id) for run_id in runs] == ["SUCCESS", "FAILED", "SUCCESS"]
    row = bench.tasks(runs[1])[0]
    assert (row.attempt, row.retry_count, row.result) == (1, 0, None)
    assert row.error_msg == "the store refused the result: the bench says so"
    assert sorted(worker.acks) == [(f"{run_id}:0", 1) for run_id in runs]
    assert waiting in bench.answers and bench.answers[waiting].error is None
    assert worker.session.load == 1 and bench.engine.open_counts() == {"DISPATCHED": 1}
    bench.refuse = lambda batch: False
    worker.succeed(worker.requests[-1])
    assert not bench.engine.state.tasks


def test_a_refused_failure_fails_too_and_frees_the_slot() -> None:
    bench = EngineBench()
    bench.job(retries=2)
    worker = bench.worker()
    first, second = bench.run(), bench.run()
    bench.refuse = lambda batch: any("poison" in (row.message or "") for row in batch.attempts)
    worker.fail(worker.requests[0], "poison")
    assert bench.tasks(first)[0].status == "FAILED" and worker.acks == [(f"{first}:0", 1)]
    assert worker.task_ids == [f"{first}:0", f"{second}:0"]


def test_a_refused_log_line_costs_only_itself() -> None:
    bench = EngineBench()
    bench.job(timeout=5, retry_backoff=100)
    worker = bench.worker()
    run_id = bench.run()
    request = worker.requests[0]
    worker.start(request)
    bench.advance(10.1)
    row = bench.tasks(run_id)[0]
    bench.refuse = lambda batch: bool(batch.logs)
    worker.succeed(request)
    assert bench.tasks(run_id)[0] == row and worker.acks == [(request.task_id, 1)] and worker.session.load == 0
    unknown = response(request, success=True).__class__(1, "never heard of", True, attempt=1)
    worker.send(unknown)
    assert worker.acks[-1] == ("never heard of", 1)
    bench.refuse = lambda batch: False
    bench.advance(110)
    assert worker.requests == [request] or worker.requests[-1].attempt == 2


def test_a_refused_request_is_answered_and_leaves_nothing() -> None:
    bench = EngineBench()
    bench.job()
    worker = bench.worker(slots=9)
    bench.refuse = lambda batch: any(row.request_key == "poison" for row in batch.runs_new)
    bench.paused = True
    good = bench.run_later("good")
    bad = bench.run_later("fine", "poison")
    bench.paused = False
    bench.pump()
    assert bench.answers[good].error is None and isinstance(bench.answers[bad].error, BatchRefused)
    assert worker.task_ids == ["job~good:0"] and set(bench.engine.state.runs) == {"job~good"}
    assert bench.store.run("job~fine") is None and worker.session.load == 1
    assert len(bench.engine.state.wheel) == 2  # the lease and the one attempt


@pytest.mark.parametrize("commits", [0, 1])
def test_a_request_for_a_run_that_is_then_refused_is_not_told_that_it_is_there(commits: int) -> None:
    bench = EngineBench()
    bench.job()
    bench.refuse = lambda batch: any(row.request_key == "poison" for row in batch.runs_new)
    bench.paused = True
    first = bench.run_later("poison")
    taken = take(bench) if commits else None
    again = bench.run_later("other", "poison")
    if taken is not None:  # The first commit is under way as the second request comes.
        part = split(*taken)[0]
        bench.engine.refused(part, BatchRefused("x"), {"job~poison": (None, [])}, {}, bench.now)
        bench.engine.renumber(taken[0].number - 1)
    bench.paused = False
    bench.pump()
    assert bench.answers[first].error is not None and bench.answers[again].error is not None
    assert bench.store.run("job~poison") is None


def test_answers_that_build_on_what_was_refused_say_so() -> None:
    bench = EngineBench()
    bench.job()
    bench.worker()
    run_id = bench.run()
    bench.paused = True
    bench.workers[1].start(bench.workers[1].requests[0])
    batch, effects, units = take(bench)
    token = "late"
    bench.engine.cancel_run(run_id, token, bench.now)
    errors = ["poison", "other"]
    bench.engine.state.effects.append(Answer("known", None, BatchRefused(errors[0]), None))
    part = split(batch, effects, units)[0]
    runs = {run_id: (bench.store.run(run_id), bench.tasks(run_id))}
    bench.engine.refused(part, BatchRefused("x"), runs, {}, bench.now)
    bench.engine.renumber(batch.number - 1)
    bench.paused = False
    bench.pump()
    assert bench.answers[token].error is not None and "repeat it" in str(bench.answers[token].error)
    assert str(bench.answers["known"].error) == "poison"
    assert bench.tasks(run_id)[0].status == "DISPATCHED"


def test_a_refused_due_is_passed_over() -> None:
    bench = EngineBench()
    start_ms = bench.wall_ms
    bench.job(trigger={"type": "interval", "seconds": 10})
    worker = bench.worker(slots=9)
    bench.refuse = lambda batch: any(row.due == start_ms + 20_000 for row in batch.runs_new)
    bench.advance(35)
    assert [request.due for request in worker.requests] == [start_ms + 10_000, start_ms + 30_000]
    assert bench.store.job("job").next_due == start_ms + 40_000  # type: ignore[union-attr]
    assert bench.refusals == 1 and worker.session.load == 2


def test_a_due_that_has_a_run_already_is_taken_a_little_later() -> None:
    bench = EngineBench()
    start_ms = bench.wall_ms
    bench.job(trigger={"type": "interval", "seconds": 10})
    bench.worker(slots=99)
    bench.advance(25)
    bench.wall_ms -= 22_000
    bench.advance(5)
    bench.restart()  # What it knew of the latest due is gone.
    bench.worker("w2", slots=99)
    bench.advance(20)
    page = bench.store.runs(100, None, {"job": "job"})
    dues = sorted(row.due - start_ms for row in page.items if row.due is not None)
    assert dues == [8_000, 10_000, 18_000, 20_000, 20_001]
    assert bench.store.job("job").next_due > bench.wall_ms  # type: ignore[union-attr, operator]


def test_a_refused_job_does_not_exist() -> None:
    bench = EngineBench()
    bench.refuse = lambda batch: any(row.name == "poison" for row in batch.jobs_new)
    answer = bench.ask(
        lambda token: bench.engine.create_job(
            {"name": "poison", "trigger": {"type": "interval", "seconds": 1}}, token, bench.now
        )
    )
    assert answer is not None and isinstance(answer.error, BatchRefused)
    assert not bench.engine.state.jobs and not len(bench.engine.state.wheel)
    bench.refuse = lambda batch: False
    bench.job("poison")


def test_a_job_that_is_read_again_keeps_its_waiting_run() -> None:
    bench = EngineBench()
    bench.job(trigger={"type": "interval", "seconds": 10})
    bench.advance(11)
    refused = [0]

    def once(batch: Batch) -> bool:
        refused[0] += bool(batch.dues)
        return refused[0] in (1, 2) and bool(batch.dues)

    bench.refuse = once
    bench.advance(30)
    assert len(bench.store.runs(10, None, {"job": "job"}).items) == 1


def refuse_twice(bench: EngineBench) -> None:
    """Refuse the next batch that changes a task, whole and then its part."""
    left = [2]

    def refuse(batch: Batch) -> bool:
        if left[0] and batch.tasks_set:
            left[0] -= 1
            return True
        return False

    bench.refuse = refuse


@pytest.mark.parametrize(("state", "end"), [("RUNNING", "TIMEOUT"), ("CANCELLING", "CANCELLED")])
def test_a_refused_timeout_comes_about_later(state: str, end: str) -> None:
    bench = EngineBench()
    bench.job(timeout=10, retries=0)
    worker = bench.worker()
    run_id = bench.run()
    worker.start(worker.requests[0])
    if state == "CANCELLING":
        bench.cancel(run_id)
    refuse_twice(bench)
    bench.advance(15.1)
    assert bench.refusals == 1 and bench.tasks(run_id)[0].status == state and worker.session.load == 1
    bench.advance(5.1)
    assert bench.tasks(run_id)[0].status == end
    worker.succeed(worker.requests[0])  # late
    assert worker.session.load == 0


def test_a_refused_withdrawal_comes_about_later() -> None:
    bench = EngineBench()
    bench.job()
    worker = bench.worker()
    run_id = bench.run()
    bench.advance(30)
    worker.beat()
    refuse_twice(bench)
    bench.advance(31)
    assert bench.refusals == 1 and bench.tasks(run_id)[0].status == "DISPATCHED"
    worker.beat()
    bench.advance(40)
    worker.beat()
    bench.advance(20.1)
    assert bench.outcomes(f"{run_id}:0") == ["UNDELIVERED"]


@pytest.mark.parametrize("state", ["DISPATCHED", "RUNNING"])
def test_a_refused_rescue_comes_about_later(state: str) -> None:
    bench = EngineBench()
    bench.job()
    worker = bench.worker()
    run_id = bench.run()
    if state == "RUNNING":
        worker.start(worker.requests[0])
    refuse_twice(bench)
    worker.close()
    bench.advance(5.1)
    assert bench.refusals == 1 and bench.tasks(run_id)[0].status == state
    bench.advance(5.1)
    assert bench.outcomes(f"{run_id}:0") == ["LOST"]


def test_a_refused_rescue_from_a_process_that_was_replaced() -> None:
    bench = EngineBench()
    bench.job(sharding_total=2)
    worker = bench.worker(slots=2)
    run_id = bench.run()
    worker.start(worker.requests[0])
    worker.close()
    refuse_twice(bench)
    again = bench.worker("w1", 2, "i2")
    assert bench.refusals == 1
    bench.advance(0.1)
    assert bench.outcomes(f"{run_id}:0") == ["LOST"] and bench.outcomes(f"{run_id}:1") == ["LOST"]
    for request in list(again.requests):
        again.succeed(request)
    assert bench.status(run_id) == "SUCCESS"


def test_a_refused_dispatch_is_made_again_and_not_sent_twice() -> None:
    bench = EngineBench()
    bench.job()
    run_id = bench.run()
    refuse_twice(bench)
    worker = bench.worker()
    assert bench.refusals == 1
    bench.advance(0.1)
    assert worker.task_ids == [f"{run_id}:0"] and worker.session.load == 1 and worker.session.sent_bytes == 0
    worker.succeed(worker.requests[0])
    assert bench.status(run_id) == "SUCCESS"
