"""From what a handler did to the RESPONSE that says so. Pure functions, called from any thread."""

import traceback
from typing import Any

from dsched.errors import BadJson
from dsched.jobs import DoNotRetry
from dsched.model.task import Outcome
from dsched.wire.encoding import Raw, dump_strict, replace
from dsched.wire.messages import MAX_MESSAGE, MAX_RESULT, MAX_TRACEBACK, Request, Response

__all__ = ["cancelled", "failed", "refused", "rejected", "released", "repeated", "succeeded", "timed_out"]

_NULL = Raw(b"null")
_SUCCESS = str(Outcome.SUCCESS.value)


def succeeded(request: Request, value: Any, duration_ms: float) -> Response:
    """Return the response for a handler that returned `value`: a failure without retry if that cannot be a result."""
    if value is None:
        data = _NULL
    else:
        try:
            encoded = dump_strict(value)
        except BadJson as error:
            where = f" (at {_path(error.field)})" if error.field else ""
            return refused(request, "BadJson", f"the result is not JSON: {error.reason}{where}", duration_ms)
        if len(encoded) > MAX_RESULT:
            message = f"the result has {len(encoded)} bytes, at most {MAX_RESULT} are stored"
            return refused(request, "TooLarge", message, duration_ms)
        data = Raw(encoded)
    return Response(
        request.job_id,
        request.task_id,
        True,
        "",
        data,
        request.attempt,
        request.fence,
        request.epoch,
        duration_ms,
        _SUCCESS,
    )


def failed(request: Request, error: BaseException, duration_ms: float) -> Response:
    """Return the response for a handler that raised."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return _response(
        request,
        Outcome.ERROR,
        _text_of(error),
        duration_ms=duration_ms,
        error_type=_text(name, 256),
        traceback=_traceback_of(error),
        retryable=not isinstance(error, DoNotRetry),
    )


def refused(request: Request, error_type: str, message: str, duration_ms: float) -> Response:
    """Return the response for an attempt that failed in a way that another would repeat."""
    return _response(request, Outcome.ERROR, message, duration_ms=duration_ms, error_type=error_type, retryable=False)


def timed_out(request: Request, duration_ms: float) -> Response:
    """Return the response for an attempt whose handler did not return within its timeout."""
    text = f"timed out after {request.timeout} s"
    return _response(request, Outcome.TIMEOUT, text, duration_ms=duration_ms, still_running=True)


def released(request: Request) -> Response:
    """Return what frees the slot of an attempt that has timed out: its handler has returned at last."""
    return _response(request, Outcome.CANCELLED, "its handler has returned")


def rejected(request: Request, message: str) -> Response:
    """Return the response for a request that this worker does not take; it never counts as an execution."""
    return _response(request, Outcome.REJECTED, message)


def cancelled(request: Request, reason: str, ended: Response | None = None) -> Response:
    """Return the response for an attempt that the core cancelled.

    `ended` is what its handler came to all the same; a success stays one, with its data, and the core decides.
    """
    message = f"cancelled: {reason}" if reason else "cancelled"
    if ended is None:
        return _response(request, Outcome.CANCELLED, message)
    return replace(ended, outcome=Outcome.CANCELLED.value, message=_text(message, MAX_MESSAGE))


def repeated(request: Request, earlier: Response) -> Response:
    """Return the earlier success of a task as the answer of a later attempt, so that the work is not repeated.

    It keeps how long the work took then.
    """
    return replace(earlier, attempt=request.attempt, fence=request.fence, epoch=request.epoch)


def _response(request: Request, outcome: Outcome, message: str, **more: Any) -> Response:
    return Response(
        job_id=request.job_id,
        task_id=request.task_id,
        success=False,
        message=_text(message, MAX_MESSAGE),
        data=_NULL,
        attempt=request.attempt,
        fence=request.fence,
        epoch=request.epoch,
        outcome=outcome.value,
        **more,
    )


def _path(field: str) -> str:
    return field if len(field) <= 200 else f"{field[:200]}…"


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # The __str__ of a user's exception may itself be broken.
        return f"<{type(error).__name__} whose text fails with {type(second).__name__}>"


def _traceback_of(error: BaseException) -> str:
    # The first frame is ours.
    below = error.__traceback__.tb_next if error.__traceback__ else None
    try:
        text = "".join(traceback.format_exception(type(error), error, below))
    except Exception as second:
        text = f"<the traceback cannot be written: {type(second).__name__}>\n"
    return _text(text, MAX_TRACEBACK, keep_end=True)


def _text(text: str, limit: int, *, keep_end: bool = False) -> str:
    """Return `text` as UTF-8 can carry it, cut to `limit` bytes with a note.

    A traceback keeps its end, which says what happened; a message its beginning.
    """
    if len(text) * 4 <= limit and text.isascii():
        return text
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode()
    note = f"[cut, {len(data)} bytes]"
    room = limit - len(note) - 1
    if keep_end:
        return f"{note}\n{data[-room:].decode('utf-8', 'ignore')}"
    return f"{data[:room].decode('utf-8', 'ignore')} {note}"
