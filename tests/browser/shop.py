"""The jobs of an imaginary shop, and the data that its pages show."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

from pg_scheduler import Limit, Scheduler, job
from pg_scheduler.inspect import Inspector
from pg_scheduler.triggers import Cron
from tests.support.patience import PATIENCE
from tests.support.world import HOUR, World

BANK = Limit("browser.bank", max_running=2)


@job(name="browser.charge", limits=[BANK])
async def charge_customer(customer: int) -> None:
    raise ConnectionError(f"the bank does not answer customer {customer}")


@job(name="browser.mail")
async def mail_customer(address: str) -> str:
    return f"sent to {address}"


@job(name="browser." + "wider_than_a_phone_" * 5)
async def export_shop() -> None:
    """Never scheduled: pages show its name."""


@dataclass(frozen=True)
class Shop:
    """Ids of its jobs and of its schedule."""

    failed: str
    completed: str
    waiting: str
    schedule: str


async def open_shop(scheduler: Scheduler) -> Shop:
    """Start the worker, and give it one job that fails, one that completes and one that waits."""
    await scheduler.start()
    waiting = await scheduler.schedule(
        mail_customer,
        execution_time=datetime.now(UTC) + HOUR,
        args=("bob",),
        metadata={"tags": ["news"]},
    )
    schedule = await scheduler.schedules.add(
        mail_customer, Cron("30 2 * * *", timezone="Europe/Berlin"), args=("all",), schedule_id="nightly"
    )
    completed = await scheduler.enqueue(mail_customer, args=("ada",), job_id="mail-ada", keep_result=HOUR)
    failed = await scheduler.enqueue(charge_customer, args=(7,), job_id="charge-7")
    for each in (completed, failed):
        await scheduler.get_job_result(each, timeout=PATIENCE)
    inspector = Inspector(scheduler)
    async with asyncio.timeout(PATIENCE):
        while not (await inspector.error_groups()).items:  # noqa: ASYNC110 - a pass of a worker adds it
            await asyncio.sleep(0.05)
    return Shop(failed, completed, waiting, schedule.schedule_id)


async def block_charge(world: World) -> str:
    """Return the id of a job that its limit blocks, and fill the limit, so that it stays blocked."""
    key = f"limit:{BANK.name}:"
    running = "charge-running-{}".format
    # No worker extends this lease, so it has to be longer than a test.
    await world.jobs(2, "browser.charge", job_id=running, status="running", lease_until=HOUR)
    await world.start(key, running, count=2)
    await world.job("charge-blocked", "browser.charge", blocked_on=key)
    return "charge-blocked"
