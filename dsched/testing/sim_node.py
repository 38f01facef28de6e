"""A simulated machine that runs one process: it can start, crash, be paused, and start again.

Every timer, connection and thread call belongs to one *life* of a node. A crash ends the life: nothing of it happens
any more and none of its code runs, not even `finally` blocks, since everything it held is kept until the world closes.
Code that was on the stack at that moment runs on to its return, but reaches nothing.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol, TypeVar

from twisted.internet.interfaces import IDelayedCall, IReactorFromThreads, IReactorTime
from zope.interface import implementer

from dsched.testing.sim_clock import CallOwner, SimCall, SimReactor, WallClock
from dsched.testing.trace import Trace

__all__ = ["CrashKind", "Life", "Resource", "SimNode"]

_T = TypeVar("_T")


class CrashKind(Enum):
    """What peers see of a crash: a reset, an orderly close (what a kernel often sends for a killed process), or
    nothing (the machine lost power)."""

    RESET = "reset"
    CLOSE = "close"
    SILENT = "silent"


class Resource(Protocol):
    """Something outside the process that must hear of its end: a connection, a port, a pool of threads."""

    def life_ended(self, kind: CrashKind) -> None:
        """Take note that the process is gone; no code of the process may run."""


@implementer(IReactorTime, IReactorFromThreads)
class Life(CallOwner):
    """The reactor that one life of a node sees; when the life has ended, it accepts everything and does nothing."""

    def __init__(self, reactor: SimReactor, name: str) -> None:
        super().__init__()
        self.name = name
        self.resources: dict[Resource, None] = {}
        self._reactor = reactor

    def seconds(self) -> float:
        """Return the simulated monotonic time."""
        return self._reactor.seconds()

    def callLater(self, delay: float, callable: Callable[..., Any], *args: object, **kw: object) -> SimCall:
        """Call `callable` after `delay` seconds, if this life lasts so long."""
        return self._reactor.call_for(self, delay, callable, args, kw)

    def callFromThread(self, callable: Callable[..., Any], *args: object, **kw: object) -> None:
        """Call `callable` at the next step."""
        self._reactor.call_next(self, callable, args, kw)

    def getDelayedCalls(self) -> list[IDelayedCall]:
        """Return the pending timers of this life, in the order they were armed; network events are not among them."""
        return [call for call in self.calls if not call.io]

    def call_io(self, delay_s: float, function: Callable[..., Any], *args: Any) -> SimCall:
        """Arm a network event of this life."""
        return self._reactor.call_for(self, delay_s, function, args, io=True)


class SimNode:
    """A machine with a name, an address, a wall clock and, while it is alive, one process.

    `reactor` is the reactor of the current life; pass it to the real code, and build everything of the process from
    it anew in each life (`start`). `powered` is False between a silent crash and the next start.
    """

    def __init__(
        self, reactor: SimReactor, trace: Trace, name: str, ip: str, *, skew_ms: int = 0, drift_ppm: float = 0.0
    ) -> None:
        self.name = name
        self.ip = ip
        self.wall = WallClock(reactor.seconds, skew_ms=skew_ms, drift_ppm=drift_ppm)
        self.lives = 1
        self.powered = True
        self.app: Any = None
        self.on_boot: list[Callable[[SimNode], None]] = []
        self.reactor = Life(reactor, name)
        self._sim = reactor
        self._trace = trace
        self._graveyard: list[Any] = []
        self._resume_call: SimCall | None = None

    def __repr__(self) -> str:
        return f"<SimNode {self.name} life {self.lives} {'alive' if self.alive else 'dead'}>"

    @property
    def alive(self) -> bool:
        """Whether the process exists, paused or not."""
        return self.reactor.alive

    @property
    def paused(self) -> bool:
        """Whether the process is stopped by `pause`."""
        return self.reactor.held is not None

    def start(self, factory: Callable[["SimNode"], _T]) -> _T:
        """Build the process by `factory(node)` and keep the result as `app`; after a crash this is a new life."""
        if not self.alive:
            self.reactor = Life(self._sim, self.name)
            self.lives += 1
        self.powered = True
        self._trace.record("start", node=self.name, life=self.lives)
        for hook in self.on_boot:
            hook(self)
        app = factory(self)
        self.app = app
        return app

    def crash(self, kind: CrashKind = CrashKind.RESET) -> None:
        """Kill the process at this instant, as kill -9 (or, when `SILENT`, a power cut) would; idempotent.

        Pending timers, Deferreds and buffers are gone; what a store has committed stays.
        """
        if not self.alive:
            return
        self._trace.record("crash", node=self.name, life=self.lives, how=kind.value)
        if self._resume_call is not None and self._resume_call.active():
            self._resume_call.cancel()
        self.powered = kind is not CrashKind.SILENT
        life = self.reactor
        resources = list(life.resources)
        self._graveyard.append((self._sim.drop(life), resources, self.app))
        life.resources.clear()
        self.app = None
        for resource in resources:
            resource.life_ended(kind)

    def pause(self, seconds: float | None = None) -> None:
        """Stop the process as SIGSTOP does, for `seconds` or until `resume`; its kernel still accepts connections."""
        if not self.alive or self.paused:
            return
        self._trace.record("pause", node=self.name)
        self._sim.hold(self.reactor)
        if seconds is not None:
            self._resume_call = self._sim.callLater(seconds, self.resume)

    def resume(self) -> None:
        """Let a paused process go on; timers and deliveries that came due meanwhile run now, late."""
        if not self.paused:
            return
        if self._resume_call is not None and self._resume_call.active():
            self._resume_call.cancel()
        self._trace.record("resume", node=self.name)
        self._sim.release(self.reactor)

    def forget(self) -> None:
        """End the life, if any, and drop all that ended lives held; for the end of the world."""
        self._sim.drop(self.reactor)
        self.reactor.resources.clear()
        self._graveyard.clear()
        self.app = None
