"""Serve the dashboard on the data of the demo, while new workers run the jobs of a shop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg

from pg_scheduler import JobSpec, Scheduler
from pg_scheduler.cli.servers import serve
from pg_scheduler.triggers import Cron, Every

from . import shop
from .history import write_history
from .nodes import Nodes

SEED: Final = 7
STEP_S: Final = 0.5
SUPPLIERS: Final = ("northwind", "acme", "globex")


async def show_dashboard(dsn: str, pool: asyncpg.Pool, scheduler: Scheduler, port: int) -> None:
    """Serve the dashboard, while workers run the jobs of the shop, until SIGINT or SIGTERM."""
    async with running_shop(dsn, pool, scheduler):
        await serve(scheduler, _say, host="127.0.0.1", port=port)


def _say(line: str) -> None:
    """Print where the dashboard is, and how to end the demo."""
    print(f"{line}\nPress Ctrl-C to end the demo with its workers and its server.", flush=True)


@asynccontextmanager
async def running_shop(dsn: str, pool: asyncpg.Pool, scheduler: Scheduler) -> AsyncIterator[None]:
    """Within the block, run two workers with new jobs all the time, and a third one that a job kills."""
    async with (
        Nodes(scheduler, dsn, ["node-3", "node-4"], "open_shop"),
        Nodes(scheduler, dsn, ["node-5"], "open_legacy"),
    ):
        await write_history(pool)
        await _prepare(scheduler)
        traffic = asyncio.create_task(_generate_traffic(scheduler))
        try:
            yield
        finally:
            traffic.cancel()
            with suppress(asyncio.CancelledError):
                await traffic


async def _prepare(scheduler: Scheduler) -> None:
    """Schedule what happens once: schedules, a paused task, jobs that expire, and one that kills a worker."""
    now = datetime.now(UTC)
    await scheduler.tasks.pause(shop.REPORT, note="the warehouse is being moved")
    await scheduler.schedules.add(
        shop.send_mail,
        Cron("0 9 * * MON-FRI", timezone="America/New_York"),
        args=(1,),
        schedule_id="morning-mail",
    )
    await scheduler.schedules.add(
        shop.make_thumbnail, Every(timedelta(minutes=1)), args=(1,), schedule_id="refresh-banner"
    )
    await scheduler.schedules.add(
        shop.apply_coupon, Cron("0 0 1 * *"), args=("MONTHLY",), schedule_id="coupons", paused=True
    )
    await scheduler.enqueue(shop.sync_legacy)
    # The task of the reports is paused, so these wait.
    specs = [JobSpec(shop.build_report, now, args=(f"2030-{month:02}",)) for month in range(1, 4)]
    # These expire, since their time has passed.
    an_hour_ago = now - timedelta(hours=1)
    specs += [JobSpec(shop.apply_coupon, an_hour_ago, args=(f"SPRING-{number}",)) for number in range(3)]
    specs += [
        JobSpec(shop.import_catalogue, now, args=(supplier,), metadata={"tags": [supplier]})
        for supplier in SUPPLIERS
    ]
    # One mail is due in each hour of the next day.
    specs += [JobSpec(shop.send_mail, now + timedelta(hours=hour), args=(hour,)) for hour in range(1, 25)]
    await scheduler.schedule_bulk(specs)


async def _generate_traffic(scheduler: Scheduler) -> None:
    """Schedule mails, charges and thumbnails until cancelled; the same ones in each run."""
    # With a fixed seed, the random numbers are the same ones too.
    dice = random.Random(SEED)
    number = 0
    while True:
        now = datetime.now(UTC)
        specs = [JobSpec(shop.charge, now, args=(number,)), JobSpec(shop.make_thumbnail, now, args=(number,))]
        for _ in range(dice.randint(2, 8)):
            due = now + timedelta(seconds=dice.uniform(0, STEP_S))
            specs.append(JobSpec(shop.send_mail, due, args=(dice.randint(1, 500),)))
        await scheduler.schedule_bulk(specs)
        number += 1
        await asyncio.sleep(STEP_S)
