"""Connections: bodies that are too large, bytes that are no HTTP, senders that are slow."""

import tracemalloc

from twisted.trial.unittest import SynchronousTestCase

from dsched.wire.messages import Register, frame

HEAD = "{method} {target} HTTP/1.1\r\nHost: localhost:8081\r\nContent-Type: application/json\r\n"
MIB = 1 << 20


def head(*fields, method="POST", target="/api/v1/jobs"):
    """The head of a request, with the given header lines besides Host and Content-Type."""
    return (HEAD.format(method=method, target=target) + "".join(f"{line}\r\n" for line in fields) + "\r\n").encode()


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


class ConnectionCase(SynchronousTestCase):
    def setUp(self):
        self.connection = self.connect()
        self.send = self.connection.send

    def assertRefused(self, status, code, *, connection=None):
        connection = connection or self.connection
        [reply] = connection.received()
        self.assertEqual((reply.status, reply.code), (status, code))
        self.assertEqual(reply.headers["Connection"], "close")
        self.assertEqual(reply.headers["X-Content-Type-Options"], "nosniff")
        self.reactor.advance(2)
        self.assertTrue(connection.closed)
        connection.send(b"GET /status HTTP/1.1\r\nHost: localhost:8081\r\n\r\n")
        self.assertEqual(connection.received(), [])
        self.assertEqual(self.core.calls, [])


class BodySizeTest(ConnectionCase):
    def test_a_declared_gigabyte_is_refused_unread(self):
        self.send(head(f"Content-Length: {10**9}"))
        [reply] = self.connection.received()
        self.assertEqual((reply.status, reply.code), (413, "too_large"))
        self.assertEqual(reply.json["error"]["details"], {"limit": MIB})
        piece = b"x" * 65536
        tracemalloc.start()
        try:
            read = 0
            while self.connection.transport.producerState == "producing" and read < 10**9:
                self.send(piece)
                read += len(piece)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertLessEqual(read, 2 * MIB)
        self.assertLess(kept, 65536)
        self.assertFalse(self.connection.closed)
        self.reactor.advance(2)
        self.assertTrue(self.connection.closed)

    def test_it_is_refused_before_it_is_asked_for(self):
        self.send(head(f"Content-Length: {10**9}", "Expect: 100-continue"))
        self.assertRefused(413, "too_large")

    def test_an_honest_body_is_asked_for(self):
        self.send(head("Content-Length: 12", "Expect: 100-continue"))
        self.assertEqual([reply.status for reply in self.connection.received()], [100])
        self.send(b'{"name":"a"}')
        self.assertEqual([reply.status for reply in self.connection.received()], [201])

    def test_bulk_requests_may_be_larger(self):
        body = b'{"runs": [' + b" " * (15 * MIB) + b"]}"
        reply = self.connection.request("POST", "/api/v1/runs", body)
        self.assertEqual(reply.status, 202)
        self.send(head(f"Content-Length: {16 * MIB + 1}", target="/api/v1/runs"))
        [reply] = self.connection.received()
        self.assertEqual((reply.status, reply.json["error"]["details"]), (413, {"limit": 16 * MIB}))

    def test_only_on_their_own_path(self):
        for target in ("/api/v1/jobs", "/api/v1/jobs/a/trigger", "/api/v1/runs/a~1/cancel"):
            connection = self.connect()
            connection.send(head(f"Content-Length: {MIB + 1}", target=target))
            self.assertRefused(413, "too_large", connection=connection)

    def test_chunks_are_counted(self):
        self.send(head("Transfer-Encoding: chunked"))
        for _ in range(16):
            self.send(chunk(b"x" * 65536))
        self.assertEqual(self.connection.received(), [])
        # The rest comes in one piece with the byte that is one too many.
        self.send(chunk(b"x") * 100 + b"0\r\n\r\n")
        self.assertRefused(413, "too_large")

    def test_one_chunk_without_end(self):
        self.send(head("Transfer-Encoding: chunked") + b"fffffffff\r\n")
        for _ in range(17):
            self.send(b"x" * 65536)
        self.assertRefused(413, "too_large")

    def test_chunks_are_taken(self):
        self.send(
            head("Transfer-Encoding: chunked")
            + b"".join(chunk(bytes([byte])) for byte in b'{"name":"a"}')
            + b"0\r\n\r\n"
        )
        self.assertEqual([reply.status for reply in self.connection.received()], [201])

    def test_a_refused_head_is_answered_before_its_body(self):
        for target, status in (("/nowhere", 404), ("/api/v1/jobs?x=1", 400), ("/status", 405)):
            connection = self.connect()
            connection.send(head("Content-Length: 1000", target=target))
            [reply] = connection.received()
            self.assertEqual(reply.status, status)

    def test_without_a_body_the_connection_stays(self):
        self.assertEqual(self.connection.request("GET", "/nowhere").status, 404)
        self.assertEqual(self.connection.request("GET", "/status", host="evil.test").status, 403)
        self.assertEqual(self.connection.request("GET", "/status").status, 200)


