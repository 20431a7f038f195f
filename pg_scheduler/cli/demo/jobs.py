"""Define the jobs of an imaginary shop. Each is a coroutine function that writes to the ledger.

The report is computed from this table and not from the scheduler's own: a scheduler that lost a job or ran it
twice could also record it wrongly.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg

from pg_scheduler import CatchUp, current_job, job, periodic

logger = logging.getLogger("demo")

DONE: Final = "done"
FAILED: Final = "failed"

CREATE_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS demo_ledger (
        entry      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        job_id     text NOT NULL,
        kind       text NOT NULL,
        about      text NOT NULL,
        attempt    integer NOT NULL,
        node       text NOT NULL,
        due        timestamptz NOT NULL,
        started_at timestamptz NOT NULL,
        outcome    text
    )
"""
# Concurrent CREATE TABLE IF NOT EXISTS statements can fail with a unique violation.
LOCK_CREATION: Final = "SELECT pg_advisory_xact_lock(hashtext('demo_ledger'))"
INSERT_START: Final = """
    INSERT INTO demo_ledger (job_id, kind, about, attempt, node, due, started_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING entry
"""
UPDATE_OUTCOME: Final = "UPDATE demo_ledger SET outcome = $2 WHERE entry = $1"
COUNT_RESTARTS: Final = "SELECT count(*) FROM demo_ledger WHERE kind = $1 AND attempt > 1"
SELECT_ATTEMPTS: Final = """
    SELECT job_id, kind, attempt, node, due, started_at, outcome FROM demo_ledger ORDER BY entry
"""
SELECT_TALLIES: Final = """
    SELECT kind, node,
        count(*) FILTER (WHERE outcome = 'done') AS done,
        count(*) FILTER (WHERE outcome = 'failed') AS failed,
        count(*) FILTER (WHERE outcome IS NULL) AS open
    FROM demo_ledger GROUP BY kind, node
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of one job. ``outcome`` is None while it runs, and after its node was killed."""

    job_id: str
    kind: str
    number: int
    node: str
    due: datetime
    started_at: datetime
    outcome: str | None

    @property
    def lateness(self) -> float:
        """Seconds from the due time to the start."""
        return (self.started_at - self.due).total_seconds()


@dataclass(frozen=True, slots=True)
class Tally:
    """Number of attempts of one kind of job on one node, by outcome."""

    kind: str
    node: str
    done: int
    failed: int
    open: int


class Ledger:
    """Table of attempts."""

    def __init__(self, pool: asyncpg.Pool, node: str = "") -> None:
        self._pool = pool
        self._node = node

    async def create(self) -> None:
        """Create the table if it does not exist."""
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(LOCK_CREATION)
            await connection.execute(CREATE_TABLE)

    @asynccontextmanager
    async def entry(self, kind: str, subject: str = "") -> AsyncIterator[None]:
        """Record the attempt that runs within the block: its start, and then its outcome.

        The attempt of a process that is killed has no outcome.
        """
        job = current_job()
        started_at = datetime.now(UTC)
        logger.info("attempt %d of %s starts", job.attempt, job.job_name)
        row = (job.job_id, kind, subject, job.attempt, self._node, job.execution_time, started_at)
        entry_number = await self._pool.fetchval(INSERT_START, *row)
        try:
            yield
        except Exception:  # user code: the job, which fails with this error
            await self._pool.execute(UPDATE_OUTCOME, entry_number, FAILED)
            raise
        await self._pool.execute(UPDATE_OUTCOME, entry_number, DONE)

    async def count_restarts(self, kind: str) -> int:
        """Return the number of second and later attempts of this kind of job."""
        return int(await self._pool.fetchval(COUNT_RESTARTS, kind))

    async def attempts(self) -> list[Attempt]:
        """Return all attempts in the order of their start."""
        # The columns of the statement are in the order of the fields.
        return [Attempt(*row) for row in await self._pool.fetch(SELECT_ATTEMPTS)]

    async def tallies(self) -> list[Tally]:
        """Return the number of attempts by kind and node."""
        # The columns of the statement are in the order of the fields.
        return [Tally(*row) for row in await self._pool.fetch(SELECT_TALLIES)]


INTERVAL: Final = timedelta(seconds=1)
CRON_STEP: Final = timedelta(seconds=2)
CARD_FAILURES: Final = 2
BROKEN_ATTEMPTS: Final = 3
VIDEO_SECONDS: Final = 3.0

_ledgers: list[Ledger] = []
"""The ledger of this process; empty until ``use_ledger()`` is called."""


def use_ledger(ledger: Ledger) -> None:
    """Set the ledger that the jobs of this process write to, in place of an earlier one."""
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


@periodic(every=INTERVAL, job_name="demo.interval", dedup_key="demo.interval", catch_up=CatchUp.all())
async def sweep_carts() -> None:
    """Run every second, on one of the nodes."""
    async with _ledgers[0].entry("interval"):
        pass


@periodic(
    cron=f"* * * * * */{int(CRON_STEP.total_seconds())}",
    job_name="demo.cron",
    dedup_key="demo.cron",
    catch_up=CatchUp.all(),
)
async def refresh_prices() -> None:
    """Run at every even second, on one of the nodes. The sixth field of the expression is seconds."""
    async with _ledgers[0].entry("cron"):
        pass
