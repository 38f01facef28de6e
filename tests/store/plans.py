"""What a list asks of the database, for those who look at its plans."""

from collections.abc import Mapping
from typing import Any

from dsched.store.paging import Condition, Listing
from dsched.store.reads import SqlReads

__all__ = ["asked"]


def asked(
    store: SqlReads,
    listing: Listing[Any],
    filters: Mapping[str, str],
    cursor: str | None = None,
    within: tuple[Condition, ...] = (),
) -> tuple[str, list[Any]]:
    """Return the last statement of a page of ten, and its values."""
    statements: list[tuple[str, list[Any]]] = []
    with store.reading() as execute:

        def record(text: str, values: Any = ()) -> Any:
            statements.append((text, list(values)))
            return execute(text, values)

        store.scanner.read(record, listing, 9, cursor, filters, within)
    return statements[-1]
