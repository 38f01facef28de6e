"""What goes back over HTTP: JSON answers, the one shape of every error, and the headers that each answer carries."""

from dataclasses import dataclass
from typing import Any

from dsched.errors import (
    Conflict,
    DschedError,
    EpochLost,
    InvalidValue,
    NotFound,
    NotLeader,
    StoreUnavailable,
    TooLarge,
)
from dsched.wire.encoding import encode

__all__ = ["ALWAYS", "Answer", "Refused", "error_answer", "fault_answer", "json_answer"]

ALWAYS: tuple[tuple[bytes, bytes], ...] = (
    (b"Server", b"dsched"),
    (b"Cache-Control", b"no-store"),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"Referrer-Policy", b"no-referrer"),
    (
        b"Content-Security-Policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        b"frame-ancestors 'none'; base-uri 'none'",
    ),
)
"""Headers of every answer, whoever wrote it."""

_JSON = (b"Content-Type", b"application/json")
_RETRY = (b"Retry-After", b"1")

# Looked up along the class hierarchy of an error. What is not here is a fault of ours: 500.
_STATUS: dict[type[BaseException], int] = {
    InvalidValue: 400,
    NotFound: 404,
    Conflict: 409,
    NotLeader: 409,
    TooLarge: 413,
    StoreUnavailable: 503,
    # Leadership went while the request was under way, so its fate is as unknown as when the store does not answer.
    EpochLost: 503,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `headers` come besides `ALWAYS`, Date and Content-Length."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Refused(DschedError):
    """A request that HTTP itself does not let in: wrong host, method, media type, framing. Carries its status."""

    def __init__(
        self, status: int, code: str, message: str, *, headers: tuple[tuple[bytes, bytes], ...] = (), **details: Any
    ) -> None:
        super().__init__(message, **details)
        self.status = status
        self.code = code
        self.headers = headers


def json_answer(value: Any, status: int = 200) -> Answer:
    """Return `value` as JSON; a 204 has no body."""
    if status == 204:
        return Answer(204)
    return Answer(status, encode(value), (_JSON,))


def _error(
    status: int, code: str, message: str, details: dict[str, Any], headers: tuple[tuple[bytes, bytes], ...] = ()
) -> Answer:
    body = encode({"error": {"code": code, "message": message, "details": details}})
    if status == 503:
        headers = (_RETRY, *headers)
    return Answer(status, body, (_JSON, *headers))


def error_answer(error: BaseException | None) -> Answer | None:
    """Return the answer that tells `error`, or None where the error is a fault of ours (see `fault_answer`)."""
    if isinstance(error, Refused):
        return _error(error.status, error.code, error.message, error.details, error.headers)
    if isinstance(error, DschedError):
        for kind in type(error).__mro__:
            if kind in _STATUS:
                return _error(_STATUS[kind], error.code, error.message, error.details)
    return None


def fault_answer(error: BaseException | None, error_id: str) -> Answer:
    """Return the 500 for a fault of ours. It tells an id to look up in the log, and nothing of our insides."""
    code = error.code if isinstance(error, DschedError) else "internal"
    return _error(500, code, "the request failed inside dsched; the log tells why, under this id", {"id": error_id})
