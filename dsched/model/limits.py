"""What a job may ask for, wherever it is written: in `@job`, in a request, in the store."""

from collections.abc import Callable
from typing import Final

from dsched.errors import InvalidValue

__all__ = [
    "MAX_PARAMS_BYTES",
    "MAX_PERIOD_S",
    "MAX_PRELOAD_BYTES",
    "MAX_SHARDS",
    "MIN_PERIOD_S",
    "check_description",
    "check_preload_keys",
    "check_priority",
    "check_retries",
    "check_seconds",
    "check_sharding_total",
    "check_tags",
    "check_timeout",
]

MAX_SHARDS: Final = 10_000
MAX_TIMEOUT_S: Final = 30 * 86_400
MAX_RETRIES: Final = 100
MAX_DELAY_S: Final = 86_400
MAX_PRIORITY: Final = 1_000
MIN_PERIOD_S: Final = 0.1
MAX_PERIOD_S: Final = 3653 * 86_400
"""Ten years, leap days included."""
MAX_PARAMS_BYTES: Final = 256 * 1024
"""Of params as compact JSON."""
MAX_PRELOAD_KEYS: Final = 100
MAX_PRELOAD_KEY: Final = 256
MAX_PRELOAD_BYTES: Final = 256 * 1024
"""Together with the largest params, whose text may double when it is put into JSON once more, this fits a frame."""
MAX_TAGS: Final = 50
MAX_TAG: Final = 64
MAX_DESCRIPTION: Final = 4_096


def _whole(low: int, high: int) -> Callable[[object, str], int]:
    def check(value: object, field: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidValue(field, f"must be a whole number from {low} to {high}")
        return value

    return check


def _texts(most: int, length: int) -> Callable[[object, str], list[str]]:
    def check(value: object, field: str) -> list[str]:
        if not isinstance(value, list) or len(value) > most:
            raise InvalidValue(field, f"must be a list of at most {most} strings")
        for index, item in enumerate(value):
            if not isinstance(item, str) or not 0 < len(item) <= length or not item.isprintable():
                raise InvalidValue(f"{field}[{index}]", f"must be 1 to {length} printable characters")
        return value

    return check


# Each takes a value and the name of its field, and returns the value or raises `InvalidValue`.
check_sharding_total = _whole(1, MAX_SHARDS)
check_timeout = _whole(0, MAX_TIMEOUT_S)
check_retries = _whole(0, MAX_RETRIES)
check_priority = _whole(-MAX_PRIORITY, MAX_PRIORITY)
check_preload_keys = _texts(MAX_PRELOAD_KEYS, MAX_PRELOAD_KEY)
check_tags = _texts(MAX_TAGS, MAX_TAG)


def check_seconds(value: object, field: str) -> float:
    """Return a delay in seconds, at most a day; raises `InvalidValue`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_DELAY_S:
        raise InvalidValue(field, f"must be seconds from 0 to {MAX_DELAY_S}")
    return value


def check_description(value: object, field: str) -> str:
    """Return a text for people; raises `InvalidValue`."""
    if not isinstance(value, str) or len(value) > MAX_DESCRIPTION:
        raise InvalidValue(field, f"must be a string of at most {MAX_DESCRIPTION} characters")
    return value
