"""The endpoints: an order, its state, and the webhook of the approval."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from pg_scheduler import JobNotFoundError, Scheduler
from pg_scheduler.integrations.fastapi import SchedulerDep

from .jobs import Approval, process_order

__all__ = ["app"]


class NewOrder(BaseModel):
    """An order as a customer sends it."""

    number: int
    item: str


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncGenerator[dict[str, Scheduler]]:
    """Run jobs as long as requests are served."""
    async with Scheduler.connect(os.environ["DATABASE_URL"]) as scheduler:
        yield {"scheduler": scheduler}


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def create_order(new: NewOrder, scheduler: SchedulerDep) -> None:
    """Store an order and the job that processes it, in one transaction."""
    async with scheduler.db_pool.acquire() as connection, connection.transaction():
        await connection.execute("INSERT INTO orders VALUES ($1, $2)", new.number, new.item)
        await scheduler.enqueue(
            process_order, args=(new.number, new.item), job_id=f"order:{new.number}", connection=connection
        )


@app.get("/orders/{number}")
async def read_order(number: int, scheduler: SchedulerDep) -> dict[str, Any]:
    """Return an order."""
    row = await scheduler.db_pool.fetchrow("SELECT * FROM orders WHERE number = $1", number)
    if row is None:
        raise HTTPException(404)
    return dict(row)


@app.post("/orders/{number}/approval")
async def approve_order(number: int, approval: Approval, scheduler: SchedulerDep) -> bool:
    """Receive a decision, which may come twice; return whether it counts.

    It counts if it is the first one and in time, also if it comes before the job waits for it. A real service
    authenticates the sender.
    """
    try:
        return await scheduler.signal(f"order:{number}", "approval", approval)
    except JobNotFoundError:
        raise HTTPException(404) from None
