"""The store as one core of a scenario sees it: watched, and refusing what it is told to refuse."""

from collections.abc import Callable
from typing import Any

from dsched.engine.changes import Batch
from dsched.errors import BatchRefused
from dsched.model.rows import LeaderRow
from dsched.store.interface import Store
from dsched.testing.invariants import Invariants
from dsched.testing.sim_node import SimNode

__all__ = ["Refusal", "SimStore"]


class Refusal:
    """Makes the store refuse one row: that of `run_id`, or, until one comes, the first new or changed run's task.

    It lasts until `until_s`, as a value that the database cannot hold would for ever. `on_hit` is called once.
    """

    def __init__(self, *, new: bool, until_s: float, on_hit: Callable[[], None]) -> None:
        self.new = new
        self.until_s = until_s
        self.run_id: str | None = None
        self._on_hit = on_hit

    def refuses(self, batch: Batch) -> bool:
        """Tell whether the batch holds the row."""
        rows: Any = batch.tasks_new if self.new else batch.tasks_set
        if self.run_id is None and rows:
            self.run_id = rows[0].run_id
            self._on_hit()
        return any(row.run_id == self.run_id for row in rows)


class SimStore:
    """Passes everything on to `store`; tells the invariants what was committed, by which node."""

    def __init__(self, store: Store, node: SimNode, invariants: Invariants, refusals: list[Refusal]) -> None:
        self.url = store.url
        self.readers = store.readers
        self._store = store
        self._node = node
        self._invariants = invariants
        self._refusals = refusals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def open(self) -> None:
        """Do nothing: the scenario has opened it."""

    def close(self) -> None:
        """Do nothing: the scenario closes it."""

    def take_leadership(self, seen: LeaderRow, owner: str, address: str, admin_url: str) -> LeaderRow | None:
        """Take it, and note who leads."""
        row = self._store.take_leadership(seen, owner, address, admin_url)
        if row is not None:
            self._invariants.led(self._node, row)
        return row

    def commit(self, batch: Batch) -> None:
        """Commit, unless a row is to be refused."""
        now_s = self._node.reactor.seconds()
        self._refusals[:] = [refusal for refusal in self._refusals if now_s < refusal.until_s]
        leader = self._store.leader()
        if leader.epoch == batch.epoch and any(refusal.refuses(batch) for refusal in self._refusals):
            self._invariants.refused(batch)
            raise BatchRefused("the scenario lets the store refuse a row")
        try:
            self._store.commit(batch)
        except BatchRefused:
            self._invariants.parking.refused(batch)
            raise
        self._invariants.committed(self._node, batch)
