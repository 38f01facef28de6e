"""What every store must do. Runs against each of the factories in `conftest.py`."""

from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsched.engine.changes import Batch, DueRow
from dsched.errors import BatchRefused, EpochLost, InvalidValue
from dsched.model.rows import LeaderRow
from dsched.model.task import TaskState
from dsched.store.interface import Active, Page, Store
from dsched.store.statements import ATTEMPT, JOB, LOG, RUN, TASK, WORKER

BIGGEST, SMALLEST = 2**63 - 1, -(2**63)
NASTY = "NUL \0, \"quotes', %s ? :x \\, 🦕 \U0010ffff \ue000, \r\n\t, " + "é" * 100


# -- leadership


def test_new_store_is_empty_and_led_by_nobody(store: Store) -> None:
    assert store.leader() == LeaderRow(0, 0, 0, "", "", "", 0, 0)
    assert store.load_active() == Active([], [], [], {}, [], [], [])
    assert (store.job("x"), store.run("x"), store.task("x"), store.worker("x")) == (None, None, None, None)
    assert list(store.attempts("x")) == list(store.logs("x")) == list(store.runs_by_id(["x"])) == []
    assert store.open_counts() == store.statuses(["x"]) == store.task_counts(["x"]) == {}
    for page in (store.jobs(10, None, {}), store.runs(10, None, {}), store.tasks_of("x", 10, None, {})):
        assert (list(page.items), page.next) == ([], None)


def test_leadership_goes_to_the_first_and_raises_the_epoch(store: Store) -> None:
    seen = store.leader()
    first = store.take_leadership(seen, "a", "a:1", "http://a")
    assert first == LeaderRow(1, 0, seen.renewal + 1, "a", "a:1", "http://a", 0, 0)
    assert store.take_leadership(seen, "b", "b:1", "http://b") is None
    assert store.leader() == first
    second = store.take_leadership(store.leader(), "b", "b:1", "http://b")
    assert second is not None and (second.epoch, second.owner) == (2, "b")


def test_a_renewal_defeats_who_saw_the_row_before_it(store: Store, leader: Any) -> None:
    seen = store.leader()
    leader.commit()
    assert store.leader().renewal == seen.renewal + 1
    assert store.take_leadership(seen, "b", "", "") is None


def test_taking_over_starts_batches_at_zero_and_keeps_the_highest_numbers(store: Store, leader: Any, rows: Any) -> None:
    store.commit(Batch(leader.epoch, 1, 70, 80, runs_new=[rows.run()], tasks_new=[rows.task(50, fence=90)]))
    row = store.leader()
    assert (row.batch, row.last_id, row.last_fence) == (1, 70, 80)
    taken = store.take_leadership(row, "b", "", "")
    assert taken is not None and (taken.batch, taken.last_id, taken.last_fence) == (0, 70, 90)
    store.commit(Batch(2, 1, 0, 0, tasks_new=[rows.task(99, item=1)]))
    taken = store.take_leadership(store.leader(), "c", "", "")
    assert taken is not None and (taken.last_id, taken.last_fence) == (99, 90)


def test_only_the_next_batch_of_the_epoch_is_taken(store: Store, leader: Any, rows: Any) -> None:
    leader.commit(jobs_new=[rows.job()])
    for epoch, number in ((1, 1), (1, 3), (0, 2), (2, 1), (2, 2)):
        with pytest.raises(EpochLost):
            store.commit(Batch(epoch, number, 0, 0, jobs_new=[rows.job("other")]))
    assert store.job("other") is None
    assert store.leader().batch == 1
    leader.commit(jobs_new=[rows.job("other")])


def test_a_deposed_leader_writes_nothing(store: Store, leader: Any, rows: Any) -> None:
    """Case B063: an insert of the old epoch is refused."""
    leader.commit()
    store.take_leadership(store.leader(), "b", "", "")
    with pytest.raises(EpochLost):
        leader.commit(jobs_new=[rows.job()])
    with pytest.raises(EpochLost):
        leader.commit()
    assert store.job("census") is None


# -- what goes in comes out


