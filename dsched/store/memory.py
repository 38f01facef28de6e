"""The store in memory, for tests and simulation: the same contract as a durable one, and the same refusals.

It outlives `close`, so that a simulated process can die and another can open what it left.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from dsched.engine.changes import Batch, DueRow
from dsched.errors import BatchRefused, EpochLost
from dsched.model.rows import (
    AttemptRow,
    BacklogRow,
    JobRow,
    LaneRow,
    LeaderRow,
    LogRow,
    ParkedRun,
    RunRow,
    TaskRow,
    WorkerRow,
)
from dsched.model.run import RunState
from dsched.model.task import OPEN
from dsched.store.interface import Active, Page, Pruned
from dsched.store.memory_rows import Kind, Rows
from dsched.store.paging import ALL_TASKS, JOBS, RUNS, Listing, check_limit, tasks_of
from dsched.store.rollups import Counters, added_by, summed
from dsched.store.statements import ATTEMPT, BACKLOG, JOB, LEADER, LOG, RUN, TASK, WORKER, Table

__all__ = ["MemoryStore"]

R = TypeVar("R", bound=tuple[Any, ...])

_JOB, _RUN, _TASK = Kind(JOB), Kind(RUN), Kind(TASK)
_ATTEMPT, _WORKER, _LOG, _LEADER = Kind(ATTEMPT), Kind(WORKER), Kind(LOG), Kind(LEADER)
_BACKLOG = Kind(BACKLOG)
_DUE = Kind(Table("job", DueRow, "name"))


class MemoryStore:
    """A store in dictionaries; the contract is `dsched.store.interface.Store`. Any thread may call it."""

    readers = 1

    def __init__(self, url: str = "memory:") -> None:
        self.url = url
        self._lock = threading.Lock()
        self._undo: list[Callable[[], Any]] = []
        self._leader = LeaderRow(0, 0, 0, "", "", "", 0, 0)
        self._jobs = Rows(self._undo)
        self._runs = Rows(self._undo)
        self._dues = Rows(self._undo)
        self._tasks = Rows(self._undo)
        self._task_ids = Rows(self._undo)
        self._tasks_of = Rows(self._undo)
        self._attempts = Rows(self._undo)
        self._attempts_of = Rows(self._undo)
        self._logs_of = Rows(self._undo)
        self._workers = Rows(self._undo)
        self._backlog = Rows(self._undo)
        self._parked = Rows(self._undo)
        self._rollups = Rows(self._undo)

    def open(self) -> None:
        """Do nothing: it is always open."""

    def close(self) -> None:
        """Do nothing: what was committed stays for whoever opens it next."""

    # -- leadership

    def leader(self) -> LeaderRow:
        """Return the leader row."""
        with self._lock:
            return self._leader

    def take_leadership(self, seen: LeaderRow, owner: str, address: str, admin_url: str) -> LeaderRow | None:
        """Raise the epoch by one if the row is as `seen`, else return None."""
        with self._lock:
            now = self._leader
            if (now.epoch, now.renewal) != (seen.epoch, seen.renewal):
                return None
            highest_fence = max((row.fence for row in self._tasks.values()), default=0)
            self._leader = LeaderRow(
                now.epoch + 1, 0, now.renewal + 1, owner, address, admin_url,
                max(now.last_id, max(self._tasks, default=0)), max(now.last_fence, highest_fence),
            )  # fmt: skip
            return self._leader

    def resign(self, epoch: int) -> None:
        """Let the next core lead at once, if `epoch` still leads."""
        with self._lock:
            if self._leader.epoch == epoch:
                self._leader = self._leader._replace(owner="", renewal=self._leader.renewal + 1)

    # -- writes

    def commit(self, batch: Batch) -> None:
        """Write all of `batch`, or nothing of it."""
        with self._lock:
            leader = self._leader
            if (leader.epoch, leader.batch) != (batch.epoch, batch.number - 1):
                raise EpochLost(f"epoch {batch.epoch} does not lead with batch {batch.number - 1}", epoch=batch.epoch)
            moved = leader._replace(
                batch=batch.number, renewal=leader.renewal + 1, last_id=batch.last_id, last_fence=batch.last_fence
            )
            _LEADER.check(moved)
            try:
                self._write(batch)
            except BaseException:
                while self._undo:
                    self._undo.pop()()
                raise
            self._undo.clear()
            self._leader = moved

    def _write(self, batch: Batch) -> None:
        for name in batch.jobs_gone:
            self._jobs.remove(name)
        for job in batch.jobs_new:
            _JOB.check(job)
            self._jobs.insert(job.name, job, "job.name")
        for run in batch.runs_new:
            _RUN.check(run)
            self._runs.insert(run.run_id, run, "run.run_id")
            if run.due is not None:
                self._dues.insert((run.job, run.due), run.run_id, "run.job, run.due")
        for task in batch.tasks_new:
            _TASK.check(task)
            self._tasks.insert(task.job_id, task, "schedule_job.job_id")
            self._task_ids.insert(task.task_id, task.job_id, "schedule_job.task_id")
            self._tasks_of.put(task.run_id, (*self._tasks_of.get(task.run_id, ()), task.job_id))
        for row in batch.backlog_new:
            _BACKLOG.check(row)
            self._backlog.insert(row.seq, row, "backlog.seq")
            self._parked.insert(row.run_id, row.seq, "backlog.run_id")
        for key in batch.backlog_gone:
            gone: BacklogRow | None = self._backlog.get(key.seq)
            if gone is not None:
                self._backlog.remove(key.seq)
                self._parked.remove(gone.run_id)
        self._update(_JOB, self._jobs, batch.jobs_set)
        for due in batch.dues:
            _DUE.check(due)
            stored = self._jobs.get(due.name)
            if stored is not None and stored.version == due.version:
                self._jobs.put(due.name, stored._replace(next_due=due.next_due))
        self._update(_RUN, self._runs, batch.runs_set)
        self._update(_TASK, self._tasks, batch.tasks_set)
        for hour, name, status, count in added_by(batch):
            counter = (hour, name, status)
            self._rollups.put(counter, self._rollups.get(counter, 0) + count)
        for attempt in batch.attempts:
            _ATTEMPT.check(attempt)
            self._attempts.insert((attempt.task_id, attempt.number), attempt, "attempt.task_id, attempt.number")
            self._attempts_of.put(attempt.task_id, (*self._attempts_of.get(attempt.task_id, ()), attempt))
        for log in batch.logs:
            _LOG.check(log)
            self._logs_of.put(log.task_id, (*self._logs_of.get(log.task_id, ()), log))
        for worker in batch.workers:
            _WORKER.check(worker)
            self._workers.put(worker.worker_id, worker)

    def _update(self, kind: Kind, rows: Rows, changed: Sequence[Any]) -> None:
        seen: set[Any] = set()
        for row in changed:
            key = row[kind.key]
            kind.check(row, (kind.key, *kind.mutable))
            old = rows.get(key)
            if old is None or old.version != row.version - 1 or key in seen:
                raise BatchRefused(f"version: {kind.table.name} {key!r} is not stored with version {row.version - 1}")
            seen.add(key)
            rows.put(key, old._make(new if index in kind.mutable else kept
                                    for index, (new, kept) in enumerate(zip(row, old, strict=True))))  # fmt: skip

    # -- old history

    def prune(
        self, before_ms: int, job: str | None, limit: int, after: str | None = None, *,
        epoch: int | None = None, dry: bool = False,
    ) -> Pruned:  # fmt: skip
        """Delete a portion of the runs that ended before an instant."""
        with self._lock:
            self._check_epoch(epoch)
            old = sorted(
                run.run_id
                for run in self._runs.values()
                if job in (None, run.job)
                and RunState(run.status).is_terminal
                and max(run.created_at, run.finished_at or 0) < before_ms
            )
            if dry:
                return Pruned(len(old), sum(self._runs[run_id].sharding_total for run_id in old), None)
            runs = rows = 0
            for run_id in old[:limit]:
                ids = sorted(self._tasks_of.get(run_id, ()))
                going = ids[: limit - rows]
                for job_id in going:
                    self._forget(job_id)
                rows += len(going)
                if len(going) < len(ids):
                    self._tasks_of[run_id] = tuple(ids[len(going) :])
                    break
                self._tasks_of.pop(run_id, None)
                run = self._runs.pop(run_id)
                if run.due is not None:
                    self._dues.pop((run.job, run.due), None)
                runs += 1
            return Pruned(runs, rows, "more" if runs < len(old) else None)

    def _forget(self, job_id: int) -> None:
        task_id = self._tasks.pop(job_id).task_id
        del self._task_ids[task_id]
        self._logs_of.pop(task_id, None)
        for attempt in self._attempts_of.pop(task_id, ()):
            del self._attempts[attempt.task_id, attempt.number]

    def prune_rest(self, before_ms: int, rollups_before_ms: int, limit: int, *, epoch: int | None = None) -> Pruned:
        """Delete old log lines, lost workers and counters."""
        with self._lock:
            self._check_epoch(epoch)
            rows = 0
            for task_id, lines in list(self._logs_of.items()):
                kept = tuple(line for line in lines if line.at >= before_ms)
                rows += len(lines) - len(kept)
                self._logs_of[task_id] = kept
            for worker in list(self._workers.values()):
                if worker.state == "lost" and worker.last_seen_at < before_ms:
                    del self._workers[worker.worker_id]
                    rows += 1
            for key in [key for key in self._rollups if key[0] < rollups_before_ms]:
                del self._rollups[key]
                rows += 1
            return Pruned(0, rows, None)

    def _check_epoch(self, epoch: int | None) -> None:
        if epoch not in (None, self._leader.epoch):
            raise EpochLost(f"epoch {epoch} does not lead", epoch=epoch)

    def versions(self) -> tuple[int, int]:
        """Return the same twice: there is no schema."""
        return 1, 1

    # -- reads

    def load_active(self) -> Active:
        """Return every job, every run that is neither terminal nor in the backlog, and what is in the backlog."""
        with self._lock:
            jobs = [self._jobs[name] for name in sorted(self._jobs)]
            runs = [
                run for _, run in sorted(self._runs.items())
                if not RunState(run.status).is_terminal and run.run_id not in self._parked
            ]  # fmt: skip
            ids = sorted(job_id for run in runs for job_id in self._tasks_of.get(run.run_id, ()))
            tasks = [self._tasks[job_id] for job_id in ids]
            counts = _count(row for row in self._tasks.values() if row.status in OPEN)
            parked_jobs = sorted({row.job for row in self._backlog.values()})
            return Active(jobs, runs, tasks, counts, self._lanes(), parked_jobs, self._newest_due(parked_jobs, jobs))

    def _newest_due(self, parked_jobs: Sequence[str], jobs: Sequence[JobRow]) -> list[ParkedRun]:
        scheduled = {job.name for job in jobs if job.next_due is not None}
        newest: list[ParkedRun] = []
        for name in parked_jobs:
            dues = [due for job, due in self._dues if job == name and name in scheduled]
            run_id = self._dues[name, max(dues)] if dues else None
            if run_id in self._parked:
                newest.append(ParkedRun(self._parked[run_id], self._runs[run_id]))
        return newest

    def lanes(self) -> Sequence[LaneRow]:
        """Return what the backlog holds for each handler, priority and group."""
        with self._lock:
            return self._lanes()

    def _lanes(self) -> list[LaneRow]:
        found: dict[tuple[str, str, int], list[int]] = {}
        for row in self._backlog.values():
            found.setdefault((row.group_name, row.handler, row.priority), []).append(row.seq)
        return [LaneRow(*lane, min(seqs), max(seqs)) for lane, seqs in sorted(found.items())]

    def parked(self, lane: tuple[str, str, int], after: int, last: int, tasks: int) -> Sequence[ParkedRun]:
        """Return the next runs of a lane in the backlog."""
        with self._lock:
            rows = [row for row in self._backlog.values() if (row.group_name, row.handler, row.priority) == lane]
            return self._parked_page(rows, after, last, tasks)

    def parked_of_job(self, job: str, after: int, last: int, tasks: int) -> Sequence[ParkedRun]:
        """Return the next runs of a job in the backlog."""
        with self._lock:
            return self._parked_page([r for r in self._backlog.values() if r.job == job], after, last, tasks)

    def parked_run(self, run_id: str) -> ParkedRun | None:
        """Return a run, if it is in the backlog."""
        with self._lock:
            seq = self._parked.get(run_id)
            return None if seq is None else ParkedRun(seq, self._runs[run_id])

    def _parked_page(self, rows: list[BacklogRow], after: int, last: int, tasks: int) -> list[ParkedRun]:
        found: list[ParkedRun] = []
        for row in sorted(row for row in rows if after < row.seq <= last):
            if tasks <= 0:
                break
            tasks -= row.tasks
            found.append(ParkedRun(row.seq, self._runs[row.run_id]))
        return found

    def job(self, name: str) -> JobRow | None:
        """Return one job."""
        with self._lock:
            return self._jobs.get(name)

    def jobs(self, limit: int, cursor: str | None, filters: Mapping[str, str]) -> Page[JobRow]:
        """List jobs by name."""
        with self._lock:
            return self._page(JOBS, self._jobs.values(), limit, cursor, filters)

    def run(self, run_id: str) -> RunRow | None:
        """Return one run."""
        with self._lock:
            return self._runs.get(run_id)

    def runs_by_id(self, run_ids: Sequence[str]) -> Sequence[RunRow]:
        """Return those of `run_ids` that exist."""
        with self._lock:
            return [self._runs[run_id] for run_id in dict.fromkeys(run_ids) if run_id in self._runs]

    def runs(self, limit: int, cursor: str | None, filters: Mapping[str, str]) -> Page[RunRow]:
        """List runs, newest first."""
        with self._lock:
            return self._page(RUNS, self._runs.values(), limit, cursor, filters)

    def task(self, task_id: str) -> TaskRow | None:
        """Return one task."""
        with self._lock:
            return self._tasks.get(self._task_ids.get(task_id))

    def tasks_of(self, run_id: str, limit: int, cursor: str | None, filters: Mapping[str, str]) -> Page[TaskRow]:
        """List the tasks of a run by shard item."""
        with self._lock:
            return self._page(tasks_of(run_id), self._tasks_in(run_id), limit, cursor, filters)

    def tasks(self, limit: int, cursor: str | None, filters: Mapping[str, str]) -> Page[TaskRow]:
        """List tasks of all runs, newest first."""
        with self._lock:
            return self._page(ALL_TASKS, self._tasks.values(), limit, cursor, filters)

    def task_counts(self, run_ids: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        """Return per run how many of its tasks are in each status."""
        with self._lock:
            return {
                run_id: _count(self._tasks_in(run_id)) for run_id in dict.fromkeys(run_ids) if run_id in self._tasks_of
            }

    def open_counts(self) -> Mapping[str, int]:
        """Return how many tasks there are in each status that is not terminal."""
        with self._lock:
            return _count(row for row in self._tasks.values() if row.status in OPEN)

    def stats(self, since_ms: int, until_ms: int, job: str | None) -> Counters:
        """Return how many tasks ended, from the counters."""
        hours: dict[tuple[int, str], int] = {}
        jobs: dict[tuple[str, str], int] = {}
        with self._lock:
            for (hour, name, status), count in self._rollups.items():
                if since_ms <= hour < until_ms and job in (None, name):
                    hours[hour, status] = hours.get((hour, status), 0) + count
                    jobs[name, status] = jobs.get((name, status), 0) + count
        return summed([(*key, count) for key, count in hours.items()], [(*key, count) for key, count in jobs.items()])

    def attempts(self, task_id: str) -> Sequence[AttemptRow]:
        """Return the closed attempts of a task by number."""
        with self._lock:
            return sorted(self._attempts_of.get(task_id, ()), key=lambda row: row.number)

    def attempts_of(self, task_ids: Sequence[str]) -> Mapping[str, Sequence[AttemptRow]]:
        """Return per task its closed attempts by number."""
        return {task_id: found for task_id in task_ids if (found := self.attempts(task_id))}

    def logs(self, task_id: str) -> Sequence[LogRow]:
        """Return what is kept about a task, oldest first."""
        with self._lock:
            return list(self._logs_of.get(task_id, ()))

    def worker(self, worker_id: str) -> WorkerRow | None:
        """Return the last that was known of a worker."""
        with self._lock:
            return self._workers.get(worker_id)

    def statuses(self, task_ids: Sequence[str]) -> Mapping[str, str]:
        """Return the status of those of `task_ids` that exist."""
        with self._lock:
            return {name: self._tasks[self._task_ids[name]].status for name in task_ids if name in self._task_ids}

    def _tasks_in(self, run_id: str) -> list[TaskRow]:
        return [self._tasks[job_id] for job_id in self._tasks_of.get(run_id, ())]

    @staticmethod
    def _page(
        listing: Listing[R], rows: Iterable[R], limit: int, cursor: str | None, filters: Mapping[str, str]
    ) -> Page[R]:
        conditions = listing.conditions(filters)
        found = [row for row in rows if all(condition.holds(row) for condition in conditions)]
        if cursor is not None:
            start, descending = listing.after(cursor), listing.descending
            found = [r for r in found if (listing.place(r) < start if descending else listing.place(r) > start)]
        found.sort(key=listing.place, reverse=listing.descending)
        return listing.page(found[: check_limit(limit) + 1], limit)


def _count(rows: Iterable[TaskRow]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.status] = counts.get(row.status, 0) + 1
    return counts
