"""The writes of a store that speaks SQL, over one method that runs a transaction."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from dsched.engine.changes import Batch
from dsched.errors import EpochLost
from dsched.model.rows import LeaderRow
from dsched.store.interface import Pruned
from dsched.store.pruning import Pruning
from dsched.store.reads import SqlReads, leader_row
from dsched.store.statements import LEADER
from dsched.store.writes import Writes

__all__ = ["SqlStore"]

T = TypeVar("T")
Execute = Callable[..., Any]


class SqlStore(SqlReads):
    """Implement `dsched.store.interface.Store` but for its opening and closing."""

    locking: ClassVar[str] = ""
    """What makes a SELECT lock its rows to the end of the transaction, where the transaction does not do so itself."""

    def __init__(self, mark: str, hint: str, writes: Writes, primary: str = "") -> None:
        super().__init__(mark, hint, primary)
        self._writes = writes
        self._pruning = Pruning(mark, hint)

    @abstractmethod
    def writing(self, work: Callable[[Execute], T]) -> T:
        """Return what `work(execute)` returns, committed; after an error nothing of it has happened.

        `execute(text, values)` returns a cursor. `work` may run several times; it only calls `execute`.
        """

    # -- leadership

    def take_leadership(self, seen: LeaderRow, owner: str, address: str, admin_url: str) -> LeaderRow | None:
        """Raise the epoch by one if the row is as `seen`, else return None."""

        def take(execute: Execute) -> LeaderRow | None:
            now = leader_row(execute(LEADER.select(self.locking)).fetchone())
            if (now.epoch, now.renewal) != (seen.epoch, seen.renewal):
                return None
            highest_id = execute("SELECT coalesce(max(job_id), 0) FROM schedule_job").fetchone()[0]
            # The leader row has kept up with every fence since somebody first led. Reading all of history is for the
            # first leader only; the open tasks, which matter most, are looked at each time.
            condition = f"WHERE {self.open_task}" if now.epoch else ""
            highest_fence = execute(f"SELECT coalesce(max(fence), 0) FROM schedule_job {condition}").fetchone()[0]
            row = LeaderRow(
                now.epoch + 1, 0, now.renewal + 1, owner, address, admin_url,
                max(now.last_id, highest_id), max(now.last_fence, highest_fence),
            )  # fmt: skip
            changes = ", ".join(f"{name} = {self._mark}" for name in LEADER.columns)
            execute(f"UPDATE leader SET {changes}", row)
            return row

        return self.writing(take)

    def resign(self, epoch: int) -> None:
        """Let the next core lead at once, if `epoch` still leads."""
        text = f"UPDATE leader SET owner = '', renewal = renewal + 1 WHERE epoch = {self._mark}"
        self.writing(lambda execute: execute(text, (epoch,)))

    # -- batches

    def commit(self, batch: Batch) -> None:
        """Write all of `batch`, or nothing of it."""

        def write(run: Execute) -> None:
            def execute(text: str, values: Sequence[Any]) -> int:
                count: int = run(text, values).rowcount
                return count

            if not self._writes.take_turn(execute, batch):
                raise EpochLost(f"epoch {batch.epoch} does not lead with batch {batch.number - 1}", epoch=batch.epoch)
            if not batch.is_empty():
                self._writes.write(execute, batch)

        self.writing(write)

    # -- old history

    def prune(
        self, before_ms: int, job: str | None, limit: int, after: str | None = None, *,
        epoch: int | None = None, dry: bool = False,
    ) -> Pruned:  # fmt: skip
        """Delete a portion of the runs that ended before an instant."""
        if dry:
            with self.reading() as execute:
                return self._pruning.runs(execute, before_ms, job, limit, after, dry=True)

        def work(execute: Execute) -> Pruned:
            self._pruning.check(execute, epoch)
            return self._pruning.runs(execute, before_ms, job, limit, after, dry=False)

        return self.writing(work)

    def prune_rest(self, before_ms: int, rollups_before_ms: int, limit: int, *, epoch: int | None = None) -> Pruned:
        """Delete a portion of old log lines, lost workers and counters."""

        def work(execute: Execute) -> Pruned:
            self._pruning.check(execute, epoch)
            return self._pruning.rest(execute, before_ms, rollups_before_ms, limit)

        return self.writing(work)
