"""The faults of a scenario: which kinds there are, and how they are drawn."""

import random
from dataclasses import dataclass
from enum import StrEnum

from dsched.model.task import TaskState

__all__ = ["CORE_KINDS", "STORE_KINDS", "WAITING", "WORKER_KINDS", "Fault", "FaultKind", "draw_faults"]

WAITING = "PENDING (retry)"
"""The state of a task that waits for a retry, beside those of `TaskState`."""


class FaultKind(StrEnum):
    """What can go wrong, by its name in the table of coverage."""

    CORE_RESET = "core killed, reset"
    CORE_CLOSE = "core killed, closed"
    CORE_SILENT = "core host gone"
    CORE_STOP = "core stopped in order"
    CORE_PAUSE = "core paused"
    CORE_CLOCK = "core clock stepped"
    CORE_BEFORE_STORE = "core killed before a store call"
    CORE_AFTER_STORE = "core killed after a store call"
    CORE_ISOLATED = "core isolated"
    STORE_FAIL = "store call failed"
    STORE_LOST = "store answer lost"
    STORE_HANG_BEFORE = "store hung before"
    STORE_HANG_AFTER = "store hung after"
    STORE_AWAY = "store away for a core"
    STORE_AWAY_ALL = "store away for all"
    STORE_REFUSES_NEW = "new row refused"
    STORE_REFUSES_SET = "changed row refused"
    WORKER_KILLED = "worker killed"
    WORKER_SILENT = "worker host gone"
    WORKER_BOUNCED = "worker killed, back at once"
    WORKER_PAUSE = "worker paused"
    WORKER_DRAINED = "worker drained"
    WORKER_CLOCK = "worker clock stepped"
    WORKER_ISOLATED = "worker isolated"
    CUT = "connection cut"
    HALF_OPEN_CORE = "core's end gone"
    HALF_OPEN_WORKER = "worker's end gone"
    STALL_TO_CORE = "stalled to core"
    STALL_TO_WORKER = "stalled to worker"
    PARTITION = "partition"
    PARTITION_TO_CORE = "partition to core"
    PARTITION_TO_WORKER = "partition to worker"


_K = FaultKind
CORE_KINDS = frozenset(kind for kind in FaultKind if kind.name.startswith("CORE_"))
STORE_KINDS = frozenset(kind for kind in FaultKind if kind.name.startswith("STORE_"))
WORKER_KINDS = frozenset(FaultKind) - CORE_KINDS - STORE_KINDS

_STEPS_S = (1.0, -1.0, 3_600.0, -3_600.0, 86_400.0, -86_400.0)
_AIMS = (
    TaskState.PENDING.value,
    WAITING,
    TaskState.DISPATCHED.value,
    TaskState.DISPATCHED.value,
    TaskState.RUNNING.value,
    TaskState.CANCELLING.value,
    TaskState.CANCELLING.value,
)
KINDS = tuple(FaultKind)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault at `at_s`, or, if it aims at a task state, when a task next enters it (ten minutes later at the
    latest).

    `core` and `worker` are numbers of nodes; `at_leader` takes the leader of that moment instead of `core`. `amount_s`
    is how long it lasts, how long a process stays dead, or by how much a clock steps. `delay_s` follows the aim.
    """

    at_s: float
    kind: FaultKind
    core: int
    worker: int
    at_leader: bool
    amount_s: float
    aim: str | None
    delay_s: float


def draw_faults(rng: random.Random, span_s: float, *, cores: int, workers: int) -> list[Fault]:
    """Return at least 20 faults an hour, by time, none in the first seconds."""
    count = max(1, round(rng.randint(26, 42) * span_s / 3600))
    return sorted((_fault(rng, span_s, cores, workers) for _ in range(count)), key=lambda fault: fault.at_s)


def _fault(rng: random.Random, span_s: float, cores: int, workers: int) -> Fault:
    kind = rng.choice(KINDS)
    aim = rng.choice(_AIMS) if rng.random() < 0.6 else None
    return Fault(
        rng.uniform(10, span_s),
        kind,
        rng.randrange(cores),
        rng.randrange(workers),
        rng.random() < 0.7,
        _amount_s(rng, kind),
        aim,
        rng.choice((0.0, rng.uniform(0, 0.01), rng.uniform(0, 0.1))),
    )


def _amount_s(rng: random.Random, kind: FaultKind) -> float:
    if kind in (_K.CORE_CLOCK, _K.WORKER_CLOCK):
        return rng.choice(_STEPS_S)
    if kind in (_K.CORE_PAUSE, _K.WORKER_PAUSE, _K.STORE_AWAY):
        return 10 ** rng.uniform(-1, 2.08)  # 0.1 to 120 s
    if kind in (_K.STORE_HANG_BEFORE, _K.STORE_HANG_AFTER):
        return 10 ** rng.uniform(-1, 1.7)
    if kind is _K.STORE_AWAY_ALL:
        return 10 ** rng.uniform(-1, 2.3)
    if kind in (_K.STORE_REFUSES_NEW, _K.STORE_REFUSES_SET):
        return 10 ** rng.uniform(-1, 1)
    if kind in (_K.CUT, _K.WORKER_BOUNCED):
        return 0.0
    return 10 ** rng.uniform(-1, 2)
