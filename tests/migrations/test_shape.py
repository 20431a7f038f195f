"""Tables that differ from those of the migrations, and the remedies of the messages."""

from __future__ import annotations

import re

import asyncpg
import pytest

from pg_scheduler.database.migrations.plan import table_names
from pg_scheduler.errors import SchemaMismatchError, SchemaMissingError
from pg_scheduler.migrate import build_indexes, migrate, missing_indexes, shipped_migrations, verify
from tests.migrations.cases import check_each
from tests.migrations.dump import CHECKED_IN, describe
from tests.support.logs import records_of

SHIPPED = shipped_migrations()
RECORDS = "scheduler_migrations"
READ_RECORDS = ("version", "checksum", "needs")
TABLES = [*table_names(SHIPPED), RECORDS]
ODD_SCHEMA = 'Odd "Schéma" {0} 100%'
ROWS = """
    INSERT INTO scheduled_jobs (job_id, job_name, execution_time)
        SELECT 'job ' || n, 'name', now() FROM generate_series(1, 3) AS n;
    UPDATE scheduled_jobs SET status = 'completed', finished_at = now() WHERE job_id = 'job 1';
"""


def columns() -> list[tuple[str, str, bool]]:
    """Return each table and column, and whether rows cannot do without a value."""
    found, table = [], ""
    for line in CHECKED_IN.read_text(encoding="utf-8").splitlines():
        kind, _, text = line.strip().partition(" ")
        if kind == "table":
            table = text
        elif kind == "column":
            found.append((table, text.split()[0], "NOT NULL" in text and "DEFAULT" not in text))
    return found


