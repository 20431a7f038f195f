"""Replace unique jobs: the job that holds a key gets the new definition, whatever its id is.

One transaction locks the holders, so that none of them ends before it has the new definition.
"""

from __future__ import annotations

from collections.abc import Sequence

from pg_scheduler.enqueue.unique import key_of
from pg_scheduler.errors import JobConflictError
from pg_scheduler.jobs.rows import ExtendedJob
from pg_scheduler.store.connections.session import Connection
from pg_scheduler.store.statements import Transaction
from pg_scheduler.store.store import Store
from pg_scheduler.store.unique_keys import ENDED, MAX_ROUNDS, UniqueKeyTakenError


class UniqueReplacer:
    """Inserts unique jobs, or gives the jobs that hold their keys a new definition."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def replace(
        self, jobs: Sequence[ExtendedJob], connection: Connection | None, *, batch_size: int = 1000
    ) -> dict[str, ExtendedJob]:
        """Write jobs in one transaction; return them by key, with the ids of their rows.

        Of several jobs with one key, the last definition gets the id of the first.

        Raises:
            JobConflictError: The id of a job is that of one row, and another job holds its key.
            JobNotFoundError: A job waits for one that does not exist. Nothing is written.
            ValueError: A job would wait for itself. Nothing is written.
        """
        chosen: dict[str, ExtendedJob] = {}
        for job in jobs:
            key = key_of(job) or ""
            chosen[key] = job.with_id(chosen[key].job_id) if key in chosen else job
        each = [chosen[key] for key in sorted(chosen)]

        async def write(transaction: Transaction) -> dict[str, ExtendedJob]:
            written: list[ExtendedJob] = []
            for start in range(0, len(each), batch_size):
                written += await self._write(each[start : start + batch_size], transaction.connection)
            waiting = [job for job in written if job.after]
            if waiting:
                await self._store.dependencies.block(waiting, transaction, replaced=True)
            return {key_of(job) or "": job for job in written}

        return await self._store.statements.run_retrying(write, within=connection)

    async def _write(self, jobs: Sequence[ExtendedJob], transaction: Connection) -> list[ExtendedJob]:
        written: list[ExtendedJob] = []
        left = list(jobs)
        for _ in range(MAX_ROUNDS):
            inserted = await self._store.jobs.insert_extended(left, connection=transaction)
            written += [job for job in left if job.job_id in inserted]
            left = [job for job in left if job.job_id not in inserted]
            targets = await self._targets(left, transaction) if left else {}
            if targets:
                try:
                    async with self._store.jobs.all_or_nothing(transaction) as savepoint:
                        await self._store.jobs.replace_extended([*targets.values()], connection=savepoint)
                except UniqueKeyTakenError:
                    continue
                written += targets.values()
                done = {key_of(job) for job in targets.values()}
                left = [job for job in left if key_of(job) not in done]
            if not left:
                return written
        raise JobConflictError(left[0].job_id, ENDED, key_of(left[0]))

    async def _targets(self, jobs: Sequence[ExtendedJob], transaction: Connection) -> dict[str, ExtendedJob]:
        """Return the jobs by the id of the row to replace, each row once."""
        holders = await self._store.unique_keys.lock_holders([key_of(job) or "" for job in jobs], transaction)
        existing = await self._store.jobs.statuses_of([job.job_id for job in jobs], connection=transaction)
        targets: dict[str, ExtendedJob] = {}
        for job in jobs:
            holder = holders.get(key_of(job) or "")
            if holder is None and job.job_id not in existing:
                continue  # the holder has ended in between
            if holder is not None and holder.job_id != job.job_id and job.job_id in existing:
                raise JobConflictError(holder.job_id, holder.status, holder.unique_key)
            target = job.job_id if holder is None else holder.job_id
            targets.setdefault(target, job.with_id(target))
        return targets
