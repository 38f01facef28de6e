"""Simulated time: a reactor that steps from one deadline to the next, and wall clocks that can be wrong.

Time never jumps over a deadline: a timer that arms another one sees its own due time, not the end of the interval.
Calls due at the same instant run in an order drawn from the seed, because real code may not rely on any.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from twisted.internet.interfaces import IDelayedCall, IReactorFromThreads, IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from zope.interface import implementer

__all__ = ["EPOCH_S", "CallOwner", "Livelock", "SimCall", "SimReactor", "WallClock", "callable_name"]

EPOCH_S = 1_767_225_600.0
"""Where wall clocks start: 2026-01-01T00:00:00Z."""

_PENDING, _CALLED, _CANCELLED = range(3)
_FIRST = -1.0  # sorts before every drawn tie


class Livelock(AssertionError):
    """Too many steps happened within one simulated second; the message names the busiest callables."""


def callable_name(function: Any) -> str:
    """Return a name that says which code runs, looking through `LoopingCall` and closures over `function`."""
    while True:
        if isinstance(function, LoopingCall):
            function = function.f
            continue
        code = getattr(function, "__code__", None)
        if code is not None and function.__closure__ and "function" in code.co_freevars:
            function = function.__closure__[code.co_freevars.index("function")].cell_contents
            continue
        break
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    label = getattr(getattr(function, "__self__", None), "name", None)
    return f"{name}({label})" if isinstance(label, str) else str(name)


class CallOwner:
    """Whose calls live, wait and die together: one life of a node.

    `held` is None while the owner runs, and the list of what came due while it is paused.
    """

    def __init__(self) -> None:
        self.alive = True
        self.calls: dict[SimCall, None] = {}
        self.held: list[SimCall] | None = None


@implementer(IDelayedCall)
class SimCall:
    """One delayed call. Its hash is its number, so that even a set of them has the same order in each run."""

    __slots__ = ("_entry", "_reactor", "_state", "_time", "args", "function", "io", "keywords", "number", "owner")

    def __init__(
        self,
        reactor: "SimReactor",
        due_s: float,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        owner: CallOwner | None,
        number: int,
        io: bool,
    ) -> None:
        self._reactor = reactor
        self._time = due_s
        self._state = _PENDING
        self._entry = -1
        self.function = function
        self.args = args
        self.keywords = keywords
        self.owner = owner
        self.number = number
        self.io = io

    def __hash__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"<SimCall {self.number} {callable_name(self.function)} at {self._time:.6f}>"

    def getTime(self) -> float:
        """Return when the call is due, in simulated seconds."""
        return self._time

    def active(self) -> bool:
        """Return whether the call is still to come."""
        return self._state == _PENDING

    def cancel(self) -> None:
        """Take the call back; raise `AlreadyCalled` or `AlreadyCancelled` when there is nothing to take back."""
        self._require_pending()
        self._state = _CANCELLED
        self._reactor._cancelled(self)

    def reset(self, secondsFromNow: float) -> None:
        """Move the deadline to `secondsFromNow` from now."""
        self._require_pending()
        self._move(self._reactor.seconds() + secondsFromNow)

    def delay(self, secondsLater: float) -> None:
        """Move the deadline by `secondsLater`, which may be negative."""
        self._require_pending()
        self._move(self._time + secondsLater)

    def _require_pending(self) -> None:
        if self._state == _CANCELLED:
            raise AlreadyCancelled
        if self._state == _CALLED:
            raise AlreadyCalled

    def _move(self, due_s: float) -> None:
        earlier = due_s < self._time
        self._time = due_s
        if earlier:  # a later deadline is noticed when the old one comes up
            self._reactor._push(self)


@implementer(IReactorTime, IReactorFromThreads)
class SimReactor:
    """Monotonic simulated time, and everything that happens in it, one step at a time.

    An exception from a call is logged, as the real reactor does, and the run goes on; one from an `after_step` hook
    ends the run. `step_limit` bounds the steps within one simulated second. `on_step(now_s, number)` is called before
    each step, for the trace.
    """

    log = Logger()

    def __init__(self, rng: random.Random, *, shuffle_ties: bool = True, step_limit: int = 200_000) -> None:
        self.steps = 0
        self.after_step: list[Callable[[], None]] = []
        self.on_step: Callable[[float, int], None] | None = None
        self.current: CallOwner | None = None
        self._random = rng.random
        self._shuffle_ties = shuffle_ties
        self._step_limit = step_limit
        self._now = 0.0
        self._heap: list[tuple[float, float, int, SimCall]] = []
        self._stale = 0
        self._numbers = 0
        self._entries = 0
        self._stepping = False
        self._window_start = 0.0
        self._window_steps = 0
        self._busiest: Counter[str] = Counter()

    def seconds(self) -> float:
        """Return the simulated monotonic time."""
        return self._now

    def callLater(self, delay: float, callable: Callable[..., Any], *args: object, **kw: object) -> SimCall:
        """Call `callable` after `delay` seconds, owned by no node."""
        return self.call_for(None, delay, callable, args, kw)

    def callFromThread(self, callable: Callable[..., Any], *args: object, **kw: object) -> None:
        """Call `callable` at the next step, before anything else that is due, in the order asked for."""
        self.call_next(None, callable, args, kw)

    def getDelayedCalls(self) -> list[IDelayedCall]:
        """Return every call that is still to come, earliest first; those that a paused node holds are left out."""
        waiting = [entry[3] for entry in self._heap if self._is_valid(entry)]
        waiting.sort(key=lambda call: (call.getTime(), call.number))
        return [*waiting]

    def call_for(
        self,
        owner: CallOwner | None,
        delay_s: float,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        keywords: dict[str, Any] | None = None,
        *,
        io: bool = False,
    ) -> SimCall:
        """Arm a call that is dropped or held with its owner; `io` marks network events, which a resumed node may see
        before or after its overdue timers."""
        if delay_s < 0:
            raise ValueError(f"{delay_s} is not a delay")
        self._numbers += 1
        call = SimCall(self, self._now + delay_s, function, args, keywords or {}, owner, self._numbers, io)
        if owner is None:
            self._push(call)
        elif owner.alive:  # what a dead owner arms never happens
            owner.calls[call] = None
            self._push(call)
        return call

    def call_next(
        self,
        owner: CallOwner | None,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        keywords: dict[str, Any] | None = None,
    ) -> None:
        """Queue a call for the next step."""
        if owner is not None and not owner.alive:
            return
        self._numbers += 1
        call = SimCall(self, self._now, function, args, keywords or {}, owner, self._numbers, False)
        if owner is not None:
            owner.calls[call] = None
        self._push(call, _FIRST)

    def hold(self, owner: CallOwner) -> None:
        """Pause an owner: what comes due waits until `release`."""
        if owner.alive and owner.held is None:
            owner.held = []

    def release(self, owner: CallOwner) -> None:
        """Let a paused owner go on: what is overdue runs late, timers in the order of their deadlines.

        Whether it first sees its timers, its network, or both mixed, is drawn from the seed, as it is open in reality.
        """
        held, owner.held = owner.held, None
        if not held:
            return
        order = self._random()
        for call in held:
            if call.io and call._state == _PENDING and order < 2 / 3:
                call._time = self._now if order < 1 / 3 else held[0]._time - 1e-9
            self._push(call)

    def drop(self, owner: CallOwner) -> list[SimCall]:
        """End an owner without running any of its code; returns the calls dropped, for whoever must keep them alive."""
        owner.alive = False
        owner.held = None
        dropped = list(owner.calls)
        owner.calls.clear()
        for call in dropped:
            call._state = _CANCELLED
        self._stale += len(dropped)
        return dropped

    def clear(self) -> None:
        """Forget every call without running it."""
        self._heap.clear()
        self._stale = 0

    def step(self) -> bool:
        """Run the one call that is due next, moving time to its deadline; return False when nothing is left."""
        return self._step_until(float("inf"))

    def advance_to_next(self) -> bool:
        """Go to the next deadline and run all that is due there; return False when nothing is left."""
        if not self._step_until(float("inf")):
            return False
        while self._step_until(self._now):
            pass
        return True

    def run_for(self, seconds: float) -> None:
        """Run everything that comes due within `seconds`, deadline by deadline, and end exactly there."""
        end_s = self._now + seconds
        while self._step_until(end_s):
            pass
        self._now = end_s

    def run_until(self, reached: Callable[[], bool], limit_s: float) -> bool:
        """Step until `reached()`, which is asked after each step, or for `limit_s`; return whether it was reached."""
        end_s = self._now + limit_s
        while not reached():
            if not self._step_until(end_s):
                self._now = end_s
                return reached()
        return True

    def _step_until(self, end_s: float) -> bool:
        if self._stepping:
            raise RuntimeError("simulated code cannot advance the time that it lives in")
        call = self._next(end_s)
        if call is None:
            return False
        owner = call.owner
        call._state = _CALLED
        if owner is not None:
            owner.calls.pop(call, None)
        self.steps += 1
        self._guard(call)
        if self.on_step is not None:
            self.on_step(self._now, call.number)
        self._stepping = True
        self.current = owner
        try:
            call.function(*call.args, **call.keywords)
        except Exception:
            self.log.failure("a delayed call raised: {name}", name=callable_name(call.function))
        finally:
            self.current = None
            self._stepping = False
        for hook in self.after_step:
            hook()
        return True

    def _next(self, end_s: float) -> SimCall | None:
        heap = self._heap
        while heap and heap[0][0] <= end_s:
            due_s, _, entry, call = heapq.heappop(heap)
            if call._state != _PENDING or call._entry != entry:
                self._stale = max(0, self._stale - 1)
            elif call._time > due_s:
                self._push(call)
            elif call.owner is not None and call.owner.held is not None:
                call.owner.held.append(call)
            else:
                self._now = max(self._now, due_s)
                return call
        return None

    def _push(self, call: SimCall, tie: float | None = None) -> None:
        if tie is None:
            tie = self._random() if self._shuffle_ties else 0.0
        self._entries += 1
        call._entry = self._entries
        heapq.heappush(self._heap, (call._time, tie, self._entries, call))

    def _cancelled(self, call: SimCall) -> None:
        if call.owner is not None:
            call.owner.calls.pop(call, None)
        self._stale += 1
        if self._stale > 1_000 and self._stale * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapq.heapify(self._heap)
            self._stale = 0

    @staticmethod
    def _is_valid(entry: tuple[float, float, int, SimCall]) -> bool:
        return entry[3]._state == _PENDING and entry[3]._entry == entry[2]

    def _guard(self, call: SimCall) -> None:
        if self._now - self._window_start >= 1.0:
            self._window_start = self._now
            self._window_steps = 0
            self._busiest.clear()
        self._window_steps += 1
        if self._window_steps > self._step_limit:
            self._busiest[callable_name(call.function)] += 1
            if self._window_steps > self._step_limit + 1_000:
                names = ", ".join(f"{name} {count} times" for name, count in self._busiest.most_common(5))
                raise Livelock(
                    f"more than {self._step_limit} steps within a second at t={self._now:.6f}; "
                    f"the last 1000 were: {names}"
                )


class WallClock:
    """The wall clock of one node: follows simulated time, with skew, drift, and steps in both directions."""

    def __init__(self, monotonic: Callable[[], float], *, skew_ms: int = 0, drift_ppm: float = 0.0) -> None:
        self._monotonic = monotonic
        self._offset_s = EPOCH_S + skew_ms / 1000
        self._rate = 1.0 + drift_ppm / 1_000_000

    def seconds(self) -> float:
        """Return seconds since 1970, as this node believes."""
        return self._offset_s + self._monotonic() * self._rate

    def step(self, ms: int) -> None:
        """Set the clock forward by `ms`, or back when negative."""
        self._offset_s += ms / 1000