def test_rows_come_back_equal(store: Store, leader: Any, rows: Any) -> None:
    job = rows.job(next_due=123)
    run = rows.run("census@5000", due=5000, reason="r", parent="p", workflow_id="w", counts="{}", started_at=1,
                   finished_at=2)  # fmt: skip
    task = rows.task(
        1, "census@5000", target_worker="w1", status=TaskState.RUNNING, error_msg="m", incarnation="i", attempt=2,
        lost_count=1, fence=9, not_before=1, started_at=2, deadline=3, finished_at=4, result="{}", error="e",
    )  # fmt: skip
    attempts = [rows.attempt(task.task_id, 2), rows.attempt(task.task_id, 1, worker_id=None, message=None)]
    worker, logs = rows.worker(), [rows.log(task.task_id, 2), rows.log(task.task_id, 1), rows.log(None, 1)]
    leader.commit(jobs_new=[job], runs_new=[run], tasks_new=[task], attempts=attempts, workers=[worker], logs=logs)
    assert store.job("census") == job
    assert store.run("census@5000") == run
    assert store.task(task.task_id) == task
    assert list(store.attempts(task.task_id)) == attempts[::-1]
    assert store.worker("w1") == worker
    assert list(store.logs(task.task_id)) == logs[:2]


def test_values_at_the_edge_come_back_equal(store: Store, leader: Any, rows: Any) -> None:
    """Case B069: NUL in params, results and messages, in every store."""
    long = "🦕" * 65_536  # 256 KiB
    run = rows.run(params=NASTY, snapshot=long, created_at=BIGGEST, started_at=SMALLEST, counts="")
    tasks = [
        rows.task(BIGGEST, params=long, result=NASTY, error_msg="\0", fence=BIGGEST, started_at=0),
        rows.task(1, item=1, params="5", result="1e3", error_msg="", target_worker="007", error="0x10"),
    ]
    leader.commit(runs_new=[run], tasks_new=tasks)
    assert store.run(run.run_id) == run
    assert [store.task(task.task_id) for task in tasks] == tasks
    done = [task._replace(result=long + NASTY, version=2) for task in tasks]
    leader.commit(tasks_set=sorted(done))
    assert [store.task(task.task_id) for task in tasks] == done


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=50)
@given(st.lists(st.text(), min_size=1, max_size=5), st.integers(SMALLEST, BIGGEST))
def test_any_text_and_integer_comes_back_equal(
    store: Store, leader_of: Any, rows: Any, texts: list[str], number: int
) -> None:
    leader = leader_of(store)
    worker = rows.worker("x", host=texts[0], handlers=texts[-1], slots=number, connected_at=number)
    log = [rows.log("t", number, message=text) for text in texts]
    before = len(store.logs("t"))
    leader.commit(workers=[worker], logs=log)
    assert store.worker("x") == worker
    assert list(store.logs("t"))[before:] == log


