"""Show what a migration would do: its steps for a database, and its SQL without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from pg_scheduler.sqltext import qualify, quote_identifier

from ..errors import ConfigurationError
from .apply import lock_key
from .plan import Applied, Step, plan, shipped_migrations
from .records import CREATE_RECORDS, RECORDS
from .verify import home_schema, read_state

if TYPE_CHECKING:
    from .records import AnyConnection


async def pending_steps(
    connection: AnyConnection, *, schema: str | None = None, target: int | None = None
) -> list[Step]:
    """Return the steps that ``migrate`` would take, without changing anything.

    Tables that were dropped, which ``migrate`` creates again, are no steps.

    Args:
        connection: A connection to the database, outside of a transaction.
        schema: The schema of the tables; None to search for it along the search path.
        target: The version to migrate to; None for the newest.

    Raises:
        ConfigurationError: This release has no such target version.
        SchemaMissingError: No schema was given, and no schema of the search path exists.
        SchemaTooNewError: This release cannot use the schema, or would have to revert unknown migrations.
        MigrationChangedError: An applied migration differs from the shipped one.
    """
    shipped = shipped_migrations()
    try:
        state = await read_state(connection, await home_schema(connection, schema), shipped)
    except asyncpg.UndefinedTableError:
        return plan({}, shipped, target)
    return plan(state.applied, shipped, target)


def render_script(schema: str, *, start: int = 0, target: int | None = None) -> str:
    """Return a SQL script that migrates a schema as ``migrate`` does, in one transaction.

    Args:
        schema: The schema of the tables.
        start: The version of the schema before; 0 for a new one, or for the tables of pg-scheduler 0.2.
        target: The version after; None for the newest.

    Raises:
        ConfigurationError: This release has no such version, or the schema's name is invalid.
    """
    shipped = shipped_migrations()
    if not 0 <= start <= len(shipped):
        raise ConfigurationError(
            f"start is {start}, but this release has the schema versions 0 to {len(shipped)}"
        )
    applied = {each.version: Applied(each.checksum, each.needs) for each in shipped[:start]}
    steps = plan(applied, shipped, target)
    end = len(shipped) if target is None else target
    lock_class, key = lock_key(schema)
    parts = [
        f"-- schema {quote_identifier(schema)}, version {start} to {end}; execute as the owner of the tables",
        "BEGIN ISOLATION LEVEL READ COMMITTED;",
        "SET LOCAL search_path = pg_catalog, pg_temp;",
        f"SELECT pg_catalog.pg_advisory_xact_lock({lock_class}, {key});",
    ]
    if start == 0:
        create = CREATE_RECORDS.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS")
        parts += [f"CREATE SCHEMA IF NOT EXISTS {quote_identifier(schema)};", f"{_dedent(create)};"]
    for step in steps:
        parts += [_render(step)]
    return qualify("\n".join([*parts, "COMMIT;", ""]), schema)


def _render(step: Step) -> str:
    migration = step.migration
    records, version = "{schema}" + RECORDS, migration.version
    if not step.up:
        record = f"DELETE FROM {records} WHERE version = {version};"  # noqa: S608 - of shipped files
        script = f"-- revert {version:04} {migration.name}\n{migration.down.strip()}"
    else:
        needs = "NULL" if migration.needs is None else migration.needs
        values = f"{version}, '{migration.name}', '{migration.checksum}', {needs}"
        record = f"INSERT INTO {records} (version, name, checksum, needs) VALUES ({values});"  # noqa: S608 - the same
        script = f"-- apply {version:04} {migration.name}\n{migration.up.strip()}"
    return f"\n{script}\n\n{record}\n"


def _dedent(statement: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in statement.strip().splitlines())
