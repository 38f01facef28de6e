"""Measure a store alone, SQLite or MySQL.

A task's whole life is four row writes: run and task inserted, then both updated.

Each batch is inserted in one transaction and updated in the next, as a busy core does. The last case
has another thread compute all the while, as a busy reactor does: what is lost there goes to the interpreter's lock.

    python benchmarks/store.py [--batch N] [--tasks N] [--rounds N] [--folder DIR | --mysql [URL]]

`--mysql` without a URL starts a MariaDB server for it. There the processor time of the committing thread is of interest
too: the driver puts the values into the statements.

The last line is JSON.
"""

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, thread_time

from report import Report

from dsched.engine.changes import Batch
from dsched.model.rows import RunRow, TaskRow
from dsched.store.interface import Store
from dsched.store.sqlite import SqliteStore
from dsched.store.url import open_store
from dsched.testing.mariadb import Databases

SNAPSHOT = json.dumps(
    {"handler": "noop", "timeout": 30, "retries": 3, "retry_backoff": 10, "priority": 0, "group": "default",
     "routing": "consistent_hash", "preload_keys": [], "version": 1}
)  # fmt: skip
AT = "2026-11-30 21:22:47.123"
NOW_MS = 1_796_000_000_000


def new_rows(first: int, count: int) -> tuple[list[RunRow], list[TaskRow]]:
    """Return runs of one task each, with ascending ids as requests have them."""
    runs, tasks = [], []
    for number in range(first, first + count):
        job_id = (NOW_MS << 16) + number
        run_id, params = f"noop~{job_id}", f'{{"n":{number}}}'
        runs.append(RunRow(
            run_id, "noop", None, "RUNNING", None, "api", str(job_id), "0123456789abcdef" * 2, None, None, "default", 0,
            1, SNAPSHOT, params, 1, 0, None, NOW_MS + number // 1000, NOW_MS, None, 1,
        ))  # fmt: skip
        tasks.append(TaskRow(
            job_id, f"{run_id}:0", "noop", params, 1, 0, 30, "worker-1", "DISPATCHED", 0, None, AT, AT, run_id,
            "default", 0, "0123456789abcdef", 1, 0, job_id, None, None, None, None, None, None, 1,
        ))  # fmt: skip
    return runs, tasks


def ended(runs: list[RunRow], tasks: list[TaskRow]) -> tuple[list[RunRow], list[TaskRow]]:
    """Return the same rows with their results."""
    return (
        [row._replace(status="SUCCESS", counts='{"SUCCESS":1}', finished_at=NOW_MS, version=2) for row in runs],
        [row._replace(status="SUCCESS", result=row.params, started_at=NOW_MS, finished_at=NOW_MS, version=2)
         for row in tasks],
    )  # fmt: skip


@contextmanager
def sqlite(folder: str, synchronous: str) -> Iterator[Store]:
    """Lend an empty store in a file of `folder`."""
    path = Path(tempfile.mkdtemp(dir=folder)) / "store.db"
    store = SqliteStore(str(path), synchronous=synchronous)
    store.open()
    yield store
    store.close()
    for file in path.parent.iterdir():
        file.unlink()
    path.parent.rmdir()


@contextmanager
def mysql(databases: Databases) -> Iterator[Store]:
    """Lend an empty store in a database of its own."""
    url = databases.fresh()
    store = open_store(url)
    store.open()
    yield store
    store.close()
    databases.drop(url)


