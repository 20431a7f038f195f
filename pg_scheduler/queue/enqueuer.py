"""Insert validated jobs and notify workers of those that are due."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeAlias, get_args

from pg_scheduler.base.meter import Meter
from pg_scheduler.base.settings import Notify
from pg_scheduler.database.callers.adapter import AnyConnection
from pg_scheduler.database.queries import Route
from pg_scheduler.database.session import Connection
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.events import EventBus, JobScheduled
from pg_scheduler.jobs.call_errors import call_error
from pg_scheduler.jobs.model import ConflictResolution
from pg_scheduler.jobs.rows import EPOCH, AnyJob, ExtendedJob, PlainJob
from pg_scheduler.jobs.task import JobSpec
from pg_scheduler.jobs.unique import MAX_DEBOUNCE
from pg_scheduler.jobs.validation import check_count, check_kind
from pg_scheduler.queue.bulk import PREPARE_BATCH, BulkInserter
from pg_scheduler.queue.insert_batcher import InsertBatcher, LockedInserts
from pg_scheduler.queue.outbox import Outbox
from pg_scheduler.queue.prepare import JobPreparer
from pg_scheduler.queue.store import QueueStore
from pg_scheduler.queue.unique_keys import MAX_ROUNDS
from pg_scheduler.queue.writer import JobWriter, not_inserted

InsertOne: TypeAlias = Callable[[AnyJob, Connection | None, Notify | None], Awaitable[bool]]

NOTIFY: Final = get_args(Notify)

LONGEST_DELAY: Final = EPOCH + MAX_DEBOUNCE
"""The due time of a debounced job, before it is known when the job is called, is not after this time."""

METER_BATCH: Final = 10_000
"""Jobs that are counted before other tasks run: some two milliseconds."""


class Enqueuer:
    """Inserts jobs and notifies workers of those that are due."""

    def __init__(
        self,
        store: QueueStore,
        events: EventBus,
        outbox: Outbox,
        preparer: JobPreparer,
        meter: Meter | None = None,
    ) -> None:
        self._store = store
        self._events = events
        self._outbox = outbox
        self._meter = meter
        inserts, locked = store.inserts, LockedInserts(store)
        self._plain = InsertBatcher(partial(inserts.insert, route=Route.STICKY), locked, outbox)
        self._delayed = InsertBatcher(inserts.enqueue, locked, outbox, is_delayed=True)
        self._extended = InsertBatcher(inserts.insert_extended, locked, outbox)
        self._delayed_extended = InsertBatcher(inserts.enqueue_extended, locked, outbox, is_delayed=True)
        self._writer = JobWriter(store)
        self._bulk = BulkInserter(store, preparer, self._writer)

    async def insert(
        self,
        job: AnyJob,
        conflict_resolution: ConflictResolution,
        connection: AnyConnection | None,
        *,
        is_delayed: bool = False,
        notify: Notify | None = None,
    ) -> str:
        """Insert one validated job and return its id.

        Args:
            job: The job.
            conflict_resolution: The reaction to an id that exists or a unique key that is taken.
            connection: The transaction of the caller; None for none.
            is_delayed: Whether the job is due after a delay from now, see ``EPOCH``. The statement that
                inserts the job reads the clock, unless the due time is needed before.
            notify: How workers are notified of a job in the transaction of the caller; None for the setting.

        Raises:
            ConfigurationError: The job is debounced, and the resolution is IGNORE.
            ValueError: The deadline that the caller gave is not after the due time.
            JobConflictError: The id exists or the unique key is taken, and the resolution is RAISE.
            JobNotFoundError: The job waits for a job that does not exist.
        """
        connection = await self._store.connections.check_call(connection)
        check_kind("conflict_resolution", conflict_resolution, ConflictResolution)
        if job.debouncing is not None:
            conflict_resolution = _debounced_resolution(job, conflict_resolution)
        if notify is not None:
            _check_notify(notify, connection)
        # Whether the caller's transaction commits is unknown, so there is no event of a job in one.
        publishes = connection is None and self._events.wants(JobScheduled)
        replaces = conflict_resolution is ConflictResolution.REPLACE
        # A due time that has passed by the server's clock, but not by this host's, becomes a delay again. A
        # delayed job has EPOCH plus its delay as its due time.
        if not is_delayed and (delay := self._delay_of(job)) is not None:
            job, is_delayed = job.due_at(EPOCH + delay), True
        if is_delayed and needs_time(job, conflict_resolution):
            job, is_delayed = await self.at_due_time(job, connection), False
        due_job = job
        # The event has the due time. It is read before the insert, so that a failure leaves no job behind.
        if is_delayed and publishes:
            due_job = await self.at_due_time(job, connection)
        if replaces:
            replaced_rows = await self._writer.replace([job], connection)
            # A unique job has the id of the row that it replaced.
            job = replaced_rows.by_key.get(job.unique_key, job)
            # A debounced job may be due sooner than this call asks, because of an earlier call.
            due_job = job
            await self._outbox.notify_due(job.execution_time, connection, notify)
        else:
            insert = self._statement_of(job, is_delayed=is_delayed)
            if not await insert(job, connection, notify):
                existing_id = await self._find_or_insert(job, insert, conflict_resolution, connection, notify)
                if existing_id is not None:
                    return existing_id
        if connection is None and self._meter is not None:
            self._meter.record_scheduled(job.job_name)
        if publishes:
            self._events.publish(JobScheduled(job.job_id, job.job_name, 0, due_job.execution_time))
        return job.job_id

    async def at_due_time(self, job: AnyJob, connection: AnyConnection | None) -> AnyJob:
        """Return a delayed job with its due time by the clock of the database, and its final id."""
        checked = await self._store.connections.check_call(connection)
        now = await self._store.statements.read_clock(on=checked)
        return job.due_at(now + (job.execution_time - EPOCH))

    def _delay_of(self, job: AnyJob) -> timedelta | None:
        """Return the delay until a due time that has passed by the server's clock, but not by this host's.

        The caller has most likely added a delay to the time of this host, whose clock is behind. With that
        due time, the job would be late when it is added, and might expire at once. None for any other due
        time.
        """
        behind_s = -self._store.statements.clock_offset_s
        # If this host's clock is not behind, no time has passed by the server's clock only.
        if behind_s <= 0:
            return None
        delay = job.execution_time - datetime.now(UTC)
        return delay if timedelta(0) <= delay < timedelta(seconds=behind_s) else None

    def _by_server_time(self, job: AnyJob) -> AnyJob:
        """Return a job with its due time moved to the server's clock, if only that clock has passed it."""
        delay = self._delay_of(job)
        return job if delay is None else job.due_at(self._store.statements.server_now + delay)

    def _statement_of(self, job: AnyJob, *, is_delayed: bool) -> InsertOne:
        """Return what inserts this kind of job; it returns False if the id or the unique key is taken."""
        if isinstance(job, PlainJob):
            return self._delayed.insert if is_delayed else self._plain.insert
        if job.after:
            return self._insert_dependent
        return self._delayed_extended.insert if is_delayed else self._extended.insert

    async def _insert_dependent(
        self, job: AnyJob, connection: Connection | None, _: Notify | None = None
    ) -> bool:
        """Insert a job that waits for others; return whether it was inserted.

        The last parameter, ``notify``, is there because this stands for other statements. It has no effect:
        if the job need not wait, the commit notifies workers.
        """
        return bool(await self._writer.insert([job], connection))

    async def _find_or_insert(
        self,
        job: AnyJob,
        insert: InsertOne,
        conflict_resolution: ConflictResolution,
        connection: Connection | None,
        notify: Notify | None,
    ) -> str | None:
        """Return the id of the job that is in the way; None if it has ended and the new job was inserted.

        Under IGNORE, no search is needed for a job without a unique key: the job in the way has the same id.

        Raises:
            JobConflictError: The resolution is RAISE.
        """
        if conflict_resolution is ConflictResolution.IGNORE and job.unique_key is None:
            return job.job_id
        for _ in range(MAX_ROUNDS):
            conflict = await self._writer.conflict([job], connection)
            if conflict is not None and conflict_resolution is ConflictResolution.RAISE:
                raise conflict
            if conflict is not None:
                return conflict.job_id
            # The job that was in the way has ended or is gone by now, so the insert is repeated.
            if await insert(job, connection, notify):
                return None
        raise not_inserted(job)

    async def insert_all(
        self,
        specs: Sequence[JobSpec],
        conflict_resolution: ConflictResolution,
        batch_size: int,
        connection: AnyConnection | None,
        *,
        notify: Notify | None = None,
        change: Callable[[Sequence[AnyJob]], Awaitable[list[AnyJob]]] | None = None,
    ) -> list[str | None]:
        """Validate and insert many jobs; return their ids in order, None where one was not inserted.

        Args:
            specs: The jobs.
            conflict_resolution: The reaction to ids and unique keys that exist.
            batch_size: Jobs per statement.
            connection: The transaction of the caller; None for none.
            notify: As in ``insert()``.
            change: Changes the validated jobs before they are inserted; None to leave them.

        Raises:
            ConfigurationError: A job is debounced, and the resolution is not REPLACE. Nothing is inserted.
            JobConflictError: An id exists or occurs twice, or a unique key does, and the resolution is RAISE.
                Nothing is inserted.
            JobNotFoundError: A job waits for one that does not exist. Nothing is inserted.
        """
        connection = await self._store.connections.check_call(connection)
        check_kind("conflict_resolution", conflict_resolution, ConflictResolution)
        check_count("batch_size", batch_size, least=1)
        if notify is not None:
            _check_notify(notify, connection)
        jobs = await self._bulk.prepare(specs)
        first_due, now = _first_due(jobs), None
        # A job without a due time has EPOCH so far. It is due now, by the clock of the database, and counts
        # as created then. Otherwise the correction of due times would not know it if that clock is set back.
        # EPOCH is compared by identity, since a caller may pass an equal due time.
        if first_due is not None and first_due <= EPOCH:
            now = await self._store.statements.read_clock(on=connection)
            jobs = [job.due_at(now) if job.execution_time is EPOCH else job for job in jobs]
            first_due = _first_due(jobs)
        # The due times of debounced jobs are delays so far, as no caller gives them due times.
        if first_due is not None and first_due <= LONGEST_DELAY:
            debounced_job = next((job for job in jobs if job.debouncing is not None), None)
            if debounced_job is not None:
                if conflict_resolution is not ConflictResolution.REPLACE:
                    remedy = "pass conflict_resolution=ConflictResolution.REPLACE, or enqueue() such jobs"
                    raise _not_replacing(debounced_job, conflict_resolution, remedy)
                now = now or await self._store.statements.read_clock(on=connection)
                jobs = [_counted_from(now, job) for job in jobs]
                # If an earlier call limits how long a debounced job waits, it may be due at once.
                first_due = min(now, _first_due(jobs) or now)
        # The clock of this host is behind that of the server.
        if self._store.statements.clock_offset_s < 0:
            jobs = [self._by_server_time(job) for job in jobs]
        if change is not None:
            jobs = await change(jobs)
        ids = await self._bulk.insert(jobs, conflict_resolution, batch_size, connection, created_at=now)
        if first_due is not None:
            await self._outbox.notify_due(first_due, connection, notify)
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
            # A job that was not inserted has no id in the list.
            names = (job.job_name for job, job_id in zip(jobs[batch], ids[batch], strict=True) if job_id)
            for name, number in Counter(names).items():
                meter.record_scheduled(name, number)

    async def _publish_all(self, jobs: Sequence[AnyJob], ids: Sequence[str | None]) -> None:
        """Publish the jobs that were inserted, each id once, and yield to the event loop at intervals."""
        # Of several jobs with one id under REPLACE, the last one was stored.
        stored = {job_id: job for job, job_id in zip(jobs, ids, strict=True) if job_id is not None}
        for number, (job_id, job) in enumerate(stored.items(), start=1):
            self._events.publish(JobScheduled(job_id, job.job_name, 0, job.execution_time))
            if number % PREPARE_BATCH == 0:
                await asyncio.sleep(0)


