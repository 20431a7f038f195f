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
from pg_scheduler.database.pool import Connections
from pg_scheduler.database.session import Connection, check_connection, transact
from pg_scheduler.errors import NotRunningError
from pg_scheduler.steps.waits import calling_thread

ABORTED: Final = "25P02"
REJECTED_BY_DJANGO: Final = "TransactionManagementError"
"""The class of the error of a statement in an atomic block that an error of another one has broken."""

NO_SUCH_SAVEPOINT: Final = "3B001"

NO_TURN: Final = (
    "this step waits for another one in a transaction, which does not end: a test kit has one connection, so "
    "steps that run at once use it one after the other; test steps that wait for one another by TestScheduler"
)

_in_turn: ContextVar[OwnConnection | None] = ContextVar("pg_scheduler_kit_turn", default=None)
"""The connection that the steps of this context use."""

Turn: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]

BEFORE: Final = "pg_scheduler_job"
"""The savepoint before the code of a job."""

AFTER: Final = "pg_scheduler_job_end"
"""The savepoint after it."""


class OwnConnection(Connections):
    """Gives all statements the connection of a test instead of one of a pool."""

    limits_waits = False  # a lock timeout would stay for the statements of the test

    def __init__(self, pool: asyncpg.Pool, connection: Connection) -> None:
        super().__init__(pool)
        self._connection = connection
        self._steps = asyncio.Lock()
        self.dedicated = nullcontext()

    def check_loop(self) -> None:
        """Do nothing: the owner of the connection decides where it can be used."""

    def check_thread(self) -> None:
        """Do nothing; see ``check_loop()``."""

    async def check_call(self, connection: AnyConnection | None) -> Connection:
        """Return the connection of a caller for statements, which may be this one."""
        return check_connection(connection) or self._connection

    @asynccontextmanager
    async def acquire(self, *, reserved: bool = False) -> AsyncIterator[Connection]:
        """Yield the connection, and translate the errors of the block.

        The reserved statements are those of the worker, such as those of steps. Calls of the application have
        no turn: one within the transaction of a step may be inserted together with that of another step.
        """
        async with self.turn() if reserved else nullcontext():
            with translated():
                yield self._connection

    sticky = checkout_for_lock = acquire

    def step(self) -> AbstractAsyncContextManager[Connection]:
        """Yield the connection for a statement of a step."""
        return self.acquire(reserved=True)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Let the steps of a job that run at once use the connection one after the other.

        What the function of a step in a transaction calls belongs to its turn. The calls of a thread follow
        one another anyway.

        Raises:
            NotRunningError: The turn of another step does not end.
        """
        previous_connection = _in_turn.get()
        if previous_connection is self or calling_thread.get(None) is not None:
            yield
            return
        if self._steps.locked():
            try:
                async with asyncio.timeout(self.options.call_timeout_s):
                    await self._steps.acquire()
            except TimeoutError:
                raise NotRunningError(NO_TURN) from None
        else:
            await self._steps.acquire()
        _in_turn.set(self)
        try:
            yield
        finally:
            _in_turn.set(previous_connection)
            self._steps.release()

    @asynccontextmanager
    async def transaction_of_job(
        self,
        *,
        lock_timeout_ms: int | None = None,  # noqa: ARG002 - it would stay for the statements of the test
    ) -> AsyncIterator[Connection]:
        """Yield the connection within a savepoint.

        Raises:
            NotRunningError: It is not one of asyncpg.
        """
        if as_foreign(self._connection) is not None:
            raise NotRunningError(
                "the connection of this test kit is not one of asyncpg; pass connection= to completing()"
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
        """Yield the connection within a savepoint, or in a transaction if it is in none."""
        foreign = as_foreign(self._connection)
        with translated():
            async with (
                self.turn(),
                transact(self._connection, self.options.call_timeout_s)
                if foreign is None
                else foreign.savepoint(begins=True),
            ):
                yield self._connection

    admission = transaction

    async def release_held(self) -> None:
        """Do nothing: no connection is held."""


@asynccontextmanager
async def isolated(connection: Connection, turn: Turn) -> AsyncIterator[None]:
    """Run the code of a job within a savepoint, and roll it back if a statement has aborted the transaction.

    Otherwise what the code has written stays, also after an error: whether it is rolled back is up to the
    transactions of the code. One of these may have ended a savepoint around this one, and this one with it.
    A savepoint cannot be looked up, so another one guards its release.
    """
    is_in_transaction = True
    try:
        await connection.execute(f"SAVEPOINT {BEFORE}")
    except Exception as error:
        if sqlstate_of(error) != NO_TRANSACTION:
            raise
        is_in_transaction = False
    yield
    if is_in_transaction:
        # A task that the job has left may be executing a statement of a step.
        async with turn():
            await _end_savepoint(connection)


async def _end_savepoint(connection: Connection) -> None:
    try:
        await connection.execute(f"SAVEPOINT {AFTER}")
    except Exception as error:
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
