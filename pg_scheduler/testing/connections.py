"""Run the statements of a Scheduler, and the code of its jobs, in the transaction of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from typing import Final, TypeAlias

import asyncpg

from pg_scheduler.database.callers.adapter import AnyConnection
from pg_scheduler.database.callers.connection import NO_TRANSACTION, as_foreign
from pg_scheduler.database.faults import sqlstate_of, translated
from pg_scheduler.database.pool import NO_CONNECTION, Connections
from pg_scheduler.database.session import Connection, check_connection, transact
from pg_scheduler.errors import NotRunningError
from pg_scheduler.steps.waits import calling_thread

ABORTED: Final = "25P02"
"""The SQLSTATE of a statement in a transaction that an earlier error has aborted."""

REJECTED_BY_DJANGO: Final = "TransactionManagementError"
"""The class of Django's error for a statement in an atomic block that an earlier error has broken."""

NO_SUCH_SAVEPOINT: Final = "3B001"

NO_TURN: Final = (
    "this step waits for another one in a transaction, which does not end: a test kit has one connection, so "
    "steps that run at once use it one after the other; test steps that wait for one another by TestScheduler"
)

_in_turn: ContextVar[OwnConnection | None] = ContextVar("pg_scheduler_kit_turn", default=None)
"""The connection whose turn this context has; None for none."""

Turn: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]

LOOK: Final = "pg_scheduler_look"
"""The savepoint that shows whether the connection is in a transaction."""

BEFORE: Final = "pg_scheduler_job"
"""The savepoint before the code of a job."""

AFTER: Final = "pg_scheduler_job_end"
"""The savepoint after the code of a job."""


