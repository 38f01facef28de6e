"""What waits to be sent to one peer: never more than a limit, and the sender can see when to stop."""

from collections import deque
from collections.abc import Callable

from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

__all__ = ["HIGH_WATER", "Outbox"]

HIGH_WATER = 4 * 1_048_576
"""Unsent bytes at which a peer counts as one that does not read."""

_SLICE = 65_536


@implementer(IPushProducer)
class Outbox:
    """Hands bytes to a transport and keeps the rest while the transport is full.

    It registers nothing itself; its owner makes it the transport's streaming producer, only to learn when the
    transport is full. The transport then holds its own buffer (64 KiB) and one slice more; what waits here is counted.
    """

    def __init__(self, write: Callable[[bytes], None], on_change: Callable[[], None]) -> None:
        self.writable = True
        self._write = write
        self._on_change = on_change
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._offset = 0  # How much of the first entry is handed over.

    @property
    def unsent(self) -> int:
        """Return an upper bound of the bytes not yet given to the kernel, or 0 while `writable`."""
        return 0 if self.writable else self._queued + 2 * _SLICE

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing waits here (the transport may still hold some)."""
        return not self._queue

    def send(self, data: bytes) -> None:
        """Send `data`, now or when the transport has room."""
        if self.writable and len(data) <= _SLICE:
            self._write(data)
            return
        self._queue.append(data)
        self._queued += len(data)
        self._flush()

    def clear(self) -> None:
        """Forget what waits; for a connection that is gone."""
        self._queue.clear()
        self._queued = self._offset = 0

    def pauseProducing(self) -> None:
        """Called by the transport, inside `write`, when its buffer is full."""
        if self.writable:
            self.writable = False
            self._on_change()

    def resumeProducing(self) -> None:
        """Called by the transport when its buffer is empty."""
        if not self.writable:
            self.writable = True
            self._flush()
            self._on_change()

    def stopProducing(self) -> None:
        """Called by the transport when the connection is gone."""
        self.clear()

    def _flush(self) -> None:
        queue = self._queue
        while queue and self.writable:
            data = queue[0]
            piece = data[self._offset : self._offset + _SLICE]
            self._offset += len(piece)
            self._queued -= len(piece)
            if self._offset >= len(data):
                queue.popleft()
                self._offset = 0
            self._write(piece)
