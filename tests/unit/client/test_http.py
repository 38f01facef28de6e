"""The client: what it asks for, and which errors it makes of the answers."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from dsched.client import Client
from dsched.errors import Conflict, DschedError, InvalidValue, NotFound, StoreUnavailable, Unreachable


class Script(httpx.MockTransport):
    """A core that gives the answers it was told, and remembers the requests."""

    def __init__(self, *answers: httpx.Response) -> None:
        self.requests: list[httpx.Request] = []
        self._answers = list(answers)
        super().__init__(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self._answers.pop(0)

    @property
    def asked(self) -> list[str]:
        return [f"{request.method} {request.url.raw_path.decode()}" for request in self.requests]


def client_of(*answers: httpx.Response) -> tuple[Client, Script]:
    script = Script(*answers)
    return Client("http://127.0.0.1:8081/", transport=script), script


def ok(body: Any) -> httpx.Response:
    return httpx.Response(200, json=body)


def refusal(status: int, code: str, **details: Any) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": code, "message": "why", "details": details}})


def test_trigger_sends_what_is_given() -> None:
    client, script = client_of(ok({"id": "a"}), ok({"id": "a"}))
    client.trigger("a")
    client.trigger("a", params={"n": 0}, sharding_total=2, key="k")
    assert script.asked == ["POST /api/v1/jobs/a/trigger"] * 2
    assert [json.loads(request.content) for request in script.requests] == [
        {},
        {"params": {"n": 0}, "sharding_total": 2, "key": "k"},
    ]


def test_ids_are_quoted() -> None:
    client, script = client_of(ok({}), ok({}))
    client.task("a~b:0")
    client.run("a/../b?c")
    assert script.asked == ["GET /api/v1/tasks/a~b%3A0", "GET /api/v1/runs/a%2F..%2Fb%3Fc"]


@pytest.mark.parametrize(("wait_s", "query"), [(0, ""), (-1, ""), (30, "?wait=30"), (1000, "?wait=300")])
def test_waiting_is_bounded(wait_s: float, query: str) -> None:
    client, script = client_of(ok({}))
    client.run("a", wait_s=wait_s)
    assert script.asked == [f"GET /api/v1/runs/a{query}"]


def test_lists_are_read_page_by_page() -> None:
    client, script = client_of(
        ok({"items": [{"id": 1}, {"id": 2}], "next": "c 1"}), ok({"items": [{"id": 3}], "next": None})
    )
    assert [run["id"] for run in client.iter_runs(job="a")] == [1, 2, 3]
    assert script.asked == [
        "GET /api/v1/runs?job=a&limit=1000",
        "GET /api/v1/runs?job=a&limit=1000&cursor=c+1",
    ]


def test_an_empty_answer_is_nothing() -> None:
    client, _ = client_of(httpx.Response(204))
    client.delete_job("a")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refusal(400, "invalid", field="name", reason="is odd"), InvalidValue),
        (refusal(404, "not_found", kind="job", id="a"), NotFound),
        (refusal(409, "conflict", run_id="a"), Conflict),
        (refusal(503, "store_unavailable"), StoreUnavailable),
        (httpx.Response(502, text="<html>"), Unreachable),
        (httpx.Response(200, text="<html>"), Unreachable),
        (httpx.Response(302, content=b"\xff"), Unreachable),
        (httpx.Response(500, json={"error": "odd"}), Unreachable),
    ],
)
def test_errors_are_those_of_dsched(answer: httpx.Response, kind: type[DschedError]) -> None:
    client, _ = client_of(answer)
    with pytest.raises(kind) as caught:
        client.job("a")
    assert type(caught.value) is kind


def test_errors_keep_what_they_tell() -> None:
    client, _ = client_of(
        refusal(400, "invalid", field="name", reason="is odd"), refusal(404, "not_found", kind="job", id="a"),
        refusal(418, "of_a_later_version", pot="tea"),
    )  # fmt: skip
    with pytest.raises(InvalidValue, match="name: is odd"):
        client.job("a")
    with pytest.raises(NotFound, match="there is no job 'a'"):
        client.job("a")
    with pytest.raises(DschedError, match="why") as caught:
        client.job("a")
    assert (caught.value.code, caught.value.details) == ("of_a_later_version", {"pot": "tea"})


def test_no_answer_is_unreachable() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    client = Client("http://127.0.0.1:1", transport=httpx.MockTransport(refuse))
    with pytest.raises(Unreachable, match="no answer from the core at http://127.0.0.1:1"):
        client.status()
    assert not client.is_ready()


@pytest.mark.parametrize(("status", "ready"), [(200, True), (503, False)])
def test_readiness_is_the_status_of_readyz(status: int, ready: bool) -> None:
    client, script = client_of(httpx.Response(status, json={}))
    assert client.is_ready() is ready
    assert script.asked == ["GET /readyz"]


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8081", "localhost:8081", "http://[bad", "", "http://", "ftp://a:1", "http://a:port", "http://a:99999",
     "http://a b:1", "http://a\n:1", "http://a:1/\x00", "http://a:1?x=1", "http://a:1#x", "http://\ud800:1", None, b"http://a",
     "http://" + "a" * 70 + ".b:1", "http://a..b:1"],
)  # fmt: skip
def test_a_url_that_cannot_be_is_refused_at_once(url: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        Client(url)
    assert caught.value.field == "url"
    assert "http://" in caught.value.reason


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8081", "http://localhost", "https://core.example/dsched/", "http://[::1]:8081", "HTTP://a_b"],
)
def test_urls_that_can_be(url: str) -> None:
    Client(url).close()


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda client: client.trigger("a", params=float("nan")), "params"),
        (lambda client: client.trigger("a", params={"a": [object()]}), "params.a[0]"),
        (lambda client: client.trigger("a", params="\ud800"), "params"),
        (lambda client: client.trigger("a", params={1: 2}), "params"),
        (lambda client: client.trigger("a", key="\ud800"), "key"),
        (lambda client: client.create_job({"name": {1}}), "name"),
        (lambda client: client.create_runs([{"job": "a", "params": float("inf")}]), "runs[0].params"),
        (lambda client: client.trigger("\ud800"), "name"),
        (lambda client: client.job(None), "name"),
        (lambda client: client.delete_job(b"a"), "name"),
        (lambda client: client.run("\ud800"), "run_id"),
        (lambda client: client.tasks("\ud800"), "run_id"),
        (lambda client: client.cancel_run(1), "run_id"),
        (lambda client: client.task("\ud800"), "task_id"),
        (lambda client: client.run("a", wait_s=float("nan")), "wait_s"),
        (lambda client: client.run("a", wait_s="1"), "wait_s"),
        (lambda client: client.runs(job="\ud800"), "job"),
        (lambda client: list(client.iter_runs(status=["a", object()])), "status"),
        (lambda client: client.stats(job="\ud800"), "job"),
    ],
)
def test_what_cannot_be_sent_is_named(call: Callable[[Client], Any], field: str) -> None:
    client, script = client_of()
    with pytest.raises(InvalidValue) as caught:
        call(client)
    assert caught.value.field == field
    assert script.requests == []


def test_a_long_wait_is_the_longest() -> None:
    client, script = client_of(ok({}))
    client.run("a", wait_s=float("inf"))
    assert script.asked == ["GET /api/v1/runs/a?wait=300"]


def test_a_body_is_json_and_says_so() -> None:
    client, script = client_of(ok({"id": "a"}))
    client.trigger("a", params=("é", 1.5))
    [request] = script.requests
    assert request.headers["Content-Type"] == "application/json"
    assert request.content == '{"params":["é",1.5]}'.encode()
