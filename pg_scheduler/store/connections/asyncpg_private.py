"""Every access to private attributes of asyncpg. asyncpg has no public way to do either of these."""

from __future__ import annotations

from typing import Any

import asyncpg

__all__ = ["connect_as_pool", "open_beside_pool"]


async def open_beside_pool(pool: asyncpg.Pool) -> asyncpg.Connection:
    """Open a connection as the pool opens its own, ``init`` included, without counting it there."""
    opened: Any = pool
    connection: asyncpg.Connection = await opened._get_new_connection()  # noqa: SLF001
    return connection


async def connect_as_pool(pool: asyncpg.Pool) -> asyncpg.Connection:
    """Connect to the server of the pool, with its arguments, in the event loop of the caller."""
    opened: Any = pool
    connect = getattr(opened, "_connect", asyncpg.connect)  # asyncpg 0.30 lets a pool bring its own
    connection: asyncpg.Connection = await connect(*opened._connect_args, **opened._connect_kwargs)  # noqa: SLF001
    return connection
