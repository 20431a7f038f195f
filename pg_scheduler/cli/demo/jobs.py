"""Define the jobs of an imaginary shop. Each is a coroutine function that writes to the ledger."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Final

from pg_scheduler import current_job, job, periodic

from .ledger import Ledger

INTERVAL: Final = timedelta(seconds=1)
CRON_STEP: Final = timedelta(seconds=2)
CARD_FAILURES: Final = 2
BROKEN_ATTEMPTS: Final = 3
VIDEO_SECONDS: Final = 3.0

_ledgers: list[Ledger] = []


def use_ledger(ledger: Ledger) -> None:
    """Set the ledger that the jobs of this process write to."""
    _ledgers[:] = [ledger]


@job(name="demo.reminder")
async def remind(customer: int) -> None:
    """Write to the ledger and return: a one-off job with a due time."""
    async with _ledgers[0].entry("reminder", f"customer {customer}"):
        pass


@job(name="demo.import")
async def import_row(number: int) -> None:
    """Take 30 to 50 ms: one job of a bulk load."""
    async with _ledgers[0].entry("import", f"row {number}"):
        await asyncio.sleep(random.uniform(0.03, 0.05))


@job(name="demo.order")
async def ship_order(number: int, level: str) -> None:
    """Take 10 ms: scheduled with each of the four priorities."""
    async with _ledgers[0].entry(f"order, {level}", f"order {number}"):
        await asyncio.sleep(0.01)


@job(name="demo.card")
async def charge_card(customer: int) -> None:
    """Fail twice, then succeed."""
    async with _ledgers[0].entry("card", f"customer {customer}"):
        if current_job().attempt <= CARD_FAILURES:
            raise ConnectionError("the bank does not answer")


@job(name="demo.broken")
async def call_unknown_service() -> None:
    """Fail at every attempt."""
    async with _ledgers[0].entry("broken"):
        raise LookupError("unknown service 'legacy-crm'")


@job(name="demo.video")
async def render_video(number: int) -> None:
    """Run long enough for its node to be killed meanwhile."""
    async with _ledgers[0].entry("video", f"video {number}"):
        await asyncio.sleep(VIDEO_SECONDS)


@periodic(every=INTERVAL, job_name="demo.interval", dedup_key="demo.interval")
async def sweep_carts() -> None:
    """Run every second, on one of the nodes."""
    async with _ledgers[0].entry("interval"):
        pass


@periodic(cron=f"* * * * * */{int(CRON_STEP.total_seconds())}", job_name="demo.cron", dedup_key="demo.cron")
async def refresh_prices() -> None:
    """Run at every even second, on one of the nodes. The sixth field of the expression is seconds."""
    async with _ledgers[0].entry("cron"):
        pass
