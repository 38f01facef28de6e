"""Handlers of the rounds: each leaves a line when it starts and one when it ends, and works for a while in between."""

import json
import os
import time
from typing import Any

from twisted.internet import reactor, task

from dsched import JobContext, job

TRACE = os.environ.get("ROUNDS_TRACE", "")


def note(ctx: JobContext, event: str) -> None:
    """Append one line in one write, so that lines of several processes never mix; `at_s` is monotonic, machine-wide."""
    line = {
        "event": event,
        "task": ctx.task_id,
        "attempt": ctx.attempt,
        "fence": ctx.fence,
        "worker": ctx.worker_id,
        "pid": os.getpid(),
        "at_s": time.monotonic(),
    }
    descriptor = os.open(TRACE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)


@job("in_reactor")
async def in_reactor(ctx: JobContext) -> Any:
    """Work for `params["work_s"]` as a coroutine."""
    note(ctx, "start")
    await task.deferLater(reactor, ctx.params["work_s"])
    note(ctx, "end")
    return {"task": ctx.task_id}


@job("in_thread")
def in_thread(ctx: JobContext) -> Any:
    """Work for `params["work_s"]` in a thread."""
    note(ctx, "start")
    time.sleep(ctx.params["work_s"])
    note(ctx, "end")
    return {"task": ctx.task_id}


@job("tick")
def tick(ctx: JobContext) -> Any:
    """Run once per second, for a moment."""
    note(ctx, "start")
    note(ctx, "end")
    return {"task": ctx.task_id}
