"""Check that a database has the migrations of this release, and the tables that they make.

Every node does so at every start, so a check that succeeds takes two queries and no lock. The first one looks
for the table of the records, because a query of a table that does not exist leaves an ERROR in the server's
log.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import asyncpg

from pg_scheduler.base.sqlbuiltins import qualify_builtins
from pg_scheduler.base.sqltext import qualify, quote_identifier
from pg_scheduler.base.text.remedies import execute
from pg_scheduler.database.migrations.plan import Applied, Migration, check, shipped_migrations, table_names
from pg_scheduler.database.migrations.records import RECORDS
from pg_scheduler.database.migrations.routines import ROUTINES, Routine, missing_routines
from pg_scheduler.database.migrations.shape import (
    ADDED_LATER,
    LATER_INDEXES,
    PARTS,
    Part,
    check_parts,
    check_relations,
    unlogged_tables,
)
from pg_scheduler.errors import SchemaMismatchError, SchemaMissingError
from pg_scheduler.events.log import record_fields

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from pg_scheduler.database.migrations.records import AnyConnection


logger = logging.getLogger("pg_scheduler")

QUERY_TIMEOUT_S = 30.0

HOME = """
    coalesce(
        (SELECT namespace.nspname
         FROM pg_catalog.pg_class AS class
         JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
         WHERE class.oid = coalesce(to_regclass('scheduled_jobs'), to_regclass('scheduler_migrations'))),
        current_schema()
    )
"""
"""An expression for the schema of the tables along the search path, without qualified names."""
HOME_SCHEMA = qualify_builtins(f"SELECT {HOME}")
SEARCH_PATH = qualify_builtins("SELECT current_setting('search_path')")
_EXISTS = "SELECT pg_catalog.to_regclass($1) IS NOT NULL"
# One query reads the records, the parts and the routines. The columns of the other two are NULL in each row.
_APPLIED = qualify_builtins("""
    SELECT record.version, record.checksum, record.needs,
        NULL::text AS relation, NULL::text AS kind, NULL::text AS name, NULL::text AS value
    FROM {schema}scheduler_migrations AS record
    UNION ALL
    SELECT NULL, NULL, NULL, part.* FROM
