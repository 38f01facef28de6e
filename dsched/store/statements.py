"""The SQL text that all dialects share, made from the row types.

A column is named in `dsched.model.rows`, and once more here if it may change.

Statements take many rows at once. A database thread gives up the interpreter's lock at each statement and has to win it
back from a busy reactor thread, so a batch must be few statements, not many short ones.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import NoneType
from typing import Any, Final, Generic, TypeVar, get_args, get_type_hints

from dsched.model.rows import AttemptRow, BacklogRow, JobRow, LeaderRow, LogRow, RunRow, TaskRow, WorkerRow
from dsched.model.task import OPEN, TaskState

__all__ = [
    "ATTEMPT",
    "BACKLOG",
    "JOB",
    "LEADER",
    "LOG",
    "NOT_SUCCESS",
    "OPEN_TASK",
    "RUN",
    "TASK",
    "WORKER",
    "Bulk",
    "Table",
    "beyond",
    "bulk_dues",
    "bulk_insert",
    "bulk_update",
    "chunks",
    "guard_leader",
    "where_in",
]

R = TypeVar("R", bound=tuple[Any, ...])
V = TypeVar("V")

NOT_SUCCESS: Final = "status <> 'SUCCESS' AND run_id IS NOT NULL"
"""The condition of SQLite's partial index, in its words: planners compare text. Adopted rows have no run."""
OPEN_TASK: Final = (
    "status IN (" + ", ".join(f"'{state.value}'" for state in TaskState if state in OPEN) + f") AND {NOT_SUCCESS}"
)
"""The condition of open tasks."""


@dataclass(frozen=True)
class Table(Generic[R]):
    """A table, its row type, its key, and the columns that an update may change."""

    name: str
    row: type[R]
    key: str = ""
    mutable: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the column names, in the order of the row."""
        return self.row._fields  # type: ignore[attr-defined, no-any-return]

    @property
    def optional(self) -> frozenset[str]:
        """Return the columns that may be null."""
        hints = get_type_hints(self.row)
        return frozenset(name for name in self.columns if NoneType in get_args(hints[name]))

    def picker(self, *columns: str) -> Callable[[R], tuple[Any, ...]]:
        """Return a function that takes those columns (two or more) out of a row."""
        return itemgetter(*(self.columns.index(name) for name in columns))

    def select(self, rest: str = "") -> str:
        """Return a SELECT of all columns, followed by `rest`."""
        return f"SELECT {', '.join(self.columns)} FROM {self.name} {rest}".rstrip()


JOB: Final = Table(
    "job", JobRow, "name", ("group_name", "definition", "enabled", "version", "next_due", "updated_at")
)  # fmt: skip
RUN: Final = Table(
    "run", RunRow, "run_id",
    ("status", "reason", "cancel_requested", "counts", "started_at", "finished_at", "version"),
)  # fmt: skip
TASK: Final = Table(
    "schedule_job", TaskRow, "job_id",
    ("target_worker", "status", "retry_count", "error_msg", "update_time", "incarnation", "attempt", "lost_count",
     "fence", "not_before", "started_at", "deadline", "finished_at", "result", "error", "version"),
)  # fmt: skip
ATTEMPT: Final = Table("attempt", AttemptRow)
BACKLOG: Final = Table("backlog", BacklogRow, "seq")
WORKER: Final = Table("worker", WorkerRow, "worker_id")
LOG: Final = Table("log", LogRow)
LEADER: Final = Table("leader", LeaderRow)


class Bulk:
    """A statement for any number of rows: `write` makes its text for a number, `width` values go in per row."""

    __slots__ = ("_texts", "_write", "width")

    def __init__(self, width: int, write: Callable[[int], str]) -> None:
        self.width = width
        self._write = write
        self._texts: dict[int, str] = {}

    def text(self, rows: int) -> str:
        """Return the SQL for that many rows, the same object each time."""
        text = self._texts.get(rows)
        if text is None:
            text = self._texts[rows] = self._write(rows)
        return text


def _places(width: int, rows: int, mark: str) -> str:
    row = f"({','.join([mark] * width)})"
    return ",".join([row] * rows)


def bulk_insert(table: Table[Any], mark: str, verb: str = "INSERT") -> Bulk:
    """Return the insert of complete rows; `verb` REPLACE overwrites the row with the same key."""
    head = f"{verb} INTO {table.name} ({', '.join(table.columns)}) VALUES "
    width = len(table.columns)
    return Bulk(width, lambda rows: head + _places(width, rows, mark))


def bulk_update(table: Table[Any], mark: str) -> Bulk:
    """Return the update of the mutable columns of rows whose stored version is the one before.

    Per row go in the mutable columns, then the key: `table.picker(*table.mutable, table.key)`. It relies on UPDATE FROM
    and on VALUES naming its columns column1, column2, ...; a dialect without them writes its own.
    """
    names = (*table.mutable, table.key)
    column = {name: f"v.column{number}" for number, name in enumerate(names, 1)}
    changes = ", ".join(f"{name} = {column[name]}" for name in table.mutable)
    head = f"UPDATE {table.name} SET {changes} FROM (VALUES "
    tail = (
        f") AS v WHERE {table.name}.{table.key} = {column[table.key]}"
        f" AND {table.name}.version = {column['version']} - 1"
    )
    width = len(names)
    return Bulk(width, lambda rows: head + _places(width, rows, mark) + tail)


def bulk_dues(mark: str) -> Bulk:
    """Return the update that moves jobs' next dues on: per row goes in a whole `DueRow`."""
    head = "UPDATE job SET next_due = v.column3 FROM (VALUES "
    tail = ") AS v WHERE job.name = v.column1 AND job.version = v.column2"
    return Bulk(3, lambda rows: head + _places(3, rows, mark) + tail)


def where_in(head: str, column: str, mark: str, rest: str = "") -> Bulk:
    """Return the statement `head` for the rows whose `column` is one of the given values."""
    return Bulk(1, lambda rows: f"{head} WHERE {column} IN ({','.join([mark] * rows)}) {rest}".rstrip())


def beyond(columns: Sequence[str], sign: str, mark: str, *, inclusive: bool = False) -> str:
    """Return the condition that one or two columns are beyond a place: `sign` is `<` or `>`.

    For two columns the values are those of the place with the first one twice. Spelled out, because MySQL and MariaDB
    take no comparison of rows for a range of an index.
    """
    last = f"{sign}=" if inclusive else sign
    if len(columns) == 1:
        return f"{columns[0]} {last} {mark}"
    first, second = columns
    return f"{first} {sign}= {mark} AND ({first} {sign} {mark} OR {second} {last} {mark})"


def guard_leader(mark: str) -> str:
    """Return the first statement of each batch: values are number, last_id, last_fence, epoch, number."""
    return (
        f"UPDATE leader SET batch = {mark}, renewal = renewal + 1, last_id = {mark}, last_fence = {mark}"
        f" WHERE epoch = {mark} AND batch = {mark} - 1"
    )


def chunks(rows: Sequence[V], largest: int) -> Iterator[Sequence[V]]:
    """Cut `rows` into as few powers of two as possible, none above `largest`, so that few texts serve all counts."""
    size = 1 << (largest.bit_length() - 1)
    start = 0
    while start < len(rows):
        while size > len(rows) - start:
            size >>= 1
        yield rows[start : start + size]
        start += size
