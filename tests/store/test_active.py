"""What a starting leader reads, where it takes several looks to find what is not parked."""

from typing import Any

import pytest

from dsched.model.rows import BacklogRow, LaneRow
from dsched.store import backlog


@pytest.mark.parametrize("span", [1, 2, 3, 5, 8, 100])
def test_open_runs_are_found_among_parked_ones(
    store: Any, leader: Any, rows: Any, monkeypatch: pytest.MonkeyPatch, span: int
) -> None:
    monkeypatch.setattr(backlog, "_SPAN", span)
    numbers = range(10, 50)
    # Many have one instant, so that a span ends among them; some spans have nothing in them but parked runs.
    waiting = [rows.run(f"census~{n}", status="PENDING", created_at=1000 + n // 7) for n in numbers]
    kept = {"census~10", "census~11", "census~30", "census~49"}
    parked = [
        BacklogRow(n, run.run_id, "census", "default", "census", 0, 1)
        for n, run in zip(numbers, waiting, strict=True)
        if run.run_id not in kept
    ]
    running = rows.run("census~60", status="RUNNING")
    ended = rows.run("census~61", status="SUCCESS", finished_at=5)
    runs = [*waiting, running, ended]
    tasks = [rows.task(n, run.run_id) for n, run in zip(numbers, waiting, strict=True)]
    tasks += [rows.task(60, "census~60", status="RUNNING"), rows.task(61, "census~61", status="SUCCESS")]
    leader.commit(runs_new=runs, tasks_new=tasks, backlog_new=parked)

    active = store.load_active()
    assert list(active.runs) == sorted(run for run in runs if run.run_id in kept or run is running)
    assert [task.run_id for task in active.tasks] == [*sorted(kept), "census~60"]
    assert dict(active.counts) == {"PENDING": len(waiting), "RUNNING": 1}
    assert list(active.lanes) == [LaneRow("default", "census", 0, 12, 48)]
