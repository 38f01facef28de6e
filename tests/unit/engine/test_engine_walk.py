"""A random walk through everything that can happen to an engine, with its invariants checked after every step."""

import random
from collections import Counter
from typing import Any

import pytest

from dsched.engine.backlog import Page
from dsched.engine.changes import Batch
from dsched.engine.definition import snapshot_of
from dsched.engine.engine import Engine
from dsched.engine.session import SessionState
from dsched.engine.settings import EngineSettings
from dsched.errors import Conflict, NotFound
from dsched.model.task import OPEN, TaskState
from dsched.testing.engine_bench import BenchWorker, EngineBench, response
from dsched.wire.encoding import decode_any
from dsched.wire.messages import RunningAttempt, Started, StartedMany

COUNTED = {"ERROR", "TIMEOUT", "LOST"}
JOBS: dict[str, dict[str, Any]] = {
    "a": {"sharding_total": 4, "retries": 1, "timeout": 5},
    "b": {"sharding_total": 2, "retries": 3, "handler": "other", "priority": 5, "retry_backoff": 1},
    "c": {"sharding_total": 1, "retries": 0, "timeout": 0},
    "d": {"sharding_total": 3, "group": "far", "retry_backoff": 0},
    "tick": {"trigger": {"type": "interval", "seconds": 7}, "retries": 1},
}


class Process:
    """A worker process: what it was given and still has, whatever becomes of its connections."""

    def __init__(self, worker_id: str, number: int, plain: bool) -> None:
        self.worker_id = worker_id
        self.incarnation = None if plain else f"i{number}"
        self.link: BenchWorker | None = None
        self.has: list[Any] = []
        self.started: set[tuple[str, int]] = set()
        self.results: list[Any] = []  # sent or not, until they are acknowledged
        self.taken = 0
        self.acked = 0

    def take_in(self) -> None:
        """Read what came."""
        if self.link is None:
            return
        self.has += self.link.requests[self.taken :]
        self.taken = len(self.link.requests)
        acks = set(self.link.acks[self.acked :])
        self.acked = len(self.link.acks)
        self.results = [result for result in self.results if (result.task_id, result.attempt) not in acks]


