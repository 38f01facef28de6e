"""One connection on a memory transport: delivery, limits, closing, backpressure."""

from collections.abc import Callable

from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock as ManualReactor
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dsched.clock import Clock
from dsched.errors import InternalFault, ProtocolError
from dsched.net.protocol import FramedProtocol, PeerNotReading, PeerNotRegistered
from dsched.wire.framing import Frame, encode_frame
from dsched.wire.messages import HEARTBEAT_FRAME

BEAT = Frame(3, 1, b"")


class Owner:
    """Remembers what a connection says; `on_frames` may act on it."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.batches: list[list[Frame]] = []
        self.reason: Exception | None = None
        self.on_frames: Callable[[FramedProtocol, list[Frame]], None] | None = None

    def connected(self, peer: FramedProtocol) -> None:
        self.events.append("connected")

    def frames_received(self, peer: FramedProtocol, frames: list[Frame]) -> None:
        self.events.append("frames")
        self.batches.append(frames)
        if self.on_frames is not None:
            self.on_frames(peer, frames)

    def protocol_failed(self, peer: FramedProtocol, error: ProtocolError) -> None:
        self.events.append("failed")
        peer.send(b"farewell")

    def disconnected(self, peer: FramedProtocol, reason: Exception) -> None:
        self.events.append("disconnected")
        self.reason = reason


class ConnectionCase(SynchronousTestCase):
    """A connection whose far end is the test."""

    def setUp(self) -> None:
        self.reactor = ManualReactor()
        self.clock = Clock(self.reactor)
        self.owner = Owner()

    def connect(self, *, max_body: int = 1_048_576, timeout_s: float | None = None) -> FramedProtocol:
        peer = FramedProtocol(self.owner, self.clock, max_body=max_body, registration_timeout_s=timeout_s)
        self.transport = StringTransport()
        peer.makeConnection(self.transport)
        return peer

    def lose(self, peer: FramedProtocol) -> None:
        peer.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.assertEqual(self.owner.events.count("disconnected"), 1)


class Delivering(ConnectionCase):
    """Frames reach the owner, together and in order; damage closes."""

    def test_all_frames_of_one_read_are_one_call(self) -> None:
        peer = self.connect()
        peer.dataReceived(HEARTBEAT_FRAME * 3 + HEARTBEAT_FRAME[:5])
        peer.dataReceived(HEARTBEAT_FRAME[5:])
        self.assertEqual(self.owner.batches, [[BEAT] * 3, [BEAT]])
        self.assertEqual(peer.address, "192.168.1.1")

    def test_frames_before_an_error_are_delivered_then_the_connection_closes(self) -> None:
        peer = self.connect()
        peer.dataReceived(HEARTBEAT_FRAME + b"GET / HTTP/1.1\r\n" + HEARTBEAT_FRAME)
        self.assertEqual(self.owner.events, ["connected", "frames", "failed"])
        self.assertEqual(self.transport.value(), b"farewell")
        self.assertTrue(self.transport.disconnecting)
        self.assertFalse(peer.is_open)
        peer.dataReceived(HEARTBEAT_FRAME)
        peer.send(b"too late")
        self.assertEqual(self.transport.value(), b"farewell")
        self.lose(peer)
        self.assertIsInstance(self.owner.reason, ProtocolError)
        self.assertEqual(self.owner.events, ["connected", "frames", "failed", "disconnected"])

    def test_other_protocols_are_closed_at_their_first_wrong_byte(self) -> None:
        """Case B090: each is closed at the byte that proves it."""
        for hello in (b"G", b"\x16", b"\x00", b"\xca\xfe\xba\xbf"):
            self.owner = Owner()
            peer = self.connect()
            for byte in hello[:-1]:
                peer.dataReceived(bytes([byte]))
            self.assertFalse(self.transport.disconnecting)
            peer.dataReceived(hello[-1:])
            self.assertTrue(self.transport.disconnecting)
            self.lose(peer)

    def test_a_body_that_the_owner_cannot_decode_is_the_peers_fault(self) -> None:
        def refuse(peer: FramedProtocol, frames: list[Frame]) -> None:
            raise ProtocolError("RESPONSE: truncated")

        self.owner.on_frames = refuse
        peer = self.connect()
        peer.dataReceived(HEARTBEAT_FRAME * 2)
        self.assertEqual(self.owner.events, ["connected", "frames", "failed"])
        self.assertTrue(self.transport.disconnecting)
        self.lose(peer)

    def test_an_owner_that_fails_costs_its_connection_and_nothing_else(self) -> None:
        def fail(peer: FramedProtocol, frames: list[Frame]) -> None:
            raise RuntimeError("a bug")

        self.owner.on_frames = fail
        peer = self.connect()
        peer.dataReceived(HEARTBEAT_FRAME)
        self.assertTrue(self.transport.disconnected)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.lose(peer)
        self.assertIsInstance(self.owner.reason, InternalFault)

    def test_nothing_is_delivered_after_the_owner_closed(self) -> None:
        self.owner.on_frames = lambda peer, frames: peer.close()
        peer = self.connect(timeout_s=10)
        peer.dataReceived(HEARTBEAT_FRAME * 3)
        self.assertEqual(self.owner.batches, [[BEAT]])
        self.lose(peer)

    def test_reading_pauses_also_for_bytes_already_here(self) -> None:
        peer = self.connect()
        peer.pause_reading()
        self.assertEqual(self.transport.producerState, "paused")
        peer.dataReceived(HEARTBEAT_FRAME * 2 + HEARTBEAT_FRAME[:3])
        self.assertEqual(self.owner.batches, [])
        peer.resume_reading()
        self.assertEqual(self.transport.producerState, "producing")
        self.assertEqual(self.owner.batches, [[BEAT] * 2])
        peer.dataReceived(HEARTBEAT_FRAME[3:])
        self.assertEqual(self.owner.batches, [[BEAT] * 2, [BEAT]])
        self.lose(peer)

    def test_an_error_found_while_paused_waits_for_its_turn(self) -> None:
        peer = self.connect()
        peer.pause_reading()
        peer.dataReceived(HEARTBEAT_FRAME + b"x")
        self.assertEqual(self.owner.events, ["connected"])
        peer.resume_reading()
        self.assertEqual(self.owner.events, ["connected", "frames", "failed"])
        self.lose(peer)


class Registering(ConnectionCase):
    """Strangers have little time and little room."""

    def test_a_stranger_is_cut_after_its_time(self) -> None:
        """Case B090: a beginning of the magic, then silence."""
        peer = self.connect(timeout_s=10)
        peer.dataReceived(b"\xca\xfe\xba")
        self.reactor.advance(9.9)
        self.assertFalse(self.transport.disconnecting)
        self.reactor.advance(0.2)
        self.assertTrue(self.transport.disconnected)
        self.lose(peer)
        self.assertIsInstance(self.owner.reason, PeerNotRegistered)

    def test_who_registered_may_stay_and_send_more(self) -> None:
        peer = self.connect(max_body=4096, timeout_s=10)
        peer.dataReceived(encode_frame(100, bytes(4096)))
        peer.registered()
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        peer.dataReceived(encode_frame(2, bytes(100_000)))
        self.assertEqual(len(self.owner.batches), 2)
        self.assertTrue(peer.is_open)

    def test_a_stranger_may_send_4_kib(self) -> None:
        peer = self.connect(max_body=4096, timeout_s=10)
        peer.dataReceived(encode_frame(100, bytes(4097))[:11])
        self.assertEqual(self.owner.events, ["connected", "failed"])
        self.lose(peer)

    def test_cutting_makes_no_difference_at_the_moment_of_registration(self) -> None:
        stream = encode_frame(100, b"{}") + encode_frame(2, bytes(5000)) + HEARTBEAT_FRAME * 2

        def register(peer: FramedProtocol, frames: list[Frame]) -> None:
            if frames[0].type == 100:
                peer.registered()

        for size in (1, 7, 4096, len(stream)):
            self.owner = Owner()
            self.owner.on_frames = register
            peer = self.connect(max_body=4096, timeout_s=10)
            for start in range(0, len(stream), size):
                peer.dataReceived(stream[start : start + size])
            frames = [frame for batch in self.owner.batches for frame in batch]
            self.assertEqual([len(frame.body) for frame in frames], [2, 5000, 0, 0])
            self.assertTrue(peer.is_open)


class Sending(ConnectionCase):
    """What is sent waits when it must, up to a limit."""

    def fill(self, peer: FramedProtocol) -> None:
        """Do what a transport does when its buffer is full."""
        assert self.transport.producer is not None
        self.transport.producer.pauseProducing()

    def drain(self) -> None:
        """Do what a transport does when its buffer is empty."""
        assert self.transport.producer is not None
        self.transport.producer.resumeProducing()

    def test_the_owner_is_told_when_to_stop_and_when_to_go_on(self) -> None:
        told: list[bool] = []
        peer = self.connect()
        peer.on_writable = told.append
        peer.send(b"a")
        self.fill(peer)
        self.assertFalse(peer.writable)
        peer.send(b"b")
        peer.send(b"c")
        self.assertEqual(self.transport.value(), b"a")
        self.drain()
        self.assertEqual(self.transport.value(), b"abc")
        self.assertEqual((told, peer.writable, peer.unsent), ([False, True], True, 0))

    def test_bytes_keep_their_order_when_the_transport_fills_up_in_between(self) -> None:
        peer = self.connect()
        sent = b""
        for number in range(30):
            piece = bytes([number]) * (7_000 * number)
            sent += piece
            peer.send(piece)
            if number % 4 == 0:
                self.fill(peer)
            if number % 4 == 3:
                self.drain()
        self.drain()
        self.assertEqual(self.transport.value(), sent)

    def test_a_peer_that_does_not_read_is_dropped_at_the_high_water_mark(self) -> None:
        """Case B094."""
        peer = self.connect()
        self.fill(peer)
        for _ in range(39):
            peer.send(bytes(100_000))
        self.assertTrue(peer.is_open)
        self.assertLess(peer.unsent, 4 * 1_048_576)
        for _ in range(3):
            peer.send(bytes(100_000))
        self.assertTrue(self.transport.disconnected)
        self.assertEqual(self.transport.value(), b"")
        self.lose(peer)
        self.assertIsInstance(self.owner.reason, PeerNotReading)

    def test_closing_sends_first_what_waits(self) -> None:
        peer = self.connect()
        self.fill(peer)
        peer.send(b"last words")
        peer.close()
        self.assertFalse(self.transport.disconnecting)
        self.drain()
        self.assertEqual(self.transport.value(), b"last words")
        self.assertTrue(self.transport.disconnecting)
        self.assertIsNone(self.transport.producer)
        self.lose(peer)

    def test_closing_takes_no_longer_than_5_s(self) -> None:
        peer = self.connect()
        self.fill(peer)
        peer.send(b"last words")
        peer.close()
        peer.close()
        self.reactor.advance(5.1)
        self.assertTrue(self.transport.disconnected)
        self.lose(peer)

    def test_aborting_forgets_what_waits(self) -> None:
        peer = self.connect()
        self.fill(peer)
        peer.send(b"never")
        peer.close()
        peer.abort()
        self.assertTrue(self.transport.disconnected)
        self.assertEqual(self.transport.value(), b"")
        self.lose(peer)
        peer.abort()
        peer.close()
        peer.send(b"x")
