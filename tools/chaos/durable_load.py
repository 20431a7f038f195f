"""The enqueuers of durable jobs, in addition to those of all others."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from pg_scheduler import ConflictResolution
from pg_scheduler.errors import DatabaseUnavailableError
from tools.chaos import durable_jobs
from tools.chaos.load import CANCELLED, KEEP, PLAIN, Load, Request, Sent, Share

ORDERS_RATE: Final = 3.0
COMPLETING_RATE: Final = 10.0
"""Orders, and jobs that complete in a transaction, per second."""

SHARED_RATE: Final = 0.5
LOUD_JOBS: Final = 15
"""Calls per second for jobs of two tenants, and the jobs of one of them for each of the other one."""

REPEAT_S: Final = 0.3
"""Seconds until a call is repeated whose answer is unknown."""


class DurableLoad(Load):
    """Schedules durable jobs too, and sends their signals."""

    def shares(self) -> list[Share]:
        """See `Load`."""
        return [
            *super().shares(),
            (self._order, min(0.01, ORDERS_RATE / self.rate), 1),
            (self._completing, min(0.03, COMPLETING_RATE / self.rate), 1),
            (self._tenants, min(0.002, SHARED_RATE / self.rate), 1),
        ]

    async def _order(self) -> None:
        """Schedule an order and send its signals, each once or twice, at random; cancel some orders."""
        variant = {"exact": self.random.random() < 0.5, "completes": self.random.random() < 0.5}
        effects = durable_jobs.expected_effects(**variant)
        job_id, cancels = self._new_id(), self.random.random() < 0.1
        self.requests[job_id] = request = Request(
            CANCELLED if cancels else PLAIN, keeps=not cancels, effects=effects
        )
        await self._until_answered(
            lambda: self.client.schedule(
                durable_jobs.order,
                execution_time=datetime.now(UTC),
                kwargs=variant,
                job_id=job_id,
                misfire_grace_time=None,
                keep_result=None if cancels else KEEP,
                conflict_resolution=ConflictResolution.IGNORE,
            )
        )
        request.confirmed = True
        calls = [
            self._signal(job_id, request, name, number)
            for name in durable_jobs.SIGNALS
            for number in range(self.random.choice((1, 2)))
        ]
        if cancels:
            calls.append(self._cancel_later(job_id, request))
        await asyncio.gather(*calls)

    async def _signal(self, job_id: str, request: Request, name: str, number: int) -> None:
        """Send a signal before, while or after the order waits for it; each call has a value of its own."""
        await asyncio.sleep(self.random.choice((0, self.random.uniform(0, 4))))
        values = (f"{name} {number} {call}" for call in itertools.count())

        async def send() -> None:
            sent = Sent(name, next(values))
            request.signals += (sent,)
            sent.is_stored = await self.client.signal(job_id, name, sent.value)

        await self._until_answered(send)

    async def _until_answered(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Call, and again until the answer is known."""
        while True:
            try:
                await call()
            except DatabaseUnavailableError as fault:
                self.faults[type(fault.__cause__).__name__] += 1
                await asyncio.sleep(REPEAT_S)
            else:
                return

    async def _cancel_later(self, job_id: str, request: Request) -> None:
        await asyncio.sleep(self.random.uniform(0, 3))
        with suppress(DatabaseUnavailableError):
            request.cancelled = await self.client.cancel_job(job_id)

    async def _completing(self) -> None:
        """Schedule a job that completes in a transaction; cancel some before, while or after they run."""
        job_id, cancels = self._new_id(), self.random.random() < 0.2
        self.requests[job_id] = request = Request(
            CANCELLED if cancels else PLAIN, keeps=not cancels, effects=(durable_jobs.COMPLETED,)
        )
        await self.client.schedule(
            durable_jobs.completing,
            execution_time=self._soon(0.5),
            job_id=job_id,
            misfire_grace_time=None,
            keep_result=None if cancels else KEEP,
        )
        request.confirmed = True
        if cancels:
            await self._cancel_later(job_id, request)

    async def _tenants(self) -> None:
        """Schedule many jobs of one tenant, and one of another."""
        loud = [self._now(durable_jobs.shared, args=("loud",)) for _ in range(LOUD_JOBS)]
        await self._bulk_of([*loud, self._now(durable_jobs.shared, args=("quiet",))])
