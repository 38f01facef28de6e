"""What MySQL and MariaDB have of their own: the update of many rows, and values written into the text.

PyMySQL puts values into the text on this side, so this is where the time goes: about 8 microseconds for a new task of
27 columns, 3 to 4 for a changed one.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final

from pymysql.converters import escape_str

from dsched.errors import BatchRefused
from dsched.store.rollups import bulk_add_mysql
from dsched.store.statements import Bulk, Table, chunks
from dsched.store.writes import Execute, Writes

__all__ = ["MARK", "MySqlWrites", "encode"]

MARK: Final = "%s"
_MOST_ROWS: Final = 1024
"""Beyond it nothing gets faster."""
_PACKET_SPARE: Final = 1024
_SOME_TIME: Final = "'2000-01-01 00:00:00'"


class _Literals(dict[type, Callable[[Any], str]]):
    """How each type of value is written; the driver's own escaping, and nothing that was not foreseen."""

    def __missing__(self, kind: type) -> Callable[[Any], str]:
        if issubclass(kind, str):
            write: Callable[[Any], str] = escape_str
        elif issubclass(kind, int):
            write = int.__repr__ if kind is not bool else lambda value: "1" if value else "0"
        else:
            raise BatchRefused(f"a value of type {kind.__name__} cannot be stored")
        self[kind] = write
        return write


_LITERALS: Final = _Literals({str: escape_str, int: str, type(None): lambda value: "NULL"})


def encode(text: str | bytes, values: Sequence[Any]) -> bytes:
    """Return a statement with its values as the server takes it; raises `BatchRefused` for values that cannot be.

    `text` as bytes is a statement that is ready.
    """
    if isinstance(text, bytes):
        return text
    literals = _LITERALS
    try:
        return (text % tuple([literals[type(value)](value) for value in values])).encode()
    except UnicodeEncodeError as error:
        raise BatchRefused(f"a text cannot be stored: {error.reason}, at {error.start}") from None


class _Upsert(Bulk):
    """An update as an insert of keys that are there; see `bulk_update`."""

    __slots__ = ()


def bulk_update(table: Table[Any], mark: str) -> Bulk:
    """Return the update of the mutable columns of rows whose stored version is the one before.

    Neither server has UPDATE FROM, and they do not share a syntax for a list of rows to join with. So it is INSERT ...
    ON DUPLICATE KEY UPDATE: one statement, no temporary table, each row found by its key. With FOUND_ROWS a row counts
    2 when its version fitted, for then it changed, else 1. A row that was not there is inserted, with empty values in
    the other columns, and counts 1: the count is short, and the transaction is rolled back.
    """
    rest = [name for name in table.columns if name not in table.mutable and name != table.key]
    columns = (*table.mutable, table.key, *rest)
    width = len(table.mutable) + 1
    row = f"({','.join([mark] * width + [_empty(table, name) for name in rest])})"
    fits = f"version = VALUES(version) - 1 AND {table.key} = VALUES({table.key})"
    # The version is set last: assignments see what those before them did.
    names = [*(name for name in table.mutable if name != "version"), "version"]
    head = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES "
    tail = " ON DUPLICATE KEY UPDATE " + ", ".join(f"{name} = IF({fits}, VALUES({name}), {name})" for name in names)
    return _Upsert(width, lambda rows: head + ",".join([row] * rows) + tail)


def _empty(table: Table[Any], name: str) -> str:
    if name in table.optional:
        return "NULL"
    if name == "create_time":
        return _SOME_TIME
    return "''" if table.row.__annotations__[name] in (str, "str") else "0"


def bulk_dues(mark: str) -> Bulk:
    """Return the update that moves jobs' next dues on, where job and version are there."""
    head = f"UPDATE job INNER JOIN (SELECT {mark} AS v_name, {mark} AS v_version, {mark} AS v_due"
    more = f" UNION ALL SELECT {mark}, {mark}, {mark}"
    tail = ") v ON job.name = v.v_name AND job.version = v.v_version SET job.next_due = v.v_due"
    return Bulk(3, lambda rows: head + more * (rows - 1) + tail)


class MySqlWrites(Writes):
    """The writes of a batch; a statement is at most `packet` bytes, the server's max_allowed_packet."""

    def __init__(self) -> None:
        super().__init__(
            MARK, most_rows=_MOST_ROWS, variables=1 << 30, update=bulk_update, dues=bulk_dues, rollups=bulk_add_mysql
        )
        self.packet = 1 << 20

    def bulk(self, execute: Execute, bulk: Bulk, rows: Sequence[tuple[Any, ...]]) -> int:
        """Run a statement for all rows; return how many rows it touched."""
        touched = sum(self._part(execute, bulk, part) for part in chunks(rows, _MOST_ROWS))
        return touched - len(rows) if type(bulk) is _Upsert else touched

    def _part(self, execute: Execute, bulk: Bulk, rows: Sequence[tuple[Any, ...]]) -> int:
        statement = encode(bulk.text(len(rows)), list(chain.from_iterable(rows)))
        if len(statement) <= self.packet - _PACKET_SPARE:
            return execute(statement, ())  # type: ignore[arg-type]
        if len(rows) == 1:
            raise BatchRefused(
                f"a row of {len(statement)} bytes is larger than the server takes: raise max_allowed_packet"
                f" ({self.packet})"
            )
        half = len(rows) // 2
        return self._part(execute, bulk, rows[:half]) + self._part(execute, bulk, rows[half:])
