"""Findings about the tables and indexes, made for real and resolved by their remedies."""

from __future__ import annotations

import asyncio
import shlex

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.errors import SchemaMismatchError
from pg_scheduler.inspect import FindingCode, Severity
from pg_scheduler.migrate import build_indexes, migrate
from tests.inspect.doctor.support import examine, find, subjects
from tests.support.inside import ExitCode, run_command
from tests.support.world import World

INDEX = "scheduled_jobs_unsuccessful"
CLAIM = "scheduled_jobs_claim"
INDEXES = (FindingCode.INDEX_MISSING, FindingCode.INDEX_INVALID)


async def test_schema_behind_is_found_until_it_is_migrated(pool: asyncpg.Pool) -> None:
    async with pool.acquire() as connection:
        await migrate(connection, schema="public", target=0)
        finding = await find(pool, FindingCode.SCHEMA_BEHIND)
        assert (finding.severity, finding.subject) == (Severity.ERROR, "public")
        assert "0001" in finding.evidence
        assert finding.remedy == "pg-scheduler migrate --schema public"
        await migrate(connection, schema="public")
    assert await subjects(pool, FindingCode.SCHEMA_BEHIND) == []


async def test_only_a_migration_is_advised_for_the_tables_of_each_former_version(
    pool: asyncpg.Pool, world: World
) -> None:
    await world.job("a", "x")
    head = await pool.fetchval("SELECT max(version) FROM scheduler_migrations")
    codes = (
        FindingCode.INDEX_MISSING,
        FindingCode.INDEX_INVALID,
        FindingCode.HOT_LOST,
        FindingCode.AUTOVACUUM,
    )
    async with pool.acquire() as connection:
        for version in range(head - 1, -1, -1):
            await migrate(connection, schema="public", target=version)
            diagnosis = await examine(pool, schema="public")
            behind = {finding.code: finding.remedy for finding in diagnosis.findings}
            assert behind.pop(FindingCode.SCHEMA_BEHIND) == "pg-scheduler migrate --schema public"
            assert not [remedy for remedy in behind.values() if remedy and "index" in remedy.lower()]
            reasons = {check.code: check.reason for check in diagnosis.not_made}
            for code in codes:
                assert code not in behind
                assert reasons[code].startswith("schema 'public' has no tables, or old ones; execute ")
            assert FindingCode.WRAPAROUND in diagnosis.made, "a server that stops has to be prevented"
        await migrate(connection, schema="public")
    assert (await examine(pool, *codes)).findings == ()


async def test_checks_that_need_missing_tables_are_listed_as_not_made(pool: asyncpg.Pool) -> None:
    diagnosis = await examine(pool, schema="elsewhere")
    (finding,) = (each for each in diagnosis.findings if each.code is FindingCode.SCHEMA_BEHIND)
    assert finding.subject == "elsewhere"
    reasons = {check.code: check.reason for check in diagnosis.not_made}
    assert "'elsewhere' has no tables" in reasons[FindingCode.INDEX_MISSING]
    assert FindingCode.SCHEMA_BEHIND in diagnosis.made


async def test_newer_schema_is_found_until_its_record_is_gone(pool: asyncpg.Pool) -> None:
    await pool.execute(
        "INSERT INTO scheduler_migrations (version, name, checksum, needs) VALUES (999, 'next', '', 999)"
    )
    finding = await find(pool, FindingCode.SCHEMA_NEWER)
    assert finding.severity is Severity.ERROR
    await pool.execute("DELETE FROM scheduler_migrations WHERE version = 999")
    assert await subjects(pool, FindingCode.SCHEMA_NEWER) == []


