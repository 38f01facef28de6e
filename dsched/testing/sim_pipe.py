"""One direction of a simulated connection: the two kernels and the wire between them.

The order of bytes is kept, their chunks are not. The window bounds what is under way or not yet read, so a reader
that stops reading fills the buffer of the writer.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from dsched.testing.sim_clock import SimCall

if TYPE_CHECKING:
    from dsched.testing.sim_network import SimNetwork
    from dsched.testing.sim_transport import SimTransport

__all__ = ["Link", "Mark", "Pipe"]

_READ_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Link:
    """How bytes travel in one direction between two nodes.

    `split` is the chance that an arrival is cut in two, `merge` the chance that it waits for the next one;
    `window_bytes` bounds what is under way or not yet read.
    """

    latency_s: tuple[float, float] = (0.0002, 0.005)
    split: float = 0.1
    merge: float = 0.1
    window_bytes: int = 131_072


class Mark(Enum):
    """What travels in a pipe besides bytes."""

    ACCEPT = "accept"
    FIN = "fin"
    RESET = "reset"


class Pipe:
    """One direction of a connection. Its events belong to the receiving process, so they wait while it is paused."""

    def __init__(self, network: "SimNetwork", source: "SimTransport", sink: "SimTransport") -> None:
        self.network = network
        self.link = network.link(source.node, sink.node)
        self.source = source
        self.sink = sink
        self.under_way = 0
        self.stalled = False
        self.gone = False
        """Nobody reads at the far end any more: bytes vanish."""
        self.mute = False
        """The far end will never say so either."""
        self._rng: random.Random = network.rng
        self._queue: deque[tuple[float, bytes | Mark]] = deque()
        self._last_s = 0.0
        self._reset_s: float | None = None
        self._call: SimCall | None = None

    @property
    def open(self) -> bool:
        """Whether anything gets through at this moment."""
        return not self.stalled and not self.network.is_blocked(self.source.node, self.sink.node)

    def space(self) -> int:
        """Return how many bytes fit into the window."""
        return self.link.window_bytes - self.under_way

    def latency_s(self) -> float:
        """Draw a latency."""
        return self._rng.uniform(*self.link.latency_s)

    def send(self, item: bytes | Mark) -> None:
        """Put bytes or a mark on the wire; the order is kept, and nothing follows a reset."""
        if self._reset_s is not None:
            return
        if isinstance(item, bytes):
            self.under_way += len(item)
        if self.gone:
            self.answer_if_unknown()
            return
        self._last_s = max(self.network.seconds() + self.latency_s(), self._last_s)
        self._queue.append((self._last_s, item))
        if item is Mark.RESET:
            self._reset_s = self._last_s
        self._arm()

    def announce(self, accept: "Callable[[SimTransport], None]") -> None:
        """Tell the process that listens of this connection, before any byte of it."""
        self.sink.on_accept = accept
        self.send(Mark.ACCEPT)

    def reset(self) -> None:
        """Tell the far end that the connection is broken; part of what is under way may be lost."""
        keep = self._rng.randint(0, self.under_way)
        kept: deque[tuple[float, bytes | Mark]] = deque()
        for due_s, item in self._queue:
            if item is Mark.ACCEPT:
                kept.append((due_s, item))
            elif isinstance(item, bytes) and keep > 0:
                kept.append((due_s, item[:keep]))
                keep -= len(item)
        self._queue = kept
        self.send(Mark.RESET)

    def vanish(self, *, mute: bool) -> None:
        """Lose the far end: what arrives from now on is read by nobody."""
        self.gone = True
        self.mute = mute
        self._queue.clear()
        if self._call is not None and self._call.active():
            self._call.cancel()

    def answer_if_unknown(self) -> None:
        """Let the far machine, when it is up, answer bytes for a connection it does not know with a reset."""
        if self.gone and not self.mute and self.under_way and self.sink.node.powered and self.open:
            self.sink.out.send(Mark.RESET)
            self.mute = True

    def kick(self) -> None:
        """Go on after a heal or a release."""
        self._arm(fresh=True)
        self.answer_if_unknown()
        if self.source.waits_for_window and self.open:
            self.source.window_opened(self.latency_s())

    def reset_is_due(self) -> bool:
        """Return whether the news of a broken connection has arrived, read or not."""
        return self._reset_s is not None and self._reset_s <= self.network.seconds() and self.open

    def read_on(self) -> None:
        """Deliver what waited for the reader."""
        self._arm()

    def _arm(self, *, fresh: bool = False) -> None:
        if not self._queue or (self._call is not None and self._call.active()) or not self.open:
            return
        due_s = self._queue[0][0]
        if not self.sink.reading and not self.sink.disconnected:
            if self._reset_s is None:
                return
            due_s = self._reset_s
        delay_s = max(0.0, due_s - self.network.seconds())
        if fresh and delay_s == 0.0:
            delay_s = self.latency_s()
        self._call = self.sink.owner.call_io(delay_s, self._arrive)

    def _arrive(self) -> None:
        if not self._queue or not self.open:
            return
        now_s = self.network.seconds()
        head_s, head = self._queue[0]
        if self.sink.disconnected:
            self._drop_for_closed()
        elif not self.sink.reading:
            if not self.reset_is_due():
                self._arm()
            elif self.sink.disconnecting or self.sink.buffered:
                self._queue.clear()
                self.sink.broken()
        elif head_s > now_s:
            self._arm()
        elif isinstance(head, bytes):
            self._deliver(now_s)
        else:
            self._queue.popleft()
            if head is Mark.RESET:
                self.sink.broken()
            elif head is Mark.FIN:
                self.sink.ended()
            else:
                self.sink.accepted()
            self._arm()

    def _deliver(self, now_s: float) -> None:
        if len(self._queue) > 1 and isinstance(self._queue[1][1], bytes) and self._queue[1][0] > now_s:
            if self._rng.random() < self.link.merge:
                self._queue[0] = (self._queue[1][0], self._queue[0][1])
                self._arm()
                return
        parts: list[bytes] = []
        size = 0
        while self._queue and size < _READ_BYTES:
            due_s, item = self._queue[0]
            if not isinstance(item, bytes) or due_s > now_s:
                break
            parts.append(item)
            size += len(item)
            self._queue.popleft()
        data = b"".join(parts)
        limit = min(size, _READ_BYTES)
        if size > 1 and self._rng.random() < self.link.split:
            limit = min(limit, 1 if self._rng.random() < 0.25 else self._rng.randrange(1, size))
        if limit < size:
            self._queue.appendleft((now_s + self.latency_s() * self._rng.random(), data[limit:]))
        self._consumed(limit)
        self.sink.received(data[:limit])
        self._arm()

    def _consumed(self, size: int) -> None:
        self.under_way -= size
        back = self.sink.out
        if self.source.waits_for_window and back.open:
            self.source.window_opened(back.latency_s())

    def _drop_for_closed(self) -> None:
        had_bytes = any(isinstance(item, bytes) for _, item in self._queue)
        self._queue.clear()
        if had_bytes:
            self.sink.out.send(Mark.RESET)
