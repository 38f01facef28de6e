from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsched.errors import InvalidValue
from dsched.model.instant import MAX_INSTANT_MS, parse_instant
from dsched.model.limits import MAX_PERIOD_S
from dsched.triggers.interval import IntervalTrigger
from dsched.triggers.none import NoTrigger
from dsched.triggers.spec import parse_trigger, trigger_spec

CREATED_MS = 1_764_537_600_000
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
instants = st.sampled_from(["1970-01-01T00:00:00Z", "2025-11-30T21:20:00.5+02:00", "9999-12-31T23:59:59.999Z"])


def interval(**fields: object) -> dict[str, object]:
    return {"type": "interval", "seconds": 30, **fields}


def test_none() -> None:
    assert parse_trigger({"type": "none"}, created_ms=CREATED_MS) == NoTrigger()


def test_an_interval_is_anchored_at_creation() -> None:
    trigger = parse_trigger(interval(), created_ms=CREATED_MS)
    assert trigger == IntervalTrigger(period_ms=30_000, anchor_ms=CREATED_MS)
    assert trigger.next_after(CREATED_MS) == CREATED_MS + 30_000


def test_all_fields() -> None:
    trigger = parse_trigger(
        interval(
            seconds=0.25,
            anchor="2025-01-01T02:00:00+02:00",
            start="2025-02-01T00:00:00Z",
            end="2025-03-01T00:00:00.5Z",
        ),
        created_ms=CREATED_MS,
    )
    assert trigger == IntervalTrigger(
        period_ms=250,
        anchor_ms=parse_instant("2025-01-01T00:00:00Z"),
        start_ms=parse_instant("2025-02-01T00:00:00Z"),
        end_ms=parse_instant("2025-03-01T00:00:00.500Z"),
    )


def test_null_is_as_good_as_absent() -> None:
    assert parse_trigger(interval(anchor=None, start=None, end=None), created_ms=CREATED_MS) == parse_trigger(
        interval(), created_ms=CREATED_MS
    )


@pytest.mark.parametrize(
    ("seconds", "period_ms"),
    [(1, 1_000), (30.0, 30_000), (0.1, 100), (1.001, 1_001), (2.675, 2_675), (MAX_PERIOD_S, MAX_PERIOD_S * 1000)],
)
def test_periods_are_whole_milliseconds(seconds: float, period_ms: int) -> None:
    trigger = parse_trigger(interval(seconds=seconds), created_ms=CREATED_MS)
    assert isinstance(trigger, IntervalTrigger)
    assert trigger.period_ms == period_ms


