"""A plain worker over a bare socket: only the bytes that the protocol's table names, in both directions."""

import itertools
import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsched.cli.processes import CoreProcess

pytestmark = pytest.mark.integration

HEADER = struct.Struct(">IBBBi")
REGISTER = bytes.fromhex("cafebabe01640100000063") + (
    b'{"workerId":"worker-a","host":"127.0.0.1","port":8080,"healthy":true,"lastHeartbeat":1764532800000}'
)
HEARTBEAT = bytes.fromhex("cafebabe01030100000000")
REQUEST_FIELDS = {
    "jobId", "jobName", "params", "shardingTotal", "shardingItem", "timeout", "taskId", "retryCount", "preloadKeys",
}  # fmt: skip
PLAIN_TYPES = {1, 3, 101, 102}
LIMIT_S = 20.0
NUMBERS = itertools.count()


class PlainWorker:
    """Speaks the plain protocol and nothing else; written without the code of dsched."""

    def __init__(self, port: int, chunk: int | None) -> None:
        self.types: list[int] = []
        self._chunk = chunk
        self._buffer = b""
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send in pieces of the chosen size, or all at once."""
        for start in range(0, len(data), self._chunk or len(data)):
            self._socket.sendall(data[start : start + (self._chunk or len(data))])

    def answer(self, requests: list[dict[str, Any]], success: bool = True) -> None:
        """Send the results of all `requests` in one go."""
        out = b""
        for request in requests:
            result = {"jobId": request["jobId"], "taskId": request["taskId"], "success": success, "message": "ok"}
            body = json.dumps({**result, "data": {"item": request["shardingItem"]}}).encode()
            out += HEADER.pack(0xCAFEBABE, 1, 2, 1, len(body)) + body
        self.send(out)

    def next(self, *wanted: int) -> tuple[int, bytes]:
        """Return type and body of the next frame of one of the types `wanted`."""
        while True:
            kind, body = self._frame()
            if kind in wanted:
                return kind, body

    def requests(self, count: int) -> list[dict[str, Any]]:
        return [json.loads(self.next(1)[1]) for _ in range(count)]

    def _frame(self) -> tuple[int, bytes]:
        magic, version, kind, status, length = HEADER.unpack(self._read(HEADER.size))
        assert (magic, version, status) == (0xCAFEBABE, 1, 1)
        self.types.append(kind)
        return kind, self._read(length)

    def _read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self._socket.recv(65536)
            assert data, "the core closed the connection"
            self._buffer += data
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoreProcess]:
    with CoreProcess(tmp_path_factory.mktemp("core")) as process:
        process.wait_ready()
        yield process


@pytest.fixture(params=[None, 1], ids=["at-once", "byte-by-byte"])
def worker(core: CoreProcess, request: pytest.FixtureRequest) -> Iterator[PlainWorker]:
    plain = PlainWorker(core.port, request.param)
    plain.send(REGISTER)
    _, body = plain.next(102)
    assert json.loads(body) == {"workerId": "worker-a"}
    yield plain
    plain.close()
    assert set(plain.types) <= PLAIN_TYPES


def new_job(core: CoreProcess, **settings: Any) -> str:
    name = f"plain-{next(NUMBERS)}"
    core.client.create_job({"name": name, "timeout": 30, **settings})
    return name


def test_its_tasks_succeed(core: CoreProcess, worker: PlainWorker) -> None:
    job = new_job(core, sharding_total=3, params={"a": [1, "\u20ac"]})
    run = core.client.trigger(job)
    requests = worker.requests(3)
    for item, asked in enumerate(sorted(requests, key=lambda asked: int(asked["shardingItem"]))):
        assert set(asked) == REQUEST_FIELDS
        assert asked["jobName"] == job
        assert (asked["shardingItem"], asked["shardingTotal"]) == (item, 3)
        assert asked["taskId"] == f"{run['id']}:{item}"
        assert json.loads(asked["params"]) == {"a": [1, "\u20ac"]}
        assert (asked["timeout"], asked["retryCount"], asked["preloadKeys"]) == (30, 0, [])
    assert len({asked["jobId"] for asked in requests}) == 3
    worker.answer(requests)
    assert core.client.run(run["id"], wait_s=LIMIT_S)["status"] == "SUCCESS"
    tasks = core.client.tasks(run["id"])
    assert [(task["status"], task["result"], task["worker_id"]) for task in tasks] == [
        ("SUCCESS", {"item": item}, "worker-a") for item in range(3)
    ]


def test_a_failed_task_comes_again(core: CoreProcess, worker: PlainWorker) -> None:
    run = core.client.trigger(new_job(core, retry_backoff=0))
    first = worker.requests(1)
    worker.answer(first, success=False)
    again = worker.requests(1)
    assert (again[0]["taskId"], again[0]["retryCount"]) == (first[0]["taskId"], 1)
    worker.answer(again)
    assert core.client.run(run["id"], wait_s=LIMIT_S)["status"] == "SUCCESS"


@pytest.mark.parametrize(("params", "text"), [("raw text", "raw text"), (None, ""), (7, "7"), ({"a": 1}, '{"a":1}')])
def test_params_are_compact_text(core: CoreProcess, worker: PlainWorker, params: Any, text: str) -> None:
    run = core.client.trigger(new_job(core, params=params))
    requests = worker.requests(1)
    assert requests[0]["params"] == text
    worker.answer(requests)
    assert core.client.run(run["id"], wait_s=LIMIT_S)["status"] == "SUCCESS"


def test_its_beats_are_answered(worker: PlainWorker) -> None:
    worker.send(HEARTBEAT)
    assert worker.next(3) == (3, b"")


def test_what_it_had_is_lost_with_its_connection(core: CoreProcess) -> None:
    run_id = core.client.trigger(new_job(core))["id"]
    plain = PlainWorker(core.port, None)
    plain.send(REGISTER)
    [asked] = plain.requests(1)
    plain.close()
    successor = PlainWorker(core.port, None)
    successor.send(REGISTER)
    [again] = successor.requests(1)
    assert again["taskId"] == asked["taskId"]
    successor.answer([again])
    assert core.client.run(run_id, wait_s=LIMIT_S)["status"] == "SUCCESS"
    successor.close()


def test_other_bytes_end_the_connection(core: CoreProcess) -> None:
    for data in (b"GET / HTTP/1.1\r\n\r\n", bytes.fromhex("1603010200"), b"\0"):
        with socket.create_connection(("127.0.0.1", core.port), timeout=LIMIT_S) as stranger:
            stranger.sendall(data)
            assert stranger.recv(1) == b""


def test_the_log_has_no_traceback(core: CoreProcess) -> None:
    log = Path(core.log_path).read_text(encoding="utf-8")
    assert "Traceback" not in log
