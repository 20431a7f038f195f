"""Events of tasks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pg_scheduler.events.types import Event


@dataclass(frozen=True, slots=True)
class TaskPaused(Event):
    """A task was paused: its jobs wait on all nodes."""

    task_name: str
    """The name of the task."""
    paused_until: datetime | None
    """When the pause ends by itself; None if it lasts until the task is resumed."""
    note: str | None
    """Why it was paused."""
    actor: str
    """The Scheduler that paused it: its identity, else its worker id."""


@dataclass(frozen=True, slots=True)
class TaskResumed(Event):
    """The pause of a task ended. One node publishes it if the pause ended by itself."""

    task_name: str
    """The name of the task."""
    actor: str | None
    """The Scheduler that resumed it: its identity, else its worker id; None if the pause ended by itself."""
