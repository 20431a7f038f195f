"""The tests of the shop, each in a transaction that it rolls back. They need pytest-asyncio and httpx."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from httpx import ASGITransport, AsyncClient
from sqlalchemy.ext.asyncio import AsyncSession

from pg_scheduler import Scheduler
from pg_scheduler.integrations.fastapi import get_scheduler

from .app import app
from .database import URL, engine, get_session

ORDER = {"number": 7, "email": "ada@example.org"}


@pytest.fixture
async def session() -> AsyncIterator[AsyncSession]:
    """Yield the session of all requests of a test, whose commits release savepoints."""
    async with engine.connect() as connection, connection.begin() as transaction:
        async with AsyncSession(connection, join_transaction_mode="create_savepoint") as session:
            yield session
        await transaction.rollback()
    await engine.dispose()


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    """Yield a Scheduler that runs nothing."""
    async with Scheduler.connect(URL, start=False) as scheduler:  # glue: jobs in a test's transaction
        yield scheduler


@pytest.fixture
async def client(session: AsyncSession, scheduler: Scheduler) -> AsyncIterator[AsyncClient]:
    """Yield a client of the shop."""
    app.dependency_overrides[get_session] = lambda: session
    app.dependency_overrides[get_scheduler] = lambda: scheduler  # glue: jobs in a test's transaction
    async with AsyncClient(transport=ASGITransport(app), base_url="http://test") as client:
        yield client
    app.dependency_overrides.clear()


async def test_order_asks_for_a_review(
    client: AsyncClient, session: AsyncSession, scheduler: Scheduler
) -> None:
    """Place an order and find its job, in the transaction of the test."""
    assert (await client.post("/orders", json=ORDER)).status_code == 201
    assert (await client.get("/orders/7")).json() == {"email": "ada@example.org", "invoice": None}
    job = await scheduler.get_job("review:7", connection=session)
    assert job is not None
    assert (job.job_name, job.args, job.status) == ("shop.ask_for_review", (7,), "pending")


async def test_deleted_order_asks_for_none(client: AsyncClient) -> None:
    """Delete an order, which cancels its job."""
    await client.post("/orders", json=ORDER)
    assert (await client.delete("/orders/7")).json() is True
    assert (await client.get("/orders/7")).status_code == 404
