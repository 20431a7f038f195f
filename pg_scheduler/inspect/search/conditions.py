"""The conditions that the terms of a search mean.

A condition is the name of a constant SQL text in ``inspect/store/sql/searches.sql`` and the values of its
parameters. The search text contributes values only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, assert_never

from pg_scheduler.inspect.search.terms import (
    JsonTerm,
    NumberTerm,
    Pattern,
    PriorityTerm,
    Search,
    StatusTerm,
    StepsTerm,
    Term,
    TextField,
    TextTerm,
    TimeTerm,
)
from pg_scheduler.inspect.store.searches import Condition
from pg_scheduler.jobs.keys import ascii_text
from pg_scheduler.jobs.limits import BLOCKED_BY_LIMIT

MIN_INTEGER: Final = -(2**31)
MAX_INTEGER: Final = 2**31 - 1

_ESCAPED_IN_JSON: Final = re.compile(r'["\x00-\x1f\x7f]|\\\\')
"""Characters that JSON escapes. In a pattern of LIKE, a backslash is written as two."""

_BEYOND_ASCII: Final = re.compile(r"[^\x00-\x7f]")
"""Characters that ``blocked_on`` has in another form."""


def conditions_of(search: Search) -> tuple[Condition, ...]:
    """Return the conditions that a job of the search fulfils."""
    return tuple(_condition(term, search) for term in search.terms)


def _condition(term: Term, search: Search) -> Condition:
    """Return the condition that a term of the search means.

    ``name`` is that of its SQL in ``searches.sql``, without ``search_``. ``values`` are its parameters.
    """
    values: tuple[object, ...]
    match term:
        case StatusTerm():
            name, values = "status", (sorted(term.statuses), search.now)
        case PriorityTerm():
            name, values = "priority", (sorted(priority.db_value for priority in term.priorities),)
        case TextTerm(field=TextField.LIMIT):
            limits = [limit for pattern in term.patterns for limit in _limits(pattern)]
            name, values = "limit", _patterns(limits)
        case TextTerm(field=TextField.ANY):
            patterns, part_patterns = _patterns(term.patterns)
            name, values = "any", (patterns, part_patterns, _in_json(patterns), _in_json(part_patterns))
        case TextTerm():
            name, values = term.field.value, _patterns(term.patterns)
        case JsonTerm():
            name, values = "json", (list(term.path), *_patterns(term.patterns))
        case NumberTerm():
            lows = [MIN_INTEGER if span.low is None else span.low for span in term.spans]
            highs = [MAX_INTEGER if span.high is None else span.high for span in term.spans]
            name, values = term.field.value, (lows, highs)
        case TimeTerm():
            starts = [span.since for span in term.spans]
            ends = [span.until for span in term.spans]
            name, values = term.field.value, (starts, ends)
        case StepsTerm():
            name, values = "steps", ()
        case _:
            assert_never(term)
    return Condition(name, values, is_negated=term.is_negated)


def _patterns(patterns: Sequence[Pattern]) -> tuple[list[str], list[str]]:
    """Return the patterns of whole texts, and separately the patterns of parts, which ignore case."""
    whole_texts = [pattern.like for pattern in patterns if not pattern.is_part]
    parts = [pattern.like for pattern in patterns if pattern.is_part]
    return whole_texts, parts


def _in_json(patterns: Iterable[str]) -> list[str]:
    """Return patterns of JSON texts. They match each JSON text with a value that one of ``patterns`` matches.

    A JSON text has escapes for some characters, so a pattern with such a character becomes one of any text.
    """
    return ["%" if _ESCAPED_IN_JSON.search(pattern) else f"%{pattern}%" for pattern in patterns]


def _limits(pattern: Pattern) -> Iterator[Pattern]:
    """Yield patterns of ``blocked_on``: ``stripe`` means any key of the limit, ``stripe:42`` only one."""
    # The column has escapes for characters beyond ASCII. In a pattern of LIKE, a backslash is written as two.
    like = _BEYOND_ASCII.sub(lambda match: ascii_text(match[0]).replace("\\", "\\\\"), pattern.like)
    yield Pattern(f"{BLOCKED_BY_LIMIT}{like}", None, pattern.is_part)
    if ":" not in like:
        yield Pattern(f"{BLOCKED_BY_LIMIT}{like}:%", None, pattern.is_part)
