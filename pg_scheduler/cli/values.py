"""Read rates and JSON from options."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from .errors import CommandError, ExitCode

_RATE: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(?:/([smh]))?")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


def read_rate(text: str | None) -> float | None:
    """Return the jobs per second of a rate such as 50/s, 10/m or 500/h; None for none.

    Raises:
        CommandError: It is none, or 0.
    """
    if text is None:
        return None
    found = _RATE.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise CommandError(ExitCode.USAGE, f"--rate must be a rate such as 50/s, 10/m or 500/h, not {text!r}")
    return float(found[1]) / _SECONDS[found[2] or "s"]


def read_json(name: str, text: str | None, kind: type) -> Any:
    """Return the value of a JSON text, a list or an object; None for none.

    Raises:
        CommandError: It is no JSON, or of another kind.
    """
    if text is None:
        return None
    described = "list" if kind is list else "object"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(ExitCode.USAGE, f"{name} must be a JSON {described}: {error}") from None
    if not isinstance(value, kind):
        raise CommandError(ExitCode.USAGE, f"{name} must be a JSON {described}, not {text[:100]!r}")
    return value
