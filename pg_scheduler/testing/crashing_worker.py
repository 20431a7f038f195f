"""A worker that crashes before or after one of its statements.

The connections of its pool pass each statement to the worker whose code executes it. A context variable has
this worker in all tasks and threads that the worker starts, but not in those of the test. After the crash, no
statement of the worker reaches the database any more, on any connection.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar, copy_context
from datetime import datetime
from functools import partial, wraps
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import asyncpg

from pg_scheduler.base.sqlbuiltins import qualify_builtins
from pg_scheduler.events import Event
from pg_scheduler.jobs.context import chunk_scheduler, current
from pg_scheduler.testing.scheduler import TestScheduler

Moment: TypeAlias = Literal["before", "after"]

CLAIMS: Final = frozenset({"claim_jobs", "exchange_jobs"})
"""The statements that claim due jobs. The first of them that a worker executes has the number 0."""

WRITES: Final = re.compile(
    r"(?<!\bFOR )(?<!\bFOR NO KEY )\b(?:COPY|DELETE|INSERT|MERGE|NOTIFY|UPDATE)\b", re.IGNORECASE
)
"""Matches a word in each statement that may write. FOR UPDATE and FOR NO KEY UPDATE only lock rows."""

METHODS: Final = (
    "copy_from_query",
    "copy_from_table",
    "copy_records_to_table",
    "copy_to_table",
    "execute",
    "executemany",
    "fetch",
    "fetchmany",  # since asyncpg 0.30
    "fetchrow",
    "fetchval",
)
"""The methods of connections that execute a statement. It is their first argument; for COPY, this may be a
table instead."""

CRASHED: Final = "the worker has crashed"

CLOSE_CONNECTIONS: Final = qualify_builtins("""
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
""")
"""Ends the other sessions of the database; returns how many there still were."""


class StatementPlace(NamedTuple):
    """A statement of a worker, by its name and its number among the statements of this name.

    Its number among all statements differs from run to run, because heartbeats are made in real time.
    """

    name: str
    """The name of a statement of the library, or the text of another one."""
    earlier_count: int
    """How often the worker has executed it before, since its first claim."""


class Point(NamedTuple):
    """A place at which a worker crashes."""

    place: StatementPlace
    moment: Moment
    """Before it is sent, or after its response."""


class CrashingWorker:
    """Numbers the statements of the worker of a TestScheduler, and lets it crash at one of them.

    Attributes:
        statements: The places at which a crash can change anything, by number: what attempts execute, and
            what writes.
        ended_at: How many statements there were when the last job ended.
        crashed_at: The statement at which the worker crashed; None while it has not.
    """

    def __init__(self, t: TestScheduler, names: Mapping[str, str], point: Point | None) -> None:
        self._t = t
        # The names of the statements of the library by their texts.
        self._names = names
        # Where the worker is to crash; None for no crash.
        self._point = point
        self._run_task: asyncio.Task[int] | None = None
        self._statement_count = 0
        self._counts_by_name = Counter[str]()
        # The connections whose open transactions have changed rows.
        self._writers = set[asyncpg.Connection]()
        self.statements: Final[dict[int, StatementPlace]] = {}
        self.ended_at = 0
        self.crashed_at: str | None = None

    def note_end(self, _event: Event) -> None:
        """Note that a job has ended."""
        self.ended_at = self._statement_count

    async def run_until(self, time: datetime) -> None:
        """Run jobs as the method of TestScheduler does, and let another worker run them after the crash."""
        if self.crashed_at is None and await self._run_until_crash(time):
            return
        await self._t.run_until(time)

    async def _run_until_crash(self, time: datetime) -> bool:
        """Run jobs, and return whether the worker has survived.

        After a crash, this returns as soon as the server has rolled back the open transactions.
        """
        # In this context, and in those of the tasks and threads that begin in it, this worker executes the
        # statements.
        context = copy_context()
        context.run(executing.set, self)
        self._run_task = asyncio.create_task(self._t.run_until(time), context=context)
        try:
            await self._run_task
        except asyncio.CancelledError:
            # Without a crash, or with a cancellation of the test itself, the error is that of the test.
            test = asyncio.current_task()
            if self.crashed_at is None or (test is not None and test.cancelling()):
                raise
            async with self._t.pool.acquire() as connection:
                # Until the sessions have ended, and with them their transactions.
                while await connection.fetchval(CLOSE_CONNECTIONS):
                    pass
            # The pool takes a connection that the server has ended for an idle one, until it reads from it.
            await self._t.pool.expire_connections()
            return False
        return True

    async def execute(
        self, connection: asyncpg.Connection, statement: str, run: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Execute a statement of this worker by ``run``, and return its response.

        The statement gets a number. The worker crashes before or after it if that is planned.

        Raises:
            CancelledError: The worker has crashed.
        """
        name = self._names.get(statement, statement)
        if self.crashed_at is not None:
            raise asyncio.CancelledError(CRASHED)
        # The numbers begin with the first claim.
        if not self._statement_count and name not in CLAIMS:
            return await run()
        number = self._statement_count
        place = StatementPlace(name, earlier_count=self._counts_by_name[name])
        response = None
        self._statement_count += 1
        self._counts_by_name[name] += 1
        self._crash_if_planned(place, "before")
        try:
            response = await run()
        finally:
            # A crash can change nothing at other statements, such as those that look for due jobs.
            is_of_attempt = current.get(None) is not None or chunk_scheduler.get() is not None
            if self._has_written(connection, statement, response) or is_of_attempt:
                self.statements[number] = place
            self._crash_if_planned(place, "after")
        return response

    def _has_written(self, connection: asyncpg.Connection, statement: str, response: Any) -> bool:
        """Return whether a statement has changed a row, or committed such changes."""
        # The statement has ended a transaction that had changed rows.
        if connection in self._writers and not connection.is_in_transaction():
            self._writers.remove(connection)
            return True
        # The response has no rows, or it is a text such as "UPDATE 0".
        is_empty = not response or (isinstance(response, str) and response.endswith(" 0"))
        if is_empty or not WRITES.search(statement):
            return False
        if connection.is_in_transaction():
            self._writers.add(connection)
        return True

    def _crash_if_planned(self, place: StatementPlace, moment: Moment) -> None:
        """Crash if the worker is to crash at this place: close the connections, and cancel the tasks."""
        if self._point != (place, moment):
            return
        self.crashed_at = place.name
        self._t.lose_connection()
        # The statement may be that of another task of the worker than the one that runs jobs.
        if self._run_task is not None and self._run_task is not asyncio.current_task():
            self._run_task.cancel()
        self._t.crash()
        raise asyncio.CancelledError(CRASHED)


