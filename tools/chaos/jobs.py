"""The jobs: ordinary coroutine functions, each of which writes its tries into the ledger."""

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
    """Tell the jobs of this process where to write."""
    _ledgers[:] = [ledger]


@contextmanager
def entry(version: int = 0) -> Iterator[int]:
    """Write down that a try begins and how it ends; gives its number."""
    this, ledger = current_job(), _ledgers[0]
    ledger.start(this.job_id, this.attempt, version)
    how = RAISED
    try:
        yield this.attempt
        how = DONE
    except asyncio.CancelledError:
        how = CANCELLED
        raise
    finally:
        ledger.end(this.job_id, this.attempt, how)


@job(name="chaos.quick")
async def quick(version: int = 0) -> None:
    """Ends at once."""
    with entry(version):
        await asyncio.sleep(0)


@job(name="chaos.slow")
async def slow(version: int = 0) -> None:
    """Takes long enough to be in the middle of something when a fault comes."""
    with entry(version):
        await asyncio.sleep(random.uniform(0.1, 2))


@job(name="chaos.flaky")
async def flaky() -> None:
    """Fails at its first try."""
    with entry() as attempt:
        await asyncio.sleep(0)
        if attempt == 1:
            raise ConnectionError("not at the first try")


@job(name="chaos.broken")
async def broken() -> None:
    """Fails whenever it is tried."""
    with entry():
        await asyncio.sleep(0)
        raise LookupError("there is nobody of that name")


@periodic(every=STEP, job_name=PERIODIC[0], dedup_key=PERIODIC[0])
async def tick() -> None:
    """Every second."""
    with entry():
        await asyncio.sleep(0)


@periodic(cron="* * * * * *", job_name=PERIODIC[1], dedup_key=PERIODIC[1])
async def tock() -> None:
    """Every second by cron."""
    with entry():
        await asyncio.sleep(0)