async def test_dropped_constraint_is_drift_until_the_statement_of_the_remedy_is_executed(
    pool: asyncpg.Pool,
) -> None:
    await pool.execute("ALTER TABLE scheduled_jobs DROP CONSTRAINT scheduled_jobs_values")
    finding = await find(pool, FindingCode.SCHEMA_DRIFT)
    assert "scheduled_jobs_values" in finding.evidence
    (step,) = finding.steps
    assert finding.remedy == f"{step.text} {step.command}"
    assert step.text.endswith("or execute as their owner:")
    await pool.execute(step.command)
    assert await subjects(pool, FindingCode.SCHEMA_DRIFT) == []


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (f"DROP INDEX {CLAIM}", FindingCode.INDEX_MISSING),
        (
            f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{CLAIM}'::regclass",
            FindingCode.INDEX_INVALID,
        ),
    ],
)
async def test_lost_claim_index_is_an_error_until_migrate_indexes_has_built_it(
    pool: asyncpg.Pool, dsn: str, damage: str, code: FindingCode
) -> None:
    await pool.execute(damage)
    diagnosis = await examine(pool, *INDEXES, FindingCode.SCHEMA_DRIFT)
    (finding,) = diagnosis.findings
    assert (finding.code, finding.subject, finding.severity) == (code, CLAIM, Severity.ERROR)
    assert finding.evidence.endswith("statements read whole tables, and no worker starts")
    with pytest.raises(SchemaMismatchError, match=CLAIM):
        await Scheduler(pool).start()
    assert finding.remedy is not None
    words = shlex.split(finding.remedy)[1:]
    assert await asyncio.to_thread(run_command, [*words, "--dsn", dsn]) == ExitCode.DONE
    assert (await examine(pool, *INDEXES, FindingCode.SCHEMA_DRIFT)).findings == ()
    async with Scheduler(pool) as scheduler:
        assert scheduler.is_running


async def test_checks_of_unsuccessful_jobs_are_made_without_other_indexes(pool: asyncpg.Pool) -> None:
    await pool.execute(f"DROP INDEX {CLAIM}")
    diagnosis = await examine(pool, FindingCode.QUARANTINE, FindingCode.RETENTION)
    assert FindingCode.QUARANTINE in diagnosis.made
    assert not [each for each in diagnosis.not_made if "index" in each.reason]


async def test_missing_index_is_found_until_it_is_built(pool: asyncpg.Pool) -> None:
    await pool.execute(f"DROP INDEX {INDEX}")
    finding = await find(pool, FindingCode.INDEX_MISSING)
    assert (finding.subject, finding.severity, finding.anchor) == (INDEX, Severity.WARNING, "index-missing")
    assert finding.remedy == "pg-scheduler migrate indexes"
    assert await subjects(pool, FindingCode.SCHEMA_DRIFT) == []
    async with pool.acquire() as connection:
        assert await build_indexes(connection) == [INDEX]
    assert await subjects(pool, FindingCode.INDEX_MISSING) == []


async def test_invalid_index_of_the_user_is_found_until_it_is_rebuilt(
    pool: asyncpg.Pool, world: World
) -> None:
    for job_id in ("a", "b"):
        await world.job(job_id, "x")
    with pytest.raises(asyncpg.UniqueViolationError):
        await pool.execute('CREATE UNIQUE INDEX CONCURRENTLY "Own" ON scheduled_jobs (job_name)')
    finding = await find(pool, FindingCode.INDEX_INVALID)
    assert finding.subject == "Own"
    assert finding.remedy == 'REINDEX INDEX CONCURRENTLY "public"."Own"'
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'b'")
    await pool.execute(finding.remedy)
    assert await subjects(pool, FindingCode.INDEX_INVALID) == []


async def test_invalid_index_of_the_library_is_rebuilt_by_migrate_indexes(pool: asyncpg.Pool) -> None:
    await pool.execute(f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{INDEX}'::regclass")
    diagnosis = await examine(pool, FindingCode.INDEX_INVALID, FindingCode.INDEX_MISSING)
    (finding,) = diagnosis.findings
    assert (finding.code, finding.remedy) == (FindingCode.INDEX_INVALID, "pg-scheduler migrate indexes")
    async with pool.acquire() as connection:
        assert await build_indexes(connection) == [INDEX]
    assert await subjects(pool, FindingCode.INDEX_INVALID) == []
