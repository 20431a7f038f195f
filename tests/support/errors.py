"""Count failures of jobs that a test has inserted, as the statement that fails a job does."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.queries import DEFAULT_SCHEMA, load_query
from pg_scheduler.jobs.error_text import OTHER_ERRORS, fingerprint_of, text_of
from pg_scheduler.statistics.errors import MAX_GROUPS_OF_NAME


async def count_errors(pool: asyncpg.Pool | asyncpg.Connection, job_ids: Sequence[str] | None = None) -> None:
    """Count the failed and expired jobs of these ids, or of the whole table, and add them to their groups."""
    rows = await pool.fetch(
        "SELECT job.job_id, coalesce(job.function, job.job_name) AS name, job.status, job.error_message,"
        " job.finished_at, worker.metadata ->> 'release' AS release FROM scheduled_jobs AS job"
        " LEFT JOIN scheduler_workers AS worker USING (worker_id)"
        " WHERE job.status IN ('failed', 'expired') AND isfinite(job.finished_at)"
        " AND ($1::text[] IS NULL OR job.job_id = ANY ($1))",
        None if job_ids is None else list(job_ids),
    )
    texts = [text_of(JobStatus(row["status"]), row["error_message"]) for row in rows]
    await pool.execute(
        "INSERT INTO scheduler_failures (fingerprint, job_name, text, status, jobs, at, release, job_id)"
        " SELECT fingerprint, name, text, status, 1, at, release, job_id FROM unnest($1::text[], $2::text[],"
        " $3::text[], $4::text[], $5::timestamptz[], $6::text[], $7::text[])"
        " AS failure (fingerprint, name, text, status, at, release, job_id)",
        [fingerprint_of(row["name"], text) for row, text in zip(rows, texts, strict=True)],
        [row["name"] for row in rows],
        texts,
        [row["status"] for row in rows],
        [row["finished_at"] for row in rows],
        [row["release"] for row in rows],
        [row["job_id"] for row in rows],
    )
    await add_to_groups(pool)


async def add_to_groups(pool: asyncpg.Pool | asyncpg.Connection) -> None:
    """Add all failures to their groups, as the passes of workers do."""
    query = load_query(DEFAULT_SCHEMA, "fold_failures")
    while await pool.fetchval(query.text, 5000, MAX_GROUPS_OF_NAME, OTHER_ERRORS):
        pass


async def recount_errors(pool: asyncpg.Pool) -> None:
    """Count all failed and expired jobs again, since a test has changed their rows by SQL."""
    await pool.execute("TRUNCATE scheduler_failures, scheduler_error_groups, scheduler_error_counts")
    await count_errors(pool)


async def count_since(pool: asyncpg.Pool, days: int = 100) -> None:
    """Let the database have counted errors for so many days."""
    await pool.execute(
        "UPDATE scheduler_migrations SET applied_at = now() - make_interval(days => $1) WHERE version = 5",
        days,
    )
