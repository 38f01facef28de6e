"""The worker's capacity: what runs, what waits for a slot, and when time is up.

A slot is held by a coroutine, or by a thread with the chunk of short attempts that it was given; either way at most
`size` handlers run at the same time. Nothing here is done per attempt that a batch can share: attempts that end
within one sweep cost no timer and no STARTED.
"""

from collections import deque
from collections.abc import Callable, Iterator

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from dsched.clock import Clock
from dsched.wire.encoding import replace
from dsched.wire.messages import Request, Response
from dsched.worker import results
from dsched.worker.attempt import Attempt
from dsched.worker.executor.coroutine import CoroutineExecutor
from dsched.worker.executor.thread import ThreadExecutor
from dsched.worker.handlers import HandlerRegistry
from dsched.worker.settings import MAX_PREFETCH

__all__ = ["Slots"]

SWEEP_S = 0.02
"""How soon after its start a handler that still runs is announced."""

CHUNK_MS = 2.0
"""Work that is given to a thread in one piece, as far as the last durations of the handlers tell."""

CHUNK_ATTEMPTS = 128

_WEIGHT_OF_LAST = 0.1


class Slots:
    """Takes requests, runs them, and reports through three callbacks, each called with a batch.

    `on_started` gets attempts that have begun to run; `on_results` gets responses, one per attempt that was taken or
    rejected; `on_released` one per attempt that had timed out and whose handler has returned since. Everything is
    called in the reactor's thread. Call `run_waiting` after a batch of `take`.
    """

    log = Logger()

    def __init__(
        self,
        size: int,
        worker_id: str,
        handlers: HandlerRegistry,
        clock: Clock,
        *,
        on_started: Callable[[list[Attempt]], None],
        on_results: Callable[[list[Response]], None],
        on_released: Callable[[list[Response]], None],
    ) -> None:
        self.size = size
        self.attempts: dict[str, Attempt] = {}
        """The newest attempt of each task that waits or runs; also what is closed and has not returned."""
        self._worker_id = worker_id
        self._handlers = handlers
        self._clock = clock
        self._on_started = on_started
        self._on_results = on_results
        self._on_released = on_released
        self._threads = ThreadExecutor(size, clock, self.collect)
        self._coroutines = CoroutineExecutor(clock, self._coroutine_done)
        self._waiting: deque[Attempt] = deque()
        self._running: dict[Attempt, None] = {}  # In order. Announced and not returned; never more than `size`.
        self._overdue = 0  # How many of these are closed: they hold a slot for nothing.
        self._mean_ms: dict[str, float] = {}
        self._ended: list[Response] = []
        self._released: list[Response] = []
        self._is_pumping = False
        self._sweep_call: IDelayedCall | None = None
        self._timeout_call: IDelayedCall | None = None
        self._timeout_at = 0.0
        self._idle_waiters: list[Deferred[None]] = []

    @property
    def busy(self) -> int:
        """Return how many slots are held."""
        return self._threads.busy + self._coroutines.busy

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing waits or runs but handlers that have outlived their timeout."""
        return all(attempt.closed for attempt in self.attempts.values())

    def unreported(self) -> Iterator[Attempt]:
        """Iterate over the attempts whose end is yet to be reported."""
        return (attempt for attempt in self.attempts.values() if not attempt.closed)

    # What the session calls.

    def take(self, request: Request) -> Response | None:
        """Put a request into the queue; return the rejection if it cannot be taken.

        The attempt that is already here, sent again, is left alone. One that has timed out and not returned holds its
        slot, but is no reason against the next.
        """
        known = self.attempts.get(request.task_id)
        if known is not None:
            if known.request.attempt == request.attempt:
                return None
            if not known.closed:
                return results.rejected(request, f"already running attempt {known.request.attempt}")
        declaration = self._handlers.get(request.handler)
        if declaration is None:
            return results.rejected(request, f"this worker has no handler {request.handler!r}")
        if self._overdue >= self.size:
            return results.rejected(request, self._stuck_text())
        if len(self.attempts) >= self.size + MAX_PREFETCH:
            return results.rejected(request, f"{len(self.attempts)} attempts are here already")
        attempt = Attempt(request, declaration, self._worker_id)
        self.attempts[request.task_id] = attempt
        self._waiting.append(attempt)
        return None

    def run_waiting(self) -> None:
        """Give the free slots to what waits, and report what ended meanwhile."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self._waiting and self.busy < self.size:
                self._start_next()
        finally:
            self._is_pumping = False
        self._report()

    def cancel(self, task_id: str, attempt_number: int, reason: str) -> None:
        """Drop an attempt that has not begun; ask one that runs to stop. Unknown ones are ignored."""
        attempt = self.attempts.get(task_id)
        if attempt is None or attempt.request.attempt != attempt_number:
            return
        if self._withdraw(attempt):
            self._end(attempt, results.cancelled(attempt.request, reason))
        elif not attempt.closed:
            attempt.cancelled = reason
            self._ask_to_stop(attempt)
        self._report()

    def hand_back(self, message: str) -> None:
        """Reject everything that has not begun."""
        back = list(self._waiting)
        self._waiting.clear()
        for lane in self._threads.lanes:
            back.extend(self._threads.take_back(lane))
        for attempt in back:
            self._end(attempt, results.rejected(attempt.request, message))
        self._report()

    def ask_all_to_stop(self) -> None:
        """Set `cancelled` on everything that is here, and cancel coroutines; whatever they return is reported.

        `hand_back` comes first where nothing more may begin.
        """
        for attempt in list(self.attempts.values()):
            self._ask_to_stop(attempt)
        self._report()

    def when_idle(self) -> Deferred[None]:
        """Return a Deferred that fires when nothing waits or runs whose end is yet to be reported."""
        if self.is_idle:
            return succeed(None)
        waiter: Deferred[None] = Deferred()
        self._idle_waiters.append(waiter)
        return waiter

    def stop(self) -> None:
        """Stop timers and let idle threads end."""
        self._clock.cancel(self._sweep_call)
        self._clock.cancel(self._timeout_call)
        self._sweep_call = self._timeout_call = None
        self._threads.stop()

    # Starting.

    def _start_next(self) -> None:
        attempt = self._waiting.popleft()
        if attempt.declaration.is_async:
            self._coroutines.start(attempt)
        else:
            self._threads.start(self._chunk_from(attempt))
        self._arm_sweep()

    def _chunk_from(self, first: Attempt) -> list[Attempt]:
        """Return `first` and as many short attempts behind it as are worth one trip to a thread."""
        waiting, mean_ms = self._waiting, self._mean_ms
        chunk = [first]
        expected_ms = mean_ms.get(first.declaration.handler, CHUNK_MS)
        while waiting and len(chunk) < CHUNK_ATTEMPTS:
            declaration = waiting[0].declaration
            expected_ms += mean_ms.get(declaration.handler, CHUNK_MS)
            if declaration.is_async or expected_ms > CHUNK_MS:
                break
            chunk.append(waiting.popleft())
        return chunk

    # Ending.

    def collect(self) -> None:
        """Take what threads have finished, report it, and fill the slots again."""
        for attempt, response in self._threads.collect():
            self._returned(attempt, response)
        self.run_waiting()

    def _coroutine_done(self, attempt: Attempt, response: Response) -> None:
        self._returned(attempt, response)
        # Inside `run_waiting` the loop goes on and reports at its end.
        self.run_waiting()

    def _returned(self, attempt: Attempt, response: Response) -> None:
        """A handler has really returned: its slot is free."""
        self._running.pop(attempt, None)
        if attempt.closed:
            self._overdue -= 1
            self._release(attempt.request)
            self._forget(attempt)
            return
        handler, duration_ms = attempt.declaration.handler, response.duration_ms or 0.0
        mean_ms = self._mean_ms.get(handler, duration_ms)
        self._mean_ms[handler] = mean_ms + (duration_ms - mean_ms) * _WEIGHT_OF_LAST
        if attempt.cancelled is not None:
            response = results.cancelled(attempt.request, attempt.cancelled, response)
        self._end(attempt, response)

    def _release(self, request: Request) -> None:
        for index, ended in enumerate(self._ended):
            if (ended.task_id, ended.attempt) == (request.task_id, request.attempt):
                # It returned as soon as it was asked to: there is nothing to tell twice.
                self._ended[index] = replace(ended, still_running=False)
                return
        self._released.append(results.released(request))

    def _end(self, attempt: Attempt, response: Response) -> None:
        attempt.closed = True
        self._ended.append(response)
        self._forget(attempt)

    def _forget(self, attempt: Attempt) -> None:
        if self.attempts.get(attempt.request.task_id) is attempt:
            del self.attempts[attempt.request.task_id]

    def _report(self) -> None:
        if self._is_pumping:
            return
        if self._ended:
            ended, self._ended = self._ended, []
            self._on_results(ended)
        if self._released:
            released, self._released = self._released, []
            self._on_released(released)
        if self._idle_waiters and self.is_idle:
            waiters, self._idle_waiters = self._idle_waiters, []
            for waiter in waiters:
                waiter.callback(None)

    def _withdraw(self, attempt: Attempt) -> bool:
        """Take back an attempt that has not begun."""
        try:
            self._waiting.remove(attempt)
            return True
        except ValueError:
            return not attempt.declaration.is_async and self._threads.withdraw(attempt)

    def _ask_to_stop(self, attempt: Attempt) -> None:
        attempt.context.cancel()
        if attempt.declaration.is_async:
            self._coroutines.cancel(attempt)

    # Time.

    def _arm_sweep(self) -> None:
        if self._sweep_call is None:
            self._sweep_call = self._clock.call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Announce what has begun and still runs, and free what waits behind it in a thread."""
        self._sweep_call = None
        self.collect()
        began = [attempt for attempt in self._coroutines.running if not attempt.is_announced]
        again = False
        for lane in self._threads.lanes:
            current = lane.current
            if current is None or current.started_s is None:
                again = True
                continue
            if not current.is_announced:
                began.append(current)
            back = self._threads.take_back(lane)
            self._waiting.extendleft(reversed(back))
            # If it has ended meanwhile, the next one may have been begun before it could be taken back.
            again = again or lane.current is not current
        self._announce([attempt for attempt in began if self.attempts.get(attempt.request.task_id) is attempt])
        if again:
            self._arm_sweep()
        self.run_waiting()

    def _announce(self, began: list[Attempt]) -> None:
        if not began:
            return
        for attempt in began:
            attempt.is_announced = True
            self._running[attempt] = None
        self._on_started(began)
        self._arm_timeout()

    def _arm_timeout(self) -> None:
        """Arm the one timer for the earliest deadline."""
        deadlines = [
            attempt.started_s + attempt.request.timeout
            for attempt in self._running
            if attempt.request.timeout and not attempt.closed and attempt.started_s is not None
        ]
        earliest = min(deadlines, default=None)
        if earliest is None or (self._timeout_call is not None and self._timeout_at <= earliest):
            return
        self._clock.cancel(self._timeout_call)
        self._timeout_at = earliest
        self._timeout_call = self._clock.call_later(earliest - self._clock.monotonic(), self._end_overdue)

    def _end_overdue(self) -> None:
        """Report TIMEOUT for what has run for too long; a thread cannot be killed, so its slot stays held."""
        self._timeout_call = None
        self.collect()  # Who has finished in time has not timed out.
        now_s = self._clock.monotonic()
        for attempt in list(self._running):
            limit_s = attempt.request.timeout
            if not limit_s or attempt.closed or attempt.started_s is None or now_s < attempt.started_s + limit_s:
                continue
            self._time_out(attempt, (now_s - attempt.started_s) * 1000)
        if self._overdue >= self.size:
            self.hand_back(self._stuck_text())
        self._arm_timeout()
        self._report()

    def _time_out(self, attempt: Attempt, duration_ms: float) -> None:
        request = attempt.request
        attempt.closed = True
        self._overdue += 1
        ended = results.timed_out(request, duration_ms)
        self._ended.append(ended if attempt.cancelled is None else results.cancelled(request, attempt.cancelled, ended))
        self.log.info(
            "attempt {attempt} of {task_id} timed out after {timeout_s} s",
            attempt=request.attempt,
            task_id=request.task_id,
            timeout_s=request.timeout,
        )
        self._ask_to_stop(attempt)

    def _stuck_text(self) -> str:
        return f"all {self.size} slots are held by handlers that have outlived their timeout"
