"""A worker's session over a memory transport, in manual time: the test is the core."""

from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock as ManualReactor
from twisted.internet.testing import StringTransportWithDisconnection
from twisted.trial.unittest import SynchronousTestCase

from dsched.clock import Clock
from dsched.jobs import Cancelled, JobContext, declaration_of, job
from dsched.net.protocol import FramedProtocol
from dsched.wire.framing import FrameDecoder
from dsched.wire.messages import (
    FEATURES,
    Cancel,
    Drain,
    Error,
    Heartbeat,
    MessageType,
    RegisterAck,
    Request,
    ResponseIn,
    ResultAcks,
    ResumeAck,
    ResumeIn,
    decode_drain,
    decode_heartbeat,
    decode_register,
    decode_response,
    decode_resume,
    decode_started,
    frame,
)
from dsched.worker.contact import ANSWER_S, BEAT_S
from dsched.worker.handlers import HandlerRegistry
from dsched.worker.ledger import Ledger
from dsched.worker.session import Session, SessionState
from dsched.worker.settings import MAX_PREFETCH, WorkerSettings

DECODERS: dict[int, Any] = {
    MessageType.REGISTER: decode_register,
    MessageType.RESUME: decode_resume,
    MessageType.RESPONSE: decode_response,
    MessageType.STARTED: decode_started,
    MessageType.HEARTBEAT: decode_heartbeat,
    MessageType.DRAIN: decode_drain,
}
SLOTS = 2


class Gates:
    """Handlers whose end the test decides, by task id."""

    def __init__(self) -> None:
        self.open: dict[str, Deferred[Any]] = {}
        self.contexts: dict[str, JobContext] = {}
        self.begun: list[str] = []

    def handlers(self) -> HandlerRegistry:
        @job("wait")
        async def wait(ctx: JobContext) -> Any:
            return await self._enter(ctx)

        @job("stubborn")
        async def stubborn(ctx: JobContext) -> Any:
            while True:
                try:
                    return await self._enter(ctx)
                except CancelledError:
                    continue

        @job("polite")
        async def polite(ctx: JobContext) -> Any:
            try:
                return await self._enter(ctx)
            except CancelledError:
                raise Cancelled("stopped") from None

        @job("echo")
        async def echo(ctx: JobContext) -> Any:
            self._note(ctx)
            return ctx.params

        @job("exit")
        async def leave(ctx: JobContext) -> Any:
            raise SystemExit(1)

        declarations = [declaration_of(function) for function in (wait, stubborn, polite, echo, leave)]
        return HandlerRegistry(declaration for declaration in declarations if declaration)

    def _note(self, ctx: JobContext) -> None:
        self.begun.append(ctx.task_id)
        self.contexts[ctx.task_id] = ctx

    def _enter(self, ctx: JobContext) -> Deferred[Any]:
        self._note(ctx)
        gate: Deferred[Any] = Deferred()
        self.open[ctx.task_id] = gate
        return gate


class Line:
    """One connection, seen from the core."""

    def __init__(self, session: Session, clock: Clock) -> None:
        self.session = session
        self.transport = StringTransportWithDisconnection()
        self.peer = FramedProtocol(session, clock)
        self.transport.protocol = self.peer
        self.peer.makeConnection(self.transport)
        self._decoder = FrameDecoder()

    def say(self, *messages: Any) -> None:
        """Send messages, all in one piece."""
        self.peer.dataReceived(b"".join(map(frame, messages)))

    def hear(self) -> list[Any]:
        """Return what the worker has sent since the last call."""
        frames = self._decoder.feed(self.transport.value())
        self.transport.clear()
        return [DECODERS[received.type](received.body) for received in frames]

    def join(self, epoch: int = 1, terminal: list[str] | None = None) -> list[ResumeIn]:
        """Register and resume; return what RESUME said."""
        [register] = self.hear()
        assert register.features == list(FEATURES)
        self.say(RegisterAck(register.worker_id, list(FEATURES)))
        resume: list[ResumeIn] = self.hear()
        self.say(ResumeAck(terminal or [], epoch))
        return resume

    @property
    def is_closed(self) -> bool:
        return not self.transport.connected


def request(item: int = 0, handler: str = "wait", **more: Any) -> Request:
    fields: dict[str, Any] = {
        "job_id": 100 + item,
        "job_name": "job",
        "params": "null",
        "sharding_total": 10,
        "sharding_item": item,
        "timeout": 30,
        "task_id": f"job~k:{item}",
        "retry_count": 0,
        "preload_keys": [],
        "handler": handler,
        "attempt": 1,
        "fence": 7,
        "epoch": 1,
        "run_id": "job~k",
    }
    return Request(**{**fields, **more})


def task(item: int) -> str:
    return f"job~k:{item}"


class Disk:
    """The file of a ledger."""

    def __init__(self, data: bytearray) -> None:
        self.data = data

    def read(self) -> bytes:
        return bytes(self.data)

    def append(self, data: bytes) -> None:
        self.data += data

    def replace(self, data: bytes) -> None:
        self.data[:] = data

    def move_aside(self) -> str:
        raise AssertionError("damaged")


