import gc
import weakref
from math import inf, nan
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dsched.engine.wheel import Entry, TimingWheel

DAY_MS = 86_400_000


def test_empty_wheel() -> None:
    wheel: TimingWheel[str] = TimingWheel(5.0)
    assert len(wheel) == 0
    assert wheel.next_deadline() is None
    assert wheel.advance(1e12) == []


def test_fires_at_its_deadline_and_not_a_moment_before() -> None:
    wheel: TimingWheel[str] = TimingWheel(0)
    entry = wheel.arm(1000.25, "a")
    assert (entry.deadline_ms, entry.payload, entry.armed) == (1000.25, "a", True)
    assert wheel.next_deadline() == 1000.25
    assert wheel.advance(1000.2499) == []
    assert wheel.advance(1000.25) == ["a"]
    assert not entry.armed
    assert len(wheel) == 0
    assert wheel.next_deadline() is None


def test_cancel_is_idempotent_also_after_firing() -> None:
    wheel: TimingWheel[str] = TimingWheel(0)
    kept, young, settled = (wheel.arm(deadline_ms, "x") for deadline_ms in (9, 10, 11))
    wheel.cancel(young)
    wheel.cancel(young)
    assert wheel.next_deadline() == 9
    wheel.cancel(settled)
    wheel.cancel(settled)
    assert (len(wheel), young.armed, settled.armed) == (1, False, False)
    assert wheel.advance(100) == ["x"]
    wheel.cancel(kept)
    assert len(wheel) == 0


def test_equal_deadlines_fire_in_arming_order() -> None:
    wheel: TimingWheel[int] = TimingWheel(0)
    for number in range(6):
        wheel.arm(70_000, number)
        if number % 2:
            wheel.next_deadline()
    wheel.arm(69_999.5, 6)
    assert wheel.advance(70_000) == [6, 0, 1, 2, 3, 4, 5]


def test_fractions_of_one_millisecond_keep_their_order() -> None:
    wheel: TimingWheel[float] = TimingWheel(0)
    for deadline_ms in (5.5, 5.25, 5.75, 5.0, 5.5, 5.125):
        wheel.arm(deadline_ms, deadline_ms)
    assert wheel.next_deadline() == 5.0
    assert wheel.advance(5.5) == [5.0, 5.125, 5.25, 5.5, 5.5]
    assert wheel.next_deadline() == 5.75


def test_a_deadline_in_the_past_is_due_at_the_next_advance() -> None:
    wheel: TimingWheel[str] = TimingWheel(1_000_000.0)
    wheel.arm(999_999, "late")
    wheel.arm(-5.5, "later")
    wheel.arm(1_000_000, "now")
    assert wheel.next_deadline() == -5.5
    assert wheel.advance(1_000_000.0) == ["later", "late", "now"]


def test_deadlines_years_away_are_exact() -> None:
    wheel: TimingWheel[str] = TimingWheel(0.0)
    ten_years_ms = 3650 * DAY_MS
    wheel.arm(1e18, "beyond the wheels")
    wheel.arm(2e18, "further beyond")
    wheel.arm(ten_years_ms + 1, "b")
    wheel.arm(ten_years_ms, "a")
    assert wheel.next_deadline() == ten_years_ms
    assert wheel.advance(ten_years_ms - 1) == []
    assert wheel.advance(ten_years_ms) == ["a"]
    assert wheel.next_deadline() == ten_years_ms + 1
    assert wheel.advance(1e19) == ["b", "beyond the wheels", "further beyond"]


def test_a_clock_that_stands_or_steps_back_fires_nothing() -> None:
    wheel: TimingWheel[str] = TimingWheel(100)
    wheel.arm(200, "a")
    assert wheel.advance(199) == []
    assert wheel.advance(50) == []
    assert wheel.advance(200) == ["a"]
    wheel.arm(150, "b")
    assert wheel.advance(149) == []
    assert wheel.advance(150) == ["b"]


