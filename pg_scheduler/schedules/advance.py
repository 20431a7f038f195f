"""Advance a due schedule to its next fire time. Missed fire times collapse into the latest one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from pg_scheduler.triggers.combine import first_fire_time
from pg_scheduler.triggers.cron import Cron
from pg_scheduler.triggers.interval import Every
from pg_scheduler.triggers.missed import latest_fire_time

__all__ = ["Advance", "advance", "fire_time_job_id"]


@dataclass(frozen=True, slots=True)
class Advance:
    """The fire time to enqueue now, and the first one after it."""

    fire_time: datetime
    next_fire_at: datetime


def advance(trigger: Every | Cron, *, anchor: datetime, first: datetime, now: datetime) -> Advance:
    """Return the latest fire time that is due and the one after it. Earlier missed fire times are skipped.

    Args:
        trigger: The trigger of the schedule.
        anchor: The instant from which an interval is counted.
        first: The stored next fire time, not after ``now``.
        now: The time of the database.

    Raises:
        ValueError: The trigger has no later fire time.
    """
    fire_time = latest_fire_time(trigger, first=first, now=now, anchor=anchor)
    return Advance(fire_time, first_fire_time(trigger, after=fire_time, anchor=anchor))


def fire_time_job_id(dedup_key: str, fire_time: datetime) -> str:
    """Return the id of the job of a fire time. Every node derives the same id, so the job exists once."""
    return f"periodic:{dedup_key}:{fire_time.astimezone(UTC).isoformat()}"
