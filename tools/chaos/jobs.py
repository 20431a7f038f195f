"""The jobs: ordinary coroutine functions that record their attempts in the ledger."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from pg_scheduler import current_job, job, periodic
from tools.chaos.ledger import CANCELLED, DONE, RAISED, Ledger

__all__ = ["PERIODIC", "STEP", "broken", "flaky", "quick", "slow", "use"]

STEP: Final = timedelta(seconds=1)
PERIODIC: Final = ("chaos.tick", "chaos.tock")

_ledgers: list[Ledger] = []


def use(ledger: Ledger) -> None:
    """Set the ledger of this process."""
    _ledgers[:] = [ledger]


@contextmanager
def entry(version: int = 0) -> Iterator[int]:
    """Record the start and the end of an attempt; yield its number."""
    this, ledger = current_job(), _ledgers[0]
    ledger.start(this.job_id, this.attempt, version)
    outcome = RAISED
    try:
        yield this.attempt
        outcome = DONE
    except asyncio.CancelledError:
        outcome = CANCELLED
        raise
    finally:
        ledger.end(this.job_id, this.attempt, outcome)


@job(name="chaos.quick")
async def quick(version: int = 0) -> None:
    """Complete immediately."""
    with entry(version):
        await asyncio.sleep(0)


@job(name="chaos.slow")
async def slow(version: int = 0) -> None:
    """Run long enough to be interrupted by a fault."""
    with entry(version):
        await asyncio.sleep(random.uniform(0.1, 2))


@job(name="chaos.flaky")
async def flaky() -> None:
    """Fail at the first attempt."""
    with entry() as attempt:
        await asyncio.sleep(0)
        if attempt == 1:
            raise ConnectionError("the first attempt always fails")


@job(name="chaos.broken")
async def broken() -> None:
    """Fail at every attempt."""
    with entry():
        await asyncio.sleep(0)
        raise LookupError("this job always fails")


@periodic(every=STEP, job_name=PERIODIC[0], dedup_key=PERIODIC[0])
async def tick() -> None:
    """Run every second, by interval."""
    with entry():
        await asyncio.sleep(0)


@periodic(cron="* * * * * *", job_name=PERIODIC[1], dedup_key=PERIODIC[1])
async def tock() -> None:
    """Run every second, by cron."""
    with entry():
        await asyncio.sleep(0)
