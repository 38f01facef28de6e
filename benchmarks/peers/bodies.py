"""What the tasks of all peers do."""

import asyncio
import os
import time
from typing import Any

__all__ = ["WITHIN_S", "echo", "echo_async", "where", "where_async"]

WITHIN_S = 120.0  # the limit of every wait for results
_MOMENT_S = 0.02


def echo(params: dict[str, Any]) -> dict[str, Any]:
    """Return the params."""
    return params


async def echo_async(params: dict[str, Any]) -> dict[str, Any]:
    """Return the params, in an event loop."""
    return params


def where(params: dict[str, Any]) -> dict[str, int]:
    """Return which process this is, after a moment in which other processes take other tasks."""
    time.sleep(_MOMENT_S)
    return {**params, "pid": os.getpid()}


async def where_async(params: dict[str, Any]) -> dict[str, int]:
    """Do the same in an event loop."""
    await asyncio.sleep(_MOMENT_S)
    return {**params, "pid": os.getpid()}
