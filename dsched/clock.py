"""The one owner of timers: monotonic durations, wall time for people, supervised loops.

Nothing else calls `reactor.callLater` or makes a `LoopingCall`. A raw `LoopingCall` dies silently at the first
exception, and an untracked `callLater` outlives a shutdown; both have bitten schedulers before.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from dsched.model.instant import Moment

__all__ = ["Clock", "Loop"]

T = TypeVar("T")


class Loop:
    """A periodic call that survives its own errors: a failure is logged and counted, and the next tick comes."""

    log = Logger()

    def __init__(self, reactor: Any, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.name = name
        self.failures = 0
        self._function = function
        self._args = args
        self._call = LoopingCall(self._tick)
        self._call.clock = reactor

    def _tick(self) -> Deferred[Any]:
        return maybeDeferred(self._function, *self._args).addErrback(self._failed)

    def _failed(self, failure: Any) -> None:
        self.failures += 1
        self.log.failure("the periodic call {name} failed", failure, name=self.name)

    def start(self, interval_s: float, *, at_once: bool) -> None:
        self._call.start(interval_s, now=at_once)

    def stop(self) -> None:
        """End the loop; idempotent."""
        if self._call.running:
            self._call.stop()


class Clock:
    """Time and timers of one process.

    `reactor` gives monotonic seconds and `callLater` (the roles replace `reactor.seconds` by `time.monotonic`);
    `wall` gives seconds since 1970 and is read for people and for the store only.
    """

    log = Logger()

    def __init__(self, reactor: Any, wall: Callable[[], float] = time.time) -> None:
        self.reactor = reactor
        self._wall = wall
        self._calls: set[IDelayedCall] = set()
        self._loops: set[Loop] = set()

    def monotonic(self) -> float:
        """Return seconds that only grow."""
        return float(self.reactor.seconds())

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 in UTC; may jump in both directions."""
        return int(self._wall() * 1000)

    def moment(self) -> Moment:
        """Return both readings, taken together once per event."""
        return Moment(self.monotonic(), self.wall_ms())

    def call_later(self, delay_s: float, function: Callable[..., Any], *args: Any) -> IDelayedCall:
        """Call `function(*args)` after `delay_s`; a failure of it, also of its Deferred, is logged."""
        call: IDelayedCall

        def run() -> None:
            self._calls.discard(call)
            maybeDeferred(function, *args).addErrback(self._failed)

        call = self.reactor.callLater(max(0.0, delay_s), run)
        self._calls.add(call)
        return call

    def cancel(self, call: IDelayedCall | None) -> None:
        """Cancel a call made by `call_later`; idempotent, and None is allowed."""
        if call is not None and call in self._calls:
            self._calls.discard(call)
            if call.active():
                call.cancel()

    def is_pending(self, call: IDelayedCall) -> bool:
        """Tell whether a call made by `call_later` has neither run nor been cancelled."""
        return call in self._calls

    def sleep(self, delay_s: float) -> Deferred[None]:
        """Return a Deferred that fires after `delay_s`; cancelling it cancels the timer."""
        done: Deferred[None] = Deferred(lambda _: self.cancel(call))
        call = self.call_later(delay_s, done.callback, None)
        return done

    async def within(self, answer: Deferred[T], limit_s: float) -> T:
        """Return the answer; after `limit_s` cancel it and raise `TimeoutError`."""
        if answer.called:
            return await answer
        timer = self.call_later(limit_s, answer.cancel)
        try:
            return await answer
        except CancelledError:
            if self.is_pending(timer):
                raise  # It was not our timer: whoever asked has gone.
            raise TimeoutError from None
        finally:
            self.cancel(timer)

    def every(
        self, interval_s: float, function: Callable[..., Any], *args: Any, name: str, at_once: bool = False
    ) -> Loop:
        """Call `function(*args)` each `interval_s` until the returned loop, or this clock, is stopped."""
        loop = Loop(self.reactor, name, function, args)
        self._loops.add(loop)
        loop.start(interval_s, at_once=at_once)
        return loop

    def stop(self) -> None:
        """Cancel every timer and loop made through this clock."""
        for loop in self._loops:
            loop.stop()
        self._loops.clear()
        for call in list(self._calls):
            self.cancel(call)

    def _failed(self, failure: Any) -> None:
        self.log.failure("a delayed call failed", failure)
