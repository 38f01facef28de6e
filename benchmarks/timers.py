"""Compare the timing wheel with one `callLater` per timer: arm and cancel while 100 000 others wait.

Both sides do what the timeouts of tasks do: arm one at now + 35 s, cancel it when the task has ended, which is
when a number of younger tasks are under way; every 20 tasks the loop turns once (next deadline, then what is due).
The timers that wait are due between one minute and one hour from now.

    python benchmarks/timers.py [--pending N] [--tasks N] [--rounds N]

The last line is JSON.
"""

import argparse
import gc
import sys
from collections import deque
from collections.abc import Callable
from random import Random
from time import perf_counter

from report import Report
from twisted.internet import reactor
from twisted.internet.base import ReactorBase

from dsched.engine.wheel import TimingWheel

TASKS_A_TURN = 20
TIMEOUT_S = 35.0
BUDGET_RATIO = 5.0
# Tasks under way, and whether the budget is judged there.
CASES = ((0, False), (500, True), (20_000, False))


def nothing(task: int) -> None:
    """Stand for the action of a timer; none of them gets that far."""


def wheel_us(pending: int, tasks: int, under_way: int) -> float:
    """Measure one arm and one cancel on the wheel, in microseconds, turns of the loop included."""
    rng = Random(1)
    wheel: TimingWheel[int] = TimingWheel(perf_counter() * 1000)
    for number in range(pending):
        wheel.arm(perf_counter() * 1000 + rng.uniform(60e3, 3600e3), number)
    wheel.next_deadline()
    running = deque(wheel.arm(perf_counter() * 1000 + TIMEOUT_S * 1000, number) for number in range(under_way))
    gc.collect()
    started_s = perf_counter()
    for task in range(tasks):
        running.append(wheel.arm(perf_counter() * 1000 + TIMEOUT_S * 1000, task))
        wheel.cancel(running.popleft())
        if task % TASKS_A_TURN == 0:
            wheel.next_deadline()
            wheel.advance(perf_counter() * 1000)
    elapsed_s = perf_counter() - started_s
    assert len(wheel) == pending + under_way
    return elapsed_s / tasks * 1e6


def call_later_us(pending: int, tasks: int, under_way: int) -> float:
    """Measure one `callLater` and one `cancel`, in microseconds, turns of the reactor's timers included."""
    assert isinstance(reactor, ReactorBase)
    rng = Random(1)
    waiting = [reactor.callLater(rng.uniform(60.0, 3600.0), nothing, number) for number in range(pending)]
    reactor.runUntilCurrent()
    running = deque(reactor.callLater(TIMEOUT_S, nothing, number) for number in range(under_way))
    gc.collect()
    started_s = perf_counter()
    for task in range(tasks):
        running.append(reactor.callLater(TIMEOUT_S, nothing, task))
        running.popleft().cancel()
        if task % TASKS_A_TURN == 0:
            reactor.timeout()
            reactor.runUntilCurrent()
    elapsed_s = perf_counter() - started_s
    for call in (*waiting, *running):
        call.cancel()
    reactor.runUntilCurrent()
    return elapsed_s / tasks * 1e6


def best(measure: Callable[[int, int, int], float], options: argparse.Namespace, under_way: int) -> float:
    """Return the least disturbed of several rounds."""
    return min(measure(options.pending, options.tasks, under_way) for _ in range(options.rounds))


def main() -> int:
    parser = argparse.ArgumentParser(description="The timing wheel against callLater.")
    parser.add_argument("--pending", type=int, default=100_000, help="timers that wait all the time")
    parser.add_argument("--tasks", type=int, default=100_000, help="arms and cancels a round")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the best one counts")
    options = parser.parse_args()
    report = Report("timers", pending=options.pending, reactor=type(reactor).__name__)
    for under_way, is_judged in CASES:
        ours_us = best(wheel_us, options, under_way)
        theirs_us = best(call_later_us, options, under_way)
        ratio = theirs_us / ours_us
        report.add(f"wheel_{under_way}", ours_us, "us")
        report.add(f"call_later_{under_way}", theirs_us, "us")
        report.add(f"ratio_{under_way}", ratio, "x", at_least=BUDGET_RATIO if is_judged else None)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
