"""A worker that speaks only the plain protocol, as those written in Java do: one task after another."""

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from dsched.clock import Clock
from dsched.testing.executions import Executions
from dsched.testing.sim_node import SimNode
from dsched.testing.workload import Behaviour
from dsched.wire.encoding import decode_any, encode
from dsched.wire.framing import FrameDecoder, encode_frame
from dsched.wire.messages import HEARTBEAT_FRAME, MessageType

__all__ = ["PlainWorker"]

BEAT_S = 30.0


class PlainWorker:
    """Registers, beats every 30 s, and works through what it gets; what it had is forgotten with its connection."""

    def __init__(
        self,
        node: SimNode,
        clock: Clock,
        rng: Random,
        endpoints: Sequence[IStreamClientEndpoint],
        executions: Executions,
    ) -> None:
        self.node = node
        self._clock = clock
        self._rng = rng
        self._endpoints = endpoints
        self._executions = executions
        self._next = 0

    def start(self) -> None:
        """Connect, and stay connected."""
        Deferred.fromCoroutine(self._live())

    async def _live(self) -> None:
        while True:
            endpoint = self._endpoints[self._next % len(self._endpoints)]
            gone: Deferred[None] = Deferred()
            link = _PlainLink(self, gone)
            attempt = endpoint.connect(_LinkFactory(link))
            timer = self._clock.call_later(10.0, attempt.cancel)
            try:
                await attempt
                self._clock.cancel(timer)
                await gone
            except Exception:
                self._clock.cancel(timer)
            if not link.was_registered:
                self._next += 1
            await self._clock.sleep(self._rng.uniform(0.1, 3.0))

    async def work(self, link: "_PlainLink") -> None:
        """Run what `link` has brought until there is no more."""
        while link.waiting and link.is_up:
            request = link.waiting.popleft()
            answer = await self._run(request)
            if link.is_up:
                link.send(encode_frame(MessageType.RESPONSE, encode(answer)))

    async def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        task_id = request["taskId"]
        execution = self._executions.begin(self.node, task_id, 0, request["jobName"], None)
        conduct = self._executions.conduct_of_plain(execution)
        answer = {"jobId": request["jobId"], "taskId": task_id, "success": False, "message": "failed", "data": None}
        await self._clock.sleep(min(conduct.seconds, 30.0))
        if conduct.behaviour in (Behaviour.INSTANT, Behaviour.QUICK, Behaviour.SLOW):
            answer.update(success=True, message="", data={"task": task_id, "text": request["params"]})
            execution.succeeded = True
        execution.ended_s = self._clock.monotonic()
        return answer


class _LinkFactory(Factory):
    noisy = False

    def __init__(self, link: "_PlainLink") -> None:
        self._link = link

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        return self._link


class _PlainLink(Protocol):
    """One connection."""

    def __init__(self, worker: PlainWorker, gone: "Deferred[None]") -> None:
        self.waiting: deque[dict[str, Any]] = deque()
        self.is_up = False
        self.was_registered = False
        self._worker = worker
        self._gone = gone
        self._decoder = FrameDecoder()
        self._loop: Any = None
        self._works = False

    def send(self, data: bytes) -> None:
        """Send encoded frames."""
        assert self.transport is not None
        self.transport.write(data)

    def connectionMade(self) -> None:
        self.is_up = True
        node, clock = self._worker.node, self._worker._clock
        body = {
            "workerId": node.name, "host": node.ip, "port": 9000, "healthy": True, "lastHeartbeat": clock.wall_ms(),
        }  # fmt: skip
        self.send(encode_frame(MessageType.REGISTER, encode(body)))
        self._loop = clock.every(BEAT_S, self.send, HEARTBEAT_FRAME, name="plain heartbeat")

    def dataReceived(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            if frame.type == MessageType.REGISTER_ACK:
                self.was_registered = True
            elif frame.type == MessageType.REQUEST:
                self.waiting.append(decode_any(frame.body))
        if self.waiting and not self._works:
            self._works = True
            Deferred.fromCoroutine(self._worker.work(self)).addBoth(self._rest)

    def _rest(self, result: Any) -> Any:
        self._works = False
        return result

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.is_up = False
        self.waiting.clear()
        if self._loop is not None:
            self._loop.stop()
        self._gone.callback(None)
