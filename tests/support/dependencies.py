"""Builders of jobs that wait for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pg_scheduler.database.statements import Transaction
from pg_scheduler.errors import JobResult
from pg_scheduler.jobs.rows import ExtendedJob, Extras
from pg_scheduler.scheduler.store import Store
from tests.support.store import Pool, new_job

WAITS = Extras(blocked_on="after")


def child(
    job_id: str, *after: str, outcome: str = "completed", extras: Extras = WAITS, **changes: Any
) -> ExtendedJob:
    """Return a job that waits for these."""
    return ExtendedJob(new_job(job_id, **changes), extras, after=after, after_outcome=outcome)


def reader(job_id: str, *after: str, **changes: Any) -> ExtendedJob:
    """Return a job that waits for the ends of these, whatever they are, and reads their results."""
    marked = Extras(options='{"steps": 0}', blocked_on="after")
    waiting = child(job_id, *after, outcome="ended", extras=marked, **changes)
    return replace(waiting, passes_results=True)


async def add(store: Store, *jobs: ExtendedJob, replace: bool = False) -> None:
    """Insert jobs that wait for others."""
    async with store.statements.transaction() as (connection, _):
        if replace:
            await store.inserts.replace_extended(jobs, connection=connection)
        else:
            await store.inserts.insert_extended(jobs, connection=connection)
        await store.dependencies.block(jobs, Transaction(connection, []), replaced=replace)


async def passed(store: Store, job_id: str) -> dict[str, JobResult]:
    """Return the results that were passed to a job, by the ids of the other jobs."""
    found = await store.passed_results.get(job_id, await store.passed_results.names(job_id))
    return {result.job_id: result for result in found}


async def state(pool: Pool, *job_ids: str) -> Sequence[tuple[str, str | None]]:
    """Return status and blocked_on of jobs, in this order."""
    rows = await pool.fetch("SELECT job_id, status, blocked_on FROM scheduled_jobs")
    found = {row["job_id"]: (row["status"], row["blocked_on"]) for row in rows}
    return [found[job_id] for job_id in job_ids]


async def edges(pool: Pool) -> set[tuple[str, str]]:
    """Return all edges as parent and child."""
    return {(row[0], row[1]) for row in await pool.fetch("SELECT * FROM scheduler_after")}
