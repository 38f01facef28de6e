"""The bodies of frames: one struct per message, camelCase on the wire.

Every `decode_…` raises `ProtocolError`, and nothing else, naming the message and what is wrong with it. Unknown fields
are ignored, so that a newer peer may say more; a message never carries fields that its receiver has not agreed to.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeVar

from dsched.errors import BadJson, ProtocolError
from dsched.wire.encoding import Meta, Raw, Struct, decoder, encode, field, load_strict, replace
from dsched.wire.framing import encode_frame
from dsched.wire.header import HEADER, MAGIC, MAX_BODY, SUCCESS, VERSION, MessageType

__all__ = [
    "FEATURES",
    "HEARTBEAT_FRAME",
    "MAX_MESSAGE",
    "MAX_RESULT",
    "MAX_TRACEBACK",
    "Cancel",
    "Drain",
    "Error",
    "Heartbeat",
    "MessageType",
    "PlainRequest",
    "Register",
    "RegisterAck",
    "Request",
    "Response",
    "ResponseIn",
    "ResultAck",
    "ResultAcks",
    "Resume",
    "ResumeAck",
    "ResumeIn",
    "RunningAttempt",
    "Started",
    "StartedMany",
    "decode_cancel",
    "decode_drain",
    "decode_error",
    "decode_heartbeat",
    "decode_register",
    "decode_register_ack",
    "decode_request",
    "decode_response",
    "decode_result_acks",
    "decode_resume",
    "decode_resume_ack",
    "decode_started",
    "encode_request_frame",
    "frame",
    "guess_task_id",
]

M = TypeVar("M")

FEATURES = ("started", "resultAck", "cancel", "drain", "resume")
"""What this version speaks beyond the plain protocol; REGISTER offers, REGISTER_ACK accepts."""

MAX_RESULT = 262_144
MAX_MESSAGE = 8_192
MAX_TRACEBACK = 65_536

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TaskId = Annotated[str, Meta(min_length=1, max_length=128)]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Millis = Annotated[float, Meta(ge=0)]
WorkerId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:@/-]{1,128}\Z")]
Port = Annotated[int, Meta(ge=0, le=65_535)]


def _always(value: Any) -> Any:
    """Default of a field that is sent even so: the plain protocol has no optional fields."""
    return field(default_factory=lambda: value)


class _Message(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What all messages share; a field at its default is not sent."""


class PlainRequest(_Message, frozen=True):
    """A dispatch as a plain worker understands it: exactly these nine fields, always all of them. `timeout` in s."""

    job_id: int
    job_name: str
    params: str
    sharding_total: int
    sharding_item: int
    timeout: int
    task_id: str
    retry_count: int
    preload_keys: list[str]


class Request(PlainRequest, frozen=True):
    """A dispatch to a worker with features. `due` and `deadline` are UTC in ms and for people to read: no peer
    measures time by the other's clock."""

    handler: str
    attempt: int
    fence: int
    epoch: int
    run_id: str
    due: int | None = None
    deadline: int | None = None


class Response(_Message, frozen=True):
    """The end of one attempt, as a worker sends it. `success` decides; the status of the header does not.

    `data` is any JSON value, or `Raw` bytes that `dump_strict` made. A plain worker sends the first five fields.
    `outcome` is one of SUCCESS, ERROR, TIMEOUT, REJECTED, CANCELLED; `duration_ms` is how long the handler ran.
    """

    job_id: Int64
    task_id: TaskId
    success: bool
    message: str | None = _always("")
    data: Any = _always(None)
    attempt: Count | None = None
    fence: Int64 | None = None
    epoch: Int64 | None = None
    duration_ms: Millis | None = None
    outcome: str | None = None
    error_type: str | None = None
    traceback: str | None = None
    retryable: bool = True


_NULL = Raw(b"null")


class ResponseIn(Response, frozen=True):
    """The same as the core reads it: `data` stays the JSON bytes that came (`bytes(response.data)`)."""

    data: Raw = _NULL


