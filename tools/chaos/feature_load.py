"""The enqueuers of choices, alerts, jobs that are cancelled and retried, and of a triggered schedule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from pg_scheduler import ConflictResolution
from tools.chaos import durable_jobs, jobs
from tools.chaos.durable_load import DurableLoad
from tools.chaos.load import BROKEN, PLAIN, Request, Share
from tools.chaos.schedules import TRIGGERED

CHOICE_RATE: Final = 2.0
ALERT_RATE: Final = 3.0
RETRIED_RATE: Final = 3.0
TRIGGER_RATE: Final = 0.5
"""Choices, jobs with an alert, jobs that are cancelled and retried, and triggered schedules, per second."""

LATER: Final = timedelta(days=1)


class FeatureLoad(DurableLoad):
    """Schedules these too."""

    def shares(self) -> list[Share]:
        """See `Load`."""
        return [
            *super().shares(),
            (self._choice, min(0.01, CHOICE_RATE / self.rate), 1),
            (self._alerting, min(0.01, ALERT_RATE / self.rate), 1),
            (self._retried, min(0.01, RETRIED_RATE / self.rate), 1),
            (self._trigger, min(0.01, TRIGGER_RATE / self.rate), 1),
        ]

    async def _choice(self) -> None:
        """Schedule a job that waits for the first of a signal, a sleep and a child, and signal some."""
        job_id = self._new_id()
        self.requests[job_id] = request = Request(PLAIN)
        await self.client.enqueue(durable_jobs.choose, job_id=job_id)
        request.confirmed = True
        if self.random.random() < 0.5:
            await self._signal(job_id, request, durable_jobs.CHOSEN, 0)

    async def _alerting(self) -> None:
        """Enqueue a job that fails at every attempt, and whose failure enqueues an alert."""
        job_id = self._new_id()
        self.requests[job_id] = request = Request(BROKEN)
        await self.client.enqueue(jobs.alerting, job_id=job_id, max_retries=1)
        request.confirmed = True

    async def _retried(self) -> None:
        """Schedule a job for tomorrow, cancel it, and retry it."""
        job_id = self._new_id()
        self.requests[job_id] = request = Request(PLAIN)
        at = datetime.now(UTC) + LATER
        await self._until_answered(
            lambda: self.client.schedule(
                jobs.quick,
                execution_time=at,
                job_id=job_id,
                misfire_grace_time=None,
                conflict_resolution=ConflictResolution.IGNORE,
            )
        )
        request.confirmed = True
        await self._until_answered(lambda: self.client.cancel_job(job_id))

        async def retry() -> None:
            request.retries += 1
            await self.client.retry_job(job_id)

        await self._until_answered(retry)

    async def _trigger(self) -> None:
        """Trigger a schedule."""
        job_id = await self.client.schedules.trigger(TRIGGERED)
        assert job_id is not None
        self.requests.setdefault(job_id, Request(PLAIN)).confirmed = True
