"""Faults of the core, made by hand, each of which the simulator must catch.

A mutant is a patch of one place in one module. It is applied while the module is imported, in a process of its own, so
nothing of it reaches anything else. `python -m tests.sim.mutants` runs them all and tells which seed killed each.
"""

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any

__all__ = ["MUTANTS", "Mutant", "install"]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A patch: `old` occurs exactly once in the source of `module`."""

    name: str
    module: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        """Return the patched source; raises `ValueError` when the place is not there, or is not the only one."""
        if source.count(self.old) != 1:
            raise ValueError(f"mutant {self.name}: its place occurs {source.count(self.old)} times in {self.module}")
        return source.replace(self.old, self.new)


_ATTEMPTS = "dsched.engine.attempts"
_BACKLOG = "dsched.engine.backlog"
_DISPATCH = "dsched.engine.dispatch"
_FIRING = "dsched.engine.firing"
_JOURNAL = "dsched.core.journal"
_MEMBERSHIP = "dsched.engine.membership"
_RECOVERY = "dsched.engine.recovery"
_SERVICE = "dsched.core.service"
_STATE = "dsched.engine.state"
_STORE = "dsched.store.memory"

MUTANTS = (
    Mutant(
        "a closed attempt's result counts",
        _ATTEMPTS,
        "        if attempt is None or attempt.closed:\n            self._stale(",
        "        if attempt is None:\n            self._stale(",
    ),
    Mutant(
        "a result counts whoever brings it",
        _ATTEMPTS,
        "return session.find(response.task_id, response.attempt)",
        "return session.find(response.task_id, response.attempt) or getattr("
        "self._state.tasks.get(response.task_id), 'live', None)",
    ),
    Mutant(
        "the deadline is not armed when a handler starts",
        _ATTEMPTS,
        "        self._begin(attempt, now.wall_ms)\n        self._arm_deadline(attempt, now, 0.0)\n",
        "        self._begin(attempt, now.wall_ms)\n",
    ),
    Mutant(
        "a closed attempt keeps its timer",
        _ATTEMPTS,
        "        self._disarm(attempt)\n        attempt.closed = True\n",
        "        attempt.closed = True\n",
    ),
    Mutant(
        "retries have no bound", _ATTEMPTS, "if retryable and task.retry_count < snapshot.retries:", "if retryable:"
    ),
    Mutant(
        "one retry too many", _ATTEMPTS, "task.retry_count < snapshot.retries:", "task.retry_count <= snapshot.retries:"
    ),
    Mutant(
        "retries do not wait",
        _ATTEMPTS,
        "delay_ms = retry_delay_ms(task.retry_count, snapshot.retry_backoff_s, self._state.rng)",
        "delay_ms = 0",
    ),
    Mutant(
        "every lost attempt is retried at once",
        _ATTEMPTS,
        "if outcome is Outcome.LOST and task.lost_count == 1:",
        "if outcome is Outcome.LOST:",
    ),
    Mutant(
        "the wait for a retry is not stored",
        _ATTEMPTS,
        "        task.not_before_ms = now.wall_ms + delay_ms\n",
        "",
    ),
    Mutant(
        "a task that is to be cancelled is retried",
        _ATTEMPTS,
        "            task.lost_count += 1\n        if task.state is TaskState.CANCELLING:\n",
        "            task.lost_count += 1\n        if False:\n",
    ),
    Mutant("a cancelled run forgets that it is", _FIRING, "        run.cancel_requested = True\n", ""),
    Mutant(
        "the last task does not end its run",
        _ATTEMPTS,
        "        if not run.open:\n            self._end_run(run, now)\n",
        "",
    ),
    Mutant("attempts are not numbered", _DISPATCH, "        task.attempt += 1\n", "        task.attempt = 1\n"),
    Mutant("a fence follows the wall clock", _DISPATCH, "self._state.fences.next(now.wall_ms)", "now.wall_ms << 16"),
    Mutant(
        "what was held for a lost worker is forgotten",
        _DISPATCH,
        "        self._pass_on(group, waiting, self._place_on_ring, now)\n",
        "",
    ),
    Mutant(
        "a free slot takes nothing that waits",
        _DISPATCH,
        "        while not session.is_blocked:\n            task = ",
        "        while False:\n            task = ",
    ),
    Mutant("another body under a key is taken", _FIRING, "if known != body_hash:", "if False:"),
    Mutant(
        "dues are left out",
        _FIRING,
        "job.trigger.next_after(job.last_due_ms)\n        if due_ms <",
        "job.trigger.next_after(job.last_due_ms + 60_000)\n        if due_ms <",
    ),
    Mutant("dues that are not run are not counted", _FIRING, "self._count_on(waiting, missed + 1)", "pass"),
    Mutant(
        "effects come before the commit",
        _JOURNAL,
        "                try:\n                    await self._commit(batch)\n",
        "                try:\n                    self._act(effects)\n                    effects = []\n"
        "                    await self._commit(batch)\n",
    ),
    Mutant(
        "a lost answer is taken for a commit",
        _JOURNAL,
        "return bool(leader.batch == batch.number)",
        "return True",
    ),
    Mutant(
        "what runs is not adopted",
        _MEMBERSHIP,
        "        kept = self._adopt(session, running, now)\n",
        "        kept = self._adopt(session, [], now)\n",
    ),
    Mutant("no grace for a cut connection", _MEMBERSHIP, "if grace_s and session.in_flight:", "if False:"),
    Mutant(
        "the dead are not rescued",
        _MEMBERSHIP,
        "            self._close_session(session, now)\n            self._rescue(session, now)\n            return\n",
        "            self._close_session(session, now)\n            return\n",
    ),
    Mutant(
        "a worker is dead before its lease ends",
        _MEMBERSHIP,
        "if silent_s >= self._settings.lease_s - 0.001:",
        "if silent_s >= 20.0:",
    ),
    Mutant("a restart forgets retries", _RECOVERY, "        task.retry_count = row.retry_count\n", ""),
    Mutant("a restart forgets losses", _RECOVERY, "        task.lost_count = row.lost_count\n", ""),
    Mutant(
        "a restart forgets waits",
        _RECOVERY,
        "wait_ms = max(_wait_ms(task, now), pause_s * 1000)",
        "wait_ms = 0",
    ),
    Mutant(
        "a restart forgets what was dispatched",
        _RECOVERY,
        "        self._membership.await_return(task, now, grace_s, pause_s)\n",
        "        return\n",
    ),
    Mutant(
        "a new leader does not wait for leases",
        _SERVICE,
        "self._settings.resume_grace_s if victory.predecessor_is_dead else self._settings.lease_s",
        "0.001",
    ),
    Mutant(
        "a lost worker stays on the ring",
        _MEMBERSHIP,
        "        session.state = SessionState.LOST\n        self._dispatcher.leave(session, now)\n",
        "        session.state = SessionState.LOST\n",
    ),
    Mutant(
        "a run is a success when one task is", "dsched.model.run", "if succeeded == len(self.tasks):", "if succeeded:"
    ),
    Mutant("counts are not kept", _STATE, "changes[after] = changes.get(after, 0) + 1", "pass"),
    Mutant(
        "a stale leader's writes are taken",
        _STORE,
        "if (leader.epoch, leader.batch) != (batch.epoch, batch.number - 1):",
        "if False:",
    ),
    Mutant(
        "two leaders share an epoch", _STORE, "now.epoch + 1, 0, now.renewal + 1,", "now.epoch, 0, now.renewal + 1,"
    ),
    Mutant(
        "a page passes over its last run",
        _RECOVERY,
        "        for one in parked:\n            run = self.take_parked(one)\n",
        "        for one in parked[:-1]:\n            run = self.take_parked(one)\n",
    ),
    Mutant(
        "a run that begins stays in the backlog",
        _STATE,
        "                batch.backlog_gone.append(ParkedKey(run.seq, run.run_id))\n",
        "                pass\n",
    ),
    Mutant(
        "a new run overtakes those that are parked",
        _BACKLOG,
        "        lane = self.lanes.get(key)\n        if lane is None:\n            if not",
        "        lane = None\n        if lane is None:\n            if not",
    ),
    Mutant(
        "a page reaches beyond what is committed as a whole",
        _BACKLOG,
        'return self._page(best.key, "", best.after, best.newest, tasks)',
        'return self._page(best.key, "", best.after, best.decided, tasks)',
    ),
    Mutant(
        "what left the backlog while it was read is taken",
        _BACKLOG,
        "        return run_id in self._left\n",
        "        return False\n",
    ),
    Mutant(
        "the parked runs of a deleted job are forgotten",
        _FIRING,
        "        self._backlog.doom(name)\n",
        "",
    ),
    Mutant(
        "a term begins without what is parked",
        _SERVICE,
        "        engine.load_backlog(active.lanes, active.parked_jobs, active.newest_due)\n",
        "",
    ),
    Mutant(
        "an attempt that failed is not recorded",
        _ATTEMPTS,
        "            self._record(task, attempt, outcome, message, now)\n            task.apply(TaskEvent.RETRY)\n",
        "            task.apply(TaskEvent.RETRY)\n",
    ),
)


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads one module with a patch, never from a cache."""

    def __init__(self, mutant: Mutant, path: str) -> None:
        super().__init__(mutant.module, path)
        self._mutant = mutant

    def get_data(self, path: str) -> bytes:
        return self._mutant.apply(super().get_data(path).decode()).encode()

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError("a patched module has no cached code")


