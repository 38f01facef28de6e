"""Queries and bodies."""

import pytest

from dsched.errors import BadJson, InvalidValue
from dsched.web.app import ROUTES
from dsched.web.routes import Call, read_body, read_query


def query(name, text):
    return read_query(b"/any?" + text.encode(), ROUTES.by_name[name].query)


@pytest.mark.parametrize(
    ("name", "text", "page"),
    [
        ("list_jobs", "", (100, None, {})),
        ("list_jobs", "limit=1&cursor=abc", (1, "abc", {})),
        ("list_jobs", "limit=1000&group=a&enabled=true", (1000, None, {"group": "a", "enabled": "true"})),
        ("list_runs", "job=a&status=SKIPPED&group=b", (100, None, {"job": "a", "status": "SKIPPED", "group": "b"})),
        ("list_tasks", "status=CANCELLING&worker=w%3A1", (100, None, {"status": "CANCELLING", "worker": "w:1"})),
        ("list_workers", "limit=7&cursor=w+1", (7, "w 1", {})),
        ("list_runs", "since=2026-11-30T21:22:47Z", (100, None, {"since": "2026-11-30T21:22:47Z"})),
        (
            "list_all_tasks",
            "job=a&status=FAILED&worker=w&until=2026-11-30T21:22:47%2B01:00",
            (100, None, {"job": "a", "status": "FAILED", "worker": "w", "until": "2026-11-30T21:22:47+01:00"}),
        ),
    ],
)
def test_pages(name, text, page):
    assert Call(query(name, text), {}).page() == page


@pytest.mark.parametrize(("text", "wait_s"), [("0", 0), ("30", 30), ("0.25", 0.25), ("300", 300), ("300.0", 300)])
def test_waits(text, wait_s):
    assert query("show_run", f"wait={text}") == {"wait": wait_s}


@pytest.mark.parametrize(
    ("name", "text", "field"),
    [
        *(
            ("list_jobs", f"limit={value}", "limit")
            for value in ("0", "1001", "-1", "1.0", "", "1e2", "%D9%A1", "+1", "00001")
        ),
        *(
            ("show_run", f"wait={value}", "wait")
            for value in ("300.1", "301", "-1", "nan", "inf", "1e1", "", ".5", "5.", "1_0", "9" * 5000, "0.0000000001")
        ),
        *(
            (name, f"{field}={value}", field)
            for name in ("list_runs", "list_all_tasks")
            for field in ("since", "until")
            for value in ("", "now", "2026-11-30", "2026-11-30T21:22:47", "2026-13-30T21:22:47Z", "1")
        ),
        *(("stats", f"hours={value}", "hours") for value in ("0", "721", "-1", "1.5", "", "%D9%A1", "0001")),
        ("stats", "status=FAILED", "status"),
        ("stats", "job=", "job"),
        ("list_all_tasks", "group=a", "group"),
        ("list_all_tasks", "status=PARTIAL", "status"),
        ("list_tasks", "since=2026-11-30T21:22:47Z", "since"),
        ("list_jobs", "since=2026-11-30T21:22:47Z", "since"),
        ("list_jobs", "enabled=yes", "enabled"),
        ("list_jobs", "status=PENDING", "status"),
        ("list_runs", "status=pending", "status"),
        ("list_runs", "status=DISPATCHED", "status"),
        ("list_runs", "enabled=true", "enabled"),
        ("list_tasks", "status=PARTIAL", "status"),
        ("list_tasks", "job=a", "job"),
        ("list_jobs", "group=", "group"),
        ("list_jobs", "cursor=%00", "cursor"),
        ("list_jobs", "cursor=" + "a" * 513, "cursor"),
        ("list_jobs", "limit=1&limit=1", "limit"),
        ("list_jobs", "limit=1&limit=2", "limit"),
        ("list_jobs", "Limit=1", "Limit"),
        ("list_workers", "group=a", "group"),
        ("show_run", "limit=1", "limit"),
        ("status", "x=1", "x"),
        ("trigger", "params=1", "params"),
        ("status", "=1", ""),
        ("status", "x", "query"),
        ("status", "&", "query"),
        ("status", "x=%ff", "query"),
        ("status", "&".join(f"a{i}=1" for i in range(40)), "query"),
    ],
)
def test_what_a_query_may_not_say(name, text, field):
    with pytest.raises(InvalidValue) as caught:
        query(name, text)
    assert caught.value.field == field
    assert caught.value.reason


def test_the_reason_names_what_is_taken():
    with pytest.raises(InvalidValue, match="cursor, enabled, group, limit"):
        query("list_jobs", "colour=red")


@pytest.mark.parametrize("field", ["since", "until"])
@pytest.mark.parametrize("name", ["list_runs", "list_all_tasks"])
@pytest.mark.parametrize(
    ("value", "helps"),
    [
        ("2026-11-30T21:22:47+00:00", True),
        ("2026-11-30T21:22:47.123%2001:00", True),
        ("2026-11-30T21:22:47%2B00:00Z", False),
        ("2026-11-30+21:22:47Z", False),
        ("2026-11-30+21:22:47+00:00", False),
        ("2026-11-30T21:22:47+99:00", False),
        ("+", False),
    ],
)
def test_a_plus_that_came_as_a_space_is_told(name, field, value, helps):
    with pytest.raises(InvalidValue) as caught:
        query(name, f"{field}={value}")
    assert caught.value.field == field
    assert ("%2B" in caught.value.reason) is helps


@pytest.mark.parametrize("data", [b"[]", b"null", b"1", b'"x"', b"true"])
def test_a_body_is_an_object(data):
    with pytest.raises(InvalidValue):
        read_body(ROUTES.by_name["trigger"], data)


@pytest.mark.parametrize(
    "data",
    [b"{", b"{} {}", b"\xff", b'{"a": NaN}', b'{"a": 1e999}', b'{"a": 1, "a": 2}', b'{"a": "\\ud800"}', b"[" * 100_000,
     b'{"a":' * 100_000, b'{"a": ' + b"9" * 5000 + b"}"],
)  # fmt: skip
def test_a_body_is_strict_json(data):
    """Case B072."""
    for name in ("create_job", "trigger", "create_runs", "delete_job", "cancel_run"):
        with pytest.raises(BadJson):
            read_body(ROUTES.by_name[name], data)


def test_an_empty_body_counts_where_it_is_optional():
    assert read_body(ROUTES.by_name["trigger"], b"") == {}
    with pytest.raises(BadJson, match="^the body is empty$"):
        read_body(ROUTES.by_name["create_job"], b"")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b" ", "the JSON is empty, only white space"),
        (b'{"a": 1', "the JSON ends too early, after byte 7"),
        (b'{"a": "\\ud800"}', "a: lone surrogates are not allowed: text must be valid Unicode"),
        (b"{} {}", "JSON is malformed: trailing characters (byte 4)"),
    ],
)
def test_what_is_wrong_with_a_body_is_said(data, message):
    with pytest.raises(BadJson) as caught:
        read_body(ROUTES.by_name["trigger"], data)
    assert caught.value.message == message
