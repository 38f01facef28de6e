"""Rows to the shapes of the HTTP interface. Only committed rows come here."""

from collections.abc import Mapping, Sequence
from typing import Any

from dsched.core.api import Stats
from dsched.engine.session import Session, SessionState
from dsched.model.instant import format_instant
from dsched.model.rows import AttemptRow, JobRow, RunRow, TaskRow
from dsched.model.task import Outcome, TaskState
from dsched.store.rollups import HOUR_MS, Counters
from dsched.wire.encoding import decode_any

__all__ = ["job_view", "run_view", "stats_view", "task_view", "worker_view"]

_OUTCOMES = {
    TaskState.SUCCESS.value: Outcome.SUCCESS.value,
    TaskState.TIMEOUT.value: Outcome.TIMEOUT.value,
    TaskState.CANCELLED.value: Outcome.CANCELLED.value,
}


def _json(text: str | None) -> Any:
    return None if text is None else decode_any(text.encode())


def _instant(ms: int | None) -> str | None:
    return None if ms is None else format_instant(ms)


def job_view(row: JobRow) -> dict[str, Any]:
    """Return a job."""
    definition: dict[str, Any] = _json(row.definition)
    return {**definition, "enabled": bool(row.enabled), "version": row.version}


def run_view(row: RunRow, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return a run; `counts` are used where the row does not hold its final ones."""
    return {
        "id": row.run_id,
        "job": row.job,
        "due": _instant(row.due),
        "status": row.status,
        "reason": row.reason,
        "cause": row.cause,
        "key": row.request_key,
        "parent": row.parent,
        "params": _json(row.params),
        "sharding_total": row.sharding_total,
        "counts": dict(counts) if row.counts is None else _json(row.counts),
        "created_at": _instant(row.created_at),
        "started_at": _instant(row.started_at),
        "finished_at": _instant(row.finished_at),
    }


def task_view(row: TaskRow, closed: Sequence[AttemptRow]) -> dict[str, Any]:
    """Return a task; `closed` are its attempts that ended without ending it."""
    attempts = [_attempt_view(attempt) for attempt in closed]
    if row.attempt and not any(attempt.number == row.attempt for attempt in closed):
        attempts.append(
            {
                "number": row.attempt,
                "worker_id": row.target_worker,
                "outcome": _last_outcome(row),
                "message": row.error_msg,
                "started_at": _instant(row.started_at),
                "finished_at": _instant(row.finished_at),
            }
        )
    return {
        "task_id": row.task_id,
        "job_id": str(row.job_id),
        "run_id": row.run_id,
        "job": row.job_name,
        "sharding_item": row.sharding_item,
        "sharding_total": row.sharding_total,
        "status": row.status,
        "attempt": row.attempt,
        "retry_count": row.retry_count,
        "worker_id": row.target_worker,
        "not_before": _instant(row.not_before),
        "result": _json(row.result),
        "error": _error(row, closed),
        "started_at": _instant(row.started_at),
        "finished_at": _instant(row.finished_at),
        "attempts": attempts,
    }


def _last_outcome(row: TaskRow) -> str | None:
    if row.status == TaskState.FAILED.value:
        # A handler's error always has its type; without one the last worker was lost.
        return Outcome.LOST.value if row.error is None else Outcome.ERROR.value
    return _OUTCOMES.get(row.status)


def _error(row: TaskRow, closed: Sequence[AttemptRow]) -> dict[str, Any] | None:
    if row.error is not None:
        error: dict[str, Any] = _json(row.error)
        return error
    if not row.error_msg or row.status == TaskState.SUCCESS.value:
        return None
    kind = _last_outcome(row) or (closed[-1].outcome if closed else row.status)
    return {"type": kind, "message": row.error_msg, "traceback": None}


def _attempt_view(row: AttemptRow) -> dict[str, Any]:
    return {
        "number": row.number,
        "worker_id": row.worker_id,
        "outcome": row.outcome,
        "message": row.message,
        "started_at": _instant(row.started_at),
        "finished_at": _instant(row.finished_at),
    }


def stats_view(
    counters: Counters, since_ms: int, until_ms: int, job: str | None, open_counts: Mapping[str, int] | None
) -> Stats:
    """Return the counters of the hours from `since_ms` to `until_ms`."""
    total: dict[str, int] = {}
    hours: dict[int, dict[str, int]] = {hour: {} for hour in range(since_ms, until_ms, HOUR_MS)}
    for hour, status, count in counters.by_hour:
        hours[hour][status] = count
        total[status] = total.get(status, 0) + count
    jobs: dict[str, dict[str, int]] = {}
    for name, status, count in counters.by_job:
        jobs.setdefault(name, {})[status] = count
    return {
        "job": job,
        "since": format_instant(since_ms),
        "until": format_instant(until_ms),
        "ended": total,
        "by_hour": [{"hour": format_instant(hour), "ended": ended} for hour, ended in hours.items()],
        "by_job": [{"job": name, "ended": ended} for name, ended in jobs.items()],
        "open": None if open_counts is None else dict(open_counts),
    }


def worker_view(session: Session) -> dict[str, Any]:
    """Return a worker that is online."""
    state = "draining" if session.state is SessionState.DRAINING else "ready"
    return {
        "worker_id": session.worker_id,
        "group": session.group_name,
        "host": session.host,
        "state": state,
        "slots": session.slots,
        "running": session.load,
        "handlers": sorted(session.handlers or ()),
        "tags": list(session.tags),
        "weight": session.weight,
        "incarnation": session.incarnation,
        "connected_at": format_instant(session.connected_ms),
        "last_seen_at": format_instant(session.last_seen_ms),
        "cache": None,
    }
