"""The core of one process: opens the store, waits for leadership, leads term after term, answers people.

Reads go to the store in a thread of their own and so see committed state only. Whatever changes something goes through
the engine of the current term.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.interfaces import IListeningPort, IStreamServerEndpoint
from twisted.logger import Logger

from dsched.clock import Clock
from dsched.core.api import Stats
from dsched.core.looks import Looks
from dsched.core.peers import Peers
from dsched.core.pruning import Pruner
from dsched.core.term import Term
from dsched.core.threads import Threads
from dsched.core.views import job_view, run_view, stats_view, task_view, worker_view
from dsched.engine.definition import RunRequest, parse_run_request, parse_run_requests
from dsched.engine.engine import Engine
from dsched.engine.firing import job_row
from dsched.engine.settings import EngineSettings
from dsched.errors import BatchRefused, Conflict, NotFound, NotLeader, StoreUnavailable
from dsched.model.ids import requested_run_id
from dsched.model.rows import LeaderRow, RunRow, TaskRow
from dsched.model.run import RunState
from dsched.model.task import TaskState
from dsched.net.server import WorkerListenerFactory
from dsched.store.interface import Page, Store
from dsched.store.rollups import HOUR_MS, hour_of

__all__ = ["CoreService", "Election", "Victory"]

T = TypeVar("T")

RETRY_S = 1.0
LONGEST_RETRY_S = 30.0
LOOK_S = 1.0
"""How often a core that does not lead looks for the end of a run that somebody waits for."""
"""How long a request waits for one look into the store, its turn included."""


@dataclass(frozen=True, slots=True)
class Victory:
    """This core leads, as `leader` says. `predecessor_is_dead`: certainly, so that its workers are free already."""

    leader: LeaderRow
    predecessor_is_dead: bool


class Election(Protocol):
    """Decides who leads (`dsched.cluster`)."""

    async def campaign(self, on_seen: Callable[[LeaderRow], None]) -> Victory:
        """Return once this core leads; may wait for ever, and tells `on_seen` each change of who leads meanwhile."""


class CoreService(Service):
    """Implements `dsched.core.api.CoreApi`.

    `started` fires when the worker port is open and the store has its schema, or fails with what is wrong; leading may
    come later. What ended more than `history_days` days ago is deleted; 0 keeps it for ever.
    """

    log = Logger()
    name = "dsched core"

    def __init__(
        self,
        *,
        clock: Clock,
        store: Store,
        writer: Threads,
        reader: Threads,
        election: Election,
        endpoint: IStreamServerEndpoint,
        settings: EngineSettings,
        rng: random.Random,
        address: str,
        admin_url: str,
        version: str,
        history_days: int = 0,
    ) -> None:
        self.started: Deferred[None] = Deferred()
        self._clock = clock
        self._store = store
        self._writer = writer
        self._reader = reader
        self._looks = Looks(reader, clock)
        self._election = election
        self._endpoint = endpoint
        self._settings = settings
        self._rng = rng
        self._address = address
        self._admin_url = admin_url
        self._version = version
        self._history_days = history_days
        self._pruner: Pruner | None = None
        self._peers = Peers(clock)
        self._factory = WorkerListenerFactory(self._peers, clock)
        self._port: IListeningPort | None = None
        self._life: Deferred[None] | None = None
        self._term: Term | None = None
        self._follows = False
        self._leader = LeaderRow(0, 0, 0, "", "", "", 0, 0)
        self._began_s = 0.0

    # -- life

    def startService(self) -> None:
        """Begin to serve; see `started`."""
        super().startService()
        self._began_s = self._clock.monotonic()
        self._writer.start()
        self._reader.start()
        self._life = Deferred.fromCoroutine(self._live())
        self._life.addErrback(self._died)

    def stopService(self) -> Deferred[None]:
        """Stop to listen and to lead, commit what is decided, close the store."""
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        if self._port is not None:
            await maybeDeferred(self._port.stopListening)
            self._port = None
        if self._term is not None and not self._term.journal.is_away:
            await self._term.journal.settled()
        if self._life is not None:
            self._life.cancel()
        led = self._term is not None
        self._end_term(StoreUnavailable("this core is stopping"))
        self._peers.close_all()
        if led:
            await self._resign()
        await self._writer.run(self._store.close)
        self._writer.stop()
        self._reader.stop()

    async def _resign(self) -> None:
        """Let another core lead at once."""
        try:
            await self._writer.run(self._store.resign, self._leader.epoch)
        except StoreUnavailable as error:
            self.log.warn("the store is away, the next core must wait: {error}", error=error.message)  # noqa: G010

    async def _live(self) -> None:
        try:
            await self._open_store()
            self._port = await self._endpoint.listen(self._factory)
        except Exception as error:
            self.started.errback(error)
            return
        self.started.callback(None)
        pause_s = RETRY_S
        while self.running:
            try:
                victory = await self._election.campaign(self._see_leader)
                term = await self._begin_term(victory)
            except StoreUnavailable as error:
                self._follows = False
                self.log.warn("the store is away, this core cannot lead yet: {error}", error=error.message)  # noqa: G010
                await self._clock.sleep(RETRY_S)
                continue
            except CancelledError:
                raise  # This core is stopping.
            except Exception:
                # Whatever it was, a core that gives up and goes on listening helps nobody: the next try reads anew.
                self._follows = False
                self.log.failure("this core cannot lead; it tries again in {pause_s:g} s", pause_s=pause_s)
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_RETRY_S)
                continue
            pause_s = RETRY_S
            reason = await term.ended
            self.log.error("the term {epoch} has ended: {reason}", epoch=self._leader.epoch, reason=str(reason))
            self._end_term(reason)
            await self._clock.sleep(RETRY_S)

    async def _open_store(self) -> None:
        while True:
            try:
                await self._writer.run(self._store.open)
            except StoreUnavailable as error:
                self.log.warn("the store cannot be opened yet: {error}", error=error.message)  # noqa: G010
                await self._clock.sleep(RETRY_S)
            else:
                return

    def _died(self, failure: Any) -> None:
        if not failure.check(CancelledError):
            self.log.failure("this core can go on no longer", failure)

    def _see_leader(self, leader: LeaderRow) -> None:
        self._leader = leader
        self._follows = bool(leader.owner) and leader.address != self._address
        self._peers.leader = leader.address if self._follows else None

    async def _begin_term(self, victory: Victory) -> Term:
        leader = victory.leader
        active = await self._reader.run(self._store.load_active)
        now = self._clock.moment()
        self._see_leader(leader)
        engine = Engine(self._settings, self._rng, now, leader)
        # A dead core's workers look for a new one at once. A paused one's may be with it still, and work, until they
        # miss its answers: their leases must have ended before anybody else runs what they run.
        grace_s = self._settings.resume_grace_s if victory.predecessor_is_dead else self._settings.lease_s
        engine.load(active.jobs, active.runs, active.tasks, active.counts, now, grace_s)
        engine.load_backlog(active.lanes, active.parked_jobs, active.newest_due)
        self._term = Term(engine, self._store, self._writer, self._reader, self._clock, self._peers.connections)
        self._peers.term = self._term
        self.log.info(
            "this core leads: epoch {epoch}, {jobs} jobs, {tasks} open tasks",
            epoch=leader.epoch, jobs=len(active.jobs), tasks=sum(active.counts.values()),
        )  # fmt: skip
        self._term.after_event()
        if self._history_days:
            self._pruner = Pruner(self._store, self._writer, self._clock, leader.epoch, self._history_days)
        return self._term

    def _end_term(self, reason: Exception) -> None:
        if self._pruner is not None:
            self._pruner.stop()
            self._pruner = None
        term, self._term, self._peers.term = self._term, None, None
        if term is not None:
            term.stop(reason)
        self._peers.close_all()

    def _leading(self) -> Term:
        if self._term is None:
            leader = self.leader()
            # It may be this core itself that led, or is about to.
            known = leader["address"] != self._address
            where = (leader["admin_url"] or leader["address"]) if known else None
            text = f"this core does not lead; {where} does" if where else "this core does not lead, nor knows who does"
            raise NotLeader(text, leader=leader)
        return self._term

    # -- requests

    async def create_job(self, body: object) -> dict[str, Any]:
        """Create a job and return it."""
        job = await self._leading().ask(lambda engine, token, now: engine.create_job(body, token, now))
        return job_view(job_row(job))

    async def delete_job(self, name: str) -> None:
        """Delete a job and cancel its waiting runs."""
        await self._leading().ask(lambda engine, token, now: engine.delete_job(name, token, now))

    async def trigger(self, name: str, body: object) -> dict[str, Any]:
        """Create one run of a job now and return it."""
        rows = await self._request([parse_run_request(name, body, self._settings)])
        return await self._run_view(rows[0])

    async def create_runs(self, body: object) -> dict[str, Any]:
        """Create many runs, all or nothing."""
        rows = await self._request(parse_run_requests(body, self._settings))
        return {"ids": [row.run_id for row in rows]}

    async def _request(self, requests: Sequence[RunRequest]) -> Sequence[RunRow]:
        keyed = [requested_run_id(request.job, request.key) for request in requests if request.key is not None]
        term = self._leading()
        try:
            stored = await self._stored(keyed)
            return await self._ask_for_runs(term, requests, stored)
        except BatchRefused:
            # The same key may have been stored between the look and the commit; then it is answered from the store.
            stored = await self._stored(keyed)
            if not stored:
                raise
            return await self._ask_for_runs(term, requests, stored)

    async def _ask_for_runs(
        self, term: Term, requests: Sequence[RunRequest], stored: Mapping[str, RunRow]
    ) -> Sequence[RunRow]:
        rows: Sequence[RunRow] = await term.ask(
            lambda engine, token, now: engine.request_runs(requests, stored, token, now)
        )
        return rows

    async def _stored(self, run_ids: Sequence[str]) -> dict[str, RunRow]:
        if not run_ids:
            return {}
        rows = await self._looks.read(self._store.runs_by_id, run_ids)
        return {row.run_id: row for row in rows}

    async def cancel_run(self, run_id: str) -> dict[str, Any]:
        """Ask for the end of a run and return it; raises `Conflict` when it has ended."""
        while True:
            term = self._leading()
            try:
                row = await term.ask(lambda engine, token, now: engine.cancel_run(run_id, token, now))
            except NotFound:
                # There never was one, or it has ended, or ends in a commit that is under way and may yet be refused.
                await term.journal.settled()
                row = await self._looks.read(self._store.run, run_id)
                if row is None:
                    raise NotFound("run", run_id) from None
                if RunState(row.status).is_terminal:
                    text = f"run {run_id} has ended already: {row.status}"
                    raise Conflict(text, run=run_id, status=row.status) from None
                # It waits in the store.
                await self._looks.told(Deferred.fromCoroutine(term.paging.take_in(run_id)))
            else:
                return await self._run_view(row)

    # -- reads

    async def job(self, name: str) -> dict[str, Any]:
        """Return a job."""
        row = await self._looks.read(self._store.job, name)
        if row is None:
            raise NotFound("job", name)
        return job_view(row)

    async def jobs(self, limit: int, cursor: str | None, filters: Mapping[str, str]) -> dict[str, Any]:
        """List jobs."""
        page = await self._looks.read(self._store.jobs, limit, cursor, filters)
        return {"items": [job_view(row) for row in page.items], "next": page.next}

    async def run(self, run_id: str, wait_s: float) -> dict[str, Any]:
        """Return a run once it is terminal, or after `wait_s` seconds as it stands."""
        deadline_s = self._clock.monotonic() + wait_s
        while True:
            # The wait begins before the look, so that an end in between is not missed.
            waiter = self._wait_for_run(run_id) if wait_s > 0 else None
            row = await self._looks.read(self._store.run, run_id)
            left_s = deadline_s - self._clock.monotonic()
            if row is None or RunState(row.status).is_terminal or left_s <= 0:
                if waiter is not None and not waiter.called:
                    waiter.addErrback(lambda _: None)
                    waiter.cancel()
                if row is None:
                    raise NotFound("run", run_id)
                return await self._run_view(row)
            if waiter is None:
                raise StoreUnavailable("this core is stopping; ask another one, or again")
            with suppress(TimeoutError):
                await self._clock.within(waiter, left_s)

    def _wait_for_run(self, run_id: str) -> Deferred[None] | None:
        if self._term is not None:
            return self._term.wait_for_run(run_id)
        # Who does not lead hears of no end, and looks again instead.
        return self._clock.sleep(LOOK_S) if self.running else None

    async def _run_view(self, row: RunRow) -> dict[str, Any]:
        counts: Mapping[str, Mapping[str, int]] = {}
        if row.counts is None:
            counts = await self._looks.read(self._store.task_counts, [row.run_id])
        return run_view(row, counts.get(row.run_id, {}))

    async def runs(self, limit: int, cursor: str | None, filters: Mapping[str, str]) -> dict[str, Any]:
        """List runs, newest first."""
        page = await self._looks.read(self._store.runs, limit, cursor, filters)
        open_ids = [row.run_id for row in page.items if row.counts is None]
        counts = await self._looks.read(self._store.task_counts, open_ids) if open_ids else {}
        return {"items": [run_view(row, counts.get(row.run_id, {})) for row in page.items], "next": page.next}

    async def tasks(self, run_id: str, limit: int, cursor: str | None, filters: Mapping[str, str]) -> dict[str, Any]:
        """List the tasks of a run by shard item."""
        if await self._looks.read(self._store.run, run_id) is None:
            raise NotFound("run", run_id)
        page = await self._looks.read(self._store.tasks_of, run_id, limit, cursor, filters)
        return await self._task_page(page)

    async def all_tasks(self, limit: int, cursor: str | None, filters: Mapping[str, str]) -> dict[str, Any]:
        """List tasks of all runs, newest first."""
        return await self._task_page(await self._looks.read(self._store.tasks, limit, cursor, filters))

    async def _task_page(self, page: Page[TaskRow]) -> dict[str, Any]:
        tried = [row.task_id for row in page.items if _has_attempts(row)]
        attempts = await self._looks.read(self._store.attempts_of, tried) if tried else {}
        return {"items": [task_view(row, attempts.get(row.task_id, ())) for row in page.items], "next": page.next}

    async def stats(self, hours: int, job: str | None) -> Stats:
        """Return the counters of the last `hours` hours, the one under way included."""
        until_ms = hour_of(self._clock.wall_ms()) + HOUR_MS
        since_ms = max(0, until_ms - hours * HOUR_MS)
        counters = await self._looks.read(self._store.stats, since_ms, until_ms, job)
        open_counts = await self._looks.read(self._store.open_counts) if job is None else None
        return stats_view(counters, since_ms, until_ms, job, open_counts)

    async def task(self, task_id: str) -> dict[str, Any]:
        """Return a task with its attempts."""
        row = await self._looks.read(self._store.task, task_id)
        if row is None:
            raise NotFound("task", task_id)
        return task_view(row, await self._looks.read(self._store.attempts, task_id) if _has_attempts(row) else ())

    def workers(self) -> list[dict[str, Any]]:
        """Return the workers that are online."""
        return [worker_view(session) for session in self._leading().engine.sessions()]

    def pending(self) -> dict[str, Any]:
        """Count the tasks that are not terminal."""
        by_status = self._leading().engine.open_counts()
        return {"pending": sum(by_status.values()), "by_status": by_status}

    def leader(self) -> dict[str, Any]:
        """Return who leads, as far as this core knows."""
        return {
            "address": self._leader.address or None,
            "admin_url": self._leader.admin_url or None,
            "epoch": self._leader.epoch,
        }

    def status(self) -> dict[str, Any]:
        """Return what this core is and does; None for what only the leader knows."""
        term = self._term
        return {
            "role": "leader" if term is not None else "follower",
            "epoch": self._leader.epoch,
            "leader": {"address": self._leader.address or None, "admin_url": self._leader.admin_url or None},
            "store": self._store.url,
            "workers": len(term.engine.sessions()) if term is not None else None,
            "pending": sum(term.engine.open_counts().values()) if term is not None else None,
            "version": self._version,
            "uptime": round(self._clock.monotonic() - self._began_s, 3),
        }

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Tell whether this core leads, or follows, with a store that answers, and what is missing."""
        reason = None
        if self._term is None and not self._follows:
            reason = "this core neither leads nor follows (yet)"
        elif self._term is not None and self._term.journal.is_away:
            reason = "the store does not answer"
        elif self._looks.problem is not None:
            reason = f"the store cannot be read: {self._looks.problem}"
            self._looks.look_again(self._store.leader)
        return reason is None, {"ready": reason is None, "reason": reason}


def _has_attempts(row: TaskRow) -> bool:
    """Tell whether a task has rows of attempts: the first is in its own row unless it ended without ending the task."""
    return row.attempt > 1 or (row.attempt == 1 and row.status == TaskState.PENDING.value)
