"""Nothing leaves a core before what it says is stored: every frame that a core sends is held against the rows."""

from dsched.model.task import OPEN
from dsched.testing.invariants import Invariants
from dsched.testing.sim_transport import SimTransport
from dsched.wire.encoding import decode_any
from dsched.wire.framing import FrameDecoder
from dsched.wire.header import MessageType
from dsched.wire.messages import decode_result_acks, decode_resume_ack

__all__ = ["Outgoing"]

_OPEN = frozenset(state.value for state in OPEN)


class Outgoing:
    """A write hook of the network."""

    def __init__(self, invariants: Invariants) -> None:
        self._invariants = invariants
        self._decoders: dict[int, FrameDecoder] = {}

    def __call__(self, transport: SimTransport, data: bytes) -> None:
        """Judge what an end sends; only the cores' ends are of interest."""
        if transport.side != "server":
            return
        decoder = self._decoders.setdefault(transport.connection.number, FrameDecoder())
        for frame in decoder.feed(data):
            if frame.type == MessageType.REQUEST:
                self._request(frame.body)
            elif frame.type == MessageType.RESULT_ACK:
                for task_id, attempt in decode_result_acks(frame.body).acks:
                    self._acknowledged(task_id, attempt)
            elif frame.type == MessageType.RESUME_ACK:
                for task_id in decode_resume_ack(frame.body).terminal:
                    self._terminal(task_id)

    def _request(self, body: bytes) -> None:
        request = decode_any(body)
        task_id, attempt = request["taskId"], request.get("attempt")
        row = self._invariants.tasks.get(task_id)
        if row is None or row.attempt < (attempt or 1):
            self._invariants.fail("I1", f"attempt {attempt} of {task_id} leaves the core before it is committed")

    def _acknowledged(self, task_id: str, attempt: int) -> None:
        row = self._invariants.tasks.get(task_id)
        if row is None or row.status not in _OPEN or row.attempt > attempt:
            return
        if all(closed.number != attempt for closed in self._invariants.closed.get(task_id, ())):
            self._invariants.fail("I1", f"the end of attempt {attempt} of {task_id} is acknowledged and not committed")

    def _terminal(self, task_id: str) -> None:
        row = self._invariants.tasks.get(task_id)
        if row is not None and row.status in _OPEN:
            self._invariants.fail("I1", f"{task_id} is called terminal and is stored as {row.status}")
