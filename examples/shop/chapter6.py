import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from fastapi import FastAPI, HTTPException

from pg_scheduler import (
    ConflictResolution,
    JobNotFoundError,
    Limit,
    RetryPolicy,
    Scheduler,
    Unique,
    current_job,
    job,
)
from pg_scheduler.integrations.fastapi import SchedulerDep
from pg_scheduler.triggers import Cron

ORDERS = "CREATE TABLE IF NOT EXISTS orders (number serial PRIMARY KEY, email text, total int)"
INSERT = "INSERT INTO orders (email, total) VALUES ($1, $2) RETURNING number"
NETWORK = RetryPolicy(base=timedelta(seconds=5), only=(OSError,))
MAILS = Limit("mails", max_starts=2, per=timedelta(seconds=10))


async def send_mail(email: str, text: str) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", 2525)
    writer.write(f"to {email}: {text}".encode())
    writer.close()
    await writer.wait_closed()


@job(max_retries=2, retry=NETWORK, limits=[MAILS], unique=Unique(args=("order",)))
async def send_receipt(order: int, email: str) -> None:
    await send_mail(email, f"receipt for order {order}")


@job(max_retries=2, retry=NETWORK, limits=[MAILS])
async def send_offer(email: str) -> None:
    await send_mail(email, "today's offer: a chair for 40 euros")


async def charge(order: int, total: int) -> None:
    print(f"charging {total} euros for order {order}")


async def pack(order: int) -> None:
    print(f"packing order {order}")
    await asyncio.sleep(10)


@job(max_retries=2, retry=NETWORK)
async def process_order(order: int, email: str, total: int) -> None:
    steps = current_job().steps
    if total > 500 and not await steps.wait("approval", kind=bool):
        return
    await steps.run("charge", charge, order, total)
    await steps.run("pack", pack, order)
    await steps.run("receipt", send_mail, email, f"receipt for order {order}")
    await steps.sleep("delivery", timedelta(days=3))
    await steps.run("question", send_mail, email, f"are you content with order {order}?")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[dict[str, Scheduler]]:
    async with Scheduler.connect(os.environ["PG_SCHEDULER_DSN"]) as scheduler:
        await scheduler.db_pool.execute(ORDERS)
        yield {"scheduler": scheduler}


app = FastAPI(lifespan=lifespan)


@app.post("/orders")
async def place_order(email: str, total: int, scheduler: SchedulerDep) -> int:
    async with scheduler.db_pool.acquire() as connection, connection.transaction():
        number: int = await connection.fetchval(INSERT, email, total)
        await scheduler.enqueue(
            process_order,
            args=(number, email, total),
            job_id=f"order:{number}",
            connection=connection,
        )
        if total > 1000:
            raise HTTPException(402, "the card was declined")
        return number


@app.put("/offers/{email}")
async def send_offers(email: str, zone: str, scheduler: SchedulerDep) -> str:
    try:
        every_morning = Cron("0 9 * * *", timezone=zone)
    except ValueError as error:
        raise HTTPException(422, str(error)) from error
    await scheduler.schedules.add(
        send_offer,
        every_morning,
        schedule_id=f"offer:{email}",
        args=(email,),
        conflict_resolution=ConflictResolution.REPLACE,
    )
    return f"every morning at nine in {zone}"


@app.post("/orders/{number}/receipt")
async def repeat_receipt(number: int, scheduler: SchedulerDep) -> str:
    email = await scheduler.db_pool.fetchval("SELECT email FROM orders WHERE number = $1", number)
    if email is None:
        raise HTTPException(404)
    return await scheduler.enqueue(
        send_receipt, args=(number, email), conflict_resolution=ConflictResolution.IGNORE
    )


@app.post("/orders/{number}/approval")
async def approve_order(number: int, approved: bool, scheduler: SchedulerDep) -> bool:
    try:
        return await scheduler.signal(f"order:{number}", "approval", approved)
    except JobNotFoundError:
        raise HTTPException(404) from None
