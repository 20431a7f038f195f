"""What the jobs themselves say they did, in a table of their own.

The demo counts from here and not from the scheduler's tables: a scheduler that loses a job, or runs one
twice, must not be the one who keeps the books.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import asyncpg

from pg_scheduler import current_job

__all__ = ["DONE", "FAILED", "Ledger", "Run", "Tally"]

DONE: Final = "done"
FAILED: Final = "failed"

CREATE: Final = """
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
# Two nodes that create one table at the same moment would disturb each other.
ONE_BY_ONE: Final = "SELECT pg_advisory_xact_lock(hashtext('demo_ledger'))"
START: Final = """
    INSERT INTO demo_ledger (job_id, kind, about, attempt, node, due, started_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING entry
"""
RESTARTED: Final = "SELECT count(*) FROM demo_ledger WHERE kind = $1 AND attempt > 1"
END: Final = "UPDATE demo_ledger SET outcome = $2 WHERE entry = $1"
RUNS: Final = """
    SELECT job_id, kind, attempt, node, due, started_at, outcome FROM demo_ledger ORDER BY entry
"""
TALLIES: Final = """
    SELECT kind, node,
        count(*) FILTER (WHERE outcome = 'done') AS done,
        count(*) FILTER (WHERE outcome = 'failed') AS failed,
        count(*) FILTER (WHERE outcome IS NULL) AS open
    FROM demo_ledger GROUP BY kind, node
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One try of one job. ``outcome`` None: it has not ended, or was cut off."""

    job_id: str
    kind: str
    attempt: int
    node: str
    due: datetime
    started_at: datetime
    outcome: str | None

    @property
    def late(self) -> float:
        """Seconds between the time it was due and its start."""
        return (self.started_at - self.due).total_seconds()


@dataclass(frozen=True, slots=True)
class Tally:
    """Tries of one kind of job on one node."""

    kind: str
    node: str
    done: int
    failed: int
    open: int


class Ledger:
    """The table.

    Args:
        pool: Connections of the jobs, not those of the Scheduler.
        node: Who writes.
    """

    def __init__(self, pool: asyncpg.Pool, node: str = "") -> None:
        self._pool = pool
        self._node = node

    async def create(self) -> None:
        """Make the table if it is not there."""
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(ONE_BY_ONE)
            await connection.execute(CREATE)

    @asynccontextmanager
    async def entry(self, kind: str, about: str = "") -> AsyncIterator[None]:
        """Write down that the running job starts, and how it ends. A job that is cut off leaves no end."""
        job, started_at = current_job(), datetime.now(UTC)
        row = (job.job_id, kind, about, job.attempt, self._node, job.execution_time, started_at)
        number = await self._pool.fetchval(START, *row)
        try:
            yield
        except Exception:
            await self._pool.execute(END, number, FAILED)
            raise
        await self._pool.execute(END, number, DONE)

    async def restarted(self, kind: str) -> int:
        """How often a job of this kind was started again."""
        return int(await self._pool.fetchval(RESTARTED, kind))

    async def runs(self) -> list[Run]:
        """Everything that was written, in that order."""
        return [Run(*row) for row in await self._pool.fetch(RUNS)]

    async def tallies(self) -> list[Tally]:
        """The same, counted."""
        return [Tally(*row) for row in await self._pool.fetch(TALLIES)]
