"""How the store gets connections: from the user's pool, each use bounded in time.

A few uses need a connection of their own for long: LISTEN, and an advisory lock through a run. They get
it from ``direct_dsn`` when that is given (behind PgBouncer it must be), else from the pool, if the pool
has one to spare.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from types import TracebackType
from typing import Any, Final

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from pg_scheduler.errors import ConfigurationError, DatabaseUnavailableError, PoolClosedError
from pg_scheduler.store.faults import is_lock_timeout, translated

__all__ = [
    "CALL_TIMEOUT",
    "HOT_TIMEOUT",
    "Connections",
    "PoolConnection",
    "check_connection",
    "end",
    "is_open",
    "is_own_session",
    "transact",
]

CALL_TIMEOUT: Final = 30.0
"""Seconds one call, or the wait for a connection, may take: nothing here waits for ever."""

HOT_TIMEOUT: Final = 10.0
"""The same for claims and completions, which take milliseconds: a worker whose connection leads nowhere
stands still for so long. What was claimed all the same, unheard, comes back when its row's lease is over."""

SETTINGS: Final = (
    "SET LOCAL idle_in_transaction_session_timeout = '10s';"
    # A plan made while the table was small stays with the session; these make it one for any size.
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off"
)

KEEP: Final = 0.1
"""Seconds for which a connection that was just used is kept at hand."""

STEADY: Final = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
"""The same for a connection that is held: its statements are planned once, for a table of any size."""

LOCK_TIMEOUT: Final = "100ms"
"""How long the hot path waits for a row that somebody has locked."""

HOT_SETTINGS: Final = f"{SETTINGS}; SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"
STEADY_SETTINGS: Final = "; ".join(
    [*(f"SET {name} = {value}" for name, value in STEADY.items()), f"SET lock_timeout = '{LOCK_TIMEOUT}'"]
)
STEADY_RESET: Final = "; ".join(f"RESET {name}" for name in (*STEADY, "lock_timeout"))

FAREWELL: Final = 5.0
"""Seconds to give a connection back in order."""

ENDED: Final = "the connection was ended in the middle of a call"
"""What asyncpg says with an AttributeError when that happens between two steps of a call."""

SPARE: Final = 2
"""Connections that must be left in the pool when one is taken out of it for long."""

PoolConnection = Any
"""asyncpg.Connection or the pool's proxy of one; asyncpg's stubs have no common type."""


def check_connection(connection: object) -> PoolConnection | None:
    """A caller's connection, if it is one."""
    if connection is None or isinstance(connection, asyncpg.Connection | PoolConnectionProxy):
        return connection
    raise TypeError(  # its repr could be a DSN with a password
        f"connection must be an asyncpg connection, not {type(connection).__name__}"
    )


def check_pool(pool: asyncpg.Pool) -> None:
    """A pool that was closed never opens again: trying again would only hide it."""
    if pool.is_closing():
        raise PoolClosedError(
            "the pool has been closed, and the Scheduler needs it. Call await scheduler.shutdown() before "
            "pool.close()."
        )


def is_open(connection: PoolConnection) -> bool:
    """Whether a held connection lives. Of a broken one the pool leaves a proxy that refuses every call."""
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:
        return False


async def _connect(dsn: str) -> PoolConnection:
    try:
        return await asyncpg.connect(dsn, timeout=CALL_TIMEOUT)
    except ValueError as error:  # of reading it: the message, or that of its cause, may quote the password
        raise ConfigurationError(
            f"direct_dsn cannot be used ({type(error).__name__}). It looks like postgresql://user:password"
            "@host:5432/database, with every @, : and / of the password as %40, %3A and %2F."
        ) from None


async def is_own_session(connection: PoolConnection, timeout: float | None = None) -> bool:
    """Whether the connection's session is its own. A pooler's is not, and tells another process id."""
    greeted: int = connection.get_server_pid()
    told: int = await connection.fetchval("SELECT pg_backend_pid()", timeout=timeout or CALL_TIMEOUT)
    return told == greeted


def end(connection: PoolConnection) -> None:
    """Give up a connection that does not answer any more."""
    if is_open(connection):
        connection.terminate()


