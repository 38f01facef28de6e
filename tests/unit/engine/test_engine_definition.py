import json
from typing import Any

import pytest

from dsched.engine.definition import RunRequest, job_from_definition, parse_job, parse_run_request, parse_run_requests
from dsched.engine.settings import EngineSettings
from dsched.errors import DschedError, InvalidValue, TooLarge
from dsched.wire.header import MAX_BODY
from dsched.wire.messages import Request, encode_request_frame

SETTINGS = EngineSettings()
LIMIT = 256 * 1024


def parse(**fields: Any) -> Any:
    return parse_job({"name": "census", **fields}, SETTINGS, 1_000)


def test_defaults_are_filled_in() -> None:
    job = parse()
    assert job.definition == {
        "name": "census", "handler": "census", "params": None, "trigger": {"type": "none"}, "group": "default",
        "timezone": "UTC", "sharding_total": 1, "routing": "consistent_hash", "timeout": 30, "retries": 3,
        "retry_backoff": 10, "misfire": "once", "misfire_grace": 60, "overlap": "allow", "concurrency": None,
        "priority": 0, "preload_keys": [], "tags": [], "description": "", "enabled": True,
    }  # fmt: skip
    assert (job.version, job.params, job.created_ms, job.next_due_ms) == (1, "null", 1_000, None)


FULL: dict[str, Any] = {
    "handler": "h", "group": "g", "params": {"a": [1]}, "trigger": {"type": "interval", "seconds": 30},
    "timezone": "UTC", "sharding_total": 10_000, "routing": "consistent_hash", "timeout": 0, "retries": 0,
    "retry_backoff": 0.5, "misfire": "once", "misfire_grace": 0, "overlap": "allow", "concurrency": None,
    "priority": -1000, "preload_keys": ["user:{item}{n}"], "tags": ["t"], "description": "what", "enabled": False,
}  # fmt: skip


def test_every_field_is_taken_and_comes_back_from_the_store() -> None:
    job = parse(**FULL)
    for field, value in FULL.items():
        if field != "trigger":
            assert job.definition[field] == value
    snapshot = job.snapshot
    assert (snapshot.handler, snapshot.group, snapshot.timeout_s, snapshot.retries) == ("h", "g", 0, 0)
    assert (snapshot.retry_backoff_s, snapshot.priority, snapshot.preload_keys) == (0.5, -1000, ("user:{item}{n}",))
    again = job_from_definition(job.definition_text, 1, job.created_ms, job.updated_ms, None)
    assert again == job


BAD: list[tuple[str, Any]] = [
    ("name", ""), ("name", "a b"), ("name", None), ("name", "x" * 65), ("handler", None), ("handler", "a/b"),
    ("name", "a\0b"), ("handler", "a\0b"), ("group", "a\0b"),
    ("group", 1), ("group", ""), ("trigger", None), ("trigger", "cron"), ("trigger", {}), ("timezone", "Mars/Base"),
    ("timezone", None), ("sharding_total", 0), ("sharding_total", 10_001), ("sharding_total", 1.0),
    ("sharding_total", True), ("sharding_total", None), ("routing", "random"), ("routing", {}), ("timeout", -1),
    ("timeout", "30"), ("timeout", 30 * 86_400 + 1), ("retries", -1), ("retries", 101), ("retries", False),
    ("retry_backoff", -0.1), ("retry_backoff", 86_401), ("retry_backoff", True), ("retry_backoff", 10**400),
    ("retry_backoff", float("nan")), ("retry_backoff", float("inf")), ("misfire", "skip"), ("misfire_grace", -1),
    ("misfire_grace", "1"), ("overlap", "queue"), ("concurrency", 1), ("concurrency", False), ("priority", 1001),
    ("priority", 0.5), ("preload_keys", "k"), ("preload_keys", ["k"] * 101), ("tags", {}), ("tags", ["t"] * 51),
    ("description", None), ("description", "x" * 4097), ("enabled", 1), ("enabled", None),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), BAD, ids=[f"{field}-{str(value)[:20]}" for field, value in BAD])
