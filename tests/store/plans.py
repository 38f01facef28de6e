"""What a list asks of the database and gets from it, for those who look at its plans."""

import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from dsched.store.paging import Condition, Listing
from dsched.store.reads import SqlReads

__all__ = ["asked", "received"]

Statement = tuple[str, list[Any]]


class _Received:
    """A cursor that notes the rows that have come to this side. PyMySQL's has them all before anybody asks."""

    def __init__(self, cursor: Any, rows: list[tuple[Any, ...]]) -> None:
        self._rows = rows
        self._cursor = cursor
        if not isinstance(cursor, sqlite3.Cursor):
            found = cursor.fetchall()
            rows += found
            self._cursor = iter(found)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while (row := self.fetchone()) is not None:
            yield row

    def fetchone(self) -> Any:
        row = next(self._cursor, None)
        if row is not None and isinstance(self._cursor, sqlite3.Cursor):
            self._rows.append(row)
        return row

    def close(self) -> None:
        if isinstance(self._cursor, sqlite3.Cursor):
            self._cursor.close()


def received(
    store: SqlReads,
    listing: Listing[Any],
    filters: Mapping[str, str],
    cursor: str | None = None,
    within: tuple[Condition, ...] = (),
    limit: int = 9,
) -> tuple[list[Statement], list[tuple[Any, ...]]]:
    """Return the statements of a page with their values, and the rows that came back for all of them."""
    statements: list[Statement] = []
    rows: list[tuple[Any, ...]] = []
    with store.reading() as execute:

        def record(text: str, values: Any = ()) -> Any:
            statements.append((text, list(values)))
            return _Received(execute(text, values), rows)

        store.scanner.read(record, listing, limit, cursor, filters, within)
    return statements, rows


def asked(
    store: SqlReads,
    listing: Listing[Any],
    filters: Mapping[str, str],
    cursor: str | None = None,
    within: tuple[Condition, ...] = (),
) -> Statement:
    """Return the last statement of a page of ten, and its values."""
    return received(store, listing, filters, cursor, within)[0][-1]
