"""Delete finished jobs past their retention.

It walks over the table in steps of some thousand blocks, each a short transaction. So it needs no index on
finished jobs, and holds no lock for long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from typing import ClassVar, Final, NamedTuple

from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import EventBus, JobsVacuumed
from pg_scheduler.settings import VacuumConfig, VacuumPolicy, VacuumTrigger
from pg_scheduler.status import JobStatus
from pg_scheduler.store.store import Store
from pg_scheduler.worker.service import Service

SCHEDULES_BATCH_SIZE: Final = 1000
AUDIT_BATCH_SIZE: Final = 1000

STATISTICS_DAYS: Final = ((60, 600, 0.25), (600, 3600, 7.0), (3600, None, 90.0))
"""Spans of statistics in seconds, the longer spans that they are merged into, and the days before that."""


class VacuumStep(NamedTuple):
    """A step of a pass over the table.

    Attributes:
        done: The blocks that were read so far.
        blocks: The blocks of the table.
        jobs: The number of jobs that the step deleted, by status.
    """

    done: int
    blocks: int
    jobs: Counter[JobStatus]


class Vacuum(Service):
    """Delete finished jobs past their retention."""

    name: ClassVar[str] = "vacuum"
    jitter: ClassVar[float] = 0.1
    step_blocks = 2000
    """Blocks of the table that one step walks over."""
    pause_s = 0.1
    """Seconds between two steps, several times as long as a step takes: jobs come first."""
    surplus_batch_size = 10_000
    """Rows that one statement deletes beyond ``keep_last``."""
    statistics_batch_size = 500
    """Rows of statistics that one statement merges or deletes."""

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
        self._walk: AsyncIterator[VacuumStep] | None = None
        self._deleted: Counter[JobStatus] = Counter() if deleted is None else deleted
        self._policies: Mapping[JobStatus, VacuumPolicy] = {
            JobStatus.COMPLETED: config.completed,
            JobStatus.FAILED: config.failed,
            JobStatus.CANCELLED: config.cancelled,
            JobStatus.EXPIRED: config.expired,
        }

    async def run_once(self) -> float:
        """Make one step of the pass over the table."""
        self._walk = self._walk or self.steps()
        try:
            async for step in self._walk:
                self._deleted.update(step.jobs)
                return self.pause_s
        except DatabaseUnavailableError:
            self._walk = None  # the generator has ended: the next pass starts a new walk
            raise
        self._walk = None
        await self.drain()
        return self._config.interval_minutes * 60

    async def drain(self) -> None:
        """Report what was deleted since the last report."""
        deleted = self._deleted.copy()
        await self.report(deleted)
        self._deleted -= deleted  # more may have been counted meanwhile

    async def run(self) -> dict[JobStatus, int]:
        """Apply every policy now; return the number of deleted jobs of each status."""
        deleted = Counter(dict.fromkeys(self._policies, 0))
        async for step in self.steps():
            deleted.update(step.jobs)
        await self.report(deleted)
        return dict(deleted)

    async def preview(self) -> AsyncIterator[VacuumStep]:
        """Yield steps with what ``run()`` would delete.

        Policies that keep a number of jobs are not counted: that would read the whole table at once.
        """
        cutoffs = await self._cutoffs()
        blocks = await self._store.retention.table_blocks() if cutoffs else 0
        step = self.step_blocks
        for first in range(0, blocks, step):
            found = await self._store.retention.count_in_blocks(first, first + step, cutoffs)
            yield VacuumStep(min(first + step, blocks), blocks, Counter(found))

    async def _cutoffs(self) -> dict[JobStatus, datetime]:
        """Return for each status with an age the instant before which its jobs are deleted."""
        ages = {status: age for status, policy in self._policies.items() if (age := _age(policy)) is not None}
        if not ages:
            return {}
        now = await self._store.schedules.now()
        return {status: now - age for status, age in ages.items()}

    async def steps(self) -> AsyncIterator[VacuumStep]:
        """Apply every policy, and yield after each step what it deleted."""
        cutoffs = await self._cutoffs()
        blocks = await self._store.retention.table_blocks() if cutoffs else 0
        step = self.step_blocks
        for first in range(0, blocks, step):
            deleted = await self._store.retention.vacuum_blocks(first, first + step, cutoffs)
            yield VacuumStep(min(first + step, blocks), blocks, Counter(deleted))
        async for other in self._delete_others():
            yield VacuumStep(blocks, blocks, other)

    async def _delete_others(self) -> AsyncIterator[Counter[JobStatus]]:
        """Delete what no walk over the table finds, and yield the number of jobs after each batch."""
        await self._delete_schedules()
        await self._delete_audit()
        size = self.statistics_batch_size
        for span_s, longer_s, days in STATISTICS_DAYS:
            while await self._store.statistics.fold(span_s, longer_s, days, size) == size:
                yield Counter()
        batch_size = self.surplus_batch_size
        while await self._store.kept_results.vacuum(batch_size) == batch_size:
            yield Counter()
        for status, policy in self._policies.items():
            count = batch_size
            while policy.keep_count is not None and count == batch_size:
                count = await self._store.retention.vacuum_surplus(status, policy.keep_count, batch_size)
                yield Counter({status: count})

    async def _delete_schedules(self) -> None:
        """Delete schedules that have finished."""
        age = _age(self._config.schedules)
        if age is None:
            return
        before = await self._store.schedules.now() - age
        while await self._store.schedules.vacuum(before, SCHEDULES_BATCH_SIZE) == SCHEDULES_BATCH_SIZE:
            pass

    async def _delete_audit(self) -> None:
        """Delete records of changes, and bulk runs."""
        age = _age(self._config.audit)
        if age is None:
            return
        before = await self._store.schedules.now() - age
        while await self._store.audit.vacuum(before, AUDIT_BATCH_SIZE) == AUDIT_BATCH_SIZE:
            pass

    async def report(self, deleted: Counter[JobStatus]) -> None:
        """Count deletions in the statistics of the day, and publish them."""
        if not deleted.total():
            return
        if self._config.track_metrics:
            await self._store.retention.record_vacuum(deleted, self._worker_id)
        self._events.publish(JobsVacuumed(**{status.value: deleted[status] for status in self._policies}))


def _age(policy: VacuumPolicy) -> timedelta | None:
    if policy.trigger is VacuumTrigger.IMMEDIATE:
        return timedelta(0)
    return None if policy.days is None else timedelta(days=policy.days)