class SessionCase(SynchronousTestCase):
    """A session with two slots."""

    def setUp(self) -> None:
        self.reactor = ManualReactor()
        self.clock = Clock(self.reactor, wall=lambda: 1_700_000_000.0 + self.reactor.seconds())
        self.gates = Gates()
        self.ready = 0
        self.unanswered = 0
        self.disk = bytearray()
        self.session = self.start("i-1")

    def start(self, incarnation: str) -> Session:
        """Start a process of this worker."""
        settings = WorkerSettings((("core", 1),), "w-1", slots=SLOTS, tags=("red",), weight=3, host="box")
        session = Session(
            settings,
            self.gates.handlers(),
            self.clock,
            incarnation,
            ledger=Ledger(Disk(self.disk)),
            on_ready=self._on_ready,
            on_unanswered=self._on_unanswered,
        )
        session.start()
        return session

    def kill_and_start(self) -> None:
        """Start another process of this worker; of the first one nothing but its ledger is left."""
        if self.session._peer is not None:
            self.session._peer.abort()
        kept = bytes(self.disk)
        self.session.stop()
        self.disk[:] = kept
        self.session = self.start("i-2")

    def tearDown(self) -> None:
        if self.session.state is not SessionState.OFFLINE:
            assert self.session._peer is not None
            self.session._peer.abort()
        self.session.stop()
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def _on_ready(self) -> None:
        self.ready += 1

    def _on_unanswered(self) -> None:
        self.unanswered += 1

    def connect(self) -> Line:
        return Line(self.session, self.clock)

    def joined(self) -> Line:
        line = self.connect()
        line.join()
        return line

    def pass_time(self, seconds: float, alive: Line | None = None) -> None:
        """Step from deadline to deadline: a jump would fire a periodic call once. `alive` answers beats."""
        end_s = self.reactor.seconds() + seconds
        while True:
            due = [call.getTime() for call in self.reactor.getDelayedCalls() if call.getTime() <= end_s]
            if not due:
                break
            self.reactor.advance(max(0.0, min(due) - self.reactor.seconds()))
            if alive is not None:
                alive.say(*(Heartbeat() for message in alive.hear() if isinstance(message, Heartbeat)))
        self.reactor.advance(end_s - self.reactor.seconds())

    def responses(self, line: Line) -> list[ResponseIn]:
        return [message for message in line.hear() if isinstance(message, ResponseIn)]

    def outcomes(self, line: Line) -> list[tuple[str, str | None]]:
        return [(response.task_id, response.outcome) for response in self.responses(line)]


class Joining(SessionCase):
    """REGISTER, RESUME, and what is refused on the way."""

    def test_a_worker_says_who_it_is_then_what_it_offers(self) -> None:
        line = self.connect()
        [register] = line.hear()
        self.assertEqual((register.worker_id, register.incarnation, register.host), ("w-1", "i-1", "box"))
        self.assertEqual(register.last_heartbeat, 1_700_000_000_000)
        line.say(RegisterAck("w-1", list(FEATURES)))
        [resume] = line.hear()
        self.assertEqual((resume.group, resume.slots, resume.weight, resume.tags), ("default", SLOTS, 3, ["red"]))
        self.assertEqual(resume.handlers, ["echo", "exit", "polite", "stubborn", "wait"])
        self.assertEqual((resume.running, resume.results, resume.last), ([], [], True))
        self.assertEqual(self.ready, 0)
        line.say(ResumeAck([], 4))
        self.assertEqual((self.session.state, self.session.epoch, self.ready), (SessionState.READY, 4, 1))

    def test_no_answer_to_register_gives_the_connection_up(self) -> None:
        line = self.connect()
        self.pass_time(ANSWER_S - 0.1)
        self.assertFalse(line.is_closed)
        self.pass_time(0.2)
        self.assertTrue(line.is_closed)
        self.assertEqual(self.unanswered, 1)

    def test_no_answer_to_resume_gives_the_connection_up_whatever_else_comes(self) -> None:
        line = self.connect()
        self.pass_time(9)
        line.say(RegisterAck("w-1", list(FEATURES)))
        self.pass_time(9)
        line.say(Heartbeat(ping=True))
        self.assertFalse(line.is_closed)
        self.pass_time(1.1)
        self.assertTrue(line.is_closed)
        self.assertEqual((self.unanswered, self.ready), (1, 0))

    def test_a_core_that_is_slow_by_seconds_is_not_left(self) -> None:
        line = self.connect()
        self.pass_time(ANSWER_S - 1)
        line.say(RegisterAck("w-1", list(FEATURES)))
        self.pass_time(ANSWER_S - 1)
        line.say(ResumeAck([], 1))
        self.pass_time(ANSWER_S)
        self.assertFalse(line.is_closed)
        self.assertEqual((self.unanswered, self.ready), (0, 1))

    def test_who_still_reads_what_was_brought_gets_more_time(self) -> None:
        line = self.joined()
        line.say(*(request(item, "echo", params='"' + "x" * 250_000 + '"') for item in range(4)))
        line.peer.abort()
        slow = self.connect()
        slow.say(RegisterAck("w-1", list(FEATURES)))
        slow.peer._outbox.pauseProducing()
        self.session._out.append(b"more")
        self.pass_time(ANSWER_S + 0.1)
        self.assertFalse(slow.is_closed)
        # Nothing went out since, so it hangs.
        self.pass_time(ANSWER_S)
        self.assertTrue(slow.is_closed)

    def test_a_core_that_lacks_a_feature_is_left(self) -> None:
        line = self.connect()
        line.say(RegisterAck("w-1", ["started"]))
        self.assertTrue(line.is_closed)
        self.assertEqual(self.ready, 0)

    def test_a_core_whose_store_counts_epochs_anew_is_followed(self) -> None:
        """Its store was replaced, or restored from a copy: a core whose epoch is over cannot answer RESUME."""
        line = self.connect()
        line.join(epoch=5)
        line.peer.abort()
        again = self.connect()
        again.join(epoch=1)
        again.say(request(0, "echo", epoch=1))
        self.assertEqual(self.outcomes(again), [(task(0), "SUCCESS")])
        self.assertEqual((self.session.epoch, self.ready), (1, 2))

    def test_frames_of_unknown_types_and_broken_bodies_are_ignored(self) -> None:
        line = self.joined()
        broken = frame(request(0, "echo"))
        body = broken[11:].replace(b'"attempt":1', b'"attempt":"x"')
        line.peer.dataReceived(broken[:7] + len(body).to_bytes(4, "big") + body)
        line.peer.dataReceived(bytes.fromhex("cafebabe01710100000000") + frame(request(1, "echo")))
        self.assertEqual(self.outcomes(line), [(task(1), "SUCCESS")])


