"""An upper bound: an asyncio loop over the same table without a library.

It claims 500 jobs at a time and runs one task per job. One statement completes a batch and claims the next
one, while a third batch runs. Each claim starts where the last one ended. Retries, timeouts, leases, events
and notifications are missing, so this is a reference and not usable.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

import asyncpg

from benchmarks.ours import Ours, work
from benchmarks.peers.protocol import run

BATCH: Final = 500

PLANS: Final = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

CYCLE: Final = """
WITH finished AS (
    UPDATE scheduled_jobs SET status = 'completed', finished_at = now(), lease_until = NULL
    WHERE job_id = ANY ($1) AND status = 'running' AND worker_id = $2
    RETURNING job_id
),
due AS (
    SELECT job.ctid
    FROM (VALUES (1), (3), (5), (8)) AS level (priority)
    CROSS JOIN LATERAL (
        SELECT ctid FROM scheduled_jobs
        WHERE finished_at IS NULL AND blocked_on IS NULL
          AND priority = level.priority AND execution_time <= now()
          AND execution_time >= $4
          AND status = 'pending'
        ORDER BY execution_time, job_id COLLATE "C"
        LIMIT $3
        FOR UPDATE SKIP LOCKED
    ) AS job
    LIMIT $3
),
claimed AS (
    UPDATE scheduled_jobs SET status = 'running', worker_id = $2, attempt = attempt + 1, started_at = now(),
        last_heartbeat = now(), lease_until = now() + interval '60 seconds'
    WHERE ctid = ANY (ARRAY (SELECT ctid FROM due))
    RETURNING job_id, task_data::text, execution_time
)
SELECT job_id, task_data, execution_time FROM claimed
"""


class Bare(Ours):
    """Enqueues through the library, and executes jobs in its own loop."""

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run the loop as a task."""
        connection = await asyncpg.connect(self.order.dsn, server_settings=PLANS)
        loop = asyncio.create_task(self._loop(connection))
        try:
            yield
            await loop
        finally:
            await connection.close()

    async def _loop(self, connection: asyncpg.Connection) -> None:
        cycle = await connection.prepare(CYCLE)
        worker = uuid.uuid4().hex[:8]
        finished: list[str] = []
        since = datetime(2000, 1, 1, tzinfo=UTC)
        rows = await cycle.fetch(finished, worker, BATCH, since)
        while rows:
            since = max(row["execution_time"] for row in rows)
            following = asyncio.ensure_future(cycle.fetch(finished, worker, BATCH, since))
            await asyncio.sleep(0)  # the statement is sent before these jobs run
            tasks = [asyncio.create_task(work(**json.loads(row["task_data"])["kwargs"])) for row in rows]
            for task in tasks:
                await task
            finished = [row["job_id"] for row in rows]
            rows = await following
        await cycle.fetch(finished, worker, 0, since)


def main(order: str) -> None:
    """Run the driver."""
    run(Bare, order)
