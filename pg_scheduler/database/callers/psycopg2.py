"""Run statements on connections of psycopg2."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from psycopg2.extensions import UNICODE, register_type
from psycopg2.extensions import connection as Connection  # noqa: N812 - a class
from psycopg2.extensions import cursor as Cursor  # noqa: N812 - a class

from pg_scheduler.database.callers.adapter import ConnectionAdapter, has_rows, with_percent


def adapter_for(connection: object) -> ConnectionAdapter | None:
    """Return what runs statements on a connection; None for any other object."""
    # A connection in asynchronous mode returns before its statement is executed, so it is not supported.
    if isinstance(connection, Connection) and not connection.async_:
        return ConnectionAdapter(partial(_run, connection), is_async=False)
    return None


async def link_of(connection: Connection) -> Connection:
    """Return the connection itself, since this library is the driver."""
    return connection


def _run(connection: Connection, statement: str, texts: Sequence[str]) -> list[str]:
    """Execute a statement on a connection; return its rows, which have one text each."""
    with connection.cursor(cursor_factory=Cursor) as cursor:
        # The owner of the connection may have registered another conversion of texts.
        register_type(UNICODE, cursor)
        cursor.execute(with_percent(statement), texts)
        return [row[0] for row in cursor.fetchall()] if has_rows(statement) else []
