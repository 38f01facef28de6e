"""What must never break, checked at each commit, at each start of a handler, and at what leaves a core.

The checker keeps a copy of what was committed, made from the batches alone, and compares each row with the one before.
It never raises where it is called, since that would be inside simulated code: `raise_first` does, after the step.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from dsched.engine.changes import Batch
from dsched.engine.retry import RETRY_CAP_S
from dsched.model.rows import AttemptRow, JobRow, LeaderRow, RunRow, TaskRow
from dsched.model.run import RunState
from dsched.model.task import OPEN, Outcome, TaskState
from dsched.testing.contacts import Contacts
from dsched.testing.executions import Execution
from dsched.testing.parking import Parking
from dsched.testing.sim_node import SimNode
from dsched.wire.encoding import decode_any

__all__ = ["Invariants", "Violation"]

_OPEN = frozenset(state.value for state in OPEN)
_HELD = frozenset({TaskState.DISPATCHED.value, TaskState.RUNNING.value, TaskState.CANCELLING.value})
_FREE = frozenset({Outcome.REJECTED.value, Outcome.UNDELIVERED.value})
_ENDED_RUN = frozenset(state.value for state in RunState if state.is_terminal)
_MISSED = re.compile(r"stands for (\d+) missed")
_FURTHER = re.compile(r"(\d+) further due")
SLACK_S = 3.0
"""How much later than decided a commit may be, where no fault holds it up."""


class Violation(AssertionError):
    """An invariant is broken; the message begins with its number in the list of invariants."""


class _Dues:
    """The dues of one job: the next one, and how many are told of since that was stored."""

    def __init__(self, next_ms: int, period_ms: int) -> None:
        self.next_ms = next_ms
        self.period_ms = period_ms
        self.told = 0
        self.highest_ms = next_ms
        self.exact = True


class _Closing:
    """The last attempt of a task that ended: when, by which clock, and how long the next must wait."""

    def __init__(self, at_s: float, wall_offset_s: float, wait_s: float) -> None:
        self.at_s = at_s
        self.wall_offset_s = wall_offset_s
        self.wait_s = wait_s


class Invariants:
    """Watches one run. `tasks`, `runs`, `jobs` are the committed rows; `on_rows` is told each task row committed."""

    def __init__(
        self, now: Callable[[], float], contacts: Contacts, result_of: Callable[[TaskRow, RunRow], Any]
    ) -> None:
        self.tasks: dict[str, TaskRow] = {}
        self.runs: dict[str, RunRow] = {}
        self.jobs: dict[str, JobRow] = {}
        self.tasks_of: dict[str, list[str]] = {}
        self.closed: dict[str, list[AttemptRow]] = {}
        self.epoch = 0
        self.commits = 0
        self.violations: list[str] = []
        self.disturbed_until_s: dict[str, float] = {}
        self.waiting_without_workers: Counter[str] | None = None
        self.on_rows: list[Callable[[SimNode, Iterable[TaskRow]], None]] = []
        self.executions_of: Callable[[str], list[Execution]] = lambda _: []
        self.is_plain: Callable[[str], bool] = lambda _: False
        self.parking = Parking(self.fail)
        self._now = now
        self._contacts = contacts
        self._result_of = result_of
        self._dues: dict[str, _Dues] = {}
        self._fired: set[tuple[str, int]] = set()
        self._closings: dict[str, _Closing] = {}
        self._fences: dict[tuple[str, int], int] = {}

    def fail(self, number: str, text: str) -> None:
        """Note that an invariant is broken."""
        self.violations.append(f"{number}: {text}")

    def raise_first(self) -> None:
        """Raise what was noted first, if anything."""
        if self.violations:
            raise Violation(self.violations[0])

    def disturb(self, node_name: str, until_s: float) -> None:
        """A core is held up by a fault until then: what it commits may have been decided long before."""
        self.disturbed_until_s[node_name] = max(until_s, self.disturbed_until_s.get(node_name, 0.0))

    # -- leadership

    def led(self, node: SimNode, row: LeaderRow) -> None:
        """A core has taken leadership."""
        if row.epoch <= self.epoch:
            self.fail("I12", f"{node.name} took epoch {row.epoch} after {self.epoch}")
        self.epoch = row.epoch
        self._contacts.term_began(node)

    # -- commits

    def committed(self, node: SimNode, batch: Batch) -> None:
        """The store has taken a batch of the core on `node`."""
        self.commits += 1
        if batch.epoch != self.epoch:
            self.fail("I12", f"{node.name} committed in epoch {batch.epoch}, {self.epoch} leads")
        for name in batch.jobs_gone:
            self.jobs.pop(name, None)
        for job in batch.jobs_new:
            self.jobs[job.name] = job
            self._note_dues(job)
        new_tasks: dict[str, list[TaskRow]] = {}
        for row in batch.tasks_new:
            new_tasks.setdefault(row.run_id, []).append(row)
        for run in batch.runs_new:
            self._new_run(node, run, new_tasks.pop(run.run_id, []))
        if new_tasks:
            self.fail("I20", f"tasks without their run: {sorted(new_tasks)}")
        for attempt in batch.attempts:
            self._attempt(node, attempt)
        for row in batch.tasks_new:
            self._task(node, None, row)
        for row in batch.tasks_set:
            self._task(node, self.tasks.get(row.task_id), row)
        for run in batch.runs_set:
            self._run(run)
        for run in (*batch.runs_new, *batch.runs_set):
            self._run_against_tasks(run)
        self.parking.committed(node, batch)
        for due in batch.dues:
            self._due(node, due.name, due.next_due)
        for watch in self.on_rows:
            watch(node, (*batch.tasks_new, *batch.tasks_set))

    def refused(self, batch: Batch) -> None:
        """The store was made to refuse a batch: what it fired is passed over, by design."""
        self.parking.refused(batch)
        for due in batch.dues:
            if due.name in self._dues:
                self._dues[due.name].exact = False

    # -- runs

    def _new_run(self, node: SimNode, run: RunRow, tasks: list[TaskRow]) -> None:
        if run.run_id in self.runs:
            self.fail("I4", f"run {run.run_id} was stored twice")
        self.runs[run.run_id] = run
        self.tasks_of[run.run_id] = [row.task_id for row in tasks]
        items = sorted(row.sharding_item for row in tasks)
        totals = {row.sharding_total for row in tasks}
        if run.sharding_total < 1 or items != list(range(run.sharding_total)) or totals != {run.sharding_total}:
            self.fail("I20", f"run {run.run_id} of {run.sharding_total} shards has items {items}, totals {totals}")
        if run.due is None:
            return
        if (run.job, run.due) in self._fired:
            self.fail("I12", f"{run.job} was fired twice for {run.due}")
        self._fired.add((run.job, run.due))
        self._account(run.job, 1 + _number(_MISSED, run.reason) + _number(_FURTHER, run.reason))

    def _run(self, run: RunRow) -> None:
        old = self.runs.get(run.run_id)
        if old is None:
            self.fail("I1", f"run {run.run_id} is changed and was never stored")
            return
        if old.status in _ENDED_RUN:
            self.fail("I2", f"run {run.run_id} left {old.status} for {run.status}")
        if old.status != RunState.PENDING.value and run.status == RunState.PENDING.value:
            self.fail("I28", f"run {run.run_id} went back from {old.status}")
        if old.cancel_requested and not run.cancel_requested:
            self.fail("I30", f"run {run.run_id} forgot that it was cancelled")
        self._account(run.job, _number(_FURTHER, run.reason) - _number(_FURTHER, old.reason)
                      if run.reason != old.reason and _FURTHER.search(run.reason or "") else 0)  # fmt: skip
        self.runs[run.run_id] = run

    def _run_against_tasks(self, run: RunRow) -> None:
        states = [self.tasks[task_id].status for task_id in self.tasks_of.get(run.run_id, ())]
        ended = run.status in _ENDED_RUN
        if ended != all(state not in _OPEN for state in states):
            self.fail("I2", f"run {run.run_id} is {run.status}, its tasks are {states}")
        if not ended:
            return
        successes = states.count(TaskState.SUCCESS.value)
        right = (
            RunState.CANCELLED if run.cancel_requested
            else RunState.SUCCESS if successes == len(states)
            else RunState.PARTIAL if successes else RunState.FAILED
        )  # fmt: skip
        if run.status != right.value:
            self.fail("I2", f"run {run.run_id} is {run.status}, its tasks are {states}")

    # -- dues

    def _note_dues(self, job: JobRow) -> None:
        trigger = decode_any(job.definition.encode())["trigger"]
        if trigger["type"] == "interval" and job.next_due is not None:
            self._dues[job.name] = _Dues(job.next_due, round(trigger["seconds"] * 1000))

    def _account(self, name: str, dues: int) -> None:
        if name in self._dues:
            self._dues[name].told += dues

    def _due(self, node: SimNode, name: str, next_due: int | None) -> None:
        job = self.jobs.get(name)
        if job is None or next_due is None:
            return
        self.jobs[name] = job._replace(next_due=next_due)
        dues = self._dues[name]
        passed, rest = divmod(next_due - dues.next_ms, dues.period_ms)
        if min(dues.next_ms, next_due) < dues.highest_ms or rest and node.wall.seconds() * 1000 < dues.next_ms:
            # The wall clock was set back: it shows these instants a second time, and the job goes on in its steps.
            passed, rest = dues.told or 1, 0
        if rest or (dues.exact and passed != dues.told):
            steps = f"{passed} dues and {rest} ms on, {dues.told} are told of"
            self.fail("I16", f"{name} went from {dues.next_ms} to {next_due}: {steps}")
        dues.highest_ms = max(dues.highest_ms, next_due)
        dues.next_ms, dues.told, dues.exact = next_due, 0, True

    # -- tasks

    def _attempt(self, node: SimNode, row: AttemptRow) -> None:
        closed = self.closed.setdefault(row.task_id, [])
        if any(other.number == row.number for other in closed):
            self.fail("I9", f"attempt {row.number} of {row.task_id} was closed twice")
        if closed and row.number != closed[-1].number + 1 or not closed and row.number != 1:
            self.fail("I27", f"attempt {row.number} of {row.task_id} was closed after {[c.number for c in closed]}")
        closed.append(row)
        self._fences.setdefault((row.task_id, row.number), row.fence)  # It may begin and end within one batch.
        if row.outcome == Outcome.LOST.value and row.worker_id is not None:
            for execution in self.executions_of(row.task_id):
                if execution.attempt == row.number and execution.is_wanted(self._now()):
                    problem = self._contacts.why_not_lost(node, execution, self._now())
                    if problem and self._now() > self.disturbed_until_s.get(node.name, 0.0):
                        self.fail("I11", f"attempt {row.number} of {row.task_id} counts as lost: {problem}")

    def _task(self, node: SimNode, old: TaskRow | None, row: TaskRow) -> None:
        run = self.runs.get(row.run_id)
        if run is None:
            self.fail("I1", f"task {row.task_id} has no run")
            return
        if old is not None and old.status not in _OPEN:
            self.fail("I2", f"task {row.task_id} left {old.status} for {row.status}")
        before = old.attempt if old is not None else 0
        if row.attempt < before:
            self.fail("I27", f"task {row.task_id} went from attempt {before} to {row.attempt}")
        elif row.attempt > before:
            self._dispatched(node, old, row)
        self._attempts_add_up(row, run)
        if row.status == TaskState.SUCCESS.value:
            self._succeeded(old, row, run)
        self.tasks[row.task_id] = row
        closed = self.closed.get(row.task_id)
        if closed and closed[-1].number == row.attempt and row.status == TaskState.PENDING.value:
            self._closings[row.task_id] = _Closing(self._now(), self._offset(node), _wait_s(row, closed[-1], run))

    def _offset(self, node: SimNode) -> float:
        return node.wall.seconds() - self._now()

    def _dispatched(self, node: SimNode, old: TaskRow | None, row: TaskRow) -> None:
        run = self.runs[row.run_id]
        if run.cancel_requested and old is not None:  # One batch may hold a dispatch, and then a cancel, of a new run.
            self.fail("I30", f"attempt {row.attempt} of {row.task_id} after its run was cancelled")
        if old is not None and row.fence <= old.fence:
            self.fail("I12", f"task {row.task_id} has fence {row.fence} after {old.fence}")
        self._fences[row.task_id, row.attempt] = row.fence
        closing = self._closings.pop(row.task_id, None)
        if closing is None or row.attempt != (old.attempt if old else 0) + 1:
            return
        if self.disturbed_until_s.get(node.name, 0.0) + SLACK_S >= closing.at_s:
            return
        waited_s = self._now() - closing.at_s
        allowance_s = SLACK_S + abs(self._offset(node) - closing.wall_offset_s)
        if waited_s < closing.wait_s * 0.9 - allowance_s:
            self.fail("I10", f"task {row.task_id} waited {waited_s:.3f} s before attempt {row.attempt}, not "
                      f"{closing.wait_s:.3f}")  # fmt: skip

    def _attempts_add_up(self, row: TaskRow, run: RunRow) -> None:
        closed = self.closed.get(row.task_id, [])
        held = row.status in _HELD
        if held and (len(closed) != row.attempt - 1 or not row.target_worker):
            self.fail("I9", f"{row.task_id} is {row.status} in attempt {row.attempt}, {len(closed)} are closed")
        if row.status == TaskState.PENDING.value and len(closed) != row.attempt:
            self.fail("I9", f"{row.task_id} is PENDING after attempt {row.attempt}, {len(closed)} are closed")
        counted = sum(attempt.outcome not in _FREE for attempt in closed)
        if row.retry_count != counted:
            self.fail("I8", f"{row.task_id} counts {row.retry_count} retries, {counted} attempts had failed")
        retries = decode_any(run.snapshot.encode())["retries"] if row.retry_count else 0
        if row.retry_count > retries:
            self.fail("I8", f"{row.task_id} is at retry {row.retry_count} of {retries}")

    def _succeeded(self, old: TaskRow | None, row: TaskRow, run: RunRow) -> None:
        if old is None or old.status not in _HELD:
            self.fail("I5", f"{row.task_id} succeeded from {old.status if old else None}")
            return
        if (old.attempt, old.target_worker, old.fence) != (row.attempt, row.target_worker, row.fence):
            self.fail("I5", f"{row.task_id} succeeded in an attempt that was not yet stored")
        executions = self.executions_of(row.task_id)
        if not any(one.succeeded and one.node.name == row.target_worker for one in executions):
            self.fail("I5", f"{row.task_id} succeeded on {row.target_worker}, where no handler of it has")
        expected = self._result_of(row, run)
        if row.result is None or decode_any(row.result.encode()) != expected:
            self.fail("I29", f"{row.task_id} has result {row.result!r:.200}, not {expected!r:.200}")

    # -- handlers

    def began(self, execution: Execution, params: Any, fence: int) -> None:
        """A handler on a worker with features starts."""
        task_id, attempt = execution.task_id, execution.attempt
        row = self.tasks.get(task_id)
        if row is None or row.attempt < attempt or self._fences.get((task_id, attempt)) != fence:
            self.fail("I1", f"{execution.node.name} runs attempt {attempt} of {task_id}, which was never committed")
            return
        run = self.runs[row.run_id]
        if params != decode_any(run.params.encode()):
            self.fail("I29", f"{task_id} got params {params!r:.200}, not {run.params:.200}")
        earlier = self.executions_of(task_id)
        if any(one.attempt == attempt and not one.plain for one in earlier):
            self.fail("I8", f"attempt {attempt} of {task_id} is run a second time")
        retries = decode_any(run.snapshot.encode())["retries"]
        free = {one.number for one in self.closed.get(task_id, ()) if one.outcome in _FREE}
        started = sum(one.attempt not in free for one in earlier if not one.plain) + 1
        if started > 1 + retries:
            self.fail("I8", f"{task_id} is started for the {started}th time, {retries} retries are allowed")
        for one in earlier:
            if one.attempt < attempt and one.is_wanted(self._now()) and not one.plain:
                if all(closed.number != one.attempt for closed in self.closed.get(task_id, ())):
                    self.fail("I11", f"{task_id} runs on {one.node.name} and {execution.node.name}, both attempts open")

    # -- the end

    def unfinished(self, before: Iterable[str] | None = None) -> list[str]:
        """Return the runs that have not ended."""
        runs = self.runs.values() if before is None else [self.runs[run_id] for run_id in before]
        return [run.run_id for run in runs if run.status not in _ENDED_RUN]


def _number(pattern: re.Pattern[str], text: str | None) -> int:
    match = pattern.search(text or "")
    return int(match[1]) if match else 0


def _wait_s(row: TaskRow, last: AttemptRow, run: RunRow) -> float:
    if last.outcome in _FREE or (last.outcome == Outcome.LOST.value and row.lost_count == 1):
        return 0.0
    base_s = float(decode_any(run.snapshot.encode())["retry_backoff"])
    return min(RETRY_CAP_S, base_s * 2.0 ** (row.retry_count - 1))