""")
_ROUTINE_ROWS = "UNION ALL SELECT NULL, NULL, NULL, NULL, routine.* FROM"
_STATE = f"{_APPLIED} ({PARTS}) AS part {_ROUTINE_ROWS} ({ROUTINES}) AS routine"


class SchemaState(NamedTuple):
    """The recorded migrations of a schema and its tables.

    Attributes:
        applied: The migrations, by version.
        parts: The parts of the tables that the shipped migrations create, from the catalogue.
        routines: Functions of the schema, and triggers of these tables, from the catalogue.
    """

    applied: Mapping[int, Applied]
    parts: tuple[Part, ...]
    routines: tuple[Routine, ...]

    @property
    def tables(self) -> frozenset[str]:
        """The names of the tables that exist, without the one of the records."""
        return frozenset(part.table for part in self.parts) - {RECORDS}

    @property
    def is_newest(self) -> bool:
        """Whether exactly the migrations of this release were applied."""
        applied = {version: record.checksum for version, record in self.applied.items()}
        return applied == {migration.version: migration.checksum for migration in shipped_migrations()}


async def home_schema(connection: AnyConnection, schema: str | None = None) -> str:
    """Return the schema of the tables, or the one in which they will be created.

    Args:
        connection: A connection to the database.
        schema: The schema that the application configured, or None.

    Returns:
        The given schema; without one, the first schema of the search path that contains ``scheduled_jobs``,
        or else ``scheduler_migrations``; if none does, the first one that exists.

    Raises:
        SchemaMissingError: No schema was given, and no schema of the search path exists.
    """
    if schema is not None:
        return schema
    home: str | None = await connection.fetchval(HOME_SCHEMA, timeout=QUERY_TIMEOUT_S)
    if home is None:
        raise no_schema(await connection.fetchval(SEARCH_PATH, timeout=QUERY_TIMEOUT_S))
    return home


async def has_table(connection: AnyConnection, schema: str, table: str) -> bool:
    """Return whether the schema has a table."""
    name = qualify(f"{{schema}}{table}", schema)
    return bool(await connection.fetchval(_EXISTS, name, timeout=QUERY_TIMEOUT_S))


def no_schema(search_path: str) -> SchemaMissingError:
    """Return the error for a search path that leads to no schema."""
    return SchemaMissingError(
        f"the search path {search_path!r} names no schema that exists; create one of them, or pass "
        "schema=..., which is created if it is missing",
        remedy="",
    )


async def verify(connection: AnyConnection, *, schema: str | None = None) -> None:
    """Check that the database has the migrations of this release and their tables, without changing anything.

    Migrations of a newer release are accepted if they remove nothing that this one uses. Then it is not
    checked whether all tables, columns, constraints, indexes, functions and triggers exist.

    With ``schema`` (from ``home_schema``) this takes two queries. Missing tables make neither of them fail,
    so a transaction of the caller is not aborted.

    Args:
        connection: A connection to the database.
        schema: The schema of the tables; None to search for it along the search path.

    Raises:
        SchemaMissingError: The tables or some migrations are missing, or functions or triggers differ.
        SchemaTooNewError: A newer release has applied a migration that this release cannot use.
        MigrationChangedError: An applied migration differs from the shipped one.
        SchemaMismatchError: A table differs from the one that the migrations make.
    """
    await verify_parts(connection, await home_schema(connection, schema))


async def verify_parts(
    connection: AnyConnection,
    home: str,
    *,
    optional: Container[str] = LATER_INDEXES,
    has_records: bool | None = None,
) -> None:
    """Check a schema as ``verify`` does; the indexes in ``optional`` may be missing.

    Args:
        connection: A connection to the database.
        home: The schema.
        optional: The indexes that may be missing.
        has_records: Whether the schema has the table of the records; None to query that first.

    Raises:
        SchemaError: As ``verify`` does.
    """
    shipped = shipped_migrations()
    state = await read_state(connection, home, shipped, has_records=has_records)
    # A missing migration may add what is ignored here, and it is the better error. If no migration is
    # missing, check_shape() looks at these parts too.
    check_relations(state.parts, home, ignored=ADDED_LATER)
    check(state.applied, shipped)
    missing = [f"{migration.version:04}" for migration in shipped if migration.version not in state.applied]
    if missing:
        raise SchemaMissingError(
            f"the tables of pg_scheduler in schema {home!r} lack the migrations {', '.join(missing)}"
        )
    if tables := missing_tables(state, shipped):
        raise SchemaMissingError(
            f"tables of pg_scheduler are missing in schema {home!r}: {', '.join(tables)}"
        )
    check_shape(state, home, optional=optional)
    if routines := differing_routines(state, home):
        raise SchemaMissingError(
            f"functions or triggers of pg_scheduler in schema {home!r} are missing, or have another text, as "
            f"after the schema was renamed: {', '.join(map(str, routines))}"
        )
    if tables := unlogged_tables(state.parts):
        logger.warning(
            "unlogged tables in schema %r: %s; the server empties them after a crash, and a standby does not "
            "have them; execute ALTER TABLE ... SET LOGGED",
            home,
            ", ".join(tables),
            extra=record_fields(),
        )


async def read_state(
    connection: AnyConnection, schema: str, shipped: Iterable[Migration], *, has_records: bool | None = None
) -> SchemaState:
    """Return the recorded migrations, and the existing tables and routines of the schema.

    ``has_records`` is whether the schema has the table of the records; None to query that first.

    Raises:
        SchemaMissingError: The schema has no table of the records.
        SchemaMismatchError: The table of the records lacks a column.
    """
    if has_records is None:
        has_records = await has_table(connection, schema, RECORDS)
    if not has_records:
        raise SchemaMissingError(f"schema {schema!r} has no tables of pg_scheduler")
    query = qualify(_STATE, schema)
    # An older schema still has tables that later migrations drop. So each migration is asked alone for its
    # tables. A dict keeps their order, and each name once.
    created = dict.fromkeys(name for migration in shipped for name in table_names([migration]))
    names = [*created, RECORDS]
    try:
        rows = await connection.fetch(query, schema, names, timeout=QUERY_TIMEOUT_S)
    except asyncpg.UndefinedColumnError as error:
        records = f"{quote_identifier(schema)}.{RECORDS}"
        raise SchemaMismatchError(
            f"{records} cannot be read ({error})",
            "start() restores it if it is dropped",
            execute(f"DROP TABLE {records}", before="execute as the owner of the table:"),
        ) from error
    # The row of a migration has a version, that of a part has a relation, and that of a routine has neither.
    applied = {
        row["version"]: Applied(row["checksum"], row["needs"]) for row in rows if row["version"] is not None
    }
    parts = tuple(
        Part(row["relation"], row["kind"], row["name"], row["value"])
        for row in rows
        if row["relation"] is not None
    )
    routines = tuple(
        Routine(row["kind"], row["name"], row["value"])
        for row in rows
        if row["version"] is None and row["relation"] is None
    )
    return SchemaState(applied, parts, routines)


def check_shape(state: SchemaState, schema: str, *, optional: Container[str] = LATER_INDEXES) -> None:
    """Check the parts of the tables, if the schema has exactly the newest migrations of this release.

    Raises:
        SchemaMismatchError: A table differs from the one that the migrations make.
    """
    check_relations(state.parts, schema)
    if state.is_newest:
        check_parts(state.parts, schema, optional=optional)


def differing_routines(state: SchemaState, schema: str) -> list[Routine]:
    """Return the functions and triggers that are missing or have another text, to create them.

    There are none if the schema has older or newer migrations, whose functions and triggers may differ.
    """
    return missing_routines(state.routines, schema) if state.is_newest else []


def missing_tables(state: SchemaState, shipped: Iterable[Migration]) -> list[str]:
    """Return the tables that the applied migrations created and that no longer exist.

    The list is empty if a newer release has migrated the schema: that release may have dropped them.
    """
    migrations = {migration.version: migration for migration in shipped}
    # The database has a migration that this release does not know.
    if not state.applied.keys() <= migrations.keys():
        return []
    created = table_names(migrations[version] for version in sorted(state.applied))
    existing = state.tables
    return [table for table in created if table not in existing]
