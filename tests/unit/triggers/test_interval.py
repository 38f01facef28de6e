import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsched.model.instant import MAX_INSTANT_MS, format_instant, parse_instant
from dsched.triggers.interval import IntervalTrigger
from dsched.triggers.trigger import Trigger

YEAR_MS = 365 * 86_400_000
ms = st.integers(-500, 500)
triggers = st.builds(
    IntervalTrigger,
    period_ms=st.integers(1, 60),
    anchor_ms=ms,
    start_ms=st.none() | ms,
    end_ms=st.none() | ms,
)


def dues_by_definition(trigger: IntervalTrigger, until_ms: int) -> list[int]:
    """Walk from the anchor, period by period."""
    dues, due_ms = [], trigger.anchor_ms
    while due_ms <= until_ms and (trigger.end_ms is None or due_ms <= trigger.end_ms):
        if trigger.start_ms is None or due_ms >= trigger.start_ms:
            dues.append(due_ms)
        due_ms += trigger.period_ms
    return dues


def take(trigger: Trigger, after_ms: int, count: int) -> list[str]:
    instants = []
    for _ in range(count):
        due_ms = trigger.next_after(after_ms)
        if due_ms is None:
            break
        instants.append(format_instant(due_ms))
        after_ms = due_ms
    return instants


def test_golden_two_hours_are_elapsed_time_over_a_daylight_saving_change() -> None:
    """Case B037: New York springs forward at 07:00Z on that day; elapsed time does not care."""
    trigger = IntervalTrigger(period_ms=7_200_000, anchor_ms=parse_instant("2025-03-09T05:00:00Z"))
    assert take(trigger, parse_instant("2025-03-09T00:00:00Z"), 4) == [
        "2025-03-09T05:00:00.000Z",
        "2025-03-09T07:00:00.000Z",
        "2025-03-09T09:00:00.000Z",
        "2025-03-09T11:00:00.000Z",
    ]


def test_downtime_is_counted_without_a_walk() -> None:
    """Case B040: a job every second, a core away for thirty years."""
    trigger = IntervalTrigger(period_ms=1000, anchor_ms=parse_instant("2000-01-01T00:00:00.250Z"))
    down_ms, up_ms = parse_instant("2000-01-01T00:00:10Z"), parse_instant("2030-01-01T00:00:10Z")
    assert trigger.count_between(down_ms, up_ms) == (up_ms - down_ms) // 1000
    assert trigger.latest_at_or_before(up_ms) == up_ms - 750
    assert trigger.next_after(up_ms) == up_ms + 250


def test_never_drifts() -> None:
    anchor_ms = parse_instant("2025-01-01T00:00:00.007Z")
    trigger = IntervalTrigger(period_ms=333, anchor_ms=anchor_ms)
    after_ms = anchor_ms + 333 * 10**9
    assert trigger.next_after(after_ms) == after_ms + 333
    assert trigger.next_after(after_ms - 1) == after_ms


def test_next_is_strictly_after_and_the_anchor_is_the_first() -> None:
    trigger = IntervalTrigger(period_ms=100, anchor_ms=1_000)
    assert [trigger.next_after(after_ms) for after_ms in (-50, 999, 1_000, 1_001, 1_099, 1_100)] == [
        1_000,
        1_000,
        1_100,
        1_100,
        1_100,
        1_200,
    ]
    assert trigger.latest_at_or_before(999) is None
    assert trigger.latest_at_or_before(1_000) == 1_000
    assert trigger.latest_at_or_before(1_199) == 1_100


def test_window_cuts_and_does_not_shift() -> None:
    trigger = IntervalTrigger(period_ms=100, anchor_ms=0, start_ms=250, end_ms=500)
    assert trigger.next_after(0) == 300
    assert trigger.next_after(400) == 500
    assert trigger.next_after(500) is None
    assert trigger.latest_at_or_before(299) is None
    assert trigger.latest_at_or_before(10_000) == 500
    assert trigger.count_between(0, 10_000) == 3
    empty = IntervalTrigger(period_ms=100, anchor_ms=0, start_ms=301, end_ms=399)
    assert (empty.next_after(0), empty.latest_at_or_before(10_000), empty.count_between(0, 10_000)) == (None, None, 0)


def test_ends_with_the_year_9999() -> None:
    trigger = IntervalTrigger(period_ms=10 * YEAR_MS, anchor_ms=0)
    last_ms = trigger.latest_at_or_before(MAX_INSTANT_MS * 2)
    assert last_ms is not None and last_ms <= MAX_INSTANT_MS
    assert trigger.next_after(last_ms) is None


@pytest.mark.parametrize("period_ms", [0, -1])
def test_a_period_lasts(period_ms: int) -> None:
    with pytest.raises(ValueError, match="period"):
        IntervalTrigger(period_ms=period_ms, anchor_ms=0)


@given(triggers, st.integers(-600, 600), st.integers(-600, 600))
def test_answers_equal_the_definition(trigger: IntervalTrigger, one_ms: int, other_ms: int) -> None:
    dues = dues_by_definition(trigger, until_ms=700)
    later = [due_ms for due_ms in dues if due_ms > one_ms]
    earlier = [due_ms for due_ms in dues if due_ms <= one_ms]
    assert trigger.next_after(one_ms) == (later[0] if later else None)
    assert trigger.latest_at_or_before(one_ms) == (earlier[-1] if earlier else None)
    assert trigger.count_between(one_ms, other_ms) == sum(one_ms < due_ms <= other_ms for due_ms in dues)
