"""A leader that stands still for longer than another core waits: one leads at any time, and the work goes on."""

import signal
import time

from dsched.cluster.election import TAKEOVER_S
from dsched.engine.settings import EngineSettings
from tests.integration.rounds.cluster import RoundCluster
from tests.integration.rounds.evidence import Attempt, wall_ms
from tests.integration.rounds.judge import not_run

__all__ = ["pause_the_leader"]

_LEASE_S = EngineSettings().lease_s
_UNDER_LOAD_S = 1.5
_GAP_S = TAKEOVER_S + 2.0
_FOLLOW_S = 15.0


def pause_the_leader(cluster: RoundCluster, pause_s: tuple[float, float]) -> dict[str, float]:
    """One round with a pause between the two bounds; returns its figures, raises `RoundFailed`."""
    rng = cluster.rng
    cluster.begin()
    old, before = cluster.core, cluster.store.leader()
    time.sleep(rng.uniform(0.0, _UNDER_LOAD_S))
    old.signal(signal.SIGSTOP)
    stopped_s = time.monotonic()
    until_s = stopped_s + rng.uniform(*pause_s)
    taken_s = 0.0
    try:
        # One that was stopped inside a transaction keeps the file locked, and leads on when it wakes up.
        while time.monotonic() < until_s:
            if not taken_s and cluster.store.leader().epoch > before.epoch:
                taken_s = time.monotonic()
            time.sleep(0.1)
        fence = cluster.store.highest_fence()
    finally:
        continued_s = time.monotonic()
        old.signal(signal.SIGCONT)
    problems = []
    if taken_s:
        if taken_s - stopped_s > _GAP_S:
            problems.append(f"nobody led for {taken_s - stopped_s:.1f} s")
        cluster.wait(lambda: old.client.status()["role"] == "follower", f"{old.name} to follow", _FOLLOW_S)
        if cluster.core is old:
            problems.append(f"{old.name} leads again")
    followed_s = time.monotonic()

    def is_at_work() -> bool:
        return cluster.first_start(lambda line: line.fence > fence) is not None

    cluster.wait(is_at_work, "work by the new leader")
    evidence = cluster.finish()
    taken_ms = wall_ms(taken_s)
    cluster.judge(evidence, lambda attempt: _may_close(attempt, taken_ms), *problems)
    starts = sorted(line.at_s for line in evidence.lines if line.event == "start" and line.at_s > stopped_s)
    quiet_s = max(after - at for at, after in zip([stopped_s, *starts], starts, strict=False))
    return {
        "paused_s": continued_s - stopped_s,
        "taken_over": bool(taken_s),
        "leaderless_s": taken_s - stopped_s if taken_s else continued_s - stopped_s,
        "longest_quiet_s": quiet_s,
        "follows_after_s": followed_s - continued_s,
        "closed_not_run": sum(not_run(attempt) for attempt in evidence.attempts),
        "lost": sum(attempt.outcome == "LOST" for attempt in evidence.attempts),
        "repeated_requests": cluster.load.repeated,
        "tasks": len(evidence.tasks),
    }


def _may_close(attempt: Attempt, taken_ms: int) -> str | None:
    if not_run(attempt):
        return None
    if attempt.outcome != "LOST":
        return "no worker and no handler had a reason"
    if attempt.finished_at < taken_ms + _LEASE_S * 1000:
        return "the lease of its worker had not ended"
    return None
