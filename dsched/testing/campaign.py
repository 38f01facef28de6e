"""Many seeds, in several processes: the command behind `python -m dsched.testing.scenario`."""

import argparse
import gc
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from dsched.testing.coverage import Coverage
from dsched.testing.plan import Mode, Plan, draw_plan
from dsched.testing.scenario import Report, run_plan

__all__ = ["Campaign", "main", "mode_of", "shrink"]


def mode_of(seed: int, mode: str) -> Mode:
    """Return the mode of a seed where `both` are wanted: in turn."""
    return Mode.LIVENESS if mode == "both" and seed % 2 else Mode.SAFETY if mode == "both" else Mode(mode)


def _run(job: tuple[int, Mode, float]) -> Report:
    return run_plan(draw_plan(*job))


class Campaign:
    """Runs seeds and adds up what they covered; `failures` are the reports of those that failed."""

    def __init__(self, seeds: Sequence[int], mode: str = "both", hours: float = 1.0, processes: int = 2) -> None:
        self.coverage = Coverage()
        self.failures: list[Report] = []
        self.faults = self.tasks = self.runs = 0
        self._jobs = [(seed, mode_of(seed, mode), hours) for seed in seeds]
        self._processes = processes

    def run(self) -> Iterator[Report]:
        """Yield each report as it comes."""
        if self._processes == 1:
            yield from map(self._count, map(_run, self._jobs))
            return
        # Never by fork: whoever calls may have threads, and what they hold locked would stay locked in the children.
        context = multiprocessing.get_context("spawn")
        with context.Pool(self._processes, gc.freeze, maxtasksperchild=100) as pool:
            yield from map(self._count, pool.imap_unordered(_run, self._jobs))

    def _count(self, report: Report) -> Report:
        self.runs += 1
        self.faults += report.faults
        self.tasks += report.tasks
        self.coverage.add(report.coverage)
        if report.error is not None:
            self.failures.append(report)
        return report


def shrink(plan: Plan, fails: Callable[[Plan], bool], budget: int = 80) -> Plan:
    """Return a smaller plan that still fails: without faults first, then without requests, then without jobs.

    `fails` is asked at most `budget` times.
    """
    for part in ("faults", "requests", "jobs"):
        size = max(1, len(getattr(plan, part)) // 2)
        while size:
            start = 0
            while start < len(items := getattr(plan, part)) and budget > 0:
                fewer = replace(plan, **{part: items[:start] + items[start + size :]})
                budget -= 1
                if fails(fewer):
                    plan = fewer
                else:
                    start += size
            size //= 2
    return plan


def _like(error: str | None) -> Callable[[Plan], bool]:
    """Return a test for plans that fail by the same invariant."""
    return lambda plan: error is not None and _kind(run_plan(plan).error) == _kind(error)


def _kind(error: str | None) -> str | None:
    return None if error is None else ":".join(error.split(":")[:2])[:60]


def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dsched.testing.scenario", description=__doc__)
    parser.add_argument("--seeds", default="0:20", help="FROM:TO, TO not included")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--mode", choices=("safety", "liveness", "both"), default="both")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--replay", type=int, help="run one seed and show its end")
    parser.add_argument("--shrink", action="store_true", help="with --replay: look for a smaller plan that fails")
    parser.add_argument("--digests", action="store_true", help="print the digest of each seed")
    parser.add_argument("--stop", action="store_true", help="end at the first failure")
    parser.add_argument("--per-kind", type=int, default=0, help="fail if a kind of fault came less often")
    parser.add_argument("--per-pair", type=int, default=0, help="the same, for a kind and a state of a task")
    options = parser.parse_args(arguments)
    if options.replay is not None:
        return _replay(options.replay, mode_of(options.replay, options.mode), options.hours, options.shrink)
    first, _, last = options.seeds.partition(":")
    campaign = Campaign(range(int(first), int(last)), options.mode, options.hours, options.jobs)
    began_s = time.monotonic()
    for report in campaign.run():
        if options.digests:
            _print(f"{report.seed} {report.digest}")
        if report.error is not None:
            _print(f"FAILED at commit {_commit()}: {report.error}\n")
            if options.stop:
                break
    _print(campaign.coverage.table())
    _print(
        f"{campaign.runs} seeds, {campaign.faults} faults, {campaign.tasks} tasks, {len(campaign.failures)} failed, "
        f"{time.monotonic() - began_s:.0f} s: {sorted(report.seed for report in campaign.failures)[:40]}"
    )
    gaps = campaign.coverage.gaps(options.per_kind, options.per_pair)
    if gaps:
        _print("came too seldom: " + "; ".join(gaps))
    return 1 if campaign.failures or gaps else 0


def _replay(seed: int, mode: Mode, hours: float, smaller: bool) -> int:
    plan = draw_plan(seed, mode, hours)
    if smaller:
        plan = shrink(plan, _like(run_plan(plan).error))
        for item in (*plan.jobs, *plan.requests, *plan.faults):
            _print(f"  {item}")
    report = run_plan(plan)
    _print(report.error or f"seed {seed}: nothing is wrong, {report.tasks} tasks, {report.faults} faults, "
           f"{report.executions} executions, {report.steps} steps")  # fmt: skip
    return 1 if report.error else 0
