"""The one place that runs transactions."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from dsched.errors import BatchRefused, DschedError, StoreUnavailable
from dsched.store.mysql.connection import Connections
from dsched.store.mysql.faults import DRIVER_ERRORS, Fault, code_of, judge, text_of
from dsched.store.mysql.statements import encode

__all__ = ["Runner"]

T = TypeVar("T")
Execute = Callable[..., Any]

_MOST_CONFLICTS: Final = 5
_FIRST_PAUSE_S: Final = 0.01


class Runner:
    """Runs transactions on the connection of the calling thread.

    What is lost with a connection before its COMMIT was sent cannot have happened and is repeated once, on a new
    connection; what met a deadlock or a lock is repeated up to five times, after pauses that double and vary. A COMMIT
    without an answer is never repeated: `StoreUnavailable`, and `is_unsure` until somebody finds out. Whatever is
    raised, no transaction stays open.
    """

    def __init__(self, connections: Connections, *, rng: random.Random, sleep: Callable[[float], None]) -> None:
        self._connections = connections
        self._rng = rng
        self._sleep = sleep
        self.is_unsure = False

    def write(self, work: Callable[[Execute], T]) -> T:
        """Return what `work(execute)` returns, committed. `work` may run several times; it only calls `execute`.

        `execute(text, values)` returns a cursor. Raises `StoreUnavailable`, `BatchRefused` and what `work` raises.
        """
        conflicts = losses = 0
        with self._connections.lend():
            while True:
                try:
                    return self._once(work)
                except DRIVER_ERRORS as error:
                    fault = judge(error)
                    if fault is Fault.CONTENT:
                        raise BatchRefused(f"MySQL: {text_of(error)}") from error
                    if fault is Fault.CONFLICT and conflicts < _MOST_CONFLICTS:
                        conflicts += 1
                        self._sleep(self._rng.uniform(0.5, 1.5) * _FIRST_PAUSE_S * 2**conflicts)
                    elif fault is Fault.LOST and not losses:
                        losses += 1
                    else:
                        raise StoreUnavailable(f"MySQL: {text_of(error)}") from error

    def _once(self, work: Callable[[Execute], T]) -> T:
        connection = self._connections.mine()
        cursor = connection.cursor()

        def execute(text: str | bytes, values: Sequence[Any] = ()) -> Any:
            cursor.execute(encode(text, values))
            return cursor

        try:
            result = work(execute)
        except BaseException as error:
            self._roll_back(error)
            raise
        try:
            connection.commit()
        except BaseException as error:
            if code_of(error) and judge(error) is Fault.CONFLICT:
                self._roll_back(error)  # That is an answer: a cluster says so when another node was first.
                raise
            self._connections.drop()
            self.is_unsure = True
            if isinstance(error, DRIVER_ERRORS):
                text = f"MySQL: the answer to COMMIT was lost, so whether it happened is unknown: {text_of(error)}"
                raise StoreUnavailable(text) from error
            raise
        return result

    def _roll_back(self, error: BaseException) -> None:
        """End the transaction; the connection goes unless the server has just answered on it."""
        answered = isinstance(error, DschedError) or judge(error) in (Fault.CONTENT, Fault.CONFLICT)
        if not answered or not self._connections.has_mine():
            self._connections.drop()
            return
        try:
            self._connections.mine().rollback()
        except DRIVER_ERRORS:
            self._connections.drop()

    @contextmanager
    def reading(self) -> Iterator[Execute]:
        """Lend `execute` for one consistent look, which begins with its first statement.

        That one is repeated on a new connection if the old one turns out to be dead; a connection that is lost later
        means `StoreUnavailable`.
        """
        begun = False

        def execute(text: str | bytes, values: Sequence[Any] = ()) -> Any:
            nonlocal begun
            statement = encode(text, values)
            try:
                cursor = self._connections.mine().cursor()
                cursor.execute(statement)
            except DRIVER_ERRORS as error:
                if begun or judge(error) is not Fault.LOST:
                    raise
                self._connections.drop()
                cursor = self._connections.mine().cursor()
                cursor.execute(statement)
            begun = True
            return cursor

        with self._connections.lend():
            try:
                yield execute
            except DRIVER_ERRORS as error:
                self._roll_back(error)
                if judge(error) is Fault.CONTENT:
                    raise BatchRefused(f"MySQL: {text_of(error)}") from error
                raise StoreUnavailable(f"MySQL: {text_of(error)}") from error
            except BaseException as error:
                self._roll_back(error)
                raise
            if begun:
                self._end_look()

    def _end_look(self) -> None:
        try:
            self._connections.mine().rollback()
        except DRIVER_ERRORS:
            self._connections.drop()  # What was read is read.
