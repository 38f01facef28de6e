"""The durations and bounds that the engine decides by, with the defaults of the design."""

from dataclasses import dataclass

from dsched.model.limits import MAX_PARAMS_BYTES

__all__ = ["EngineSettings"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Durations in seconds, sizes in bytes. The defaults are contracts (design sections 5, 6 and 8)."""

    lease_s: float = 60.0
    """Silence after which a worker counts as dead."""
    ping_s: float = 45.0
    """Silence after which a worker that can answer is asked."""
    resume_grace_s: float = 5.0
    """How long the attempts of a closed connection wait for the same incarnation; 0 is allowed."""
    unstarted_s: float = 60.0
    """After this time without `started`, a dispatched attempt is withdrawn."""
    timeout_slack_s: float = 5.0
    """How much later than the worker the core closes an attempt whose time is up."""
    takeover_ping_s: float = 2.0
    """How long an open session has to answer when another process registers with its worker id."""
    hold_s: float = 1.0
    """How long a task waits for its full owner before any other worker may take it."""
    avoid_s: float = 10.0
    """How long a worker that rejected a task is avoided for it; doubles with each rejection."""
    prefetch_below_ms: float = 10.0
    """Runs of a handler count as short below this; only short ones are sent ahead of a free slot."""
    prefetch_max: int = 512
    """At most so many frames beyond the free slots of a worker."""
    prefetch_span_ms: float = 40.0
    """How much work, in running time per slot, is sent ahead."""
    plain_slots: int = 16
    """What a plain worker is taken to have."""
    forget_worker_s: float = 3600.0
    """How long a lost worker is remembered."""
    params_bytes: int = MAX_PARAMS_BYTES
    result_bytes: int = 256 * 1024
    message_bytes: int = 8 * 1024
    traceback_bytes: int = 64 * 1024
    runs_per_request: int = 10_000
    tasks_per_request: int = 100_000
    waiting_tasks: int = 100_000
    """With more open tasks in memory than this, new runs wait in the store until there is room."""
    waiting_bytes: int = 256 * 1024 * 1024
    """The same for the params of the open runs in memory."""
    lane_tasks: int = 1_000
    """So many waiting tasks of one handler, priority and group may be in memory whatever else is; less where there are
    many such lanes."""
    page_below: int = 10_000
    """With fewer waiting tasks of a lane in memory than this, the next of them are read from the store."""
    page_tasks: int = 5_000
    """About so many tasks are read at once."""
    task_params_bytes: int = 4096
    """Params up to this size are repeated in each task's row; larger ones are kept once, in the run's."""
