"""One connection that carries frames, seen from either end."""

from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.interfaces import IDelayedCall, ITCPTransport
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from dsched.clock import Clock
from dsched.errors import DschedError, InternalFault, ProtocolError
from dsched.net.outbox import HIGH_WATER, Outbox
from dsched.wire.framing import Frame, FrameDecoder
from dsched.wire.header import MAX_BODY

__all__ = ["FrameHandler", "FramedProtocol", "PeerNotReading", "PeerNotRegistered"]

CLOSE_TIMEOUT_S = 5.0


class PeerNotReading(DschedError):
    """The peer left more than the high-water mark unread, or something for too long, and was dropped."""

    code = "peer_not_reading"


class PeerNotRegistered(DschedError):
    """The peer did not register in time and was dropped."""

    code = "peer_not_registered"


class FrameHandler(Protocol):
    """What a connection tells its owner. Each call comes from the reactor's thread; none may block.

    Per connection: `connected` first; then `frames_received`; `protocol_failed` at most once, after the frames
    before the error; `disconnected` exactly once, last. A `ProtocolError` out of `frames_received` (a body that does
    not decode) is the peer's fault and treated like one of the framing. Any other exception, from any of them, is
    logged and costs the connection, nothing more.
    """

    def connected(self, peer: "FramedProtocol") -> None:
        """A connection is open."""

    def frames_received(self, peer: "FramedProtocol", frames: list[Frame]) -> None:
        """All frames that came together; never an empty list, and never after `peer.close()` or `abort()`."""

    def protocol_failed(self, peer: "FramedProtocol", error: ProtocolError) -> None:
        """The peer's bytes were no frames; the connection is closed after this call, which may still send."""

    def disconnected(self, peer: "FramedProtocol", reason: Exception) -> None:
        """The connection is gone. `reason` is ours (`ProtocolError`, `PeerNotReading`, …) or Twisted's."""


