"""Run statements on connections of Django."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionDoesNotExist, ConnectionProxy

from pg_scheduler.database.callers.adapter import ConnectionAdapter, has_rows, with_percent


def adapter_for(connection: object) -> ConnectionAdapter | None:
    """Return what runs statements on an alias or a connection; None for any other object.

    Raises:
        TypeError: The database is not PostgreSQL.
        ValueError: There is no such alias.
    """
    wrapper = _wrapper_of(connection)
    if not isinstance(wrapper, BaseDatabaseWrapper):
        return None
    if wrapper.vendor != "postgresql":
        raise TypeError(f"the connection {wrapper.alias!r} leads to {wrapper.vendor}, and not to PostgreSQL")
    return ConnectionAdapter(partial(_run, wrapper), is_async=False)


async def link_of(connection: object) -> Any:
    """Return the connection of the driver behind an alias or a connection; open it if it is not open."""
    wrapper = _wrapper_of(connection)
    wrapper.ensure_connection()
    return wrapper.connection


def _wrapper_of(connection: object) -> Any:
    """Return the connection of an alias, or behind a proxy of Django; any other object as it is."""
    target: Any = _of_alias(connection) if isinstance(connection, str) else connection
    # django.db.connection is a proxy, which stands for another connection in each thread.
    return connections[target.alias] if isinstance(target, ConnectionProxy) else target


def _of_alias(alias: str) -> BaseDatabaseWrapper:
    """Return the connection of an alias in the settings of Django.

    Raises:
        ValueError: There is no such alias.
    """
    try:
        return connections[alias]
    except ConnectionDoesNotExist:
        # The message does not quote the text, which could be a DSN with a password.
        aliases = ", ".join(map(repr, connections))
        raise ValueError(f"connection is not an alias in Django's DATABASES, which has {aliases}") from None


def _run(connection: Any, statement: str, texts: Sequence[str]) -> list[str]:
    """Execute a statement on a connection; return its rows, which have one text each."""
    # After an error Django refuses every statement, also the ROLLBACK that makes the connection usable again.
    if statement.startswith("ROLLBACK"):
        connection.needs_rollback = False
    with connection.cursor() as cursor:
        cursor.execute(with_percent(statement), texts)
        return [row[0] for row in cursor.fetchall()] if has_rows(statement) else []