@pytest.mark.parametrize(
    ("value", "field", "reason"),
    [
        (None, "trigger", "object"),
        ("interval", "trigger", "object"),
        ([], "trigger", "object"),
        ({}, "trigger.type", "missing"),
        ({"type": None}, "trigger.type", "interval or none"),
        ({"type": ["none"]}, "trigger.type", "interval or none"),
        ({"type": {}}, "trigger.type", "interval or none"),
        ({"type": "Interval"}, "trigger.type", "interval or none"),
        ({"type": "cron", "expression": "* * * * *"}, "trigger.type", "cron is not supported yet; this version knows"),
        ({"type": "once", "at": "2025-11-30T21:20:00Z"}, "trigger.type", "once is not supported yet"),
        ({"type": "delay", "seconds": 60}, "trigger.type", "delay is not supported yet"),
        ({"type": "none", "seconds": 30}, "trigger.seconds", "unknown"),
        (interval(jitter=5), "trigger.jitter", "unknown"),
        (interval(exclude=[]), "trigger.exclude", "unknown"),
        (interval(period=5), "trigger.period", "takes type, seconds, anchor, start, end"),
        ({"type": "interval"}, "trigger.seconds", "missing"),
        (interval(seconds=None), "trigger.seconds", "number"),
        (interval(seconds=True), "trigger.seconds", "number"),
        (interval(seconds="30"), "trigger.seconds", "number"),
        (interval(seconds=[30]), "trigger.seconds", "number"),
        (interval(seconds=0), "trigger.seconds", "from 0.1"),
        (interval(seconds=-30), "trigger.seconds", "from 0.1"),
        (interval(seconds=0.0999), "trigger.seconds", "from 0.1"),
        (interval(seconds=nan), "trigger.seconds", "from 0.1"),
        (interval(seconds=inf), "trigger.seconds", "ten years"),
        (interval(seconds=-inf), "trigger.seconds", "from 0.1"),
        (interval(seconds=MAX_PERIOD_S + 1), "trigger.seconds", "ten years"),
        (interval(seconds=10**400), "trigger.seconds", "ten years"),
        (interval(seconds=1.0005), "trigger.seconds", "three decimals"),
        (interval(seconds=1 / 3), "trigger.seconds", "three decimals"),
        (interval(anchor="tomorrow"), "trigger.anchor", "RFC 3339"),
        (interval(anchor=""), "trigger.anchor", "RFC 3339"),
        (interval(anchor=CREATED_MS), "trigger.anchor", "in a string"),
        (interval(start="2025-11-30T21:20:00"), "trigger.start", "RFC 3339"),
        (interval(start=False), "trigger.start", "in a string"),
        (interval(end="2025-02-29T00:00:00Z"), "trigger.end", "exist"),
        (interval(start="2030-01-01T00:00:00Z", end="2029-01-01T00:00:00Z"), "trigger.end", "before start"),
        (interval(end="2025-01-01T00:00:00Z"), "trigger.end", "no due"),
        (interval(end="2025-11-30T21:20:29.999Z"), "trigger.end", "no due"),
        (interval(anchor="2030-01-01T00:00:00Z", end="2029-01-01T00:00:00Z"), "trigger.end", "no due"),
        (
            interval(
                anchor="2030-01-01T00:00:00Z", start="2030-01-01T00:00:01Z", end="2030-01-01T00:00:29Z", seconds=30
            ),
            "trigger.end",
            "no due",
        ),
        (interval(start="9999-12-31T23:59:59.999Z", seconds=86_400), "trigger", "no due"),
    ],
)
def test_refuses_and_names_field_and_reason(value: object, field: str, reason: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_trigger(value, created_ms=CREATED_MS)
    assert caught.value.field == field
    assert reason in caught.value.reason


def test_spec_is_the_shape_of_the_api() -> None:
    assert trigger_spec(NoTrigger()) == {"type": "none"}
    spec = trigger_spec(IntervalTrigger(period_ms=30_000, anchor_ms=CREATED_MS))
    assert spec == {"type": "interval", "seconds": 30, "anchor": "2025-11-30T21:20:00.000Z"}
    assert isinstance(spec["seconds"], int)
    assert trigger_spec(IntervalTrigger(period_ms=1_500, anchor_ms=0, start_ms=1, end_ms=CREATED_MS)) == {
        "type": "interval",
        "seconds": 1.5,
        "anchor": "1970-01-01T00:00:00.000Z",
        "start": "1970-01-01T00:00:00.001Z",
        "end": "2025-11-30T21:20:00.000Z",
    }


@given(
    period_ms=st.integers(100, MAX_PERIOD_S * 1000),
    anchor_ms=st.integers(0, MAX_INSTANT_MS),
    start_ms=st.none() | st.integers(0, MAX_INSTANT_MS),
    end_ms=st.none() | st.integers(0, MAX_INSTANT_MS),
)
def test_spec_and_back_is_the_same_trigger(
    period_ms: int, anchor_ms: int, start_ms: int | None, end_ms: int | None
) -> None:
    trigger = IntervalTrigger(period_ms, anchor_ms, start_ms, end_ms)
    spec = trigger_spec(trigger)
    if trigger.next_after(-1) is None:
        with pytest.raises(InvalidValue):
            parse_trigger(spec, created_ms=CREATED_MS)
    else:
        assert parse_trigger(spec, created_ms=CREATED_MS) == trigger


@given(
    st.one_of(
        json_values,
        st.fixed_dictionaries(
            {"type": st.sampled_from(["none", "interval"]) | json_values},
            optional={
                "seconds": st.floats() | json_values,
                "anchor": instants | json_values,
                "start": instants | json_values,
                "end": instants | json_values,
            },
        ),
    )
)
def test_any_json_is_read_or_refused(value: object) -> None:
    try:
        trigger = parse_trigger(value, created_ms=CREATED_MS)
    except InvalidValue as refused:
        assert refused.field.startswith("trigger")
        return
    assert parse_trigger(trigger_spec(trigger), created_ms=0) == trigger
