"""Migration 0015 takes over the rows of periodic jobs, in both directions."""

from __future__ import annotations

from typing import Any

import asyncpg

from pg_scheduler.migrate import migrate
from pg_scheduler.schedules.row import read_trigger
from pg_scheduler.triggers import Cron, Every

BEFORE, AFTER = 14, 15

ROWS = """
    INSERT INTO scheduler_periodic_jobs VALUES
        ('every', true, 'periodic_sweep', 'app.sweep', '40 days 01:00:00.000001', NULL, NULL, true, 3, 2,
         true, true, '2030-01-01', '2030-01-02', '2030-01-03', '2030-01-04'),
        ('cron', false, 'nightly', 'app.report', NULL, '0 3 * * *', 'Asia/Kathmandu', false, 5, 0,
         false, true, '2030-01-01', NULL, NULL, '2030-01-04')
"""


async def periodic_jobs(connection: asyncpg.Connection) -> list[dict[str, Any]]:
    rows = await connection.fetch("SELECT * FROM scheduler_periodic_jobs ORDER BY dedup_key")
    return [dict(row) for row in rows]


async def test_migration_keeps_every_periodic_job_up_and_down(connection: asyncpg.Connection) -> None:
    await migrate(connection, target=BEFORE)
    await connection.execute(ROWS)
    before = await periodic_jobs(connection)
    await migrate(connection, target=AFTER)
    cron, every = await connection.fetch("SELECT * FROM scheduler_schedules ORDER BY schedule_id")
    assert read_trigger(cron["trigger"]) == Cron("0 3 * * *", "Asia/Kathmandu")
    assert read_trigger(every["trigger"]) == Every(days=40, hours=1, seconds=0.000001)
    assert (cron["owner"], cron["paused_at"], cron["resume_from"]) == ("code", *[cron["updated_at"]] * 2)
    assert (every["paused_at"], every["resume_from"], every["overlap"]) == (None, None, "allow")
    assert every["next_fire_at"] == before[1]["next_fire_at"]
    await migrate(connection, target=BEFORE)
    assert await periodic_jobs(connection) == before


async def test_migration_down_leaves_out_what_periodic_jobs_cannot_hold(
    connection: asyncpg.Connection,
) -> None:
    await migrate(connection, target=BEFORE)
    await connection.execute(ROWS)
    await migrate(connection, target=AFTER)
    await connection.execute("UPDATE scheduler_schedules SET owner = 'api' WHERE schedule_id = 'every'")
    await connection.execute(
        "UPDATE scheduler_schedules SET trigger = $1::text::jsonb WHERE schedule_id = 'cron'",
        '{"kind": "every", "every": "x"}',
    )
    await migrate(connection, target=BEFORE)
    assert await periodic_jobs(connection) == []
