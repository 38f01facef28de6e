"""The writes of a store that speaks SQL: one batch as few statements, in the order that constraints need."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

from dsched.engine.changes import Batch
from dsched.errors import BatchRefused
from dsched.store.rollups import added_by, bulk_add
from dsched.store.statements import (
    ATTEMPT,
    BACKLOG,
    JOB,
    LOG,
    RUN,
    TASK,
    WORKER,
    Bulk,
    Table,
    bulk_dues,
    bulk_insert,
    bulk_update,
    chunks,
    guard_leader,
    where_in,
)

__all__ = ["Execute", "Writes"]

R = TypeVar("R", bound=tuple[Any, ...])
Execute = Callable[[str, Sequence[Any]], int]
"""Runs a statement with its values and returns how many rows it matched."""

_VALUES: Final[dict[str, Callable[[Any], tuple[Any, ...]]]] = {
    table.name: table.picker(*table.mutable, table.key) for table in (JOB, RUN, TASK)
}


class Writes:
    """The statements of one dialect, and how a batch goes through them.

    `mark` is how the dialect writes a parameter; `update`, `dues` and `rollups` make its updates of many rows. A
    statement takes at most `most_rows` rows and `variables` values.
    """

    def __init__(
        self,
        mark: str,
        *,
        most_rows: int,
        variables: int,
        update: Callable[[Table[Any], str], Bulk] = bulk_update,
        dues: Callable[[str], Bulk] = bulk_dues,
        rollups: Callable[[str], Bulk] = bulk_add,
    ) -> None:
        self.variables = variables
        self._most_rows = most_rows
        self._guard = guard_leader(mark)
        self._insert = {table.name: bulk_insert(table, mark) for table in (JOB, RUN, TASK, ATTEMPT, LOG, BACKLOG)}
        self._replace_worker = bulk_insert(WORKER, mark, "REPLACE")
        self._update = {table.name: update(table, mark) for table in (JOB, RUN, TASK)}
        self._move_dues = dues(mark)
        self._add_rollups = rollups(mark)
        self._delete_jobs = where_in("DELETE FROM job", "name", mark)
        self._delete_parked = where_in("DELETE FROM backlog", "seq", mark)

    def take_turn(self, execute: Execute, batch: Batch) -> bool:
        """Move the leader row on to this batch, the first statement of each; return whether it was its turn."""
        values = (batch.number, batch.last_id, batch.last_fence, batch.epoch, batch.number)
        return execute(self._guard, values) == 1

    def write(self, execute: Execute, batch: Batch) -> None:
        """Write all rows of `batch`; raises `BatchRefused` where a version is not the one before."""
        if batch.jobs_gone:
            self.bulk(execute, self._delete_jobs, [(name,) for name in batch.jobs_gone])
        self._add(execute, JOB, batch.jobs_new)
        self._add(execute, RUN, batch.runs_new)
        self._add(execute, TASK, batch.tasks_new)
        self._add(execute, BACKLOG, batch.backlog_new)
        if batch.backlog_gone:
            self.bulk(execute, self._delete_parked, [(key.seq,) for key in batch.backlog_gone])
        self._change(execute, JOB, batch.jobs_set)
        self.bulk(execute, self._move_dues, batch.dues)
        self._change(execute, RUN, batch.runs_set)
        self._change(execute, TASK, batch.tasks_set)
        self.bulk(execute, self._add_rollups, added_by(batch))
        self._add(execute, ATTEMPT, batch.attempts)
        self._add(execute, LOG, batch.logs)
        self.bulk(execute, self._replace_worker, batch.workers)

    def _add(self, execute: Execute, table: Table[R], rows: Sequence[R]) -> None:
        if rows:
            self.bulk(execute, self._insert[table.name], rows)

    def _change(self, execute: Execute, table: Table[R], rows: Sequence[R]) -> None:
        if not rows:
            return
        matched = self.bulk(execute, self._update[table.name], list(map(_VALUES[table.name], rows)))
        if matched != len(rows):
            raise BatchRefused(
                f"version: {len(rows) - matched} of {len(rows)} rows of {table.name} are not stored with the version "
                f"before; the first is {getattr(rows[0], table.key)!r}"
            )

    def bulk(self, execute: Execute, bulk: Bulk, rows: Sequence[tuple[Any, ...]]) -> int:
        """Run a statement for all rows; return how many rows it touched."""
        parts = chunks(rows, min(self._most_rows, self.variables // bulk.width))
        return sum(execute(bulk.text(len(part)), list(chain.from_iterable(part))) for part in parts)