class Working(SessionCase):
    """Requests, results, acknowledgements."""

    def test_a_handler_that_ends_at_once_is_one_response(self) -> None:
        line = self.joined()
        line.say(request(3, "echo", params='{"a":[1,null]}', attempt=2, fence=8))
        [response] = line.hear()
        self.assertEqual((response.task_id, response.job_id, response.success), (task(3), 103, True))
        self.assertEqual((response.attempt, response.fence, response.epoch), (2, 8, 1))
        self.assertEqual(bytes(response.data), b'{"a":[1,null]}')
        self.assertEqual((response.outcome, response.duration_ms), ("SUCCESS", 0.0))

    def test_the_context_tells_the_attempt(self) -> None:
        line = self.joined()
        line.say(request(3, "echo", attempt=2, fence=8, due=1_600_000_000_123, timeout=60))
        ctx = self.gates.contexts[task(3)]
        self.assertEqual((ctx.job, ctx.run_id, ctx.task_id), ("job", "job~k", task(3)))
        self.assertEqual((ctx.sharding_item, ctx.sharding_total, ctx.attempt, ctx.fence), (3, 10, 2, 8))
        self.assertEqual(ctx.worker_id, "w-1")
        assert ctx.due is not None and ctx.deadline is not None
        self.assertEqual(ctx.due.isoformat(), "2020-09-13T12:26:40.123000+00:00")
        self.assertEqual(ctx.deadline.timestamp(), 1_700_000_060.0)
        line.say(request(4, "echo", timeout=0))
        ctx = self.gates.contexts[task(4)]
        self.assertEqual((ctx.due, ctx.deadline, ctx.params), (None, None, None))

    def test_a_handler_that_stays_is_announced_once_and_its_time_counts_from_its_start(self) -> None:
        line = self.joined()
        line.say(request(0), request(1))
        self.assertEqual(line.hear(), [])
        self.pass_time(0.03)
        [started] = line.hear()
        self.assertEqual({(s.task_id, s.job_id, s.attempt) for s in started.started},
                         {(task(0), 100, 1), (task(1), 101, 1)})  # fmt: skip
        self.pass_time(5)
        self.assertEqual(line.hear(), [])
        self.gates.open[task(0)].callback("done")
        [response] = line.hear()
        self.assertEqual(bytes(response.data), b'"done"')
        self.assertAlmostEqual(response.duration_ms, 5_030.0, places=3)

    def test_more_than_the_slots_wait_in_order(self) -> None:
        line = self.joined()
        line.say(*(request(item) for item in range(4)))
        self.assertEqual(self.gates.begun, [task(0), task(1)])
        self.gates.open[task(1)].callback(None)
        self.assertEqual(self.gates.begun, [task(0), task(1), task(2)])
        self.gates.open[task(0)].callback(None)
        self.assertEqual(self.gates.begun[3:], [task(3)])

    def test_what_exceeds_the_queue_is_rejected(self) -> None:
        line = self.joined()
        line.say(*(request(item) for item in range(SLOTS + MAX_PREFETCH + 1)))
        [response] = self.responses(line)
        self.assertEqual((response.task_id, response.outcome), (task(SLOTS + MAX_PREFETCH), "REJECTED"))
        self.assertTrue(response.retryable)

    def test_an_unknown_handler_is_rejected_by_name(self) -> None:
        line = self.joined()
        line.say(request(0, "nowhere"), request(1, "echo"))
        rejected, done = sorted(self.responses(line), key=lambda response: response.task_id)
        self.assertEqual((rejected.outcome, done.outcome), ("REJECTED", "SUCCESS"))
        self.assertIn("no handler 'nowhere'", rejected.message or "")

    def test_another_attempt_of_a_running_task_is_rejected(self) -> None:
        line = self.joined()
        line.say(request(0))
        line.say(request(0, attempt=2))
        [response] = self.responses(line)
        self.assertEqual((response.attempt, response.outcome), (2, "REJECTED"))
        self.assertEqual(response.message, "already running attempt 1")

    def test_the_same_attempt_again_changes_nothing(self) -> None:
        line = self.joined()
        line.say(request(0))
        line.say(request(0))
        self.assertEqual(line.hear(), [])
        self.gates.open[task(0)].callback(1)
        self.assertEqual(self.outcomes(line), [(task(0), "SUCCESS")])
        line.say(request(0))
        self.assertEqual(self.outcomes(line), [(task(0), "SUCCESS")])
        self.assertEqual(self.gates.begun, [task(0)])

    def test_a_success_that_the_core_has_not_confirmed_answers_the_next_attempt(self) -> None:
        line = self.joined()
        line.say(request(0, "echo", params="5"))
        line.hear()
        line.say(request(0, "echo", params="5", attempt=2, fence=9))
        [response] = self.responses(line)
        self.assertEqual((response.attempt, response.fence, bytes(response.data)), (2, 9, b"5"))
        self.assertEqual(self.gates.begun, [task(0)])

    def test_an_exit_in_a_handler_is_an_error_of_its_attempt(self) -> None:
        line = self.joined()
        line.say(request(0, "exit"), request(1, "echo"))
        self.assertEqual(self.outcomes(line), [(task(0), "ERROR"), (task(1), "SUCCESS")])

    def test_params_that_are_not_json_fail_without_retry(self) -> None:
        line = self.joined()
        line.say(request(0, "echo", params="{"))
        [response] = self.responses(line)
        self.assertEqual((response.outcome, response.retryable), ("ERROR", False))
        self.assertIn("params", response.message or "")

    def test_a_frame_of_a_lower_epoch_is_refused(self) -> None:
        line = self.joined()
        line.say(request(0, "echo", epoch=3))
        self.assertEqual(self.outcomes(line), [(task(0), "SUCCESS")])
        line.say(request(1, "echo", epoch=2))
        self.assertEqual(line.hear(), [])
        self.assertEqual(self.gates.begun, [task(0)])
        line.say(request(1, "echo", epoch=3))
        self.assertEqual(self.outcomes(line), [(task(1), "SUCCESS")])

    def test_results_of_one_turn_are_one_write(self) -> None:
        line = self.joined()
        writes: list[bytes] = []
        self.patch(line.transport, "write", writes.append)
        line.say(*(request(item, "echo") for item in range(50)))
        self.assertEqual(len(writes), 1)

    def test_a_core_that_does_not_read_gets_the_rest_when_it_does(self) -> None:
        line = self.joined()
        line.peer._outbox.pauseProducing()
        line.say(*(request(item, "echo") for item in range(20)))
        self.assertEqual(line.hear(), [])
        line.peer._outbox.resumeProducing()
        self.assertEqual(len(self.responses(line)), 20)


