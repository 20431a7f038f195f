"""Findings about the server, clocks, transactions and the role, made for real and resolved by remedies."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from pg_scheduler.inspect import FindingCode, Inspector, Severity
from pg_scheduler.inspect.doctor.database import (
    judge_clocks,
    judge_holders,
    judge_notifications,
    judge_version,
)
from pg_scheduler.inspect.store.server import HolderRow, Ping
from tests.inspect.doctor.support import examine, find, subjects, until
from tests.support.inside import Connections, Store
from tests.support.world import World
from tools.chaos.proxy import Proxy


def test_postgresql_13_is_an_error() -> None:
    (finding,) = judge_version("130014", "13.14")
    assert (finding.code, finding.severity) == (FindingCode.DB_VERSION, Severity.ERROR)


@pytest.mark.parametrize(
    ("number", "version", "corrections"),
    [
        ("140003", "14.3", ["before 14.4", "before 14.9"]),
        ("140004", "14.4", ["before 14.9"]),
        ("140009", "14.9", []),
        ("150003", "15.3 (Debian 15.3-0+deb12u1)", ["before 15.4"]),
        ("150004", "15.4", []),
        ("160000", "16.0", []),
        ("180000", "18.0", []),
    ],
)
def test_minor_releases_with_faults_are_warnings_that_name_the_correction(
    number: str, version: str, corrections: list[str]
) -> None:
    findings = list(judge_version(number, version))
    assert [finding.subject for finding in findings] == corrections
    for finding in findings:
        assert (finding.code, finding.severity) == (FindingCode.DB_VERSION, Severity.WARNING)
        assert finding.evidence.startswith(f"the server is PostgreSQL {version}; {finding.subject}, ")
        assert finding.remedy is not None
        assert finding.remedy.startswith("upgrade PostgreSQL to the newest release of ")


async def test_round_trip_is_found_above_its_threshold(pool: asyncpg.Pool) -> None:
    finding = await find(pool, FindingCode.DB_RTT, round_trip_s=0)
    assert "ms at least" in finding.evidence
    assert await subjects(pool, FindingCode.DB_RTT, round_trip_s=60) == []


async def test_round_trip_is_measured_alike_without_a_cache_of_statements(proxied: tuple[Proxy, str]) -> None:
    proxy, dsn = proxied
    sent = []
    for size in (100, 0):
        async with asyncpg.create_pool(dsn, min_size=1, max_size=1, statement_cache_size=size) as pool:
            inspector = Inspector(pool, schema="public")
            before = proxy.sent
            await inspector._store.server.ping()
            sent.append(proxy.sent - before)
    assert sent[0] == sent[1], "each ping is one round trip"


async def test_clock_of_this_machine_is_compared_with_that_of_the_server(pool: asyncpg.Pool) -> None:
    assert "this machine" not in await subjects(pool, FindingCode.CLOCK, clock_s=30)
    assert [each.evidence for each in judge_clocks(Ping(0.002, -90), [], None, 1)] == [
        "the clock of this machine is 90 s behind that of the server"
    ]
    assert list(judge_clocks(Ping(0.5, 1.1), [], None, 1)) == [], (
        "the round trip is longer than the difference"
    )


@pytest.mark.parametrize(("offset_s", "words"), [(600.2, "10 min ahead of"), (-600.2, "10 min behind")])
async def test_worker_whose_clock_differs_is_named(
    pool: asyncpg.Pool, world: World, offset_s: float, words: str
) -> None:
    await world.worker(health='{"clock_offset_s": 0.4}')
    await world.worker("w2", health='{"clock_offset_s": "x"}')
    assert await subjects(pool, FindingCode.CLOCK, clock_s=30) == []
    await world.worker("w3", health=f'{{"clock_offset_s": {offset_s}}}')
    finding = await find(pool, FindingCode.CLOCK, clock_s=30)
    assert finding.subject == "w3"
    assert f"{words} that of the server" in finding.evidence


async def test_heartbeat_in_the_future_is_found_until_leases_restart(
    pool: asyncpg.Pool, world: World
) -> None:
    await world.worker()
    assert await subjects(pool, FindingCode.CLOCK, clock_s=30) == []
    await pool.execute(
        "UPDATE scheduler_workers "
        "SET last_beat = now() + interval '1 hour', lease_until = now() + interval '61 minutes'"
    )
    finding = await find(pool, FindingCode.CLOCK, clock_s=30)
    assert finding.subject == "w1"
    assert "lies 60 min in the future" in finding.evidence
    await Store(Connections(pool)).workers.restart_leases()
    assert await subjects(pool, FindingCode.CLOCK, clock_s=30) == []


async def test_open_transaction_is_found_until_it_is_terminated(pool: asyncpg.Pool, dsn: str) -> None:
    holder = await asyncpg.connect(dsn, server_settings={"application_name": "report"})
    try:
        await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await holder.fetch("SELECT count(*) FROM scheduled_jobs")
        subject = f"transaction {holder.get_server_pid()}"
        finding = await find(pool, FindingCode.XMIN_HELD, held_s=0)
        assert finding.subject == subject
        assert "(report) has kept dead rows for" in finding.evidence
        assert finding.evidence.endswith("last statement: SELECT count(*) FROM scheduled_jobs")
        assert await subjects(pool, FindingCode.XMIN_HELD) == []
        assert finding.remedy is not None
        await pool.execute(finding.remedy)
        await until(pool, FindingCode.XMIN_HELD, [], held_s=0)
    finally:
        holder.terminate()


async def test_full_queue_of_notifications_is_found_until_its_reader_ends(
    pool: asyncpg.Pool, dsn: str
) -> None:
    limits = {"notify_queue": 0.0001}
    assert await subjects(pool, FindingCode.NOTIFY_QUEUE, **limits) == []
    listener = await asyncpg.connect(dsn)
    try:
        await listener.execute("LISTEN own")
        await listener.execute("BEGIN; SELECT 1")
        await pool.execute(
            "SELECT pg_notify('own', n || repeat('x', 7900)) FROM generate_series(1, 300) AS n"
        )
        finding = await find(pool, FindingCode.NOTIFY_QUEUE, **limits)
        assert (finding.severity, "0.0" in finding.evidence) == (Severity.WARNING, True)
    finally:
        listener.terminate()
    await until(pool, FindingCode.NOTIFY_QUEUE, [], **limits)
    (finding,) = judge_notifications(0.5, 0.1)
    assert (finding.severity, finding.evidence.partition(" ")[0]) == (Severity.ERROR, "50.00%")


def test_slots_standbys_and_prepared_transactions_have_remedies_of_their_own() -> None:
    holders = [
        HolderRow("prepared", "it's", "ada", 900.0, 5, None),
        HolderRow("inactive slot", "backup", "", None, 2_000_000, None),
        HolderRow("slot", "replica", "", None, 5, None),
        HolderRow("standby", "77", "replica", None, 3_000_000, None),
    ]
    found = list(judge_holders(holders, 600, 1_000_000))
    assert [each.subject for each in found] == ["prepared it's", "inactive slot backup", "standby 77"]
    remedies = [each.remedy or "" for each in found]
    assert remedies[0] == "COMMIT PREPARED 'it''s' or ROLLBACK PREPARED 'it''s'"
    assert "SELECT pg_drop_replication_slot('backup')" in remedies[1]
    assert "hot_standby_feedback" in remedies[2]
    assert "2,000,000 transactions" in found[1].evidence


@pytest.fixture
async def own(pool: asyncpg.Pool, dsn: str) -> AsyncIterator[asyncpg.Pool]:
    """A pool of a role without privileges."""
    role = f"doctor_{await pool.fetchval('SELECT current_database()')}"
    await pool.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    # Before PostgreSQL 15, every role may create tables in this schema.
    await pool.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    try:
        async with asyncpg.create_pool(dsn, min_size=1, max_size=2, user=role, password="x") as restricted:
            yield restricted
    finally:
        await pool.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


async def test_missing_rights_are_found_until_they_are_granted(pool: asyncpg.Pool, own: asyncpg.Pool) -> None:
    assert (await find(pool, FindingCode.RIGHTS)).severity is Severity.INFO, "it is a superuser"
    (finding,) = (await examine(own, FindingCode.RIGHTS, schema="public")).findings
    assert finding.remedy is not None
    assert 'GRANT SELECT ON "public".scheduler_migrations TO' in finding.remedy
    assert finding.severity is Severity.ERROR
    assert "so checks are not made" in finding.evidence
    role = await own.fetchval("SELECT current_user")
    await pool.execute(
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}; GRANT INSERT ON scheduled_jobs TO {role}"
    )
    assert (await find(own, FindingCode.RIGHTS)).severity is Severity.WARNING, "it can make the checks"
    await pool.execute(finding.remedy)
    diagnosis = await examine(own, schema="public")
    assert not [each for each in diagnosis.findings if each.code is FindingCode.RIGHTS]
    assert {each.code for each in diagnosis.not_made} == {FindingCode.XMIN_HELD}


async def test_transactions_of_others_that_the_role_may_not_see_are_listed_as_not_examined(
    pool: asyncpg.Pool, own: asyncpg.Pool
) -> None:
    (unmade,) = (await examine(own, FindingCode.XMIN_HELD, schema="public")).not_made
    grant = unmade.reason.partition("as a superuser: ")[2]
    assert grant.startswith("GRANT pg_read_all_stats TO")
    await pool.execute(grant)
    assert (await examine(own, FindingCode.XMIN_HELD, schema="public")).not_made == ()


@pytest.mark.parametrize(
    ("code", "setting", "value"),
    [
        (FindingCode.TIMEOUTS, "statement_timeout", "5s"),
        (FindingCode.ISOLATION, "default_transaction_isolation", "serializable"),
    ],
)
async def test_setting_of_the_database_is_found_until_the_role_has_another_one(
    pool: asyncpg.Pool, dsn: str, code: FindingCode, setting: str, value: str
) -> None:
    assert await subjects(pool, code) == []
    database = await pool.fetchval("SELECT current_database()")
    await pool.execute(f"ALTER DATABASE {database} SET {setting} = '{value}'")
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as later:
        finding = await find(later, code)
        assert (finding.subject, finding.severity) == (setting, Severity.WARNING)
        assert "(from: database)" in finding.evidence
        assert finding.remedy is not None
        await pool.execute(finding.remedy)
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as latest:
        assert await subjects(latest, code) == []


async def test_setting_of_the_pool_is_to_be_removed_there(dsn: str) -> None:
    settings = {"statement_timeout": "30000"}
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2, server_settings=settings) as own:
        finding = await find(own, FindingCode.TIMEOUTS)
        assert finding.remedy is not None
        assert finding.remedy.startswith("remove statement_timeout from server_settings=")
