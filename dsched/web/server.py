"""The admin port: a factory for `listenTCP` whose requests all come in by `dsched.web.admission`."""

from collections.abc import Iterable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IAddress
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import HTTPFactory, Request, datetimeToString

from dsched.clock import Clock
from dsched.core.api import CoreApi
from dsched.web.admission import AccessPolicy, Admission, Admitted, LoopbackOnly
from dsched.web.app import ROUTES
from dsched.web.channel import AdminChannel, Stage
from dsched.web.envelope import Answer, error_answer, fault_answer, json_answer
from dsched.web.routes import Call, Handler, Route, read_body

__all__ = ["AdminRequest", "AdminSite", "make_site"]


class AdminRequest(Request):
    """One request. Exactly one of `admitted` and `refusal` is set once its headers are in."""

    channel: AdminChannel
    admitted: Admitted | None = None
    refusal: Exception | None = None
    _operation: Deferred[Any] | None = None
    _client_left = False
    _received = 0

    def __init__(self, channel: AdminChannel, *args: Any, **keywords: Any) -> None:
        super().__init__(channel, *args, **keywords)
        self._site = channel.site
        self._chunks: list[bytes] = []

    # -- called by the channel

    def gotLength(self, length: int | None) -> None:
        """Do nothing: the body is kept in memory, for its size is bounded, and not in a file as Twisted would."""

    def handleContentChunk(self, data: bytes) -> None:
        if self.channel.stage is not Stage.BODY or self.admitted is None:
            return
        self._received += len(data)
        limit = self.admitted.route.body_limit
        if self._received > limit:
            self._chunks.clear()
            self.channel.body_exceeds(limit)
        else:
            self._chunks.append(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        self.method, self.uri, self.clientproto = command, path, version
        if self.admitted is None:
            self._answer(self._answer_to(Failure(self.refusal or RuntimeError("not admitted")), "admission"))
        else:
            ROUTES.run(self.admitted.route, self, self.admitted.arguments)

    def connectionLost(self, reason: Any) -> None:
        self._client_left = True
        super().connectionLost(reason)
        if self._operation is not None:
            self._operation.cancel()

    # -- called by the route

    def serve(self, route: Route, handler: Handler, arguments: dict[str, str]) -> None:
        """Run `handler` and answer with what it returns or raises.

        The operation goes on when the client leaves, unless the route says that nobody else needs it.
        """
        operation = Deferred.fromCoroutine(self._handle(route, handler, arguments))
        if route.ends_with_client:
            self._operation = operation
        operation.addErrback(self._failed, route)
        operation.addCallback(self._answer)
        operation.addErrback(self._could_not_answer)

    async def _handle(self, route: Route, handler: Handler, arguments: dict[str, str]) -> Answer:
        assert self.admitted is not None
        data = b"".join(self._chunks)
        self._chunks.clear()
        value = await handler(self._site.core, Call(self.admitted.query, read_body(route, data)), **arguments)
        return json_answer(value, route.status)

    def _failed(self, failure: Failure, route: Route) -> Answer | None:
        if self._client_left and failure.check(CancelledError):
            return None
        return self._answer_to(failure, route.name)

    def _answer_to(self, failure: Failure, where: str) -> Answer:
        return error_answer(failure.value) or self._site.fault(failure, where)

    def _answer(self, answer: Answer | None) -> None:
        self._operation = None
        if answer is None or self._client_left:
            return
        self.setResponseCode(answer.status)
        self.setHeader(b"Date", datetimeToString())
        for name, value in answer.headers:
            self.setHeader(name, value)
        if answer.status != 204:
            self.setHeader(b"Content-Length", b"%d" % len(answer.body))
        self.write(answer.body)
        self.finish()

    def _could_not_answer(self, failure: Failure) -> None:
        self._site.fault(failure, "answer")
        self.loseConnection()


class AdminSite(HTTPFactory):
    """Serves the HTTP interface of `core`; listen with it.

    `port` is the one that clients name in Host and Origin, 0 for the one that they connected to.
    """

    requestFactory = AdminRequest
    logger = Logger()

    def __init__(self, core: CoreApi, port: int, hosts: Iterable[str], clock: Clock, access: AccessPolicy) -> None:
        # No timeout: Twisted's would need a timer of its own, and the channel has a stricter one.
        super().__init__(timeout=None, reactor=clock.reactor)  # type: ignore[arg-type]
        self.core = core
        self.port = port
        self.clock = clock
        self.admission = Admission(ROUTES, hosts, access)
        self.channels: set[AdminChannel] = set()
        self._faults = 0

    def buildProtocol(self, addr: IAddress | None) -> AdminChannel:  # type: ignore[override]
        return AdminChannel(self)

    def startFactory(self) -> None:
        """Do nothing: there is no access log, and so no timer that keeps its date."""

    def stopFactory(self) -> None:
        """Close connections without a request now, the others after their answer."""
        for channel in list(self.channels):
            channel.finish_up()

    def log(self, request: Any) -> None:
        """Do nothing: requests are not logged one by one."""

    def fault(self, failure: Failure, where: str) -> Answer:
        """Log a fault of ours and return the answer that names it."""
        self._faults += 1
        error_id = f"{self.clock.wall_ms():x}-{self._faults}"
        self.logger.failure(
            "a request failed in {where}, error id {error_id}",
            failure,
            where=where,
            error_id=error_id,
        )
        return fault_answer(failure.value, error_id)


def make_site(
    core: CoreApi, *, port: int, clock: Clock, hosts: Iterable[str] = (), access: AccessPolicy | None = None
) -> AdminSite:
    """Return the factory of the admin port. `hosts`: names besides loopback, `NAME` or `NAME:PORT`."""
    return AdminSite(core, port, hosts, clock, access or LoopbackOnly())
