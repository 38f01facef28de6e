"""Celery with two workers that have no pool: they run tasks themselves, one after the other.

Such a worker does nothing else while a task runs. Where tasks do nothing, it saves the way to another process.
"""

from celery_peer import CeleryPeer, worker_command
from peer import CORES, Peer

__all__ = ["PEER"]


class CelerySoloPeer(CeleryPeer):
    """The same but for its workers."""

    configuration = "2 solo workers, prefetch multiplier 128, JSON, one producer, results read in bulk"

    def worker_commands(self) -> list[list[str]]:
        return [worker_command("--pool", "solo", "--hostname", f"worker-{n}") for n in range(1, CORES + 1)]


PEER: Peer = CelerySoloPeer()
