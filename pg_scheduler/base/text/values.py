"""Values as text, as JSON and as rows: names, ids, arguments and errors may contain anything."""

from __future__ import annotations

import json
import math
import sys
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_CONTROLS: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def copy_fields(kind: type[T], value: object, **changes: Any) -> T:
    """Return an object of a dataclass with the given fields.

    The other fields are copied from the value; a field that the value lacks gets its default.
    """
    names = [field.name for field in fields(kind) if field.name not in changes]
    return kind(**{name: getattr(value, name) for name in names if hasattr(value, name)}, **changes)


def escape(text: str, *, kept: str = "\n") -> str:
    r"""Return the text with escapes for characters that hide or reorder text, or control a terminal.

    Example:
        >>> print(escape("red: " + chr(27) + "[31m"))
        red: \x1b[31m
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        ascii(character)[1:-1]
        if unicodedata.category(character) in _CONTROLS and character not in kept
        else character
        for character in text
    )


def json_text(
    value: object, *, indent: int | None = None, default: Callable[[Any], Any] | None = None
) -> str:
    r"""Return a value as JSON, in which the characters that ``escape()`` replaces are escapes of JSON.

    Example:
        >>> print(json_text({"error": "zu spät: " + chr(155) + "31m"}))
        {"error": "zu spät: \u009b31m"}
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=default)
    # The control characters of ASCII are escaped already, by json.dumps().
    if text.isascii():
        return text
    return "".join(
        json.dumps(char)[1:-1] if unicodedata.category(char) in _CONTROLS and char != "\n" else char
        for char in text
    )


FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""Starts of texts that spreadsheets execute."""


def csv_cell(value: Any) -> Any:
    """Return a value as a cell of CSV, with an apostrophe before a text that a spreadsheet would execute.

    Example:
        >>> csv_cell("=1+1"), csv_cell(-1), csv_cell(["a"])
        ("'=1+1", -1, '["a"]')
    """
    if isinstance(value, list | dict):
        value = json.dumps(value, ensure_ascii=False)
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def plain(value: Any, levels: int = sys.maxsize) -> Any:
    """Return a value as JSON has it: objects with their fields, instants in UTC, durations in seconds.

    Args:
        value: The value.
        levels: Levels of it that are shown; deeper ones are an ellipsis.
    """
    match value:
        case Enum():
            return plain(value.value)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case timedelta():
            return value.total_seconds()
    return _plain_parts(value, levels - 1) if levels > 0 else "…"


def _plain_parts(value: Any, levels: int) -> Any:
    """Return an object, a mapping or a collection as JSON has it; any other value as its text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name), levels)
            for field in fields(value)
            if not field.name.startswith("_")
        }
    if isinstance(value, Mapping):
        return {str(key): plain(item, levels) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, levels) for item in value]
    return str(value)
