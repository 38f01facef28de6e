"""The rows of the store, one type per table: written by the engine, read back by whoever asks.

Field names are the column names of design section 6, in the order in which they are inserted. Instants are integer
milliseconds UTC, except the two columns that existing installations query as TIMESTAMP (`timestamp_text`).
"""

from typing import NamedTuple

__all__ = [
    "AttemptRow",
    "BacklogRow",
    "JobRow",
    "LaneRow",
    "LeaderRow",
    "LogRow",
    "ParkedRun",
    "RollupRow",
    "RunRow",
    "TaskRow",
    "WorkerRow",
]


class JobRow(NamedTuple):
    """Table `job`. `definition` is the job as people gave it, with defaults filled in, as JSON."""

    name: str
    group_name: str
    definition: str
    enabled: int
    version: int
    next_due: int | None
    created_at: int
    updated_at: int


class RunRow(NamedTuple):
    """Table `run`; unique by (job, due), `due` null for requests. `snapshot` and `counts` are JSON."""

    run_id: str
    job: str
    due: int | None
    status: str
    reason: str | None
    cause: str
    request_key: str | None
    request_hash: str | None
    parent: str | None
    workflow_id: str | None
    group_name: str
    priority: int
    job_version: int
    snapshot: str
    params: str
    sharding_total: int
    cancel_requested: int
    counts: str | None
    created_at: int
    started_at: int | None
    finished_at: int | None
    version: int


class TaskRow(NamedTuple):
    """Table `schedule_job`. The first thirteen columns are those that existing installations query."""

    job_id: int
    task_id: str
    job_name: str
    params: str
    sharding_total: int
    sharding_item: int
    timeout: int
    target_worker: str | None
    status: str
    retry_count: int
    error_msg: str | None
    create_time: str
    update_time: str
    run_id: str
    group_name: str
    priority: int
    incarnation: str | None
    attempt: int
    lost_count: int
    fence: int
    not_before: int | None
    started_at: int | None
    deadline: int | None
    finished_at: int | None
    result: str | None
    error: str | None
    version: int


class BacklogRow(NamedTuple):
    """Table `backlog`, key `seq`: a run of which nothing was ever dispatched, and that was created over the bound.

    `seq` is the `job_id` of its first task, those of the others follow without a gap. The row goes in the transaction
    in which the run leaves PENDING.
    """

    seq: int
    run_id: str
    job: str
    group_name: str
    handler: str
    priority: int
    tasks: int


class LaneRow(NamedTuple):
    """What the backlog holds for one handler, priority and group: its lowest and its highest `seq`."""

    group_name: str
    handler: str
    priority: int
    first: int
    last: int


class ParkedRun(NamedTuple):
    """A run of the backlog. Its tasks are as they were created, so that nobody needs to read them."""

    seq: int
    run: RunRow


class AttemptRow(NamedTuple):
    """Table `attempt`, key (task_id, number): written when an attempt ends without ending its task."""

    task_id: str
    number: int
    worker_id: str | None
    incarnation: str | None
    fence: int
    outcome: str
    message: str | None
    started_at: int | None
    finished_at: int


class WorkerRow(NamedTuple):
    """Table `worker`, key `worker_id`: the last that was known of a worker. `handlers` and `tags` are JSON lists."""

    worker_id: str
    incarnation: str | None
    group_name: str
    host: str
    slots: int
    weight: int
    handlers: str
    tags: str
    state: str
    connected_at: int
    last_seen_at: int


class LogRow(NamedTuple):
    """Table `log`: something that happened to a task and is kept for people (`kind` STALE, WITHDRAWN, ...)."""

    task_id: str | None
    run_id: str | None
    at: int
    kind: str
    worker_id: str | None
    attempt: int | None
    message: str


class RollupRow(NamedTuple):
    """Table `rollup`, key (hour, job, status): how many tasks ended. `hour` is its first millisecond."""

    hour: int
    job: str
    status: str
    count: int  # type: ignore[assignment]


class LeaderRow(NamedTuple):
    """Table `leader`, one row: who leads, and the number of the last batch that it committed."""

    epoch: int
    batch: int
    renewal: int
    owner: str
    address: str
    admin_url: str
    last_id: int
    last_fence: int
