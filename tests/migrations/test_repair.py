"""Recreating dropped tables and lost records of the migrations."""

from __future__ import annotations

import asyncio
import re
from itertools import combinations

import asyncpg
import pytest

from pg_scheduler.base.sqltext import quote_identifier
from pg_scheduler.database.migrations.apply import apply
from pg_scheduler.database.migrations.plan import table_names
from pg_scheduler.database.migrations.routines import Routine, shipped_routines
from pg_scheduler.errors import SchemaMismatchError, SchemaMissingError
from pg_scheduler.migrate import Migration, migrate, shipped_migrations, verify
from tests.migrations.cases import check_each
from tests.migrations.dump import CHECKED_IN, describe
from tests.migrations.next_release import NEXT, OF_NEXT_RELEASE
from tests.support.logs import warnings_of
from tests.support.stories import LONG

SHIPPED = shipped_migrations()
HEAD = SHIPPED[-1].version
TABLES = table_names(SHIPPED)
SIZES = (1, len(TABLES) - 1, len(TABLES))  # each table, what depends on one, and all
PAIRS = [*combinations(TABLES, 2)]  # what two share
SUBSETS = [subset for size in SIZES for subset in combinations(TABLES, size)]
SUBSETS += PAIRS if LONG else PAIRS[::3]
ODD_SCHEMA = 'Odd "Schéma" 100%'

INSERT_ROWS = {
    "scheduled_jobs": (
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time) VALUES ('kept', 'a', now())"
    ),
    "vacuum_stats": "INSERT INTO vacuum_stats (stat_date) VALUES ('2020-01-01')",
    "scheduler_vacuum_passes": "INSERT INTO scheduler_vacuum_passes VALUES ('{}', 1, 'kept', now())",
    "scheduler_vacuum_ranges": "INSERT INTO scheduler_vacuum_ranges VALUES (0, 2000, 1, now())",
    "scheduler_workers": (
        "INSERT INTO scheduler_workers VALUES ('kept', 'host', 1, '1.0', 10, 0, now(), now(), now())"
    ),
    "scheduler_after": "INSERT INTO scheduler_after VALUES ('kept', 'other', 'ended')",
    "scheduler_starts": "INSERT INTO scheduler_starts VALUES ('limit:a:', 'kept', 1, now())",
    "scheduler_steps": (
        "INSERT INTO scheduler_steps VALUES ('kept', 'pay', 'step', '1', 1, NULL, now(), now())"
    ),
    "scheduler_tasks": "INSERT INTO scheduler_tasks VALUES ('kept', now(), NULL, NULL, 'me')",
    "scheduler_stats": "INSERT INTO scheduler_stats VALUES (now(), 60, 'kept', '{1}', '{1}', '{1}', '{1}')",
    "scheduler_totals": "INSERT INTO scheduler_totals VALUES ('kept', '{1}', '{1}', '{1}', '{1}', now())",
    "scheduler_audit": (
        "INSERT INTO scheduler_audit (at, actor, via, action) VALUES (now(), 'me', 'api', 'pause_task')"
    ),
    "scheduler_database": "INSERT INTO scheduler_database VALUES (1, '7', 5, '1', 'app', now(), 'me')",
    "scheduler_bulk_runs": (
        "INSERT INTO scheduler_bulk_runs VALUES"
        " ('kept', NULL, now(), 'me', 1, now(), 'me', 'running', now(), now())"
    ),
    "scheduler_deadlines": "INSERT INTO scheduler_deadlines VALUES (gen_random_uuid(), 'kept', now())",
    "scheduler_streams": "INSERT INTO scheduler_streams VALUES ('kept', 'first', 'words', 1, '1')",
    "scheduler_sequences": "INSERT INTO scheduler_sequences (key, job_id) VALUES ('zsequence:a:b', 'kept')",
    "scheduler_failures": (
        "INSERT INTO scheduler_failures VALUES"
        " (gen_random_uuid(), 'kept', 'mail', 'lost', 'failed', 1, now(), NULL, 'a')"
    ),
    "scheduler_error_groups": (
        "INSERT INTO scheduler_error_groups VALUES"
        " ('kept', 'mail', 'lost', 'failed', 1, now(), NULL, now(), NULL, 'a')"
    ),
    "scheduler_error_counts": "INSERT INTO scheduler_error_counts VALUES ('kept', 60, now(), 1)",
    "scheduler_results": (
        "INSERT INTO scheduler_results VALUES ('kept', 'completed', '1', NULL, NULL, 1, NULL, now(), now())"
    ),
    "scheduler_schedules": (
        "INSERT INTO scheduler_schedules (schedule_id, owner, task, trigger, kinds, described, task_data,"
        " options, metadata, overlap, catch_up, anchor, last_fire_at, next_fire_at, created_at, updated_at) "
        "VALUES ('kept', 'code', 'm.a', '{}', '{every}', 'every hour', '{}', '{}', '{}', 'allow', 'latest',"
        " '2020-01-01', '2020-01-01 01:00', '2020-01-01 02:00', now(), now())"
    ),
}