class Ending(SessionCase):
    """Timeouts and cancels."""

    def test_time_is_up(self) -> None:
        line = self.joined()
        line.say(request(0, timeout=2))
        self.pass_time(1.99)
        self.assertEqual(self.responses(line), [])
        self.pass_time(0.02)
        [response] = self.responses(line)
        self.assertEqual((response.outcome, response.success, response.retryable), ("TIMEOUT", False, True))
        self.assertFalse(response.still_running)
        self.assertTrue(self.gates.contexts[task(0)].cancelled)
        self.assertTrue(self.session.slots.is_idle)

    def test_no_timeout_means_none(self) -> None:
        line = self.joined()
        line.say(request(0, timeout=0))
        self.pass_time(3_000, alive=line)
        self.gates.open[task(0)].callback(1)
        self.assertEqual(self.outcomes(line), [(task(0), "SUCCESS")])

    def test_each_attempt_has_its_own_time(self) -> None:
        line = self.joined()
        line.say(request(0, timeout=10))
        self.pass_time(1)
        line.say(request(1, timeout=3))
        self.pass_time(3.1)
        self.assertEqual(self.outcomes(line), [(task(1), "TIMEOUT")])
        line.say(request(2, timeout=1))
        self.pass_time(1.1)
        self.assertEqual(self.outcomes(line), [(task(2), "TIMEOUT")])
        self.pass_time(5)
        self.assertEqual(self.outcomes(line), [(task(0), "TIMEOUT")])

    def test_waiting_does_not_count(self) -> None:
        line = self.joined()
        line.say(request(0, timeout=0), request(1, timeout=0), request(2, timeout=2))
        self.pass_time(10)
        self.gates.open[task(0)].callback(1)
        self.pass_time(1.9)
        self.gates.open[task(2)].callback(1)
        self.assertEqual(self.outcomes(line), [(task(0), "SUCCESS"), (task(2), "SUCCESS")])

    def test_who_outlives_its_timeout_keeps_its_slot_but_not_its_task(self) -> None:
        line = self.joined()
        line.say(request(0, "stubborn", timeout=1), request(1))
        self.pass_time(1.1)
        self.assertEqual(self.outcomes(line), [(task(0), "TIMEOUT")])
        line.say(ResultAcks([(task(0), 1)]), request(0, attempt=2), request(2))
        self.assertEqual(self.responses(line), [])
        self.assertEqual(self.gates.begun, [task(0), task(1), task(0)])  # Its second time in the loop.
        stubborn = self.gates.open[task(0)]
        self.gates.open[task(1)].callback(None)
        self.assertEqual(self.outcomes(line), [(task(1), "SUCCESS")])
        # Both attempts of the task are here now, the old one and the new one.
        self.assertEqual(self.gates.begun[3:], [task(0)])
        self.assertFalse(self.session.slots.is_idle)
        self.gates.open[task(0)].callback("again")
        [response] = self.responses(line)
        self.assertEqual((response.task_id, response.attempt, response.outcome), (task(0), 2, "SUCCESS"))
        self.assertEqual(self.gates.begun[4:], [task(2)])
        stubborn.callback("late")
        [released] = self.responses(line)
        self.assertEqual((released.task_id, released.attempt, released.outcome), (task(0), 1, "CANCELLED"))

    def test_who_has_outlived_its_timeout_is_not_waited_for(self) -> None:
        line = self.joined()
        line.say(request(0, "stubborn", timeout=1))
        self.assertFalse(self.session.slots.is_idle)
        self.pass_time(1.1)
        self.assertTrue(self.session.slots.is_idle)
        self.assertTrue(self.session.slots.when_idle().called)

    def test_with_all_slots_stuck_nothing_waits_here(self) -> None:
        line = self.joined()
        line.say(request(0, "stubborn", timeout=1), request(1, "stubborn", timeout=2), request(2))
        self.pass_time(1.1)
        self.assertEqual(self.outcomes(line), [(task(0), "TIMEOUT")])
        self.pass_time(1)
        self.assertEqual(self.outcomes(line), [(task(1), "TIMEOUT"), (task(2), "REJECTED")])
        line.say(request(3))
        [response] = self.responses(line)
        self.assertIn("outlived their timeout", response.message or "")
        self.gates.open[task(1)].callback(None)
        line.say(request(3, "echo", attempt=2))
        self.assertEqual(self.outcomes(line), [(task(1), "CANCELLED"), (task(3), "SUCCESS")])

    def test_cancel_drops_what_has_not_begun(self) -> None:
        line = self.joined()
        line.say(request(0), request(1), request(2))
        line.say(Cancel(task(2), 1, "by hand"))
        [response] = self.responses(line)
        self.assertEqual((response.task_id, response.outcome), (task(2), "CANCELLED"))
        self.assertEqual(response.message, "cancelled: by hand")
        self.gates.open[task(0)].callback(None)
        self.assertEqual(self.gates.begun, [task(0), task(1)])

    def test_cancel_stops_a_coroutine(self) -> None:
        line = self.joined()
        line.say(request(0), request(1, "polite"))
        line.say(Cancel(task(0), 1), Cancel(task(1), 1))
        self.assertEqual(self.outcomes(line), [(task(0), "CANCELLED"), (task(1), "CANCELLED")])

    def test_a_success_in_spite_of_a_cancel_keeps_its_data(self) -> None:
        line = self.joined()
        line.say(request(0, "stubborn"))
        line.say(Cancel(task(0), 1))
        self.assertEqual(line.hear(), [])
        self.gates.open[task(0)].callback(5)
        [response] = self.responses(line)
        self.assertEqual((response.outcome, response.success, bytes(response.data)), ("CANCELLED", True, b"5"))

    def test_cancel_of_another_attempt_or_task_changes_nothing(self) -> None:
        line = self.joined()
        line.say(request(0))
        line.say(Cancel(task(0), 2), Cancel(task(5), 1))
        self.assertEqual(line.hear(), [])
        self.gates.open[task(0)].callback(5)
        self.assertEqual(self.outcomes(line), [(task(0), "SUCCESS")])

    def test_a_cancel_that_is_ignored_ends_at_the_timeout(self) -> None:
        line = self.joined()
        line.say(request(0, "stubborn", timeout=2))
        line.say(Cancel(task(0), 1))
        self.pass_time(2.1)
        self.assertEqual(self.outcomes(line), [(task(0), "CANCELLED")])


