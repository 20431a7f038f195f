"""Findings about pools, poolers and notifications, made for real and resolved by their remedies."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.inspect import FindingCode, Inspector, Severity, Thresholds
from pg_scheduler.inspect.doctor.connections import NO_SECOND_SESSION, judge_server
from pg_scheduler.inspect.store.doctor import SettingRow
from pg_scheduler.inspect.store.server import ConnectionRow
from pg_scheduler.triggers import Every
from tests.cluster.bouncer import bouncer, find_program
from tests.inspect.doctor.support import examine, find, subjects
from tests.support.store import use_options
from tests.support.world import World

PROBES = (FindingCode.LISTEN_NO_DELIVERY, FindingCode.POOLER)


@pytest.fixture
def pooler_dsn(dsn: str) -> Iterator[str]:
    """The DSN of the test's database through a PgBouncer in transaction mode."""
    program = find_program("trixie")
    if program is None:
        pytest.skip("PgBouncer is missing; dev.py test fetches it if apt can read Debian's archive")
    with bouncer(program, dsn) as through:
        yield through


async def test_direct_connections_receive_notifications_and_keep_their_session(
    pool: asyncpg.Pool, dsn: str
) -> None:
    diagnosis = await examine(pool, *PROBES)
    assert (diagnosis.findings, diagnosis.not_made) == ((), ())


@pytest.mark.slow
async def test_pooler_is_found_and_a_direct_dsn_receives_notifications(pooler_dsn: str, dsn: str) -> None:
    async with asyncpg.create_pool(pooler_dsn, min_size=1, max_size=3, statement_cache_size=0) as pooled:
        found = (await examine(pooled, *PROBES, notification_s=0.3)).findings
        assert [each.code for each in found] == list(PROBES)
        assert "did not arrive within 0.3 s by the pool, so" in found[0].evidence
        assert "pass direct_dsn=" in (found[0].remedy or "")
        misled = Inspector(Scheduler(pooled, direct_dsn=pooler_dsn))
        limits = Thresholds(notification_s=0.3)
        (finding,) = (await misled.doctor(only=PROBES[:1], thresholds=limits)).findings
        assert "by direct_dsn=, so workers" in finding.evidence
        assert finding.remedy == "it leads to a pooler: direct_dsn= must lead to the server itself"
        scheduler = Scheduler(pooled, direct_dsn=dsn)
        (finding,) = (await Inspector(scheduler).doctor(only=PROBES)).findings
        assert (finding.code, finding.severity) == (FindingCode.POOLER, Severity.INFO)


@pytest.mark.slow
async def test_pooler_in_session_mode_is_found_since_no_worker_listens_through_it(dsn: str) -> None:
    program = find_program("trixie")
    if program is None:
        pytest.skip("PgBouncer is missing; dev.py test fetches it if apt can read Debian's archive")
    with bouncer(program, dsn, "pool_mode = session\ndefault_pool_size = 10") as through:
        async with asyncpg.create_pool(through, min_size=1, max_size=3) as pooled:
            (finding,) = (await examine(pooled, *PROBES)).findings
            assert finding.code is FindingCode.LISTEN_NO_DELIVERY
            assert finding.evidence.startswith("the pool leads to a pooler in session mode, and no worker")
            assert finding.remedy == "the pool leads to a pooler: pass direct_dsn= or --direct-dsn"
            scheduler = Scheduler(pooled, direct_dsn=dsn)
            assert (await Inspector(scheduler).doctor(only=PROBES)).findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["transaction", "session"])
