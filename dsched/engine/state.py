"""The engine's memory: active rows, what the current batch has touched, timers, effects.

Memory holds the active rows; the store holds the truth. Whoever changes a task or a run says so with `touch_task` or
`touch_run`; `take_batch` turns everything touched into rows, each entity once however many transitions it made.
"""

import random
from collections.abc import Callable
from typing import Any

from dsched.engine.changes import Ack, Answer, Batch, Close, DueRow, Effect, Key, ParkedKey, RunEnded, runs_told
from dsched.engine.rowing import run_row, task_row, timestamp_text
from dsched.engine.settings import EngineSettings
from dsched.engine.wheel import Entry, TimingWheel
from dsched.errors import StoreUnavailable
from dsched.model.ids import Sequence
from dsched.model.instant import Moment
from dsched.model.job import Job
from dsched.model.rows import AttemptRow, BacklogRow, JobRow, LogRow, WorkerRow
from dsched.model.run import Run, RunState
from dsched.model.task import OPEN, Task

__all__ = ["State"]


class State:
    """All that the parts of the engine share."""

    def __init__(self, settings: EngineSettings, rng: random.Random, now: Moment) -> None:
        self.settings = settings
        self.rng = rng
        self.wheel: TimingWheel[Any] = TimingWheel(now.mono_s * 1000)
        self.ids = Sequence()
        self.fences = Sequence()
        self.epoch = 0
        self.batch_number = 0
        self.fence_taken = 0
        """No dispatch with a higher fence is in any batch yet."""
        self.jobs: dict[str, Job] = {}
        self.runs: dict[str, Run] = {}
        self.tasks: dict[str, Task] = {}
        self.params_size = 0
        """How large the params of all runs in memory are together."""
        self.parking: dict[str, Run] = {}
        """The runs that the batch under way puts into the backlog."""
        self.effects: list[Effect] = []
        self.committed_counts: dict[str, int] = {}
        self.ending: set[str] = set()
        """The runs of which tasks end in the batch that is under way."""
        self.new_jobs: list[JobRow] = []
        self.gone_jobs: list[str] = []
        self.dues: dict[str, DueRow] = {}
        self.attempts: list[AttemptRow] = []
        self.workers: dict[str, WorkerRow] = {}
        self.logs: list[LogRow] = []
        self._tasks: list[Task] = []
        self._runs: list[Run] = []

    def add_run(self, run: Run) -> None:
        """Take a run into memory."""
        self.runs[run.run_id] = run
        self.params_size += len(run.params)

    def unstored_tasks(self) -> int:
        """Return how many tasks have changed since the last batch was taken."""
        return len(self._tasks)

    def touch_task(self, task: Task) -> None:
        """Note that the row of `task` has changed."""
        if not task.touched:
            task.touched = True
            self._tasks.append(task)

    def touch_run(self, run: Run) -> None:
        """Note that the row of `run` has changed."""
        if not run.touched:
            run.touched = True
            self._runs.append(run)

    def arm(self, now: Moment, delay_s: float, function: Callable[[Any, Moment], None], argument: Any) -> Entry[Any]:
        """Call `function(argument, now)` after `delay_s`, through the one timing wheel."""
        return self.wheel.arm((now.mono_s + delay_s) * 1000, (function, argument))

    def log(self, task_id: str, kind: str, message: str, now: Moment, *, worker_id: str, attempt: int) -> None:
        """Keep a line about a task, in memory or not, for people."""
        run_id = task_id.rpartition(":")[0] or None
        self.logs.append(LogRow(task_id, run_id, now.wall_ms, kind, worker_id, attempt, message))

    def has_changes(self) -> bool:
        """Tell whether a batch is due: something to write, or effects that wait for what was written."""
        return bool(
            self._tasks or self._runs or self.effects or self.new_jobs or self.gone_jobs or self.dues
            or self.attempts or self.workers or self.logs
        )  # fmt: skip

    def take_batch(self, now: Moment, force: bool) -> tuple[Batch | None, list[Effect], dict[str, Key]]:
        """Return all changes since the last call as rows, the effects that depend on them, and the units.

        Without rows there is no batch, unless `force`d, for a renewal. The third value maps run ids to the unit that
        they must be committed or refused with; other runs stand alone. Runs that have ended leave the memory here:
        their rows are in this batch.
        """
        at_text = timestamp_text(now.wall_ms)
        batch = Batch(self.epoch, self.batch_number + 1, self.ids.last, self.fences.last)
        self.fence_taken = self.fences.last
        batch.jobs_new, self.new_jobs = self.new_jobs, []
        batch.jobs_gone, self.gone_jobs = self.gone_jobs, []
        batch.dues, self.dues = list(self.dues.values()), {}
        batch.attempts, self.attempts = self.attempts, []
        batch.workers, self.workers = list(self.workers.values()), {}
        batch.logs, self.logs = self.logs, []
        effects, self.effects = self.effects, []
        self._take_tasks(batch, at_text)
        units = self._take_runs(batch, effects)
        if batch.is_empty() and not force:
            return None, effects, units
        self.batch_number += 1
        return batch, effects, units

    def _take_tasks(self, batch: Batch, at_text: str) -> None:
        touched, self._tasks = self._tasks, []
        self.ending.clear()
        # Ascending ids keep the updates close together on disk, several times cheaper than random order.
        touched.sort(key=_job_id)
        params_bytes = self.settings.task_params_bytes
        changes = batch.count_changes
        for task in touched:
            task.touched = False
            before, after = task.stored_state, task.state
            if before is not after:
                if before is not None:
                    changes[before] = changes.get(before, 0) - 1
                if after in OPEN:
                    changes[after] = changes.get(after, 0) + 1
                else:
                    self.ending.add(task.run.run_id)
                task.stored_state = after
            task.version += 1
            (batch.tasks_new if before is None else batch.tasks_set).append(task_row(task, at_text, params_bytes))

    def _take_runs(self, batch: Batch, effects: list[Effect]) -> dict[str, Key]:
        touched, self._runs = self._runs, []
        units: dict[str, Key] = {}
        for run in touched:
            run.touched = False
            run.version += 1
            if run.unit is not None:
                units[run.run_id] = run.unit
                run.unit = None
            (batch.runs_set if run.stored else batch.runs_new).append(run_row(run))
            if run.seq:
                self._take_parked(run, batch)
            run.stored = True
            if run.state.is_terminal:
                effects.append(RunEnded(run.run_id, run.run_id))
                self.drop_run(run)
        batch.runs_set.sort()
        batch.backlog_gone.sort()
        return units

    def _take_parked(self, run: Run, batch: Batch) -> None:
        if run.state is not RunState.PENDING:
            if run.stored:
                batch.backlog_gone.append(ParkedKey(run.seq, run.run_id))
            run.seq = 0
            run.parked = False
        elif not run.stored:
            snapshot = run.snapshot
            batch.backlog_new.append(
                BacklogRow(
                    run.seq, run.run_id, snapshot.job, snapshot.group, snapshot.handler, snapshot.priority,
                    run.sharding_total,
                )
            )  # fmt: skip
            self.parking[run.run_id] = run

    def committed(self, batch: Batch) -> None:
        """Note that `batch` is stored, for the counts that people see."""
        self.ending.clear()
        counts = self.committed_counts
        for state, change in batch.count_changes.items():
            counts[state] = counts.get(state, 0) + change

    def drop_run(self, run: Run) -> None:
        """Forget a run and its tasks; the store has them."""
        if self.runs.pop(run.run_id, None) is not None:
            self.params_size -= len(run.params)
        for task in run.tasks:
            self.tasks.pop(task.task_id, None)

    def forget_run(self, run: Run) -> None:
        """Drop a run and whatever the next batch would have said of it: its memory is in doubt."""
        self.drop_run(run)
        tasks = set(map(id, run.tasks))
        self._tasks = [task for task in self._tasks if id(task) not in tasks]
        self._runs = [other for other in self._runs if other is not run]
        self.attempts = [row for row in self.attempts if row.task_id.rpartition(":")[0] != run.run_id]
        self.logs = [row for row in self.logs if row.run_id != run.run_id]
        self.forget_effects({run.run_id, run.unit or run.run_id})

    def forget_effects(self, keys: set[Key]) -> None:
        """Drop what would be told of something whose memory is in doubt; requests are told so.

        Results that were taken meanwhile are forgotten with it: their workers are cut off, to bring them again.
        """
        effects, self.effects = self.effects, []
        in_doubt: dict[int, None] = {}
        for effect in effects:
            if effect.key not in keys and keys.isdisjoint(runs_told(effect)):
                self.effects.append(effect)
            elif isinstance(effect, Answer):
                problem = "what the request builds on was refused by the store; repeat it with the same key"
                self.effects.append(Answer(effect.token, None, StoreUnavailable(problem), None))
            elif isinstance(effect, Ack):
                in_doubt[effect.session_id] = None
        self.effects += [Close(session_id, "what it reported was dropped") for session_id in in_doubt]


def _job_id(task: Task) -> int:
    return task.job_id
