"""kill -9 and SIGSTOP of a worker in mid-task: its work moves once, and what it still says changes nothing."""

import signal
import time

from dsched.engine.settings import EngineSettings
from tests.integration.rounds.cluster import RoundCluster
from tests.integration.rounds.evidence import Attempt, Evidence, wall_ms
from tests.integration.rounds.judge import not_run

__all__ = ["kill_a_worker", "stop_a_worker"]

_SETTINGS = EngineSettings()
_UNDER_LOAD_S = 1.5
_BACK_S = 15.0
"""So long a worker that goes on may take until it works again."""


def kill_a_worker(cluster: RoundCluster) -> dict[str, float]:
    """One round; returns its figures, raises `RoundFailed`."""
    rng = cluster.rng
    cluster.begin()
    victim = rng.choice(cluster.workers)
    time.sleep(rng.uniform(0.0, _UNDER_LOAD_S))
    cluster.wait_for_flight()
    victim.kill()
    killed_ms = wall_ms(time.monotonic())
    # It is back within the resume grace, or after it.
    time.sleep(rng.choice((0.0, 1.0, _SETTINGS.resume_grace_s + 1.0)) * rng.random())
    started_s = time.monotonic()
    victim.start()
    cluster.wait(lambda: cluster.first_start(lambda line: line.pid == victim.pid) is not None, "the new worker's work")
    first = cluster.first_start(lambda line: line.pid == victim.pid)
    assert first is not None
    evidence = cluster.finish()
    lost = [attempt for attempt in evidence.attempts if attempt.outcome == "LOST"]
    verdict_s = max(((attempt.finished_at - killed_ms) / 1000 for attempt in lost), default=0.0)
    problems = [] if lost else ["the worker had nothing that could be lost"]
    if verdict_s > _SETTINGS.resume_grace_s + 1.0:
        problems.append(f"its work was moved {verdict_s:.1f} s after the kill")
    cluster.judge(evidence, lambda attempt: _of_the_killed(attempt, victim.name, killed_ms), *problems)
    return {
        "moved": len(lost),
        "moved_after_s": verdict_s,
        "back_at_work_s": first.at_s - started_s,
        "undelivered": sum(not_run(attempt) for attempt in evidence.attempts),
        "tasks": len(evidence.tasks),
    }


def _of_the_killed(attempt: Attempt, victim: str, killed_ms: int) -> str | None:
    if attempt.worker_id != victim:
        return "its worker was not the one that was killed"
    if attempt.finished_at < killed_ms:
        return "its worker was not killed yet"
    return None if attempt.outcome == "LOST" or not_run(attempt) else "its worker was killed, no more"


def stop_a_worker(cluster: RoundCluster, pause_s: tuple[float, float]) -> dict[str, float]:
    """One round with a pause between the two bounds; returns its figures, raises `RoundFailed`."""
    rng = cluster.rng
    cluster.begin()
    victim = rng.choice(cluster.workers)
    time.sleep(rng.uniform(0.0, _UNDER_LOAD_S))
    victim.signal(signal.SIGSTOP)
    stopped_s = time.monotonic()
    try:
        paused_s = rng.uniform(*pause_s)
        time.sleep(paused_s)
    finally:
        continued_s = time.monotonic()
        victim.signal(signal.SIGCONT)

    def is_back() -> bool:
        return cluster.first_start(lambda line: line.worker == victim.name and line.at_s > continued_s) is not None

    cluster.wait(is_back, f"{victim.name} to work again", _BACK_S)
    first = cluster.first_start(lambda line: line.worker == victim.name and line.at_s > continued_s)
    assert first is not None
    evidence = cluster.finish()
    moved = _moved(evidence)
    stale = [log for log in evidence.logs if log.kind == "STALE"]
    problems = [f"{log.message}, though none was closed" for log in stale if (log.task_id, log.attempt) not in moved]
    if moved and not stale:
        problems.append(f"{len(moved)} attempts were closed by the core, and no late result was noticed")
    stopped_ms = wall_ms(stopped_s)
    cluster.judge(evidence, lambda attempt: _of_the_stopped(attempt, victim.name, stopped_ms), *problems)
    return {
        "paused_s": continued_s - stopped_s,
        "moved": len(moved),
        "stale": len(stale),
        "back_at_work_s": first.at_s - continued_s,
        "not_run": sum(not_run(attempt) for attempt in evidence.attempts),
        "tasks": len(evidence.tasks),
    }


def _moved(evidence: Evidence) -> set[tuple[str, int]]:
    return {
        (attempt.task_id, attempt.number)
        for attempt in evidence.attempts
        if attempt.started_at is not None or attempt.outcome not in ("UNDELIVERED", "REJECTED")
    }


def _of_the_stopped(attempt: Attempt, victim: str, stopped_ms: int) -> str | None:
    if attempt.worker_id != victim:
        return "its worker was not the one that stood still"
    if attempt.finished_at < stopped_ms:
        return "its worker did not stand still yet"
    return None if attempt.outcome in ("TIMEOUT", "LOST") or not_run(attempt) else "its worker stood still, no more"