async def test_doctor_examines_through_a_pooler_with_a_single_connection_to_the_server(
    dsn: str, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    program = find_program("trixie")
    if program is None:
        pytest.skip("PgBouncer is missing; dev.py test fetches it if apt can read Debian's archive")
    if mode == "session":
        use_options(monkeypatch, call_timeout_s=3)  # real time: the timeout is the subject
    with bouncer(program, dsn, f"default_pool_size = 1\npool_mode = {mode}") as through:
        async with asyncpg.create_pool(
            through, min_size=1, max_size=3, statement_cache_size=0, timeout=3
        ) as pooled:
            inspector = Inspector(Scheduler(pooled))
            diagnosis = await inspector.doctor(thresholds=Thresholds(notification_s=0.3))
    if mode == "transaction":
        (finding,) = [each for each in diagnosis.findings if each.code is FindingCode.POOLER]
        assert finding.severity is Severity.INFO
        assert diagnosis.not_made == ()
    else:
        assert {each.code for each in diagnosis.not_made} == {*PROBES}
        assert {check.reason for check in diagnosis.not_made} == {NO_SECOND_SESSION}


@pytest.mark.slow
async def test_prepared_statements_that_a_pooler_loses_are_an_error_until_the_pool_keeps_none(
    dsn: str,
) -> None:
    program = find_program("bookworm")
    if program is None:
        pytest.skip("PgBouncer is missing; dev.py test fetches it if apt can read Debian's archive")
    with bouncer(program, dsn) as through:
        async with asyncpg.create_pool(through, min_size=1, max_size=3) as preparing:
            diagnosis = await examine(preparing)
            (finding,) = [each for each in diagnosis.findings if each.code is FindingCode.POOLER]
            assert finding.severity is Severity.ERROR
            assert finding.evidence.startswith("prepared statements fail: ")
            assert (finding.remedy or "").startswith("use statement_cache_size=0, or PgBouncer 1.21")
            assert all("prepared statement" in each.reason for each in diagnosis.not_made)
        async with asyncpg.create_pool(through, min_size=1, max_size=3, statement_cache_size=0) as plain:
            assert (await find(plain, FindingCode.POOLER)).severity is Severity.INFO


async def test_pool_of_one_connection_cannot_be_probed(dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as single:
        diagnosis = await examine(single, *PROBES)
    assert [each.code for each in diagnosis.not_made] == list(PROBES)
    assert "single connection" in diagnosis.not_made[0].reason


async def test_small_pool_is_found_until_it_has_room_for_locks(pool: asyncpg.Pool, world: World) -> None:
    await world.worker(health='{"pool": {"size": 1, "idle": 1, "max": 3}}')
    finding = await find(pool, FindingCode.POOL_SMALL)
    assert (finding.severity, finding.subject) == (Severity.WARNING, "w1")
    assert finding.remedy == "use max_size=4, and more if jobs use the same pool"
    await pool.execute("""UPDATE scheduler_workers SET health = '{"pool": {"max": 4}}'""")
    assert await subjects(pool, FindingCode.POOL_SMALL) == []
    await Scheduler(pool).schedules.add("doctor.lock", Every(hours=1), schedule_id="locking")
    await pool.execute("UPDATE scheduler_schedules SET use_advisory_lock = true")
    finding = await find(pool, FindingCode.POOL_SMALL)
    assert finding.severity is Severity.INFO
    assert (finding.remedy or "").startswith("use max_size=5")
    await pool.execute("""UPDATE scheduler_workers SET health = '{"pool": {"max": 5}}'""")
    assert await subjects(pool, FindingCode.POOL_SMALL) == []


async def test_pools_that_exceed_the_server_are_found_until_they_are_smaller(
    pool: asyncpg.Pool, world: World
) -> None:
    await world.worker(health='{"pool": {"max": 5}}')
    assert await subjects(pool, FindingCode.CONNECTIONS) == []
    await world.worker("w2", health='{"pool": {"max": 100000}}')
    finding = await find(pool, FindingCode.CONNECTIONS)
    assert "2 live workers may open 100009 connections" in finding.evidence
    assert " for ordinary roles, " in finding.evidence
    assert " of them free; in use: " in finding.evidence
    await pool.execute("""UPDATE scheduler_workers SET health = '{"pool": {"max": 10}}'""")
    assert await subjects(pool, FindingCode.CONNECTIONS) == []


def test_server_without_free_connections_names_who_holds_them() -> None:
    settings = {
        "max_connections": SettingRow("10", "default"),
        "superuser_reserved_connections": SettingRow("3", "default"),
    }
    (finding,) = judge_server([], settings, [ConnectionRow("app", "web", 6)])
    assert finding.evidence == "1 of 7 connections for ordinary roles free; in use: 6 of app web"
    assert list(judge_server([], settings, [ConnectionRow("app", "web", 4)])) == []
