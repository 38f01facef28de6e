"""Durable tasks per second, from the first bulk request to the last stored result, with whole processes.

One core, some workers and this client, over loopback. A task is a run with one shard whose handler returns its params;
every row is on disk before anything leaves the core. Afterwards everything is read back through the API and compared
with what was sent.

    python benchmarks/throughput.py [--tasks 20000] [--workers 2] [--async] [--store URL] [--with-limit]

The last line is one JSON object. The exit code tells whether every result was there, not whether a budget was met.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import Report

from dsched.cli.processes import CoreProcess, WorkerProcess, wait_until
from dsched.client import Client

HERE = Path(__file__).resolve().parent
BUDGET = 5000  # tasks/s
LIMIT_SHARE = 0.45  # of what limit.py reaches in the same run
BATCH = 1000  # runs a request
IN_FLIGHT = 4  # requests
SAMPLE = 100  # tasks whose stored result is compared
DONE_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds that the parts of one measurement took."""

    sending_s: float
    storing_s: float
    reading_s: float


def bulk_requests(total: int, job: str) -> list[list[dict[str, Any]]]:
    return [
        [{"job": job, "params": {"n": number}} for number in range(first, min(first + BATCH, total))]
        for first in range(0, total, BATCH)
    ]


def send(url: str, batches: list[list[dict[str, Any]]]) -> list[str]:
    """Send all batches, some at the same time, and return the ids of the runs in order."""
    clients = [Client(url) for _ in range(IN_FLIGHT)]

    def send_share(number: int) -> list[list[str]]:
        return [clients[number].create_runs(batch) for batch in batches[number::IN_FLIGHT]]

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        shares = list(pool.map(send_share, range(IN_FLIGHT)))
    for client in clients:
        client.close()
    return [run_id for index in range(len(batches)) for run_id in shares[index % IN_FLIGHT][index // IN_FLIGHT]]


def read_back(client: Client, job: str, sent: list[str]) -> list[str]:
    """Return what is wrong with the stored runs: ids lost, doubled or foreign, runs that failed, other results."""
    problems = []
    stored = [(run["id"], run["status"]) for run in client.iter_runs(job=job)]
    ids = [run_id for run_id, _ in stored]
    for what, count in (
        ("ids were given out twice", len(sent) - len(set(sent))),
        ("runs are lost", len(set(sent) - set(ids))),
        ("runs were never asked for", len(set(ids) - set(sent))),
        ("runs are listed twice", len(ids) - len(set(ids))),
        ("runs did not end in SUCCESS", sum(status != "SUCCESS" for _, status in stored)),
    ):
        if count:
            problems.append(f"{count} {what}")
    for number in range(0, len(sent), max(1, len(sent) // SAMPLE)):
        result = client.task(f"{sent[number]}:0")["result"]
        if result != {"n": number}:
            problems.append(f"the result of {sent[number]} is {result!r}, not that of number {number}")
    return problems


def measure(tasks: int, workers: int, job: str, store: str | None) -> tuple[Times, list[str]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dsched-throughput-")))
        core = stack.enter_context(CoreProcess(folder, store=store))
        core.wait_ready()
        crew = [
            stack.enter_context(WorkerProcess(folder, f"worker-{n}", core.address, [str(HERE / "handlers.py")]))
            for n in range(1, workers + 1)
        ]
        core.wait_for_workers(crew)
        core.client.create_job({"name": job, "handler": job})
        batches = bulk_requests(tasks, job)

        began_s = time.perf_counter()
        sent = send(core.url, batches)
        sent_s = time.perf_counter()
        wait_until(lambda: core.client.pending()["pending"] == 0, DONE_WITHIN_S, "the last result")
        stored_s = time.perf_counter()
        problems = read_back(core.client, job, sent)
        read_s = time.perf_counter()
        return Times(sent_s - began_s, stored_s - began_s, read_s - stored_s), problems


def measure_limit(tasks: int) -> float:
    """Return the tasks/s of the bare skeleton on this machine, now."""
    done = subprocess.run(
        [sys.executable, str(HERE / "limit.py"), str(tasks), "FULL"], capture_output=True, text=True, check=True
    )
    found = re.match(r"\d+", done.stdout)
    assert found, done.stdout
    return float(found[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--async", dest="is_async", action="store_true", help="the handler is an async def")
    parser.add_argument("--store", help="URL of the store (default: SQLite in a temporary folder)")
    parser.add_argument("--with-limit", action="store_true", help="run limit.py too, for the ratio")
    options = parser.parse_args()
    if options.tasks < 1 or options.workers < 1:
        parser.error("--tasks and --workers must be at least 1")

    job = "noop-async" if options.is_async else "noop"
    times, problems = measure(options.tasks, options.workers, job, options.store)
    rate = options.tasks / times.storing_s
    report = Report("throughput", tasks=options.tasks, workers=options.workers, handler=job)
    report.problems += problems
    report.add("tasks_per_s", rate, "1/s", at_least=BUDGET)
    report.add("sending", times.sending_s, "s")
    report.add("to_last_result", times.storing_s, "s")
    report.add("reading_back", times.reading_s, "s")
    if options.with_limit:
        limit = measure_limit(options.tasks)
        report.add("limit_tasks_per_s", limit, "1/s")
        report.add("ratio_to_limit", rate / limit, at_least=LIMIT_SHARE)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
