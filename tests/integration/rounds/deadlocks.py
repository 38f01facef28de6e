"""Deadlocks and waits for locks in one of twenty transactions of three cores, of which another one leads at times."""

import random
import time
from collections.abc import Callable

from tests.integration.rounds.cluster import RoundCluster
from tests.integration.rounds.evidence import Attempt, Evidence
from tests.integration.rounds.judge import not_run
from tests.integration.rounds.lock_thief import LockThief
from tests.integration.rounds.stores import StoreServer

__all__ = ["meet_deadlocks"]

SHARE = 0.05
_HOLD_S = (13.0, 18.0)
"""Longer than a leader may be silent."""
_POLL_S = 0.1
_LIMIT_S = 300.0
_TAKEN_S = 30.0


def meet_deadlocks(cluster: RoundCluster, transactions: int, *, may_take_long: bool) -> dict[str, float]:
    """One round of so many commits; returns its figures, raises `RoundFailed`.

    In the middle of it the leader hands over, or with `may_take_long` may also be killed, or be kept from its rows
    for so long that another core takes over.
    """
    rng = cluster.rng
    assert isinstance(cluster.store, StoreServer)
    cluster.begin()
    thief = LockThief(cluster.server, cluster.store.database, SHARE, random.Random(rng.random()))
    thief.start()
    epoch = cluster.store.leader().epoch
    leaderless_s = 0.0
    try:
        _wait_for(cluster, thief, transactions * rng.uniform(0.3, 0.7))
        change = rng.choice((_hand_over, _kill, _hold)) if may_take_long else _hand_over
        leaderless_s = change(cluster, thief)
        _wait_for(cluster, thief, transactions)
    finally:
        thief.stop()
    takeovers = cluster.store.leader().epoch - epoch
    evidence = cluster.finish()
    met = thief.deadlocks + thief.lock_waits
    problems = []
    if met < SHARE / 2 * thief.transactions:
        problems.append(f"only {met} of {thief.transactions} transactions met another one")
    cluster.judge(evidence, lambda attempt: _may_close(attempt, evidence), *problems)
    return {
        "transactions": thief.transactions,
        "deadlocks": thief.deadlocks,
        "lock_waits": thief.lock_waits,
        "takeovers": takeovers,
        "leaderless_s": leaderless_s,
        "tasks": len(evidence.tasks),
        "repeated_requests": cluster.load.repeated,
        "closed_not_run": sum(not_run(attempt) for attempt in evidence.attempts),
        "lost": sum(attempt.outcome == "LOST" for attempt in evidence.attempts),
    }


def _wait_for(cluster: RoundCluster, thief: LockThief, transactions: float) -> None:
    cluster.wait(
        lambda: thief.error is not None or thief.transactions >= transactions, f"{transactions:.0f} commits", _LIMIT_S
    )


def _hand_over(cluster: RoundCluster, thief: LockThief) -> float:
    return _replace(cluster, cluster.core.stop)


def _kill(cluster: RoundCluster, thief: LockThief) -> float:
    return _replace(cluster, cluster.core.kill)


def _replace(cluster: RoundCluster, end: Callable[[], object]) -> float:
    old, began_s = cluster.core, time.monotonic()
    end()
    cluster.wait(lambda: cluster.core is not old and cluster.core.client.leads(), "the next leader", _TAKEN_S)
    taken_s = time.monotonic()
    old.start()
    return taken_s - began_s


def _hold(cluster: RoundCluster, thief: LockThief) -> float:
    hold_s, began_s = cluster.rng.uniform(*_HOLD_S), time.monotonic()
    epoch = cluster.store.leader().epoch
    thief.hold(hold_s)
    while time.monotonic() < began_s + hold_s and cluster.store.leader().epoch == epoch:
        time.sleep(_POLL_S)
    return time.monotonic() - began_s


def _may_close(attempt: Attempt, evidence: Evidence) -> str | None:
    if not_run(attempt):
        return None
    if attempt.outcome != "LOST":
        return "no worker and no handler had a reason"
    back_ms = evidence.connected_ms[attempt.worker_id]
    if back_ms <= attempt.finished_at:
        return f"its worker was back {(attempt.finished_at - back_ms) / 1000:.2f} s before, and had it"
    return None
