"""Instants: whole milliseconds since 1970-01-01T00:00:00Z, and their RFC 3339 text."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

__all__ = ["MAX_INSTANT_MS", "Moment", "format_instant", "parse_instant"]

MAX_INSTANT_MS: Final = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the last instant that the text form can carry."""

_EPOCH: Final = datetime(1970, 1, 1)
_SECOND: Final = timedelta(seconds=1)
_RFC3339: Final = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})[Tt](\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d{2}):(\d{2}))",
    re.ASCII,
)


class Moment(NamedTuple):
    """Hold one reading of both clocks.

    `mono_s` measures durations (monotonic seconds, its zero means nothing); `wall_ms` names
    instants (milliseconds since 1970 UTC, may step in either direction).
    """

    mono_s: float
    wall_ms: int


def parse_instant(text: str) -> int:
    """Read an RFC 3339 date-time with `Z` or a numeric offset; return milliseconds since 1970 UTC.

    Digits below the millisecond are cut off. Raises `ValueError`, whose text is the reason, for any
    other form, for dates that do not exist, for leap seconds, and for instants before 1970 or
    after 9999 (in UTC).
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError("must be an RFC 3339 instant such as 2026-11-30T21:22:47.123Z")
    year, month, day, hour, minute, second = map(int, match.group(1, 2, 3, 4, 5, 6))
    fraction, sign, offset_hour, offset_minute = match.group(7, 8, 9, 10)
    if second == 60:
        raise ValueError("must not be a leap second")
    try:
        local = datetime(year, month, day, hour, minute, second)
    except ValueError:
        raise ValueError("must be a date and time that exist") from None
    seconds = (local - _EPOCH) // _SECOND
    if sign is not None:
        hours, minutes = int(offset_hour), int(offset_minute)
        if hours > 23 or minutes > 59:
            raise ValueError("must have an offset between -23:59 and +23:59")
        offset_s = hours * 3600 + minutes * 60
        seconds += offset_s if sign == "-" else -offset_s
    instant_ms = seconds * 1000 + (int(fraction[:3].ljust(3, "0")) if fraction else 0)
    if not 0 <= instant_ms <= MAX_INSTANT_MS:
        raise ValueError("must be between 1970 and 9999")
    return instant_ms


def format_instant(instant_ms: int) -> str:
    """Write milliseconds since 1970 UTC as RFC 3339, in UTC, always with three decimals and `Z`.

    Raises `ValueError` outside 1970 to 9999.
    """
    if not 0 <= instant_ms <= MAX_INSTANT_MS:
        raise ValueError(f"no instant between 1970 and 9999: {instant_ms} ms")
    seconds, milliseconds = divmod(instant_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}.{milliseconds:03d}Z"
