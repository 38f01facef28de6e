"""What happened in a simulated run: a trace with a digest, and the errors that nobody handled."""

import hashlib
from array import array
from collections import deque
from collections.abc import Callable

from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogPublisher
from zope.interface import implementer

__all__ = ["ErrorWatch", "Trace", "TraceValue"]

TraceValue = str | int | float | bool | bytes | None
"""What a trace may hold: nothing whose text contains an address in memory."""

_VALUES = (str, int, float, bytes, type(None))
_KEEP = 1_000
_STEP_NUMBERS = 4_096


class Trace:
    """The events of a run in order, each with its simulated time; equal digests mean equal runs.

    The digest covers every event and every step of the reactor, the text keeps the last thousand events.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self.count = 0
        self._seconds = seconds
        self._hash = hashlib.sha256()
        self._kept: deque[str] = deque(maxlen=_KEEP)
        self._steps = array("d")

    def record(self, event: str, /, **fields: TraceValue) -> None:
        """Append one event; raise `TypeError` for a field whose text could differ between equal runs."""
        parts = [f"{self._seconds():.9f} {event}"]
        for name, value in fields.items():
            if not isinstance(value, _VALUES):
                raise TypeError(f"a trace cannot hold {name}, a {type(value).__name__}")
            parts.append(f"{name}={value!r}")
        line = " ".join(parts)
        self.count += 1
        self._flush()
        self._hash.update(line.encode("utf-8", "backslashreplace") + b"\n")
        self._kept.append(line)

    def note_step(self, now_s: float, number: int) -> None:
        """Let one step of the reactor count for the digest, without a line of text."""
        self._steps.append(now_s)
        self._steps.append(number)
        if len(self._steps) >= _STEP_NUMBERS:
            self._flush()

    def digest(self) -> str:
        """Return the SHA-256 of all events so far, in hex."""
        self._flush()
        return self._hash.copy().hexdigest()

    def tail(self, count: int = 40) -> list[str]:
        """Return the last `count` events (at most 1 000), oldest first."""
        return list(self._kept)[-count:]

    def _flush(self) -> None:
        if self._steps:
            self._hash.update(self._steps.tobytes())
            del self._steps[:]


@implementer(ILogObserver)
class ErrorWatch:
    """Collects what a run may not contain: logged failures, failed Deferreds that nobody handled, critical events.

    `ignore()` is asked per event: code of a crashed node that has not yet returned does not count.
    """

    def __init__(self, ignore: Callable[[], bool]) -> None:
        self.errors: list[str] = []
        self._ignore = ignore
        self._expected: tuple[type[BaseException], ...] = ()
        self.expected_seen = 0
        globalLogPublisher.addObserver(self)

    def __call__(self, event: LogEvent) -> None:
        failure = event.get("log_failure")
        if failure is None and event.get("log_level") is not LogLevel.critical:
            return
        if self._ignore():
            return
        if failure is not None and failure.check(*self._expected):
            self.expected_seen += 1
            return
        text = formatEvent(event)
        self.errors.append(text if failure is None else f"{text}\n{failure.getTraceback()}")

    def expect(self, *types: type[BaseException]) -> None:
        """Allow logged failures of these types from now on; `expected_seen` counts them."""
        self._expected += types

    def close(self) -> None:
        """Stop watching."""
        globalLogPublisher.removeObserver(self)