class Reconnecting(SessionCase):
    """What outlives a connection."""

    def test_results_are_kept_until_they_are_confirmed(self) -> None:
        line = self.joined()
        line.say(request(0, "echo"), request(1, "echo"), request(2, "echo"))
        self.assertEqual(len(self.responses(line)), 3)
        line.say(ResultAcks([(task(1), 1)]))
        line.peer.abort()
        again = self.connect()
        [resume] = again.join(terminal=[task(0)])
        self.assertEqual([(r.task_id, r.outcome) for r in resume.results], [(task(0), "SUCCESS"), (task(2), "SUCCESS")])
        self.assertEqual(list(self.session.ledger), [(task(2), 1)])
        again.say(ResultAcks([(task(2), 1)]))
        self.assertEqual(len(self.session.ledger), 0)

    def test_a_result_that_the_core_cannot_read_is_not_sent_over_and_over(self) -> None:
        """Case B073: it is kept, and goes again with the next connection only."""
        line = self.joined()
        line.say(request(0, "echo"))
        self.assertEqual(len(self.responses(line)), 1)
        line.say(Error("bad_result", f"result of task {task(0)}: truncated"))
        for _ in range(20):
            self.pass_time(10)
            self.assertEqual(self.responses(line), [])
            line.say(Heartbeat())
        self.assertFalse(line.is_closed)
        line.say(request(1, "echo"))
        self.assertEqual(len(self.responses(line)), 1)

    def test_what_runs_and_what_waits_is_told(self) -> None:
        line = self.joined()
        line.say(request(0), request(1, fence=9), request(2))
        self.pass_time(3)
        line.peer.abort()
        self.pass_time(2)
        again = self.connect()
        [resume] = again.join()
        told = {r.task_id: (r.attempt, r.fence, r.started, r.elapsed_ms) for r in resume.running}
        self.assertEqual(told, {
            task(0): (1, 7, True, 5_000.0), task(1): (1, 9, True, 5_000.0), task(2): (1, 7, False, 0.0),
        })  # fmt: skip
        self.gates.open[task(0)].callback("kept")
        [response] = self.responses(again)
        self.assertEqual(bytes(response.data), b'"kept"')

    def test_what_ends_while_away_is_brought(self) -> None:
        line = self.joined()
        line.say(request(0), request(1, timeout=2))
        line.peer.abort()
        self.gates.open[task(0)].callback("away")
        self.pass_time(3)
        again = self.connect()
        [resume] = again.join()
        self.assertEqual([(r.task_id, r.outcome) for r in resume.results], [(task(0), "SUCCESS"), (task(1), "TIMEOUT")])
        self.assertEqual(resume.running, [])

    def test_what_ends_between_register_and_its_answer_is_told_once(self) -> None:
        line = self.joined()
        line.say(request(0))
        line.peer.abort()
        again = self.connect()
        self.gates.open[task(0)].callback("now")
        [resume] = again.join()
        self.assertEqual([r.task_id for r in resume.results], [task(0)])
        self.assertEqual(again.hear(), [])

    def test_much_is_brought_in_chunks(self) -> None:
        line = self.joined()
        big = '"' + "x" * 60_000 + '"'
        line.say(*(request(item, "echo", params=big) for item in range(10)))
        line.peer.abort()
        again = self.connect()
        again.hear()
        again.say(RegisterAck("w-1", list(FEATURES)))
        frames = FrameDecoder().feed(again.transport.value())
        self.assertTrue(all(len(received.body) <= 200 * 1024 for received in frames))
        chunks = [decode_resume(received.body) for received in frames]
        self.assertEqual([r.task_id for chunk in chunks for r in chunk.results], [task(item) for item in range(10)])
        self.assertEqual([chunk.last for chunk in chunks], [False] * (len(chunks) - 1) + [True])

    def test_a_result_larger_than_a_chunk_is_brought_too(self) -> None:
        line = self.joined()
        line.say(request(0, "echo", params='"' + "x" * 262_000 + '"'))
        line.peer.abort()
        [resume] = self.connect().join()
        self.assertEqual(len(resume.results), 1)


