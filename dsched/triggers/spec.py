"""Triggers as people write them: the JSON shape of the API and of stored jobs."""

from collections.abc import Mapping
from typing import Any, Final

from dsched.errors import InvalidValue
from dsched.model.instant import format_instant, parse_instant
from dsched.model.limits import MAX_PERIOD_S, MIN_PERIOD_S
from dsched.triggers.interval import IntervalTrigger
from dsched.triggers.none import NoTrigger
from dsched.triggers.trigger import Trigger

__all__ = ["parse_trigger", "trigger_spec"]

_FIELDS: Final = {
    "none": ("type",),
    "interval": ("type", "seconds", "anchor", "start", "end"),
}
_NOT_YET: Final = ("cron", "once", "delay")


def parse_trigger(value: object, *, created_ms: int) -> Trigger:
    """Read a trigger from its JSON shape: `{"type": "none"}` or `{"type": "interval", "seconds": 30}`.

    An interval takes `seconds` from 0.1 to ten years, in whole milliseconds, and optionally the instants
    `anchor` (the first due; without it `created_ms` counts as number 0, which is over), `start` and
    `end` (a window, both included); an optional field may be null. Raises `InvalidValue`, which
    names the field (`trigger.seconds`) and the reason, for everything else, and for a window in
    which the job would never be due.
    """
    if not isinstance(value, Mapping):
        raise InvalidValue("trigger", 'must be an object such as {"type": "interval", "seconds": 30}')
    if "type" not in value:
        raise InvalidValue("trigger.type", "is missing; this version knows interval and none")
    kind = value["type"]
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise InvalidValue("trigger.type", _why_unknown(kind))
    known = _FIELDS[kind]
    for field in value:
        if field not in known:
            reason = f"is unknown; a trigger of type {kind} takes {', '.join(known)}"
            raise InvalidValue(f"trigger.{str(field)[:64]}", reason)
    if kind == "none":
        return NoTrigger()
    return _interval(value, created_ms)


def trigger_spec(trigger: Trigger) -> dict[str, Any]:
    """Write a trigger in its JSON shape, such that `parse_trigger` gives an equal one back."""
    if isinstance(trigger, NoTrigger):
        return {"type": "none"}
    if isinstance(trigger, IntervalTrigger):
        whole_s, rest_ms = divmod(trigger.period_ms, 1000)
        spec: dict[str, Any] = {
            "type": "interval",
            "seconds": trigger.period_ms / 1000 if rest_ms else whole_s,
            "anchor": format_instant(trigger.anchor_ms),
        }
        if trigger.start_ms is not None:
            spec["start"] = format_instant(trigger.start_ms)
        if trigger.end_ms is not None:
            spec["end"] = format_instant(trigger.end_ms)
        return spec
    raise TypeError(f"no trigger of this version: {trigger!r}")


def _interval(value: Mapping[Any, Any], created_ms: int) -> IntervalTrigger:
    anchor_ms = _instant(value, "anchor")
    trigger = IntervalTrigger(
        period_ms=_period_ms(value),
        anchor_ms=created_ms if anchor_ms is None else anchor_ms,
        start_ms=_instant(value, "start"),
        end_ms=_instant(value, "end"),
    )
    if trigger.start_ms is not None and trigger.end_ms is not None and trigger.end_ms < trigger.start_ms:
        raise InvalidValue("trigger.end", "must not be before start")
    if trigger.next_after(created_ms if anchor_ms is None else anchor_ms - 1) is None:
        raise InvalidValue("trigger.end" if trigger.end_ms is not None else "trigger", "leaves no due instant")
    return trigger


def _period_ms(value: Mapping[Any, Any]) -> int:
    if "seconds" not in value:
        raise InvalidValue("trigger.seconds", "is missing")
    seconds = value["seconds"]
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidValue("trigger.seconds", "must be a number")
    if not MIN_PERIOD_S <= seconds <= MAX_PERIOD_S:  # refuses NaN as well
        raise InvalidValue("trigger.seconds", f"must be from {MIN_PERIOD_S} to {MAX_PERIOD_S} (ten years)")
    period_ms = round(seconds * 1000)
    if period_ms / 1000 != seconds:
        raise InvalidValue("trigger.seconds", "must have at most three decimals")
    return period_ms


def _instant(value: Mapping[Any, Any], name: str) -> int | None:
    text = value.get(name)
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidValue(f"trigger.{name}", "must be an RFC 3339 instant in a string")
    try:
        return parse_instant(text)
    except ValueError as error:
        raise InvalidValue(f"trigger.{name}", str(error)) from None


def _why_unknown(kind: object) -> str:
    if kind in _NOT_YET:
        return f"{kind} is not supported yet; this version knows interval and none"
    return "must be interval or none"
