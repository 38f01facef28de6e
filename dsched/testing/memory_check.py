"""When the leader is idle, its memory is what is stored, and nothing waits without somebody who will come for it."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from dsched.engine.session import SessionState
from dsched.model.run import RunState
from dsched.model.task import OPEN, TERMINAL, Task, TaskState
from dsched.testing.invariants import Invariants
from dsched.testing.sim_clock import callable_name

if TYPE_CHECKING:
    from dsched.testing.scenario_cluster import ScenarioCluster

__all__ = ["check_memory", "check_quiet", "idle_term"]

_HELD = (TaskState.DISPATCHED, TaskState.RUNNING, TaskState.CANCELLING)


def check_memory(cluster: "ScenarioCluster") -> None:
    """Compare, if there is a leader that has nothing to commit and nothing under way."""
    term = idle_term(cluster)
    if term is None:
        return
    engine, invariants = term.engine, cluster.invariants
    if engine.state.epoch != invariants.epoch:
        return
    stored = {run_id: run for run_id, run in invariants.runs.items() if run.finished_at is None}
    if odd := sorted(set(engine.state.runs) - set(stored)):
        invariants.fail("I24", f"runs are in memory and not open in the store: {odd[:5]}")
    for run_id, row in stored.items():
        run = engine.state.runs.get(run_id)
        if run is None or run.parked:
            invariants.parking.check(engine, row, _rows(invariants, run_id))
    for task in engine.state.tasks.values():
        _compare(task, invariants)
        if not task.run.parked:
            _has_somebody(task, invariants)
    counts = Counter(row.status for run_id in stored for row in _rows(invariants, run_id))
    real = {state: count for state, count in counts.items() if TaskState(state) in OPEN}
    if engine.open_counts() != real:
        invariants.fail("I28", f"open tasks are counted as {engine.open_counts()}, stored are {real}")
    _sessions(engine, invariants)
    _without_workers(engine, invariants)
    invariants.raise_first()


def _rows(invariants: Invariants, run_id: str) -> list[Any]:
    return [invariants.tasks[task_id] for task_id in invariants.tasks_of[run_id]]


def idle_term(cluster: "ScenarioCluster") -> Any:
    """Return the term of a leader that has nothing to commit and nothing under way; None if there is none now."""
    core = cluster.leader
    if core is None:
        return None
    term = core._term
    if term is None or term._is_over or term.journal._busy or term.journal.is_away or term.engine.has_changes():
        return None
    return term


def _compare(task: Task, invariants: Invariants) -> None:
    row = invariants.tasks.get(task.task_id)
    here = (task.state.value, task.attempt, task.retry_count, task.lost_count, task.worker_id, task.version)
    there = row and (row.status, row.attempt, row.retry_count, row.lost_count, row.target_worker, row.version)
    if here != there:
        invariants.fail("I28", f"task {task.task_id} is {here} in memory, {there} in the store")


def _has_somebody(task: Task, invariants: Invariants) -> None:
    """Nothing open may wait for ever."""
    if task.state is TaskState.PENDING:
        if not task.queued and (task.timer is None or not task.timer.armed):
            invariants.fail("I25", f"task {task.task_id} is PENDING, in no queue and without a timer")
    elif task.state in _HELD:
        attempt = task.live
        if attempt is None or attempt.closed or attempt.session.find(task.task_id, task.attempt) is not attempt:
            invariants.fail("I25", f"task {task.task_id} is {task.state.value} and no session has it")
        elif not attempt.session.is_open and (attempt.session.timer is None or not attempt.session.timer.armed):
            invariants.fail("I25", f"task {task.task_id} waits for a lost worker, without a limit")


def _sessions(engine: Any, invariants: Invariants) -> None:
    membership = engine.membership
    ready = Counter(
        session.worker_id
        for session in membership.sessions.values()
        if session.state in (SessionState.READY, SessionState.DRAINING)
    )
    for worker_id, count in ready.items():
        if count > 1:
            invariants.fail("I13", f"worker {worker_id} has {count} sessions")
    for session in membership.workers.values():
        attempts = session.all_attempts()
        if len(attempts) != session.load:
            invariants.fail("I13", f"worker {session.worker_id} has load {session.load}, {len(attempts)} attempts")
        for attempt in attempts:
            if attempt.closed and attempt.timer is not None:
                invariants.fail("I7", f"closed attempt {attempt.number} of {attempt.task.task_id} has a timer")
            if not attempt.closed and (attempt.task.state in TERMINAL or attempt.task.live is not attempt):
                invariants.fail("I7", f"attempt {attempt.number} of {attempt.task.task_id} is open in its session only")


def _without_workers(engine: Any, invariants: Invariants) -> None:
    """While nobody can run it, a schedule adds one waiting run, whatever becomes due."""
    before = invariants.waiting_without_workers
    if engine.sessions():
        invariants.waiting_without_workers = None
        return
    waiting = Counter(
        run.job
        for run in invariants.runs.values()
        if run.due is not None and run.status == RunState.PENDING.value
        and all(task.attempt == 0 for task in _rows(invariants, run.run_id))
    )  # fmt: skip
    invariants.waiting_without_workers = waiting
    for name, count in waiting.items():
        if before is not None and count > before[name] + 1:
            invariants.fail("I24", f"{name} has {count} waiting runs without workers, a moment ago {before[name]}")


def check_quiet(cluster: "ScenarioCluster") -> None:
    """Nothing is left to do: on the leader only what recurs may be armed."""
    invariants = cluster.invariants
    check_memory(cluster)
    term = idle_term(cluster)
    if term is None:
        invariants.fail("I25", "no core leads and is idle")
        invariants.raise_first()
        return
    engine = term.engine
    membership = engine.membership
    allowed = len(membership.sessions) + len(membership.workers)
    if len(engine.state.wheel) > allowed:
        names = Counter(
            getattr(payload[0], "__qualname__", "?") for payload in (entry.payload for entry in _entries(engine))
        )
        invariants.fail("I7", f"{len(engine.state.wheel)} timers are armed for {allowed} workers: {dict(names)}")
    node = next(node for node in cluster.cores if node.app is not None and node.app._term is term)
    names = Counter(callable_name(getattr(call, "function", call)) for call in node.reactor.getDelayedCalls())
    if sum(names.values()) > 2:
        invariants.fail("I7", f"the idle leader has timers {dict(names)}")
    invariants.raise_first()


def _entries(engine: Any) -> list[Any]:
    wheel = engine.state.wheel
    return [entry for entry in wheel._queue if entry.armed]
