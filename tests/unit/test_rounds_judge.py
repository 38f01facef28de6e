"""The judge of the rounds with real processes: it is content with what is right, and sees each thing that is wrong."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.integration.rounds import judge
from tests.integration.rounds.evidence import Attempt, Evidence, Line, Run, Task

# Run `a` succeeded at once; the first attempt of `b` was lost with its worker.
RUNS = [Run("a", "j", None, "SUCCESS", None, 1), Run("b", "j", None, "SUCCESS", None, 1)]
TASKS = [Task("a:0", "a", 0, "SUCCESS", "w1", 1, 11, "{}"), Task("b:0", "b", 0, "SUCCESS", "w1", 2, 13, "{}")]
LOST = Attempt("b:0", 1, "w2", "LOST", 1_000, 2_000, "worker w2 was lost")
LINES = [
    Line("start", "a:0", 1, 11, "w1", 1, 1.0),
    Line("end", "a:0", 1, 11, "w1", 1, 2.0),
    Line("start", "b:0", 1, 12, "w2", 2, 1.0),
    Line("start", "b:0", 2, 13, "w1", 1, 3.0),
    Line("end", "b:0", 2, 13, "w1", 1, 4.0),
]
GOOD = Evidence(RUNS, TASKS, [LOST], [], {"w1": 0, "w2": 0}, LINES)
ANSWERED = {"key-a": "a", "key-b": "b"}
SHARDS = {"key-a": 1, "key-b": 1}


def lost_may(attempt: Attempt) -> str | None:
    return None if attempt.outcome == "LOST" and attempt.worker_id == "w2" else "nothing happened to its worker"


def judged(evidence: Evidence) -> list[str]:
    return [
        *judge.accepted(ANSWERED, SHARDS, evidence),
        *judge.ended(evidence),
        *judge.executions(evidence, lost_may),
    ]


def test_what_is_right_is_no_problem() -> None:
    assert judged(GOOD) == []


def test_a_success_that_the_ledger_repeats_is_right() -> None:
    # The worker had ended the first attempt and answers the second with it.
    once = [*LINES[:3], Line("end", "b:0", 1, 12, "w2", 2, 2.0)]
    tasks = [TASKS[0], TASKS[1]._replace(target_worker="w2")]
    assert judged(replace(GOOD, tasks=tasks, lines=once)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: replace(GOOD, runs=RUNS[1:], tasks=TASKS[1:]), "run a was answered and is lost"),
        (lambda: replace(GOOD, runs=[*RUNS, Run("c", "j", None, "SUCCESS", None, 0)]), "nobody got it"),
        (lambda: replace(GOOD, tasks=TASKS[1:]), r"run a has the shards \[\] of 1"),
        (lambda: replace(GOOD, tasks=[*TASKS, TASKS[0]]), r"run a has the shards \[0, 0\] of 1"),
        (lambda: replace(GOOD, runs=[RUNS[0]._replace(status="FAILED"), RUNS[1]]), "run a is FAILED"),
        (lambda: replace(GOOD, tasks=[TASKS[0]._replace(status="RUNNING"), TASKS[1]]), "task a:0 is RUNNING"),
        (lambda: replace(GOOD, attempts=[]), "the attempts .. were closed"),
        (lambda: replace(GOOD, attempts=[LOST, LOST._replace(number=2)]), "the attempts .1, 2. were closed"),
        (lambda: replace(GOOD, attempts=[LOST._replace(outcome="SUCCESS")]), "succeeded in attempt 1 and went on"),
        (lambda: replace(GOOD, attempts=[LOST._replace(outcome="UNDELIVERED")]), "ran and is UNDELIVERED"),
        (lambda: replace(GOOD, attempts=[LOST._replace(worker_id="w1")]), "nothing happened to its worker"),
        (lambda: replace(GOOD, lines=[*LINES, LINES[3]]), "attempt 2 of b:0 ran 2 times"),
        (lambda: replace(GOOD, lines=[*LINES, replace(LINES[0], attempt=2)]), "the store knows 1 only"),
        (lambda: replace(GOOD, lines=LINES[2:]), "attempt 1, which never ended"),
        (lambda: replace(GOOD, lines=[replace(LINES[0], worker="w2"), *LINES[1:]]), "stored is w1"),
    ],
)
def test_what_is_wrong_is_seen(change: Callable[[], Evidence], words: str) -> None:
    problems = judged(change())
    assert problems
    assert any(re.search(words, problem) for problem in problems), problems


@pytest.mark.parametrize(
    ("answered", "words"),
    [
        ({"key-a": "a"}, "nobody got it as an answer"),
        ({"key-a": "a", "key-b": "a"}, "two keys gave the same run"),
        ({"key-a": "a", "key-b": "b", "key-c": "c"}, "run c was answered and is lost"),
    ],
)
def test_answers_are_compared(answered: dict[str, str], words: str) -> None:
    assert any(words in problem for problem in judge.accepted(answered, SHARDS, GOOD))


def test_a_request_without_an_answer_is_seen() -> None:
    assert judge.accepted(ANSWERED, {**SHARDS, "key-c": 1}, GOOD) == ["the request with key key-c was never answered"]


MISSED = "stands for 2 missed due instants since 1970 as well"
FURTHER = "3 further due instants came while no worker could run it"


@pytest.mark.parametrize(
    ("dues", "words"),
    [
        ([(0, None), (1000, None), (2000, None)], None),
        ([(0, MISSED), (1000, FURTHER)], None),  # What they count is outside.
        ([(0, None), (3000, MISSED)], None),
        ([(0, FURTHER), (4000, None)], None),
        ([(0, FURTHER), (6000, f"{MISSED}; {FURTHER}")], None),
        ([], "nothing was ever due"),
        ([(0, None), (0, None)], "fired twice"),
        ([(0, None), (2000, None)], "1 due instants before 2000 have no run, and 0"),
        ([(0, None), (1000, MISSED)], "0 due instants before 1000 have no run, and 2"),
        ([(0, None), (1500, None)], "was not due"),
    ],
)
def test_dues_are_complete(dues: list[tuple[int, str | None]], words: str | None) -> None:
    problems = judge.fired(dues, 1000)
    assert problems == [] if words is None else any(words in problem for problem in problems)
