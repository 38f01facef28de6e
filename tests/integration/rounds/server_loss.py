"""A database server that is killed, halted or shut down under load: nothing moves, and then it goes on."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.integration.rounds.cluster import IN_FLIGHT, RoundCluster
from tests.integration.rounds.evidence import Attempt, without_cpu_s
from tests.integration.rounds.judge import not_run

__all__ = ["RESUMED_S", "lose_the_server"]

RESUMED_S = 5.0
"""So long after the server is back, at most, something is dispatched."""
_UNDER_LOAD_S = 1.5
_MORE = 0.4


@dataclass(frozen=True, slots=True)
class _Loss:
    in_flight: int
    away_s: float
    resumed_s: float
    starved_s: float


def lose_the_server(
    cluster: RoundCluster, outage_s: tuple[float, float], *, way: str = "kill", more: bool = False
) -> dict[str, float]:
    """One round: a SIGKILL, or "halt" (SIGSTOP), for a time between the two bounds.

    With `more` now and then the server is also halted or shut down in order, before that or after it. Returns its
    figures, raises `RoundFailed`.
    """
    rng, server = cluster.rng, cluster.server
    ways: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "kill": (server.kill, server.start),
        "halt": (server.freeze, server.resume),
        "shut down": (server.shut_down, server.start),
    }
    chosen = [way]
    if more and rng.random() < _MORE:
        chosen.insert(rng.randrange(2), rng.choice(("halt", "shut down")))
    cluster.begin()
    losses = [_lose(cluster, *ways[way], rng.choice((outage_s[0], rng.uniform(*outage_s)))) for way in chosen]
    time.sleep(rng.uniform(0.0, 1.0))
    evidence = cluster.finish()
    late = [
        f"dispatch went on {loss.resumed_s:.1f} s after the server was back, of which the core had no CPU for"
        f" {loss.starved_s:.1f} s"
        for loss in losses
        if loss.resumed_s - loss.starved_s > RESUMED_S
    ]
    cluster.judge(evidence, _may_close, *late)
    return {
        "in_flight": min(loss.in_flight for loss in losses),
        "kills": chosen.count("kill"),
        "halts": chosen.count("halt"),
        "shut_downs": chosen.count("shut down"),
        "away_s": max(loss.away_s for loss in losses),
        "resumed_s": max(loss.resumed_s for loss in losses),
        "starved_s": max(loss.starved_s for loss in losses),
        "tasks": len(evidence.tasks),
        "repeated_requests": cluster.load.repeated,
        "undelivered": sum(not_run(attempt) for attempt in evidence.attempts),
    }


def _lose(cluster: RoundCluster, leave: Callable[[], None], come_back: Callable[[], None], outage_s: float) -> _Loss:
    in_flight = 0
    while in_flight < IN_FLIGHT:
        time.sleep(cluster.rng.uniform(0.0, _UNDER_LOAD_S))
        cluster.wait_for_flight()
        if cluster.rng.random() < 0.5:
            # In the middle of a request, or just after its answer.
            cluster.load.is_asking.wait(1.0)
            time.sleep(cluster.rng.uniform(0.0, 0.01))
        in_flight, _ = cluster.store.in_flight()
    gone_s = time.monotonic()
    leave()
    # Requests that come now get no answer, or 503, and are repeated.
    cluster.load.insists = True
    time.sleep(outage_s)
    cluster.load.insists = False
    waited_s = without_cpu_s(cluster.cores[0].pid)
    come_back()
    back_s = time.monotonic()
    fence = cluster.store.highest_fence()
    cluster.wait(lambda: cluster.first_start(lambda line: line.fence > fence) is not None, "a dispatch")
    first = cluster.first_start(lambda line: line.fence > fence)
    assert first is not None
    starved_s = without_cpu_s(cluster.cores[0].pid) - waited_s
    return _Loss(in_flight, back_s - gone_s, first.at_s - back_s, starved_s)


def _may_close(attempt: Attempt) -> str | None:
    return "core and workers were well, and had each other"
