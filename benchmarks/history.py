"""Lists, stats and pruning over a long history, with whole processes.

A private store is filled with ended tasks: 50 jobs, runs of 10 shards, 20 workers, spread over 60 days. A core on it is
asked for every kind of list, and for stats, over HTTP; then it runs 50 tasks a second, first alone and then while it
deletes the oldest fifth of history.

    python benchmarks/history.py [--store sqlite|mariadb] [--tasks 5000000] [--no-pruning]

The last line is one JSON object. The exit code tells whether everything was answered, not whether a budget was met.
"""

import argparse
import json
import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from report import Report

from dsched.cli.processes import CoreProcess, WorkerProcess
from dsched.client import Client
from dsched.model.instant import format_instant
from dsched.model.rows import RunRow, TaskRow
from dsched.store.mysql import parse_url
from dsched.store.mysql.connection import connect
from dsched.store.mysql.statements import encode
from dsched.store.rollups import HOUR_MS
from dsched.store.statements import RUN, TASK, bulk_insert
from dsched.store.url import open_store
from dsched.testing.mariadb import MariaDbServer

HERE = Path(__file__).resolve().parent
DAY_MS = 86_400_000
SPREAD_DAYS, KEPT_DAYS = 60, 48
SHARDS, JOBS, WORKERS = 10, 50, 20
RARE = "job-07"  # of which almost nothing fails
REPEATS = 20
LIST_BUDGET_MS = 300
DELAY_BUDGET_MS = 250
RATE = 50  # tasks/s
LOAD_S = 20.0
PRUNED_WITHIN_S = 1800.0
SNAPSHOT = '{"handler":"noop","timeout":30,"retries":3,"retry_backoff":10,"priority":0,"group":"default"}'
RESULT = '{"rows":1234,"bytes":56789,"parts":["a","b","c"]}'
ERROR = '{"type":"ValueError","message":"no such file","traceback":"Traceback (most recent call last): ..."}'
AT = "2026-11-30 21:22:47.123"
TASKS_AT_ONCE = 20_000


def status_of(number: int, job: str) -> str:
    if job == RARE:
        return "FAILED" if number % 400_000 == 7 else "SUCCESS"
    spread = (number * 2_654_435_761 % (1 << 32)) * 1000 >> 32
    return "FAILED" if spread < 20 else "TIMEOUT" if spread < 25 else "CANCELLED" if spread < 30 else "SUCCESS"


def history(tasks: int, until_ms: int) -> Iterator[tuple[RunRow, list[TaskRow]]]:
    """Make runs with their tasks, oldest first."""
    runs = tasks // SHARDS
    span_ms = SPREAD_DAYS * DAY_MS
    for number in range(runs):
        at_ms = until_ms - span_ms + span_ms * number // runs
        job = f"job-{number * 31 % JOBS:02}"
        run_id = f"{job}~{at_ms}-{number}"
        rows, counts = [], dict[str, int]()
        for item in range(SHARDS):
            count = number * SHARDS + item
            status = status_of(count, job)
            counts[status] = counts.get(status, 0) + 1
            rows.append(TaskRow(
                (at_ms << 16) + item, f"{run_id}:{item}", job, '{"day":"2026-11-30"}', SHARDS, item, 30,
                f"worker-{count * 7 % WORKERS:02}", status, 0, None if status == "SUCCESS" else "no such file", AT, AT,
                run_id, "default", 0, "0123456789abcdef", 1, 0, count, None, at_ms, None, at_ms + 500,
                RESULT if status == "SUCCESS" else None, None if status == "SUCCESS" else ERROR, 4,
            ))  # fmt: skip
        state = "SUCCESS" if counts == {"SUCCESS": SHARDS} else "PARTIAL" if "SUCCESS" in counts else "FAILED"
        yield RunRow(
            run_id, job, None, state, None, "api", str(number), "0123456789abcdef" * 2, None, None,
            ("default", "night")[number % 10 == 0], 0, 1, SNAPSHOT, '{"day":"2026-11-30"}', SHARDS, 0,
            json.dumps(counts), at_ms, at_ms, at_ms + 500, 3,
        ), rows  # fmt: skip


