"""The worker as a service: it leaves in order, and at once where there is nothing to wait for (case B096)."""

import random
from collections.abc import Callable, Iterable
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.task import Clock as ManualReactor
from twisted.internet.testing import MemoryReactorClock, StringTransportWithDisconnection
from twisted.logger import LogEvent, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from dsched.clock import Clock
from dsched.errors import ConfigError
from dsched.jobs import JobContext, declaration_of, job
from dsched.wire.framing import FrameDecoder
from dsched.wire.messages import (
    FEATURES,
    MessageType,
    Redirect,
    RegisterAck,
    Request,
    ResultAcks,
    ResumeAck,
    decode_register,
    frame,
)
from dsched.worker.contact import ANSWER_S, BEAT_S
from dsched.worker.handlers import HandlerRegistry
from dsched.worker.service import WorkerService
from dsched.worker.settings import WorkerSettings


class Refusing:
    """A core that is down."""

    def __init__(self) -> None:
        self.attempts = 0

    def connect(self, factory: Any) -> Deferred[Any]:
        self.attempts += 1
        return fail(ConnectionRefusedError())


class Hanging(Refusing):
    """A core behind a wall that swallows packets."""

    def connect(self, factory: Any) -> Deferred[Any]:
        self.attempts += 1
        return Deferred()


class Accepting(Refusing):
    """A core that is up; the test speaks for it."""

    def connect(self, factory: Any) -> Deferred[Any]:
        self.attempts += 1
        self.peer = factory.buildProtocol(None)
        self.transport = StringTransportWithDisconnection()
        self.transport.protocol = self.peer
        self.decoder = FrameDecoder()
        self.peer.makeConnection(self.transport)
        connected: Deferred[Any] = Deferred()
        connected.callback(self.peer)
        return connected

    def say(self, *messages: Any) -> None:
        self.peer.dataReceived(b"".join(map(frame, messages)))

    def hear(self) -> list[tuple[int, bytes]]:
        frames = self.decoder.feed(self.transport.value())
        self.transport.clear()
        return [(received.type, received.body) for received in frames]

    def join(self) -> None:
        self.hear()
        self.say(RegisterAck("w", list(FEATURES)), ResumeAck([], 1))
        self.hear()

    def types(self) -> list[int]:
        return [kind for kind, _ in self.hear()]


def told(events: Iterable[LogEvent]) -> str:
    """Return what was logged, as people read it."""
    return "\n".join(filter(None, map(formatEvent, events)))


def request(item: int) -> Request:
    return Request(item + 1, "j", "null", 1, 0, 0, f"t{item}", 0, [], "wait", 1, 1, 1, "r")


class ServiceCase(SynchronousTestCase):
    """A service in manual time."""

    def setUp(self) -> None:
        self.reactor = ManualReactor()
        self.clock = Clock(self.reactor)
        self.gates: list[Deferred[Any]] = []

        @job("wait")
        async def wait(ctx: JobContext) -> Any:
            gate: Deferred[Any] = Deferred()
            self.gates.append(gate)
            return await gate

        declaration = declaration_of(wait)
        assert declaration is not None
        self.handlers = HandlerRegistry([declaration])

    def make(self, endpoint: Any, seed: int = 1, **settings: Any) -> WorkerService:
        return WorkerService(
            WorkerSettings((("core", 1),), "w", slots=1, **settings),
            self.clock,
            random.Random(seed),
            self.handlers,
            {"core": endpoint},
        )

    def pass_time(self, seconds: float, stop: Callable[[], bool] = lambda: False) -> None:
        end_s = self.reactor.seconds() + seconds
        while not stop():
            due = [call.getTime() for call in self.reactor.getDelayedCalls() if call.getTime() <= end_s]
            if not due:
                self.reactor.advance(end_s - self.reactor.seconds())
                return
            self.reactor.advance(max(0.0, min(due) - self.reactor.seconds()))

    def assert_clean(self) -> None:
        self.assertEqual(self.reactor.getDelayedCalls(), [])


