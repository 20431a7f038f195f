"""Run named statements: choose the connection, limit the time, translate the errors."""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import asyncpg

from pg_scheduler.base.lazy_imports import LazyModule
from pg_scheduler.clock import Clock
from pg_scheduler.database.author import Author, current_author, writes_records
from pg_scheduler.database.faults import (
    REFUSALS,
    is_conflict,
    is_lock_timeout,
    is_locked_out,
    is_queue_full,
    may_be_of_one_change,
    raise_translated,
    translated,
)
from pg_scheduler.database.lock_retries import LockReports, LockRetries
from pg_scheduler.database.options import (
    DIVIDED_LOCK_TIMEOUT_MS,
    LOCK_TIMEOUT_MS,
    SHARED_LOCK_TIMEOUT_MS,
)
from pg_scheduler.database.pool import Connections
from pg_scheduler.database.queries import (
    DEFAULT_SCHEMA,
    Query,
    Route,
    Timeout,
    channel_of,
    load_query,
    load_variant,
)
from pg_scheduler.database.session import Connection, check_savepoints, transact
from pg_scheduler.database.shared import SharedConnection
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import Event
from pg_scheduler.jobs.codec import PayloadCodec

if TYPE_CHECKING:
    from pg_scheduler.database.migrations import verify as verification
else:
    verification = LazyModule("pg_scheduler.database.migrations.verify")


MAX_ATTEMPTS: Final = 5
"""Attempts of a statement that lost a deadlock."""

BEGIN_WRITE: Final = (
    "SAVEPOINT write_before_commit; SELECT pg_catalog.set_config("
    "'pg_scheduler.lock_timeout', pg_catalog.current_setting('lock_timeout'), true);"
)
"""Begins an attempt of ``write_before_commit()``, and keeps the lock timeout of the transaction."""

ROLL_BACK_WRITE: Final = "ROLLBACK TO SAVEPOINT write_before_commit; RELEASE SAVEPOINT write_before_commit"
"""Rolls such an attempt back, its locks and its lock timeout included."""

RESTORE_LOCK_TIMEOUT: Final = (
    "SELECT pg_catalog.set_config("
    "'lock_timeout', pg_catalog.current_setting('pg_scheduler.lock_timeout'), true)"
)
"""Sets the lock timeout that the transaction had before a successful attempt."""

T = TypeVar("T")

Acquire = Callable[[], AbstractAsyncContextManager[Connection]]


class Transaction(NamedTuple):
    """A transaction in progress.

    Attributes:
        connection: Runs its statements.
        events: To be published after the commit.
    """

    connection: Connection
    events: list[Event]


class CallersTransaction(Transaction):
    """A transaction of the application, which may stay open for long."""


