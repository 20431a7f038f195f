"""The columns of a list of jobs, which follow the state unless the address names some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pg_scheduler.dashboard.context import RejectedError


class Column(NamedTuple):
    """A column, except that of the task."""

    name: str
    label: str
    is_number: bool = False
    sort: str = ""
    """The value of ``sort=`` that sorts by it; empty for none."""


COLUMNS: Final[Mapping[str, Column]] = {
    each.name: each
    for each in (
        Column("state", "State", sort="status"),
        Column("error", "Error", sort="error"),
        Column("blocked", "Blocked by"),
        Column("progress", "Progress", sort="progress"),
        Column("worker", "Worker", sort="worker"),
        Column("schedule", "Schedule", sort="schedule"),
        Column("tags", "Tags", sort="tags"),
        Column("retries", "Retries", is_number=True, sort="attempt"),
        Column("priority", "Priority", sort="priority"),
        Column("ran", "Ran", is_number=True, sort="ran"),
        Column("created", "Created", is_number=True, sort="created"),
        Column("due", "Due", is_number=True, sort="due"),
        Column("ended", "Ended", is_number=True, sort="ended"),
        Column("when", "Time", is_number=True, sort="when"),
    )
}
"""Every column, in the order of the table."""

_OF_ENDED: Final = ("state", "error", "ran", "ended")
_OF_WAITING: Final = ("state", "tags", "retries", "due")
_BY_STATE: Final[Mapping[str, Sequence[str]]] = {
    "due": ("state", "tags", "priority", "due"),
    "running": ("state", "progress", "worker", "ran"),
    "scheduled": _OF_WAITING,
    "blocked": ("state", "blocked", "tags", "due"),
    "retrying": ("state", "error", "due"),
    "failed": _OF_ENDED,
    "expired": _OF_ENDED,
    "cancelled": _OF_ENDED,
    "completed": ("state", "tags", "retries", "ran", "ended"),
}
_LABELS: Final[Mapping[tuple[str, str], str]] = {
    ("running", "ran"): "Runs for",
    ("retrying", "error"): "Last error",
    ("retrying", "due"): "Next attempt",
}


def columns_of(state: str | None, chosen: str) -> list[Column]:
    """Return the columns of a list.

    Args:
        state: The state of its jobs; None for several.
        chosen: The names of columns, separated by blanks; empty for those of the state.

    Raises:
        RejectedError: There is no such column.
    """
    names = chosen.split() or _BY_STATE.get(state or "", ("state", "error", "ran", "when"))
    if unknown := [name for name in names if name not in COLUMNS]:
        raise RejectedError(f"cols must be of {', '.join(COLUMNS)}, not {unknown[0][:50]!r}")
    found = [column for name, column in COLUMNS.items() if name in names]
    return [each._replace(label=_LABELS.get((state or "", each.name), each.label)) for each in found]
