"""The enqueuers of durable jobs, in addition to those of all others."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import asyncpg

from pg_scheduler import ConflictResolution, JobSpec, Scheduler
from pg_scheduler.errors import DatabaseUnavailableError
from tools.chaos import durable_jobs, jobs
from tools.chaos.broken import BROKEN_CONNECTION
from tools.chaos.load import (
    BROKEN,
    CALLBACK,
    CANCELLED,
    IN_VAIN,
    KEEP,
    PLAIN,
    Load,
    Request,
    Sent,
    Share,
)

ORDERS_RATE: Final = 3.0
COMPLETING_RATE: Final = 10.0
SUMMARY_RATE: Final = 1.0
"""Orders, jobs that complete in a transaction, and jobs that are passed results, per second."""

SUMMED: Final = 5
"""The most results that one job is passed."""

SHARED_RATE: Final = 0.5
LOUD_JOBS: Final = 15
"""Calls per second for jobs of two tenants, and the jobs of one of them for each of the other one."""

REPEAT_S: Final = 0.3
"""Seconds until a call is repeated whose answer is unknown."""

RESUME_S: Final = 900.0
"""Seconds after which an order that failed is not resumed any more; the checker reports it. Orders sleep by
the clock of the server, which may be set back by two minutes meanwhile. On a busy machine, jobs under which
workers died wait for minutes, since one at a time runs apart from the others."""

STATUS: Final = "SELECT status FROM scheduled_jobs WHERE job_id = $1"
LOCK_FAILED: Final = "SELECT true FROM scheduled_jobs WHERE job_id = $1 AND status = 'failed' FOR UPDATE"


class DurableLoad(Load):
    """Schedules durable jobs too, and sends their signals.

    Args:
        client: As for `Load`.
        rate: As for `Load`.
        seed: As for `Load`.
        pool: The pool of the client, for its own transactions.
    """

    def __init__(self, client: Scheduler, rate: int, seed: int, pool: asyncpg.Pool) -> None:
        super().__init__(client, rate, seed)
        self._pool = pool

    def shares(self) -> list[Share]:
        """See `Load`."""
        return [
            *super().shares(),
            (self._order, min(0.01, ORDERS_RATE / self.rate), 1),
            (self._completing, min(0.03, COMPLETING_RATE / self.rate), 1),
            (self._summary, min(0.01, SUMMARY_RATE / self.rate), 1),
            (self._tenants, min(0.002, SHARED_RATE / self.rate), 1),
        ]

    async def _order(self) -> None:
        """Schedule an order and send its signals, each once or twice, at random; cancel some orders.

        Some fail because of a child, and are resumed.
        """
        variant = {"exact": self.random.random() < 0.5, "completes": self.random.random() < 0.5}
        function: Callable[..., Any] = durable_jobs.order
        effects = durable_jobs.expected_effects(**variant)
        if self.random.random() < 0.3:
            function, variant = durable_jobs.thread_order, {}
            effects = durable_jobs.expected_effects(exact=False, completes=False)
        job_id, cancels = self._new_id(), self.random.random() < 0.1
        variant["fails"] = not cancels and self.random.random() < 0.2
        self.requests[job_id] = request = Request(
            CANCELLED if cancels else PLAIN, keeps=not cancels, effects=effects
        )
        await self._until_answered(
            lambda: self.client.schedule(
                function,
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
        if variant["fails"]:
            calls.append(self._resume(job_id))
        await asyncio.gather(*calls)

    async def _resume(self, job_id: str) -> None:
        """Retry the child of an order that has failed, and the order from there, in one transaction."""
        deadline = time.monotonic() + RESUME_S
        while time.monotonic() < deadline:
            await asyncio.sleep(1)
            with suppress(DatabaseUnavailableError, *BROKEN_CONNECTION):
                status = await self._pool.fetchval(STATUS, job_id, timeout=10)
                if status in ("completed", None):  # the vacuum deletes completed ones
                    return
                if status == "failed":
                    await self._retry_with_child(job_id)

    async def _retry_with_child(self, job_id: str) -> None:
        async with self._pool.acquire(timeout=10) as connection, connection.transaction():
            if await connection.fetchval(LOCK_FAILED, job_id, timeout=10):  # an earlier call may have retried
                parcel = f"{job_id}:{durable_jobs.PARCEL}"
                assert await self.client.retry_job(parcel, connection=connection)
                assert await self.client.retry_job(
                    job_id, from_step=durable_jobs.PARCEL, connection=connection
                )

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

    async def _summary(self) -> None:
        """Schedule jobs, and one that is passed their results, before, while or after they run."""
        functions: list[Callable[..., Any]] = self.random.choices(
            (jobs.value, jobs.thread_value, durable_jobs.completing, jobs.broken_value),
            (3, 3, 3, 1),
            k=self.random.randint(1, SUMMED),
        )
        specs = [
            JobSpec(
                function,
                self._soon(1),
                job_id=self._new_id(),
                misfire_grace_time=None,
                keep_result=KEEP,
            )
            for function in functions
        ]
        predecessors = tuple(spec.job_id for spec in specs if spec.job_id is not None)
        for function, job_id in zip(functions, predecessors, strict=True):
            self.requests[job_id] = Request(
                BROKEN if function is jobs.broken_value else PLAIN,
                keeps=True,
                effects=(durable_jobs.COMPLETED,) if function is durable_jobs.completing else (),
            )
        await self.client.schedule_bulk(specs)
        for job_id in predecessors:
            self.requests[job_id].confirmed = True
        await asyncio.sleep(self.random.choice((0, 0, 2)))
        requires_completion = self.random.random() < 0.3
        in_vain = requires_completion and jobs.broken_value in functions
        job_id = self._new_id()
        self.requests[job_id] = request = Request(IN_VAIN if in_vain else CALLBACK, after=predecessors)
        await self.client.schedule(
            self.random.choice((durable_jobs.summary, durable_jobs.thread_summary)),
            execution_time=datetime.now(UTC),
            job_id=job_id,
            misfire_grace_time=None,
            after=predecessors,
            after_outcome="completed" if requires_completion else "ended",
            pass_results=True,
        )
        request.confirmed = True

    async def _tenants(self) -> None:
        """Schedule many jobs of one tenant, and one of another."""
        loud = [self._now(durable_jobs.shared, args=("loud",)) for _ in range(LOUD_JOBS)]
        await self._bulk_of([*loud, self._now(durable_jobs.shared, args=("quiet",))])
