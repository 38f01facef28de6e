"""Tasks per second of one peer: from the first one submitted to the last result read back.

Starts a private Redis server (Dask needs none) and the peer's workers, waits until each of their processes has run
tasks, measures, checks every id and every value, and ends all that it started.

    python benchmarks/peers/run.py --peer huey [--tasks 5000]

To be run in the virtual environment of the peers (`requirements.txt`). Prints one line of JSON: `{"peer", "version",
"redis", "tasks", "seconds", "tasks_per_s", "processes", "configuration", "problems"}`. The exit code tells whether
every result was there and right.
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from children import Child, ChildFailed
from peer import REDIS_VARIABLE, Answer, Params, Peer
from redis_server import RedisServer

HERE = Path(__file__).resolve().parent
PEERS = ("celery", "celery-solo", "dramatiq", "huey", "saq", "taskiq", "dask", "rq")
WITHOUT_REDIS = ("dask",)
WARM_TASKS = 500
WARM_ROUNDS = 100


def problems_of(params: Sequence[Params], answers: Sequence[Answer]) -> list[str]:
    """Return what is wrong with the results: lost, doubled or those of other tasks."""
    ids = {task_id for task_id, _ in answers}
    wrong = [
        (task_id, value, asked) for (task_id, value), asked in zip(answers, params, strict=False) if value != asked
    ]
    found: list[str] = []
    if len(answers) != len(params):
        found.append(f"{len(answers)} results of {len(params)} tasks")
    if len(ids) != len(answers):
        found.append(f"{len(answers) - len(ids)} ids are there twice")
    if wrong:
        task_id, value, asked = wrong[0]
        found.append(f"{len(wrong)} results are wrong; that of {task_id} is {value!r}, not {asked!r}")
    return found


def warm_up(peer: Peer, children: Sequence[Child]) -> set[int]:
    """Run tasks until each process has had some; return the processes."""
    pids: set[int] = set()
    for _ in range(WARM_ROUNDS):
        for child in children:
            child.check()
        pids |= {value["pid"] for _, value in peer.run("where", [{"n": n} for n in range(2 * peer.processes)])}
        if len(pids) >= peer.processes:
            break
    else:
        raise ChildFailed(f"only {len(pids)} of {peer.processes} processes took tasks")
    peer.run("echo", [{"n": n} for n in range(WARM_TASKS)])
    return pids


def measure(name: str, tasks: int | None) -> dict[str, Any]:
    """Start everything, measure, end everything."""
    with ExitStack() as stack:
        redis_version = None
        if name not in WITHOUT_REDIS:
            server = stack.enter_context(RedisServer())
            os.environ[REDIS_VARIABLE] = server.url
            redis_version = server.version()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dsched-peer-")))
        # The module of a peer is its application too, and reads where Redis is when it is imported.
        peer: Peer = importlib.import_module(f"{name.replace('-', '_')}_peer").PEER
        environ = {"PYTHONPATH": str(HERE), "PYTHONUNBUFFERED": "1"}
        children = [
            stack.enter_context(Child(f"{name}-{number}", command, folder, environ))
            for number, command in enumerate(peer.worker_commands(), 1)
        ]
        stack.callback(peer.close)
        peer.open()
        try:
            pids = warm_up(peer, children)
            params = [{"n": number} for number in range(tasks or peer.tasks)]
            began_s = time.perf_counter()
            answers = peer.run("echo", params)
            seconds = time.perf_counter() - began_s
        except Exception as error:
            tails = "\n".join(f"{child.name}: {child.log_tail()}" for child in children)
            raise ChildFailed(f"{name}: {type(error).__name__}: {error}\n{tails}") from error
        return {
            "peer": name,
            "version": importlib.metadata.version(peer.package),
            "redis": redis_version,
            "tasks": len(params),
            "seconds": round(seconds, 4),
            "tasks_per_s": round(len(params) / seconds, 1),
            "processes": len(pids),
            "configuration": peer.configuration,
            "problems": problems_of(params, answers),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, choices=PEERS)
    parser.add_argument("--tasks", type=int, help="how many (default: some three to five seconds' worth)")
    options = parser.parse_args()
    if options.tasks is not None and options.tasks < 1:
        parser.error("--tasks must be at least 1")
    # So that a polite end of this process ends its children too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        told = measure(options.peer, options.tasks)
    except ChildFailed as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(told))
    return 1 if told["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
