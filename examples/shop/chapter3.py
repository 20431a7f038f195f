import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from fastapi import FastAPI, HTTPException

from pg_scheduler import RetryPolicy, Scheduler, job
from pg_scheduler.integrations.fastapi import SchedulerDep

ORDERS = "CREATE TABLE IF NOT EXISTS orders (number serial PRIMARY KEY, email text, total int)"
INSERT = "INSERT INTO orders (email, total) VALUES ($1, $2) RETURNING number"
NETWORK = RetryPolicy(base=timedelta(seconds=5), only=(OSError,))


async def send_mail(email: str, text: str) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", 2525)
    writer.write(f"to {email}: {text}".encode())
    writer.close()
    await writer.wait_closed()


@job(max_retries=2, retry=NETWORK)
async def send_receipt(order: int, email: str) -> None:
    await send_mail(email, f"receipt for order {order}")


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
        await scheduler.enqueue(send_receipt, args=(number, email), connection=connection)
        if total > 1000:
            raise HTTPException(402, "the card was declined")
        return number
