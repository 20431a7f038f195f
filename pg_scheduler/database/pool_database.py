"""Recognise connections that lead to another database than the pool: those of callers, and to other DSNs.

A driver knows the address that it connected to, and mostly it is that of the pool. Behind a pooler, and by an
alias, another address may lead to the same database: then both sessions are asked, once for each address.

A liveness lock in another database protects no job, and a notification there wakes no worker. So a connection
to ``direct_dsn`` or ``keeper_dsn`` is asked each time, since its server may be replaced by another one.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import WeakSet

import asyncpg

from pg_scheduler.base.blocking import BlockingConnection
from pg_scheduler.base.dsn import Address
from pg_scheduler.base.sqlbuiltins import qualify_builtins
from pg_scheduler.database.asyncpg_private import (
    address_of_pool,
    connect_as_pool,
    has_address,
    server_of_pool,
)
from pg_scheduler.database.callers.adapter import address_of_link, link_of
from pg_scheduler.database.faults import connecting, translated
from pg_scheduler.database.fork import inherited_sockets
from pg_scheduler.database.session import POOL, Connection
from pg_scheduler.errors import ConfigurationError, DatabaseUnavailableError

IDENTITY: Final = qualify_builtins(
    """
SELECT pg_postmaster_start_time()::text AS server, oid::text AS id, datname AS name,
    coalesce(host(inet_server_addr()), 'a socket') AS host, current_setting('port') AS port
FROM pg_catalog.pg_database
WHERE datname = current_database()
"""
)
"""Reads what identifies a database, as any role may. No two servers have started at the same microsecond."""


RETRY_DELAY_S: Final = 60.0
"""Seconds in which no call asks a database again that was unavailable."""


class Database(NamedTuple):
    """A database as one of its sessions knows it.

    Attributes:
        server: When the server was started.
        id: The object id of the database.
        name: Its name.
        host: The address of the server.
        port: Its port.
    """

    server: str
    id: str
    name: str
    host: str
    port: str

    def is_same(self, other: Database) -> bool:
        """Return whether both are one database."""
        return (self.server, self.id) == (other.server, other.id)

    def __str__(self) -> str:
        return f"the database {self.name!r} of the server at {self.host}, port {self.port}"


class PoolDatabase:
    """Accepts the connections that lead to the database of a pool.

    Args:
        pool: The pool. If it can open no connection, it has no database, so all connections are accepted.
        timeout_s: Limit for connecting to its database, and for each query.
    """

    def __init__(self, pool: asyncpg.Pool, timeout_s: float) -> None:
        self._pool = pool
        self._has_database = has_address(pool)
        self._timeout_s = timeout_s
        # The connections of drivers, and their addresses, that were found to lead to the pool's database.
        self._links: WeakSet[Any] = WeakSet()
        self._addresses: set[Address] = set()
        # When the database of the pool may be asked again, by the monotonic clock.
        self._next_read_at = 0.0
        self._database: Database | None = None

    async def check_dsn(self, connection: Connection, name: str) -> None:
        """Check a connection to the DSN of a setting.

        Args:
            connection: The connection.
            name: The setting, for the error.

        Raises:
            ConfigurationError: It leads to another database.
            DatabaseUnavailableError: The database of the pool is unknown, and cannot be asked now.
        """
        if not self._has_database:
            return
        database = await self._identify(connection)
        if self._database is None or not database.is_same(self._database):
            # The pool is asked again, since its server may have been restarted or replaced in the meantime.
            self._database = await self._read_own()
        if not database.is_same(self._database):
            raise ConfigurationError(
                f"{name} leads to {database}, and the pool to {self._database}: locks and notifications of "
                f"the former do not reach the workers; pass a {name} that leads to the latter"
            )

    async def check_caller(self, original: object, connection: Connection) -> None:
        """Check a connection, and remember it and its address if they lead to the database of the pool.

        Args:
            original: What the caller passed.
            connection: What stands for it.

        Raises:
            ConfigurationError: It leads to another database.
        """
        if not self._has_database:
            return
        # The connection of a caller without asyncio is wrapped.
        source = original.connection if isinstance(original, BlockingConnection) else original
        with translated():
            # The connection of the driver, which leads to one database for all its life.
            link = await link_of(source)
            if link is None or link in self._links:
                return
            address = address_of_link(link)
        # An address whose connections were accepted before is accepted at once.
        if address is None or address not in self._addresses:
            # Another address than that of the pool may lead to the same database, as that of a pooler does.
            # So both sessions are asked for their database.
            if address is None or address != address_of_pool(self._pool):
                own_database = await self._database_of_pool(
                    is_blocking=isinstance(original, BlockingConnection)
                )
                # The database of the pool cannot be asked now. The connection is accepted, but its next call
                # checks it again.
                if own_database is None:
                    return
                self._check_is_same(await self._identify(connection), own_database)
            if address is not None:
                self._addresses.add(address)
        self._links.add(link)

    @staticmethod
    def _check_is_same(database: Database, own_database: Database) -> None:
        """Raise ConfigurationError unless both are one database."""
        if not database.is_same(own_database):
            raise ConfigurationError(
                f"connection leads to {database}, and this Scheduler to {own_database}; pass a connection to "
                "the latter, or use a Scheduler whose pool or DSN leads to the former"
            )

    async def _identify(self, connection: Connection) -> Database:
        """Ask a session for its database."""
        with translated():
            row, *_ = await connection.fetch(IDENTITY, timeout=self._timeout_s)
        return Database(*row)

    async def _database_of_pool(self, *, is_blocking: bool) -> Database | None:
        """Return the database of the pool; None if it cannot be asked now.

        It is asked on a new connection, because the caller may hold the last one of the pool. A blocking call
        within a coroutine cannot wait for such a connection, so it gets None.
        """
        if time.monotonic() < self._next_read_at or (is_blocking and _runs_event_loop()):
            return None
        try:
            if not is_blocking:
                return await self._read_own()
            # A blocking caller has no event loop, so the new connection gets one of its own.
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                return runner.run(self._read_own())
        except DatabaseUnavailableError:
            self._next_read_at = time.monotonic() + RETRY_DELAY_S
            return None

    async def _read_own(self) -> Database:
        """Return the database of the pool, as a new connection knows it."""
        with translated(), connecting(POOL, partial(server_of_pool, self._pool)):
            async with asyncio.timeout(self._timeout_s):
                connection = await inherited_sockets.open(partial(connect_as_pool, self._pool))
                try:
                    return await self._identify(connection)
                finally:
                    connection.terminate()


def _runs_event_loop() -> bool:
    """Return whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
