"""The trigger of jobs that run on request only."""

from dataclasses import dataclass

__all__ = ["NoTrigger"]


@dataclass(frozen=True, slots=True)
class NoTrigger:
    """Be never due."""

    def next_after(self, after_ms: int) -> int | None:
        """Return None."""
        return None

    def latest_at_or_before(self, now_ms: int) -> int | None:
        """Return None."""
        return None

    def count_between(self, after_ms: int, until_ms: int) -> int:
        """Return 0."""
        return 0
