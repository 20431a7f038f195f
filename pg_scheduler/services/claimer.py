"""Takes due jobs, as many as there are free slots, at their time.

It sleeps until the next job is due by the database's clock, until it is woken (a job was scheduled, a
slot became free, another node sent word), or until the fallback poll, whichever comes first.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import ClassVar, Final

from pg_scheduler.config import PollingConfig
from pg_scheduler.domain.tasks import TaskRegistry
from pg_scheduler.events import EventBus, JobExpired
from pg_scheduler.services.base import Service
from pg_scheduler.services.executor import Executor
from pg_scheduler.store.store import Store

__all__ = ["Claimer"]

JITTER: Final = 0.1


class Claimer(Service):
    """Keep the slots full."""

    name: ClassVar[str] = "claimer"

    def __init__(
        self,
        store: Store,
        events: EventBus,
        executor: Executor,
        tasks: TaskRegistry,
        worker_id: str,
        *,
        batch: int,
        polling: PollingConfig,
        on_claimed: Callable[[], None],
    ) -> None:
        super().__init__(events)
        self._store = store
        self._executor = executor
        self._tasks = tasks
        self._worker_id = worker_id
        self._batch = batch
        self._polling = polling
        self._on_claimed = on_claimed
        self._idle = polling.idle_start_interval
        self._missed = False
        self._claiming = asyncio.Lock()

    async def run_once(self) -> float:
        """Claim once."""
        async with self._claiming:  # two passes at once would count the same free slots
            return await self._claim()

    async def _claim(self) -> float:
        limit = min(self._executor.free, self._batch)
        if limit == 0:
            return self._polling.semaphore_full_interval
        names = self._tasks.names()
        claimed = await self._store.claim(self._worker_id, names, limit)
        for job in claimed.jobs:
            self._executor.submit(job)
        if claimed.jobs:
            self._on_claimed()
        for gone in claimed.expired:
            self._events.publish(JobExpired(gone.job_id, gone.job_name, gone.attempt))
        if len(claimed.jobs) + len(claimed.expired) == limit:
            self._idle = self._polling.idle_start_interval
            return 0
        return await self._until_next(names, found=bool(claimed.jobs))

    async def _until_next(self, names: list[str], *, found: bool) -> float:
        polling = self._polling
        if found:
            self._idle = polling.idle_start_interval
        poll = min(max(self._idle, polling.min_interval), polling.max_interval)
        self._idle = min(self._idle * polling.backoff_multiplier, polling.max_interval)
        if polling.jitter:  # of polls only: a due time is no matter of chance
            moved = poll * (1 + random.uniform(-JITTER, JITTER))  # noqa: S311 - jitter, no secret
            poll = min(moved, polling.max_interval)
        due = await self._store.seconds_until_due(names)
        missed, self._missed = self._missed and not found, due is not None and due <= 0
        if self._missed:  # it came due since the claim; or, when that was so before, somebody has locked it
            return polling.min_interval if missed else 0
        return poll if due is None else min(due, poll)
