"""Connect by a DSN, for programs that have no pool of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import asyncpg

from pg_scheduler.store.faults import connecting, reading_dsn, translated

CONNECT_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 5.0
MAX_POOL_SIZE: Final = 2


@asynccontextmanager
async def open_connection(
    dsn: str | None, *, application_name: str
) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """Open a connection, and close it at the end.

    Errors of connecting, and those of the statements inside, are raised as errors of this library.

    Args:
        dsn: A URL; None for libpq's environment variables and files.
        application_name: The name in ``pg_stat_activity``.

    Raises:
        ConfigurationError: The DSN is invalid.
        ConnectionRejectedError: The server rejects the role, its password or the database.
        DatabaseUnavailableError: The server is unavailable.
    """
    with _opening():
        connection = await asyncpg.connect(dsn, **_options(application_name))
    try:
        with translated():
            yield connection
    finally:
        with translated():
            await connection.close(timeout=CLOSE_TIMEOUT_S)


@asynccontextmanager
async def open_pool(
    dsn: str | None, *, application_name: str, max_size: int = MAX_POOL_SIZE, is_pooled: bool = True
) -> AsyncIterator[asyncpg.Pool[asyncpg.Record]]:
    """Open a pool, and close it at the end. The parameters and errors are those of `open_connection()`.

    With ``is_pooled``, the DSN may lead to a pooler, which does not keep prepared statements.
    """
    with _opening():
        pool = await asyncpg.create_pool(
            dsn, min_size=1, max_size=max_size, **_options(application_name, is_pooled=is_pooled)
        )
    try:
        yield pool
    finally:
        with translated():
            await pool.close()


def _options(application_name: str, *, is_pooled: bool = True) -> dict[str, Any]:
    cache = {"statement_cache_size": 0} if is_pooled else {}
    return {
        "timeout": CONNECT_TIMEOUT_S,
        "server_settings": {"application_name": application_name},
        **cache,
    }


@contextmanager
def _opening() -> Iterator[None]:
    with translated(), connecting(), reading_dsn("the DSN"):
        yield