COLUMNS = columns()
PARTS = [
    *(
        (f"ALTER TABLE {table} DROP COLUMN {name}", f"column {name} of {table}")
        for table, name, _ in COLUMNS
        if (table, name) not in {(RECORDS, column) for column in READ_RECORDS}
    ),
    *(
        (f"ALTER TABLE scheduled_jobs DROP CONSTRAINT {name}", f"constraint {name} of scheduled_jobs")
        for name in ("scheduled_jobs_states", "scheduled_jobs_values", "scheduled_jobs_payload")
    ),
    (
        "ALTER TABLE scheduler_schedules DROP CONSTRAINT scheduler_schedules_counts",
        "constraint scheduler_schedules_counts of scheduler_schedules",
    ),
    ("DROP INDEX scheduled_jobs_claim", "index scheduled_jobs_claim of scheduled_jobs"),
    ("DROP INDEX scheduled_jobs_unique", "index scheduled_jobs_unique of scheduled_jobs"),
    *(
        (f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey", f"index {table}_pkey of {table}")
        for table in TABLES
    ),
    ("DROP INDEX scheduler_after_parent", "index scheduler_after_parent of scheduler_after"),
    ("DROP INDEX scheduler_after_child", "index scheduler_after_child of scheduler_after"),
    (
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'scheduled_jobs_claim'::regclass",
        "index scheduled_jobs_claim of scheduled_jobs",
    ),
]


async def mismatch(connection: asyncpg.Connection, *, schema: str | None = None) -> str:
    """Return the message of ``verify`` and ``migrate``, which must change nothing."""
    home = schema or "public"
    before = await describe(connection, home)
    with pytest.raises(SchemaMismatchError) as verified:
        await verify(connection, schema=schema)
    with pytest.raises(SchemaMismatchError) as migrated:
        await migrate(connection, schema=schema)
    assert str(verified.value) == str(migrated.value)
    assert await describe(connection, home) == before
    return str(verified.value)


def remedy(message: str) -> str:
    """Return the statements of a message."""
    found = re.search(r"execute as (?:their owner|the owner of the table|a superuser): (.+)$", message)
    assert found, message
    return found[1]


async def assert_repaired(connection: asyncpg.Connection) -> None:
    await verify(connection)
    assert await migrate(connection) == []
    await build_indexes(connection)  # of those that a dropped column took along
    shape = CHECKED_IN.read_text(encoding="utf-8")
    assert sorted((await describe(connection, "public")).splitlines()) == sorted(shape.splitlines())


async def test_missing_part_is_named_and_its_remedy_works(connection: asyncpg.Connection) -> None:
    await check_each(connection, check_missing_part, PARTS)


async def check_missing_part(connection: asyncpg.Connection, damage: str, part: str) -> None:
    await migrate(connection)
    await connection.execute(damage)
    message = await mismatch(connection)
    assert f"in schema 'public' differ from version {SHIPPED[-1].version}: " in message
    assert f"{part} is missing" in message
    if "indisvalid" in damage:
        await connection.execute("DROP INDEX scheduled_jobs_claim")
    if part == f"column name of {RECORDS}":  # the records need a value
        await connection.execute(f"DROP TABLE {RECORDS}")
        assert await migrate(connection) == []
    else:
        await connection.execute(remedy(message))
    await assert_repaired(connection)


@pytest.mark.parametrize("column", READ_RECORDS)
async def test_records_that_cannot_be_read_are_restored_after_the_remedy(
    connection: asyncpg.Connection, column: str
) -> None:
    await migrate(connection)
    await connection.execute(f"ALTER TABLE {RECORDS} DROP COLUMN {column}")
    message = await mismatch(connection)
    assert f'"public".{RECORDS} cannot be read (column record.{column} does not exist)' in message
    await connection.execute(remedy(message))
    assert await migrate(connection) == []
    await assert_repaired(connection)


async def test_dropped_table_is_the_remedy_when_rows_need_the_lost_values(
    connection: asyncpg.Connection,
) -> None:
    columns = [(name,) for table, name, _ in COLUMNS if table == "scheduled_jobs"]
    await check_each(connection, check_lost_values, columns)


async def check_lost_values(connection: asyncpg.Connection, column: str) -> None:
    await migrate(connection)
    await connection.execute(f"TRUNCATE scheduled_jobs; {ROWS}")
    await connection.execute(f"ALTER TABLE scheduled_jobs DROP COLUMN {column}")
    message = await mismatch(connection)
    needs_value = ("scheduled_jobs", column, True) in COLUMNS
    if needs_value or column in {"status", "finished_at"}:  # a completed job never becomes pending
        with pytest.raises((asyncpg.NotNullViolationError, asyncpg.CheckViolationError)):
            await connection.execute(remedy(message))
        await connection.execute("DROP TABLE scheduled_jobs")
        assert await migrate(connection) == []
        assert await connection.fetchval("SELECT count(*) FROM scheduled_jobs") == 0
    else:
        await connection.execute(remedy(message))
        assert await connection.fetchval("SELECT count(*) FROM scheduled_jobs") == 3
    await assert_repaired(connection)


@pytest.mark.parametrize(
    ("table", "column", "kind", "expected"),
    [
        ("scheduled_jobs", "job_id", "character varying(100)", "text"),
        ("scheduled_jobs", "execution_time", "timestamp without time zone", "timestamp with time zone"),
        ("scheduled_jobs", "status", "character varying(20)", "text"),
        ("scheduled_jobs", "task_data", "json", "jsonb"),
        ("scheduled_jobs", "task_data", "text", "jsonb"),
        ("scheduled_jobs", "attempt", "bigint", "integer"),
        ("scheduled_jobs", "lock_key", "text", "bigint"),
        ("scheduler_workers", "last_beat", "timestamp without time zone", "timestamp with time zone"),
        ("scheduler_workers", "pid", "bigint", "integer"),
        ("vacuum_stats", "stat_date", "timestamp with time zone", "date"),
        (RECORDS, "checksum", "character varying(100)", "text"),
        (RECORDS, "version", "bigint", "integer"),
    ],
)
async def test_wrong_type_is_named_and_its_remedy_works(
    connection: asyncpg.Connection, table: str, column: str, kind: str, expected: str
) -> None:
    await migrate(connection)
    await connection.execute(ROWS)
    command = f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {kind} USING {column}::{kind}"
    await connection.execute(command)
    message = await mismatch(connection)
    assert f"column {column} of {table} has the type {kind}, expected {expected};" in message
    await connection.execute(remedy(message))
    await assert_repaired(connection)
    assert await connection.fetchval("SELECT count(*) FROM scheduled_jobs") == 3


async def test_message_names_every_difference(connection: asyncpg.Connection) -> None:
    await migrate(connection, schema=ODD_SCHEMA)
    home = '"' + ODD_SCHEMA.replace('"', '""') + '"'
    await connection.execute(f"""
        ALTER TABLE {home}.scheduled_jobs DROP COLUMN finished_at;
        ALTER TABLE {home}.vacuum_stats DROP COLUMN last_run;
        ALTER TABLE {home}.scheduled_jobs ALTER COLUMN crash_count TYPE bigint;
    """)
    message = await mismatch(connection, schema=ODD_SCHEMA)
    assert (
        "column finished_at of scheduled_jobs is missing, "
        "column crash_count of scheduled_jobs has the type bigint, expected integer, "
        "constraint scheduled_jobs_payload of scheduled_jobs is missing, "
        "constraint scheduled_jobs_states of scheduled_jobs is missing, "
        "index scheduled_jobs_claim of scheduled_jobs is missing, "
        "index scheduled_jobs_ended of scheduled_jobs is missing, "
        "index scheduled_jobs_unique of scheduled_jobs is missing, "
        "column last_run of vacuum_stats is missing;"
    ) in message
    await connection.execute(remedy(message))
    await verify(connection, schema=ODD_SCHEMA)


async def test_additional_parts_and_other_names_of_indexes_are_allowed(
    connection: asyncpg.Connection,
) -> None:
    await migrate(connection)
    await connection.execute("""
        ALTER TABLE scheduled_jobs ADD COLUMN tenant text, ADD CONSTRAINT short CHECK (length(tenant) < 9);
        CREATE INDEX ON scheduled_jobs (tenant);
        ALTER INDEX scheduled_jobs_claim RENAME TO other_claim;
        ALTER INDEX scheduled_jobs_pkey RENAME TO "Other Key";
        ALTER INDEX other_claim SET (fillfactor = 70);
        REINDEX TABLE scheduled_jobs;
        CREATE RULE off AS ON DELETE TO scheduled_jobs DO INSTEAD NOTHING;
        ALTER TABLE scheduled_jobs DISABLE RULE off;
        CREATE PUBLICATION jobs FOR TABLE scheduled_jobs;
    """)
    await verify(connection)
    assert await migrate(connection) == []


REPLACEMENTS = {
    "view": "CREATE VIEW {} AS SELECT * FROM moved.{}",
    "materialized view": "CREATE MATERIALIZED VIEW {} AS SELECT * FROM moved.{}",
    "partitioned table": "CREATE TABLE {} (LIKE moved.{}) PARTITION BY HASH ({})",
    "foreign table": "CREATE FOREIGN TABLE {} () SERVER elsewhere",
    "sequence": "CREATE SEQUENCE {}",
    "composite type": "CREATE TYPE {} AS (id text)",
}


@pytest.mark.parametrize(
    ("kind", "table"),
    [*((kind, TABLES[0]) for kind in REPLACEMENTS), ("view", RECORDS), ("partitioned table", RECORDS)],
)
async def test_object_of_another_kind_in_place_of_a_table_is_rejected(
    connection: asyncpg.Connection, kind: str, table: str
) -> None:
    await migrate(connection)
    key = next(name for owner, name, _ in COLUMNS if owner == table)
    await connection.execute(
        "CREATE SCHEMA moved; CREATE FOREIGN DATA WRAPPER w; CREATE SERVER elsewhere FOREIGN DATA WRAPPER w"
    )
    await connection.execute(f"ALTER TABLE {table} SET SCHEMA moved")
    await connection.execute(REPLACEMENTS[kind].format(table, table, key))
    message = await mismatch(connection)
    assert message.startswith(f'"public".{table} is a {kind}, not an ordinary table; drop it, or move it')
    statement = re.search(r"(ALTER .+ SET SCHEMA) \.\.\.", message)
    assert statement
    await connection.execute(f"CREATE SCHEMA away; {statement[1]} away")
    assert await migrate(connection) == []
    await assert_repaired(connection)


async def test_view_in_place_of_the_jobs_is_rejected_in_a_new_schema(connection: asyncpg.Connection) -> None:
    await connection.execute("CREATE VIEW scheduled_jobs AS SELECT 1 AS job_id")
    with pytest.raises(SchemaMismatchError, match=r'"public"\.scheduled_jobs is a view'):
        await migrate(connection)
    assert await describe(connection, "public") == ""


DAMAGES = [
    ('CREATE RULE "a rule" AS ON UPDATE TO {} DO ALSO NOTHING', 'has the rule "a rule", which'),
    ('CREATE TABLE "a child" () INHERITS ({})', 'has the child table public."a child", whose rows'),
    (
        'CREATE PUBLICATION "all" FOR ALL TABLES; ALTER TABLE {} REPLICA IDENTITY NOTHING',
        'has no replica identity and is in the publication "all"',
    ),
    (
        """CREATE PUBLICATION one FOR TABLE {0} WITH (publish = 'delete');
        CREATE UNIQUE INDEX once ON {0} ({1}); ALTER TABLE {0} REPLICA IDENTITY USING INDEX once;
        DROP INDEX once""",
        "has no replica identity and is in the publication one",
    ),
]


async def test_objects_that_change_or_reject_statements_are_rejected(
    connection: asyncpg.Connection,
) -> None:
    cases = [(table, *damage) for table in TABLES for damage in DAMAGES]
    await check_each(connection, check_object, cases)


async def check_object(connection: asyncpg.Connection, table: str, damage: str, text: str) -> None:
    await connection.execute('DROP PUBLICATION IF EXISTS "all", one')  # of the previous case
    await migrate(connection)
    key = next(name for owner, name, _ in COLUMNS if owner == table)
    await connection.execute(damage.format(table, key))
    message = await mismatch(connection)
    assert message.startswith(f'"public".{table} {text}')
    await connection.execute(remedy(message))
    await connection.execute('DROP TABLE IF EXISTS "a child"')
    await assert_repaired(connection)


async def test_replica_identity_is_checked_only_in_a_publication_of_updates(
    connection: asyncpg.Connection,
) -> None:
    await migrate(connection)
    await connection.execute("ALTER TABLE scheduled_jobs REPLICA IDENTITY NOTHING")
    await verify(connection)
    await connection.execute("CREATE PUBLICATION one FOR TABLE scheduled_jobs WITH (publish = 'insert')")
    await verify(connection)
    await connection.execute("ALTER PUBLICATION one SET (publish = 'insert, update')")
    await mismatch(connection)


WITHOUT_PRIMARY_KEY = """
    SELECT relname FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
      AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = pg_class.oid AND indisprimary AND indisvalid)
"""


async def test_every_table_has_a_primary_key(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    assert await connection.fetch(WITHOUT_PRIMARY_KEY) == []


OWNED_SEQUENCES = "SELECT relname FROM pg_class WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace"


async def test_no_key_comes_from_a_sequence(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    assert await connection.fetch(OWNED_SEQUENCES) == []


async def check_key(connection: asyncpg.Connection, table: str) -> None:
    await connection.execute('DROP PUBLICATION IF EXISTS "all"')  # of the previous case
    await migrate(connection)
    await connection.execute(
        f'CREATE PUBLICATION "all" FOR ALL TABLES; ALTER TABLE {table} DROP CONSTRAINT {table}_pkey'
    )
    message = await mismatch(connection)
    assert message.startswith(f'"public".{table} has no primary key and no other replica identity, and is in')
    await connection.execute(remedy(message))
    await connection.execute(f"UPDATE {table} SET {READ_COLUMNS[table]} = {READ_COLUMNS[table]}")
    message = await mismatch(connection)
    assert f"index {table}_pkey of {table} is missing" in message
    await connection.execute(remedy(message))
    await connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY DEFAULT")
    await assert_repaired(connection)


READ_COLUMNS = {table: name for table, name, _ in reversed(COLUMNS)}
"""A column of each table."""


async def test_table_without_a_primary_key_in_a_publication_is_rejected(
    connection: asyncpg.Connection,
) -> None:
    await check_each(connection, check_key, [(table,) for table in TABLES])


async def test_migration_adds_the_key_for_want_of_which_a_publication_rejects_updates(
    connection: asyncpg.Connection,
) -> None:
    await migrate(connection, target=2)
    await connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    with pytest.raises(SchemaMissingError, match="lack the migrations 0003, 0004, 0005, 0006"):
        await verify(connection)
    assert await migrate(connection) == [3, 4, 5, 6]
    await verify(connection)


POLICIES = [
    ("SELECT 1", False),
    ("CREATE POLICY mine ON scheduled_jobs USING (job_name = 'mine')", False),
    ("CREATE POLICY others ON scheduled_jobs TO pg_monitor USING (true)", False),
    ("CREATE POLICY one ON scheduled_jobs FOR SELECT USING (true)", False),
    ("CREATE POLICY every ON scheduled_jobs USING (true)", True),
    ("CREATE POLICY own ON scheduled_jobs TO {role} USING (true)", True),
    (
        """CREATE POLICY every ON scheduled_jobs USING (true);
        CREATE POLICY less ON scheduled_jobs AS RESTRICTIVE USING (job_name = 'mine')""",
        False,
    ),
    (
        """CREATE POLICY r ON scheduled_jobs FOR SELECT USING (true);
        CREATE POLICY w ON scheduled_jobs FOR UPDATE USING (true);
        CREATE POLICY d ON scheduled_jobs FOR DELETE USING (true)""",
        True,
    ),
]


@pytest.mark.parametrize(("policies", "is_accepted"), POLICIES)
async def test_row_level_security_that_may_hide_rows_is_rejected(
    connection: asyncpg.Connection, policies: str, is_accepted: bool
) -> None:
    await migrate(connection)
    database = await connection.fetchval("SELECT current_database()")
    role = f"Worker {database}"
    await connection.execute(f'CREATE ROLE "{role}"; GRANT SELECT ON {RECORDS} TO "{role}"')
    try:
        await connection.execute("ALTER TABLE scheduled_jobs ENABLE ROW LEVEL SECURITY")
        await connection.execute(policies.format(role=f'"{role}"'))
        await verify(connection)  # the owner sees all rows
        await connection.execute(f'SET ROLE "{role}"')
        if not is_accepted:
            with pytest.raises(SchemaMismatchError, match="may hide rows from the role") as caught:
                await verify(connection)
            await connection.execute(f"RESET ROLE; {remedy(str(caught.value))}")
            await connection.execute(f'SET ROLE "{role}"')
        await verify(connection)
    finally:
        await connection.execute(f'RESET ROLE; DROP OWNED BY "{role}"; DROP ROLE "{role}"')


async def test_unlogged_tables_are_warned_about(
    connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await migrate(connection)
    await verify(connection)
    assert not records_of(caplog)
    await connection.execute("ALTER TABLE vacuum_stats SET UNLOGGED; ALTER TABLE scheduled_jobs SET UNLOGGED")
    await verify(connection)
    (record,) = records_of(caplog)
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        "unlogged tables in schema 'public': scheduled_jobs, vacuum_stats; the server empties them after a "
        "crash, and a standby does not have them; execute ALTER TABLE ... SET LOGGED"
    )


async def test_tables_of_a_newer_release_may_differ(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    await connection.execute(
        f"INSERT INTO {RECORDS} (version, name, checksum, needs) VALUES (9999, 'newer', 'x', 1);"
        "ALTER TABLE vacuum_stats DROP COLUMN last_run"
    )
    await verify(connection)
    assert await migrate(connection) == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("quote_all_identifiers", "on"),
        ("search_path", ""),
        ("search_path", "information_schema"),
        ("standard_conforming_strings", "off"),
        ("IntervalStyle", "sql_standard"),
        ("DateStyle", "SQL, DMY"),
        ("bytea_output", "escape"),
        ("default_with_oids", "off"),
    ],
)
async def test_settings_of_a_session_change_no_shape(dsn: str, setting: str, value: str) -> None:
    """They change the texts of the definitions in the catalogue."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("SELECT set_config($1, $2, false)", setting, value)
    await migrate(connection, schema=ODD_SCHEMA)
    for schema in ("public", ODD_SCHEMA):
        await verify(connection, schema=schema)
        assert await missing_indexes(connection, schema=schema) == []
    await connection.close()
