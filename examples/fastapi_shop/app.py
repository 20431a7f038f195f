"""The endpoints of the shop."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from pg_scheduler import Scheduler
from pg_scheduler.integrations.fastapi import SchedulerDep

from .database import URL, Order, SessionDep
from .jobs import ask_for_review, send_invoice

__all__ = ["app"]

REVIEW_AFTER = timedelta(days=14)


class NewOrder(BaseModel):
    """An order as a customer sends it."""

    number: int
    email: str


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncGenerator[dict[str, Scheduler]]:
    """Run jobs as long as requests are served."""
    async with Scheduler.connect(URL) as scheduler:  # glue: start and stop with the application
        yield {"scheduler": scheduler}  # glue: start and stop with the application


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def create_order(
    new: NewOrder,
    session: SessionDep,
    scheduler: SchedulerDep,  # glue: the Scheduler in an endpoint
) -> None:
    """Store an order and its jobs, in one transaction."""
    session.add(Order(number=new.number, email=new.email))
    await session.flush()
    await scheduler.enqueue(
        send_invoice,
        args=(new.number,),
        connection=session,  # glue: a job in the transaction of the session
    )
    await scheduler.enqueue(
        ask_for_review,
        args=(new.number,),
        delay=REVIEW_AFTER,
        job_id=f"review:{new.number}",
        connection=session,
    )
    await session.commit()


@app.get("/orders/{number}")
async def read_order(number: int, session: SessionDep) -> dict[str, str | None]:
    """Return an order, with its invoice once that is sent."""
    if order := await session.get(Order, number):
        return {"email": order.email, "invoice": order.invoice}
    raise HTTPException(404)


@app.delete("/orders/{number}")
async def delete_order(number: int, session: SessionDep, scheduler: SchedulerDep) -> bool:
    """Delete an order and cancel its review, in one transaction."""
    if order := await session.get(Order, number):
        await session.delete(order)
    is_cancelled = await scheduler.cancel_job(f"review:{number}", connection=session)
    await session.commit()
    return is_cancelled