class Register(_Message, frozen=True):
    """Who a worker is. Without `features` it is plain and gets nothing but the plain protocol."""

    worker_id: WorkerId
    host: Annotated[str, Meta(max_length=255)] = _always("")
    port: Port = _always(0)
    healthy: bool = _always(True)
    last_heartbeat: Int64 = _always(0)
    incarnation: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    features: Annotated[list[Annotated[str, Meta(max_length=32)]], Meta(max_length=64)] | None = None
    client_nonce: Annotated[str, Meta(max_length=128)] | None = None

    @property
    def plain(self) -> bool:
        """Tell whether the worker speaks only the plain protocol."""
        return self.features is None


class RegisterAck(_Message, frozen=True):
    """The worker is known; `features` are those both sides will use, absent for a plain worker."""

    worker_id: str
    features: list[str] | None = None


class RunningAttempt(_Message, frozen=True):
    """An attempt that a resuming worker still has. `elapsed_ms` counts from its start, 0 when it waits."""

    task_id: TaskId
    job_id: Int64
    attempt: Count
    fence: Int64
    started: bool
    elapsed_ms: Millis = 0.0


class Resume(_Message, frozen=True):
    """What a worker offers and what it still has, in one or more chunks.

    The first chunk alone says `group`, `slots`, `weight` and `tags`; every chunk adds to `handlers`, `running` and
    `results`; `last` marks the end.
    """

    group: Name = "default"
    slots: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    tags: list[Name] = []
    handlers: list[Name] = []
    running: list[RunningAttempt] = []
    results: list[Any] = []
    last: bool = True


class ResumeIn(Resume, frozen=True):
    """The same as the core reads it."""

    results: list[ResponseIn] = []


class ResumeAck(_Message, frozen=True):
    """The core has applied all chunks: `terminal` names the reported tasks that need nothing more."""

    terminal: list[str]
    epoch: int


class Started(_Message, frozen=True):
    """One attempt began to run."""

    task_id: TaskId
    job_id: Int64
    attempt: Count


class StartedMany(_Message, frozen=True):
    """The body of STARTED: whatever began since the last such frame."""

    started: list[Started]


class ResultAck(NamedTuple):
    """One result is stored; the worker may forget it."""

    task_id: str
    attempt: int


class ResultAcks(_Message, frozen=True):
    """The body of RESULT_ACK: pairs of task id and attempt, as many as one commit stored."""

    acks: list[tuple[str, int]]


class Cancel(_Message, frozen=True):
    """Stop this attempt."""

    task_id: TaskId
    attempt: Count
    reason: str = ""


class Drain(_Message, frozen=True):
    """From a worker: I take nothing new. From the core: take nothing new, finish, leave."""

    reason: str = ""


class Error(_Message, frozen=True):
    """Something a peer with features sent was not taken; `code` is stable, `message` is for people."""

    code: str
    message: str


class Heartbeat(_Message, frozen=True):
    """I live. `ping` asks for an answer, `pong` is one and is not answered again. All defaults: an empty body."""

    ping: bool = False
    pong: bool = False
    running: Count = 0
    load: float | None = None


_TYPES: dict[type, MessageType] = {
    PlainRequest: MessageType.REQUEST,
    Request: MessageType.REQUEST,
    Response: MessageType.RESPONSE,
    ResponseIn: MessageType.RESPONSE,
    Heartbeat: MessageType.HEARTBEAT,
    Register: MessageType.REGISTER,
    RegisterAck: MessageType.REGISTER_ACK,
    Resume: MessageType.RESUME,
    ResumeIn: MessageType.RESUME,
    ResumeAck: MessageType.RESUME_ACK,
    StartedMany: MessageType.STARTED,
    ResultAcks: MessageType.RESULT_ACK,
    Cancel: MessageType.CANCEL,
    Drain: MessageType.DRAIN,
    Error: MessageType.ERROR,
}

HEARTBEAT_FRAME = encode_frame(MessageType.HEARTBEAT, b"")
"""The whole beat of a plain peer, and the core's answer to it."""

_NO_NEWS = Heartbeat()


