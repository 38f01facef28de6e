"""Counters of ended tasks: how a batch adds to them, and how they are read.

A task ends once, and the transaction that stores its end adds to its job's hour, so nothing is counted twice or lost,
and nothing ever counts over history.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dsched.engine.changes import Batch
from dsched.model.rows import RollupRow
from dsched.model.task import TERMINAL
from dsched.store.statements import Bulk

__all__ = ["HOUR_MS", "MOST_JOBS", "Counters", "added_by", "bulk_add", "bulk_add_mysql", "hour_of", "summed"]

HOUR_MS: Final = 3_600_000
MOST_JOBS: Final = 100
_ENDED: Final = frozenset(state.value for state in TERMINAL)


@dataclass(frozen=True, slots=True)
class Counters:
    """Ended tasks of a span of hours: (hour, status, count) by hour, (job, status, count) of the busiest jobs."""

    by_hour: tuple[tuple[int, str, int], ...]
    by_job: tuple[tuple[str, str, int], ...]


def hour_of(ms: int) -> int:
    """Return the first millisecond of the hour; what is before 1970 counts as its first hour."""
    return max(0, ms) // HOUR_MS * HOUR_MS


def added_by(batch: Batch) -> list[RollupRow]:
    """Return what the tasks that end in `batch` add, by key: always in the same order, so that no two writers wait for
    each other."""
    ended = _ENDED
    counts: dict[tuple[int, str, str], int] = {}
    for rows in (batch.tasks_new, batch.tasks_set):
        for row in rows:
            status = row.status
            if status in ended:
                key = ((row.finished_at or 0) // HOUR_MS, row.job_name, status)
                counts[key] = counts.get(key, 0) + 1
    return [RollupRow(max(0, hour) * HOUR_MS, job, status, n) for (hour, job, status), n in sorted(counts.items())]


def bulk_add(mark: str) -> Bulk:
    """Return the statement that adds rows to the counters: whole `RollupRow`s go in."""
    return _bulk(mark, "ON CONFLICT (hour, job, status) DO UPDATE SET count = count + excluded.count")


def bulk_add_mysql(mark: str) -> Bulk:
    """Return the same for MySQL and MariaDB."""
    return _bulk(mark, "ON DUPLICATE KEY UPDATE count = count + VALUES(count)")


def _bulk(mark: str, rest: str) -> Bulk:
    row = f"({', '.join([mark] * 4)})"
    head = "INSERT INTO rollup (hour, job, status, count) VALUES "
    return Bulk(4, lambda rows: f"{head}{', '.join([row] * rows)} {rest}")


def summed(by_hour: Iterable[tuple[int, str, int]], by_job: Iterable[tuple[str, str, int]]) -> Counters:
    """Return the figures in order, of the jobs the `MOST_JOBS` with the most tasks."""
    jobs = [(job, status, int(count)) for job, status, count in by_job]
    totals: dict[str, int] = {}
    for job, _, count in jobs:
        totals[job] = totals.get(job, 0) + count

    def rank(job: str) -> tuple[int, str]:
        return -totals[job], job

    busiest = set(sorted(totals, key=rank)[:MOST_JOBS])
    kept = sorted((row for row in jobs if row[0] in busiest), key=lambda row: (*rank(row[0]), row[1]))
    return Counters(tuple(sorted((hour, status, int(count)) for hour, status, count in by_hour)), tuple(kept))
