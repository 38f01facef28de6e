"""Messages to frames and back: which type a message has, how it is decoded, which limits it must keep.

Every `decode_…` raises `ProtocolError`, and nothing else, naming the message and what is wrong with it.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

from dsched.errors import BadJson, ProtocolError
from dsched.wire.bodies import (
    FEATURES,
    Cancel,
    Drain,
    Error,
    Heartbeat,
    PlainRequest,
    Redirect,
    Register,
    RegisterAck,
    Request,
    Response,
    ResponseIn,
    ResultAck,
    ResultAcks,
    Resume,
    ResumeAck,
    ResumeIn,
    RunningAttempt,
    Started,
    StartedMany,
)
from dsched.wire.encoding import Raw, decoder, encode, load_strict, replace
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
    "Redirect",
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
    "decode_redirect",
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
    "resume_frames",
]

M = TypeVar("M")

MAX_RESULT = 262_144
MAX_MESSAGE = 8_192
MAX_TRACEBACK = 65_536

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
    Redirect: MessageType.REDIRECT,
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
decode_redirect = _decoder("REDIRECT", Redirect)
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
        data=Raw(b"null"),
        retryable=False,
    )


_TASK_ID = re.compile(rb'"taskId"\s*:\s*"([^"\\\x00-\x1f]{1,128})"')


def guess_task_id(body: bytes) -> str | None:
    """Find the task id in a RESPONSE that does not decode, so that the refusal can name the attempt."""
    match = _TASK_ID.search(body)
    return match[1].decode(errors="replace") if match else None


def resume_frames(resume: Resume, *, max_body: int = MAX_BODY) -> list[bytes]:
    """Encode a RESUME as frames, in as many chunks as its lists need.

    Raises `ProtocolError` when one entry alone does not fit.
    """
    budget = max_body - 1024  # The names of the fields, brackets, and the commas between entries.
    chunks: list[dict[str, list[Any]]] = [{}]
    free = budget - len(encode(replace(resume, handlers=[], running=[], results=[])))
    for field_name in ("handlers", "running", "results"):
        for entry in getattr(resume, field_name):
            data = encode(entry)
            if len(data) + 1 > free:
                chunks.append({})
                free = budget
            chunks[-1].setdefault(field_name, []).append(Raw(data))
            free -= len(data) + 1
    frames = []
    for number, lists in enumerate(chunks):
        base = replace(resume, handlers=[], running=[], results=[]) if number == 0 else Resume()
        chunk = replace(base, **lists, last=number == len(chunks) - 1)
        frames.append(encode_frame(MessageType.RESUME, encode(chunk), max_body=max_body))
    return frames
