"""The timing wheel: everything that waits for an instant, in one place.

Two generations share the work, because most timers (the timeouts of short tasks) are cancelled soon
after they were armed:

* a young entry only stands in a list in arming order; cancelling it is one assignment;
* what is still armed when its deadline may be the next one, or when the list is full, moves into a
  hierarchy of wheels with 256 slots each. The slots of the finest wheel are one millisecond wide
  and hold their entries sorted; a slot of each coarser wheel only tells whether the finer wheel
  below it holds anything. So nothing ever cascades, and the earliest entry is found by looking at
  one bit mask per level, however far away it is.
"""

from math import inf
from typing import Final, Generic, TypeVar

__all__ = ["Entry", "TimingWheel"]

Payload = TypeVar("Payload")

_LEVELS: Final = 6
_LAST_TICK: Final = (1 << 8 * _LEVELS) - 1
_ORIGIN_TICK: Final = 1 << 8 * _LEVELS - 1  # 4 459 years on either side; what is beyond shares the end slots
_YOUNG_LIMIT: Final = 4096
_BITS: Final = tuple(1 << slot for slot in range(256))

# Values of Entry._tick that name no slot.
_GONE: Final = -2
_YOUNG: Final = -1


class Entry(Generic[Payload]):
    """Stand for one armed payload; made by `TimingWheel.arm` only, to be handed to `cancel`."""

    __slots__ = ("_next", "_previous", "_tick", "deadline_ms", "payload")

    _next: "Entry[Payload]"
    _previous: "Entry[Payload]"

    def __init__(self, deadline_ms: float, payload: Payload) -> None:
        self.deadline_ms = deadline_ms
        self.payload = payload
        self._tick = _YOUNG

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

    __slots__ = ("_first", "_length", "_origin_ms", "_slots", "_wheels", "_young", "_young_floor_ms")

    def __init__(self, now_ms: float) -> None:
        self._origin_ms = now_ms
        self._length = 0
        self._young: list[Entry[Payload]] = []
        self._young_floor_ms: float = inf  # no young entry is due before this
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
        if deadline_ms < self._young_floor_ms:
            if deadline_ms == -inf:
                raise ValueError("a deadline must be finite")
            self._young_floor_ms = deadline_ms
        elif not deadline_ms < inf:
            raise ValueError("a deadline must be finite")
        entry = Entry(deadline_ms, payload)
        young = self._young
        young.append(entry)
        self._length += 1
        if len(young) >= _YOUNG_LIMIT:
            self._settle()
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
        if tick != _YOUNG:
            self._unlink(entry, tick)

    def next_deadline(self) -> float | None:
        """Tell the exact deadline of the earliest armed entry, or None where nothing waits."""
        first = self._first or self._find_first()
        if self._young_floor_ms < (inf if first is None else first.deadline_ms):
            self._settle()
            first = self._first or self._find_first()
        return None if first is None else first.deadline_ms

    def advance(self, now_ms: float) -> list[Payload]:
        """Take out everything due at `now_ms` or before, by deadline and, where equal, in arming order."""
        if self._young_floor_ms <= now_ms:
            self._settle()
        due: list[Payload] = []
        while (first := self._first or self._find_first()) is not None and first.deadline_ms <= now_ms:
            tick = first._tick
            first._tick = _GONE
            self._unlink(first, tick)
            due.append(first.payload)
        self._length -= len(due)
        return due

    def _settle(self) -> None:
        """Move the young entries that are still armed into the slots."""
        young, self._young, self._young_floor_ms = self._young, [], inf
        for entry in young:
            if entry._tick == _YOUNG:
                self._link(entry)

    def _link(self, entry: Entry[Payload]) -> None:
        deadline_ms = entry.deadline_ms
        tick = int(deadline_ms - self._origin_ms) + _ORIGIN_TICK
        if not 0 <= tick <= _LAST_TICK:
            tick = 0 if tick < 0 else _LAST_TICK
        entry._tick = tick
        head = self._slots.get(tick)
        if head is None:
            entry._next = entry._previous = entry
            self._slots[tick] = entry
            self._mark(tick)
        else:
            # From the back, because later arms mostly have later deadlines; equal ones stay in arming order.
            before = head._previous
            while before.deadline_ms > deadline_ms and before is not head:
                before = before._previous
            if before.deadline_ms > deadline_ms:
                self._slots[tick] = entry
                before = before._previous
            after = before._next
            entry._previous, entry._next = before, after
            before._next = after._previous = entry
        first = self._first
        if first is not None and deadline_ms < first.deadline_ms:
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
