"""Read the times of a search: relative ones, days and minutes.

A time names a span: a day lasts from midnight to midnight in its time zone, a minute for 60 seconds, and a
relative time is an instant, a span without length.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final

from pg_scheduler.inspect.search.errors import SearchError
from pg_scheduler.inspect.search.terms import TimeSpan
from pg_scheduler.inspect.search.words import Char, Word

UNITS: Final = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
DAYS: Final = {"yesterday": -1, "today": 0, "tomorrow": 1}
DAY: Final = timedelta(days=1)

_RELATIVE: Final = re.compile(r"([+-])((?:[0-9]{1,9}[smhdw]){1,5})")
_PART: Final = re.compile(r"([0-9]{1,9})([smhdw])")
_ABSOLUTE: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}(?:[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)?)"
    r"([Zz]|[+-][0-9]{2}:?[0-9]{2})?"
)
_END: Final = re.compile(r"([0-9]{2}(?:[-Tt :][0-9]{2}){0,4})([Zz]|[+-][0-9]{2}:[0-9]{2})?")
"""The end of a range without the parts that it shares with the start: ``2026-11-20..21``."""

HELP: Final = "write -1h, +30m, now, today, 2026-11-20 or 2026-11-20T14:30Z"


def read_time(word: Word, now: datetime, tz: tzinfo | None) -> TimeSpan:
    """Return the span of a comparison, a range, a day or a minute.

    Args:
        word: The value of a term.
        now: The instant to which relative times refer.
        tz: The time zone of days and times without one; None if there is none.

    Raises:
        SearchError: The word is no time, or it needs a time zone and there is none.
    """
    for mark in ("<=", ">=", "<", ">"):
        if word.starts_with(mark):
            start, end = _bounds(word.after(len(mark)), now, tz)
            return {
                "<=": TimeSpan(None, end),
                ">=": TimeSpan(start, None),
                "<": TimeSpan(None, start),
                ">": TimeSpan(end, None),
            }[mark]
    if (index := word.find("..")) is not None:
        return _range(word, index, now, tz)
    start, end = _bounds(word, now, tz)
    if start == end:
        text = word.text
        raise SearchError(
            f"{text!r} is an instant; write >{text} for later, <{text} for earlier times, or a range such as "
            "-2h..-1h",
            word.start,
        )
    return TimeSpan(start, end)


def read_instant(text: str, now: datetime, tz: tzinfo | None) -> datetime:
    """Return the instant at which the time of a text starts.

    Args:
        text: A relative time, a day or a time, as in a search.
        now: The instant to which relative times refer.
        tz: The time zone of days and times without one; None if there is none.

    Raises:
        SearchError: The text is no time, or it needs a time zone and there is none.

    Example:
        >>> from datetime import UTC, datetime
        >>> read_instant("-1h30m", datetime(2027, 1, 1, tzinfo=UTC), UTC).isoformat()
        '2026-12-31T22:30:00+00:00'
    """
    chars = tuple(Char(each, place, is_quoted=False) for place, each in enumerate(text))
    return _bounds(Word(chars, 0, len(text)), now, tz)[0]


def _range(word: Word, index: int, now: datetime, tz: tzinfo | None) -> TimeSpan:
    left, right = word.before(index), word.after(index + 2)
    if not left.chars and not right.chars:
        raise SearchError("the range has no bound; " + HELP, word.start)
    since = _bounds(left, now, tz)[0] if left.chars else None
    until = _bounds(right, now, tz, left.text)[1] if right.chars else None
    if since is not None and until is not None and until < since:
        raise SearchError("the range ends before it starts; exchange its bounds", word.start)
    return TimeSpan(since, until)


def _bounds(word: Word, now: datetime, tz: tzinfo | None, start: str = "") -> tuple[datetime, datetime]:
    """Return the start and the end of what a word names."""
    text = word.text
    try:
        if text == "now":
            return now, now
        if text in DAYS:
            return _local_day(now.astimezone(_known(tz, word)), DAYS[text], word, tz)
        if relative := _RELATIVE.fullmatch(text):
            at = now + _length(relative[2]) * (1 if relative[1] == "+" else -1)
            return at, at
        if absolute := _ABSOLUTE.fullmatch(_completed(text, start)):
            return _absolute(absolute[1], absolute[2], word, tz)
    except (ValueError, OverflowError) as error:
        if isinstance(error, SearchError):
            raise
        raise SearchError(
            f"the time {text!r} does not exist, or is out of range; {HELP}", word.start
        ) from None
    raise SearchError(f"{text!r} is no time; {HELP}" if text else f"a time is missing; {HELP}", word.start)


def _length(parts: str) -> timedelta:
    return sum((int(count) * UNITS[unit] for count, unit in _PART.findall(parts)), timedelta())


def _completed(text: str, start: str) -> str:
    """Return the end of a range with the parts that it shares with the start."""
    first, end = _ABSOLUTE.fullmatch(start), _END.fullmatch(text)
    if first is None or end is None or len(end[1]) >= len(first[1]):
        return text
    return f"{first[1][: -len(end[1])]}{end[1]}{end[2] or first[2] or ''}"


def _absolute(text: str, suffix: str | None, word: Word, tz: tzinfo | None) -> tuple[datetime, datetime]:
    zone = tz if suffix is None else _zone_of(suffix)
    local = datetime.fromisoformat(text.upper())
    if len(text) == len("2026-11-20"):
        return _local_day(local.replace(tzinfo=UTC), 0, word, zone)
    at = local.replace(tzinfo=_known(zone, word)).astimezone(UTC)
    length = timedelta(minutes=1) if text.count(":") == 1 else timedelta(seconds=1)
    return at, at + (timedelta(microseconds=1) if "." in text else length)


def _local_day(local: datetime, days: int, word: Word, zone: tzinfo | None) -> tuple[datetime, datetime]:
    """Return the bounds of a day in a time zone, which can have 23 or 25 hours."""
    zone = _known(zone, word)
    midnight = datetime(local.year, local.month, local.day) + days * DAY  # noqa: DTZ001 - of the calendar
    return (
        midnight.replace(tzinfo=zone).astimezone(UTC),
        (midnight + DAY).replace(tzinfo=zone).astimezone(UTC),
    )


def _zone_of(suffix: str) -> tzinfo:
    if suffix in {"Z", "z"}:
        return UTC
    length = timedelta(hours=int(suffix[1:3]), minutes=int(suffix[-2:]))
    return timezone(-length if suffix[0] == "-" else length)


def _known(zone: tzinfo | None, word: Word) -> tzinfo:
    if zone is None:
        raise SearchError(
            f"the time {word.text!r} has no time zone; pass tz=, or write 2026-11-20Z or "
            "2026-11-20T14:30+01:00",
            word.start,
        )
    return zone
