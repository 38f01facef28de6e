"""What every store must do with runs that wait in it."""

from typing import Any

import pytest

from dsched.engine.changes import ParkedKey
from dsched.errors import BatchRefused
from dsched.model.rows import BacklogRow, LaneRow, ParkedRun
from dsched.store.interface import Store

LANE = ("default", "census", 0)
FAR = ("far", "census", 5)


def parked(rows: Any, seq: int, job: str = "census", tasks: int = 1, lane: Any = LANE, **run: Any) -> dict[str, Any]:
    """Return the rows of one parked run."""
    run_id = f"{job}~{seq}"
    row = rows.run(run_id, status="PENDING", sharding_total=tasks, group_name=lane[0], priority=lane[2], **run)
    return {
        "runs_new": [row],
        "tasks_new": [rows.task(seq + item, run_id, item) for item in range(tasks)],
        "backlog_new": [BacklogRow(seq, run_id, job, lane[0], lane[1], lane[2], tasks)],
    }


def together(*lists: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in lists:
        for name, added in one.items():
            found.setdefault(name, []).extend(added)
    return found


def seqs(found: Any) -> list[int]:
    return [one.seq for one in found]


def test_what_is_parked_comes_back_in_order_and_no_further(store: Store, leader: Any, rows: Any) -> None:
    leader.commit(**together(*(parked(rows, seq) for seq in (30, 10, 20, 40)), parked(rows, 25, lane=FAR)))
    assert seqs(store.parked(LANE, 0, 100, 10)) == [10, 20, 30, 40]
    assert seqs(store.parked(LANE, 10, 30, 10)) == [20, 30]
    assert seqs(store.parked(LANE, 10, 30, 1)) == [20]
    assert seqs(store.parked(FAR, 0, 100, 10)) == [25]
    assert list(store.parked(("default", "census", 5), 0, 100, 10)) == []
    assert list(store.parked(LANE, 40, 100, 10)) == []
    assert store.parked(LANE, 0, 100, 1)[0] == ParkedRun(10, store.run("census~10"))  # type: ignore[arg-type]


def test_a_page_has_about_so_many_tasks_and_at_least_a_run(store: Store, leader: Any, rows: Any) -> None:
    leader.commit(**together(*(parked(rows, seq, tasks=4) for seq in (10, 20, 30))))
    assert seqs(store.parked(LANE, 0, 100, 1)) == [10]
    assert seqs(store.parked(LANE, 0, 100, 4)) == [10]
    assert seqs(store.parked(LANE, 0, 100, 5)) == [10, 20]
    assert seqs(store.parked(LANE, 0, 100, 100)) == [10, 20, 30]


def test_large_runs_make_short_pages_that_lose_nothing(store: Store, leader: Any, rows: Any) -> None:
    large = "x" * 100_000
    leader.commit(**together(*(parked(rows, seq, params=large) for seq in range(1, 301))))
    found: list[int] = []
    pages = 0
    while page := store.parked(LANE, found[-1] if found else 0, 300, 1000):
        found += seqs(page)
        pages += 1
    assert found == list(range(1, 301))
    assert pages > 1 or store.url.startswith("memory")


def test_what_is_parked_is_found_by_job_and_by_run(store: Store, leader: Any, rows: Any) -> None:
    lists = [parked(rows, 10), parked(rows, 20, "other"), parked(rows, 30, lane=FAR)]
    leader.commit(**together(*lists))
    assert seqs(store.parked_of_job("census", 0, 100, 10)) == [10, 30]
    assert seqs(store.parked_of_job("census", 10, 20, 10)) == []
    assert seqs(store.parked_of_job("nobody", 0, 100, 10)) == []
    assert store.parked_run("other~20") == ParkedRun(20, lists[1]["runs_new"][0])
    assert store.parked_run("other~21") is None
    assert store.parked_run("\ud800") is None


def test_lanes_tell_their_ends(store: Store, leader: Any, rows: Any) -> None:
    assert list(store.lanes()) == []
    leader.commit(**together(*(parked(rows, seq) for seq in (10, 20, 30)), parked(rows, 25, lane=FAR)))
    assert list(store.lanes()) == [LaneRow(*LANE, 10, 30), LaneRow(*FAR, 25, 25)]
    leader.commit(backlog_gone=[ParkedKey(10, "census~10"), ParkedKey(25, "census~25"), ParkedKey(99, "nobody~99")])
    assert list(store.lanes()) == [LaneRow(*LANE, 20, 30)]
    assert store.parked_run("census~10") is None
    assert store.run("census~10") is not None


@pytest.mark.parametrize("second", [(10, "other~1"), (11, "census~10")], ids=["seq", "run"])
def test_nothing_is_parked_twice(store: Store, leader: Any, rows: Any, second: tuple[int, str]) -> None:
    leader.commit(**parked(rows, 10))
    with pytest.raises(BatchRefused):
        row = BacklogRow(second[0], second[1], "census", LANE[0], LANE[1], LANE[2], 1)
        leader.commit(workers=[rows.worker()], backlog_new=[row])
    assert store.worker("w1") is None
    assert list(store.lanes()) == [LaneRow(*LANE, 10, 10)]


def test_a_refused_batch_leaves_the_backlog_as_it_was(store: Store, leader: Any, rows: Any) -> None:
    leader.commit(**parked(rows, 10))
    with pytest.raises(BatchRefused):
        leader.commit(
            **together(parked(rows, 20), {"runs_new": [rows.run("census~10")]}),
            backlog_gone=[ParkedKey(10, "census~10")],
        )
    assert list(store.lanes()) == [LaneRow(*LANE, 10, 10)]
    assert store.parked_run("census~10") is not None


def test_active_leaves_out_what_is_parked_but_counts_it(store: Store, leader: Any, rows: Any) -> None:
    jobs = [rows.job("census", next_due=9), rows.job("other")]
    runs = [rows.run("census~1"), rows.run("census~2", status="PENDING")]
    tasks = [rows.task(1, "census~1", status="RUNNING"), rows.task(2, "census~2")]
    leader.commit(
        jobs_new=jobs,
        **together(
            {"runs_new": runs, "tasks_new": tasks}, parked(rows, 10, tasks=3), parked(rows, 20, "gone", lane=FAR)
        ),
    )
    active = store.load_active()
    assert list(active.runs) == runs
    assert list(active.tasks) == tasks
    assert active.counts == store.open_counts() == {"RUNNING": 1, "PENDING": 5}
    assert list(active.lanes) == [LaneRow(*LANE, 10, 10), LaneRow(*FAR, 20, 20)]
    assert list(active.parked_jobs) == ["census", "gone"]
    assert list(active.newest_due) == []


def test_active_has_the_newest_due_of_each_job_if_it_is_parked(store: Store, leader: Any, rows: Any) -> None:
    jobs = [rows.job("a", next_due=9), rows.job("b", next_due=9), rows.job("c")]
    leader.commit(
        jobs_new=jobs,
        **together(
            parked(rows, 10, "a", due=5), parked(rows, 20, "a", due=7), parked(rows, 30, "a"),
            parked(rows, 40, "b", due=5), {"runs_new": [rows.run("b@8", due=8)]},
            parked(rows, 50, "c", due=5),
        ),
    )  # fmt: skip
    assert [(one.seq, one.run.run_id) for one in store.load_active().newest_due] == [(20, "a~20")]
