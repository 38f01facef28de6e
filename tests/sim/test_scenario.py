"""Seeded storms of faults over whole clusters, every crash point of small workloads, and that runs repeat exactly."""

import os
import subprocess
import sys

import pytest

from dsched.testing.campaign import Campaign, shrink
from dsched.testing.coverage import Coverage
from dsched.testing.faults import FaultKind
from dsched.testing.plan import Mode, Plan, draw_plan
from dsched.testing.sweep import WORKLOADS, Sweep

BLOCK = 60


@pytest.mark.parametrize("first", range(0, 300, BLOCK))
def test_an_hour_of_faults_breaks_no_invariant(first: int) -> None:
    campaign = Campaign(range(first, first + BLOCK), processes=2)
    for report in campaign.run():
        assert report.error is None, report.error
    assert campaign.faults >= 20 * BLOCK
    assert campaign.tasks > 100 * BLOCK


def digests(seeds: str, hours: float, hash_seed: int) -> str:
    """Return what a process of its own, with its own order of sets, makes of some seeds."""
    command = [sys.executable, "-m", "dsched.testing.scenario", "--seeds", seeds, "--hours", str(hours)]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    run = subprocess.run(
        [*command, "--jobs", "1", "--digests"], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return "\n".join(line for line in run.stdout.splitlines() if line[:1].isdigit() and len(line.split()) == 2)


def test_the_same_seed_is_the_same_run() -> None:
    assert digests("0:10", 0.25, 1) == digests("0:10", 0.25, 2)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 50, 10))
def test_the_same_seed_is_the_same_hour(first: int) -> None:
    seeds = f"{first}:{first + 10}"
    assert digests(seeds, 1.0, 1) == digests(seeds, 1.0, 2)


def sweep(workload: str) -> None:
    """Run every crash point of a workload."""
    points = Sweep(workload)
    count = 0
    for point in points.points():
        points.run(point)
        count += 1
    assert count > 50


def test_a_crash_at_any_point_loses_nothing() -> None:
    """Case B042: before and after each commit, and before each send."""
    sweep("sharded")


@pytest.mark.soak
@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_a_crash_at_any_point_of_any_workload_loses_nothing(workload: str) -> None:
    sweep(workload)


def test_a_plan_is_drawn_from_its_seed_alone() -> None:
    assert draw_plan(5, Mode.SAFETY) == draw_plan(5, Mode.SAFETY)
    assert draw_plan(5, Mode.SAFETY) != draw_plan(6, Mode.SAFETY)
    plans = [draw_plan(seed, Mode.SAFETY) for seed in range(100)]
    assert all(len(plan.faults) >= 20 for plan in plans)
    assert {fault.kind for plan in plans for fault in plan.faults} == set(FaultKind)


def test_a_failing_plan_is_made_smaller() -> None:
    plan = draw_plan(1, Mode.SAFETY)
    needed = (plan.faults[3], plan.requests[7], plan.jobs[2])

    def fails(smaller: Plan) -> bool:
        return needed[0] in smaller.faults and needed[1] in smaller.requests and needed[2] in smaller.jobs

    small = shrink(plan, fails, budget=500)
    assert (small.faults, small.requests, small.jobs) == ((needed[0],), (needed[1],), (needed[2],))


def test_what_came_too_seldom_is_told() -> None:
    coverage, other = Coverage(), Coverage()
    for kind in FaultKind:
        coverage.hit(kind, ["PENDING"])
    other.hit(FaultKind.CUT, ["RUNNING"])
    coverage.add(other)
    assert coverage.kinds[FaultKind.CUT] == 2
    assert not coverage.gaps(1, 0)
    assert f"{FaultKind.CUT} x CANCELLING: 0" in coverage.gaps(1, 1)
    assert f"{FaultKind.CUT} x RUNNING: 1" not in coverage.gaps(1, 1)
    assert "connection cut" in coverage.table()
