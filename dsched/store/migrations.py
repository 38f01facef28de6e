"""Numbered migrations: SQL files of a dialect, each applied once, in order.

The caller holds the lock and the transaction, so that two processes that open a store at once migrate it once, and a
killed one leaves the schema as it was. What a version looks like is written in its file and nowhere else.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final

from dsched.errors import ConfigError

__all__ = ["Migration", "Upgrade", "apply", "load_migrations", "outstanding", "refuse_newer"]

_FILE: Final = re.compile(r"([0-9]{4})_[a-z0-9_]+\.sql\Z")
_COMMENT: Final = re.compile(r"--[^\n]*")
_END: Final = re.compile(r";[ \t]*(?:\n|\Z)")

VERSION_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL PRIMARY KEY, applied_at TIMESTAMP NOT NULL)"
)


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema. In `sql` each statement ends with a semicolon at the end of a line."""

    version: int
    name: str
    sql: str

    def statements(self) -> list[str]:
        """Return the statements, comments and blank ones left out."""
        return [part.strip() for part in _END.split(_COMMENT.sub("", self.sql)) if part.strip()]


@dataclass(slots=True)
class Upgrade:
    """What one process has done to a schema since it opened the store, as far as it came."""

    before: int = 0
    """The version that the schema had, 0 for none."""
    after: int = 0
    """The version that it has got; 0 if nothing was to be done, or another process did it."""
    backup: Path | None = None
    """Where the file is as it was."""
    adopted: list[str] = field(default_factory=list)
    """What was changed of a table of tasks that was there before."""


def load_migrations(dialect: str) -> tuple[Migration, ...]:
    """Return the migrations of a dialect by version. They are package data, so a zipped package has them too."""
    found = []
    for file in resources.files("dsched.store").joinpath("sql", dialect).iterdir():
        match = _FILE.match(file.name)
        if match is not None:
            found.append(Migration(int(match.group(1)), file.name, file.read_text(encoding="utf-8")))
    return tuple(sorted(found, key=lambda migration: migration.version))


def outstanding(current: int, migrations: Sequence[Migration], store: str) -> list[Migration]:
    """Return what is to be applied to a schema of version `current`, 0 for none.

    Raises `ConfigError` for a schema newer than the newest of `migrations`; `store` names it in the message.
    """
    refuse_newer(current, migrations[-1].version, store)
    return [migration for migration in migrations if migration.version > current]


def refuse_newer(current: int, newest: int, store: str) -> None:
    """Raise `ConfigError` for a schema that only a newer dsched can have made; `store` names it in the message."""
    if current > newest:
        raise ConfigError(
            f"{store} has schema version {current}, this dsched knows {newest}: start the newer dsched that wrote it"
        )


def apply(execute: Callable[[str], Any], steps: Iterable[Migration]) -> None:
    """Run migrations and record their versions, inside the transaction that the caller began."""
    execute(VERSION_TABLE)
    for migration in steps:
        for statement in migration.statements():
            execute(statement)
        execute(f"INSERT INTO schema_version (version, applied_at) VALUES ({migration.version}, CURRENT_TIMESTAMP)")
