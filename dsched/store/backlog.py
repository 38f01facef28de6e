"""The reads of the backlog, for a store that speaks SQL: the runs that wait in the store, page by page.

First the keys of a page, which are small, then the runs in pieces, until there are enough tasks or bytes.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from dsched.model.rows import JobRow, LaneRow, ParkedRun, RunRow
from dsched.store.statements import RUN, chunk_sizes, where_in

__all__ = ["BacklogReads"]

Execute = Callable[..., Any]

_PIECE: Final = 128
_PAGE_BYTES: Final = 8 * 1024 * 1024


class BacklogReads:
    """Reads with the `execute` of one look; `mark` is how the dialect writes a parameter."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._runs = where_in(RUN.select(), "run_id", mark)

    def lanes(self, execute: Execute) -> list[LaneRow]:
        """Return what each lane holds."""
        lane = "group_name, handler, priority"
        text = f"SELECT {lane}, min(seq), max(seq) FROM backlog GROUP BY {lane} ORDER BY {lane}"
        return [LaneRow._make(row) for row in execute(text).fetchall()]

    def lane(self, execute: Execute, lane: tuple[str, str, int], after: int, last: int, tasks: int) -> list[ParkedRun]:
        """Return the next runs of a lane."""
        where = f"group_name = {self._mark} AND handler = {self._mark} AND priority = {self._mark}"
        return self._page(execute, where, lane, after, last, tasks)

    def of_job(self, execute: Execute, job: str, after: int, last: int, tasks: int) -> list[ParkedRun]:
        """Return the next runs of a job."""
        return self._page(execute, f"job = {self._mark}", (job,), after, last, tasks)

    def run(self, execute: Execute, run_id: str) -> ParkedRun | None:
        """Return one run, if it is in the backlog."""
        keys = execute(f"SELECT seq, run_id FROM backlog WHERE run_id = {self._mark}", (run_id,)).fetchall()
        found = self._read(execute, keys)
        return found[0] if found else None

    def jobs(self, execute: Execute) -> list[str]:
        """Return the names of all jobs, existing or not, that have runs in the backlog."""
        return [name for (name,) in execute("SELECT DISTINCT job FROM backlog ORDER BY job").fetchall()]

    def newest_due(self, execute: Execute, names: Sequence[str], jobs: Sequence[JobRow]) -> list[ParkedRun]:
        """Return the last run that each of `names` has from its trigger, where it is in the backlog."""
        scheduled = {job.name for job in jobs if job.next_due is not None}
        text = f"SELECT run_id FROM run WHERE job = {self._mark} AND due IS NOT NULL ORDER BY due DESC LIMIT 1"
        newest = []
        for name in names:
            row = execute(text, (name,)).fetchone() if name in scheduled else None
            found = self.run(execute, row[0]) if row is not None else None
            if found is not None:
                newest.append(found)
        return newest

    def _page(
        self, execute: Execute, where: str, values: Sequence[Any], after: int, last: int, tasks: int
    ) -> list[ParkedRun]:
        text = (
            f"SELECT seq, run_id, tasks FROM backlog WHERE {where} AND seq > {self._mark} AND seq <= {self._mark}"
            f" ORDER BY seq LIMIT {int(tasks)}"
        )
        keys = []
        for seq, run_id, count in execute(text, (*values, after, last)).fetchall():
            keys.append((seq, run_id))
            tasks -= count
            if tasks <= 0:
                break
        return self._read(execute, keys)

    def _read(self, execute: Execute, keys: Sequence[tuple[int, str]]) -> list[ParkedRun]:
        """Return the runs of `keys`, as many as a page may have bytes, at least a piece."""
        found: list[ParkedRun] = []
        size = start = 0
        for count in chunk_sizes(len(keys), _PIECE):
            piece = keys[start : start + count]
            rows = execute(self._runs.text(count), [run_id for _, run_id in piece]).fetchall()
            runs = {row[0]: RunRow._make(row) for row in rows}
            found += [ParkedRun(seq, runs[run_id]) for seq, run_id in piece]
            start += count
            size += sum(len(run.params) + len(run.snapshot) for run in runs.values())
            if size > _PAGE_BYTES:
                break
        return found
