"""Findings about dead rows, settings and indexes of tables, made for real and resolved by their remedies."""

from __future__ import annotations

import asyncpg
import pytest

from pg_scheduler.inspect import FindingCode, Severity
from pg_scheduler.inspect.doctor.table import judge_autovacuum, judge_hot
from pg_scheduler.inspect.store.doctor import IndexRow, SettingRow
from tests.inspect.doctor.support import examine, find, subjects, until
from tests.support.world import World


@pytest.mark.parametrize(
    ("create", "columns"),
    [
        ('CREATE INDEX "Own" ON scheduled_jobs (worker_id, job_name)', "worker_id"),
        ("CREATE INDEX \"Own\" ON scheduled_jobs (job_name) WHERE status = 'failed'", "status"),
        (
            'CREATE INDEX "Own" ON scheduled_jobs ((attempt + 1)) INCLUDE (lease_until)',
            "attempt, lease_until",
        ),
    ],
)
async def test_index_on_a_column_that_claims_change_is_found_until_it_is_dropped(
    pool: asyncpg.Pool, create: str, columns: str
) -> None:
    await pool.execute(create)
    finding = await find(pool, FindingCode.HOT_LOST)
    assert (finding.severity, finding.subject) == (Severity.WARNING, "Own")
    assert f"uses {columns}, which" in finding.evidence
    assert finding.remedy == 'DROP INDEX CONCURRENTLY "public"."Own"'
    await pool.execute(finding.remedy)
    assert await subjects(pool, FindingCode.HOT_LOST) == []


async def test_constraint_on_such_a_column_is_dropped_as_a_constraint(pool: asyncpg.Pool) -> None:
    await pool.execute("ALTER TABLE scheduled_jobs ADD CONSTRAINT own UNIQUE (job_name, started_at)")
    finding = await find(pool, FindingCode.HOT_LOST)
    assert finding.remedy == 'ALTER TABLE "public".scheduled_jobs DROP CONSTRAINT "own"'
    await pool.execute(finding.remedy)
    assert await subjects(pool, FindingCode.HOT_LOST) == []


async def test_other_indexes_of_the_user_are_no_finding(pool: asyncpg.Pool) -> None:
    await pool.execute("CREATE INDEX own ON scheduled_jobs (job_name, created_at)")
    await pool.execute("CREATE INDEX other ON scheduler_workers (lease_until)")
    assert await subjects(pool, FindingCode.HOT_LOST) == []


def test_brin_index_is_a_finding_only_before_postgresql_16() -> None:
    index = IndexRow("scheduled_jobs", "own", True, "brin", None, ["started_at"])
    assert len(list(judge_hot("public", [index], [], 150_000))) == 1
    assert list(judge_hot("public", [index], [], 160_000)) == []


@pytest.mark.slow
async def test_dead_rows_are_found_until_the_table_is_vacuumed(pool: asyncpg.Pool, world: World) -> None:
    await pool.execute("ALTER TABLE scheduled_jobs SET (autovacuum_enabled = off)")
    await world.jobs(30, "x")
    await pool.execute("DELETE FROM scheduled_jobs")
    await until(pool, FindingCode.BLOAT, ["scheduled_jobs"], dead_rows=20)
    assert await subjects(pool, FindingCode.BLOAT) == []
    finding = await find(pool, FindingCode.BLOAT, dead_rows=20)
    assert "about 30 dead rows and 0 live ones" in finding.evidence
    assert finding.remedy is not None
    await pool.execute(finding.remedy.partition("then ")[2])
    await until(pool, FindingCode.BLOAT, [], dead_rows=20)


