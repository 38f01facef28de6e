"""Every route of the HTTP interface, each one call to the core."""

import re
from typing import Any

from dsched.core.api import CoreApi, Stats
from dsched.errors import InvalidValue
from dsched.model.run import RunState
from dsched.model.task import TaskState
from dsched.store.paging import WORKERS
from dsched.web.envelope import Refused
from dsched.web.routes import PAGE, Body, Call, Routes, choice, instant, text

__all__ = ["ROUTES"]

ROUTES = Routes()

_MOST_WAIT_S = 300
_MOST_HOURS = 720
_SPAN = {"since": instant, "until": instant}
_MOST_BULK_BYTES = 16 << 20


def _wait(value: str) -> float:
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,9})?", value) or float(value) > _MOST_WAIT_S:
        raise ValueError(f"must be a number of seconds from 0 to {_MOST_WAIT_S}")
    return float(value)


def _hours(value: str) -> int:
    if not re.fullmatch("[0-9]{1,3}", value) or not 1 <= int(value) <= _MOST_HOURS:
        raise ValueError(f"must be a whole number of hours from 1 to {_MOST_HOURS}")
    return int(value)


# -- the state of this core


@ROUTES.route("GET", "/healthz")
async def healthz(core: CoreApi, call: Call) -> dict[str, str]:
    """Tell that the process lives; asks nothing of anybody."""
    return {"status": "ok"}


@ROUTES.route("GET", "/readyz")
async def readyz(core: CoreApi, call: Call) -> dict[str, Any]:
    """Tell whether this core can do its work, with 503 while it cannot."""
    ready, facts = core.readiness()
    if not ready:
        raise Refused(503, "not_ready", "this core neither leads nor follows with a store", **facts)
    return facts


@ROUTES.route("GET", "/status")
async def status(core: CoreApi, call: Call) -> dict[str, Any]:
    return core.status()


@ROUTES.route("GET", "/leader")
async def leader(core: CoreApi, call: Call) -> dict[str, Any]:
    return core.leader()


@ROUTES.route("GET", "/jobs/pending")
async def pending(core: CoreApi, call: Call) -> dict[str, Any]:
    return core.pending()


# -- workers


@ROUTES.route("GET", "/workers")
async def online_workers(core: CoreApi, call: Call) -> list[dict[str, Any]]:
    return core.workers()


@ROUTES.route("GET", "/api/v1/workers", query=PAGE)
async def list_workers(core: CoreApi, call: Call) -> dict[str, Any]:
    """List workers by id; they are in memory, so the page is cut here."""
    limit, cursor, _ = call.page()
    after = None if cursor is None else WORKERS.after(cursor)
    workers = [worker for worker in core.workers() if after is None or (worker["worker_id"],) > after]
    workers.sort(key=lambda worker: worker["worker_id"])
    page = workers[:limit]
    return {"items": page, "next": WORKERS.cursor_at((page[-1]["worker_id"],)) if len(workers) > limit else None}


# -- jobs


@ROUTES.route("GET", "/api/v1/jobs", query={**PAGE, "group": text, "enabled": choice("true", "false")})
async def list_jobs(core: CoreApi, call: Call) -> dict[str, Any]:
    return await core.jobs(*call.page())


@ROUTES.route("POST", "/api/v1/jobs", status=201, body=Body.REQUIRED)
async def create_job(core: CoreApi, call: Call) -> dict[str, Any]:
    return await core.create_job(call.body)


@ROUTES.route("GET", "/api/v1/jobs/<name>")
async def show_job(core: CoreApi, call: Call, name: str) -> dict[str, Any]:
    return await core.job(name)


@ROUTES.route("DELETE", "/api/v1/jobs/<name>", status=204, body=Body.OPTIONAL)
async def delete_job(core: CoreApi, call: Call, name: str) -> None:
    _no_fields(call)
    await core.delete_job(name)


@ROUTES.route("POST", "/api/v1/jobs/<name>/trigger", status=202, body=Body.OPTIONAL)
async def trigger(core: CoreApi, call: Call, name: str) -> dict[str, Any]:
    return await core.trigger(name, call.body)


# -- runs and tasks


@ROUTES.route("GET", "/api/v1/runs", query={**PAGE, **_SPAN, "job": text, "status": choice(*RunState), "group": text})
async def list_runs(core: CoreApi, call: Call) -> dict[str, Any]:
    return await core.runs(*call.page())


@ROUTES.route("POST", "/api/v1/runs", status=202, body=Body.REQUIRED, body_limit=_MOST_BULK_BYTES)
async def create_runs(core: CoreApi, call: Call) -> dict[str, Any]:
    return await core.create_runs(call.body)


@ROUTES.route("GET", "/api/v1/runs/<run_id>", query={"wait": _wait}, ends_with_client=True)
async def show_run(core: CoreApi, call: Call, run_id: str) -> dict[str, Any]:
    return await core.run(run_id, call.query.get("wait", 0.0))


@ROUTES.route("GET", "/api/v1/runs/<run_id>/tasks", query={**PAGE, "status": choice(*TaskState), "worker": text})
async def list_tasks(core: CoreApi, call: Call, run_id: str) -> dict[str, Any]:
    return await core.tasks(run_id, *call.page())


@ROUTES.route("POST", "/api/v1/runs/<run_id>/cancel", status=202, body=Body.OPTIONAL)
async def cancel_run(core: CoreApi, call: Call, run_id: str) -> dict[str, Any]:
    _no_fields(call)
    return await core.cancel_run(run_id)


@ROUTES.route(
    "GET", "/api/v1/tasks", query={**PAGE, **_SPAN, "job": text, "status": choice(*TaskState), "worker": text}
)
async def list_all_tasks(core: CoreApi, call: Call) -> dict[str, Any]:
    return await core.all_tasks(*call.page())


@ROUTES.route("GET", "/api/v1/stats", query={"job": text, "hours": _hours})
async def stats(core: CoreApi, call: Call) -> Stats:
    return await core.stats(call.query.get("hours", 24), call.query.get("job"))


@ROUTES.route("GET", "/api/v1/tasks/<task_id>")
async def show_task(core: CoreApi, call: Call, task_id: str) -> dict[str, Any]:
    return await core.task(task_id)


def _no_fields(call: Call) -> None:
    for name in call.body:
        raise InvalidValue(name[:80], "unknown field")
