"""Who may hold a connection before it has said who it is, and how often its mistakes are logged."""

from collections import Counter

from twisted.logger import Logger

from dsched.clock import Clock

__all__ = ["PendingPeers", "ProtocolErrorLog"]


class PendingPeers:
    """Counts connections that have not registered: at most `total`, and `per_address` from one address."""

    def __init__(self, total: int = 256, per_address: int = 32) -> None:
        self.total = total
        self.per_address = per_address
        self.count = 0
        self._by_address: Counter[str] = Counter()

    def admit(self, address: str) -> bool:
        """Count one more connection from `address` and return True, or return False when there are too many."""
        if self.count >= self.total or self._by_address[address] >= self.per_address:
            return False
        self.count += 1
        self._by_address[address] += 1
        return True

    def release(self, address: str) -> None:
        """Give back what `admit` counted; once for each True."""
        self.count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


class ProtocolErrorLog:
    """Logs what peers did wrong, at most once per address and minute, the bytes in hex."""

    log = Logger()

    def __init__(self, clock: Clock, interval_s: float = 60.0, max_addresses: int = 1024) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._max_addresses = max_addresses
        self._logged_at: dict[str, float] = {}
        self._untold: Counter[str] = Counter()

    def report(self, address: str, reason: str, got: bytes) -> None:
        """Log what `address` did, or count it for the next line about that address."""
        now = self._clock.monotonic()
        last = self._logged_at.get(address)
        if last is not None and now - last < self._interval_s:
            self._untold[address] += 1
            return
        if last is None and len(self._logged_at) >= self._max_addresses and not self._forget_old(now):
            return
        self._logged_at[address] = now
        self.log.warn(  # noqa: G010 (Twisted knows no other name)
            "protocol error from {address}: {reason}; bytes {got}; {untold} more since the last such line",
            address=address,
            reason=reason,
            got=got.hex(" "),
            untold=self._untold.pop(address, 0),
        )

    def _forget_old(self, now: float) -> bool:
        """Drop addresses whose minute is over; tell whether there is room."""
        for address, at in list(self._logged_at.items()):
            if now - at >= self._interval_s:
                del self._logged_at[address]
                self._untold.pop(address, None)
        return len(self._logged_at) < self._max_addresses
