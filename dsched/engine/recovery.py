"""From rows back to memory: at the start of a term, and for what one refused row has put in doubt."""

from collections.abc import Sequence
from typing import Any

from dsched.engine.attempts import Attempts
from dsched.engine.backlog import Backlog, Page
from dsched.engine.changes import Close, DueRow, job_key
from dsched.engine.definition import job_from_definition, snapshot_of
from dsched.engine.firing import JOB_DELETED, Firing
from dsched.engine.membership import Membership
from dsched.engine.retry import Refusals, longest_retry_delay_ms
from dsched.engine.session import Session
from dsched.engine.split import Part
from dsched.engine.state import State
from dsched.model.ids import task_id
from dsched.model.instant import Moment
from dsched.model.job import Job
from dsched.model.rows import JobRow, ParkedRun, RunRow, TaskRow
from dsched.model.run import Cause, Run, RunState, Snapshot
from dsched.model.task import OPEN, TERMINAL, Task, TaskState
from dsched.wire.encoding import decode_any

__all__ = ["Recovery"]


class Recovery:
    """Rebuilds jobs, runs and tasks from their rows."""

    def __init__(
        self, state: State, attempts: Attempts, membership: Membership, firing: Firing, backlog: Backlog
    ) -> None:
        self._state = state
        self._attempts = attempts
        self._membership = membership
        self._firing = firing
        self._backlog = backlog
        self._snapshots: dict[tuple[str, str], Snapshot] = {}
        self._refusals = Refusals()

    def load_jobs(self, rows: Sequence[JobRow], now: Moment) -> None:
        """Take jobs into memory and wait for their next dues."""
        for row in rows:
            job = job_from_definition(row.definition, row.version, row.created_at, row.updated_at, row.next_due)
            known = self._state.jobs.get(job.name)
            if known is not None and known.timer is not None:
                self._state.wheel.cancel(known.timer)
            self._state.jobs[job.name] = job
            self._firing.arm(job, now)

    def load_runs(
        self, runs: Sequence[RunRow], tasks: Sequence[TaskRow], now: Moment, grace_s: float, pause_s: float = 0.0
    ) -> None:
        """Take runs that are not terminal into memory; their open attempts wait `grace_s` for their workers.

        Nothing is decided of them for `pause_s`, unless something new happens to them.
        """
        for row in runs:
            self._state.add_run(self._run(row))
        loaded: list[Task] = []
        for task_row in tasks:
            run = self._state.runs.get(task_row.run_id)
            if run is not None:
                loaded.append(self._task(task_row, run))
        for run_row in runs:
            run = self._state.runs[run_row.run_id]
            run.tasks.sort(key=lambda task: task.item)
            run.open = sum(task.state in OPEN for task in run.tasks)
            self._note_waiting(run)
        for task in loaded:
            self._go_on(task, now, grace_s, pause_s)

    def _note_waiting(self, run: Run) -> None:
        job: Job | None = self._state.jobs.get(run.snapshot.job)
        if job is None or run.cause is not Cause.SCHEDULE or run.state is not RunState.PENDING:
            return
        known = self._state.runs.get(job.waiting_run or "")
        if known is None or known.state is not RunState.PENDING or (known.due_ms or 0) <= (run.due_ms or 0):
            job.waiting_run = run.run_id

    # -- from the backlog

    def page_in(self, page: Page, parked: Sequence[ParkedRun], now: Moment) -> None:
        """Let parked runs wait in memory, or cancel those whose job is gone; what is in memory already stays."""
        for one in parked:
            run = self.take_parked(one)
            if run is None or not run.parked or run.state is not RunState.PENDING:
                continue
            if self._backlog.is_doomed(run):
                self._firing.cancel_run(run, now, JOB_DELETED)
            elif page.lane is not None:
                self._backlog.place(run, now)
        if parked:
            self._backlog.read_up_to(page, parked[-1].seq)

    def take_parked(self, parked: ParkedRun) -> Run | None:
        """Return a parked run in memory, where it is parked still: its tasks wait for their page to come.

        Returns None when it has left the backlog since it was read.
        """
        row = parked.run
        known = self._state.runs.get(row.run_id)
        if known is not None:
            return known
        if self._backlog.has_left(row.run_id) or row.status != RunState.PENDING:
            return None
        run = self._run(row)
        run.seq = parked.seq
        run.parked = True
        self._state.add_run(run)
        for item in range(run.sharding_total):
            task = Task(parked.seq + item, task_id(run.run_id, item), run, item)
            task.stored_state = TaskState.PENDING
            task.version = 1
            run.tasks.append(task)
            self._state.tasks[task.task_id] = task
        self._note_waiting(run)
        return run

    # -- from rows

    def _snapshot(self, row: RunRow) -> Snapshot:
        key = (row.job, row.snapshot)
        snapshot = self._snapshots.get(key)
        if snapshot is None:
            if len(self._snapshots) >= 10_000:
                self._snapshots.clear()
            kept: dict[str, Any] = decode_any(row.snapshot.encode())
            snapshot = self._snapshots[key] = snapshot_of(row.job, kept)
        return snapshot

    def _run(self, row: RunRow) -> Run:
        run = Run(
            row.run_id, self._snapshot(row), row.params, row.sharding_total, row.created_at, cause=Cause(row.cause),
            due_ms=row.due, key=row.request_key, parent=row.parent, request_hash=row.request_hash,
        )  # fmt: skip
        run.state = RunState(row.status)
        run.reason = row.reason
        run.started_ms = row.started_at
        run.finished_ms = row.finished_at
        run.cancel_requested = bool(row.cancel_requested)
        run.version = row.version
        run.stored = True
        return run

    def _task(self, row: TaskRow, run: Run) -> Task:
        task = Task(row.job_id, row.task_id, run, row.sharding_item)
        task.state = task.stored_state = TaskState(row.status)
        task.attempt = row.attempt
        task.retry_count = row.retry_count
        task.lost_count = row.lost_count
        task.worker_id = row.target_worker
        task.incarnation = row.incarnation
        task.fence = row.fence
        task.not_before_ms = row.not_before
        task.started_ms = row.started_at
        task.deadline_ms = row.deadline
        task.finished_ms = row.finished_at
        task.result = row.result
        task.message = row.error_msg
        task.error = row.error
        task.version = row.version
        run.tasks.append(task)
        self._state.tasks[task.task_id] = task
        return task

    def _go_on(self, task: Task, now: Moment, grace_s: float, pause_s: float) -> None:
        if task.state in TERMINAL:
            return
        if task.state is TaskState.PENDING:
            wait_ms = max(_wait_ms(task, now), pause_s * 1000)
            if wait_ms > 0:
                task.timer = self._state.arm(now, wait_ms / 1000, self._attempts.ready, task)
            else:
                self._attempts.dispatcher.place(task, now)
            return
        self._membership.await_return(task, now, grace_s, pause_s)

    def reload_run(self, run_id: str, row: RunRow | None, tasks: Sequence[TaskRow], now: Moment) -> float:
        """Replace what memory holds of a run by what the store has (nothing, if it was never stored).

        What the store has refused again and again goes on ever later: returns in how many seconds.
        """
        known = self._state.runs.get(run_id)
        states: dict[str, tuple[str, int]] = {}
        if known is not None:
            for task in known.tasks:
                states[task.task_id] = task.state.value, task.attempt
                if task.touched and task.live is not None and task.live.started and task.live.session.is_open:
                    # That it has begun may not be stored; its worker tells again when it comes back.
                    self._drop_session(task.live.session)
                self._forget(task)
            self._state.forget_run(known)
        else:
            self._state.forget_effects({run_id})
        if row is None or RunState(row.status).is_terminal:
            return 0.0
        for task_row in tasks:
            session = self._membership.workers.get(task_row.target_worker or "")
            changed = states.get(task_row.task_id) != (task_row.status, task_row.attempt)
            if session is not None and session.plain and session.is_open and changed and task_row.status in OPEN:
                self._drop_session(session)  # It does not say twice how a task ended.
        pause_s = self._refusals.pause_s(run_id, now.mono_s)
        self.load_runs([row], tasks, now, max(self._state.settings.resume_grace_s, pause_s), pause_s)
        run = self._state.runs[run_id]
        if run.state is RunState.PENDING and run.tasks:
            run.seq = run.tasks[0].job_id  # If it is in the backlog, it leaves that when it begins.
        return pause_s

    def _drop_session(self, session: Session) -> None:
        close = Close(session.session_id, "what it reported was dropped")
        if close not in self._state.effects:
            self._state.effects.append(close)

    def reload_job(self, name: str, row: JobRow | None, part: Part, taken_ms: int | None, now: Moment) -> None:
        """Replace what memory holds of a job by what the store has, past the due that it refused.

        `taken_ms` is the due of a run that is there already. What the store has refused again and again is written ever
        later; until then the store has the older due, of which nothing can come twice.
        """
        job = self._state.jobs.pop(name, None)
        if job is not None and job.timer is not None:
            self._state.wheel.cancel(job.timer)
        if row is None:
            return
        due = next((due for due in part.batch.dues if due.name == name), None)
        if due is not None:
            # What was fired after the part was taken stands: it is in a batch of its own, with a due of its own.
            next_due = due.next_due if job is None else job.next_due_ms
            if next_due == due.next_due and taken_ms is not None:
                next_due = taken_ms + 1
            elif next_due == due.next_due:
                pause_s = self._refusals.pause_s(job_key(name), now.mono_s)
                self._state.arm(now, pause_s, self._write_due, DueRow(name, row.version, next_due))
            row = row._replace(next_due=next_due)
        self.load_jobs([row], now)
        if job is not None:
            self._state.jobs[name].last_due_ms = job.last_due_ms
            if job.waiting_run in self._state.runs:
                self._state.jobs[name].waiting_run = job.waiting_run

    def _write_due(self, due: DueRow, now: Moment) -> None:
        job = self._state.jobs.get(due.name)
        if job is not None and job.version == due.version and job.next_due_ms == due.next_due:
            self._state.dues[due.name] = due

    def _forget(self, task: Task) -> None:
        task.queued = False
        if task.timer is not None:
            self._state.wheel.cancel(task.timer)
        if task.live is not None:
            self._attempts.abandon(task.live)


def _wait_ms(task: Task, now: Moment) -> float:
    """Return how long a stored wait goes on.

    At most for as long as it can have been from its beginning: the wall clock may have been wrong when it was written,
    or may be wrong here.
    """
    if task.not_before_ms is None:
        return 0
    longest_ms = longest_retry_delay_ms(max(1, task.retry_count), task.run.snapshot.retry_backoff_s)
    return min(task.not_before_ms - now.wall_ms, longest_ms)