@pytest.mark.parametrize("deadline_ms", [nan, inf, -inf])
@pytest.mark.parametrize("others", [0, 1])
def test_refuses_what_is_no_instant(deadline_ms: float, others: int) -> None:
    wheel: TimingWheel[str] = TimingWheel(0)
    for _ in range(others):
        wheel.arm(10, "x")
    with pytest.raises(ValueError, match="finite"):
        wheel.arm(deadline_ms, "y")
    assert len(wheel) == others
    assert wheel.advance(10) == ["x"] * others


def test_many_thousands_in_random_order() -> None:
    rng = Random(7)
    wheel: TimingWheel[int] = TimingWheel(0)
    spans = (10, 1000, DAY_MS, 400 * DAY_MS)
    entries = [wheel.arm(rng.randrange(rng.choice(spans)), number) for number in range(20_000)]
    for number in range(0, 20_000, 3):
        wheel.cancel(entries[number])
    left = sorted((entry.deadline_ms, entry.payload) for entry in entries if entry.armed)
    assert len(wheel) == len(left)
    assert wheel.next_deadline() == left[0][0]
    half = left[len(left) // 2][0]
    fired = wheel.advance(half)
    assert fired == [number for deadline_ms, number in left if deadline_ms <= half]
    assert wheel.advance(left[-1][0]) == [number for deadline_ms, number in left if deadline_ms > half]
    assert len(wheel) == 0


@pytest.mark.parametrize("kept_of_ten", [0, 1, 6, 9])
def test_timeouts_of_tasks_that_mostly_end_in_time(kept_of_ten: int) -> None:
    rng = Random(kept_of_ten)
    wheel: TimingWheel[int] = TimingWheel(0)
    under_way: list[Entry[int]] = []
    waiting: dict[int, float] = {}
    fired: list[int] = []
    for number in range(12_000):
        now_ms = number / 4
        entry = wheel.arm(now_ms + rng.choice((400, 400, 400, 400, 600, 50)), number)
        waiting[number] = entry.deadline_ms
        if rng.randrange(10) >= kept_of_ten:
            under_way.append(entry)
        if len(under_way) > 700:
            ended = under_way.pop(rng.randrange(len(under_way)))
            wheel.cancel(ended)
            waiting.pop(ended.payload, None)
        if number % 50 == 0:
            due = sorted((deadline_ms, number) for number, deadline_ms in waiting.items() if deadline_ms <= now_ms)
            assert wheel.advance(now_ms) == [number for _, number in due]
            for _, number in due:
                del waiting[number]
            fired += [number for _, number in due]
            assert wheel.next_deadline() == min(waiting.values())
            assert len(wheel) == len(waiting)
    rest = sorted((deadline_ms, number) for number, deadline_ms in waiting.items())
    assert wheel.advance(inf) == [number for _, number in rest]
    assert fired


def test_cancelled_payloads_are_not_kept_behind_a_long_one() -> None:
    class Heavy:
        pass

    wheel: TimingWheel[Heavy] = TimingWheel(0)
    wheel.arm(1, Heavy())
    alive: weakref.WeakSet[Heavy] = weakref.WeakSet()
    for number in range(5_000):
        payload = Heavy()
        alive.add(payload)
        wheel.cancel(wheel.arm(1_000 + number, payload))
        assert wheel.next_deadline() == 1
    del payload
    assert len(alive) <= 520


def test_many_overdue_deadlines_in_falling_order_after_a_restart() -> None:
    wheel: TimingWheel[int] = TimingWheel(1e9)
    for number in range(20_000):
        wheel.arm(1e9 - number, number)
    assert wheel.advance(1e9) == list(range(19_999, -1, -1))


def test_what_was_cancelled_or_fired_leaves_without_the_garbage_collector() -> None:
    class Heavy:
        pass

    gc.disable()
    try:
        wheel: TimingWheel[Heavy] = TimingWheel(0)
        settled, fired = Heavy(), Heavy()
        gone = [weakref.ref(settled), weakref.ref(fired)]
        entry = wheel.arm(5, settled)
        wheel.arm(4, fired)
        wheel.next_deadline()
        wheel.cancel(entry)
        wheel.advance(4)
        del settled, fired, entry
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()


class WheelAgainstSortedList(RuleBasedStateMachine):
    """Compare the wheel with a list that is sorted at every question."""

    @initialize(now_ms=st.sampled_from([0, 0.0, 123.75, 1e9, 86_400_000 * 365]))
    def start(self, now_ms: float) -> None:
        self.now_ms = now_ms
        self.wheel: TimingWheel[int] = TimingWheel(now_ms)
        self.armed: dict[int, Entry[int]] = {}
        self.known: list[Entry[int]] = []

    def ordered(self) -> list[tuple[float, int]]:
        return sorted((entry.deadline_ms, number) for number, entry in self.armed.items())

    @rule(
        delay_ms=st.one_of(
            st.integers(-300, 300),
            st.sampled_from([0, 0.25, 0.5, 255, 256, 257, 65_535, 65_536, 35_000, 35_000]),
            st.floats(-10, 70_000, allow_nan=False),
            st.integers(0, 100 * 365 * DAY_MS),
            st.integers(-(10**17), 10**17),
        ),
        copies=st.integers(1, 3),
    )
    def arm(self, delay_ms: float, copies: int) -> None:
        for _ in range(copies):
            number = len(self.known)
            entry = self.wheel.arm(self.now_ms + delay_ms, number)
            self.known.append(entry)
            self.armed[number] = entry

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.known))
        self.wheel.cancel(entry)
        self.armed.pop(entry.payload, None)

    @precondition(lambda self: self.armed)
    @rule()
    def cancel_the_first(self) -> None:
        number = self.ordered()[0][1]
        self.wheel.cancel(self.armed.pop(number))

    @rule(step_ms=st.one_of(st.integers(0, 300), st.floats(0, 70_000), st.integers(0, 10**12)))
    def advance(self, step_ms: float) -> None:
        self.now_ms += step_ms
        self.expect_due()

    @precondition(lambda self: self.armed)
    @rule()
    def advance_to_the_next(self) -> None:
        deadline_ms = self.wheel.next_deadline()
        assert deadline_ms == self.ordered()[0][0]
        self.now_ms = max(self.now_ms, deadline_ms)
        self.expect_due()

    def expect_due(self) -> None:
        due = [number for deadline_ms, number in self.ordered() if deadline_ms <= self.now_ms]
        assert self.wheel.advance(self.now_ms) == due
        for number in due:
            del self.armed[number]

    @rule()
    def ask_for_the_next(self) -> None:
        ordered = self.ordered()
        assert self.wheel.next_deadline() == (ordered[0][0] if ordered else None)

    @invariant()
    def counts_and_flags_agree(self) -> None:
        assert len(self.wheel) == len(self.armed)
        assert all(entry.armed == (number in self.armed) for number, entry in enumerate(self.known))

    def teardown(self) -> None:
        if hasattr(self, "wheel"):
            self.now_ms = 1e18
            self.expect_due()
            assert self.wheel.next_deadline() is None


TestWheelAgainstSortedList = WheelAgainstSortedList.TestCase
TestWheelAgainstSortedList.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_cancelling_within_crowded_milliseconds(delays_ms: list[int], rng: Random) -> None:
    wheel: TimingWheel[int] = TimingWheel(0)
    entries = [wheel.arm(delay_ms / 4, number) for number, delay_ms in enumerate(delays_ms)]
    wheel.next_deadline()
    for entry in rng.sample(entries, len(entries) // 2):
        wheel.cancel(entry)
    left = sorted((entry.deadline_ms, entry.payload) for entry in entries if entry.armed)
    assert wheel.advance(10) == [number for _, number in left]