class Statements:
    """Run the named statements on the tables of one schema.

    The schema is looked up at first use; each statement names it from then on.

    Attributes:
        get_author: Returns the author of a change if the caller's context names none.
        publish: Publishes the events of committed transactions.
        codec: Decodes what rows have encoded; None for none.
    """

    def __init__(
        self,
        connections: Connections,
        shared: SharedConnection,
        schema: str | None,
        clock: Clock | None,
        codec: PayloadCodec | None = None,
    ) -> None:
        self.connections: Final = connections
        self.call_timeout_s: Final = connections.options.call_timeout_s
        self._hot_timeout_s = connections.options.hot_timeout_s
        self._shared = shared
        self._schema = schema
        self.clock: Final = clock
        self.codec: Final = codec
        self.get_author: Callable[[], Author] = _user_of_this_host
        self.publish: Callable[[Event], None] = _discard
        self.clock_offset_s = 0.0
        """Seconds by which the clock of this host is ahead of that of the server, as heartbeats measure it; 0
        if the clocks are close or hours apart, or if this process has no heartbeats."""
        self.lock_reports: Final = LockReports()
        self._acquire: Mapping[Route, Acquire] = {
            Route.DEDICATED: partial(connections.transaction, hot=True, savepoints=False),
            Route.POOL: connections.acquire,
            Route.RESERVED: partial(connections.acquire, reserved=True),
            Route.STEP: connections.step,
            Route.STICKY: connections.sticky,
            Route.STICKY_RESERVED: partial(connections.sticky, reserved=True),
            Route.TUNED: partial(
                connections.transaction,
                reserved=True,
                savepoints=False,
                lock_timeout_ms=SHARED_LOCK_TIMEOUT_MS,
            ),
        }

    @property
    def now(self) -> datetime | None:
        """The time in tests; None for the clock of the database."""
        return None if self.clock is None else self.clock.override()

    @property
    def server_now(self) -> datetime:
        """The time of the server, by the clock of this host and its offset."""
        now = datetime.now(UTC)
        return now - timedelta(seconds=self.clock_offset_s) if self.clock_offset_s else now

    @property
    def local_now(self) -> datetime:
        """The time in tests, else that of the server as far as this process knows it."""
        return self.now or self.server_now

    @property
    def author(self) -> Author:
        """The author of the changes of the caller, for the audit."""
        return current_author() or self.get_author()

    async def schema(self, *, on: Connection | None = None) -> str:
        """Return the schema of the tables."""
        if self._schema is None:
            if on is not None:
                with translated():
                    self._schema = await verification.home_schema(on)
            else:
                async with self.connections.acquire() as connection:
                    self._schema = await verification.home_schema(connection)
        return self._schema

    @property
    def known_schema(self) -> str | None:
        """The schema of the tables; None if none was configured and it was not looked up yet."""
        return self._schema

    def use_schema(self, schema: str) -> None:
        """Use the tables of this schema, which a start has looked up."""
        self._schema = schema

    async def _schema_for(self, name: str, on: Connection | None, route: Route | None) -> str:
        """Look up the schema for the first statement, on the connection that the statement then gets.

        That is possible if the connection is one that is kept for a moment: its pool resets it once for both.
        """
        routes = {Route.STICKY, Route.STICKY_RESERVED}
        if on is not None or (route or load_query(DEFAULT_SCHEMA, name).routes[0]) not in routes:
            return await self.schema(on=on)
        self.connections.check_loop()
        async with self.connections.sticky() as connection:
            self._schema = await verification.home_schema(connection)
        return self._schema

    async def channel(self, *, on: Connection | None = None) -> str:
        """Return the notification channel of the schema."""
        return channel_of(self._schema or await self.schema(on=on))

    async def query(self, name: str, *, on: Connection | None = None) -> Query:
        """Return a statement by name, with the schema of the tables in its text."""
        return load_query(self._schema or await self.schema(on=on), name)

    @asynccontextmanager
    async def transaction(
        self,
        *,
        within: Connection | Transaction | None = None,
        reserved: bool = True,
        savepoints: bool = True,
        lock_timeout_ms: int | None = None,
    ) -> AsyncIterator[Transaction]:
        """Yield a transaction for statements that belong together; publish its events after the commit.

        Within another transaction it is a savepoint, and its events are added to those of the transaction.
        Within a transaction of a caller it is a savepoint too, but its events are discarded: the library
        does not know whether the caller commits.

        Args:
            within: The outer transaction, or the connection of a caller in a transaction; None for neither.
            reserved: Whether it may use the dedicated connection, which must be for a short time.
            savepoints: Whether it may have savepoints; it begins in one round trip less without them.
            lock_timeout_ms: The longest wait for a lock, after which it fails; None for that of the session.

        Raises:
            ValueError: The transaction of the connection of a caller was begun by a statement.
        """
        events: list[Event] = []
        if within is not None:
            outer = within if isinstance(within, Transaction) else CallersTransaction(within, [])
            # A statement of the caller may have begun the transaction. Then asyncpg sets no savepoint in it.
            if outer is not within:
                check_savepoints(outer.connection)
            with translated():
                async with transact(outer.connection, self.call_timeout_s):
                    # The class shows whether the transaction is that of a caller.
                    yield type(outer)(outer.connection, events)
            outer.events.extend(events)
            return
        try:
            async with self.connections.transaction(
                reserved=reserved, savepoints=savepoints, lock_timeout_ms=lock_timeout_ms
            ) as connection:
                yield Transaction(connection, events)
        except DatabaseUnavailableError as fault:
            # The caller may run the transaction again.
            if is_queue_full(fault):
                await self._free_queue()
            raise
        for event in events:
            self.publish(event)

    async def fetch(
        self,
        name: str,
        *args: Any,
        on: Connection | None = None,
        route: Route | None = None,
        left_out: Collection[str] = (),
        only: Collection[str] = (),
        finds: bool = False,
        deletes: bool = False,
    ) -> list[asyncpg.Record]:
        """Run a statement and return its rows.

        Args:
            name: The name of the statement.
            args: Its arguments.
            on: The connection to use instead of that of the route.
            route: One of the statement's routes; None for the default.
            left_out: The rows that a claim or a change leaves out, or the names that an expiry leaves out.
            only: The only rows that it changes, if it is one of ``REFUSABLE``; empty for any. It is not given
                together with ``left_out``.
            finds: Whether it returns the keys of the rows that it is about to change, and changes none.
            deletes: Whether it deletes the jobs that it completes, if it is one of ``DELETING``.
        """
        schema = self._schema or await self._schema_for(name, on, route)
        query = load_query(schema, name)
        omits_record = query.is_recorded and not writes_records()
        # Without any of these, the statement has the text that was loaded above.
        if left_out or only or finds or deletes or omits_record:
            query = load_variant(
                schema,
                name,
                is_recorded=not omits_record,
                leaves_out=bool(left_out),
                deletes=deletes,
                selects=bool(only),
                finds=finds,
            )
        # The variant has one more parameter: the rows that it leaves out, or the only ones that it changes.
        if left_out or only:
            args = *args, list(left_out or only)
        if on is not None:
            try:
                return list(await on.fetch(query.text, *args, timeout=self.call_timeout_s))
            except Exception as error:
                raise_translated(error)
                raise
        if query.limits_wait and self.connections.limits_waits:
            # No statement that limits its wait is one of DELETING or REFUSABLE, so it has no other variants.
            limited = load_variant(
                schema, name, is_recorded=not omits_record, leaves_out=bool(left_out), is_limited=True
            )

            async def attempt(connection: Connection | None, _: str | None) -> list[asyncpg.Record]:
                # Without a connection, the statement sets its lock timeout itself. So the second parameter, a
                # lock timeout for statements that take it as an argument, is not used.
                if connection is None:
                    return await self._fetch_from(limited, args, route)
                with translated():
                    return list(await connection.fetch(query.text, *args, timeout=self.call_timeout_s))

            return await self.repeat_while_locked(name, attempt)
        return await self._fetch_from(query, args, route)

    async def _free_queue(self) -> None:
        """Let the server free the part of its queue of notifications that all sessions have read.

        The server itself frees it only when a session notifies, which fails while the queue is full. So a
        full queue stays full after the session that has kept it has ended.
        """
        with suppress(DatabaseUnavailableError, *REFUSALS):
            await self.fetch("free_queue")

    async def _fetch_from(
        self, query: Query, args: Sequence[Any], route: Route | None, *, is_repeated: bool = False
    ) -> list[asyncpg.Record]:
        """Run a statement on the connection of a route; None for the first one of its routes.

        If the server's queue of notifications is full, it is freed, and the statement runs once more.
        """
        route = route or query.routes[0]
        if route not in query.routes or route not in self._acquire:
            raise LookupError(f"statement {query.name!r} does not run on route {route.value!r}; pass on=")
        timeout_s = self._hot_timeout_s if query.timeout is Timeout.HOT else self.call_timeout_s
        try:
            if route is Route.DEDICATED:
                # Only services use it. They run in the event loop that start() has checked, so it is not
                # checked.
                async with self.connections.dedicated as dedicated_connection:
                    # If the pool cannot spare a connection, the statement runs in a transaction, as below.
                    if dedicated_connection is not None:
                        return list(await dedicated_connection.fetch(query.text, *args, timeout=timeout_s))
            self.connections.check_loop()
            # The shared connection needs no reset by a pool, so it is tried before the connection of the
            # route.
            if query.is_shareable and self._shared.is_free:
                with suppress(DatabaseUnavailableError):  # another connection may not have the problem
                    return await self._shared.fetch(query.text, *args)
            async with self._acquire[route]() as connection:
                return list(await connection.fetch(query.text, *args, timeout=timeout_s))
        except DatabaseUnavailableError as fault:
            if is_repeated or not is_queue_full(fault):
                raise
        await self._free_queue()
        return await self._fetch_from(query, args, route, is_repeated=True)

    def lock_retries(self, name: str) -> LockRetries:
        """Return what counts and delays the attempts of one call to get a lock; messages have this name."""
        return LockRetries(self.fetch, self.lock_reports, name, self.call_timeout_s)

    async def repeat_while_locked(
        self, name: str, attempt: Callable[[Connection | None, str | None], Awaitable[T]]
    ) -> T:
        """Run a single statement, and again while another transaction holds a lock that it needs.

        Between two attempts the call holds no connection.

        Args:
            name: The name of the statement, for messages.
            attempt: Runs the statement. The first call passes no connection, but the lock timeout that the
                statement itself sets; None for no limit. Later calls pass a connection, whose transaction
                has a lock timeout, and None.

        Raises:
            DatabaseUnavailableError: The lock was held until the time limit of the call.
        """
        if not self.connections.limits_waits:
            return await attempt(None, None)
        retries = self.lock_retries(name)
        try:
            return await attempt(None, f"{retries.lock_timeout_ms}ms")
        except DatabaseUnavailableError as fault:
            if not is_locked_out(fault):
                raise
            await retries.pause(fault)
        # From now on, another session can watch the transaction and find out which one holds the lock.
        while True:
            try:
                async with (
                    self.connections.transaction(
                        reserved=True, savepoints=False, lock_timeout_ms=retries.lock_timeout_ms
                    ) as connection,
                    retries.watching(connection),
                ):
                    return await attempt(connection, None)
            except DatabaseUnavailableError as fault:
                if not is_locked_out(fault):
                    raise
                await retries.pause(fault)

    async def fetch_retrying(
        self, name: str, *args: Any, on: Connection | None = None, route: Route | None = None
    ) -> list[asyncpg.Record]:
        """Fetch, and run the statement again after a deadlock, unless it is part of a transaction."""
        # A deadlock ends the whole transaction of ``on``, so its statement cannot run again alone.
        repeated_attempts = MAX_ATTEMPTS - 1 if on is None else 0
        for _ in range(repeated_attempts):
            try:
                return await self.fetch(name, *args, route=route)
            except DatabaseUnavailableError as fault:
                if not is_conflict(fault):
                    raise
        # The last attempt, or the only one within a transaction, raises its error.
        return await self.fetch(name, *args, on=on, route=route)

    async def run_retrying(
        self,
        run: Callable[[Transaction], Awaitable[T]],
        *,
        within: Connection | Transaction | None = None,
        reserved: bool = True,
        savepoints: bool = True,
    ) -> T:
        """Run statements in a transaction, and again after a deadlock or while another one holds a lock.

        They run again, too, if the server's queue of notifications was full, which ``transaction()`` frees.
        With ``within``, they run once, as a part of that transaction, and wait for locks as it does. The
        arguments are those of ``transaction()``.
        """
        if within is not None:
            async with self.transaction(within=within, savepoints=savepoints) as transaction:
                return await run(transaction)
        name = _name_of(run)
        retries = self.lock_retries(name)
        conflicts = 0
        while True:
            try:
                async with (
                    self.transaction(
                        reserved=reserved, savepoints=savepoints, lock_timeout_ms=retries.lock_timeout_ms
                    ) as transaction,
                    retries.watching(transaction.connection),
                ):
                    return await run(transaction)
            except DatabaseUnavailableError as fault:
                # pause() raises an error when the time limit of the call is over. So only the other faults
                # are counted.
                if is_lock_timeout(fault):
                    await retries.pause(fault)
                    continue
                conflicts += 1
                may_succeed = is_conflict(fault) or is_queue_full(fault)
                if not may_succeed or conflicts >= MAX_ATTEMPTS:
                    raise

    async def run_divided(
        self, job_ids: Collection[str], run: Callable[[Sequence[str], Transaction], Awaitable[None]]
    ) -> dict[str, Exception]:
        """Run statements for jobs in a transaction that waits for no lock for long.

        If the transaction fails because of a lock or a refused row, the jobs are divided into halves, each
        with a transaction of its own, until the jobs that cannot be changed are alone.

        Returns:
            The jobs that are left, with the errors: another transaction holds a lock, or the table refused a
            row.
        """
        parts = deque([list(job_ids)] if job_ids else [])
        remaining_jobs: dict[str, Exception] = {}
        lock_timeout_ms = LOCK_TIMEOUT_MS
        while parts:
            part = parts.popleft()
            try:
                async with self.transaction(lock_timeout_ms=lock_timeout_ms) as transaction:
                    await run(part, transaction)
            except (DatabaseUnavailableError, *REFUSALS) as error:
                if not may_be_of_one_change(error):
                    raise
                # Many parts may meet locks now, so each of them waits for a shorter time.
                lock_timeout_ms = DIVIDED_LOCK_TIMEOUT_MS
                if len(part) == 1:
                    remaining_jobs[part[0]] = error
                else:
                    parts += [part[: len(part) // 2], part[len(part) // 2 :]]
        return remaining_jobs

    async def write_before_commit(
        self, name: str, transaction: Transaction, write: Callable[[], Awaitable[T]]
    ) -> T:
        """Write what is committed with the open transaction of a job's code; give way to locks of others.

        The transaction holds the locks of the code and of the job. Suppose it needs a lock that another
        session holds. If it waited for that lock, and the other session for one of its locks, PostgreSQL
        would end one of the two. So each attempt to write is a savepoint with a short lock timeout. Its
        rollback releases the locks of the attempt, and keeps what the code has done.

        Args:
            name: What is written, for messages.
            transaction: The transaction. It has its own lock timeout again when this method returns.
            write: Writes it.

        Raises:
            DatabaseUnavailableError: The lock was held until the time limit of the call.
        """
        if not self.connections.limits_waits:
            return await write()
        connection, events = transaction.connection, transaction.events
        retries, event_count = self.lock_retries(name), len(events)
        while True:
            begin = f"{BEGIN_WRITE} SET LOCAL lock_timeout = {retries.lock_timeout_ms}"
            with translated():
                await connection.execute(begin, timeout=self.call_timeout_s)
            try:
                async with retries.watching(connection):
                    result = await write()
            except DatabaseUnavailableError as fault:
                if not is_lock_timeout(fault):
                    raise
                # What the attempt has written is undone, so its events must not be published.
                del events[event_count:]
                with translated():
                    await connection.execute(ROLL_BACK_WRITE, timeout=self.call_timeout_s)
                await retries.pause(fault)
            else:
                with translated():
                    await connection.execute(RESTORE_LOCK_TIMEOUT, timeout=self.call_timeout_s)
                return result

    async def value(self, name: str, *args: Any, on: Connection | None = None) -> Any:
        """Run a statement and return the first value of its first row, or None."""
        rows = await self.fetch(name, *args, on=on)
        return rows[0][0] if rows else None

    async def read_clock(self, *, on: Connection | None = None) -> datetime:
        """Return the time by the scheduler's clock, which is the database's outside of tests."""
        now: datetime = await self.value("clock", self.now, on=on)
        return now

    async def number(self, name: str, *args: Any, on: Connection | None = None) -> int:
        """Run a statement and return the number in the first column of its only row."""
        (row,) = await self.fetch(name, *args, on=on)
        return int(row[0])

    async def change(self, name: str, *args: Any, lock_timeout_ms: int | None = None) -> int:
        """Run a statement that returns no rows on a connection of the pool; return how many it changed.

        It fails if it waits for a lock longer than ``lock_timeout_ms``; None for the setting of the session.
        """
        query = await self.query(name)
        self.connections.check_loop()
        source = (
            self.connections.acquire()
            if lock_timeout_ms is None
            else self.connections.transaction(lock_timeout_ms=lock_timeout_ms)
        )
        async with source as connection:
            tag: str = await connection.execute(query.text, *args, timeout=self.call_timeout_s)
        # A tag ends with the number of rows, such as ``DELETE 3``.
        return int(tag.rpartition(" ")[2])

    async def execute(self, name: str, *, on: Connection) -> None:
        """Run a statement that takes no arguments and returns no rows."""
        query = await self.query(name, on=on)
        with translated():
            await on.execute(query.text, timeout=self.call_timeout_s)


class Repository:
    """Typed methods for the statements about one subject."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    async def _rows(
        self, kind: Callable[..., T], name: str, *args: Any, on: Connection | None = None
    ) -> list[T]:
        """Run a statement and return its rows as values of a class that has their columns in order."""
        return [kind(*row) for row in await self._statements.fetch(name, *args, on=on)]


def _name_of(run: Callable[..., object]) -> str:
    """Return the name of the method that runs statements, for messages."""
    while isinstance(run, partial):
        run = run.func
    # The name of a nested function begins with that of its method. An object that is no function has only the
    # name of its class.
    return getattr(run, "__qualname__", type(run).__name__).partition(".<locals>")[0]


def _discard(_event: Event) -> None:
    """Publish nothing. This is the default until a Scheduler sets ``publish``."""


def _user_of_this_host() -> Author:
    """Return this host as the author. This is the default until a Scheduler sets ``get_author``."""
    return Author(platform.node())
