"""Access private attributes of asyncpg, which has no public API for these operations."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

__all__ = ["connect_as_pool", "is_initialized", "loop_of", "open_beside_pool"]


def loop_of(pool: asyncpg.Pool) -> asyncio.AbstractEventLoop:
    """Return the event loop in which the pool was created."""
    created: Any = pool
    loop: asyncio.AbstractEventLoop = created._loop  # noqa: SLF001
    return loop


def is_initialized(pool: asyncpg.Pool) -> bool:
    """Return whether the pool was awaited."""
    created: Any = pool
    return bool(created._initialized)  # noqa: SLF001


async def open_beside_pool(pool: asyncpg.Pool) -> asyncpg.Connection:
    """Open a connection like the pool's own, including ``init``, that the pool does not count."""
    opened: Any = pool
    connection: asyncpg.Connection = await opened._get_new_connection()  # noqa: SLF001
    return connection


async def connect_as_pool(pool: asyncpg.Pool) -> asyncpg.Connection:
    """Connect to the server of the pool, with its arguments, in the event loop of the caller."""
    opened: Any = pool
    connect = getattr(opened, "_connect", asyncpg.connect)  # asyncpg 0.30 lets a pool bring its own
    connection: asyncpg.Connection = await connect(*opened._connect_args, **opened._connect_kwargs)  # noqa: SLF001
    return connection
