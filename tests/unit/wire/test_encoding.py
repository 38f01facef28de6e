"""The JSON door."""

import datetime
import enum
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsched.errors import BadJson
from dsched.wire.encoding import MAX_DEPTH, Struct, convert, decode_any, decoder, dump_strict, encode, load_strict


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"a":1}x',
        b"\xef\xbb\xbf{}",
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'{"\xff":1}',
        b'{"x":NaN}',
        b"Infinity",
        b"-Infinity",
        b'{"x":1e999}',
        b"-1e999",
        b"[1,]",
        b"01",
        b"'a'",
        b'"\x01"',
        b'"\\ud800"',
        b'"\\udc00"',
        b'"\\ud800 and more text behind it"',
        b'"\\udc00\\ud800"',
        b'{"\\ud800":1}',
        b'{"a":1,"a":1}',
        b'{"a":1,"\\u0061":2}',
        b'[{"b":{"a":1, "c":2, "a":3}}]',
        b'{"":1,"":2}',
        b"9" * 5000,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" * 65 + b"]" * 65,
        b'{"a":' * 65 + b"1" + b"}" * 65,
        b'{"a":' + b"[{}," * 40 + b"1" + b"]" * 40 + b"," + b'"b":' + b"[" * 65 + b"]" * 65 + b"}",
    ],
)
def test_refused(data: bytes) -> None:
    """Case B072: NaN and what overflows to infinity among them."""
    with pytest.raises(BadJson) as caught:
        load_strict(data)
    assert caught.value.code == "bad_json"
    assert caught.value.reason


@pytest.mark.parametrize(
    ("data", "field", "reason"),
    [
        (b"", "", "empty"),
        (b" \r\n\t", "", "empty"),
        (b"{", "", "ends too early, after byte 1"),
        (b'{"a": "caf\xc3\xa9', "", "ends too early, after byte 12"),
        (b'"\\ud8', "", "ends too early, after byte 5"),
        (b'["\\ud83d\\ude00", "\\ud83d\\ude', "", "ends too early, after byte 28"),
        (b'"\\ud83d', "", "ends too early, after byte 7"),
        (b'"\\\\ud800', "", "ends too early, after byte 8"),
        (b'["\\ud800", "\\ud83d\\ude00', "", "lone surrogate"),
        (b'{"a": "\\ud800"]', "", "lone surrogate"),
        (b'"\\ud800"', "", "lone surrogate"),
        (b'"\\udc00"', "", "lone surrogate"),
        (b'"\\ud800 and more text behind it"', "", "lone surrogate"),
        (b'"\\ud800\\u0041"', "", "lone surrogate"),
        (b'{"a": [1, {"b": "\\ud800"}]}', "a[1].b", "lone surrogate"),
        (b'{"a": 1, "\\udfff": 2}', "", "lone surrogate"),
    ],
)
def test_what_is_wrong_with_it_is_told_apart(data: bytes, field: str, reason: str) -> None:
    for read in (load_strict, decode_any):
        with pytest.raises(BadJson) as caught:
            read(data)
        assert reason in caught.value.reason
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("data", "field", "reason"),
    [
        (b"", "", "empty"),
        (b'{"jobId": 1, "names": ["', "", "ends too early, after byte 24"),
        (b'{"jobId": 1, "names": ["\\ud800"]}', "names[0]", "lone surrogate"),
    ],
)
def test_so_it_is_for_typed_bodies(data: bytes, field: str, reason: str) -> None:
    with pytest.raises(BadJson) as caught:
        decoder(Point)(data)
    assert reason in caught.value.reason
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"null", None),
        (b" [ 1 , 2.50, 1E5 ] ", [1, 2.5, 1e5]),
        (b'{"a": {"a": 1}, "b": [{"a": 2}]}', {"a": {"a": 1}, "b": [{"a": 2}]}),
        (b'"x\\u0000y"', "x\0y"),
        (b'"\\ud83d\\ude00"', "\N{GRINNING FACE}"),
        (b"9007199254740993", 9007199254740993),
        (b"-123456789012345678901234567890", -123456789012345678901234567890),
        (b'{"\\u00e9":"\\/"}', {"é": "/"}),
        (b"-0", 0),
        (b'"' + b"[{" * 100 + b'\\"]"', "[{" * 100 + '"]'),
        (b"[" * 64 + b"]" * 64, json.loads("[" * 64 + "]" * 64)),
        (b"[" + b",".join([b"[{}]"] * 1000) + b"]", [[{}]] * 1000),
    ],
)
def test_taken(data: bytes, value: object) -> None:
    assert load_strict(data) == value


