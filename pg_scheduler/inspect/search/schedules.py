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
    """Return the filter of a term, such as ``-task:reports.*``."""
    matches = _filter_without_sign(part, now, tz)
    if part.is_negated:
        return lambda schedule: not matches(schedule)
    return matches


def _filter_without_sign(part: Part, now: datetime, tz: tzinfo | None) -> ScheduleFilter:
    """Return the filter of a term without the ``-`` that may precede it."""
    # A word without a field is searched in the id and the task.
    if part.field is None:
        words = read_patterns(part.value, is_part=True)
        return lambda schedule: _is_any(words, schedule.schedule_id) or _is_any(words, schedule.task)
    name, *path = [word.text for word in part.field.split(".")]
    name = name.lower()
    # The path metadata.tenant is valid, and metadata..tenant is not.
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
    """Return the filter that compares the texts of a term with what ``text_of`` returns for a schedule."""
    patterns = read_patterns(value)
    return lambda schedule: _is_any(patterns, text_of(schedule))


def _next_filter(value: Word, now: datetime, tz: tzinfo | None) -> ScheduleFilter:
    """Return the filter that compares the times of ``next:`` with the next fire time of a schedule."""
    spans = read_values(value, lambda word: read_time(word, now, tz))

    def matches(schedule: Schedule) -> bool:
        """Return whether the next fire time is in one of the spans, which do not contain their ends."""
        at = schedule.next_fire_at
        return at is not None and any(
            (span.since is None or span.since <= at) and (span.until is None or at < span.until)
            for span in spans
        )

    return matches


def _text_at(value: Any, path: Sequence[str]) -> str | None:
    """Return the text of the value at a path of metadata; None if the value is missing or null.

    The text of a value that is no text is its JSON.
    """
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=dict)


def _is_any(patterns: tuple[Pattern, ...], text: str | None) -> bool:
    """Return whether a text matches one of the patterns; False for None."""
    return text is not None and any(_is_like(pattern, text) for pattern in patterns)


def _is_like(pattern: Pattern, text: str) -> bool:
    """Return whether a text matches a pattern, as LIKE decides it."""
    # The text must start with the first literal, end with the last one, and have the others in between in
    # order.
    literals = _literals(pattern.like)
    # A pattern of a part ignores case.
    if pattern.is_part:
        literals = [literal.lower() for literal in literals]
        text = text.lower()
    first, *following = literals
    # Without a wildcard there is one literal, which is the whole text.
    if not following:
        return text == first
    *middle, last = following
    if not text.startswith(first):
        return False
    # Each literal is searched behind the one before it.
    place = len(first)
    for literal in middle:
        index = text.find(literal, place)
        if index < 0:
            return False
        place = index + len(literal)
    # The last literal must not overlap the one before it.
    last_start = len(text) - len(last)
    return text.endswith(last) and last_start >= place


def _literals(like: str) -> list[str]:
    """Return the literal texts between the wildcards of a pattern of LIKE: ``a``, ``b`` for ``a%b``."""
    literals = [""]
    chars = iter(like)
    for char in chars:
        if char == "%":
            literals.append("")
        elif char == "\\":
            # The character after a backslash is literal.
            literals[-1] += next(chars)
        else:
            literals[-1] += char
    return literals
