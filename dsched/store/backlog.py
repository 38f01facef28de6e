"""The reads of the backlog, for a store that speaks SQL: the runs that wait in the store, page by page.

First the keys of a page, which are small, then the runs in pieces, until there are enough tasks or bytes. No statement
looks at more rows than it can in a fraction of a second, however many wait: a database driver gives up one that is
silent for long.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from dsched.model.rows import JobRow, LaneRow, ParkedRun, RunRow
from dsched.model.run import RunState
from dsched.store.statements import RUN, beyond, chunks, where_in

__all__ = ["BacklogReads"]

Execute = Callable[..., Any]

_SPAN: Final = 20_000
"""Runs that one statement looks at to find those that are not parked."""
_ORDER: Final = ("created_at", "run_id")
_PIECE: Final = 128
_PAGE_BYTES: Final = 8 * 1024 * 1024


class BacklogReads:
    """Reads with the `execute` of one look.

    `mark` is how the dialect writes a parameter, `by_index` how it names the index to use after a table.
    """

    def __init__(self, mark: str, by_index: Callable[[str], str]) -> None:
        self._mark = mark
        self._by_index = by_index
        self._runs = where_in(RUN.select(by_index("PRIMARY")), "run_id", mark)

    def open_runs(self, execute: Execute) -> list[RunRow]:
        """Return the runs that are neither terminal nor in the backlog."""
        by_status, mark = self._by_index("run_status"), self._mark
        # The index also has those that ended; more than PENDING and RUNNING are not open.
        running = RUN.select(f"{by_status} WHERE status = {mark}")
        found = [RunRow._make(row) for row in execute(running, (RunState.RUNNING.value,)).fetchall()]
        after = f" AND {beyond(_ORDER, '>', mark)}"
        until = f" AND {beyond(_ORDER, '<', mark, inclusive=True)}"
        pending = f"FROM run {by_status} WHERE status = {mark}"
        not_parked = " AND NOT EXISTS (SELECT 1 FROM backlog WHERE backlog.run_id = run.run_id)"
        start: list[Any] = []
        while True:
            where, values = pending, [RunState.PENDING.value, *start]
            if start:
                where += after
            order = f"ORDER BY created_at, run_id LIMIT 1 OFFSET {_SPAN - 1}"
            end = execute(f"SELECT created_at, run_id {where} {order}", values).fetchone()
            stop = [] if end is None else [end[0], *end]
            text = f"SELECT {', '.join(RUN.columns)} {where}{until if stop else ''}{not_parked}"
            found += [RunRow._make(row) for row in execute(text, [*values, *stop]).fetchall()]
            if end is None:
                return found
            start = stop

    def lanes(self, execute: Execute) -> list[LaneRow]:
        """Return what each lane holds."""
        lane = "group_name, handler, priority"
        text = f"SELECT {lane}, min(seq), max(seq) FROM backlog GROUP BY {lane} ORDER BY {lane}"
        return [LaneRow._make(row) for row in execute(text).fetchall()]

    def lane(self, execute: Execute, lane: tuple[str, str, int], after: int, last: int, tasks: int) -> list[ParkedRun]:
        """Return the next runs of a lane."""
        where = f"group_name = {self._mark} AND handler = {self._mark} AND priority = {self._mark}"
        return self._page(execute, "backlog_lane", where, lane, after, last, tasks)

    def of_job(self, execute: Execute, job: str, after: int, last: int, tasks: int) -> list[ParkedRun]:
        """Return the next runs of a job."""
        return self._page(execute, "backlog_job", f"job = {self._mark}", (job,), after, last, tasks)

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
        self, execute: Execute, index: str, where: str, values: Sequence[Any], after: int, last: int, tasks: int
    ) -> list[ParkedRun]:
        text = (
            f"SELECT seq, run_id, tasks FROM backlog {self._by_index(index)} WHERE {where}"
            f" AND seq > {self._mark} AND seq <= {self._mark} ORDER BY seq LIMIT {int(tasks)}"
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
        size = 0
        for piece in chunks(keys, _PIECE):
            rows = execute(self._runs.text(len(piece)), [run_id for _, run_id in piece]).fetchall()
            runs = {row[0]: RunRow._make(row) for row in rows}
            found += [ParkedRun(seq, runs[run_id]) for seq, run_id in piece]
            size += sum(len(run.params) + len(run.snapshot) for run in runs.values())
            if size > _PAGE_BYTES:
                break
        return found
