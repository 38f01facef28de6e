"""The timing wheel: everything that waits for an instant, in one place.

Two structures share the work, because most timers are the timeouts of short tasks: they are armed
with rising deadlines, and cancelled soon.

* An entry that is due no earlier than the one armed before it stands at the end of a sorted queue.
  Cancelling it there is one assignment; the queue drops such entries when they come to its front
  or are more than half of it.
* All others are in a hierarchy of wheels with 256 slots each. The slots of the finest wheel are one
  millisecond wide and hold their entries sorted; a slot of each coarser wheel only tells whether
  the finer wheel below it holds anything. So nothing ever cascades, and the earliest entry is found
  by looking at one bit mask per level, however far away it is.
"""

from collections import deque
from math import inf
from sys import float_info
from typing import Final, Generic, TypeVar

__all__ = ["Entry", "TimingWheel"]

Payload = TypeVar("Payload")

_LEVELS: Final = 6
_LAST_TICK: Final = (1 << 8 * _LEVELS) - 1
_ORIGIN_TICK: Final = 1 << 8 * _LEVELS - 1  # 4 459 years on either side; what is beyond shares the end slots
_BITS: Final = tuple(1 << slot for slot in range(256))

_DEAD_ALLOWED: Final = 512  # cancelled entries that a short queue may keep

# Values of Entry._tick that name no slot.
_GONE: Final = -2
_QUEUED: Final = -1


class Entry(Generic[Payload]):
    """Stand for one armed payload; made by `TimingWheel.arm` only, to be handed to `cancel`."""

    __slots__ = ("_next", "_order", "_previous", "_tick", "deadline_ms", "payload")

    _next: "Entry[Payload]"
    _previous: "Entry[Payload]"

    def __init__(self, deadline_ms: float, payload: Payload, order: int) -> None:
        self.deadline_ms = deadline_ms
        self.payload = payload
        self._order = order
        self._tick = _QUEUED

    @property
    def armed(self) -> bool:
        """Tell whether the entry still waits: neither cancelled nor returned by `advance`."""
        return self._tick != _GONE