def measure(store: Store, batch: int, total: int) -> dict[str, list[float]]:
    """Return the seconds of each commit, per stage, and those of this thread's processor."""
    leader = store.take_leadership(store.leader(), "benchmark", "", "")
    assert leader is not None
    numbers = iter(range(1, 1 << 40))
    seconds: dict[str, list[float]] = {"insert": [], "update": [], "renew": [], "insert cpu": [], "update cpu": [],
                                       "renew cpu": []}  # fmt: skip

    def commit(stage: str, **lists: list[RunRow] | list[TaskRow]) -> None:
        changes = Batch(leader.epoch, next(numbers), 0, 0, **lists)  # type: ignore[arg-type]
        started, worked = perf_counter(), thread_time()
        store.commit(changes)
        seconds[stage].append(perf_counter() - started)
        seconds[f"{stage} cpu"].append(thread_time() - worked)

    for first in range(0, total, batch):
        runs, tasks = new_rows(first, batch)
        ended_runs, ended_tasks = ended(runs, tasks)
        commit("insert", runs_new=runs, tasks_new=tasks)
        commit("update", runs_set=ended_runs, tasks_set=ended_tasks)
    for _ in range(50):
        commit("renew")
    return seconds


def compute_until(done: threading.Event) -> None:
    """Hold the interpreter's lock as a busy reactor does."""
    while not done.is_set():
        for _ in range(10_000):
            pass


def tell(report: Report, name: str, seconds: dict[str, list[float]], rows: int) -> None:
    """Add the figures of one case."""
    insert_s, update_s = sum(seconds["insert"]), sum(seconds["update"])
    commits_ms = quantiles([s * 1000 for s in seconds["insert"] + seconds["update"]], n=100)
    report.add(f"{name}_tasks", rows / (insert_s + update_s), "1/s")
    report.add(f"{name}_insert", 2 * rows / insert_s, "rows/s")
    report.add(f"{name}_update", 2 * rows / update_s, "rows/s")
    for stage in ("insert", "update"):
        report.add(f"{name}_{stage}_cpu", sum(seconds[f"{stage} cpu"]) / rows / 2 * 1e6, "us/row")
    report.add(f"{name}_commit_p50", commits_ms[49], "ms")
    report.add(f"{name}_commit_p99", commits_ms[98], "ms")
    report.add(f"{name}_renewal_p50", median(seconds["renew"]) * 1000, "ms")


def main() -> int:
    parser = argparse.ArgumentParser(description="Rows per second in a store.")
    parser.add_argument("--batch", type=int, default=1000, help="tasks a transaction in the largest case")
    parser.add_argument("--tasks", type=int, default=30_000, help="tasks a round")
    parser.add_argument("--rounds", type=int, default=2, help="rounds; the best one counts")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the files go: the disk that is measured")
    parser.add_argument("--mysql", nargs="?", const="", metavar="URL", help="measure MySQL instead of SQLite")
    options = parser.parse_args()
    report = Report("store", folder=options.folder, tasks=options.tasks)
    databases = Databases(options.mysql or None)
    kinds: dict[str, Callable[[], AbstractContextManager[Store]]] = {
        "full": lambda: sqlite(options.folder, "FULL"),
        "normal": lambda: sqlite(options.folder, "NORMAL"),
    }
    if options.mysql is not None:
        kinds = {"mysql": lambda: mysql(databases)}

    def run(make: Callable[[], AbstractContextManager[Store]], batch: int, total: int) -> dict[str, list[float]]:
        with make() as store:
            return measure(store, batch, total)

    for kind, make in kinds.items():
        for batch in sorted({1, 10, 100, options.batch}):
            total = max(batch, min(options.tasks, batch * 1000) // batch * batch)
            rounds = [run(make, batch, total) for _ in range(options.rounds)]
            best = min(rounds, key=lambda seconds: sum(seconds["insert"]) + sum(seconds["update"]))
            tell(report, f"{kind}_{batch}", best, total)
    done = threading.Event()
    busy = threading.Thread(target=compute_until, args=(done,))
    busy.start()
    try:
        total = max(options.batch, options.tasks // 3 // options.batch * options.batch)
        kind, make = next(iter(kinds.items()))
        seconds = run(make, options.batch, total)
        tell(report, f"{kind}_{options.batch}_busy", seconds, total)
    finally:
        done.set()
        busy.join()
        databases.close()
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
