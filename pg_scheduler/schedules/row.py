"""A periodic schedule as its database row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pg_scheduler.schedules.timing import trigger_for
from pg_scheduler.triggers.base import Trigger

__all__ = ["PeriodicRow"]


@dataclass(frozen=True, slots=True)
class PeriodicRow:
    """One row of ``scheduler_periodic_jobs``."""

    dedup_key: str
    derived_key: bool
    job_name: str
    function: str
    every: timedelta | None
    cron: str | None
    timezone: str | None
    use_advisory_lock: bool
    priority: int
    max_retries: int
    enabled: bool
    enabled_in_code: bool
    anchor: datetime
    last_fire_at: datetime | None
    next_fire_at: datetime | None

    @property
    def schedule(self) -> tuple[timedelta | None, str | None, str | None]:
        """When it fires: interval, cron expression, zone name."""
        return self.every, self.cron, self.timezone

    def trigger(self) -> Trigger:
        """The trigger of the schedule."""
        return trigger_for(self.every, self.cron, self.timezone)
