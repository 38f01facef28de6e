"""How a store that speaks SQL reads one page of a list: along one index, and no more than a bounded part of it.

Filters of a list may be combined as people like, and an index for each combination would slow every write. So one index
leads, the one that comes furthest, and the other filters are checked on the rows. A page looks at `MOST_LOOKED_AT` rows
at most, whatever matches, and where it stops the next one begins; at fewer, if the database says so, through an index
whose rows lie far apart.

A page has an end by bytes too (`PAGE_BYTES`), and a driver may fetch all that a statement finds before anybody sees it.
So rows come in pieces. Those of the first statement are whole but for long texts; rows that have such are read again,
few at a time, with them. Rows as they mostly are cost one statement for the usual page.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from operator import itemgetter
from typing import Any, Final, TypeVar

from dsched.store.interface import Page
from dsched.store.paging import Condition, Lead, Listing, check_limit
from dsched.store.statements import beyond

__all__ = ["MOST_LOOKED_AT", "Scanner"]

R = TypeVar("R", bound=tuple[Any, ...])
Execute = Callable[..., Any]

MOST_LOOKED_AT: Final = 10_000
"""Rows for a page."""
_PIECE: Final = 128
"""Rows of the first statement, which leaves long texts out."""
_MOST_PIECE: Final = 512
"""Rows of such a statement after others that found none."""
_LONG_PIECE: Final = 33
"""Rows of a statement that leaves nothing out: those with the longest results that fill a page, and one more."""
_LONG: Final = 32 * 1024
_LEFT_OUT: Final = ""  # no JSON


class _Clauses:
    """The clauses of a WHERE, and their values."""

    def __init__(self, mark: str) -> None:
        self.texts: list[str] = []
        self.values: list[Any] = []
        self._mark = mark

    def add(self, text: str, *values: Any) -> None:
        """Add a clause; a question mark in it stands for a value."""
        self.texts.append(text.replace("?", self._mark))
        self.values += values

    def place(self, listing: Listing[Any], place: tuple[Any, ...], *, after: bool, inclusive: bool) -> None:
        """Keep what comes after (`after`) or before a place in the order of the list."""
        sign = "<" if listing.descending is after else ">"
        self.texts.append(beyond(listing.order, sign, self._mark, inclusive=inclusive))
        self.values += place if len(place) == 1 else (place[0], *place)

    def where(self) -> str:
        return f"WHERE {' AND '.join(self.texts)} " if self.texts else ""


class Scanner:
    """Reads pages in one dialect.

    `mark` is how it writes a parameter, `hint` how it is told which index to use, `primary` what that of the key is
    called, and `most_by_index` how many rows a page looks at through any other.
    """

    def __init__(self, mark: str, hint: str, primary: str, most_by_index: int = MOST_LOOKED_AT) -> None:
        self.most = MOST_LOOKED_AT
        self.most_by_index = most_by_index
        self._mark = mark
        self._hint = hint
        self._primary = primary

    def read(
        self,
        execute: Execute,
        listing: Listing[R],
        limit: int,
        cursor: str | None,
        filters: Mapping[str, str],
        within: tuple[Condition, ...] = (),
    ) -> Page[R]:
        """Return one page; `within` are further conditions, from the caller and not from people."""
        wanted = check_limit(limit) + 1
        conditions = [*within, *listing.conditions(filters)]
        start = None if cursor is None else listing.after(cursor)
        lead, end = self._lead(execute, listing, conditions, start)

        def find(after: tuple[Any, ...] | None, count: int, *, long: bool) -> Any:
            found = self._range(listing, conditions, lead, after, end)
            text = f"{_select(listing, long)} {self._use(lead)} {found.where()}{_order(listing)} LIMIT {self._mark}"
            return execute(text, [*found.values, count])

        with closing(_pieces(listing, find, start, wanted)) as rows:
            page = listing.page(rows, limit)
        return Page(page.items, listing.cursor_at(end)) if page.next is None and end is not None else page

    def _range(
        self,
        listing: Listing[Any],
        conditions: Sequence[Condition],
        lead: Lead | None,
        start: tuple[Any, ...] | None,
        end: tuple[Any, ...] | None,
    ) -> _Clauses:
        """Return what a row of the page must have."""
        found = self._clauses(listing, conditions, lead, start)
        if end is not None:
            found.place(listing, end, after=False, inclusive=True)
        for column, operator, value in conditions:
            if not _leads(lead, column, operator):
                found.add(f"{column} {operator} ?", value)
        if listing.always:
            found.add(listing.always)
        return found

    def _lead(
        self, execute: Execute, listing: Listing[Any], conditions: Sequence[Condition], start: tuple[Any, ...] | None
    ) -> tuple[Lead | None, tuple[Any, ...] | None]:
        """Return which index to follow, and the last place to look at; None where that is the end of the list."""
        if listing.leads is None:
            return None, None
        equal = {column: value for column, operator, value in conditions if operator == "="}
        fitting = [lead for lead in listing.leads if lead.column in equal and equal[lead.column] != lead.unless]
        leads = fitting or [listing.leads[-1]]
        if not listing.always and len(equal) == len(fitting) <= 1:
            return leads[0], None  # Whatever the index has is wanted.
        best: tuple[Lead, tuple[Any, ...]] | None = None
        for lead in leads:
            found = self._clauses(listing, conditions, lead, start)
            most = self.most_by_index if lead.index else self.most
            text = (
                f"SELECT {', '.join(listing.order)} FROM {listing.table.name} {self._use(lead)} {found.where()}"
                f"{_order(listing)} LIMIT 1 OFFSET {most - 1}"
            )
            row = execute(text, found.values).fetchone()
            if row is None:
                return lead, None
            place = tuple(row)
            if best is None or (place < best[1] if listing.descending else place > best[1]):
                best = lead, place
        return best or (None, None)

    def _clauses(
        self, listing: Listing[Any], conditions: Sequence[Condition], lead: Lead | None, start: tuple[Any, ...] | None
    ) -> _Clauses:
        """Return what the index itself answers: the range to look at."""
        found = _Clauses(self._mark)
        for column, operator, value in conditions:
            if _leads(lead, column, operator):
                found.add(f"{column} {operator} ?", value)
        if lead is not None and lead.also:
            found.add(lead.also)
        if start is not None:
            found.place(listing, start, after=True, inclusive=False)
        return found

    def _use(self, lead: Lead | None) -> str:
        if lead is None:
            return ""
        name = lead.index or self._primary
        return self._hint.format(name) if name else "NOT INDEXED"


def _leads(lead: Lead | None, column: str, operator: str) -> bool:
    """Tell whether a condition is part of the range of an index: ranges are in the order of the list."""
    return lead is not None and (operator != "=" or column == lead.column)


def _pieces(listing: Listing[R], find: Execute, start: tuple[Any, ...] | None, wanted: int) -> Generator[R]:
    """Yield the rows behind `start`, `wanted` at most. Whoever takes them stops when a page is full."""
    make: Callable[[tuple[Any, ...]], R] = listing.table.row._make  # type: ignore[attr-defined]
    texts = itemgetter(*(listing.table.columns.index(name) for name in listing.long), 0)
    most, long = _PIECE, False
    while wanted:
        count = min(most, wanted)
        left, is_cut, row = count, False, None
        with closing(find(start, count, long=long)) as cursor:
            # One by one: some drivers fetch no more than they are asked for.
            for values in cursor:
                if not long and _LEFT_OUT in texts(values):
                    is_cut = True
                    break
                row = make(values)
                yield row
                left -= 1
        if left and not is_cut:
            return
        wanted -= count - left
        if row is not None:
            start = listing.place(row)
        # Long ones come one after the other.
        if is_cut or (row is not None and listing.size(row) > _LONG):
            most, long = _LONG_PIECE, True
        else:
            most, long = _PIECE if long else min(2 * most, _MOST_PIECE), False


def _select(listing: Listing[Any], long: bool) -> str:
    """Return a SELECT of rows; without `long`, long texts are left out."""
    if long:
        return listing.table.select()
    # Characters in SQLite, which is near enough.
    columns = [
        f"CASE WHEN length({name}) > {_LONG} THEN '{_LEFT_OUT}' ELSE {name} END" if name in listing.long else name
        for name in listing.table.columns
    ]
    return f"SELECT {', '.join(columns)} FROM {listing.table.name}"


def _order(listing: Listing[Any]) -> str:
    direction = " DESC" if listing.descending else ""
    return "ORDER BY " + ", ".join(name + direction for name in listing.order)
