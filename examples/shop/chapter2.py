import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

from pg_scheduler import Scheduler, job
from pg_scheduler.integrations.fastapi import SchedulerDep

ORDERS = "CREATE TABLE IF NOT EXISTS orders (number serial PRIMARY KEY, email text, total int)"
INSERT = "INSERT INTO orders (email, total) VALUES ($1, $2) RETURNING number"


@job()
async def send_receipt(order: int, email: str) -> None:
    print(f"writing the receipt for order {order}")
    await asyncio.sleep(10)
    print(f"to {email}: receipt for order {order}")


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
