"""What every trigger can answer."""

from typing import Protocol

__all__ = ["Trigger"]


class Trigger(Protocol):
    """Name the due instants of a job.

    Instants are milliseconds since 1970 UTC. A trigger is a value: it is never changed, equal ones
    give equal answers, and it knows no present.
    """

    def next_after(self, after_ms: int) -> int | None:
        """Return the first due strictly after `after_ms`, or None where there is none."""
        ...

    def latest_at_or_before(self, now_ms: int) -> int | None:
        """Return the last due at or before `now_ms`, or None where there is none."""
        ...

    def count_between(self, after_ms: int, until_ms: int) -> int:
        """Count the dues after `after_ms`, up to and including `until_ms`."""
        ...
