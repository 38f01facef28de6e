"""How attempts end: results, timeouts, losses, refusals, cancels; and what becomes of their tasks.

Every path ends in `_close`, once per attempt: a closed attempt's later news is acknowledged, kept as a STALE line, and
changes nothing. So a timeout, a closed connection and a late result of the same attempt give one retry between them.
"""

from dsched.engine.changes import Ack, Send
from dsched.engine.dispatch import Dispatcher
from dsched.engine.retry import rejection_delay_ms, retry_delay_ms
from dsched.engine.session import Attempt, Session
from dsched.engine.state import State
from dsched.model.instant import Moment
from dsched.model.rows import AttemptRow
from dsched.model.run import Run
from dsched.model.task import TERMINAL, Outcome, Task, TaskEvent, TaskState
from dsched.wire.encoding import encode
from dsched.wire.messages import Cancel, ResponseIn, frame

__all__ = ["Attempts", "error_text"]


class Attempts:
    """Applies what happens to attempts."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._settings = state.settings
        self.dispatcher = Dispatcher(state, self.first_limit_passed)

    # -- news from workers

    def started(self, session: Session, task_id: str, number: int, now: Moment) -> None:
        """The handler of an attempt runs: its clock starts."""
        attempt = session.find(task_id, number)
        if attempt is None or attempt.closed or attempt.started:
            return
        self._begin(attempt, now.wall_ms)
        self._arm_deadline(attempt, now, 0.0)

    def _begin(self, attempt: Attempt, started_ms: int) -> None:
        task = attempt.task
        attempt.started = True
        task.apply(TaskEvent.START)
        task.started_ms = started_ms
        timeout_s = task.run.snapshot.timeout_s
        task.deadline_ms = started_ms + timeout_s * 1000 if timeout_s else None
        self._state.touch_task(task)

    def _arm_deadline(self, attempt: Attempt, now: Moment, elapsed_s: float) -> None:
        self._disarm(attempt)
        timeout_s = attempt.task.run.snapshot.timeout_s
        if timeout_s:
            left_s = max(0.0, timeout_s - elapsed_s)
            limit_s = left_s + self._settings.timeout_slack_s
            attempt.timer = self._state.arm(now, limit_s, self.time_is_up, attempt)

    def result(self, session: Session, response: ResponseIn, now: Moment) -> None:
        """Take a result, from a live session or brought along in RESUME."""
        attempt = self._answered(session, response)
        number = response.attempt if response.attempt is not None else (attempt.number if attempt else 0)
        is_stale = attempt is None or attempt.closed
        if not session.plain:
            # With its run's rows, also where they are gone from memory: a commit under way may yet be refused.
            key = response.task_id.rpartition(":")[0] or None
            is_open = is_stale and response.success and self._goes_on(response.task_id)
            self._state.effects.append(Ack(session.session_id, response.task_id, number, key, is_open))
        if attempt is not None:
            if response.still_running:
                attempt.outlived = True
            else:
                attempt.session.remove(attempt)
        if attempt is None or attempt.closed:
            self._stale(session, response, attempt, number, now)
        else:
            if response.duration_ms is not None:
                self.dispatcher.prefetch.learn(attempt.task.run.snapshot.handler, response.duration_ms)
            self._end_by(attempt, response, now)
        if session.plain:
            self._restart_clocks(session, now)

    def _goes_on(self, task_id: str) -> bool:
        task = self._state.tasks.get(task_id)
        return task is not None and task.state not in TERMINAL

    def _answered(self, session: Session, response: ResponseIn) -> Attempt | None:
        if not session.plain and response.attempt is not None:
            return session.find(response.task_id, response.attempt)
        newest = session.in_flight.get(response.task_id)
        if newest is not None and newest.fence > self._state.fence_taken:
            newest = newest.older  # What is not even on its way to the store cannot have been answered.
        if newest is None or newest.task.job_id != response.job_id:
            return None
        # A plain worker does not say which attempt it answers: a success stands for the task as it is now, a failure
        # for what it was given first.
        if not response.success:
            while newest.older is not None:
                newest = newest.older
        return newest

    def _stale(self, session: Session, response: ResponseIn, attempt: Attempt | None, number: int, now: Moment) -> None:
        outcome = response.outcome or ("SUCCESS" if response.success else "ERROR")
        if attempt is not None and outcome in ("REJECTED", "CANCELLED"):
            return  # The expected answer to a cancel or a withdrawal, not news.
        message = f"{outcome} of a closed attempt: {response.message or ''}"[:1024]
        self._state.log(response.task_id, "STALE", message, now, worker_id=session.worker_id, attempt=number)

    def _restart_clocks(self, session: Session, now: Moment) -> None:
        """A plain worker runs one task after another: whatever it is at next has only begun."""
        for attempt in session.all_attempts():
            if attempt.timer is not None:
                self.watch(attempt, 0.0, now)

    def _end_by(self, attempt: Attempt, response: ResponseIn, now: Moment) -> None:
        task = attempt.task
        if attempt.started is False and response.duration_ms is not None:
            attempt.started = True  # It began and ended before there was a reason to say so.
            task.started_ms = _begun_ms(task, response.duration_ms, now)
        message = response.message or None
        if response.success:
            task.result = bytes(response.data).decode()
            self._succeed(attempt, message, now)
            return
        outcome = response.outcome
        if outcome == "REJECTED" and task.state is not TaskState.RUNNING:
            self.give_back(attempt, Outcome.REJECTED, message or "the worker rejected it", now)
        elif outcome == "CANCELLED" and task.state is TaskState.CANCELLING:
            self.fail(attempt, Outcome.CANCELLED, message, now, retryable=False)
        elif outcome == "TIMEOUT":
            self.fail(attempt, Outcome.TIMEOUT, message or "its time was up", now, retryable=True)
        else:
            error = error_text(response.error_type or "Error", message or "", response.traceback or "")
            self.fail(
                attempt, Outcome.ERROR, message or "the handler failed", now, retryable=response.retryable, error=error
            )

    # -- verdicts of the core

    def first_limit_passed(self, attempt: Attempt, now: Moment) -> None:
        """A dispatched attempt did not start in time; or, of a plain worker, did not end in time."""
        if attempt.closed:
            return
        if attempt.session.plain:
            self.fail(attempt, Outcome.TIMEOUT, self._late_text(attempt), now, retryable=True)
            return
        self._send_cancel(attempt, "it was not started in time")
        text = f"worker {attempt.session.worker_id} did not start it within {self._settings.unstarted_s:g} s"
        self.give_back(attempt, Outcome.UNDELIVERED, text, now)

    def time_is_up(self, attempt: Attempt, now: Moment) -> None:
        """The worker did not end an attempt at its timeout: the core closes it."""
        if attempt.closed:
            return
        self._send_cancel(attempt, "its time is up")
        self.fail(attempt, Outcome.TIMEOUT, self._late_text(attempt), now, retryable=True)

    def _late_text(self, attempt: Attempt) -> str:
        snapshot = attempt.task.run.snapshot
        return f"no result from worker {attempt.session.worker_id} within {snapshot.timeout_s} s"

    def lost(self, attempt: Attempt, now: Moment) -> None:
        """The worker is gone: rescue the task."""
        end = "stopped before this had ended" if attempt.session.left else "was lost"
        text = f"worker {attempt.session.worker_id} {end}"
        self.fail(attempt, Outcome.LOST, text, now, retryable=True)

    def give_back(self, attempt: Attempt, outcome: Outcome, message: str, now: Moment) -> None:
        """End an attempt that never started: the task waits again, nothing is counted; a worker that rejected it is
        avoided for a while."""
        task = attempt.task
        self._close(attempt)
        if task.state is TaskState.CANCELLING:
            self._finish(task, TaskEvent.DROP, message, now)
            return
        if outcome is Outcome.REJECTED:
            self._avoid(task, attempt.session.worker_id, now)
        task.apply(TaskEvent.RETURN)
        self._record(task, attempt, outcome, message, now)
        task.message = message
        self._state.touch_task(task)
        self.dispatcher.place(task, now)

    def _avoid(self, task: Task, worker_id: str, now: Moment, delay_ms: int = 0) -> None:
        avoid = task.avoid = task.avoid or {}
        rejections = avoid[worker_id][1] + 1 if worker_id in avoid else 1
        avoid[worker_id] = (now.mono_s + (delay_ms + rejection_delay_ms(rejections)) / 1000, rejections)

    def fail(
        self,
        attempt: Attempt,
        outcome: Outcome,
        message: str | None,
        now: Moment,
        *,
        retryable: bool,
        error: str | None = None,
    ) -> None:
        """End an attempt badly: another one if that is allowed, otherwise the task ends."""
        task = attempt.task
        self._close(attempt)
        if outcome is Outcome.LOST:
            task.lost_count += 1
        if task.state is TaskState.CANCELLING:
            self._finish(task, TaskEvent.DROP, message, now)
            return
        snapshot = task.run.snapshot
        if retryable and task.retry_count < snapshot.retries:
            self._record(task, attempt, outcome, message, now)
            task.apply(TaskEvent.RETRY)
            task.retry_count += 1
            task.message = message
            task.error = error
            if outcome is Outcome.LOST and task.lost_count == 1:
                delay_ms = 0
            else:
                delay_ms = retry_delay_ms(task.retry_count, snapshot.retry_backoff_s, self._state.rng)
            if attempt.outlived:
                # Where a handler has just hung it may hang again: others come first, but that worker before nobody.
                self._avoid(task, attempt.session.worker_id, now, delay_ms)
            self._state.touch_task(task)
            self.wait_until(task, now, delay_ms)
            return
        task.error = error
        event = TaskEvent.EXPIRE if outcome is Outcome.TIMEOUT else TaskEvent.FAIL
        self._finish(task, event, message, now)

    def wait_until(self, task: Task, now: Moment, delay_ms: int) -> None:
        """Let a pending task be placed after `delay_ms`; the instant is stored, so that it survives a restart."""
        if delay_ms <= 0:
            self.dispatcher.place(task, now)
            return
        task.not_before_ms = now.wall_ms + delay_ms
        task.timer = self._state.arm(now, delay_ms / 1000, self.ready, task)

    def ready(self, task: Task, now: Moment) -> None:
        """A pending task has waited long enough."""
        task.timer = None
        if task.state is TaskState.PENDING and not task.queued and task.task_id in self._state.tasks:
            self.dispatcher.place(task, now)

    # -- cancel

    def cancel(self, task: Task, now: Moment) -> None:
        """Cancel one task: at once if nobody has it, else by asking its worker. Terminal tasks stay as they are."""
        if task.state in TERMINAL or task.state is TaskState.CANCELLING:
            return
        if task.state is TaskState.PENDING:
            if task.timer is not None:
                self._state.wheel.cancel(task.timer)
                task.timer = None
            self._finish(task, TaskEvent.CANCEL, "cancelled before it was started", now)
            return
        task.apply(TaskEvent.CANCEL)
        self._state.touch_task(task)
        attempt: Attempt = task.live
        if attempt.session.plain:
            # A plain worker cannot be asked, so what it does from now on is unconfirmed.
            self._close(attempt)
            self._finish(task, TaskEvent.DROP, "cancelled; its plain worker cannot confirm that it stopped", now)
        else:
            self._send_cancel(attempt, "the run was cancelled")

    def _send_cancel(self, attempt: Attempt, reason: str) -> None:
        session = attempt.session
        if session.is_open and not session.plain:
            task = attempt.task
            data = frame(Cancel(task.task_id, attempt.number, reason))
            self._state.effects.append(Send(session.session_id, data, task.run.unit or task.run.run_id))

    def adopt(self, attempt: Attempt, session: Session, started: bool, elapsed_s: float, now: Moment) -> None:
        """Move an attempt to the new session of the process that still has it."""
        attempt.session.remove(attempt)
        session.add(attempt)
        task = attempt.task
        if started and not attempt.started:
            self._begin(attempt, _begun_ms(task, elapsed_s * 1000, now))
        self.watch(attempt, elapsed_s, now)
        if task.state is TaskState.CANCELLING:
            self._send_cancel(attempt, "the run was cancelled")

    def watch(self, attempt: Attempt, elapsed_s: float, now: Moment) -> None:
        """Arm the limit of an attempt that a session goes on with."""
        if attempt.started and not attempt.session.plain:
            self._arm_deadline(attempt, now, elapsed_s)
            return
        self._disarm(attempt)
        limit_s = self.dispatcher.first_limit_s(attempt)
        if limit_s:
            attempt.timer = self._state.arm(now, limit_s, self.first_limit_passed, attempt)

    def abandon(self, attempt: Attempt) -> None:
        """Take an attempt out of memory without a verdict: the store tells what is true."""
        self._close(attempt)
        attempt.session.remove(attempt)

    # -- ends

    def _disarm(self, attempt: Attempt) -> None:
        if attempt.timer is not None:
            self._state.wheel.cancel(attempt.timer)
            attempt.timer = None

    def _close(self, attempt: Attempt) -> None:
        self._disarm(attempt)
        attempt.closed = True
        attempt.task.live = None

    def _record(self, task: Task, attempt: Attempt, outcome: Outcome, message: str | None, now: Moment) -> None:
        self._state.attempts.append(
            AttemptRow(
                task.task_id, attempt.number, attempt.session.worker_id, attempt.session.incarnation, attempt.fence,
                outcome.value, message, task.started_ms, now.wall_ms,
            )
        )  # fmt: skip

    def _succeed(self, attempt: Attempt, message: str | None, now: Moment) -> None:
        task = attempt.task
        self._close(attempt)
        task.error = None
        event = TaskEvent.DROP if task.state is TaskState.CANCELLING else TaskEvent.SUCCEED
        self._finish(task, event, message, now)

    def _finish(self, task: Task, event: TaskEvent, message: str | None, now: Moment) -> None:
        task.apply(event)
        task.queued = False
        task.message = message
        task.not_before_ms = None
        task.finished_ms = now.wall_ms
        self._state.touch_task(task)
        run = task.run
        run.open -= 1
        if not run.open:
            self._end_run(run, now)

    def _end_run(self, run: Run, now: Moment) -> None:
        run.state = run.final_state()
        run.finished_ms = now.wall_ms
        self._state.touch_run(run)


def error_text(kind: str, message: str, traceback: str = "") -> str:
    """Return what a task's row keeps of an error, as JSON."""
    return encode({"type": kind, "message": message, "traceback": traceback}).decode()


def _begun_ms(task: Task, ago_ms: float, now: Moment) -> int:
    """Return when a handler began that says it began so long ago; never before its run was created."""
    return max(now.wall_ms - int(min(ago_ms, now.wall_ms)), task.run.created_ms)
