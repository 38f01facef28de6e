"""Whether what is stored makes sense: invariants of committed rows, by SQL, over what is open, not over history."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from dsched.errors import BatchRefused, StoreUnavailable
from dsched.model.run import RunState
from dsched.store.statements import ATTEMPT, BACKLOG, JOB, LEADER, LOG, RUN, TASK, WORKER, Table

__all__ = ["MOST_TOLD", "Findings", "examine"]

MOST_TOLD: Final = 20
_TABLES: Final[tuple[Table[Any], ...]] = (JOB, RUN, TASK, ATTEMPT, WORKER, LEADER, LOG, BACKLOG)
_OPEN_RUN: Final = ", ".join(f"'{state.value}'" for state in RunState if not state.is_terminal)


@dataclass(frozen=True, slots=True)
class Findings:
    """How many rows there are, and what is wrong; of each kind of problem at most `MOST_TOLD` are told."""

    jobs: int
    workers: int
    open_runs: int
    open_tasks: int
    problems: tuple[str, ...]


def examine(reading: Callable[[], AbstractContextManager[Callable[..., Any]]], open_task: str) -> Findings:
    """Look for every table and column, then compare open runs with open tasks, in one consistent look.

    `open_task` is the dialect's condition of open tasks.
    """
    problems = _missing(reading)
    if problems:
        return Findings(0, 0, 0, 0, tuple(problems))
    open_tasks = f"(SELECT task_id, run_id FROM schedule_job WHERE {open_task}) t"
    questions = (
        (
            "run {} is open and has no open task",
            f"SELECT r.run_id FROM run r LEFT JOIN (SELECT DISTINCT run_id FROM {open_tasks}) o ON o.run_id = r.run_id"
            f" WHERE r.status IN ({_OPEN_RUN}) AND o.run_id IS NULL",
        ),
        (
            "task {} is open, and its run has ended",
            f"SELECT t.task_id FROM {open_tasks} JOIN run r ON r.run_id = t.run_id WHERE r.status NOT IN ({_OPEN_RUN})",
        ),
        (
            "task {} is open and has no run",
            f"SELECT t.task_id FROM {open_tasks} LEFT JOIN run r ON r.run_id = t.run_id WHERE r.run_id IS NULL",
        ),
    )
    with reading() as execute:

        def count(what: str) -> int:
            return int(execute(f"SELECT count(*) FROM {what}").fetchone()[0])

        jobs, workers = count("job"), count("worker")
        open_runs, tasks = count(f"run WHERE status IN ({_OPEN_RUN})"), count(open_tasks)
        for text, query in questions:
            rows = execute(f"{query} LIMIT {MOST_TOLD}").fetchall()
            problems += [text.format(row[0]) for row in rows]
    return Findings(jobs, workers, open_runs, tasks, tuple(problems))


def _missing(reading: Callable[[], AbstractContextManager[Callable[..., Any]]]) -> list[str]:
    """Return what somebody has taken out of the schema since it was made."""
    queries = {table.name: table.select("WHERE 1 = 0") for table in _TABLES}
    queries["rollup"] = "SELECT hour, job, status, count FROM rollup WHERE 1 = 0"
    problems = []
    for name, query in queries.items():
        try:
            with reading() as execute:
                execute(query)
        except (StoreUnavailable, BatchRefused) as error:
            problems.append(f"table {name} cannot be read as it should be: {error.message}")
    return problems
