"""What a head alone decides."""

import pytest
from twisted.web.http_headers import Headers

from dsched.errors import DschedError, InvalidValue, NotFound, TooLarge
from dsched.web.admission import Admission, Head, LoopbackOnly
from dsched.web.app import ROUTES
from dsched.web.envelope import Refused, error_answer

PORT = 8081
HOST = [("Host", "127.0.0.1:8081")]
JSON = [("Content-Type", "application/json")]


def head(method="GET", target="/workers", headers=(), *, length=0, version=b"HTTP/1.1", host=HOST):
    fields = Headers()
    for name, value in (*host, *headers):
        fields.addRawHeader(name.encode(), value.encode())
    return Head(method.encode(), target.encode(), version, fields, length)


def admit(request, *, port=PORT, hosts=("core.lan", "console.lan:443"), access=None):
    return Admission(ROUTES, hosts, access or LoopbackOnly()).admit(request, port)


def refusal(request, **settings):
    """The (status, code) of the refusal, or None."""
    try:
        admit(request, **settings)
    except DschedError as error:
        answer = error_answer(error)
        return answer.status, error.code
    return None


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8081",
        "localhost:8081",
        "LOCALHOST:8081",
        "[::1]:8081",
        "core.lan:8081",
        "Core.LAN:8081",
        "console.lan:443",
    ],
)
def test_own_names_are_let_in(host):
    assert refusal(head(host=[("Host", host)])) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        "evil.test:8081",
        "127.0.0.1",
        "127.0.0.1:80",
        "127.0.0.1:8081.",
        "localhost.:8081",
        "127.0.0.1.:8081",
        "127.0.0.1:08081",
        "127.0.0.1:8081, evil.test",
        "127.1:8081",
        "2130706433:8081",
        "0.0.0.0:8081",
        "::1:8081",
        "[::1]",
        "[0:0:0:0:0:0:0:1]:8081",
        "[::ffff:127.0.0.1]:8081",
        "user@127.0.0.1:8081",
        "evil.test@127.0.0.1:8081",
        "127.0.0.1:8081/",
        "console.lan:8081",
        "localhost:8081\xe9",
    ],
)
def test_other_names_are_refused(host):
    assert refusal(head(host=[("Host", host)])) == (403, "host")


@pytest.mark.parametrize("host", [[], [("Host", "")], HOST * 2, [*HOST, ("Host", "evil.test")]])
def test_a_missing_or_second_host_is_a_bad_request(host):
    assert refusal(head(host=host)) == (400, "bad_request")


def test_the_default_port_may_be_left_out():
    assert refusal(head(host=[("Host", "localhost")]), port=80) is None
    assert refusal(head(host=[("Host", "localhost:80")]), port=80) is None
    assert refusal(head(host=[("Host", "localhost")]), port=81) == (403, "host")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE", "PATCH", "PUT", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("target", ["/workers", "/api/v1/jobs", "/nowhere", "*"])
def test_a_foreign_host_learns_nothing_by_any_method(method, target):
    assert refusal(head(method, target, host=[("Host", "evil.test")])) == (403, "host")


@pytest.mark.parametrize(
    "origin", ["http://127.0.0.1:8081", "http://localhost:8081", "HTTP://LocalHost:8081", "http://[::1]:8081"]
)
def test_own_origins_are_let_in(origin):
    assert refusal(head(headers=[("Origin", origin)])) is None


@pytest.mark.parametrize(
    "origins",
    [
        ["null"],
        [""],
        ["http://evil.test"],
        ["http://127.0.0.1"],
        ["http://127.0.0.1:8082"],
        ["https://127.0.0.1:8081"],
        ["http://127.0.0.1:8081/"],
        ["http://127.0.0.1:8081.evil.test"],
        ["127.0.0.1:8081"],
        ["file://"],
        ["http://127.0.0.1:8081", "http://127.0.0.1:8081"],
    ],
)
def test_other_origins_are_refused(origins):
    assert refusal(head(headers=[("Origin", origin) for origin in origins])) == (403, "origin")


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "Application/JSON", "application/json; charset=utf-8", 'application/json;charset="UTF-8"'],
)
def test_json_is_taken(content_type):
    assert refusal(head("POST", "/api/v1/jobs", [("Content-Type", content_type)], length=2)) is None


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Content-Type", "")],
        [("Content-Type", "text/plain")],
        [("Content-Type", "application/x-www-form-urlencoded")],
        [("Content-Type", "multipart/form-data; boundary=x")],
        [("Content-Type", "application/json, text/plain")],
        [("Content-Type", "application/jsonp")],
        [("Content-Type", "application/json; charset=utf-16")],
        [("Content-Type", "text/plain; application/json")],
        [*JSON, *JSON],
        [*JSON, ("Content-Encoding", "gzip")],
        [*JSON, ("Content-Encoding", "identity, gzip")],
    ],
)
@pytest.mark.parametrize("target", ["/api/v1/jobs", "/api/v1/jobs/a/trigger", "/api/v1/runs/a/cancel"])
def test_other_media_are_refused(headers, target):
    assert refusal(head("POST", target, headers, length=2)) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("method", "target"),
    [("POST", "/api/v1/jobs/a/trigger"), ("POST", "/api/v1/runs/a/cancel"), ("DELETE", "/api/v1/jobs/a")],
)
def test_an_empty_body_needs_no_type_where_it_is_optional(method, target):
    assert refusal(head(method, target)) is None
    assert refusal(head(method, target, length=None)) == (415, "unsupported_media_type")
    assert refusal(head(method, target, [("Content-Type", "text/plain")])) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("values", "version"),
    [(["identity"], b"HTTP/1.1"), (["chunked", "chunked"], b"HTTP/1.1"), (["chunked"], b"HTTP/1.0")],
)
def test_the_only_transfer_encoding_is_chunked(values, version):
    headers = [*JSON, *(("Transfer-Encoding", value) for value in values)]
    assert refusal(head("POST", "/api/v1/jobs", headers, length=None, version=version)) == (400, "bad_request")


