"""The listening end: a factory that admits peers, limits strangers and logs what they do wrong."""

from typing import Any

from twisted.internet.interfaces import IAddress, IDelayedCall
from twisted.internet.protocol import Factory, connectionDone
from twisted.python.failure import Failure

from dsched.clock import Clock
from dsched.net.admission import PendingPeers, ProtocolErrorLog
from dsched.net.outbox import HIGH_WATER
from dsched.net.protocol import FramedProtocol, FrameHandler, PeerNotReading
from dsched.wire.header import MAX_BODY, MAX_BODY_UNREGISTERED

__all__ = ["REGISTRATION_TIMEOUT_S", "WorkerListenerFactory"]

REGISTRATION_TIMEOUT_S = 10.0
STALL_TIMEOUT_S = 60.0
"""How long a peer may take nothing of what waits for it."""


class WorkerListenerFactory(Factory):
    """Builds the core's side of each connection; all of them report to one handler.

    A peer is a stranger until its handler calls `registered`: it may send bodies of 4 KiB, has 10 s, and there are at
    most 256 strangers, 32 from one address; who comes beyond that is closed unheard.
    """

    noisy = False

    def __init__(
        self,
        handler: FrameHandler,
        clock: Clock,
        *,
        high_water: int = HIGH_WATER,
        pending: PendingPeers | None = None,
        registration_timeout_s: float = REGISTRATION_TIMEOUT_S,
    ) -> None:
        self.peers: set[FramedProtocol] = set()
        self.pending = pending or PendingPeers()
        self.error_log = ProtocolErrorLog(clock)
        self.refused = 0
        self._handler = handler
        self._clock = clock
        self._high_water = high_water
        self._registration_timeout_s = registration_timeout_s

    def buildProtocol(self, addr: IAddress | None) -> FramedProtocol | None:
        address = getattr(addr, "host", None) or "local"
        if not self.pending.admit(address):
            self.refused += 1
            return None
        peer = _ListenedPeer(
            self,
            self._handler,
            self._clock,
            max_body=MAX_BODY_UNREGISTERED,
            high_water=self._high_water,
            registration_timeout_s=self._registration_timeout_s,
        )
        peer.address = address
        return peer

    def close_all(self) -> None:
        """Close every connection, strangers included, after what waits for it is sent."""
        for peer in list(self.peers):
            peer.close()


class _ListenedPeer(FramedProtocol):
    """A connection that counts as pending until it registers or goes."""

    def __init__(self, listener: WorkerListenerFactory, handler: FrameHandler, clock: Clock, **limits: Any) -> None:
        super().__init__(handler, clock, **limits)
        self._listener = listener
        self._is_pending = True
        self._stalled: IDelayedCall | None = None

    def connectionMade(self) -> None:
        self._listener.peers.add(self)
        super().connectionMade()

    def registered(self, max_body: int = MAX_BODY) -> None:
        super().registered(max_body)
        self._settle()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._clock.cancel(self._stalled)
        self._settle()
        self._listener.peers.discard(self)
        super().connectionLost(reason)

    def _room_changed(self) -> None:
        # Also one that goes on beating may have stopped to read. Whenever it makes room, its time begins anew.
        self._clock.cancel(self._stalled)
        if not self.writable:
            self._stalled = self._clock.call_later(STALL_TIMEOUT_S, self._give_up)
        super()._room_changed()

    def _give_up(self) -> None:
        reason = f"{self.address} has read nothing for {STALL_TIMEOUT_S:.0f} s"
        self.abort(PeerNotReading(reason, address=self.address))

    def _blamed(self, reason: str, got: bytes) -> None:
        self._listener.error_log.report(self.address, reason, got)

    def _settle(self) -> None:
        if self._is_pending:
            self._is_pending = False
            self._listener.pending.release(self.address)
