"""Who gets which waiting task, and when.

The owner on the ring comes first, since the shard's data is there. When the owner is full, up to `slots` tasks are held
for it, each for at most `hold_s`; what exceeds that goes at once to the next worker on the ring with a free slot, and
what fits nowhere waits in a lane, one first-in-first-out queue per (priority, handler) of a group.

One rule keeps this cheap: a lane holds tasks only while no ready worker of the group that offers its handler has credit
left. So a new task whose lane holds others joins it without a look at any worker.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from dsched.engine.changes import Send
from dsched.engine.ring import Ring, ring_hash
from dsched.engine.routing import Prefetch, preload_keys
from dsched.engine.session import Attempt, Session, SessionState
from dsched.engine.state import State
from dsched.model.instant import Moment
from dsched.model.run import Run, RunState
from dsched.model.task import Task, TaskEvent
from dsched.wire.encoding import decode_any
from dsched.wire.messages import PlainRequest, Request, encode_request_frame

__all__ = ["Dispatcher", "Group"]

_NEVER: Final = (0.0, 0)


class Group:
    """The ready workers of one group, their ring, and the tasks that wait for any of them."""

    __slots__ = ("held", "lanes", "members", "places", "release", "ring")

    def __init__(self) -> None:
        self.ring = Ring()
        self.members: dict[str, Session] = {}
        self.lanes: dict[tuple[int, str], deque[Task]] = {}
        # What is held for members, oldest first, with the instant at which others may have it; entries of tasks
        # that went meanwhile stay until they come to the front. `release` is the timer of the first instant.
        self.held: deque[tuple[float, Task, Session]] = deque()
        self.release: Any = None
        self.places: dict[tuple[str, int], int] = {}

    def place_of(self, job: str, item: int) -> int:
        """Return where `JOB/ITEM` is on the ring; remembered, since the same shards come again and again."""
        place = self.places.get((job, item))
        if place is None:
            if len(self.places) >= 100_000:
                self.places.clear()
            place = self.places[job, item] = ring_hash(f"{job}/{item}")
        return place


class Dispatcher:
    """Places ready tasks on workers, or lets them wait."""

    def __init__(self, state: State, withdraw: Callable[[Attempt, Moment], None]) -> None:
        self._state = state
        self._settings = state.settings
        self._withdraw = withdraw  # what happens to an attempt whose first limit passes
        self.groups: dict[str, Group] = {}
        self.prefetch = Prefetch(state.settings)

    # -- membership

    def join(self, session: Session, now: Moment) -> None:
        """Put a worker on the ring of its group and give it work."""
        group = self.groups.get(session.group_name)
        if group is None:
            group = self.groups[session.group_name] = Group()
        session.group = group
        session.state = SessionState.READY
        group.members[session.worker_id] = session
        group.ring.add(session.worker_id)
        self.fill(session, now)

    def leave(self, session: Session, now: Moment) -> None:
        """Take a worker off the ring at once; what was held for it goes to others."""
        group = session.group
        if group is None or group.members.get(session.worker_id) is not session:
            return
        del group.members[session.worker_id]
        group.ring.remove(session.worker_id)
        held, session.held = session.held, deque()
        waiting = [task for task in held if task.queued]
        self._pass_on(group, waiting, self._place_on_ring, now)

    def can_run(self, group_name: str, handler: str) -> bool:
        """Tell whether any ready worker of the group offers the handler."""
        group = self.groups.get(group_name)
        return group is not None and any(session.offers(handler) for session in group.members.values())

    def waiting(self, group_name: str, handler: str, priority: int) -> int:
        """Return about how many tasks wait in a lane; exactly 0 where none does."""
        group = self.groups.get(group_name)
        lane = group.lanes.get((-priority, handler)) if group is not None else None
        if not lane:
            return 0
        while lane and not lane[-1].queued:
            lane.pop()
        while lane and not lane[0].queued:
            lane.popleft()
        return len(lane)

    # -- tasks

    def place(self, task: Task, now: Moment) -> None:
        """Give a pending task to a worker, or let it wait where the next free worker finds it."""
        snapshot = task.run.snapshot
        group = self.groups.get(snapshot.group)
        if group is None:
            group = self.groups[snapshot.group] = Group()
        lane = group.lanes.get((-snapshot.priority, snapshot.handler))
        while lane and not lane[-1].queued:
            lane.pop()  # It was cancelled where it waited, and says nothing about the others.
        if lane and not lane[-1].attempt:
            # A task that never had an attempt can go to any worker: so there is none with credit.
            self._wait(group, task, now)
        elif not self._place_on_ring(group, task, now):
            self._wait(group, task, now)

    def _wait(self, group: Group, task: Task, now: Moment) -> None:
        snapshot = task.run.snapshot
        lane = group.lanes.get((-snapshot.priority, snapshot.handler))
        if lane is None:
            lane = group.lanes[-snapshot.priority, snapshot.handler] = deque()
        task.queued = True
        if not task.attempt:
            lane.append(task)
            return
        lane.appendleft(task)  # It has waited before: it is older than what waits.
        if task.avoid:
            until_s = min((until for until, _ in task.avoid.values() if until > now.mono_s), default=None)
            if until_s is not None:
                task.timer = self._state.arm(now, until_s - now.mono_s, self._avoided_enough, task)

    def _avoided_enough(self, task: Task, now: Moment) -> None:
        task.timer = None
        if task.queued:
            self._take_out(task)
            self.place(task, now)

    def _take_out(self, task: Task) -> None:
        snapshot = task.run.snapshot
        lane = self.groups[snapshot.group].lanes[-snapshot.priority, snapshot.handler]
        lane.remove(task)
        task.queued = False

    def _place_on_ring(self, group: Group, task: Task, now: Moment, may_hold: bool = True) -> bool:
        if not group.members:
            return False
        snapshot = task.run.snapshot
        handler = snapshot.handler
        is_owner = True
        for worker_id in group.ring.successors(group.place_of(snapshot.job, task.item)):
            session = group.members[worker_id]
            if not session.offers(handler):
                continue
            if self.credit(session, handler) > 0 and self._takes(session, task, now):
                self._dispatch(task, session, now)
                return True
            if is_owner and may_hold and not task.attempt and len(session.held) < session.slots:
                self._hold(group, task, session, now)
                return True
            is_owner = False
        return False

    def _takes(self, session: Session, task: Task, now: Moment) -> bool:
        if not task.attempt:
            return True
        # A worker rejects a task of which an older attempt is open there; a plain one queues it behind.
        older = None if session.plain else session.in_flight.get(task.task_id)
        if older is not None and not older.outlived:
            return False
        return not task.avoid or task.avoid.get(session.worker_id, _NEVER)[0] <= now.mono_s

    def _hold(self, group: Group, task: Task, session: Session, now: Moment) -> None:
        task.queued = True
        session.held.append(task)
        group.held.append((now.mono_s + self._settings.hold_s, task, session))
        if group.release is None:
            group.release = self._state.arm(now, self._settings.hold_s, self._release_held, group)

    def _release_held(self, group: Group, now: Moment) -> None:
        """Let every other worker have the tasks that waited long enough for their owner."""
        group.release = None
        released: list[Task] = []
        while group.held and group.held[0][0] <= now.mono_s + 0.0005:
            _, task, session = group.held.popleft()
            if task.queued and task in session.held:
                session.held.remove(task)
                released.append(task)
        self._pass_on(group, released, self._place_at_once, now)
        if group.held and group.release is None:
            group.release = self._state.arm(now, group.held[0][0] - now.mono_s, self._release_held, group)

    def _place_at_once(self, group: Group, task: Task, now: Moment) -> bool:
        return self._place_on_ring(group, task, now, may_hold=False)

    def _pass_on(
        self, group: Group, tasks: list[Task], place: Callable[[Group, Task, Moment], bool], now: Moment
    ) -> None:
        """Place tasks that waited elsewhere; those for which there is no place go before what waits in the lanes."""
        left: list[Task] = []
        for task in tasks:
            task.queued = False
            if not place(group, task, now):
                left.append(task)
        for task in reversed(left):
            task.queued = True
            snapshot = task.run.snapshot
            group.lanes.setdefault((-snapshot.priority, snapshot.handler), deque()).appendleft(task)

    # -- workers

    def credit(self, session: Session, handler: str) -> int:
        """Return how many more frames of `handler` the worker may be sent."""
        if session.is_blocked:
            return 0
        if session.plain:
            return session.slots - session.load
        return session.slots + self.prefetch.beyond_slots(handler, session.slots) - session.load

    def fill(self, session: Session, now: Moment) -> None:
        """Give a worker as much waiting work as it has credit for: its own first, then the oldest of the group."""
        if session.state is not SessionState.READY or session.group is None:
            return
        group = session.group
        while not session.is_blocked:
            task = self._next_held(session) or self._next_in_lanes(group, session, now) or self._steal(group, session)
            if task is None:
                return
            task.queued = False
            self._dispatch(task, session, now)

    def _next_held(self, session: Session) -> Task | None:
        held = session.held
        while held:
            task = held[0]
            if not task.queued:
                held.popleft()
                continue
            if self.credit(session, task.run.snapshot.handler) <= 0:
                return None
            held.popleft()
            return task
        return None

    def _next_in_lanes(self, group: Group, session: Session, now: Moment) -> Task | None:
        best: tuple[int, int] | None = None
        found: tuple[deque[Task], int] | None = None
        for (negative_priority, handler), lane in list(group.lanes.items()):
            while lane and not lane[0].queued:
                lane.popleft()
            if not lane:
                del group.lanes[negative_priority, handler]
                continue
            rank = (negative_priority, lane[0].job_id)
            if (best is None or rank < best) and session.offers(handler) and self.credit(session, handler) > 0:
                index = self._first_taken(lane, session, now)
                if index is not None:
                    best, found = rank, (lane, index)
        if found is None:
            return None
        lane, index = found
        task = lane[index]
        del lane[index]
        return task

    def _first_taken(self, lane: deque[Task], session: Session, now: Moment) -> int | None:
        """Return the index of the first task that the worker would not reject."""
        for index, task in enumerate(lane):
            if task.queued and self._takes(session, task, now):
                return index
        return None

    def _steal(self, group: Group, session: Session) -> Task | None:
        """Return the oldest task held for another worker, for a worker that has nothing to do."""
        if session.load:
            return None
        held = group.held
        while held and not (held[0][1].queued and held[0][1] in held[0][2].held):
            held.popleft()
        for _, task, owner in held:
            if task.queued and session.offers(task.run.snapshot.handler) and task in owner.held:
                owner.held.remove(task)
                return task
        return None

    def _dispatch(self, task: Task, session: Session, now: Moment) -> None:
        run = task.run
        task.apply(TaskEvent.DISPATCH)
        task.attempt += 1
        task.fence = fence = self._state.fences.next(now.wall_ms)
        task.worker_id = session.worker_id
        task.incarnation = session.incarnation
        task.not_before_ms = task.started_ms = task.deadline_ms = None
        task.message = task.error = None
        if task.timer is not None:
            self._state.wheel.cancel(task.timer)
            task.timer = None
        attempt = Attempt(task, task.attempt, fence, session)
        task.live = attempt
        session.add(attempt)
        limit_s = self.first_limit_s(attempt)
        if limit_s:
            attempt.timer = self._state.arm(now, limit_s, self._withdraw, attempt)
        self._state.touch_task(task)
        if run.state is RunState.PENDING:
            run.state = RunState.RUNNING
            run.started_ms = now.wall_ms
            self._state.touch_run(run)
        data = self._request_frame(task, run, session)
        session.sent_bytes += len(data)
        self._state.effects.append(Send(session.session_id, data, run.unit or run.run_id))

    def first_limit_s(self, attempt: Attempt) -> float:
        """Return how long an attempt has to start; of a plain worker, which does not say when it starts, to end. 0 for
        ever."""
        if not attempt.session.plain:
            return self._settings.unstarted_s
        timeout_s = attempt.task.run.snapshot.timeout_s
        return timeout_s + self._settings.timeout_slack_s if timeout_s else 0.0

    def _request_frame(self, task: Task, run: Run, session: Session) -> bytes:
        snapshot = run.snapshot
        preload = preload_keys(snapshot.preload_keys, task.item) if snapshot.preload_keys else []
        if session.plain:
            # A plain worker hands `params` to its handler as it is: a JSON string goes raw, null as nothing.
            params = _plain_params(run.params)
            return encode_request_frame(
                PlainRequest(
                    task.job_id, snapshot.job, params, run.sharding_total, task.item, snapshot.timeout_s,
                    task.task_id, task.retry_count, preload,
                )
            )  # fmt: skip
        return encode_request_frame(
            Request(
                task.job_id, snapshot.job, run.params, run.sharding_total, task.item, snapshot.timeout_s, task.task_id,
                task.retry_count, preload, snapshot.handler, task.attempt, task.fence, self._state.epoch, run.run_id,
                run.due_ms,
            )
        )  # fmt: skip


def _plain_params(text: str) -> str:
    if text == "null":
        return ""
    return decode_any(text.encode()) if text.startswith('"') else text
