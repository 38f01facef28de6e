"""Jobs and runs: definitions come and go, triggers fire, requests make runs, people cancel them."""

from collections import deque
from collections.abc import Mapping, Sequence

from dsched.engine.attempts import Attempts
from dsched.engine.backlog import Backlog
from dsched.engine.changes import Answer, DueRow, Key, job_key
from dsched.engine.definition import RunRequest
from dsched.engine.rowing import run_row
from dsched.engine.state import State
from dsched.errors import Conflict, NotFound, TooLarge
from dsched.model.ids import fired_run_id, requested_run_id, task_id
from dsched.model.instant import Moment, format_instant
from dsched.model.job import Job
from dsched.model.rows import JobRow, RunRow
from dsched.model.run import Cause, Run, RunState
from dsched.model.task import Task

__all__ = ["Firing", "job_row"]

_FURTHER = " further due instants"


def job_row(job: Job) -> JobRow:
    """Return the row of `job`."""
    return JobRow(
        job.name, job.group, job.definition_text, int(job.enabled), job.version, job.next_due_ms, job.created_ms,
        job.updated_ms,
    )  # fmt: skip


CANCELLED_AT_ONCE = 2_000
"""Tasks that one portion of a deletion cancels: a few milliseconds of deciding."""
JOB_DELETED = "the job was deleted"


