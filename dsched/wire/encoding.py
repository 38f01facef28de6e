"""The one door between bytes and values: JSON in, JSON out, strict where people or handlers write it.

Only this module knows msgspec. Three strengths:

* `encode`, `decoder`: typed messages of our own, as fast as it gets;
* `load_strict`, `dump_strict`: any JSON value, from and to people, with everything refused that another strict
  reader would not take or would read differently;
* `convert`: a value that `load_strict` let in, checked against a type.
"""

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from msgspec.structs import replace

from dsched.errors import BadJson

__all__ = [
    "MAX_DEPTH",
    "UNSET",
    "BadJson",
    "Meta",
    "Raw",
    "Struct",
    "UnsetType",
    "convert",
    "decode_any",
    "decoder",
    "dump_strict",
    "encode",
    "field",
    "load_strict",
    "replace",
    "to_builtins",
]

T = TypeVar("T")

MAX_DEPTH = 64
"""Deepest nesting of arrays and objects that is taken: far above honest use, far below any reader's stack."""

# What a failed encode or decode may raise. OverflowError and RecursionError come from values, not from bugs of ours.
_FAILURES = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)

# Above this, CPython refuses to turn an int into text (4 300 digits), and so would most readers.
_MAX_INT_BITS = 14_280

_AT = re.compile(r"^(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
_NAMED = re.compile(r"^Object (?:missing required|contains unknown) field `(?P<name>[^`]*)`")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
# A pair, half a pair (unless the bytes end where its other half would be), any other escape.
_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})(?!(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?\Z)"
    rb"|\\.",
    re.DOTALL,
)
_LONE = "lone surrogates are not allowed: text must be valid Unicode"
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _plain(value: Any) -> Any:
    """Turn an instance of a subclass of a JSON scalar (numpy's doubles are one) into the scalar itself."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int):
        return int.__int__(value)
    raise TypeError(f"{type(value).__name__} is not a JSON type")


_encoder = msgspec.json.Encoder()
_value_encoder = msgspec.json.Encoder(enc_hook=_plain)
_any_decoder = msgspec.json.Decoder()

encode: Callable[[Any], bytes] = _encoder.encode
"""Encode our own messages as compact JSON. Not for values of users: NaN would become null (see `dump_strict`)."""

to_builtins: Callable[[Any], Any] = msgspec.to_builtins
"""Turn structs, and what they hold, into dicts, lists and scalars."""


def _bad(error: BaseException) -> BadJson:
    if isinstance(error, RecursionError):
        return BadJson("", f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(error, UnicodeError):
        return BadJson("", f"text that UTF-8 cannot carry: {error.reason if hasattr(error, 'reason') else error}")
    match = _AT.match(str(error))
    what, path = (match["what"], match["path"] or "") if match else (str(error), "")
    named = _NAMED.match(what)
    if named is not None:
        path = f"{path}.{named['name']}"
        what = "required" if what.startswith("Object missing") else "unknown field"
    return BadJson(path.lstrip("."), what)


def _unreadable(data: bytes, error: BaseException) -> BadJson:
    """Return what is wrong with bytes that were refused; msgspec takes much for a cut that is none."""
    bad = _bad(error)
    if "truncated" not in bad.reason and "surrogate" not in bad.reason:
        return bad
    if not data.strip():
        return BadJson("", "the JSON is empty" + (", only white space" if data else ""))
    if any(escape["lone"] for escape in _ESCAPE.finditer(data)):
        return BadJson(_path_of_surrogate(data), _LONE)
    return BadJson("", f"the JSON ends too early, after byte {len(data)}") if "truncated" in bad.reason else bad


def _path_of_surrogate(data: bytes) -> str:
    try:
        _check_value(json.loads(data), "", MAX_DEPTH)
    except BadJson as error:
        return error.field if error.reason == _LONE else ""
    except _FAILURES:
        pass  # It is wrong elsewhere too.
    return ""


def decoder(type: type[T]) -> Callable[[bytes], T]:
    """Return a function that decodes bytes as `type`; it raises `BadJson` on anything else, and nothing but that."""
    decode = msgspec.json.Decoder(type).decode

    def decode_typed(data: bytes) -> T:
        try:
            return decode(data)
        except _FAILURES as error:
            raise _unreadable(data, error) from None

    return decode_typed


def decode_any(data: bytes) -> Any:
    """Decode JSON that we wrote ourselves; raises `BadJson`. For what others wrote use `load_strict`."""
    try:
        return _any_decoder.decode(data)
    except _FAILURES as error:
        raise _unreadable(data, error) from None


def convert(obj: Any, type: type[T]) -> T:
    """Check a plain JSON value against `type` and return it typed; raises `BadJson` with `field` and `reason`."""
    try:
        return msgspec.convert(obj, type)
    except _FAILURES as error:
        raise _bad(error) from None


def load_strict(data: bytes, *, max_depth: int = MAX_DEPTH) -> Any:
    """Decode JSON from outside.

    Refused with `BadJson`: bytes that are not UTF-8, NaN and Infinity, numbers beyond a double, integers of more
    than 4 300 digits, lone surrogates, duplicate keys, nesting deeper than `max_depth`. Integers stay exact.
    """
    try:
        value = _any_decoder.decode(data)
        again = _encoder.encode(value)
    except _FAILURES as error:
        raise _unreadable(data, error) from None
    _check_depth(data, max_depth)
    # A dropped duplicate makes the second text shorter. Equal texts prove that there was none, at the speed of C;
    # unequal ones may also differ in an escape or in the digits of a number, so then it is counted.
    if again != data and again != msgspec.json.format(data, indent=-1):
        _check_duplicates(data)
    return value


def dump_strict(obj: Any, *, max_depth: int = MAX_DEPTH) -> bytes:
    """Encode a value that a handler or a caller gave as compact JSON.

    Taken: None, bool, int, finite float, str, and lists, tuples and dicts of them; keys must be strings, for
    `{1: …}` would come back as `{"1": …}`. Anything else raises `BadJson`, whose `field` is the path of the
    offending value. What was taken decodes to an equal value (tuples to lists).
    """
    try:
        data = _value_encoder.encode(obj)
        if _any_decoder.decode(data) == obj:
            _check_depth(data, max_depth)
            return data
    except _FAILURES as error:
        _check_value(obj, "", max_depth)
        raise _bad(error) from None
    # Not equal: a tuple, or something that msgspec writes and JSON cannot bring back (NaN as null, bytes, dates).
    _check_value(obj, "", max_depth)
    return data


def _check_depth(data: bytes, max_depth: int) -> None:
    """Raise when well-formed JSON is nested deeper than `max_depth`."""
    if data.count(b"[") + data.count(b"{") <= max_depth:
        return
    brackets = _STRING.sub(b"", data).translate(None, _NOT_BRACKETS)
    for _ in range(max_depth):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if not brackets:
            return
    raise BadJson("", f"nested deeper than {max_depth} levels")


def _check_duplicates(data: bytes) -> None:
    def keys_once(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadJson(key, "duplicate key")
            seen.add(key)

    try:
        json.loads(data, object_pairs_hook=keys_once)
    except BadJson:
        raise
    except _FAILURES as error:
        raise _bad(error) from None


def _check_value(value: Any, path: str, depth: int) -> None:
    """Raise `BadJson` naming the first value that JSON cannot carry."""
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, int):
        if value.bit_length() > _MAX_INT_BITS:
            raise BadJson(path, "an integer of more than 4300 digits")
    elif isinstance(value, float):
        if value - value != 0.0:
            raise BadJson(path, f"{value} is not JSON")
    elif isinstance(value, dict):
        _check_nesting(path, depth)
        for key, item in value.items():
            if not isinstance(key, str):
                raise BadJson(path, f"keys must be strings, got {type(key).__name__}")
            _check_text(key, path)
            _check_value(item, f"{path}.{key}" if path else key, depth - 1)
    elif isinstance(value, list | tuple):
        _check_nesting(path, depth)
        for index, item in enumerate(value):
            _check_value(item, f"{path}[{index}]", depth - 1)
    else:
        raise BadJson(path, f"{type(value).__name__} is not a JSON type")


def _check_nesting(path: str, depth: int) -> None:
    if depth <= 0:
        # The path alone would be longer than anybody reads.
        raise BadJson(path[:64], f"nested deeper than {MAX_DEPTH} levels")


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadJson(path, _LONE) from None
