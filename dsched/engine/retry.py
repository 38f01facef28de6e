"""How long to wait before something is tried again."""

from random import Random
from typing import Final

__all__ = [
    "FIRST_REFUSAL_S",
    "RETRY_CAP_S",
    "RETRY_JITTER",
    "Refusals",
    "longest_retry_delay_ms",
    "rejection_delay_ms",
    "retry_delay_ms",
]

RETRY_CAP_S: Final = 300.0
RETRY_JITTER: Final = 0.10

_REJECTION_BASE_MS: Final = 10_000
_REJECTION_CAP_MS: Final = 300_000
# Doubling more often than this changes nothing under any cap in use, and would overflow a float.
_MAX_DOUBLINGS: Final = 512

FIRST_REFUSAL_S: Final = 0.1
"""How long what the store has refused once is left alone."""
_REFUSAL_CAP_S: Final = 10.0
_REFUSALS_KEPT: Final = 1000


def retry_delay_ms(
    failures: int, base_s: float, rng: Random, *, cap_s: float = RETRY_CAP_S, jitter: float = RETRY_JITTER
) -> int:
    """Return the wait in milliseconds after failure number `failures` (from 1) of a task.

    It is `min(cap_s, base_s * 2 ** (failures - 1))`, then varied evenly by up to `jitter` of itself in
    either direction, so a capped wait is varied too. Raises `ValueError` where `failures` is below 1.
    """
    delay_s = _delay_s(failures, base_s, cap_s)
    return max(0, round(delay_s * 1000.0 * (1.0 + rng.uniform(-jitter, jitter))))


def longest_retry_delay_ms(failures: int, base_s: float) -> int:
    """Return the longest wait in milliseconds that `retry_delay_ms` can give."""
    return round(_delay_s(failures, base_s, RETRY_CAP_S) * 1000.0 * (1.0 + RETRY_JITTER))


def _delay_s(failures: int, base_s: float, cap_s: float) -> float:
    if failures < 1:
        raise ValueError(f"failures count from 1, got {failures}")
    return min(cap_s, base_s * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))


def rejection_delay_ms(rejections: int) -> int:
    """Return for how many milliseconds a task avoids a worker that rejected it `rejections` times (from 1) in a row.

    10 s, doubling, at most 300 s; without jitter, because other workers may take the task meanwhile.
    Raises `ValueError` where `rejections` is below 1.
    """
    if rejections < 1:
        raise ValueError(f"rejections count from 1, got {rejections}")
    return min(_REJECTION_CAP_MS, _REJECTION_BASE_MS << min(rejections - 1, 5))


class Refusals:
    """How often the store refused something in a row, so that what is hopeless is tried ever more rarely.

    A row ends with three times the longest pause without a refusal.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, float]] = {}

    def pause_s(self, key: str, mono_s: float) -> float:
        """Note a refusal of `key` and return for how long it is left alone: 0.1 s, doubling, at most 10 s."""
        count, at_s = self._last.pop(key, (0, mono_s))
        count = 1 if mono_s - at_s > 3 * _REFUSAL_CAP_S else count + 1
        self._last[key] = count, mono_s
        if len(self._last) > _REFUSALS_KEPT:
            del self._last[next(iter(self._last))]
        return min(_REFUSAL_CAP_S, FIRST_REFUSAL_S * 2.0 ** min(count - 1, _MAX_DOUBLINGS))
