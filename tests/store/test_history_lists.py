"""Lists of history: any combination of filters, in pages that look at a bounded part of it."""

from itertools import product
from typing import Any

import pytest

from dsched.errors import InvalidValue
from dsched.model.instant import format_instant
from dsched.store.interface import Store
from dsched.store.paging import ALL_TASKS, JOBS, PAGE_BYTES, RUNS, TASKS, Condition, Listing
from dsched.store.reads import SqlReads
from tests.store.plans import received

T = 1_700_000_000_000
STATUSES = ("SUCCESS", "FAILED", "PENDING")


def everything(fetch: Any, limit: int, filters: dict[str, str]) -> list[Any]:
    found: list[Any] = []
    cursor = None
    while True:
        page = fetch(limit, cursor, filters)
        assert len(page.items) <= limit
        found += page.items
        if page.next is None:
            return found
        assert page.next != cursor
        cursor = page.next


def combinations(**choices: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in zip(choices, values, strict=True) if value is not None}
        for values in product(*choices.values())
    ]


def fill(leader: Any, rows: Any) -> tuple[list[Any], list[Any]]:
    runs, tasks = [], []
    for n in range(40):
        job = ("a", "b")[n % 3 == 0]
        run_id = f"{job}~{n}"
        # Several of the same millisecond, as a bulk request makes them.
        at = T + n // 4 * 1000
        runs.append(rows.run(run_id, job=job, status=STATUSES[n % 7 % 3], group_name=("x", "y")[n % 2], created_at=at))
        tasks.append(
            rows.task(
                (at << 16) + n, run_id, job_name=job, status=STATUSES[n % 5 % 3],
                target_worker=(None, "w1", "w2")[n % 3], create_time="2026-11-30 21:22:47.123",
            )
        )  # fmt: skip
    leader.commit(runs_new=runs, tasks_new=tasks)
    return runs[::-1], tasks[::-1]


@pytest.mark.parametrize("most", [3, 10_000])
def test_runs_by_any_combination_of_filters(store: Store, leader: Any, rows: Any, most: int) -> None:
    if hasattr(store, "scanner"):
        store.scanner.most = store.scanner.most_by_index = most
    runs, _ = fill(leader, rows)
    runs.sort(key=lambda row: (row.created_at, row.run_id), reverse=True)
    since, until = T + 2000, T + 7000
    for given in combinations(
        job=(None, "a", "b", "c"), status=(None, "FAILED", "SKIPPED"), group=(None, "x"), since=(None, since),
        until=(None, until),
    ):  # fmt: skip
        wanted = [
            row.run_id for row in runs
            if given.get("job") in (None, row.job) and given.get("status") in (None, row.status)
            and given.get("group") in (None, row.group_name) and row.created_at >= given.get("since", 0)
            and row.created_at < given.get("until", T * 2)
        ]  # fmt: skip
        filters = {name: format_instant(value) if type(value) is int else value for name, value in given.items()}
        for limit in (4, 100):
            assert [row.run_id for row in everything(store.runs, limit, filters)] == wanted, filters


@pytest.mark.parametrize("most", [3, 10_000])
def test_tasks_by_any_combination_of_filters(store: Store, leader: Any, rows: Any, most: int) -> None:
    if hasattr(store, "scanner"):
        store.scanner.most = store.scanner.most_by_index = most
    _, tasks = fill(leader, rows)
    since, until = T + 2000, T + 7000
    for given in combinations(
        job=(None, "a", "c"), status=(None, *STATUSES), worker=(None, "w1"), since=(None, since), until=(None, until)
    ):
        wanted = [
            row.job_id for row in tasks
            if given.get("job") in (None, row.job_name) and given.get("status") in (None, row.status)
            and given.get("worker") in (None, row.target_worker) and row.job_id >> 16 >= given.get("since", 0)
            and row.job_id >> 16 < given.get("until", T * 2)
        ]  # fmt: skip
        filters = {name: format_instant(value) if type(value) is int else value for name, value in given.items()}
        for limit in (4, 100):
            assert [row.job_id for row in everything(store.tasks, limit, filters)] == wanted, filters


@pytest.mark.parametrize("field", ["since", "until"])
@pytest.mark.parametrize("value", ["", "yesterday", "2026-11-30", "2026-11-30T21:22:47", "1960-01-01T00:00:00Z"])
def test_what_is_no_instant_is_refused(store: Store, field: str, value: str) -> None:
    for fetch in (store.runs, store.tasks):
        with pytest.raises(InvalidValue) as caught:
            fetch(5, None, {field: value})
        assert caught.value.field == field


def test_the_last_instant_is_an_instant(store: Store, leader: Any, rows: Any) -> None:
    fill(leader, rows)
    last = "9999-12-31T23:59:59.999Z"
    assert len(store.runs(100, None, {"until": last}).items) == len(store.tasks(100, None, {"until": last}).items) == 40
    assert not store.runs(100, None, {"since": last}).items and not store.tasks(100, None, {"since": last}).items


def test_a_cursor_of_tasks_belongs_to_its_list(store: Store, leader: Any, rows: Any) -> None:
    fill(leader, rows)
    of_all, of_runs = store.tasks(1, None, {}).next, store.runs(1, None, {}).next
    assert of_all and of_runs
    for fetch, cursor in ((store.runs, of_all), (store.tasks, of_runs)):
        with pytest.raises(InvalidValue):
            fetch(1, cursor, {})
    with pytest.raises(InvalidValue):
        store.tasks_of("a~1", 1, of_all, {})


