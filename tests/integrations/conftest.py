"""Helpers of several modules: the migrated database for SQLAlchemy."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine


def url_of(dsn: str) -> str:
    """Return the URL for SQLAlchemy."""
    return dsn.replace("postgresql://", "postgresql+asyncpg://", 1)


@pytest.fixture
async def connection(dsn: str) -> AsyncIterator[AsyncConnection]:
    """A connection of SQLAlchemy to the migrated database."""
    engine = create_async_engine(url_of(dsn))
    async with engine.connect() as connection:
        yield connection
    await engine.dispose()