class Restarting(SessionCase):
    """What outlives the process."""

    def test_results_that_were_not_confirmed_are_brought(self) -> None:
        line = self.joined()
        line.say(request(0, "echo", params="7"), request(1, "echo"), request(2, "wait"))
        line.say(ResultAcks([(task(1), 1)]))
        self.kill_and_start()
        again = self.connect()
        [resume] = again.join(terminal=[task(0)])
        self.assertEqual([(r.task_id, r.outcome, bytes(r.data)) for r in resume.results],
                         [(task(0), "SUCCESS", b"7")])  # fmt: skip
        self.assertEqual(resume.running, [])
        self.assertEqual(len(self.session.ledger), 0)
        self.kill_and_start()
        [resume] = self.connect().join()
        self.assertEqual(resume.results, [])

    def test_what_ended_without_a_connection_is_brought_by_the_next_process(self) -> None:
        line = self.joined()
        line.say(request(0), request(1, timeout=2))
        line.peer.abort()
        self.gates.open[task(0)].callback("away")
        self.pass_time(3)
        self.kill_and_start()
        [resume] = self.connect().join()
        self.assertEqual([(r.task_id, r.outcome) for r in resume.results], [(task(0), "SUCCESS"), (task(1), "TIMEOUT")])

    def test_a_result_is_on_disk_before_it_is_sent(self) -> None:
        line = self.joined()
        on_disk: list[bytes] = []
        self.patch(line.transport, "write", lambda data: on_disk.append(bytes(self.disk)))
        line.say(request(0, "echo", params='"x y"'))
        self.assertEqual(len(on_disk), 1)
        self.assertIn(b'"x y"', on_disk[0])

    def test_a_later_attempt_is_answered_with_the_success_of_an_earlier_process(self) -> None:
        line = self.joined()
        line.say(request(0, "echo", params="7"))
        line.peer.abort()
        self.kill_and_start()
        again = self.connect()
        again.join()
        # The core took it as stale, for it had given the attempt up, but has not placed the next one yet.
        again.say(ResultAcks([(task(0), 1)], [(task(0), 1)]))
        again.say(request(0, "echo", params="7", attempt=2, fence=9))
        [response] = self.responses(again)
        self.assertEqual((response.attempt, response.fence, response.outcome), (2, 9, "SUCCESS"))
        self.assertEqual(bytes(response.data), b"7")
        self.assertEqual(self.gates.begun, [task(0)])
        again.say(ResultAcks([(task(0), 2)]))
        self.assertEqual(len(self.session.ledger), 0)

    def test_a_task_of_another_store_is_run_though_its_id_is_known(self) -> None:
        line = self.joined()
        line.say(request(0, "echo", params="7"))
        line.say(request(0, "echo", params="8", job_id=555))
        self.assertEqual([bytes(response.data) for response in self.responses(line)], [b"7", b"8"])

    def test_what_a_cancelled_handler_returned_answers_no_later_attempt(self) -> None:
        line = self.joined()
        line.say(request(0, "stubborn"))
        line.say(Cancel(task(0), 1))
        self.gates.open[task(0)].callback("half")
        line.hear()
        line.say(request(0, "echo", params="8", attempt=2))
        [response] = self.responses(line)
        self.assertEqual((response.outcome, bytes(response.data)), ("SUCCESS", b"8"))

    def test_what_the_core_has_taken_note_of_does_not_hold_up_the_end(self) -> None:
        line = self.joined()
        line.say(request(0, "echo"))
        flushed = self.session.when_flushed()
        line.say(ResultAcks([(task(0), 1)], [(task(0), 1)]))
        self.successResultOf(flushed)
        self.successResultOf(self.session.when_flushed())