def frame(message: Any) -> bytes:
    """Encode one message with its header. A lone `Started` or `ResultAck` is sent as a batch of one."""
    if isinstance(message, Started):
        message = StartedMany([message])
    elif isinstance(message, ResultAck):
        message = ResultAcks([message])
    elif message == _NO_NEWS:
        return HEARTBEAT_FRAME
    return encode_frame(_TYPES[type(message)], encode(message))


_pack = HEADER.pack


def encode_request_frame(request: PlainRequest | Request) -> bytes:
    """Encode a dispatch: what `frame` does, on the shortest way."""
    body = encode(request)
    if len(body) > MAX_BODY:
        return encode_frame(MessageType.REQUEST, body)  # It names what is wrong.
    return _pack(MAGIC, VERSION, 1, SUCCESS, len(body)) + body


def _decoder(name: str, type: type[M]) -> Callable[[bytes], M]:
    decode = decoder(type)

    def decode_message(body: bytes) -> M:
        try:
            return decode(body)
        except BadJson as error:
            raise ProtocolError(f"{name}: {error}", got=body) from None

    return decode_message


decode_request = _decoder("REQUEST", Request)
decode_register = _decoder("REGISTER", Register)
decode_register_ack = _decoder("REGISTER_ACK", RegisterAck)
decode_resume_ack = _decoder("RESUME_ACK", ResumeAck)
decode_started = _decoder("STARTED", StartedMany)
decode_result_acks = _decoder("RESULT_ACK", ResultAcks)
decode_cancel = _decoder("CANCEL", Cancel)
decode_drain = _decoder("DRAIN", Drain)
decode_error = _decoder("ERROR", Error)

_decode_heartbeat = _decoder("HEARTBEAT", Heartbeat)
_decode_response = _decoder("RESPONSE", ResponseIn)
_decode_resume = _decoder("RESUME", ResumeIn)


def decode_heartbeat(body: bytes) -> Heartbeat:
    """Decode a beat; an empty body is a plain one."""
    return _decode_heartbeat(body) if body else _NO_NEWS


def decode_response(body: bytes) -> ResponseIn:
    """Decode a result and hold it to the limits.

    A too long message or traceback is cut with a note. `data` that is too large, or is not strict JSON, makes the
    response a failure that is not retried and says why: the attempt is known, so the link need not suffer.
    """
    return _within_limits(_decode_response(body))


def decode_resume(body: bytes) -> ResumeIn:
    """Decode one chunk of RESUME; its results are held to the same limits as those of RESPONSE."""
    resume = _decode_resume(body)
    if resume.results:
        return replace(resume, results=[_within_limits(result) for result in resume.results])
    return resume


def _within_limits(response: ResponseIn) -> ResponseIn:
    message, traceback, data = response.message, response.traceback, bytes(response.data)
    if message and len(message) > MAX_MESSAGE:
        response = replace(response, message=_cut(message, MAX_MESSAGE))
    if traceback and len(traceback) > MAX_TRACEBACK:
        response = replace(response, traceback=_cut(traceback, MAX_TRACEBACK))
    if data == b"null":
        return response
    if len(data) > MAX_RESULT:
        return _refused(response, "TooLarge", f"the result has {len(data)} bytes, at most {MAX_RESULT} are stored")
    try:
        load_strict(data)
    except BadJson as error:
        return _refused(response, "BadJson", f"the result is not JSON: {error}")
    return response


def _cut(text: str, size: int) -> str:
    note = f" … [cut, {len(text)} characters]"
    return text[: size - len(note)] + note


def _refused(response: ResponseIn, error_type: str, message: str) -> ResponseIn:
    return replace(
        response,
        success=False,
        outcome="ERROR",
        error_type=error_type,
        message=message,
        data=_NULL,
        retryable=False,
    )


_TASK_ID = re.compile(rb'"taskId"\s*:\s*"([^"\\\x00-\x1f]{1,128})"')


def guess_task_id(body: bytes) -> str | None:
    """Find the task id in a RESPONSE that does not decode, so that the refusal can name the attempt."""
    match = _TASK_ID.search(body)
    return match[1].decode(errors="replace") if match else None
