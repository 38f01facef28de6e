from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsched.engine.retry import rejection_delay_ms, retry_delay_ms


@pytest.mark.parametrize(
    ("failures", "nominal_ms"),
    [
        (1, 10_000),
        (2, 20_000),
        (3, 40_000),
        (4, 80_000),
        (5, 160_000),
        (6, 300_000),
        (7, 300_000),
        (1_100, 300_000),
        (10_000, 300_000),
    ],
)
def test_doubles_up_to_the_cap_within_a_tenth(failures: int, nominal_ms: int) -> None:
    assert retry_delay_ms(failures, 10, Random(0), jitter=0.0) == nominal_ms
    rng = Random(failures)
    delays_ms = [retry_delay_ms(failures, 10, rng) for _ in range(300)]
    assert min(delays_ms) >= nominal_ms * 0.9
    assert max(delays_ms) <= nominal_ms * 1.1
    # The whole width is used, above the cap as well.
    assert min(delays_ms) < nominal_ms * 0.92
    assert max(delays_ms) > nominal_ms * 1.08


def test_same_seed_same_delays() -> None:
    one, other = Random(3), Random(3)
    assert [retry_delay_ms(n, 10, one) for n in (1, 2, 3)] == [retry_delay_ms(n, 10, other) for n in (1, 2, 3)]


@pytest.mark.parametrize("failures", [1, 2, 10_000])
def test_no_backoff_is_no_wait(failures: int) -> None:
    assert retry_delay_ms(failures, 0, Random(0)) == 0


def test_own_cap_and_jitter() -> None:
    assert retry_delay_ms(9, 1.0, Random(0), cap_s=2.5, jitter=0.0) == 2_500
    assert retry_delay_ms(1, 400.0, Random(0), jitter=0.0) == 300_000


@given(
    st.integers(1, 10**30), st.floats(0, 1e300), st.floats(0, 1e6), st.floats(0, 5), st.randoms(use_true_random=False)
)
def test_never_negative_never_above_the_cap_and_its_jitter(
    failures: int, base_s: float, cap_s: float, jitter: float, rng: Random
) -> None:
    delay_ms = retry_delay_ms(failures, base_s, rng, cap_s=cap_s, jitter=jitter)
    assert 0 <= delay_ms <= cap_s * 1000 * (1 + jitter) + 1


@pytest.mark.parametrize(
    ("rejections", "delay_ms"),
    [(1, 10_000), (2, 20_000), (3, 40_000), (4, 80_000), (5, 160_000), (6, 300_000), (7, 300_000), (10**9, 300_000)],
)
def test_rejections_double_from_ten_seconds(rejections: int, delay_ms: int) -> None:
    assert rejection_delay_ms(rejections) == delay_ms


@pytest.mark.parametrize("count", [0, -1])
def test_counts_begin_at_one(count: int) -> None:
    with pytest.raises(ValueError, match="count from 1"):
        retry_delay_ms(count, 10, Random(0))
    with pytest.raises(ValueError, match="count from 1"):
        rejection_delay_ms(count)