executing: Final[ContextVar[CrashingWorker | None]] = ContextVar("pg_scheduler_crashing_worker", default=None)
"""The worker whose code runs; None for the code of the test."""


class NumberedConnection(asyncpg.Connection):
    """Lets the worker that executes a statement number it."""

    async def reset(self, *, timeout: float | None = None) -> None:
        """Reset the session by statements of the pool, which no worker numbers."""
        token = executing.set(None)
        try:
            await super().reset(timeout=timeout)
        finally:
            executing.reset(token)


def _numbered(name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a method of a connection that passes its statement to the worker whose code calls it.

    A method of COPY may have a table in place of a statement, so the text for the worker begins with COPY.
    """

    @wraps(method)
    async def execute(connection: asyncpg.Connection, statement: str, *args: Any, **options: Any) -> Any:
        """Execute a statement by the worker whose code calls the method; directly if there is none."""
        run = partial(method, connection, statement, *args, **options)
        worker = executing.get()
        if worker is None:
            return await run()
        text = f"COPY {statement}" if "copy" in name else statement
        return await worker.execute(connection, text, run)

    return execute


for _name in METHODS:
    if hasattr(asyncpg.Connection, _name):
        setattr(NumberedConnection, _name, _numbered(_name, getattr(asyncpg.Connection, _name)))