class FramingTest(ConnectionCase):
    def test_lengths_that_are_none(self):
        for fields in (
            ["Content-Length: 2", "Transfer-Encoding: chunked"],
            ["Transfer-Encoding: chunked", "Content-Length: 2"],
            ["Content-Length: 2", "Content-Length: 2"],
            ["Content-Length: 2", "Content-Length: 3"],
            ["Content-Length: -2"],
            ["Content-Length: +2"],
            ["Content-Length: 0x2"],
            ["Content-Length: 2, 2"],
            ["Content-Length:"],
            ["Content-Length: " + "9" * 19],
            ["Content-Length: " + "9" * 6000],
            ["Transfer-Encoding: gzip, chunked"],
            ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
            ["Transfer-Encoding: identity", "Content-Length: 2"],
        ):
            connection = self.connect()
            connection.send(head(*fields) + b"{}")
            self.assertRefused(400, "bad_request", connection=connection)

    def test_bytes_that_are_no_http(self):
        for data in (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n",
            b"\xca\xfe\xba\xbe\x01\x64\x01\x00\x00\x00\x02{}\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /status\r\n",
            b"GET  /status HTTP/1.1\r\n",
            b"GET /status HTTP/1.1\r\nHost : localhost\r\n\r\n",
            b"GET /status HTTP/1.1\r\nHost\r\n\r\n",
            b"GET /status HTTP/1.1\r\nX: \x00\r\n\r\n",
            b"GET /status HTTP/1.1\r\n" + b"X: y\r\n" * 501 + b"\r\n",
            b"GET /status HTTP/1.1\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
            b"GET /" + b"a" * 20_000,
        ):
            connection = self.connect()
            connection.send(data)
            self.assertRefused(400, "bad_request", connection=connection)

    def test_a_worker_that_took_the_wrong_port_is_told_at_once(self):
        for data in (frame(Register("w")), b"\xca"):
            connection = self.connect()
            connection.send(data)
            [reply] = connection.received()
            self.assertEqual((reply.status, reply.code), (400, "bad_request"))
            self.assertIn("--listen, 8080 by default", reply.json["error"]["message"])
            self.assertTrue(connection.closed)

    def test_a_malformed_chunk(self):
        for data in (b"zz\r\n", b"-1\r\n", b"2\r\n{}xy", b"2;\x00\r\n{}\r\n", b"1" * 2000):
            connection = self.connect()
            connection.send(head("Transfer-Encoding: chunked") + data)
            self.assertRefused(400, "bad_request", connection=connection)

    def test_the_cut_of_the_bytes_makes_no_difference(self):
        data = head("Content-Length: 12") + b'{"name":"a"}' + b"GET /status HTTP/1.1\r\nHost: localhost:8081\r\n\r\n"
        for byte in data:
            self.send(bytes([byte]))
        self.assertEqual([reply.status for reply in self.connection.received()], [201, 200])

    def test_pipelined_requests_are_answered_in_order(self):
        self.core.known_jobs["a"] = {"name": "a"}
        self.hold()
        self.send(head(method="GET", target="/api/v1/jobs/a") + head(method="GET", target="/nowhere") * 300)
        self.assertEqual(self.connection.received(), [])
        self.core.held.callback(None)
        self.assertEqual([reply.status for reply in self.connection.received()], [200] + [404] * 300)

    def test_a_connection_closes_when_asked_to(self):
        self.send(head("Connection: close", method="GET", target="/status"))
        [reply] = self.connection.received()
        self.assertEqual((reply.status, reply.headers["Connection"], self.connection.closed), (200, "close", True))

    def test_http_1_0(self):
        self.send(b"GET /status HTTP/1.0\r\nHost: localhost:8081\r\n\r\n")
        self.assertEqual([reply.status for reply in self.connection.received()], [200])
        self.assertTrue(self.connection.closed)
        connection = self.connect()
        connection.send(b"GET /status HTTP/1.0\r\n\r\n")
        self.assertEqual([reply.status for reply in connection.received()], [400])


