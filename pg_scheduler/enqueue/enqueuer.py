"""Insert validated jobs and notify workers of those that are due."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from pg_scheduler.enqueue.bulk import PREPARE_BATCH, BulkInserter
from pg_scheduler.enqueue.failure_alerts import FailureAlerts
from pg_scheduler.enqueue.insert_batcher import InsertBatcher
from pg_scheduler.enqueue.locked_inserts import LockedInserts, LockWait
from pg_scheduler.enqueue.outbox import Outbox
from pg_scheduler.enqueue.prepare import JobPreparer
from pg_scheduler.enqueue.writer import JobWriter
from pg_scheduler.errors import JobConflictError
from pg_scheduler.events import EventBus, JobScheduled
from pg_scheduler.jobs.model import ConflictResolution, JobSpec
from pg_scheduler.jobs.rows import (
    AnyJob,
    DelayedJob,
    ExtendedJob,
    GeneratedIdDelayedJob,
    GeneratedIdJob,
    NewJob,
)
from pg_scheduler.jobs.validation import check_count, check_kind
from pg_scheduler.store.connections.session import Connection, check_connection
from pg_scheduler.store.due import due_message
from pg_scheduler.store.store import Store
from pg_scheduler.store.unique_keys import ENDED, MAX_ROUNDS
from pg_scheduler.telemetry.meter import Meter

R = TypeVar("R")

METER_BATCH: Final = 10_000
"""Jobs that are counted before other tasks run: some two milliseconds."""


class Enqueuer:
    """Inserts jobs and notifies workers of those that are due."""

    def __init__(
        self,
        store: Store,
        events: EventBus,
        outbox: Outbox,
        preparer: JobPreparer,
        meter: Meter | None = None,
    ) -> None:
        self._store = store
        self._events = events
        self._outbox = outbox
        self._meter = meter
        locked = LockedInserts(store)
        self._batcher = InsertBatcher(self._insert_batch, locked)
        self._delayed = InsertBatcher(self._insert_delayed, locked)
        self._extended = InsertBatcher(self._insert_extended, locked)
        self._writer = JobWriter(store)
        self._bulk = BulkInserter(store, preparer, self._writer)
        FailureAlerts(store, preparer, self._writer).connect()

    async def insert(
        self, job: AnyJob, conflict_resolution: ConflictResolution, connection: Connection | None
    ) -> str:
        """Insert one validated job.

        Raises:
            JobConflictError: The id exists or the unique key is taken, and the resolution is RAISE.
            JobNotFoundError: The job waits for one that does not exist.
        """
        self._store.connections.check_loop()
        check_kind("conflict_resolution", conflict_resolution, ConflictResolution)
        check_connection(connection)
        if conflict_resolution is ConflictResolution.REPLACE:
            unique = await self._writer.replace([job], connection)
            job = unique.get(job.unique_key, job)
            await self._announce(job.execution_time, connection)
        elif not await self._inserted(job, connection):
            existing = await self._find_or_insert(job, conflict_resolution, connection)
            if existing is not None:
                return existing
        if connection is None and self._meter is not None:
            self._meter.record_scheduled(job.job_name)
        if connection is None and self._events.wants(JobScheduled):
            self._events.publish(JobScheduled(job.job_id, job.job_name, 0, job.execution_time))
        return job.job_id

    async def enqueue(
        self,
        job: AnyJob,
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
        if isinstance(job, ExtendedJob) or conflict_resolution is ConflictResolution.REPLACE:
            due = await self.at_due_time(job, delay_s, connection)
            return await self.insert(due, conflict_resolution, connection)
        publishes = connection is None and self._events.wants(JobScheduled)
        called_at = await self._store.jobs.clock() if publishes else None  # a failure leaves no job behind
        kind = GeneratedIdDelayedJob if isinstance(job, GeneratedIdJob) else DelayedJob
        delayed = kind(job.job_id, job.task_data, delay_s, *job[3:])
        if connection is None:
            inserted = await self._delayed.insert(delayed)
        else:
            message = due_message("") if delay_s <= self._outbox.horizon_s else None
            ids, _ = await self._store.jobs.enqueue([delayed], message=message, connection=connection)
            inserted = bool(ids)
        if not inserted and conflict_resolution is ConflictResolution.RAISE:
            raise await self._writer.conflict([job], connection) or JobConflictError(job.job_id, ENDED)
        if inserted and called_at is not None:
            due_at = called_at + timedelta(seconds=delay_s)
            self._events.publish(JobScheduled(job.job_id, job.job_name, 0, due_at))
        if inserted and connection is None and self._meter is not None:
            self._meter.record_scheduled(job.job_name)
        return job.job_id

    async def at_due_time(self, job: AnyJob, delay_s: float, connection: Connection | None) -> AnyJob:
        """Return a job with its due time, a delay from now by the clock of the database, and its final id."""
        self._store.connections.check_loop()
        now = await self._store.jobs.clock(connection=check_connection(connection))
        return job.due_at(now + timedelta(seconds=delay_s))

    async def _find_or_insert(
        self, job: AnyJob, conflict_resolution: ConflictResolution, connection: Connection | None
    ) -> str | None:
        """Return the id of the job that exists instead; None if that one ended and this one was inserted."""
        for _ in range(MAX_ROUNDS):
            if conflict_resolution is ConflictResolution.IGNORE and job.unique_key is None:
                return job.job_id
            conflict = await self._writer.conflict([job], connection)
            if conflict is not None and conflict_resolution is ConflictResolution.RAISE:
                raise conflict
            if conflict is not None:
                return conflict.job_id
            if await self._inserted(job, connection):
                return None
        raise JobConflictError(job.job_id, ENDED, job.unique_key)

    def _inserted(self, job: AnyJob, connection: Connection | None) -> Awaitable[bool]:
        """Insert a job, and return whether its id and unique key were free."""
        if connection is not None or isinstance(job, ExtendedJob):
            return self._inserted_alone_or_extended(job, connection)
        return self._batcher.insert(job)  # not awaited here: a further coroutine would cost plain jobs 2 %

    async def _inserted_alone_or_extended(self, job: AnyJob, connection: Connection | None) -> bool:
        if isinstance(job, ExtendedJob) and job.after:
            return bool(await self._writer.insert([job], connection))
        if isinstance(job, ExtendedJob) and connection is None:
            return await self._extended.insert(job)
        due = job.execution_time
        message = due_message("", due) if self._outbox.is_near(due) else None
        return bool(await self._writer.insert([job], connection, message=message))

    async def _insert_batch(self, jobs: Sequence[NewJob], wait: LockWait) -> set[str]:
        """Insert a batch of jobs and return the ids that were new."""
        due = min([job.execution_time for job in jobs])
        return await self._insert_with_message(self._store.jobs.insert_small, jobs, due, wait)

    async def _insert_extended(self, jobs: Sequence[ExtendedJob], wait: LockWait) -> set[str]:
        due = min([job.execution_time for job in jobs])
        return await self._insert_with_message(self._store.jobs.insert_extended, jobs, due, wait)

    async def _insert_delayed(self, jobs: Sequence[DelayedJob], wait: LockWait) -> set[str]:
        is_near = min([job.delay_s for job in jobs]) <= self._outbox.horizon_s
        message = self._outbox.message_to_carry() if is_near and self._may_carry(wait) else None
        began = time.monotonic()
        inserted, called_at = await _insert_within(wait, self._store.jobs.enqueue, jobs, message)
        if inserted and is_near:
            self._notify(message, began, called_at)
        return inserted

    async def _insert_with_message(
        self, insert: Callable[..., Awaitable[set[str]]], jobs: Sequence[Any], due: datetime, wait: LockWait
    ) -> set[str]:
        """Insert jobs, and notify workers with the same statement if they are due soon and it is time."""
        is_near = self._outbox.is_near(due)
        message = self._outbox.message_to_carry(due) if is_near and self._may_carry(wait) else None
        began = time.monotonic()
        inserted = await _insert_within(wait, insert, jobs, message)
        if inserted and is_near:
            self._notify(message, began, due)
        return inserted

    def _may_carry(self, wait: LockWait) -> bool:
        return wait.may_carry and self._outbox.may_carry()

    def _notify(self, message: str | None, began: float, due: datetime | None) -> None:
        """Record that an insert sent the notification of its jobs, or queue it."""
        if message:
            self._outbox.carried(began, due)
        else:
            self._outbox.notify_due_later(due)

    async def insert_all(
        self,
        specs: Sequence[JobSpec],
        conflict_resolution: ConflictResolution,
        batch_size: int,
        connection: Connection | None,
        *,
        change: Callable[[Sequence[AnyJob]], Awaitable[list[AnyJob]]] | None = None,
    ) -> list[str | None]:
        """Validate and insert many jobs; return their ids in order, None where one was not inserted.

        Args:
            specs: The jobs.
            conflict_resolution: What to do with ids and unique keys that exist.
            batch_size: Jobs per statement.
            connection: The transaction of the caller; None for none.
            change: Changes the validated jobs before they are inserted; None to leave them.

        Raises:
            JobConflictError: An id exists or occurs twice, or a unique key does, and the resolution is RAISE.
                Nothing is inserted.
            JobNotFoundError: A job waits for one that does not exist. Nothing is inserted.
        """
        self._store.connections.check_loop()
        check_kind("conflict_resolution", conflict_resolution, ConflictResolution)
        check_connection(connection)
        check_count("batch_size", batch_size, least=1)
        jobs = await self._bulk.prepare(specs)
        if change is not None:
            jobs = await change(jobs)
        ids = await self._bulk.insert(jobs, conflict_resolution, batch_size, connection)
        if jobs:
            await self._announce(min(job.execution_time for job in jobs), connection)
        if connection is None and self._meter is not None:
            await self._record_all(self._meter, jobs, ids)
        if connection is None and self._events.wants(JobScheduled):
            await self._publish_all(jobs, ids)
        return ids

    @staticmethod
    async def _record_all(meter: Meter, jobs: Sequence[AnyJob], ids: Sequence[str | None]) -> None:
        """Count the jobs that were inserted, and yield to the event loop at intervals."""
        for start in range(0, len(jobs), METER_BATCH):
            if start:
                await asyncio.sleep(0)
            batch = slice(start, start + METER_BATCH)
            names = (job.job_name for job, job_id in zip(jobs[batch], ids[batch], strict=True) if job_id)
            for name, number in Counter(names).items():
                meter.record_scheduled(name, number)

    async def _publish_all(self, jobs: Sequence[AnyJob], ids: Sequence[str | None]) -> None:
        """Publish the jobs that were inserted, each id once, and yield to the event loop at intervals."""
        # Of several jobs with one id under REPLACE, the last one was stored.
        stored = {job_id: job for job, job_id in zip(jobs, ids, strict=True) if job_id is not None}
        for place, (job_id, job) in enumerate(stored.items(), start=1):
            self._events.publish(JobScheduled(job_id, job.job_name, 0, job.execution_time))
            if place % PREPARE_BATCH == 0:
                await asyncio.sleep(0)

    async def _announce(self, due: datetime, connection: Connection | None) -> None:
        if connection is None:
            await self._outbox.notify_due(due)
        elif self._outbox.is_near(due):  # sent by the caller's commit, or never
            await self._store.locks.notify([due_message("", due)], connection=connection)


async def _insert_within(
    wait: LockWait, insert: Callable[..., Awaitable[R]], jobs: Sequence[Any], message: str | None
) -> R:
    """Insert jobs by a statement that waits no longer for locks than it may."""
    if wait.session is None:
        return await insert(jobs, message=message, lock_timeout=wait.timeout)
    async with wait.session() as connection:
        return await insert(jobs, lock_timeout=wait.timeout, connection=connection)
