"""The eleven bytes in front of each body."""

from enum import IntEnum
from struct import Struct

__all__ = [
    "FAIL",
    "HEADER",
    "HEADER_SIZE",
    "MAGIC",
    "MAX_BODY",
    "MAX_BODY_UNREGISTERED",
    "SUCCESS",
    "VERSION",
    "MessageType",
]

MAGIC = 0xCAFEBABE
VERSION = 1

SUCCESS = 1
FAIL = 2

MAX_BODY = 1_048_576
"""Largest body of a registered peer, in bytes."""

MAX_BODY_UNREGISTERED = 4096
"""Largest body of a peer that has not registered: a REGISTER fits many times over."""

HEADER = Struct(">IBBBi")
"""Magic, version, type, status, length of the body; the length is signed, as Java writes it."""

HEADER_SIZE = HEADER.size


class MessageType(IntEnum):
    """Type byte of a frame. Those without a message in `dsched.wire.messages` are reserved numbers."""

    REQUEST = 1
    RESPONSE = 2
    HEARTBEAT = 3
    REGISTER = 100
    CACHE_MIGRATE = 101
    REGISTER_ACK = 102
    CHALLENGE = 103
    AUTH = 104
    RESUME = 105
    STARTED = 106
    RESULT_ACK = 107
    CANCEL = 108
    LOG = 109
    PROGRESS = 110
    DRAIN = 111
    REDIRECT = 112
    CACHE_EVICT = 113
    ONCE = 114
    RESUME_ACK = 115
    ERROR = 116
