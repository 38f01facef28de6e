"""Counts which faults hit which tasks, over a run or a campaign."""

from collections import Counter
from collections.abc import Iterable

from dsched.model.task import TaskState
from dsched.testing.faults import WAITING, FaultKind

__all__ = ["STATES", "Coverage"]

STATES = (
    TaskState.PENDING.value,
    WAITING,
    TaskState.DISPATCHED.value,
    TaskState.RUNNING.value,
    TaskState.CANCELLING.value,
)


class Coverage:
    """`kinds` counts faults by kind, `pairs` by kind and state of a task that was there."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.pairs: Counter[tuple[str, str]] = Counter()

    def hit(self, kind: str, states: Iterable[str]) -> None:
        """Count one fault."""
        self.kinds[kind] += 1
        for state in states:
            self.pairs[kind, state] += 1

    def add(self, other: "Coverage") -> None:
        """Count what another run has counted."""
        self.kinds.update(other.kinds)
        self.pairs.update(other.pairs)

    def gaps(self, per_kind: int, per_pair: int) -> list[str]:
        """Return what came less often than asked."""
        missing = [f"{kind}: {self.kinds[kind]}" for kind in FaultKind if self.kinds[kind] < per_kind]
        missing += [
            f"{kind} x {state}: {self.pairs[kind, state]}"
            for kind in FaultKind
            for state in STATES
            if self.pairs[kind, state] < per_pair
        ]
        return missing

    def table(self) -> str:
        """Return a table for people: a line per kind of fault, a column per state."""
        width = max(len(kind) for kind in FaultKind)
        lines = [" " * width + f"{'all':>9}" + "".join(f"{state:>17}" for state in STATES)]
        for kind in FaultKind:
            pairs = "".join(f"{self.pairs[kind.value, state]:>17}" for state in STATES)
            lines.append(f"{kind.value:<{width}}{self.kinds[kind.value]:>9}{pairs}")
        return "\n".join(lines)
