"""Insert, read and change jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime
from typing import Final

import asyncpg

from pg_scheduler.events import Event
from pg_scheduler.events.types import BY_CALLER
from pg_scheduler.jobs.model import Job, JobCounts, JobStatus
from pg_scheduler.jobs.page import Page
from pg_scheduler.jobs.rows import DelayedJob, ExtendedJob, GeneratedIdJob, NewJob
from pg_scheduler.store.connections.session import Connection, transact
from pg_scheduler.store.consequences import Consequences
from pg_scheduler.store.copy import COLUMNS, packed
from pg_scheduler.store.faults import translated
from pg_scheduler.store.queries import Route
from pg_scheduler.store.records import job_from
from pg_scheduler.store.statements import Statements
from pg_scheduler.store.types import (
    CancelledJob,
    ExpiredJob,
    JobFilters,
    OverdueName,
    StatusChange,
    TouchedJob,
)
from pg_scheduler.store.unique_keys import UniqueKeyRepository, detecting_taken_keys

__all__ = ["MAX_EXAMINED_ROWS", "JobRepository"]

MAX_EXAMINED_ROWS: Final = 20_000
"""Rows that one call with a metadata filter examines at most."""

MAX_CANCELLED_JOBS: Final = 1000
"""Jobs that one statement cancels at most."""

SET_BY_CALLER: Final = "status set by a caller"


class JobRepository:
    """The statements by which callers insert, read and change jobs.

    Args:
        statements: Runs the statements.
        consequences: Applied to jobs that end here.
        unique_keys: Reports who holds the unique key of a job that is to run again.
    """

    def __init__(
        self, statements: Statements, consequences: Consequences, unique_keys: UniqueKeyRepository
    ) -> None:
        self._statements = statements
        self._consequences = consequences
        self._unique_keys = unique_keys

    # -- insert ----------------------------------------------------------------------------------------

    async def insert(
        self, jobs: Sequence[NewJob], *, message: str | None = None, connection: Connection | None = None
    ) -> set[str]:
        """Insert the jobs whose ids are new, send the message if there are any, and return their ids."""
        return await self._insert(jobs, message, on=connection)

    async def insert_small(self, jobs: Sequence[NewJob], *, message: str | None = None) -> set[str]:
        """Insert a few jobs. Consecutive calls reuse one connection."""
        return await self._insert(jobs, message, route=Route.STICKY)

    async def enqueue(
        self, jobs: Sequence[DelayedJob], *, message: str | None = None, connection: Connection | None = None
    ) -> set[str]:
        """Insert the jobs whose ids are new, due a delay from now, with the message; return their ids."""
        columns = jobs[0] if len(jobs) == 1 else zip(*jobs, strict=True)
        channel = await self._statements.channel(on=connection) if message else None
        rows = await self._statements.fetch_retrying(
            "enqueue_job" if len(jobs) == 1 else "enqueue_jobs",
            *columns,
            self._statements.now,
            channel,
            message,
            on=connection,
            route=None if connection is not None else Route.STICKY,
        )
        return {row[0] for row in rows}

    async def insert_extended(
        self,
        jobs: Sequence[ExtendedJob],
        *,
        message: str | None = None,
        connection: Connection | None = None,
    ) -> set[str]:
        """Insert the jobs whose ids and unique keys are free, with the message; return their ids."""
        channel = await self._statements.channel(on=connection) if message else None
        rows = await self._statements.fetch_retrying(
            "insert_extended_jobs",
            *zip(*jobs, strict=True),
            self._statements.now,
            channel,
            message,
            *zip(*(each.extras for each in jobs), strict=True),
            on=connection,
            route=None if connection is not None else Route.STICKY,
        )
        return {row[0] for row in rows}

    async def clock(self, *, connection: Connection | None = None) -> datetime:
        """Return the time by the scheduler's clock, also late in a transaction."""
        now: datetime = await self._statements.value("clock", self._statements.now, on=connection)
        return now

    async def copy(
        self, jobs: Sequence[GeneratedIdJob], batch_size: int, *, connection: Connection | None = None
    ) -> None:
        """Insert jobs by COPY, the cheapest way, with one statement per batch."""
        if not jobs:
            return
        schema, now = await self._statements.schema(on=connection), self._statements.now
        columns = COLUMNS if now is None else (*COLUMNS, "created_at")
        connections = self._statements.connections
        async with connections.acquire() if connection is None else nullcontext(connection) as one:
            for start in range(0, len(jobs), batch_size):
                with translated():
                    await one.copy_to_table(
                        "scheduled_jobs",
                        source=packed(jobs[start : start + batch_size], now),
                        columns=columns,
                        schema_name=schema,
                        format="binary",
                        timeout=self._statements.call_timeout_s,
                    )

    async def replace(self, jobs: Sequence[NewJob], *, connection: Connection | None = None) -> None:
        """Insert jobs, or give existing ones a new definition. The ids must differ."""
        if jobs:
            columns = zip(*jobs, strict=True)
            await self._statements.fetch_retrying(
                "replace_jobs", *columns, self._statements.now, on=connection
            )

    async def replace_extended(
        self, jobs: Sequence[ExtendedJob], *, connection: Connection | None = None
    ) -> None:
        """Insert jobs, or give existing ones a new definition. The ids must differ.

        Raises:
            UniqueKeyTakenError: Another unfinished job has one of the unique keys.
        """
        with detecting_taken_keys():
            await self._statements.fetch_retrying(
                "replace_extended_jobs",
                *zip(*jobs, strict=True),
                self._statements.now,
                *zip(*(each.extras for each in jobs), strict=True),
                on=connection,
            )

    @asynccontextmanager
    async def all_or_nothing(self, connection: Connection | None = None) -> AsyncIterator[Connection]:
        """Yield a transaction, or the caller's connection within a savepoint."""
        if connection is None:
            async with self._statements.connections.transaction() as own:
                yield own
        else:
            with translated():
                async with transact(connection, self._statements.call_timeout_s):
                    yield connection

    async def _insert(
        self,
        jobs: Sequence[NewJob],
        message: str | None,
        *,
        on: Connection | None = None,
        route: Route | None = None,
    ) -> set[str]:
        if not jobs:
            return set()
        run, now = self._statements.fetch_retrying, self._statements.now
        is_one = len(jobs) == 1
        columns = jobs[0] if is_one else zip(*jobs, strict=True)
        if message is None and all(isinstance(job, GeneratedIdJob) for job in jobs):
            name = "insert_generated_job" if is_one else "insert_generated_jobs"
            await run(name, *columns, now, on=on, route=route)
            return {job.job_id for job in jobs}
        channel = await self._statements.channel(on=on) if message else None
        name = "insert_job" if is_one else "insert_jobs"
        rows = await run(name, *columns, now, channel, message, on=on, route=route)
        return {row[0] for row in rows}

    # -- change ----------------------------------------------------------------------------------------

    async def cancel(self, job_id: str, reason: str = BY_CALLER) -> StatusChange:
        """Cancel a pending or running job, for a reason that its row states."""
        return await self._change("cancel_job", job_id, self._statements.now, reason)

    async def retry(self, job_id: str) -> bool:
        """Make a finished job due now and reset its retries and crashes; return False if there is none.

        Raises:
            JobConflictError: Another unfinished job has its unique key.
        """
        fetch, now = self._statements.fetch, self._statements.now
        return bool(await self._unique_keys.restart(job_id, lambda: fetch("retry_job", job_id, now)))

    async def set_status(
        self, job_id: str, status: JobStatus, lease_s: float, reason: str = SET_BY_CALLER
    ) -> StatusChange:
        """Set a status manually; ``running`` reserves the job for one lease.

        A job that ends without success and has no error gets the reason.

        Raises:
            JobConflictError: Another unfinished job has its unique key.
        """
        args = status.value, lease_s, self._statements.now, reason
        return await self._unique_keys.restart(job_id, lambda: self._change("set_status", job_id, *args))

    async def _change(self, name: str, job_id: str, *args: object) -> StatusChange:
        """Change one job; in a transaction if its end has consequences."""
        rows = await self._statements.fetch(name, job_id, *args, False)
        if rows and not rows[0]["changed"]:

            async def change(connection: Connection) -> tuple[list[asyncpg.Record], list[Event]]:
                found = await self._statements.fetch(name, job_id, *args, True, on=connection)
                return found, await self._consequences.run([job_id], connection)

            rows, events = await self._statements.run_retrying(change)
            self._consequences.publish_all(events)
        if not rows:
            return StatusChange(False)
        return StatusChange(True, rows[0]["worker_id"], rows[0]["job_name"], rows[0]["attempt"])

    async def cancel_next(
        self, after: str | None, filters: JobFilters, reason: str = BY_CALLER
    ) -> tuple[list[CancelledJob], str | None]:
        """Cancel the matching pending and running jobs among the next rows.

        Args:
            after: The id after which the rows begin; None for the first ones.
            filters: The jobs to cancel.
            reason: The reason that the rows state.

        Returns:
            The cancelled jobs, and the id after which to continue; None at the end.
        """
        found = await self._statements.fetch(
            "find_unfinished", after, MAX_CANCELLED_JOBS, MAX_EXAMINED_ROWS, *filters
        )
        ids = [row["job_id"] for row in found if row["matches"]]
        end = ids[-1] if len(ids) == MAX_CANCELLED_JOBS else _end_of(found)
        if not ids:
            return [], end
        now, run = self._statements.now, self._statements.fetch_retrying
        rows = await run("cancel_jobs", ids, now, reason, *filters, False)
        if refused := [row["job_id"] for row in rows if not row["changed"]]:

            async def cancel(connection: Connection) -> tuple[list[asyncpg.Record], list[Event]]:
                changed = await self._statements.fetch(
                    "cancel_jobs", refused, now, reason, *filters, True, on=connection
                )
                ended = [row["job_id"] for row in changed]
                return changed, await self._consequences.run(ended, connection)

            others, events = await self._statements.run_retrying(cancel)
            self._consequences.publish_all(events)
            rows = [*rows, *others]
        return [_cancelled_job(row) for row in rows if row["changed"]], end

    async def delete(self, job_ids: Collection[str]) -> list[TouchedJob]:
        """Delete jobs that do not run and for which nothing waits; return those that existed."""
        rows = await self._statements.fetch_retrying("delete_jobs", list(job_ids))
        return [TouchedJob(*row) for row in rows]

    async def move(
        self, job_ids: Collection[str], *, to: datetime | None = None, by_s: float = 0
    ) -> list[TouchedJob]:
        """Change when pending jobs are due; return those of the jobs that exist.

        The caller notifies the workers if a job is due soon.

        Args:
            job_ids: The jobs.
            to: The new time; None to move each from its own.
            by_s: Seconds by which each is moved, at most a century.
        """
        rows = await self._statements.fetch_retrying(
            "move_jobs", list(job_ids), to, by_s, self._statements.now
        )
        return [TouchedJob(*row) for row in rows]

    async def expire(self, worker_id: str, names: Sequence[str], limit: int) -> list[ExpiredJob]:
        """Expire pending jobs past their misfire grace time, with the reason.

        Args:
            worker_id: The worker that expires them.
            names: The names of jobs that it can run.
            limit: The maximum number of jobs.
        """
        rows = await self._statements.fetch("expire_jobs", worker_id, names, limit, self._statements.now)
        await self._consequences.apply([row["job_id"] for row in rows if row["has_consequences"]])
        return [ExpiredJob(row["job_id"], row["job_name"], row["attempt"]) for row in rows]

    # -- read ------------------------------------------------------------------------------------------

    async def get_job(self, job_id: str) -> Job | None:
        """Return the job, or None if it does not exist."""
        rows = await self._statements.fetch("get_job", job_id)
        return job_from(rows[0]) if rows else None

    async def get_jobs(self, job_ids: Collection[str]) -> list[Job]:
        """Return the jobs of those ids that exist."""
        return [job_from(row) for row in await self._statements.fetch("get_jobs", list(job_ids))]

    async def list_jobs(
        self,
        *,
        after: str | None,
        statuses: Sequence[JobStatus] | None,
        job_name: str | None,
        worker_id: str | None,
        due_from: datetime | None,
        due_before: datetime | None,
        limit: int,
        metadata: str | None = None,
    ) -> Page[Job]:
        """Return a page of jobs in the order of their ids. Metadata bound the rows that are read."""
        wanted = None if statuses is None else [status.value for status in statuses]
        filters = JobFilters(wanted, job_name, worker_id, due_from, due_before, metadata)
        if metadata is not None:
            return await self._find_jobs(after, limit, filters)
        rows = await self._statements.fetch("list_jobs", after, *filters[:5], limit + 1)
        jobs = [job_from(row) for row in rows[:limit]]
        return Page(jobs, next=jobs[-1].job_id if len(rows) > limit else None)

    async def _find_jobs(self, after: str | None, limit: int, filters: JobFilters) -> Page[Job]:
        rows = await self._statements.fetch("find_jobs", after, limit + 1, MAX_EXAMINED_ROWS, *filters)
        jobs: list[Job] = []
        for row in rows:
            values = dict(row)
            del values["place"]
            if values.pop("matches"):
                jobs.append(job_from(values))
        return Page(jobs[:limit], next=jobs[limit - 1].job_id if len(jobs) > limit else _end_of(rows))

    async def count_jobs(self, job_name: str | None) -> JobCounts:
        """Count the jobs of each status."""
        rows = await self._statements.fetch("count_jobs", job_name)
        return JobCounts(**{row[0]: row[1] for row in rows})

    async def statuses_of(
        self, job_ids: Collection[str], *, connection: Connection | None = None
    ) -> dict[str, JobStatus]:
        """Return the statuses of those ids that exist."""
        rows = await self._statements.fetch("statuses_of", list(job_ids), on=connection)
        return {row[0]: JobStatus(row[1]) for row in rows}

    async def read_revoked(self, job_ids: Collection[str]) -> dict[str, tuple[JobStatus, bool]]:
        """Return the statuses of those ids that exist, and whether the attempt's real end is awaited."""
        rows = await self._statements.fetch("read_revoked", list(job_ids))
        return {row["job_id"]: (JobStatus(row["status"]), row["is_awaited"]) for row in rows}

    async def overdue_names(self, worker_id: str, names: Sequence[str], limit: int) -> list[OverdueName]:
        """Return the names of overdue jobs that a worker cannot run, the longest overdue first.

        Args:
            worker_id: The worker.
            names: The names of jobs that it can run.
            limit: Jobs of each priority that are read, the oldest first.
        """
        rows = await self._statements.fetch("overdue_names", self._statements.now, names, limit, worker_id)
        return [OverdueName(*row) for row in rows]

    async def waiting_names(self) -> list[str]:
        """Return the names of pending jobs."""
        return [row[0] for row in await self._statements.fetch("waiting_names")]


def _end_of(rows: Sequence[asyncpg.Record]) -> str | None:
    """Return the id at which the rows that may be examined ended; None if they were the last ones."""
    return rows[-1]["job_id"] if rows and rows[-1]["place"] == MAX_EXAMINED_ROWS else None


def _cancelled_job(row: asyncpg.Record) -> CancelledJob:
    return CancelledJob(row["job_id"], row["job_name"], row["attempt"], row["worker_id"])
