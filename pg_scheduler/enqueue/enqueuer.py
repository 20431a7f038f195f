"""Puts jobs into the table: everything is checked first, then written whole or not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.enqueue.insert_batcher import InsertBatcher
from pg_scheduler.enqueue.outbox import Outbox
from pg_scheduler.errors import JobConflictError
from pg_scheduler.jobs.ids import new_job_id, new_job_ids
from pg_scheduler.jobs.model import DEFAULT_TIMEOUT, UNSET, ConflictResolution, JobPriority, JobSpec, Unset
from pg_scheduler.jobs.payload import check_size, encode
from pg_scheduler.jobs.registry import Task, TaskRegistry
from pg_scheduler.jobs.rows import GeneratedIdJob, NewJob
from pg_scheduler.jobs.validation import (
    check_count,
    check_execution_time,
    check_grace,
    check_job_id,
    check_kind,
    check_timeout,
)
from pg_scheduler.store.connections.listen import DUE
from pg_scheduler.store.connections.session import Connection, check_connection
from pg_scheduler.store.store import Store

__all__ = ["Enqueuer"]

IN_ONE_GO: Final = 500
"""Jobs that are checked before others have a turn: some two milliseconds."""

WORTH_A_COPY: Final = 100
"""Jobs from which on COPY takes less than INSERT, its further round trip included."""

JobDefaults = tuple[str, int, int, int | None, float | None]
"""What many jobs of a call share: the fields of NewJob after the time."""


class Enqueuer:
    """Checks jobs and inserts them.

    Args:
        misfire_grace_time: The scheduler's grace in seconds, for jobs that say nothing; None for ever.
        max_payload_bytes: What the arguments of one job may have; None for any number.
    """

    def __init__(
        self,
        store: Store,
        tasks: TaskRegistry,
        outbox: Outbox,
        *,
        misfire_grace_time: int | None,
        max_payload_bytes: int | None,
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._outbox = outbox
        self._coalescer = InsertBatcher(self._insert_together)
        self._grace = misfire_grace_time
        self._max_payload_bytes = max_payload_bytes

    def check(self, specs: Sequence[JobSpec]) -> list[NewJob]:
        """Specs as jobs to insert, in their order; their functions become known here."""
        if not specs:
            return []
        ids = new_job_ids(len(specs))
        jobs: list[NewJob] = []
        last = check_kind("a job", specs[0], JobSpec)
        due, defaults = check_execution_time(last.execution_time), self._defaults_of(last)
        for spec in specs:
            # What is the very same object as in the spec before was checked with that one.
            if (
                check_kind("a job", spec, JobSpec).func is not last.func
                or spec.priority is not last.priority
                or spec.max_retries is not last.max_retries
                or spec.misfire_grace_time is not last.misfire_grace_time
                or spec.timeout is not last.timeout
            ):
                defaults = self._defaults_of(spec)
            if spec.execution_time is not last.execution_time:
                due = check_execution_time(spec.execution_time)
            task_data = check_size(encode(spec.args, spec.kwargs), self._max_payload_bytes)
            if spec.job_id is None:
                jobs.append(GeneratedIdJob(next(ids), task_data, due, *defaults))
            else:
                jobs.append(NewJob(check_job_id(spec.job_id), task_data, due, *defaults))
            last = spec
        return jobs

    def new_job(
        self,
        name: str,
        execution_time: datetime,
        task_data: str,
        *,
        priority: JobPriority,
        max_retries: int,
        job_id: str | None,
        misfire_grace_time: int | Unset | None,
    ) -> NewJob:
        """A job by name."""
        defaults = self._defaults(
            name,
            self._tasks.resolve(name),
            priority=priority,
            max_retries=max_retries,
            misfire_grace_time=misfire_grace_time,
            timeout=UNSET,
        )
        due = check_execution_time(execution_time)
        check_size(task_data, self._max_payload_bytes)
        if job_id is None:
            return GeneratedIdJob(new_job_id(), task_data, due, *defaults)
        return NewJob(check_job_id(job_id), task_data, due, *defaults)

    def _defaults_of(self, spec: JobSpec) -> JobDefaults:
        task = self._tasks.adopt(spec.func)
        return self._defaults(
            task.name,
            task,
            priority=spec.priority,
            max_retries=spec.max_retries,
            misfire_grace_time=spec.misfire_grace_time,
            timeout=spec.timeout,
        )

    def _defaults(
        self,
        name: str,
        task: Task | None,
        *,
        priority: JobPriority,
        max_retries: int,
        misfire_grace_time: int | Unset | None,
        timeout: float | timedelta | Unset | None,
    ) -> JobDefaults:
        """Checked, with what is unset filled in: by the task, then by the scheduler."""
        if isinstance(misfire_grace_time, Unset) and task is not None:
            misfire_grace_time = task.misfire_grace_time
        if isinstance(timeout, Unset):
            timeout = task.timeout if task is not None else DEFAULT_TIMEOUT
        return (
            name,
            check_kind("priority", priority, JobPriority).db_value,
            check_count("max_retries", max_retries),
            self._grace if isinstance(misfire_grace_time, Unset) else check_grace(misfire_grace_time),
            check_timeout(timeout),
        )

    async def insert(
        self, job: NewJob, conflict_resolution: ConflictResolution, connection: Connection | None
    ) -> str:
        """Insert one job.

        Raises:
            JobConflictError: The id is taken and the resolution is RAISE.
        """
        check_kind("conflict_resolution", conflict_resolution, ConflictResolution)
        check_connection(connection)
        if conflict_resolution is ConflictResolution.REPLACE:
            await self._store.jobs.replace([job], connection=connection)
            await self._announce(job.execution_time, connection)
        elif not await self._inserted(job, connection) and conflict_resolution is ConflictResolution.RAISE:
            raise await self._conflict([job.job_id], connection)
        return job.job_id

    async def _inserted(self, job: NewJob, connection: Connection | None) -> bool:
        if connection is None:
            return await self._coalescer.insert(job)
        message = DUE if self._outbox.is_near(job.execution_time) else None
        return bool(await self._store.jobs.insert([job], message=message, connection=connection))

    async def _insert_together(self, jobs: Sequence[NewJob]) -> set[str]:
        """Insert jobs of single calls; the ids that were free. Word of them goes along, or later."""
        near = self._outbox.is_near(min([job.execution_time for job in jobs]))
        message = self._outbox.due_message if near and self._outbox.may_carry() else None
        began = time.monotonic()
        inserted = await self._store.jobs.insert_small(jobs, message=message)
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
        """Check and insert many jobs; ids in the order of the specs, None where one was not inserted.

        Raises:
            JobConflictError: An id is taken, or comes twice, and the resolution is RAISE: none is inserted.
        """
        check_kind("conflict_resolution", conflict_resolution, ConflictResolution)
        check_connection(connection)
        check_count("batch_size", batch_size, least=1)
        jobs = await self._check_all(specs)
        if not jobs:
            return []
        copied = [job for job in jobs if isinstance(job, GeneratedIdJob)]
        if len(copied) < WORTH_A_COPY:
            copied = []
        inserted = {job.job_id for job in copied}
        others = [job for job in jobs if job.job_id not in inserted]
        batches = _batches(others, conflict_resolution, batch_size)
        ids: list[str | None] = [job.job_id for job in jobs]
        if conflict_resolution is ConflictResolution.RAISE:
            async with self._store.jobs.all_or_nothing(connection) as one:
                await self._insert_or_raise(batches, one)
                await self._store.jobs.copy(copied, batch_size, connection=one)
        elif conflict_resolution is ConflictResolution.REPLACE:
            for batch in batches:
                await self._store.jobs.replace(batch, connection=connection)
            await self._store.jobs.copy(copied, batch_size, connection=connection)
        else:
            for batch in batches:
                inserted |= await self._store.jobs.insert(batch, connection=connection)
            await self._store.jobs.copy(copied, batch_size, connection=connection)
            # Of an id that comes twice, the first one is the one inserted.
            for place, job in enumerate(jobs):
                if job.job_id in inserted:
                    inserted.remove(job.job_id)
                else:
                    ids[place] = None
        await self._announce(min(job.execution_time for job in jobs), connection)
        return ids

    async def _check_all(self, specs: Sequence[JobSpec]) -> list[NewJob]:
        """Check many, with a turn for others now and then."""
        specs = list(specs)  # the caller's own may change meanwhile
        jobs: list[NewJob] = []
        for start in range(0, len(specs), IN_ONE_GO):
            if start:
                await asyncio.sleep(0)
            jobs += self.check(specs[start : start + IN_ONE_GO])
        return jobs

    async def _insert_or_raise(self, batches: Iterable[Sequence[NewJob]], connection: Connection) -> None:
        for batch in batches:
            inserted = await self._store.jobs.insert(batch, connection=connection)
            if len(inserted) < len(batch):
                taken = [job.job_id for job in batch if job.job_id not in inserted]
                raise await self._conflict(taken, connection)

    async def _conflict(self, job_ids: Sequence[str], connection: Connection | None) -> JobConflictError:
        statuses = await self._store.jobs.statuses_of(job_ids, connection=connection)
        status = statuses.get(job_ids[0])
        return JobConflictError(job_ids[0], status.value if status else "deleted")

    async def _announce(self, due: datetime, connection: Connection | None) -> None:
        if connection is None:
            await self._outbox.notify_due(due)
        elif self._outbox.is_near(due):  # sent by the caller's commit, or never
            await self._store.locks.notify([DUE], connection=connection)


def _batches(
    jobs: Iterable[NewJob], conflict_resolution: ConflictResolution, batch_size: int
) -> list[list[NewJob]]:
    """Each id once, in batches. All calls go in one order, across their batches, so that none deadlock."""
    chosen: dict[str, NewJob] = {}
    for job in jobs:
        if job.job_id not in chosen or conflict_resolution is ConflictResolution.REPLACE:
            chosen[job.job_id] = job
        elif conflict_resolution is ConflictResolution.RAISE:
            raise JobConflictError(job.job_id, None)
    in_order = sorted(chosen.values(), key=lambda job: job.job_id)
    return [in_order[start : start + batch_size] for start in range(0, len(in_order), batch_size)]
