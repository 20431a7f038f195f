"""The progress of a job, as it is stored in the ``progress`` column."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

__all__ = ["JobProgress", "progress_from"]

MAX_NUMBER: Final = 1e300


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress that a job reported last."""

    done: float
    """The amount of work that is done."""
    total: float | None = None
    """The amount of all work, in the same unit; None if it is unknown."""
    note: str | None = None
    """A text for people; None for no text."""


def progress_from(column: str | None) -> JobProgress | None:
    """Return the progress in a column; None if there is none, or something else."""
    try:
        value = None if column is None else json.loads(column)
    except (ValueError, RecursionError):  # a number of 5,000 digits, or deep nesting
        return None
    if not isinstance(value, dict) or not _is_number(value.get("done")):
        return None
    total, note = value.get("total"), value.get("note")
    return JobProgress(
        value["done"], total if _is_number(total) else None, note if isinstance(note, str) else None
    )


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER
