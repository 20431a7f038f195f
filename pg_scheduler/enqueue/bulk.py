"""Insert many jobs: by COPY where ids are generated, with one statement per batch otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from pg_scheduler.enqueue.dependents import DependentInserter
from pg_scheduler.enqueue.job_writer import JobWriter
from pg_scheduler.enqueue.prepare import JobPreparer
from pg_scheduler.enqueue.unique import key_of
from pg_scheduler.enqueue.unique_replacer import UniqueReplacer
from pg_scheduler.errors import JobConflictError
from pg_scheduler.jobs.model import ConflictResolution, JobSpec
from pg_scheduler.jobs.rows import ExtendedJob, GeneratedIdJob, NewJob
from pg_scheduler.store.connections.session import Connection
from pg_scheduler.store.store import Store
from pg_scheduler.store.unique_keys import ENDED, MAX_ROUNDS

PREPARE_BATCH: Final = 500
"""Jobs that are validated before other tasks run: some two milliseconds."""

MIN_COPY_JOBS: Final = 100
"""Jobs from which on COPY is faster than INSERT, including its further round trip."""


class BulkInserter:
    """Inserts the jobs of one call."""

    def __init__(
        self,
        store: Store,
        preparer: JobPreparer,
        writer: JobWriter,
        dependents: DependentInserter,
        replacer: UniqueReplacer,
    ) -> None:
        self._store = store
        self._preparer = preparer
        self._writer = writer
        self._dependents = dependents
        self._replacer = replacer

    async def insert(
        self,
        jobs: Sequence[NewJob],
        conflict_resolution: ConflictResolution,
        batch_size: int,
        connection: Connection | None,
    ) -> list[str | None]:
        """Insert many validated jobs; return their ids, None where one was not inserted."""
        if not jobs:
            return []
        copied = [job for job in jobs if isinstance(job, GeneratedIdJob)]
        if len(copied) < MIN_COPY_JOBS:
            copied = []
        ids_of_copied = {job.job_id for job in copied}
        others = [job for job in jobs if job.job_id not in ids_of_copied]
        chosen = _choose(others, conflict_resolution)
        dependents = [job for job in chosen if isinstance(job, ExtendedJob) and job.after]
        if dependents:
            await self._dependents.check_parents(dependents, {job.job_id for job in jobs}, connection)
        if conflict_resolution is ConflictResolution.RAISE:
            await self._insert_or_raise(chosen, copied, batch_size, connection)
            ids: list[str | None] = [job.job_id for job in jobs]
        elif conflict_resolution is ConflictResolution.REPLACE:
            renamed = await self._replace_all(chosen, copied, batch_size, connection)
            ids = [renamed.get(key_of(job) or "", job).job_id for job in jobs]
        else:
            inserted = await self._insert_new(chosen, copied, batch_size, connection)
            ids = []
            for job in jobs:  # of several jobs with one id, the first one was inserted
                ids.append(job.job_id if job.job_id in inserted else None)
                inserted.discard(job.job_id)
        return ids

    async def _insert_new(
        self,
        jobs: Sequence[NewJob],
        copied: Sequence[GeneratedIdJob],
        batch_size: int,
        connection: Connection | None,
    ) -> set[str]:
        """Insert the jobs without conflicts, and return their ids."""
        dependents, others = _split(jobs)
        inserted = {job.job_id for job in copied}
        for start in range(0, len(others), batch_size):
            inserted |= await self._writer.insert(others[start : start + batch_size], connection)
        await self._store.jobs.copy(copied, batch_size, connection=connection)
        return inserted | await self._dependents.insert(dependents, connection, batch_size=batch_size)

    async def _replace_all(
        self,
        jobs: Sequence[NewJob],
        copied: Sequence[GeneratedIdJob],
        batch_size: int,
        connection: Connection | None,
    ) -> dict[str, ExtendedJob]:
        """Write all jobs; return the unique ones by key, with the ids of their rows."""
        unique = [job for job in jobs if isinstance(job, ExtendedJob) and key_of(job) is not None]
        dependents, others = _split([job for job in jobs if key_of(job) is None] if unique else jobs)
        for start in range(0, len(others), batch_size):
            await self._writer.replace(others[start : start + batch_size], connection)
        await self._store.jobs.copy(copied, batch_size, connection=connection)
        dependents_first = any(job.after for job in unique)
        if dependents_first:
            await self._dependents.insert(dependents, connection, batch_size=batch_size, replace=True)
        written = await self._replacer.replace(unique, connection, batch_size=batch_size) if unique else {}
        if not dependents_first:
            await self._dependents.insert(dependents, connection, batch_size=batch_size, replace=True)
        return written

    async def _insert_or_raise(
        self,
        jobs: Sequence[NewJob],
        copied: Sequence[GeneratedIdJob],
        batch_size: int,
        connection: Connection | None,
    ) -> None:
        """Insert all jobs in one transaction."""
        async with self._store.jobs.all_or_nothing(connection) as transaction:
            left = jobs
            for _ in range(MAX_ROUNDS):
                inserted = await self._insert_new(left, copied, batch_size, transaction)
                copied = ()
                left = [job for job in left if job.job_id not in inserted]
                if not left:
                    return
                if (conflict := await self._writer.conflict(left, transaction)) is not None:
                    raise conflict
            raise JobConflictError(left[0].job_id, ENDED, key_of(left[0]))

    async def prepare(self, specs: Sequence[JobSpec]) -> list[NewJob]:
        """Validate many jobs, and yield to the event loop at intervals."""
        specs = list(specs)  # the caller may change its list meanwhile
        jobs: list[NewJob] = []
        for start in range(0, len(specs), PREPARE_BATCH):
            if start:
                await asyncio.sleep(0)
            jobs += self._preparer.prepare(specs[start : start + PREPARE_BATCH])
        return jobs


def _split(jobs: Sequence[NewJob]) -> tuple[list[ExtendedJob], Sequence[NewJob]]:
    """Return the jobs that wait for others, and the rest."""
    dependents = [job for job in jobs if isinstance(job, ExtendedJob) and job.after]
    if not dependents:
        return dependents, jobs
    return dependents, [job for job in jobs if not (isinstance(job, ExtendedJob) and job.after)]


def _choose(jobs: Iterable[NewJob], conflict_resolution: ConflictResolution) -> list[NewJob]:
    """Return each id once. The order of keys and ids is the same in every call, to avoid deadlocks."""
    chosen: dict[str, NewJob] = {}
    keys: set[str] = set()
    for job in jobs:
        if conflict_resolution is ConflictResolution.RAISE and (key := key_of(job)) is not None:
            if key in keys:
                raise JobConflictError(job.job_id, None, key)
            keys.add(key)
        if job.job_id not in chosen or conflict_resolution is ConflictResolution.REPLACE:
            chosen[job.job_id] = job
        elif conflict_resolution is ConflictResolution.RAISE:
            raise JobConflictError(job.job_id, None)
    return sorted(chosen.values(), key=_place)


def _place(job: NewJob) -> tuple[str, str]:
    """Return what jobs are sorted by. Those with one unique key keep their order: the first is inserted."""
    key = key_of(job)
    return ("", job.job_id) if key is None else (key, "")