class TimingWheel(Generic[Payload]):
    """Hold payloads until their deadlines.

    Times are monotonic milliseconds, int or float, of one clock; deadlines are kept exactly. An
    entry is returned by the first `advance` at or after its deadline, never earlier. Arming and
    cancelling take constant time, whatever waits and however far away it is (only deadlines that
    fall as they are armed, many within one millisecond, cost a step for each other one there). The
    wheel never reads a clock: one timer of the caller for `next_deadline` drives it, and idle time
    costs nothing. `now_ms` is where the range of ticks is centred; it bounds nothing.
    """

    __slots__ = ("_arms", "_dead", "_first", "_last_ms", "_length", "_origin_ms", "_queue", "_slots", "_wheels")

    def __init__(self, now_ms: float) -> None:
        self._origin_ms = now_ms
        self._length = 0
        self._arms = 0  # counts all arms ever; orders equal deadlines
        self._queue: deque[Entry[Payload]] = deque()  # sorted by deadline and arming order
        self._dead = 0  # cancelled entries in the queue
        self._last_ms: float = -float_info.max  # what is due at this or later may join the end of the queue
        # Earliest entry of each occupied tick; the entries of a tick form a ring in firing order.
        self._slots: dict[int, Entry[Payload]] = {}
        # _wheels[0][T >> 8] is the mask of occupied ticks T, _wheels[1][T >> 16] that of its occupied keys, and so on.
        self._wheels: tuple[dict[int, int], ...] = tuple({} for _ in range(_LEVELS))
        self._first: Entry[Payload] | None = None  # earliest entry in the slots, or None: not known at present

    def __len__(self) -> int:
        """Count the armed entries."""
        return self._length

    def arm(self, deadline_ms: float, payload: Payload) -> Entry[Payload]:
        """Let `payload` wait until `deadline_ms`; a deadline in the past is due at the next `advance`.

        Raises `ValueError` for a deadline that is not a finite number.
        """
        order = self._arms = self._arms + 1
        entry = Entry(deadline_ms, payload, order)
        if self._last_ms <= deadline_ms < inf:
            self._queue.append(entry)
            self._last_ms = deadline_ms
        elif -inf < deadline_ms < inf:
            self._arm_out_of_order(entry)
        else:
            raise ValueError("a deadline must be finite")
        self._length += 1
        return entry

    def cancel(self, entry: Entry[Payload]) -> None:
        """Forget `entry`; it may have been cancelled or returned before.

        What `advance` has returned cannot be called back: who acts on a payload checks that it is
        still wanted.
        """
        tick = entry._tick
        if tick == _GONE:
            return
        entry._tick = _GONE
        self._length -= 1
        if tick != _QUEUED:
            self._unlink(entry, tick)
            return
        dead = self._dead = self._dead + 1
        if dead > _DEAD_ALLOWED and dead * 2 > len(self._queue):
            self._queue = deque([queued for queued in self._queue if queued._tick == _QUEUED])
            self._dead = 0

    def next_deadline(self) -> float | None:
        """Tell the exact deadline of the earliest armed entry, or None where nothing waits."""
        earliest = self._earliest()
        return None if earliest is None else earliest.deadline_ms

    def advance(self, now_ms: float) -> list[Payload]:
        """Take out everything due at `now_ms` or before, by deadline and, where equal, in arming order."""
        due: list[Payload] = []
        while (entry := self._earliest()) is not None and entry.deadline_ms <= now_ms:
            tick = entry._tick
            entry._tick = _GONE
            if tick == _QUEUED:
                self._queue.popleft()
            else:
                self._unlink(entry, tick)
            due.append(entry.payload)
        self._length -= len(due)
        return due

    def _earliest(self) -> Entry[Payload] | None:
        queue = self._queue
        while queue and queue[0]._tick == _GONE:
            queue.popleft()
            self._dead -= 1
        first = self._first or self._find_first()
        if not queue:
            return first
        head = queue[0]
        return head if first is None or _is_before(head, first) else first

    def _arm_out_of_order(self, entry: Entry[Payload]) -> None:
        """Place an entry that is due before the last of the queue."""
        queue = self._queue
        while queue and queue[-1]._tick == _GONE:
            queue.pop()
            self._dead -= 1
        # The last one is moved away, so that a few far deadlines do not close the queue to all nearer ones.
        if queue and _is_before(entry, queue[-1]):
            self._link(queue.pop())
        if queue and _is_before(entry, queue[-1]):
            self._link(entry)
        else:
            queue.append(entry)
        self._last_ms = queue[-1].deadline_ms

    def _link(self, entry: Entry[Payload]) -> None:
        """Put an entry into its slot."""
        tick = int(entry.deadline_ms - self._origin_ms) + _ORIGIN_TICK
        if not 0 <= tick <= _LAST_TICK:
            tick = 0 if tick < 0 else _LAST_TICK
        entry._tick = tick
        head = self._slots.get(tick)
        if head is None:
            entry._next = entry._previous = entry
            self._slots[tick] = entry
            self._mark(tick)
        else:
            # From the back, because later arms mostly have later deadlines.
            before = head._previous
            while before is not head and _is_before(entry, before):
                before = before._previous
            if before is head and _is_before(entry, head):
                self._slots[tick] = entry
                before = head._previous
            after = before._next
            entry._previous, entry._next = before, after
            before._next = after._previous = entry
        if self._first is not None and _is_before(entry, self._first):
            self._first = entry

    def _unlink(self, entry: Entry[Payload], tick: int) -> None:
        after = entry._next
        if after is entry:
            del self._slots[tick]
            self._clear(tick)
            if self._first is entry:
                self._first = None
        else:
            before = entry._previous
            before._next, after._previous = after, before
            if self._slots[tick] is entry:
                self._slots[tick] = after
                if self._first is entry:
                    self._first = after
        del entry._next, entry._previous  # no cycles: what is done goes at once, not at a garbage collection

    def _find_first(self) -> Entry[Payload] | None:
        if not self._slots:
            return None
        key = 0
        for wheel in reversed(self._wheels):
            mask = wheel[key]
            key = key << 8 | (mask & -mask).bit_length() - 1
        self._first = self._slots[key]
        return self._first

    def _mark(self, tick: int) -> None:
        """Note in the wheels that `tick` is occupied."""
        key = tick
        for wheel in self._wheels:
            bit = _BITS[key & 255]
            key >>= 8
            mask = wheel.get(key)
            if mask is not None:
                wheel[key] = mask | bit
                return
            wheel[key] = bit

    def _clear(self, tick: int) -> None:
        """Note in the wheels that `tick` is empty."""
        key = tick
        for wheel in self._wheels:
            bit = _BITS[key & 255]
            key >>= 8
            mask = wheel[key] ^ bit
            if mask:
                wheel[key] = mask
                return
            del wheel[key]


def _is_before(one: Entry[Payload], other: Entry[Payload]) -> bool:
    if one.deadline_ms == other.deadline_ms:
        return one._order < other._order
    return one.deadline_ms < other.deadline_ms
