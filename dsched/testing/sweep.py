"""Every crash point of a small workload, one run each.

A first run without faults counts what there is: the calls of the core to its store, and the pieces that the core and
the workers hand to their kernels. Then each of these is the place of one fault: the core dies before or after a store
call, the answer of the call is lost, or whoever sends dies just before. Every run must end with everything terminal,
and with every invariant kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from dsched.errors import StoreUnavailable
from dsched.store.memory import MemoryStore
from dsched.testing.plan import Mode, Plan
from dsched.testing.scenario import Scenario
from dsched.testing.sim_node import SimNode
from dsched.testing.sim_threads import Crash, FailAfter, ThreadCall, ThreadFault
from dsched.testing.sim_transport import SimTransport
from dsched.testing.workload import JobPlan, Request, RequestKind
from dsched.testing.world import SimWorld

__all__ = ["WORKLOADS", "CrashPoint", "Place", "Sweep"]

DEAD_S = 2.0


class Place(StrEnum):
    """Where the one fault of a run is."""

    BEFORE_STORE = "core dies before store call"
    AFTER_STORE = "core dies after store call"
    ANSWER_LOST = "answer lost of store call"
    CORE_SENDS = "core dies before it sends"
    WORKER_SENDS = "worker dies before it sends"


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The fault of one run: the `number`-th occasion of its kind."""

    place: Place
    number: int


def _job(name: str, **fields: object) -> JobPlan:
    body = {"name": name, "handler": "work", "timeout": 5, "retries": 2, "retry_backoff": 1, **fields}
    return JobPlan(name, 2.0, None, body)


def _plan(seed: int, jobs: Sequence[JobPlan], requests: Sequence[Request], span_s: float = 12.0) -> Plan:
    clocks = ((0, 0.0),) * 3
    return Plan(seed, Mode.LIVENESS, span_s, (2, 2), None, False, False, clocks, tuple(jobs), tuple(requests), ())


def _asked(at_s: float, kind: RequestKind, *runs: tuple[str, str | None, dict[str, object]]) -> Request:
    return Request(at_s, kind, runs)


_TRIGGER, _CANCEL, _BULK = RequestKind.TRIGGER, RequestKind.CANCEL, RequestKind.BULK

WORKLOADS: dict[str, Plan] = {
    "sharded": _plan(1, [_job("a", sharding_total=4)], [_asked(4.0, _TRIGGER, ("a", "k1", {}))]),
    "firing": _plan(2, [_job("a", trigger={"type": "interval", "seconds": 3}, sharding_total=2)], [], 12.0),
    "cancelled": _plan(
        3,
        [_job("a", sharding_total=3)],
        [
            _asked(4.0, _TRIGGER, ("a", "k1", {})),
            _asked(4.03, _CANCEL, ("a", "k1", {})),
            _asked(6.0, _TRIGGER, ("a", "k2", {})),
            _asked(6.5, _CANCEL, ("a", "k2", {})),
        ],
    ),
    "repeated": _plan(
        4,
        [_job("a")],
        [
            _asked(4.0, _TRIGGER, ("a", "k1", {"params": 1})),
            _asked(4.0, _TRIGGER, ("a", "k1", {"params": 1})),
            _asked(4.001, _TRIGGER, ("a", "k1", {"params": 2})),
            _asked(8.0, _TRIGGER, ("a", "k1", {"params": 1})),
        ],
    ),
    "bulk": _plan(
        5,
        [_job("a", retries=0), _job("b", sharding_total=2)],
        [_asked(4.0, _BULK, ("a", "k1", {}), ("b", "k2", {}), ("a", None, {}))],
    ),
    "deleted": _plan(
        6,
        [replace(_job("a", trigger={"type": "interval", "seconds": 2}), delete_at_s=9.0), _job("b")],
        [_asked(5.0, _TRIGGER, ("b", "k1", {}))],
    ),
}


class Sweep:
    """The crash points of one workload, with one core and two workers."""

    def __init__(self, workload: str) -> None:
        self.workload = workload
        self._plan = WORKLOADS[workload]
        self._counts: dict[Place, int] = {}

    def points(self) -> Iterator[CrashPoint]:
        """Yield every crash point, after a run without any."""
        self._run(None)
        counts = dict(self._counts)
        for place in Place:
            for number in range(1, counts.get(place, 0) + 1):
                yield CrashPoint(place, number)

    def run(self, point: CrashPoint) -> None:
        """Run the workload with one fault; raises `AssertionError` for whatever is wrong."""
        self._run(point)

    def _run(self, point: CrashPoint | None) -> None:
        self._counts = {}
        world = SimWorld(self._plan.seed, replay=f"Sweep({self.workload!r}).run({point})")
        scenario = Scenario(world, self._plan, MemoryStore(), cores=1)
        cluster = scenario.cluster

        def is_here(place: Place) -> bool:
            self._counts[place] = self._counts.get(place, 0) + 1
            return point is not None and point.place is place and point.number == self._counts[place]

        def die(node: SimNode) -> None:
            world.trace.record("crash point", node=node.name)
            scenario.world.reactor.callLater(DEAD_S, cluster.injector.restart, node)

        def judge(call: ThreadCall) -> ThreadFault | None:
            if call.function.endswith((".open", ".close")) or world.reactor.seconds() > self._plan.span_s:
                return None
            node = world.nodes[call.node]
            fault: ThreadFault | None = None
            if is_here(Place.BEFORE_STORE):
                fault = Crash(before=True)
            if is_here(Place.AFTER_STORE):
                fault = Crash()
            if is_here(Place.ANSWER_LOST):
                cluster.invariants.disturb(call.node, world.reactor.seconds() + 10.0)
                return FailAfter(StoreUnavailable("the answer was lost"))
            if fault is not None:
                die(node)
            return fault

        def sends(transport: SimTransport, data: bytes) -> None:
            if world.reactor.seconds() > self._plan.span_s:
                return
            place = Place.CORE_SENDS if transport.side == "server" else Place.WORKER_SENDS
            if is_here(place):
                die(transport.node)
                transport.node.crash()

        cluster.more_hooks.append(judge)
        world.network.write_hooks.insert(0, sends)
        with world:
            scenario.run()
