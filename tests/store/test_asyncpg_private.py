"""The private attributes of asyncpg that the store uses exist, and do what it needs.

The oldest and the newest supported asyncpg run this file: ``dev.py test --lowest`` and ``dev.py test``.
"""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from pg_scheduler.database.asyncpg_private import connect_as_pool, open_beside_pool, resets_as_usual
from tests.support.store import Pool


@pytest.mark.parametrize(
    "name",
    [
        "_get_new_connection",
        "_connect_args",
        "_connect_kwargs",
        "_connection_class",
        "_record_class",
        "_init",
        "_setup",
        "_queue",
    ],
)
def test_asyncpg_pool_has_the_private_attribute(name: str, pool: Pool) -> None:
    assert hasattr(pool, name), f"asyncpg {asyncpg.__version__} has changed"


async def test_open_beside_pool_runs_the_hooks_and_is_not_counted_in_the_pool(dsn: str) -> None:
    async def init(connection: asyncpg.Connection) -> None:
        await connection.execute("SET application_name = 'initialized'")

    async def setup(connection: Any) -> None:
        await connection.execute("SET search_path = elsewhere")

    hooks: Any = {"init": init, "setup": setup}
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1, **hooks) as pool, pool.acquire():
        connection = await open_beside_pool(pool)
        assert await connection.fetchval("SHOW application_name") == "initialized"
        assert await connection.fetchval("SHOW search_path") == "elsewhere"
        assert (pool.get_size(), pool.get_idle_size()) == (1, 0)
        await connection.close()


async def test_connect_as_pool_reaches_the_database_with_the_arguments_of_the_pool(dsn: str) -> None:
    settings = {"application_name": "as the pool"}
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1, server_settings=settings) as pool:
        connection = await connect_as_pool(pool)
        found = await connection.fetchrow("SELECT current_database(), current_setting('application_name')")
        assert found is not None
        assert tuple(found) == (await pool.fetchval("SELECT current_database()"), "as the pool")
        await connection.close()


class CarefulConnection(asyncpg.Connection):
    """A connection whose reset is its own."""

    def get_reset_query(self) -> str:
        """Return what a pool sends when it gets the connection back."""
        return "RESET ALL"


async def test_pool_with_a_reset_of_its_own_does_not_reset_as_usual(dsn: str, pool: Pool) -> None:
    assert resets_as_usual(pool)
    async with asyncpg.create_pool(dsn, min_size=0, connection_class=CarefulConnection) as other:
        assert not resets_as_usual(other)
