"""kill -9 of a worker and of the core, with real processes: nothing is lost, nothing is counted twice."""

import os
import signal
import time
from typing import Any

import pytest

from dsched.cli.processes import wait_until
from dsched.engine.settings import EngineSettings

pytestmark = pytest.mark.integration

GRACE_S = EngineSettings().resume_grace_s
ROUNDS = int(os.environ.get("DSCHED_ROUNDS", "3"))
LIMIT_S = 30.0
SHARDS = 9
WORK_S = 1.0


def assert_each_succeeded_once(cluster: Any, run_id: str) -> None:
    tasks = cluster.core.client.tasks(run_id)
    assert [task["sharding_item"] for task in tasks] == list(range(len(tasks)))
    for task in tasks:
        whole = cluster.core.client.task(task["task_id"])
        assert whole["status"] == "SUCCESS", whole
        assert whole["result"]["item"] == task["sharding_item"]
        outcomes = [attempt["outcome"] for attempt in whole["attempts"]]
        assert outcomes.count("SUCCESS") == 1, whole
        assert outcomes[-1] == "SUCCESS", whole


def kill_a_worker(cluster: Any, victim: Any) -> None:
    """One round: kill `victim` while it works, judge what becomes of its shards, and start it again."""
    run_id = cluster.trigger(SHARDS, WORK_S)
    wait_until(lambda: bool(cluster.running(run_id, victim.name)), LIMIT_S, f"{victim.name} to run a shard")
    pid = victim.pid
    victim.kill()
    killed_at_s = time.monotonic()
    run = cluster.core.client.run(run_id, wait_s=LIMIT_S)
    assert run["status"] == "SUCCESS", run

    lines = cluster.trace.lines(run_id)
    ended = {line["item"] for line in lines if line["event"] == "end" and line["pid"] == pid}
    lost = {line["item"] for line in lines if line["event"] == "start" and line["pid"] == pid} - ended
    assert lost
    again = {line["item"]: line for line in lines if line["event"] == "start" and line["pid"] != pid}
    for item in lost:
        assert again[item]["worker"] != victim.name
        assert again[item]["at_s"] - killed_at_s <= GRACE_S + 1.0
    # A shard that ended in the instant of the kill may not have got its result out; it runs again, legally.
    starts, ends = cluster.trace.items(run_id, "start"), cluster.trace.items(run_id, "end")
    for item in range(SHARDS):
        assert ends.count(item) >= 1
        assert starts.count(item) == (2 if item in lost else ends.count(item))
        assert ends.count(item) == 1 or item in ended
    assert_each_succeeded_once(cluster, run_id)

    victim.start()
    cluster.core.wait_for_workers(cluster.workers)


def play_rounds(cluster: Any, rounds: int) -> None:
    cluster.start(workers=3, slots=4)
    for number in range(rounds):
        kill_a_worker(cluster, cluster.workers[number % 3])


def test_shards_of_a_killed_worker_run_elsewhere(cluster: Any) -> None:
    play_rounds(cluster, ROUNDS)


@pytest.mark.soak
def test_shards_of_a_killed_worker_run_elsewhere_every_time(cluster: Any) -> None:
    play_rounds(cluster, 20)


def test_a_killed_core_goes_on_where_it_was(cluster: Any) -> None:
    cluster.start(workers=2)
    run_id = cluster.trigger(10, 2.0)
    wait_until(lambda: len(cluster.running(run_id)) == 10, LIMIT_S, "ten shards to run")
    cluster.core.kill()
    cluster.core.start()
    cluster.core.wait_ready()
    run = cluster.core.client.run(run_id, wait_s=LIMIT_S)
    assert run["status"] == "SUCCESS", run
    assert_each_succeeded_once(cluster, run_id)
    # A worker that comes back after the resume grace finds its shards given away, so some may have run twice.
    assert set(cluster.trace.items(run_id, "end")) == set(range(10))
    assert cluster.core.client.pending()["pending"] == 0


def test_a_stopping_worker_finishes_what_runs(cluster: Any) -> None:
    cluster.start(workers=1)
    run_id = cluster.trigger(2, 2.0)
    wait_until(lambda: len(cluster.running(run_id)) == 2, LIMIT_S, "two shards to run")
    [worker] = cluster.workers
    worker.terminate()
    assert worker.wait(LIMIT_S) == -signal.SIGTERM
    assert cluster.core.client.run(run_id)["status"] == "SUCCESS"
    assert cluster.trace.items(run_id, "start") == cluster.trace.items(run_id, "end") == [0, 1]
