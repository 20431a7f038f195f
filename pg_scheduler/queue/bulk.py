"""Insert many jobs with few statements."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from pg_scheduler.database.session import Connection
from pg_scheduler.database.statements import Transaction
from pg_scheduler.errors import JobConflictError
from pg_scheduler.jobs.model import ConflictResolution
from pg_scheduler.jobs.rows import AnyJob, ExtendedJob, GeneratedIdJob
from pg_scheduler.jobs.task import JobSpec
from pg_scheduler.jobs.validation import check_list
from pg_scheduler.queue.prepare import JobPreparer
from pg_scheduler.queue.store import QueueStore
from pg_scheduler.queue.unique_keys import MAX_ROUNDS
from pg_scheduler.queue.writer import JobWriter, is_dependent, not_inserted

PREPARE_BATCH: Final = 500
"""Jobs that are validated before other tasks run: some two milliseconds."""


class BulkInserter:
    """Inserts the jobs of one call."""

    def __init__(self, store: QueueStore, preparer: JobPreparer, writer: JobWriter) -> None:
        self._store = store
        self._preparer = preparer
        self._writer = writer

    async def prepare(self, specs: Sequence[JobSpec]) -> list[AnyJob]:
        """Validate many jobs, and yield to the event loop at intervals. A job without a time gets EPOCH."""
        # This is a copy, because the caller may change its list while other tasks run.
        specs = check_list("jobs", specs, "list of JobSpec")
        jobs: list[AnyJob] = []
        for start in range(0, len(specs), PREPARE_BATCH):
            if start:
                await asyncio.sleep(0)
            jobs += self._preparer.prepare(specs[start : start + PREPARE_BATCH], allows_now=True)
        return jobs

    async def insert(
        self,
        jobs: Sequence[AnyJob],
        conflict_resolution: ConflictResolution,
        batch_size: int,
        connection: Connection | None,
        *,
        created_at: datetime | None,
    ) -> list[str | None]:
        """Insert many validated jobs; return their ids, None where one was not inserted.

        ``created_at`` is the time of the database that jobs without a due time got as theirs; None if every
        job was given a due time.
        """
        # Jobs that may replace each other are written one after the other, and all others together.
        # A place is the index of a job in the call.
        overlapping_places: list[int] = []
        if conflict_resolution is ConflictResolution.REPLACE:
            overlapping_places = await self._writer.find_overlapping(jobs, connection)
        overlapping_jobs = [jobs[place] for place in overlapping_places]
        excluded_places = set(overlapping_places)
        other_jobs = (job for place, job in enumerate(jobs) if place not in excluded_places)
        distinct_jobs = _choose(other_jobs, conflict_resolution)
        dependents = [
            job for job in [*distinct_jobs, *overlapping_jobs] if isinstance(job, ExtendedJob) and job.after
        ]
        # Under IGNORE, a job that exists is not written, so the jobs that it would wait for do not matter.
        if dependents and conflict_resolution is ConflictResolution.IGNORE:
            await self._writer.check_parents_of_new(dependents, distinct_jobs, connection)
        elif dependents:
            await self._writer.check_parents(dependents, jobs, connection)
        if conflict_resolution is ConflictResolution.RAISE:
            await self._insert_or_raise(distinct_jobs, batch_size, connection, created_at)
            return [job.job_id for job in jobs]

        async def write(within: Connection | Transaction | None) -> list[str | None]:
            """Write the jobs; return for each job of the call its id, or None if it was not inserted."""
            if conflict_resolution is ConflictResolution.REPLACE:
                # A unique job has the id of the row that it replaced, which may differ from its own id.
                replaced_rows = await self._writer.replace(
                    distinct_jobs,
                    within,
                    overlapping_jobs=overlapping_jobs,
                    batch_size=batch_size,
                    created_at=created_at,
                )
                replaced_ids: list[str | None] = [
                    replaced_rows.by_key.get(job.unique_key, job).job_id for job in jobs
                ]
                # Jobs that were written one by one may have got other rows.
                for place, job_id in zip(overlapping_places, replaced_rows.overlapping, strict=True):
                    replaced_ids[place] = job_id
                return replaced_ids
            inserted = await self._writer.insert(
                distinct_jobs, within, batch_size=batch_size, created_at=created_at
            )
            ids: list[str | None] = []
            # Of several jobs with one id, the first one was inserted.
            for job in jobs:
                ids.append(job.job_id if job.job_id in inserted else None)
                inserted.discard(job.job_id)
            return ids

        # If a job would wait for itself, or for the result of a job that keeps none, its insert fails. The
        # transaction undoes the inserts of all other jobs of the call then.
        if dependents:
            return await self._store.statements.run_retrying(write, within=connection, reserved=False)
        return await write(connection)

    async def _insert_or_raise(
        self,
        jobs: Sequence[AnyJob],
        batch_size: int,
        connection: Connection | None,
        created_at: datetime | None,
    ) -> None:
        """Insert all jobs in one transaction, those that wait for others last; raise the first conflict."""
        if not jobs:
            return
        independents = [job for job in jobs if not is_dependent(job)]
        dependents = [job for job in jobs if is_dependent(job)]

        async def write(transaction: Transaction) -> None:
            for part in (independents, dependents):
                remaining_jobs = part
                for _ in range(MAX_ROUNDS):
                    inserted = await self._writer.insert(
                        remaining_jobs, transaction, batch_size=batch_size, created_at=created_at
                    )
                    remaining_jobs = [job for job in remaining_jobs if job.job_id not in inserted]
                    if not remaining_jobs:
                        break
                    # Without a conflict, the job that was in the way has ended or is gone by now, so the
                    # insert is repeated.
                    conflict = await self._writer.conflict(remaining_jobs, transaction.connection)
                    if conflict is not None:
                        raise conflict
                else:
                    raise not_inserted(remaining_jobs[0])

        await self._store.statements.run_retrying(write, within=connection, reserved=False)


def _choose(jobs: Iterable[AnyJob], conflict_resolution: ConflictResolution) -> list[AnyJob]:
    """Return the jobs to insert, each id once: under REPLACE the last job of an id, else the first.

    They are sorted by their keys and ids, so that two calls lock rows in the same order and do not deadlock.

    Raises:
        JobConflictError: An id or a unique key occurs twice, and the resolution is RAISE.
    """
    distinct_jobs: dict[str, AnyJob] = {}  # by id
    # No other job has a generated id, so these need no order.
    generated: list[AnyJob] = []
    keys: set[str] = set()
    for job in jobs:
        if isinstance(job, GeneratedIdJob):
            generated.append(job)
            continue
        # The other resolutions permit several jobs with one key: the first or the last one counts.
        if conflict_resolution is ConflictResolution.RAISE and (key := job.unique_key) is not None:
            if key in keys:
                raise JobConflictError(job.job_id, None, key)
            keys.add(key)
        if job.job_id not in distinct_jobs or conflict_resolution is ConflictResolution.REPLACE:
            distinct_jobs[job.job_id] = job
        elif conflict_resolution is ConflictResolution.RAISE:
            raise JobConflictError(job.job_id, None)
    return [*sorted(distinct_jobs.values(), key=_sort_key), *generated]


def _sort_key(job: AnyJob) -> tuple[str, str]:
    """Return what jobs are sorted by: jobs without a unique key by their ids, then the others by their keys.

    Jobs with one unique key keep the order of the call, since only the first of them is inserted.
    """
    key = job.unique_key
    return ("", job.job_id) if key is None else (key, "")
