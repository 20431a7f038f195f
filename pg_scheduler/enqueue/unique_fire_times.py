"""Insert the jobs of a schedule whose task is unique. No job waits for one that was rejected."""

from __future__ import annotations

from collections.abc import Sequence

from pg_scheduler.enqueue.schedule_jobs import in_order
from pg_scheduler.enqueue.writer import JobWriter
from pg_scheduler.errors import JobConflictError
from pg_scheduler.jobs.rows import ExtendedJob
from pg_scheduler.store.statements import Transaction
from pg_scheduler.store.store import Store


async def insert_unique(
    store: Store,
    jobs: Sequence[ExtendedJob],
    transaction: Transaction,
    *,
    last_job_id: str | None,
    queued: bool,
) -> tuple[list[ExtendedJob], JobConflictError | None]:
    """Insert jobs one after another; return those that were inserted, and the last conflict.

    Args:
        store: The store.
        jobs: The jobs of one schedule, in order.
        transaction: The transaction.
        last_job_id: The unfinished job that they wait for, if they are queued; None for none.
        queued: Whether each waits for the end of the one before.
    """
    writer, connection = JobWriter(store), transaction.connection
    inserted: list[ExtendedJob] = []
    conflict = None
    for each in jobs:
        job = in_order([each], last_job_id)[0] if queued else each
        if not await store.jobs.insert_extended([job], connection=connection):
            conflict = await writer.conflict([job], connection) or conflict
            continue
        if job.after:
            await store.dependencies.block([job], transaction)
        inserted.append(job)
        last_job_id = job.job_id
    return inserted, conflict
