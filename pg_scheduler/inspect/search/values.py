"""Read the parts of a term that every search has: its field, its alternatives, texts, choices and times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, tzinfo
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from pg_scheduler.base.text.times import HELP, TimeError, read_span
from pg_scheduler.inspect.search.terms import Pattern, TimeSpan, escape_like
from pg_scheduler.inspect.search.words import SearchError, Word, split_words
from pg_scheduler.jobs.naming import most_similar

MAX_TERMS: Final = 50
"""Terms of a search; each costs time for every row that is examined."""

MAX_VALUES: Final = 500
"""Alternatives of a term."""

SYNONYMS: Final[Mapping[str, str]] = MappingProxyType({"name": "task", "task": "name"})
"""The field of the other search, for jobs or schedules, that has the same meaning."""

T = TypeVar("T")


class Part(NamedTuple):
    """A term that is not read yet.

    Attributes:
        word: The term without its sign.
        field: The text before the colon; None if there is none.
        value: The text after the colon, or the whole word.
        is_negated: Whether it began with ``-``.
    """

    word: Word
    field: Word | None
    value: Word
    is_negated: bool


def split_search(text: str) -> Iterator[Part]:
    """Return the terms of a search text, one after the other.

    Raises:
        SearchError: There are too many, one is empty, or the text is invalid.
    """
    words = split_words(text)
    if len(words) > MAX_TERMS:
        raise SearchError(f"the search has more than {MAX_TERMS} terms; remove some", words[MAX_TERMS].start)
    return map(_part, words)


def _part(word: Word) -> Part:
    """Divide a term such as ``-name:mail.*`` into its sign, its field and its value."""
    is_negated = word.starts_with("-")
    if is_negated:
        word = word.after(1)
    if not word.chars:
        raise SearchError("a term is missing; write status:failed, -name:mail.* or a word", word.start)
    colon = word.find(":")
    if colon is None:
        return Part(word, None, word, is_negated)
    return Part(word, word.before(colon), word.after(colon + 1), is_negated)


def unknown_field(part: Part, fields: Collection[str], roots: Collection[str]) -> SearchError:
    """Return the error about the field of a term.

    Args:
        part: The term.
        fields: The fields of the search.
        roots: The fields that need a path, such as ``metadata`` in ``metadata.tenant``.
    """
    field = part.value if part.field is None else part.field
    name = field.text.lower()
    if not name:
        return SearchError("the name of the field is missing before ':'", field.start)
    if name in roots:
        value = part.value.text[:40] or "42"
        return SearchError(
            f"{name}: needs a name; write {name}.<name>:<value>, such as {name}.user:{value}",
            field.start,
        )
    # A field of the other search may have a synonym in this one. Otherwise a field with a similar name is
    # suggested.
    suggestion = SYNONYMS.get(name)
    if suggestion not in fields:
        suggestion = most_similar(name, [*fields, *(f"{root}." for root in roots)])
    # A suggested root, such as "metadata.", needs a path before the colon.
    if suggestion is not None and not suggestion.endswith("."):
        suggestion = f"{suggestion}:"
    quoted = part.word.text if len(part.word.text) <= 40 else f"{part.word.text[:40]}..."
    argument = f"for an argument, write arg.{name[:40]}:<value>; " if "arg" in roots else ""
    return SearchError(
        f"unknown field {name[:40] + ':'!r}; {argument}to search for the text itself, write it in quotes: "
        f'"{quoted}"',
        field.start,
        suggestion,
    )


def read_values(value: Word, read: Callable[[Word], T]) -> tuple[T, ...]:
    """Return the alternatives of a term, which commas separate. ``read`` converts each of them."""
    alternatives = value.split(",")
    if len(alternatives) > MAX_VALUES:
        raise SearchError(
            f"the term has more than {MAX_VALUES} values; remove some", alternatives[MAX_VALUES].start
        )
    for alternative in alternatives:
        if not alternative.chars:
            raise SearchError("a value is missing; write it after ':' or ','", alternative.start)
    return tuple(map(read, alternatives))


def read_patterns(value: Word, *, is_part: bool = False) -> tuple[Pattern, ...]:
    """Return the patterns of the texts of a term, in which ``*`` stands for any text.

    A pattern matches the whole text of a job, or a part of it if ``is_part`` is True. ``~`` before the value
    makes all of its texts parts, and ``~`` before one of the texts makes only that one a part.
    """
    if value.starts_with("~"):
        is_part = True
        value = value.after(1)
    return read_values(value, lambda part: _pattern(part, is_part=is_part))


def _pattern(word: Word, *, is_part: bool) -> Pattern:
    """Return the pattern of a text. ``~`` at its start means a part, and an unquoted ``*`` any text."""
    if word.starts_with("~"):
        is_part = True
        word = word.after(1)
        if not word.chars:
            raise SearchError("a text is missing after '~'", word.start)
    like = ""
    for char in word.chars:
        is_wildcard = char.text == "*" and not char.is_quoted
        # In a pattern of LIKE, "%" stands for any text.
        like += "%" if is_wildcard else escape_like(char.text)
    if is_part:
        like = f"%{like}%"
    # find() leaves out quoted characters. Only a text without a wildcard can be compared as it is.
    literal = None if word.find("*") is not None else word.text
    return Pattern(like, literal, is_part)


def read_choice(what: str, word: Word, choices: Mapping[str, T]) -> T:
    """Return the value that a word stands for; the keys of ``choices`` are the permitted words."""
    text = word.text.lower()
    if text in choices:
        return choices[text]
    suggestion = most_similar(text, list(choices))
    raise SearchError(
        f"unknown {what} {text[:40]!r}; write one of {', '.join(choices)}", word.start, suggestion
    )


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
            # A word can name a day or a minute, which "<=" and ">=" include, and "<" and ">" do not. The end
            # is the first instant after it.
            spans_by_mark = {
                "<=": TimeSpan(None, end),
                ">=": TimeSpan(start, None),
                "<": TimeSpan(None, start),
                ">": TimeSpan(end, None),
            }
            return spans_by_mark[mark]
    if (index := word.find("..")) is not None:
        return _range(word, index, now, tz)
    start, end = _bounds(word, now, tz)
    # Few or no jobs have exactly the time of an instant, such as -1h, so this is probably a mistake.
    if start == end:
        text = word.text
        raise SearchError(
            f"{text!r} is an instant; write >{text} for later, <{text} for earlier times, or a range such as "
            "-2h..-1h",
            word.start,
        )
    return TimeSpan(start, end)


def _range(word: Word, index: int, now: datetime, tz: tzinfo | None) -> TimeSpan:
    """Return the span of a range, whose dots are at an index of the word."""
    start, end = word.before(index), word.after(index + 2)
    if not start.chars and not end.chars:
        raise SearchError("the range has no bound; " + HELP, word.start)
    since = until = None
    if start.chars:
        since, _ = _bounds(start, now, tz)
    if end.chars:
        # The end may leave out what the start has, as in 2026-11-20..21, so it is read with the start.
        _, until = _bounds(end, now, tz, start.text)
    if since is not None and until is not None and until < since:
        raise SearchError("the range ends before it starts; exchange its bounds", word.start)
    return TimeSpan(since, until)


def _bounds(word: Word, now: datetime, tz: tzinfo | None, start: str = "") -> tuple[datetime, datetime]:
    """Return the start and the end of what a word names.

    ``start`` is the text before ``..`` if the word is the end of a range: in ``2026-11-20..21``, the end
    lacks the year and the month, which are those of the start.
    """
    try:
        return read_span(word.text, now, tz, start)
    except TimeError as error:
        raise SearchError(str(error), word.start) from None
