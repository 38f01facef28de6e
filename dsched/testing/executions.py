"""What handlers really did in a simulated run, whatever the core believes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import CancelledError

from dsched.clock import Clock
from dsched.jobs import DoNotRetry, JobContext, JobDeclaration, declaration_of, job
from dsched.testing.sim_node import SimNode
from dsched.testing.workload import Behaviour, Conduct

__all__ = ["Execution", "Executions", "HandlerFailed"]

HUGE_BYTES = 300 * 1024


class HandlerFailed(Exception):
    """What a handler of a simulation raises."""


@dataclass(slots=True, eq=False)
class Execution:
    """One start of a handler. `attempt` is 0 on a plain worker, which is not told."""

    node: SimNode
    life: int
    task_id: str
    attempt: int
    began_s: float
    timeout_s: int
    plain: bool
    ended_s: float | None = None
    succeeded: bool = False

    def is_wanted(self, now_s: float) -> bool:
        """Tell whether it runs, and its own deadline has not passed: after that its worker discards its result."""
        if self.ended_s is not None or not self.node.alive or self.node.lives != self.life:
            return False
        return not self.timeout_s or now_s < self.began_s + self.timeout_s


class Executions:
    """Runs the one handler of all jobs, and remembers every execution.

    `conduct_of(task_id, attempt, timeout_s)` says what an attempt does, `timeout_of(job)` how long it may;
    `on_begin` is called with each execution, and with its context where the worker has features.
    """

    def __init__(
        self,
        conduct_of: Callable[[str, int, int], Conduct],
        timeout_of: Callable[[str], int],
        on_begin: Callable[[Execution, JobContext | None], None],
    ) -> None:
        self.of_task: dict[str, list[Execution]] = {}
        self.begun = 0
        self._conduct_of = conduct_of
        self._timeout_of = timeout_of
        self._on_begin = on_begin

    def begin(self, node: SimNode, task_id: str, attempt: int, job_name: str, context: JobContext | None) -> Execution:
        """Note that a handler starts now."""
        execution = Execution(
            node, node.lives, task_id, attempt, node.reactor.seconds(), self._timeout_of(job_name), context is None
        )
        self.begun += 1
        self._on_begin(execution, context)
        self.of_task.setdefault(task_id, []).append(execution)
        return execution

    def conduct_of_plain(self, execution: Execution) -> Conduct:
        """Return what a plain worker does; it counts the executions of a task by itself."""
        number = len(self.of_task[execution.task_id])
        return self._conduct_of(execution.task_id, number, execution.timeout_s)

    def handlers(self, node: SimNode, clock: Clock) -> Iterable[JobDeclaration]:
        """Return what a worker on `node` offers."""

        @job("work")
        async def work(ctx: JobContext) -> Any:
            execution = self.begin(node, ctx.task_id, ctx.attempt, ctx.job, ctx)
            conduct = self._conduct_of(ctx.task_id, ctx.attempt, execution.timeout_s)
            try:
                await _spend(clock, conduct, execution.timeout_s)
                value = _value(conduct, ctx.task_id, ctx.params)
                execution.succeeded = conduct.behaviour not in (Behaviour.HUGE, Behaviour.NAN)
                return value
            finally:
                execution.ended_s = clock.monotonic()

        declaration = declaration_of(work)
        assert declaration is not None
        return [declaration]


async def _spend(clock: Clock, conduct: Conduct, timeout_s: int) -> None:
    if conduct.behaviour is Behaviour.HANG:
        try:
            await clock.sleep(timeout_s + 10)
        except CancelledError:
            await clock.sleep(conduct.seconds)
    elif conduct.behaviour is not Behaviour.INSTANT:
        await clock.sleep(conduct.seconds)


def _value(conduct: Conduct, task_id: str, params: Any) -> Any:
    match conduct.behaviour:
        case Behaviour.RAISE:
            raise HandlerFailed("drawn to fail")
        case Behaviour.GIVE_UP:
            raise DoNotRetry("drawn to give up")
        case Behaviour.HUGE:
            return "x" * HUGE_BYTES
        case Behaviour.NAN:
            return {"x": float("nan")}
        case _:
            return {"task": task_id, "params": params}
