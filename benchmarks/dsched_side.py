"""One measurement of dsched with whole processes: a core, some workers and this client, over loopback.

A task is a run with one shard whose handler returns its params; every row is on disk before anything leaves the core.
"""

import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dsched.cli.processes import CoreProcess, WorkerProcess, wait_until
from dsched.client import Client
from dsched.testing.mariadb import MariaDbServer

__all__ = ["KINDS", "Times", "fresh_stores", "measure_dsched"]

HERE = Path(__file__).resolve().parent
KINDS = ("sqlite", "mariadb")  # of stores that are made for each measurement
BATCH = 1000  # runs a request
IN_FLIGHT = 4  # requests
WARM_TASKS = 500  # before the measurement, as the peers have them
DONE_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds from the first request on, until the given moment."""

    sent_s: float
    """All runs are accepted."""
    stored_s: float
    """All results are stored."""
    read_s: float
    """All results are read back."""


@contextmanager
def fresh_stores(kind: str, synchronous: str) -> Iterator[Callable[[Path], str]]:
    """Lend a function that returns the URL of an empty store, perhaps in the folder that it is given.

    `kind` is one of `KINDS`, or a URL, whose store is then used again and again as it is.
    """
    if kind == "mariadb":
        # Its own settings are for tests: a log of a few seconds' changes would have it write pages all the time.
        with MariaDbServer(buffer_pool_mib=256, options=["--innodb-log-file-size=128M"]) as server:
            yield lambda folder: server.url(server.create_database())
    elif kind == "sqlite":
        yield lambda folder: f"sqlite:///{quote(str(folder / 'dsched.db'))}?synchronous={synchronous}"
    else:
        yield lambda folder: kind


def measure_dsched(tasks: int, workers: int, handler: str, new_store: Callable[[Path], str]) -> tuple[Times, list[str]]:
    """Run `tasks` on `workers`; return how long it took, and what is wrong with the results."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dsched-throughput-")))
        core = stack.enter_context(CoreProcess(folder, store=new_store(folder)))
        core.wait_ready()
        crew = [
            stack.enter_context(WorkerProcess(folder, f"worker-{n}", core.address, [str(HERE / "handlers.py")]))
            for n in range(1, workers + 1)
        ]
        core.wait_for_workers(crew)
        # Names of their own: a store that is used again has the runs of other measurements too.
        job, warm_job = (f"{handler}-{secrets.token_hex(4)}" for _ in range(2))
        for name in (job, warm_job):
            core.client.create_job({"name": name, "handler": handler})
        _send(core.url, _bulk_requests(WARM_TASKS, warm_job))
        _wait_done(core.client)
        batches = _bulk_requests(tasks, job)

        began_s = time.perf_counter()
        sent = _send(core.url, batches)
        sent_s = time.perf_counter()
        _wait_done(core.client)
        stored_s = time.perf_counter()
        results = [(task["run_id"], task["result"]) for task in core.client.iter_all_tasks(job=job)]
        read_s = time.perf_counter()

        statuses = {run["id"]: run["status"] for run in core.client.iter_runs(job=job)}
        return Times(sent_s - began_s, stored_s - began_s, read_s - began_s), _problems(sent, results, statuses)


def _wait_done(client: Client) -> None:
    wait_until(lambda: client.pending()["pending"] == 0, DONE_WITHIN_S, "the last result")


def _bulk_requests(total: int, job: str) -> list[list[dict[str, Any]]]:
    return [
        [{"job": job, "params": {"n": number}} for number in range(first, min(first + BATCH, total))]
        for first in range(0, total, BATCH)
    ]


def _send(url: str, batches: list[list[dict[str, Any]]]) -> list[str]:
    """Send all batches, some at the same time, and return the ids of the runs in order."""
    clients = [Client(url) for _ in range(IN_FLIGHT)]

    def send_share(number: int) -> list[list[str]]:
        return [clients[number].create_runs(batch) for batch in batches[number::IN_FLIGHT]]

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        shares = list(pool.map(send_share, range(IN_FLIGHT)))
    for client in clients:
        client.close()
    return [run_id for index in range(len(batches)) for run_id in shares[index % IN_FLIGHT][index // IN_FLIGHT]]


def _problems(sent: list[str], results: list[tuple[str, Any]], statuses: dict[str, str]) -> list[str]:
    """Return what is wrong: ids lost, doubled or foreign, runs that failed, results of other tasks."""
    ids = [run_id for run_id, _ in results]
    numbers = {run_id: number for number, run_id in enumerate(sent)}
    wrong = [(run_id, result) for run_id, result in results if result != {"n": numbers.get(run_id)}]
    found = []
    for what, count in (
        ("ids were given out twice", len(sent) - len(numbers)),
        ("results are lost", len(numbers.keys() - set(ids))),
        ("results were never asked for", len(set(ids) - numbers.keys())),
        ("results are there twice", len(ids) - len(set(ids))),
        ("runs are lost", len(numbers.keys() - statuses.keys())),
        ("runs were never asked for", len(statuses.keys() - numbers.keys())),
        ("runs did not end in SUCCESS", sum(status != "SUCCESS" for status in statuses.values())),
        ("results are those of other tasks", len(wrong)),
    ):
        if count:
            found.append(f"{count} {what}")
    if wrong:
        run_id, result = wrong[0]
        found.append(f"the result of {run_id} is {result!r}, not that of number {numbers.get(run_id)}")
    return found
