"""A worker that dies while the core is away, after its work was done: its results arrive all the same, and once."""

import time
from collections.abc import Set

from tests.integration.rounds.cluster import RoundCluster
from tests.integration.rounds.evidence import Attempt
from tests.integration.rounds.judge import not_run
from tests.integration.rounds.load import WORK_S

__all__ = ["restart_a_worker_in_an_outage"]

_SETTLED_S = 1.0
"""So long after its end a result is surely on disk."""


def restart_a_worker_in_an_outage(cluster: RoundCluster) -> dict[str, float]:
    """One round; returns its figures, raises `RoundFailed`."""
    rng, core = cluster.rng, cluster.core
    cluster.begin()
    victim = rng.choice(cluster.workers)
    core.kill()
    in_flight, _ = cluster.store.at_the_kill()
    killed_s = time.monotonic()
    cluster.wait(lambda: not cluster.running(victim.pid), "the end of what runs", WORK_S[1] + 15.0)
    time.sleep(_SETTLED_S)
    finished = [line for line in cluster.trace.lines() if line.pid == victim.pid and line.event == "end"]
    undelivered = sum(line.at_s > killed_s for line in finished)
    victim.kill()
    first, second = rng.sample([victim, core], 2)
    first.start()
    time.sleep(rng.uniform(0.0, 1.5))
    second.start()
    core.wait_ready()
    cluster.wait(lambda: cluster.first_start(lambda line: line.pid == victim.pid) is not None, "the new worker's work")
    evidence = cluster.finish()
    problems = [] if undelivered else ["the worker had nothing left to deliver"]
    ran = {(line.task, line.attempt) for line in evidence.lines}
    cluster.judge(evidence, lambda attempt: _may_close(attempt, ran), *problems)
    return {"in_flight": in_flight, "delivered_late": undelivered, "tasks": len(evidence.tasks)}


def _may_close(attempt: Attempt, ran: Set[tuple[str, int]]) -> str | None:
    # What was on the way to the worker that died may have begun there, as far as the core can know.
    if not_run(attempt) or (attempt.outcome == "LOST" and (attempt.task_id, attempt.number) not in ran):
        return None
    return "its result was there, or its worker was alive"
