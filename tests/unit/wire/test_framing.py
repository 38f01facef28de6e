"""The decoder: golden bytes, any chunking, any damage."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsched.errors import ProtocolError
from dsched.wire.framing import Frame, FrameDecoder, encode_frame
from dsched.wire.header import MAX_BODY, MAX_BODY_UNREGISTERED
from dsched.wire.messages import HEARTBEAT_FRAME, Register, decode_register, frame

Outcome = tuple[list[Frame], str | None, bytes | None]


def outcome(chunks: list[bytes], max_body: int = MAX_BODY) -> Outcome:
    decoder = FrameDecoder(max_body)
    frames = [frame for chunk in chunks for frame in decoder.feed(chunk)]
    if decoder.error is None:
        return frames, None, None
    return frames, decoder.error.reason, decoder.error.got


def cut(data: bytes, positions: list[int]) -> list[bytes]:
    bounds = [0, *sorted(positions), len(data)]
    return [data[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]


def bytewise(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def test_golden_heartbeat() -> None:
    assert HEARTBEAT_FRAME.hex() == "cafebabe01030100000000"
    assert FrameDecoder().feed(HEARTBEAT_FRAME) == [Frame(3, 1, b"")]


def test_golden_register_of_a_plain_worker() -> None:
    golden = bytes.fromhex("cafebabe01640100000063") + (
        b'{"workerId":"worker-a","host":"127.0.0.1","port":8080,"healthy":true,"lastHeartbeat":1764532800000}'
    )
    assert len(golden) == 110
    register = Register("worker-a", "127.0.0.1", 8080, True, 1764532800000)
    assert frame(register) == golden
    ((kind, status, body),) = FrameDecoder(MAX_BODY_UNREGISTERED).feed(golden)
    assert (kind, status) == (100, 1)
    assert decode_register(body) == register
    assert register.plain


@pytest.mark.parametrize(
    ("bytes_", "length"),
    [
        (b"\x47\x45\x54\x20", 1),
        (b"\x16\x03\x01\x02\x00", 1),
        (bytes.fromhex("cafebabf01030100000000"), 4),
        (b"\x00", 1),
        (b"\xca\xfe\x00", 3),
        (bytes.fromhex("cafebabe02"), 5),
        (bytes.fromhex("cafebabe010303"), 7),
        (bytes.fromhex("cafebabe010300"), 7),
        (bytes.fromhex("cafebabe010301ffffffff"), 11),
        (bytes.fromhex("cafebabe01030180000000"), 11),
        (bytes.fromhex("cafebabe0103017fffffff"), 11),
        (bytes.fromhex("cafebabe01030100100001"), 11),
    ],
)
def test_wrong_bytes_are_refused_at_the_byte_that_proves_it(bytes_: bytes, length: int) -> None:
    """Case B090."""
    frames, reason, got = outcome([bytes_])
    assert frames == []
    assert reason
    assert got == bytes_[:length]
    assert outcome([bytes_[: length - 1]]) == ([], None, None)
    assert outcome(bytewise(bytes_)) == (frames, reason, got)


def test_the_beginning_of_a_magic_is_no_error() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(b"\xca\xfe\xba") == []
    assert decoder.error is None
    assert decoder.buffered == 3
    assert decoder.head == b"\xca\xfe\xba"


def test_frames_before_an_error_are_delivered_and_nothing_after_it() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(HEARTBEAT_FRAME + b"GET /" + HEARTBEAT_FRAME) == [Frame(3, 1, b"")]
    assert decoder.error is not None
    assert decoder.error.got == b"G"
    assert decoder.buffered == 0
    assert decoder.feed(HEARTBEAT_FRAME) == []
    assert decoder.buffered == 0


def mixed_stream() -> tuple[list[Frame], bytes]:
    rng = random.Random(92)
    frames = [
        Frame(rng.randrange(256), rng.choice((1, 2)), rng.randbytes(rng.choice((0, 1, 150, 4096)))) for _ in range(100)
    ]
    return frames, b"".join(encode_frame(kind, body, status) for kind, status, body in frames)


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n", b"GET / HTTP/1.1\r\n", b"POST /x HTTP/1.1\r\n"])
def test_what_may_be_http_is_told_of_the_two_ports(data: bytes) -> None:
    for pieces in ([data], bytewise(data)):
        decoder = FrameDecoder()
        for piece in pieces:
            decoder.feed(piece)
        assert decoder.error is not None
        assert "may be HTTP" in decoder.error.reason
        assert "8080" in decoder.error.reason


def test_hundred_frames_in_one_piece_and_bytewise() -> None:
    """Case B092."""
    frames, stream = mixed_stream()
    assert outcome([stream]) == (frames, None, None)
    assert outcome(bytewise(stream)) == (frames, None, None)


def test_hundred_frames_cut_at_every_position() -> None:
    """Case B092."""
    frames, stream = mixed_stream()
    small = [frame for frame in frames if len(frame.body) < 4096]
    stream = b"".join(encode_frame(kind, body, status) for kind, status, body in small)
    for position in range(len(stream) + 1):
        decoder = FrameDecoder()
        assert decoder.feed(stream[:position]) + decoder.feed(stream[position:]) == small


def test_the_last_frame_needs_no_byte_more() -> None:
    """Case B092: it is not stuck until the next one comes."""
    decoder = FrameDecoder()
    data = encode_frame(1, b"x" * 500)
    decoder.feed(data[:300])
    assert decoder.feed(data[300:]) == [Frame(1, 1, b"x" * 500)]
    assert decoder.buffered == 0


def test_a_large_frame_bytewise_is_linear() -> None:
    """Case B092: 1 MiB in pieces of one byte."""
    body = random.Random(1).randbytes(MAX_BODY)
    begin = time.process_time()
    assert outcome(bytewise(encode_frame(1, body))) == ([Frame(1, 1, body)], None, None)
    assert time.process_time() - begin < 5


def test_nothing_is_kept_beyond_the_frame_that_is_incomplete() -> None:
    decoder = FrameDecoder(MAX_BODY_UNREGISTERED)
    header = encode_frame(100, bytes(4096))[:11]
    decoder.feed(header)
    assert decoder.buffered == 11
    decoder.feed(bytes(4095))
    assert decoder.buffered == 11 + 4095


def test_a_frame_is_judged_by_the_limit_in_force_when_its_header_is_read() -> None:
    big = encode_frame(2, bytes(5000))
    decoder = FrameDecoder(4096)
    decoder.feed(big[:10])
    decoder.max_body = MAX_BODY
    assert decoder.feed(big[10:]) == [Frame(2, 1, bytes(5000))]

    decoder.feed(big[:11])
    decoder.max_body = 4096
    assert decoder.feed(big[11:]) == [Frame(2, 1, bytes(5000))]
    decoder.feed(big)
    assert decoder.error is not None


def test_frames_one_by_one_let_the_limit_change_between_them() -> None:
    decoder = FrameDecoder(4096)
    stream = HEARTBEAT_FRAME + encode_frame(2, bytes(5000)) + HEARTBEAT_FRAME
    assert decoder.feed(stream, limit=1) == [Frame(3, 1, b"")]
    assert decoder.buffered == len(stream) - 11
    assert decoder.error is None
    decoder.max_body = MAX_BODY
    assert decoder.feed(b"", limit=1) == [Frame(2, 1, bytes(5000))]
    assert decoder.feed(b"") == [Frame(3, 1, b"")]
    assert decoder.feed(b"") == []


def test_encode_refuses_what_no_decoder_takes() -> None:
    with pytest.raises(ProtocolError):
        encode_frame(1, bytes(MAX_BODY + 1))
    assert len(encode_frame(1, bytes(MAX_BODY))) == MAX_BODY + 11


FRAMES = st.lists(st.tuples(st.integers(0, 255), st.integers(1, 2), st.binary(max_size=60)), max_size=8)


@settings(max_examples=200, deadline=None)
@given(
    FRAMES, st.binary(max_size=20), st.lists(st.integers(0, 600), max_size=12), st.integers(0, 80), st.integers(0, 9)
)
def test_any_stream_in_any_chunking(
    parts: list[tuple[int, int, bytes]], tail: bytes, positions: list[int], max_body: int, limit: int
) -> None:
    stream = b"".join(encode_frame(kind, body, status) for kind, status, body in parts) + tail
    whole = outcome([stream], max_body)
    assert outcome(bytewise(stream), max_body) == whole
    assert outcome(cut(stream, [p for p in positions if p <= len(stream)]), max_body) == whole

    decoder = FrameDecoder(max_body)
    frames = decoder.feed(stream, limit=limit)
    while more := decoder.feed(b"", limit=limit + 1):
        frames += more
    assert (frames, decoder.error and decoder.error.reason) == whole[:2]


def test_twenty_thousand_damaged_streams() -> None:
    rng = random.Random(20_000)
    good = [frame(Register(f"worker-{i}", port=i)) + HEARTBEAT_FRAME + encode_frame(2, b'{"x":1}') for i in range(8)]
    broken = 0
    for _ in range(20_000):
        stream = bytearray(rng.choice(good))
        for _ in range(rng.randrange(1, 4)):
            stream[rng.randrange(len(stream))] = rng.randrange(256)
        data = bytes(stream[: rng.randrange(len(stream)) + 1])
        middle = rng.randrange(len(data) + 1)
        whole = outcome([data])
        assert outcome([data[:middle], data[middle:]]) == whole
        broken += whole[1] is not None
    assert 1_000 < broken < 20_000