def test_attempts_of_many_tasks(store: Store, leader: Any, rows: Any) -> None:
    found = [rows.attempt("a~1:0", 1), rows.attempt("a~1:0", 2), rows.attempt("b~1:0", 10), rows.attempt("b~1:0", 9)]
    leader.commit(attempts=found)
    assert store.attempts_of(["a~1:0", "b~1:0", "none", "\ud800"]) == {
        "a~1:0": found[:2], "b~1:0": [found[3], found[2]],
    }  # fmt: skip


# -- a page has an end by bytes too


RESULT = 255 * 1024
KINDS = ("jobs", "runs", "tasks", "tasks_of")


def put(leader: Any, rows: Any, kind: str, texts: list[str], **changed: Any) -> list[Any]:
    """Store a row for each of `texts`, in the order of the list, and return them."""
    numbers = range(len(texts))
    if kind == "jobs":
        found = [rows.job(f"j{n:04}", definition=text) for n, text in zip(numbers, texts, strict=True)]
    elif kind == "runs":
        # A request may be long by its params, a run by what it keeps of its job.
        found = [
            rows.run(f"j~{n}", created_at=T - n, **{("params", "snapshot")[n % 2]: text})
            for n, text in zip(numbers, texts, strict=True)
        ]
    else:
        sign = 1 if kind == "tasks_of" else -1
        found = [
            rows.task((T << 16) + sign * n, "j~1", n, status="SUCCESS", **{("result", "error")[n % 2]: text}, **changed)
            for n, text in zip(numbers, texts, strict=True)
        ]
    for start in range(0, len(found), 20):
        leader.commit(**{f"{kind.removesuffix('_of')}_new": found[start : start + 20]})
    return found


def fetch(store: Store, kind: str) -> Any:
    if kind == "tasks_of":
        return lambda *page: store.tasks_of("j~1", *page)
    return getattr(store, kind)


def pages(store: Store, kind: str, limit: int) -> list[list[Any]]:
    found = []
    cursor = None
    while True:
        page = fetch(store, kind)(limit, cursor, {})
        found.append(list(page.items))
        if page.next is None:
            return found
        cursor = page.next


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_ends_where_it_has_enough_bytes(store: Store, leader: Any, rows: Any, kind: str) -> None:
    stored = put(leader, rows, kind, [f'"{"x" * RESULT}"'] * 70)
    found = pages(store, kind, 1000)
    assert [len(page) for page in found] == [32, 32, 6]
    assert [row for page in found for row in page] == stored
    assert [len(page) for page in pages(store, kind, 30)] == [30, 30, 10]


@pytest.mark.parametrize("kind", KINDS)
def test_long_rows_among_short_ones(store: Store, leader: Any, rows: Any, kind: str) -> None:
    # Runs of both, at the seams of what is read at once, and characters of several bytes.
    texts = ["1"] * 127 + [f'"{"é" * 100_000}"'] * 3 + ["2"] * 300 + [f'"{"x" * RESULT}"'] * 45 + ["3", '"é"']
    stored = put(leader, rows, kind, texts)
    found = pages(store, kind, 1000)
    assert [row for page in found for row in page] == stored
    assert len(found) == 2
    for limit in (7, 128, 129, 400):
        assert [row for page in pages(store, kind, limit) for row in page] == stored


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_has_one_row_however_large(store: Store, leader: Any, rows: Any, kind: str) -> None:
    large = f'"{"x" * (PAGE_BYTES + 1)}"'
    stored = put(leader, rows, kind, ["1", large, large])
    assert pages(store, kind, 1000) == [[row] for row in stored]
    assert pages(store, kind, 1) == [[row] for row in stored]


@pytest.mark.parametrize("kind", ["tasks", "tasks_of"])
def test_attempts_that_are_shown_with_tasks_count(store: Store, leader: Any, rows: Any, kind: str) -> None:
    stored = put(leader, rows, kind, ["1"] * 25, attempt=101)
    found = pages(store, kind, 1000)
    assert [len(page) for page in found] == [10, 10, 5]
    assert [row for page in found for row in page] == stored


@pytest.mark.parametrize("store", ["sqlite", "mariadb"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("short", "limit", "most"), [(0, 1000, 2), (101, 100, 1), (400, 1000, 4)])
def test_the_database_sends_little_more_than_a_page(
    store: Store, leader: Any, rows: Any, kind: str, short: int, limit: int, most: int
) -> None:
    assert isinstance(store, SqlReads)
    put(leader, rows, kind, ["1"] * short + [f'"{"x" * RESULT}"'] * 70)
    listings: dict[str, Listing[Any]] = {"jobs": JOBS, "runs": RUNS, "tasks": ALL_TASKS, "tasks_of": TASKS}
    within = (Condition("run_id", "=", "j~1"),) if kind == "tasks_of" else ()
    statements, came = received(store, listings[kind], {}, None, within, limit)
    assert sum(len(value) for row in came for value in row if isinstance(value, str)) < PAGE_BYTES * 1.1
    lists = [text for text, _ in statements if "OFFSET" not in text]
    assert len(lists) <= most
