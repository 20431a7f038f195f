"""Read facts about the server and the connections to it, for the doctor."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, Final, NamedTuple

from pg_scheduler.database.faults import translated
from pg_scheduler.database.session import (
    Connection,
    is_own_session,
    terminate,
    terminate_unanswered,
    transact,
)
from pg_scheduler.database.statements import Repository
from pg_scheduler.errors import DatabaseUnavailableError

PINGS: Final = 5
MAX_HOLDERS: Final = 100
MAX_GROUPS: Final = 100
MAX_LOCKING: Final = 500

PRIVILEGES: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
"""The privileges on tables that every supported version of PostgreSQL has."""

_PROCESS_ID: Final = "SELECT pg_catalog.pg_backend_pid()"


class Ping(NamedTuple):
    """A round trip in seconds, and the seconds by which this machine's clock is ahead of the server's."""

    seconds: float
    ahead_s: float


class RoleRow(NamedTuple):
    """The role of the session.

    Attributes:
        name: The name of the role.
        database: The database of the session.
        sees_all: Whether the role may see the activity of other roles.
        is_superuser: Whether the role is a superuser.
    """

    name: str
    database: str
    sees_all: bool
    is_superuser: bool


class RightsRow(NamedTuple):
    """The rights of the role on a table.

    Attributes:
        is_owned: Whether the role has the rights of the owner of the table.
        may_create: Whether the role may create objects in the schema of the table.
        privileges: The privileges of the role on the table; none if it may not use the schema.
    """

    table: str
    is_owned: bool
    may_create: bool
    privileges: Sequence[str]


class HolderRow(NamedTuple):
    """Something that keeps dead rows: a transaction, a prepared one, a slot or a standby.

    Attributes:
        kind: ``transaction``, ``prepared``, ``slot``, ``inactive slot`` or ``standby``.
        subject: The process id, or the name of the prepared transaction or the slot.
        application: The application name of the session, or the owner of the prepared transaction.
        seconds: Its age; None if that is unknown.
        transactions: How many transactions have begun since then.
        statement: The start of its present or last statement; None if it has none, or if that is not visible.
    """

    kind: str
    subject: str
    application: str
    seconds: float | None
    transactions: int
    statement: str | None


class ConnectionRow(NamedTuple):
    """The number of connections of a role and an application."""

    role: str
    application: str
    connections: int


ONLY_SESSION_S: Final = 1.0
"""Seconds without a response after which a connection seems to wait for the only session of a pooler.

