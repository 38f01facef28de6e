"""Counters of ended tasks: each end is counted once, whatever else is in its batch."""

from typing import Any

import pytest

from dsched.errors import BatchRefused, EpochLost
from dsched.store.interface import Store
from dsched.store.rollups import HOUR_MS, MOST_JOBS, Counters

H = HOUR_MS
ALWAYS = (0, 2**62, None)


def ended(task: Any, status: str, at: int) -> Any:
    return task._replace(status=status, finished_at=at, version=task.version + 1)


def test_nothing_has_ended_yet(store: Store, leader: Any, rows: Any) -> None:
    assert store.stats(*ALWAYS) == Counters((), ())
    leader.commit(runs_new=[rows.run()], tasks_new=[rows.task(1)])
    assert store.stats(*ALWAYS) == Counters((), ())


def test_ends_are_counted_by_hour_job_and_status(store: Store, leader: Any, rows: Any) -> None:
    tasks = [rows.task(n, item=n) for n in range(1, 5)] + [rows.task(5, "other~1", job_name="other")]
    leader.commit(runs_new=[rows.run(), rows.run("other~1")], tasks_new=tasks)
    leader.commit(
        tasks_set=[
            ended(tasks[0], "SUCCESS", 7 * H), ended(tasks[1], "SUCCESS", 8 * H - 1), ended(tasks[2], "FAILED", 8 * H),
        ]
    )  # fmt: skip
    leader.commit(tasks_set=[ended(tasks[3], "SUCCESS", 8 * H - 2), ended(tasks[4], "CANCELLED", 9 * H)])
    assert store.stats(*ALWAYS) == Counters(
        ((7 * H, "SUCCESS", 3), (8 * H, "FAILED", 1), (9 * H, "CANCELLED", 1)),
        (("census", "FAILED", 1), ("census", "SUCCESS", 3), ("other", "CANCELLED", 1)),
    )
    assert store.stats(8 * H, 9 * H, None) == Counters(((8 * H, "FAILED", 1),), (("census", "FAILED", 1),))
    assert store.stats(0, 10 * H, "other") == Counters(((9 * H, "CANCELLED", 1),), (("other", "CANCELLED", 1),))
    assert store.stats(0, 10 * H, "\ud800") == store.stats(0, 10 * H, "none") == Counters((), ())


def test_a_task_that_is_new_and_has_ended_counts(store: Store, leader: Any, rows: Any) -> None:
    leader.commit(runs_new=[rows.run()], tasks_new=[rows.task(1, status="CANCELLED", finished_at=H)])
    assert store.stats(*ALWAYS).by_hour == ((H, "CANCELLED", 1),)


def test_other_changes_count_nothing(store: Store, leader: Any, rows: Any) -> None:
    task = rows.task(1)
    leader.commit(runs_new=[rows.run()], tasks_new=[task])
    leader.commit(tasks_set=[task._replace(status="RUNNING", version=2)])
    assert store.stats(*ALWAYS) == Counters((), ())


def test_what_is_refused_counts_nothing(store: Store, leader: Any, rows: Any) -> None:
    task = rows.task(1)
    leader.commit(runs_new=[rows.run()], tasks_new=[task])
    end = ended(task, "SUCCESS", H)
    with pytest.raises(BatchRefused):
        store.commit(leader.batch(tasks_set=[end], runs_new=[rows.run()]))
    assert store.stats(*ALWAYS) == Counters((), ())
    batch = leader.batch(tasks_set=[end])
    store.commit(batch)
    with pytest.raises(EpochLost):
        store.commit(batch)
    assert store.stats(*ALWAYS).by_hour == ((H, "SUCCESS", 1),)


def test_only_the_busiest_jobs_are_told(store: Store, leader: Any, rows: Any) -> None:
    names = [f"job{n:03}" for n in range(MOST_JOBS + 5)]
    tasks = [rows.task(n, f"{name}~1", job_name=name, status="SUCCESS", finished_at=H) for n, name in enumerate(names)]
    tasks.append(rows.task(500, f"{names[-1]}~2", job_name=names[-1], status="FAILED", finished_at=H))
    leader.commit(tasks_new=tasks)
    stats = store.stats(*ALWAYS)
    assert stats.by_job[:2] == ((names[-1], "FAILED", 1), (names[-1], "SUCCESS", 1))
    assert [name for name, _, _ in stats.by_job[2:]] == names[: MOST_JOBS - 1]
    assert stats.by_hour == ((H, "FAILED", 1), (H, "SUCCESS", MOST_JOBS + 5))
