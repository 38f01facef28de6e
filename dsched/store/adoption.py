"""Takes over a table of tasks that was there before dsched.

Installations exist that keep and query a table `schedule_job` (job_id, task_id, job_name, params, sharding_total,
sharding_item, timeout, target_worker, status, retry_count, error_msg, create_time, update_time). It stays in place with
its rows, and gets the columns that it lacks.

The rule for its rows: they have no run (`run_id` null), and nothing is invented for them. They can be read by their
task id with the status that they had; they are never loaded as active, never counted as open and never executed,
because nobody knows what a worker has already done for them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from dsched.errors import ConfigError
from dsched.store.statements import TASK

__all__ = ["Column", "adopt", "missing", "missing_keys", "objections"]

_KEYS: Final = ("job_id", "task_id")
_TIMES: Final = frozenset({"create_time", "update_time"})


class Column(NamedTuple):
    """A column as the database describes it."""

    name: str
    type: str
    required: bool
    default: str | None

    @property
    def keeps_text(self) -> bool:
        """Tell whether text that looks like a number stays text (SQLite's rule of affinity, good for others too)."""
        kind = self.type.upper()
        return "INT" not in kind and (not kind or any(word in kind for word in ("CHAR", "CLOB", "TEXT", "BLOB")))


def adopt(
    execute: Callable[[str], Any],
    existing: Sequence[Column],
    wanted: Sequence[Column],
    unique: Iterable[tuple[str, ...]],
) -> None:
    """Add to `schedule_job` what it lacks of `wanted`, inside the transaction that the caller began; for SQLite.

    `unique` are the column groups that are unique already. Raises `ConfigError` with every reason why new tasks could
    not be written to the table; duplicates in a key surface as the database's own error.
    """
    problems = [*objections(existing, wanted)]
    if problems:
        raise ConfigError(*(f"table schedule_job cannot be taken over: {problem}" for problem in problems))
    for column in missing(existing, wanted):
        execute(f"ALTER TABLE {TASK.name} ADD COLUMN {_declare(column)}")
    for key in missing_keys(unique):
        execute(f"CREATE UNIQUE INDEX schedule_job_{key} ON {TASK.name} ({key})")


def missing(existing: Sequence[Column], wanted: Sequence[Column]) -> list[Column]:
    """Return the columns of `wanted` that the table lacks."""
    have = {column.name for column in existing}
    return [column for column in wanted if column.name not in have]


def missing_keys(unique: Iterable[tuple[str, ...]]) -> list[str]:
    """Return the columns that must be unique each and are not yet, where `unique` are the groups that are."""
    known = set(unique)
    return [key for key in _KEYS if (key,) not in known]


def _declare(column: Column) -> str:
    text = f"{column.name} {column.type}"
    if column.default is None:
        return text  # null in the rows that are there, whatever new rows must have
    return f"{text} NOT NULL DEFAULT {column.default}"


def objections(existing: Sequence[Column], wanted: Sequence[Column]) -> Iterable[str]:
    """Yield every reason why new tasks could not be written to the table, whatever is added to it."""
    have = {column.name for column in existing}
    for key in _KEYS:
        if key not in have:
            yield f"it has no column {key}"
    types = {column.name: column for column in wanted}
    for column in existing:
        if column.name not in types:
            if column.required and column.default is None:
                yield f"its column {column.name} must be given and dsched does not know it: give it a default"
            continue
        if column.required and column.name in TASK.optional:
            yield f"its column {column.name} is NOT NULL, dsched writes nulls there"
        if types[column.name].keeps_text and column.name not in _TIMES and not column.keeps_text:
            yield f"its column {column.name} has type {column.type}, which changes text that looks like a number"
