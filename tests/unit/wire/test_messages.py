"""Messages: the plain protocol stays plain, damaged bodies name what is wrong, results keep their limits."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsched.errors import ProtocolError
from dsched.wire.encoding import Raw, decode_any
from dsched.wire.framing import FrameDecoder
from dsched.wire.header import MAX_BODY, MessageType
from dsched.wire.messages import (
    HEARTBEAT_FRAME,
    MAX_MESSAGE,
    MAX_RESULT,
    MAX_TRACEBACK,
    Heartbeat,
    PlainRequest,
    Register,
    RegisterAck,
    Request,
    Response,
    ResultAck,
    ResultAcks,
    Resume,
    RunningAttempt,
    Started,
    StartedMany,
    decode_cancel,
    decode_heartbeat,
    decode_register,
    decode_request,
    decode_response,
    decode_result_acks,
    decode_resume,
    decode_started,
    encode_request_frame,
    frame,
    guess_task_id,
    resume_frames,
)

NINE = (2**62, "census", "", 10, 3, 30, "census@1:3", 0, ["k"])
NAMES = [
    "jobId",
    "jobName",
    "params",
    "shardingTotal",
    "shardingItem",
    "timeout",
    "taskId",
    "retryCount",
    "preloadKeys",
]


def body_of(data: bytes, kind: MessageType) -> bytes:
    (found,) = FrameDecoder().feed(data)
    assert found.type == kind
    return found.body


def test_a_plain_request_has_exactly_nine_fields_whatever_their_values() -> None:
    for values in (NINE, (0, "", "", 0, 0, 0, "", 0, [])):
        request = PlainRequest(*values)
        data = encode_request_frame(request)
        assert data == frame(request)
        assert list(decode_any(body_of(data, MessageType.REQUEST))) == NAMES


def test_a_request_with_features_says_more_and_comes_back_equal() -> None:
    request = Request(*NINE, "count", 2, 77, 5, "census@1", due=1)
    body = body_of(encode_request_frame(request), MessageType.REQUEST)
    assert list(decode_any(body)) == [*NAMES, "handler", "attempt", "fence", "epoch", "runId", "due"]
    assert decode_request(body) == request


def test_an_oversized_request_is_refused_here_and_not_by_the_peer() -> None:
    with pytest.raises(ProtocolError):
        encode_request_frame(PlainRequest(1, "j", "x" * MAX_BODY, 1, 0, 30, "t", 0, []))


def test_a_plain_response_and_acknowledgement_have_no_extended_field() -> None:
    body = body_of(frame(Response(1, "t", True)), MessageType.RESPONSE)
    assert body == b'{"jobId":1,"taskId":"t","success":true,"message":"","data":null}'
    assert body_of(frame(RegisterAck("w")), MessageType.REGISTER_ACK) == b'{"workerId":"w"}'


def test_beats() -> None:
    assert frame(Heartbeat()) == HEARTBEAT_FRAME
    assert decode_heartbeat(b"") == decode_heartbeat(b"{}") == Heartbeat()
    beat = Heartbeat(pong=True, running=3, load=0.5)
    assert decode_heartbeat(body_of(frame(beat), MessageType.HEARTBEAT)) == beat


def test_batches_take_one_frame() -> None:
    many = StartedMany([Started("a", 1, 1), Started("b", 2, 1)])
    assert decode_started(body_of(frame(many), MessageType.STARTED)) == many
    assert decode_started(body_of(frame(Started("a", 1, 1)), MessageType.STARTED)).started == [Started("a", 1, 1)]
    acks = decode_result_acks(body_of(frame(ResultAcks([("a", 1), ("b", 2)])), MessageType.RESULT_ACK))
    assert acks.acks == [("a", 1), ("b", 2)]
    assert frame(ResultAck("a", 1)) == frame(ResultAcks([("a", 1)]))


@pytest.mark.parametrize("worker_id", ["a", "host.example:8080/w-1@eu_2", "x" * 128])
def test_worker_ids(worker_id: str) -> None:
    assert decode_register(body_of(frame(Register(worker_id)), MessageType.REGISTER)).worker_id == worker_id


@pytest.mark.parametrize("worker_id", ["", "a b", "a#1", "a\n", "a\0", "é", "x" * 129, "<b>"])
def test_worker_ids_that_are_refused(worker_id: str) -> None:
    """Case B069: control characters among them."""
    with pytest.raises(ProtocolError, match="REGISTER: workerId"):
        decode_register(body_of(frame(Register(worker_id)), MessageType.REGISTER))


@pytest.mark.parametrize(
    ("decode", "body", "what"),
    [
        (decode_register, b"", "REGISTER"),
        (decode_register, b"[]", "REGISTER"),
        (decode_register, b"{}", "workerId: required"),
        (decode_register, b'{"workerId":"a","port":true}', "port"),
        (decode_register, b'{"workerId":"a","port":65536}', "port"),
        (decode_register, b'{"workerId":"a","port":-1}', "port"),
        (decode_register, b'{"workerId":"a","healthy":1}', "healthy"),
        (decode_register, b'{"workerId":"a","lastHeartbeat":9223372036854775808}', "lastHeartbeat"),
        (decode_register, b'{"workerId":"a","features":"started"}', "features"),
        (decode_register, b'{"workerId":"\xff"}', "UTF-8"),
        (decode_response, b'{"taskId":"t1","succ', "RESPONSE"),
        (decode_response, b'{"jobId":1,"taskId":"t","success":1}', "success"),
        (decode_response, b'{"jobId":9223372036854775808,"taskId":"t","success":true}', "jobId"),
        (decode_response, b'{"jobId":1,"taskId":"","success":true}', "taskId"),
        (decode_response, b'{"jobId":1,"taskId":"t","success":true,"data":NaN}', "RESPONSE"),
        (decode_response, b'{"jobId":1,"taskId":"t","success":true,"x":' + b"[" * 100_000, "deeper"),
        (decode_started, b'{"started":[{"taskId":"t","jobId":1}]}', r"started\[0\].attempt"),
        (decode_result_acks, b'{"acks":[["a"]]}', "acks"),
        (decode_cancel, b'{"taskId":"t","attempt":-1}', "attempt"),
        (decode_resume, b'{"weight":0}', "weight"),
        (decode_resume, b'{"results":[{"jobId":1}]}', "results"),
        (decode_heartbeat, b'{"running":-1}', "running"),
    ],
)
def test_a_damaged_body_is_a_protocol_error_that_names_it(
    decode: Callable[[bytes], Any], body: bytes, what: str
) -> None:
    with pytest.raises(ProtocolError, match=what):
        decode(body)


@given(st.binary(max_size=40))
def test_any_body_gives_a_message_or_a_protocol_error(body: bytes) -> None:
    for decode in (decode_register, decode_response, decode_resume, decode_heartbeat, decode_started):
        try:
            decode(body)
        except ProtocolError:
            pass


def response(data: bytes, more: bytes = b"") -> bytes:
    return b'{"jobId":1,"taskId":"t","success":true,"data":' + data + more + b"}"


@pytest.mark.parametrize(
    "data", [b"null", b'{"a": [1,  2]}', b'"x\\u0000y"', b"1E5", b"18446744073709551616", '"\U0001f600"'.encode()]
)
def test_data_stays_the_bytes_that_came(data: bytes) -> None:
    result = decode_response(response(data))
    assert (result.success, bytes(result.data)) == (True, data)


def test_absent_data_and_message_are_null() -> None:
    result = decode_response(b'{"jobId":1,"taskId":"t","success":false,"message":null,"unknown":[1]}')
    assert (bytes(result.data), result.message, result.retryable) == (b"null", None, True)


@pytest.mark.parametrize(
    ("data", "error_type"),
    [
        (b'{"a":1,"a":2}', "BadJson"),
        (b"1e999", "BadJson"),
        (b'"\xff"', "BadJson"),
        (b"[" * 70 + b"]" * 70, "BadJson"),
        (b'"' + b"x" * MAX_RESULT + b'"', "TooLarge"),
    ],
)
def test_unacceptable_data_fails_the_attempt_and_not_the_connection(data: bytes, error_type: str) -> None:
    for result in (decode_response(response(data)), decode_resume(b'{"results":[' + response(data) + b"]}").results[0]):
        assert (result.task_id, result.success, result.outcome, result.retryable) == ("t", False, "ERROR", False)
        assert result.error_type == error_type
        assert result.message and len(result.message) < 200
        assert bytes(result.data) == b"null"


def test_long_texts_are_cut_with_a_note() -> None:
    long = b"x" * 70_000
    result = decode_response(response(b"null", b',"message":"' + long + b'","traceback":"' + long + b'"'))
    assert result.message is not None and result.traceback is not None
    assert (len(result.message), len(result.traceback)) == (MAX_MESSAGE, MAX_TRACEBACK)
    assert result.message.endswith("[cut, 70000 characters]")


@pytest.mark.parametrize(
    ("body", "task_id"),
    [(b'{"taskId":"t1","succ', "t1"), (b'{"jobId":1, "taskId" : "a:3"', "a:3"), (b'{"jobId":1', None), (b"", None)],
)
def test_the_task_of_a_truncated_response_is_still_named(body: bytes, task_id: str | None) -> None:
    """Case B073."""
    assert guess_task_id(body) == task_id


def test_a_long_resume_is_cut_into_chunks_that_add_up() -> None:
    resume = Resume(
        group="night",
        slots=4,
        handlers=[f"handler-{i}" for i in range(300)],
        running=[RunningAttempt(f"t:{i}", i, 1, i, i % 2 == 0, 1.5) for i in range(200)],
        results=[Response(i, f"r:{i}", True, data=Raw(b'"' + b"x" * (50 * i) + b'"')) for i in range(100)],
    )
    frames = resume_frames(resume, max_body=16_384)
    chunks = [decode_resume(body_of(data, MessageType.RESUME)) for data in frames]
    assert len(chunks) > 10
    assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert (chunks[0].group, chunks[0].slots) == ("night", 4)
    assert [h for c in chunks for h in c.handlers] == resume.handlers
    assert [r for c in chunks for r in c.running] == resume.running
    assert [(r.task_id, len(bytes(r.data))) for c in chunks for r in c.results] == [
        (f"r:{i}", 50 * i + 2) for i in range(100)
    ]
    assert len(resume_frames(Resume(slots=1))) == 1
    with pytest.raises(ProtocolError):
        resume_frames(Resume(slots=1, results=[Response(1, "t", True, data="x" * 20_000)]), max_body=16_384)
