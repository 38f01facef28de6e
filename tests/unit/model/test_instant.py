from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsched.model.instant import MAX_INSTANT_MS, Moment, format_instant, parse_instant

instants_ms = st.integers(min_value=0, max_value=MAX_INSTANT_MS)


@pytest.mark.parametrize(
    ("text", "instant_ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.001Z", 1),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1969-12-31T19:00:00-05:00", 0),
        ("2025-11-30T21:20:00Z", 1_764_537_600_000),
        ("2025-11-30T21:20:00.5Z", 1_764_537_600_500),
        ("2025-11-30T21:20:00.123999999Z", 1_764_537_600_123),
        ("2025-11-30t21:20:00z", 1_764_537_600_000),
        ("2025-12-01T02:50:00+05:30", 1_764_537_600_000),
        ("2025-11-30T21:20:00-00:00", 1_764_537_600_000),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000),
        ("9999-12-31T23:59:59.999Z", MAX_INSTANT_MS),
    ],
)
def test_reads_rfc3339(text: str, instant_ms: int) -> None:
    assert parse_instant(text) == instant_ms


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "RFC 3339"),
        ("2025-11-30", "RFC 3339"),
        ("2025-11-30T21:20:00", "RFC 3339"),
        ("2025-11-30 21:20:00Z", "RFC 3339"),
        ("2025-11-30T21:20Z", "RFC 3339"),
        ("2025-11-30T21:20:00.Z", "RFC 3339"),
        ("2025-11-30T21:20:00,5Z", "RFC 3339"),
        ("2025-11-30T21:20:00+0200", "RFC 3339"),
        ("2025-11-30T21:20:00Z\n", "RFC 3339"),
        (" 2025-11-30T21:20:00Z", "RFC 3339"),
        ("20251130T212000Z", "RFC 3339"),
        ("2025-W48-7T21:20:00Z", "RFC 3339"),
        ("٢٠٢٥-11-30T21:20:00Z", "RFC 3339"),
        ("1764537600000", "RFC 3339"),
        ("12025-11-30T21:20:00Z", "RFC 3339"),
        ("2025-11-30T21:20:00.0000000001Z", "RFC 3339"),
        ("2025-02-29T00:00:00Z", "exist"),
        ("2025-13-01T00:00:00Z", "exist"),
        ("2025-11-30T24:00:00Z", "exist"),
        ("0000-01-01T00:00:00Z", "exist"),
        ("2016-12-31T23:59:60Z", "leap second"),
        ("2025-11-30T21:20:00+24:00", "offset"),
        ("2025-11-30T21:20:00+01:60", "offset"),
        ("1969-12-31T23:59:59.999Z", "1970"),
        ("1970-01-01T00:00:00+00:01", "1970"),
        ("9999-12-31T23:59:59-00:01", "9999"),
    ],
)
def test_refuses_everything_else(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_instant(text)


def test_writes_utc_with_three_decimals() -> None:
    assert format_instant(0) == "1970-01-01T00:00:00.000Z"
    assert format_instant(parse_instant("2026-11-30T23:22:47.123+02:00")) == "2026-11-30T21:22:47.123Z"
    assert format_instant(MAX_INSTANT_MS) == "9999-12-31T23:59:59.999Z"


@pytest.mark.parametrize("instant_ms", [-1, MAX_INSTANT_MS + 1])
def test_writes_no_instant_outside_its_range(instant_ms: int) -> None:
    with pytest.raises(ValueError, match="1970"):
        format_instant(instant_ms)


@given(instants_ms)
def test_text_and_back_is_the_same_instant(instant_ms: int) -> None:
    text = format_instant(instant_ms)
    assert parse_instant(text) == instant_ms
    assert datetime.fromisoformat(text) == datetime.fromtimestamp(instant_ms // 1000, UTC).replace(
        microsecond=instant_ms % 1000 * 1000
    )


@given(instants_ms, instants_ms)
def test_text_sorts_like_the_instants(one_ms: int, other_ms: int) -> None:
    assert (format_instant(one_ms) < format_instant(other_ms)) == (one_ms < other_ms)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        instant_ms = parse_instant(text)
    except ValueError:
        return
    assert 0 <= instant_ms <= MAX_INSTANT_MS


def test_a_moment_is_both_clocks() -> None:
    moment = Moment(mono_s=12.5, wall_ms=1_764_537_600_000)
    assert moment == (12.5, 1_764_537_600_000)
