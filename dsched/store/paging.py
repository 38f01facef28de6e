"""The lists of a store: their order, their filters and their cursors, the same for every implementation."""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, NamedTuple, TypeVar

from dsched.errors import InvalidValue
from dsched.model.instant import parse_instant
from dsched.model.rows import TaskRow
from dsched.model.run import RunState
from dsched.model.task import TaskState
from dsched.store.interface import Page
from dsched.store.statements import JOB, NOT_SUCCESS, RUN, TASK, WORKER, Table
from dsched.wire.messages import MAX_MESSAGE

__all__ = [
    "ALL_TASKS",
    "JOBS",
    "PAGE_BYTES",
    "RUNS",
    "TASKS",
    "WORKERS",
    "Condition",
    "Filter",
    "Lead",
    "Listing",
    "check_limit",
    "is_storable",
    "tasks_of",
]

R = TypeVar("R", bound=tuple[Any, ...])

PAGE_BYTES: Final = 8 * 1024 * 1024
"""Of the rows of a page. It is read, kept, and written out as one answer, all in the core's memory."""
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}\Z")


def is_storable(text: str) -> bool:
    """Tell whether a string can be in a store at all: lone surrogates cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _opaque(plain: str) -> str:
    return urlsafe_b64encode(plain.encode()).decode().rstrip("=")


def _text(field: str, value: str) -> str:
    if not is_storable(value):
        raise InvalidValue(field, "must be valid Unicode")
    return value


def _truth(field: str, value: str) -> int:
    if value not in ("true", "false"):
        raise InvalidValue(field, 'must be "true" or "false"')
    return int(value == "true")


def _one_of(states: tuple[str, ...]) -> Callable[[str, str], str]:
    def check(field: str, value: str) -> str:
        if value not in states:
            raise InvalidValue(field, f"must be one of {', '.join(states)}")
        return value

    return check


def _instant(field: str, value: str) -> int:
    try:
        return parse_instant(value)
    except ValueError as error:
        raise InvalidValue(field, str(error)) from None


def _first_id(field: str, value: str) -> int:
    """Return the lowest job id that can be given out at an instant."""
    return min(_instant(field, value) << 16, 2**63 - 1)


class Condition(NamedTuple):
    """What the rows of a page must have; `operator` is =, >= or <."""

    column: str
    operator: str
    value: Any

    def holds(self, row: Any) -> bool:
        """Tell whether a row has it."""
        found = getattr(row, self.column)
        if self.operator == "=":
            return bool(found == self.value)
        return bool(found >= self.value if self.operator == ">=" else found < self.value)


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter that people give by name: the column, how it is compared, and what checks and converts the text."""

    column: str
    read: Callable[[str, str], Any] = _text
    operator: str = "="


