"""Tables of the store in memory: rows that can be undone, and what may be in their columns."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from dsched.errors import BatchRefused
from dsched.store.statements import Table

__all__ = ["Kind", "Rows"]

_ABSENT: Final = object()


class Rows(dict[Any, Any]):
    """Rows by key, or an index; what a batch changes can be undone."""

    def __init__(self, undo: list[Callable[[], Any]]) -> None:
        super().__init__()
        self._undo = undo

    def put(self, key: Any, value: Any) -> None:
        old = self.get(key, _ABSENT)
        if old is _ABSENT:
            self._undo.append(lambda: self.pop(key))
        else:
            self._undo.append(lambda: self.__setitem__(key, old))
        self[key] = value

    def insert(self, key: Any, value: Any, what: str) -> None:
        if key in self:
            raise BatchRefused(f"UNIQUE constraint failed: {what} {key!r}")
        self.put(key, value)

    def remove(self, key: Any) -> None:
        if key in self:
            # Back where it was: order of insertion means nothing here, all reads sort.
            old = self.pop(key)
            self._undo.append(lambda: self.__setitem__(key, old))


class Kind:
    """What may be in the columns of a table, and which of them an update changes."""

    def __init__(self, table: Table[Any]) -> None:
        columns = table.columns
        self.table = table
        self.key = columns.index(table.key) if table.key else 0
        self.version = columns.index("version") if "version" in columns else -1
        self.required = frozenset(index for index, name in enumerate(columns) if name not in table.optional)
        self.mutable = frozenset(index for index, name in enumerate(columns) if name in table.mutable)

    def check(self, row: tuple[Any, ...], only: Iterable[int] | None = None) -> None:
        """Refuse a value that a database would refuse."""
        for index in range(len(row)) if only is None else only:
            value = row[index]
            if isinstance(value, str):
                try:
                    value.encode()
                except UnicodeEncodeError as error:
                    raise self._refused(index, str(error)) from None
            elif isinstance(value, int):
                if not -(2**63) <= value < 2**63:
                    raise self._refused(index, "integer of more than 64 bits")
            elif value is None:
                if index in self.required:
                    raise self._refused(index, "NOT NULL constraint failed")
            else:
                raise self._refused(index, f"type {type(value).__name__} cannot be stored")

    def _refused(self, index: int, reason: str) -> BatchRefused:
        return BatchRefused(f"{self.table.name}.{self.table.columns[index]}: {reason}")
