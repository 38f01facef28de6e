"""The wire on real sockets: what no memory transport can show."""

import socket
from random import Random
from typing import Any

import pytest
from twisted.internet import reactor as global_reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from dsched.clock import Clock
from dsched.errors import ProtocolError
from dsched.net.client import ReconnectingClient, core_endpoint
from dsched.net.protocol import FramedProtocol, PeerNotReading
from dsched.net.server import WorkerListenerFactory
from dsched.wire.framing import Frame, encode_frame
from dsched.wire.messages import HEARTBEAT_FRAME

pytestmark = pytest.mark.integration

reactor: Any = global_reactor


class Owner:
    """Registers everybody, counts what comes, remembers who is here and why others went."""

    def __init__(self) -> None:
        self.peers: list[FramedProtocol] = []
        self.sizes: list[int] = []
        self.reasons: list[Exception] = []

    def connected(self, peer: FramedProtocol) -> None:
        self.peers.append(peer)
        peer.registered()

    def frames_received(self, peer: FramedProtocol, frames: list[Frame]) -> None:
        self.sizes += [len(frame.body) for frame in frames]

    def protocol_failed(self, peer: FramedProtocol, error: ProtocolError) -> None: ...

    def disconnected(self, peer: FramedProtocol, reason: Exception) -> None:
        self.peers.remove(peer)
        self.reasons.append(reason)


class RealSockets(TestCase):
    """One listener on loopback."""

    timeout = 60

    def setUp(self) -> None:
        self.clock = Clock(reactor)
        self.core = Owner()
        self.worker = Owner()
        self.listener = WorkerListenerFactory(self.core, self.clock)
        self.port = reactor.listenTCP(0, self.listener, interface="127.0.0.1")
        self.number = self.port.getHost().port
        self.addCleanup(self.port.stopListening)
        self.addCleanup(lambda: Deferred.fromCoroutine(self.settle()))

    async def settle(self) -> None:
        self.listener.close_all()
        await self.until(lambda: not self.core.peers)
        self.assertEqual(self.listener.pending.count, 0)

    async def until(self, condition: Any) -> None:
        while not condition():
            await deferLater(reactor, 0.005)

    def client(self) -> ReconnectingClient:
        address = f"localhost:{self.number}"
        return ReconnectingClient({address: core_endpoint(reactor, address)}, self.worker, self.clock, Random(1))

    async def test_a_lot_in_both_directions(self) -> None:
        client = self.client()
        client.start()
        await self.until(lambda: self.core.peers and self.worker.peers)
        frames = [encode_frame(1, bytes(size)) for size in (0, 150, 65_536, 1_000_000)]
        ends = (self.core.peers[0], self.worker.peers[0])
        for number in range(100):
            for end in ends:
                await self.until(lambda end=end: end.writable)
                end.send(frames[number % 4])
        expected = [len(frames[number % 4]) - 11 for number in range(100)]
        await self.until(lambda: len(self.core.sizes) == len(self.worker.sizes) == 100)
        self.assertEqual(self.core.sizes, expected)
        self.assertEqual(self.worker.sizes, expected)
        await client.stop()

    async def test_a_peer_that_never_reads_is_bounded_and_hurts_nobody(self) -> None:
        """Case B094: what waits for one that does not read is bounded."""
        client = self.client()
        client.start()
        await self.until(lambda: self.core.peers)
        honest = self.core.peers[0]
        slow_socket = socket.create_connection(("127.0.0.1", self.number))
        self.addCleanup(slow_socket.close)
        await self.until(lambda: len(self.core.peers) == 2)
        slow = next(peer for peer in self.core.peers if peer is not honest)
        request = encode_frame(1, bytes(100_000))
        sent = 0
        while slow.writable or sent == 0:
            slow.send(request)
            sent += 1
            await deferLater(reactor, 0)
        self.assertLess(sent, 1000)
        while slow.is_open:
            slow.send(request)
            self.assertLess(slow.unsent, 4 * 1_048_576 + 300_000)
        honest.send(HEARTBEAT_FRAME)
        await self.until(lambda: self.worker.sizes == [0] and len(self.core.peers) == 1)
        self.assertIsInstance(self.core.reasons[0], PeerNotReading)
        await client.stop()

    async def test_closing_delivers_everything_first(self) -> None:
        client = self.client()
        client.start()
        await self.until(lambda: self.core.peers and self.worker.peers)
        self.core.peers[0].send(encode_frame(1, bytes(1_000_000)) * 3)
        self.core.peers[0].close()
        await self.until(lambda: self.worker.reasons)
        self.assertEqual(self.worker.sizes, [1_000_000] * 3)
        await client.stop()

    async def test_other_protocols_are_hung_up_on(self) -> None:
        """Case B090 on real sockets."""
        for hello in (b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00", bytes.fromhex("cafebabf01030100000000"), b"\x00"):
            with socket.create_connection(("127.0.0.1", self.number)) as stranger:
                stranger.setblocking(False)
                stranger.send(hello)
                before = len(self.core.reasons)
                await self.until(lambda before=before: len(self.core.reasons) > before)
        self.assertTrue(all(isinstance(reason, ProtocolError) for reason in self.core.reasons))

    async def test_stopping_at_any_moment_leaves_nothing(self) -> None:
        """Case B096 on real sockets."""
        rng = Random(96)
        for number in range(60):
            if number == 30:
                await self.port.stopListening()
            client = self.client()
            client.start()
            await deferLater(reactor, rng.choice((0, 0.001, rng.uniform(0, 0.02))))
            if number % 3 == 0:
                # Quickly again.
                stopped = client.stop()
                client.start()
                await stopped
            await client.stop()
            self.assertEqual(self.worker.peers, [])
            await self.until(lambda: not self.core.peers)
            await deferLater(reactor, 0)  # A cancelled connect of Twisted leaves a call for the next turn.
            # All but the time limit of the test itself.
            self.assertEqual([call for call in reactor.getDelayedCalls() if "onTimeout" not in str(call)], [])