def test_depth_is_counted_outside_strings() -> None:
    deep = b'["' + b"[" * 500 + b'","\\"[[",' + b"[" * 62 + b"]" * 62 + b"]"
    load_strict(deep)
    with pytest.raises(BadJson, match="deeper"):
        load_strict(b"[" + deep + b"]", max_depth=MAX_DEPTH - 1)
    assert load_strict(b"1", max_depth=0) == 1


def test_a_duplicate_key_is_named() -> None:
    with pytest.raises(BadJson) as caught:
        load_strict(b'{"job":1,"job":2}')
    assert (caught.value.field, caught.value.reason) == ("job", "duplicate key")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_what_the_standard_library_writes_is_read_back(value: Any, ascii_only: bool, indent: int | None) -> None:
    assert load_strict(json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()) == value


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_what_is_dumped_loads_everywhere(value: Any) -> None:
    data = dump_strict(value)
    assert load_strict(data) == value
    assert json.loads(data) == value


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=30) | st.text(alphabet='{}[]",:0e9a\\u d', max_size=30).map(str.encode))
def test_any_bytes_give_a_value_or_bad_json(data: bytes) -> None:
    try:
        value = load_strict(data)
    except BadJson as error:
        if "too early" in error.reason:
            with pytest.raises(ValueError, match="."):
                json.loads(data)
        return
    assert json.loads(data) == value


class Colour(enum.StrEnum):
    RED = "red"


class Reading(float):
    """As numpy's doubles are."""


circle: list[Any] = []
circle.append(circle)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (math.nan, ""),
        ({"a": [1, {"b": math.inf}]}, "a[1].b"),
        ({"a": "\ud800"}, "a"),
        ({"\ud800": 1}, ""),
        ({1: 2}, ""),
        ({"a": {None: 1}}, "a"),
        (b"bytes", ""),
        ([datetime.datetime(2025, 1, 1)], "[0]"),
        ({"s": {1}}, "s"),
        ([object()], "[0]"),
        ([10**4400], "[0]"),
        ([math.nan] * 2, "[0]"),
        (Reading("nan"), ""),
    ],
)
def test_what_json_cannot_carry_is_refused_with_its_path(value: object, field: str) -> None:
    """Case B072."""
    with pytest.raises(BadJson) as caught:
        dump_strict(value)
    assert caught.value.field == field


def test_depth_and_circles_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    dump_strict(deep)
    for value in ([deep], circle, {"a": (deep,)}):
        with pytest.raises(BadJson, match="deeper"):
            dump_strict(value)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (None, b"null"),
        ((1, (2.5, "é")), '[1,[2.5,"é"]]'.encode()),
        ({"c": Colour.RED}, b'{"c":"red"}'),
        (Reading(1.5), b"1.5"),
        ("\0", b'"\\u0000"'),
        (2**70, str(2**70).encode()),
    ],
)
def test_dumped(value: object, data: bytes) -> None:
    assert dump_strict(value) == data


class Point(Struct, rename="camel", forbid_unknown_fields=True):
    """A typed body."""

    job_id: int
    names: list[str] = []


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({}, "jobId"),
        ({"jobId": "1"}, "jobId"),
        ({"jobId": True}, "jobId"),
        ({"jobId": 1.5}, "jobId"),
        ({"jobId": 1, "names": ["a", 2]}, "names[1]"),
        ({"jobId": 1, "more": 2}, "more"),
        ([], ""),
    ],
)
def test_converting_names_the_field(value: object, field: str) -> None:
    with pytest.raises(BadJson) as caught:
        convert(value, Point)
    assert caught.value.field == field
    with pytest.raises(BadJson) as caught:
        decoder(Point)(encode(value))
    assert caught.value.field == field


def test_converted_and_decoded() -> None:
    assert convert({"jobId": 3}, Point) == Point(3) == decoder(Point)(b'{"jobId":3}')
    assert decode_any(b'{"a":[1]}') == {"a": [1]}
    with pytest.raises(BadJson):
        decode_any(b"[" * 100_000)
