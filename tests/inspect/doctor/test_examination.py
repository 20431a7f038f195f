"""The diagnosis as a whole: codes, severities, checks that are not made."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from pg_scheduler.inspect import Diagnosis, Finding, FindingCode, Inspector, Severity, Thresholds, UnmadeCheck
from pg_scheduler.inspect.doctor.codes import ADVICE
from pg_scheduler.inspect.doctor.examination import CHECKS
from pg_scheduler.inspect.store.grants import Role, grant_statements
from tests.inspect.doctor.support import examine
from tests.support.statements import Statements
from tests.support.world import HOUR, World


def test_each_code_belongs_to_one_check_and_has_advice() -> None:
    assert sorted(code for check in CHECKS for code in check.codes) == sorted(FindingCode)
    assert list(ADVICE) == list(FindingCode)


def test_diagnosis_sorts_by_severity_and_leaves_out_codes_that_were_not_asked_for() -> None:
    warning = Finding(FindingCode.SCHEMA_DRIFT, Severity.WARNING, "a", "text")
    error = Finding(FindingCode.INDEX_MISSING, Severity.ERROR, "b", "text")
    other = Finding(FindingCode.BLOAT, Severity.ERROR, "c", "text")
    unmade = UnmadeCheck(FindingCode.HOT_LOST, "hidden")
    asked = {FindingCode.SCHEMA_DRIFT, FindingCode.INDEX_MISSING, FindingCode.HOT_LOST}
    diagnosis = Diagnosis.of([warning, error, other], asked, [unmade])
    assert diagnosis.findings == (error, warning)
    assert diagnosis.made == (FindingCode.SCHEMA_DRIFT, FindingCode.INDEX_MISSING)
    assert (diagnosis.not_made, diagnosis.severity) == ((unmade,), Severity.ERROR)
    assert diagnosis.summary == "1 error, 1 warning; 2 checks made, 1 not made"
    assert Diagnosis.of([], [], []).summary == "no findings; 0 checks made"
    assert Diagnosis.of([], [], []).severity is Severity.OK


async def test_unknown_code_is_rejected_with_a_suggestion(pool: asyncpg.Pool) -> None:
    with pytest.raises(ValueError, match="unknown code 'index-mising'; did you mean INDEX-MISSING"):
        await Inspector(pool).doctor(only=["index-mising"])


@pytest.mark.parametrize(
    ("values", "error"), [({"dead_rows": -1}, ValueError), ({"dead_rows": "9"}, TypeError)]
)
def test_invalid_threshold_is_rejected(values: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="dead_rows must"):
        Thresholds(**values)


async def test_check_that_the_role_may_not_make_is_listed(pool: asyncpg.Pool, dsn: str) -> None:
    role = f"doctor_{await pool.fetchval('SELECT current_database()')}"
    await pool.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    try:
        async with asyncpg.create_pool(dsn, min_size=1, max_size=2, user=role, password="x") as own:
            diagnosis = await examine(own, FindingCode.SCHEMA_DRIFT, FindingCode.HOT_LOST, schema="public")
    finally:
        await pool.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
    assert diagnosis.made == (FindingCode.HOT_LOST,)
    (unmade,) = diagnosis.not_made
    assert unmade.code is FindingCode.SCHEMA_DRIFT
    assert "permission denied for table scheduler_migrations" in unmade.reason


async def test_role_of_the_exporter_makes_the_checks_of_what_it_reads(
    pool: asyncpg.Pool, world: World, dsn: str
) -> None:
    await world.worker("w1", wanted="drain", state="draining", running_jobs=1)
    await world.jobs(500, "doctor.read", due=HOUR)
    size = await pool.fetchval("SELECT pg_table_size('scheduled_jobs')")
    role = f"doctor_{await pool.fetchval('SELECT current_database()')}"
    await pool.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    try:
        await pool.execute("; ".join(grant_statements(Role.EXPORTER, "public", role)))
        async with asyncpg.create_pool(dsn, min_size=1, max_size=2, user=role, password="x") as own:
            workers = (FindingCode.WORKER_NONE, FindingCode.WORKER_DRAINING)
            live = await examine(own, *workers, schema="public")
            kept = await examine(own, FindingCode.RETENTION, schema="public", table_bytes=2 * size)
            large = await examine(own, FindingCode.RETENTION, schema="public", table_bytes=size // 2)
    finally:
        await pool.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
    assert live.made == (FindingCode.WORKER_NONE,)
    (unmade,) = live.not_made
    assert "permission denied for table scheduler_audit" in unmade.reason
    (unmade,) = kept.not_made
    assert unmade.reason.startswith("the growth of scheduled_jobs is unknown: ")
    assert "permission denied for table scheduler_stats" in unmade.reason
    assert [each.subject for each in large.findings] == ["scheduled_jobs"]


@pytest.mark.slow
async def test_statement_that_the_server_cancels_is_listed_as_not_made(pool: asyncpg.Pool, dsn: str) -> None:
    async with (
        pool.acquire() as connection,
        connection.transaction(),
        asyncpg.create_pool(dsn, min_size=1, max_size=2, server_settings={"statement_timeout": "999"}) as own,
    ):
        await connection.execute("LOCK TABLE scheduler_migrations")
        diagnosis = await examine(own, FindingCode.SCHEMA_BEHIND)
    assert diagnosis.not_made[0].reason.startswith("the server cancelled it: ")


async def test_examination_reads_once_what_several_checks_judge(world: World, dsn: str) -> None:
    await world.worker("w1", wanted="drain", state="draining")
    statements = Statements()
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2, init=statements.listen) as own:
        await examine(own)
        sent = (await statements.take()).named
    shared = ("inspect_backlog", "inspect_workers", "list_workers", "doctor_tables", "doctor_indexes")
    assert {name: sent[name] for name in shared} == dict.fromkeys(shared, 1)


async def test_doctor_changes_no_row(pool: asyncpg.Pool) -> None:
    async with pool.acquire() as connection:
        before = await connection.fetch(COUNTS)
        await examine(pool)
        await connection.execute("SELECT pg_stat_clear_snapshot()")
        assert await connection.fetch(COUNTS) == before


COUNTS = "SELECT relname, n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables ORDER BY relname"
