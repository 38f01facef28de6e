"""What this worker has finished and the core may still need.

With a file it survives the end of the process: a result is in the file before it is sent, so a worker that is killed
and started again brings what was not confirmed, and repeats nothing whose success it holds.

The file is append-only. Each line is the body of a RESPONSE (a result) or of a RESULT_ACK (what was forgotten); the
first one tells the version. A line that cannot be read, such as the torn last one after a crash, is left out.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Protocol

from twisted.logger import Logger

from dsched.errors import ConfigError, ProtocolError
from dsched.model.task import Outcome
from dsched.wire.encoding import encode
from dsched.wire.messages import Response, ResultAcks, decode_response, decode_result_acks

__all__ = ["Ledger", "LedgerFile"]

MAX_RESULTS = 10_000
MAX_BYTES = 64 * 1_048_576
MAX_OPEN = 1_000
MAX_OPEN_BYTES = 16 * 1_048_576
COMPACT_BYTES = 4 * 1_048_576
"""A file below this is left as it is."""
COMPACT_RATIO = 4
"""A file is written anew when it is so many times larger than what is needed of it."""

HEADER = b'{"ledger":"dsched","version":1}\n'
_ACKS = b'{"acks":'
_SUCCESS = Outcome.SUCCESS.value

Key = tuple[str, int]


class LedgerFile(Protocol):
    """Where a ledger is kept. `append` and `replace` are in the hands of the operating system when they return."""

    def read(self) -> bytes:
        """Return everything; nothing when there is no file yet. Raises `OSError`."""

    def append(self, data: bytes) -> None:
        """Add whole lines. Raises `OSError`, after which a part of them may be there."""

    def replace(self, data: bytes) -> None:
        """Write everything anew: all of it or, with `OSError`, nothing is changed."""

    def move_aside(self) -> str:
        """Put the file out of the way and return its new name, for the log. Raises `OSError`."""


class Ledger:
    """Encoded results by (task id, attempt), in the order in which they came.

    `unconfirmed` of them wait for the core. The others are successes that the core has taken note of while their task
    went on: a later attempt of it is answered with them. Of those the oldest are dropped beyond a bound.
    """

    log = Logger()

    def __init__(
        self, file: LedgerFile | None = None, *, max_results: int = MAX_RESULTS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._results: dict[Key, tuple[bytes, bool]] = {}  # The body, and whether it is a success.
        self._attempts: dict[str, tuple[int, ...]] = {}  # Of each task, as they came.
        self._open: dict[str, int] = {}  # The attempt of each task whose success is kept though it is confirmed.
        self._bytes = 0
        self._open_bytes = 0
        self._max_results = max_results
        self._max_bytes = max_bytes
        self._file = file
        self._file_bytes = 0
        self._is_failing = False
        if file is not None:
            self._load(file)

    @property
    def unconfirmed(self) -> int:
        """Return how many results wait for the core's confirmation."""
        return len(self._results) - len(self._open)

    @property
    def is_full(self) -> bool:
        """Tell whether no new work should be taken before the core has confirmed some."""
        return self.unconfirmed >= self._max_results or self._bytes - self._open_bytes >= self._max_bytes

    def add(self, results: Sequence[Response]) -> list[bytes]:
        """Keep results, in the file too before this returns, and return them encoded.

        When the file cannot be written, that is logged, and they are kept in memory.
        """
        bodies = [encode(result) for result in results]
        for result, body in zip(results, bodies, strict=True):
            self._put(result, body)
        self._append(bodies)
        return bodies

    def get(self, task_id: str) -> Response | None:
        """Return the last result of a task that is here."""
        attempts = self._attempts.get(task_id)
        return None if attempts is None else decode_response(self._results[task_id, attempts[-1]][0])

    def confirm(self, acks: Iterable[Key], still_open: Collection[Key] = ()) -> None:
        """Take note that the core has these results; others than ours are ignored.

        A success is forgotten with all other results of its task, for that has ended; but where it is among
        `still_open` the task goes on without it, and the success is kept for a later attempt.
        """
        forgotten: list[Key] = []
        for task_id, attempt in acks:
            key = (task_id, attempt)
            entry = self._results.get(key)
            if entry is None:
                continue
            if not entry[1]:
                self._drop(key)
                forgotten.append(key)
            elif key in still_open:
                forgotten += self._keep_open(key)
            else:
                forgotten += self._drop_task(task_id)
        self._note_forgotten(forgotten)

    def confirm_tasks(self, task_ids: Iterable[str]) -> None:
        """Forget every result of tasks that are terminal."""
        self._note_forgotten([key for task_id in task_ids for key in self._drop_task(task_id)])

    def bodies(self) -> Iterator[bytes]:
        """Iterate over all results, as the core is to get them."""
        return (body for body, _ in self._results.values())

    def __iter__(self) -> Iterator[Key]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    # In memory.

    def _put(self, result: Response, body: bytes) -> None:
        key = (result.task_id, result.attempt or 0)
        if key in self._results:
            self._drop(key)
        self._results[key] = body, result.outcome == _SUCCESS
        self._attempts[key[0]] = (*self._attempts.get(key[0], ()), key[1])
        self._bytes += len(body)

    def _drop(self, key: Key) -> None:
        body, _ = self._results.pop(key)
        self._bytes -= len(body)
        task_id, attempt = key
        if self._open.get(task_id) == attempt:
            del self._open[task_id]
            self._open_bytes -= len(body)
        others = tuple(number for number in self._attempts[task_id] if number != attempt)
        if others:
            self._attempts[task_id] = others
        else:
            del self._attempts[task_id]

    def _drop_task(self, task_id: str) -> list[Key]:
        keys = [(task_id, attempt) for attempt in self._attempts.get(task_id, ())]
        for key in keys:
            self._drop(key)
        return keys

    def _keep_open(self, key: Key) -> list[Key]:
        """Keep a confirmed success; return what had to go for it."""
        task_id, attempt = key
        dropped = []
        before = self._open.get(task_id)
        if before == attempt:
            return []
        if before is not None:
            dropped.append((task_id, before))
            self._drop(dropped[0])
        self._open[task_id] = attempt
        self._open_bytes += len(self._results[key][0])
        while len(self._open) > MAX_OPEN or self._open_bytes > MAX_OPEN_BYTES:
            oldest = next(iter(self._open.items()))
            dropped.append(oldest)
            self._drop(oldest)
        return dropped

    # In the file.

    def _append(self, lines: Sequence[bytes]) -> None:
        if self._file is None or not lines:
            return
        data = b"\n".join(lines) + b"\n"
        if self._is_failing:
            data = b"\n" + data  # A part of the last write may be there.
        self._write(self._file.append, data)
        self._file_bytes += len(data)

    def _note_forgotten(self, keys: list[Key]) -> None:
        if not keys or self._file is None:
            return
        self._append([encode(ResultAcks(keys))])
        if self._file_bytes > max(COMPACT_BYTES, COMPACT_RATIO * self._bytes):
            self._compact(self._file)

    def _compact(self, file: LedgerFile) -> None:
        data = HEADER + b"".join(body + b"\n" for body in self.bodies())
        self._write(file.replace, data)
        self._file_bytes = len(data)

    def _write(self, write: Callable[[bytes], None], data: bytes) -> None:
        try:
            write(data)
        except OSError as error:
            if not self._is_failing:
                self.log.error("the ledger cannot be written, results are kept in memory only: {error}", error=error)
            self._is_failing = True
            return
        if self._is_failing:
            self._is_failing = False
            self.log.info("the ledger can be written again")
            if self._file is not None and write != self._file.replace:
                self._compact(self._file)  # What was missed.

    # At the start.

    def _load(self, file: LedgerFile) -> None:
        try:
            data = file.read()
        except OSError as error:
            self._move_aside(file, str(error))
            data = b""
        if data and not data.startswith(HEADER):
            self._move_aside(file, "it is no ledger that this version reads")
            data = b""
        unread = self._take_lines(data[len(HEADER) :].split(b"\n"))
        if unread:
            self.log.warn("left out {unread} damaged lines of the ledger", unread=unread)  # noqa: G010
        if self._results:
            self.log.info("{count} results of an earlier process are in the ledger", count=len(self._results))
        self._compact(file)

    def _take_lines(self, lines: Iterable[bytes]) -> int:
        """Take what can be read; return how many lines cannot."""
        unread = 0
        for line in lines:
            try:
                if line.startswith(_ACKS):
                    for key in decode_result_acks(line).acks:
                        if key in self._results:
                            self._drop(key)
                elif line:
                    self._put(decode_response(line), line)
            except ProtocolError:
                unread += 1
        return unread

    def _move_aside(self, file: LedgerFile, reason: str) -> None:
        try:
            place = file.move_aside()
        except OSError as error:
            raise ConfigError(f"the ledger cannot be used ({reason}), nor moved aside ({error})") from None
        self.log.error("began a new ledger, the old one is now {place}: {reason}", place=place, reason=reason)
