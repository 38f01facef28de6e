"""A core in memory, and connections to its admin port that end in a string."""

import json
import re
from typing import NamedTuple

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import Clock as TwistedClock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from dsched.clock import Clock
from dsched.errors import Conflict, InvalidValue, NotFound
from dsched.web.server import make_site

PORT = 8081


class FakeCore:
    """Keeps jobs and runs in dictionaries. `held` (a Deferred) makes every operation wait; `broken` makes it raise."""

    def __init__(self):
        self.known_jobs = {}
        self.known_runs = {}
        self.calls = []
        self.held = None
        self.broken = None
        self.ready = True
        self.waiting = 0

    async def _enter(self, *call):
        self.calls.append(call)
        if self.held is not None:
            await self.held
        if self.broken is not None:
            raise self.broken

    async def create_job(self, body):
        await self._enter("create_job", body)
        for field in body:
            if field not in ("name", "handler", "params", "description"):
                raise InvalidValue(field[:80], "unknown field")
        if not isinstance(body.get("name"), str):
            raise InvalidValue("name", "must be a string")
        if body["name"] in self.known_jobs:
            raise Conflict(f"job {body['name']!r} exists", job=body["name"])
        self.known_jobs[body["name"]] = {**body, "version": 1}
        return self.known_jobs[body["name"]]

    async def delete_job(self, name):
        await self._enter("delete_job", name)
        if self.known_jobs.pop(name, None) is None:
            raise NotFound("job", name)

    async def job(self, name):
        await self._enter("job", name)
        return self._one("job", self.known_jobs, name)

    async def jobs(self, limit, cursor, filters):
        await self._enter("jobs", limit, cursor, filters)
        return {"items": list(self.known_jobs.values())[:limit], "next": None}

    async def trigger(self, name, body):
        await self._enter("trigger", name, body)
        for field in body:
            if field not in ("params", "key", "sharding_total"):
                raise InvalidValue(field[:80], "unknown field")
        self._one("job", self.known_jobs, name)
        run_id = f"{name}~{body.get('key', len(self.known_runs))}"
        self.known_runs[run_id] = {"id": run_id, "job": name, "status": "PENDING"}
        return self.known_runs[run_id]

    async def create_runs(self, body):
        await self._enter("create_runs", body)
        if set(body) != {"runs"} or not isinstance(body["runs"], list):
            raise InvalidValue("runs", "a list is needed, and nothing else")
        return {"ids": [f"a~{n}" for n in range(len(body["runs"]))]}

    async def run(self, run_id, wait_s):
        self.waiting += 1
        try:
            await self._enter("run", run_id, wait_s)
        finally:
            self.waiting -= 1
        return self._one("run", self.known_runs, run_id)

    async def runs(self, limit, cursor, filters):
        await self._enter("runs", limit, cursor, filters)
        return {"items": list(self.known_runs.values())[:limit], "next": "more"}

    async def tasks(self, run_id, limit, cursor, filters):
        await self._enter("tasks", run_id, limit, cursor, filters)
        self._one("run", self.known_runs, run_id)
        return {"items": [{"task_id": f"{run_id}:0"}], "next": None}

    async def all_tasks(self, limit, cursor, filters):
        await self._enter("all_tasks", limit, cursor, filters)
        return {"items": [{"task_id": "a~1:0"}], "next": "more"}

    async def stats(self, hours, job):
        await self._enter("stats", hours, job)
        return {"job": job, "ended": {"SUCCESS": 1}}

    async def task(self, task_id):
        await self._enter("task", task_id)
        return {"task_id": task_id, "job_id": "9007199254740993"}

    async def cancel_run(self, run_id):
        await self._enter("cancel_run", run_id)
        return self._one("run", self.known_runs, run_id)

    def workers(self):
        if self.broken is not None:
            raise self.broken
        return [{"worker_id": f"w{n}", "state": "ready"} for n in (2, 0, 1)]

    def pending(self):
        if self.broken is not None:
            raise self.broken
        return {"pending": 3, "by_status": {"PENDING": 1, "RUNNING": 2}}

    def status(self):
        if self.broken is not None:
            raise self.broken
        return {"role": "leader", "epoch": 1}

    def leader(self):
        return {"address": "127.0.0.1:8080"}

    def readiness(self):
        return self.ready, {"role": "leader"}

    def _one(self, kind, known, name):
        if name not in known:
            raise NotFound(kind, name)
        return known[name]


class Reply(NamedTuple):
    """One answer as it came over the connection."""

    status: int
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json["error"]["code"]


class Connection:
    """A client's end: what it sends, what came back, and whether it is still open."""

    def __init__(self, site):
        self.transport = StringTransport(
            hostAddress=IPv4Address("TCP", "127.0.0.1", PORT), peerAddress=IPv4Address("TCP", "127.0.0.1", 50000)
        )
        self.channel = site.buildProtocol(None)
        self.channel.makeConnection(self.transport)

    @property
    def closed(self):
        return self.transport.disconnecting or self.transport.disconnected

    def send(self, data):
        self.channel.dataReceived(data)

    def leave(self, *, cleanly=False):
        self.channel.connectionLost(Failure(ConnectionDone() if cleanly else ConnectionLost()))

    def received(self, *, heads=0):
        """Take all answers that came; the first `heads` of them answer HEAD and have no body."""
        data = self.transport.value()
        self.transport.clear()
        replies = []
        while data:
            head, _, data = data.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            pairs = [line.split(": ", 1) for line in lines]
            names = [name for name, _ in pairs]
            assert len(set(names)) == len(names), f"a header twice: {names}"
            headers = dict(pairs)
            status = int(re.fullmatch(r"HTTP/1\.[01] (\d{3}) .*", first)[1])
            has_body = len(replies) >= heads and status not in (100, 204)
            length = int(headers["Content-Length"]) if has_body else 0
            replies.append(Reply(status, headers, data[:length]))
            data = data[length:]
        return replies

    def request(self, method, target, body=None, headers=(), *, host=f"127.0.0.1:{PORT}"):
        """Send one request and return its answer, or None while there is none."""
        lines = [f"{method} {target} HTTP/1.1"]
        if host is not None:
            lines.append(f"Host: {host}")
        data = b""
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            lines.append(f"Content-Length: {len(data)}")
            if not any(name == "Content-Type" for name, _ in headers):
                lines.append("Content-Type: application/json")
        lines.extend(f"{name}: {value}" for name, value in headers)
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        replies = self.received(heads=method == "HEAD")
        assert len(replies) <= 1
        return replies[0] if replies else None


@pytest.fixture(autouse=True)
def admin_port(request):
    """Give each test case a core, its site, a clock to advance, and `connect()`."""
    case = request.instance
    case.reactor = TwistedClock()
    case.clock = Clock(case.reactor, wall=lambda: 1_767_225_600.0)
    case.core = FakeCore()
    case.site = make_site(case.core, port=PORT, clock=case.clock)
    case.connect = lambda: Connection(case.site)
    case.hold = lambda: setattr(case.core, "held", Deferred())
    yield
    case.clock.stop()
