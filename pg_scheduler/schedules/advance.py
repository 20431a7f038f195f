"""Advance a due schedule to its next fire time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from pg_scheduler.triggers.base import Trigger, latest_fire

__all__ = ["Step", "step", "window_job_id"]


@dataclass(frozen=True, slots=True)
class Step:
    """The window to run now, and the first one after it."""

    window: datetime
    next_fire_at: datetime


def step(trigger: Trigger, *, anchor: datetime, first: datetime, now: datetime) -> Step:
    """Move a due schedule on. Windows missed meanwhile collapse into the latest one.

    Args:
        trigger: When the schedule fires.
        anchor: Where an interval's rhythm begins.
        first: The fire time that has come, not after ``now``.
        now: The database's clock.
    """
    window = latest_fire(trigger, first=first, now=now, anchor=anchor)
    return Step(window, trigger.next_after(window, anchor=anchor))


def window_job_id(dedup_key: str, window: datetime) -> str:
    """The id of a window's job: the primary key makes it unique, whoever plans it."""
    return f"periodic:{dedup_key}:{window.astimezone(UTC).isoformat()}"
