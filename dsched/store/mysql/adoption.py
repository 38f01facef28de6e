"""Takes over a table of tasks that was there before dsched, on MySQL and MariaDB; see `dsched.store.adoption`."""

import re
from typing import Any, Final, NamedTuple

import pymysql

from dsched.errors import ConfigError
from dsched.store.adoption import Column, additions, foreign_ids, missing, missing_keys, objections
from dsched.store.migrations import Migration
from dsched.store.mysql.faults import RIGHTS, code_of, text_of, will_stay
from dsched.store.statements import TASK

__all__ = ["adopt", "is_there"]

_CREATE: Final = f"CREATE TABLE IF NOT EXISTS {TASK.name} "
_WANTED: Final = "dsched_wanted"
_TYPE: Final = re.compile(r"([a-z]+)(?:\((\d+)\))?(.*)")
_SHOWN: Final = re.compile(r"^  `((?:[^`]|``)+)` (.*?),?$", re.MULTILINE)
"""A column in SHOW CREATE TABLE."""
_TEXTS: Final = ("tinytext", "text", "mediumtext", "longtext")
_STRINGS: Final = frozenset({"char", "varchar", *_TEXTS})
_BYTES: Final = frozenset({"tinyblob", "blob", "mediumblob", "longblob"})
_WHOLE: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_NUMBERS: Final = _WHOLE | {"decimal", "float", "double", "bit", "year"}
_FITS: Final = {
    "bigint": (_NUMBERS | _STRINGS, "which holds no whole numbers"),
    "timestamp": (_STRINGS | {"timestamp", "datetime", "date"}, "which holds no instants"),
}
"""What can be made of which types. That a value is no number, or no instant, the server says when it is tried."""
_FITS_TEXT: Final = (_STRINGS | _BYTES, "which holds no text")


class _Described(NamedTuple):
    """A column as SHOW FULL COLUMNS has it."""

    name: str
    type: str
    collation: str | None
    null: str
    key: str
    default: str | None
    extra: str
    comment: str = ""

    @property
    def fills_itself(self) -> bool:
        """Tell whether the server gives values that are dsched's to give; a default of the key may be a sequence."""
        is_counted = self.name.lower() == TASK.key and self.default is not None
        return is_counted or any(word in self.extra.lower() for word in ("auto_increment", "on update"))

    @property
    def is_computed(self) -> bool:
        return any(word in self.extra.lower() for word in ("virtual", "stored", "persistent"))

    def column(self) -> Column:
        is_given = self.is_computed or "auto_increment" in self.extra.lower()
        return Column(self.name, self.type, self.null == "NO" and not is_given, self.default)


def is_there(cursor: Any) -> bool:
    """Tell whether the database has a table of that name."""
    return bool(_columns(cursor, TASK.name))


def _columns(cursor: Any, table: str) -> list[_Described]:
    """Return the columns of a table, none where it does not exist."""
    try:
        cursor.execute(f"SHOW FULL COLUMNS FROM {table}")
    except pymysql.err.ProgrammingError as error:
        if code_of(error) == 1146:
            return []
        raise
    return [_Described(*row[:7])._replace(comment=row[8]) for row in cursor.fetchall()]


def adopt(cursor: Any, migration: Migration, now_ms: int) -> list[str]:
    """Give `schedule_job` the columns, types and keys that dsched needs; its rows stay. May be cut off and repeated.

    Returns what was changed, in words. What filled itself does so no longer: ids and instants are dsched's to give, and
    a number of the server's could be one of dsched's.
    """
    [create] = [text for text in migration.statements() if text.startswith(_CREATE)]
    cursor.execute(f"CREATE TEMPORARY TABLE {_WANTED} {create.removeprefix(_CREATE)}")
    wanted = _columns(cursor, _WANTED)
    cursor.execute(f"DROP TEMPORARY TABLE {_WANTED}")
    existing = _columns(cursor, TASK.name)
    have, want = [column.column() for column in existing], [column.column() for column in wanted]
    described = {column.name: column for column in wanted}
    problems = list(objections(have, want, _unfit))
    problems += [
        f"its column {column.name} is computed, dsched writes there"
        for column in existing
        if column.is_computed and column.name.lower() in described
    ]
    if not problems:
        problems += foreign_ids(_highest_id(cursor, existing), now_ms)
    if problems:
        raise _refused(*problems)
    clauses = [f"ADD COLUMN {_declare(cursor, described[c.name], adding=True)}" for c in missing(have, want)]
    for column in existing:
        ours = described.get(column.name.lower())
        if ours is not None and not _holds(column, ours):
            clauses.append(f"MODIFY COLUMN {_declare(cursor, _widened(column, ours))}")
    unique = _unique(cursor)
    clauses += [f"ADD UNIQUE KEY schedule_job_{key} ({key})" for key in missing_keys(unique)]
    cursor.execute(
        "SELECT engine, row_format FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = %s",
        (TASK.name,),
    )
    engine, row_format = cursor.fetchone()
    added = additions(have, want, unique)
    if engine != "InnoDB" or row_format != "Dynamic":
        clauses += ["ENGINE = InnoDB", "ROW_FORMAT = DYNAMIC"]
        added.append(f"engine and row format: {engine}, {row_format} -> InnoDB, Dynamic")
    if not clauses:
        return []
    before = _shown(cursor)
    try:
        cursor.execute(f"ALTER TABLE {TASK.name} {', '.join(clauses)}")
    except pymysql.err.MySQLError as error:
        if code_of(error) in RIGHTS or not will_stay(error):
            raise
        raise _refused(text_of(error)) from error
    after = _shown(cursor)
    changed = [name for name in before if before[name] != after.get(name)]
    return [*(f"{name}: {before[name]} -> {after.get(name)}" for name in changed), *added]