def fill(url: str, tasks: int, until_ms: int) -> None:
    """Make the schema, and write all rows with its indexes in place."""
    store = open_store(url)
    store.open()
    store.close()
    made = history(tasks, until_ms)
    rollups: dict[tuple[int, str, str], int] = {}
    with ExitStack() as stack:
        if url.startswith("sqlite"):
            database = stack.enter_context(closing(sqlite3.connect(url.removeprefix("sqlite:///"))))
            database.execute("PRAGMA synchronous = OFF")
            database.execute("PRAGMA cache_size = -500000")
            insert = sqlite_insert(database)
        else:
            settings = parse_url(url, os.environ)
            database = stack.enter_context(closing(connect(settings, timeout_s=600.0, context=None)))
            insert = mysql_insert(database)
        done = 0
        while part := list(islice(made, TASKS_AT_ONCE // SHARDS)):
            rows = [row for _, of_run in part for row in of_run]
            insert(RUN, [run for run, _ in part])
            insert(TASK, rows)
            for row in rows:
                key = ((row.finished_at or 0) // HOUR_MS * HOUR_MS, row.job_name, row.status)
                rollups[key] = rollups.get(key, 0) + 1
            database.commit()
            done += len(rows)
            print(f"\r{done:,} tasks", end="", file=sys.stderr)
        mark = "?" if url.startswith("sqlite") else "%s"
        text = f"INSERT INTO rollup (hour, job, status, count) VALUES ({', '.join([mark] * 4)})"
        database.cursor().executemany(text, [(*key, count) for key, count in rollups.items()])
        database.commit()
    print(file=sys.stderr)


def sqlite_insert(database: sqlite3.Connection) -> Callable[[Any, list[Any]], None]:
    texts = {table.name: bulk_insert(table, "?").text(1) for table in (RUN, TASK)}
    return lambda table, rows: database.executemany(texts[table.name], rows) and None


def mysql_insert(database: Any) -> Callable[[Any, list[Any]], None]:
    bulks = {table.name: bulk_insert(table, "%s") for table in (RUN, TASK)}
    cursor = database.cursor()

    def insert(table: Any, rows: list[Any]) -> None:
        for first in range(0, len(rows), 500):
            part = rows[first : first + 500]
            cursor.execute(encode(bulks[table.name].text(len(part)), [value for row in part for value in row]))

    return insert


def questions(now_ms: int) -> dict[str, tuple[str, dict[str, str]]]:
    """Return what is asked for, by name: the path and its filters."""
    ago = {days: format_instant(now_ms - days * DAY_MS) for days in (1, 30, 50)}
    hour = format_instant(now_ms - HOUR_MS)
    runs = "/api/v1/runs"
    tasks = "/api/v1/tasks"
    return {
        "runs": (runs, {}),
        "runs_job": (runs, {"job": "job-11"}),
        "runs_status": (runs, {"status": "PARTIAL"}),
        "runs_group": (runs, {"group": "night"}),
        "runs_job_status": (runs, {"job": "job-11", "status": "PARTIAL"}),
        "runs_job_rare": (runs, {"job": RARE, "status": "PARTIAL"}),
        "runs_job_group_rare": (runs, {"job": RARE, "group": "night", "status": "FAILED"}),
        "runs_group_status": (runs, {"group": "night", "status": "PARTIAL"}),
        "runs_group_nothing": (runs, {"group": "night", "status": "CANCELLED"}),
        "runs_nothing": (runs, {"job": "none"}),
        "runs_span": (runs, {"since": ago[50], "until": ago[30]}),
        "runs_span_job_status": (runs, {"job": RARE, "status": "PARTIAL", "since": ago[50], "until": ago[30]}),
        "tasks": (tasks, {}),
        "tasks_job": (tasks, {"job": "job-11"}),
        "tasks_status": (tasks, {"status": "FAILED"}),
        "tasks_success": (tasks, {"status": "SUCCESS"}),
        "tasks_pending": (tasks, {"status": "PENDING"}),
        "tasks_worker": (tasks, {"worker": "worker-03"}),
        "tasks_no_worker": (tasks, {"worker": "none"}),
        "tasks_job_failed": (tasks, {"job": "job-11", "status": "FAILED"}),
        "tasks_job_rare": (tasks, {"job": RARE, "status": "FAILED"}),
        "tasks_all_filters": (tasks, {"job": RARE, "status": "FAILED", "worker": "worker-03", "since": ago[50]}),
        "tasks_job_none": (tasks, {"job": "none", "status": "SUCCESS"}),
        "tasks_failed_last_hour": (tasks, {"status": "FAILED", "since": hour}),
        "tasks_old_span": (tasks, {"since": ago[50], "until": ago[30], "worker": "worker-03"}),
        "stats_day": ("/api/v1/stats", {}),
        "stats_month": ("/api/v1/stats", {"hours": "720"}),
        "stats_job_month": ("/api/v1/stats", {"hours": "720", "job": "job-11"}),
    }


def ask(client: Client, path: str, filters: dict[str, str]) -> list[float]:
    """Ask `REPEATS` times, a list page after page and from the beginning when it ends; return milliseconds."""
    times = []
    query = dict(filters)
    for _ in range(REPEATS):
        began_s = time.perf_counter()
        answer = client._json("GET", path, query=query)
        times.append((time.perf_counter() - began_s) * 1000)
        query = {**filters, "cursor": answer["next"]} if answer.get("next") else dict(filters)
    return times


def load(url: str, keep_on: Callable[[float], bool]) -> list[float]:
    """Ask for `RATE` runs a second, whatever the answers take; return the milliseconds from request to result."""
    local = threading.local()
    clients: list[Client] = []

    def one(at_s: float) -> float:
        if not hasattr(local, "client"):
            local.client = Client(url)
            clients.append(local.client)
        run = local.client.trigger("noop")
        ended = local.client.run(run["id"], wait_s=30)
        assert ended["status"] == "SUCCESS", ended
        return (time.perf_counter() - at_s) * 1000

    with ThreadPoolExecutor(32) as pool:
        began_s = time.perf_counter()
        waiting = []
        while keep_on(time.perf_counter() - began_s):
            at_s = began_s + len(waiting) / RATE
            time.sleep(max(0.0, at_s - time.perf_counter()))
            waiting.append(pool.submit(one, at_s))
        times = [future.result() for future in waiting]
    for client in clients:
        client.close()
    return times[RATE:]  # the first second warms up


def measure_pruning(report: Report, folder: Path, url: str, until_ms: int) -> None:
    """Add the figures of a light load alone, and while the core prunes."""
    usual = 0.0
    for name, days in (("alone", 0), ("pruning", KEPT_DAYS)):
        with ExitStack() as stack:
            core = stack.enter_context(
                CoreProcess(folder, name=f"core-{name}", store=url, options=[f"--history-days={days}"])
            )
            core.wait_ready(60)
            worker = stack.enter_context(
                WorkerProcess(folder, f"bench-{name}", core.address, [str(HERE / "handlers.py")])
            )
            core.wait_for_workers([worker])
            if not days:
                core.client.create_job({"name": "noop"})
            cutoff = format_instant(until_ms - KEPT_DAYS * DAY_MS)
            client = stack.enter_context(Client(core.url))
            state = {"asked_s": 0.0, "done_s": 0.0}

            def keep_on(
                passed_s: float, days: int = days, client: Client = client, state: dict[str, float] = state,
                cutoff: str = cutoff,
            ) -> bool:  # fmt: skip
                if not days:
                    return passed_s < LOAD_S
                if not state["done_s"] and passed_s - state["asked_s"] > 2:
                    state["asked_s"] = passed_s
                    if not client.runs(limit=1, until=cutoff)["items"]:
                        state["done_s"] = passed_s
                return passed_s < LOAD_S or not (state["done_s"] or passed_s > PRUNED_WITHIN_S)

            times = load(core.url, keep_on)
            report.add(f"result_{name}_median", median(times), "ms")
            report.add(f"result_{name}_worst", max(times), "ms")
            if not days:
                usual = median(times)
            else:
                report.add("pruning_delay_worst", max(times) - usual, "ms", at_most=DELAY_BUDGET_MS)
                report.add("pruning_took", state["done_s"], "s")
                if not state["done_s"]:
                    report.problems.append(f"pruning did not come to its end in {PRUNED_WITHIN_S:g} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=("sqlite", "mariadb"), default="sqlite")
    parser.add_argument("--tasks", type=int, default=5_000_000)
    parser.add_argument("--no-pruning", action="store_true", help="only the lists")
    options = parser.parse_args()
    if options.tasks < 1000:
        parser.error("--tasks must be at least 1000")
    until_ms = int(time.time() * 1000) - 60_000
    report = Report("history", store=options.store, tasks=options.tasks)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dsched-history-")))
        if options.store == "sqlite":
            url = f"sqlite:///{folder / 'history.db'}"
        else:
            server = stack.enter_context(MariaDbServer(buffer_pool_mib=512))
            url = server.url(server.create_database())
            server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
        began_s = time.perf_counter()
        fill(url, options.tasks, until_ms)
        report.add("filling", time.perf_counter() - began_s, "s")
        if options.store == "mariadb":
            server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
        with CoreProcess(folder, name="core-lists", store=url, options=["--history-days=0"]) as core:
            core.wait_ready(60)
            for name, (path, filters) in questions(until_ms).items():
                times = ask(core.client, path, filters)
                report.add(f"{name}_median", median(times), "ms")
                report.add(f"{name}_worst", max(times), "ms", at_most=LIST_BUDGET_MS)
        if not options.no_pruning:
            measure_pruning(report, folder, url, until_ms)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