@pytest.mark.parametrize("count", [1, 2, 7, 513, 1300])
def test_batches_of_any_size(store: Store, leader: Any, rows: Any, count: int) -> None:
    runs = [rows.run(f"census~{number:05}") for number in range(count)]
    tasks = [rows.task(number + 1, run.run_id) for number, run in enumerate(runs)]
    leader.commit(runs_new=runs, tasks_new=tasks)
    done_runs = [run._replace(status="SUCCESS", version=2) for run in runs]
    done = [task._replace(status="SUCCESS", result=str(task.job_id), version=2) for task in tasks]
    leader.commit(runs_set=done_runs, tasks_set=done)
    ids = [run.run_id for run in runs]
    assert sorted(store.runs_by_id([*ids, "none", *ids])) == done_runs
    assert store.statuses([task.task_id for task in tasks] + ["none", "\ud800"]) == {t.task_id: "SUCCESS" for t in done}
    assert store.task_counts([*ids, "none"]) == {run_id: {"SUCCESS": 1} for run_id in ids}
    assert [store.task(task.task_id) for task in tasks[:: max(1, count // 20)]] == done[:: max(1, count // 20)]


# -- updates


def test_an_update_changes_only_what_may_change(store: Store, leader: Any, rows: Any) -> None:
    job, run, task = rows.job(), rows.run(), rows.task(1)
    leader.commit(jobs_new=[job], runs_new=[run], tasks_new=[task])

    def altered(row: Any, key: str, table: Any) -> Any:
        changes: dict[str, Any] = {}
        for name in table.columns:
            value = getattr(row, name)
            if name in ("create_time", "update_time"):
                changes[name] = "2030-01-02 03:04:05.678"
                continue
            changes[name] = value if name == key else (value or 0) + 1 if not isinstance(value, str) else value + "x"
        return row._replace(**changes)

    new = [altered(job, "name", JOB), altered(run, "run_id", RUN), altered(task, "job_id", TASK)]
    leader.commit(jobs_set=new[:1], runs_set=new[1:2], tasks_set=new[2:])
    for old, given_, table, stored in zip(
        (job, run, task), new, (JOB, RUN, TASK),
        (store.job(job.name), store.run(run.run_id), store.task(task.task_id)), strict=True,
    ):  # fmt: skip
        assert stored is not None
        expected = old._replace(**{name: getattr(given_, name) for name in table.mutable})  # type: ignore[attr-defined]
        assert [str(value) for value in stored] == [str(value) for value in expected]


@pytest.mark.parametrize("table", ["jobs_set", "runs_set", "tasks_set"])
@pytest.mark.parametrize("version", [1, 3])
def test_an_update_of_another_version_refuses_the_batch(
    store: Store, leader: Any, rows: Any, table: str, version: int
) -> None:
    job, run = rows.job(), rows.run()
    tasks = [rows.task(number, item=number) for number in range(1, 5)]
    leader.commit(jobs_new=[job], runs_new=[run], tasks_new=tasks)
    changed = {
        "jobs_set": [job._replace(enabled=0, version=2)],
        "runs_set": [run._replace(status="FAILED", version=2)],
        "tasks_set": [task._replace(status="FAILED", version=2) for task in tasks],
    }
    changed[table][-1] = changed[table][-1]._replace(version=version)
    with pytest.raises(BatchRefused, match="version"):
        leader.commit(**changed, jobs_new=[rows.job("other")])
    assert (store.job(job.name), store.run(run.run_id)) == (job, run)
    assert [store.task(task.task_id) for task in tasks] == tasks
    assert store.job("other") is None
    assert store.leader().batch == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"jobs_set": "job"},
        {"runs_set": "run"},
        {"tasks_set": "task"},
    ],
)
def test_an_update_of_a_row_that_is_not_there_refuses_the_batch(
    store: Store, leader: Any, rows: Any, changed: dict[str, str]
) -> None:
    made = {"job": rows.job(), "run": rows.run(), "task": rows.task(1)}
    with pytest.raises(BatchRefused, match="version"):
        leader.commit(**{name: [made[kind]] for name, kind in changed.items()})
    assert (store.job("census"), store.run("census~1"), store.task("census~1:0")) == (None, None, None)


def test_dues_move_on_unless_the_job_was_edited(store: Store, leader: Any, rows: Any) -> None:
    kept, edited = rows.job("kept", next_due=10), rows.job("edited", next_due=10)
    leader.commit(jobs_new=[kept, edited])
    edit = edited._replace(next_due=99, version=2)
    leader.commit(jobs_set=[edit], dues=[DueRow("kept", 1, 20), DueRow("edited", 1, 20), DueRow("gone", 1, 20)])
    assert store.job("kept") == kept._replace(next_due=20)
    assert store.job("edited") == edit
    leader.commit(dues=[DueRow("edited", 2, None)])
    assert store.job("edited") == edit._replace(next_due=None)


def test_a_job_can_go_and_come_back_in_one_batch(store: Store, leader: Any, rows: Any) -> None:
    leader.commit(jobs_new=[rows.job(), rows.job("other")])
    leader.commit(jobs_gone=["census", "other", "unknown"], jobs_new=[rows.job(definition="{}")])
    assert store.job("census") == rows.job(definition="{}")
    assert store.job("other") is None


def test_a_worker_is_what_was_last_known(store: Store, leader: Any, rows: Any) -> None:
    leader.commit(workers=[rows.worker(), rows.worker("w2")])
    leader.commit(workers=[rows.worker(state="lost", incarnation=None)])
    assert store.worker("w1") == rows.worker(state="lost", incarnation=None)
    assert store.worker("w2") == rows.worker("w2")


# -- refusals


def refused_batches(rows: Any) -> dict[str, dict[str, list[Any]]]:
    """Return batches that each break one rule; `seed` is stored before."""
    return {
        "job name": {"jobs_new": [rows.job()]},
        "run id": {"runs_new": [rows.run()]},
        "run id within a batch": {"runs_new": [rows.run("new~1"), rows.run("new~1")]},
        "job and due": {"runs_new": [rows.run("census@5b", due=5)]},
        "job id": {"tasks_new": [rows.task(1, item=7)]},
        "task id": {"tasks_new": [rows.task(7, item=0)]},
        "attempt number": {"attempts": [rows.attempt("census~1:0", 1)]},
        "integer too big": {"tasks_new": [rows.task(2**63, item=7)]},
        "integer too small": {"tasks_new": [rows.task(7, item=7, fence=-(2**63) - 1)]},
        "due too big": {"dues": [DueRow("census", 1, 2**63)]},
        "lone surrogate": {"tasks_new": [rows.task(7, item=7, params="\ud800")]},
        "lone surrogate in an update": {"tasks_set": [rows.task(1, result="x\udfff", version=2)]},
        "null": {"runs_new": [rows.run("new~1", snapshot=None)]},
        "null in an update": {"runs_set": [rows.run(status=None, version=2)]},
        "not a value": {"logs": [rows.log("t", 1, message=["list"])]},
        "null in a worker": {"workers": [rows.worker(host=None)]},
    }


