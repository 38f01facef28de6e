"""One HTTP connection: what it may send, how long it may take, and how it is closed.

Twisted's channel parses; this one decides at the end of the headers whether the body is read at all, bounds each stage
in time with one timer, and answers in our own shape where Twisted would write a bare status line.
"""

from enum import Enum
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IDelayedCall, ITCPTransport
from twisted.python.failure import Failure
from twisted.web.http import RESPONSES, HTTPChannel
from twisted.web.http_headers import Headers

from dsched.errors import TooLarge
from dsched.web.admission import Head
from dsched.web.envelope import ALWAYS, Answer, Refused, error_answer
from dsched.wire.header import MAGIC

if TYPE_CHECKING:
    from dsched.web.server import AdminSite

__all__ = ["AdminChannel", "Stage"]


class Stage(Enum):
    """Where a connection is."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"
    LINGER = "linger"
    CLOSING = "closing"


# An answer takes what the core takes, which has limits of its own.
_LIMIT_S = {Stage.IDLE: 60, Stage.HEAD: 15, Stage.BODY: 60, Stage.LINGER: 2, Stage.CLOSING: 15}

# What a refused client may still push before it is no longer read. Closing at once, with its bytes unread, would
# reset the connection, and the reset can overtake the answer.
_LINGER_BYTES = 256 * 1024

# How a frame begins, and nothing that is HTTP.
_FRAME = MAGIC.to_bytes(4, "big")[:1]

# Longer ones are no lengths, and Python would refuse to read them.
_MOST_LENGTH_DIGITS = 18


class AdminChannel(HTTPChannel):
    """A connection to the admin port."""

    stage = Stage.CLOSING
    transport: Any
    _networkProducer: Any
    _timer: IDelayedCall | None = None
    _lingered = 0
    _has_begun = False

    def __init__(self, site: "AdminSite") -> None:
        super().__init__()
        self.factory = self.site = site
        self.requestFactory = site.requestFactory  # type: ignore[assignment]

    # -- the stages

    def _enter(self, stage: Stage) -> None:
        self.stage = stage
        self.site.clock.cancel(self._timer)
        limit_s = _LIMIT_S.get(stage)
        self._timer = None if limit_s is None else self.site.clock.call_later(limit_s, self._expired)

    def _expired(self) -> None:
        if self.stage is Stage.CLOSING:
            self.transport.abortConnection()
        elif self.stage is Stage.BODY or (self.stage is Stage.HEAD and self.requests):
            self.reject(Refused(408, "timeout", "the request did not arrive in time"))
        else:
            self.loseConnection()

    def connectionMade(self) -> None:
        super().connectionMade()
        self.site.channels.add(self)
        self._enter(Stage.HEAD)

    def connectionLost(self, reason: Any) -> None:  # type: ignore[override]
        self.site.channels.discard(self)
        self.site.clock.cancel(self._timer)
        super().connectionLost(reason)

    def dataReceived(self, data: bytes) -> None:
        if self.stage is Stage.CLOSING:
            return
        if self.stage is Stage.LINGER:
            self._lingered += len(data)
            if self._lingered > _LINGER_BYTES:
                self._networkProducer.pauseProducing()
            return
        if self.stage is Stage.IDLE:
            self._enter(Stage.HEAD)
        is_first, self._has_begun = not self._has_begun, True
        if is_first and data.startswith(_FRAME):
            # It would wait for an answer to its REGISTER, and this end for the end of a line.
            self.reject(
                Refused(400, "bad_request", "this port speaks HTTP; workers have that of --listen, 8080 by default")
            )
            return
        super().dataReceived(data)

    def rawDataReceived(self, data: bytes) -> None:
        # What came in one piece with a head that was refused.
        if self.stage is not Stage.LINGER and self.stage is not Stage.CLOSING:
            super().rawDataReceived(data)

    def allHeadersReceived(self) -> None:
        request = self.requests[-1]
        head = Head(self._command, self._path, self._version, request.requestHeaders, self.length)
        try:
            request.admitted = self.site.admission.admit(head, self.site.port or getattr(self.getHost(), "port", 0))
        except Exception as error:
            if self.length != 0:
                self.reject(error, linger=True)
                return
            request.refusal = error
        if self.length != 0:
            self._enter(Stage.BODY)
        super().allHeadersReceived()

    def allContentReceived(self) -> None:
        if self.stage is Stage.LINGER or self.stage is Stage.CLOSING:
            return
        self._enter(Stage.ANSWER)
        super().allContentReceived()

    def requestDone(self, request: Any) -> None:
        # Before Twisted's, which goes on with what the client has sent meanwhile.
        self._enter(Stage.IDLE)
        super().requestDone(request)

    # -- refusing and closing

    def reject(self, error: Exception, *, linger: bool = False) -> None:
        """Answer a request whose body is not read (any further), and close; once per connection."""
        if self.stage is Stage.LINGER or self.stage is Stage.CLOSING:
            return
        answer: Answer = error_answer(error) or self.site.fault(Failure(error), "admission")
        headers = Headers({name: [value] for name, value in answer.headers})
        headers.setRawHeaders(b"Content-Length", [b"%d" % len(answer.body)])
        headers.setRawHeaders(b"Connection", [b"close"])
        self.persistent = False
        self.writeHeaders(b"HTTP/1.1", b"%d" % answer.status, RESPONSES.get(answer.status, b""), headers)
        self.write(answer.body)
        if not linger:
            self.loseConnection()
            return
        self._enter(Stage.LINGER)
        if ITCPTransport.providedBy(self.transport):
            self.transport.loseWriteConnection()

    def body_exceeds(self, limit: int) -> None:
        """Refuse a body that came in chunks and has grown beyond `limit`."""
        self.reject(TooLarge(f"a body for this path may have {limit} bytes", limit=limit), linger=True)

    def finish_up(self) -> None:
        """Close now if no request is under way, else after its answer."""
        if self.stage is Stage.ANSWER:
            self.persistent = False
        else:
            self.loseConnection()

    def loseConnection(self) -> None:
        """Close once all is written, or by force when the client does not read it; idempotent."""
        if self.stage is not Stage.CLOSING:
            self._enter(Stage.CLOSING)
            super().loseConnection()

    # -- where Twisted would answer in its own words

    def writeHeaders(self, version: bytes, code: bytes, reason: bytes, headers: Headers) -> None:
        for name, value in ALWAYS:
            headers.setRawHeaders(name, [value])
        super().writeHeaders(version, code, reason, headers)

    def _respondToBadRequestAndDisconnect(self) -> None:
        self.reject(Refused(400, "bad_request", "this is not the HTTP/1.1 that is taken here"))

    def lineLengthExceeded(self, line: bytes) -> None:
        self._respondToBadRequestAndDisconnect()

    def _maybeChooseTransferDecoder(self, header: bytes, data: bytes) -> bool:
        if header == b"Content-Length" and len(data) > _MOST_LENGTH_DIGITS:
            return bool(self._failChooseTransferDecoder())
        return bool(super()._maybeChooseTransferDecoder(header, data))
