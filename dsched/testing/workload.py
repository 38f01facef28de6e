"""What people ask of a simulated cluster, and what their handlers do: all drawn from one seed, before the run begins.

A plan is data, so that a run can be repeated with parts of it left out.
"""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = [
    "Behaviour", "Conduct", "JobPlan", "Request", "RequestKind", "draw_bursts", "draw_conduct", "draw_jobs",
    "draw_requests",
]  # fmt: skip


class Behaviour(StrEnum):
    """What a handler does in one attempt."""

    INSTANT = "instant"
    QUICK = "quick"
    SLOW = "slow"
    RAISE = "raise"
    GIVE_UP = "give up"
    HANG = "hang"
    HUGE = "huge"
    NAN = "nan"


@dataclass(frozen=True, slots=True)
class Conduct:
    """A behaviour with how long it takes. A hang swallows the first cancellation and goes on for `seconds` after it."""

    behaviour: Behaviour
    seconds: float


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One job: when it is created and deleted (None: at the end), and its definition."""

    name: str
    create_at_s: float
    delete_at_s: float | None
    body: dict[str, Any]

    @property
    def timeout_s(self) -> int:
        return int(self.body["timeout"])


class RequestKind(StrEnum):
    """What a client asks for."""

    TRIGGER = "trigger"
    BULK = "bulk"
    CANCEL = "cancel"
    LOOK = "look"


@dataclass(frozen=True, slots=True)
class Request:
    """One request of one client, repeated by it until it has an answer.

    `runs` are (job, key, body) with key None where the client has none; a cancel and a look name the run by job and
    key of the first.
    """

    at_s: float
    kind: RequestKind
    runs: tuple[tuple[str, str | None, dict[str, Any]], ...]


_WEIGHTS = {
    Behaviour.INSTANT: 12,
    Behaviour.QUICK: 50,
    Behaviour.SLOW: 13,
    Behaviour.RAISE: 14,
    Behaviour.GIVE_UP: 3,
    Behaviour.HANG: 3,
    Behaviour.HUGE: 2,
    Behaviour.NAN: 2,
}
_BEHAVIOURS, _CHANCES = tuple(_WEIGHTS), tuple(_WEIGHTS.values())
LONGEST_HANG_S = 40.0

_PARAMS: tuple[Any, ...] = (
    None, "text", "", {"a": "x\0y"}, {"face": "\U0001f600", "big": 2**60 + 1}, [1, -1.5, True, None], 9007199254740993,
    {"deep": {"er": [[], {}, "\u2028"]}}, "é" * 300,
)  # fmt: skip


def draw_conduct(seed: int, task_id: str, attempt: int, timeout_s: int) -> Conduct:
    """Return what the handler of an attempt does: the same whoever runs it, and whatever else was left out."""
    rng = random.Random(f"{seed}/{task_id}/{attempt}")
    behaviour = rng.choices(_BEHAVIOURS, _CHANCES)[0]
    if behaviour is Behaviour.INSTANT:
        return Conduct(behaviour, 0.0)
    if behaviour is Behaviour.SLOW:
        return Conduct(behaviour, rng.uniform(0.5, 3.0 * (timeout_s or 10)))
    if behaviour is Behaviour.HANG:
        return Conduct(behaviour, rng.uniform(1.0, LONGEST_HANG_S))
    return Conduct(behaviour, 10 ** rng.uniform(-2.0, 0.7))


def draw_jobs(rng: random.Random, span_s: float) -> list[JobPlan]:
    """Return the jobs of a scenario: some fire by themselves, some wait for requests."""
    jobs = [_job(rng, f"asked{number}", None, span_s) for number in range(3)]
    busy = False
    for number in range(3):
        period_s = rng.choice((120, 200, 300, 600)) if busy else rng.choice((7, 15, 30, 60, 120, 300))
        busy = busy or period_s < 30
        jobs.append(_job(rng, f"every{number}", period_s, span_s))
    return jobs


def _job(rng: random.Random, name: str, period_s: float | None, span_s: float) -> JobPlan:
    most = 8 if period_s is None or period_s >= 300 else 3 if period_s >= 60 else 1
    body: dict[str, Any] = {
        "name": name,
        "handler": "work",
        "params": rng.choice(_PARAMS),
        "sharding_total": rng.randint(1, most),
        "timeout": rng.choice((2, 5, 10, 20, 0)) if period_s is None else rng.choice((2, 5, 10)),
        "retries": rng.randint(0, 3),
        "retry_backoff": rng.choice((0.5, 1, 2, 10)),
        "priority": rng.choice((0, 0, 0, 5, -5)),
    }
    if period_s is not None:
        body["trigger"] = {"type": "interval", "seconds": period_s}
    create_at_s = rng.uniform(0, 20) if rng.random() < 0.8 else rng.uniform(0, span_s / 2)
    delete_at_s = None if rng.random() < 0.8 else rng.uniform(create_at_s + 60, span_s)
    return JobPlan(name, create_at_s, delete_at_s, body)


def draw_bursts(rng: random.Random, jobs: list[JobPlan], span_s: float) -> list[Request]:
    """Return requests for many runs of one job at once, and cancels of some of them: more than the workers can take."""
    requests: list[Request] = []
    for number in range(max(1, round(12 * span_s / 3600))):
        at_s = rng.uniform(5, span_s)
        job = rng.choice(jobs[:3]).name
        runs: list[tuple[str, str | None, dict[str, Any]]] = [
            (job, f"b{number}-{index}", {"sharding_total": rng.choice((1, 1, 1, 3)), "params": rng.choice(_PARAMS)})
            for index in range(rng.randint(10, 40))
        ]
        requests.append(Request(at_s, RequestKind.BULK, tuple(runs)))
        for run in rng.sample(runs, rng.randint(0, 4)):
            after_s = rng.choice((rng.uniform(0, 0.1), rng.uniform(0, 3), rng.uniform(0, 40)))
            requests.append(Request(at_s + after_s, RequestKind.CANCEL, (run,)))
    return requests


def draw_requests(rng: random.Random, jobs: list[JobPlan], span_s: float) -> list[Request]:
    """Return what clients ask for, by time."""
    requests: list[Request] = []
    keys = 0

    def key() -> str:
        nonlocal keys
        keys += 1
        return f"k{keys}"

    def run(key: str | None) -> tuple[str, str | None, dict[str, Any]]:
        job = rng.choice(jobs[:3] if rng.random() < 0.9 else jobs)
        body: dict[str, Any] = {}
        if rng.random() < 0.6:
            body["params"] = rng.choice(_PARAMS)
        if rng.random() < 0.4:
            body["sharding_total"] = rng.randint(1, 8)
        return job.name, key, body

    for _ in range(round(40 * span_s / 3600)):
        at_s = rng.uniform(5, span_s)
        one = run(None if rng.random() < 0.15 else key())
        requests.append(Request(at_s, RequestKind.TRIGGER, (one,)))
        if one[1] is None:
            continue
        if rng.random() < 0.3:  # The same once more, at the same time, soon, or much later.
            again_s = at_s + rng.choice((0.0, rng.uniform(0, 0.1), rng.uniform(0, 600)))
            requests.append(Request(again_s, RequestKind.TRIGGER, (one,)))
        if rng.random() < 0.15:
            other = (one[0], one[1], {**one[2], "params": {"other": True}})
            requests.append(Request(at_s + rng.choice((0.0, rng.uniform(0, 60))), RequestKind.TRIGGER, (other,)))
        if rng.random() < 0.35:
            after_s = rng.choice((rng.uniform(0, 0.2), rng.uniform(0, 3), rng.uniform(0, 40)))
            requests.append(Request(at_s + after_s, RequestKind.CANCEL, (one,)))
        if rng.random() < 0.5:
            requests.append(Request(at_s, RequestKind.LOOK, (one,)))
    for _ in range(max(1, round(3 * span_s / 3600))):
        runs = tuple(run(key() if rng.random() < 0.9 else None) for _ in range(rng.randint(2, 12)))
        requests.append(Request(rng.uniform(5, span_s), RequestKind.BULK, runs))
    return sorted(requests, key=lambda request: request.at_s)
