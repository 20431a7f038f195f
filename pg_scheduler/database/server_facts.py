"""Read by one statement what a start has to know about the server, before the schema is known.

A start checks whether codecs of the pool change values, where the tables are, whether a pooler is in between,
and what the role may read. Each question alone would be a round trip. Where the statement fails, because a
codec is in the way or the server is not PostgreSQL, the questions are asked one by one, so that the error
names the right cause.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import asyncpg

from pg_scheduler.base.sqlbuiltins import qualify_builtins
from pg_scheduler.base.sqltext import quote_identifier
from pg_scheduler.database.codecs import VALUES, are_unchanged, check_codecs
from pg_scheduler.database.faults import is_transient
from pg_scheduler.database.migrations.verify import HOME, home_schema
from pg_scheduler.database.session import Connection

_SCHEMA_PLACE: Final = len(VALUES) + 1

READ_SERVER: Final = qualify_builtins(f"""
    SELECT {", ".join(f"${place}::pg_catalog.{name}" for place, name in enumerate(VALUES, 1))},
        home.schema,
        to_regclass(format('%I.%I', home.schema, 'scheduler_migrations')) IS NOT NULL AS has_records,
        pg_backend_pid() AS process,
        coalesce((
            SELECT has_function_privilege(control.oid, 'EXECUTE')
            FROM pg_catalog.pg_proc AS control
            WHERE control.proname = 'pg_control_system' AND control.pronamespace = 'pg_catalog'::regnamespace
        ), false) AS reads_system
    FROM (SELECT coalesce(${_SCHEMA_PLACE}::text, {HOME})::text AS schema) AS home
""")  # noqa: S608 - it consists of constants
"""Returns the values of all types as they were sent, and the columns of `ServerFacts`."""


class ServerFacts(NamedTuple):
    """What a start knows about the server and its connection.

    Attributes:
        schema: The schema of the tables, or the one in which they will be created.
        has_records: Whether it has the table of the applied migrations; None if that is not known.
        has_own_session: Whether the connection has a session of its own, so that no pooler is in between.
        reads_system: Whether the role may read the system identifier of the server; None if that is not
            known.
    """

    schema: str
    has_records: bool | None
    has_own_session: bool
    reads_system: bool | None


async def read_server(connection: Connection, schema: str | None, timeout_s: float) -> ServerFacts:
    """Return what a start has to know about the server, after a check of the codecs of the connection.

    Args:
        connection: A connection of the pool, outside of a transaction.
        schema: The schema that the application configured; None to search for it along the search path.
        timeout_s: The time limit of each statement.

    Raises:
        ConfigurationError: A codec of the pool changes the values of statements, or PostgreSQL cannot hold
            the name of the schema.
        SchemaMissingError: No schema was configured, and no schema of the search path exists.
    """
    if schema is not None:
        # This raises ConfigurationError for a name that PostgreSQL cannot hold.
        quote_identifier(schema)
    try:
        row = await connection.fetchrow(READ_SERVER, *VALUES.values(), schema, timeout=timeout_s)
    except asyncpg.InvalidSQLStatementNameError:
        # The cause is no codec, but a pooler or a reset= that has lost the prepared statement.
        raise
    except Exception as error:  # user code: a codec
        if is_transient(error):
            raise
        row = None
    if row is not None and are_unchanged(row[: len(VALUES)], VALUES) and row["schema"] is not None:
        has_own_session = row["process"] == connection.get_server_pid()
        return ServerFacts(row["schema"], row["has_records"], has_own_session, row["reads_system"])
    await check_codecs(connection, timeout_s)
    return ServerFacts(await home_schema(connection, schema), None, False, None)
