import itertools

import pytest

from dsched.errors import InvalidTransition
from dsched.model.run import Cause, Run, RunState, Snapshot
from dsched.model.task import OPEN, TERMINAL, TRANSITIONS, Task, TaskEvent, TaskState

S, E = TaskState, TaskEvent

LEGAL = {
    (S.PENDING, E.DISPATCH): S.DISPATCHED,
    (S.PENDING, E.CANCEL): S.CANCELLED,
    (S.DISPATCHED, E.START): S.RUNNING,
    (S.DISPATCHED, E.RETURN): S.PENDING,
    (S.DISPATCHED, E.RETRY): S.PENDING,
    (S.DISPATCHED, E.SUCCEED): S.SUCCESS,
    (S.DISPATCHED, E.FAIL): S.FAILED,
    (S.DISPATCHED, E.EXPIRE): S.TIMEOUT,
    (S.DISPATCHED, E.CANCEL): S.CANCELLING,
    (S.RUNNING, E.RETRY): S.PENDING,
    (S.RUNNING, E.SUCCEED): S.SUCCESS,
    (S.RUNNING, E.FAIL): S.FAILED,
    (S.RUNNING, E.EXPIRE): S.TIMEOUT,
    (S.RUNNING, E.CANCEL): S.CANCELLING,
    (S.CANCELLING, E.START): S.CANCELLING,
    (S.CANCELLING, E.DROP): S.CANCELLED,
}


def make_run(total: int = 1) -> Run:
    snapshot = Snapshot("job", 1, "work", "default", 30, 3, 10, 0, "consistent_hash", (), "{}")
    run = Run("job~k", snapshot, "null", total, 0, cause=Cause.API)
    run.tasks = [Task(item + 1, f"job~k:{item}", run, item) for item in range(total)]
    return run


@pytest.mark.parametrize(("state", "event"), list(itertools.product(TaskState, TaskEvent)))
def test_every_pair_of_state_and_event(state: TaskState, event: TaskEvent) -> None:
    task = make_run().tasks[0]
    task.state = state
    after = LEGAL.get((state, event))
    if after is not None:
        assert task.apply(event) is after is task.state
        return
    with pytest.raises(InvalidTransition) as caught:
        task.apply(event)
    assert task.state is state
    assert caught.value.details == {"task_id": "job~k:0", "state": state.value, "event": event.value}
    for part in ("job~k:0", state.value, event.value, "attempt 0"):
        assert part in caught.value.message


def test_terminal_is_final_and_every_state_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(TaskState)
    assert OPEN | TERMINAL == set(TaskState) and not OPEN & TERMINAL
    assert all(bool(TRANSITIONS[state]) == (state in OPEN) for state in TaskState)


@pytest.mark.parametrize(
    ("states", "cancelled", "expected"),
    [
        ([S.SUCCESS, S.SUCCESS], False, RunState.SUCCESS),
        ([S.SUCCESS, S.FAILED], False, RunState.PARTIAL),
        ([S.SUCCESS, S.TIMEOUT], False, RunState.PARTIAL),
        ([S.FAILED, S.TIMEOUT], False, RunState.FAILED),
        ([S.SUCCESS, S.SUCCESS], True, RunState.CANCELLED),
        ([S.CANCELLED, S.SUCCESS], True, RunState.CANCELLED),
    ],
)
def test_how_a_run_ends(states: list[TaskState], cancelled: bool, expected: RunState) -> None:
    run = make_run(len(states))
    for task, state in zip(run.tasks, states, strict=True):
        task.state = state
    run.cancel_requested = cancelled
    assert run.final_state() is expected
    assert expected.is_terminal and not RunState.PENDING.is_terminal and not RunState.RUNNING.is_terminal
    assert sum(run.counts().values()) == len(states)
