"""Show what a migration would do: its steps for a database, and its SQL without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pg_scheduler.base.sqltext import quote_identifier
from pg_scheduler.database.migrations.plan import Step, plan, shipped_migrations, steps_between
from pg_scheduler.database.migrations.sql import script
from pg_scheduler.database.migrations.verify import home_schema, read_state
from pg_scheduler.errors import SchemaMissingError

if TYPE_CHECKING:
    from pg_scheduler.database.migrations.records import AnyConnection


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
    home = await home_schema(connection, schema)
    try:
        state = await read_state(connection, home, shipped)
    except SchemaMissingError:
        # There are no tables yet, so no migration was applied.
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
    end = shipped_migrations()[-1].version if target is None else target
    statements = script(steps_between(start, target), schema)
    parts = [
        f"-- schema {quote_identifier(schema)}, version {start} to {end}; execute as the owner of the tables",
        "BEGIN ISOLATION LEVEL READ COMMITTED;",
        *statements,
        "COMMIT;",
    ]
    return "\n\n".join(parts) + "\n"
