from typing import Any

from twisted.application.internet import ClientService, backoffPolicy
from twisted.internet.defer import Deferred
from twisted.internet.error import (
    CannotListenError,
    ConnectingCancelledError,
    ConnectionAborted,
    ConnectionDone,
    ConnectionLost,
    ConnectionRefusedError,
    TimeoutError,
)
from twisted.internet.interfaces import IAddress, IConsumer, IListeningPort, IPushProducer, ITransport
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from dsched.testing.sim_network import Connection, Link
from dsched.testing.sim_node import CrashKind, SimNode
from dsched.testing.sim_transport import SimTransport
from dsched.testing.world import SimWorld

FAST = Link(latency_s=(0.001, 0.001), split=0.0, merge=0.0)


class Recorder(Protocol):
    """Keeps what it receives, and why it ended."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.reason: type[BaseException] | None = None

    def dataReceived(self, data: bytes) -> None:
        self.chunks.append(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.reason = reason.type

    @property
    def received(self) -> bytes:
        return b"".join(self.chunks)


class Listener(Factory[Recorder]):
    noisy = False

    def __init__(self) -> None:
        self.refuses = False
        self.built: list[Recorder] = []

    def buildProtocol(self, addr: IAddress | None) -> Recorder | None:
        if self.refuses:
            return None
        protocol = Recorder()
        self.built.append(protocol)
        return protocol


class FloodProducer:
    """Writes blocks until it is paused."""

    def __init__(self, transport: SimTransport, total: int) -> None:
        self.transport = transport
        self.left = total
        self.pauses = 0
        self.paused = False
        self.stopped = False

    def pauseProducing(self) -> None:
        self.pauses += 1
        self.paused = True

    def resumeProducing(self) -> None:
        self.paused = False
        while self.left and not self.paused:
            size = min(self.left, 10_000)
            self.left -= size
            self.transport.write(b"x" * size)
        if not self.left:
            self.transport.unregisterProducer()

    def stopProducing(self) -> None:
        self.stopped = True


class NetworkCase(SynchronousTestCase):
    link = FAST

    def setUp(self) -> None:
        self.world = SimWorld(7, link=self.link)
        self.addCleanup(self.world.close)
        self.network = self.world.network
        self.core = self.world.node("core")
        self.worker = self.world.node("worker")
        self.listener = Listener()
        self.listen()

    def listen(self) -> IListeningPort:
        return self.successResultOf(self.network.listen(self.core, 8080).listen(self.listener))

    def connect(self, address: str = "core:8080", timeout_s: float = 30.0) -> Deferred[Any]:
        return self.network.connect(self.worker, address, timeout_s).connect(Listener())

    def pair(self) -> tuple[Any, Any]:
        done = self.connect()
        self.world.run_for(0.01)
        return self.successResultOf(done), self.listener.built[-1]

    def connection(self) -> Connection:
        return self.network.between(self.core, self.worker)[-1]


class ConnectingTests(NetworkCase):
    def test_addresses_and_interfaces(self) -> None:
        client, server = self.pair()
        self.assertEqual(client.transport.getPeer(), server.transport.getHost())
        self.assertEqual(client.transport.getHost(), server.transport.getPeer())
        self.assertEqual((client.transport.getPeer().host, client.transport.getPeer().port), (self.core.ip, 8080))
        for interface in (ITransport, IConsumer, IPushProducer):
            verifyObject(interface, client.transport)
        client.transport.setTcpNoDelay(True)
        client.transport.setTcpKeepAlive(True)
        self.assertTrue(client.transport.getTcpNoDelay() and client.transport.getTcpKeepAlive())

    def test_nobody_listens(self) -> None:
        done = self.connect("core:9999")
        self.assertNoResult(done)
        self.world.run_for(1)
        self.failureResultOf(done, ConnectionRefusedError)

    def test_a_killed_process_refuses_and_a_machine_without_power_is_silent(self) -> None:
        self.core.crash()
        refused = self.connect(timeout_s=5)
        self.world.run_for(1)
        self.failureResultOf(refused, ConnectionRefusedError)
        self.core.start(lambda node: None)
        self.core.crash(CrashKind.SILENT)
        silent = self.connect(timeout_s=5)
        self.world.run_for(4.9)
        self.assertNoResult(silent)
        self.world.run_for(0.2)
        self.failureResultOf(silent, TimeoutError)

    def test_a_partition_times_out_either_way(self) -> None:
        for direction in ("both", "to", "from"):
            self.network.partition(self.worker, self.core, direction)
            done = self.connect(timeout_s=10)
            self.world.run_for(9.9)
            self.assertNoResult(done)
            self.world.run_for(0.2)
            self.failureResultOf(done, TimeoutError)
            self.network.heal(self.core, self.worker)
        self.assertEqual(self.listener.built, [])

    def test_a_request_is_repeated_after_a_heal(self) -> None:
        self.network.partition(self.worker, self.core)
        done = self.connect()
        self.world.run_for(5)
        self.network.heal()
        self.world.run_for(1)
        self.assertNoResult(done)
        self.world.run_for(2)
        self.successResultOf(done)

    def test_cancelling_an_attempt(self) -> None:
        self.network.partition(self.worker, self.core)
        done = self.connect()
        self.world.run_for(1)
        done.cancel()
        self.failureResultOf(done, ConnectingCancelledError)
        self.network.heal()
        self.world.run_for(60)
        self.assertEqual(self.listener.built, [])
        self.assertEqual(self.worker.reactor.getDelayedCalls(), [])

    def test_a_taken_port(self) -> None:
        self.failureResultOf(self.network.listen(self.core, 8080).listen(Listener()), CannotListenError)
        self.failureResultOf(self.network.listen(self.core, "worker:80").listen(Listener()), CannotListenError)

    def test_two_processes_on_one_machine_share_its_ports(self) -> None:
        second = self.world.node("second", ip=self.core.ip)
        self.failureResultOf(self.network.listen(second, 8080).listen(Listener()), CannotListenError)
        self.core.crash()
        listener = Listener()
        self.successResultOf(self.network.listen(second, 8080).listen(listener))
        done = self.connect(f"{self.core.ip}:8080")
        self.world.run_for(1)
        self.successResultOf(done)
        self.assertEqual(len(listener.built), 1)

    def test_a_closed_port(self) -> None:
        port: Any = self.successResultOf(self.network.listen(self.core, 0).listen(Listener()))
        verifyObject(IListeningPort, port)
        number = port.getHost().port
        self.assertGreater(number, 0)
        stopped = port.stopListening()
        self.world.run_for(0)
        self.successResultOf(stopped)
        done = self.connect(f"core:{number}")
        self.world.run_for(1)
        self.failureResultOf(done, ConnectionRefusedError)

    def test_the_kernel_of_a_paused_process_accepts(self) -> None:
        self.core.pause()
        done = self.connect()
        self.world.run_for(60)
        client = self.successResultOf(done)
        client.transport.write(b"hello")
        self.world.run_for(1)
        self.assertEqual(self.listener.built, [])
        self.core.resume()
        self.world.run_for(1)
        self.assertEqual(self.listener.built[0].received, b"hello")

    def test_a_server_that_builds_no_protocol(self) -> None:
        self.listener.refuses = True
        done = self.connect()
        self.world.run_for(1)
        self.assertIs(self.successResultOf(done).reason, ConnectionLost)


class StreamTests(NetworkCase):
    link = Link(split=0.5, merge=0.5)

    def test_order_is_kept_and_chunks_are_not(self) -> None:
        done = self.connect()
        self.world.run_for(0.1)
        client, server = self.successResultOf(done), self.listener.built[0]
        sent = [bytes([number]) * (number + 1) for number in range(250)]
        for number, piece in enumerate(sent):
            self.worker.reactor.callLater(number * 0.002, client.transport.write, piece)
        client.transport.writeSequence([b"first", b", "])
        self.world.run_for(10)
        self.assertEqual(server.received, b"first, " + b"".join(sent))
        sizes = {len(chunk) for chunk in server.chunks}
        self.assertIn(1, sizes)
        self.assertGreater(len([chunk for chunk in server.chunks if len(set(chunk)) > 1]), 10)


class ClosingTests(NetworkCase):
    def test_what_was_written_arrives_before_the_close(self) -> None:
        client, server = self.pair()
        client.transport.write(b"x" * 500_000)
        client.transport.loseConnection()
        self.assertTrue(client.transport.disconnecting)
        self.world.run_for(10)
        self.assertEqual(len(server.received), 500_000)
        self.assertEqual((client.reason, server.reason), (ConnectionDone, ConnectionDone))
        self.assertEqual(self.network.connections, {})
        self.assertFalse(client.transport.connected)

    def test_abort(self) -> None:
        client, server = self.pair()
        client.transport.write(b"lost")
        client.transport.abortConnection()
        self.assertIsNone(client.reason)
        self.world.run_for(1)
        self.assertEqual((client.reason, server.reason), (ConnectionAborted, ConnectionLost))
        self.assertEqual(server.received, b"")

    def test_writing_to_a_closed_peer(self) -> None:
        client, server = self.pair()
        server.transport.loseConnection()
        client.transport.write(b"into the void")
        self.world.run_for(1)
        client.transport.write(b"nothing")
        self.world.run_for(1)
        self.assertEqual((client.reason, server.reason), (ConnectionDone, ConnectionDone))

    def test_a_protocol_that_raises_loses_its_connection(self) -> None:
        client, server = self.pair()
        self.world.errors.expect(ValueError)

        def broken(data: bytes) -> None:
            raise ValueError("cannot")

        server.dataReceived = broken
        client.transport.write(b"x")
        self.world.run_for(1)
        self.assertEqual((client.reason, server.reason), (ConnectionDone, ValueError))
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)


class FaultTests(NetworkCase):
    def test_the_peer_of_a_killed_process_sees_a_reset(self) -> None:
        client, server = self.pair()
        server.transport.write(b"never left the process")
        self.core.crash()
        self.assertIsNone(client.reason)
        self.world.run_for(1)
        self.assertEqual((client.reason, client.received), (ConnectionLost, b""))
        self.assertIsNone(server.reason)

    def test_or_an_orderly_close(self) -> None:
        client, server = self.pair()
        server.transport.write(b"sent")
        self.world.run_for(0)
        self.core.crash(CrashKind.CLOSE)
        self.world.run_for(1)
        self.assertEqual((client.reason, client.received), (ConnectionDone, b"sent"))

    def test_or_nothing_until_the_machine_is_back(self) -> None:
        client, server = self.pair()
        self.core.crash(CrashKind.SILENT)
        self.world.run_for(3_600)
        client.transport.write(b"are you there?")
        self.world.run_for(60)
        self.assertIsNone(client.reason)
        self.core.start(lambda node: None)
        self.world.run_for(1)
        self.assertIs(client.reason, ConnectionLost)

    def test_a_cut_resets_both_in_mid_stream(self) -> None:
        got = set()
        for _ in range(10):
            client, server = self.pair()
            client.transport.write(b"0123456789" * 10)
            self.world.run_for(0)
            self.network.cut(self.connection())
            self.world.run_for(1)
            self.assertEqual((client.reason, server.reason), (ConnectionLost, ConnectionLost))
            self.assertTrue((b"0123456789" * 10).startswith(server.received))
            got.add(len(server.received))
        self.assertGreater(len(got), 5)

    def test_half_open(self) -> None:
        client, server = self.pair()
        self.network.half_open(self.connection(), self.worker)
        self.world.run_for(1)
        self.assertIs(client.reason, ConnectionLost)
        for _ in range(100):
            server.transport.write(b"ping" * 1_000)
            self.world.run_for(30)
        self.assertIsNone(server.reason)
        self.assertGreater(server.transport.buffered, 0)
        server.transport.abortConnection()
        self.world.run_for(1)
        self.assertIs(server.reason, ConnectionAborted)
        self.assertEqual(self.network.connections, {})

    def test_a_partition_holds_bytes_back_one_way(self) -> None:
        client, server = self.pair()
        self.network.partition(self.worker, self.core, "to")
        client.transport.write(b"up")
        server.transport.write(b"down")
        self.world.run_for(300)
        self.assertEqual((server.received, client.received), (b"", b"down"))
        self.network.heal(self.core)
        self.world.run_for(1)
        self.assertEqual(server.received, b"up")

    def test_isolation(self) -> None:
        client, server = self.pair()
        self.network.isolate(self.core)
        client.transport.write(b"up")
        self.world.run_for(60)
        self.network.heal(self.worker, self.world.node("other"))
        self.world.run_for(60)
        self.assertEqual(server.received, b"")
        self.network.heal()
        self.world.run_for(1)
        self.assertEqual(server.received, b"up")

    def test_a_stall_releases_in_order(self) -> None:
        client, server = self.pair()
        self.network.stall(self.connection(), toward=self.core)
        for number in range(10):
            client.transport.write(b"%d" % number)
            server.transport.write(b"%d" % number)
            self.world.run_for(1)
        self.assertEqual((server.received, client.received), (b"", b"0123456789"))
        self.network.release(self.connection())
        self.world.run_for(1)
        self.assertEqual(server.received, b"0123456789")

    def test_a_close_behind_a_stall_waits_for_it(self) -> None:
        client, server = self.pair()
        self.network.stall(self.connection())
        client.transport.write(b"bye")
        client.transport.loseConnection()
        self.world.run_for(60)
        self.assertEqual((client.reason, server.reason), (ConnectionDone, None))
        self.network.release(self.connection())
        self.world.run_for(1)
        self.assertEqual((server.received, server.reason), (b"bye", ConnectionDone))

    def test_a_reader_that_does_not_read_learns_of_a_reset_when_it_writes(self) -> None:
        client, server = self.pair()
        server.transport.pauseProducing()
        client.transport.abortConnection()
        self.world.run_for(60)
        self.assertIsNone(server.reason)
        server.transport.write(b"x")
        self.world.run_for(1)
        self.assertIs(server.reason, ConnectionLost)

    def test_a_closing_end_whose_peer_does_not_read_ends_with_its_reset(self) -> None:
        client, server = self.pair()
        server.transport.pauseProducing()
        client.transport.write(b"x" * 1_000_000)
        client.transport.loseConnection()
        self.world.run_for(600)
        self.assertIsNone(client.reason)
        self.core.crash()
        self.world.run_for(1)
        self.assertIs(client.reason, ConnectionLost)


class BackPressureTests(NetworkCase):
    def test_a_slow_reader_pauses_the_producer(self) -> None:
        client, server = self.pair()
        client.transport.pauseProducing()
        producer = FloodProducer(server.transport, 1_000_000)
        server.transport.registerProducer(producer, True)
        self.assertRaises(RuntimeError, server.transport.registerProducer, producer, True)
        producer.resumeProducing()
        self.world.run_for(60)
        self.assertTrue(producer.paused)
        self.assertGreater(producer.left, 700_000)
        self.assertEqual(client.received, b"")
        client.transport.resumeProducing()
        self.world.run_for(60)
        self.assertEqual((producer.left, len(client.received)), (0, 1_000_000))
        self.assertGreater(producer.pauses, 5)

    def test_a_paused_or_partitioned_node_does_too(self) -> None:
        for hinder, free in (
            (self.worker.pause, self.worker.resume),
            (lambda: self.network.partition(self.core, self.worker), self.network.heal),
        ):
            client, server = self.pair()
            hinder()
            producer = FloodProducer(server.transport, 1_000_000)
            server.transport.registerProducer(producer, True)
            producer.resumeProducing()
            self.world.run_for(60)
            self.assertTrue(producer.paused)
            free()
            self.world.run_for(60)
            self.assertEqual(len(client.received), 1_000_000)

    def test_a_close_waits_for_a_paused_producer(self) -> None:
        client, server = self.pair()
        producer = FloodProducer(server.transport, 500_000)
        server.transport.registerProducer(producer, True)
        producer.resumeProducing()
        server.transport.loseConnection()
        self.world.run_for(60)
        self.assertEqual((len(client.received), client.reason), (500_000, ConnectionDone))

    def test_a_producer_is_stopped_with_its_connection(self) -> None:
        client, server = self.pair()
        client.transport.pauseProducing()
        producer = FloodProducer(server.transport, 1_000_000)
        server.transport.registerProducer(producer, True)
        producer.resumeProducing()
        self.worker.crash()
        self.world.run_for(1)
        self.assertTrue(producer.stopped)
        self.assertIs(server.reason, ConnectionLost)


class ClientServiceTests(NetworkCase):
    def test_it_reconnects_with_seeded_backoff(self) -> None:
        rng = self.world.derive_rng("jitter")
        made = []

        def build(node: SimNode) -> ClientService:
            service = ClientService(
                self.network.connect(node, "core:8080"),
                Listener(),
                retryPolicy=backoffPolicy(1.0, 60.0, 2.0, jitter=rng.random),
                clock=node.reactor,
                prepareConnection=lambda protocol: made.append(self.world.reactor.seconds()),
            )
            service.startService()
            return service

        service = self.worker.start(build)
        self.world.run_for(1)
        self.assertEqual(len(made), 1)
        self.core.crash()
        self.world.run_for(600)
        self.assertEqual(len(made), 1)
        self.core.start(lambda node: self.listen())
        self.world.run_for(120)
        self.assertEqual(len(made), 2)
        self.core.crash(CrashKind.SILENT)
        self.world.run_for(60)
        self.core.start(lambda node: self.listen())
        self.world.run_for(60)
        self.assertEqual(len(made), 2)  # it writes nothing, so nothing tells it
        self.network.cut(self.connection())
        self.world.run_for(120)
        self.assertEqual(len(made), 3)
        stopped = service.stopService()
        self.world.run_for(1)
        self.successResultOf(stopped)
        self.assertEqual(self.worker.reactor.getDelayedCalls(), [])