class Beating(SessionCase):
    """Heartbeats, pings, silence, and the end of the lease."""

    def beats(self, line: Line) -> list[Heartbeat]:
        return [message for message in line.hear() if isinstance(message, Heartbeat)]

    def test_a_beat_every_thirty_seconds_says_how_busy(self) -> None:
        line = self.joined()
        line.say(request(0, timeout=0))
        self.pass_time(30)
        [beat] = self.beats(line)
        self.assertEqual((beat.ping, beat.pong, beat.running, beat.load), (False, False, 1, 0.5))
        line.say(Heartbeat())
        self.pass_time(30)
        self.assertEqual(len(self.beats(line)), 1)

    def test_a_ping_is_answered_at_once(self) -> None:
        line = self.joined()
        line.say(Heartbeat(ping=True))
        [pong] = self.beats(line)
        self.assertTrue(pong.pong)
        line.say(Heartbeat(pong=True))
        self.assertEqual(line.hear(), [])

    def test_a_core_that_does_not_answer_a_beat_is_left_long_before_work_stops(self) -> None:
        """Case B061: the worker notices too."""
        line = self.joined()
        line.say(request(0, timeout=0))
        self.pass_time(BEAT_S + 5, alive=line)
        self.pass_time(BEAT_S + ANSWER_S - 5.1)
        self.assertFalse(line.is_closed)
        self.pass_time(0.2)
        self.assertTrue(line.is_closed)
        self.assertEqual(self.unanswered, 1)
        self.assertFalse(self.gates.contexts[task(0)].cancelled)
        [resume] = self.connect().join()
        self.assertEqual([r.task_id for r in resume.running], [task(0)])

    def test_a_worker_that_stood_still_hears_the_answer_first(self) -> None:
        line = self.joined()
        self.pass_time(BEAT_S)
        self.reactor.advance(25)  # The answer came in that time and waits in the socket.
        line.say(Heartbeat())
        self.pass_time(20, alive=line)
        self.assertFalse(line.is_closed)
        self.assertEqual(self.unanswered, 0)

    def test_a_worker_that_stood_still_leaves_a_core_that_has_not_answered(self) -> None:
        line = self.joined()
        self.pass_time(BEAT_S)
        self.reactor.advance(ANSWER_S + 5)
        self.assertFalse(line.is_closed)
        self.pass_time(1.1)
        self.assertTrue(line.is_closed)

    def test_work_stops_before_the_lease_ends(self) -> None:
        line = self.joined()
        line.say(request(0, "polite", timeout=0), request(1, "stubborn", timeout=0), request(2))
        self.pass_time(BEAT_S)
        line.say(ResultAcks([]))
        self.pass_time(24.9)
        self.assertFalse(self.gates.contexts[task(0)].cancelled)
        self.pass_time(0.2)
        self.assertTrue(self.gates.contexts[task(0)].cancelled)
        self.assertTrue(self.gates.contexts[task(1)].cancelled)
        self.assertEqual(self.outcomes(line), [(task(2), "REJECTED"), (task(0), "ERROR")])
        line.say(request(3, "echo"))
        [response] = self.responses(line)
        self.assertEqual(response.outcome, "REJECTED")
        self.assertIn("lost contact", response.message or "")
        self.assertFalse(line.is_closed)
        line.peer.abort()
        self.gates.open[task(1)].callback("finished")
        again = self.connect()
        [resume] = again.join()
        self.assertIn((task(1), "SUCCESS"), [(r.task_id, r.outcome) for r in resume.results])
        again.say(request(3, "echo", attempt=2))
        self.assertEqual(self.outcomes(again)[-1:], [(task(3), "SUCCESS")])

    def test_work_goes_on_while_beats_are_answered(self) -> None:
        line = self.joined()
        line.say(request(0, timeout=0))
        self.pass_time(600, alive=line)
        self.assertFalse(self.gates.contexts[task(0)].cancelled)
        self.assertFalse(line.is_closed)

    def test_work_stops_when_no_connection_comes_back(self) -> None:
        line = self.joined()
        line.say(request(0, "stubborn", timeout=0))
        line.peer.abort()
        self.pass_time(54.9)
        self.assertFalse(self.gates.contexts[task(0)].cancelled)
        self.pass_time(0.2)
        self.assertTrue(self.gates.contexts[task(0)].cancelled)

    def test_frames_without_an_answered_beat_are_no_lease(self) -> None:
        line = self.joined()
        line.say(request(0, "stubborn", timeout=0))
        for _ in range(11):
            self.pass_time(5.01)
            line.say(ResultAcks([]))
        self.assertTrue(self.gates.contexts[task(0)].cancelled)
        self.assertFalse(line.is_closed)


