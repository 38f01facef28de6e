"""Names, ids and ever-growing numbers.

A run is `NAME@DUE_MS` for a firing and `NAME~KEY` for a request; its tasks are `RUN_ID:ITEM`. So an id tells what it
belongs to, the same request always gives the same id, and new ids ascend, which keeps the index appends cheap.
"""

import re

from dsched.errors import InvalidValue

__all__ = ["Sequence", "check_group", "check_key", "check_name", "fired_run_id", "requested_run_id", "task_id"]

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_KEY = re.compile(r"[A-Za-z0-9._-]{1,48}\Z")


def _checked(value: object, field: str, pattern: re.Pattern[str], what: str) -> str:
    if not isinstance(value, str):
        raise InvalidValue(field, "must be a string")
    if not pattern.match(value):
        raise InvalidValue(field, f"must be {what} of A-Z a-z 0-9 . _ -, not {value[:80]!r}")
    return value


def check_name(value: object, field: str = "name") -> str:
    """Return a job or handler name (1 to 64 of `A-Za-z0-9._-`); raises `InvalidValue`."""
    name = _checked(value, field, _NAME, "1 to 64 characters")
    if name in (".", ".."):
        raise InvalidValue(field, f"must not be {name!r}: that is no name that a path can hold")
    return name


def check_group(value: object, field: str = "group") -> str:
    """Return a group name (1 to 64 of `A-Za-z0-9._-`); raises `InvalidValue`."""
    return _checked(value, field, _NAME, "1 to 64 characters")


def check_key(value: object, field: str = "key") -> str:
    """Return a caller's idempotency key (1 to 48 of `A-Za-z0-9._-`); raises `InvalidValue`."""
    return _checked(value, field, _KEY, "1 to 48 characters")


def fired_run_id(job: str, due_ms: int) -> str:
    """Return the id of the run of `job` that its trigger asked for at `due_ms`."""
    return f"{job}@{due_ms}"


def requested_run_id(job: str, key: str) -> str:
    """Return the id of the run of `job` that was requested under `key`."""
    return f"{job}~{key}"


def task_id(run_id: str, item: int) -> str:
    """Return the id of shard `item` of a run."""
    return f"{run_id}:{item}"


class Sequence:
    """Numbers that only grow, close to `milliseconds << 16`, whatever the wall clock does.

    `highest` is the highest number ever given out, as the store remembers it.
    """

    __slots__ = ("last",)

    def __init__(self, highest: int = 0) -> None:
        self.last = highest

    def next(self, wall_ms: int) -> int:
        """Return `max(now, last) + 1`."""
        now = wall_ms << 16
        last = self.last
        self.last = last = (now if now > last else last) + 1
        return last
