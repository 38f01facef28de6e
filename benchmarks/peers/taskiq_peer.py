"""taskiq with a Redis stream and results in Redis: two worker processes on uvloop, with orjson as the serializer.

Messages are acknowledged when their result is stored, which is its default. Tasks are submitted, and results read, many
at the same time.
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import bodies
import uvloop
from peer import CORES, Answer, Params, Peer, redis_url
from taskiq import AsyncTaskiqTask
from taskiq.exceptions import ResultGetError
from taskiq.serializers import ORJSONSerializer
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

__all__ = ["PEER", "broker"]

CONNECTIONS = 32  # of the submitter and of each process
PREFETCH = 100  # deliveries of each process beyond the 100 that run
_AT_A_TIME = 1000
_POLL_S = 0.01

broker = (
    # Its connections wait for one another when there are too few, and are made when there are many.
    RedisStreamBroker(redis_url(), consumer_id="0", max_connection_pool_size=CONNECTIONS)
    .with_result_backend(
        RedisAsyncResultBackend(redis_url(), max_connection_pool_size=CONNECTIONS, serializer=ORJSONSerializer())
    )
    .with_serializer(ORJSONSerializer())
)
TASKS = {
    "echo": broker.task(task_name="echo")(bodies.echo_async),
    "where": broker.task(task_name="where")(bodies.where_async),
}


class TaskiqPeer(Peer):
    """Submits with `kiq`, reads with `get_result`."""

    package = "taskiq"
    tasks = 10_000
    configuration = "Redis stream, 2 processes × 100 coroutines, 100 messages fetched ahead, uvloop, orjson"

    def worker_commands(self) -> list[list[str]]:
        options = ["--workers", str(CORES), "--max-prefetch", str(PREFETCH), "--no-parse", "--log-level", "ERROR"]
        return [[sys.executable, "-m", "taskiq", "worker", "taskiq_peer:broker", *options]]

    def open(self) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._runner.run(broker.startup())

    def run(self, task: str, params: Sequence[Params]) -> list[Answer]:
        return self._runner.run(asyncio.wait_for(self._run(task, params), bodies.WITHIN_S))

    def close(self) -> None:
        self._runner.run(broker.shutdown())
        self._runner.close()

    async def _run(self, task: str, params: Sequence[Params]) -> list[Answer]:
        handles: list[AsyncTaskiqTask[Any]] = []
        for first in range(0, len(params), _AT_A_TIME):
            handles += await asyncio.gather(*(TASKS[task].kiq(each) for each in params[first : first + _AT_A_TIME]))
        values: list[Any] = []
        for first in range(0, len(handles), _AT_A_TIME):
            some = handles[first : first + _AT_A_TIME]
            # When the last of them is done, most are: so that few are asked for in vain.
            await some[-1].wait_result(check_interval=_POLL_S)
            values += await asyncio.gather(*(_value(handle) for handle in some))
        return [(handle.task_id, value) for handle, value in zip(handles, values, strict=True)]


async def _value(handle: AsyncTaskiqTask[Any]) -> Any:
    try:
        result = await handle.get_result()
    except ResultGetError:
        result = await handle.wait_result(check_interval=_POLL_S)
    result.raise_for_error()
    return result.return_value


PEER = TaskiqPeer()
