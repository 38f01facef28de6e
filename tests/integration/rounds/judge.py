"""What must be true after a round, whatever was killed or stopped in it. Functions return problems, as sentences."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from tests.integration.rounds.evidence import Attempt, Evidence, Line, Task

__all__ = ["accepted", "ended", "executions", "fired", "not_run", "story"]

_MISSED = re.compile(r"(\d+) missed due instants")
_FURTHER = re.compile(r"(\d+) further due instants")

# Attempts that were closed without an execution: they say nothing about the work.
_NOT_RUN = frozenset({"UNDELIVERED", "REJECTED"})


def accepted(answered: Mapping[str, str], shards: Mapping[str, int], evidence: Evidence) -> list[str]:
    """Every request that was answered exists, once and whole; nothing exists that was not asked for."""
    problems = []
    asked = [run for run in evidence.runs if run.due is None]
    for gone in set(answered.values()) - {run.run_id for run in asked}:
        problems.append(f"run {gone} was answered and is lost")
    for extra in {run.run_id for run in asked} - set(answered.values()):
        problems.append(f"run {extra} exists and nobody got it as an answer")
    for key in shards.keys() - answered.keys():
        problems.append(f"the request with key {key} was never answered")
    if len(set(answered.values())) != len(answered):
        problems.append("two keys gave the same run")
    items: dict[str, list[int]] = defaultdict(list)
    for task in evidence.tasks:
        items[task.run_id].append(task.sharding_item)
    for run in evidence.runs:
        if sorted(items[run.run_id]) != list(range(run.sharding_total)):
            problems.append(f"run {run.run_id} has the shards {sorted(items[run.run_id])} of {run.sharding_total}")
    return problems


def ended(evidence: Evidence) -> list[str]:
    """Everything ended well: no handler of the rounds fails."""
    problems = [f"run {run.run_id} is {run.status}" for run in evidence.runs if run.status != "SUCCESS"]
    problems += [
        f"task {task.task_id} is {task.status}: {task.result}" for task in evidence.tasks if task.status != "SUCCESS"
    ]
    return problems


def executions(evidence: Evidence, may_close: Callable[[Attempt], str | None]) -> list[str]:
    """Each attempt ran at most once, each task succeeded once, and nothing ran again without a reason.

    `may_close` tells why an attempt that ended without ending its task should not have done so; None if it may.
    """
    closed: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in evidence.attempts:
        closed[attempt.task_id].append(attempt)
    lines: dict[str, list[Line]] = defaultdict(list)
    for line in evidence.lines:
        lines[line.task].append(line)
    problems: list[str] = []
    for task in evidence.tasks:
        mine = sorted(closed[task.task_id], key=lambda attempt: attempt.number)
        problems += _attempts(task, mine, may_close)
        problems += _executions(task, mine, lines[task.task_id])
    return problems


def _attempts(task: Task, closed: Sequence[Attempt], may_close: Callable[[Attempt], str | None]) -> list[str]:
    problems = []
    numbers = [attempt.number for attempt in closed]
    if numbers != list(range(1, task.attempt)):
        problems.append(f"task {task.task_id} is at attempt {task.attempt}, and the attempts {numbers} were closed")
    for attempt in closed:
        if attempt.outcome == "SUCCESS":
            problems.append(f"task {task.task_id} succeeded in attempt {attempt.number} and went on")
        why = may_close(attempt)
        if why is not None:
            problems.append(f"attempt {attempt.number} of {task.task_id} is {attempt.outcome}: {why}")
    return problems


def _executions(task: Task, closed: Sequence[Attempt], lines: Sequence[Line]) -> list[str]:
    problems = []
    starts = Counter(line.attempt for line in lines if line.event == "start")
    ends = Counter(line.attempt for line in lines if line.event == "end")
    for number, count in starts.items():
        if count > 1:
            problems.append(f"attempt {number} of {task.task_id} ran {count} times")
        if number > task.attempt:
            problems.append(f"attempt {number} of {task.task_id} ran and the store knows {task.attempt} only")
    for attempt in closed:
        if attempt.outcome in _NOT_RUN and starts[attempt.number]:
            problems.append(f"attempt {attempt.number} of {task.task_id} ran and is {attempt.outcome}")
    if task.status != "SUCCESS":
        return problems
    workers = {line.worker for line in lines if line.event == "end"}
    if ends[task.attempt] == 0 and task.target_worker not in workers:
        # A worker may answer a later attempt with the success that it has already.
        problems.append(f"task {task.task_id} has a success in attempt {task.attempt}, which never ended")
    where = {line.worker for line in lines if line.attempt == task.attempt}
    if where - {task.target_worker}:
        problems.append(f"attempt {task.attempt} of {task.task_id} ran on {where}, stored is {task.target_worker}")
    return problems


def fired(dues: Sequence[tuple[int, str | None]], every_ms: int) -> list[str]:
    """Each due instant of an interval job has one run, or is counted on another."""
    problems = []
    instants = [due for due, _ in dues]
    if len(set(instants)) != len(instants):
        problems.append("a due instant fired twice")
    if not instants:
        return ["nothing was ever due"]
    if any((instant - instants[0]) % every_ms for instant in instants):
        problems.append("something fired that was not due")
    for (before, earlier), (due, reason) in pairwise(dues):
        # Counted on the run that waited then, or on the next one.
        counted = _counted(_FURTHER, earlier) + _counted(_MISSED, reason)
        missing = (due - before) // every_ms - 1
        if missing != counted:
            problems.append(f"{missing} due instants before {due} have no run, and {counted} were counted on others")
    return problems


def _counted(what: re.Pattern[str], reason: str | None) -> int:
    return sum(int(number) for number in what.findall(reason or ""))


def story(evidence: Evidence, task_id: str) -> list[str]:
    """Return all that is known about one task, for the reader of a failure."""
    found: list[object] = [task for task in evidence.tasks if task.task_id == task_id]
    found += [attempt for attempt in evidence.attempts if attempt.task_id == task_id]
    found += [log for log in evidence.logs if log.task_id == task_id]
    found += [line for line in evidence.lines if line.task == task_id]
    return [str(each) for each in found]


def not_run(attempt: Attempt) -> bool:
    """Tell whether an attempt was closed before its handler began."""
    return attempt.outcome in _NOT_RUN and attempt.started_at is None
