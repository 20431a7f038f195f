"""Deletes finished jobs past their retention.

A pass is a walk over the table in steps of some thousand blocks, each a short transaction, so it needs
no index on the history and holds nothing for long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import ClassVar, Final

from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import EventBus, JobsVacuumed
from pg_scheduler.jobs.model import JobStatus
from pg_scheduler.settings import VacuumConfig, VacuumPolicy, VacuumTrigger
from pg_scheduler.store.store import Store
from pg_scheduler.worker.service import Service

__all__ = ["Vacuum"]

STEP_BLOCKS: Final = 2000

PAUSE: Final = 0.1
"""Seconds between two steps, several times as long as one takes: jobs need the server more than we do."""

SURPLUS_BATCH: Final = 10_000


class Vacuum(Service):
    """Delete finished jobs past their retention.

    Args:
        deleted: Counts rows that are deleted as their jobs complete; reported with those of the next walk.
    """

    name: ClassVar[str] = "vacuum"
    jitter: ClassVar[float] = 0.1

    def __init__(
        self,
        store: Store,
        events: EventBus,
        config: VacuumConfig,
        worker_id: str,
        *,
        deleted: Counter[JobStatus] | None = None,
    ) -> None:
        super().__init__(events)
        self._store = store
        self._config = config
        self._worker_id = worker_id
        self._walk: AsyncIterator[Counter[JobStatus]] | None = None
        self._deleted: Counter[JobStatus] = Counter() if deleted is None else deleted
        self._policies: Mapping[JobStatus, VacuumPolicy] = {
            JobStatus.COMPLETED: config.completed,
            JobStatus.FAILED: config.failed,
            JobStatus.CANCELLED: config.cancelled,
            JobStatus.EXPIRED: config.expired,
        }

    async def run_once(self) -> float:
        """One step of a walk."""
        self._walk = self._walk or self._steps()
        try:
            async for deleted in self._walk:
                self._deleted.update(deleted)
                return PAUSE
        except DatabaseUnavailableError:
            self._walk = None  # the generator has ended: the next pass begins a walk anew
            raise
        self._walk = None
        await self.drain()
        return self._config.interval_minutes * 60

    async def drain(self) -> None:
        """Tell what was deleted since the last time."""
        deleted = self._deleted.copy()
        await self._report(deleted)
        self._deleted -= deleted  # more may have been counted meanwhile

    async def run(self) -> dict[JobStatus, int]:
        """Apply every policy now; how many jobs of each status were deleted."""
        deleted = Counter(dict.fromkeys(self._policies, 0))
        async for step in self._steps():
            deleted.update(step)
        await self._report(deleted)
        return dict(deleted)

    async def _steps(self) -> AsyncIterator[Counter[JobStatus]]:
        ages = {status: age for status, policy in self._policies.items() if (age := _age(policy)) is not None}
        if ages:
            now = await self._store.schedules.now()
            cutoffs = {status: now - age for status, age in ages.items()}
            for first in range(0, await self._store.retention.table_blocks(), STEP_BLOCKS):
                yield Counter(await self._store.retention.vacuum_blocks(first, first + STEP_BLOCKS, cutoffs))
        for status, policy in self._policies.items():
            count = SURPLUS_BATCH
            while policy.keep_count is not None and count == SURPLUS_BATCH:
                count = await self._store.retention.vacuum_surplus(status, policy.keep_count, SURPLUS_BATCH)
                yield Counter({status: count})

    async def _report(self, deleted: Counter[JobStatus]) -> None:
        if not deleted.total():
            return
        if self._config.track_metrics:
            await self._store.retention.record_vacuum(deleted, self._worker_id)
        self._events.publish(JobsVacuumed(**{status.value: deleted[status] for status in self._policies}))


def _age(policy: VacuumPolicy) -> timedelta | None:
    if policy.trigger is VacuumTrigger.IMMEDIATE:
        return timedelta(0)
    return None if policy.days is None else timedelta(days=policy.days)