def test_bad_values_are_refused_with_their_field(field: str, value: Any) -> None:
    """Case B069 among them: a NUL in a name."""
    with pytest.raises(InvalidValue) as caught:
        parse(**{field: value})
    assert caught.value.field.split(".")[0] == field
    assert caught.value.reason


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tags": ["ok", ""]}, "tags[1]"),
        ({"tags": ["a\0b"]}, "tags[0]"),
        ({"preload_keys": ["ok", 1]}, "preload_keys[1]"),
        ({"preload_keys": ["x" * 257]}, "preload_keys[0]"),
        ({"version": 1}, "version"),
        ({"addressList": []}, "addressList"),
        ({"params": {"x": [float("nan")]}}, "params.x[0]"),
        ({"params": "\ud800"}, "params"),
    ],
)
def test_the_field_is_named_exactly(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse(**fields)
    assert caught.value.field == field


@pytest.mark.parametrize("body", [None, [], "x", 1, True])
def test_a_body_is_an_object(body: Any) -> None:
    for read in (lambda: parse_job(body, SETTINGS, 0), lambda: parse_run_request("j", body, SETTINGS),
                 lambda: parse_run_requests(body, SETTINGS)):  # fmt: skip
        with pytest.raises(InvalidValue):
            read()
    with pytest.raises(InvalidValue, match="name"):
        parse_job({}, SETTINGS, 0)


@pytest.mark.parametrize(
    "value", [2**53 + 1, -(2**63), 2**64, 10**300, "a\0b", "\u20ac 😀 \u2028", 0.1, 1.0, -0.0, [[], {}], {"": None}]
)
def test_params_come_back_exactly(value: Any) -> None:
    """Case B069: a NUL in params is data."""
    job = parse(params=value)
    assert json.loads(job.params) == value and type(json.loads(job.params)) is type(value)
    assert job_from_definition(job.definition_text, 1, 0, 0, None).params == job.params
    request = parse_run_request("census", {"params": value}, SETTINGS)
    assert request.params == job.params


@pytest.mark.parametrize("letter", ["x", "\u20ac", "😀", '"'])
def test_params_are_limited_by_their_encoded_bytes(letter: str) -> None:
    size = len(json.dumps(letter, ensure_ascii=False).encode()) - 2
    text = letter * ((LIMIT - 2) // size)
    text += "x" * (LIMIT - 2 - len(text) * size)
    assert len(parse(params=text).params.encode()) == LIMIT
    for read in (lambda: parse(params=text + "x"), lambda: parse_run_request("j", {"params": text + "x"}, SETTINGS)):
        with pytest.raises(TooLarge, match="params: 262145 bytes"):
            read()


def test_what_is_accepted_always_fits_a_frame() -> None:
    """Case B067: nothing is accepted that cannot be delivered."""
    keys = ["\U0001d11e" * 250 + "{n}"] * 100
    with pytest.raises(TooLarge, match="preload_keys"):
        parse(preload_keys=keys)
    job = parse(preload_keys=keys[:25], params='"' * (LIMIT // 2 - 1))
    preload = [key.replace("{n}", str(n)) for key in keys[:25] for n in range(10)]
    request = Request(1, "n" * 64, job.params, 1, 1, 1, "t" * 128, 1, preload, "h" * 64, 1, 1, 1, "r" * 128)
    assert len(encode_request_frame(request)) < MAX_BODY


def test_requests_in_bulk_keep_their_order() -> None:
    body = {"runs": [{"job": "a"}, {"job": "b", "params": None, "key": "k", "sharding_total": 2}, {"job": "a"}]}
    assert parse_run_requests(body, SETTINGS) == [
        RunRequest("a", None, None, None), RunRequest("b", "null", 2, "k"), RunRequest("a", None, None, None)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("item", "field", "kind"),
    [
        (None, "runs[1]", InvalidValue),
        ([], "runs[1]", InvalidValue),
        ({}, "runs[1].job", InvalidValue),
        ({"job": 1}, "runs[1].job", InvalidValue),
        ({"job": "a", "due": 1}, "runs[1].due", InvalidValue),
        ({"job": "a", "sharding_total": 0}, "runs[1].sharding_total", InvalidValue),
        ({"job": "a", "sharding_total": None}, "runs[1].sharding_total", InvalidValue),
        ({"job": "a", "key": "a b"}, "runs[1].key", InvalidValue),
        ({"job": "a", "key": "k" * 49}, "runs[1].key", InvalidValue),
        ({"job": "a", "params": ["\ud800"]}, "runs[1].params[0]", InvalidValue),
        ({"job": "a", "params": "x" * LIMIT}, "runs[1].params: 262146 bytes", TooLarge),
    ],
)
def test_one_bad_run_refuses_all(item: Any, field: str, kind: type[DschedError]) -> None:
    with pytest.raises(kind) as caught:
        parse_run_requests({"runs": [{"job": "a"}, item]}, SETTINGS)
    if isinstance(caught.value, InvalidValue):
        assert caught.value.field == field
    else:
        assert caught.value.message.startswith(field)


def test_how_many_runs_a_request_takes() -> None:
    assert len(parse_run_requests({"runs": [{"job": "a"}] * 10_000}, SETTINGS)) == 10_000
    with pytest.raises(TooLarge):
        parse_run_requests({"runs": [{"job": "a"}] * 10_001}, SETTINGS)
    empty: tuple[Any, ...] = ([], None, {})
    for runs in empty:
        with pytest.raises(InvalidValue):
            parse_run_requests({"runs": runs}, SETTINGS)
    with pytest.raises(InvalidValue):
        parse_run_requests({"runs": [{"job": "a"}], "more": 1}, SETTINGS)


def test_the_hash_tells_bodies_apart() -> None:
    bodies = [RunRequest("a", p, n, "k") for p in (None, "null", "1") for n in (None, 1, 2)]
    assert len({body.body_hash() for body in bodies}) == len(bodies)
    assert RunRequest("a", "1", 1, "k").body_hash() == RunRequest("a", "1", 1, "other").body_hash()
