"""Write the position at which a search continues as a text, and read it.

The text is JSON in URL-safe Base64. It has the instant to which relative times refer, so that these mean the
same on every page. It also has the rows searched and the jobs found so far, the number of the segment, and
the key of the last row that was examined.
"""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any, Final, NamedTuple

from pg_scheduler.base.sqltext import is_storable
from pg_scheduler.base.text.json_text import load_json
from pg_scheduler.base.text.times import read_timestamp
from pg_scheduler.inspect.paths import Key, Plan

MAX_LENGTH: Final = 400_000
"""The maximum number of characters of a position.

Ids and texts of limits have some hundred characters, but only the size of an index entry bounds them."""


class Position(NamedTuple):
    """Where a search continues.

    Attributes:
        segment: The number of the segment.
        key: The key after which it continues; empty for its start.
        searched: The rows that were examined so far.
        found: The jobs that were found so far.
    """

    segment: int
    key: Key
    searched: int
    found: int


START: Final = Position(0, (), 0, 0)


def write_position(position: Position, now: datetime) -> str:
    """Return the text of a position in a search whose relative times refer to ``now``."""
    # JSON has no instants, so they are written as ISO 8601. The other values are texts and numbers.
    key = [value.isoformat() if isinstance(value, datetime) else value for value in position.key]
    values = [now.isoformat(), position.searched, position.found, position.segment, *key]
    text = json.dumps(values, separators=(",", ":"))
    # _values() adds the padding ("=") again. It would be escaped in a URL.
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def read_now(text: str) -> datetime:
    """Return the instant to which relative times refer in the search of a position.

    Raises:
        ValueError: The text is not a position.
    """
    # The text comes from a person, so it may contain anything. Any mistake in it has the same error.
    try:
        now_text, *_ = _values(text)
        now = read_timestamp(now_text)
        # write_position() writes the instant in UTC.
        if now.isoformat() != now_text:
            raise ValueError(now)  # noqa: TRY301 - as any other mistake
    except (ValueError, TypeError, LookupError):
        raise _mistake(text) from None
    return now


class PositionError(ValueError):
    """A text is not a position of a list or a search.

    Attributes:
        subject: The list or search that has no such position.
        text: The start of the text.
    """

    def __init__(self, subject: str, text: str) -> None:
        self.subject = subject
        self.text = text[:100]
        super().__init__(
            f"after= is no position of {subject}: {self.text!r}; pass the next= of one of its pages"
        )


def read_position(text: str, plan: Plan) -> Position:
    """Return the position of a text.

    Raises:
        ValueError: The text is not a position of a search with this plan.
    """
    try:
        _, searched, found, segment, *key = _values(text)
        types = plan.segments[segment].path.key_types
        if key:
            key = [_read(value, kind) for value, kind in zip(key, types, strict=True)]
        # The type is compared, because a bool is an int too.
        if not all(type(number) is int and number >= 0 for number in (searched, found, segment)):
            raise ValueError(segment)  # noqa: TRY301 - as any other mistake
    except (ValueError, TypeError, LookupError):
        raise _mistake(text) from None
    return Position(segment, tuple(key), searched, found)


def _values(text: str) -> Any:
    """Return the JSON of a position; raise ValueError if the text has none."""
    if len(text) > MAX_LENGTH:
        raise ValueError(text[:10])
    # write_position() leaves out the padding of Base64, which makes the length a multiple of four.
    padded = text.encode() + b"=" * (-len(text) % 4)
    return load_json(base64.b64decode(padded, b"-_", validate=True))


def _mistake(text: str) -> PositionError:
    """Return the error that a text is no position of this search."""
    return PositionError("this search", text)


def _read(value: object, kind: type) -> str | int | datetime:
    """Return a value of a key; raise TypeError or ValueError if it is none of this type."""
    if kind is str and isinstance(value, str) and is_storable(value):
        return value
    # The type is compared, because a bool is an int too.
    if kind is int and type(value) is int and 0 <= value < 2**31:
        return value
    if kind is datetime and isinstance(value, str):
        return read_timestamp(value)
    raise TypeError(kind)
