"""Check out connections for statements, transactions and long use, with a limit on each wait.

LISTEN and an advisory lock need a connection for long. It comes from ``direct_dsn`` if that is given (behind
PgBouncer it must be), else from the pool, if the pool can spare one.

A pool resets a connection at each release, which is one more transaction. Calls that follow one another share
one reset of a sticky connection, and so do the steps of jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from functools import partial
from types import TracebackType
from typing import ClassVar, Final, NamedTuple

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from pg_scheduler.base.dsn import server_in
from pg_scheduler.base.threads import resolve_at_once, resolve_in_threads
from pg_scheduler.database.asyncpg_private import (
    classes_of,
    connect_as_pool,
    count_free,
    local_port,
    loop_of,
    open_connections,
    prepare_as_pool,
    probe_peer,
    resets_as_usual,
    server_host,
    server_of_pool,
)
from pg_scheduler.database.callers.adapter import AnyConnection, asyncpg_connection_of
from pg_scheduler.database.callers.connection import as_foreign
from pg_scheduler.database.faults import (
    ENDED_DURING_CALL,
    ENDED_WHILE_IDLE,
    connecting,
    has_ended_during_call,
    raise_translated,
    reaching,
    reading_dsn,
    translated,
)
from pg_scheduler.database.fork import inherited_sockets
from pg_scheduler.database.held import DedicatedConnection
from pg_scheduler.database.opening import open_connection_to, probe_statements
from pg_scheduler.database.options import (
    ADMISSION_SETTINGS,
    DEDICATED_RESET,
    HELD_RESET,
    HOT_TRANSACTION_SETTINGS,
    MIN_FREE_CONNECTIONS,
    PROBE_INTERVAL_S,
    PROBED_TRANSACTION,
    PROBES,
    TRANSACTION_SETTINGS,
    ConnectionOptions,
    Settings,
)
from pg_scheduler.database.pool_database import PoolDatabase
from pg_scheduler.database.pool_share import PoolShare
from pg_scheduler.database.session import (
    POOL,
    Connection,
    check_connection,
    is_open,
    prepare_to_hold,
    release_to,
    take_from,
    terminate,
    terminate_unanswered,
    transact,
    transact_with,
)
from pg_scheduler.errors import (
    ConfigurationError,
    ConnectionLostError,
    ConnectionRejectedError,
    DatabaseUnavailableError,
)
from pg_scheduler.events.background import start_in_background

EXIT_TIMEOUT_S: Final = 10.0
"""Limit for what the end of the process writes."""

RELEASE_TIMEOUT_S: Final = 1.0
"""Seconds for which a shutdown waits for a call that uses a kept connection."""

DEFAULT_OPTIONS: Final = ConnectionOptions()

NO_CONNECTION: Final[AbstractAsyncContextManager[None]] = nullcontext()
"""The context manager of a route that has no connection."""

POOL_PER_STEP_CONNECTION: Final = 4
"""The connections of a pool for each one that is kept for steps, so jobs find most of them free."""

FOREIGN_LOOP: Final = (
    "the call comes from another event loop or thread than that of the pool; await it in the event loop that "
    "created the pool, from a thread with asyncio.run_coroutine_threadsafe(call, loop).result()"
)

UNSEEN_ENDS: Final = "two jobs that end together may not see each other's end"
"""What could happen at another isolation level than READ COMMITTED."""


class PoolUse(NamedTuple):
    """The numbers of connections of a pool: all that it has, those that are idle, and its maximum."""

    size: int
    idle: int
    max_size: int


class Connections:
    """Check out connections of the pool, and open connections outside of it.

    With ``shares``, the connections that are held for long are shared with others on the same pool.
    """

    limits_waits: ClassVar[bool] = True
    """Whether each statement runs in a transaction of its own, for which it may set a lock timeout."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        direct_dsn: str | None = None,
        *,
        keeper_dsn: str | None = None,
        options: ConnectionOptions = DEFAULT_OPTIONS,
        shares: bool = False,
    ) -> None:
        self.options: Final = options
        self.share: Final = (
            PoolShare.of(pool, direct_dsn, keeper_dsn, options) if shares else PoolShare(pool, options)
        )
        self._pool = pool
        self._database = PoolDatabase(pool, options.lease_timeout_s)
        self._loop: Final = loop_of(pool)
        resolve_in_threads(self._loop)
        self._direct_dsn = direct_dsn
        self._keeper_dsn = keeper_dsn
        # The settings whose DSNs have led to the database of the pool at least once.
        self._opened_dsns: set[str] = set()
        size = pool.get_max_size()
        self.dedicated_connection: Final = DedicatedConnection(self.share.held)
        # A connection is kept for the next call only if the pool has enough others.
        has_spare = size > MIN_FREE_CONNECTIONS + 2
        self.sticky_connection: Final = StickyConnection(pool, options) if has_spare else None
        self.admission_connection: Final = StickyConnection(pool, options) if has_spare else None
        step_connection_count = size // POOL_PER_STEP_CONNECTION if has_spare else 0
        self.step_connections: Final = tuple(
            StickyConnection(pool, options) for _ in range(step_connection_count)
        )
        # The connections that services use: one for statements. A large enough pool has one for LISTEN too,
        # and a still larger one has the dedicated connection.
        service_count = 1
        if size > MIN_FREE_CONNECTIONS:
            service_count += 1
        if size > MIN_FREE_CONNECTIONS + 1:
            service_count += 1
        # Bounds for the attempts that hold an advisory lock, and for the steps that get no kept connection.
        self._lock_holders = asyncio.Semaphore(max(size - service_count, 1))
        self._step_slots = asyncio.Semaphore(
            max(size - service_count - len(self.step_connections) - MIN_FREE_CONNECTIONS, 1)
        )

    @property
    def pool(self) -> asyncpg.Pool:
        """The user's pool."""
        return self._pool

    @property
    def dedicated(self) -> AbstractAsyncContextManager[Connection | None]:
        """The context manager of the route ``dedicated``, which yields the dedicated connection.

        It yields None where the pool cannot spare a connection, in the transaction of a test, and while
        another Scheduler on the same pool uses the connection, unless no other one is free.
        """
        dedicated_connection = self.dedicated_connection
        if dedicated_connection.is_taken and count_free(self._pool) > MIN_FREE_CONNECTIONS:
            return NO_CONNECTION
        return dedicated_connection

    @property
    def has_direct_dsn(self) -> bool:
        """Whether connections for long use come from a DSN of their own."""
        return self._direct_dsn is not None

    @property
    def can_spare_one(self) -> bool:
        """Whether one connection can be held for long without starving the statements."""
        return self._direct_dsn is not None or self._pool.get_max_size() > MIN_FREE_CONNECTIONS

    @property
    def can_open_lease_connection(self) -> bool:
        """Whether the lease connection may be opened: a DSN is given, or the pool is large enough."""
        return (
            bool(self._keeper_dsn or self._direct_dsn) or self._pool.get_max_size() > MIN_FREE_CONNECTIONS + 1
        )

    @property
    def can_hold_a_lock(self) -> bool:
        """Whether an attempt can hold a connection while heartbeats continue."""
        return self._direct_dsn is not None or self._pool.get_max_size() > 1

    @property
    def resets_as_usual(self) -> bool:
        """Whether the pool resets its connections as asyncpg does, which ends only settings."""
        return resets_as_usual(self._pool)

    def close_in_children(self) -> None:
        """Close the sockets of the pool and of connections outside of it in children forked from now on."""
        inherited_sockets.close_in_children(self)

    def run_at_exit(self, run: Callable[[Connection], Awaitable[None]]) -> None:
        """Run statements on a connection of their own, in an event loop of their own, as the process ends.

        The pool belongs to another event loop, which is closed by then.

        Raises:
            DatabaseUnavailableError: The server is unavailable.
            Exception: The error of a statement, or of a password that is read in the event loop of the pool.
        """

        async def run_on_own() -> None:
            resolve_at_once(asyncio.get_running_loop())
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                with translated(), connecting(POOL, partial(server_of_pool, self._pool)):
                    connection = await connect_as_pool(self._pool)
                try:
                    async with connection.transaction(isolation="read_committed"):
                        await connection.execute(TRANSACTION_SETTINGS)
                        await run(connection)
                finally:
                    connection.terminate()

        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(run_on_own())

    def open_connections(self) -> list[asyncpg.Connection]:
        """Return the open connections of the pool."""
        return open_connections(self._pool)

    def pool_use(self) -> PoolUse:
        """Return how many connections the pool has, and how many it may have."""
        return PoolUse(self._pool.get_size(), self._pool.get_idle_size(), self._pool.get_max_size())

    def server_host(self) -> str | None:
        """Return the host of the server, as the pool connected to it; None before its first connection."""
        connections = open_connections(self._pool)
        return server_host(connections[0]) if connections else None

    @property
    def is_in_loop(self) -> bool:
        """Whether the event loop of the pool runs the caller."""
        return asyncio.get_running_loop() is self._loop

    def check_loop(self) -> None:
        """Raise RuntimeError unless the event loop of the pool runs the caller."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(FOREIGN_LOOP)

    async def check_call(self, connection: AnyConnection | None) -> Connection | None:
        """Check the ``connection=`` of a call, and return it as statements use it; None stands for the pool.

        Raises:
            ConfigurationError: It leads to another database than the pool.
            RuntimeError: The event loop of the pool does not run the caller, and statements need it.
            TypeError: It is no connection, or that of a caller without asyncio.
            ValueError: It is an asyncpg connection that is not in a transaction.
        """
        # A connection of another library becomes a ForeignConnection here. Statements on it run without the
        # event loop of the pool.
        usable_connection = None if connection is None else check_connection(connection)
        needs_loop = usable_connection is None or as_foreign(usable_connection) is None
        if needs_loop:
            self.check_loop()
        # A connection that arrives as a ForeignConnection comes from an outer call of the library, which has
        # checked it.
        was_checked = as_foreign(connection) is not None
        if usable_connection is not None and not was_checked:
            await self._database.check_caller(connection, usable_connection)
        return usable_connection

    async def check_pooler(self) -> None:
        """Raise if prepared statements of the pool would fail later.

        Raises:
            ConfigurationError: The pool leads to a pooler in transaction mode, which loses the statements
                that the pool caches.
        """
        async with self.acquire() as connection:
            await probe_statements(self._pool, connection)

    def check_thread(self) -> None:
        """Raise RuntimeError unless the event loop of the pool runs the caller, or no loop runs at all."""
        try:
            running_loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running_loop = None
        if running_loop is self._loop:
            return
        # If no loop runs in this thread, that of the pool may run in another thread, and use the pool there
        # at the same time.
        if running_loop is not None or self._loop.is_running():
            raise RuntimeError(FOREIGN_LOOP)

    @asynccontextmanager
    async def acquire(self, *, reserved: bool = False) -> AsyncIterator[Connection]:
        """Yield a connection for a short use, and translate the errors of the block.

        Args:
            reserved: For statements of the scheduler itself. If jobs use up the pool, the statement does not
                wait for them: it runs on the dedicated connection, with its short lock timeout. A
                process that only enqueues has no such connection, and waits.
        """
        self.check_loop()
        if reserved and self._is_starved:
            async with self.dedicated_connection as dedicated_connection:
                if dedicated_connection is not None:
                    yield dedicated_connection
                    return
        try:
            connection = await take_from(self._pool, self.options.call_timeout_s)
            try:
                with terminate_unanswered(connection):
                    yield connection
            finally:
                await release_to(self._pool, connection, self.options.call_timeout_s)
        except Exception as error:
            raise_translated(error)
            raise  # an error that needs no translation

    def sticky(self, *, reserved: bool = False) -> AbstractAsyncContextManager[Connection]:
        """Yield a connection that the next call is likely to reuse; ``reserved`` as in ``acquire()``.

        If the pool has no connection to spare for that, it is an ordinary one.
        """
        if self.sticky_connection is None or (reserved and self._is_starved):
            return self.acquire(reserved=reserved)
        return self.sticky_connection

    def step(self) -> AbstractAsyncContextManager[Connection]:
        """Return what yields a connection for a step of a job; the next step is likely to reuse it.

        Each connection that is kept for steps serves one step at a time. If all are in use, or if jobs use up
        the pool, the step gets another connection.

        Steps that run at the same time wait for one another only if too few connections would be left for
        services, for example while a lock of the whole table of steps stops all of them.
        """
        for step_connection in self.step_connections:
            if not step_connection.is_in_use and not self._is_starved:
                return step_connection
        return self._acquire_for_step()

    @asynccontextmanager
    async def _acquire_for_step(self) -> AsyncIterator[Connection]:
        """Yield a connection of the pool for a step that gets none of those that are kept for steps.

        A semaphore bounds the number of such steps, so that they leave connections for the services.
        """
        with translated():
            async with asyncio.timeout(self.options.call_timeout_s):
                await self._step_slots.acquire()
        try:
            async with self.acquire(reserved=True) as connection:
                yield connection
        finally:
            self._step_slots.release()

    @asynccontextmanager
    async def transaction(
        self,
        *,
        hot: bool = False,
        reserved: bool = False,
        savepoints: bool = True,
        lock_timeout_ms: int | None = None,
    ) -> AsyncIterator[Connection]:
        """Yield a connection in a transaction with planner settings; ``reserved`` as in ``acquire()``.

        If this process is suspended within the block, the server ends the transaction and frees its locks.
        Without ``savepoints`` it begins in one round trip instead of two, and cannot have savepoints. If it
        waits for a lock longer than ``lock_timeout_ms``, it fails; None for the setting of the session.
        """
        timeout_s = self.options.hot_timeout_s if hot else self.options.call_timeout_s
        settings = HOT_TRANSACTION_SETTINGS if hot else TRANSACTION_SETTINGS
        if lock_timeout_ms is not None:
            settings = f"{settings}; SET LOCAL lock_timeout = {lock_timeout_ms}"
        if not savepoints:
            async with (
                self.acquire(reserved=reserved) as connection,
                transact_with(connection, settings, timeout_s),
            ):
                yield connection
            return
        async with self.acquire(reserved=reserved) as connection, transact(connection, timeout_s):
            with terminate_unanswered(connection):
                await connection.execute(settings, timeout=timeout_s)
                yield connection

    @asynccontextmanager
    async def admission(self) -> AsyncIterator[Connection]:
        """Yield a connection in a transaction that takes the locks of limits.

        Admissions follow one another, so each one uses the connection of the one before. That connection is
        returned to the pool only when no admission has followed for a moment.
        """
        sticky, timeout_s = self.admission_connection, self.options.hot_timeout_s
        # A small pool has no connection for admissions alone, and jobs may have used up a larger one.
        source = self.acquire(reserved=True) if sticky is None or self._is_starved else sticky
        async with source as connection, transact_with(connection, ADMISSION_SETTINGS, timeout_s):
            yield connection

    @asynccontextmanager
    async def checkout(self, *, direct: bool = True) -> AsyncIterator[Connection]:
        """Yield a connection with an unchanged session. Errors of the block stay untranslated.

        These errors may be those of a job. A session that holds something for others has to be prepared; see
        ``hold_session()``.

        Args:
            direct: Whether it comes from the ``direct_dsn`` if there is one, as for a session of its own.
        """
        connection = await self.take_session(direct=direct)
        try:
            yield connection
        finally:
            await self.give_back_session(connection)

    async def take_session(self, *, direct: bool = True) -> Connection:
        """Return a connection as ``checkout()`` does. The caller has to give it back."""
        self.check_loop()
        with translated():
            if self._direct_dsn is None or not direct:
                return await take_from(self._pool, self.options.call_timeout_s)
            return await self._connect_directly(self._direct_dsn)

    async def give_back_session(self, connection: Connection) -> None:
        """Release or close a connection that ``take_session()`` returned."""
        timeout_s = self.options.call_timeout_s
        # If the connection cannot be closed or released, the caller could not do anything about that.
        with suppress(DatabaseUnavailableError), translated():
            if isinstance(connection, PoolConnectionProxy):
                await release_to(self._pool, connection, timeout_s)
            else:
                await connection.close(timeout=timeout_s)

    def hold_session(self, settings: Settings = ()) -> AbstractAsyncContextManager[Connection | None]:
        """Yield a connection whose session keeps something for others, such as a lock, with settings.

        The server ends the session soon after this process or its network is gone, and not before, whatever
        limit a role has for idle sessions. Yield None behind a pooler: in transaction mode it has no such
        session, and its mode cannot be known.
        """
        return HeldSession(self, settings)

    @asynccontextmanager
    async def transaction_of_job(self, *, lock_timeout_ms: int | None = None) -> AsyncIterator[Connection]:
        """Yield a connection of the pool in a READ COMMITTED transaction, for the code of a job.

        Errors of the commit are translated. Errors of the block are not, unless the connection has ended. If
        the transaction waits for a lock longer than ``lock_timeout_ms``, it fails; None for the setting of
        the session.

        The code of a job may leave the transaction idle for long, so there is no limit for that. Instead both
        ends probe the other one, so that the locks do not outlive the machine of the job.
        """
        timeout_s = self.options.call_timeout_s
        settings = [] if lock_timeout_ms is None else [f"SET LOCAL lock_timeout = {lock_timeout_ms}"]
        async with self.checkout(direct=False) as connection:
            if local_port(connection) is not None:  # a Unix-domain socket ends with its process
                settings.append(PROBED_TRANSACTION)
            transaction = connection.transaction(isolation="read_committed")
            with translated(), terminate_unanswered(connection):
                async with asyncio.timeout(timeout_s):
                    await transaction.start()
            try:
                if settings:
                    with translated(), terminate_unanswered(connection):
                        probe_peer(connection, PROBE_INTERVAL_S, PROBES)
                        await connection.execute("; ".join(settings), timeout=timeout_s)
                yield connection
            except BaseException as error:  # roll back whatever happened, cancellation included
                # An error of the rollback would hide that of the block.
                with suppress(Exception), terminate_unanswered(connection):
                    async with asyncio.timeout(timeout_s):
                        await transaction.rollback()
                # The cause of a translated error is the error of asyncpg.
                source = error.__cause__ if isinstance(error, DatabaseUnavailableError) else error
                if isinstance(source, asyncpg.InterfaceError) and not is_open(connection):
                    # asyncpg has noticed the end of the connection, but its text is about a connection that
                    # was released to the pool, which is not the cause.
                    raise ConnectionLostError(ENDED_WHILE_IDLE) from error
                if has_ended_during_call(error):
                    raise ConnectionLostError(ENDED_DURING_CALL) from error
                raise
            with translated(), terminate_unanswered(connection):
                async with asyncio.timeout(timeout_s):
                    await transaction.commit()

    async def check_transaction(self, source: object) -> Connection:
        """Return the asyncpg connection of a caller, which must be in a READ COMMITTED transaction.

        Raises:
            ConfigurationError: It leads to another database than the pool.
            TypeError: It is not one of asyncpg, nor of SQLAlchemy on asyncpg.
            ValueError: It is not in a transaction, or its isolation level is not READ COMMITTED.
        """
        with translated():
            connection = await asyncpg_connection_of(source)
        await self.check_call(connection)
        await self.check_isolation(connection)
        return connection

    async def check_isolation(self, connection: Connection, consequence: str = UNSEEN_ENDS) -> None:
        """Raise ValueError unless the isolation level of a transaction is READ COMMITTED.

        ``consequence`` is what could happen at any other level, for the error.
        """
        with translated():
            level: str = await connection.fetchval(
                "SELECT pg_catalog.current_setting('transaction_isolation')",
                timeout=self.options.call_timeout_s,
            )
        if level != "read committed":
            raise ValueError(
                f"connection is in a transaction at the isolation level {level.upper()}; begin it at READ "
                f"COMMITTED: at any other one, {consequence}"
            )

    @asynccontextmanager
    async def checkout_for_lock(self) -> AsyncIterator[Connection]:
        """Yield a connection for an attempt that holds a lock, and keep enough of the pool free for services.

        Raises:
            ConfigurationError: The connection goes through a pooler.
        """
        async with AsyncExitStack() as stack:
            # Only a connection of the pool counts. One to the direct DSN takes none from the pool.
            if self._direct_dsn is None:
                await stack.enter_async_context(self._lock_holders)
            connection = await stack.enter_async_context(self.hold_session())
            if connection is None:
                raise ConfigurationError(
                    "an advisory lock cannot be held behind a pooler, such as PgBouncer in any mode: it "
                    "could stay in a session that others use; pass direct_dsn="
                )
            yield connection

    async def connect(self) -> Connection:
        """Open a connection outside of the pool, in the caller's event loop, with the hooks of the pool.

        It leads to the ``keeper_dsn`` if that is given, else to the ``direct_dsn``; without both, it leads to
        where the connections of the pool lead.
        """
        resolve_in_threads(asyncio.get_running_loop())
        dsn = self._keeper_dsn or self._direct_dsn
        if dsn:
            connection = await self._open(dsn, "keeper_dsn" if self._keeper_dsn else "direct_dsn")
        else:
            with reaching(POOL, partial(server_of_pool, self._pool)):
                connection = await inherited_sockets.open(partial(connect_as_pool, self._pool))
        return await prepare_as_pool(self._pool, connection)

    async def release_held(self) -> None:
        """Release the dedicated and the sticky connections.

        If a call still uses one after a second, perhaps because it waits for a lock, that connection returns
        to the pool after the call.
        """
        await self.dedicated_connection.release()
        for sticky in (self.sticky_connection, self.admission_connection, *self.step_connections):
            if sticky is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(RELEASE_TIMEOUT_S):
                        await sticky.release()

    async def _connect_directly(self, dsn: str) -> Connection:
        """Open a connection to the direct DSN, with the hooks of the pool."""
        timeout_s = self.options.call_timeout_s
        with connecting("direct_dsn", partial(server_in, dsn, "direct_dsn")):
            async with asyncio.timeout(timeout_s):
                connection = await self._open(dsn, "direct_dsn")
                return await prepare_as_pool(self._pool, connection)

    async def check_dsns(self) -> None:
        """Check once that the DSNs of settings lead to the database of the pool.

        One that is unavailable is not checked: the services report that, and connect later.

        Raises:
            ConfigurationError: One of them leads to another database.
        """
        self.check_loop()
        for dsn, name in ((self._direct_dsn, "direct_dsn"), (self._keeper_dsn, "keeper_dsn")):
            if dsn is not None:
                server = partial(server_in, dsn, name)
                with suppress(DatabaseUnavailableError), translated(), connecting(name, server):
                    async with asyncio.timeout(self.options.call_timeout_s):
                        connection = await self._open(dsn, name)
                    await connection.close(timeout=self.options.close_timeout_s)

    async def _open(self, dsn: str, name: str) -> asyncpg.Connection:
        """Open a connection to a DSN, and check that it leads to the database of the pool.

        If the same setting has worked before, a ConfigurationError counts as an outage: a file that the DSN
        names may be missing for a while, or another server may respond.
        """
        try:
            with reading_dsn(name):
                connection = await inherited_sockets.open(
                    partial(open_connection_to, dsn, name, **classes_of(self._pool))
                )
            try:
                await self._database.check_dsn(connection, name)
            except BaseException:
                terminate(connection)
                raise
        except ConfigurationError as error:
            if name in self._opened_dsns:
                raise ConnectionRejectedError(str(error)) from error
            raise
        self._opened_dsns.add(name)
        return connection

    @property
    def _is_starved(self) -> bool:
        """Whether jobs use up the pool, so that services run their statements on the dedicated connection."""
        return self.dedicated_connection.is_in_use and count_free(self._pool) == 0


class HeldSession(AbstractAsyncContextManager[Connection | None]):
    """Hold a session; see ``Connections.hold_session()``.

    A worker holds some until it stops. If they were asynchronous generators, ``asyncio.run()`` would close
    them at the end of a program without a shutdown, and Python would print errors about them.
    """

    def __init__(self, connections: Connections, settings: Settings) -> None:
        self._connections = connections
        self._settings = settings
        self._connection: Connection | None = None
        self._has_own_session = False

    async def __aenter__(self) -> Connection | None:
        self._connection = connection = await self._connections.take_session()
        timeout_s = self._connections.options.call_timeout_s
        try:
            with translated():
                ownership = await prepare_to_hold(connection, timeout_s, settings=self._settings)
            self._has_own_session = ownership.is_own
        except BaseException:  # a cancellation too
            await self._connections.give_back_session(connection)
            raise
        # Behind a pooler in transaction mode, the next transaction may run in another session.
        return connection if self._has_own_session else None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            is_of_pool = isinstance(connection, PoolConnectionProxy) and is_open(connection)
            # The pool resets the connection, unless its owner has given it a reset= of its own.
            if self._has_own_session and is_of_pool and not self._connections.resets_as_usual:
                timeout_s = self._connections.options.call_timeout_s
                with suppress(DatabaseUnavailableError), translated(), terminate_unanswered(connection):
                    await connection.execute(
                        DEDICATED_RESET if self._settings else HELD_RESET, timeout=timeout_s
                    )
        finally:
            await self._connections.give_back_session(connection)


class StickyConnection:
    """Yield one connection of the pool to one user at a time, and release it when idle.

    It is a class, because a context manager made of a generator is slower, and each ``schedule()`` passes
    here.
    """

    def __init__(self, pool: asyncpg.Pool, options: ConnectionOptions) -> None:
        self._pool = pool
        self._options = options
        self._turn = asyncio.Lock()
        self._connection: PoolConnectionProxy | None = None
        self._idle_at = 0.0
        """When the connection is to be released unless it is used again, by the clock of the event loop."""
        self._timer: asyncio.TimerHandle | None = None
        self.releasing: asyncio.Task[None] | None = None
        """The task that last began to release an idle connection."""

    @property
    def is_held(self) -> bool:
        """Whether a connection is out of the pool."""
        return self._connection is not None

    @property
    def is_in_use(self) -> bool:
        """Whether another user would have to wait."""
        return self._turn.locked()

    async def __aenter__(self) -> PoolConnectionProxy:
        await self._turn.acquire()
        try:
            if self._connection is None or not is_open(self._connection):
                # A connection that has ended is returned too, or the pool would count it as used for good.
                await self._return()
                self._connection = await take_from(self._pool, self._options.call_timeout_s)
        except BaseException as error:  # let the next user in
            self._turn.release()
            if isinstance(error, Exception):
                raise_translated(error)
            raise
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                loop = asyncio.get_running_loop()
                self._idle_at = loop.time() + self._options.sticky_idle_s
                # One timer serves many uses: when it fires, it starts again if there was another use
                # meanwhile.
                if self._timer is None:
                    self._timer = loop.call_at(self._idle_at, self._start_release)
                return
            # This raises the error as one of this library.
            with translated():
                # After any error, the next user gets a fresh connection.
                connection = self._connection
                # The statement may still run in the server, so such a connection cannot be reset.
                if connection is not None and isinstance(error, TimeoutError | asyncio.CancelledError):
                    terminate(connection)
                await self._return()
                raise error
        finally:
            self._turn.release()

    async def release(self) -> None:
        """Return the connection to the pool now."""
        async with self._turn:
            # The timer would start a task, perhaps when the event loop has ended.
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            with translated():
                await self._return()

    def _start_release(self) -> None:
        """Start the task that releases an idle connection; the timer calls this."""
        self.releasing = start_in_background(self._release_if_idle(), "pg_scheduler release")

    async def _release_if_idle(self) -> None:
        """Return the connection to the pool, or start the timer again if it was used in the meantime."""
        async with self._turn:
            loop = asyncio.get_running_loop()
            if loop.time() < self._idle_at and self._connection is not None:
                self._timer = loop.call_at(self._idle_at, self._start_release)
                return
            self._timer = None
            with suppress(DatabaseUnavailableError), translated():  # no caller waits; the pool closes it
                await self._return()

    async def _return(self) -> None:
        """Return the connection to the pool, if one is out of it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await release_to(self._pool, connection, self._options.call_timeout_s)
