"""Expires jobs past their grace that no claim meets, since nobody knows their name or no slot is free.

The lookout says when there are any.
"""

from __future__ import annotations

from typing import ClassVar, Final

from pg_scheduler.events import EventBus, JobExpired
from pg_scheduler.store.jobs import JobRepository
from pg_scheduler.worker.service import NEVER, Service

__all__ = ["Expirer"]

BATCH: Final = 500


class Expirer(Service):
    """Sweep jobs past their grace."""

    name: ClassVar[str] = "expirer"

    def __init__(self, jobs: JobRepository, events: EventBus) -> None:
        super().__init__(events)
        self._jobs = jobs

    async def run_once(self) -> float:
        """Expire one batch."""
        expired = await self._jobs.expire(BATCH)
        for job_id, job_name, attempt in expired:
            self._events.publish(JobExpired(job_id, job_name, attempt))
        return 0 if len(expired) == BATCH else NEVER
