"""The trigger that is due again and again after the same elapsed time."""

from dataclasses import dataclass

from dsched.model.instant import MAX_INSTANT_MS

__all__ = ["IntervalTrigger"]


@dataclass(frozen=True, slots=True)
class IntervalTrigger:
    """Be due at `anchor_ms` and every `period_ms` after it, of these from `start_ms` to `end_ms`, both included.

    The anchor is the first due there can be; `start_ms` only leaves out what is before it and does
    not shift the others. Each due is computed from the anchor on whole milliseconds of elapsed
    time, so nothing drifts and no time zone matters. No due lies after the year 9999. Every answer
    takes constant time. Raises `ValueError` where `period_ms` is below 1.
    """

    period_ms: int
    anchor_ms: int
    start_ms: int | None = None
    end_ms: int | None = None

    def __post_init__(self) -> None:
        if self.period_ms < 1:
            raise ValueError(f"a period lasts at least 1 ms, got {self.period_ms}")

    def next_after(self, after_ms: int) -> int | None:
        """Return the first due strictly after `after_ms`, or None where there is none."""
        number = max(self._numbers_until(after_ms) + 1, self._first_number())
        return self.anchor_ms + number * self.period_ms if number <= self._last_number() else None

    def latest_at_or_before(self, now_ms: int) -> int | None:
        """Return the last due at or before `now_ms`, or None where there is none."""
        number = min(self._numbers_until(now_ms), self._last_number())
        return self.anchor_ms + number * self.period_ms if number >= self._first_number() else None

    def count_between(self, after_ms: int, until_ms: int) -> int:
        """Count the dues after `after_ms`, up to and including `until_ms`."""
        first = max(self._numbers_until(after_ms) + 1, self._first_number())
        last = min(self._numbers_until(until_ms), self._last_number())
        return max(0, last - first + 1)

    def _numbers_until(self, instant_ms: int) -> int:
        """Number of the last due at or before the instant; the anchor is number 0."""
        return (instant_ms - self.anchor_ms) // self.period_ms

    def _first_number(self) -> int:
        return 0 if self.start_ms is None else max(0, self._numbers_until(self.start_ms - 1) + 1)

    def _last_number(self) -> int:
        return self._numbers_until(MAX_INSTANT_MS if self.end_ms is None else min(self.end_ms, MAX_INSTANT_MS))
