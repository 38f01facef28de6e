"""Workers come, prove that they live, and go: registration, leases, the resume grace, rescue.

Registration reconciles in this order, and nothing of that worker is dispatched or rescued before it is through: apply
the results it brings; adopt what the same incarnation still runs; close every other open attempt of that id.
"""

from dsched.engine.attempts import Attempts
from dsched.engine.changes import Close, Send
from dsched.engine.session import Attempt, Session, SessionState
from dsched.engine.state import State
from dsched.errors import InvalidValue
from dsched.model.ids import check_group, check_name
from dsched.model.instant import Moment
from dsched.model.rows import WorkerRow
from dsched.model.task import TERMINAL, Outcome, Task
from dsched.wire.encoding import encode
from dsched.wire.messages import (
    FEATURES,
    Cancel,
    Error,
    Heartbeat,
    Register,
    RegisterAck,
    ResponseIn,
    ResumeAck,
    ResumeIn,
    RunningAttempt,
    frame,
)

__all__ = ["Membership"]

MAX_RESUMED = 100_000
"""Handlers, attempts and results that one RESUME may bring, however many chunks it takes."""


class Resumed:
    """What the chunks of one RESUME have brought so far."""

    __slots__ = ("first", "handlers", "results", "running")

    def __init__(self, first: ResumeIn) -> None:
        self.first = first
        self.handlers: list[str] = []
        self.running: list[RunningAttempt] = []
        self.results: list[ResponseIn] = []


