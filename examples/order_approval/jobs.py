"""The job of an order: its five steps, and what undoes them."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel

from pg_scheduler import Connection, current_job, job

from .services import Quote, charge, fetch_quote, send_mail

__all__ = ["APPROVAL_WITHIN", "Approval", "mail_customer", "process_order"]

APPROVAL_WITHIN = timedelta(days=7)


class Approval(BaseModel):
    """The decision of a person, which the webhook sends to the job."""

    by: str
    granted: bool


@job(name="orders.process", max_retries=8, timeout=60)
async def process_order(number: int, item: str) -> None:
    """Process an order from its quote to its receipt.

    If the payment service fails for longer than the retries last, the job is failed and the item stays
    reserved; ``retry_job()`` continues at the charge.
    """
    steps = current_job().steps
    quote = await steps.run("quote", fetch_quote, item)
    if not await steps.transaction("reserve", reserve, number, quote):
        return
    try:
        approval = await steps.wait("approval", timeout=APPROVAL_WITHIN, kind=Approval)
    except TimeoutError:
        await release(number, quote, "expired")
        return
    if not approval.granted:
        await release(number, quote, f"rejected by {approval.by}")
        return
    payment = await steps.run("charge", charge, quote.price, key=f"order-{number}")
    if payment is None:
        await release(number, quote, "declined")
        return
    await finish(number, payment)


async def reserve(connection: Connection, number: int, quote: Quote) -> bool:
    """Take the item of an order out of stock; return whether there was one."""
    taken = await connection.fetchval(
        "UPDATE stock SET count = count - 1 WHERE item = $1 AND count > 0 RETURNING true", quote.item
    )
    await connection.execute(
        "UPDATE orders SET status = $2, price = $3 WHERE number = $1",
        number,
        "reserved" if taken else "sold out",
        quote.price,
    )
    return taken is True


async def finish(number: int, payment: str) -> None:
    """Store the payment, have the receipt sent, and complete the job, in one commit."""
    me = current_job()
    async with me.completing() as connection:
        await connection.execute(
            "UPDATE orders SET status = 'paid', payment = $2 WHERE number = $1", number, payment
        )
        await me.scheduler.enqueue(
            mail_customer, args=(f"receipt of order {number}: {payment}",), connection=connection
        )


async def release(number: int, quote: Quote, status: str) -> None:
    """Put the item back, have the customer informed, and complete the job, in one commit."""
    me = current_job()
    async with me.completing() as connection:
        await connection.execute("UPDATE stock SET count = count + 1 WHERE item = $1", quote.item)
        await connection.execute("UPDATE orders SET status = $2 WHERE number = $1", number, status)
        await me.scheduler.enqueue(
            mail_customer, args=(f"order {number} is {status}",), connection=connection
        )


@job(name="orders.mail_customer", max_retries=8)
async def mail_customer(text: str) -> None:
    """Send a mail: at least once, as everything outside of the database."""
    await send_mail(text)
