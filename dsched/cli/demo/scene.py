"""What happens in `dsched demo`, from the first process to the checked answer."""

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsched.cli.demo import census
from dsched.cli.demo.cluster import Cluster
from dsched.cli.demo.view import Board
from dsched.errors import Conflict, DschedError
from dsched.jobs import declaration_of

__all__ = ["Plan", "play"]

Json = dict[str, Any]

_JOB = "census"
_SLOTS = 2  # So that shards wait, and a worker that dies leaves work behind.
_POLL_S = 0.05
_HUNT_S = 0.01  # How often to look as long as there is somebody to kill.


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for; no `path` means the standard library, no `store` a file that goes away."""

    workers: int
    shards: int
    kill: bool
    path: Path | None
    store: str | None


def play(plan: Plan, board: Board) -> bool:
    """Run the whole demo and tell whether its answer is right. Raises `DschedError` when it cannot go on."""
    began_s = time.monotonic()
    board.say(f"starting a core and {_many(plan.workers, 'worker')}")
    cluster = Cluster(plan.workers, census.__name__, slots=_SLOTS, store=plan.store)
    try:
        with cluster:
            board.say(f"{_many(plan.workers, 'worker')} online; the API is at {cluster.core.url}")
            ok = _Run(plan, board, cluster).play()
            if ok:
                cluster.succeed()
    except DschedError:
        board.say(f"the logs are in {cluster.folder}")
        raise
    board.say(f"{'done' if ok else 'FAILED'} after {time.monotonic() - began_s:.1f} s")
    if not ok:
        board.say(f"the logs are in {cluster.folder}")
    return ok


class _Run:
    """One run of the job, watched until its end."""

    def __init__(self, plan: Plan, board: Board, cluster: Cluster) -> None:
        self._plan = plan
        self._board = board
        self._cluster = cluster
        self._client = cluster.core.client
        self._held: list[str] = []

    def play(self) -> bool:
        root = self._plan.path or census.standard_library()
        run_id = self._trigger(root)
        self._board.say(f"run {run_id}: {_many(self._plan.shards, 'shard')} over {root}")
        tasks = self._watch(run_id)
        self._board.settle()
        moved = self._check_moved()
        return self._check_sum(tasks, root) and moved

    def _trigger(self, root: Path) -> str:
        declaration = declaration_of(census.census)
        assert declaration is not None
        try:
            self._client.create_job(declaration.definition())
        except Conflict:
            # A store that is kept may have it from last time.
            if self._client.job(_JOB)["handler"] != declaration.handler:
                raise
        run = self._client.trigger(_JOB, params={"path": str(root)}, sharding_total=self._plan.shards)
        return str(run["id"])

    def _watch(self, run_id: str) -> list[Json]:
        """Show the run until it has ended, and kill a worker on the way."""
        while True:
            # The run first: once it has ended, its tasks do not change any more.
            ended = self._client.run(run_id)["finished_at"] is not None
            tasks = self._client.tasks(run_id)
            self._board.show(tasks, self._doing(tasks))
            if ended:
                return tasks
            self._cluster.check()
            victim = self._victim(tasks)
            if victim is None:
                time.sleep(_HUNT_S if self._plan.kill and not self._cluster.killed else _POLL_S)
                continue
            self._held = self._cluster.kill_in_mid_run(victim, run_id)
            if self._held:
                self._board.say(f"killed {victim} with SIGKILL while it had {_shards(self._held)}")

    def _victim(self, tasks: list[Json]) -> str | None:
        """Return the worker to kill now: the busiest, once a shard is done or none waits any more."""
        if not self._plan.kill or self._cluster.killed:
            return None
        states = {task["status"] for task in tasks}
        if "PENDING" in states and "SUCCESS" not in states:
            return None
        # On a small tree no shard runs long enough to be seen running.
        for state in ("RUNNING", "DISPATCHED"):
            busy = Counter(str(task["worker_id"]) for task in tasks if task["status"] == state)
            if busy:
                return busy.most_common(1)[0][0]
        return None

    def _doing(self, tasks: list[Json]) -> dict[str, str]:
        """Return what each worker is doing, in words."""
        running = Counter(task["worker_id"] for task in tasks if task["status"] == "RUNNING")
        done = Counter(task["worker_id"] for task in tasks if task["status"] == "SUCCESS")
        return {
            name: "killed" if name == self._cluster.killed else f"runs {running[name]}, has done {done[name]}"
            for name in self._cluster.workers
        }

    def _check_moved(self) -> bool:
        """Tell whether what the killed worker had was run again elsewhere."""
        if not self._plan.kill:
            return True
        if not self._held:
            self._board.say("the run was over before a worker could be killed: use a larger --path, or --no-kill")
            return False
        ok = True
        for task_id in self._held:
            task = self._client.task(task_id)
            lost = any(
                attempt["outcome"] in ("LOST", "UNDELIVERED") and attempt["worker_id"] == self._cluster.killed
                for attempt in task["attempts"]
            )
            elsewhere = task["worker_id"] != self._cluster.killed
            ok = ok and lost and elsewhere
            self._board.say(
                f"shard {task['sharding_item']} was on {self._cluster.killed}, "
                + (f"then on {task['worker_id']}" if elsewhere else "and was not moved")
            )
        return ok

    def _check_sum(self, tasks: list[Json], root: Path) -> bool:
        failed = [task for task in tasks if task["status"] != "SUCCESS"]
        for task in failed:
            self._board.say(f"shard {task['sharding_item']} ended in {task['status']}: {_reason(task)}")
        summed: Counter[str] = Counter()
        for task in tasks:
            summed.update(task["result"] or {})
        direct = census.count_directly(root)
        self._board.say(f"sum over shards: {_figures(summed)}")
        self._board.say(f"direct count:    {_figures(direct)}")
        equal = dict(summed) == direct
        self._board.say("the two are equal" if equal else "THE TWO DIFFER")
        return equal and not failed


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _shards(task_ids: list[str]) -> str:
    items = [task_id.rpartition(":")[2] for task_id in task_ids]
    return f"shard{'s' * (len(items) > 1)} {', '.join(items)}"


def _figures(counts: dict[str, int] | Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _reason(task: Json) -> str:
    return str((task["error"] or {}).get("message") or "no reason given")
