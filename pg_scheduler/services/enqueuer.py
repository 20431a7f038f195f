"""Puts jobs into the table: everything is checked first, then written whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from pg_scheduler.domain.ids import new_job_id
from pg_scheduler.domain.job import (
    DEFAULT_TIMEOUT,
    ConflictResolution,
    JobPriority,
    JobSpec,
    NewJob,
    Unset,
    check_count,
    check_execution_time,
    check_grace,
    check_job_id,
    check_kind,
    check_timeout,
)
from pg_scheduler.domain.payload import encode
from pg_scheduler.domain.tasks import Task, TaskRegistry
from pg_scheduler.errors import JobConflictError
from pg_scheduler.services.announcer import Announcer
from pg_scheduler.services.coalescer import Coalescer
from pg_scheduler.store.notifications import DUE
from pg_scheduler.store.pool import PoolConnection, check_connection
from pg_scheduler.store.store import Store

__all__ = ["Enqueuer"]


class Enqueuer:
    """Checks jobs and inserts them.

    Args:
        misfire_grace_time: The scheduler's grace in seconds, for jobs that say nothing; None for ever.
    """

    def __init__(
        self, store: Store, tasks: TaskRegistry, announcer: Announcer, *, misfire_grace_time: int | None
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._announcer = announcer
        self._coalescer = Coalescer(store.insert_small)
        self._grace = misfire_grace_time

    def check(self, spec: JobSpec) -> NewJob:
        """A spec as a job to insert; its function becomes known here."""
        task = self._tasks.adopt(spec.func)
        return self.new_job(
            task.name,
            spec.execution_time,
            encode(spec.args, spec.kwargs),
            priority=spec.priority,
            max_retries=spec.max_retries,
            job_id=spec.job_id,
            misfire_grace_time=spec.misfire_grace_time,
            timeout=spec.timeout,
            task=task,
        )

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
        timeout: float | timedelta | Unset | None,
        task: Task | None,
    ) -> NewJob:
        """A job by name, with what is unset filled in: by its task, then by the scheduler."""
        task = task or self._tasks.resolve(name)
        if isinstance(misfire_grace_time, Unset) and task is not None:
            misfire_grace_time = task.misfire_grace_time
        if isinstance(timeout, Unset):
            timeout = task.timeout if task is not None else DEFAULT_TIMEOUT
        return NewJob(
            job_id=new_job_id() if job_id is None else check_job_id(job_id),
            job_name=name,
            execution_time=check_execution_time(execution_time),
            task_data=task_data,
            priority=check_kind("priority", priority, JobPriority).db_value,
            max_retries=check_count("max_retries", max_retries),
            misfire_grace_time=self._grace
            if isinstance(misfire_grace_time, Unset)
            else check_grace(misfire_grace_time),
            timeout_seconds=check_timeout(timeout),
        )

    async def insert(
        self, job: NewJob, conflict_resolution: ConflictResolution, connection: PoolConnection | None
    ) -> str:
        """Insert one job.

        Raises:
            JobConflictError: The id is taken and the resolution is RAISE.
        """
        check_kind("conflict_resolution", conflict_resolution, ConflictResolution)
        check_connection(connection)
        if conflict_resolution is ConflictResolution.REPLACE:
            await self._store.replace([job], connection=connection)
        elif not await self._inserted(job, connection):
            if conflict_resolution is ConflictResolution.RAISE:
                raise await self._conflict([job.job_id], connection)
            return job.job_id
        await self._announce(job.execution_time, connection)
        return job.job_id

    async def _inserted(self, job: NewJob, connection: PoolConnection | None) -> bool:
        if connection is None:
            return await self._coalescer.insert(job)
        return bool(await self._store.insert([job], connection=connection))

    async def insert_all(
        self,
        jobs: Sequence[NewJob],
        conflict_resolution: ConflictResolution,
        batch_size: int,
        connection: PoolConnection | None,
    ) -> list[str | None]:
        """Insert many jobs; ids in the order of the jobs, None where one was not inserted.

        Raises:
            JobConflictError: An id is taken, or comes twice, and the resolution is RAISE: none is inserted.
        """
        check_kind("conflict_resolution", conflict_resolution, ConflictResolution)
        check_connection(connection)
        check_count("batch_size", batch_size, least=1)
        if not jobs:
            return []
        chosen: dict[str, NewJob] = {}
        for job in jobs:
            if job.job_id not in chosen or conflict_resolution is ConflictResolution.REPLACE:
                chosen[job.job_id] = job
            elif conflict_resolution is ConflictResolution.RAISE:
                raise JobConflictError(job.job_id, None)
        # All calls go in one order, across their batches too, so that no two of them deadlock.
        in_order = sorted(chosen.values(), key=lambda job: job.job_id)
        batches = [in_order[start : start + batch_size] for start in range(0, len(in_order), batch_size)]
        ids: list[str | None] = [job.job_id for job in jobs]
        if conflict_resolution is ConflictResolution.RAISE:
            await self._insert_or_raise(batches, connection)
        elif conflict_resolution is ConflictResolution.REPLACE:
            for batch in batches:
                await self._store.replace(batch, connection=connection)
        else:
            inserted: set[str] = set()
            for batch in batches:
                inserted |= await self._store.insert(batch, connection=connection)
            # Of an id that comes twice, the first one is the one inserted.
            for place, job in enumerate(jobs):
                if job.job_id in inserted:
                    inserted.remove(job.job_id)
                else:
                    ids[place] = None
        await self._announce(min(job.execution_time for job in jobs), connection)
        return ids

    async def _insert_or_raise(
        self, batches: Sequence[Sequence[NewJob]], connection: PoolConnection | None
    ) -> None:
        async with self._store.all_or_nothing(connection) as one:
            for batch in batches:
                inserted = await self._store.insert(batch, connection=one)
                if len(inserted) < len(batch):
                    taken = [job.job_id for job in batch if job.job_id not in inserted]
                    raise await self._conflict(taken, one)

    async def _conflict(self, job_ids: Sequence[str], connection: PoolConnection | None) -> JobConflictError:
        statuses = await self._store.statuses_of(job_ids, connection=connection)
        status = statuses.get(job_ids[0])
        return JobConflictError(job_ids[0], status.value if status else "deleted")

    async def _announce(self, due: datetime, connection: PoolConnection | None) -> None:
        if connection is None:
            await self._announcer.due(due)
        elif self._announcer.is_near(due):  # sent by the caller's commit, or never
            await self._store.notify([DUE], connection=connection)