REFUSED = sorted(
    [
        "job name", "run id", "run id within a batch", "job and due", "job id", "task id", "attempt number",
        "integer too big", "integer too small", "due too big", "lone surrogate", "lone surrogate in an update", "null",
        "null in an update", "not a value", "null in a worker",
    ]
)  # fmt: skip


@pytest.mark.parametrize("rule", REFUSED)
def test_a_refused_batch_leaves_nothing(store: Store, leader: Any, rows: Any, rule: str) -> None:
    job, run, task = rows.job(), rows.run(), rows.task(1)
    leader.commit(jobs_new=[job], runs_new=[run, rows.run("census@5", due=5)], tasks_new=[task],
                  attempts=[rows.attempt(task.task_id, 1)])  # fmt: skip
    before = store.load_active(), store.leader()
    bad = refused_batches(rows)[rule]
    good: dict[str, list[Any]] = {
        "jobs_new": [rows.job("bystander")],
        "jobs_gone": ["nobody"],
        "runs_new": [rows.run("bystander~1")],
        "tasks_new": [rows.task(100, "bystander~1")],
        "attempts": [rows.attempt("bystander~1:0", 1)],
        "logs": [rows.log("bystander~1:0", 1)],
        "workers": [rows.worker("bystander")],
    }
    with pytest.raises(BatchRefused) as caught:
        leader.commit(**{name: good.get(name, []) + bad.get(name, []) for name in good | bad})
    assert len(str(caught.value)) > 10
    assert (store.load_active(), store.leader()) == before
    assert store.worker("bystander") is None
    assert list(store.attempts("bystander~1:0")) == list(store.logs("bystander~1:0")) == []
    assert set(refused_batches(rows)) == set(REFUSED)
    leader.commit(**good)
    assert store.run("bystander~1") == rows.run("bystander~1")


def test_requests_share_no_due(store: Store, leader: Any, rows: Any) -> None:
    leader.commit(runs_new=[rows.run("census~1"), rows.run("census~2"), rows.run("other@5", due=5)])
    leader.commit(runs_new=[rows.run("census@5", due=5)])


def test_an_update_in_the_batch_of_its_insert(store: Store, leader: Any, rows: Any) -> None:
    task = rows.task(1)
    leader.commit(tasks_new=[task], tasks_set=[task._replace(status="RUNNING", version=2)])
    assert store.task(task.task_id) == task._replace(status="RUNNING", version=2)


def test_the_same_key_twice_in_one_update_is_refused(store: Store, leader: Any, rows: Any) -> None:
    task = rows.task(1)
    leader.commit(tasks_new=[task])
    with pytest.raises(BatchRefused):
        leader.commit(tasks_set=[task._replace(fence=1, version=2), task._replace(fence=2, version=2)])
    assert store.task(task.task_id) == task


# -- reads


def test_active_is_what_is_not_terminal_with_all_of_its_tasks(store: Store, leader: Any, rows: Any) -> None:
    jobs = [rows.job("b"), rows.job("a")]
    runs = [
        rows.run("b~2", status="PENDING"), rows.run("b~1"), rows.run("a~1", status="SUCCESS"),
        rows.run("a~2", status="SKIPPED"), rows.run("a~3", status="PARTIAL"),
    ]  # fmt: skip
    tasks = [
        rows.task(1, "b~2"), rows.task(2, "b~1", 0, status="SUCCESS"), rows.task(3, "b~1", 1, status="RUNNING"),
        rows.task(4, "a~1", status="SUCCESS"), rows.task(5, "a~3", status="FAILED"),
    ]  # fmt: skip
    leader.commit(jobs_new=jobs, runs_new=runs, tasks_new=tasks)
    active = store.load_active()
    assert list(active.jobs) == jobs[::-1]
    assert list(active.runs) == [runs[1], runs[0]]
    assert list(active.tasks) == tasks[:3]
    assert store.open_counts() == {"PENDING": 1, "RUNNING": 1}
    assert store.task_counts(["b~1", "b~2"]) == {"b~1": {"SUCCESS": 1, "RUNNING": 1}, "b~2": {"PENDING": 1}}


