"""Old history goes, in portions that can be cut off anywhere; nothing else does."""

from typing import Any

import pytest

from dsched.errors import EpochLost
from dsched.store.interface import Store

OLD, NEW = 5_000, 20_000
BEFORE = 10_000


def run_of(rows: Any, run_id: str, status: str, created: int, finished: int | None, shards: int = 1) -> Any:
    return rows.run(run_id, status=status, created_at=created, finished_at=finished, sharding_total=shards)


def tasks_of(rows: Any, first: int, run_id: str, shards: int, status: str = "SUCCESS") -> list[Any]:
    return [rows.task(first + n, run_id, n, status=status, sharding_total=shards) for n in range(shards)]


def prune_all(store: Store, job: str | None, limit: int) -> tuple[int, int]:
    """Prune to the end; return how many runs and tasks went."""
    runs = tasks = 0
    after: str | None = None
    for _ in range(1000):
        done = store.prune(BEFORE, job, limit, after)
        assert done.runs <= limit and done.rows <= limit
        runs, tasks, after = runs + done.runs, tasks + done.rows, done.next
        if after is None:
            return runs, tasks
    raise AssertionError("it never ends")


def fill(leader: Any, rows: Any) -> None:
    leader.commit(
        runs_new=[
            run_of(rows, "a~1", "SUCCESS", OLD, OLD), run_of(rows, "a~2", "FAILED", OLD + 1, OLD + 2, 7),
            run_of(rows, "b~1", "SUCCESS", OLD, OLD, 3)._replace(due=OLD), run_of(rows, "b~2", "SKIPPED", OLD, None, 0),
            run_of(rows, "a~open", "RUNNING", OLD, None), run_of(rows, "a~late", "SUCCESS", OLD, NEW),
            run_of(rows, "b~new", "SUCCESS", NEW, NEW),
        ],
        tasks_new=[
            *tasks_of(rows, 1, "a~1", 1), *tasks_of(rows, 10, "a~2", 7, "FAILED"), *tasks_of(rows, 20, "b~1", 3),
            *tasks_of(rows, 30, "a~open", 1, "RUNNING"), *tasks_of(rows, 40, "a~late", 1),
            *tasks_of(rows, 50, "b~new", 1),
        ],
        attempts=[rows.attempt("a~2:0", 1), rows.attempt("a~2:0", 2), rows.attempt("a~open:0", 1)],
        logs=[rows.log("a~2:3", OLD), rows.log("a~2:3", NEW), rows.log("b~new:0", NEW)],
    )  # fmt: skip


def left(store: Store) -> list[str]:
    return sorted(row.run_id for row in store.runs(100, None, {}).items)


@pytest.mark.parametrize("limit", [1, 2, 5, 1000])
def test_what_ended_long_ago_goes(store: Store, leader: Any, rows: Any, limit: int) -> None:
    fill(leader, rows)
    assert prune_all(store, None, limit) == (4, 11)
    assert left(store) == ["a~late", "a~open", "b~new"]
    assert sorted(row.task_id for row in store.tasks(100, None, {}).items) == ["a~late:0", "a~open:0", "b~new:0"]
    assert store.attempts("a~2:0") == [] and len(store.attempts("a~open:0")) == 1
    assert store.logs("a~2:3") == [] and len(store.logs("b~new:0")) == 1
    assert prune_all(store, None, limit) == (0, 0)
    # The same keys are free again.
    fill_again = run_of(rows, "b~1", "PENDING", NEW, None)._replace(due=OLD)
    leader.commit(runs_new=[fill_again], tasks_new=tasks_of(rows, 20, "b~1", 1, "PENDING"))


@pytest.mark.parametrize("limit", [1, 1000])
def test_only_one_job(store: Store, leader: Any, rows: Any, limit: int) -> None:
    fill(leader, rows)
    assert prune_all(store, "b", limit) == (2, 3)
    assert left(store) == ["a~1", "a~2", "a~late", "a~open", "b~new"]
    assert prune_all(store, "none", limit) == (0, 0)


def test_a_dry_run_counts_and_deletes_nothing(store: Store, leader: Any, rows: Any) -> None:
    fill(leader, rows)
    runs = tasks = 0
    after: str | None = None
    while True:
        done = store.prune(BEFORE, None, 2, after, dry=True)
        runs, tasks, after = runs + done.runs, tasks + done.rows, done.next
        if after is None:
            break
    assert (runs, tasks) == (4, 11)
    assert len(left(store)) == 7


def test_what_is_cut_off_is_finished_the_next_time(store: Store, leader: Any, rows: Any) -> None:
    fill(leader, rows)
    after = None
    while not (done := store.prune(BEFORE, "a", 3, after)).rows or "a~2" not in left(store):
        after = done.next
    assert prune_all(store, None, 1000)[0] >= 1
    assert left(store) == ["a~late", "a~open", "b~new"]


def test_a_stale_leader_deletes_nothing(store: Store, leader: Any, rows: Any) -> None:
    fill(leader, rows)
    with pytest.raises(EpochLost):
        store.prune(BEFORE, None, 100, epoch=leader.epoch - 1)
    with pytest.raises(EpochLost):
        store.prune_rest(BEFORE, BEFORE, 100, epoch=leader.epoch + 1)
    assert len(left(store)) == 7
    assert store.prune(BEFORE, None, 100, epoch=leader.epoch).runs


def test_lines_workers_and_counters_age_too(store: Store, leader: Any, rows: Any) -> None:
    hour = 3_600_000
    leader.commit(
        logs=[rows.log("gone~1:0", OLD), rows.log(None, OLD), rows.log("gone~1:0", NEW)],
        workers=[
            rows.worker("w1", state="lost", last_seen_at=OLD), rows.worker("w2", state="lost", last_seen_at=NEW),
            rows.worker("w3", state="ready", last_seen_at=OLD),
        ],
        tasks_new=[
            rows.task(n, item=n, status="SUCCESS", finished_at=at) for n, at in enumerate((hour, 2 * hour, 3 * hour))
        ],
    )  # fmt: skip
    for _ in range(20):
        if store.prune_rest(BEFORE, 3 * hour, 1).next is None:
            break
    else:
        raise AssertionError("it never ends")
    assert [line.at for line in store.logs("gone~1:0")] == [NEW]
    assert [store.worker(name) is None for name in ("w1", "w2", "w3")] == [True, False, False]
    assert store.stats(0, 2**62, None).by_hour == ((3 * hour, "SUCCESS", 1),)
