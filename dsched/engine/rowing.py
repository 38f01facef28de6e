"""Turn tasks and runs in memory into the rows of the store."""

from datetime import UTC, datetime
from functools import lru_cache

from dsched.model.rows import RunRow, TaskRow
from dsched.model.run import Run
from dsched.model.task import Task
from dsched.wire.encoding import encode

__all__ = ["run_row", "task_row", "timestamp_text"]


@lru_cache(maxsize=64)
def timestamp_text(ms: int) -> str:
    """Return `YYYY-MM-DD HH:MM:SS.mmm` in UTC, the form of a TIMESTAMP column that both dialects take."""
    seconds, millis = divmod(ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{millis:03d}"


def task_row(task: Task, at_text: str, params_bytes: int) -> TaskRow:
    """Return the row of `task` as of `at_text`; params beyond `params_bytes` stay in the run's row only."""
    run = task.run
    snapshot = run.snapshot
    params = run.params
    return TaskRow(
        task.job_id,
        task.task_id,
        snapshot.job,
        params if len(params) <= params_bytes else "",
        run.sharding_total,
        task.item,
        snapshot.timeout_s,
        task.worker_id,
        task.state.value,
        task.retry_count,
        task.message,
        at_text if task.version == 1 else "",
        at_text,
        run.run_id,
        snapshot.group,
        snapshot.priority,
        task.incarnation,
        task.attempt,
        task.lost_count,
        task.fence,
        task.not_before_ms,
        task.started_ms,
        task.deadline_ms,
        task.finished_ms,
        task.result,
        task.error,
        task.version,
    )


def run_row(run: Run) -> RunRow:
    """Return the row of `run`."""
    snapshot = run.snapshot
    ended = run.state.is_terminal
    return RunRow(
        run.run_id,
        snapshot.job,
        run.due_ms,
        run.state.value,
        run.reason,
        run.cause.value,
        run.key,
        run.request_hash,
        run.parent,
        None,
        snapshot.group,
        snapshot.priority,
        snapshot.version,
        snapshot.text,
        run.params,
        run.sharding_total,
        int(run.cancel_requested),
        encode(run.counts()).decode() if ended else None,
        run.created_ms,
        run.started_ms,
        run.finished_ms,
        run.version,
    )
