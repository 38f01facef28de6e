"""The engine: one event in, row changes and effects out. Pure and synchronous; the shell owns time, bytes and the
store.

Whoever calls an event takes the changes afterwards with `take_batch` and runs the effects once the rows are committed.
"""

import random
from collections.abc import Iterable, Mapping, Sequence

from dsched.engine.attempts import Attempts, error_text
from dsched.engine.backlog import Backlog, Page
from dsched.engine.changes import Ack, Answer, Batch, Effect, Key, Send, job_key
from dsched.engine.definition import RunRequest, parse_job
from dsched.engine.firing import Firing
from dsched.engine.membership import Membership
from dsched.engine.recovery import Recovery
from dsched.engine.retry import FIRST_REFUSAL_S
from dsched.engine.session import Session, SessionState
from dsched.engine.settings import EngineSettings
from dsched.engine.split import Part
from dsched.engine.state import State
from dsched.errors import DschedError
from dsched.model.instant import Moment
from dsched.model.rows import JobRow, LaneRow, LeaderRow, ParkedRun, RunRow, TaskRow
from dsched.model.task import Outcome, TaskState
from dsched.wire.messages import Register, ResponseIn, ResumeIn, StartedMany

__all__ = ["Engine"]


class Engine:
    """Decides for one term of leadership. Every method is an event, named by what happened."""

    def __init__(self, settings: EngineSettings, rng: random.Random, now: Moment, leader: LeaderRow) -> None:
        self.settings = settings
        self.state = State(settings, rng, now)
        self.state.epoch = leader.epoch
        self.state.batch_number = leader.batch
        self.state.ids.last = leader.last_id
        self.state.fences.last = self.state.fence_taken = leader.last_fence
        self.attempts = Attempts(self.state)
        self.membership = Membership(self.state, self.attempts)
        self.backlog = Backlog(self.state, self.attempts.dispatcher)
        self.firing = Firing(self.state, self.attempts, self.backlog)
        self.recovery = Recovery(self.state, self.attempts, self.membership, self.firing, self.backlog)

    # -- the start of a term

    def load(
        self, jobs: Sequence[JobRow], runs: Sequence[RunRow], tasks: Sequence[TaskRow], counts: Mapping[str, int],
        now: Moment, grace_s: float,
    ) -> None:  # fmt: skip
        """Take what the store has into memory; nothing may have happened before.

        `counts` are all open tasks by status. Open attempts wait `grace_s` for their workers.
        """
        self.recovery.load_jobs(jobs, now)
        self.recovery.load_runs(runs, tasks, now, grace_s)
        self.firing.cancel_orphans(now)
        self.state.committed_counts = dict(counts)

    def load_backlog(
        self, lanes: Sequence[LaneRow], parked_jobs: Iterable[str], newest_due: Iterable[ParkedRun]
    ) -> None:
        """Learn what waits in the store, after `load`.

        `parked_jobs` are all jobs with runs there, gone or not; `newest_due` are the last runs of jobs' triggers, on
        which further dues may have to be counted.
        """
        self.backlog.load(lanes, parked_jobs)
        for parked in newest_due:
            self.recovery.take_parked(parked)

    # -- the backlog

    def next_page(self) -> Page | None:
        """Return what to read from the store next, if anything; tell `page_ended` before the next call."""
        return self.backlog.next_page()

    def paged_in(self, page: Page, parked: Sequence[ParkedRun], now: Moment) -> None:
        """A portion of a page is here; portions come in order."""
        self.recovery.page_in(page, parked, now)

    def page_ended(self, page: Page, is_last: bool, now: Moment) -> None:
        """A page was read, or could not be. `is_last`: there was nothing more between its ends."""
        self.backlog.page_ended(page, is_last)

    def take_parked(self, parked: ParkedRun, now: Moment) -> None:
        """Take one parked run into memory, read after `backlog.begin_read`, so that it can be cancelled."""
        self.recovery.take_parked(parked)

    # -- workers

    def register(self, session_id: int, host: str, message: Register, now: Moment) -> None:
        """A connection registers as a worker."""
        self.membership.register(session_id, host, message, now)

    def resume(self, session_id: int, message: ResumeIn, now: Moment) -> None:
        """A registered worker says what it offers and what it still has."""
        self.membership.resume(session_id, message, now)

    def seen(self, session_id: int, now: Moment) -> None:
        """Frames came from a session, of whatever kind."""
        session = self.membership.sessions.get(session_id)
        if session is not None:
            self.membership.seen(session, now)

    def started(self, session_id: int, message: StartedMany, now: Moment) -> None:
        """Handlers have begun."""
        session = self.membership.sessions.get(session_id)
        if session is not None:
            for started in message.started:
                self.attempts.started(session, started.task_id, started.attempt, now)

    def results(self, session_id: int, responses: Iterable[ResponseIn], now: Moment) -> None:
        """Attempts have ended on a worker."""
        session = self.membership.sessions.get(session_id)
        if session is None:
            return
        for response in responses:
            self.attempts.result(session, response, now)
        self.attempts.dispatcher.fill(session, now)

    def flushed(self, session_id: int, writable: bool, now: Moment) -> None:
        """What was sent to a session is with its transport, which takes more or, if not `writable`, must be waited
        for."""
        session = self.membership.sessions.get(session_id)
        if session is not None:
            was_blocked = session.is_blocked
            session.sent_bytes = 0
            session.writable = writable
            if was_blocked and not session.is_blocked:
                self.attempts.dispatcher.fill(session, now)

    def bad_result(self, session_id: int, task_id: str, now: Moment) -> None:
        """A worker keeps sending a result of a task that nobody can read: fail the attempt, and have it forgotten."""
        session = self.membership.sessions.get(session_id)
        attempt = session.in_flight.get(task_id) if session is not None else None
        if session is None or attempt is None:
            return
        session.remove(attempt)
        if not session.plain:
            self.state.effects.append(Ack(session_id, task_id, attempt.number, attempt.task.run.run_id))
        if not attempt.closed:
            text = "bad result: it cannot be read"
            error = error_text("BadResult", text)
            self.attempts.fail(attempt, Outcome.ERROR, text, now, retryable=False, error=error)
        self.attempts.dispatcher.fill(session, now)

    def draining(self, session_id: int, now: Moment) -> None:
        """A worker takes nothing new any more."""
        self.membership.drain(session_id, now)

    def closed(self, session_id: int, now: Moment) -> None:
        """A connection is gone."""
        self.membership.closed(session_id, now)

    # -- requests: each answers its `token` once what it says is committed

    def create_job(self, body: object, token: Key, now: Moment) -> None:
        """Create a job; raises what is wrong with `body` at once."""
        job = self.firing.create_job(parse_job(body, self.settings, now.wall_ms), now)
        self.state.effects.append(Answer(token, job, None, job_key(job.name)))

    def delete_job(self, name: str, token: Key, now: Moment) -> None:
        """Delete a job; raises `NotFound`."""
        self.firing.delete_job(name, now)
        self.state.effects.append(Answer(token, None, None, job_key(name)))

    def request_runs(
        self, requests: Sequence[RunRequest], stored: Mapping[str, RunRow], token: Key, now: Moment
    ) -> None:
        """Create runs, all or none; the answer is the list of their rows."""
        rows = self.firing.request_runs(requests, stored, token, now)
        self.state.effects.append(Answer(token, rows, None, token))

    def cancel_run(self, run_id: str, token: Key, now: Moment) -> None:
        """Cancel a run; raises `NotFound` when it is not open."""
        self.firing.cancel(run_id, token, now)

    # -- time

    def advance(self, now: Moment) -> None:
        """Let everything happen that is due."""
        # A microsecond early, since a deadline in seconds and back is not always the same float.
        for function, argument in self.state.wheel.advance(now.mono_s * 1000 + 0.001):
            function(argument, now)

    def next_deadline_s(self) -> float | None:
        """Return the monotonic second at which `advance` has something to do, None for never."""
        deadline_ms = self.state.wheel.next_deadline()
        return None if deadline_ms is None else deadline_ms / 1000

    def refresh_leases(self, now: Moment) -> None:
        """Nobody could be heard for a while, through no fault of theirs: count every session as just seen.

        Nor could anybody be told: what was dispatched may only now be on its way, and has its full time to start.
        """
        for session in self.membership.sessions.values():
            session.last_frame_s = now.mono_s
            for attempt in session.all_attempts():
                if not attempt.started and not attempt.closed:
                    self.attempts.watch(attempt, 0.0, now)

    # -- commits

    def has_changes(self) -> bool:
        """Tell whether `take_batch` would return anything."""
        return self.state.has_changes()

    def take_batch(self, now: Moment, *, force: bool = False) -> tuple[Batch | None, list[Effect], dict[str, Key]]:
        """Return all changes since the last call; see `State.take_batch`."""
        batch, effects, units = self.state.take_batch(now, force)
        if batch is not None and batch.backlog_gone:
            self.backlog.left(batch)
        return batch, effects, units

    def renumber(self, number: int) -> None:
        """The last batch that is stored has this number: one was refused, or was stored in parts."""
        self.state.batch_number = number

    def recount(self, counts: Mapping[str, int], lanes: Iterable[LaneRow]) -> None:
        """Take the counts of open tasks and the lanes of the backlog from the store, where parts of a batch were
        refused, after `renumber`."""
        self.state.committed_counts = dict(counts)
        self.backlog.recount(lanes, self.state.batch_number)

    def open_counts(self) -> dict[str, int]:
        """Return how many tasks are committed in each state that is not terminal."""
        return {state: count for state, count in self.state.committed_counts.items() if count}

    def committed(self, batch: Batch) -> None:
        """A batch is stored."""
        self.state.committed(batch)
        self.backlog.committed(batch)

    def refused(
        self, part: Part, error: DschedError, runs: Mapping[str, tuple[RunRow | None, Sequence[TaskRow]]],
        jobs: Mapping[str, JobRow | None], now: Moment,
    ) -> None:  # fmt: skip
        """The store refused a part of a batch for its content: what it touched is taken from the store again.

        Requests in it are answered with `error`. A result that cannot be stored fails its attempt without retry, since
        its worker would bring the same again; a due that cannot be fired is passed over. One that has a run already,
        from before the wall clock was set back and the core started again, is taken 1 ms later.
        """
        results = {(row.task_id, row.attempt) for row in part.batch.tasks_set if row.status == TaskState.SUCCESS}
        pauses = {
            run_id: self.recovery.reload_run(run_id, row, tasks, now) for run_id, (row, tasks) in runs.items()
        }  # fmt: skip
        taken = {row.due for row in part.batch.runs_new if row.due is not None and runs[row.run_id][0] is not None}
        for name, job_row in jobs.items():
            self.recovery.reload_job(name, job_row, part, max(taken, default=None), now)
        acks: dict[tuple[str, int], Ack] = {}
        for effect in part.effects:
            if isinstance(effect, Answer):
                self.state.effects.append(Answer(effect.token, None, error, None))
            elif isinstance(effect, Ack):
                acks[effect.task_id, effect.attempt] = effect
            elif isinstance(effect, Send) and (session := self.membership.sessions.get(effect.session_id)) is not None:
                session.sent_bytes = max(0, session.sent_bytes - len(effect.data))
        text = f"the store refused the result: {error.message}"
        for task_id, number in sorted(results | acks.keys()):
            pause_s = pauses.get(task_id.rpartition(":")[0], 0.0)
            refusal = (task_id, number, acks.get((task_id, number)), text)
            if pause_s > FIRST_REFUSAL_S:
                self.state.arm(now, pause_s, self._refuse_result, refusal)
            else:
                self._refuse_result(refusal, now)
        for session in self.membership.sessions.values():
            self.attempts.dispatcher.fill(session, now)

    def _refuse_result(self, refusal: tuple[str, int, Ack | None, str], now: Moment) -> None:
        task_id, number, ack, text = refusal
        if ack is not None:
            # Else its worker keeps the result, and the slot of a closed attempt is never free.
            self.state.effects.append(ack)
        task = self.state.tasks.get(task_id)
        if task is not None and task.live is not None and task.attempt == number:
            task.live.session.remove(task.live)
            error_row = error_text("ResultRefused", text)
            self.attempts.fail(task.live, Outcome.ERROR, text, now, retryable=False, error=error_row)

    # -- looking

    def sessions(self) -> list[Session]:
        """Return the workers that are online, by id."""
        known = self.membership.workers.values()
        ready = (SessionState.READY, SessionState.DRAINING)
        return sorted((session for session in known if session.state in ready), key=lambda session: session.worker_id)
