"""Write jobs, plain ones and others, and find what they conflict with."""

from __future__ import annotations

from collections.abc import Sequence

from pg_scheduler.enqueue.unique import key_of
from pg_scheduler.errors import JobConflictError
from pg_scheduler.jobs.rows import ExtendedJob, NewJob
from pg_scheduler.store.connections.session import Connection
from pg_scheduler.store.store import Store


class JobWriter:
    """Writes jobs that wait for no others."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def insert(
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

    async def replace(self, jobs: Sequence[NewJob], connection: Connection | None) -> None:
        """Insert jobs with different ids, or give existing ones a new definition."""
        extended = [job for job in jobs if isinstance(job, ExtendedJob)]
        plain = [job for job in jobs if not isinstance(job, ExtendedJob)] if extended else jobs
        await self._store.jobs.replace(plain, connection=connection)
        if extended:
            await self._store.jobs.replace_extended(extended, connection=connection)

    async def conflict(
        self, jobs: Sequence[NewJob], connection: Connection | None
    ) -> JobConflictError | None:
        """Return the first conflict of jobs that were not inserted; None if it has passed."""
        keys = [key for job in jobs if (key := key_of(job)) is not None]
        if not keys:
            return await self.id_conflict(jobs[0].job_id, connection)
        found = await self._store.unique_keys.find_conflicts(
            [job.job_id for job in jobs], keys, connection=connection
        )
        by_id = {each.job_id: each for each in found}
        by_key = {each.unique_key: each for each in found if each.is_unfinished}
        for job in jobs:
            if (each := by_id.get(job.job_id)) is not None:
                return JobConflictError(each.job_id, each.status)
            if (key := key_of(job)) is not None and (each := by_key.get(key)) is not None:
                return JobConflictError(each.job_id, each.status, key)
        return None

    async def id_conflict(self, job_id: str, connection: Connection | None) -> JobConflictError:
        """Return the conflict of a job whose id exists."""
        statuses = await self._store.jobs.statuses_of([job_id], connection=connection)
        status = statuses.get(job_id)
        return JobConflictError(job_id, status.value if status else "deleted")
