"""A report per tenant, at times that each tenant chooses: a FastAPI application ported from APScheduler.

Before, the times were rows of a table, and one process loaded them into its scheduler when it started. It had
to be the only process with a scheduler, and every change was written twice::

    scheduler = AsyncIOScheduler()
    for row in await connection.fetch("SELECT * FROM report_times"):
        scheduler.add_job(send_report, CronTrigger.from_crontab(row["cron"], row["timezone"]),
                          args=[row["tenant"]], id=f"report:{row['tenant']}", max_instances=1)
    scheduler.start()
    ...
    await connection.execute("UPDATE report_times SET cron = $2 WHERE tenant = $1", tenant, cron)
    scheduler.reschedule_job(f"report:{tenant}", trigger=...)  # lost if the process ends here

Now the row of the tenant and its schedule are written in one transaction, by any process, and each fire time
runs on one of them. Run as many processes as you like, in the environment of ``dev.py``::

    export DATABASE_URL=postgresql://localhost/app
    .venv/bin/uvicorn --workers 4 examples.fastapi_reports.app:app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from pg_scheduler import ConflictResolution, Overlap, Schedule, Scheduler, current_job, job
from pg_scheduler.triggers import Cron

__all__ = ["app"]

TABLE = """
    CREATE TABLE IF NOT EXISTS report_times (tenant text PRIMARY KEY, cron text, timezone text);
    CREATE TABLE IF NOT EXISTS reports (job_id text PRIMARY KEY, tenant text, cron text);
"""


class Times(BaseModel):
    """When a tenant wants its report."""

    cron: str
    timezone: str = "UTC"


@job(name="reports.send", max_retries=3)
async def send_report(tenant: str) -> None:
    """Store a report. An attempt that is repeated stores it once."""
    await current_job().pool.execute(
        "INSERT INTO reports SELECT $1, tenant, cron FROM report_times WHERE tenant = $2"
        " ON CONFLICT DO NOTHING",
        current_job().job_id,
        tenant,
    )


async def write_schedule(tenant: str, times: Times, connection: PoolConnectionProxy) -> None:
    """Add or change the schedule of a tenant. An unchanged trigger keeps its timing and its pause."""
    scheduler: Scheduler = app.state.scheduler
    await scheduler.schedules.add(
        send_report,
        Cron(times.cron, timezone=times.timezone),
        schedule_id=f"report:{tenant}",
        args=(tenant,),
        metadata={"tenant": tenant},
        overlap=Overlap.SKIP,
        conflict_resolution=ConflictResolution.REPLACE,
        connection=connection,
    )


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Start the Scheduler, and schedule what the table has: other programs may have written it."""
    async with (
        asyncpg.create_pool(os.environ["DATABASE_URL"], min_size=1) as pool,
        Scheduler(pool) as scheduler,
    ):
        app.state.scheduler = scheduler
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute(TABLE)
            for row in await connection.fetch("SELECT tenant, cron, timezone FROM report_times"):
                await write_schedule(row["tenant"], Times(**row), connection)
        yield


app = FastAPI(lifespan=lifespan)


async def schedule_of(tenant: str) -> Schedule:
    """Return the schedule of a tenant, or answer 404."""
    scheduler: Scheduler = app.state.scheduler
    if schedule := await scheduler.schedules.get(f"report:{tenant}"):
        return schedule
    raise HTTPException(404)


def to_json(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as JSON."""
    return {
        "times": str(schedule.trigger),
        "next": [fire.isoformat() for fire in schedule.upcoming(3)],
        "paused": schedule.paused_at is not None,
    }


@app.put("/reports/{tenant}")
async def put(tenant: str, times: Times) -> dict[str, Any]:
    """Store when a tenant wants its report."""
    try:
        async with app.state.scheduler.db_pool.acquire() as connection, connection.transaction():
            await connection.execute(
                "INSERT INTO report_times VALUES ($1, $2, $3)"
                " ON CONFLICT (tenant) DO UPDATE SET cron = $2, timezone = $3",
                tenant,
                times.cron,
                times.timezone,
            )
            await write_schedule(tenant, times, connection)
    except ValueError as error:  # names the field of the expression that is invalid
        raise HTTPException(422, str(error)) from error
    return to_json(await schedule_of(tenant))


@app.get("/reports/{tenant}")
async def get(tenant: str) -> dict[str, Any]:
    """Return the next three times of a tenant."""
    return to_json(await schedule_of(tenant))


@app.get("/reports")
async def list_tenants() -> list[str]:
    """Return the tenants that get reports."""
    schedules = await app.state.scheduler.schedules.list(task="reports.send")
    return [schedule.metadata["tenant"] for schedule in schedules]


@app.post("/reports/{tenant}/{action}")
async def control(tenant: str, action: str) -> dict[str, Any]:
    """Pause, resume or trigger the schedule of a tenant, on all nodes."""
    schedule_id = (await schedule_of(tenant)).schedule_id
    schedules = app.state.scheduler.schedules
    actions = {"pause": schedules.pause, "resume": schedules.resume, "run": schedules.trigger}
    if action not in actions:
        raise HTTPException(404)
    await actions[action](schedule_id)
    return to_json(await schedule_of(tenant))


@app.delete("/reports/{tenant}")
async def delete(tenant: str) -> bool:
    """Delete the times and the schedule of a tenant, and cancel its pending reports."""
    await app.state.scheduler.db_pool.execute("DELETE FROM report_times WHERE tenant = $1", tenant)
    removed: bool = await app.state.scheduler.schedules.remove(f"report:{tenant}", cancel_jobs=True)
    return removed
