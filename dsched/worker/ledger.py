"""What this worker has finished and the core has not yet confirmed.

In memory: it survives every reconnect, not the end of the process.
"""

from collections.abc import Iterable, Iterator

from dsched.wire.messages import Response

__all__ = ["Ledger"]

MAX_RESULTS = 10_000
MAX_BYTES = 64 * 1_048_576


class Ledger:
    """Results by (task id, attempt), in the order in which they came, each until the core confirms it."""

    def __init__(self, max_results: int = MAX_RESULTS, max_bytes: int = MAX_BYTES) -> None:
        self._results: dict[tuple[str, int], Response] = {}
        self._latest: dict[str, Response] = {}
        self._bytes = 0
        self._max_results = max_results
        self._max_bytes = max_bytes

    @property
    def is_full(self) -> bool:
        """Tell whether no new work should be taken before the core has confirmed some."""
        return len(self._results) >= self._max_results or self._bytes >= self._max_bytes

    def add(self, result: Response) -> None:
        """Keep one result."""
        key = (result.task_id, result.attempt or 0)
        self._forget(key)
        self._results[key] = self._latest[result.task_id] = result
        self._bytes += _size(result)

    def get(self, task_id: str) -> Response | None:
        """Return the last unconfirmed result of a task."""
        return self._latest.get(task_id)

    def confirm(self, acks: Iterable[tuple[str, int]]) -> None:
        """Forget results that the core has stored; others than ours are ignored."""
        for task_id, attempt in acks:
            self._forget((task_id, attempt))

    def confirm_tasks(self, task_ids: Iterable[str]) -> None:
        """Forget every result of tasks that are terminal."""
        terminal = set(task_ids)
        for key in [key for key in self._results if key[0] in terminal]:
            self._forget(key)

    def __iter__(self) -> Iterator[Response]:
        return iter(self._results.values())

    def __len__(self) -> int:
        return len(self._results)

    def _forget(self, key: tuple[str, int]) -> None:
        result = self._results.pop(key, None)
        if result is None:
            return
        self._bytes -= _size(result)
        if self._latest.get(key[0]) is result:
            del self._latest[key[0]]


def _size(result: Response) -> int:
    # The data is Raw: `dsched.worker.results` makes no other.
    return len(result.data) + len(result.traceback or "") + len(result.message or "")
