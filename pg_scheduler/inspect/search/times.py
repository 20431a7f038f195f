"""Read the times of a search: comparisons, ranges, and what a time by itself spans."""

from __future__ import annotations

from datetime import datetime, tzinfo

from pg_scheduler.inspect.search.errors import SearchError
from pg_scheduler.inspect.search.terms import TimeSpan
from pg_scheduler.inspect.search.words import Word
from pg_scheduler.text.times import HELP, TimeError, read_span


def read_time(word: Word, now: datetime, tz: tzinfo | None) -> TimeSpan:
    """Return the span of a comparison, a range, a day or a minute.

    Args:
        word: The value of a term.
        now: The instant to which relative times refer.
        tz: The time zone of days and times without one; None if there is none.

    Raises:
        SearchError: The word is not a time, or it needs a time zone and there is none.
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
    try:
        return read_span(word.text, now, tz, start)
    except TimeError as error:
        raise SearchError(str(error), word.start) from None
