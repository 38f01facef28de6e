"""A worker is killed before it could deliver, and started again: its results arrive, and nothing is repeated."""

from typing import Any

import pytest

from dsched.cli.processes import wait_until

pytestmark = pytest.mark.integration

LIMIT_S = 30.0
SHARDS = 6


@pytest.mark.parametrize("first", ["core", "worker"])
def test_what_was_finished_while_the_core_was_down_is_delivered_by_the_next_process(cluster: Any, first: str) -> None:
    cluster.start(workers=1)
    core, [worker] = cluster.core, cluster.workers
    run_id = cluster.trigger(SHARDS, 1.5)
    wait_until(lambda: len(cluster.running(run_id)) == SHARDS, LIMIT_S, "all shards to run")
    core.kill()
    assert cluster.trace.items(run_id, "end") == []
    ledger = cluster.folder / "state" / worker.name / "ledger"
    # The handler notes its end before its result is anywhere.
    wait_until(lambda: ledger.read_bytes().count(run_id.encode()) >= SHARDS, LIMIT_S, "all results on disk")
    worker.kill()
    if first == "core":
        core.start()
        core.wait_ready()
        worker.start()
    else:
        worker.start()
        worker.wait_for(lambda: "no connection to core" in worker.log_path.read_text(), LIMIT_S, "a try")
        core.start()
        core.wait_ready()

    run = core.client.run(run_id, wait_s=LIMIT_S)
    assert (run["status"], run["counts"]) == ("SUCCESS", {"SUCCESS": SHARDS})
    assert cluster.trace.items(run_id, "start") == cluster.trace.items(run_id, "end") == list(range(SHARDS))
    for item in range(SHARDS):
        task = core.client.task(f"{run_id}:{item}")
        assert task["result"] == {"item": item, "worker": worker.name}
        assert [(attempt["number"], attempt["outcome"]) for attempt in task["attempts"]] == [(1, "SUCCESS")]
    # All is confirmed, so a third process has nothing to bring.
    worker.kill()
    worker.start()
    cluster.core.wait_for_workers(cluster.workers)
    assert worker.log_path.read_text().count("results of an earlier process") == 1
