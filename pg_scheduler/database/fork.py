"""Close the sockets of the parent's connections in forked children.

The server ends a session when the last copy of its socket is closed. A forked child inherits copies, so a
killed worker's liveness lock, and its sessions, would last as long as the child. The child replaces each copy
by ``/dev/null`` and sends nothing: a Terminate message would end the session of the parent, and a
transport that still writes to the descriptor does no harm.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Final, Protocol
from weakref import WeakSet

import asyncpg

from pg_scheduler.base.fork import inheritance, replace_by_null
from pg_scheduler.database.asyncpg_private import file_number

MAX_OPENINGS: Final = 5
"""Connections opened in succession, if the process forks during each opening."""

CLOSE_TIMEOUT_S: Final = 5.0
"""Limit for closing a connection whose socket a child may have inherited."""


class ConnectionOwner(Protocol):
    """Has connections, and stands for a pool, because a pool of asyncpg cannot be referenced weakly."""

    def open_connections(self) -> list[asyncpg.Connection]:
        """Return the open connections."""


class InheritedSockets:
    """Finds the sockets that a forked child closes, in any thread of the parent."""

    def __init__(self) -> None:
        self._owners: WeakSet[ConnectionOwner] = WeakSet()
        self._connections_outside_pools: WeakSet[asyncpg.Connection] = WeakSet()
        self._fork_count = 0
        self._pid = os.getpid()
        self._is_registered = False

    def close_in_children(self, owner: ConnectionOwner) -> None:
        """Close the connections of an owner, and those outside of pools, in children forked from now on.

        A child that was forked without the hooks of Python, as under uWSGI, closes those of its parent now.
        """
        # This process is a child, and the hook has not closed the sockets: otherwise it had noted the new id.
        if self._pid != os.getpid():
            self.close()
        self._owners.add(owner)
        if not self._is_registered:
            self._is_registered = True
            inheritance.call_in_children(self.close, before=self.count_fork)

    async def open(self, connect: Callable[[], Awaitable[asyncpg.Connection]]) -> asyncpg.Connection:
        """Open a connection outside of the pool.

        A child that is forked meanwhile inherits a socket that is in no list yet, so the child cannot close
        it. Then this process closes the connection, and opens another one.
        """
        # How many connections were opened in this call.
        openings = 0
        while True:
            openings += 1
            count_before = self._fork_count
            connection = await connect()
            self._connections_outside_pools.add(connection)
            # A process that forks at each opening needs a connection too: it keeps the last one.
            if self._fork_count == count_before or openings == MAX_OPENINGS:
                return connection
            await connection.close(timeout=CLOSE_TIMEOUT_S)

    def count_fork(self) -> None:
        """Note that the process forks, so that ``open()`` notices a fork during an opening."""
        self._fork_count += 1

    def close(self) -> None:
        """Replace every socket by ``/dev/null``, in the child, and forget them."""
        self._pid = os.getpid()
        connections = [*self._connections_outside_pools]
        for owner in self._owners:
            connections += owner.open_connections()
        self._owners.clear()
        self._connections_outside_pools.clear()
        # A connection that is closed has the number -1.
        replace_by_null(number for number in map(file_number, connections) if number >= 0)


inherited_sockets: Final = InheritedSockets()