@pytest.mark.parametrize(
    ("target", "limit"), [("/api/v1/jobs", 1 << 20), ("/api/v1/jobs/a/trigger", 1 << 20), ("/api/v1/runs", 16 << 20)]
)
def test_the_declared_length_is_limited(target, limit):
    """Case B067: too large a body is 413 before it is read."""
    assert refusal(head("POST", target, JSON, length=limit)) is None
    with pytest.raises(TooLarge) as caught:
        admit(head("POST", target, JSON, length=limit + 1))
    assert caught.value.details == {"limit": limit}


@pytest.mark.parametrize("length", [1, None])
def test_a_get_has_no_body(length):
    with pytest.raises(InvalidValue, match="body"):
        admit(head(length=length))


@pytest.mark.parametrize(
    ("target", "name", "arguments"),
    [
        ("/api/v1/runs/a@1700000000000", "show_run", {"run_id": "a@1700000000000"}),
        ("/api/v1/runs/a%401700000000000", "show_run", {"run_id": "a@1700000000000"}),
        ("/api/v1/runs/a.b~k-1", "show_run", {"run_id": "a.b~k-1"}),
        ("/api/v1/runs/a%2Eb%7Ek%2D1/tasks", "list_tasks", {"run_id": "a.b~k-1"}),
        ("/api/v1/tasks/a~k:3", "show_task", {"task_id": "a~k:3"}),
        ("/api/v1/tasks/a%7Ek%3A3", "show_task", {"task_id": "a~k:3"}),
        ("/api/v1/jobs/%C3%A9", "show_job", {"name": "é"}),
    ],
)
def test_ids_arrive_encoded_or_not(target, name, arguments):
    admitted = admit(head(target=target))
    assert (admitted.route.name, admitted.arguments) == (name, arguments)


@pytest.mark.parametrize(
    "target",
    ["/", "/nowhere", "//workers", "/workers/", "/api/v1/jobs/", "/api/v1/jobs/a/b", "/api/v1/jobs/a%2Ftrigger",
     "workers", "*", "http://127.0.0.1:8081/workers", "/WORKERS", "/api/v1//jobs", "/workers#x"],
)  # fmt: skip
def test_unknown_paths(target):
    with pytest.raises(NotFound):
        admit(head(target=target))


def test_a_path_that_is_not_utf8():
    assert refusal(head(target="/api/v1/jobs/%ff")) == (400, "bad_request")


@pytest.mark.parametrize(
    ("method", "target", "allowed"),
    [
        ("OPTIONS", "/workers", b"GET, HEAD"),
        ("get", "/workers", b"GET, HEAD"),
        ("POST", "/status", b"GET, HEAD"),
        ("PUT", "/api/v1/jobs", b"GET, HEAD, POST"),
        ("PATCH", "/api/v1/jobs/a", b"DELETE, GET, HEAD"),
        ("GET", "/api/v1/jobs/a/trigger", b"POST"),
        ("TRACE", "/api/v1/runs/a/cancel", b"POST"),
    ],
)
def test_other_methods_are_told_which_are_taken(method, target, allowed):
    with pytest.raises(Refused) as caught:
        admit(head(method, target, [("X-HTTP-Method-Override", "GET")]))
    assert caught.value.status == 405
    assert caught.value.headers == ((b"Allow", allowed),)


def test_a_method_override_is_not_looked_at():
    admitted = admit(head("POST", "/api/v1/jobs/a/trigger", [("X-HTTP-Method-Override", "DELETE")]))
    assert admitted.route.name == "trigger"


class Nobody:
    """Lets nobody in, and remembers who asked for what."""

    def __init__(self):
        self.asked = []

    def check(self, head, route):
        self.asked.append(route and route.name)
        raise Refused(401, "token", "no")


def test_every_request_passes_access_control():
    access = Nobody()
    routes = sorted(ROUTES.by_name.values(), key=lambda route: route.name)
    for route in routes:
        target = route.path.replace("<", "").replace(">", "")
        assert refusal(head(route.method, target, length=10**12), access=access) == (401, "token")
    assert access.asked == [route.name for route in routes]
    assert refusal(head("PATCH", "/workers"), access=access) == (401, "token")
    assert refusal(head(target="/nowhere"), access=access) == (401, "token")
    assert access.asked[-2:] == [None, None]


def test_the_order_of_the_checks():
    """Each line mends the first fault; what is told is always the first one that is left."""
    wrong = head("POST", "/api/v1/jobs?x=1", [("Origin", "null")], length=10**9, host=[("Host", "evil.test")])
    assert refusal(wrong) == (403, "host")
    wrong = head("POST", "/api/v1/jobs?x=1", [("Origin", "null")], length=10**9)
    assert refusal(wrong) == (403, "origin")
    wrong = head("PATCH", "/api/v1/jobs?x=1", length=10**9)
    assert refusal(wrong) == (405, "method_not_allowed")
    wrong = head("POST", "/api/v1/jobs?x=1", length=10**9)
    assert refusal(wrong) == (415, "unsupported_media_type")
    wrong = head("POST", "/api/v1/jobs?x=1", JSON, length=10**9)
    assert refusal(wrong) == (413, "too_large")
    wrong = head("POST", "/api/v1/jobs?x=1", JSON, length=2)
    assert refusal(wrong) == (400, "invalid")
    assert refusal(head("POST", "/api/v1/jobs", JSON, length=2)) is None