def test_open_counts_follow_every_state(store: Store, leader: Any, rows: Any) -> None:
    states = list(TaskState)
    leader.commit(tasks_new=[rows.task(number, item=number, status=str(s)) for number, s in enumerate(states, 1)])
    assert store.open_counts() == {"PENDING": 1, "DISPATCHED": 1, "RUNNING": 1, "CANCELLING": 1}
    leader.commit(tasks_set=[rows.task(2, item=2, status="SUCCESS", version=2)])
    assert store.open_counts() == {"PENDING": 1, "RUNNING": 1, "CANCELLING": 1}


def walk(fetch: Any, limit: int, filters: dict[str, str]) -> list[Any]:
    """Return all rows of a list, page by page."""
    found: list[Any] = []
    cursor: str | None = None
    while True:
        page: Page[Any] = fetch(limit, cursor, filters)
        found += page.items
        cursor = page.next
        assert len(page.items) == limit or cursor is None
        if cursor is None:
            return found
        assert cursor.replace("-", "").replace("_", "").isalnum() and cursor.isascii()


@pytest.mark.parametrize("limit", [1, 2, 3, 10, 1000])
def test_jobs_are_listed_by_name(store: Store, leader: Any, rows: Any, limit: int) -> None:
    jobs = [
        rows.job(name, group_name=group, enabled=enabled)
        for name, group, enabled in [("b", "x", 1), ("a", "y", 0), ("B", "x", 1), ("a-1", "x", 0), ("_", "y", 1)]
    ]
    leader.commit(jobs_new=jobs)
    expected = sorted(jobs)
    assert walk(store.jobs, limit, {}) == expected
    assert walk(store.jobs, limit, {"group": "x"}) == [job for job in expected if job.group_name == "x"]
    assert walk(store.jobs, limit, {"enabled": "true"}) == [job for job in expected if job.enabled]
    assert walk(store.jobs, limit, {"enabled": "false", "group": "x"}) == [jobs[3]]
    assert walk(store.jobs, limit, {"group": "' OR 1=1 --"}) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
