"""Read the waiting jobs of procrastinate, as jobs of this library.

Its tables are read with SQL: procrastinate need not be installed.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import asyncpg

from pg_scheduler.base.dsn import normalise_dsn
from pg_scheduler.base.sqlbuiltins import qualify_builtins
from pg_scheduler.base.sqltext import quote_identifier
from pg_scheduler.base.text.json_text import load_json
from pg_scheduler.importing.imported import (
    JobDefinition,
    NotImportedError,
    Source,
    StoreInvalidError,
    StoreUnreadableError,
    converted,
)
from pg_scheduler.inspect.store.connections import open_connection
from pg_scheduler.jobs.model import UNSET, JobPriority, Unset

PREFIX: Final = "procrastinate:"
"""The prefix of the ids of imported jobs."""

MIN_CRITICAL: Final = 50
"""The least priority in procrastinate with which a job is critical here."""

DEFAULTS: Final = {"queue_name": "default", "priority": 0, "lock": None, "queueing_lock": None}
"""Columns that become metadata if they have another value."""

# A job without a scheduled time is due since the time at which it was deferred. Jobs that were deferred in
# one transaction would be due at the same instant, and their ids are compared as texts here. So each of them
# is due a microsecond after the one before, and all jobs keep their order.
#
# The jobs of a lock run by their priorities and ids in procrastinate, even if the first of them waits for a
# retry. A sequence orders them by their due times. So each of them is due a microsecond after the one that
# precedes it, or later if its own time is later.
_JOBS: Final = qualify_builtins("""
    SELECT job.*,
        CASE
            WHEN job.lock IS NULL THEN job.instant
            ELSE (max(job.instant - (job.place * interval '1 microsecond'))
                    OVER (PARTITION BY job.lock ORDER BY job.place))
                + (job.place * interval '1 microsecond')
        END AS due
    FROM (
        SELECT job.*,
            row_number() OVER (PARTITION BY job.lock ORDER BY job.priority DESC, job.id) AS place
        FROM (
            SELECT job.*,
                job.moment + ((row_number() OVER (PARTITION BY job.moment ORDER BY job.id) - 1)
                    * interval '1 microsecond') AS instant
            FROM (
                SELECT job.id, job.task_name, job.args::text AS args, job.status::text AS status,
                    job.queue_name, job.priority, job.lock, job.queueing_lock,
                    coalesce(
                        job.scheduled_at,
                        (
                            SELECT min(event.at)
                            FROM {schema}procrastinate_events AS event
                            WHERE event.job_id = job.id AND event.type = 'deferred'
                        ),
                        now()
                    ) AS moment
                FROM {schema}procrastinate_jobs AS job
                WHERE job.status = 'todo' OR job.status = 'doing'
            ) AS job
        ) AS job
    ) AS job
    ORDER BY job.id
""")
_PERIODIC: Final = qualify_builtins("""
    SELECT DISTINCT task_name, periodic_id
    FROM {schema}procrastinate_periodic_defers
    ORDER BY task_name, periodic_id
""")


async def read_store(
    url: str, schema: str | None, *, application_name: str, ignores_locks: bool
) -> list[Source]:
    """Return what the unfinished jobs become, in the order of their ids, and then the periodic tasks.

    Periodic tasks are not imported, and each of them has the reason for that. Nothing is written.

    Args:
        url: The database of procrastinate.
        schema: The schema of its tables; None for the search path.
        application_name: The name in ``pg_stat_activity``.
        ignores_locks: Whether jobs with a lock are imported without the lock; otherwise they are left out.

    Raises:
        SchedulerError: The URL is invalid, or the database rejects the connection or is unavailable.
        StoreInvalidError: The database has no such tables, or the role may not read them.
        StoreUnreadableError: The database has become unavailable.
    """
    schema_prefix = "" if schema is None else f"{quote_identifier(schema)}."
    dsn = normalise_dsn(url, "URL")
    async with (
        open_connection(dsn, application_name=application_name) as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        try:
            jobs = await connection.fetch(_JOBS.replace("{schema}", schema_prefix))
            periodic = await connection.fetch(_PERIODIC.replace("{schema}", schema_prefix))
        except asyncpg.SyntaxOrAccessError as error:
            raise StoreInvalidError(
                f"{error}; check the database in the URL, --table-schema and the rights of the role"
            ) from error
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise StoreUnreadableError(str(error)) from error
    job_sources = [
        converted(str(row["id"]), row["task_name"], partial(convert, row, ignores_locks=ignores_locks))
        for row in jobs
    ]
    periodic_sources = [
        Source(
            source_id=f"{row['task_name']}[{row['periodic_id']}]",
            task=row["task_name"],
            reason="a periodic task has its cron expression in the code; replace it with @periodic(cron=...)",
        )
        for row in periodic
    ]
    return job_sources + periodic_sources


def convert(row: asyncpg.Record, *, ignores_locks: bool) -> JobDefinition:
    """Return the job that a row becomes.

    Raises:
        NotImportedError: The job has no equivalent, or it is running.
    """
    if row["status"] == "doing":
        raise NotImportedError("it is running; let a worker of procrastinate finish it")
    if row["task_name"].startswith(("builtin:", "procrastinate.")):
        raise NotImportedError("it maintains the tables of procrastinate")
    if row["lock"] is not None and not ignores_locks:
        raise NotImportedError(
            f"it has the lock {row['lock']!r}, under which jobs run one at a time, in order; put "
            "@job(sequence=...) on the function and pass --ignore-locks"
        )
    kwargs = load_json(row["args"])
    if not isinstance(kwargs, dict):
        raise NotImportedError(f"its arguments are no JSON object: {row['args']}")
    # Columns with the default of procrastinate are of no interest. The queue is "queue" in the metadata.
    metadata: dict[str, Any] = {}
    for name, default in DEFAULTS.items():
        if row[name] != default:
            metadata[name.removesuffix("_name")] = row[name]
    return JobDefinition(
        task=row["task_name"],
        kwargs=kwargs,
        metadata=metadata or None,
        due=row["due"],
        priority=_priority(row["priority"]),
    )


def _priority(number: int) -> JobPriority | Unset:
    """Return the priority of a job by its number in procrastinate; UNSET for the priority of the task."""
    # 0 is the default of procrastinate, so the job gets the priority of its task.
    if number == 0:
        return UNSET
    if number < 0:
        return JobPriority.LOW
    if number < MIN_CRITICAL:
        return JobPriority.HIGH
    return JobPriority.CRITICAL
