"""A lower bound for the delay of a single job: a loop over the same table that listens.

INSERT and NOTIFY are one statement, and so are the claim and its locks. A job starts when its claim is
committed. Retries, timeouts, leases and events are missing, so this is a reference and not usable.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import asyncpg

from benchmarks.bare import PLANS
from benchmarks.ours import Ours, work
from benchmarks.peers.protocol import run

BATCH: Final = 500
CHANNEL: Final = "bare"

INSERT: Final = """
INSERT INTO scheduled_jobs (job_id, job_name, execution_time, task_data)
VALUES ($1, 'work', $2, $3::text::jsonb)
"""
NOTIFY: Final = "RETURNING pg_notify('bare', '')"

CLAIM: Final = """
UPDATE scheduled_jobs SET status = 'running', worker_id = $1, attempt = attempt + 1, started_at = now(),
    last_heartbeat = now(), lease_until = now() + interval '60 seconds'
WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM scheduled_jobs
    WHERE finished_at IS NULL AND blocked_on IS NULL
      AND priority = 5 AND execution_time <= now() AND status = 'pending'
    ORDER BY execution_time, job_id COLLATE "C"
    LIMIT $2
    FOR UPDATE SKIP LOCKED
))
RETURNING job_id, task_data::text
"""

COMPLETE: Final = """
UPDATE scheduled_jobs SET status = 'completed', finished_at = now(), lease_until = NULL
WHERE job_id = ANY ($1)
"""

SECONDS_UNTIL_DUE: Final = """
SELECT extract(epoch FROM min(execution_time) - now())::float8 FROM scheduled_jobs
WHERE finished_at IS NULL AND blocked_on IS NULL AND priority = 5 AND status = 'pending'
"""


class BareListener(Ours):
    """Enqueues single jobs by its own statement and many through the library, and executes them itself."""

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Open a connection. Jobs without pauses are inserted without a notification, as no worker waits."""
        async with AsyncExitStack() as stack:
            connection = await asyncpg.connect(self.order.dsn)
            stack.push_async_callback(connection.close)
            self._insert = await connection.prepare(INSERT + NOTIFY * bool(self.order.every))
            await stack.enter_async_context(super().sending())
            yield

    async def send(self, arguments: dict[str, Any], due: float | None) -> None:
        """Insert one job."""
        instant = datetime.now(UTC) if due is None else datetime.fromtimestamp(due, UTC)
        await self._insert.fetch(str(uuid.uuid4()), instant, json.dumps({"kwargs": arguments}))

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run the loop as a task, on a second connection as the listener needs its own."""
        listener = await asyncpg.connect(self.order.dsn)
        connection = await asyncpg.connect(self.order.dsn, server_settings=PLANS)
        notified = asyncio.Event()
        await listener.add_listener(CHANNEL, lambda *_: notified.set())
        loop = asyncio.create_task(self._loop(connection, notified))
        try:
            yield
        finally:
            loop.cancel()
            await asyncio.wait([loop])
            await connection.close()
            await listener.close()

    async def _loop(self, connection: asyncpg.Connection, notified: asyncio.Event) -> None:
        claim, complete, due = [
            await connection.prepare(each) for each in (CLAIM, COMPLETE, SECONDS_UNTIL_DUE)
        ]
        worker = uuid.uuid4().hex[:8]
        while True:
            rows = await claim.fetch(worker, BATCH)
            tasks = [asyncio.create_task(work(**json.loads(row["task_data"])["kwargs"])) for row in rows]
            for task in tasks:
                await task
            if rows:
                await complete.fetch([row["job_id"] for row in rows])
            if len(rows) < BATCH:
                delay = await due.fetchval()
                try:
                    async with asyncio.timeout(None if delay is None else max(delay, 0)):
                        await notified.wait()
                except TimeoutError:
                    pass
                notified.clear()


def main(order: str) -> None:
    """Run the driver."""
    run(BareListener, order)
