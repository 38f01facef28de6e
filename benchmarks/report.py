"""What every benchmark ends with: a table for people, and one line of JSON for machines."""

import importlib.metadata
import json
import os
import platform
import sqlite3
from typing import Any

__all__ = ["Report"]


class Report:
    """Collects the figures of one benchmark; `facts` say how it was run."""

    def __init__(self, benchmark: str, **facts: Any) -> None:
        self.problems: list[str] = []
        self._benchmark = benchmark
        self._facts = facts
        self._figures: dict[str, dict[str, Any]] = {}

    def add(
        self, name: str, value: float, unit: str = "", *, at_least: float | None = None, at_most: float | None = None
    ) -> None:
        """Add a figure; one without a budget is there for information."""
        budget = at_most if at_least is None else at_least
        holds = None if budget is None else (value <= budget if at_least is None else value >= budget)
        self._figures[name] = {"value": round(value, 3), "unit": unit, "budget": budget, "holds": holds}

    def end(self) -> int:
        """Print everything; return the exit code, which tells of `problems` and not of budgets."""
        width = max(map(len, self._figures), default=0)
        for name, told in self._figures.items():
            budget = ""
            if told["budget"] is not None:
                budget = f"  (budget {told['budget']:,g}: {'holds' if told['holds'] else 'missed'})"
            print(f"{name:{width}}  {told['value']:13,.3f} {told['unit']}{budget}")
        for problem in self.problems:
            print(f"WRONG: {problem}")
        report = {
            "benchmark": self._benchmark, **self._facts, "figures": self._figures, "problems": self.problems,
            "machine": _machine(),
        }  # fmt: skip
        print(json.dumps(report))
        return 1 if self.problems else 0


def _machine() -> dict[str, Any]:
    model = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        pass  # There is no such file outside Linux.
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "twisted": importlib.metadata.version("twisted"),
        "sqlite": sqlite3.sqlite_version,
    }