def _counted_from(now: datetime, job: AnyJob) -> AnyJob:
    """Return a debounced job with its due time, which counts from the call; any other job as it is."""
    return job if job.debouncing is None else job.due_at(now + job.debouncing.delay)


def _debounced_resolution(job: AnyJob, resolution: ConflictResolution) -> ConflictResolution:
    """Return the resolution of a call that enqueues a debounced job: the job replaces the one that waits.

    RAISE is the default of calls, so it does not mean that the caller asks for an error.
    """
    if resolution is ConflictResolution.IGNORE:
        raise _not_replacing(job, resolution, "omit conflict_resolution=")
    return ConflictResolution.REPLACE


def _not_replacing(job: AnyJob, resolution: ConflictResolution, remedy: str) -> ConfigurationError:
    """Return the error about a call that is to leave a debounced job as it is."""
    return call_error(
        ConfigurationError,
        f"a job of {job.job_name!r} takes the arguments of the last call, since its unique has debounce=, "
        f"so conflict_resolution cannot be {resolution.name}",
        "conflict resolution",
        f"{remedy}, or pass unique=None or a Unique() without debounce=",
    )


def _check_notify(notify: Notify, connection: Connection | None) -> None:
    """Raise ValueError unless a call may pass this ``notify=``; None, the default, is not checked here."""
    if notify not in NOTIFY:
        raise ValueError(f"notify must be {', '.join(map(repr, NOTIFY))} or None, not {notify!r}")
    if connection is None:
        raise ValueError(
            f"notify={notify!r} is for a job in a transaction of yours; pass connection= too, or omit notify="
        )


def _first_due(jobs: Sequence[AnyJob]) -> datetime | None:
    """Return the earliest due time of jobs; None if there are no jobs."""
    return min((job.execution_time for job in jobs), default=None)


def needs_time(job: AnyJob, conflict_resolution: ConflictResolution) -> bool:
    """Return whether a delayed job needs its due time before the statement that inserts it.

    The id of a time span follows from the due time, and so does a deadline, or it must be later. A debounced
    job stores when its series began. The statements for jobs that wait for others, and those that replace
    jobs, take no delay.
    """
    if isinstance(job, ExtendedJob) and (
        job.span is not None
        or job.deadline_s is not None
        or job.given_deadline is not None
        or job.after
        or job.debouncing is not None
    ):
        return True
    return conflict_resolution is ConflictResolution.REPLACE