class Stopping(ServiceCase):
    """`stopService`."""

    def test_a_stop_in_backoff_is_immediate_and_final(self) -> None:
        """Case B096: a stop during backoff, 200 rounds."""
        rng = random.Random(5)
        for seed in range(200):
            endpoint = Refusing()
            service = self.make(endpoint, seed)
            service.startService()
            self.pass_time(rng.uniform(0, 120))
            attempts = endpoint.attempts
            self.assertGreater(attempts, 0)
            self.successResultOf(service.stopService())
            self.assert_clean()
            self.pass_time(600)
            self.assertEqual(endpoint.attempts, attempts)

    def test_a_stop_while_connecting_is_immediate(self) -> None:
        service = self.make(Hanging())
        service.startService()
        self.pass_time(3)
        self.successResultOf(service.stopService())
        self.assert_clean()

    def test_a_stop_before_the_core_has_answered_is_quick(self) -> None:
        endpoint = Accepting()
        service = self.make(endpoint)
        service.startService()
        stopped = service.stopService()
        self.pass_time(1.1)
        self.successResultOf(stopped)
        self.assert_clean()

    def test_an_idle_worker_says_that_it_drains_and_leaves(self) -> None:
        endpoint = Accepting()
        service = self.make(endpoint)
        service.startService()
        endpoint.join()
        stopped = service.stopService()
        self.successResultOf(stopped)
        self.assertEqual(endpoint.types(), [MessageType.DRAIN])
        self.assertFalse(endpoint.transport.connected)
        self.assert_clean()

    def test_what_runs_is_finished_and_its_result_confirmed(self) -> None:
        endpoint = Accepting()
        service = self.make(endpoint)
        service.startService()
        endpoint.join()
        endpoint.say(request(0), request(1))
        stopped = service.stopService()
        self.assertEqual(endpoint.types(), [MessageType.DRAIN, MessageType.RESPONSE])
        endpoint.say(ResultAcks([("t1", 1)]))
        self.pass_time(29)
        self.assertNoResult(stopped)
        self.gates[0].callback("done")
        self.assertIn(MessageType.RESPONSE, endpoint.types())
        self.assertNoResult(stopped)
        endpoint.say(ResultAcks([("t0", 1)]))
        self.successResultOf(stopped)
        self.assert_clean()

    def test_what_runs_for_too_long_is_told_to_stop_and_left(self) -> None:
        endpoint = Accepting()
        service = self.make(endpoint, drain_s=10.0)
        service.startService()
        endpoint.join()
        endpoint.say(request(0))
        stopped = service.stopService()
        self.pass_time(9.9)
        self.assertNoResult(stopped)
        endpoint.hear()
        self.pass_time(0.2)
        # The coroutine was cancelled, and that is its result.
        self.assertEqual(endpoint.types(), [MessageType.RESPONSE])
        self.assertNoResult(stopped)
        self.pass_time(5)
        self.successResultOf(stopped)
        self.assert_clean()

    def test_a_connection_that_comes_back_while_draining_takes_the_result(self) -> None:
        endpoint = Accepting()
        service = self.make(endpoint)
        service.startService()
        endpoint.join()
        endpoint.say(request(0))
        stopped = service.stopService()
        endpoint.peer.abort()
        self.pass_time(2, lambda: endpoint.attempts == 2)
        endpoint.join()
        self.gates[0].callback("done")
        self.assertEqual(endpoint.types(), [MessageType.RESPONSE])
        endpoint.say(ResultAcks([("t0", 1)]))
        self.successResultOf(stopped)
        self.assert_clean()