@asynccontextmanager
async def transact(connection: PoolConnection, timeout: float | None = None) -> AsyncIterator[None]:
    """A transaction, or a savepoint within one, whose every step is bounded: asyncpg's own are not."""
    timeout = timeout or CALL_TIMEOUT
    transaction = connection.transaction()
    # Not wait_for(): before its task's first step the connection may be ended, and asyncpg minds that.
    async with asyncio.timeout(timeout):
        await transaction.start()
    try:
        yield
    except BaseException:  # whatever it was, nothing of it is to stay
        if is_open(connection):
            async with asyncio.timeout(timeout):
                await transaction.rollback()
        raise
    async with asyncio.timeout(timeout):
        await transaction.commit()


@contextmanager
def _ended_if_silent(connection: PoolConnection) -> Iterator[None]:
    """Who gives no answer to a statement gives none to what would come after it, a reset or a ROLLBACK.

    Nor does whoever is cancelled wait for that: the server may be what it has lost patience with.
    """
    try:
        yield
    except (TimeoutError, DatabaseUnavailableError, asyncio.CancelledError) as error:
        if not isinstance(error, DatabaseUnavailableError) or isinstance(error.__cause__, TimeoutError):
            end(connection)
        raise
    except AttributeError as error:
        if is_open(connection):
            raise
        raise asyncpg.ConnectionDoesNotExistError(ENDED) from error


