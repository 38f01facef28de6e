"""The worker's side of its connection to a core, over any number of reconnects.

REGISTER, then what is offered, still running and unconfirmed (RESUME), then work. What must outlive a connection
lives here and in the ledger: the highest epoch, the results that the core has not confirmed, what runs.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from dsched.clock import Clock
from dsched.errors import DschedError, ProtocolError
from dsched.model.task import Outcome
from dsched.net.protocol import FramedProtocol
from dsched.wire.framing import Frame, encode_frame
from dsched.wire.messages import (
    FEATURES,
    Drain,
    Heartbeat,
    MessageType,
    Register,
    Request,
    Response,
    Started,
    StartedMany,
    decode_cancel,
    decode_drain,
    decode_error,
    decode_heartbeat,
    decode_redirect,
    decode_register_ack,
    decode_request,
    decode_result_acks,
    decode_resume_ack,
    frame,
)
from dsched.worker import results
from dsched.worker.attempt import Attempt
from dsched.worker.contact import ANSWER_S, Contact
from dsched.worker.handlers import HandlerRegistry
from dsched.worker.ledger import Ledger
from dsched.worker.resume import resume_of
from dsched.worker.settings import WorkerSettings
from dsched.worker.slots import Slots

__all__ = ["Session", "SessionState"]

WRITE_BYTES = 65_536
NEEDED_FEATURES = frozenset({"started", "resultAck", "cancel", "drain", "resume"})


class SessionState(Enum):
    """How far the present connection has come."""

    OFFLINE = "offline"
    REGISTERING = "registering"
    RESUMING = "resuming"  # RESUME is sent, so results may follow it
    READY = "ready"


class SessionTimeout(DschedError):
    """The core did not answer in time, and the connection was given up."""

    code = "session_timeout"


class Session:
    """Speaks with the core; a `FrameHandler` for `dsched.net.client`.

    `on_ready` is called each time the core has taken what RESUME brought, `on_redirect` with the `HOST:PORT` of the
    leader when a core does not lead, `on_unanswered` before a connection is given up whose core does not answer.
    Start it once; stop it last.
    """

    log = Logger()

    def __init__(
        self,
        settings: WorkerSettings,
        handlers: HandlerRegistry,
        clock: Clock,
        incarnation: str,
        *,
        ledger: Ledger | None = None,
        on_ready: Callable[[], None] = lambda: None,
        on_redirect: Callable[[str], None] = lambda leader: None,
        on_unanswered: Callable[[], None] = lambda: None,
    ) -> None:
        self.state = SessionState.OFFLINE
        self.epoch = 0
        self.draining = False
        self.ledger = Ledger() if ledger is None else ledger
        self.slots = Slots(
            settings.slots,
            settings.worker_id,
            handlers,
            clock,
            on_started=self._started,
            on_results=self._finished,
            on_released=self._released,
        )
        self.on_ready = on_ready
        self.on_redirect = on_redirect
        self.on_unanswered = on_unanswered
        self._settings = settings
        self._handlers = handlers
        self._clock = clock
        self._incarnation = incarnation
        self._peer: FramedProtocol | None = None
        self._out: deque[bytes] = deque()
        self._answers: list[Response] = []  # To requests of this turn that were not run.
        self._writes = 0
        self._writes_seen = 0  # When an answer was last overdue.
        self._flush_waiters: list[Deferred[None]] = []
        self._contact = Contact(clock, beat=self._beat, on_lost=self._contact_lost, on_unanswered=self._unanswered)
        self._takers: dict[int, Callable[[bytes], None]] = {
            MessageType.REQUEST: self._request,
            MessageType.RESULT_ACK: self._result_acks,
            MessageType.HEARTBEAT: self._heartbeat,
            MessageType.CANCEL: self._cancel,
            MessageType.REGISTER_ACK: self._register_ack,
            MessageType.RESUME_ACK: self._resume_ack,
            MessageType.DRAIN: self._drained_by_core,
            MessageType.ERROR: self._error,
            MessageType.REDIRECT: self._redirect,
        }

    # What the service calls.

    def start(self) -> None:
        """Begin to beat and to watch the core."""
        self._contact.start()

    def stop(self) -> None:
        """Stop every timer. Handlers that still run are told, and their results go nowhere."""
        self._contact.stop()
        self.slots.ask_all_to_stop()
        self.slots.stop()

    def drain(self, reason: str) -> None:
        """Take nothing new from now on, say so, and hand back what has not begun."""
        self.draining = True
        if self.state in (SessionState.RESUMING, SessionState.READY):
            self._out.append(frame(Drain(reason)))
        self.slots.hand_back("draining")
        self._flush()

    def when_flushed(self) -> Deferred[None]:
        """Return a Deferred that fires when every result is confirmed, or the connection is gone."""
        if not self.ledger.unconfirmed or self.state is SessionState.OFFLINE:
            return succeed(None)
        waiter: Deferred[None] = Deferred()
        self._flush_waiters.append(waiter)
        return waiter

    # What the connection calls.

    def connected(self, peer: FramedProtocol) -> None:
        """Say who we are."""
        self._peer = peer
        peer.on_writable = lambda writable: self._flush()
        self.state = SessionState.REGISTERING
        self._out.clear()
        self._contact.connected()
        self._out.append(
            frame(
                Register(
                    worker_id=self._settings.worker_id,
                    host=self._settings.host,
                    last_heartbeat=self._clock.wall_ms(),
                    incarnation=self._incarnation,
                    features=list(FEATURES),
                )
            )
        )
        self._flush()

    def frames_received(self, peer: FramedProtocol, frames: list[Frame]) -> None:
        """Take all frames that came together, then run and send what comes of them, once."""
        self._contact.frame_came()
        for received in frames:
            self._take(received)
        self.slots.run_waiting()
        if self._answers:
            answers, self._answers = self._answers, []
            self._finished(answers)
        self._flush()

    def _take(self, received: Frame) -> None:
        taker = self._takers.get(received.type)
        if taker is None:
            self.log.debug("ignored a frame of type {type}", type=received.type)
            return
        try:
            taker(received.body)
        except ProtocolError as error:
            # The other tasks on this connection need not suffer; what this one says never began.
            self.log.error("ignored a frame: {reason}", reason=error.reason, got=error.got)

    def protocol_failed(self, peer: FramedProtocol, error: ProtocolError) -> None:
        """The core's bytes were no frames; `disconnected` follows."""
        self.log.error("the core broke the protocol: {reason}", reason=error.reason, got=error.got.hex(" "))

    def disconnected(self, peer: FramedProtocol, reason: Exception) -> None:
        """Go on with what runs: its results wait for the next connection."""
        if peer is not self._peer:
            return
        self.log.info("disconnected from the core: {reason}", reason=reason)
        self._peer = None
        self.state = SessionState.OFFLINE
        self._out.clear()
        self._contact.disconnected()
        self._tell_flushed()

    # Joining.

    def _register_ack(self, body: bytes) -> None:
        if self.state is not SessionState.REGISTERING:
            return
        ack = decode_register_ack(body)
        missing = NEEDED_FEATURES - set(ack.features or ())
        if missing:
            self._give_up(ProtocolError(f"the core does not speak {', '.join(sorted(missing))}"))
            return
        self.state = SessionState.RESUMING
        self._contact.registered()
        now_s = self._clock.monotonic()
        self._out.extend(resume_of(self._settings, self._handlers, self.slots.unreported(), self.ledger, now_s))
        if self.draining:
            self._out.append(frame(Drain("stopping")))

    def _resume_ack(self, body: bytes) -> None:
        ack = decode_resume_ack(body)
        if self.state is not SessionState.RESUMING:
            return
        if ack.epoch < self.epoch:
            # A core whose epoch is over cannot commit, and this answer came out of a commit that began after the
            # question: so its store counts epochs of its own. It was restored from a copy, or is a new one.
            self.log.warn(  # noqa: G010
                "this core leads epoch {epoch} though {highest} was seen: its store is another one, or an older copy",
                epoch=ack.epoch,
                highest=self.epoch,
            )
        self.epoch = ack.epoch
        self.state = SessionState.READY
        self._contact.resumed()
        self._confirmed(lambda: self.ledger.confirm_tasks(ack.terminal))
        self.log.info(
            "registered as {worker_id}, epoch {epoch}",
            worker_id=self._settings.worker_id,
            incarnation=self._incarnation,
            epoch=ack.epoch,
        )
        self.on_ready()

    def _give_up(self, why: Exception) -> None:
        if self._peer is not None:
            self._peer.abort(why)

    # Work.

    def _request(self, body: bytes) -> None:
        request = decode_request(body)
        if request.epoch < self.epoch:
            self.log.warn(  # noqa: G010
                "refused attempt {attempt} of {task_id}: its epoch {epoch} is below {highest}",
                attempt=request.attempt,
                task_id=request.task_id,
                epoch=request.epoch,
                highest=self.epoch,
            )
            return
        self.epoch = request.epoch
        answer = self._answer_at_once(request)
        if answer is None:
            answer = self.slots.take(request)
        if answer is not None:
            self._answers.append(answer)

    def _answer_at_once(self, request: Request) -> Response | None:
        """Return the answer to a request that need not, or must not, be run."""
        earlier = self.ledger.get(request.task_id)
        # The number tells a task from one that had its id in a store that is gone.
        if earlier is not None and earlier.job_id == request.job_id:
            if earlier.attempt == request.attempt:
                return earlier
            # What a handler returns after a cancel is no success, though it may look like one.
            if earlier.outcome == Outcome.SUCCESS.value:
                return results.repeated(request, earlier)
        if self.draining:
            return results.rejected(request, "draining")
        if self._contact.is_lost:
            return results.rejected(request, "this worker has lost contact with the core for too long")
        if self.ledger.is_full:
            return results.rejected(request, f"{self.ledger.unconfirmed} results wait for the core's confirmation")
        return None

    def _cancel(self, body: bytes) -> None:
        cancel = decode_cancel(body)
        self.slots.cancel(cancel.task_id, cancel.attempt, cancel.reason)

    def _result_acks(self, body: bytes) -> None:
        acks = decode_result_acks(body)
        self._confirmed(lambda: self.ledger.confirm(acks.acks, acks.open))

    def _confirmed(self, forget: Callable[[], None]) -> None:
        forget()
        if not self.ledger.unconfirmed:
            self._tell_flushed()

    def _tell_flushed(self) -> None:
        waiters, self._flush_waiters = self._flush_waiters, []
        for waiter in waiters:
            waiter.callback(None)

    def _drained_by_core(self, body: bytes) -> None:
        reason = decode_drain(body).reason
        self.log.info("the core asks to drain: {reason}", reason=reason)
        self.drain(reason)

    def _error(self, body: bytes) -> None:
        error = decode_error(body)
        self.log.error("the core refuses: {code}: {message}", code=error.code, message=error.message)

    def _redirect(self, body: bytes) -> None:
        leader = decode_redirect(body).leader
        self.log.info("this core does not lead; the leader is {leader}", leader=leader)
        self.on_redirect(leader)

    # What slots report.

    def _started(self, began: list[Attempt]) -> None:
        if self.state in (SessionState.RESUMING, SessionState.READY):
            started = [Started(a.request.task_id, a.request.job_id, a.request.attempt) for a in began]
            self._out.append(frame(StartedMany(started)))
            self._flush()

    def _finished(self, responses: list[Response]) -> None:
        # In the file before it is on the wire: who is killed in between brings it when it is started again.
        bodies = self.ledger.add(responses)
        if self.state in (SessionState.RESUMING, SessionState.READY):
            self._out.extend(encode_frame(MessageType.RESPONSE, body) for body in bodies)
            self._flush()

    def _released(self, responses: list[Response]) -> None:
        # Who is not connected tells with RESUME what it still has.
        if self.state is SessionState.READY:
            self._out.extend(frame(response) for response in responses)
            self._flush()

    # Beats.

    def _beat(self) -> bool:
        """Send a beat; tell whether there was somebody to send it to."""
        if self.state in (SessionState.OFFLINE, SessionState.REGISTERING):
            return False
        self._out.append(frame(self._heartbeat_of(pong=False)))
        self._flush()
        return True

    def _heartbeat(self, body: bytes) -> None:
        heartbeat = decode_heartbeat(body)
        if heartbeat.ping:
            self._out.append(frame(self._heartbeat_of(pong=True)))
        else:
            self._contact.answered()

    def _heartbeat_of(self, *, pong: bool) -> Heartbeat:
        busy = self.slots.busy
        return Heartbeat(pong=pong, running=busy, load=len(self.slots.attempts) / self._settings.slots)

    def _contact_lost(self, silent_s: float) -> None:
        """The lease is about to end, and then another worker may run what runs here: stop it."""
        self.log.warn("no contact with the core for {silent_s:.0f} s: stopping what runs", silent_s=silent_s)  # noqa: G010
        self.slots.hand_back("this worker has lost contact with the core")
        self.slots.ask_all_to_stop()

    def _unanswered(self, what: str) -> None:
        if self._out and self._writes != self._writes_seen:
            # It could not answer yet: the question is behind much else on a slow way.
            self._writes_seen = self._writes
            self._contact.expect(what)
            return
        self.on_unanswered()
        self._give_up(SessionTimeout(f"no answer to {what} within {ANSWER_S:g} s"))

    def _flush(self) -> None:
        """Write what waits, joined, as far as the peer takes it."""
        out, peer = self._out, self._peer
        while out and peer is not None and peer.writable:
            batch, size = [], 0
            while out and size < WRITE_BYTES:
                data = out.popleft()
                batch.append(data)
                size += len(data)
            self._writes += 1
            peer.send(b"".join(batch) if len(batch) > 1 else batch[0])
