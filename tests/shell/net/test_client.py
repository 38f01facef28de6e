"""The reconnecting client on a memory reactor: waits, rounds over cores, and a stop that leaves nothing behind."""

from random import Random
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, TCP4ClientEndpoint
from twisted.internet.error import ConnectionDone, ConnectionRefusedError
from twisted.internet.interfaces import IConnector, IStreamClientEndpoint
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dsched.clock import Clock
from dsched.errors import ProtocolError
from dsched.net.client import ReconnectingClient, core_endpoint
from dsched.net.protocol import FramedProtocol
from dsched.wire.framing import Frame
from dsched.wire.messages import HEARTBEAT_FRAME


class Owner:
    """Remembers the connections and what came over them."""

    def __init__(self) -> None:
        self.open: list[FramedProtocol] = []
        self.opened = 0
        self.frames: list[Frame] = []

    def connected(self, peer: FramedProtocol) -> None:
        self.open.append(peer)
        self.opened += 1

    def frames_received(self, peer: FramedProtocol, frames: list[Frame]) -> None:
        self.frames += frames

    def protocol_failed(self, peer: FramedProtocol, error: ProtocolError) -> None: ...

    def disconnected(self, peer: FramedProtocol, reason: Exception) -> None:
        self.open.remove(peer)


class WidestRandom(Random):
    """Draws the upper end, so that waits are what they may be at most."""

    def uniform(self, a: float, b: float) -> float:
        return b


