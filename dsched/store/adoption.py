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

from twisted.logger import Logger

from dsched.errors import ConfigError
from dsched.store.migrations import Upgrade
from dsched.store.statements import TASK

__all__ = ["CONSEQUENCE", "Column", "additions", "foreign_ids", "missing", "missing_keys", "objections", "plan", "tell"]

CONSEQUENCE: Final = (
    "dsched numbers the rows of schedule_job from now on: whatever else writes to it must stop, or give its own job_id"
)
_KEYS: Final = ("job_id", "task_id")
_TIMES: Final = frozenset({"create_time", "update_time"})
_AFFINITIES: Final = {
    "INTEGER": ("INT",), "TEXT": ("CHAR", "CLOB", "TEXT"), "BLOB": ("BLOB",), "REAL": ("REAL", "FLOA", "DOUB"),
}  # fmt: skip
"""SQLite's rules, in their order: which words in a declared type give it which affinity."""

Unfit = Callable[["Column", "Column"], str | None]
"""Says why a column cannot become one that holds what the second one holds, and what it must be; None if it can."""


class Column(NamedTuple):
    """A column as the database describes it."""

    name: str
    type: str
    required: bool
    default: str | None

    @property
    def key(self) -> str:
        """What it is known by: no database tells names of columns apart by case."""
        return self.name.lower()


def plan(
    execute: Callable[[str], Any],
    existing: Sequence[Column],
    wanted: Sequence[Column],
    unique: Iterable[tuple[str, ...]],
    now_ms: int,
) -> list[str]:
    """Return the statements that add to `schedule_job` what it lacks of `wanted`; for SQLite.

    `execute` only looks. `now_ms` is the wall clock's; `unique` are the column groups that are unique already. Raises
    `ConfigError` with every reason why new tasks could not be written to the table; duplicates in a key surface as the
    database's own error.
    """
    problems = [*objections(existing, wanted, _unfit)]
    if not problems:
        # Texts sort after all numbers, so that any are seen here.
        problems += foreign_ids(execute(f"SELECT max(job_id) FROM {TASK.name}").fetchone()[0], now_ms)
    if problems:
        raise ConfigError(*(f"table schedule_job cannot be taken over: {problem}" for problem in problems))
    return [
        *(f"ALTER TABLE {TASK.name} ADD COLUMN {_declare(column)}" for column in missing(existing, wanted)),
        *(f"CREATE UNIQUE INDEX schedule_job_{key} ON {TASK.name} ({key})" for key in missing_keys(unique)),
    ]


def additions(existing: Sequence[Column], wanted: Sequence[Column], unique: Iterable[tuple[str, ...]]) -> list[str]:
    """Return what the table gets, in words."""
    added = [
        ("added columns", [column.name for column in missing(existing, wanted)]),
        ("added unique keys", missing_keys(unique)),
    ]
    return [f"{what}: {', '.join(names)}" for what, names in added if names]


def tell(log: Logger, upgrade: Upgrade) -> None:
    """Log what opening a store has done to its schema."""
    if upgrade.after:
        log.info("the schema was brought from version {before} to {after}", before=upgrade.before, after=upgrade.after)
    if upgrade.backup is not None:
        log.info("the file as it was before: {path}", path=str(upgrade.backup))
    for change in upgrade.adopted:
        log.warn("table schedule_job was adopted: {change}", change=change)  # noqa: G010
    if upgrade.adopted:
        log.warn(CONSEQUENCE)  # noqa: G010


def missing(existing: Sequence[Column], wanted: Sequence[Column]) -> list[Column]:
    """Return the columns of `wanted` that the table lacks."""
    have = {column.key for column in existing}
    return [column for column in wanted if column.name not in have]


def missing_keys(unique: Iterable[tuple[str, ...]]) -> list[str]:
    """Return the columns that must be unique each and are not yet, where `unique` are the groups that are."""
    known = {tuple(name.lower() for name in group) for group in unique}
    return [key for key in _KEYS if (key,) not in known]


def foreign_ids(highest: Any, now_ms: int) -> Iterable[str]:
    """Yield why the ids that are there cannot stay, given the highest of them, None if there are none.

    New ones must be above them, and have to be milliseconds << 16: lists filtered by time read that out of them.
    """
    bound = now_ms << 16
    if highest is not None and not isinstance(highest, int):
        yield f"its largest job_id is {highest!r}, no whole number: renumber such rows, or move them to another table"
    elif highest is not None and highest > bound:
        yield (
            f"its largest job_id is {highest}, and dsched, whose ids follow the clock and are at {bound} now, would"
            " have to go on above it: renumber the rows beyond that, or move them to another table"
        )


def _declare(column: Column) -> str:
    text = f"{column.name} {column.type}"
    if column.default is None:
        return text  # null in the rows that are there, whatever new rows must have
    return f"{text} NOT NULL DEFAULT {column.default}"


def _unfit(column: Column, wanted: Column) -> str | None:
    """Say what SQLite, where any column takes any value, would change by the affinity of the column."""
    affinity = _affinity(column.type)
    if column.key in _TIMES:
        return None
    if _affinity(wanted.type) == "TEXT":
        return None if affinity in ("TEXT", "BLOB") else "which changes text that looks like a number: make it TEXT"
    return "which changes whole numbers: make it INTEGER" if affinity in ("TEXT", "REAL") else None


def _affinity(kind: str) -> str:
    """Return the affinity that SQLite gives to a declared type."""
    kind = kind.upper()
    for affinity, words in _AFFINITIES.items():
        if any(word in kind for word in words):
            return affinity
    return "NUMERIC" if kind else "BLOB"


def objections(existing: Sequence[Column], wanted: Sequence[Column], unfit: Unfit) -> Iterable[str]:
    """Yield every reason why new tasks could not be written to the table, whatever is added to it."""
    have = {column.key for column in existing}
    for key in _KEYS:
        if key not in have:
            yield f"it has no column {key}"
    types = {column.key: column for column in wanted}
    for column in existing:
        ours = types.get(column.key)
        if ours is None:
            if column.required and column.default is None:
                yield f"its column {column.name} must be given and dsched does not know it: give it a default"
            continue
        if column.required and column.key in TASK.optional:
            yield f"its column {column.name} is NOT NULL, dsched writes nulls there"
        reason = unfit(column, ours)
        if reason is not None:
            yield f"its column {column.name} has type {column.type}, {reason}"
