"""Recreate dropped tables, functions and lost records of the migrations, without touching tables that exist.

The migrations run again with every statement about an existing table redirected to an empty temporary table
of the same name. A recreated table is therefore exactly the one that the migrations make. The privileges that
other roles had on it are lost.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pg_scheduler.base.sqltext import qualify, quote_identifier
from pg_scheduler.database.migrations.plan import table_names
from pg_scheduler.database.migrations.records import (
    MIGRATION_TIMEOUT_S,
    RECORDS,
    create_records,
    insert_record,
)
from pg_scheduler.database.migrations.routines import shipped_routines
from pg_scheduler.database.migrations.shape import LATER_INDEXES
from pg_scheduler.errors import SchemaMissingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pg_scheduler.database.migrations.plan import Migration
    from pg_scheduler.database.migrations.records import AnyConnection
    from pg_scheduler.database.migrations.routines import Routine


_TABLES_OF_0_2: Final = ("scheduled_jobs", "vacuum_stats")

_NAME: Final = re.compile(r"\{schema\}(\w+)")

# The tables of pg-scheduler 0.2 have none of these columns.
_IS_MIGRATED = """
    SELECT EXISTS (
        SELECT FROM pg_catalog.pg_attribute
        WHERE (attrelid, attname) IN (
                (pg_catalog.to_regclass($1), 'attempt'), (pg_catalog.to_regclass($2), 'deleted_expired')
            )
          AND NOT attisdropped
    )
"""
_MISSING_PARTS = """
    WITH relation AS (
        SELECT class.oid, class.relnamespace, class.relname
        FROM pg_catalog.pg_class AS class
        WHERE class.relname = ANY ($2::text[])
    ), part (schema, relation, kind, name) AS (
        SELECT relnamespace, relname, 'column', attname
        FROM relation
        JOIN pg_catalog.pg_attribute ON attrelid = relation.oid AND attnum > 0 AND NOT attisdropped
        UNION ALL
        SELECT relation.relnamespace, relname, 'constraint', conname
        FROM relation
        JOIN pg_catalog.pg_constraint ON conrelid = relation.oid AND contype <> 'n'
        UNION ALL
        SELECT relation.relnamespace, relation.relname, 'index', index.relname
        FROM relation
        JOIN pg_catalog.pg_index ON indrelid = relation.oid
        JOIN pg_catalog.pg_class AS index ON index.oid = indexrelid
    )
    SELECT concat_ws(' ', kind, name, 'of', relation)
    FROM (
        SELECT relation, kind, name
        FROM part
        WHERE schema = pg_catalog.pg_my_temp_schema() AND name <> ALL ($3::text[])
        EXCEPT
        SELECT relation, kind, name
        FROM part
        WHERE schema = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = $1)
    ) AS missing
    ORDER BY relation, kind, name
"""
# With resume_from, the planner computes the next fire time from now on.
_RESTART_SCHEDULES: Final = """
    UPDATE {schema}scheduler_schedules
    SET anchor = now(), last_fire_at = NULL, next_fire_at = now(), resume_from = now()
    WHERE owner = 'code'
