"""Every route, through a real channel: what it answers, and what it refuses."""

import json
import random
import re
from collections import Counter
from urllib.parse import quote

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from dsched.errors import BatchRefused, Conflict, NotLeader, StoreUnavailable, TooLarge
from dsched.web.admission import Admission
from dsched.web.app import ROUTES
from dsched.web.envelope import ALWAYS

SECURITY = {name.decode(): value.decode() for name, value in ALWAYS}


def target_of(route):
    return route.path.replace("<name>", "a").replace("<run_id>", "a~1").replace("<task_id>", "a~1:0")


class RoutesTest(SynchronousTestCase):
    def setUp(self):
        self.core.known_jobs["a"] = {"name": "a"}
        self.core.known_runs["a~1"] = {"id": "a~1", "status": "RUNNING"}
        self.connection = self.connect()
        self.request = self.connection.request

    def test_reads(self):
        for target, answer in [
            ("/healthz", {"status": "ok"}),
            ("/readyz", {"role": "leader"}),
            ("/status", {"role": "leader", "epoch": 1}),
            ("/leader", {"address": "127.0.0.1:8080"}),
            ("/jobs/pending", {"pending": 3, "by_status": {"PENDING": 1, "RUNNING": 2}}),
            ("/workers", [{"worker_id": f"w{n}", "state": "ready"} for n in (2, 0, 1)]),
            ("/api/v1/jobs", {"items": [{"name": "a"}], "next": None}),
            ("/api/v1/jobs/a", {"name": "a"}),
            ("/api/v1/runs", {"items": [{"id": "a~1", "status": "RUNNING"}], "next": "more"}),
            ("/api/v1/runs/a~1", {"id": "a~1", "status": "RUNNING"}),
            ("/api/v1/runs/a%7E1?wait=0", {"id": "a~1", "status": "RUNNING"}),
            ("/api/v1/runs/a~1/tasks", {"items": [{"task_id": "a~1:0"}], "next": None}),
            ("/api/v1/tasks/a~1:0", {"task_id": "a~1:0", "job_id": "9007199254740993"}),
        ]:
            reply = self.request("GET", target)
            self.assertEqual((reply.status, reply.json), (200, answer), target)
            head = self.request("HEAD", target)
            self.assertEqual((head.status, head.body), (200, b""))
            self.assertEqual(head.headers["Content-Length"], reply.headers["Content-Length"])
        self.assertFalse(self.connection.closed)

    def test_a_job_from_creation_to_deletion(self):
        reply = self.request("POST", "/api/v1/jobs", {"name": "b", "params": {"n": 1}})
        self.assertEqual((reply.status, reply.json["version"]), (201, 1))
        self.assertEqual(self.request("POST", "/api/v1/jobs", {"name": "b"}).status, 409)
        reply = self.request("POST", "/api/v1/jobs/b/trigger", {"key": "k"})
        self.assertEqual((reply.status, reply.json["id"]), (202, "b~k"))
        reply = self.request("POST", "/api/v1/runs/b~k/cancel")
        self.assertEqual((reply.status, reply.json["id"]), (202, "b~k"))
        reply = self.request("DELETE", "/api/v1/jobs/b")
        self.assertEqual((reply.status, reply.body), (204, b""))
        self.assertNotIn("Content-Type", reply.headers)
        self.assertEqual(self.request("DELETE", "/api/v1/jobs/b").status, 404)
        self.assertEqual(self.request("GET", "/api/v1/jobs/b").code, "not_found")

    def test_a_trigger_without_a_body(self):
        self.assertEqual(self.request("POST", "/api/v1/jobs/a/trigger").status, 202)
        self.assertEqual(self.request("POST", "/api/v1/jobs/a/trigger", b"").status, 202)
        self.assertEqual(self.core.calls, [("trigger", "a", {})] * 2)

    def test_bulk_runs(self):
        reply = self.request("POST", "/api/v1/runs", {"runs": [{"job": "a", "params": "é" * 200}] * 10_000})
        self.assertEqual((reply.status, len(reply.json["ids"])), (202, 10_000))

    def test_lists_hand_on_page_and_filters(self):
        self.request("GET", "/api/v1/jobs?limit=5&cursor=c&enabled=false")
        self.request("GET", "/api/v1/runs?status=SUCCESS&job=a")
        self.request("GET", "/api/v1/runs/a~1/tasks?worker=w1")
        self.assertEqual(
            self.core.calls,
            [
                ("jobs", 5, "c", {"enabled": "false"}),
                ("runs", 100, None, {"status": "SUCCESS", "job": "a"}),
                ("tasks", "a~1", 100, None, {"worker": "w1"}),
            ],
        )

    def test_tasks_of_all_runs(self):
        reply = self.request("GET", "/api/v1/tasks?since=2026-11-30T21:22:47Z&status=FAILED&limit=1")
        self.assertEqual((reply.status, reply.json), (200, {"items": [{"task_id": "a~1:0"}], "next": "more"}))
        wanted = {"since": "2026-11-30T21:22:47Z", "status": "FAILED"}
        self.assertEqual(self.core.calls, [("all_tasks", 1, None, wanted)])

    def test_stats(self):
        self.assertEqual(self.request("GET", "/api/v1/stats").json, {"job": None, "ended": {"SUCCESS": 1}})
        self.assertEqual(self.request("GET", "/api/v1/stats?hours=720&job=a").json["job"], "a")
        self.assertEqual(self.core.calls, [("stats", 24, None), ("stats", 720, "a")])

    def test_what_lists_of_history_do_not_take(self):
        for path in ("tasks?since=today", "tasks?colour=red", "runs?until=", "stats?hours=0", "stats?since=1"):
            reply = self.request("GET", f"/api/v1/{path}")
            self.assertEqual((reply.status, reply.code), (400, "invalid"), path)

    def test_workers_in_pages(self):
        first = self.request("GET", "/api/v1/workers?limit=2").json
        self.assertEqual([worker["worker_id"] for worker in first["items"]], ["w0", "w1"])
        last = self.request("GET", f"/api/v1/workers?limit=2&cursor={first['next']}").json
        self.assertEqual(([worker["worker_id"] for worker in last["items"]], last["next"]), (["w2"], None))

    def test_a_cursor_that_the_list_of_workers_never_gave(self):
        # Among them one of the list of jobs, and a worker's name.
        for cursor in ("zzzz", "am9iOmE", "w1", "%C3%A9"):
            reply = self.request("GET", f"/api/v1/workers?cursor={cursor}")
            self.assertEqual((reply.status, reply.json["error"]["details"].get("field")), (400, "cursor"), cursor)

    def test_not_ready(self):
        self.core.ready = False
        reply = self.request("GET", "/readyz")
        self.assertEqual((reply.status, reply.code), (503, "not_ready"))
        self.assertEqual(reply.json["error"]["details"], {"role": "leader"})
        self.assertEqual(reply.headers["Retry-After"], "1")
        self.assertEqual(self.request("GET", "/healthz").status, 200)

    def test_the_errors_of_a_core(self):
        for error, status in [
            (Conflict("final", run="a~1"), 409),
            (NotLeader("follow", leader="b:8081"), 409),
            (TooLarge("params"), 413),
            (StoreUnavailable("away"), 503),
        ]:
            self.core.broken = error
            for route in ROUTES.by_name.values():
                if route.name in {"healthz", "readyz", "leader"}:
                    continue
                body = {} if route.method == "POST" else None
                reply = self.request(route.method, target_of(route), body)
                self.assertEqual((reply.status, reply.code), (status, error.code), route.name)
                self.assertEqual(reply.json["error"]["details"], error.details)

    def test_a_fault_is_logged_and_told_by_its_id_only(self):
        for error, code in [(RuntimeError("secret"), "internal"), (BatchRefused("secret"), "refused")]:
            self.core.broken = error
            reply = self.request("POST", "/api/v1/jobs/a/trigger", {"params": "private"})
            self.assertEqual((reply.status, reply.code), (500, code))
            self.assertNotIn(b"secret", reply.body)
            self.assertEqual(len(self.flushLoggedErrors(type(error))), 1)
        self.assertEqual(reply.json["error"]["details"], {"id": "19b76daa800-2"})

    def test_an_answer_that_json_cannot_carry_is_a_fault(self):
        self.core.known_jobs["a"] = {"name": object()}
        self.assertEqual(self.request("GET", "/api/v1/jobs/a").status, 500)
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 1)
        self.assertEqual(self.request("GET", "/healthz").status, 200)

    def test_a_fault_of_access_control_lets_nobody_in(self):
        class Broken:
            def check(self, head, route):
                raise RuntimeError("secret")

        self.site.admission = Admission(ROUTES, (), Broken())
        self.assertEqual(self.request("POST", "/api/v1/jobs/a/trigger").status, 500)
        self.assertEqual(self.request("POST", "/api/v1/jobs/a/trigger", {}).status, 500)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 2)
        self.assertEqual(self.core.calls, [])

    def test_addresses_given_by_users_are_unknown_fields(self):
        for address in ("http://127.0.0.1:6379/", "http://169.254.169.254/", "http://[::ffff:127.0.0.1]/"):
            for field in ("addressList", "callbackUrl", "executorAddress", "logUrl"):
                for target in ("/api/v1/jobs", "/api/v1/jobs/a/trigger"):
                    reply = self.request("POST", target, {"name": "x", field: address})
                    self.assertEqual(reply.status, 400)

    def test_hostile_text_is_data(self):
        for text in ("<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "javascript:alert(1)"):
            created = self.request("POST", "/api/v1/jobs", {"name": text, "description": text})
            self.assertEqual(created.json["description"], text)
            missing = self.request("GET", f"/api/v1/jobs/{quote(text.replace('/', '|'))}|")
            self.assertEqual(missing.code, "not_found")
            for reply in (created, missing):
                self.assertEqual(reply.headers["Content-Type"], "application/json")
                self.assertEqual(reply.headers["X-Content-Type-Options"], "nosniff")


class RefusalTest(SynchronousTestCase):
    """Every route times every fault."""

    FAULTS = (
        "method",
        "host",
        "no host",
        "origin",
        "query",
        "json",
        "not an object",
        "unknown field",
        "type",
        "encoding",
    )

    def refuse(self, route, fault):
        """Send a request that is right but for `fault`; return the answer and the one that is due."""
        request = self.connect().request
        target, body = target_of(route), (None if route.method == "GET" else {})
        if fault == "method":
            return request("PATCH", target, body), (405, "method_not_allowed")
        if fault == "host":
            return request(route.method, target, body, host="evil.test"), (403, "host")
        if fault == "no host":
            return request(route.method, target, body, host=None), (400, "bad_request")
        if fault == "origin":
            return request(route.method, target, body, [("Origin", "http://evil.test")]), (403, "origin")
        if fault == "query":
            return request(route.method, target + "?colour=red", body), (400, "invalid")
        if fault == "encoding":
            return request(route.method, target, body, [("Content-Encoding", "gzip")]), (415, "unsupported_media_type")
        if fault == "type":
            due = (400, "invalid") if route.method == "GET" else (415, "unsupported_media_type")
            return request(route.method, target, {}, [("Content-Type", "text/plain")]), due
        data, code = {
            "json": (b'{"a": NaN}', "bad_json"),
            "not an object": (b"[1]", "invalid"),
            "unknown field": (b'{"colour": "red"}', "invalid"),
        }[fault]
        return request(route.method, target, data), (400, "invalid" if route.method == "GET" else code)

    def test_every_route_refuses_every_fault(self):
        for route in ROUTES.by_name.values():
            for fault in self.FAULTS:
                self.core.known_jobs["a"] = {"name": "a"}
                reply, due = self.refuse(route, fault)
                where = f"{route.name}, {fault}: {reply}"
                self.assertEqual((reply.status, reply.code), due, where)
                self.assertEqual(set(reply.json["error"]), {"code", "message", "details"}, where)
                self.assertEqual(SECURITY.items() - reply.headers.items(), set(), where)
                self.assertEqual(reply.headers["Content-Type"], "application/json")
                self.assertFalse({name for name in reply.headers if name.startswith("Access-Control")}, where)
                if fault == "method":
                    self.assertIn(route.method, reply.headers["Allow"])
                if fault == "query":
                    self.assertEqual(reply.json["error"]["details"]["field"], "colour")
        self.assertEqual(self.core.known_runs, {})

    def test_options_and_a_method_override(self):
        request = self.connect().request
        reply = request("OPTIONS", "/api/v1/jobs", None, [("Origin", "http://127.0.0.1:8081")])
        self.assertEqual((reply.status, reply.headers["Allow"]), (405, "GET, HEAD, POST"))
        self.assertEqual(
            request("GET", "/api/v1/jobs/a/trigger", None, [("X-HTTP-Method-Override", "POST")]).status, 405
        )
        self.assertEqual(request("OPTIONS", "*").status, 404)

    def test_a_thousand_rebinding_requests(self):
        rng = random.Random(8)
        names = ("evil.test", "a.localhost", "127.0.0.1.evil.test", "0x7f.1", "169.254.169.254", "[::]", "localhost.")
        for _ in range(1000):
            port = rng.choice(("", ":8081", ":80", ":8080"))
            route = rng.choice(list(ROUTES.by_name.values()))
            method = rng.choice((route.method, "GET", "POST", "HEAD", "PUT", "DELETE", "PATCH"))
            reply = self.connect().request(method, target_of(route), host=rng.choice(names) + port)
            self.assertEqual(reply.status, 403)
        self.assertEqual(self.core.calls, [])


class ClientLeavesTest(SynchronousTestCase):
    def setUp(self):
        self.core.known_jobs["a"] = {"name": "a"}
        self.hold()
        self.connection = self.connect()

    def test_the_operation_goes_on(self):
        self.assertIsNone(self.connection.request("POST", "/api/v1/jobs", {"name": "b"}))
        self.connection.leave()
        self.assertNotIn("b", self.core.known_jobs)
        self.core.held.callback(None)
        self.assertIn("b", self.core.known_jobs)
        self.assertEqual(self.connection.received(), [])

    def test_a_refusal_for_nobody_is_dropped(self):
        self.connection.request("POST", "/api/v1/jobs", {"name": "a"})
        self.connection.leave(cleanly=True)
        self.core.held.callback(None)
        self.assertEqual(self.connection.received(), [])

    def test_a_fault_for_nobody_is_logged(self):
        self.connection.request("POST", "/api/v1/jobs", {"name": "b"})
        self.connection.leave()
        self.core.held.errback(RuntimeError("secret"))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_a_waiter_is_dropped(self):
        cancelled = []
        self.core.held = Deferred(cancelled.append)
        self.assertIsNone(self.connection.request("GET", "/api/v1/runs/a~1?wait=300"))
        self.assertEqual((self.core.calls, self.core.waiting), ([("run", "a~1", 300.0)], 1))
        self.connection.leave()
        self.assertEqual((cancelled, self.core.waiting), ([self.core.held], 0))
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_a_waiter_is_answered(self):
        self.core.known_runs["a~1"] = {"id": "a~1"}
        self.assertIsNone(self.connection.request("GET", "/api/v1/runs/a~1?wait=300"))
        self.reactor.advance(299)
        self.core.held.callback(None)
        [reply] = self.connection.received()
        self.assertEqual((reply.status, reply.json), (200, {"id": "a~1"}))
        self.connection.leave()


class FuzzTest(SynchronousTestCase):
    """Two thousand requests put together from good and bad parts: always one well-formed answer, never a 5xx."""

    METHODS = ("GET", "POST", "DELETE", "HEAD", "PUT", "PATCH", "OPTIONS", "TRACE", "get", "G@T", "", "CONNECT")
    TARGETS = (
        *("/api/v1/jobs", "/api/v1/jobs/a", "/api/v1/jobs/a/trigger", "/api/v1/runs", "/api/v1/runs/a~1", "/workers"),
        *(
            "/api/v1/runs/a~1/cancel",
            "/api/v1/runs/a~1/tasks",
            "/api/v1/tasks/a~1:0",
            "/status",
            "/",
            "*",
            "/%00",
            "/%ff",
        ),
        *("/api/v1/jobs/%E2%80%AE", "/api/v1/jobs/" + "a" * 5000, "/..", "/api/v1/../jobs", "/\xa0", "/ x", "//", "?"),
    )
    QUERIES = (
        "",
        "",
        "",
        "?",
        "?limit=1",
        "?limit=x",
        "?a=%ff",
        "?wait=1e9",
        "?cursor=%00",
        "?&&&=",
        "?limit=1&limit=1",
        "?\xa0",
    )
    HEADERS = (
        *("Host: 127.0.0.1:8081", "Host: evil.test", "Host:", "Origin: null", "Origin: http://127.0.0.1:8081"),
        *(
            "Content-Type: application/json",
            "Content-Type: text/plain",
            "Content-Type: multipart/form-data; boundary=x",
        ),
        *("Content-Type: application/x-www-form-urlencoded", "Content-Encoding: gzip", "Content-Encoding: identity"),
        *("Content-Length: -1", "Content-Length: 5", "Content-Length: 1e3", "Content-Length: " + "9" * 6000),
        *("Transfer-Encoding: chunked", "Transfer-Encoding: gzip", "Expect: 100-continue", "Connection: close"),
        *(
            "Cookie: a=b; c",
            "X: " + "y" * 20_000,
            "X",
            ": x",
            "X\x00: y",
            "X: \x00",
            " folded",
            "Upgrade: h2c",
            "Range: bytes=0-1",
        ),
        *("Connection: Upgrade", "If-None-Match: *", "Authorization: Bearer \xff", "Accept: text/html", "TE: trailers"),
    )
    BODIES = (
        *(
            b"",
            b"{}",
            b"[]",
            b"null",
            b"{",
            b'{"a": 1, "a": 2}',
            b'{"a": NaN}',
            b'{"a": 1e999}',
            b'"\\ud800"',
            b"\xff\xfe",
            b"\x00",
        ),
        *(
            b"[" * 5000,
            b'{"name": "b"}',
            b'{"name": 7}',
            b'{"runs": []}',
            b'{"runs": [{}]}',
            b'{"key": "k"}',
            b"--x\r\n\r\n--x--",
        ),
        *(
            b"5\r\nhello\r\n0\r\n\r\n",
            b"2\r\n{}\r\n0\r\n\r\n",
            b"zz\r\n",
            b"-1\r\n",
            b"ffffffffffff\r\n{}",
            b"x" * 70_000,
        ),
        json.dumps({"name": "c", "params": {"deep": [[[1]]], "text": "\x00\x1b[31m"}}).encode(),
    )

    def test_no_request_breaks_the_core(self):
        rng = random.Random(20_260_101)
        statuses = Counter()
        for number in range(2000):
            self.core.known_jobs = {"a": {"name": "a"}}
            self.core.known_runs = {"a~1": {"id": "a~1"}}
            data = self.make(rng)
            connection = self.connect()
            rest = data
            while rest:
                cut = rng.randrange(1, len(rest) + 1) if rng.random() < 0.3 else len(rest)
                connection.send(rest[:cut])
                rest = rest[cut:]
            self.reactor.pump([15.0] * 5)
            told = connection.transport.value()
            answers = [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", told) if status != b"100"]
            statuses.update(answers)
            self.assertTrue(answers and max(answers) < 500, (number, data, told))
            self.assertEqual(told.count(b"X-Content-Type-Options: nosniff\r\n"), len(answers), (number, data, told))
            self.assertNotIn(b"<html", told)
            self.assertTrue(connection.closed)
            connection.leave()
        self.assertEqual((self.site.channels, self.reactor.getDelayedCalls()), (set(), []))
        self.assertLessEqual({200, 201, 202, 204, 400, 403, 404, 405, 408, 413, 415}, statuses.keys())

    def make(self, rng):
        """Put one request together, mostly right, so that each fault also meets the code behind the first checks."""
        route = rng.choice(list(ROUTES.by_name.values()))
        body = rng.choice((b"{}", b'{"name": "b"}', b'{"runs": []}')) if route.method != "GET" else b""

        def mostly(right, others):
            return right if rng.random() < 0.85 else rng.choice(others)

        method, target, body = mostly(route.method, self.METHODS), target_of(route), mostly(body, self.BODIES)
        version = mostly("HTTP/1.1", ("HTTP/1.0", "HTTP/2.0", "", "HTTP/1.1 "))
        length = len(body) + mostly(0, (-1, 1, 10**9, 2_000_000))
        lines = [
            f"{method} {mostly(target, self.TARGETS)}{mostly('', self.QUERIES)} {version}",
            *mostly(["Host: localhost:8081"], ([],)),
            *mostly(["Content-Type: application/json"], ([],)),
            *mostly([f"Content-Length: {length}"] if body else [], ([],)),
            *mostly([], [[line] for line in self.HEADERS]),
            *mostly([], [[line] for line in self.HEADERS]),
        ]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
