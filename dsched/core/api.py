"""What the core offers to those who face people: `dsched.web` calls it, the core's service implements it."""

from collections.abc import Mapping
from typing import Any, Protocol, TypedDict

__all__ = ["CoreApi", "HourStats", "JobStats", "Stats"]


class HourStats(TypedDict):
    """Tasks that ended within an hour, by status."""

    hour: str
    ended: dict[str, int]


class JobStats(TypedDict):
    """Tasks of a job that ended, by status."""

    job: str
    ended: dict[str, int]


class Stats(TypedDict):
    """Counters of the tasks that ended from `since` to `until` (exclusive), whole hours in UTC, the last one under way.

    `by_hour` has every hour, oldest first; `by_job` the 100 jobs with the most tasks, busiest first. `open` are the
    tasks of all jobs that have not ended, by status, as they are now; null when one job is asked for.
    """

    job: str | None
    since: str
    until: str
    ended: dict[str, int]
    by_hour: list[HourStats]
    by_job: list[JobStats]
    open: dict[str, int] | None


class CoreApi(Protocol):
    """Requests to a core. Reactor thread only.

    Answers are JSON-ready, in the shapes of the HTTP interface, and show committed state only; nothing that an answer
    says is less than durable. `body` is what JSON gave: the core checks it. Every method may raise the classes of
    `dsched.errors`: `InvalidValue` (bad content, with the field), `NotFound`, `Conflict`, `NotLeader`, `TooLarge`, and
    `StoreUnavailable` (the fate is unknown, repeat with the same key).

    Cancelling the Deferred of `run` gives up waiting and touches nothing else. Nobody cancels the others: a request
    whose client has left goes on.
    """

    async def create_job(self, body: object) -> dict[str, Any]:
        """Create a job and return it."""

    async def delete_job(self, name: str) -> None:
        """Delete a job and cancel its waiting runs."""

    async def job(self, name: str) -> dict[str, Any]:
        """Return a job."""

    async def jobs(self, limit: int, cursor: str | None, filters: Mapping[str, str]) -> dict[str, Any]:
        """List jobs: `{"items", "next"}`. Filters: `group`, `enabled` ("true" or "false")."""

    async def trigger(self, name: str, body: object) -> dict[str, Any]:
        """Create one run of a job now and return it."""

    async def create_runs(self, body: object) -> dict[str, Any]:
        """Create many runs, all or nothing: `{"ids"}`, in order."""

    async def run(self, run_id: str, wait_s: float) -> dict[str, Any]:
        """Return a run once it is terminal, or after `wait_s` seconds as it stands."""

    async def runs(self, limit: int, cursor: str | None, filters: Mapping[str, str]) -> dict[str, Any]:
        """List runs, newest first: `{"items", "next"}`. Filters: `job`, `status`, `group`, `since`, `until`.

        A page looks at a bounded part of history: it may be short, or empty, with `next` where it stopped.
        """

    async def tasks(self, run_id: str, limit: int, cursor: str | None, filters: Mapping[str, str]) -> dict[str, Any]:
        """List the tasks of a run by shard item: `{"items", "next"}`. Filters: `status`, `worker`."""

    async def all_tasks(self, limit: int, cursor: str | None, filters: Mapping[str, str]) -> dict[str, Any]:
        """List tasks of all runs, newest first, in pages as those of `runs`.

        Filters: `job`, `status`, `worker`, `since`, `until`.
        """

    async def stats(self, hours: int, job: str | None) -> Stats:
        """Return the counters of the last `hours` hours, the one under way included."""

    async def task(self, task_id: str) -> dict[str, Any]:
        """Return a task with its attempts."""

    async def cancel_run(self, run_id: str) -> dict[str, Any]:
        """Ask for the end of a run and return it; `Conflict` when it has ended already."""

    def workers(self) -> list[dict[str, Any]]:
        """Return the workers that are online; the leader knows them."""

    def pending(self) -> dict[str, Any]:
        """Count the tasks that are not terminal, as the leader does: `{"pending", "by_status"}`."""

    def status(self) -> dict[str, Any]:
        """Return role, epoch, leader, store, counts (None where this core does not lead), version and uptime."""

    def leader(self) -> dict[str, Any]:
        """Return who leads, as far as this core knows."""

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Tell whether this core leads, or follows, with a store; and the facts behind the answer."""
