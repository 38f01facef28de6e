"""Run `async def` handlers in the reactor.

A coroutine that computes without awaiting blocks the reactor, and with it heartbeats and every other coroutine; such
work belongs in a `def`.
"""

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from dsched.clock import Clock
from dsched.errors import BadJson
from dsched.wire.messages import Response
from dsched.worker import results
from dsched.worker.attempt import Attempt

__all__ = ["CoroutineExecutor"]


class CoroutineExecutor:
    """Starts coroutines and tells `on_done(attempt, response)` how each ended, possibly before `start` returns."""

    log = Logger()

    def __init__(self, clock: Clock, on_done: Callable[[Attempt, Response], object]) -> None:
        self.running: dict[Attempt, None] = {}  # In the order of their starts.
        self._clock = clock
        self._on_done = on_done

    @property
    def busy(self) -> int:
        """Return how many run."""
        return len(self.running)

    def start(self, attempt: Attempt) -> None:
        """Run one."""
        self.running[attempt] = None
        deferred = attempt.deferred = Deferred.fromCoroutine(self._run(attempt))
        deferred.addErrback(self._failed)

    def cancel(self, attempt: Attempt) -> None:
        """Raise `CancelledError` inside, where it awaits; it may end at once, later, or not at all."""
        if attempt.deferred is not None:
            attempt.deferred.cancel()

    async def _run(self, attempt: Attempt) -> None:
        response = await self._execute(attempt)
        self.running.pop(attempt, None)
        attempt.deferred = None
        self._on_done(attempt, response)

    async def _execute(self, attempt: Attempt) -> Response:
        request, clock = attempt.request, self._clock
        try:
            began_s = attempt.begin(clock)
        except BadJson as error:
            return results.refused(request, "BadJson", f"the params are not JSON: {error}", 0.0)
        try:
            value = await attempt.declaration.function(attempt.context)
            return results.succeeded(request, value, (clock.monotonic() - began_s) * 1000)
        except GeneratorExit:
            raise
        except BaseException as error:  # SystemExit too: a handler does not end the worker.
            return results.failed(request, error, (clock.monotonic() - began_s) * 1000)

    def _failed(self, failure: Failure) -> None:
        self.log.failure("the end of a coroutine could not be handled", failure)