class Firing:
    """Creates and cancels runs."""

    def __init__(self, state: State, attempts: Attempts, backlog: Backlog) -> None:
        self._state = state
        self._settings = state.settings
        self._attempts = attempts
        self._dispatcher = attempts.dispatcher
        self._backlog = backlog

    # -- jobs

    def job(self, name: str) -> Job:
        """Return a job; raises `NotFound`."""
        job = self._state.jobs.get(name)
        if job is None:
            raise NotFound("job", name)
        return job

    def create_job(self, job: Job, now: Moment) -> Job:
        """Take a new job; raises `Conflict` when the name is taken."""
        if job.name in self._state.jobs:
            raise Conflict(f"there is a job {job.name!r} already", job=job.name)
        job.next_due_ms = job.trigger.next_after(now.wall_ms) if job.enabled else None
        self._state.jobs[job.name] = job
        self._state.new_jobs.append(job_row(job))
        self.arm(job, now)
        return job

    def delete_job(self, name: str, now: Moment) -> None:
        """Delete a job and cancel its runs of which nothing was started; the others go on with their snapshot."""
        job = self.job(name)
        if job.timer is not None:
            self._state.wheel.cancel(job.timer)
        del self._state.jobs[name]
        self._state.dues.pop(name, None)
        self._state.new_jobs = [row for row in self._state.new_jobs if row.name != name]
        self._state.gone_jobs.append(name)
        self._backlog.doom(name)
        self._cancel_some(deque(run for run in self._state.runs.values() if run.snapshot.job == name), now)

    def cancel_orphans(self, now: Moment) -> None:
        """Cancel the waiting runs of jobs that are gone: the end of a deletion that a restart cut short."""
        jobs = self._state.jobs
        self._cancel_some(deque(run for run in self._state.runs.values() if run.snapshot.job not in jobs), now)

    def _cancel_some(self, runs: deque[Run], now: Moment) -> None:
        """Cancel those of `runs` of which nothing was started, in portions, so that nobody waits for all of them."""
        tasks = 0
        while runs and tasks < CANCELLED_AT_ONCE:
            run = runs.popleft()
            # One that is parked may have left the memory; it comes back to be cancelled.
            if self._state.runs.get(run.run_id) is run and self._is_waiting(run):
                tasks += run.sharding_total
                self.cancel_run(run, now, JOB_DELETED)
        if runs:
            self._state.arm(now, 0.0, self._cancel_some, runs)

    def _is_waiting(self, run: Run) -> bool:
        return run.state is RunState.PENDING and all(task.attempt == 0 for task in run.tasks)

    def arm(self, job: Job, now: Moment) -> None:
        """Wait for the next due of a job."""
        if job.timer is not None:
            self._state.wheel.cancel(job.timer)
            job.timer = None
        if job.enabled and job.next_due_ms is not None:
            if not job.last_due_ms:
                job.last_due_ms = job.trigger.latest_at_or_before(job.next_due_ms - 1) or 0
            delay_s = (job.next_due_ms - now.wall_ms) / 1000
            job.timer = self._state.arm(now, max(0.0, delay_s), self._fire, job)

    def _fire(self, job: Job, now: Moment) -> None:
        job.timer = None
        if self._state.jobs.get(job.name) is not job or job.next_due_ms is None or not job.enabled:
            return
        first_missed_ms = job.next_due_ms
        due_ms, missed = self._take_due(job, job.next_due_ms, now)
        job.next_due_ms = self._due_after(job, due_ms)
        self._state.dues[job.name] = DueRow(job.name, job.version, job.next_due_ms)
        waiting = self._state.runs.get(job.waiting_run or "")
        if waiting is not None and self._counts_on(waiting, job):
            self._count_on(waiting, missed + 1)
        else:
            self._create_due_run(job, due_ms, missed, first_missed_ms, now)
        self.arm(job, now)

    def _take_due(self, job: Job, next_due_ms: int, now: Moment) -> tuple[int, int]:
        """Return the due that is here by the monotonic clock, and how many were missed before it."""
        trigger, missed, due_ms = job.trigger, 0, next_due_ms
        following_ms = trigger.next_after(job.last_due_ms)
        if following_ms is not None and now.wall_ms < next_due_ms - (following_ms - job.last_due_ms):
            # The wall clock was set back by more than a period: the time that was waited counts, so it is due now.
            due_ms = now.wall_ms
        elif now.wall_ms > next_due_ms:
            due_ms = max(next_due_ms, trigger.latest_at_or_before(now.wall_ms) or 0)
            missed = trigger.count_between(next_due_ms, due_ms)
        if due_ms <= job.last_due_ms and trigger.latest_at_or_before(due_ms) == due_ms:
            due_ms += 1  # That one has a run already.
        job.last_due_ms = max(job.last_due_ms, due_ms)
        return due_ms, missed

    def _due_after(self, job: Job, due_ms: int) -> int | None:
        next_ms: int | None = job.trigger.next_after(job.last_due_ms)
        if due_ms < job.last_due_ms and next_ms is not None:
            # The second time that the wall clock shows these instants: the steps go on, the instants are new.
            return min(due_ms + next_ms - job.last_due_ms, next_ms)
        return next_ms

    def _counts_on(self, waiting: Run, job: Job) -> bool:
        nobody = not self._dispatcher.can_run(job.group, job.snapshot.handler)
        return nobody and self._is_waiting(waiting)

    def _count_on(self, run: Run, dues: int) -> None:
        # The count is in the text, so that it goes on after a restart.
        first, _, rest = (run.reason or "").rpartition("; ")
        counted, found, _ = rest.partition(_FURTHER)
        if not found:
            first, counted = run.reason or "", "0"
        counts = f"{int(counted) + dues}{_FURTHER} came while no worker could run it"
        run.reason = f"{first}; {counts}" if first else counts
        self._state.touch_run(run)

    def _create_due_run(self, job: Job, due_ms: int, missed: int, first_missed_ms: int, now: Moment) -> None:
        run_id = fired_run_id(job.name, due_ms)
        while run_id in self._state.runs:
            due_ms += 1  # That one has its run: a wall clock that was set back shows an instant twice.
            run_id = fired_run_id(job.name, due_ms)
        run = Run(
            run_id, job.snapshot, job.params, job.sharding_total, now.wall_ms,
            cause=Cause.SCHEDULE, due_ms=due_ms,
        )  # fmt: skip
        if missed:
            run.reason = f"stands for {missed} missed due instants since {format_instant(first_missed_ms)} as well"
        run.unit = job_key(job.name)
        before = self._state.runs.get(job.waiting_run or "")
        job.waiting_run = run.run_id
        self._backlog.release(before)
        self._start(run, now)

    # -- requests

    def request_runs(
        self, requests: Sequence[RunRequest], stored: Mapping[str, RunRow], token: Key, now: Moment
    ) -> list[RunRow]:
        """Create the runs that were asked for, all or none, and return their rows, in order.

        `stored` holds the runs of the same ids that the store knows. The same key with the same body gives the run back
        that there is; raises `Conflict` for another body, `NotFound` for an unknown job.
        """
        tasks = 0
        seen: dict[str, str] = {}
        for request in requests:
            job = self.job(request.job)
            tasks += request.sharding_total or job.sharding_total
            if request.key is not None:
                self._check_key(request, stored, seen)
        if tasks > self._settings.tasks_per_request:
            limit = self._settings.tasks_per_request
            raise TooLarge(f"{tasks} tasks asked for, at most {limit} a request", limit=limit)
        return [self._request_run(request, stored, token, now) for request in requests]

    def _check_key(self, request: RunRequest, stored: Mapping[str, RunRow], seen: dict[str, str]) -> None:
        assert request.key is not None
        run_id = requested_run_id(request.job, request.key)
        body_hash = request.body_hash()
        known = seen.setdefault(run_id, body_hash)
        if run_id in self._state.runs:
            known = self._state.runs[run_id].request_hash or ""
        elif run_id in stored:
            known = stored[run_id].request_hash or ""
        if known != body_hash:
            raise Conflict(
                f"key {request.key!r} of job {request.job!r} was used for another body",
                job=request.job,
                key=request.key,
            )

    def _request_run(self, request: RunRequest, stored: Mapping[str, RunRow], token: Key, now: Moment) -> RunRow:
        job = self._state.jobs[request.job]
        first_job_id = 0
        if request.key is None:
            first_job_id = self._state.ids.next(now.wall_ms)
            run_id = requested_run_id(job.name, f"{first_job_id:016x}")
            body_hash = None
        else:
            run_id = requested_run_id(job.name, request.key)
            if run_id in self._state.runs:
                return run_row(self._state.runs[run_id])
            if run_id in stored:
                return stored[run_id]
            body_hash = request.body_hash()
        run = Run(
            run_id,
            job.snapshot,
            job.params if request.params is None else request.params,
            request.sharding_total or job.sharding_total,
            now.wall_ms,
            cause=Cause.API,
            key=request.key,
            request_hash=body_hash,
        )
        run.unit = token
        self._start(run, now, first_job_id)
        return run_row(run)

    def _start(self, run: Run, now: Moment, first_job_id: int = 0) -> None:
        state = self._state
        state.add_run(run)
        state.touch_run(run)
        for item in range(run.sharding_total):
            job_id = first_job_id if first_job_id and not item else state.ids.next(now.wall_ms)
            task = Task(job_id, task_id(run.run_id, item), run, item)
            run.tasks.append(task)
            state.tasks[task.task_id] = task
            state.touch_task(task)
        if self._backlog.parks(run):
            return
        for task in run.tasks:
            self._dispatcher.place(task, now)

    # -- cancel

    def cancel_run(self, run: Run, now: Moment, reason: str) -> None:
        """Cancel what is not terminal of a run; from here on no new attempt of it starts."""
        if run.cancel_requested:
            return
        run.cancel_requested = True
        run.reason = reason
        self._state.touch_run(run)
        for task in run.tasks:
            self._attempts.cancel(task, now)

    def cancel(self, run_id: str, token: Key, now: Moment) -> None:
        """Cancel a run and answer `token` once that is stored.

        Raises `NotFound` when it is not open or not in memory: it never was, has ended, ends in a commit that is under
        way, or is parked.
        """
        run = self._state.runs.get(run_id)
        if run is None or run.state.is_terminal:
            raise NotFound("open run", run_id)
        self.cancel_run(run, now, "cancelled by request")
        self._state.effects.append(Answer(token, run_row(run), None, run.unit or run.run_id))
