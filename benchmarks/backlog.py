"""A million waiting tasks: what the core needs of memory, and how soon it works again after it was killed.

A private store, one core as a process of its own, and this client, over loopback. All tasks are asked for while there
is no worker, as runs with one shard. Then the core is killed, started again together with one worker, and runs the
first tasks of all that waits. Counts, order and results are compared with what was asked for.

    python benchmarks/backlog.py [--store sqlite|mariadb] [--tasks 1000000] [--run 50000]

The last line is one JSON object. The exit code tells whether nothing was lost or out of order, not whether a budget was
met.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from report import Report

from dsched.cli.processes import CoreProcess, WorkerProcess, wait_until
from dsched.client import Client
from dsched.errors import DschedError
from dsched.testing.mariadb import MariaDbServer

HERE = Path(__file__).resolve().parent
JOB = "noop"
BATCH = 1000  # runs a request
IN_FLIGHT = 2  # requests
SAMPLE = 50  # tasks whose stored result is compared
RSS_BUDGET_MIB = 1024
RESTART_BUDGET_S = 10.0
READY_WITHIN_S = 120.0
RUN_WITHIN_S = 300.0


class Listener(threading.Thread):
    """Asks the core again and again whether it lives, and keeps how long the slowest answer took."""

    def __init__(self, url: str) -> None:
        super().__init__(name="listener", daemon=True)
        self._client = Client(url)
        self._over = threading.Event()
        self.slowest_s = 0.0

    def run(self) -> None:
        while not self._over.wait(0.02):
            began_s = time.perf_counter()
            try:
                self._client.pending()
            except DschedError:
                continue  # It is not leading yet.
            self.slowest_s = max(self.slowest_s, time.perf_counter() - began_s)

    def stop(self) -> float:
        """Stop to ask; return the seconds of the slowest answer."""
        self._over.set()
        self.join()
        self._client.close()
        return self.slowest_s


def memory_mib(core: CoreProcess, field: str) -> float:
    """Return VmRSS (now) or VmHWM (at its peak) of the core's process."""
    for line in Path(f"/proc/{core.pid}/status").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) / 1024
    raise AssertionError(f"no {field} of process {core.pid}")


def send(url: str, tasks: int) -> list[str]:
    """Ask for all tasks, some requests at the same time; return the ids of their runs by number."""
    firsts = range(0, tasks, BATCH)
    clients = [Client(url, timeout_s=60.0) for _ in range(IN_FLIGHT)]
    ids: dict[int, list[str]] = {}

    def send_share(number: int) -> None:
        for first in firsts[number::IN_FLIGHT]:
            batch = [{"job": JOB, "params": {"n": n}} for n in range(first, min(first + BATCH, tasks))]
            ids[first] = clients[number].create_runs(batch)

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        list(pool.map(send_share, range(IN_FLIGHT)))
    for client in clients:
        client.close()
    return [run_id for first in firsts for run_id in ids[first]]


def spread(ids: Sequence[str]) -> Iterator[int]:
    """Yield some numbers of `ids`, the first and the last among them."""
    yield from range(0, len(ids), max(1, len(ids) // SAMPLE))
    yield len(ids) - 1


def check(client: Client, ids: Sequence[str], run: int, pending: int) -> list[str]:
    """Return what is wrong: ids given out twice, tasks lost, later ones run before earlier ones, other results."""
    problems = []
    if len(set(ids)) != len(ids):
        problems.append(f"{len(ids) - len(set(ids))} ids were given out twice")
    ended = sum(1 for _ in client.iter_runs(job=JOB, status="SUCCESS"))
    if pending + ended != len(ids):
        problems.append(f"{pending} tasks wait and {ended} have run, {len(ids)} were asked for")
    # They run in the order of their ids; some more than were waited for have run meanwhile.
    waiting = sorted(range(len(ids)), key=lambda number: ids[number])
    for number in (waiting[place] for place in spread(waiting[:run])):
        task = client.task(f"{ids[number]}:0")
        if (task["status"], task["result"]) != ("SUCCESS", {"n": number}):
            problems.append(f"task {number} is {task['status']} with {task['result']!r}")
    late = ended + (len(ids) - ended) // 2
    for number in (waiting[place] for place in range(late, len(ids), max(1, (len(ids) - late) // SAMPLE))):
        status = client.run(ids[number])["status"]
        if status != "PENDING":
            problems.append(f"run {number} is {status} before earlier ones")
    return problems


def started_s(client: Client, ids: Sequence[str]) -> float:
    """Return when the first handler of the oldest runs began, in seconds since 1970."""
    tasks = [client.task(f"{run_id}:0") for run_id in sorted(ids)[:32]]
    return min(datetime.fromisoformat(task["started_at"]).timestamp() for task in tasks if task["started_at"])


def measure(report: Report, folder: Path, store: str | None, tasks: int, run: int) -> None:
    with ExitStack() as stack:
        core = stack.enter_context(CoreProcess(folder, store=store))
        core.wait_ready()
        core.client.create_job({"name": JOB, "handler": JOB})
        listener = Listener(core.url)
        listener.start()
        began_s = time.perf_counter()
        ids = send(core.url, tasks)
        sent_s = time.perf_counter() - began_s
        report.add("sending", sent_s, "s")
        report.add("sent_per_s", tasks / sent_s, "1/s")
        report.add("slowest_answer_sending", listener.stop(), "s")
        report.add("rss_waiting", memory_mib(core, "VmRSS"), "MiB")
        peaks = [memory_mib(core, "VmHWM")]

        core.kill()
        killed_at_s = time.time()
        core.start()
        crew = stack.enter_context(WorkerProcess(folder, "worker-1", core.address, [str(HERE / "handlers.py")]))
        wait_until(core.client.leads, READY_WITHIN_S, "the core to lead again")
        report.add("restart_to_leading", time.time() - killed_at_s, "s")
        listener = Listener(core.url)
        listener.start()
        core.wait_for(lambda: core.client.pending()["pending"] < tasks, READY_WITHIN_S, "the first result")
        first_s, left = time.perf_counter(), core.client.pending()["pending"]
        core.wait_for(lambda: core.client.pending()["pending"] <= tasks - run, RUN_WITHIN_S, f"{run} results")
        ran_s, ran = time.perf_counter() - first_s, left - core.client.pending()["pending"]
        report.add("slowest_answer_running", listener.stop(), "s")
        report.add(
            "restart_to_first_start", started_s(core.client, ids) - killed_at_s, "s", at_most=RESTART_BUDGET_S
        )  # fmt: skip
        report.add("tasks_per_s", ran / ran_s, "1/s")
        report.add("rss_running", memory_mib(core, "VmRSS"), "MiB")
        peaks.append(memory_mib(core, "VmHWM"))
        report.add("rss_peak", max(peaks), "MiB", at_most=RSS_BUDGET_MIB)
        crew.stop()
        report.problems += check(core.client, ids, run, core.client.pending()["pending"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=("sqlite", "mariadb"), default="sqlite")
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--run", type=int, default=50_000, help="how many tasks run after the restart")
    options = parser.parse_args()
    if not 1 <= options.run <= options.tasks:
        parser.error("--run must be at least 1 and at most --tasks")

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dsched-backlog-")))
        store = None
        if options.store == "mariadb":
            server = MariaDbServer(buffer_pool_mib=512, options=["--innodb-log-file-size=256M"])
            stack.enter_context(server)
            store = server.url(server.create_database())
        report = Report("backlog", store=options.store, tasks=options.tasks)
        measure(report, folder, store, options.tasks, options.run)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
