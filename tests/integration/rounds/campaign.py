"""Many rounds of one kind, over several clusters side by side, and the figures of all of them."""

import json
import random
import re
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.integration.rounds.cluster import RoundCluster
from tests.integration.rounds.core_kill import kill_the_core
from tests.integration.rounds.leader_pause import pause_the_leader
from tests.integration.rounds.worker_loss import kill_a_worker, stop_a_worker

__all__ = ["Campaign", "Running", "campaigns", "start"]

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Campaign:
    """A kind of round. `shares` is over how many clusters its rounds are spread."""

    name: str
    play: Callable[[RoundCluster], Figures]
    shares: int
    cores: int = 1
    timeout_s: int = 30


def campaigns(*, long: bool) -> dict[str, Campaign]:
    """Return every campaign by the name that asks for it; `long` is with outages up to 10 s, pauses up to 90 s."""
    kill = partial(kill_the_core, outage_s=(0.0, 10.0 if long else 1.5))
    stop = partial(stop_a_worker, pause_s=(10.0, 90.0 if long else 25.0))
    pause = partial(pause_the_leader, pause_s=(15.0, 40.0 if long else 25.0))
    return {
        "core": Campaign("kill -9 of the core", kill, 4),
        "worker": Campaign("kill -9 of a worker", kill_a_worker, 4),
        "stop": Campaign("SIGSTOP of a worker", stop, 5, timeout_s=6),
        "leader": Campaign("SIGSTOP of the leader", pause, 5, cores=2),
    }


@dataclass(frozen=True, slots=True)
class Running:
    """Rounds that are being played."""

    campaign: Campaign
    shares: Sequence[Future[list[Figures]]]

    def summary(self) -> str:
        """Wait for the last round and return the figures as one line of JSON; raises what a round has raised."""
        rounds = [figures for share in self.shares for figures in share.result()]
        told: dict[str, object] = {"campaign": self.campaign.name, "rounds": len(rounds)}
        for name in rounds[0]:
            told[name] = _spread([figures[name] for figures in rounds])
        return json.dumps(told)


def start(campaign: Campaign, rounds: int, folder: Path, pool: ThreadPoolExecutor, seed: int) -> Running:
    """Spread rounds over clusters, each of which starts as soon as the pool has room."""
    shares = min(campaign.shares, rounds)
    counts = [rounds // shares + (number < rounds % shares) for number in range(shares)]
    name = re.sub(r"\W+", "-", campaign.name)
    return Running(
        campaign,
        [
            pool.submit(_play, campaign, count, folder / f"{name}-{number}", f"{seed}/{name}/{number}")
            for number, count in enumerate(counts)
        ],
    )


def _play(campaign: Campaign, rounds: int, folder: Path, seed: str) -> list[Figures]:
    rng = random.Random(seed)
    with RoundCluster(folder, rng, cores=campaign.cores, timeout_s=campaign.timeout_s) as cluster:
        return [campaign.play(cluster) for _ in range(rounds)]


def _spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    spread = {
        "min": ordered[0],
        "median": statistics.median(ordered),
        "p95": ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))],
        "max": ordered[-1],
        "sum": sum(ordered),
    }
    return {name: round(value, 3) for name, value in spread.items()}
