"""A simulated pool of threads: functions run at once, their answers come back later, and some never do."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dsched.testing.sim_clock import callable_name
from dsched.testing.sim_node import CrashKind, SimNode
from dsched.testing.trace import Trace

__all__ = ["Crash", "FailAfter", "FailBefore", "Hang", "SimThreads", "ThreadCall", "ThreadFault", "ThreadHook"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FailBefore:
    """The function does not run; the caller gets `error`."""

    error: Exception


@dataclass(frozen=True, slots=True)
class FailAfter:
    """The function runs, and its answer is lost: the caller gets `error`."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Hang:
    """The thread is stuck for `seconds` (may be infinite), before the function runs or after; then all is normal."""

    seconds: float
    before: bool = False


@dataclass(frozen=True, slots=True)
class Crash:
    """The process is killed just before the function runs, or just after it has run."""

    before: bool = False


ThreadFault = FailBefore | FailAfter | Hang | Crash


@dataclass(frozen=True, slots=True)
class ThreadCall:
    """What a hook judges by: `number` counts the calls of this pool from 1, over all its life."""

    pool: str
    node: str
    number: int
    function: str
    args: tuple[Any, ...]


ThreadHook = Callable[[ThreadCall], ThreadFault | None]


class _Job:
    __slots__ = ("args", "done", "function", "keep", "number")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], done: Deferred[Any]) -> None:
        self.function = function
        self.args = args
        self.done = done
        self.number = 0
        self.keep = True


class SimThreads:
    """Stands in for a pool of `size` threads of one life of a node; what is asked before `start` waits for it.

    A call runs synchronously as soon as a thread is free (at once, as a rule), and its Deferred fires `delay_s`
    later, drawn from the range, so that other events come between any two calls. Cancelling the Deferred does not
    stop the call, as with real threads. `hooks` are asked before each call; the first fault given is applied.
    """

    def __init__(
        self,
        node: SimNode,
        rng: random.Random,
        trace: Trace,
        *,
        name: str = "threads",
        size: int = 1,
        delay_s: tuple[float, float] = (0.0002, 0.01),
    ) -> None:
        self.name = name
        self.hooks: list[ThreadHook] = []
        self.calls = 0
        self._node = node
        self._owner = node.reactor
        self._rng = rng
        self._trace = trace
        self._free = 0
        self._size = size
        self._stopped = False
        self._delay_s = delay_s
        self._queue: deque[_Job] = deque()
        if self._owner.alive:
            self._owner.resources[self] = None

    def run(self, function: Callable[..., _T], *args: Any) -> Deferred[_T]:
        """Run `function(*args)` in a thread; the Deferred gives its result or its exception."""
        done: Deferred[_T] = Deferred()
        if not self._stopped:
            self._queue.append(_Job(function, args, done))
            self._start_waiting()
        return done

    def start(self) -> None:
        """Begin to take work; idempotent."""
        if not self._stopped:
            self._free, self._size = self._free + self._size, 0
            self._start_waiting()

    def stop(self) -> None:
        """Take nothing new: later calls are never answered, as by an ended pool. What was asked still runs."""
        self._stopped = True

    def life_ended(self, kind: CrashKind) -> None:
        """The process is gone; what waits for a thread never runs."""

    def _start_waiting(self) -> None:
        while self._free and self._queue and self._owner.alive:
            self._free -= 1
            self._start(self._queue.popleft())

    def _start(self, job: _Job) -> None:
        self.calls += 1
        job.number = self.calls
        fault = self._fault(job)
        if isinstance(fault, Crash) and fault.before:
            self._keep(job)
            self._node.crash()
        elif isinstance(fault, Hang) and fault.before:
            self._later(fault.seconds, self._work, job, None)
        else:
            self._work(job, fault)

    def _fault(self, job: _Job) -> ThreadFault | None:
        name = callable_name(job.function)
        call = ThreadCall(self.name, self._node.name, job.number, name, job.args)
        fault = next((fault for hook in self.hooks if (fault := hook(call)) is not None), None)
        kind = None if fault is None else type(fault).__name__
        job.keep = kind is not None or not name.endswith(".leader")  # A follower looks each second; that is no news.
        if job.keep:
            self._trace.record(
                "thread", node=self._node.name, pool=self.name, number=job.number, function=name, fault=kind
            )
        return fault

    def _work(self, job: _Job, fault: ThreadFault | None) -> None:
        result: Any
        if isinstance(fault, FailBefore):
            result = Failure(fault.error)
        else:
            try:
                result = job.function(*job.args)
            except Exception:
                result = Failure()
            if isinstance(fault, FailAfter):
                result = Failure(fault.error)
        if isinstance(fault, Crash):
            self._keep(job)
            self._node.crash()
            return
        stuck_s = fault.seconds if isinstance(fault, Hang) else 0.0
        self._later(stuck_s + self._rng.uniform(*self._delay_s), self._finish, job, result)

    def _finish(self, job: _Job, result: Any) -> None:
        self._free += 1
        if job.keep:
            outcome = type(result.value).__name__ if isinstance(result, Failure) else "ok"
            self._trace.record("answer", node=self._node.name, pool=self.name, number=job.number, outcome=outcome)
        job.done.callback(result)
        self._start_waiting()

    def _later(self, delay_s: float, function: Callable[..., None], job: _Job, extra: Any) -> None:
        self._owner.callLater(delay_s, function, job, extra)

    def _keep(self, job: _Job) -> None:
        self._queue.appendleft(job)  # a coroutine that waits for it must not be closed by the garbage collector
