"""Parse a search for schedules, and examine whether a schedule matches it.

The search is written like a search for jobs. A command that changes schedules reads all of them in any case,
so this module examines the terms, and not the database.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, tzinfo
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from pg_scheduler.inspect.search.terms import Pattern
from pg_scheduler.inspect.search.values import (
    Part,
    read_choice,
    read_patterns,
    read_time,
    read_values,
    split_search,
    unknown_field,
)
from pg_scheduler.inspect.search.words import SearchError, Word
from pg_scheduler.schedules.schedule import Schedule

ScheduleFilter: TypeAlias = Callable[[Schedule], bool]

SCHEDULE_FIELDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "id": "report:*",
        "task": "reports.*",
        "owner": "api",
        "paused": "yes",
        "note": "~holiday",
        "next": "<+1h",
        "metadata.<name>": "acme",
    }
)
"""The fields of terms, each with an example of its value."""

ROOT: Final = "metadata"
OWNERS: Final = {"api": "api", "code": "code"}
ANSWERS: Final = {"yes": True, "no": False}

_TEXTS: Final[Mapping[str, Callable[[Schedule], str | None]]] = {
    "id": lambda schedule: schedule.schedule_id,
    "task": lambda schedule: schedule.task,
    "note": lambda schedule: schedule.note,
}


def parse_schedule_search(text: str, *, now: datetime, tz: tzinfo | None = None) -> ScheduleFilter:
    """Return the filter of a search text: a schedule passes if it matches every term.

    Args:
        text: The text.
        now: The instant to which relative times refer, timezone-aware.
        tz: The time zone of days, and of times without one; None rejects such times.

    Raises:
        SearchError: The text is empty or invalid; the error has the position of the mistake. A ValueError.
    """
    filters = [_filter(part, now, tz) for part in split_search(text)]
    if not filters:
        raise SearchError("the search for schedules is empty; write task:reports.* or paused:yes", 0)
    return lambda schedule: all(matches(schedule) for matches in filters)


def _filter(part: Part, now: datetime, tz: tzinfo | None) -> ScheduleFilter:
    matches = _filter_without_sign(part, now, tz)
    return (lambda schedule: not matches(schedule)) if part.is_negated else matches


def _filter_without_sign(part: Part, now: datetime, tz: tzinfo | None) -> ScheduleFilter:
    """Return the filter of a term without its sign."""
    if part.field is None:
        words = read_patterns(part.value, is_part=True)
        return lambda schedule: _is_any(words, schedule.schedule_id) or _is_any(words, schedule.task)
    name, *path = [word.text for word in part.field.split(".")]
    name = name.lower()
    if name == ROOT and path and all(path):
        return _text_filter(part.value, lambda schedule: _text_at(schedule.metadata, path))
    if path or name not in SCHEDULE_FIELDS:
        raise unknown_field(part, [field for field in SCHEDULE_FIELDS if "." not in field], [ROOT])
    match name:
        case "owner":
            owners = read_values(part.value, lambda word: read_choice("owner", word, OWNERS))
            return lambda schedule: schedule.owner in owners
        case "paused":
            answers = read_values(part.value, lambda word: read_choice("answer", word, ANSWERS))
            return lambda schedule: (schedule.paused_at is not None) in answers
        case "next":
            return _next_filter(part.value, now, tz)
    return _text_filter(part.value, _TEXTS[name])


def _text_filter(value: Word, text_of: Callable[[Schedule], str | None]) -> ScheduleFilter:
    patterns = read_patterns(value)
    return lambda schedule: _is_any(patterns, text_of(schedule))


def _next_filter(value: Word, now: datetime, tz: tzinfo | None) -> ScheduleFilter:
    spans = read_values(value, lambda word: read_time(word, now, tz))

    def matches(schedule: Schedule) -> bool:
        at = schedule.next_fire_at
        return at is not None and any(
            (span.since is None or span.since <= at) and (span.until is None or at < span.until)
            for span in spans
        )

    return matches


def _text_at(value: Any, path: Sequence[str]) -> str | None:
    """Return the text of a value of metadata: JSON, unless it is a text; None if it is missing or null."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=dict)


def _is_any(patterns: tuple[Pattern, ...], text: str | None) -> bool:
    return text is not None and any(_is_like(pattern, text) for pattern in patterns)


def _is_like(pattern: Pattern, text: str) -> bool:
    """Return whether a text matches a pattern, as LIKE decides it."""
    # The text must start with the first literal, end with the last one, and have the others in between in
    # order.
    parts = _literals(pattern.like)
    if pattern.is_part:
        parts, text = [part.lower() for part in parts], text.lower()
    first, *following = parts
    if not following:
        return text == first
    *middle, end = following
    if not text.startswith(first):
        return False
    place = len(first)
    for literal in middle:
        if (index := text.find(literal, place)) < 0:
            return False
        place = index + len(literal)
    return text.endswith(end) and len(text) - len(end) >= place


def _literals(like: str) -> list[str]:
    """Return the literal texts between the wildcards of a pattern of LIKE."""
    parts, chars = [""], iter(like)
    for char in chars:
        if char == "%":
            parts.append("")
        # A backslash stands before a character that is literal.
        else:
            parts[-1] += next(chars) if char == "\\" else char
    return parts