class Draining(SessionCase):
    """Taking nothing new."""

    def test_what_has_not_begun_goes_back_and_what_runs_is_finished(self) -> None:
        line = self.joined()
        line.say(request(0), request(1), request(2))
        self.session.drain("stopping")
        drain, rejected = line.hear()
        self.assertEqual(drain.reason, "stopping")
        self.assertEqual((rejected.task_id, rejected.outcome, rejected.message), (task(2), "REJECTED", "draining"))
        line.say(request(3))
        self.assertEqual(self.outcomes(line), [(task(3), "REJECTED")])
        idle = self.session.slots.when_idle()
        self.gates.open[task(0)].callback(None)
        self.assertNoResult(idle)
        self.gates.open[task(1)].callback(None)
        self.successResultOf(idle)
        self.assertEqual(self.outcomes(line), [(task(0), "SUCCESS"), (task(1), "SUCCESS")])

    def test_flushed_means_confirmed(self) -> None:
        line = self.joined()
        line.say(request(0, "echo"), request(1, "echo"))
        flushed = self.session.when_flushed()
        line.say(ResultAcks([(task(0), 1)]))
        self.assertNoResult(flushed)
        line.say(ResultAcks([(task(1), 1)]))
        self.successResultOf(flushed)

    def test_without_a_connection_there_is_nothing_to_wait_for(self) -> None:
        line = self.joined()
        line.say(request(0, "echo"))
        flushed = self.session.when_flushed()
        self.assertNoResult(flushed)
        line.peer.abort()
        self.successResultOf(flushed)
        self.successResultOf(self.session.when_flushed())

    def test_the_core_may_ask_for_it_and_a_new_connection_hears_of_it(self) -> None:
        line = self.joined()
        line.say(Drain("maintenance"))
        self.assertEqual([message.reason for message in line.hear()], ["maintenance"])
        line.peer.abort()
        again = self.connect()
        again.hear()
        again.say(RegisterAck("w-1", list(FEATURES)))
        resume, drain = again.hear()
        self.assertEqual((type(resume), type(drain)), (ResumeIn, Drain))
