"""Access private attributes of asyncpg, which has no public API for these operations."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from typing import Any, Final, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from pg_scheduler.base.dsn import SOCKET_NAME, Address, address_parts, server_at, server_in

Hook: TypeAlias = Callable[[Any], Awaitable[Any]]
"""``init`` or ``setup`` of a pool."""

INTERVAL_OPTIONS: Final = ("TCP_KEEPIDLE", "TCP_KEEPALIVE", "TCP_KEEPINTVL")
"""Socket options in seconds. ``TCP_KEEPALIVE`` is the name of ``TCP_KEEPIDLE`` on macOS."""


def loop_of(pool: asyncpg.Pool) -> asyncio.AbstractEventLoop:
    """Return the event loop in which the pool was created."""
    untyped_pool: Any = pool
    loop: asyncio.AbstractEventLoop = untyped_pool._loop  # noqa: SLF001
    return loop


def is_initialized(pool: asyncpg.Pool) -> bool:
    """Return whether the pool was awaited."""
    untyped_pool: Any = pool
    return bool(untyped_pool._initialized)  # noqa: SLF001


def caches_statements(pool: asyncpg.Pool) -> bool:
    """Return whether the connections of the pool keep prepared statements, as they do by default."""
    untyped_pool: Any = pool
    return bool(untyped_pool._connect_kwargs.get("statement_cache_size") != 0)  # noqa: SLF001


def resets_as_usual(pool: asyncpg.Pool) -> bool:
    """Return whether the pool resets connections as asyncpg does, which keeps prepared statements.

    Its owner may have given it a ``reset=``, or a class of connections with methods of its own.
    """
    untyped_pool: Any = pool
    connection_class = untyped_pool._connection_class  # noqa: SLF001
    # asyncpg 0.29 has no reset=.
    return getattr(untyped_pool, "_reset", None) is None and all(
        getattr(connection_class, name) is getattr(asyncpg.Connection, name)
        for name in ("reset", "get_reset_query")
    )


def open_connections(pool: asyncpg.Pool) -> list[asyncpg.Connection]:
    """Return the connections that the pool has opened, idle and in use."""
    untyped_pool: Any = pool
    connections = [holder._con for holder in untyped_pool._holders]  # noqa: SLF001
    return [connection for connection in connections if connection is not None]


def open_transaction(connection: asyncpg.Connection | PoolConnectionProxy) -> object:
    """Return the object of the open transaction, False without one.

    It is True for a transaction that asyncpg did not begin, or that it is ending: these have no object.
    """
    untyped_connection: Any = connection
    if not untyped_connection.is_in_transaction():
        return False
    return untyped_connection._top_xact or True  # noqa: SLF001


def server_host(connection: asyncpg.Connection) -> str:
    """Return the host of the server, or the path of its socket."""
    untyped_connection: Any = connection
    # This is the path of a socket, or a host and a port.
    address = untyped_connection._addr  # noqa: SLF001
    return address if isinstance(address, str) else str(address[0])


def address_of(connection: asyncpg.Connection) -> Address | None:
    """Return where a connection leads; None if that is unknown."""
    untyped_connection: Any = connection
    host, params = server_host(connection), untyped_connection._params  # noqa: SLF001
    # The host may be the path of a socket, such as /run/postgresql/.s.PGSQL.5432.
    folder, is_socket, suffix = host.rpartition(SOCKET_NAME)
    # The server takes the name of the user for a missing name of a database.
    database = params.database or params.user
    if is_socket:
        return Address.of(folder, suffix, database)
    return Address.of(host, untyped_connection._addr[1], database)  # noqa: SLF001


def address_of_pool(pool: asyncpg.Pool) -> Address | None:
    """Return where the connections of a pool lead; None if that is unknown before the first connection."""
    if connections := open_connections(pool):
        return address_of(connections[0])
    untyped_pool: Any = pool
    if _has_own_connect(pool):
        return None
    parameters = address_parts(untyped_pool._connect_args[0] or "") | _address_arguments(pool)  # noqa: SLF001
    return Address.of(*(parameters.get(name) for name in Address._fields))


def server_of_pool(pool: asyncpg.Pool) -> str | None:
    """Return where a pool expects its server, for messages; None if that is unknown. See `server_at()`."""
    untyped_pool: Any = pool
    if _has_own_connect(pool):
        return None
    arguments = _address_arguments(pool)
    if not arguments.get("host"):
        return server_in(untyped_pool._connect_args[0], "the DSN of the pool")  # noqa: SLF001
    return server_at(arguments)


def _has_own_connect(pool: asyncpg.Pool) -> bool:
    """Return whether a pool has a connect= of its owner, which may connect to any address.

    It may have one since asyncpg 0.30.
    """
    return getattr(pool, "_connect", asyncpg.connect) is not asyncpg.connect


def _address_arguments(pool: asyncpg.Pool) -> dict[str, Any]:
    """Return the parts of an address among the arguments of create_pool(), which precede those of the DSN."""
    untyped_pool: Any = pool
    settings = untyped_pool._connect_kwargs  # noqa: SLF001
    return {name: settings[name] for name in Address._fields if settings.get(name)}


def has_address(pool: asyncpg.Pool) -> bool:
    """Return whether connections like those of the pool can be opened: its loop is open, or it has a DSN."""
    untyped_pool: Any = pool
    return not loop_of(pool).is_closed() or untyped_pool._connect_args[0] is not None  # noqa: SLF001


def opened_by_pool(connection: asyncpg.Connection | PoolConnectionProxy) -> asyncpg.Connection | None:
    """Return the connection behind the proxy that a pool makes for each use; None after the use.

    A connection that was opened directly is returned as it is.
    """
    untyped_connection: Any = connection
    opened: asyncpg.Connection | None = untyped_connection
    if isinstance(connection, PoolConnectionProxy):
        opened = untyped_connection._con  # noqa: SLF001
    return opened


def file_number(connection: asyncpg.Connection) -> int:
    """Return the file descriptor of the connection's socket, -1 if it is closed."""
    untyped_connection: Any = connection
    if connection.is_closed():
        return -1
    connection_socket = untyped_connection._transport.get_extra_info("socket")  # noqa: SLF001
    return -1 if connection_socket is None else int(connection_socket.fileno())


