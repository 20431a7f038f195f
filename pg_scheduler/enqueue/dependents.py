"""Insert jobs that wait for other jobs: the rows and what they wait for commit together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from pg_scheduler.errors import JobNotFoundError
from pg_scheduler.jobs.rows import ExtendedJob, Extras, NewJob
from pg_scheduler.jobs.validation import check_job_id
from pg_scheduler.store.connections.session import Connection
from pg_scheduler.store.statements import Transaction
from pg_scheduler.store.store import Store

OUTCOMES: Final = ("completed", "ended")


def extended(job: NewJob, *, after: Iterable[str | None], after_outcome: str) -> NewJob:
    """Return the job with what it waits for, or the job itself if it waits for nothing.

    Raises:
        TypeError: ``after`` is not a collection of ids.
        ValueError: ``after_outcome`` is unknown, or the job would wait for itself.
    """
    if after_outcome not in OUTCOMES:
        raise ValueError(f"after_outcome must be 'completed' or 'ended', not {after_outcome!r}")
    if isinstance(after, str) or not isinstance(after, Iterable):
        raise TypeError(
            f"after must be a list of job ids, not {type(after).__name__}: {after!r}; pass after=[job_id]"
        )
    parents = dict.fromkeys(check_job_id(parent) for parent in after if parent is not None)
    if not parents:
        return job
    if job.job_id in parents:
        raise ValueError(f"after contains {job.job_id!r}, the id of the job itself; remove it")
    extras = job.extras if isinstance(job, ExtendedJob) else Extras()
    return ExtendedJob.of(
        job,
        extras._replace(blocked_on="after"),
        after=tuple(parents),
        after_outcome=after_outcome,
        span=job.span if isinstance(job, ExtendedJob) else None,
    )


class DependentInserter:
    """Inserts jobs that wait for others."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def check_parents(
        self, jobs: Sequence[ExtendedJob], inserted: Collection[str], connection: Connection | None
    ) -> None:
        """Check that the parents exist, or are inserted by the same call, before it writes anything.

        Raises:
            JobNotFoundError: One does not exist.
        """
        parents = {parent: None for job in jobs for parent in job.after if parent not in inserted}
        if parents:
            found = await self._store.jobs.statuses_of(parents, connection=connection)
            for parent in parents:
                if parent not in found:
                    raise JobNotFoundError(parent)

    async def insert(
        self,
        jobs: Sequence[ExtendedJob],
        connection: Connection | None,
        *,
        batch_size: int = 1000,
        replace: bool = False,
    ) -> set[str]:
        """Insert jobs, each id once, in one transaction; return the ids that were written.

        Raises:
            JobNotFoundError: A parent does not exist. Nothing is inserted.
            ValueError: A job would wait for itself. Nothing is inserted.
        """

        async def write(transaction: Transaction) -> set[str]:
            written: set[str] = set()
            for start in range(0, len(jobs), batch_size):
                batch = jobs[start : start + batch_size]
                if replace:
                    await self._store.jobs.replace_extended(batch, connection=transaction.connection)
                    written |= {job.job_id for job in batch}
                else:
                    written |= await self._store.jobs.insert_extended(
                        batch, connection=transaction.connection
                    )
            waiting = [job for job in jobs if job.job_id in written]
            if waiting:
                await self._store.dependencies.block(waiting, transaction, replaced=replace)
            return written

        if not jobs:
            return set()
        return await self._store.statements.run_retrying(write, within=connection)
