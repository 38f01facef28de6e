"""Dask distributed: a scheduler, two worker processes of two threads, and a client that maps and gathers.

Its profiler, which looks at each thread every 10 ms, is off, and so are its dashboard, stealing between the workers and
the manager of their memory; the scheduler does not hold tasks back. Nothing of it is on a disk, and no Redis is needed.
"""

from collections.abc import Sequence

import bodies
import dask
from distributed import Client, LocalCluster
from peer import CORES, Answer, Params, Peer

__all__ = ["PEER"]

THREADS = 2  # While one waits for the next task, the other may have one.
TASKS = {"echo": bodies.echo, "where": bodies.where}
SETTINGS = {
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.worker-saturation": float("inf"),
}


class DaskPeer(Peer):
    """Submits with `map`, reads with `gather`."""

    package = "distributed"
    tasks = 12_000
    configuration = "LocalCluster, 2 processes × 2 threads, no profiler, no dashboard, map and gather"

    def open(self) -> None:
        dask.config.set(SETTINGS)
        self._cluster = LocalCluster(
            n_workers=CORES, threads_per_worker=THREADS, processes=True, dashboard_address=None, host="127.0.0.1"
        )
        self._client = Client(self._cluster)
        self._client.wait_for_workers(CORES)

    def run(self, task: str, params: Sequence[Params]) -> list[Answer]:
        # Pure functions with equal arguments would run once only.
        futures = self._client.map(TASKS[task], params, pure=False)
        values = self._client.gather(futures)
        return [(str(future.key), value) for future, value in zip(futures, values, strict=True)]

    def close(self) -> None:
        self._client.close()
        self._cluster.close()


PEER = DaskPeer()