def _shown(cursor: Any) -> dict[str, str]:
    """Return the columns as the server itself declares them: with whatever property they have."""
    cursor.execute(f"SHOW CREATE TABLE {TASK.name}")
    return {match[1]: match[2] for match in _SHOWN.finditer(cursor.fetchone()[1])}


def _refused(*problems: str) -> ConfigError:
    return ConfigError(*(f"table {TASK.name} cannot be taken over: {problem}" for problem in problems))


def _highest_id(cursor: Any, columns: list[_Described]) -> int | None:
    [kind] = [_split(column.type)[0] for column in columns if column.name.lower() == "job_id"]
    is_whole = kind in _WHOLE  # an index tells at once then
    cursor.execute(f"SELECT max({'job_id' if is_whole else 'CAST(job_id AS DECIMAL(65))'}) FROM {TASK.name}")
    [highest] = cursor.fetchone()
    return None if highest is None else int(highest)


def _unique(cursor: Any) -> list[tuple[str, ...]]:
    """Return the groups of columns that are unique over all rows."""
    cursor.execute(f"SHOW INDEX FROM {TASK.name} WHERE Non_unique = 0")
    groups: dict[str, list[str]] = {}
    for _, _, name, _, column, *_ in cursor.fetchall():
        groups.setdefault(name, []).append(column)
    return [tuple(columns) for columns in groups.values()]


def _unfit(column: Column, wanted: Column) -> str | None:
    kind, (goal, *_) = _split(column.type)[0], _split(wanted.type)
    fits, reason = _FITS.get(goal, _FITS_TEXT)
    if kind in fits:
        return None
    if kind in ("enum", "set") and goal not in _FITS:
        reason = "which takes its own values only"
    return f"{reason}: make it {wanted.type}"


def _split(kind: str) -> tuple[str, int, str]:
    match = _TYPE.match(kind.lower())
    assert match is not None
    return match[1], int(match[2] or 0), match[3].strip()


def _holds(column: _Described, wanted: _Described) -> bool:
    """Tell whether everything that fits `wanted` fits `column`, unchanged."""
    kind, size, rest = _split(column.type)
    goal, least, _ = _split(wanted.type)
    if column.fills_itself:
        return False
    if goal == "bigint":
        return kind == goal and not rest
    if goal == "timestamp":
        return kind in ("timestamp", "datetime") and size >= least
    if column.collation != wanted.collation:
        return False
    if goal == "varchar":
        return kind == goal and size >= least
    return kind in _TEXTS and _TEXTS.index(kind) >= _TEXTS.index(goal)


def _widened(column: _Described, wanted: _Described) -> _Described:
    """Return `column` with the type of `wanted`, and what it has of nulls and defaults."""
    kind, size, _ = _split(column.type)
    goal, least, _ = _split(wanted.type)
    type_ = wanted.type
    if goal == "varchar" and kind in ("varchar", "char"):
        type_ = f"varchar({max(size, least)})"
    elif goal == "timestamp" and kind in ("timestamp", "datetime"):
        type_ = f"{kind}({max(size, least)})"
    elif kind in _TEXTS and goal in _TEXTS:
        type_ = max(kind, goal, key=_TEXTS.index)
    default = None if column.name.lower() == TASK.key else column.default
    if goal == "timestamp" and default is None and column.null == "NO":
        default = wanted.default  # without one some servers would add ON UPDATE
    return column._replace(type=type_, collation=wanted.collation, default=default, extra="")


def _declare(cursor: Any, column: _Described, *, adding: bool = False) -> str:
    """Return the declaration; a new column without a default is null in the rows that are there."""
    text = f"`{column.name}` {column.type}"
    if column.collation is not None:
        text += f" CHARACTER SET {column.collation.split('_')[0]} COLLATE {column.collation}"
    is_null = column.null == "YES" or (adding and column.default is None)
    text += " NULL" if is_null else " NOT NULL"
    if column.default is not None:
        text += f" DEFAULT {_default(cursor, column.default, column.type)}"
    return f"{text} COMMENT {cursor.connection.escape(column.comment)}" if column.comment else text


def _default(cursor: Any, default: str, kind: str) -> str:
    if default.lower().startswith("current_timestamp"):
        return f"CURRENT_TIMESTAMP({_split(kind)[1] or ''})".replace("()", "")
    text: str = cursor.connection.escape(default)
    return text
