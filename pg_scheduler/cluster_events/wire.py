"""Events as text for other nodes, and back.

An event on the wire has its class, ids, names, numbers and times, and at most 200 characters of each other
text. Exceptions become text, and fields without a ``repr``, such as stacks, are left out. The text is ASCII,
so that every encoding of a database can carry it.

Every database role that may NOTIFY can send such a text. ``decode()`` ignores texts that are not events.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final, NamedTuple, NoReturn

from pg_scheduler.base.text.json_text import load_json
from pg_scheduler.base.text.times import read_timestamp
from pg_scheduler.events.types import LEVELS, LOCAL, Event

MAX_TEXT_LENGTH: Final = 200
"""Characters of a text, such as an error, on the wire. Ids and names are whole."""

MAX_IDS: Final = 50
"""Ids of one event on the wire."""

MAX_INTEGER: Final = 2**63

WHOLE: Final = ("_id", "_ids", "_key", "_name", "_workers", "blocked_on")
"""A field whose name ends with one of these is an id or a name, or has several of them."""


class _Field(NamedTuple):
    """A field of an event that is sent.

    Attributes:
        name: Its name.
        read: Checks the field's JSON and returns its value.
        is_whole: Whether its text is sent in full, however long it is.
    """

    name: str
    read: Callable[[object], object]
    is_whole: bool


@cache
def carried_kinds() -> Mapping[str, type[Event]]:
    """Return the classes that can be sent to other nodes, by name."""
    return {kind.__name__: kind for kind in LEVELS if kind not in LOCAL}


def names_of(kinds: Iterable[type[Event]]) -> frozenset[str]:
    """Return the names of the classes that can be sent, among these and their subclasses."""
    classes = tuple(kinds)
    return frozenset(name for name, kind in carried_kinds().items() if issubclass(kind, classes))


def encode(event: Event) -> str:
    """Return an event as JSON in ASCII: an array of the name of its class and of an object with its fields.

    Fields without a value are left out.
    """
    kind: Any = type(event)
    values: dict[str, object] = {}
    for field in _carried_fields(kind):
        value = _json_value(getattr(event, field.name), is_whole=field.is_whole)
        if value is not None:
            values[field.name] = value
    return json.dumps([type(event).__name__, values], separators=(",", ":"))


def decode(text: str) -> list[Event]:
    """Return the events of a JSON array. Events that this version cannot read are left out."""
    try:
        document = load_json(text, parse_constant=_reject)
    except ValueError:
        return []
    if not isinstance(document, list):
        return []
    events = map(_event_from, document)
    return [event for event in events if event is not None]


def without_details(event: Event) -> Event | None:
    """Return an event as other nodes receive it; None if no node could read it from its text."""
    events = decode(f"[{encode(event)}]")
    return events[0] if events else None


@cache
def _carried_fields(kind: Any) -> tuple[_Field, ...]:
    """Return the fields of a class that are sent: those that are part of its ``repr()``.

    Each field's type is the text of its annotation, because ``types.py`` postpones the evaluation of
    annotations.
    """
    carried_fields = []
    for field in fields(kind):
        if field.repr:
            # A value that is None is left out of the text, so it needs no reader.
            read = _READERS[field.type.removesuffix(" | None")]
            carried_fields.append(_Field(field.name, read, is_whole=field.name.endswith(WHOLE)))
    return tuple(carried_fields)


@cache
def _stand_ins(kind: Any) -> dict[str, object]:
    """Return values for the fields that have no default, and that the text of an event may lack.

    Those are the fields that are never sent, and the fields that may be None.
    """
    required_fields = [
        field for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING
    ]
    stand_ins: dict[str, object] = {}
    for field in required_fields:
        is_never_sent = not field.repr
        may_be_none = field.type.endswith(" | None")
        if is_never_sent or may_be_none:
            stand_ins[field.name] = "" if field.type == "str" else None
    return stand_ins


def _json_value(value: object, *, is_whole: bool) -> object:  # noqa: PLR0911 - one case per type
    """Return the value of a field as JSON can carry it; None for None, infinity and NaN.

    Texts are shortened, unless the field is an id or a name. A tuple loses its elements beyond the first 50.
    """
    match value:
        case str():
            return value if is_whole else value[:MAX_TEXT_LENGTH]
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case BaseException():
            return f"{type(value).__name__}: {value}"[:MAX_TEXT_LENGTH]
        case tuple():
            return [text for text in value[:MAX_IDS] if isinstance(text, str)]
        case float() if not math.isfinite(value):
            return None
    return value


def _event_from(item: object) -> Event | None:
    """Return the event that ``encode()`` has written as this JSON; None if this version cannot read it."""
    match item:
        case [str() as name, dict() as values] if name in carried_kinds():
            kind: Any = carried_kinds()[name]
        case _:
            return None
    carried_fields = [field for field in _carried_fields(kind) if field.name in values]
    try:
        # Values of the text replace those that stand in for missing ones.
        arguments = dict(_stand_ins(kind))
        for field in carried_fields:
            arguments[field.name] = field.read(values[field.name])
        event: Event = kind(**arguments)
    except (TypeError, ValueError, OverflowError):  # a value is wrong, or a field is missing
        return None
    return event


def _reject(constant: str) -> NoReturn:
    """Refuse NaN and the infinities, which Python reads although JSON does not have them."""
    raise ValueError(f"{constant} is not JSON")


def _text(value: object) -> str:
    """Return a JSON value that has to be a text."""
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _integer(value: object) -> int:
    """Return a JSON value that has to be an integer of 64 bits."""
    # The type is compared, because a bool is an int too.
    if type(value) is not int or not -MAX_INTEGER <= value < MAX_INTEGER:
        raise ValueError("not a 64-bit integer")
    return value


def _number(value: object) -> float:
    """Return a JSON value that has to be a finite number."""
    # The type is compared, because a bool is an int too.
    if type(value) not in {int, float} or not math.isfinite(float(value)):  # type: ignore[arg-type]
        raise ValueError("not a finite number")
    return float(value)  # type: ignore[arg-type]


def _boolean(value: object) -> bool:
    """Return a JSON value that has to be a boolean."""
    if not isinstance(value, bool):
        raise TypeError("not a boolean")
    return value


def _instant(value: object) -> datetime:
    """Return the instant of a JSON value, which has to be a time in ISO format with a UTC offset."""
    return read_timestamp(_text(value))


def _texts(value: object) -> tuple[str, ...]:
    """Return a JSON value that has to be an array of texts."""
    if not isinstance(value, list):
        raise TypeError("not an array")
    return tuple(_text(element) for element in value)


_READERS: Final[Mapping[str, Callable[[object], object]]] = {
    "str": _text,
    "int": _integer,
    "float": _number,
    "bool": _boolean,
    "datetime": _instant,
    "timedelta": lambda value: timedelta(seconds=_number(value)),
    "tuple[str, ...]": _texts,
    "BaseException": lambda value: Exception(_text(value)),
}
"""For each annotation of a field, the function that checks the field's JSON and returns its value."""
