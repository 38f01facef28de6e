"""A scenario as data: what a seed does to a cluster."""

import random
from dataclasses import dataclass, field
from enum import StrEnum

from dsched.engine.settings import EngineSettings
from dsched.testing.faults import Fault, draw_faults
from dsched.testing.workload import JobPlan, Request, draw_bursts, draw_jobs, draw_requests

__all__ = ["HOUR_S", "Mode", "Plan", "draw_plan"]

HOUR_S = 3600.0


class Mode(StrEnum):
    """Safety: faults until the end. Liveness: then all is healed, and everything accepted must end in time."""

    SAFETY = "safety"
    LIVENESS = "liveness"


@dataclass(frozen=True, slots=True)
class Plan:
    """All that happens to a cluster from outside, drawn from one seed; parts of it may be left out."""

    seed: int
    mode: Mode
    span_s: float
    slots: tuple[int, ...]
    plain: int | None
    same_host: bool
    sqlite: bool
    clocks: tuple[tuple[int, float], ...]
    jobs: tuple[JobPlan, ...]
    requests: tuple[Request, ...]
    faults: tuple[Fault, ...]
    settings: EngineSettings = field(default_factory=EngineSettings)


def draw_plan(seed: int, mode: Mode, hours: float = 1.0) -> Plan:
    """Return the plan of a seed."""
    rng = random.Random(f"{seed}/plan")
    span_s = HOUR_S * hours
    workers = 5
    jobs = draw_jobs(random.Random(f"{seed}/jobs"), span_s)
    requests = draw_requests(random.Random(f"{seed}/requests"), jobs, span_s)
    settings = _draw_settings(random.Random(f"{seed}/settings"))
    if settings != EngineSettings():
        requests += draw_bursts(random.Random(f"{seed}/bursts"), jobs, span_s)
        requests.sort(key=lambda request: request.at_s)
    return Plan(
        seed,
        mode,
        span_s,
        tuple(rng.choice((1, 2, 2, 4, 4, 8)) for _ in range(workers)),
        rng.randrange(workers) if rng.random() < 0.3 else None,
        rng.random() < 0.2,
        rng.random() < 0.03,
        tuple((rng.choice((0, 0, rng.randint(-5000, 5000))), rng.uniform(-200, 200)) for _ in range(3 + workers)),
        tuple(jobs),
        tuple(requests),
        tuple(draw_faults(random.Random(f"{seed}/faults"), span_s, cores=3, workers=workers)),
        settings,
    )


def _draw_settings(rng: random.Random) -> EngineSettings:
    """Return the defaults, or bounds so small that most of what waits does so in the store."""
    if rng.random() < 0.5:
        return EngineSettings()
    return EngineSettings(
        waiting_tasks=rng.choice((0, 2, 4, 8, 16, 30)),
        lane_tasks=rng.choice((1, 2, 4)),
        page_below=rng.choice((1, 2, 4)),
        page_tasks=rng.choice((1, 3, 5)),
    )
