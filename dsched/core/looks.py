"""Looks into the store on behalf of people, who are told in time when it does not answer."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred

from dsched.clock import Clock
from dsched.core.threads import Threads
from dsched.errors import StoreUnavailable

__all__ = ["READ_LIMIT_S", "Looks"]

T = TypeVar("T")

READ_LIMIT_S: Final = 5.0


class Looks:
    """Runs looks in the threads that read."""

    def __init__(self, reader: Threads, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock

    async def read(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return what the store says; raises `StoreUnavailable` when that takes too long."""
        return await self.told(self._reader.run(function, *args))

    async def told(self, answer: Deferred[T]) -> T:
        """Return an answer that the store has a part in; raises `StoreUnavailable` when that takes too long."""
        try:
            return await self._clock.within(answer, READ_LIMIT_S)
        except TimeoutError:
            raise StoreUnavailable(f"the store did not answer within {READ_LIMIT_S:g} s; try again later") from None
