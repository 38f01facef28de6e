"""Frames from bytes and bytes from frames, without I/O.

`FrameDecoder` promises: whatever the chunking of a stream, the frames that `feed` returned, joined, and the one
`error` at the end (or none) are the same as if the whole stream had been fed at once.
"""

from struct import Struct
from typing import NamedTuple

from dsched.errors import ProtocolError
from dsched.wire.header import FAIL, HEADER, HEADER_SIZE, MAGIC, MAX_BODY, SUCCESS, VERSION

__all__ = ["Frame", "FrameDecoder", "encode_frame"]

_MAGIC_BYTES = MAGIC.to_bytes(4, "big")
_PREFIX = _MAGIC_BYTES + bytes([VERSION])
_HTTP = b"HGPDOC"  # First letters of an answer, and of the methods. Only the first wrong byte may be looked at.
_pack = HEADER.pack
_unpack_from = Struct(">5sBBi").unpack_from  # The header again, with magic and version as one thing to compare.


class Frame(NamedTuple):
    """One frame as it came; the type is not judged here, an unknown one is the business of the receiver."""

    type: int
    status: int
    body: bytes


_new_frame = tuple.__new__


def encode_frame(type: int, body: bytes, status: int = SUCCESS, *, max_body: int = MAX_BODY) -> bytes:
    """Put the header before `body`. Raises `ProtocolError` when the body is larger than `max_body`."""
    if len(body) > max_body:
        raise ProtocolError(f"a body of {len(body)} bytes of type {type} does not fit a frame of at most {max_body}")
    return _pack(MAGIC, VERSION, type, status, len(body)) + body


class FrameDecoder:
    """Cuts a byte stream into frames.

    `max_body` may change at any time; a frame is judged by the limit in force when the last byte of its header is
    read. Nothing is allocated from the length field: at most one incomplete frame is kept, as large as what came.
    After an error it refuses everything: `feed` returns no frames and drops the bytes.
    """

    def __init__(self, max_body: int = MAX_BODY) -> None:
        self.max_body = max_body
        self.error: ProtocolError | None = None
        self._buffer = bytearray()
        self._needed = HEADER_SIZE  # Bytes that the frame at the head of the buffer has, as far as is known.
        self._judged = False  # The header at the head of the buffer was found good.

    @property
    def buffered(self) -> int:
        """Return how many bytes wait for the rest of their frame, or for a call of `feed` that may take them."""
        return len(self._buffer)

    @property
    def head(self) -> bytes:
        """Return the first of the buffered bytes, at most 32, for a log line."""
        return bytes(self._buffer[:32])

    def feed(self, data: bytes, *, limit: int | None = None) -> list[Frame]:
        """Take more bytes and return the frames that are now complete, in order; never raises.

        At most `limit` frames are returned; call again with no bytes for the rest. When the stream is broken,
        `error` is set and the frames before the break are returned all the same.
        """
        if self.error is not None:
            return []
        buffer = self._buffer
        if buffer:
            buffer += data
            if len(buffer) < self._needed and (self._judged or not self._is_header_wrong(buffer)):
                return []
            data = bytes(buffer)
            buffer.clear()
        return self._cut(data, limit)

    def _cut(self, data: bytes, limit: int | None) -> list[Frame]:
        frames: list[Frame] = []
        append = frames.append
        position = 0
        size = len(data)
        last_header = size - HEADER_SIZE
        judged = self._judged
        max_body = self.max_body
        while position <= last_header and len(frames) != limit:
            prefix, kind, status, length = _unpack_from(data, position)
            good = prefix == _PREFIX and 0 < status <= FAIL and 0 <= length <= max_body
            if not good and not (judged and position == 0):
                judged = False
                break
            start = position + HEADER_SIZE
            end = start + length
            if end > size:
                judged = True
                break
            append(_new_frame(Frame, (kind, status, data[start:end])))
            position = end
        else:
            judged = judged and position == 0
        if position == size:
            self._judged = False
            self._needed = HEADER_SIZE
        else:
            self._keep(data, position, judged, is_full=len(frames) == limit)
        return frames

    def _keep(self, data: bytes, position: int, judged: bool, *, is_full: bool) -> None:
        """Keep what follows `position`, unless the header there, as far as it is present, is wrong."""
        rest = data[position:]
        self._judged = judged
        self._needed = HEADER_SIZE
        if judged:
            self._needed += _unpack_from(rest)[3]
        elif is_full:
            # The next header is judged when its turn comes, by the limit in force then.
            self._needed = 0
        elif self._is_header_wrong(rest):
            return
        self._buffer += rest

    def _is_header_wrong(self, data: bytes | bytearray) -> bool:
        """Judge as much of a header as is there; set `error` and drop everything when it is wrong."""
        self.error = _judge(data, self.max_body)
        if self.error is None:
            return False
        self._buffer.clear()
        return True


def _judge(data: bytes | bytearray, max_body: int) -> ProtocolError | None:
    """Return what is wrong with the beginning of a frame; `got` ends with the first byte that proves it."""
    if not _MAGIC_BYTES.startswith(data[:4]):
        wrong = next(i for i, byte in enumerate(data) if byte != _MAGIC_BYTES[i])
        reason = "wrong magic, this is not a frame of dsched"
        if wrong == 0 and data[0] in _HTTP:
            reason += "; it may be HTTP, which has a port of its own: by default 8080 is for workers, 8081 for HTTP"
        return ProtocolError(reason, got=bytes(data[: wrong + 1]))
    if len(data) > 4 and data[4] != VERSION:
        return ProtocolError(f"version {data[4]} of the protocol, only {VERSION} is spoken here", got=bytes(data[:5]))
    if len(data) > 6 and not SUCCESS <= data[6] <= FAIL:
        return ProtocolError(f"status {data[6]} is neither {SUCCESS} nor {FAIL}", got=bytes(data[:7]))
    if len(data) >= HEADER_SIZE:
        length = HEADER.unpack_from(data)[4]
        if length < 0:
            return ProtocolError(f"negative length {length}", got=bytes(data[:HEADER_SIZE]))
        if length > max_body:
            return ProtocolError(
                f"a body of {length} bytes, at most {max_body} are taken here", got=bytes(data[:HEADER_SIZE])
            )
    return None