class Walk:
    """Takes random steps. Everything random comes from one seed."""

    def __init__(self, seed: int, settings: EngineSettings) -> None:
        self.rng = random.Random(seed)
        self.bench = EngineBench(seed=seed, settings=settings)
        self.processes: dict[str, Process] = {}
        self.numbers = 0
        self.runs: list[str] = []
        self.terminal: dict[int, Any] = {}
        self.seen_batches = 0
        self.takeover_until_s = 0.0
        self.held: Any = None
        self.fences = 0
        for name, fields in JOBS.items():
            self.bench.job(name, **fields)

    # -- steps

    def step(self) -> None:
        self.page()
        names = ("request", "advance", "answer", "connect", "news", "close", "cancel", "odd", "core")
        weights = (6, 8, 14, 6, 5, 2, 1, 3, 0.3)
        getattr(self, self.rng.choices(names, weights)[0])()
        for process in self.processes.values():
            process.take_in()

    def page(self) -> None:
        """Where pages come late, read one, or deliver what was read long ago."""
        if self.bench.no_pages and self.rng.random() < 0.5:
            if self.held is not None:
                self.bench.deliver(*self.held)
                self.held = None
                self.bench.pump()
            elif (page := self.bench.engine.next_page()) is not None:
                self.held = page, self.bench.read(page)

    def request(self) -> None:
        key = self.rng.choice([None, None, f"k{self.rng.randrange(30)}"])
        try:
            self.runs.append(self.bench.run(self.rng.choice(list(JOBS)), key=key))
        except Conflict:
            raise AssertionError("the same body never conflicts") from None

    def advance(self) -> None:
        self.bench.advance(self.rng.choice([0.1, 1, 1, 3, 8, 20, 65]))

    def links(self) -> list[Process]:
        for process in self.processes.values():
            if process.link is not None and process.link.close_reason is not None:
                process.link = None
        return [process for process in self.processes.values() if process.link is not None]

    def connect(self) -> None:
        worker_id = self.rng.choice(["w1", "w2", "w3", "p1"])
        process = self.processes.get(worker_id)
        if process is None or self.rng.random() < 0.3:
            self.numbers += 1
            process = self.processes[worker_id] = Process(worker_id, self.numbers, worker_id == "p1")
        self.link_up(process)

    def link_up(self, process: Process) -> None:
        self.takeover_until_s = self.bench.mono_s + self.bench.settings.takeover_ping_s
        process.link = link = self.bench.register(process.worker_id, process.incarnation)
        process.taken = process.acked = 0
        if process.incarnation is None:
            process.has.clear()
            return
        running = []
        for request in process.has:
            begun = (request.task_id, request.attempt) in process.started
            running.append(
                RunningAttempt(request.task_id, request.job_id, request.attempt, request.fence, begun, 10.0 * begun)
            )
        groups = {"w3": "far"}
        handlers = ["work"] if process.worker_id == "w2" else ["work", "other"]
        link.resume(
            {"w1": 1, "w2": 3, "w3": 2}[process.worker_id], handlers, groups.get(process.worker_id, "default"),
            running, list(process.results),
        )  # fmt: skip

    def news(self) -> None:
        for process in self.links():
            assert process.link is not None
            process.link.beat()
            for request in process.has:
                if not process.link.plain and self.rng.random() < 0.5:
                    process.started.add((request.task_id, request.attempt))
                    started = Started(request.task_id, request.job_id, request.attempt)
                    message = StartedMany([started] * self.rng.choice([1, 1, 2]))
                    self.bench.tell(self.bench.engine.started, process.link.session_id, message)

    def answer(self) -> None:
        for process in self.links():
            link = process.link
            assert link is not None
            for request in list(process.has):
                if self.rng.random() < 0.5:
                    continue
                process.has.remove(request)
                sent = response(request, **self.rng.choices(self.ends(), (8, 3, 1, 1, 1, 1))[0])
                if not link.plain:
                    process.results.append(sent)
                link.send(*[sent] * self.rng.choice([1, 1, 1, 2]))
                if link.close_reason is not None:
                    break
                process.take_in()

    def ends(self) -> list[dict[str, Any]]:
        return [
            {"success": True, "duration_ms": self.rng.choice([None, 0.3, 5000.0])},
            {"success": False, "message": "broken"},
            {"success": False, "outcome": "REJECTED"},
            {"success": False, "outcome": "TIMEOUT"},
            {"success": False, "outcome": "CANCELLED"},
            {"success": False, "retryable": False, "duration_ms": 1e300},
        ]

    def close(self) -> None:
        for process in self.links():
            if self.rng.random() < 0.4 and process.link is not None:
                process.link.close()
                process.link = None

    def cancel(self) -> None:
        if self.runs:
            run_id = self.rng.choice(self.runs)
            try:
                self.bench.cancel(run_id)
            except Conflict:
                raise AssertionError("nothing that has ended is in memory after a commit") from None
            except NotFound:
                assert run_id not in self.bench.engine.state.runs
                if self.held is None and self.bench.store.parked_run(run_id) is not None:
                    self.bench.take_in(run_id)
                    self.bench.cancel(run_id)
                    assert self.bench.status(run_id) == "CANCELLED"

    def odd(self) -> None:
        """Drain, refuse, stop reading, send nonsense."""
        links = [process.link for process in self.links() if process.link is not None]
        if not links:
            return
        link, bench = self.rng.choice(links), self.bench
        what = self.rng.randrange(5)
        if what == 0:
            link.drain()
        elif what == 1:
            link.writable = not link.writable
            bench.tell(bench.engine.flushed, link.session_id, link.writable)
        elif what == 2 and link.requests:
            bench.tell(bench.engine.bad_result, link.session_id, self.rng.choice(link.requests).task_id)
        elif what == 3:
            requests = [request for other in self.processes.values() for request in other.has]
            if requests:
                link.send(response(self.rng.choice(requests), success=True))  # maybe not its own
        else:
            self.refuse_once()

    def refuse_once(self) -> None:
        """Let the next rows of one run be refused."""
        run = self.rng.choice(self.runs or ["none"])

        def refuse(batch: Batch) -> bool:
            return run in {row.run_id for row in batch.tasks_set} | {row.run_id for row in batch.runs_set}

        self.bench.refuse = refuse
        self.bench.paused = True
        self.answer()
        self.bench.paused = False
        veto, passed = refuse, [0]

        def refuse_few(batch: Batch) -> bool:
            passed[0] += veto(batch)
            return passed[0] <= 2 and veto(batch)

        self.bench.refuse = refuse_few
        self.bench.pump()
        self.bench.refuse = lambda batch: False

    def core(self) -> None:
        for process in self.processes.values():
            process.take_in()
            process.link = None
        self.held = None
        self.bench.restart()

    # -- what must hold

    def check(self) -> None:
        self.check_history()
        self.check_backlog()
        state = self.bench.engine.state
        sessions = self.bench.engine.membership.workers
        groups = self.bench.engine.attempts.dispatcher.groups
        waiting = Counter(id(t) for g in groups.values() for lane in g.lanes.values() for t in lane if t.queued)
        waiting += Counter(id(t) for s in sessions.values() for t in s.held if t.queued)
        timers = 0
        for task in state.tasks.values():
            assert task.state in OPEN or task.run.open, task.task_id
            assert waiting[id(task)] == task.queued, (task.task_id, task.state)
            if task.timer is not None:
                assert task.state is TaskState.PENDING
                timers += task.timer.armed
            if task.state is TaskState.PENDING:
                assert task.live is None
                waits = task.queued or (task.timer is not None and task.timer.armed)
                assert waits is not task.run.parked, task.task_id
            elif task.state in OPEN:
                attempt = task.live
                assert attempt.number == task.attempt and not attempt.closed
                session = attempt.session
                assert session.find(task.task_id, task.attempt) is attempt
                assert sessions[session.worker_id] is session or session.takeover is not None
                if attempt.timer is not None:
                    timers += attempt.timer.armed
                elif session.is_open:
                    assert not task.run.snapshot.timeout_s or session.state is SessionState.JOINING
                else:
                    assert session.timer.armed
            else:
                assert task.live is None and task.timer is None
        self.check_sessions()
        self.check_timers(timers)
        for group in groups.values():
            for session in group.members.values():
                assert session.state is SessionState.READY
                if session.is_blocked or session.load >= session.slots:
                    continue
                idle_for = [
                    task.task_id
                    for (_, handler), lane in group.lanes.items() if session.offers(handler)
                    for task in lane
                    if task.queued and self.bench.engine.attempts.dispatcher._takes(session, task, self.bench.now)
                ]  # fmt: skip
                assert not idle_for, (session.worker_id, idle_for)
                assert not [task for task in session.held if task.queued and session.offers(task.run.snapshot.handler)]

    def check_sessions(self) -> None:
        membership = self.bench.engine.membership
        for session in membership.sessions.values():
            attempts = session.all_attempts()
            assert session.load == len(attempts) and session.is_open
            for attempt in attempts:
                assert attempt.session is session
                assert attempt.closed or attempt.task.live is attempt
            if session.state is not SessionState.JOINING:
                assert membership.workers[session.worker_id] is session
        for session in membership.workers.values():
            assert session.is_open == (session.session_id in membership.sessions)

    def check_timers(self, timers: int) -> None:
        """I7: nothing is armed for what is over."""
        engine = self.bench.engine
        known = {id(s): s for s in (*engine.membership.sessions.values(), *engine.membership.workers.values())}
        timers += sum(s.timer is not None and s.timer.armed for s in known.values())
        timers += sum(g.release is not None for g in engine.attempts.dispatcher.groups.values())
        timers += sum(job.timer is not None for job in engine.state.jobs.values())
        if self.bench.mono_s > self.takeover_until_s:
            assert len(engine.state.wheel) == timers

    def check_history(self) -> None:
        for batch in self.bench.batches[self.seen_batches :]:
            for rows in (batch.tasks_new, batch.tasks_set):
                assert [row.job_id for row in rows] == sorted({row.job_id for row in rows})
            assert [row.run_id for row in batch.runs_set] == sorted({row.run_id for row in batch.runs_set})
            for row in batch.tasks_set:
                assert row.job_id not in self.terminal, "a terminal row was changed"
                if row.status not in OPEN:
                    self.terminal[row.job_id] = row
                    self.check_ended(row)
                retries = JOBS[row.job_name].get("retries", 3)
                assert row.retry_count <= retries
            assert batch.last_fence >= self.fences
            self.fences = batch.last_fence
        self.seen_batches = len(self.bench.batches)

    def check_ended(self, row: Any) -> None:
        attempts = self.bench.store.attempts(row.task_id)
        ended_by_last = row.attempt - len(attempts)
        assert [attempt.number for attempt in attempts] == list(range(1, len(attempts) + 1))
        assert ended_by_last in (0, 1)
        counted = sum(attempt.outcome in COUNTED for attempt in attempts)
        assert counted == row.retry_count <= JOBS[row.job_name].get("retries", 3)

    def check_recovery(self) -> None:
        """What a new term reads is what this one has in memory."""
        active = self.bench.store.load_active()
        leader = self.bench.store.leader()
        other = Engine(self.bench.settings, random.Random(0), self.bench.now, leader)
        other.load(active.jobs, active.runs, active.tasks, active.counts, self.bench.now, 5.0)
        other.load_backlog(active.lanes, active.parked_jobs, active.newest_due)
        there, here = self.everything(other), pictures(self.bench.engine)
        assert set(here) <= set(there)
        assert {key: there[key] for key in here} == here
        for key in set(there) - set(here):
            run_id = key.rpartition(":")[0] or key
            assert self.bench.store.parked_run(run_id) is not None, key

    def everything(self, engine: Engine) -> dict[str, Any]:
        """Return what a term knows once all of the backlog is in its memory."""
        for lane in list(engine.backlog.lanes.values()):
            page = Page(lane.key, "", lane.after, lane.newest, 10**6)
            engine.paged_in(page, self.bench.read(page), self.bench.now)
        return pictures(engine)

    def check_backlog(self) -> None:
        """All that is open and not in memory is in the backlog, where its lane has not read; nothing else is."""
        engine, store = self.bench.engine, self.bench.store
        for row in store.runs(1000, None, {}).items:
            parked = store.parked_run(row.run_id)
            assert parked is None or row.status == "PENDING"
            if row.status not in ("PENDING", "RUNNING") or row.run_id in engine.state.runs:
                continue
            assert parked is not None, row.run_id
            snapshot = snapshot_of(row.job, decode_any(row.snapshot.encode()))
            lane = engine.backlog.lanes[snapshot.group, snapshot.handler, snapshot.priority]
            assert lane.after < parked.seq <= lane.newest
            assert all((task.attempt, task.version) == (0, 1) for task in self.bench.tasks(row.run_id))

    # -- the end

    def heal(self) -> None:
        if self.held is not None:
            self.bench.deliver(*self.held)
        self.bench.no_pages = False
        for link in list(self.bench.workers.values()):
            link.close()
        for worker_id in ("w1", "w2", "w3", "p1"):
            self.numbers += 1
            process = self.processes.setdefault(worker_id, Process(worker_id, self.numbers, worker_id == "p1"))
            self.link_up(process)
        self.bench.ask(lambda token: self.bench.engine.delete_job("tick", token, self.bench.now))
        for _ in range(400):
            for process in self.processes.values():
                process.take_in()
                assert process.link is not None
                for request in process.has:
                    process.link.succeed(request)
                process.has.clear()
                process.link.beat()
            self.check()
            if not self.bench.engine.state.runs:
                break
            self.bench.advance(2)

    def check_empty(self) -> None:
        engine = self.bench.engine
        assert not engine.state.tasks and not engine.state.runs
        assert engine.open_counts() == {}
        for session in engine.membership.sessions.values():
            assert not session.in_flight and not session.load and not session.held
        for group in engine.attempts.dispatcher.groups.values():
            assert not [task for lane in group.lanes.values() for task in lane if task.queued]
        active = self.bench.store.load_active()
        assert not active.runs and not active.tasks and not active.lanes
        assert not self.bench.engine.backlog.doomed
        for run_id in {*self.runs, *self.bench.ended}:
            tasks = self.bench.tasks(run_id)
            row = self.bench.store.run(run_id)
            assert row is not None
            assert [task.sharding_item for task in tasks] == list(range(row.sharding_total))
            wins = sum(task.status == "SUCCESS" for task in tasks)
            assert row.status == (
                "CANCELLED" if row.cancel_requested
                else "SUCCESS" if wins == len(tasks) else "PARTIAL" if wins else "FAILED"
            )  # fmt: skip