async def test_storage_settings_that_were_reset_are_found_until_they_are_set(pool: asyncpg.Pool) -> None:
    assert await subjects(pool, FindingCode.AUTOVACUUM) == []
    await pool.execute(
        "ALTER TABLE scheduled_jobs RESET (autovacuum_vacuum_threshold, fillfactor);"
        "ALTER TABLE scheduler_workers SET (autovacuum_enabled = off)"
    )
    assert await subjects(pool, FindingCode.AUTOVACUUM) == ["scheduled_jobs", "scheduler_workers"]
    await pool.execute("ALTER TABLE scheduler_workers SET (autovacuum_enabled = on)")
    finding = await find(pool, FindingCode.AUTOVACUUM)
    values = "autovacuum_vacuum_threshold = 20000, fillfactor = 45"
    assert finding.remedy == f'ALTER TABLE "public".scheduled_jobs SET ({values})'
    await pool.execute(finding.remedy)
    assert await subjects(pool, FindingCode.AUTOVACUUM) == []


@pytest.mark.slow
async def test_scale_factor_is_found_while_it_delays_the_vacuum_of_a_table_with_finished_jobs(
    pool: asyncpg.Pool,
    world: World,
) -> None:
    await pool.execute(
        "ALTER TABLE scheduled_jobs "
        "SET (autovacuum_vacuum_scale_factor = 2.2, autovacuum_vacuum_threshold = 50)"
    )
    await world.jobs(1000, "x", status="completed")
    await until(pool, FindingCode.AUTOVACUUM, ["scheduled_jobs"], dead_rows=2249)
    assert await subjects(pool, FindingCode.AUTOVACUUM, dead_rows=2250) == []
    finding = await find(pool, FindingCode.AUTOVACUUM, dead_rows=2249)
    assert "about 1,000 rows in 0.00" in finding.evidence
    assert "mean a vacuum at 2,250 dead rows" in finding.evidence
    values = "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000"
    assert finding.remedy == f'ALTER TABLE "public".scheduled_jobs SET ({values})'
    await pool.execute(finding.remedy)
    assert await subjects(pool, FindingCode.AUTOVACUUM) == []


def test_server_without_autovacuum_is_an_error() -> None:
    settings = {
        "autovacuum": SettingRow("off", "configuration file"),
        "track_counts": SettingRow("on", "default"),
    }
    (finding,) = judge_autovacuum("public", [], settings)
    assert (finding.severity, finding.subject) == (Severity.ERROR, "autovacuum")


async def test_age_of_unfrozen_rows_is_found_until_the_table_is_frozen(
    pool: asyncpg.Pool, world: World
) -> None:
    assert await subjects(pool, FindingCode.WRAPAROUND) == []
    for table in await pool.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
        await pool.execute(f"VACUUM (FREEZE) {table[0]}")
    await world.paused_task("x")
    before = await pool.fetchval("SELECT age(relfrozenxid) FROM pg_class WHERE relname = 'scheduler_tasks'")
    assert "scheduler_tasks" in await subjects(pool, FindingCode.WRAPAROUND, freeze_age=before - 1)
    for _ in range(5):
        await pool.execute("SELECT pg_current_xact_id()")
    await pool.execute('VACUUM (FREEZE) "public".scheduler_tasks')
    after = await subjects(pool, FindingCode.WRAPAROUND, freeze_age=before + 3)
    assert "scheduler_tasks" not in after


async def test_age_of_unfrozen_multixacts_is_found_until_the_table_is_frozen(
    pool: asyncpg.Pool, world: World
) -> None:
    await world.paused_task("x")
    for _ in range(3):
        async with pool.acquire() as one, pool.acquire() as other, one.transaction(), other.transaction():
            for each in (one, other):
                await each.fetchval("SELECT 1 FROM scheduler_tasks FOR SHARE")
    diagnosis = await examine(pool, FindingCode.WRAPAROUND, multixact_age=1)
    finding = next(each for each in diagnosis.findings if each.subject == "scheduler_tasks")
    assert "multixacts old" in finding.evidence
    assert finding.remedy is not None
    await pool.execute(finding.remedy.partition("then ")[2])
    assert "scheduler_tasks" not in await subjects(pool, FindingCode.WRAPAROUND, multixact_age=1)
