"""Every error that dsched raises on purpose: one class per cause, each with a stable code.

The codes are part of the HTTP interface; `dsched.web` maps each class to a status.
"""

from typing import Any

__all__ = [
    "BadJson",
    "BatchRefused",
    "ConfigError",
    "Conflict",
    "DschedError",
    "EpochLost",
    "InternalFault",
    "InvalidTransition",
    "InvalidValue",
    "NotFound",
    "NotLeader",
    "ProtocolError",
    "StoreUnavailable",
    "TooLarge",
    "Unreachable",
]


class DschedError(Exception):
    """Base of all errors of dsched. `code` is stable; `details` is JSON-ready and names the ids involved."""

    code = "error"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = details


class ConfigError(DschedError):
    """Settings that cannot be used; `problems` lists all of them."""

    code = "config"

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems), problems=list(problems))
        self.problems = problems


class InvalidValue(DschedError):
    """A value from a person or a program outside that cannot be taken; names the field and the reason."""

    code = "invalid"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}" if field else reason, field=field, reason=reason)
        self.field = field
        self.reason = reason


class BadJson(InvalidValue):
    """Bytes that are not the JSON that dsched takes, or a value that JSON cannot carry."""

    code = "bad_json"


class TooLarge(DschedError):
    """Something larger than its documented limit (bytes or items)."""

    code = "too_large"


class NotFound(DschedError):
    """No such job, run, task or worker."""

    code = "not_found"

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"there is no {kind} {name!r}", kind=kind, id=name)


class Conflict(DschedError):
    """A request that contradicts what is stored: another body under the same key, or a state that is final."""

    code = "conflict"


class NotLeader(DschedError):
    """This core does not lead. `details["leader"]` tells who does, where known."""

    code = "not_leader"


class StoreUnavailable(DschedError):
    """The store did not answer, or its answer was lost: the fate of the request is unknown; repeat with the same
    key."""

    code = "store_unavailable"


class Unreachable(DschedError):
    """Nobody answered, or not as dsched does; raised by the client only."""

    code = "unreachable"


class EpochLost(DschedError):
    """The store knows a higher epoch: another core leads."""

    code = "epoch_lost"


class BatchRefused(DschedError):
    """The store refused the content of a batch (a constraint, a value it cannot hold); nothing of it is stored."""

    code = "refused"


class InternalFault(DschedError):
    """A part of dsched broke a promise; logged with what is needed to find out why."""

    code = "internal"


class InvalidTransition(DschedError):
    """A pair (state, event) that the transition table lacks; the message tells the story of the task."""

    code = "invalid_transition"


class ProtocolError(DschedError):
    """Bytes from a peer that are not our protocol; the connection is closed. `got` holds at most 32 offending bytes."""

    code = "protocol"

    def __init__(self, reason: str, *, got: bytes = b"") -> None:
        super().__init__(reason, reason=reason)
        self.reason = reason
        self.got = bytes(got[:32])
