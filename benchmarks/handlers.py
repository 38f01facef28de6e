"""Jobs that do nothing, so that only dsched itself is measured."""

from typing import Any

from dsched import JobContext, job

__all__ = ["noop", "noop_async"]


@job("noop")
def noop(ctx: JobContext) -> Any:
    """Return the params, from a thread."""
    return ctx.params


@job("noop-async")
async def noop_async(ctx: JobContext) -> Any:
    """Return the params, from the reactor."""
    return ctx.params
