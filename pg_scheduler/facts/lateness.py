"""What counts as late and overdue.

A due job is late if it has waited for a slot for a minute. Jobs of a paused task are due and held, and never
late: it was decided that they wait. A schedule is overdue a minute after it should have fired, or after its
pause should have ended.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from datetime import datetime
from typing import Final, Protocol

from pg_scheduler.base.text.numbers import counted

LATE_S: Final = 60.0
"""Seconds after its due time from which on a job that waits for a slot is late."""

OVERDUE_S: Final = 60.0
"""Seconds after its fire time, or the end of its pause, from which on a schedule is overdue."""


class DueJobs(Protocol):
    """The due jobs of a name."""

    @property
    def name(self) -> str:
        """The name that a worker must claim."""

    @property
    def due(self) -> int:
        """The number of its due jobs."""

    @property
    def oldest_due_at(self) -> datetime | None:
        """When the first of them was due."""


class TaskPause(Protocol):
    """The pause of a task."""

    @property
    def name(self) -> str:
        """The name that was paused."""

    @property
    def stopped_names(self) -> Collection[str]:
        """This name and the exact names of its task, which no worker starts."""


def held_names(
    names: Iterable[str], pauses: Collection[TaskPause], tasks: Mapping[str, str]
) -> frozenset[str]:
    """Return the names whose jobs are held because their task is paused.

    Args:
        names: The names of jobs.
        pauses: The pauses that have not ended.
        tasks: The name of the task by alias. A pause holds the jobs of all names of a task.
    """
    stopped_names = {name for pause in pauses for name in pause.stopped_names}
    # Only the name that was paused is looked up among the aliases. An exact name of a paused task may be an
    # alias of another task here, which is not paused.
    paused_tasks = set(stopped_names)
    for pause in pauses:
        paused_tasks.add(tasks.get(pause.name, pause.name))
    held = set()
    for name in names:
        task = tasks.get(name, name)
        if name in stopped_names or task in paused_tasks:
            held.add(name)
    return frozenset(held)


def oldest_due(backlog: Iterable[DueJobs], held: Container[str]) -> datetime | None:
    """Return the earliest due time of the due jobs that are not held; None if there are none.

    Held jobs are those whose names are in ``held``, because their task is paused.
    """
    due_times = [row.oldest_due_at for row in backlog if row.due and row.name not in held]
    return min((due_at for due_at in due_times if due_at is not None), default=None)


def count_held(backlog: Iterable[DueJobs], held: Container[str]) -> int:
    """Return the number of due jobs that are held: those of the names ``held``, whose task is paused."""
    return sum(row.due for row in backlog if row.name in held)


def is_late(due_at: datetime | None, now: datetime, late_s: float = LATE_S) -> bool:
    """Return whether a job that is not held is late; ``due_at`` is its due time, None if there is no job."""
    return due_at is not None and (now - due_at).total_seconds() >= late_s


def is_overdue(due_at: datetime | None, now: datetime) -> bool:
    """Return whether a schedule is overdue.

    ``due_at`` is when the schedule should have fired, or when its pause should have ended; None for neither,
    so the schedule is not overdue.
    """
    return due_at is not None and (now - due_at).total_seconds() > OVERDUE_S


def describe_nothing_late(held: int) -> str:
    """Return the text for people that no job is late; it also states how many due jobs are held, if any are.

    All front ends use it, so that they have the same words.
    """
    text = "nothing late"
    if held:
        text += f", {counted(held, 'due job')} of paused tasks"
    return text
