"""Insert validated jobs and notify workers of those that are due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.enqueue.dependents import DependentInserter
from pg_scheduler.enqueue.insert_batcher import InsertBatcher
from pg_scheduler.enqueue.outbox import Outbox
from pg_scheduler.enqueue.prepare import JobPreparer
from pg_scheduler.errors import JobConflictError
from pg_scheduler.events import EventBus, JobScheduled
from pg_scheduler.jobs.model import ConflictResolution, JobSpec
from pg_scheduler.jobs.rows import DelayedJob, ExtendedJob, GeneratedIdJob, NewJob
from pg_scheduler.jobs.validation import check_count, check_kind
from pg_scheduler.store.connections.listen import DUE
from pg_scheduler.store.connections.session import Connection, check_connection
from pg_scheduler.store.store import Store

__all__ = ["Enqueuer"]

PREPARE_BATCH: Final = 500
"""Jobs that are validated before other tasks run: some two milliseconds."""

MIN_COPY_JOBS: Final = 100
"""Jobs from which on COPY is faster than INSERT, including its further round trip."""


class Enqueuer:
    """Inserts jobs and notifies workers of those that are due.

    Args:
        preparer: Validates the jobs of ``insert_all()``.
    """

    def __init__(self, store: Store, events: EventBus, outbox: Outbox, preparer: JobPreparer) -> None:
        self._store = store
        self._events = events
        self._outbox = outbox
        self._preparer = preparer
        self._batcher = InsertBatcher(self._insert_batch)
        self._delayed = InsertBatcher(self._insert_delayed)
        self._extended = InsertBatcher(self._insert_extended)
        self._dependents = DependentInserter(store)

    async def insert(
        self, job: NewJob, conflict_resolution: ConflictResolution, connection: Connection | None
    ) -> str:
        """Insert one validated job.

        Raises:
            JobConflictError: The id exists and the resolution is RAISE.
            JobNotFoundError: The job waits for one that does not exist.
        """
        self._store.connections.check_loop()
        check_kind("conflict_resolution", conflict_resolution, ConflictResolution)
        check_connection(connection)
        if conflict_resolution is ConflictResolution.REPLACE:
            if isinstance(job, ExtendedJob) and job.after:
                await self._dependents.insert([job], connection, replace=True)
            else:
                await self._replace([job], connection)
            await self._announce(job.execution_time, connection)
        elif not await self._inserted(job, connection):
            if conflict_resolution is ConflictResolution.RAISE:
                raise await self._conflict([job.job_id], connection)
            return job.job_id
        if connection is None and self._events.wants(JobScheduled):
            self._events.publish(_scheduled(job))
        return job.job_id

    async def enqueue(
        self,
        job: NewJob,
        delay_s: float,
        conflict_resolution: ConflictResolution,
        connection: Connection | None,
    ) -> str:
        """Insert one validated job, due a delay from now by the clock of the database.

        Raises:
            JobConflictError: The id exists and the resolution is RAISE.
        """
        self._store.connections.check_loop()
        check_kind("conflict_resolution", conflict_resolution, ConflictResolution)
        check_connection(connection)
        if conflict_resolution is ConflictResolution.REPLACE or isinstance(job, ExtendedJob):
            now = await self._store.jobs.clock(connection=connection)
            due = job.due_at(now + timedelta(seconds=delay_s))
            return await self.insert(due, conflict_resolution, connection)
        delayed = DelayedJob(job.job_id, job.task_data, delay_s, *job[3:])
        if connection is None:
            inserted = await self._delayed.insert(delayed)
        else:
            message = DUE if delay_s <= self._outbox.horizon_s else None
            inserted = bool(await self._store.jobs.enqueue([delayed], message=message, connection=connection))
        if not inserted and conflict_resolution is ConflictResolution.RAISE:
            raise await self._conflict([job.job_id], connection)
        return job.job_id

    async def _inserted(self, job: NewJob, connection: Connection | None) -> bool:
        if isinstance(job, ExtendedJob) and job.after:
            return bool(await self._dependents.insert([job], connection))
        if connection is None:
            if isinstance(job, ExtendedJob):
                return await self._extended.insert(job)
            return await self._batcher.insert(job)
        message = DUE if self._outbox.is_near(job.execution_time) else None
        return bool(await self._insert([job], connection, message))

    async def _insert(
        self, jobs: Sequence[NewJob], connection: Connection | None, message: str | None = None
    ) -> set[str]:
        """Insert jobs with different ids and return the ids that were new."""
        extended = [job for job in jobs if isinstance(job, ExtendedJob)]
        plain = [job for job in jobs if not isinstance(job, ExtendedJob)] if extended else jobs
        inserted = await self._store.jobs.insert(plain, message=message, connection=connection)
        if extended:
            inserted |= await self._store.jobs.insert_extended(
                extended, message=message, connection=connection
            )
        return inserted

    async def _replace(self, jobs: Sequence[NewJob], connection: Connection | None) -> None:
        extended = [job for job in jobs if isinstance(job, ExtendedJob)]
        plain = [job for job in jobs if not isinstance(job, ExtendedJob)] if extended else jobs
        await self._store.jobs.replace(plain, connection=connection)
        if extended:
            await self._store.jobs.replace_extended(extended, connection=connection)

    async def _insert_batch(self, jobs: Sequence[NewJob]) -> set[str]:
        """Insert a batch of jobs and return the ids that were new."""
        near = self._outbox.is_near(min([job.execution_time for job in jobs]))
        return await self._insert_with_message(
            near, lambda message: self._store.jobs.insert_small(jobs, message=message)
        )

    async def _insert_delayed(self, jobs: Sequence[DelayedJob]) -> set[str]:
        near = min([job.delay_s for job in jobs]) <= self._outbox.horizon_s
        return await self._insert_with_message(
            near, lambda message: self._store.jobs.enqueue(jobs, message=message)
        )

    async def _insert_extended(self, jobs: Sequence[ExtendedJob]) -> set[str]:
        near = self._outbox.is_near(min([job.execution_time for job in jobs]))
        return await self._insert_with_message(
            near, lambda message: self._store.jobs.insert_extended(jobs, message=message)
        )

    async def _insert_with_message(
        self, near: bool, insert: Callable[[str | None], Awaitable[set[str]]]
    ) -> set[str]:
        """Insert jobs, and notify workers with the same statement if they are due soon and it is time."""
        message = self._outbox.due_message if near and self._outbox.may_carry() else None
        began = time.monotonic()
        inserted = await insert(message)
        if inserted and message:
            self._outbox.carried(began)
        elif inserted and near:
            self._outbox.notify_due_later()
        return inserted

    async def insert_all(
        self,
        specs: Sequence[JobSpec],
        conflict_resolution: ConflictResolution,
        batch_size: int,
        connection: Connection | None,
    ) -> list[str | None]:
        """Validate and insert many jobs; return their ids in order, None where one was not inserted.

        Raises:
            JobConflictError: An id exists or occurs twice, and the resolution is RAISE. Nothing is inserted.
            JobNotFoundError: A job waits for one that does not exist. Nothing is inserted.
        """
        self._store.connections.check_loop()
        check_kind("conflict_resolution", conflict_resolution, ConflictResolution)
        check_connection(connection)
        check_count("batch_size", batch_size, least=1)
        jobs = await self._prepare_all(specs)
        if not jobs:
            return []
        copied = [job for job in jobs if isinstance(job, GeneratedIdJob)]
        if len(copied) < MIN_COPY_JOBS:
            copied = []
        inserted = {job.job_id for job in copied}
        others = [job for job in jobs if job.job_id not in inserted]
        chosen = _choose(others, conflict_resolution)
        dependents = [job for job in chosen if isinstance(job, ExtendedJob) and job.after]
        if dependents:
            await self._dependents.check_parents(dependents, {job.job_id for job in jobs}, connection)
            chosen = [job for job in chosen if not (isinstance(job, ExtendedJob) and job.after)]
        batches = [chosen[start : start + batch_size] for start in range(0, len(chosen), batch_size)]
        ids: list[str | None] = [job.job_id for job in jobs]
        if conflict_resolution is ConflictResolution.RAISE:
            async with self._store.jobs.all_or_nothing(connection) as transaction:
                await self._insert_or_raise(batches, transaction)
                await self._store.jobs.copy(copied, batch_size, connection=transaction)
                written = await self._dependents.insert(dependents, transaction, batch_size=batch_size)
                await self._check_inserted(dependents, written, transaction)
        elif conflict_resolution is ConflictResolution.REPLACE:
            for batch in batches:
                await self._replace(batch, connection)
            await self._store.jobs.copy(copied, batch_size, connection=connection)
            await self._dependents.insert(dependents, connection, batch_size=batch_size, replace=True)
        else:
            for batch in batches:
                inserted |= await self._insert(batch, connection)
            await self._store.jobs.copy(copied, batch_size, connection=connection)
            inserted |= await self._dependents.insert(dependents, connection, batch_size=batch_size)
            # Of several jobs with one id, the first one was inserted.
            for place, job in enumerate(jobs):
                if job.job_id in inserted:
                    inserted.remove(job.job_id)
                else:
                    ids[place] = None
        await self._announce(min(job.execution_time for job in jobs), connection)
        if connection is None and self._events.wants(JobScheduled):
            await self._publish_all(jobs, ids)
        return ids

    async def _publish_all(self, jobs: Sequence[NewJob], ids: Sequence[str | None]) -> None:
        """Publish the jobs that were inserted, each id once, and yield to the event loop at intervals."""
        # Of several jobs with one id under REPLACE, the last one was stored.
        stored = {job.job_id: job for job, job_id in zip(jobs, ids, strict=True) if job_id is not None}
        for place, job in enumerate(stored.values(), start=1):
            self._events.publish(_scheduled(job))
            if place % PREPARE_BATCH == 0:
                await asyncio.sleep(0)

    async def _prepare_all(self, specs: Sequence[JobSpec]) -> list[NewJob]:
        """Validate many jobs, and yield to the event loop at intervals."""
        specs = list(specs)  # the caller may change its list meanwhile
        jobs: list[NewJob] = []
        for start in range(0, len(specs), PREPARE_BATCH):
            if start:
                await asyncio.sleep(0)
            jobs += self._preparer.prepare(specs[start : start + PREPARE_BATCH])
        return jobs

    async def _insert_or_raise(self, batches: Iterable[Sequence[NewJob]], connection: Connection) -> None:
        for batch in batches:
            await self._check_inserted(batch, await self._insert(batch, connection), connection)

    async def _check_inserted(
        self, jobs: Sequence[NewJob], inserted: set[str], connection: Connection
    ) -> None:
        if len(inserted) < len(jobs):
            existing = [job.job_id for job in jobs if job.job_id not in inserted]
            raise await self._conflict(existing, connection)

    async def _conflict(self, job_ids: Sequence[str], connection: Connection | None) -> JobConflictError:
        statuses = await self._store.jobs.statuses_of(job_ids, connection=connection)
        status = statuses.get(job_ids[0])
        return JobConflictError(job_ids[0], status.value if status else "deleted")

    async def _announce(self, due: datetime, connection: Connection | None) -> None:
        if connection is None:
            await self._outbox.notify_due(due)
        elif self._outbox.is_near(due):  # sent by the caller's commit, or never
            await self._store.locks.notify([DUE], connection=connection)


def _scheduled(job: NewJob) -> JobScheduled:
    return JobScheduled(job.job_id, job.job_name, 0, job.execution_time)


def _choose(jobs: Iterable[NewJob], conflict_resolution: ConflictResolution) -> list[NewJob]:
    """Return each id once. The order of the ids is the same in every call, to avoid deadlocks."""
    chosen: dict[str, NewJob] = {}
    for job in jobs:
        if job.job_id not in chosen or conflict_resolution is ConflictResolution.REPLACE:
            chosen[job.job_id] = job
        elif conflict_resolution is ConflictResolution.RAISE:
            raise JobConflictError(job.job_id, None)
    return sorted(chosen.values(), key=lambda job: job.job_id)
