"""Insert jobs, by the statements of ``inserts.sql`` and by COPY.

``Enqueuer`` and ``InsertBatcher`` decide which method inserts a job; the method chooses the statement.

Binary COPY rows cost client and server half as much as INSERT. COPY has no ON CONFLICT, so it is for jobs
with generated ids. asyncpg could pack the bytes too, but the pool's owner may have set codecs that COPY
cannot use, or that have another format. The formats are those of the wire protocol: PostgreSQL 14 to 18 read
the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from struct import Struct
from typing import Any, Final

from pg_scheduler.base.batches import batches
from pg_scheduler.database.callers.connection import as_foreign
from pg_scheduler.database.faults import SuppressedChangeError, translated
from pg_scheduler.database.queries import Route
from pg_scheduler.database.session import Connection, Record
from pg_scheduler.database.statements import Repository, Statements, Transaction
from pg_scheduler.jobs.deadlines import instant_of
from pg_scheduler.jobs.rows import EPOCH, NO_EXTRAS, ExtendedJob, Extras, GeneratedIdJob, PlainJob
from pg_scheduler.queue.consequences import Consequences
from pg_scheduler.queue.unique_keys import detecting_taken_keys

GENERATED_FIELDS: Final = PlainJob._fields.index("function")
"""How many values a job with a generated id has: it has no function and no lock."""

LATE: Final = datetime(9931, 1, 1, tzinfo=UTC)
"""Jobs that are due from then on may expire after the year 9999, which Python cannot represent."""


class InsertRepository(Repository):
    """The statements that insert jobs, or give existing ones a new definition."""

    def __init__(self, statements: Statements, consequences: Consequences) -> None:
        super().__init__(statements)
        self._consequences = consequences

    async def insert(
        self,
        jobs: Sequence[PlainJob],
        *,
        message: str | None = None,
        lock_timeout: str | None = None,
        connection: Connection | None = None,
        route: Route | None = None,
        created_at: datetime | None = None,
    ) -> set[str]:
        """Insert the jobs whose ids are new, and return their ids.

        For a single job with a generated id, as of a plain `schedule()`, there is a cheaper statement,
        ``insert_generated_job``. It looks for no job with the same id, since there is none. It cannot send a
        message, so ``insert_job`` inserts the job if there is a message.

        Args:
            jobs: The jobs.
            message: A message that the statement sends if it inserts a job; None for none.
            lock_timeout: The longest wait for a lock, for the rest of the transaction.
            connection: The transaction of the caller; None for none.
            route: One of the routes of the statement; None for the default.
            created_at: The time of an earlier statement, from which the due times of the jobs were computed;
                None for the time of this statement.
        """
        if not jobs:
            return set()
        # One job has a statement of its own, whose parameters are values instead of arrays.
        job, is_one, now = jobs[0], len(jobs) == 1, created_at or self._statements.now
        run = partial(self._run, lock_timeout=lock_timeout, connection=connection, route=route)
        sends_nothing = message is None
        # The cheaper statement gets the time at which the job expires. Python may be unable to represent that
        # time if the job is due from LATE on.
        if sends_nothing and is_one and isinstance(job, GeneratedIdJob) and job.execution_time < LATE:
            grace = job.misfire_grace_time
            expires_at = None if grace is None else job.execution_time + timedelta(seconds=grace)
            values = (*job[:GENERATED_FIELDS], now, expires_at)
            await run("insert_generated_job", *values)
            return {job.job_id}
        # The statements for many jobs take an array for each column.
        columns = job if is_one else zip(*jobs, strict=True)
        if sends_nothing and not is_one and all(isinstance(job, GeneratedIdJob) for job in jobs):
            await run("insert_generated_jobs", *columns, now)
            return {job.job_id for job in jobs}
        name = "insert_job" if is_one else "insert_jobs"
        rows = await run(name, *columns, now, message)
        return {row["job_id"] for row in rows}

    async def enqueue(
        self,
        jobs: Sequence[PlainJob],
        *,
        message: str | None = None,
        lock_timeout: str | None = None,
        connection: Connection | None = None,
    ) -> dict[str, datetime] | set[str]:
        """Insert the jobs whose ids are new, with a delay from now instead of a due time.

        Returns:
            The database time of the call, by the id of each inserted job. It is only the set of ids if
            ``enqueue_generated_job`` inserts a job in a caller's transaction: that statement returns no row,
            because a row would cost a driver more than the insert itself.
        """
        is_one = len(jobs) == 1
        if connection is not None and is_one and _is_immediate(jobs[0]):
            return await self._enqueue_generated(jobs[0], NO_EXTRAS, message, connection)
        # The statement for one job takes its values, the one for many jobs takes an array for each column.
        columns = _delayed(jobs[0]) if is_one else zip(*map(_delayed, jobs), strict=True)
        rows = await self._run(
            "enqueue_job" if is_one else "enqueue_jobs",
            *columns,
            self._statements.now,
            message,
            lock_timeout=lock_timeout,
            connection=connection,
        )
        return {row["job_id"]: row["called_at"] for row in rows}

    async def insert_extended(
        self,
        jobs: Sequence[ExtendedJob],
        *,
        message: str | None = None,
        lock_timeout: str | None = None,
        connection: Connection | None = None,
        created_at: datetime | None = None,
    ) -> set[str]:
        """Insert the jobs whose ids and unique keys are free, as ``insert()`` does.

        ``created_at`` is as for ``insert()``.
        """
        if not jobs:
            return set()
        await self._note_deadlines(_deadlines(jobs), connection)
        values = self._values_of([job.row for job in jobs], jobs, message, created_at)
        rows = await self._run(
            "insert_extended_jobs", *values, lock_timeout=lock_timeout, connection=connection
        )
        return {row["job_id"] for row in rows}

    async def enqueue_extended(
        self,
        jobs: Sequence[ExtendedJob],
        *,
        message: str | None = None,
        lock_timeout: str | None = None,
        connection: Connection | None = None,
    ) -> dict[str, datetime] | set[str]:
        """Insert the jobs whose ids and unique keys are free, with delays, as ``enqueue()`` does."""
        await self._note_deadlines(_deadlines(jobs), connection)
        # As in enqueue(), there is a cheaper statement for a job that is due now, in a caller's transaction.
        if connection is not None and len(jobs) == 1:
            row, extras = jobs[0].row, jobs[0].extras
            if extras.unique_key is None and extras.blocked_on is None and _is_immediate(row):
                return await self._enqueue_generated(row, extras, message, connection)
        delayed = [_delayed(job.row) for job in jobs]
        values = self._values_of(delayed, jobs, message)
        rows = await self._run(
            "enqueue_extended_jobs", *values, lock_timeout=lock_timeout, connection=connection
        )
        return {row["job_id"]: row["called_at"] for row in rows}

    async def replace(
        self,
        jobs: Sequence[PlainJob],
        *,
        connection: Connection | None = None,
        created_at: datetime | None = None,
    ) -> None:
        """Insert jobs, or give existing ones a new definition. The ids must differ.

        ``created_at`` is as for ``insert()``.
        """

        def values_of(job_ids: Collection[str]) -> list[object]:
            """Return the parameters for these jobs: an array for each column, and the time."""
            columns = zip(*(job for job in jobs if job.job_id in job_ids), strict=True)
            return [*columns, created_at or self._statements.now]

        if jobs:
            await self._replace("replace_jobs", {job.job_id for job in jobs}, values_of, connection)

    async def replace_extended(
        self,
        jobs: Sequence[ExtendedJob],
        *,
        connection: Connection | None = None,
        created_at: datetime | None = None,
    ) -> None:
        """Insert jobs, or give existing ones a new definition. The ids must differ.

        ``created_at`` is as for ``insert()``.

        Raises:
            UniqueKeyTakenError: Another unfinished job has one of the unique keys.
        """
        if jobs:
            await self._note_deadlines(_deadlines(jobs), connection)
            await self._replace_extended(
                "replace_extended_jobs", jobs, connection, created_at, lambda job: job.extras
            )

    async def replace_debounced(
        self, jobs: Sequence[ExtendedJob], *, connection: Connection, created_at: datetime | None = None
    ) -> list[ExtendedJob]:
        """Give debounced jobs a new definition, and return them with their due times. The ids must differ.

        An earlier statement of the transaction must have locked their rows. ``created_at`` is as for
        ``insert()``.

        Raises:
            UniqueKeyTakenError: Another unfinished job has one of the unique keys.
        """
        if not jobs:
            return []
        rows = await self._replace_extended(
            "replace_debounced_jobs", jobs, connection, created_at, lambda job: (*job.extras, job.deadline_s)
        )
        written = {row["job_id"]: row for row in rows}
        # A due time that is earlier than the call asks for has an earlier deadline. The entries follow in the
        # same transaction, so the job is never without them.
        deadlines = [(job.job_id, instant_of(written[job.job_id]["deadline"])) for job in jobs]
        await self._note_deadlines(deadlines, connection)
        return [job.postponed_to(written[job.job_id]["due"]) for job in jobs]

    async def _replace_extended(
        self,
        name: str,
        jobs: Sequence[ExtendedJob],
        connection: Connection | None,
        created_at: datetime | None,
        extras_of: Callable[[ExtendedJob], tuple[object, ...]],
    ) -> list[Record]:
        """Run a statement that inserts or replaces extended jobs; see ``_replace()``.

        ``extras_of`` returns what the statement takes of a job besides the columns of plain jobs.
        """

        def values_of(job_ids: Collection[str]) -> list[object]:
            """Return the parameters for these jobs: an array for each column, and the time."""
            chosen_jobs = [job for job in jobs if job.job_id in job_ids]
            columns = zip(*(job.row for job in chosen_jobs), strict=True)
            now = created_at or self._statements.now
            return [*columns, now, *zip(*map(extras_of, chosen_jobs), strict=True)]

        with detecting_taken_keys():
            return await self._replace(name, {job.job_id for job in jobs}, values_of, connection)

    async def _run(
        self,
        name: str,
        *values: object,
        lock_timeout: str | None,
        connection: Connection | None,
        route: Route | None = None,
    ) -> list[Record]:
        """Run a statement whose last parameter is a lock timeout.

        Without a lock timeout and a connection of the caller, the statement is repeated while it meets a
        lock. If it waited for the lock instead, it would occupy a connection meanwhile.
        """
        statements = self._statements
        if connection is not None:
            return await statements.fetch(name, *values, lock_timeout, on=connection)
        if lock_timeout is not None:
            return await statements.fetch_retrying(name, *values, lock_timeout, route=route)

        # The first attempt has a limit, the lock timeout that the statement sets. Later ones have a
        # connection, whose transaction has a lock timeout already.
        async def attempt(on: Connection | None, limit: str | None) -> list[Record]:
            return await statements.fetch_retrying(name, *values, limit, on=on, route=route)

        return await statements.repeat_while_locked(name, attempt)

    async def _note_deadlines(
        self, deadlines: Sequence[tuple[str, datetime | None]], connection: Connection | None
    ) -> None:
        """Note when jobs must have ended, before they are inserted or in the transaction that inserts them.

        A job is never without its entry then, wherever the process dies. An entry alone means nothing. Do
        nothing for jobs without a deadline.
        """
        entries = [(job_id, deadline) for job_id, deadline in deadlines if deadline is not None]
        if entries:
            columns = (list(column) for column in zip(*entries, strict=True))
            await self._statements.fetch_retrying(
                "note_deadlines", *columns, self._statements.now, on=connection
            )

    async def _enqueue_generated(
        self, row: PlainJob, extras: Extras, message: str | None, connection: Connection
    ) -> dict[str, datetime] | set[str]:
        """Insert a job that is due now in the transaction of the caller; see ``enqueue()`` for the result."""
        statements = self._statements
        values: tuple[object, ...] = (
            row.job_id,
            row.task_data,
            row.job_name,
            row.priority,
            row.max_retries,
            row.timeout_seconds,
            statements.now,
        )
        extra_values = (extras.options, extras.on_end)
        # The statements of plain jobs do not name the columns of these values, which the role of an enqueuer
        # may not write.
        is_plain = extra_values == (None, None)
        fetch = partial(statements.fetch, on=connection)
        # Without a message, the caller needs the time of the call to notify workers later. Otherwise the
        # statement adds that time to the message, and returns no row.
        if message is None:
            if is_plain:
                rows = await fetch("enqueue_due_job", *values)
            else:
                rows = await fetch("enqueue_extended_due_job", *values, *extra_values)
            return {row.job_id: rows[0]["called_at"]} if rows else {}
        if is_plain:
            await fetch("enqueue_generated_job", *values, message)
        else:
            await fetch("enqueue_extended_generated_job", *values, message, *extra_values)
        return {row.job_id}

    async def _replace(
        self,
        name: str,
        job_ids: Collection[str],
        values_of: Callable[[Collection[str]], list[object]],
        connection: Connection | None,
    ) -> list[Record]:
        """Insert or replace jobs, and return the rows that the statement returns.

        If the consequences of an ended job were left to a scan, they are applied first. The consequences are
        what follows the end of a job, for example for the jobs that wait for it. A new definition would
        overwrite the column that lists them.

        Args:
            name: The statement. It only locks a row whose consequences are not applied yet, and does not
                return its id.
            job_ids: The jobs.
            values_of: Returns the values of the statement for some of the jobs.
            connection: The connection of the caller; None for the pool.

        Raises:
            SuppressedChangeError: A job was not written.
        """

        async def replace(ids: Collection[str], on: Connection) -> set[str]:
            """Run the statement for these jobs; return the ids of those that it has not written."""
            new_rows = await self._statements.fetch(name, *values_of(ids), on=on)
            rows.extend(new_rows)
            return {*ids} - {row["job_id"] for row in new_rows}

        # Nearly always, no ended job among them has consequences that a scan must still apply.
        rows = await self._statements.fetch_retrying(name, *values_of(job_ids), on=connection)
        remaining_ids = {*job_ids} - {row["job_id"] for row in rows}

        async def apply_and_replace(transaction: Transaction) -> None:
            # The statement has to lock the rows in this transaction before their consequences are applied.
            if locked_ids := await replace(remaining_ids, transaction.connection):
                await self._consequences.run(locked_ids, transaction)
                # Now the statement has no reason to leave out a job: the application suppresses the change.
                if await replace(locked_ids, transaction.connection):
                    raise SuppressedChangeError(change="insert or update")

        if remaining_ids:
            await self._statements.run_retrying(apply_and_replace, within=connection)
        return rows

    def _values_of(
        self,
        rows: Sequence[tuple[Any, ...]],
        jobs: Sequence[ExtendedJob],
        message: str | None,
        created_at: datetime | None = None,
    ) -> list[object]:
        """Return the parameters of a statement that inserts extended jobs, with an array for each column.

        ``rows`` has the columns that plain jobs have too, with due times or delays.
        """
        columns, extras = zip(*rows, strict=True), zip(*(job.extras for job in jobs), strict=True)
        return [*columns, created_at or self._statements.now, message, *extras]

    async def copy(
        self,
        jobs: Sequence[GeneratedIdJob],
        batch_size: int,
        *,
        connection: Connection | None = None,
        created_at: datetime | None = None,
    ) -> None:
        """Insert jobs by COPY, the cheapest way, with one statement per batch.

        ``created_at`` is as for ``insert()``, but COPY cannot read the time of its statement. If it is None,
        the jobs get the default of the column, which is the begin of the transaction.
        """
        # The connection of another library has no method for COPY.
        if as_foreign(connection) is not None:
            for batch in batches(jobs, batch_size, _lengths):
                await self.insert(batch, connection=connection, created_at=created_at)
            return
        if not jobs:
            return
        schema, now = await self._statements.schema(on=connection), created_at or self._statements.now
        # Without a time, the server sets the column created_at by its default.
        columns = COLUMNS if now is None else (*COLUMNS, "created_at")
        connections = self._statements.connections
        async with connections.acquire() if connection is None else nullcontext(connection) as session:
            for batch in batches(jobs, batch_size, _lengths):
                with translated():
                    await session.copy_to_table(
                        "scheduled_jobs",
                        source=packed(batch, now),
                        columns=columns,
                        schema_name=schema,
                        format="binary",
                        timeout=self._statements.call_timeout_s,
                    )


def _deadlines(jobs: Sequence[ExtendedJob]) -> list[tuple[str, datetime | None]]:
    """Return the ids of jobs, each with the deadline of the job."""
    return [(job.job_id, job.deadline) for job in jobs]


def _lengths(jobs: Sequence[GeneratedIdJob]) -> list[int]:
    """Return the length of the arguments of each job, by which batches are divided.

    This is what the property ``characters`` returns, but a property would cost a call for each job.
    """
    return [len(job.task_data) for job in jobs]


def _is_immediate(job: PlainJob) -> bool:
    """Return whether a delayed job has a generated id, is due now, and never expires."""
    # The due time of a delayed job is EPOCH plus its delay.
    has_no_delay, never_expires = job.execution_time == EPOCH, job.misfire_grace_time is None
    return isinstance(job, GeneratedIdJob) and has_no_delay and never_expires


def _delayed(row: PlainJob) -> tuple[Any, ...]:
    """Return the row of a delayed job with its delay in seconds, instead of ``EPOCH`` plus the delay."""
    return (*row[:2], (row.execution_time - EPOCH).total_seconds(), *row[3:])


# -- rows of COPY --------------------------------------------------------------------------------------

COLUMNS: Final = (*PlainJob._fields[:GENERATED_FIELDS], "expires_at")
"""Columns in the order of the rows. ``created_at`` follows if the database does not set it."""

CHUNK_ROWS: Final = 500
"""Rows that are packed before the event loop runs other tasks."""

HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER: Final = b"\xff\xff"
NULL: Final = b"\xff\xff\xff\xff"
POSTGRES_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)

_count = Struct(">h").pack
_size = Struct(">i").pack
# A value of a fixed size follows its number of bytes, which callers pass to these functions first.
_integer = Struct(">ii").pack
_bigint = Struct(">iq").pack
_double = Struct(">id").pack


async def packed(jobs: Sequence[PlainJob], created_at: datetime | None) -> AsyncIterator[bytes]:
    """Yield jobs in the binary format of COPY, in chunks: a header, for each job a row, and a trailer.

    A row is the number of its columns, then each column as its number of bytes and its value. Without
    ``created_at``, the rows do not have this column.
    """
    column_count = _count(len(COLUMNS) + (created_at is not None))
    created_at_column = b"" if created_at is None else _instant(_microseconds(created_at))
    shared_values: object = None
    shared_columns = b""
    yield HEADER
    for start in range(0, len(jobs), CHUNK_ROWS):
        rows: list[bytes] = []
        for job in jobs[start : start + CHUNK_ROWS]:
            # Neighbours often differ only in their ids and arguments, which are the first two fields.
            if job[2:] != shared_values:
                shared_values = job[2:]
                shared_columns = _shared_columns(job) + created_at_column
            job_id, task_data = job.job_id.encode(), job.task_data.encode()
            # The byte before the arguments is the version of the format of jsonb. Version 1 is text.
            jsonb_size = _size(len(task_data) + 1)
            rows += (column_count, _size(len(job_id)), job_id, jsonb_size, b"\1", task_data, shared_columns)
        yield b"".join(rows)
        await asyncio.sleep(0)
    yield TRAILER


def _shared_columns(job: PlainJob) -> bytes:
    """Return the columns of a row after its id and its arguments, in the binary format of COPY."""
    due, grace = _microseconds(job.execution_time), job.misfire_grace_time
    return b"".join(
        (
            _instant(due),
            _text(job.job_name),
            _integer(4, job.priority),
            _integer(4, job.max_retries),
            NULL if grace is None else _integer(4, grace),
            NULL if job.timeout_seconds is None else _double(8, job.timeout_seconds),
            # This is when the job expires. The grace time has seconds.
            NULL if grace is None else _instant(due + grace * 1_000_000),
        )
    )


def _text(value: str) -> bytes:
    """Return a text as binary COPY has it: its number of bytes, and its bytes in UTF-8."""
    data = value.encode()
    return _size(len(data)) + data


def _instant(microseconds: int) -> bytes:
    """Return a column with an instant, from its microseconds since the beginning of the year 2000."""
    return _bigint(8, microseconds)


def _microseconds(instant: datetime) -> int:
    """Return an instant as binary COPY has it: as microseconds since the beginning of the year 2000."""
    return (instant - POSTGRES_EPOCH) // MICROSECOND