class Connections:
    """Connections for statements, for transactions and for long use.

    Args:
        pool: The user's pool.
        direct_dsn: Where to connect for long uses; None to take them from the pool.
        keeper_dsn: Where to connect beside the pool; None for ``direct_dsn``, or where the pool does.
    """

    def __init__(
        self, pool: asyncpg.Pool, direct_dsn: str | None = None, *, keeper_dsn: str | None = None
    ) -> None:
        self._pool = pool
        self._direct_dsn = direct_dsn
        self._keeper_dsn = keeper_dsn
        self._kept = _Kept(pool) if pool.get_max_size() > SPARE + 2 else None
        self._steady: PoolConnection | None = None
        self._steady_turn = asyncio.Lock()
        self._is_at_work = False  # from the first use of the hot path until what is held is given back
        self._sessions_are_own = False
        size = pool.get_max_size()
        self._may_hold_a_steady = size > SPARE + 1
        held = 1 + (size > SPARE) + self._may_hold_a_steady  # one to work, LISTEN, the hot path
        self._lock_holders = asyncio.Semaphore(max(size - held, 1))

    @property
    def can_spare_one(self) -> bool:
        """Whether a connection can be held for long without starving the statements."""
        return self._direct_dsn is not None or self._pool.get_max_size() > SPARE

    @property
    def can_open_lease_connection(self) -> bool:
        """Whether a connection beside the pool is in order: asked for, or the pool is not a small one."""
        return bool(self._keeper_dsn or self._direct_dsn) or self._pool.get_max_size() > SPARE + 1

    @property
    def can_hold_a_lock(self) -> bool:
        """Whether a run can keep a connection to itself while heartbeats go on."""
        return self._direct_dsn is not None or self._pool.get_max_size() > 1

    @asynccontextmanager
    async def acquire(self, *, own: bool = False) -> AsyncIterator[PoolConnection]:
        """A connection for a moment. Faults inside are translated.

        Args:
            own: For what the Scheduler itself must do. When jobs have used the pool up, it does not wait for
                them: it has the connection of the hot path, in turn. Its wait for locks is as short as there.
                A process that only enqueues has no such path, and waits.
        """
        if own and self._is_starved:
            async with self._in_turn() as held:
                if held is not None:
                    yield held
                    return
        with translated():
            check_pool(self._pool)
            async with self._pool.acquire(timeout=CALL_TIMEOUT) as connection:
                with _ended_if_silent(connection):
                    yield connection

    def kept(self, *, own: bool = False) -> AbstractAsyncContextManager[PoolConnection]:
        """A connection for a moment that is likely to be wanted again at once; ``own`` as in ``acquire()``.

        A pool resets a connection at each release, which is a transaction more. So it is given back only
        when it has not been wanted for a while, and has one user at a time. A pool with none to spare gives
        one each time.
        """
        if self._kept is None or (own and self._is_starved):
            return self.acquire(own=own)
        return self._kept

    @asynccontextmanager
    async def transaction(
        self, settings: str = SETTINGS, *, own: bool = False
    ) -> AsyncIterator[PoolConnection]:
        """A connection with a transaction that commits when the block ends well; ``own`` as in ``acquire()``.

        Should this process be frozen within it, the server ends it and frees its locks.
        """
        timeout = HOT_TIMEOUT if settings == HOT_SETTINGS else CALL_TIMEOUT
        async with self.acquire(own=own) as connection, transact(connection, timeout):
            with _ended_if_silent(connection):
                await connection.execute(settings, timeout=timeout)
                yield connection

    @asynccontextmanager
    async def steady(self) -> AsyncIterator[PoolConnection]:
        """The connection of the hot path, one user at a time.

        It is held between uses, since a pool resets a connection at each release, which is a transaction;
        and it keeps planner settings, which a pool would reset with it. A pool that cannot spare it gives a
        transaction each time instead, and so does one behind a pooler, where a session's settings would be
        left to somebody else. ``release_held()`` gives it back.
        """
        self._is_at_work = True
        async with self._in_turn() as connection:
            if connection is not None:
                yield connection
                return
        async with self.transaction(HOT_SETTINGS) as connection:
            yield connection

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[PoolConnection | None]:
        async with self._steady_turn:
            connection = await self._take_steady()
            if connection is None:
                yield None
                return
            try:
                with translated(), _ended_if_silent(connection):
                    yield connection
            except DatabaseUnavailableError as fault:  # what broke it may be over with another one
                if not is_lock_timeout(fault):
                    await self._drop_steady()
                raise

    async def release_held(self) -> None:
        """Give back the connection of the hot path, and the one that was just used."""
        async with self._steady_turn:
            self._is_at_work = False
            await self._drop_steady()
        if self._kept is not None:
            await self._kept.release()

    async def _take_steady(self) -> PoolConnection | None:
        check_pool(self._pool)  # its close() waits for what is held
        if self._steady is not None and is_open(self._steady):
            return self._steady
        await self._drop_steady()
        if not self._may_hold_a_steady or 0 < self._unused <= SPARE:
            return None
        with translated():
            self._steady = connection = await self._new_steady()
            try:
                if await is_own_session(connection, HOT_TIMEOUT):
                    await connection.execute(STEADY_SETTINGS, timeout=HOT_TIMEOUT)
                    return connection
            except BaseException:  # without its settings nobody may have it
                await self._drop_steady()
                raise
        self._may_hold_a_steady = False  # a pooler answers, and each transaction may be another session
        await self._drop_steady()
        return None

    async def _new_steady(self) -> PoolConnection:
        if self._is_used_up:  # one beside it, made as the pool makes its own
            pool: Any = self._pool
            async with asyncio.timeout(CALL_TIMEOUT):
                return await pool._get_new_connection()  # noqa: SLF001 - there is no public way
        return await self._pool.acquire(timeout=CALL_TIMEOUT)

    @property
    def _unused(self) -> int:
        pool = self._pool
        return pool.get_max_size() - pool.get_size() + pool.get_idle_size()

    @property
    def _is_used_up(self) -> bool:
        return self._unused == 0

    @property
    def _is_starved(self) -> bool:
        return self._is_at_work and self._is_used_up

    async def _drop_steady(self) -> None:
        connection, self._steady = self._steady, None
        if connection is None:
            return
        with suppress(DatabaseUnavailableError), translated():  # then it is closed all the same
            if not isinstance(connection, PoolConnectionProxy):
                await connection.close(timeout=FAREWELL)
                return
            try:
                if is_open(connection):  # the pool's own reset may be one that leaves settings alone
                    await connection.execute(STEADY_RESET, timeout=FAREWELL)
            finally:
                await self._pool.release(connection, timeout=FAREWELL)

    async def connect(self) -> PoolConnection:
        """A connection beside the pool, in the event loop of the caller, to the place the pool leads to."""
        if dsn := self._keeper_dsn or self._direct_dsn:
            return await asyncpg.connect(dsn)
        pool: Any = self._pool
        connect = getattr(pool, "_connect", asyncpg.connect)  # from asyncpg 0.30 on a pool may have its own
        # There is no public way to ask a pool where it connects to.
        return await connect(*pool._connect_args, **pool._connect_kwargs)  # noqa: SLF001

    @asynccontextmanager
    async def hold_for_a_lock(self) -> AsyncIterator[PoolConnection]:
        """The same for a whole run of a job, once that leaves the pool one for LISTEN and one to work.

        Raises:
            ConfigurationError: A pooler answers.
        """
        async with AsyncExitStack() as stack:
            if self._direct_dsn is None:
                await stack.enter_async_context(self._lock_holders)
            connection = await stack.enter_async_context(self.hold())
            if not self._sessions_are_own:
                with translated():
                    self._sessions_are_own = await is_own_session(connection)
                if not self._sessions_are_own:
                    raise ConfigurationError(
                        "an advisory lock cannot be held behind a pooler in transaction mode, such as "
                        "PgBouncer: it would stay with a session that others use. Pass direct_dsn=."
                    )
            yield connection

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[PoolConnection]:
        """A connection for long. What is raised inside is not translated: it may be a job's own error."""
        with translated():
            if self._direct_dsn is None:
                check_pool(self._pool)
            connection: PoolConnection = (
                await self._pool.acquire(timeout=CALL_TIMEOUT)
                if self._direct_dsn is None
                else await _connect(self._direct_dsn)
            )
        try:
            yield connection
        finally:
            with suppress(DatabaseUnavailableError), translated():  # then it is closed all the same
                if self._direct_dsn is None:
                    await self._pool.release(connection, timeout=CALL_TIMEOUT)
                else:
                    await connection.close(timeout=CALL_TIMEOUT)