async def drop(connection: asyncpg.Connection, *tables: str) -> None:
    await connection.execute(f"DROP TABLE {', '.join(tables)} CASCADE")


async def temporary_tables(connection: asyncpg.Connection) -> list[str]:
    rows = await connection.fetch("SELECT relname FROM pg_class WHERE relpersistence = 't' AND relkind = 'r'")
    return [row["relname"] for row in rows]


@pytest.mark.parametrize("version", range(HEAD + 1))
async def test_table_names_are_the_tables_of_each_version(
    connection: asyncpg.Connection, version: int
) -> None:
    await migrate(connection, target=version)
    rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    assert {row["tablename"] for row in rows} == {*table_names(SHIPPED[:version]), "scheduler_migrations"}


@pytest.mark.slow
async def test_migrate_recreates_dropped_tables_and_keeps_the_others(
    connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await check_each(connection, check_dropped_tables, [(caplog, dropped) for dropped in SUBSETS])


async def check_dropped_tables(
    connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture, dropped: tuple[str, ...]
) -> None:
    caplog.clear()
    await migrate(connection)
    await connection.execute(f"TRUNCATE {', '.join(TABLES)}")
    for statement in INSERT_ROWS.values():
        await connection.execute(statement)
    await drop(connection, *dropped)
    with pytest.raises(SchemaMissingError, match=f"missing in schema 'public': {', '.join(dropped)}; call"):
        await verify(connection)

    assert await migrate(connection) == []
    await verify(connection)
    assert await describe(connection, "public") == CHECKED_IN.read_text(encoding="utf-8")
    for table in TABLES:
        assert await connection.fetchval(f"SELECT count(*) FROM {table}") == (table not in dropped)
    (warning,) = warnings_of(caplog)
    assert warning == (
        f"recreated what was missing in schema 'public': {', '.join(dropped)}; "
        "lost rows and privileges are not restored"
    )
    assert await temporary_tables(connection) == []

    assert await migrate(connection) == []
    assert len(warnings_of(caplog)) == 1


async def test_schedules_start_over_when_the_jobs_are_lost(
    connection: asyncpg.Connection,
) -> None:
    await migrate(connection)
    await connection.execute(INSERT_ROWS["scheduler_schedules"])
    before = await connection.fetchrow("SELECT * FROM scheduler_schedules")
    await drop(connection, "vacuum_stats")
    await migrate(connection)
    assert await connection.fetchrow("SELECT * FROM scheduler_schedules") == before
    await drop(connection, "scheduled_jobs")
    earliest = await connection.fetchval("SELECT now()")
    await migrate(connection)
    after = await connection.fetchrow("SELECT * FROM scheduler_schedules")
    assert before is not None
    assert after is not None
    assert after["anchor"] > earliest
    start = after["anchor"]
    fresh = {"anchor": start, "last_fire_at": None, "next_fire_at": start, "resume_from": start}
    assert dict(after) == dict(before) | fresh


async def test_migrate_recreates_the_tables_of_an_older_schema_and_upgrades_it(
    connection: asyncpg.Connection,
) -> None:
    await apply(connection, OF_NEXT_RELEASE)
    shape = await describe(connection, "public")
    assert await apply(connection, OF_NEXT_RELEASE, target=HEAD) == [NEXT.version]
    await drop(connection, "scheduled_jobs", "vacuum_stats")
    assert await apply(connection, OF_NEXT_RELEASE) == [NEXT.version]
    assert await describe(connection, "public") == shape


async def test_migrate_recreates_tables_before_it_reverts_migrations(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    await migrate(connection, target=0)
    of_0_2 = await describe(connection, "public")
    await migrate(connection)
    await drop(connection, "scheduled_jobs", "scheduler_workers")
    assert await migrate(connection, target=0) == list(range(HEAD, 0, -1))
    assert await describe(connection, "public") == of_0_2


async def test_migrate_recreates_tables_in_the_schema_of_the_records(connection: asyncpg.Connection) -> None:
    await connection.execute('CREATE SCHEMA "first"; SET search_path = "first", public')
    await migrate(connection, schema="public")
    await drop(connection, "scheduled_jobs")
    assert await migrate(connection) == []
    assert await describe(connection, "first") == ""
    assert await describe(connection, "public") == CHECKED_IN.read_text(encoding="utf-8")


async def test_migrate_recreates_tables_in_a_schema_with_an_odd_name(connection: asyncpg.Connection) -> None:
    await migrate(connection, schema=ODD_SCHEMA)
    await connection.execute(f"""DROP TABLE "{ODD_SCHEMA.replace('"', '""')}".scheduled_jobs""")
    assert await migrate(connection, schema=ODD_SCHEMA) == []
    assert await describe(connection, ODD_SCHEMA) == CHECKED_IN.read_text(encoding="utf-8")


async def test_one_of_twenty_connections_recreates_a_dropped_table(
    empty_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    connections = [await asyncpg.connect(empty_dsn) for _ in range(20)]
    try:
        await migrate(connections[0])
        await drop(connections[0], "scheduled_jobs", "vacuum_stats")
        results = await asyncio.gather(*(migrate(connection) for connection in connections))
        assert results == [[]] * 20
        assert await describe(connections[0], "public") == CHECKED_IN.read_text(encoding="utf-8")
    finally:
        for connection in connections:
            await connection.close()
    assert len(warnings_of(caplog)) == 1


async def test_table_that_a_newer_release_dropped_is_not_recreated(connection: asyncpg.Connection) -> None:
    less = Migration(
        HEAD + 1, "less", f"-- contract {HEAD:04}\nDROP TABLE {{schema}}vacuum_stats;", "SELECT 1;"
    )
    await apply(connection, [*SHIPPED, less])
    shape = await describe(connection, "public")
    await verify(connection)
    assert await migrate(connection) == []
    assert await apply(connection, [*SHIPPED, less]) == []
    assert await describe(connection, "public") == shape


@pytest.mark.parametrize("loss", ["DROP TABLE scheduler_migrations", "DELETE FROM scheduler_migrations"])
@pytest.mark.parametrize("dropped", [(), ("scheduled_jobs", "vacuum_stats"), tuple(TABLES[:1] + TABLES[2:])])
async def test_migrate_restores_lost_records(
    connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture, loss: str, dropped: tuple[str, ...]
) -> None:
    await migrate(connection)
    records = "SELECT version, name, checksum, needs FROM scheduler_migrations ORDER BY version"
    before = await connection.fetch(records)
    await connection.execute(loss)
    if dropped:
        await drop(connection, *dropped)
    with pytest.raises(SchemaMissingError):
        await verify(connection)

    assert await migrate(connection) == []
    await verify(connection)
    assert await connection.fetch(records) == before
    assert await describe(connection, "public") == CHECKED_IN.read_text(encoding="utf-8")
    missing = ", ".join(["the records in scheduler_migrations", *dropped])
    assert [message.partition("; ")[0] for message in warnings_of(caplog)] == [
        f"recreated what was missing in schema 'public': {missing}"
    ]
    assert await temporary_tables(connection) == []


@pytest.mark.parametrize("lost", ["= 1", f"= {NEXT.version}"])
async def test_migrate_names_the_remedy_when_some_records_are_lost(
    connection: asyncpg.Connection, lost: str
) -> None:
    await apply(connection, OF_NEXT_RELEASE)
    shape = await describe(connection, "public")
    await connection.execute(f"DELETE FROM scheduler_migrations WHERE version {lost}")
    with pytest.raises(SchemaMismatchError, match="does not fit the tables in schema 'public'") as caught:
        await apply(connection, OF_NEXT_RELEASE)
    await connection.execute(str(caught.value).partition(" executes: ")[2])
    assert await apply(connection, OF_NEXT_RELEASE) == []
    await verify(connection)
    assert await describe(connection, "public") == shape


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        ("ALTER TABLE scheduled_jobs DROP COLUMN crash_count", "column crash_count of scheduled_jobs"),
        (
            "ALTER TABLE scheduled_jobs DROP CONSTRAINT scheduled_jobs_states",
            "constraint scheduled_jobs_states of scheduled_jobs",
        ),
        ("DROP INDEX scheduled_jobs_claim", "index scheduled_jobs_claim of scheduled_jobs"),
    ],
)
@pytest.mark.parametrize("loss", ["DROP TABLE scheduler_migrations", "DELETE FROM scheduler_migrations"])
async def test_migrate_names_missing_parts_when_the_records_are_lost(
    connection: asyncpg.Connection, damage: str, part: str, loss: str
) -> None:
    await migrate(connection)
    await connection.execute(f"{damage}; {loss}")
    before = await describe(connection, "public")
    with pytest.raises(SchemaMissingError, match=f"lack parts of version {HEAD}: {part}; restore"):
        await migrate(connection)
    assert await describe(connection, "public") == before


def test_each_function_and_trigger_of_the_schema_is_known() -> None:
    lines = CHECKED_IN.read_text(encoding="utf-8").splitlines()
    names = {line.split("(")[0] for line in lines if line.startswith("function ")}
    names |= {
        f"trigger {line.split()[1]}" for line in lines if re.match(r"    constraint \w+ TRIGGER\b", line)
    }
    assert {str(routine) for routine in shipped_routines("jobs")} == names


@pytest.mark.parametrize("routine", shipped_routines("public"), ids=str)
async def test_function_or_trigger_that_was_dropped_is_created_again(
    connection: asyncpg.Connection, routine: Routine
) -> None:
    await migrate(connection)
    place = " ON scheduler_after" if routine.kind == "trigger" else " CASCADE"
    await connection.execute(f"DROP {routine.kind} {routine.name}{place}")
    with pytest.raises(SchemaMissingError, match=rf"are missing, .*{routine}"):
        await verify(connection)
    assert await migrate(connection) == []
    await verify(connection)
    assert await describe(connection, "public") == CHECKED_IN.read_text(encoding="utf-8")


async def test_functions_of_a_renamed_schema_are_written_for_its_new_name(
    connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await migrate(connection, schema=ODD_SCHEMA)
    await connection.execute(f"ALTER SCHEMA {quote_identifier(ODD_SCHEMA)} RENAME TO tenant")
    await migrate(connection, schema=ODD_SCHEMA)
    with pytest.raises(SchemaMissingError, match="function scheduler_add_job, function scheduler_cancel_job"):
        await verify(connection, schema="tenant")
    await migrate(connection, schema="tenant")
    assert "function scheduler_add_job" in warnings_of(caplog)[-1]
    await verify(connection, schema="tenant")
    job_id = await connection.fetchval("SELECT tenant.scheduler_add_job('a')")
    assert await connection.fetchval("SELECT job_id FROM tenant.scheduled_jobs") == job_id
    await connection.execute("SELECT tenant.scheduler_cancel_job($1)", job_id)
    assert await connection.fetchval("SELECT status FROM tenant.scheduled_jobs") == "cancelled"


async def test_functions_of_the_application_are_left_alone(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    await connection.execute(
        "CREATE FUNCTION scheduler_add_job(integer) RETURNS integer LANGUAGE sql AS 'SELECT 1'"
    )
    await verify(connection)
    assert await migrate(connection) == []
    assert await connection.fetchval("SELECT scheduler_add_job(7)") == 1
