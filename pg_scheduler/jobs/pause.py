"""The public value of a task, and a pause as read from its row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pg_scheduler.jobs.limits import Limit
from pg_scheduler.jobs.model import JobPriority

__all__ = ["Pause", "TaskInfo"]


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause as read from its row.

    Attributes:
        ends_in: Seconds until it ends, 0 or less if it has ended; None if it lasts until it is resumed.
    """

    name: str
    paused_at: datetime
    paused_until: datetime | None
    note: str | None
    actor: str
    ends_in: float | None

    @property
    def is_over(self) -> bool:
        """Whether the pause has ended by itself."""
        return self.ends_in is not None and self.ends_in <= 0


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A registered function, or a paused name that is not registered in this process."""

    name: str
    """The name of its jobs."""
    aliases: tuple[str, ...]
    """Other names whose jobs it runs."""
    is_registered: bool
    """Whether this Scheduler can run its jobs."""
    timeout: timedelta | None
    """Default time limit of one attempt; None for no limit."""
    misfire_grace_time: int | None
    """Default misfire grace time in seconds; None for no limit."""
    max_retries: int
    """Default number of retries."""
    priority: JobPriority
    """Default priority."""
    limits: tuple[Limit, ...] = ()
    """How many attempts may run or start; empty for no limit."""
    paused_at: datetime | None = None
    """When the task was paused; None if it is not paused."""
    paused_until: datetime | None = None
    """When the pause ends by itself; None if it lasts until the task is resumed, or if it is not paused."""
    note: str | None = None
    """Why it was paused."""
    actor: str | None = None
    """The Scheduler that paused it: its identity, else its worker id."""

    @property
    def is_paused(self) -> bool:
        """Whether its jobs wait."""
        return self.paused_at is not None
