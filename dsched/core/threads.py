"""The two threads that talk to the store: one writes, one reads, so that no reader holds up a commit."""

from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

__all__ = ["PoolThreads", "Threads"]


class Threads(Protocol):
    """Runs blocking functions elsewhere. The simulator has an implementation of its own."""

    def run(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """Return a Deferred of what `function(*args)` returns or raises."""

    def start(self) -> None:
        """Begin to take work."""

    def stop(self) -> None:
        """End; waits for what runs."""


class PoolThreads:
    """A pool of one thread. Never the reactor's own pool, which name lookups share."""

    def __init__(self, reactor: Any, name: str) -> None:
        self._reactor = reactor
        self._pool = ThreadPool(1, 1, name)

    def run(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """Run `function(*args)` in the thread; what was asked first runs first."""
        return deferToThreadPool(self._reactor, self._pool, function, *args)

    def start(self) -> None:
        """Start the thread."""
        if not self._pool.started:
            self._pool.start()

    def stop(self) -> None:
        """Stop the thread once it has done what it was given."""
        if self._pool.started and not self._pool.joined:
            self._pool.stop()
