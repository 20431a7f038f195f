"""Serve the dashboard on the data of the demo, while new workers run the jobs of a shop.

The statistics of the hours before are generated, the same ones in each run, so that the charts are not empty.
Those of the demo itself are counted by its workers.
"""

from __future__ import annotations

import asyncio
import math
import random
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import asyncpg

from pg_scheduler import JobSpec, Scheduler
from pg_scheduler.cli.servers import serve
from pg_scheduler.measure.figures import BOUNDS, OUTCOMES
from pg_scheduler.triggers import Cron, Every

from . import shop
from .nodes import Nodes

SEED: Final = 7
STEP_S: Final = 0.5
SUPPLIERS: Final = ("northwind", "acme", "globex")


async def show_dashboard(dsn: str, pool: asyncpg.Pool, scheduler: Scheduler, port: int) -> None:
    """Serve it until SIGINT or SIGTERM."""
    async with running_shop(dsn, pool, scheduler):
        await serve(scheduler, _say, host="127.0.0.1", port=port)


def _say(line: str) -> None:
    print(f"{line}\nPress Ctrl-C to end the demo with its workers and its server.", flush=True)


@asynccontextmanager
async def running_shop(dsn: str, pool: asyncpg.Pool, scheduler: Scheduler) -> AsyncIterator[None]:
    """Run two workers with new jobs all the time, and a third one that a job kills."""
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
    await scheduler.schedule_bulk(
        [
            *(JobSpec(shop.build_report, now, args=(f"2030-{month:02}",)) for month in range(1, 4)),
            *(JobSpec(shop.apply_coupon, now - timedelta(hours=1), args=(f"SPRING-{n}",)) for n in range(3)),
            *(
                JobSpec(shop.import_catalogue, now, args=(supplier,), metadata={"tags": [supplier]})
                for supplier in SUPPLIERS
            ),
            *(JobSpec(shop.send_mail, now + timedelta(hours=hour), args=(hour,)) for hour in range(1, 25)),
        ]
    )


async def _generate_traffic(scheduler: Scheduler) -> None:
    """Schedule mails, charges and thumbnails until cancelled; the same ones in each run."""
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


HISTORY_SEED: Final = 11
MINUTES: Final = 6 * 60
PERIOD_MINUTES: Final = 90
"""The load rises and falls within this time."""

INCIDENT_MINUTES: Final = range(25, 33)
"""Minutes before the demo in which charges failed and jobs were late."""

INSERT_STATISTICS: Final = """
    INSERT INTO scheduler_stats (bucket, span, job_name, counts, sums, run_hist, late_hist)
    VALUES ($1, 60, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING
"""


class Load(NamedTuple):
    """The usual figures of a task: jobs a minute, seconds of an attempt, share of failures."""

    per_minute: int
    run_s: float
    failing: float


LOADS: Final = {
    "shop.mail": Load(600, 0.025, 0.0),
    "shop.charge": Load(120, 0.4, 0.03),
    "shop.thumbnail": Load(120, 0.15, 0.01),
}


async def write_history(pool: asyncpg.Pool, now: datetime | None = None) -> None:
    """Add a row for each task and minute of the last six hours."""
    dice = random.Random(HISTORY_SEED)
    this_minute = (now or datetime.now(UTC)).replace(second=0, microsecond=0)
    async with pool.acquire() as connection:
        await connection.executemany(
            INSERT_STATISTICS,
            [
                (this_minute - timedelta(minutes=ago), name, *_figures(load, ago, dice))
                for ago in range(1, MINUTES)
                for name, load in LOADS.items()
            ],
        )


def _figures(
    load: Load, ago: int, dice: random.Random
) -> tuple[list[int], list[float], list[int], list[int]]:
    """Return the counts, sums and histograms of a minute."""
    is_incident = ago in INCIDENT_MINUTES
    wave = 1 + 0.5 * math.sin(ago * 2 * math.pi / PERIOD_MINUTES)
    number = round(load.per_minute * wave * dice.uniform(0.9, 1.1))
    failed = round(number * load.failing * (8 if is_incident else dice.uniform(0, 2)))
    ended = dict.fromkeys(OUTCOMES, 0) | {"completed": number - failed, "failed": failed}
    lateness_s = 0.8 if is_incident else 0.004
    runs = [load.run_s * dice.lognormvariate(0, 0.4) for _ in range(number)]
    late = [lateness_s * dice.lognormvariate(0, 0.7) for _ in range(number)]
    counts = [number, number, *ended.values()]
    return counts, [sum(runs), sum(late)], list(_histogram(runs)), list(_histogram(late))


def _histogram(values: list[float]) -> Iterator[int]:
    places = [bisect_left(BOUNDS, value) for value in values]
    return (places.count(place) for place in range(len(BOUNDS) + 1))
