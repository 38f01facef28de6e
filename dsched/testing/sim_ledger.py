"""The disk of a simulated worker, as far as its ledger goes: it outlives crashes of its node."""

from dsched.testing.sim_node import Life

__all__ = ["SimLedgerFile"]


class SimLedgerFile:
    """A `LedgerFile` of one life of a node over bytes that stay; code of a life that has ended writes nothing."""

    def __init__(self, life: Life, disk: bytearray) -> None:
        self._life = life
        self._disk = disk

    def read(self) -> bytes:
        """Return everything."""
        return bytes(self._disk)

    def append(self, data: bytes) -> None:
        """Add to the end."""
        if self._life.alive:
            self._disk += data

    def replace(self, data: bytes) -> None:
        """Put `data` in the place of what is there."""
        if self._life.alive:
            self._disk[:] = data

    def move_aside(self) -> str:
        """Empty the file."""
        self._disk.clear()
        return "nowhere"