class _Patching(importlib.abc.MetaPathFinder):
    """Finds one module for that loader."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        spec = importlib.util.find_spec(mutant.module)
        assert spec is not None and spec.origin is not None
        self._path = spec.origin

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._mutant.module:
            return None
        loader = _Loader(self._mutant, self._path)
        return importlib.util.spec_from_file_location(name, self._path, loader=loader)


def install(name: str) -> None:
    """Patch the module of the mutant `name`, which must not be imported yet."""
    [mutant] = (mutant for mutant in MUTANTS if mutant.name == name)
    patching = _Patching(mutant)
    sys.meta_path.insert(0, patching)
    # Finding a module imports the packages above it, and those may import the module itself.
    for loaded in [module for module in sys.modules if module.startswith("dsched")]:
        del sys.modules[loaded]


def _hunt(mutant: Mutant, seeds: str) -> tuple[bool, str]:
    code = (
        "import sys; from tests.sim.mutants import install; install(sys.argv[1]); "
        "from dsched.testing.campaign import main; "
        "sys.exit(main(['--seeds', sys.argv[2], '--jobs', '1', '--stop']))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, mutant.name, seeds], capture_output=True, text=True, check=False
    )
    for line in (found.stdout + found.stderr).splitlines():
        if line.startswith("FAILED"):
            return True, line[:160]
    return found.returncode != 0, (found.stdout + found.stderr)[-300:]


def main(arguments: Sequence[str]) -> int:
    """Run the mutants that the command line names, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", default="0:500")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    survivors = []
    with ThreadPoolExecutor(options.jobs) as pool:

        def hunt(mutant: Mutant) -> tuple[Mutant, bool, str, float]:
            began_s = time.monotonic()
            killed, line = _hunt(mutant, options.seeds)
            return mutant, killed, line, time.monotonic() - began_s

        for mutant, killed, line, seconds in pool.map(hunt, chosen):
            sys.stdout.write(f"{'killed' if killed else 'SURVIVED'} after {seconds:.0f} s: {mutant.name}: {line}\n")
            sys.stdout.flush()
            if not killed:
                survivors.append(mutant.name)
    sys.stdout.write(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