def pictures(engine: Engine) -> dict[str, Any]:
    """Return what a term knows, but for what a new one cannot know."""
    state = engine.state
    found: dict[str, Any] = {name: (job.definition_text, job.next_due_ms) for name, job in state.jobs.items()}
    for run in state.runs.values():
        found[run.run_id] = (run.state, run.cancel_requested, run.open, run.version, run.params, run.reason, run.key)
        for task in run.tasks:
            attempt = None if task.live is None else (task.live.number, task.live.started, task.live.closed)
            not_before = task.not_before_ms
            found[task.task_id] = (
                task.job_id, task.state, task.attempt, task.retry_count, task.lost_count, task.version, task.fence,
                task.worker_id, not_before, task.deadline_ms, attempt,
            )  # fmt: skip
    return found


BOUNDS = {
    "normal": EngineSettings(),
    "small": EngineSettings(waiting_tasks=8, lane_tasks=3, page_below=4, page_tasks=5),
    "late": EngineSettings(waiting_tasks=8, lane_tasks=3, page_below=4, page_tasks=5),
    "tiny": EngineSettings(waiting_tasks=0, lane_tasks=1, page_below=1, page_tasks=1),
}


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("seed", range(40))
def test_random_walk(seed: int, bounds: str) -> None:
    walk = Walk(seed, BOUNDS[bounds])
    walk.bench.no_pages = bounds == "late"
    for number in range(150):
        walk.step()
        walk.check()
        if number % 30 == 29:
            walk.check_recovery()
    walk.heal()
    walk.check_empty()