class SlowSenderTest(ConnectionCase):
    def test_a_head_has_15_seconds(self):
        for pause_s, line in ((0, b"GET /status HTTP/1.1\r\n"), (7, b"Host: localhost:8081\r\n"), (7, b"X: y\r\n")):
            self.reactor.advance(pause_s)
            self.send(line)
        self.assertFalse(self.connection.closed)
        self.reactor.advance(1)
        self.assertTrue(self.connection.closed)
        self.assertRefused(408, "timeout")

    def test_the_first_byte_has_15_seconds(self):
        self.reactor.advance(15)
        self.assertTrue(self.connection.closed)
        self.assertEqual(self.connection.received(), [])

    def test_the_next_head_has_15_seconds_from_its_first_byte(self):
        self.connection.request("GET", "/status")
        self.reactor.advance(50)
        self.send(b"G")
        self.reactor.advance(14)
        self.send(b"E")
        self.assertFalse(self.connection.closed)
        self.reactor.advance(1)
        self.assertTrue(self.connection.closed)

    def test_an_idle_connection_has_60_seconds(self):
        for _ in range(3):
            self.reactor.advance(14 if self.core.calls else 0)
            self.assertEqual(self.connection.request("GET", "/status").status, 200)
            self.reactor.advance(59)
            self.assertFalse(self.connection.closed)
        self.reactor.advance(1)
        self.assertTrue(self.connection.closed)

    def test_a_body_has_60_seconds(self):
        self.send(head("Content-Length: 100"))
        for _ in range(59):
            self.reactor.advance(1)
            self.send(b"x")
        self.assertFalse(self.connection.closed)
        self.reactor.advance(1)
        self.assertRefused(408, "timeout")

    def test_an_answer_has_the_time_that_it_takes(self):
        self.core.known_jobs["a"] = {"name": "a"}
        self.hold()
        self.connection.request("GET", "/api/v1/jobs/a")
        self.reactor.advance(400)
        self.core.held.callback(None)
        self.assertEqual([reply.status for reply in self.connection.received()], [200])
        self.assertFalse(self.connection.closed)

    def test_a_client_that_does_not_read_is_cut_off(self):
        self.connection.request("GET", "/status")
        self.reactor.advance(60)
        self.assertEqual((self.connection.closed, self.connection.transport.disconnected), (True, False))
        self.reactor.advance(15)
        self.assertTrue(self.connection.transport.disconnected)

    def test_no_timer_outlives_its_connection(self):
        connections = [self.connect() for _ in range(5)]
        connections[1].send(b"GET")
        connections[2].send(head("Content-Length: 5"))
        connections[3].send(head(f"Content-Length: {10**9}"))
        connections[4].request("GET", "/status")
        for connection in (*connections, self.connection):
            connection.leave()
        self.assertEqual((self.reactor.getDelayedCalls(), self.site.channels), ([], set()))


class EndOfListeningTest(ConnectionCase):
    def test_idle_connections_end_at_once_and_busy_ones_after_their_answer(self):
        self.core.known_jobs["a"] = {"name": "a"}
        busy, sending = self.connect(), self.connect()
        sending.send(b"GET /sta")
        self.hold()
        busy.request("GET", "/api/v1/jobs/a")
        self.site.doStart()
        self.site.doStop()
        self.assertEqual([c.closed for c in (self.connection, sending, busy)], [True, True, False])
        self.core.held.callback(None)
        self.assertEqual([reply.status for reply in busy.received()], [200])
        self.assertTrue(busy.closed)