"""


async def recreate_tables(
    connection: AnyConnection, home: str, applied: Sequence[Migration], missing: Sequence[str]
) -> None:
    """Create the missing tables of a schema with these applied migrations.

    If ``scheduled_jobs`` is among them, all schedules declared in code start over: missed fire times are not
    made up for. The same happens in pg-scheduler 0.2, which keeps its schedules in that table. A disabled
    schedule remains disabled.

    Args:
        connection: A connection in a transaction, with the migration lock.
        home: The schema of the tables.
        applied: The migrations that the database has, in order.
        missing: The tables to create.
    """
    # The migrations also change tables that exist: these have temporary tables in their place meanwhile.
    stand_ins = await _run_again(connection, home, applied, missing)
    await _drop_stand_ins(connection, stand_ins)
    if "scheduled_jobs" in missing:
        await connection.execute(qualify(_RESTART_SCHEDULES, home), timeout=MIGRATION_TIMEOUT_S)


async def restore_records(
    connection: AnyConnection,
    home: str,
    shipped: Sequence[Migration],
    existing: Iterable[str],
    *,
    is_new: bool,
) -> bool:
    """Record all migrations as applied if the records are empty and the tables have every migration.

    Args:
        connection: A connection in a transaction, with the migration lock.
        home: The schema of the tables.
        shipped: All migrations of this release.
        existing: The tables that exist.
        is_new: The table of the records was created in this transaction.

    Returns:
        False if no migration was ever applied: there are no tables, or those of pg-scheduler 0.2.

    Raises:
        SchemaMissingError: The tables lack a part, so it is unknown which migrations were applied.
    """
    tables = set(existing)
    # There are no other tables than those of pg-scheduler 0.2, which a migration may have changed or not.
    if tables <= set(_TABLES_OF_0_2):
        names = [qualify(f"{{schema}}{table}", home) for table in _TABLES_OF_0_2]
        if not await connection.fetchval(_IS_MIGRATED, *names, timeout=MIGRATION_TIMEOUT_S):
            return False
    # The migrations create empty temporary tables, the stand-ins, with which the tables are compared. If this
    # release has just created the table of the records, that table has no stand-in and is not compared.
    compared = tables if is_new else tables | {RECORDS}
    stand_ins = await _run_again(connection, home, shipped, [RECORDS] if is_new else [])
    arguments = home, list(compared), list(LATER_INDEXES)
    rows = await connection.fetch(_MISSING_PARTS, *arguments, timeout=MIGRATION_TIMEOUT_S)
    if rows:
        raise SchemaMissingError(
            f"the records of the migrations are missing in schema {home!r}, and its tables lack parts of "
            f"version {shipped[-1].version}: {', '.join(row[0] for row in rows)}; restore the table "
            f"{RECORDS} from a backup, or drop all tables of pg_scheduler together with their jobs",
            remedy="",
        )
    await _drop_stand_ins(connection, stand_ins)
    for migration in shipped:
        await connection.execute(insert_record(home, migration), timeout=MIGRATION_TIMEOUT_S)
    return True


async def create_routines(connection: AnyConnection, home: str, routines: Iterable[Routine]) -> None:
    """Create functions and triggers in a transaction with the migration lock.

    The privileges of other roles on a function that exists are kept.
    """
    statements = shipped_routines(home)
    for routine in routines:
        await connection.execute(statements[routine], timeout=MIGRATION_TIMEOUT_S)


async def _run_again(
    connection: AnyConnection, home: str, migrations: Sequence[Migration], missing: Sequence[str]
) -> list[str]:
    """Run the migrations so that they create the missing tables, and change no other table.

    The text of each migration is rewritten first: every table that is not missing is replaced by a temporary
    table of the same name, which the migration creates too. Return the names of these stand-ins.
    """
    tables = {*table_names(migrations), RECORDS, *missing}
    # The migrations create the stand-ins of their own tables. No migration creates the table of the records.
    if RECORDS not in missing:
        await connection.execute(create_records("pg_temp"), timeout=MIGRATION_TIMEOUT_S)
    for migration in migrations:
        script = _redirect(migration.up, home, tables, missing)
        await connection.execute(script, timeout=MIGRATION_TIMEOUT_S)
    return sorted(tables.difference(missing))


def _redirect(script: str, home: str, tables: Iterable[str], missing: Sequence[str]) -> str:
    """Return a script that changes the missing tables, and temporary tables in place of all others."""
    schema = quote_identifier(home)

    def qualified(match: re.Match[str]) -> str:
        """Return the name of a table or an index with the schema in which the script is to find it."""
        name = match[1]
        # The name of an index begins with the name of its table. The name of that table may begin with the
        # name of another one, so the longest name is that of the table.
        owners = [table for table in tables if f"{name}_".startswith(f"{table}_")]
        owner = max(owners, key=len, default="")
        return f"{schema if owner in missing else 'pg_temp'}.{name}"

    return _NAME.sub(qualified, script)


async def _drop_stand_ins(connection: AnyConnection, tables: Iterable[str]) -> None:
    """Drop the temporary tables that stood in for tables of these names."""
    names = ", ".join(f"pg_temp.{table}" for table in tables)
    await connection.execute(f"DROP TABLE IF EXISTS {names}", timeout=MIGRATION_TIMEOUT_S)
