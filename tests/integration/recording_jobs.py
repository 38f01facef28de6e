"""A job that leaves a trace of each execution in a file, so that a test can count what really ran."""

import json
import os
import time
from typing import Any

from dsched import JobContext, job

__all__ = ["record"]


def note(ctx: JobContext, event: str) -> None:
    """Append one line and wait until it is on disk; `at_s` is the machine's monotonic time."""
    line = {
        "event": event,
        "item": ctx.sharding_item,
        "worker": ctx.worker_id,
        "pid": os.getpid(),
        "attempt": ctx.attempt,
    }
    text = json.dumps({**line, "run": ctx.run_id, "at_s": time.monotonic()}) + "\n"
    descriptor = os.open(ctx.params["file"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@job("record", timeout=60)
def record(ctx: JobContext) -> Any:
    """Note the start, work for `params["work_s"]`, note the end."""
    note(ctx, "start")
    time.sleep(ctx.params["work_s"])
    note(ctx, "end")
    return {"item": ctx.sharding_item, "worker": ctx.worker_id}
