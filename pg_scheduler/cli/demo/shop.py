"""Define the jobs that the dashboard shows: those of a shop on an ordinary day, with what goes wrong."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta
from typing import Final

from pg_scheduler import Limit, RetryPolicy, current_job, job, periodic

LEGACY: Final = "shop.legacy"
REPORT: Final = "shop.report"
ROWS: Final = 400
ROW_S: Final = 0.25


@job(name="shop.mail", keep_result=timedelta(hours=1))
async def send_mail(customer: int) -> str:
    """Take some milliseconds."""
    await asyncio.sleep(0.005 * (1 + customer % 9))
    return f"sent to customer {customer}"


@job(
    name="shop.charge",
    max_retries=2,
    retry=RetryPolicy(base=timedelta(seconds=4)),
    limits=[Limit("bank", max_running=2)],
)
async def charge(order: int) -> None:
    """Fail at the first attempt for each seventh order, at every attempt for each thirteenth."""
    await asyncio.sleep(0.4)
    if order % 13 == 0:
        raise PermissionError(f"the bank declined the card of order {order}")
    if order % 7 == 0 and current_job().attempt == 1:
        raise ConnectionError(f"the bank did not answer for order {order}")


@job(name="shop.thumbnail")
async def make_thumbnail(picture: int) -> None:
    """Fail for each seventeenth picture."""
    await asyncio.sleep(0.05 * (1 + picture % 5))
    if picture % 17 == 0:
        raise ValueError(f"picture {picture} is not an image")


@job(name="shop.import", keep_result=timedelta(hours=1))
async def import_catalogue(supplier: str) -> dict[str, int]:
    """Report progress for minutes, and keep a result."""
    for row in range(ROWS):
        current_job().progress(row, ROWS, f"row {row} of {ROWS}")
        await asyncio.sleep(ROW_S)
    return {"rows": ROWS, "changed": sum(map(ord, supplier)) % ROWS}


@job(name=REPORT)
async def build_report(month: str) -> None:
    """Wait for the end of a pause."""


@job(name="shop.coupon", misfire_grace_time=60)
async def apply_coupon(code: str) -> None:
    """Expire: its time has passed when it is scheduled."""


@job(name=LEGACY)
async def sync_legacy() -> None:
    """Kill the worker, as a bug in native code does."""
    os.kill(os.getpid(), signal.SIGKILL)


@periodic(cron="30 2 * * *", timezone="Europe/Berlin", job_name="shop.invoices", dedup_key="shop.invoices")
async def send_invoices() -> None:
    """Run once a night."""


@periodic(every=timedelta(seconds=20), job_name="shop.stock", dedup_key="shop.stock")
async def count_stock() -> None:
    """Run three times a minute."""
    await asyncio.sleep(0.2)
