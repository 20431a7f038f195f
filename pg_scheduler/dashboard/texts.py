"""Show values of unknown origin as text: names, ids, arguments and errors may contain anything."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final

from pg_scheduler.inspect.texts import length

DOCUMENTATION: Final = "https://pg-scheduler.github.io/pg-scheduler/"

RUNBOOK: Final = f"{DOCUMENTATION}operations/runbook.html#"
"""The address of the runbook, before the anchor of a code."""

MAX_DEPTH: Final = 50
"""Levels of a value that are shown; deeper ones are an ellipsis."""

SHORT_LENGTH: Final = 120
"""Characters of a text in a table."""

_CONTROLS: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_KEPT: Final = frozenset("\n\t\u200c\u200d")
"""Characters of these categories that neither reorder nor hide text: scripts and emoji need the joiners."""


def visible(text: str) -> str:
    """Return the text with escapes for characters that reorder or hide text."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        ascii(each)[1:-1] if unicodedata.category(each) in _CONTROLS and each not in _KEPT else each
        for each in text
    )


def short(text: str | None, most: int = SHORT_LENGTH) -> str:
    """Return the text in one line of bounded length."""
    line = " ".join((text or "")[: 10 * most].split())
    return line if len(line) <= most else f"{line[:most]}…"


def utc(at: datetime | None) -> str:
    """Return an instant as pages show it."""
    return "-" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def ago(at: datetime | None, now: datetime) -> str:
    """Return how long ago an instant was, or in how long it will be."""
    if at is None:
        return "-"
    apart = now - at
    return f"{length(apart)} ago" if apart >= timedelta(0) else f"in {length(-apart)}"


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON has it: instants in UTC, durations in seconds."""
    match value:
        case Enum():
            return plain(value.value, depth)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case timedelta():
            return value.total_seconds()
    return "…" if depth >= MAX_DEPTH else _plain_parts(value, depth)


def _plain_parts(value: Any, depth: int) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: plain(getattr(value, each.name), depth + 1)
            for each in fields(value)
            if not each.name.startswith("_")
        }
    if isinstance(value, Mapping):
        return {str(key): plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each, depth + 1) for each in value]
    return str(value)


def json_text(value: Any) -> str:
    """Return a value as indented JSON for people."""
    return json.dumps(plain(value), ensure_ascii=False, indent=2)
