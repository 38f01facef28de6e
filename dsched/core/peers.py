"""Frames from workers to events for the engine. Heartbeats are answered here, whatever else goes on."""

from twisted.logger import Logger

from dsched.clock import Clock
from dsched.core.term import Term
from dsched.errors import ProtocolError
from dsched.net.protocol import FramedProtocol
from dsched.wire.framing import Frame
from dsched.wire.header import MessageType
from dsched.wire.messages import (
    HEARTBEAT_FRAME,
    Error,
    Redirect,
    ResponseIn,
    decode_drain,
    decode_heartbeat,
    decode_register,
    decode_response,
    decode_resume,
    decode_started,
    frame,
    guess_task_id,
)

__all__ = ["Peers"]

BAD_RESULTS = 3
"""So many unreadable results of one task fail its attempt."""
UNKNOWN_TYPES = 3
"""So many frames of unknown type close a connection."""


class Peer:
    """What is kept per connection."""

    __slots__ = ("bad_results", "is_plain", "session_id", "unknown_types")

    def __init__(self, session_id: int) -> None:
        self.session_id = session_id
        self.is_plain = True
        self.bad_results: dict[str, int] = {}
        self.unknown_types = 0


class Peers:
    """The frame handler of the listener for workers. `term` is set while this core leads, `leader` is
    the worker address of whoever does."""

    log = Logger()

    def __init__(self, clock: Clock) -> None:
        self.term: Term | None = None
        self.leader: str | None = None
        self.connections: dict[int, FramedProtocol] = {}
        self._peers: dict[FramedProtocol, Peer] = {}
        self._clock = clock
        self._last_session_id = 0

    # -- what the network side calls

    def connected(self, peer: FramedProtocol) -> None:
        """Give a new connection its session id."""
        self._last_session_id += 1
        self._peers[peer] = Peer(self._last_session_id)
        self.connections[self._last_session_id] = peer

    def frames_received(self, peer: FramedProtocol, frames: list[Frame]) -> None:
        """Take the frames that came together; results among them are decided on together."""
        known = self._peers[peer]
        term = self.term
        if term is None:
            self._send_on(peer, frames)
            return
        term.engine.seen(known.session_id, self._clock.moment())
        responses: list[ResponseIn] = []
        size = 0
        for kind, _, body in frames:
            if kind == MessageType.RESPONSE and peer.is_registered:
                size += len(body)
                response = self._response(peer, known, body)
                if response is not None:
                    responses.append(response)
                continue
            if responses:
                term.tell(term.engine.results, known.session_id, responses)
                responses = []
            self._take(term, peer, known, kind, body)
        if responses:
            term.tell(term.engine.results, known.session_id, responses)
        term.journal.gathered(size)
        term.after_event()
        if term.journal.is_full:
            # The rest waits in the socket, and its worker with it.
            peer.pause_reading()
            term.journal.when_room(peer.resume_reading)

    def protocol_failed(self, peer: FramedProtocol, error: ProtocolError) -> None:
        """Tell a worker with features what was wrong with its bytes; plain ones get no error frame."""
        known = self._peers[peer]
        if peer.is_registered and not known.is_plain:
            peer.send(frame(Error("protocol", str(error)[:500])))

    def disconnected(self, peer: FramedProtocol, reason: Exception) -> None:
        """The connection is gone."""
        known = self._peers.pop(peer)
        self.connections.pop(known.session_id, None)
        if self.term is not None:
            self.log.debug("connection of {address} ended: {reason}", address=peer.address, reason=str(reason))
            self.term.tell(self.term.engine.closed, known.session_id)

    def close_all(self) -> None:
        """Close every connection, so that workers bring their results again."""
        for peer in list(self._peers):
            peer.close()

    # -- inside

    def _send_on(self, peer: FramedProtocol, frames: list[Frame]) -> None:
        """This core does not lead: tell a worker with features who does; plain ones are only disconnected."""
        kind, _, body = frames[0]
        if kind == MessageType.REGISTER and self.leader is not None and not decode_register(body).plain:
            peer.send(frame(Redirect(self.leader)))
        peer.close()

    def _take(self, term: Term, peer: FramedProtocol, known: Peer, kind: int, body: bytes) -> None:
        session_id = known.session_id
        if kind == MessageType.REGISTER:
            message = decode_register(body)
            known.is_plain = message.plain
            peer.registered()
            peer.on_writable = lambda writable: term.tell(term.engine.flushed, session_id, writable)
            term.tell(term.engine.register, session_id, peer.address, message)
        elif not peer.is_registered:
            raise ProtocolError(f"frame of type {kind} before REGISTER", got=body)
        elif kind == MessageType.HEARTBEAT:
            self._heartbeat(peer, known, body)
        elif kind == MessageType.STARTED:
            term.tell(term.engine.started, session_id, decode_started(body))
        elif kind == MessageType.RESUME:
            term.tell(term.engine.resume, session_id, decode_resume(body))
        elif kind == MessageType.DRAIN:
            decode_drain(body)
            term.tell(term.engine.draining, session_id)
        else:
            self._unknown(peer, known, kind, body)

    def _heartbeat(self, peer: FramedProtocol, known: Peer, body: bytes) -> None:
        # A plain peer's beat is answered whatever is in it; the answer to a ping of ours is not answered again.
        if known.is_plain or not decode_heartbeat(body).pong:
            peer.send(HEARTBEAT_FRAME)

    def _unknown(self, peer: FramedProtocol, known: Peer, kind: int, body: bytes) -> None:
        known.unknown_types += 1
        if known.unknown_types > UNKNOWN_TYPES:
            raise ProtocolError(f"frames of unknown types, the last one {kind}", got=body)
        if not known.is_plain:
            peer.send(frame(Error("unknown_type", f"this core knows no frames of type {kind} from a worker")))

    def _response(self, peer: FramedProtocol, known: Peer, body: bytes) -> ResponseIn | None:
        try:
            return decode_response(body)
        except ProtocolError as error:
            task_id = guess_task_id(body)
            if task_id is None or self.term is None:
                raise
            count = known.bad_results.get(task_id, 0) + 1
            if len(known.bad_results) > 1000:
                known.bad_results.clear()
            known.bad_results[task_id] = count
            self.log.warn("unreadable result of {task_id}: {error}", task_id=task_id, error=str(error))  # noqa: G010
            if not known.is_plain:
                peer.send(frame(Error("bad_result", f"result of task {task_id}: {error}"[:500])))
            # A plain worker is told nothing, so it will not send another one.
            if known.is_plain or count >= BAD_RESULTS:
                self.term.tell(self.term.engine.bad_result, known.session_id, task_id)
            return None