class OwnConnection(Connections):
    """Gives all statements the connection of a test instead of one of a pool."""

    limits_waits = False  # a lock timeout would stay for the statements of the test

    def __init__(self, pool: asyncpg.Pool, connection: Connection) -> None:
        super().__init__(pool)
        self._connection = connection
        self.is_in_transaction = True
        """Whether the connection was in a transaction at the last look."""
        self._turn_lock = asyncio.Lock()

    @property
    def dedicated(self) -> AbstractAsyncContextManager[None]:
        """Yields None, so the statements of this route run on the connection of the test too."""
        return NO_CONNECTION

    def check_loop(self) -> None:
        """Do nothing: the owner of the connection decides where it can be used."""

    def check_thread(self) -> None:
        """Do nothing; see ``check_loop()``."""

    async def look(self) -> None:
        """Look whether the connection is in a transaction, which begins now unless autocommit is on.

        Raises:
            ValueError: It is one of asyncpg, and the transaction of the test has ended.
        """
        # It raises an error for a connection of asyncpg, on which each statement would be committed at once.
        check_connection(self._connection)
        async with self.turn():
            try:
                await self._connection.execute(f"SAVEPOINT {LOOK}")
            except Exception as error:
                if sqlstate_of(error) != NO_TRANSACTION:
                    raise
                self.is_in_transaction = False
                return
            await self._connection.execute(f"RELEASE SAVEPOINT {LOOK}")
            self.is_in_transaction = True

    async def check_call(self, connection: AnyConnection | None) -> Connection:
        """Return the connection that a caller passes, or the connection of the test if it is None."""
        return check_connection(connection) or self._connection

    @asynccontextmanager
    async def acquire(self, *, reserved: bool = False) -> AsyncIterator[Connection]:
        """Yield the connection of the test, and translate the errors of the block.

        Reserved statements are those of the worker, such as those of steps. They wait until no other step
        uses the connection. Calls of the application must not wait: one INSERT may write the jobs of calls in
        two steps, and it would wait for a step that waits for this INSERT.
        """
        async with self.turn() if reserved else nullcontext():
            with translated():
                yield self._connection

    # All of these yield the connection of the test.
    sticky = checkout_for_lock = acquire

    def step(self) -> AbstractAsyncContextManager[Connection]:
        """Yield the connection for a statement of a step."""
        return self.acquire(reserved=True)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Let the steps of a job that run at once use the connection one after the other.

        The function of a step that runs in a transaction may make calls: they belong to the turn of the step.
        The calls of a thread follow one another anyway, so they need no turn.

        Raises:
            NotRunningError: The turn of another step does not end.
        """
        previous_connection = _in_turn.get()
        # This code belongs to a step that has the turn, or is called by a thread.
        if previous_connection is self or calling_thread.get(None) is not None:
            yield
            return
        # A timer is needed only if another step has the lock.
        if self._turn_lock.locked():
            try:
                async with asyncio.timeout(self.options.call_timeout_s):
                    await self._turn_lock.acquire()
            except TimeoutError:
                raise NotRunningError(NO_TURN) from None
        else:
            await self._turn_lock.acquire()
        _in_turn.set(self)
        try:
            yield
        finally:
            _in_turn.set(previous_connection)
            self._turn_lock.release()

    @asynccontextmanager
    async def transaction_of_job(
        self,
        *,
        lock_timeout_ms: int | None = None,  # noqa: ARG002 - it would stay for the statements of the test
    ) -> AsyncIterator[Connection]:
        """Yield the connection within a savepoint.

        Raises:
            NotRunningError: The connection is not one of asyncpg.
        """
        if as_foreign(self._connection) is not None:
            raise NotRunningError(
                "the connection of this test kit is not one of asyncpg, so it runs no children and no "
                "steps.transaction(); test them by a TestScheduler, and pass connection= to completing()"
            )
        async with self.turn(), transact(self._connection, self.options.call_timeout_s):
            yield self._connection

    @asynccontextmanager
    async def transaction(
        self,
        *,
        hot: bool = False,  # noqa: ARG002 - every transaction is within that of the test
        reserved: bool = False,  # noqa: ARG002
        savepoints: bool = True,  # noqa: ARG002
        lock_timeout_ms: int | None = None,  # noqa: ARG002 - it would stay for the statements of the test
    ) -> AsyncIterator[Connection]:
        """Yield the connection within a savepoint; in a new transaction if it is in no transaction."""
        foreign = as_foreign(self._connection)
        with translated():
            # Connections of libraries other than asyncpg have their own way to make savepoints.
            if foreign is None:
                savepoint = transact(self._connection, self.options.call_timeout_s)
            else:
                savepoint = foreign.savepoint(begins=True)
            async with self.turn(), savepoint:
                yield self._connection

    admission = transaction

    async def release_held(self) -> None:
        """Do nothing: no connection is held."""


@asynccontextmanager
async def isolated(connection: Connection, turn: Turn) -> AsyncIterator[None]:
    """Run the code of a job within a savepoint, so that it cannot leave the transaction aborted.

    If a statement has aborted the transaction, all that the code has written is rolled back. Otherwise it
    stays, even if the job fails: the code decides by its own transactions what it rolls back.

    Args:
        connection: The connection of the test.
        turn: Waits for steps that use the connection, and keeps others from it within its block.
    """
    is_in_transaction = True
    try:
        await connection.execute(f"SAVEPOINT {BEFORE}")
    except Exception as error:
        # Outside of a transaction, no error can abort one, so no savepoint is needed.
        if sqlstate_of(error) != NO_TRANSACTION:
            raise
        is_in_transaction = False
    yield
    if is_in_transaction:
        # A task that the job has not awaited may be executing a statement of a step.
        async with turn():
            await _end_savepoint(connection)


async def _end_savepoint(connection: Connection) -> None:
    """Release the savepoint, if it still exists; roll back to it if the transaction is aborted.

    It does not exist any more if the code of the job has ended a savepoint around it. SQL cannot ask for
    that, and a RELEASE of a missing savepoint aborts the transaction. So a second savepoint precedes the
    RELEASE, and the transaction can be rolled back to that one.
    """
    try:
        await connection.execute(f"SAVEPOINT {AFTER}")
    except Exception as error:
        # Django raises an error of its own instead of executing a statement in an aborted transaction.
        if sqlstate_of(error) != ABORTED and type(error).__name__ != REJECTED_BY_DJANGO:
            raise
        await connection.execute(f"ROLLBACK TO SAVEPOINT {BEFORE}")
        await connection.execute(f"RELEASE SAVEPOINT {BEFORE}")
        return
    try:
        await connection.execute(f"RELEASE SAVEPOINT {BEFORE}")
    except Exception as error:
        if sqlstate_of(error) != NO_SUCH_SAVEPOINT:
            raise
        await connection.execute(f"ROLLBACK TO SAVEPOINT {AFTER}")
        await connection.execute(f"RELEASE SAVEPOINT {AFTER}")
