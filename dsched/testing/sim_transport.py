"""One end of a simulated TCP connection, and the connection as scenarios see it.

An end behaves as Twisted's TCP transport does: writes gather until the next turn of the reactor, a streaming producer
is paused above the high-water mark, `loseConnection` flushes first.
"""

import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IConsumer, IPushProducer, ITransport
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from dsched.testing.sim_clock import SimCall
from dsched.testing.sim_node import CrashKind, Life, SimNode
from dsched.testing.sim_pipe import Mark, Pipe

if TYPE_CHECKING:
    from dsched.testing.sim_network import SimNetwork

__all__ = ["HIGH_WATER_BYTES", "Connection", "SimTransport"]

HIGH_WATER_BYTES = 65_536


@implementer(ITransport, IConsumer, IPushProducer)
class SimTransport:
    """One end of a connection, with the methods of Twisted's TCP transport that protocols use."""

    log = Logger()

    def __init__(
        self, connection: "Connection", side: str, node: SimNode, owner: Life, host: IPv4Address, peer: IPv4Address
    ) -> None:
        self.connection = connection
        self.side = side
        self.node = node
        self.owner = owner
        self.out: Pipe
        self.into: Pipe
        self.protocol: Any = None
        self.connected = True
        self.disconnecting = False
        self.disconnected = False
        self.reading = True
        self.waits_for_window = False
        self.no_delay = False
        self.keep_alive = False
        self.producer: Any = None
        self.on_accept: Callable[[SimTransport], None] | None = None
        self.on_lost: Callable[[], None] | None = None
        self._host = host
        self._peer = peer
        self._streaming = False
        self._producer_paused = False
        self._aborting = False
        self._buffer = bytearray()
        self._write_call: SimCall | None = None

    def __repr__(self) -> str:
        return f"<SimTransport {self.connection.number} {self.side} on {self.node.name}>"

    @property
    def buffered(self) -> int:
        """How many written bytes the kernel has not taken yet."""
        return len(self._buffer)

    def getHost(self) -> IPv4Address:
        """Return the address of this end."""
        return self._host

    def getPeer(self) -> IPv4Address:
        """Return the address of the other end."""
        return self._peer

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Remember the option; delay is the network's affair here."""
        self.no_delay = bool(enabled)

    def getTcpNoDelay(self) -> bool:
        """Return the option."""
        return self.no_delay

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """Remember the option; simulated kernels never probe, their default would be two hours."""
        self.keep_alive = bool(enabled)

    def getTcpKeepAlive(self) -> bool:
        """Return the option."""
        return self.keep_alive

    def write(self, data: bytes) -> None:
        """Buffer `data`; it leaves at the next turn of this node's reactor."""
        if not isinstance(data, bytes):
            raise TypeError(f"Data must be bytes, not {type(data).__name__}")
        self.writeSequence((data,))

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """Buffer several pieces."""
        joined = b"".join(data)
        if not self.connected or not joined:
            return
        for hook in self.out.network.write_hooks:
            hook(self, joined)
            if not self.owner.alive:
                return
        self._buffer += joined
        if self.producer is not None and self._streaming and len(self._buffer) > HIGH_WATER_BYTES:
            self._producer_paused = True
            self.producer.pauseProducing()
        self._start_writing()

    def loseConnection(self) -> None:
        """Close once everything written, and everything a registered producer still writes, has left."""
        if self.connected and not self.disconnecting:
            self.reading = False
            self.disconnecting = True
            self._start_writing()

    def abortConnection(self) -> None:
        """Close at once with a reset; what is buffered is lost."""
        if self.disconnected or self._aborting:
            return
        self._aborting = True
        self.reading = False
        self.owner.call_io(0, self._abort)

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Let `producer` be paused above the high-water mark and resumed when the buffer is empty."""
        if self.producer is not None:
            raise RuntimeError(f"Cannot register producer {producer}, {self.producer} was never unregistered.")
        if self.disconnected:
            producer.stopProducing()
            return
        self.producer = producer
        self._streaming = streaming
        self._producer_paused = False
        if not streaming:
            producer.resumeProducing()

    def unregisterProducer(self) -> None:
        """Forget the producer; a close that waited for it goes on."""
        self.producer = None
        if self.connected and self.disconnecting:
            self._start_writing()

    def pauseProducing(self) -> None:
        """Stop reading; the window, then the buffer of the peer, fills up."""
        self.reading = False

    def resumeProducing(self) -> None:
        """Read again."""
        if self.connected and not self.disconnecting and not self._aborting:
            self.reading = True
            self.into.read_on()

    def stopProducing(self) -> None:
        """Close the connection."""
        self.loseConnection()

    def window_opened(self, delay_s: float) -> None:
        """Let the waiting writer go on once the acknowledgement has travelled."""
        self.waits_for_window = False
        self._start_writing(delay_s)

    def received(self, data: bytes) -> None:
        """Hand bytes to the protocol; if it raises, the connection ends, as in a real reactor."""
        self.connection.record("data", self, size=len(data), crc=zlib.crc32(data))
        self._guarded(self.protocol.dataReceived, data)

    def ended(self) -> None:
        """The peer has closed, after everything it wrote."""
        self._close(Failure(ConnectionDone()))

    def broken(self) -> None:
        """The connection was reset."""
        self._lost(Failure(ConnectionLost()))

    def accepted(self) -> None:
        """The connection reached the process that listens."""
        accept, self.on_accept = self.on_accept, None
        if accept is not None:
            accept(self)

    def attach(self, protocol: Any) -> None:
        """Connect `protocol` to this end."""
        self.protocol = protocol
        self._guarded(protocol.makeConnection, self)

    def refuse(self) -> None:
        """Reset a connection that no protocol was built for."""
        self.out.reset()
        self._lost(Failure(ConnectionLost()))

    def lose_peer(self) -> None:
        """End this side only: its protocol is told, the other end learns nothing."""
        self.out.vanish(mute=True)
        self.into.vanish(mute=True)
        self._lost(Failure(ConnectionLost()))

    def life_ended(self, kind: CrashKind) -> None:
        """The process of this end is gone: its buffer with it, and no code of it runs."""
        self._silence()
        self.into.vanish(mute=False)
        if kind is CrashKind.RESET:
            self.out.reset()
        elif kind is CrashKind.CLOSE:
            self.out.send(Mark.FIN)
            self.into.answer_if_unknown()

    def _guarded(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            function(*args)
        except Exception:
            self.log.failure("a protocol raised, its connection is closed")
            if not self.disconnected:
                self._close(Failure())

    def _start_writing(self, delay_s: float = 0.0) -> None:
        if self._write_call is None and not self.waits_for_window:
            self._write_call = self.owner.call_io(delay_s, self._flush)

    def _flush(self) -> None:
        self._write_call = None
        if not self.connected or self._aborting:
            return
        if self.into.reset_is_due():
            self.broken()
            return
        size = min(len(self._buffer), self.out.space())
        if size:
            data = bytes(self._buffer[:size])
            del self._buffer[:size]
            self.out.send(data)
        if self._buffer:
            self.waits_for_window = True
        elif self.producer is not None and (not self._streaming or self._producer_paused):
            self._producer_paused = False
            self._guarded(self.producer.resumeProducing)
        elif self.disconnecting:
            self._close(Failure(ConnectionDone()))

    def _abort(self) -> None:
        if not self.disconnected:
            self.out.reset()
            self._lost(Failure(ConnectionAborted()))

    def _close(self, reason: Failure) -> None:
        self.out.send(Mark.FIN)
        self._lost(reason)

    def _silence(self) -> None:
        self.connected = False
        self.disconnected = True
        self.reading = False
        self._buffer.clear()
        self.owner.resources.pop(self, None)
        self.connection.side_ended()

    def _lost(self, reason: Failure) -> None:
        if self.disconnected:
            return
        producer, self.producer = self.producer, None
        self._silence()
        self.connection.record("lost", self, reason=type(reason.value).__name__)
        if producer is not None:
            producer.stopProducing()
        if self.protocol is not None:
            try:
                self.protocol.connectionLost(reason)
            except Exception:
                self.log.failure("a protocol raised in connectionLost")
        if self.on_lost is not None:
            self.on_lost()


class Connection:
    """A connection as scenarios see it: `client` and `server` are its two ends."""

    def __init__(self, network: "SimNetwork", number: int) -> None:
        self.number = number
        self.client: SimTransport
        self.server: SimTransport
        self._network = network

    def __repr__(self) -> str:
        return f"<Connection {self.number} {self.client.node.name} to {self.server.node.name}>"

    @property
    def open(self) -> bool:
        """Whether at least one end still believes in it."""
        return not (self.client.disconnected and self.server.disconnected)

    def record(self, kind: str, end: SimTransport, **fields: str | int) -> None:
        """Note an event of one end in the trace."""
        self._network.trace.record(kind, connection=self.number, at=end.node.name, side=end.side, **fields)

    def side_ended(self) -> None:
        """Leave the list of open connections once both ends are gone."""
        if not self.open:
            self._network.connections.pop(self.number, None)
