"""RQ with Redis: two simple workers, which run tasks in their own process, jobs enqueued in batches, JSON.

Results are read one by one: it offers nothing else.
"""

import sys
import time
from collections.abc import Sequence

import bodies
from peer import CORES, Answer, Params, Peer, redis_url
from redis import Redis
from rq import Queue
from rq.job import Job
from rq.registry import FinishedJobRegistry
from rq.serializers import JSONSerializer

__all__ = ["PEER"]

_BATCH = 1000
_POLL_S = 0.02
TASKS = {"echo": bodies.echo, "where": bodies.where}


class RqPeer(Peer):
    """Submits with `enqueue_many`, waits for the registry of finished jobs, reads with `return_value`."""

    package = "rq"
    tasks = 1_500
    configuration = "2 SimpleWorkers, enqueue_many, JSON, results in Redis"

    def worker_commands(self) -> list[list[str]]:
        options = ["--worker-class", "rq.SimpleWorker", "--serializer", "json", "--disable-job-desc-logging", "--quiet"]
        return [[sys.executable, "-m", "rq.cli", "worker", "--url", redis_url(), *options, "peers"]] * CORES

    def open(self) -> None:
        self._redis = Redis.from_url(redis_url())
        self._queue = Queue("peers", connection=self._redis, serializer=JSONSerializer)

    def run(self, task: str, params: Sequence[Params]) -> list[Answer]:
        finished = FinishedJobRegistry(queue=self._queue)
        before = finished.count
        jobs: list[Job] = []
        for first in range(0, len(params), _BATCH):
            asked = [Queue.prepare_data(TASKS[task], args=[each]) for each in params[first : first + _BATCH]]
            jobs += self._queue.enqueue_many(asked)
        deadline_s = time.monotonic() + bodies.WITHIN_S
        while finished.count - before < len(params):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{finished.count - before} of {len(params)} results")
            time.sleep(_POLL_S)
        return [(job.id, job.return_value()) for job in jobs]

    def close(self) -> None:
        self._redis.close()


PEER = RqPeer()