class Reconnecting(SynchronousTestCase):
    """The test plays the network: it answers each attempt."""

    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.owner = Owner()
        self.client = self.make("core-a")

    def make(self, *cores: str, rng: Random | None = None) -> ReconnectingClient:
        endpoints: dict[str, IStreamClientEndpoint] = {
            core: TCP4ClientEndpoint(self.reactor, core, 8080) for core in cores
        }
        return ReconnectingClient(endpoints, self.owner, Clock(self.reactor), rng or WidestRandom())

    @property
    def attempts(self) -> list[str]:
        return [host for host, *_ in self.reactor.tcpClients]

    def refuse(self) -> None:
        self.reactor.tcpClients[-1][2].clientConnectionFailed(cast(IConnector, None), Failure(ConnectionRefusedError()))

    def accept(self) -> StringTransport:
        protocol = self.reactor.tcpClients[-1][2].buildProtocol(None)
        assert protocol is not None
        transport = StringTransport()
        protocol.makeConnection(transport)
        self.wire: Any = protocol
        return transport

    def hang_up(self) -> None:
        self.wire.connectionLost(Failure(ConnectionDone()))

    def assertNothingLeft(self, stopped: "Deferred[None]") -> None:
        self.successResultOf(stopped)
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        attempts = len(self.attempts)
        self.reactor.pump([1] * 60)
        self.assertEqual(len(self.attempts), attempts)
        self.assertEqual(self.owner.open, [])

    def test_frames_come_through_and_go_out(self) -> None:
        self.client.start()
        self.client.start()
        transport = self.accept()
        self.wire.dataReceived(HEARTBEAT_FRAME)
        self.owner.open[0].send(b"hello")
        self.assertEqual((self.owner.frames, transport.value()), ([Frame(3, 1, b"")], b"hello"))
        self.assertEqual(self.attempts, ["core-a"])

    def test_waits_double_up_to_the_cap(self) -> None:
        self.client.start()
        waits = []
        for _ in range(9):
            self.refuse()
            (call,) = self.reactor.getDelayedCalls()
            waits.append(round(call.getTime() - self.reactor.seconds(), 3))
            self.reactor.advance(waits[-1])
        self.assertEqual(waits, [1, 2, 4, 8, 16, 30, 30, 30, 30])

    def test_waits_are_drawn_from_the_whole_range(self) -> None:
        client = self.make("core-a", rng=Random(5))
        client.start()
        waits = []
        for _ in range(300):
            self.refuse()
            (call,) = self.reactor.getDelayedCalls()
            waits.append(call.getTime() - self.reactor.seconds())
            self.reactor.advance(waits[-1])
        self.assertTrue(min(waits) < 2 and 28 < max(waits) <= 30)

    def test_a_success_makes_the_next_wait_short(self) -> None:
        self.client.start()
        for _ in range(5):
            self.refuse()
            self.reactor.advance(30)
        self.accept()
        self.client.succeeded()
        self.hang_up()
        (call,) = self.reactor.getDelayedCalls()
        self.assertEqual(call.getTime() - self.reactor.seconds(), 0.5)

    def test_a_core_that_accepts_and_closes_is_no_success(self) -> None:
        self.client.start()
        waits = []
        for _ in range(4):
            self.accept()
            self.hang_up()
            (call,) = self.reactor.getDelayedCalls()
            waits.append(round(call.getTime() - self.reactor.seconds(), 3))
            self.reactor.advance(waits[-1])
        self.assertEqual(waits, [1, 2, 4, 8])

    def test_several_cores_take_turns_and_the_good_one_is_tried_first(self) -> None:
        client = self.make("core-a", "core-b", "core-c")
        client.start()
        for _ in range(4):
            self.refuse()
            self.reactor.advance(30)
        self.assertEqual(self.attempts, ["core-a", "core-b", "core-c", "core-a", "core-b"])
        self.assertEqual(client.core, "core-b")
        self.accept()
        client.succeeded()
        self.hang_up()
        self.reactor.advance(30)
        self.assertEqual(self.attempts[-1], "core-b")

    def test_an_attempt_has_10_s(self) -> None:
        self.client.start()
        self.reactor.advance(10.1)
        self.assertEqual(len(self.attempts), 1)
        self.reactor.advance(1)
        self.assertEqual(len(self.attempts), 2)

    def test_stop_in_a_wait_an_attempt_or_a_connection(self) -> None:
        """Case B096, at 200 moments."""
        rng = Random(96)
        for number in range(200):
            self.setUp()
            self.client.start()
            for _ in range(number % 3):
                self.refuse()
                self.reactor.advance(30)
            state = rng.choice(("waiting", "attempting", "connected"))
            if state == "connected":
                transport = self.accept()
                stopped = self.client.stop()
                self.assertTrue(transport.disconnecting)
                self.assertNoResult(stopped)
                self.hang_up()
            else:
                if state == "waiting":
                    self.refuse()
                stopped = self.client.stop()
            self.assertNothingLeft(stopped)

    def test_stop_cuts_a_peer_that_does_not_take_the_last_bytes(self) -> None:
        self.client.start()
        transport = self.accept()
        assert transport.producer is not None
        transport.producer.pauseProducing()
        self.owner.open[0].send(b"unread")
        stopped = self.client.stop()
        self.assertFalse(transport.disconnecting)
        self.reactor.advance(1)
        self.assertTrue(transport.disconnected)
        self.hang_up()
        self.assertNothingLeft(stopped)

    def test_stop_without_start_and_twice(self) -> None:
        self.assertNothingLeft(self.client.stop())
        self.client.start()
        self.accept()
        first, second = self.client.stop(), self.client.stop()
        self.hang_up()
        self.assertNothingLeft(first)
        self.assertNothingLeft(second)

    def test_start_stop_start_in_one_turn(self) -> None:
        """Case B096, the second half."""
        self.client.start()
        self.successResultOf(self.client.stop())
        self.client.start()
        self.accept()
        self.assertEqual((len(self.attempts), len(self.owner.open)), (2, 1))
        stopped = self.client.stop()
        self.client.start()
        self.hang_up()
        self.successResultOf(stopped)
        self.reactor.advance(1)
        self.accept()
        self.assertEqual(len(self.owner.open), 1)
        last = self.client.stop()
        self.hang_up()
        self.assertNothingLeft(last)

    def test_a_connection_that_comes_after_stop_is_cut(self) -> None:
        self.client.start()
        self.client._wanted = False  # As if the stop had come between the kernel's news and ours.
        transport = self.accept()
        self.assertTrue(transport.disconnected)
        self.assertEqual(self.owner.opened, 0)


class Addresses(SynchronousTestCase):
    """What people write after --core."""

    def test_forms(self) -> None:
        reactor = MemoryReactorClock()
        for text, host, port in (
            ("8080", "127.0.0.1", 8080),
            ("core.example:9000", "core.example", 9000),
            ("[::1]:9000", "::1", 9000),
        ):
            endpoint = core_endpoint(reactor, text)
            assert isinstance(endpoint, HostnameEndpoint)
            self.assertEqual((endpoint._hostText, endpoint._port), (host, port))
        self.assertIsInstance(core_endpoint(reactor, "tcp:localhost:8080"), HostnameEndpoint | TCP4ClientEndpoint)
        for text in ("", "host", "host:", "::1"):
            self.assertRaises(ValueError, core_endpoint, reactor, text)
