"""Who is admitted, and what is logged about those who are not ours."""

from typing import cast

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock as ManualReactor
from twisted.internet.testing import StringTransport
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dsched.clock import Clock
from dsched.errors import ProtocolError
from dsched.net.admission import ProtocolErrorLog
from dsched.net.protocol import FramedProtocol
from dsched.net.server import WorkerListenerFactory
from dsched.wire.framing import Frame
from dsched.wire.messages import HEARTBEAT_FRAME


class Silent:
    """An owner that registers nobody."""

    def connected(self, peer: FramedProtocol) -> None: ...

    def frames_received(self, peer: FramedProtocol, frames: list[Frame]) -> None: ...

    def protocol_failed(self, peer: FramedProtocol, error: ProtocolError) -> None: ...

    def disconnected(self, peer: FramedProtocol, reason: Exception) -> None: ...


class ListenerCase(SynchronousTestCase):
    """A listener whose peers are the test."""

    def setUp(self) -> None:
        self.reactor = ManualReactor()
        self.clock = Clock(self.reactor)
        self.listener = WorkerListenerFactory(Silent(), self.clock)
        self.events: list[LogEvent] = []
        observer = cast(ILogObserver, self.events.append)
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)

    def call(self, host: str) -> FramedProtocol | None:
        address = IPv4Address("TCP", host, 1)
        peer = self.listener.buildProtocol(address)
        if peer is not None:
            peer.makeConnection(StringTransport(peerAddress=address))
        return peer

    def hang_up(self, peer: FramedProtocol) -> None:
        peer.connectionLost(Failure(ConnectionDone()))

    def logged(self) -> list[LogEvent]:
        return [event for event in self.events if event["log_namespace"] == "dsched.net.admission.ProtocolErrorLog"]

    def test_strangers_are_few_from_one_address_and_few_in_all(self) -> None:
        peers = [self.call("10.0.0.1") for _ in range(33)]
        self.assertIsNone(peers[32])
        others = [self.call(f"10.0.1.{i}") for i in range(224)]
        self.assertNotIn(None, others)
        self.assertIsNone(self.call("10.0.2.1"))
        self.assertEqual((self.listener.pending.count, self.listener.refused), (256, 2))

        assert peers[0] is not None and peers[1] is not None
        peers[0].registered()
        peers[0].registered()
        self.hang_up(peers[1])
        self.assertEqual(self.listener.pending.count, 254)
        self.hang_up(peers[0])
        self.assertEqual(self.listener.pending.count, 254)
        self.assertIsNotNone(self.call("10.0.0.1"))
        self.assertIsNotNone(self.call("10.0.0.1"))
        self.assertIsNone(self.call("10.0.0.1"))
        self.assertEqual(len(self.listener.peers), 256)

    def test_all_are_closed_and_no_timer_is_left(self) -> None:
        peers = [self.call("10.0.0.1") for _ in range(3)]
        self.listener.close_all()
        for peer in peers:
            assert peer is not None
            self.assertTrue(peer.transport.disconnecting)
            self.hang_up(peer)
        self.assertEqual((self.listener.peers, self.listener.pending.count), (set(), 0))
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_errors_are_logged_once_per_address_and_minute_in_hex(self) -> None:
        """Case B090: once per address and minute, bytes as hex."""
        for _ in range(5):
            for host in ("10.0.0.1", "10.0.0.2"):
                peer = self.call(host)
                assert peer is not None
                peer.dataReceived(b"\xca\xfe\x1b[31m")
                self.hang_up(peer)
        self.assertEqual(
            [(e["address"], e["got"]) for e in self.logged()], [("10.0.0.1", "ca fe 1b"), ("10.0.0.2", "ca fe 1b")]
        )
        self.reactor.advance(60)
        peer = self.call("10.0.0.1")
        assert peer is not None
        peer.dataReceived(b"G")
        self.assertEqual((self.logged()[-1]["got"], self.logged()[-1]["untold"]), ("47", 4))

    def test_a_stranger_that_falls_silent_is_cut_and_logged(self) -> None:
        """Case B090."""
        peer = self.call("10.0.0.9")
        assert peer is not None
        peer.dataReceived(b"\xca\xfe\xba")
        self.reactor.advance(10)
        self.assertTrue(peer.transport.disconnected)
        self.assertEqual([e["got"] for e in self.logged()], ["ca fe ba"])

    def test_who_takes_nothing_for_a_minute_is_cut_and_who_takes_little_is_not(self) -> None:
        """Case B094: its beats do not help it."""
        peer = self.call("10.0.0.1")
        assert peer is not None
        peer.registered()
        transport = peer.transport
        for _ in range(3):
            transport.producer.pauseProducing()
            peer.send(b"waits")
            self.reactor.advance(59.9)
            peer.dataReceived(HEARTBEAT_FRAME)
            self.assertFalse(transport.disconnected)
            transport.producer.resumeProducing()
        self.reactor.advance(120)
        self.assertFalse(transport.disconnected)
        transport.producer.pauseProducing()
        self.reactor.advance(60)
        self.assertTrue(transport.disconnected)
        self.hang_up(peer)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_the_memory_of_who_was_logged_is_bounded(self) -> None:
        log = ProtocolErrorLog(self.clock, max_addresses=3)
        for number in range(5):
            log.report(f"10.0.0.{number}", "wrong", b"")
        self.assertEqual(len(self.logged()), 3)
        self.reactor.advance(61)
        log.report("10.0.0.4", "wrong", b"")
        self.assertEqual(len(self.logged()), 4)
