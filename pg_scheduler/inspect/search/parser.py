"""Parse a search text.

::

    search = { term }                          all terms hold
    term   = [ "-" ] [ field ":" ] value { "," value }
    field  = "status" | "name" | ... | "arg." path | "metadata." path

A quoted character is never a mark. The parser reads each character a bounded number of times and raises
nothing but `SearchError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, tzinfo
from types import MappingProxyType
from typing import Final, NamedTuple

from pg_scheduler.inspect.search.terms import (
    JsonTerm,
    NumberField,
    NumberSpan,
    NumberTerm,
    Pattern,
    PriorityTerm,
    Search,
    SearchStatus,
    StatusTerm,
    Term,
    TextField,
    TextTerm,
    TimeField,
    TimeTerm,
    escape_like,
)
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
from pg_scheduler.jobs.model import JobPriority
from pg_scheduler.jobs.validation import check_kind, check_list, check_text

MAX_NUMBER: Final = 2**31 - 1
"""The largest value of an integer column."""

JSON_ROOTS: Final = ("arg", "metadata")

FIELDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "status": "failed",
        "any": "4711",
        "name": "mail.*",
        "id": "3f2a",
        "worker": "a1b2c3d4",
        "schedule": "reports",
        "priority": "high",
        "error": "~timeout",
        "due": "<-1h",
        "created": ">-1d",
        "finished": "2026-11-20..21",
        "attempt": ">2",
        "crashed": "yes",
        "tag": "billing",
        "limit": "stripe",
        "step": "delivery",
        "signal": "approval",
        "child": "order:7:*",
        "arg.<name>": "42",
        "metadata.<name>": "acme",
    }
)
"""The fields of terms, each with an example of its value."""

_NUMBER: Final = re.compile(r"[0-9]{1,10}")
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")


class _Context(NamedTuple):
    """The instant and the time zone to which the values of a term refer."""

    now: datetime
    tz: tzinfo | None


def parse_search(text: str, *, now: datetime, tz: tzinfo | None = None) -> Search:
    """Return the terms of a search text.

    Args:
        text: The text; the guide to searching has its terms.
        now: The instant to which relative times refer, timezone-aware.
        tz: The time zone of days, and of times without one; None rejects such times.

    Raises:
        SearchError: The text is invalid; the error has the position of the mistake. A ValueError.

    Example:
        >>> from datetime import UTC, datetime
        >>> from pg_scheduler.inspect import parse_search
        >>> search = parse_search("status:failed -name:mail.*", now=datetime(2026, 11, 21, tzinfo=UTC))
        >>> [term.is_negated for term in search.terms]
        [False, True]
    """
    # A type checker would call a check of the parameter itself superfluous.
    zone: object = tz
    if zone is not None and not isinstance(zone, tzinfo):
        raise TypeError(f"tz must be a tzinfo or None, not {zone!r}; pass ZoneInfo('Europe/Berlin')")
    parts = split_search(check_kind("the search", text, str))
    return Search(tuple(_term(part, _Context(now, tz)) for part in parts), now)


def names_term(names: Iterable[str]) -> TextTerm:
    """Return the term of jobs that have one of these names, in which ``*`` stands for any text."""
    checked_names = [
        check_text("a name in names", name) for name in check_list("names", names, "list of names")
    ]
    # In a pattern of LIKE, "%" stands for any text.
    likes = ["%".join(escape_like(part) for part in name.split("*")) for name in checked_names]
    return TextTerm(TextField.SHOWN_NAME, tuple(Pattern(like, None) for like in likes))


def _term(part: Part, context: _Context) -> Term:
    """Return the term of a part of the search text. A part without a field is free text."""
    field, value, is_negated = part.field, part.value, part.is_negated
    if field is None:
        return TextTerm(TextField.WORDS, read_patterns(value, is_part=True), is_negated)
    field_parts = [word.text for word in field.split(".")]
    name = field_parts[0].lower()
    has_path = len(field_parts) > 1
    # Only the JSON of a job has a path after the name, as in arg.user.
    if has_path and name in JSON_ROOTS:
        return JsonTerm(_json_path(name, field), read_patterns(value), is_negated)
    read = None if has_path else _READERS.get(name)
    if read is None:
        raise unknown_field(part, _READERS, JSON_ROOTS)
    return read(name, value, is_negated, context)


def _json_path(root: str, field: Word) -> tuple[str, ...]:
    """Return the path of a field in the JSON of a job: ``arg.0`` is in args, and ``arg.user`` in kwargs.

    ``root`` is the name before the first dot: ``arg`` or ``metadata``.
    """
    _, *parts = field.split(".")
    for part in parts:
        if not part.chars:
            raise SearchError(f"a name is missing in {field.text!r}; write {root}.<name>:<value>", part.start)
    path = tuple(part.text for part in parts)
    if root == "arg":
        return ("args" if _INDEX.fullmatch(path[0]) else "kwargs", *path)
    return (root, *path)


# -- values --------------------------------------------------------------------------------------------


def _read_text(name: str, value: Word, is_negated: bool, _context: _Context) -> Term:
    """Return the term of a field whose values are texts, such as ``name:mail.*``."""
    return TextTerm(TextField(name), read_patterns(value), is_negated)


def _read_status(_name: str, value: Word, is_negated: bool, _context: _Context) -> Term:
    """Return the term of ``status:failed,expired``. It needs neither the name nor the context."""
    choices = {status.value: status for status in SearchStatus}
    statuses = read_values(value, lambda part: read_choice("status", part, choices))
    return StatusTerm(frozenset(statuses), is_negated)


def _read_priority(_name: str, value: Word, is_negated: bool, _context: _Context) -> Term:
    """Return the term of ``priority:high,normal``."""
    choices = {priority.value: priority for priority in JobPriority}
    priorities = read_values(value, lambda part: read_choice("priority", part, choices))
    return PriorityTerm(frozenset(priorities), is_negated)


def _read_number(name: str, value: Word, is_negated: bool, _context: _Context) -> Term:
    """Return the term of a field whose values are numbers, such as ``attempt:>2``."""
    field = NumberField(name)
    return NumberTerm(field, read_values(value, lambda part: _number_span(field, part)), is_negated)


def _number_span(field: NumberField, word: Word) -> NumberSpan:
    """Return the span of a comparison, a range or a number; for crashes, also of ``yes`` and ``no``."""
    if field is NumberField.CRASHED and word.text in {"yes", "no"}:
        return NumberSpan(1, None) if word.text == "yes" else NumberSpan(None, 0)
    # Each mark has the difference between its number and the bound. A span contains its bounds, so that of
    # ">2" begins at 3. The longer marks come first, because ">=" starts with ">" too.
    for mark, step in ((">=", 0), (">", 1), ("<=", 0), ("<", -1)):
        if word.starts_with(mark):
            bound = _number(field, word.after(len(mark))) + step
            return NumberSpan(bound, None) if mark.startswith(">") else NumberSpan(None, bound)
    if (index := word.find("..")) is None:
        number = _number(field, word)
        return NumberSpan(number, number)
    lower, upper = word.before(index), word.after(index + 2)
    if not lower.chars and not upper.chars:
        raise SearchError("the range has no bound; write 2..5, 2.. or ..5", word.start)
    low = _number(field, lower) if lower.chars else None
    high = _number(field, upper) if upper.chars else None
    if low is not None and high is not None and high < low:
        raise SearchError("the range ends before it starts; exchange its bounds", word.start)
    return NumberSpan(low, high)


def _number(field: NumberField, word: Word) -> int:
    """Return the number that a word consists of; raise a SearchError if it is none."""
    text = word.text
    # The bound of ">" is the next greater number, which must be one of the column too.
    if not _NUMBER.fullmatch(text) or int(text) >= MAX_NUMBER:
        examples = "yes, no, >1 or 2..5" if field is NumberField.CRASHED else "2, >2 or 2..5"
        raise SearchError(
            f"{text[:40]!r} is no number from 0 to {MAX_NUMBER - 1}; write {field}:{examples}", word.start
        )
    return int(text)


def _read_time(name: str, value: Word, is_negated: bool, context: _Context) -> Term:
    """Return the term of a field whose values are times, such as ``created:>-1d``."""
    spans = read_values(value, lambda part: read_time(part, context.now, context.tz))
    return TimeTerm(TimeField(name), spans, is_negated)


_Reader = Callable[[str, Word, bool, _Context], Term]

_READERS: Final[Mapping[str, _Reader]] = MappingProxyType(
    {
        "status": _read_status,
        "priority": _read_priority,
        **{field.value: _read_text for field in TextField if field is not TextField.WORDS},
        **{field.value: _read_time for field in TimeField},
        **{field.value: _read_number for field in NumberField},
    }
)