def test_runs_are_listed_newest_first(store: Store, leader: Any, rows: Any, limit: int) -> None:
    runs = [
        rows.run(f"{job}~{number}", created_at=1000 + number // 3, status=status, group_name=group)
        for number, (job, status, group) in enumerate(
            [("a", "SUCCESS", "x"), ("b", "FAILED", "y"), ("a", "RUNNING", "x"), ("c", "SUCCESS", "y")] * 5
        )
    ]
    leader.commit(runs_new=runs)
    expected = sorted(runs, key=lambda run: (run.created_at, run.run_id), reverse=True)
    assert walk(store.runs, limit, {}) == expected
    for filters in ({"job": "a"}, {"status": "SUCCESS"}, {"group": "y"}, {"job": "a", "status": "SUCCESS"},
                    {"job": "c", "status": "SUCCESS", "group": "y"}, {"status": "SKIPPED"}):  # fmt: skip
        names = {"job": "job", "status": "status", "group": "group_name"}
        kept = [run for run in expected if all(getattr(run, names[k]) == v for k, v in filters.items())]
        assert walk(store.runs, limit, filters) == kept


@pytest.mark.parametrize("limit", [1, 5, 12, 1000])
def test_tasks_are_listed_by_shard_item(store: Store, leader: Any, rows: Any, limit: int) -> None:
    tasks = [
        rows.task(100 - item, "a~1", item, status="PENDING" if item % 2 else "RUNNING", target_worker=f"w{item % 3}")
        for item in range(12)
    ]
    leader.commit(tasks_new=[*sorted(tasks), rows.task(200, "a~11", 0), rows.task(201, "a~2", 0)])

    def fetch(limit: int, cursor: str | None, filters: dict[str, str]) -> Page[Any]:
        return store.tasks_of("a~1", limit, cursor, filters)

    assert walk(fetch, limit, {}) == tasks
    assert walk(fetch, limit, {"status": "PENDING"}) == tasks[1::2]
    assert walk(fetch, limit, {"status": "PENDING", "worker": "w1"}) == [tasks[1], tasks[7]]
    assert list(store.tasks_of("\ud800", 5, None, {}).items) == []


def test_a_page_does_not_shift_when_rows_are_added(store: Store, leader: Any, rows: Any) -> None:
    leader.commit(runs_new=[rows.run(f"a~{number}", created_at=number) for number in range(6)])
    first = store.runs(3, None, {})
    leader.commit(runs_new=[rows.run("a~9", created_at=9)])
    second = store.runs(3, first.next, {})
    assert [run.run_id for run in (*first.items, *second.items)] == ["a~5", "a~4", "a~3", "a~2", "a~1", "a~0"]


@pytest.mark.parametrize("cursor", ["", "x", "=", "a" * 1000, "é", "\ud800", "cnVuOjE6YQ==", "am9iOmE", "cnVuOmE6YQ",
                                    "cnVuOjk5OTk5OTk5OTk5OTk5OTk5OTk6YQ", "cnVuOjE6YQ\n"])  # fmt: skip
def test_a_cursor_that_was_never_given_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        store.runs(5, cursor, {})
    assert caught.value.field == "cursor"


def test_a_cursor_belongs_to_its_list(store: Store, leader: Any, rows: Any) -> None:
    leader.commit(jobs_new=[rows.job("a"), rows.job("b")], tasks_new=[rows.task(1), rows.task(2, item=1)])
    of_jobs, of_tasks = store.jobs(1, None, {}).next, store.tasks_of("census~1", 1, None, {}).next
    assert of_jobs and of_tasks
    for fetch in (store.runs, store.jobs):
        with pytest.raises(InvalidValue):
            fetch(1, of_tasks, {})
    with pytest.raises(InvalidValue):
        store.runs(1, of_jobs, {})


def test_a_cursor_belongs_to_the_tasks_of_its_run(store: Store, leader: Any, rows: Any) -> None:
    ids = ("a~1", "a~2", "a", "a:0", "a:0:1", "é")
    leader.commit(tasks_new=[rows.task(2 * n + item, run_id, item) for n, run_id in enumerate(ids) for item in (0, 1)])
    cursors = {run_id: store.tasks_of(run_id, 1, None, {}).next for run_id in ids}
    for run_id, other in product(ids, ids):
        if run_id == other:
            assert [row.sharding_item for row in store.tasks_of(run_id, 9, cursors[other], {}).items] == [1]
        else:
            with pytest.raises(InvalidValue) as caught:
                store.tasks_of(run_id, 9, cursors[other], {})
            assert caught.value.field == "cursor"


@pytest.mark.parametrize(
    ("kind", "filters", "field"),
    [
        ("jobs", {"name": "x"}, "name"), ("jobs", {"enabled": "1"}, "enabled"), ("jobs", {"group": "\ud800"}, "group"),
        ("runs", {"created_at": "1"}, "created_at"), ("runs", {"status": "DONE"}, "status"),
        ("runs", {"status": "DISPATCHED"}, "status"), ("tasks_of", {"run_id": "x"}, "run_id"),
        ("tasks_of", {"status": "PARTIAL"}, "status"),
    ],
)  # fmt: skip
def test_a_filter_that_is_none_is_refused(store: Store, kind: str, filters: dict[str, str], field: str) -> None:
    before = ("census~1",) if kind == "tasks_of" else ()
    with pytest.raises(InvalidValue) as caught:
        getattr(store, kind)(*before, 5, None, filters)
    assert caught.value.field == field


@pytest.mark.parametrize("limit", [0, -1])
def test_a_page_has_at_least_one_row(store: Store, limit: int) -> None:
    with pytest.raises(InvalidValue) as caught:
        store.runs(limit, None, {})
    assert caught.value.field == "limit"


@pytest.mark.parametrize("name", ["\ud800", "\0", "", "x" * 100_000])
def test_any_name_can_be_asked_for(store: Store, name: str) -> None:
    """Case B069: a NUL in an id that is asked for."""
    assert store.job(name) is store.run(name) is store.task(name) is store.worker(name) is None
    assert list(store.attempts(name)) == list(store.logs(name)) == list(store.runs_by_id([name, name])) == []
    assert store.statuses([name]) == store.task_counts([name]) == {}


def test_close_is_idempotent(store: Store) -> None:
    store.close()
    store.close()


def test_row_types_name_what_may_be_null() -> None:
    # The stores take this from the row types; a slip there would loosen every constraint at once.
    assert "result" in TASK.optional and "run_id" not in TASK.optional
    assert RUN.optional >= {"due", "reason", "parent"} and JOB.optional == {"next_due"}
    assert WORKER.optional == {"incarnation"} and "number" not in ATTEMPT.optional and "task_id" in LOG.optional
