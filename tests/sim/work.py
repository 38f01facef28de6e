"""A job for simulated clusters that counts its executions."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from dsched.clock import Clock
from dsched.jobs import JobContext, JobDeclaration, declaration_of, job
from dsched.testing.sim_node import SimNode

__all__ = ["Work"]


class Work:
    """The job `work`, which takes `work_s` and returns `value`, else its params; `begun` and `ended` count executions
    by task id."""

    def __init__(self, work_s: float = 1.0, value: Any = None) -> None:
        self.work_s = work_s
        self.value = value
        self.totals: set[int] = set()
        self.begun: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.on: dict[str, list[str]] = {}

    def handlers(self, node: SimNode, clock: Clock) -> Iterable[JobDeclaration]:
        """Return what the worker on `node` offers."""

        @job("work")
        async def work(ctx: JobContext) -> Any:
            self.begun[ctx.task_id] += 1
            self.on.setdefault(ctx.task_id, []).append(node.name)
            self.totals.add(ctx.sharding_total)
            await clock.sleep(self.work_s)
            self.ended[ctx.task_id] += 1
            if self.value is not None:
                return self.value
            return ctx.sharding_item if ctx.params is None else ctx.params

        declaration = declaration_of(work)
        assert declaration is not None
        return [declaration]
