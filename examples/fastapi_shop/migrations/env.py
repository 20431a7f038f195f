"""The environment of Alembic: the tables of the shop, and not those of pg_scheduler."""

from __future__ import annotations

import asyncio

from alembic import context
from sqlalchemy import Connection, NullPool
from sqlalchemy.ext.asyncio import create_async_engine

from examples.fastapi_shop.database import URL, Base
from pg_scheduler.integrations.alembic import ignore_scheduler_tables


def run(connection: Connection) -> None:
    """Run the command of Alembic on a connection."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        include_name=ignore_scheduler_tables(),  # glue: Alembic leaves the tables alone
    )
    with context.begin_transaction():
        context.run_migrations()


async def main() -> None:
    """Connect to the database of the shop."""
    engine = create_async_engine(URL, poolclass=NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(run)


asyncio.run(main())
