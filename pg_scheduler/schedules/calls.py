"""Add, change and trigger schedules. Each call is one transaction with what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.faults import SuppressedChangeError
from pg_scheduler.database.session import Connection
from pg_scheduler.database.statements import Transaction
from pg_scheduler.errors import (
    ConfigurationError,
    ScheduleConflictError,
    ScheduleNotFoundError,
    ScheduleOwnedByCodeError,
)
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.model import ConflictResolution
from pg_scheduler.jobs.rows import ExtendedJob
from pg_scheduler.queue.store import QueueStore
from pg_scheduler.queue.writer import JobWriter, Queue, Queued
from pg_scheduler.schedules.definition import Definition
from pg_scheduler.schedules.job_builder import JobBuilder, JobBuilders
from pg_scheduler.schedules.own_thread import search_in_own_thread
from pg_scheduler.schedules.policies import Overlap
from pg_scheduler.schedules.row import ScheduleRow, as_edit_of, read_trigger
from pg_scheduler.schedules.statements import ScheduleRepository
from pg_scheduler.schedules.timing import (
    find_next_fire,
    fire_times_between,
    follows_last_job,
    is_ahead,
    must_retime,
    retime,
)
from pg_scheduler.triggers.base import Trigger
from pg_scheduler.triggers.serialization import kinds_of

MAX_ATTEMPTS = 5
"""Attempts to add a schedule whose row other nodes add and remove at the same moment."""

UNREPORTED_TASK = (
    "schedule %r of the task %r: this process has not registered the task, and no live worker reports its "
    "options; where the schedule does not set an option, the jobs of this call have the default of all jobs"
)

BACKFILL_WAITS = 16
"""Half seconds within which a backfill must find its fire times: its transaction may be idle for 10 s."""


class ScheduleCalls:
    """Writes schedules for the calls of `Scheduler.schedules`."""

    def __init__(
        self,
        store: QueueStore,
        schedules: ScheduleRepository,
        builders: JobBuilders,
        *,
        max_payload_bytes: int | None,
    ) -> None:
        self._store = store
        self._schedules = schedules
        self._writer = JobWriter(store)
        self._builders = builders
        self._max_bytes = max_payload_bytes

    async def add(
        self,
        schedule_id: str,
        definition: Definition,
        *,
        run_now: bool,
        paused: bool,
        conflict_resolution: ConflictResolution,
        connection: Connection | None,
    ) -> tuple[ScheduleRow, str]:
        """Store a schedule; return its row and whether it was "added", "updated" or "kept".

        Raises:
            ValueError: A value is invalid, or there is no fire time.
            ConfigurationError: The calls of the task are debounced, or a job is to be enqueued whose task has
                options that only its code can apply.
            ScheduleConflictError: The id exists and the resolution is RAISE.
            ScheduleOwnedByCodeError: The id is declared in code.
        """

        async def write(transaction: Transaction) -> tuple[ScheduleRow, str]:
            """Store the schedule. After a deadlock this is called again, with another transaction."""
            now = await self._store.statements.read_clock(on=transaction.connection)
            new_row = definition.new_row(
                schedule_id, now=now, max_bytes=self._max_bytes, codec=self._builders.codec
            )
            self._builders.check_task(new_row.task)
            new_row = replace(new_row, paused_at=now if paused else None)
            for _ in range(MAX_ATTEMPTS):
                row, change = await self._insert_or_replace(
                    new_row, definition, now, conflict_resolution, on=transaction.connection
                )
                if row is not None:
                    break
            # No attempt has found a row or written one.
            else:
                # Other nodes add and remove the row between the two statements, or a trigger suppresses it.
                if await self._schedules.get(schedule_id, on=transaction.connection) is not None:
                    # The version of a schedule that was just added is 1.
                    raise ScheduleConflictError(schedule_id, 1)
                raise SuppressedChangeError(change="insert")
            if run_now and change != "kept":
                builder = await self._builder(row, transaction.connection)
                row, _ = await self._enqueue(row, builder, [builder.manual_job(now)], now, transaction)
            return row, change

        return await self._store.statements.run_retrying(write, within=connection)

    async def _insert_or_replace(
        self,
        new_row: ScheduleRow,
        definition: Definition,
        now: datetime,
        conflict_resolution: ConflictResolution,
        *,
        on: Connection,
    ) -> tuple[ScheduleRow | None, str]:
        """Add a schedule, or apply the resolution to the one that has its id.

        Returns the row, and "added", "updated" or "kept". The row is None if the insert wrote none: another
        node inserted the id meanwhile, or a trigger of the application suppresses it. A finished schedule is
        replaced as if it did not exist, whatever the resolution is.
        """
        schedules = self._schedules
        schedule_id = new_row.schedule_id
        locked_schedules = await schedules.lock([schedule_id], on=on)
        if schedule_id not in locked_schedules:
            row = await _timed(new_row, now=now, is_new=True)
            is_inserted = await schedules.insert(row, _kinds(row), on=on)
            return (row, "added") if is_inserted else (None, "")
        old, _ = locked_schedules[schedule_id]
        if old.owner == "code":
            raise ScheduleOwnedByCodeError(old.schedule_id)
        if old.finished_at is not None:
            # The last job may still run, and no fire time of the finished schedule may be enqueued again.
            row = replace(
                new_row, created_at=old.created_at, last_fire_at=old.last_fire_at, last_job_id=old.last_job_id
            )
            row = as_edit_of(old, row, now)
            # Under a fixed delay, the end of the unfinished last job sets the next fire time.
            if not await self._awaits_last_job(row, old, read_trigger(row.trigger), on=on):
                row = await _timed(row, now=now, is_new=True)
            await schedules.write(row, _kinds(row), on=on)
            return row, "added"
        if conflict_resolution is ConflictResolution.RAISE:
            raise ScheduleConflictError(old.schedule_id, old.version)
        if conflict_resolution is not ConflictResolution.REPLACE:
            return old, "kept"
        row = definition.applied_to(
            old, max_bytes=self._max_bytes, codec=self._builders.codec, resets_options=True
        )
        # An equal definition is written only if the clock was set back since, to get another fire time.
        if row == old and not is_ahead(old, now):
            return old, "kept"
        return await self._write(row, old, now, on=on), "updated"

    async def _write(
        self, row: ScheduleRow, old: ScheduleRow, now: datetime, *, on: Connection
    ) -> ScheduleRow:
        """Write an edited schedule; return its row, with a new next fire time if the edit requires one."""
        trigger = read_trigger(row.trigger)
        if must_retime(row, old, trigger, now):
            # Under a fixed delay, the end of an unfinished last job sets the next fire time. That job may be
            # the last run of a schedule that has finished, and that the edit lets continue.
            if await self._awaits_last_job(row, old, trigger, on=on):
                row = replace(row, next_fire_at=None, resume_from=None, finished_at=None)
            else:
                row = await _timed(row, now=now)
        row = as_edit_of(old, row, now)
        await self._schedules.write(row, _kinds(row), on=on)
        return row

    async def _awaits_last_job(
        self, row: ScheduleRow, old: ScheduleRow, trigger: Trigger, *, on: Connection
    ) -> bool:
        """Return whether a schedule waits for the end of its last job, which exists and has not ended."""
        if row.last_job_id is None or not follows_last_job(row, old, trigger):
            return False
        return bool(await self._schedules.lock_last_jobs([row.last_job_id], on=on))

    async def update(
        self,
        schedule_id: str,
        definition: Definition,
        if_version: int | None,
        within: Connection | None = None,
    ) -> ScheduleRow:
        """Change the given fields of a schedule, in the caller's transaction if given; return its row.

        Raises:
            TypeError: The task is registered here, and cannot be called with the arguments.
            ValueError: A value is invalid, there is no fire time, or the calls of the task are debounced.
            ScheduleNotFoundError: The id is unknown.
            ScheduleConflictError: The version differs.
            ScheduleOwnedByCodeError: The schedule is declared in code.
        """
        schedules = self._schedules

        async def write(transaction: Transaction) -> ScheduleRow:
            """Lock the schedule, and write it with the given fields."""
            connection = transaction.connection
            locked_schedules = await schedules.lock([schedule_id], on=connection)
            if schedule_id not in locked_schedules:
                raise ScheduleNotFoundError(schedule_id)
            old, now = locked_schedules[schedule_id]
            if old.owner == "code":
                raise ScheduleOwnedByCodeError(schedule_id)
            if if_version is not None and if_version != old.version:
                raise ScheduleConflictError(schedule_id, old.version, expected=if_version)
            row = definition.applied_to(
                old,
                max_bytes=self._max_bytes,
                encoder_of=self._builders.encoder_of,
                codec=self._builders.codec,
            )
            self._builders.check_task(row.task)
            return await self._write(row, old, now, on=connection)

        return await self._store.statements.run_retrying(write, within=within)

    async def trigger(self, schedule_id: str, connection: Connection | None = None) -> ExtendedJob | None:
        """Enqueue one job of a schedule now, in the caller's transaction if given; None for an unknown id.

        Raises:
            ConfigurationError: The task has options that only its code can apply, and is not registered here.
            JobConflictError: The task is unique, and another job has the key.
        """

        async def enqueue(transaction: Transaction) -> ExtendedJob | None:
            """Lock the schedule, insert its job, and record that in the audit."""
            locked_schedules = await self._schedules.lock([schedule_id], on=transaction.connection)
            if schedule_id not in locked_schedules:
                return None
            row, now = locked_schedules[schedule_id]
            builder = await self._builder(row, transaction.connection)
            _, (jobs, conflict) = await self._enqueue(
                row, builder, [builder.manual_job(now)], now, transaction
            )
            # The task is unique, and another job has the key, so no job was inserted.
            if conflict is not None:
                raise conflict
            await self._store.audit.record(
                "trigger_schedule", schedule_id, on=transaction.connection, job_id=jobs[0].job_id
            )
            return jobs[0]

        return await self._store.statements.run_retrying(enqueue, within=connection)

    async def backfill(
        self,
        schedule_id: str,
        start: datetime,
        end: datetime,
        limit: int,
        connection: Connection | None = None,
    ) -> list[ExtendedJob]:
        """Enqueue a job for each fire time in ``start <= t < end`` that has none; return the new jobs.

        Raises:
            ConfigurationError: The task has options that only its code can apply, and is not registered here.
            ValueError: There are more than ``limit`` fire times.
            ScheduleNotFoundError: The id is unknown.
        """

        async def enqueue(transaction: Transaction) -> list[ExtendedJob]:
            """Lock the schedule, insert the jobs that are missing, and record that in the audit."""
            locked_schedules = await self._schedules.lock([schedule_id], on=transaction.connection)
            if schedule_id not in locked_schedules:
                raise ScheduleNotFoundError(schedule_id)
            row, now = locked_schedules[schedule_id]
            search = partial(fire_times_between, row, start, end, limit=limit)
            fires = await search_in_own_thread(row.trigger, search, waits=BACKFILL_WAITS)
            builder = await self._builder(row, transaction.connection)
            # These jobs are due at their fire times, without the jitter.
            jobs = [builder.fire_time_job(fire, fire, now) for fire in fires]
            job_ids, connection = [job.job_id for job in jobs], transaction.connection
            # The statuses of the jobs that exist already, by their ids. Their fire times get no new job.
            statuses = await self._store.jobs.statuses_of(job_ids, connection=connection)
            cancelled_ids = [job_id for job_id in statuses if statuses[job_id] is JobStatus.CANCELLED]
            if cancelled_ids:
                added_at = {schedule_id: row.created_at}
                # A job that was cancelled with an earlier schedule of this id gives way to a new one.
                freed_ids = await self._store.jobs.free_fire_times(cancelled_ids, added_at, connection)
                for job_id in freed_ids:
                    del statuses[job_id]
            missing_jobs = [job for job in jobs if job.job_id not in statuses]
            _, (inserted_jobs, _) = await self._enqueue(row, builder, missing_jobs, now, transaction)
            span = {"start": start.isoformat(), "end": end.isoformat(), "jobs": len(inserted_jobs)}
            await self._store.audit.record(
                "backfill_schedule", schedule_id, on=transaction.connection, **span
            )
            return inserted_jobs

        return await self._store.statements.run_retrying(enqueue, within=connection)

    async def _builder(self, row: ScheduleRow, connection: Connection) -> JobBuilder:
        """Return what builds the jobs of a schedule, for a call that enqueues some at once.

        If the task is not registered here, they have the options that a live worker reports for it. Without
        such a report they have the default options, and a warning is logged.

        Raises:
            ConfigurationError: The task has options that only its code can apply.
        """
        if self._builders.has_task(row):
            return self._builders.builder(row)
        reported = await self._schedules.reported_options(row.task, on=connection)
        if reported is None:
            logger.warning(UNREPORTED_TASK, row.schedule_id, row.task, extra=record_fields())
            return self._builders.builder(row)
        if reported.in_code:
            raise ConfigurationError(
                f"schedule {row.schedule_id!r} got no job: its task {row.task!r} has "
                f"{' and '.join(reported.in_code)}, which only its code can apply, and this process has not "
                "registered the task; run the schedule in a process that imports the task: in your service, "
                "in a dashboard that is mounted in it, or by the command line with --jobs MODULE"
            )
        return self._builders.reported_builder(row, reported)

    async def _enqueue(
        self,
        row: ScheduleRow,
        builder: JobBuilder,
        jobs: Sequence[ExtendedJob],
        now: datetime,
        transaction: Transaction,
    ) -> tuple[ScheduleRow, Queued]:
        """Insert jobs of a locked schedule for a call; return its row and what was inserted.

        The fire times of the schedule do not change, unless they follow the ends of its jobs. Then the next
        one follows the end of the last of these jobs. No job is inserted if the task is unique and another
        job has the key.

        Unless jobs may overlap, each of them waits for the end of the one before it, and the first one for
        the last job of the schedule.
        """
        # The last job of the schedule, if it has not ended and the new jobs must not overlap with it.
        awaited_id, connection = None, transaction.connection
        is_ordered = row.overlap != Overlap.ALLOW
        if is_ordered and row.last_job_id is not None:
            unfinished = await self._store.dependencies.lock_unfinished([row.last_job_id], transaction)
            awaited_id = row.last_job_id if unfinished else None
        queue = Queue(row.schedule_id, jobs, awaited_id, is_ordered, builder.is_unique)
        (queued,) = await self._writer.insert_queues([queue], transaction, planned_at=now)
        if queued.jobs:
            last_job_id = queued.jobs[-1].job_id
            row = replace(row, last_job_id=last_job_id)
            if await self._schedules.note_last_job(row.schedule_id, last_job_id, on=connection):
                row = replace(row, next_fire_at=None, resume_from=None)
        return row, queued


async def _timed(row: ScheduleRow, *, now: datetime, is_new: bool = False) -> ScheduleRow:
    """Return a row with its next fire time, which is found in a thread unless the search for it is quick."""
    row = retime(row, read_trigger(row.trigger), now, is_new=is_new)
    # retime() has found the fire time. Otherwise it has set this field as a request to search for it.
    if row.resume_from is None:
        return row
    return await search_in_own_thread(row.trigger, partial(find_next_fire, row))


def _kinds(row: ScheduleRow) -> list[str]:
    """Return the kinds of the trigger of a row and of the triggers in it, all of which a planner needs."""
    return sorted(kinds_of(read_trigger(row.trigger)))
