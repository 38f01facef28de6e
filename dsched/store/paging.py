"""The lists of a store: their order, their filters and their cursors, the same for every implementation."""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from dsched.errors import InvalidValue
from dsched.model.run import RunState
from dsched.model.task import TaskState
from dsched.store.interface import Page
from dsched.store.statements import JOB, RUN, TASK, Table

__all__ = ["JOBS", "RUNS", "TASKS", "Filter", "Listing", "check_limit", "is_storable"]

R = TypeVar("R", bound=tuple[Any, ...])

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


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter that people give by name: the column, and what checks and converts the text."""

    column: str
    read: Callable[[str, str], Any] = _text


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """A list in a fixed order over `order`, whose values end a cursor; `kinds` are the types of those columns."""

    table: Table[R]
    order: tuple[str, ...]
    kinds: tuple[type, ...]
    filters: Mapping[str, Filter]
    descending: bool = False

    def conditions(self, given: Mapping[str, str]) -> list[tuple[str, Any]]:
        """Return (column, value) for each filter; raises `InvalidValue` for an unknown one or a wrong value."""
        found = []
        for field, value in given.items():
            filter_ = self.filters.get(field)
            if filter_ is None:
                raise InvalidValue(field, f"is not a filter of this list, which has {', '.join(sorted(self.filters))}")
            found.append((filter_.column, filter_.read(field, value)))
        return found

    def place(self, row: R) -> tuple[Any, ...]:
        """Return where a row stands in the order."""
        return tuple(getattr(row, name) for name in self.order)

    def cursor(self, row: R) -> str:
        """Return the cursor of what comes after `row`."""
        return _opaque(":".join([self.table.name, *(str(value) for value in self.place(row))]))

    def after(self, cursor: str) -> tuple[Any, ...]:
        """Return the place that a cursor names; raises `InvalidValue` for a text that this list never gave."""
        try:
            plain = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)).decode()
            name, *parts = plain.split(":", len(self.kinds))
            if name != self.table.name or len(parts) != len(self.kinds) or _opaque(plain) != cursor:
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

    def query(
        self, given: Mapping[str, str], cursor: str | None, mark: str, within: tuple[tuple[str, Any], ...] = ()
    ) -> tuple[str, list[Any]]:
        """Return the SELECT of one page and its values, to which the caller adds the limit.

        `within` are further (column, value) that the rows must have, from the caller and not from people.
        """
        conditions = [*within, *self.conditions(given)]
        clauses = [f"{column} = {mark}" for column, _ in conditions]
        values = [value for _, value in conditions]
        if cursor is not None:
            beyond = "<" if self.descending else ">"
            clauses.append(f"({', '.join(self.order)}) {beyond} ({', '.join([mark] * len(self.order))})")
            values += self.after(cursor)
        where = f"WHERE {' AND '.join(clauses)} " if clauses else ""
        direction = " DESC" if self.descending else ""
        order = ", ".join(name + direction for name in self.order)
        return self.table.select(f"{where}ORDER BY {order} LIMIT {mark}"), values

    def page(self, rows: Sequence[R], limit: int) -> Page[R]:
        """Return the page for `rows`, of which there is one more than `limit` if another page follows."""
        if len(rows) <= limit:
            return Page(rows, None)
        return Page(rows[:limit], self.cursor(rows[limit - 1]))


def check_limit(limit: int) -> int:
    """Return the size of a page; raises `InvalidValue` below 1."""
    if limit < 1:
        raise InvalidValue("limit", "must be at least 1")
    return limit


JOBS: Final = Listing(
    JOB, ("name",), (str,), {"group": Filter("group_name"), "enabled": Filter("enabled", _truth)}
)  # fmt: skip
RUNS: Final = Listing(
    RUN, ("created_at", "run_id"), (int, str),
    {"job": Filter("job"), "status": Filter("status", _one_of(tuple(RunState))), "group": Filter("group_name")},
    descending=True,
)  # fmt: skip
TASKS: Final = Listing(
    TASK, ("sharding_item", "job_id"), (int, int),
    {"status": Filter("status", _one_of(tuple(TaskState))), "worker": Filter("target_worker")},
)  # fmt: skip
