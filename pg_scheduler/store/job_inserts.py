"""Insert jobs, by statements and by COPY."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime

from pg_scheduler.jobs.rows import DelayedJob, ExtendedJob, GeneratedIdJob, NewJob
from pg_scheduler.store.connections.session import Connection, transact
from pg_scheduler.store.copy import COLUMNS, packed
from pg_scheduler.store.faults import translated
from pg_scheduler.store.queries import Route
from pg_scheduler.store.statements import Statements
from pg_scheduler.store.unique_keys import detecting_taken_keys


class JobInserts:
    """The statements that insert jobs."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    async def insert(
        self, jobs: Sequence[NewJob], *, message: str | None = None, connection: Connection | None = None
    ) -> set[str]:
        """Insert the jobs whose ids are new, send the message if there are any, and return their ids."""
        return await self._insert(jobs, message, on=connection)

    async def insert_small(
        self,
        jobs: Sequence[NewJob],
        *,
        message: str | None = None,
        lock_timeout: str | None = None,
        connection: Connection | None = None,
    ) -> set[str]:
        """Insert a few jobs, as ``insert()``. Consecutive calls reuse one connection.

        Args:
            jobs: The jobs.
            message: The message.
            lock_timeout: The longest wait for a lock, for the rest of the transaction.
            connection: The transaction of the caller; None for none.
        """
        route = None if connection is not None else Route.STICKY
        return await self._insert(jobs, message, lock_timeout, on=connection, route=route)

    async def enqueue(
        self,
        jobs: Sequence[DelayedJob],
        *,
        message: str | None = None,
        lock_timeout: str | None = None,
        connection: Connection | None = None,
    ) -> tuple[set[str], datetime | None]:
        """Insert the jobs whose ids are new, due a delay from now, as ``insert_small()``.

        Returns:
            The ids, and the time of the call by the clock of the database; None if no job is inserted.
        """
        columns = jobs[0] if len(jobs) == 1 else zip(*jobs, strict=True)
        channel = await self._statements.channel(on=connection) if message else None
        rows = await self._statements.fetch_retrying(
            "enqueue_job" if len(jobs) == 1 else "enqueue_jobs",
            *columns,
            self._statements.now,
            channel,
            message,
            lock_timeout,
            on=connection,
            route=None if connection is not None else Route.STICKY,
        )
        return {row[0] for row in rows}, rows[0][1] if rows else None

    async def insert_extended(
        self,
        jobs: Sequence[ExtendedJob],
        *,
        message: str | None = None,
        lock_timeout: str | None = None,
        connection: Connection | None = None,
    ) -> set[str]:
        """Insert the jobs whose ids and unique keys are free, as ``insert_small()``."""
        channel = await self._statements.channel(on=connection) if message else None
        rows = await self._statements.fetch_retrying(
            "insert_extended_jobs",
            *zip(*(job.row for job in jobs), strict=True),
            self._statements.now,
            channel,
            message,
            *zip(*(job.extras for job in jobs), strict=True),
            lock_timeout,
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
                *zip(*(job.row for job in jobs), strict=True),
                self._statements.now,
                *zip(*(job.extras for job in jobs), strict=True),
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
        lock_timeout: str | None = None,
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
        rows = await run(name, *columns, now, channel, message, lock_timeout, on=on, route=route)
        return {row[0] for row in rows}
