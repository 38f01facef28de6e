"""How long to wait before something is tried again."""

from random import Random
from typing import Final

__all__ = ["RETRY_CAP_S", "RETRY_JITTER", "rejection_delay_ms", "retry_delay_ms"]

RETRY_CAP_S: Final = 300.0
RETRY_JITTER: Final = 0.10

_REJECTION_BASE_MS: Final = 10_000
_REJECTION_CAP_MS: Final = 300_000
# Doubling more often than this changes nothing under any cap in use, and would overflow a float.
_MAX_DOUBLINGS: Final = 512


def retry_delay_ms(
    failures: int, base_s: float, rng: Random, *, cap_s: float = RETRY_CAP_S, jitter: float = RETRY_JITTER
) -> int:
    """Return the wait in milliseconds after failure number `failures` (from 1) of a task.

    It is `min(cap_s, base_s * 2 ** (failures - 1))`, then varied evenly by up to `jitter` of itself in
    either direction, so a capped wait is varied too. Raises `ValueError` where `failures` is below 1.
    """
    if failures < 1:
        raise ValueError(f"failures count from 1, got {failures}")
    delay_s = min(cap_s, base_s * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))
    return max(0, round(delay_s * 1000.0 * (1.0 + rng.uniform(-jitter, jitter))))


def rejection_delay_ms(rejections: int) -> int:
    """Return for how many milliseconds a task avoids a worker that rejected it `rejections` times (from 1) in a row.

    10 s, doubling, at most 300 s; without jitter, because other workers may take the task meanwhile.
    Raises `ValueError` where `rejections` is below 1.
    """
    if rejections < 1:
        raise ValueError(f"rejections count from 1, got {rejections}")
    return min(_REJECTION_CAP_MS, _REJECTION_BASE_MS << min(rejections - 1, 5))
