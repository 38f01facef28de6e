"""huey with Redis: two consumer processes that block on the queue, and results in one hash.

Results are read in one go, which huey offers, when their number says that all are there. There is no scheduler of
periodic tasks, no health check, no log line per task and no notification per result.
"""

import sys
import time
from collections.abc import Sequence

import bodies
from huey import RedisHuey
from peer import CORES, Answer, Params, Peer, redis_url

__all__ = ["PEER", "huey"]

_POLL_S = 0.01

huey = RedisHuey("peers", url=redis_url(), blocking=True)
TASKS = {"echo": huey.task()(bodies.echo), "where": huey.task()(bodies.where)}


class HueyPeer(Peer):
    """Submits by calls, waits for `result_count`, reads with `all_results`."""

    package = "huey"
    tasks = 15_000
    configuration = "RedisHuey, 2 worker processes, no periodic tasks, results read in bulk"

    def worker_commands(self) -> list[list[str]]:
        options = ["--workers", str(CORES), "--worker-type", "process", "--no-periodic", "--disable-health-check"]
        return [[sys.executable, "-m", "huey.bin.huey_consumer", "huey_peer.huey", *options, "--quiet"]]

    def run(self, task: str, params: Sequence[Params]) -> list[Answer]:
        huey.storage.flush_results()  # those of the run before, which would be counted
        handles = [TASKS[task](each) for each in params]
        deadline_s = time.monotonic() + bodies.WITHIN_S
        while huey.result_count() < len(params):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{huey.result_count()} of {len(params)} results")
            time.sleep(_POLL_S)
        stored = {key: huey.serializer.deserialize(value) for key, value in huey.all_results().items()}
        return [(handle.id, stored.get(handle.id)) for handle in handles]


PEER = HueyPeer()
