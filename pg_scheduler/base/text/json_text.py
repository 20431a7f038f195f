"""Read JSON that others have written: a person, a request, another program, or a row changed by hand.

``json.loads()`` raises a `RecursionError` for deep nesting, which is no `ValueError`. Where that is
forgotten, a text of brackets ends a request, an import or a task. So the package reads such texts here only.
A test checks that.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def load_json(text: str | bytes | bytearray, *, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Return the value of a text of JSON.

    Args:
        text: The text.
        parse_constant: Returns the value of NaN or an infinity, or rejects it; None for those of Python.

    Raises:
        ValueError: The text is no JSON, is nested too deep, or has a number of too many digits.

    Example:
        >>> load_json('{"account": 113}')
        {'account': 113}
    """
    try:
        return json.loads(text, parse_constant=parse_constant)
    except RecursionError as error:
        raise ValueError(f"it is nested too deep: {error}") from error
