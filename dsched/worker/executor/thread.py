"""Run `def` handlers in threads of the worker's own.

A trip to a thread and back costs as much as many small handlers, so threads are given chunks of attempts, and their
results come back through one deque and one wake-up of the reactor for as many as have gathered.

Never the reactor's own pool: a hung handler there would stop name resolution. All threads are daemons, so a hung
handler does not hold up the exit.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

from twisted.logger import Logger

from dsched.clock import Clock
from dsched.errors import BadJson
from dsched.wire.messages import Response
from dsched.worker import results
from dsched.worker.attempt import Attempt

__all__ = ["Lane", "ThreadExecutor"]

_WAKE_AFTER_MS = 0.5
"""A result of a handler that ran longer goes to the reactor at once; quicker ones gather to the end of the chunk."""


class Lane:
    """One thread and what it was given. `current` is what it runs now; the rest of `chunk` can still be taken back."""

    __slots__ = ("chunk", "current", "inbox", "is_busy", "thread")

    def __init__(self) -> None:
        self.inbox: SimpleQueue[bool] = SimpleQueue()
        self.chunk: deque[Attempt] = deque()
        self.current: Attempt | None = None
        self.is_busy = False  # Known to the reactor's thread only.
        self.thread: threading.Thread | None = None


class ThreadExecutor:
    """At most `size` threads, made when they are first needed.

    Everything is called in the reactor's thread. `on_done` is called there when results are waiting for `collect`.
    """

    log = Logger()

    def __init__(self, size: int, clock: Clock, on_done: Callable[[], Any]) -> None:
        self.busy = 0
        self._size = size
        self._clock = clock
        self._on_done = on_done
        self._lanes: list[Lane] = []
        self._idle: list[Lane] = []
        # Written by the threads: an attempt with its response, or a lane without a response when it has become idle.
        self._done: deque[tuple[Attempt | Lane, Response | None]] = deque()
        self._is_woken = False

    @property
    def lanes(self) -> Iterator[Lane]:
        """Iterate over the lanes that are busy."""
        return (lane for lane in self._lanes if lane.is_busy)

    def start(self, chunk: Sequence[Attempt]) -> None:
        """Let one thread run these attempts, one after another. The caller counts slots: `busy` is below `size`."""
        lane = self._idle.pop() if self._idle else self._open_lane()
        lane.is_busy = True
        self.busy += 1
        lane.chunk.extend(chunk)
        lane.inbox.put(True)

    def collect(self) -> list[tuple[Attempt, Response]]:
        """Return what has ended since the last call, and note which threads have become idle."""
        self._is_woken = False  # Before the deque is read: who appends after this wakes us again.
        ended: list[tuple[Attempt, Response]] = []
        done = self._done
        while done:
            source, response = done.popleft()
            if response is not None:
                ended.append((source, response))  # type: ignore[arg-type]
            else:
                self._rest(source)  # type: ignore[arg-type]
        return ended

    def take_back(self, lane: Lane) -> list[Attempt]:
        """Return what a lane has not begun, in order."""
        back: list[Attempt] = []
        try:
            while True:
                back.append(lane.chunk.pop())
        except IndexError:
            return back[::-1]

    def withdraw(self, attempt: Attempt) -> bool:
        """Take one attempt back; False when its handler has begun or ended."""
        for lane in self.lanes:
            try:
                lane.chunk.remove(attempt)
                return True
            except ValueError:
                continue
        return False

    def stop(self) -> None:
        """Let idle threads end; busy ones end when their handler returns, or with the process."""
        for lane in self._lanes:
            lane.inbox.put(False)
        self._lanes.clear()
        self._idle.clear()

    def _rest(self, lane: Lane) -> None:
        lane.is_busy = False
        self.busy -= 1
        self._idle.append(lane)

    def _open_lane(self) -> Lane:
        lane = Lane()
        name = f"dsched-job-{len(self._lanes)}"
        lane.thread = threading.Thread(target=self._work, args=(lane,), name=name, daemon=True)
        self._lanes.append(lane)
        lane.thread.start()
        return lane

    # In the lane's thread.

    def _work(self, lane: Lane) -> None:
        chunk, done = lane.chunk, self._done
        while lane.inbox.get():
            while True:
                try:
                    attempt = chunk.popleft()
                except IndexError:
                    break
                lane.current = attempt
                response = self._execute(attempt)
                lane.current = None
                done.append((attempt, response))
                if chunk and (response.duration_ms or 0.0) > _WAKE_AFTER_MS:
                    self._wake()
            done.append((lane, None))
            self._wake()

    def _execute(self, attempt: Attempt) -> Response:
        request, clock = attempt.request, self._clock
        try:
            began_s = attempt.begin(clock)
        except BadJson as error:
            return results.refused(request, "BadJson", f"the params are not JSON: {error}", 0.0)
        try:
            value = attempt.declaration.function(attempt.context)
            return results.succeeded(request, value, (clock.monotonic() - began_s) * 1000)
        except BaseException as error:  # SystemExit too: a handler does not end the worker.
            return results.failed(request, error, (clock.monotonic() - began_s) * 1000)

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._clock.reactor.callFromThread(self._woken)

    def _woken(self) -> None:
        try:
            self._on_done()
        except Exception:
            self.log.failure("the results of threads could not be handled")
