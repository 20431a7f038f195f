"""No table keeps a row of a job that does not exist, after the vacuum and the scans have passed.

A row of such a table is written before, with or after a job, and the job may be refused, replaced or deleted
by a statement that does not know the table. So each of them needs a service that deletes what is left.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg

from pg_scheduler.testing import TestScheduler
from tests.migrations.test_repair import INSERT_ROWS
from tests.support.inside import store_of

LATER = datetime(2099, 1, 1, tzinfo=UTC)
"""The clock of the worker. The rows have the time of the server, so each is older than any bound."""

COLUMNS = """
    SELECT table_name, array_agg(column_name::text)
    FROM information_schema.columns
    WHERE table_schema = 'public' AND column_name IN ('job_id', 'parent_id', 'child_id')
      AND table_name <> 'scheduled_jobs'
    GROUP BY table_name
"""


async def test_row_of_a_job_that_does_not_exist_is_deleted_from_each_table(pool: asyncpg.Pool) -> None:
    tables = [row["table_name"] for row in await pool.fetch(COLUMNS)]
    assert {"scheduler_deadlines", "scheduler_steps", "scheduler_streams"} <= {*tables}
    for table in tables:
        await pool.execute(INSERT_ROWS[table])
    # A scan deletes it when the deadline has passed, which the vacuum must not wait for.
    await pool.execute("UPDATE scheduler_deadlines SET at = '2199-01-01Z'")
    async with TestScheduler(pool, now=LATER) as t:
        await t.run_until(timedelta(minutes=10))
        await t.scheduler.run_vacuum()
        store = store_of(t.scheduler)
        # The error counter and the sequencer do this when a job fails, and every few minutes.
        await store.errors.fold(10)
        await store.sequences.move(await store.sequences.find_past(10))
    left = {table: await pool.fetchval(f"SELECT count(*) FROM {table}") for table in tables}
    assert left == dict.fromkeys(tables, 0)