class _Kept:
    """See ``Connections.kept()``. No generator but a class: each single ``schedule()`` passes here."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._turn = asyncio.Lock()
        self._connection: PoolConnection | None = None
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._giving_back: asyncio.Task[None] | None = None

    async def __aenter__(self) -> PoolConnection:
        await self._turn.acquire()
        try:
            if self._connection is None or not is_open(self._connection):
                with translated():
                    await self._give_back()
                    check_pool(self._pool)
                    self._connection = await self._pool.acquire(timeout=CALL_TIMEOUT)
        except BaseException:  # whatever it was, the next one has its turn
            self._turn.release()
            raise
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._stay()
                return
            with translated():
                # Whatever it was, the next one gets a connection that is known to be well.
                if isinstance(error, TimeoutError | asyncio.CancelledError):
                    end(self._connection)
                if isinstance(error, AttributeError) and not is_open(self._connection):
                    error = asyncpg.ConnectionDoesNotExistError(ENDED)
                await self._give_back()
                raise error
        finally:
            self._turn.release()

    async def release(self) -> None:
        """Give the connection back now."""
        async with self._turn:
            if self._timer is not None:  # it would start a task, perhaps when the loop has ended
                self._timer.cancel()
                self._timer = None
            with translated():
                await self._give_back()

    def _stay(self) -> None:
        loop = asyncio.get_running_loop()
        self._until = loop.time() + KEEP
        if self._timer is None:  # one for many uses: it looks when the last one was
            self._timer = loop.call_at(self._until, self._give_back_soon)

    def _give_back_soon(self) -> None:
        self._giving_back = asyncio.create_task(self._give_back_in_turn(), name="pg_scheduler give back")

    async def _give_back_in_turn(self) -> None:
        async with self._turn:
            loop = asyncio.get_running_loop()
            if loop.time() < self._until and self._connection is not None:
                self._timer = loop.call_at(self._until, self._give_back_soon)
            else:
                self._timer = None
                with (
                    suppress(DatabaseUnavailableError),
                    translated(),
                ):  # nobody waits for this one; the pool closes it
                    await self._give_back()

    async def _give_back(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._pool.release(connection, timeout=CALL_TIMEOUT)
