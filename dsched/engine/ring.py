"""The consistent hash ring: which worker owns a key, and who comes after it.

The layout is a contract shared with peers outside this code: 150 virtual nodes `WORKER_ID#I` per
worker, I from 0, each at the first four bytes of its MD5 read as a little-endian signed integer.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from hashlib import md5
from struct import Struct
from typing import Final

__all__ = ["VIRTUAL_NODES", "Ring", "ring_hash"]

VIRTUAL_NODES: Final = 150

# A point is `hash << _SLOT_BITS | slot`, where the slot is a small number standing for the worker:
# eight bytes per virtual node instead of a tuple, and comparable with a bare hash.
_SLOT_BITS: Final = 24
_SLOT_MASK: Final = (1 << _SLOT_BITS) - 1
# The circle is cut into 1024 arcs, so that adding or removing a worker moves 150 short arrays
# around and not one long one: its cost hardly depends on the number of workers.
_ARC_SHIFT: Final = 22
_ARCS: Final = 1 << (32 - _ARC_SHIFT)
_LOWEST_HASH: Final = -(1 << 31)

_first_int32 = Struct("<i").unpack_from


def ring_hash(text: str) -> int:
    """Hash `text` to its place on the ring: the first four bytes of its MD5 as a little-endian signed int32."""
    place: int = _first_int32(md5(text.encode(), usedforsecurity=False).digest())[0]
    return place


class Ring:
    """Hold the virtual nodes of the workers and find the owner of a key.

    The owner is the first virtual node clockwise at or after the key's hash. Where virtual nodes
    of several workers share one hash, the lowest worker id comes first, so the answer depends only
    on who is on the ring, never on the order of arrival. `version` grows with every change.
    """

    __slots__ = ("_arcs", "_free_slots", "_places", "_slots", "_workers", "version")

    def __init__(self) -> None:
        self.version = 0
        self._arcs: list[array[int]] = [array("q") for _ in range(_ARCS)]
        self._workers: list[str] = []  # by slot; a freed slot keeps its last worker until it is taken again
        self._free_slots: list[int] = []
        self._slots: dict[str, int] = {}
        self._places: dict[str, array[int]] = {}

    def __contains__(self, worker_id: object) -> bool:
        return worker_id in self._slots

    def __len__(self) -> int:
        """Count the workers on the ring."""
        return len(self._slots)

    def add(self, worker_id: str) -> None:
        """Put a worker on the ring; a worker that is on it already changes nothing."""
        if worker_id in self._slots:
            return
        places = array("i", [ring_hash(f"{worker_id}#{node}") for node in range(VIRTUAL_NODES)])
        if self._free_slots:
            slot = self._free_slots.pop()
            self._workers[slot] = worker_id
        else:
            slot = len(self._workers)
            self._workers.append(worker_id)
        self._slots[worker_id] = slot
        self._places[worker_id] = places
        for place in places:
            arc = self._arcs[(place - _LOWEST_HASH) >> _ARC_SHIFT]
            index = bisect_left(arc, place << _SLOT_BITS)
            while (
                index < len(arc)
                and arc[index] >> _SLOT_BITS == place
                and self._workers[arc[index] & _SLOT_MASK] < worker_id
            ):
                index += 1
            arc.insert(index, place << _SLOT_BITS | slot)
        self.version += 1

    def remove(self, worker_id: str) -> None:
        """Take a worker off the ring; only the keys that it owned get another owner. Unknown ids change nothing."""
        slot = self._slots.pop(worker_id, None)
        if slot is None:
            return
        for place in self._places.pop(worker_id):
            arc = self._arcs[(place - _LOWEST_HASH) >> _ARC_SHIFT]
            index = bisect_left(arc, place << _SLOT_BITS)
            while arc[index] & _SLOT_MASK != slot:
                index += 1
            del arc[index]
        self._free_slots.append(slot)
        self.version += 1

    def owner(self, key: str) -> str | None:
        """Name the worker that owns `key`, or None where the ring is empty."""
        return self.owner_of_hash(ring_hash(key))

    def owner_of_hash(self, place: int) -> str | None:
        """Name the worker that owns the place `place` (a `ring_hash`), or None where the ring is empty."""
        if not self._slots:
            return None
        arcs = self._arcs
        number = (place - _LOWEST_HASH) >> _ARC_SHIFT
        arc = arcs[number]
        index = bisect_left(arc, place << _SLOT_BITS)
        if index == len(arc):
            index = 0
            arc = array("q")
            while not arc:
                number = (number + 1) % _ARCS
                arc = arcs[number]
        return self._workers[arc[index] & _SLOT_MASK]

    def successors(self, place: int) -> Iterator[str]:
        """Yield every worker once, clockwise from `place`, the owner first.

        Raises `RuntimeError` where the ring changed since the iteration began.
        """
        version = self.version
        seen: set[int] = set()
        for point in self._points_from(place):
            slot = point & _SLOT_MASK
            if slot not in seen:
                seen.add(slot)
                yield self._workers[slot]
                if self.version != version:
                    raise RuntimeError("the ring changed while its successors were read")
                if len(seen) == len(self._slots):
                    return

    def _points_from(self, place: int) -> Iterator[int]:
        """Yield all points clockwise from `place`, once around."""
        first = (place - _LOWEST_HASH) >> _ARC_SHIFT
        cut = bisect_left(self._arcs[first], place << _SLOT_BITS)
        yield from self._arcs[first][cut:]
        for step in range(1, _ARCS):
            yield from self._arcs[(first + step) % _ARCS]
        yield from self._arcs[first][:cut]
