"""Fixtures of real processes."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dsched.cli.processes import CoreProcess, WorkerProcess

RECORDING_JOBS = str(Path(__file__).with_name("recording_jobs.py"))


@dataclass
class Trace:
    """What the executions of the job `record` have written."""

    path: Path

    def lines(self, run_id: str) -> list[dict[str, Any]]:
        """Return what one run has left, in the order of writing."""
        if not self.path.exists():
            return []
        lines = (json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines())
        return [line for line in lines if line["run"] == run_id]

    def items(self, run_id: str, event: str, **wanted: object) -> list[int]:
        """Return the shard items of the lines with this event, sorted, with repetitions."""
        return sorted(
            line["item"]
            for line in self.lines(run_id)
            if line["event"] == event and all(line[key] == value for key, value in wanted.items())
        )


class Cluster:
    """A core and workers that offer the job `record`; whatever it started is stopped at the end of the test."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.trace = Trace(folder / "executions")
        self.core = CoreProcess(folder)
        self.workers: list[WorkerProcess] = []
        self._stack = stack

    def start(self, workers: int, *, slots: int = 8) -> None:
        """Start the core, then the workers `worker-1` and so on, and wait until all are online."""
        self._stack.enter_context(self.core)
        self.core.wait_ready()
        for number in range(1, workers + 1):
            worker = WorkerProcess(self.folder, f"worker-{number}", self.core.address, [RECORDING_JOBS], slots=slots)
            self.workers.append(self._stack.enter_context(worker))
        self.core.wait_for_workers(self.workers)
        self.core.client.create_job({"name": "record", "handler": "record", "timeout": 60})

    def trigger(self, shards: int, work_s: float) -> str:
        """Start a run of `record` and return its id."""
        params = {"file": str(self.trace.path), "work_s": work_s}
        return str(self.core.client.trigger("record", params=params, sharding_total=shards)["id"])

    def running(self, run_id: str, worker: str | None = None) -> list[int]:
        """Return the items of the shards that run, all or on one worker, as the API tells."""
        tasks: Sequence[dict[str, Any]] = self.core.client.tasks(run_id)
        return [
            task["sharding_item"]
            for task in tasks
            if task["status"] == "RUNNING" and worker in (None, task["worker_id"])
        ]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)
