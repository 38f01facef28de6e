"""docs/protocol.md against the code: every example decodes to the JSON shown beside it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsched.wire.encoding import load_strict
from dsched.wire.framing import FrameDecoder
from dsched.wire.messages import (
    FEATURES,
    MessageType,
    PlainRequest,
    decode_cancel,
    decode_drain,
    decode_error,
    decode_heartbeat,
    decode_redirect,
    decode_register,
    decode_register_ack,
    decode_request,
    decode_response,
    decode_result_acks,
    decode_resume,
    decode_resume_ack,
    decode_started,
    frame,
)

TEXT = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()

DECODERS: dict[MessageType, Callable[[bytes], Any]] = {
    MessageType.REQUEST: decode_request,
    MessageType.RESPONSE: decode_response,
    MessageType.HEARTBEAT: decode_heartbeat,
    MessageType.REGISTER: decode_register,
    MessageType.REGISTER_ACK: decode_register_ack,
    MessageType.RESUME: decode_resume,
    MessageType.STARTED: decode_started,
    MessageType.RESULT_ACK: decode_result_acks,
    MessageType.CANCEL: decode_cancel,
    MessageType.DRAIN: decode_drain,
    MessageType.REDIRECT: decode_redirect,
    MessageType.RESUME_ACK: decode_resume_ack,
    MessageType.ERROR: decode_error,
}


def examples() -> list[tuple[int, str, str]]:
    found = []
    for section in re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]:
        kind = int(section.split(" ", 1)[0])
        for hex_, json_ in re.findall(r"```hex\n(.*?)```(?:\n\n```json\n(.*?)\n```)?", section, flags=re.DOTALL):
            found.append((kind, "".join(hex_.split()), json_))
    return found


@pytest.mark.parametrize(("kind", "hex_", "json_"), examples())
def test_an_example_is_what_the_code_sends_and_reads(kind: int, hex_: str, json_: str) -> None:
    data = bytes.fromhex(hex_)
    decoder = FrameDecoder()
    ((type_, status, body),) = decoder.feed(data)
    assert (type_, status, decoder.buffered) == (kind, 1, 0)
    assert body.decode() == json_
    if json_:
        load_strict(body)
    if kind == MessageType.REQUEST and b"handler" not in body:
        assert frame(PlainRequest(**plain_fields(body))) == data
    else:
        assert frame(DECODERS[MessageType(kind)](body)) == data


def plain_fields(body: bytes) -> dict[str, Any]:
    fields = load_strict(body)
    assert len(fields) == 9
    return {re.sub("[A-Z]", lambda m: "_" + m[0].lower(), key): value for key, value in fields.items()}


def test_every_implemented_type_has_an_example_and_every_number_is_listed() -> None:
    assert {kind for kind, _, _ in examples()} == set(DECODERS)
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \| [^|]+ \| ([^|]+) \|$", TEXT, flags=re.MULTILINE)
    assert {int(number): name for number, name, _ in rows} == {type_.value: type_.name for type_ in MessageType}
    assert {int(number) for number, _, meaning in rows if meaning != "reserved"} == set(DECODERS)
    assert all(f"`{feature}`" in TEXT for feature in FEATURES)
