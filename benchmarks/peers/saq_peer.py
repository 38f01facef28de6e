"""SAQ with Redis: two worker processes of many coroutines, on uvloop, with orjson as the serializer.

All tasks are enqueued at the same time, and read with one request when none is incomplete.
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import bodies
import orjson
import uvloop
from peer import CORES, Answer, Params, Peer, redis_url
from saq import Queue, Status

__all__ = ["PEER", "settings"]

CONCURRENCY = 32  # coroutines a process
_POLL_S = 0.01
_NO_SWEEP_S = 3600


def new_queue() -> Queue:
    """Return the queue, as submitter and workers use it; not connected yet."""
    return Queue.from_url(redis_url(), name="peers", dump=orjson.dumps, load=orjson.loads)


async def echo(ctx: dict[str, Any], *, params: Params) -> Params:
    """See `bodies.py`."""
    return await bodies.echo_async(params)


async def where(ctx: dict[str, Any], *, params: Params) -> Params:
    """See `bodies.py`."""
    return await bodies.where_async(params)


def settings() -> dict[str, Any]:
    """Return what `saq` starts a worker with; called in each process of it."""
    # It makes the loop itself, after this.
    uvloop.install()
    return {"queue": new_queue(), "functions": [echo, where], "concurrency": CONCURRENCY}


class SaqPeer(Peer):
    """Submits with `enqueue`, waits for `count`, reads with `jobs`."""

    package = "saq"
    tasks = 12_000
    configuration = "2 processes × 32 coroutines, uvloop, orjson, results read in bulk"

    def worker_commands(self) -> list[list[str]]:
        return [[sys.executable, "-m", "saq", "saq_peer.settings", "--workers", str(CORES), "--quiet"]]

    def open(self) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._queue: Queue = self._runner.run(_connected())

    def run(self, task: str, params: Sequence[Params]) -> list[Answer]:
        return self._runner.run(asyncio.wait_for(self._run(task, params), bodies.WITHIN_S))

    def close(self) -> None:
        self._runner.run(self._queue.disconnect())
        self._runner.close()

    async def _run(self, task: str, params: Sequence[Params]) -> list[Answer]:
        jobs = await asyncio.gather(*(self._queue.enqueue(task, params=each) for each in params))
        while await self._queue.count("incomplete"):
            await asyncio.sleep(_POLL_S)
        ended = await self._queue.jobs([job.key for job in jobs if job])
        return [(job.key, job.result if job.status == Status.COMPLETE else job.error) for job in ended if job]


async def _connected() -> Queue:
    queue = new_queue()
    await queue.connect()
    # A worker that sweeps, as each does when it starts, takes tasks that are just being fetched for stuck ones and
    # aborts them. Whoever swept last keeps the others from it for a while.
    await queue.sweep(lock=_NO_SWEEP_S)
    return queue


PEER = SaqPeer()