class Starting(ServiceCase):
    """`startService`."""

    def test_each_instance_is_an_incarnation_of_its_own(self) -> None:
        incarnations = set()
        for seed in range(3):
            endpoint = Accepting()
            service = self.make(endpoint, seed)
            service.startService()
            [(_, body)] = endpoint.hear()
            incarnations.add(decode_register(body).incarnation)
            service.stopService()
        self.assertEqual(len(incarnations), 3)

    def test_a_connection_that_never_becomes_ready_backs_off(self) -> None:
        endpoint = Accepting()
        service = self.make(endpoint)
        service.startService()
        for _ in range(200):
            endpoint.peer.abort()
            self.pass_time(0.1)
        self.assertLess(endpoint.attempts, 60)
        stopped = service.stopService()
        self.pass_time(1.1)
        self.successResultOf(stopped)

    def test_a_core_that_comes_back_is_found_within_the_resume_grace(self) -> None:
        for seed in range(50):
            endpoint = Refusing()
            service = self.make(endpoint, seed)
            service.startService()
            self.pass_time(120)
            attempts = endpoint.attempts
            self.assertLess(attempts, 240)
            self.pass_time(3.1)
            self.assertGreater(endpoint.attempts, attempts)
            self.successResultOf(service.stopService())

    def test_nothing_happens_before_the_start(self) -> None:
        endpoint = Refusing()
        self.make(endpoint)
        self.assertEqual(endpoint.attempts, 0)
        self.assert_clean()

    def test_a_core_that_does_not_lead_sends_on_to_the_leader(self) -> None:
        follower, leader, third = Accepting(), Accepting(), Accepting()
        settings = WorkerSettings((("core", 1),), "w")
        cores = {"10.0.0.1:1": follower, "10.0.0.2:1": third, "10.0.0.3:1": leader}
        service = WorkerService(settings, self.clock, random.Random(1), self.handlers, cores)  # type: ignore[arg-type]
        service.startService()
        follower.say(Redirect("10.0.0.3:1"))
        follower.peer.abort()
        self.pass_time(1)
        self.assertEqual((follower.attempts, third.attempts, leader.attempts), (1, 0, 1))
        leader.join()
        leader.peer.abort()
        self.pass_time(1)
        self.assertEqual((follower.attempts, third.attempts, leader.attempts), (1, 0, 2))
        stopped = service.stopService()
        self.pass_time(1.1)
        self.successResultOf(stopped)

    def test_a_leader_that_was_not_known_is_tried_too(self) -> None:
        reactor = MemoryReactorClock()
        follower = Accepting()
        service = WorkerService(
            WorkerSettings((("core", 1),), "w"),
            Clock(reactor),
            random.Random(1),
            self.handlers,
            {"core:1": follower},  # type: ignore[dict-item]
        )
        service.startService()
        follower.say(Redirect("10.0.0.9:77"))
        follower.say(Redirect("unix:/tmp/trap"))
        follower.peer.abort()
        reactor.advance(1)
        reactor.advance(1)
        # The memory reactor resolves every name to loopback.
        self.assertEqual([client[1] for client in reactor.tcpClients], [77])
        self.successResultOf(service.stopService())
        self.flushLoggedErrors()

    def test_a_core_that_hangs_is_left_for_the_next_at_once(self) -> None:
        hanging, other = Accepting(), Accepting()
        settings = WorkerSettings((("core", 1),), "w")
        cores: Any = {"a": hanging, "b": other}
        service = WorkerService(settings, self.clock, random.Random(1), self.handlers, cores)
        service.startService()
        hanging.join()
        self.pass_time(BEAT_S + ANSWER_S - 0.1)
        self.assertEqual((hanging.attempts, other.attempts), (1, 0))
        self.pass_time(0.1)
        self.assertEqual((hanging.attempts, other.attempts), (1, 1))
        self.assertFalse(hanging.transport.connected)
        # This one accepts and says nothing; the first is well again.
        self.pass_time(ANSWER_S)
        self.assertEqual((hanging.attempts, other.attempts), (2, 1))
        hanging.join()
        self.successResultOf(service.stopService())
        self.assert_clean()

    def test_a_port_that_never_answers_may_not_be_that_for_workers(self) -> None:
        silent = Accepting()
        service = self.make(silent)
        service.startService()
        with capturedLogs() as events:
            self.pass_time(ANSWER_S - 0.1)
            self.assertNotIn("8080", told(events))
            self.pass_time(0.2)
        self.assertIn("core does not answer REGISTER: this may not be its port for workers", told(events))
        self.assertIn("8080 by default", told(events))
        # A core that has registered this worker once has the right port, whatever else it has.
        silent.join()
        with capturedLogs() as events:
            self.pass_time(BEAT_S + ANSWER_S + 1)
        self.assertIn("no answer to a beat", told(events))
        self.assertNotIn("may not be its port", told(events))
        stopped = service.stopService()
        self.pass_time(1.1)
        self.successResultOf(stopped)

    def test_a_port_that_speaks_http_is_named_at_once(self) -> None:
        http = Accepting()
        service = self.make(http)
        service.startService()
        with capturedLogs() as events:
            http.peer.dataReceived(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        self.assertIn("may be HTTP", told(events))
        stopped = service.stopService()
        self.pass_time(1.1)
        self.successResultOf(stopped)

    def test_settings_are_checked(self) -> None:
        with self.assertRaises(ConfigError):
            self.make(Refusing(), weight=0)
        with self.assertRaises(ConfigError):
            WorkerService(WorkerSettings((("core", 1),)), self.clock, random.Random(1), self.handlers)
