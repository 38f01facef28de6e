"""The deletion of old history in a store that speaks SQL: portion after portion, each a short transaction.

Keys are read first, by an index, and rows are deleted by key, so that nothing is locked but what goes. Of a run the
tasks go first and its own row last: whatever is cut off in between leaves a run that goes the next time.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, Final

from dsched.errors import EpochLost
from dsched.model.run import RunState
from dsched.store.interface import Pruned
from dsched.store.statements import Bulk, beyond, chunks, where_in

__all__ = ["Pruning"]

Execute = Callable[..., Any]

_MOST_KEYS: Final = 512
_ENDED: Final = tuple(state.value for state in RunState if state.is_terminal)


class Pruning:
    """The statements of one dialect: `mark` is how it writes a parameter, `hint` how it is told which index to use."""

    def __init__(self, mark: str, hint: str) -> None:
        self._mark = mark
        self._hint = hint
        self._task_keys = where_in("SELECT job_id, task_id FROM schedule_job", "run_id", mark)
        self._attempt_keys = where_in("SELECT DISTINCT task_id FROM attempt", "task_id", mark)
        self._log_keys = where_in("SELECT id FROM log", "task_id", mark)
        self._deletes: dict[tuple[str, str], Bulk] = {}

    def check(self, execute: Execute, epoch: int | None) -> None:
        """Raise `EpochLost` when `epoch` is given and does not lead."""
        if epoch is not None and execute("SELECT epoch FROM leader").fetchone()[0] != epoch:
            raise EpochLost(f"epoch {epoch} does not lead", epoch=epoch)

    def runs(
        self, execute: Execute, before_ms: int, job: str | None, limit: int, after: str | None, *, dry: bool
    ) -> Pruned:
        """Delete a portion of the runs, or tell what would go; see `Store.prune`."""
        lane, place = _place(after)
        found = self._page(execute, lane, place, before_ms, job, limit)
        chosen: list[str] = []
        size = 0
        is_full = len(found) == limit
        for created, run_id, finished, total, status in found:
            if status in _ENDED and (finished or 0) < before_ms:
                # One run goes however many tasks it has, in several portions; others with it as far as they fit.
                if chosen and size + total > limit and not dry:
                    is_full = True
                    break
                chosen.append(run_id)
                size += total
            place = (created, run_id)
        if is_full:
            following = f"{lane}:{place[0]}:{place[1]}" if place else None
        else:
            following = f"{lane + 1}::" if job is None and lane + 1 < len(_ENDED) else None
        if dry or not chosen:
            return Pruned(len(chosen), size, following)
        tasks = self._many(execute, self._task_keys, chosen, f"LIMIT {limit + 1}" if len(chosen) == 1 else "")
        # What is counted is what went here: somebody else may be at the same.
        gone = self._delete_tasks(execute, tasks[:limit] if len(chosen) == 1 else tasks)
        if len(chosen) == 1 and len(tasks) > limit:
            return Pruned(0, gone, after or "0::")
        return Pruned(self._delete(execute, "run", "run_id", chosen), gone, following)

    def rest(self, execute: Execute, before_ms: int, rollups_before_ms: int, limit: int) -> Pruned:
        """Delete a portion of what belongs to no run; see `Store.prune_rest`."""
        mark = self._mark
        lines = execute(f"SELECT id, at FROM log ORDER BY id LIMIT {mark}", (limit,)).fetchall()
        ids = [row[0] for row in takewhile(lambda row: row[1] < before_ms, lines)]
        text = f"SELECT worker_id FROM worker WHERE state = 'lost' AND last_seen_at < {mark} LIMIT {mark}"
        workers = [row[0] for row in execute(text, (before_ms, limit)).fetchall()]
        text = f"SELECT hour FROM rollup WHERE hour < {mark} ORDER BY hour LIMIT 1"
        hours = [row[0] for row in execute(text, (rollups_before_ms,)).fetchall()]
        gone = self._delete(execute, "log", "id", ids)
        gone += self._delete(execute, "worker", "worker_id", workers)
        gone += self._delete(execute, "rollup", "hour", hours)
        has_more = limit in (len(ids), len(workers)) or bool(hours)
        return Pruned(0, gone, "more" if has_more else None)

    def _page(
        self, execute: Execute, lane: int, place: tuple[int, str] | None, before_ms: int, job: str | None, limit: int
    ) -> list[tuple[int, str, int | None, int, str]]:
        """Return the oldest runs from a place on, of a job or of one terminal status after the other."""
        mark = self._mark
        index, column, value = ("run_status", "status", _ENDED[lane]) if job is None else ("run_job", "job", job)
        where, values = f"{column} = {mark} AND created_at < {mark}", [value, before_ms]
        if place is not None:
            where += f" AND {beyond(('created_at', 'run_id'), '>', mark)}"
            values += [place[0], *place]
        text = (
            f"SELECT created_at, run_id, finished_at, sharding_total, status FROM run {self._hint.format(index)}"
            f" WHERE {where} ORDER BY created_at, run_id LIMIT {mark}"
        )
        rows: list[tuple[int, str, int | None, int, str]] = execute(text, [*values, limit]).fetchall()
        return rows

    def _delete_tasks(self, execute: Execute, tasks: Sequence[tuple[Any, ...]]) -> int:
        names = [task_id for _, task_id in tasks]
        tried = [row[0] for row in self._many(execute, self._attempt_keys, names)]
        self._delete(execute, "attempt", "task_id", tried)
        self._delete(execute, "log", "id", [row[0] for row in self._many(execute, self._log_keys, names)])
        return self._delete(execute, "schedule_job", "job_id", sorted(job_id for job_id, _ in tasks))

    def _many(self, execute: Execute, bulk: Bulk, keys: Sequence[Any], rest: str = "") -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for part in chunks(keys, _MOST_KEYS):
            found += execute(f"{bulk.text(len(part))} {rest}", part).fetchall()
        return found

    def _delete(self, execute: Execute, table: str, key: str, values: Sequence[Any]) -> int:
        bulk = self._deletes.get((table, key))
        if bulk is None:
            bulk = self._deletes[table, key] = where_in(f"DELETE FROM {table}", key, self._mark)
        return sum(execute(bulk.text(len(part)), part).rowcount for part in chunks(values, _MOST_KEYS))


def _place(after: str | None) -> tuple[int, tuple[int, str] | None]:
    """Read a cursor: which lane, and where in it."""
    if after is None:
        return 0, None
    lane, created, run_id = after.split(":", 2)
    return int(lane), (int(created), run_id) if created else None
