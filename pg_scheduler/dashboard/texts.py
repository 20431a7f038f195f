"""Show values of unknown origin as text: names, ids, arguments and errors may contain anything."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from jinja2.utils import urlize
from markupsafe import Markup, escape

from pg_scheduler.base.text import values
from pg_scheduler.inspect.texts import length

DOCUMENTATION: Final = "https://pg-scheduler.github.io/pg-scheduler/"

RUNBOOK: Final = f"{DOCUMENTATION}operations/runbook.html#"
"""The address of the runbook, before the anchor of a code."""

MAX_DEPTH: Final = 50
"""Levels of a value that are shown; deeper ones are an ellipsis."""

SHORT_LENGTH: Final = 120

MAX_WORD: Final = 36
"""Characters of a word that is not broken, as many as an id has. A phone has room for them."""

_INSTANT: Final = re.compile(
    r"\b(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC\b(?:, \d+ (?:ms|s|min|h|d) ago\b)?", re.ASCII
)
"""An instant in a text of the doctor, with how long ago it was."""

_KEPT: Final = "\n\t\u200c\u200d"
"""Characters that are not escaped, although others of their categories reorder or hide text. Some scripts and
emoji need the two joiners."""


def visible(text: str) -> str:
    """Return the text with escapes for characters that reorder or hide text."""
    return values.escape(text, kept=_KEPT)


def short(text: str | None, max_length: int = SHORT_LENGTH) -> str:
    """Return the text in one line of bounded length; an empty one for None."""
    # The start of a long text is enough, even if most of its characters are blanks.
    start = (text or "")[: 10 * max_length]
    line = " ".join(start.split())
    return line if len(line) <= max_length else f"{line[:max_length]}…"


def marked(text: str, query: str) -> Markup:
    """Return a text as HTML in which the words of a query are marked, whatever capitals they have."""
    words = [re.escape(word) for word in query.removeprefix(">").split()]
    if not words:
        return escape(visible(text))
    # Because of the group, each second part is a word.
    parts = re.split(f"({'|'.join(words)})", text, flags=re.IGNORECASE)
    shown_parts = map(escape, map(visible, parts))
    return Markup("").join(
        Markup("<mark>{}</mark>").format(part) if place % 2 else part
        for place, part in enumerate(shown_parts)
    )


def unbroken(text: str) -> Markup:
    """Return a command as HTML that is not broken at the hyphens of its words, such as ``--since``."""
    words: list[Markup] = []
    for word in visible(text).split(" "):
        # A longer word has no room in one line, so it may be broken.
        if "-" in word and "\n" not in word and len(word) <= MAX_WORD:
            words.append(Markup('<span class="word">{}</span>').format(word))
        else:
            words.append(escape(word))
    return Markup(" ").join(words)


def initials(name: str) -> str:
    """Return at most two letters or digits that stand for a user; ``?`` if the name has none."""
    return "".join(filter(str.isalnum, name[:SHORT_LENGTH]))[:2].upper() or "?"


def utc(at: datetime | None) -> str:
    """Return an instant as pages show it; ``-`` for None."""
    return "-" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def sentence(text: str) -> str:
    """Return a text with a capital letter at its start, unless its first word is code, such as ``names=``."""
    begins_with_code = re.match(r"\S*[=_(]", text) is not None
    return text if begins_with_code else f"{text[:1].upper()}{text[1:]}"


def linked(text: str) -> Markup:
    """Return a text in which addresses are links."""
    return Markup(urlize(visible(text), rel="noreferrer"))  # noqa: S704 - urlize() escapes the text


def timed(text: str, now: datetime) -> Markup:
    """Return a text in which each instant is shown relative to now, and has the instant as its tooltip."""
    parts, end = [Markup()], 0
    for match in _INSTANT.finditer(text):
        try:
            at = datetime.fromisoformat(f"{match[1]}+00:00")
        except ValueError:  # The text only looks like an instant, such as one in the month 13.
            continue
        # "at 2027-01-31 09:00:00 UTC" becomes "2 h ago", without "at".
        parts += [
            escape(visible(text[end : match.start()].removesuffix("at "))),
            Markup('<time data-ago datetime="{}" title="{}">{}</time>').format(
                at.isoformat(), f"{match[1]} UTC", ago(at, now)
            ),
        ]
        end = match.end()
    return Markup().join([*parts, escape(visible(text[end:]))])


def ago(at: datetime | None, now: datetime) -> str:
    """Return how long ago an instant was, or in how long it will be; ``-`` for None."""
    if at is None:
        return "-"
    apart = now - at
    if abs(apart) < timedelta(seconds=1):
        return "just now"
    return f"{length(apart)} ago" if apart >= timedelta(0) else f"in {length(-apart)}"


def plain(value: Any) -> Any:
    """Return a value as JSON has it, within a bounded depth."""
    return values.plain(value, MAX_DEPTH)


def json_text(value: Any) -> str:
    """Return a value as indented JSON for people."""
    return json.dumps(plain(value), ensure_ascii=False, indent=2)


def took(seconds: float) -> str:
    """Return a length of time as lists of attempts show it.

    Example:
        >>> took(0.2194), took(1.25), took(12.5)
        ('219 ms', '1.2 s', '12 s')
    """
    return f"{seconds:.1f} s" if 1 <= seconds < 10 else length(seconds)
