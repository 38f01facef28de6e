"""Celery with Redis for messages and results: a pool of two forked processes, JSON, many messages fetched ahead.

All messages go through one producer, and results are read many at a time. The worker does nothing beside its tasks: no
gossip, no mingle, no heartbeat, no events, no remote control, no rate limits.
"""

import sys
from collections.abc import Sequence

import bodies
from celery import Celery
from peer import CORES, Answer, Params, Peer, redis_url

__all__ = ["PEER", "CeleryPeer", "app", "worker_command"]

# Its guide: "lots of short tasks, and throughput … is important to you, then … large. Say 64, or 128".
PREFETCH_MULTIPLIER = 128
_POLL_S = 0.05

app = Celery("peers", broker=redis_url(), backend=redis_url())
app.conf.update(
    task_serializer="json",
    result_serializer="json",
    accept_content=["json"],
    worker_prefetch_multiplier=PREFETCH_MULTIPLIER,
    worker_disable_rate_limits=True,
    worker_send_task_events=False,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
    result_expires=None,
)
TASKS = {
    "echo": app.task(bodies.echo, name="echo"),
    "where": app.task(bodies.where, name="where"),
}


def worker_command(*pool: str) -> list[str]:
    """Return the command that starts a worker with a pool."""
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]
    return [sys.executable, "-m", "celery", "--app", "celery_peer", "worker", *quiet, *pool]


class CeleryPeer(Peer):
    """Submits with `apply_async`, reads with `get_many` of the result backend."""

    package = "celery"
    tasks = 4_000
    configuration = "prefork, 2 processes, prefetch multiplier 128, JSON, one producer, results read in bulk"

    def worker_commands(self) -> list[list[str]]:
        return [worker_command("--pool", "prefork", "--concurrency", str(CORES))]

    def run(self, task: str, params: Sequence[Params]) -> list[Answer]:
        with app.producer_or_acquire() as producer:
            handles = [TASKS[task].apply_async((each,), producer=producer) for each in params]
        asked = app.backend.get_many([handle.id for handle in handles], timeout=bodies.WITHIN_S, interval=_POLL_S)
        values = {task_id: stored["result"] for task_id, stored in asked}
        return [(handle.id, values[handle.id]) for handle in handles]

    def close(self) -> None:
        app.close()


PEER: Peer = CeleryPeer()
