"""Looks into the store on behalf of people, who are told in time when it does not answer."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from dsched.clock import Clock
from dsched.core.threads import Threads
from dsched.errors import DschedError, StoreUnavailable

__all__ = ["READ_LIMIT_S", "Looks"]

T = TypeVar("T")

READ_LIMIT_S: Final = 5.0
_LATE: Final = f"the store did not answer within {READ_LIMIT_S:g} s; try again later"


class Looks:
    """Runs looks in the threads that read. `problem` tells why the last one failed, None if it did not."""

    log = Logger()

    def __init__(self, reader: Threads, clock: Clock) -> None:
        self.problem: str | None = None
        self._reader = reader
        self._clock = clock
        self._is_trying = False

    async def read(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return what the store says; raises `StoreUnavailable` when that takes too long."""
        try:
            answer = await self._clock.within(self._reader.run(function, *args), READ_LIMIT_S)
        except TimeoutError:
            raise StoreUnavailable(_LATE) from None  # Too much may have been asked for: that says nothing of others.
        except StoreUnavailable as error:
            if self.problem is None:
                self.log.warn("the store cannot be read: {error}", error=error.message)  # noqa: G010
            self.problem = error.message
            raise
        if self.problem is not None:
            self.problem = None
            self.log.info("the store can be read again")
        return answer

    def look_again(self, function: Callable[..., Any]) -> None:
        """Find out whether `problem` is over, though nobody asks for anything."""
        if not self._is_trying:
            self._is_trying = True
            Deferred.fromCoroutine(self._try(function))

    async def _try(self, function: Callable[..., Any]) -> None:
        try:
            with suppress(DschedError):
                await self.read(function)
        finally:
            self._is_trying = False

    async def told(self, answer: Deferred[T]) -> T:
        """Return an answer that the store has a part in; raises `StoreUnavailable` when that takes too long."""
        try:
            return await self._clock.within(answer, READ_LIMIT_S)
        except TimeoutError:
            raise StoreUnavailable(_LATE) from None
