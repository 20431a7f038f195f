"""The jobs of an imaginary shop: ordinary coroutine functions. Each writes to the ledger."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Final

from examples.demo.ledger import Ledger
from pg_scheduler import current_job, job, periodic

__all__ = ["CRON_STEP", "INTERVAL", "TRIES_OF_BROKEN", "VIDEO_SECONDS", "use_ledger"]

INTERVAL: Final = timedelta(seconds=1)
CRON_STEP: Final = timedelta(seconds=2)
CARD_FAILURES: Final = 2
TRIES_OF_BROKEN: Final = 3
VIDEO_SECONDS: Final = 3.0

_ledgers: list[Ledger] = []


def use_ledger(ledger: Ledger) -> None:
    """Tell the jobs of this process where to write."""
    _ledgers[:] = [ledger]


@job(name="demo.reminder")
async def remind(customer: int) -> None:
    """A one-off job at its time."""
    async with _ledgers[0].entry("reminder", f"customer {customer}"):
        pass


@job(name="demo.import")
async def import_row(number: int) -> None:
    """One of a bulk load."""
    async with _ledgers[0].entry("import", f"row {number}"):
        await asyncio.sleep(random.uniform(0.03, 0.05))


@job(name="demo.order")
async def ship_order(number: int, level: str) -> None:
    """One of several priorities."""
    async with _ledgers[0].entry(f"order, {level}", f"order {number}"):
        await asyncio.sleep(0.01)


@job(name="demo.card")
async def charge_card(customer: int) -> None:
    """Fails twice, then works."""
    async with _ledgers[0].entry("card", f"customer {customer}"):
        if current_job().attempt <= CARD_FAILURES:
            raise ConnectionError("the bank does not answer")


@job(name="demo.broken")
async def call_nobody() -> None:
    """Fails whenever it is tried."""
    async with _ledgers[0].entry("broken"):
        raise LookupError("there is nobody of that name")


@job(name="demo.video")
async def render_video(number: int) -> None:
    """Takes long enough to be caught by the death of its node."""
    async with _ledgers[0].entry("video", f"video {number}"):
        await asyncio.sleep(VIDEO_SECONDS)


@periodic(every=INTERVAL, job_name="demo.interval")
async def sweep_carts() -> None:
    """Every second, on one of the nodes."""
    async with _ledgers[0].entry("interval"):
        pass


@periodic(cron=f"* * * * * */{int(CRON_STEP.total_seconds())}", job_name="demo.cron")
async def refresh_prices() -> None:
    """At every even second of the clock, on one of the nodes. The sixth field is the seconds."""
    async with _ledgers[0].entry("cron"):
        pass