@dataclass(frozen=True, slots=True)
class Lead:
    """A column that begins the index `index`, which goes on in the order of the list; empty for the order itself.

    `also` is what a partial index wants to read in the statement; for the value `unless` there is no such index.
    """

    column: str
    index: str
    also: str = ""
    unless: str | None = None


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """A list in a fixed order over `order`, whose values end a cursor; `kinds` are the types of those columns.

    `leads` is None where few rows can match. Otherwise a page looks at a bounded number of rows along one of these
    indexes, the last of them that of the order itself, and may come back short, or empty, with a cursor to go on.
    `always` is a condition on every row. `long` are the columns whose JSON may be long, `attempts` tells that a row is
    shown with its earlier attempts.
    """

    table: Table[R]
    order: tuple[str, ...]
    kinds: tuple[type, ...]
    filters: Mapping[str, Filter]
    descending: bool = False
    leads: tuple[Lead, ...] | None = None
    always: str = ""
    name: str = ""
    long: tuple[str, ...] = ()
    attempts: bool = False

    @property
    def _tag(self) -> str:
        return self.name or self.table.name

    def conditions(self, given: Mapping[str, str]) -> list[Condition]:
        """Return the conditions of filters; raises `InvalidValue` for an unknown one or a wrong value."""
        found = []
        for field, value in given.items():
            filter_ = self.filters.get(field)
            if filter_ is None:
                raise InvalidValue(field, f"is not a filter of this list, which has {', '.join(sorted(self.filters))}")
            found.append(Condition(filter_.column, filter_.operator, filter_.read(field, value)))
        return found

    def place(self, row: R) -> tuple[Any, ...]:
        """Return where a row stands in the order."""
        return tuple(getattr(row, name) for name in self.order)

    def cursor(self, row: R) -> str:
        """Return the cursor of what comes after `row`."""
        return self.cursor_at(self.place(row))

    def cursor_at(self, place: tuple[Any, ...]) -> str:
        """Return the cursor of what comes after a place."""
        return _opaque(":".join([self._tag, *(str(value) for value in place)]))

    def after(self, cursor: str) -> tuple[Any, ...]:
        """Return the place that a cursor names; raises `InvalidValue` for a text that this list never gave."""
        try:
            plain = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)).decode()
            tag = f"{self._tag}:"
            parts = plain.removeprefix(tag).split(":", len(self.kinds) - 1)
            if not plain.startswith(tag) or len(parts) != len(self.kinds) or _opaque(plain) != cursor:
                raise ValueError(plain)
            return tuple(self._part(kind, part) for kind, part in zip(self.kinds, parts, strict=True))
        except ValueError:
            raise InvalidValue("cursor", "must be the `next` of a page of this list") from None

    @staticmethod
    def _part(kind: type, part: str) -> Any:
        if kind is int:
            if not _INTEGER.match(part) or not -(2**63) <= int(part) < 2**63:
                raise ValueError(part)
            return int(part)
        return part

    def size(self, row: R) -> int:
        """Return about how many bytes a row takes, with what is shown beside it."""
        size = 0
        for name in self.long:
            text = getattr(row, name)
            if text:
                size += len(text) if text.isascii() else len(text.encode())
        if self.attempts:
            size += len(row.error_msg or "")  # type: ignore[attr-defined]
            if row.attempt > 1:  # type: ignore[attr-defined]
                size += (row.attempt - 1) * MAX_MESSAGE  # type: ignore[attr-defined]
        return size

    def page(self, rows: Iterable[R], limit: int) -> Page[R]:
        """Return the page that `rows` begin with: at most `limit`, of at most `PAGE_BYTES`, but one at least.

        Takes one row more than that, if there is one.
        """
        items: list[R] = []
        size = 0
        for row in rows:
            size += self.size(row)
            if items and (len(items) == limit or size > PAGE_BYTES):
                return Page(items, self.cursor(items[-1]))
            items.append(row)
        return Page(items, None)


def check_limit(limit: int) -> int:
    """Return the size of a page; raises `InvalidValue` below 1."""
    if limit < 1:
        raise InvalidValue("limit", "must be at least 1")
    return limit


_TASK_STATUS: Final = Filter("status", _one_of(tuple(TaskState)))

_TASK_TEXTS: Final = ("params", "result", "error")

JOBS: Final = Listing(
    JOB, ("name",), (str,), {"group": Filter("group_name"), "enabled": Filter("enabled", _truth)},
    long=("definition",),
)  # fmt: skip
RUNS: Final = Listing(
    RUN, ("created_at", "run_id"), (int, str),
    {
        "job": Filter("job"), "status": Filter("status", _one_of(tuple(RunState))), "group": Filter("group_name"),
        "since": Filter("created_at", _instant, ">="), "until": Filter("created_at", _instant, "<"),
    },
    descending=True,
    leads=(
        Lead("job", "run_job"), Lead("status", "run_status"), Lead("group_name", "run_group"), Lead("", "run_created"),
    ),
    long=("params", "snapshot"),
)  # fmt: skip
TASKS: Final = Listing(
    TASK, ("sharding_item", "job_id"), (int, int), {"status": _TASK_STATUS, "worker": Filter("target_worker")},
    long=_TASK_TEXTS, attempts=True,
)  # fmt: skip
ALL_TASKS: Final = Listing(
    TASK, ("job_id",), (int,),
    {
        "job": Filter("job_name"), "status": _TASK_STATUS, "worker": Filter("target_worker"),
        "since": Filter("job_id", _first_id, ">="), "until": Filter("job_id", _first_id, "<"),
    },
    descending=True,
    leads=(Lead("status", "schedule_job_status", NOT_SUCCESS, unless=TaskState.SUCCESS), Lead("", "")),
    always="coalesce(run_id, '') <> ''", name="tasks", long=_TASK_TEXTS,
    attempts=True,
)  # fmt: skip
"""Adopted rows have no run and are not listed."""
WORKERS: Final = Listing(WORKER, ("worker_id",), (str,), {})


def tasks_of(run_id: str) -> Listing[TaskRow]:
    """Return `TASKS` of one run: its cursors are of no use in another."""
    return replace(TASKS, name=f"{TASK.name}:{run_id}")
