"""Findings about retention, made for real and resolved by their remedies."""

from __future__ import annotations

from datetime import UTC, datetime

import asyncpg

from pg_scheduler import Scheduler, VacuumConfig, VacuumPolicy
from pg_scheduler.inspect import FindingCode, Severity
from tests.inspect.doctor.conftest import Make
from tests.inspect.doctor.support import examine, find, subjects
from tests.inspect.workers import add_worker

FAIL = (
    "UPDATE scheduled_jobs SET status = 'failed', error_message = 'x', attempt = 1, "
    "finished_at = now() - interval '15 days'"
)


async def test_old_failed_jobs_are_found_until_the_vacuum_runs(pool: asyncpg.Pool, make: Make) -> None:
    policy = VacuumConfig(failed=VacuumPolicy.after_days(7))
    await make(vacuum_enabled=True, vacuum_config=policy)
    await Scheduler(pool).schedule_job("doctor.old", datetime.now(UTC), {})
    assert await subjects(pool, FindingCode.RETENTION) == []
    await pool.execute(FAIL)
    finding = await find(pool, FindingCode.RETENTION)
    assert (finding.subject, finding.severity) == ("failed", Severity.WARNING)
    assert finding.evidence == "the oldest failed job ended 15 d ago; the workers keep such jobs for 7 days"
    await Scheduler(pool, vacuum_config=policy).run_vacuum()
    assert await subjects(pool, FindingCode.RETENTION) == []


async def test_jobs_that_are_kept_without_limit_are_no_finding(pool: asyncpg.Pool) -> None:
    await Scheduler(pool).schedule_job("doctor.old", datetime.now(UTC), {})
    await pool.execute(FAIL)
    for number, settings in enumerate(
        (
            '{"vacuum_enabled": true, "vacuum": {"failed": {"trigger": "never", "days": null}}}',
            '{"vacuum_enabled": false, "vacuum": {"failed": {"days": 1}}}',
            '{"vacuum_enabled": true, "vacuum": [1]}',
        )
    ):
        await add_worker(pool, f"w{number}", settings=settings)
    assert await subjects(pool, FindingCode.RETENTION) == []


async def test_large_table_is_found(pool: asyncpg.Pool) -> None:
    await Scheduler(pool).schedule_job("doctor.old", datetime.now(UTC), {})
    assert "scheduled_jobs" in await subjects(pool, FindingCode.RETENTION, table_bytes=8192)


async def test_age_is_not_examined_without_its_index(pool: asyncpg.Pool) -> None:
    await pool.execute("DROP INDEX scheduled_jobs_unsuccessful")
    (unmade,) = (await examine(pool, FindingCode.RETENTION)).not_made
    assert "scheduled_jobs_unsuccessful" in unmade.reason