class FramedProtocol(TwistedProtocol):
    """Cuts bytes into frames for a handler, and sends what it is given, within limits in both directions.

    `registration_timeout_s` is how long the peer has until `registered` is called (None: for ever). `on_writable`,
    when set, is called with the new value each time `writable` changes.
    """

    log = Logger()
    transport: Any

    def __init__(
        self,
        handler: FrameHandler,
        clock: Clock,
        *,
        max_body: int = MAX_BODY,
        high_water: int = HIGH_WATER,
        registration_timeout_s: float | None = None,
    ) -> None:
        self.address = ""
        self.is_registered = registration_timeout_s is None
        self.on_writable: Callable[[bool], None] | None = None
        self._handler = handler
        self._clock = clock
        self._high_water = high_water
        self._registration_timeout_s = registration_timeout_s
        self._decoder = FrameDecoder(max_body)
        self._outbox = Outbox(self._write, self._room_changed)
        self._closing = False  # We want no more from this peer.
        self._reason: Exception | None = None
        self._timer: IDelayedCall | None = None
        self._paused = False
        self._delivering = False

    # What the owner calls.

    @property
    def writable(self) -> bool:
        """Tell whether more may be sent without piling up."""
        return self._outbox.writable and not self._closing

    @property
    def unsent(self) -> int:
        """Return an upper bound of the bytes that the peer has yet to take."""
        return self._outbox.unsent

    @property
    def is_open(self) -> bool:
        """Tell whether the connection is up and neither side has begun to close it."""
        return self.connected == 1 and not self._closing

    def send(self, data: bytes) -> None:
        """Send encoded frames, one or many joined; ignored when the connection is closing.

        A peer that leaves more than the high-water mark unsent is dropped. Honest senders stop at `not writable`.
        """
        if not self.is_open:
            return
        self._outbox.send(data)
        if self._outbox.unsent > self._high_water:
            self.abort(PeerNotReading(f"{self._outbox.unsent} bytes unread by {self.address}", address=self.address))

    def close(self, reason: Exception | None = None) -> None:
        """Send what waits, then close; cut the connection when that takes longer than 5 s. Idempotent."""
        if not self.is_open:
            return
        self._begin_closing(reason)
        self._timer = self._clock.call_later(CLOSE_TIMEOUT_S, self.transport.abortConnection)
        self._close_when_sent()

    def abort(self, reason: Exception | None = None) -> None:
        """Cut the connection at once, unsent bytes and all. Idempotent, also after `close`."""
        if self.connected:
            self._begin_closing(reason)
            self._outbox.clear()
            self.transport.abortConnection()

    def registered(self, max_body: int = MAX_BODY) -> None:
        """Lift the limits that hold for strangers: the timer, and the size of a body."""
        self.is_registered = True
        self._decoder.max_body = max_body
        if not self._closing:
            self._clock.cancel(self._timer)

    def pause_reading(self) -> None:
        """Take no more from the peer until `resume_reading`; frames already here wait too."""
        if not self._paused and self.is_open:
            self._paused = True
            self.transport.pauseProducing()

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
        if self._paused and self.is_open:
            self._paused = False
            self.transport.resumeProducing()
            self._guarded(self._deliver, b"")

    # What Twisted calls.

    def connectionMade(self) -> None:
        host = self.transport.getPeer()
        self.address = getattr(host, "host", None) or "local"
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
        self.transport.registerProducer(self._outbox, True)
        if self._registration_timeout_s is not None:
            self._timer = self._clock.call_later(self._registration_timeout_s, self._registration_timed_out)
        self._guarded(self._handler.connected, self)

    def dataReceived(self, data: bytes) -> None:
        if not self._closing:
            self._guarded(self._deliver, data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.connected = 0
        self._closing = True
        self._clock.cancel(self._timer)
        self._outbox.clear()
        self._guarded(self._handler.disconnected, self, self._reason or reason.value)

    # Inside.

    def _deliver(self, data: bytes) -> None:
        """Feed the decoder and hand over what came.

        A stranger's frames go one by one: the first may register it, and then the next is judged as a friend's.
        """
        decoder = self._decoder
        if self._paused or self._delivering:
            # The transport had read these before it heard of the pause, or the handler resumed while it is called.
            decoder.feed(data, limit=0)
            return
        self._delivering = True
        try:
            while True:
                alone = not self.is_registered
                frames = decoder.feed(data, limit=1 if alone else None)
                if frames:
                    try:
                        self._handler.frames_received(self, frames)
                    except ProtocolError as error:
                        self._fail(error)
                if self._closing:
                    return
                if decoder.error is not None:
                    self._fail(decoder.error)
                    return
                if not frames or not alone or self._paused:
                    return
                data = b""
        finally:
            self._delivering = False

    def _fail(self, error: ProtocolError) -> None:
        if not self._closing:
            self._reason = error
            self._blamed(error.reason, error.got)
            self._handler.protocol_failed(self, error)
            self.close(error)

    def _blamed(self, reason: str, got: bytes) -> None:
        """The peer did something wrong; `got` are the bytes that show it."""

    def _registration_timed_out(self) -> None:
        self._blamed("did not register in time", self._decoder.head)
        self.abort(PeerNotRegistered(f"{self.address} did not register in time", address=self.address))

    def _begin_closing(self, reason: Exception | None) -> None:
        self._closing = True
        self._reason = self._reason or reason
        self._clock.cancel(self._timer)

    def _close_when_sent(self) -> None:
        if self._outbox.is_empty:
            # A transport with a producer never finishes closing while that is paused.
            self.transport.unregisterProducer()
            self.transport.loseConnection()

    def _write(self, data: bytes) -> None:
        self.transport.write(data)

    def _room_changed(self) -> None:
        if self._closing:
            if self._outbox.writable:
                self._close_when_sent()
        elif self.on_writable is not None:
            self._guarded(self.on_writable, self._outbox.writable)

    def _guarded(self, function: Callable[..., None], *args: Any) -> None:
        """Call a handler; what it raises ends this connection and nothing else."""
        try:
            function(*args)
        except Exception:
            self.log.failure("a handler of frames failed; closing {address}", address=self.address)
            self.abort(InternalFault("a handler of frames failed"))
