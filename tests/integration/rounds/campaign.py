"""Many rounds of one kind, over several clusters side by side, and the figures of all of them."""

import json
import random
import re
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tests.integration.rounds.cluster import RoundCluster
from tests.integration.rounds.core_kill import kill_the_core
from tests.integration.rounds.deadlocks import meet_deadlocks
from tests.integration.rounds.leader_pause import pause_the_leader
from tests.integration.rounds.server_loss import lose_the_server
from tests.integration.rounds.worker_loss import kill_a_worker, stop_a_worker
from tests.integration.rounds.worker_restart import restart_a_worker_in_an_outage

__all__ = ["Campaign", "Running", "Share", "campaigns", "start"]

Figures = dict[str, float]

MAX_FAILURES = 5
"""So many in one lane, and the rest of its rounds is not worth playing."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """A kind of round. `shares` is over how many clusters its rounds are spread.

    `on_server`: on MariaDB, whatever store was asked for. `unit` is how much of what is counted makes one round.
    """

    name: str
    play: Callable[[RoundCluster], Figures]
    shares: int
    cores: int = 1
    timeout_s: int = 30
    on_server: bool = False
    unit: int = 1


def campaigns(*, long: bool) -> dict[str, Campaign]:
    """Return every campaign by the name that asks for it; `long` is with outages and pauses as long as production's."""
    kill = partial(kill_the_core, outage_s=(0.0, 10.0 if long else 1.5))
    stop = partial(stop_a_worker, pause_s=(10.0, 90.0 if long else 25.0))
    pause = partial(pause_the_leader, pause_s=(15.0, 40.0 if long else 25.0))
    server = partial(lose_the_server, outage_s=(0.0, 8.0 if long else 1.0), more=True)
    outage = partial(lose_the_server, outage_s=(120.0, 120.0) if long else (15.0, 15.0))
    halt = partial(lose_the_server, outage_s=(5.0, 60.0 if long else 15.0), way="halt")
    unit = 500 if long else 300
    deadlock = partial(meet_deadlocks, transactions=unit, may_take_long=long)
    return {
        "core": Campaign("kill -9 of the core", kill, 4),
        "worker": Campaign("kill -9 of a worker", kill_a_worker, 4),
        "restart": Campaign("kill -9 of a worker in an outage", restart_a_worker_in_an_outage, 2),
        "stop": Campaign("SIGSTOP of a worker", stop, 5, timeout_s=6),
        "leader": Campaign("SIGSTOP of the leader", pause, 5, cores=2),
        "server": Campaign("kill -9 of the database server", server, 3, on_server=True),
        "halt": Campaign("SIGSTOP of the database server", halt, 3, on_server=True),
        "outage": Campaign("outage of the database server", outage, 2, on_server=True),
        "deadlock": Campaign("deadlocks", deadlock, 2, cores=3, on_server=True, unit=unit),
    }


@dataclass(slots=True)
class Share:
    """The rounds of one lane: the figures of those that went well, and what was wrong with the others."""

    figures: list[Figures]
    failures: list[str]


@dataclass(frozen=True, slots=True)
class Running:
    """Rounds that are being played."""

    campaign: Campaign
    shares: Sequence[Future[Share]]

    def summary(self) -> tuple[str, list[str]]:
        """Wait for the last round; return the figures as one line of JSON, and the failures."""
        shares = [share.result() for share in self.shares]
        rounds = [figures for share in shares for figures in share.figures]
        failures = [failure for share in shares for failure in share.failures]
        told: dict[str, object] = {"campaign": self.campaign.name, "rounds": len(rounds), "failed": len(failures)}
        for name in rounds[0] if rounds else ():
            told[name] = _spread([figures[name] for figures in rounds])
        return json.dumps(told), failures


def start(
    campaign: Campaign, asked: int, folder: Path, pool: ThreadPoolExecutor, seed: int, *, on_server: bool = False
) -> Running:
    """Spread rounds over clusters, each of which starts as soon as the pool has room; `on_server`: on MariaDB."""
    rounds = -(-asked // campaign.unit)
    shares = min(campaign.shares, rounds)
    counts = [rounds // shares + (number < rounds % shares) for number in range(shares)]
    name = re.sub(r"\W+", "-", campaign.name)
    campaign = replace(campaign, on_server=on_server or campaign.on_server)
    return Running(
        campaign,
        [
            pool.submit(_play, campaign, count, folder / f"{name}-{number}", f"{seed}/{name}/{number}")
            for number, count in enumerate(counts)
        ],
    )


def _play(campaign: Campaign, rounds: int, folder: Path, seed: str) -> Share:
    rng = random.Random(seed)
    share = Share([], [])
    while rounds > 0 and len(share.failures) < MAX_FAILURES:
        # A cluster of which a round has failed is in doubt: the next round gets a new one.
        place = folder / str(len(share.failures))
        try:
            with RoundCluster(
                place, rng, on_server=campaign.on_server, cores=campaign.cores, timeout_s=campaign.timeout_s
            ) as cluster:
                while rounds > 0:
                    rounds -= 1
                    share.figures.append(campaign.play(cluster))
        except Exception as error:
            share.failures.append(f"{type(error).__name__}: {error}")
    return share


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
