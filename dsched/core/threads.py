"""The threads that talk to the store: one writes, others read, so that no reader holds up a commit."""

from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.defer import Deferred
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
    """A pool of `size` threads that stay. Never the reactor's own pool, which name lookups share."""

    def __init__(self, reactor: Any, name: str, size: int = 1) -> None:
        self._reactor = reactor
        self._pool = ThreadPool(size, size, name)

    def run(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """Run `function(*args)` in a thread; what was asked first begins first.

        What is cancelled before it began never does.
        """
        done: Deferred[Any] = Deferred()

        def begin() -> Any:
            return None if done.called else function(*args)

        def tell(success: bool, result: Any) -> None:
            self._reactor.callFromThread(done.callback if success else done.errback, result)

        self._pool.callInThreadWithCallback(tell, begin)
        return done

    def start(self) -> None:
        """Start the threads."""
        if not self._pool.started:
            self._pool.start()

    def stop(self) -> None:
        """Stop the threads once they have done what they were given."""
        if self._pool.started and not self._pool.joined:
            self._pool.stop()