Another connection uses this session in a transaction then."""


class ServerRepository(Repository):
    """The statements about the server, and probes of the connections."""

    async def ping(self) -> Ping:
        """Return the fastest of five round trips, which measures the clocks best.

        The statement is prepared once, because a pool without a cache of statements would need two round
        trips each time. All run in one transaction, because a pooler could use another session for the next
        transaction, which does not have the prepared statement.
        """
        pings = []
        timeout_s = self._statements.call_timeout_s
        async with (
            self._statements.connections.acquire() as connection,
            transact(connection, timeout_s),
        ):
            query = await self._statements.query("server_clock", on=connection)
            statement = await connection.prepare(query.text, timeout=timeout_s)
            for _ in range(PINGS):
                sent_at = datetime.now(UTC)
                started_s = perf_counter()
                server_time: datetime = await statement.fetchval(timeout=timeout_s)
                round_trip_s = perf_counter() - started_s
                # The server has read its clock about halfway between the request and the response. At that
                # time, the clock of this machine showed half a round trip more than when it sent the request.
                ahead_s = (sent_at - server_time).total_seconds() + round_trip_s / 2
                pings.append(Ping(round_trip_s, ahead_s))
        # Pings are compared by their first field, the seconds.
        return min(pings)

    async def role(self) -> RoleRow:
        """Return the role of the pool's connections."""
        (row,) = await self._statements.fetch("server_role")
        return RoleRow(*row)

    async def rights(self, tables: Sequence[str]) -> list[RightsRow]:
        """Return what this role may do with these tables. A table that does not exist is left out."""
        schema = await self._statements.schema()
        return await self._rows(RightsRow, "server_rights", schema, list(tables), list(PRIVILEGES))

    async def holders(self) -> list[HolderRow]:
        """Return at most 100 transactions, slots and standbys that keep dead rows of this database."""
        return await self._rows(HolderRow, "server_holders", MAX_HOLDERS)

    async def notification_queue(self) -> float:
        """Return the share of the server's queue of notifications that is in use."""
        return float(await self._statements.value("server_notification_queue"))

    async def connections(self) -> list[ConnectionRow]:
        """Return the number of connections by role and application, the 100 largest groups."""
        return await self._rows(ConnectionRow, "server_connections", MAX_GROUPS)

    async def locking_schedules(self) -> int:
        """Count the schedules whose jobs hold an advisory lock, up to 500."""
        return await self._statements.number("server_locking_schedules", MAX_LOCKING)

    async def changes_session(self) -> bool | None:
        """Return whether the pool leads to a pooler in transaction mode; None if it has a single connection.

        While a second connection is in a transaction, such a pooler gives the first connection another
        session. If the pooler has a single session, the first connection gets none until that transaction
        ends.

        Raises:
            ConfigurationError: The prepared statement of the first connection does not exist in its new
                session.
            DatabaseUnavailableError: The second connection gets no session in time.
        """
        connections = self._statements.connections
        _size, _idle, max_size = connections.pool_use()
        # The probe needs two connections at once.
        if max_size < 2:
            return None
        timeout_s = self._statements.call_timeout_s
        async with connections.acquire() as first, connections.acquire() as second:
            first_process_id = await first.fetchval(_PROCESS_ID, timeout=timeout_s)
            with terminate_unanswered(second):
                async with transact(second, timeout_s):
                    return await _has_changed(first, first_process_id, second, timeout_s)

    async def receives_notification(self, timeout_s: float) -> bool | None:
        """Send a notification on a new channel, and return whether it arrives within this time.

        The connection that listens comes from where a worker would take it: from the direct DSN, or without
        one from the pool. The result is None if that is a pool with a single connection, which cannot also
        send.

        Raises:
            DatabaseUnavailableError: The connection that sends gets no session in time.
        """
        connections = self._statements.connections
        if not connections.can_hold_a_lock:
            return None
        # The name is random, so that no other examination uses the channel.
        channel = f"pg_scheduler_doctor_{secrets.token_hex(8)}"
        received = asyncio.Event()

        def receive(*_: Any) -> None:
            """Note that the notification has arrived. The arguments are not needed."""
            received.set()

        call_timeout_s = self._statements.call_timeout_s
        async with AsyncExitStack() as stack:
            stack.enter_context(translated())
            listener = await stack.enter_async_context(connections.checkout())
            sender = await stack.enter_async_context(connections.acquire())
            stack.enter_context(terminate_unanswered(sender))
            # If adding the listener fails, the server may listen nevertheless, so it is removed in any case.
            stack.push_async_callback(_forget, listener, channel, receive, call_timeout_s)
            await asyncio.wait_for(listener.add_listener(channel, receive), call_timeout_s)
            # A statement without parameters is not prepared, so no pooler can lose it.
            notify = f"SELECT pg_catalog.pg_notify('{channel}', 'doctor')"
            await sender.execute(notify, timeout=call_timeout_s)
            try:
                await asyncio.wait_for(received.wait(), timeout_s)
            except TimeoutError:
                return False
            return True

    async def has_own_session(self) -> bool:
        """Return whether a connection by which a worker would listen leads to the server itself."""
        connections, timeout_s = self._statements.connections, self._statements.call_timeout_s
        with translated():
            async with connections.checkout() as connection:
                return await is_own_session(connection, timeout_s)


async def _has_changed(
    first: Connection, previous_process_id: int, second: Connection, timeout_s: float
) -> bool:
    """Return whether the first connection gets another session while the second is in a transaction.

    Each session of the server has a process id, by which it is recognized. ``previous_process_id`` is that of
    the session which the first connection had before. ``timeout_s`` is the timeout of each statement.
    """
    # If the second connection has the session that the first one had, the pooler may have no other session.
    is_shared = await second.fetchval(_PROCESS_ID, timeout=timeout_s) == previous_process_id
    first_timeout_s = ONLY_SESSION_S if is_shared else timeout_s
    try:
        process_id = await first.fetchval(_PROCESS_ID, timeout=first_timeout_s)
    except TimeoutError:
        # The first connection waits for a session, so it cannot go back to the pool as it is.
        terminate(first)
        if not is_shared:
            raise
        # The second connection has the former session of the first one, and the pooler has no other.
        return True
    return bool(process_id != previous_process_id)


async def _forget(listener: Connection, channel: str, receive: Callable[..., None], timeout_s: float) -> None:
    """Stop listening before the connection goes back to its pool. Terminate it if that fails."""
    try:
        with translated():
            await asyncio.wait_for(listener.remove_listener(channel, receive), timeout_s)
    except DatabaseUnavailableError:
        terminate(listener)
