"""Migration 0010 keeps the jobs of the release before, in both directions."""

from __future__ import annotations

import json
from typing import Any

import asyncpg

from pg_scheduler.migrate import migrate

BEFORE, AFTER = 9, 10

JOBS = """
    INSERT INTO scheduled_jobs (job_id, job_name, execution_time) VALUES
        ('pending', 'test.job', 'epoch'), ('running', 'test.job', 'epoch'), ('replaced', 'test.job', 'epoch'),
        ('completed', 'test.job', 'epoch');
    UPDATE scheduled_jobs SET status = 'running', worker_id = 'w1', attempt = 1
        WHERE job_id = ANY ('{running,replaced}');
    UPDATE scheduled_jobs SET replacement = '{"job_name": "test.other"}' WHERE job_id = 'replaced';
    UPDATE scheduled_jobs SET status = 'completed', finished_at = now() WHERE job_id = 'completed';
"""


async def jobs(connection: asyncpg.Connection) -> dict[str, dict[str, Any]]:
    rows = await connection.fetch("SELECT * FROM scheduled_jobs")
    return {row["job_id"]: dict(row) for row in rows}


async def test_migration_keeps_every_job_and_its_replacement_up_and_down(
    connection: asyncpg.Connection,
) -> None:
    await migrate(connection, target=BEFORE)
    await connection.execute(JOBS)
    before = await jobs(connection)
    await migrate(connection, target=AFTER)
    after = await jobs(connection)
    for job_id, old in before.items():
        replacement = old.pop("replacement")
        assert {column: after[job_id][column] for column in old} == old
        on_end = after[job_id]["on_end"]
        assert (on_end and json.loads(on_end)) == (replacement and {"replacement": json.loads(replacement)})
        old["replacement"] = replacement
    await migrate(connection, target=BEFORE)
    assert await jobs(connection) == before


async def test_blocked_job_becomes_a_plain_pending_one_when_migrated_down(
    connection: asyncpg.Connection,
) -> None:
    await migrate(connection, target=AFTER)
    await connection.execute("""
        INSERT INTO scheduled_jobs (job_id, job_name, execution_time, blocked_on, on_end)
        VALUES ('blocked', 'test.job', 'epoch', 'after', '{"child": true}')
    """)
    await migrate(connection, target=BEFORE)
    found = (await jobs(connection))["blocked"]
    assert (found["status"], found["replacement"]) == ("pending", None)
