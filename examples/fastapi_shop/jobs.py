"""The jobs of the shop."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from pg_scheduler import job, periodic

from .database import Order, engine

__all__ = ["ask_for_review", "report", "send_invoice"]


@job(name="shop.send_invoice", max_retries=5)
async def send_invoice(number: int) -> None:
    """Send the invoice of an order. An attempt that is repeated sends the same one."""
    async with AsyncSession(engine) as session, session.begin():
        if order := await session.get(Order, number):
            order.invoice = f"{order.email}/{number}.pdf"


@job(name="shop.ask_for_review", misfire_grace_time=None)
async def ask_for_review(number: int) -> None:
    """Ask the customer for a review. No time is too late for that."""
    print("review of order", number, flush=True)


@periodic(cron="0 7 * * MON", timezone="Europe/Berlin", dedup_key="shop.report")
async def report() -> None:
    """Print the number of orders, on one of the nodes."""
    async with AsyncSession(engine) as session:
        print(await session.scalar(select(func.count(Order.number))), "orders", flush=True)
