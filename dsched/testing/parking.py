"""What must hold of the backlog, checked at each commit and when the leader is idle.

All that is open and not in the leader's memory is in the backlog, beyond what its lane has read, and was never
dispatched; nothing else is in there; and no run overtakes an older one of its lane that waits in there.
"""

from collections.abc import Callable
from typing import Any

from dsched.engine.changes import Batch
from dsched.engine.engine import Engine
from dsched.model.rows import BacklogRow, RunRow, TaskRow
from dsched.model.run import RunState
from dsched.testing.sim_node import SimNode
from dsched.wire.encoding import decode_any

__all__ = ["Parking"]


class Parking:
    """A copy of the backlog, made from the batches alone. `fail` notes what is wrong."""

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self.rows: dict[str, BacklogRow] = {}
        self.parked = 0
        self._fail = fail
        self._born: dict[str, int] = {}
        self._reloaded: set[str] = set()

    def committed(self, node: SimNode, batch: Batch) -> None:
        """A batch is stored."""
        for run in batch.runs_new:
            self._born[run.run_id] = batch.epoch
        pending = {run.run_id for run in batch.runs_new if run.status == RunState.PENDING.value}
        for row in batch.backlog_new:
            if row.run_id not in pending:
                self._fail("I24", f"{row.run_id} is put into the backlog, and is no new run that waits")
            self.rows[row.run_id] = row
            self.parked += 1
        for key in batch.backlog_gone:
            self.rows.pop(key.run_id, None)
        for run in batch.runs_set:
            if run.run_id in self.rows and run.status != RunState.PENDING.value:
                self._fail("I28", f"{run.run_id} is {run.status}, and in the backlog still")
        if self.rows:
            first = [row for row in (*batch.tasks_new, *batch.tasks_set) if row.attempt == 1]
            runs = {run.run_id: run for run in (*batch.runs_new, *batch.runs_set)}
            self._overtaking(node, batch.epoch, first, runs)

    def refused(self, batch: Batch) -> None:
        """The store was made to refuse a batch: what it touches is read again, and takes another place."""
        self._reloaded.update(row.run_id for row in (*batch.runs_new, *batch.runs_set))

    def _overtaking(self, node: SimNode, epoch: int, tasks: list[TaskRow], runs: dict[str, RunRow]) -> None:
        term = node.app._term if node.app is not None else None
        if term is None:
            return
        for task in tasks:
            run = runs.get(task.run_id)
            # A run that was in memory when the term began may be ahead of older ones that are not.
            if run is None or task.run_id in self._reloaded or self._born.get(task.run_id) != epoch:
                continue
            lane = (run.group_name, decode_any(run.snapshot.encode())["handler"], run.priority)
            first = task.job_id - task.sharding_item
            for row in self.rows.values():
                if row.seq < first and (row.group_name, row.handler, row.priority) == lane:
                    known = term.engine.state.runs.get(row.run_id)
                    if known is None or known.parked and known.state is RunState.PENDING:
                        self._fail("I24", f"{task.task_id} is dispatched before {row.run_id}, which is older")

    def check(self, engine: Engine, run: RunRow, tasks: list[Any]) -> None:
        """An open run is not in the memory of an idle leader, or waits there for its page."""
        row = self.rows.get(run.run_id)
        if row is None or run.status != RunState.PENDING.value or any(task.attempt for task in tasks):
            self._fail("I24", f"run {run.run_id} is {run.status}, not in memory and not in the backlog")
            return
        lane = engine.backlog.lanes.get((row.group_name, row.handler, row.priority))
        if lane is None or not lane.after < row.seq <= lane.newest:
            self._fail("I25", f"run {run.run_id} is in the backlog, and nobody will look for it")
