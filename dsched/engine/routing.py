"""How much is sent ahead to a worker, and which keys a shard's data has."""

from collections.abc import Sequence

from dsched.engine.settings import EngineSettings

__all__ = ["Prefetch", "preload_keys"]

_PRELOAD_COUNT = 10


class Prefetch:
    """Learns how long the runs of each handler take; only short ones are worth sending ahead of a free slot.

    A moving average per handler: each run counts for a tenth, so one long run among short ones stops it at once, and
    one that is slow by chance only makes it smaller.
    """

    __slots__ = ("_average_ms", "_settings")

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._average_ms: dict[str, float] = {}

    def learn(self, handler: str, duration_ms: float) -> None:
        """Take the running time of one attempt into account."""
        average = self._average_ms.get(handler)
        if average is None:
            if len(self._average_ms) >= 10_000:
                self._average_ms.clear()
            self._average_ms[handler] = duration_ms
        else:
            self._average_ms[handler] = average + (duration_ms - average) * 0.1

    def beyond_slots(self, handler: str, slots: int) -> int:
        """Return how many frames beyond its free slots a worker may hold."""
        average = self._average_ms.get(handler)
        settings = self._settings
        if average is None or average >= settings.prefetch_below_ms:
            return 0
        return min(settings.prefetch_max, int(slots * settings.prefetch_span_ms / max(average, 0.05)))


def preload_keys(templates: Sequence[str], item: int) -> list[str]:
    """Return the keys of shard `item`: `{item}` is replaced, and a template with `{n}` gives one key for n from 0 to
    9."""
    keys = []
    for template in templates:
        template = template.replace("{item}", str(item))
        if "{n}" in template:
            keys += [template.replace("{n}", str(n)) for n in range(_PRELOAD_COUNT)]
        else:
            keys.append(template)
    return keys