class Membership:
    """Owns the sessions. `workers` maps each worker id to its one session, open or lost."""

    def __init__(self, state: State, attempts: Attempts) -> None:
        self._state = state
        self._settings = state.settings
        self._attempts = attempts
        self._dispatcher = attempts.dispatcher
        self.sessions: dict[int, Session] = {}
        self.workers: dict[str, Session] = {}

    # -- coming

    def register(self, session_id: int, host: str, message: Register, now: Moment) -> None:
        """Take a REGISTER; answers follow as effects."""
        if session_id in self.sessions:
            self._refuse(self.sessions[session_id], "registered_twice", "this connection is registered already")
            return
        session = Session(
            session_id, message.worker_id, None if message.plain else message.incarnation, plain=message.plain,
            host=message.host or host, now_s=now.mono_s, wall_ms=now.wall_ms,
        )  # fmt: skip
        if not message.plain and not message.incarnation:
            self._refuse(session, "incarnation", "a worker with features must name its incarnation")
            return
        missing = set() if message.features is None else set(FEATURES) - set(message.features)
        if missing:
            self._refuse(session, "features", f"this core needs workers that speak {', '.join(sorted(missing))}")
            return
        self.sessions[session_id] = session
        self._arm_lease(session, now)
        rival = self.workers.get(session.worker_id)
        if rival is None or not rival.is_open or rival.plain or rival.incarnation == session.incarnation:
            self._welcome(session, now)
        elif rival.takeover is not None:
            self._refuse(session, "id_in_use", f"another process registers as worker {session.worker_id} already")
        else:
            # Another process with the same id: the older one wins if it is alive.
            rival.takeover = session
            self._state.effects.append(Send(rival.session_id, frame(Heartbeat(ping=True)), None))
            self._state.arm(now, self._settings.takeover_ping_s, self._decide_takeover, session)

    def _decide_takeover(self, session: Session, now: Moment) -> None:
        rival = self.workers.get(session.worker_id)
        if rival is None or rival.takeover is not session:
            return
        rival.takeover = None
        self._welcome(session, now)

    def _welcome(self, session: Session, now: Moment) -> None:
        before = self.workers.get(session.worker_id)
        if before is not None:
            if before.takeover is not None and before.takeover is not session:
                self._refuse(before.takeover, "id_in_use", f"worker {session.worker_id} has connected again")
            before.takeover = None
            if before.is_open:
                self._state.effects.append(Close(before.session_id, "the worker has connected again"))
                self._close_session(before, now)
            # Until RESUME tells what became of them, its attempts wait with the new session.
            self._disarm(before)
            for attempt in before.all_attempts():
                before.remove(attempt)
                session.add(attempt)
        self.workers[session.worker_id] = session
        features = None if session.plain else list(FEATURES)
        ack = frame(RegisterAck(session.worker_id, features))
        self._state.effects.append(Send(session.session_id, ack, None))
        if session.plain:
            session.slots = self._settings.plain_slots
            self._settle(session, [], [], now)

    def resume(self, session_id: int, message: ResumeIn, now: Moment) -> None:
        """Take a chunk of RESUME; with the last one the worker is reconciled and gets work."""
        session = self.sessions.get(session_id)
        if session is None or session.state is not SessionState.JOINING or session.plain:
            return
        if self.workers.get(session.worker_id) is not session:
            return  # It was not welcomed yet, so it has no business to resume.
        if session.resume is None:
            session.resume = Resumed(message)
        resumed = session.resume
        resumed.handlers += message.handlers
        resumed.running += message.running
        resumed.results += message.results
        if len(resumed.handlers) + len(resumed.running) + len(resumed.results) > MAX_RESUMED:
            self._refuse(session, "resume", f"more than {MAX_RESUMED} entries in RESUME")
            return
        if not message.last:
            return
        session.resume = None
        first = resumed.first
        if first.slots < 1:
            self._refuse(session, "slots", "a worker must have at least one slot")
            return
        try:
            check_group(first.group)
            for handler in resumed.handlers:
                check_name(handler, "handlers")
        except InvalidValue as error:
            self._refuse(session, "resume", str(error))
            return
        session.group_name, session.slots, session.weight = first.group, first.slots, first.weight
        session.tags, session.handlers = tuple(first.tags), frozenset(resumed.handlers)
        self._settle(session, resumed.running, resumed.results, now)

    def _settle(self, session: Session, running: list[RunningAttempt], results: list[ResponseIn], now: Moment) -> None:
        inherited = session.all_attempts()
        reported = [result.task_id for result in results]
        for result in results:
            self._attempts.result(session, result, now)
        kept = self._adopt(session, running, now)
        reported += [report.task_id for report in running]
        for attempt in inherited:
            if (attempt.task.task_id, attempt.number) in kept:
                continue
            session.remove(attempt)
            if attempt.closed:
                continue
            self._unclaimed(attempt, session, now)
        if not session.plain:
            terminal = sorted({task_id for task_id in reported if self._has_ended(task_id)})
            data = frame(ResumeAck(terminal, self._state.epoch))
            self._state.effects.append(Send(session.session_id, data, None))
        self._note(session, "ready", now)
        self._dispatcher.join(session, now)

    def _unclaimed(self, attempt: Attempt, session: Session, now: Moment) -> None:
        # Only the process that would have it can tell that it never began. Another one cannot: a handler that ends its
        # process at once is never announced, and must not run for ever. A plain worker never says what it has started.
        if attempt.started or session.plain or attempt.task.incarnation != session.incarnation:
            self._attempts.lost(attempt, now)
        else:
            self._attempts.give_back(attempt, Outcome.UNDELIVERED, "the worker never got it", now)

    def _has_ended(self, task_id: str) -> bool:
        # Only what is stored counts: the commit that is under way may be refused. What is not in memory has ended.
        if task_id.rpartition(":")[0] in self._state.ending:
            return False
        task = self._state.tasks.get(task_id)
        return task is None or task.stored_state in TERMINAL

    def _adopt(self, session: Session, running: list[RunningAttempt], now: Moment) -> set[tuple[str, int]]:
        kept: set[tuple[str, int]] = set()
        for report in running:
            attempt = session.find(report.task_id, report.attempt)
            if attempt is None or attempt.closed:
                kept.add((report.task_id, report.attempt))
                task = self._state.tasks.get(report.task_id)
                if attempt is None and task is not None:
                    # It runs something that is no longer wanted: its slot is taken until it says that this has ended.
                    ghost = Attempt(task, report.attempt, report.fence, session)
                    ghost.closed = True
                    session.add(ghost)
            elif attempt.task.incarnation == session.incarnation:
                kept.add((report.task_id, report.attempt))
                self._attempts.adopt(attempt, session, report.started, report.elapsed_ms / 1000, now)
                continue
            # else: what another process was given is lost with that, whatever this one says.
            cancel = frame(Cancel(report.task_id, report.attempt, "the attempt is closed"))
            self._state.effects.append(Send(session.session_id, cancel, None))
        return kept

    def _refuse(self, session: Session, code: str, message: str) -> None:
        if not session.plain:
            self._state.effects.append(Send(session.session_id, frame(Error(code, message)), None))
        self._state.effects.append(Close(session.session_id, message))

    # -- living

    def seen(self, session: Session, now: Moment) -> None:
        """Any frame is a sign of life."""
        session.last_frame_s = now.mono_s
        session.last_seen_ms = now.wall_ms
        session.pinged = False
        if session.takeover is not None:
            newer, session.takeover = session.takeover, None
            self._refuse(newer, "id_in_use", f"worker id {session.worker_id} belongs to a process that is alive")

    def _arm_lease(self, session: Session, now: Moment) -> None:
        session.timer = self._state.arm(now, self._settings.ping_s, self._check_lease, session)

    def _check_lease(self, session: Session, now: Moment) -> None:
        if not session.is_open or self.sessions.get(session.session_id) is not session:
            return
        silent_s = now.mono_s - session.last_frame_s
        if silent_s >= self._settings.lease_s - 0.001:
            self._state.effects.append(Close(session.session_id, f"no frame for {silent_s:.0f} s"))
            self._close_session(session, now)
            self._rescue(session, now)
            return
        wait_s = self._settings.ping_s - silent_s
        if wait_s <= 0.001:
            if not session.pinged and not session.plain:
                session.pinged = True
                self._state.effects.append(Send(session.session_id, frame(Heartbeat(ping=True)), None))
            wait_s = self._settings.lease_s - silent_s
        session.timer = self._state.arm(now, wait_s, self._check_lease, session)

    def drain(self, session_id: int, now: Moment) -> None:
        """The worker takes nothing new: what it runs goes on."""
        session = self.sessions.get(session_id)
        if session is not None and session.state is SessionState.READY:
            self._dispatcher.leave(session, now)
            session.state = SessionState.DRAINING
            self._note(session, "draining", now)

    # -- going

    def closed(self, session_id: int, now: Moment) -> None:
        """The connection of a session is gone; does nothing for one that was superseded before."""
        session = self.sessions.get(session_id)
        if session is None or not session.is_open:
            return
        self._close_session(session, now)
        current = self.workers.get(session.worker_id)
        if current is not session:
            if current is not None and current.takeover is session:
                current.takeover = None
            return
        grace_s = 0.0 if session.plain else self._settings.resume_grace_s
        if grace_s and session.in_flight:
            session.timer = self._state.arm(now, grace_s, self._rescue, session)
        else:
            self._rescue(session, now)

    def _close_session(self, session: Session, now: Moment) -> None:
        self.sessions.pop(session.session_id, None)
        self._disarm(session)
        # First, so that nothing which was held for it is placed on it again.
        session.left = session.state is SessionState.DRAINING
        session.state = SessionState.LOST
        self._dispatcher.leave(session, now)
        if self.workers.get(session.worker_id) is session:
            self._note(session, "lost", now)
            if session.takeover is not None:
                self._welcome(session.takeover, now)

    def _rescue(self, session: Session, now: Moment) -> None:
        """Move what a lost worker had to others, at once."""
        for attempt in session.all_attempts():
            session.remove(attempt)
            if not attempt.closed:
                self._attempts.lost(attempt, now)
        if self.workers.get(session.worker_id) is session and not session.is_open:
            session.timer = self._state.arm(now, self._settings.forget_worker_s, self._forget, session)

    def _forget(self, session: Session, now: Moment) -> None:
        if self.workers.get(session.worker_id) is session and not session.is_open:
            del self.workers[session.worker_id]

    def _disarm(self, session: Session) -> None:
        if session.timer is not None:
            self._state.wheel.cancel(session.timer)
            session.timer = None

    def _note(self, session: Session, state: str, now: Moment) -> None:
        self._state.workers[session.worker_id] = WorkerRow(
            session.worker_id, session.incarnation, session.group_name, session.host, session.slots, session.weight,
            encode(sorted(session.handlers or ())).decode(), encode(list(session.tags)).decode(), state,
            session.connected_ms, session.last_seen_ms,
        )  # fmt: skip

    # -- after a restart

    def await_return(self, task: Task, now: Moment, grace_s: float, pause_s: float) -> None:
        """Link an open attempt from the store to its worker, or to a lost session that waits for it to come back.

        It is left alone for `pause_s`, whatever its worker has said before.
        """
        worker_id = task.worker_id or ""
        session = self.workers.get(worker_id)
        if session is None:
            session = Session(
                -len(self.workers) - 1, worker_id, task.incarnation, plain=task.incarnation is None, host="",
                now_s=now.mono_s, wall_ms=now.wall_ms,
            )  # fmt: skip
            session.state = SessionState.LOST
            self.workers[worker_id] = session
        closed = session.find(task.task_id, task.attempt)
        if closed is not None:
            session.remove(closed)  # What closed it was not stored.
        if not session.is_open and not session.in_flight:
            self._disarm(session)
            session.timer = self._state.arm(now, grace_s, self._rescue, session)
        attempt = Attempt(task, task.attempt, task.fence, session)
        attempt.started = task.started_ms is not None
        task.live = attempt
        session.add(attempt)
        if pause_s:
            attempt.timer = self._state.arm(now, pause_s, self._compare, attempt)
        else:
            self._compare(attempt, now)

    def _compare(self, attempt: Attempt, now: Moment) -> None:
        attempt.timer = None
        session, task = attempt.session, attempt.task
        if session.state in (SessionState.READY, SessionState.DRAINING):
            if session.incarnation == task.incarnation:
                self._attempts.watch(attempt, max(0, now.wall_ms - (task.started_ms or now.wall_ms)) / 1000, now)
            else:
                # The process that had it is gone, and the one that is here has said already what it has.
                session.remove(attempt)
                self._unclaimed(attempt, session, now)
