"""What a newcomer broke: small things, each for its whole kind."""

from dataclasses import replace

import pytest

from dsched.engine.changes import Batch, Close
from dsched.engine.definition import RunRequest
from dsched.engine.settings import EngineSettings
from dsched.engine.split import split
from dsched.errors import BatchRefused, InvalidValue
from dsched.model.ids import check_name
from dsched.testing.engine_bench import EngineBench, response
from dsched.wire.messages import FEATURES, Error, Register, ResumeIn


@pytest.mark.parametrize("name", [".", ".."])
def test_names_that_paths_swallow_are_refused(name: str) -> None:
    with pytest.raises(InvalidValue, match="path"):
        check_name(name)


@pytest.mark.parametrize("name", ["...", ".a", "a..b"])
def test_other_names_with_dots_are_fine(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("features", [[], ["resume"], list(FEATURES[1:])])
def test_a_worker_that_speaks_only_some_features_is_refused(features: list[str]) -> None:
    bench = EngineBench()
    worker = bench.register("w1")
    worker.close()
    bench.engine.register(99, "there", Register(worker_id="w2", incarnation="i", features=features), bench.now)
    bench.pump()
    assert "w2" not in bench.engine.membership.workers


@pytest.mark.parametrize("message", [ResumeIn(slots=1, group="a b"), ResumeIn(slots=1, handlers=["x y"])])
def test_a_worker_with_names_that_no_job_can_have_is_refused(message: ResumeIn) -> None:
    bench = EngineBench()
    worker = bench.register("w1")
    bench.engine.resume(worker.session_id, message, bench.now)
    bench.pump()
    assert [error.code for error in worker.of(Error)] == ["resume"]
    assert not bench.engine.sessions()


def test_an_open_attempt_does_not_show_the_error_of_the_one_before() -> None:
    bench = EngineBench()
    worker = bench.worker(slots=1)
    bench.job(retries=1, retry_backoff=0)
    run_id = bench.run()
    worker.fail(worker.requests[-1], "broken once")
    bench.advance(1.0)
    row = bench.task(f"{run_id}:0")
    assert (row.attempt, row.status, row.error_msg, row.error) == (2, "DISPATCHED", None, None)


def test_deleting_a_job_with_many_waiting_runs_goes_on_over_turns_and_restarts() -> None:
    bench = EngineBench()
    bench.job(sharding_total=1000)
    for number in range(5):
        bench.request(RunRequest("job", None, None, f"k{number}"))
    bench.ask(lambda token: bench.engine.delete_job("job", token, bench.now))
    states = [bench.status(f"job~k{number}") for number in range(5)]
    assert states.count("CANCELLED") == 2
    bench.restart()
    bench.pump()
    for _ in range(5):
        bench.advance(0.01)
    assert {bench.status(f"job~k{number}") for number in range(5)} == {"CANCELLED"}
    assert not bench.engine.state.runs


def test_results_that_came_while_a_batch_of_their_run_was_refused_are_brought_again() -> None:
    bench = EngineBench()
    worker = bench.worker(slots=2)
    bench.job(sharding_total=2, timeout=0)
    run_id = bench.run()
    first, second = worker.requests
    worker.start(first, second)
    engine = bench.engine
    engine.results(worker.session_id, [response(first, success=True)], bench.now)
    batch, effects, units = engine.take_batch(bench.now)
    assert batch is not None
    engine.results(worker.session_id, [response(second, success=True)], bench.now)
    part = next(part for part in split(batch, effects, units) if part.key == run_id)
    rows = bench.store.run(run_id), bench.store.tasks_of(run_id, 10, None, {}).items
    engine.refused(part, BatchRefused("no"), {run_id: rows}, {}, bench.now)
    engine.renumber(batch.number - 1)
    assert [effect.session_id for effect in engine.state.effects if isinstance(effect, Close)] == [worker.session_id]
    bench.pump()
    # The refused one has failed for good; the other was never heard of, and its worker brings it with RESUME.
    assert sorted(row.status for row in bench.tasks(run_id)) == ["FAILED", "RUNNING"]
    again = bench.register("w1").resume(2, results=[response(second, success=True)])
    assert again.session.load == 0
    assert bench.status(run_id) == "PARTIAL"


@pytest.mark.parametrize("state", ["PENDING", "DISPATCHED", "RUNNING"])
def test_a_run_of_which_the_store_refuses_everything_is_tried_ever_more_rarely(state: str) -> None:
    bench = EngineBench(settings=replace(EngineSettings(), resume_grace_s=0.0))
    if state != "PENDING":
        worker = bench.worker(slots=1)
    bench.job(timeout=10)
    run_id = bench.run()
    if state == "RUNNING":
        worker.start(worker.requests[0])
    refused: list[float] = []

    def refuse(batch: Batch) -> bool:
        hit = any(row.run_id == run_id for row in batch.tasks_set)
        if hit and (not refused or refused[-1] != bench.mono_s):
            refused.append(bench.mono_s)
        return hit

    bench.refuse = refuse
    if state == "PENDING":
        worker = bench.worker(slots=1)
    other = bench.worker("w2", slots=1)
    for _ in range(120):
        bench.advance(1.0)
        worker.beat()
        other.beat()
    assert 1 <= len(refused) <= 30
    bench.refuse = lambda batch: False
    bench.advance(11.0)
    if state == "RUNNING":
        bench.advance(30.0)  # the retry after its timeout
    newest = max((one.requests[-1] for one in (worker, other) if one.requests), key=lambda request: request.attempt)
    (other if newest in other.requests else worker).succeed(newest)
    assert bench.status(run_id) == "SUCCESS"


def test_a_job_of_which_the_store_refuses_every_due_is_tried_ever_more_rarely() -> None:
    bench = EngineBench()
    bench.job(trigger={"type": "interval", "seconds": 1000})
    refused: list[float] = []

    def refuse(batch: Batch) -> bool:
        if batch.dues:
            refused.append(bench.mono_s)
        return bool(batch.dues)

    bench.refuse = refuse
    bench.advance(1100.0)
    assert 3 <= len(refused) <= 50
    bench.refuse = lambda batch: False
    bench.advance(1000.0)
    job = bench.store.job("job")
    assert job is not None and job.next_due is not None and job.next_due > bench.wall_ms
    assert len(bench.store.runs(10, None, {"job": "job"}).items) == 1


def test_what_was_fired_while_a_due_was_being_refused_is_not_fired_again() -> None:
    bench = EngineBench()
    worker = bench.worker(slots=1)
    bench.job(trigger={"type": "interval", "seconds": 30})
    engine = bench.engine
    bench.paused = True
    bench.advance(30.0)
    engine.seen(worker.session_id, bench.now)
    batch, effects, units = engine.take_batch(bench.now)
    assert batch is not None and len(batch.runs_new) == 1
    bench.advance(30.0)
    worker.beat()
    assert len(engine.state.runs) == 2
    part = next(part for part in split(batch, effects, units) if part.batch.dues)
    refused = {row.run_id: (None, ()) for row in part.batch.runs_new}
    due_before = engine.state.jobs["job"].next_due_ms
    engine.refused(part, BatchRefused("no"), refused, {"job": bench.store.job("job")}, bench.now)
    engine.renumber(batch.number - 1)
    assert engine.state.jobs["job"].next_due_ms == due_before
    bench.paused = False
    bench.pump()
    worker.beat()
    bench.advance(29.0)
    assert len(bench.store.runs(10, None, {"job": "job"}).items) == 1
    bench.advance(1.5)
    assert len(bench.store.runs(10, None, {"job": "job"}).items) == 2


def test_a_plain_worker_whose_answer_was_forgotten_is_hung_up_on() -> None:
    bench = EngineBench()
    bench.job(sharding_total=2, timeout=0, retries=1)
    plain = bench.register("p1", None)
    run_id = bench.run()
    bench.refuse = lambda batch: bool(batch.tasks_set)
    plain.succeed(plain.requests[0])
    bench.advance(20)
    assert plain.close_reason == "what it reported was dropped"
    bench.refuse = lambda batch: False
    bench.advance(60)
    again = bench.register("p1", None)
    bench.advance(30)
    for request in list(again.requests):
        again.succeed(request)
    assert bench.status(run_id) == "SUCCESS"


def test_a_result_that_is_refused_again_and_again_is_tried_ever_more_rarely() -> None:
    bench = EngineBench()
    worker = bench.worker(slots=1)
    bench.job(timeout=0)
    run_id = bench.run()
    bench.refuse = lambda batch: any(row.run_id == run_id for row in batch.tasks_set)
    worker.succeed(worker.requests[0])
    for _ in range(12):
        bench.advance(5.0)
        worker.beat()
    assert 3 <= bench.refusals <= 15 and not worker.acks
    bench.refuse = lambda batch: False
    bench.advance(10.0)
    assert bench.status(run_id) == "FAILED" and worker.acks == [(f"{run_id}:0", 1)]
