"""Dramatiq with Redis for messages and results: two processes of eight threads, its own defaults.

Of its middleware there is what retries and what stores results. Much more is fetched ahead than by default: a consumer
that has fetched all that it may sleeps, on Redis, before it looks whether there is room again.
"""

import sys
from collections.abc import Sequence

import bodies
import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Retries
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from peer import CORES, Answer, Params, Peer, redis_url

__all__ = ["PEER", "broker"]

THREADS = 8
PREFETCH = 512

broker = RedisBroker(url=redis_url(), middleware=[Retries(), Results(backend=RedisBackend(url=redis_url()))])
dramatiq.set_broker(broker)
ACTORS = {
    "echo": dramatiq.actor(store_results=True)(bodies.echo),
    "where": dramatiq.actor(store_results=True)(bodies.where),
}


class DramatiqPeer(Peer):
    """Submits and reads as one group, blocking on each result."""

    package = "dramatiq"
    tasks = 12_000
    configuration = "2 processes × 8 threads, 512 messages fetched ahead, retries and results only, JSON"

    def worker_commands(self) -> list[list[str]]:
        options = ["--processes", str(CORES), "--threads", str(THREADS)]
        # Read from the environment only.
        prefetch = f"dramatiq_queue_prefetch={PREFETCH}"
        return [["env", prefetch, sys.executable, "-m", "dramatiq", "dramatiq_peer", *options]]

    def run(self, task: str, params: Sequence[Params]) -> list[Answer]:
        group = dramatiq.group(ACTORS[task].message(each) for each in params).run()
        values = group.get_results(block=True, timeout=int(bodies.WITHIN_S * 1000))
        return [(message.message_id, value) for message, value in zip(group.children, values, strict=True)]

    def close(self) -> None:
        broker.close()


PEER = DramatiqPeer()
