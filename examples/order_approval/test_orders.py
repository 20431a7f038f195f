"""The tests of the service, by a virtual clock. They need pytest-asyncio and httpx."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from httpx import ASGITransport, AsyncClient

from pg_scheduler import Scheduler
from pg_scheduler.integrations.fastapi import get_scheduler
from pg_scheduler.testing import CrashReport, TestScheduler

from . import services
from .app import app
from .jobs import APPROVAL_WITHIN, Approval, process_order

SCHEMA = Path(__file__).with_name("schema.sql")
GRANTED, REJECTED = Approval(by="ann", granted=True), Approval(by="bob", granted=False)


async def create_tables(pool: asyncpg.Pool) -> None:
    """Create the tables of the service, and reset what stands for other services."""
    services.payments.clear()
    services.mails.clear()
    await pool.execute(SCHEMA.read_text(encoding="utf-8"))


@pytest.fixture
async def t(test_scheduler: Callable[[], TestScheduler]) -> AsyncIterator[TestScheduler]:
    """Yield a Scheduler whose clock the test moves."""
    async with test_scheduler() as t:
        await create_tables(t.pool)
        yield t


@pytest.fixture
async def client(t: TestScheduler) -> AsyncIterator[AsyncClient]:
    """Yield a client of the service."""
    app.dependency_overrides[get_scheduler] = lambda: t.scheduler
    async with AsyncClient(transport=ASGITransport(app), base_url="http://test") as client:
        yield client
    app.dependency_overrides.clear()


async def place(client: AsyncClient, number: int, item: str = "chair") -> None:
    """Place an order."""
    assert (await client.post("/orders", json={"number": number, "item": item})).status_code == 201


async def decide(client: AsyncClient, number: int, approval: Approval) -> Any:
    """Call the webhook; return its answer."""
    return (await client.post(f"/orders/{number}/approval", json=approval.model_dump())).json()


async def status_of(client: AsyncClient, number: int) -> Any:
    """Return the status of an order."""
    return (await client.get(f"/orders/{number}")).json()["status"]


async def in_stock(t: TestScheduler, item: str = "chair") -> Any:
    """Return how many pieces of an item are left."""
    return await t.pool.fetchval("SELECT count FROM stock WHERE item = $1", item)


async def test_approved_order_is_charged_and_the_customer_gets_a_receipt(
    client: AsyncClient, t: TestScheduler
) -> None:
    """Approve after a day: meanwhile the item is reserved and nothing is charged."""
    await place(client, 7)
    await t.run_until(timedelta(days=1))
    assert (await status_of(client, 7), await in_stock(t), services.payments) == ("reserved", 1, {})
    assert await decide(client, 7, GRANTED) is True
    await t.drain()
    assert (await client.get("/orders/7")).json() == {
        "number": 7,
        "item": "chair",
        "status": "paid",
        "price": 40,
        "payment": "payment of order-7",
    }
    assert (await in_stock(t), services.payments) == (1, {"order-7": 40})
    assert services.mails == ["receipt of order 7: payment of order-7"]


async def test_rejected_order_puts_its_item_back(client: AsyncClient, t: TestScheduler) -> None:
    """Reject, then approve: the first decision counts."""
    await place(client, 7)
    await t.drain()
    assert await decide(client, 7, REJECTED) is True
    assert await decide(client, 7, GRANTED) is False
    await t.drain()
    assert (await status_of(client, 7), await in_stock(t)) == ("rejected by bob", 2)
    assert (services.payments, services.mails) == ({}, ["order 7 is rejected by bob"])


async def test_order_expires_when_no_decision_comes(client: AsyncClient, t: TestScheduler) -> None:
    """Wait for longer than an approval may take; the webhook is too late then."""
    await place(client, 7)
    await t.run_until(APPROVAL_WITHIN + timedelta(minutes=1))
    assert (await status_of(client, 7), await in_stock(t)) == ("expired", 2)
    assert await decide(client, 7, GRANTED) is False


async def test_decision_may_come_before_the_job_has_started(client: AsyncClient, t: TestScheduler) -> None:
    """Approve before a worker has claimed the job."""
    await place(client, 7)
    assert await decide(client, 7, GRANTED) is True
    await t.drain()
    assert await status_of(client, 7) == "paid"


async def test_declined_payment_puts_the_item_back(client: AsyncClient, t: TestScheduler) -> None:
    """Order what the card cannot pay."""
    await place(client, 7, "piano")
    await t.drain()
    await decide(client, 7, GRANTED)
    await t.drain()
    assert (await status_of(client, 7), await in_stock(t, "piano")) == ("declined", 1)


async def test_last_piece_is_sold_once(client: AsyncClient, t: TestScheduler) -> None:
    """Order two of what there is one of."""
    await place(client, 1, "piano")
    await place(client, 2, "piano")
    await t.drain()
    assert [await status_of(client, number) for number in (1, 2)] == ["reserved", "sold out"]


async def test_unknown_order_is_not_found(client: AsyncClient) -> None:
    """Decide about an order, and read one, that does not exist."""
    assert (await client.post("/orders/8/approval", json=GRANTED.model_dump())).status_code == 404
    assert (await client.get("/orders/8")).status_code == 404


def decides(approval: Approval) -> Callable[[Scheduler], Awaitable[bool]]:
    """Return the webhook's call for `crash_everywhere`."""
    return lambda scheduler: scheduler.signal("order:7", "approval", approval)


async def arrange(pool: asyncpg.Pool) -> None:
    """Place an order; `crash_everywhere` schedules its job."""
    await create_tables(pool)
    await pool.execute("INSERT INTO orders VALUES (7, 'chair')")


async def observe(pool: asyncpg.Pool) -> Any:
    """Return all effects. Mails are sent at least once, so only their texts count."""
    return [
        *await pool.fetch("SELECT * FROM orders"),
        *await pool.fetch("SELECT * FROM stock ORDER BY item"),
        await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE job_name = 'orders.mail_customer'"),
        dict(services.payments),
        set(services.mails),
    ]


@pytest.mark.parametrize(
    ("approval", "charges"), [(GRANTED, 2), (REJECTED, 0), (None, 0)], ids=["granted", "rejected", "expired"]
)
async def test_order_ends_in_the_same_way_wherever_its_worker_crashes(
    crash_everywhere: Callable[..., Awaitable[CrashReport]], approval: Approval | None, charges: int
) -> None:
    """Crash before and after each statement; quote and charge are called twice at most."""
    report = await crash_everywhere(
        process_order,
        args=(7, "chair"),
        job_id="order:7",
        arrange=arrange,
        observe=observe,
        at={timedelta(days=2): decides(approval)} if approval else {},
        until=APPROVAL_WITHIN + timedelta(hours=1),
    )
    assert report.points > 40
    assert (report.most(services.fetch_quote), report.most(services.charge)) == (2, charges)