def count_free(pool: asyncpg.Pool) -> int:
    """Return the number of connections that the pool can hand out without waiting.

    ``get_size()`` does not tell: it leaves out connections that have ended while a job still holds them, and
    the pool hands out no others for those.
    """
    untyped_pool: Any = pool
    queue = untyped_pool._queue  # noqa: SLF001 - None until the pool is awaited
    return pool.get_max_size() if queue is None else int(queue.qsize())


async def open_beside_pool(pool: asyncpg.Pool) -> asyncpg.Connection:
    """Open a connection like the pool's own, with ``init`` and ``setup``, that the pool does not count."""
    untyped_pool: Any = pool
    connection: asyncpg.Connection = await untyped_pool._get_new_connection()  # noqa: SLF001 - it calls init
    return await _run_hooks(connection, untyped_pool._setup)  # noqa: SLF001


def copy_of(pool: asyncpg.Pool) -> asyncpg.Pool:
    """Return a pool of at most two connections like those of the pool, for the event loop of the caller."""
    untyped_pool: Any = pool
    settings = dict(untyped_pool._connect_kwargs) | classes_of(pool)  # noqa: SLF001
    settings |= {"init": untyped_pool._init, "setup": untyped_pool._setup}  # noqa: SLF001
    # Since asyncpg 0.30 the owner of a pool may give it a connect= of its own.
    if hasattr(untyped_pool, "_connect"):
        settings["connect"] = untyped_pool._connect  # noqa: SLF001
    create_pool: Any = asyncpg.create_pool
    copy: asyncpg.Pool = create_pool(*untyped_pool._connect_args, min_size=0, max_size=2, **settings)  # noqa: SLF001
    return copy


async def connect_as_pool(pool: asyncpg.Pool) -> asyncpg.Connection:
    """Connect to the server of the pool, with its arguments, in the event loop of the caller.

    ``connect`` runs in that loop, because the connection belongs to it. A callable ``password`` runs in the
    loop of the pool.
    """
    untyped_pool: Any = pool
    # Since asyncpg 0.30 the owner of a pool may give it a connect= of its own.
    connect: Any = getattr(untyped_pool, "_connect", asyncpg.connect)
    settings = dict(untyped_pool._connect_kwargs)  # noqa: SLF001
    if callable(password := settings.get("password")):
        settings["password"] = partial(_call_in, loop_of(pool), password)
    arguments = untyped_pool._connect_args  # noqa: SLF001
    connection: asyncpg.Connection = await connect(*arguments, **classes_of(pool), **settings)
    return connection


async def prepare_as_pool(pool: asyncpg.Pool, connection: asyncpg.Connection) -> asyncpg.Connection:
    """Call ``init`` and ``setup`` of the pool with a new connection, in the event loop of the caller."""
    untyped_pool: Any = pool
    return await _run_hooks(connection, untyped_pool._init, untyped_pool._setup)  # noqa: SLF001


def classes_of(pool: asyncpg.Pool) -> dict[str, Any]:
    """Return the classes of a pool, and the event loop of the caller, as arguments of asyncpg.connect()."""
    untyped_pool: Any = pool
    return {
        "loop": asyncio.get_running_loop(),
        "connection_class": untyped_pool._connection_class,  # noqa: SLF001
        "record_class": untyped_pool._record_class,  # noqa: SLF001
    }


async def _run_hooks(connection: asyncpg.Connection, *hooks: Hook | None) -> asyncpg.Connection:
    """Call the hooks of a pool with a connection, and return it; None for a hook that the pool lacks."""
    try:
        for hook in hooks:
            if hook is not None:
                await hook(connection)
    except BaseException:  # whatever it was, no caller has the connection to close it
        connection.terminate()
        raise
    return connection


async def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> Any:
    """Call a function in another event loop; return its result, or what awaiting it returns there."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_result_of(call), loop))


async def _result_of(call: Callable[[], Any]) -> Any:
    """Return the result of a function, or what awaiting it returns if the function is async."""
    result = call()
    return await result if isawaitable(result) else result


def local_port(connection: asyncpg.Connection | PoolConnectionProxy) -> int | None:
    """Return the TCP port of this end of the connection, None for a Unix-domain socket."""
    untyped_connection: Any = connection
    address = untyped_connection._transport.get_extra_info("sockname")  # noqa: SLF001
    return int(address[1]) if isinstance(address, tuple) else None


def probe_peer(connection: asyncpg.Connection | PoolConnectionProxy, interval_s: int, count: int) -> None:
    """Let the kernel close the connection when the server does not answer ``count`` probes.

    The socket keeps this setting after the connection has returned to its pool. A Unix-domain socket needs
    none, because it ends with the process of its peer.
    """
    untyped_connection: Any = connection
    tcp_socket: socket.socket = untyped_connection._transport.get_extra_info("socket")  # noqa: SLF001
    if tcp_socket.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name in INTERVAL_OPTIONS:
        if hasattr(socket, name):
            tcp_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), interval_s)
    tcp_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, count)
