"""One try of a task in this worker, from the request to the return of its handler."""

from datetime import UTC, datetime
from typing import Any

from dsched.clock import Clock
from dsched.jobs import JobContext, JobDeclaration
from dsched.wire.encoding import decode_any
from dsched.wire.messages import Request

__all__ = ["Attempt"]


class Attempt:
    """What the worker knows about a request that it took.

    Only the reactor's thread assigns to it, except in `begin`, which the thread that runs the handler calls once.
    Closed means that its result is decided: what the handler still returns is thrown away. It stays in its slot,
    closed or not, until the handler has really returned.
    """

    __slots__ = ("cancelled", "closed", "context", "declaration", "deferred", "is_announced", "request", "started_s")

    def __init__(self, request: Request, declaration: JobDeclaration, worker_id: str) -> None:
        self.request = request
        self.declaration = declaration
        self.context = JobContext(
            None,
            request.sharding_item,
            request.sharding_total,
            job=request.job_name,
            run_id=request.run_id,
            task_id=request.task_id,
            attempt=request.attempt,
            fence=request.fence,
            worker_id=worker_id,
        )
        self.started_s: float | None = None
        self.is_announced = False
        self.closed = False
        self.cancelled: str | None = None  # The reason of the core's CANCEL.
        self.deferred: Any = None  # Of a coroutine that runs.

    def begin(self, clock: Clock) -> float:
        """Fill in what the context learns only now, start the attempt's time and return it in monotonic seconds.

        Raises `BadJson` when the params are not JSON.
        """
        context, request = self.context, self.request
        if request.params != "null":
            context.params = decode_any(request.params.encode())
        if request.due is not None:
            context.due = datetime.fromtimestamp(request.due / 1000, UTC)
        if request.timeout:
            context.deadline = datetime.fromtimestamp(clock.wall_ms() / 1000 + request.timeout, UTC)
        self.started_s = began_s = clock.monotonic()
        return began_s

    def __repr__(self) -> str:
        return f"<Attempt {self.request.attempt} of {self.request.task_id}>"
