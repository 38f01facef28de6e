"""A job: the definition that people edit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsched.model.run import Snapshot

__all__ = ["Job"]


@dataclass(slots=True)
class Job:
    """A job in memory.

    `definition` is the job as people gave it with every default filled in, JSON-ready, in the shape of the HTTP
    interface; `definition_text` is the same as JSON. `params` is compact JSON text. `trigger` calculates dues
    (`dsched.triggers`). `next_due_ms` is the due that is armed, None when nothing is due any more. `waiting_run` is
    the id of the last run that the trigger made, for as long as nothing of it was dispatched; `last_due_ms` is the
    latest due that was taken, as far as is known.
    """

    name: str
    group: str
    params: str
    sharding_total: int
    enabled: bool
    snapshot: Snapshot
    trigger: Any
    definition: Mapping[str, Any]
    definition_text: str
    created_ms: int
    updated_ms: int
    next_due_ms: int | None = None
    last_due_ms: int = 0
    timer: Any = field(default=None, repr=False)
    waiting_run: str | None = None

    @property
    def version(self) -> int:
        """Return the version, which grows with each edit."""
        return self.snapshot.version
