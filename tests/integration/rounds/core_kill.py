"""kill -9 of the core while it has much to do: whatever runs goes on, and the next core takes it over."""

import time

from dsched.engine.settings import EngineSettings
from tests.integration.rounds.cluster import IN_FLIGHT, RoundCluster
from tests.integration.rounds.evidence import Attempt, Evidence, wall_ms, without_cpu_s
from tests.integration.rounds.judge import not_run

__all__ = ["FIRST_DISPATCH_S", "kill_the_core"]

FIRST_DISPATCH_S = 5.0
GRACE_S = EngineSettings().resume_grace_s
_UNDER_LOAD_S = 1.5


def kill_the_core(cluster: RoundCluster, outage_s: tuple[float, float]) -> dict[str, float]:
    """One round with an outage between the two bounds; returns its figures, raises `RoundFailed`."""
    rng, core = cluster.rng, cluster.core
    cluster.begin()
    in_flight = fence = 0
    while in_flight < IN_FLIGHT:
        time.sleep(rng.uniform(0.0, _UNDER_LOAD_S))
        cluster.wait_for_flight()
        if rng.random() < 0.5:
            # In the middle of a request, or just after its answer.
            cluster.load.is_asking.wait(1.0)
            time.sleep(rng.uniform(0.0, 0.01))
        core.kill()
        in_flight, fence = cluster.store.at_the_kill()
        if in_flight < IN_FLIGHT:
            core.start()
            core.wait_ready()
    time.sleep(rng.uniform(*outage_s))
    started_s = time.monotonic()
    core.start()
    core.wait_ready()
    ready_s, starved_s = time.monotonic() - started_s, without_cpu_s(core.pid)
    cluster.wait(lambda: cluster.first_start(lambda line: line.fence > fence) is not None, "a dispatch")
    first = cluster.first_start(lambda line: line.fence > fence)
    assert first is not None
    first_s = first.at_s - started_s
    time.sleep(rng.uniform(0.0, 1.0))
    evidence = cluster.finish()
    late = []
    if first_s - starved_s > FIRST_DISPATCH_S:
        late = [f"first dispatch {first_s:.1f} s after the restart, of which the core had no CPU for {starved_s:.1f} s"]
    cluster.judge(evidence, lambda attempt: _may_close(attempt, evidence), *late)
    return {
        "in_flight": in_flight,
        "ready_s": ready_s,
        "starved_s": starved_s,
        "first_dispatch_s": first_s,
        "tasks": len(evidence.tasks),
        "repeated_requests": cluster.load.repeated,
        "undelivered": sum(attempt.outcome == "UNDELIVERED" for attempt in evidence.attempts),
        "lost": sum(attempt.outcome == "LOST" for attempt in evidence.attempts),
        "last_worker_back_s": (max(evidence.connected_ms.values()) - wall_ms(started_s)) / 1000,
    }


def _may_close(attempt: Attempt, evidence: Evidence) -> str | None:
    if not_run(attempt):
        return None  # Committed, and the core died before its frame was sent.
    if attempt.outcome != "LOST":
        return "no worker and no handler had a reason"
    back_ms = evidence.connected_ms[attempt.worker_id]
    if back_ms <= attempt.finished_at:
        return f"its worker was back {(attempt.finished_at - back_ms) / 1000:.2f} s before, and had it"
    return None
