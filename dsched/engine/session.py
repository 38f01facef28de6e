"""Sessions and attempts: what the engine knows about one connection of a worker and about what it was given."""

from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from dsched.model.task import Task

if TYPE_CHECKING:
    from dsched.engine.dispatch import Group

__all__ = ["Attempt", "Session", "SessionState"]

MAX_UNSENT_BYTES = 1024 * 1024
"""What may be on the way to one worker; a quarter of what makes the network side drop it."""


class SessionState(StrEnum):
    """Where a session is. Only a ready one is given work."""

    JOINING = "joining"  # registered, but not yet through with RESUME
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"  # its connection is gone, its attempts wait for the resume grace or the lease

    __hash__ = str.__hash__


class Attempt:
    """One try of a task on one session. `closed` is set once the core has decided how it ended, whatever the worker
    says.

    A closed attempt stays with its session, and keeps its slot there, until the worker reports its end. It is
    `outlived` once the worker has told that its handler goes on after its timeout. `older` is an earlier attempt of the
    same task on the same session that is still unanswered.
    """

    __slots__ = ("closed", "fence", "number", "older", "outlived", "session", "started", "task", "timer")

    def __init__(self, task: Task, number: int, fence: int, session: "Session", older: "Attempt | None" = None) -> None:
        self.task = task
        self.number = number
        self.fence = fence
        self.session = session
        self.older = older
        self.started = False
        self.closed = False
        self.outlived = False
        self.timer: Any = None


class Session:
    """One connection of a worker, or (LOST) what it left behind.

    `in_flight` holds, by task id, the newest unanswered attempt; `load` counts all of them. `held` are tasks that wait
    for this worker because their data is here.
    """

    __slots__ = (
        "connected_ms",
        "group",
        "group_name",
        "handlers",
        "held",
        "host",
        "in_flight",
        "incarnation",
        "last_frame_s",
        "last_seen_ms",
        "left",
        "load",
        "pinged",
        "plain",
        "resume",
        "sent_bytes",
        "session_id",
        "slots",
        "state",
        "tags",
        "takeover",
        "timer",
        "weight",
        "worker_id",
        "writable",
    )

    def __init__(
        self,
        session_id: int,
        worker_id: str,
        incarnation: str | None,
        *,
        plain: bool,
        host: str,
        now_s: float,
        wall_ms: int,
    ) -> None:
        self.session_id = session_id
        self.worker_id = worker_id
        self.incarnation = incarnation
        self.plain = plain
        self.host = host
        self.state = SessionState.JOINING
        self.group_name = "default"
        self.group: Group | None = None
        self.slots = 0
        self.weight = 1
        self.tags: tuple[str, ...] = ()
        self.handlers: frozenset[str] | None = None  # None: every handler
        self.in_flight: dict[str, Attempt] = {}
        self.load = 0
        self.held: deque[Task] = deque()
        self.connected_ms = wall_ms
        self.last_seen_ms = wall_ms
        self.last_frame_s = now_s
        self.pinged = False
        self.timer: Any = None
        self.left = False  # it was draining when its connection went
        self.takeover: Session | None = None  # another process that wants this worker id
        self.sent_bytes = 0  # dispatched since the transport last took what there was
        self.writable = True
        self.resume: Any = None  # what RESUME has brought so far

    @property
    def is_open(self) -> bool:
        """Tell whether the connection is believed to be up."""
        return self.state is not SessionState.LOST

    @property
    def is_blocked(self) -> bool:
        """Tell whether so much is on the way to the worker that nothing may be added now."""
        return not self.writable or self.sent_bytes >= MAX_UNSENT_BYTES

    def offers(self, handler: str) -> bool:
        """Tell whether this worker can run `handler`."""
        return self.handlers is None or handler in self.handlers

    def add(self, attempt: Attempt) -> None:
        """Take an attempt into `in_flight`."""
        attempt.session = self
        attempt.older = self.in_flight.get(attempt.task.task_id)
        self.in_flight[attempt.task.task_id] = attempt
        self.load += 1

    def remove(self, attempt: Attempt) -> None:
        """Take an attempt out, so that its slot is free; does nothing when it is not there."""
        task_id = attempt.task.task_id
        newest = self.in_flight.get(task_id)
        if newest is attempt:
            if attempt.older is None:
                del self.in_flight[task_id]
            else:
                self.in_flight[task_id] = attempt.older
        else:
            while newest is not None and newest.older is not attempt:
                newest = newest.older
            if newest is None:
                return
            newest.older = attempt.older
        attempt.older = None
        self.load -= 1

    def find(self, task_id: str, number: int) -> Attempt | None:
        """Return the unanswered attempt `number` of a task."""
        attempt = self.in_flight.get(task_id)
        while attempt is not None and attempt.number != number:
            attempt = attempt.older
        return attempt

    def all_attempts(self) -> list[Attempt]:
        """Return every unanswered attempt, the oldest of a task first."""
        found: list[Attempt] = []
        for newest in self.in_flight.values():
            chain: list[Attempt] = []
            attempt: Attempt | None = newest
            while attempt is not None:
                chain.append(attempt)
                attempt = attempt.older
            found.extend(reversed(chain))
        return found
