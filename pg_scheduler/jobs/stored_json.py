"""Read JSON from a column, which may have been written by hand."""

from __future__ import annotations

import json
from typing import Any


def value_from(text: str | None) -> Any:
    """Return the value of a column.

    Raises:
        ValueError: Python cannot read it: a number of 5,000 digits, or deep nesting.
    """
    try:
        return None if text is None else json.loads(text)
    except RecursionError as error:
        raise ValueError(f"the stored JSON is nested too deep: {error}") from error


def object_from(text: str | None) -> dict[str, Any]:
    """Return the object in a column; an empty one for anything else."""
    try:
        value = value_from(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def is_equal_json(one: str, other: str) -> bool:
    """Return whether two texts have the same value. The database writes JSON in its own way."""
    try:
        return bool(_marked(value_from(one)) == _marked(value_from(other)))
    except (ValueError, RecursionError):
        return False


def _marked(value: Any) -> Any:
    """Return a value in which True, 1 and 1.0 differ. The database writes larger floats without a point."""
    if isinstance(value, bool) or (isinstance(value, float) and abs(value) < 1e16):
        return type(value), value
    if isinstance(value, dict):
        return {name: _marked(each) for name, each in value.items()}
    return [_marked(each) for each in value] if isinstance(value, list) else value
