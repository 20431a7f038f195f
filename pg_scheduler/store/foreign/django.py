"""Run statements on connections of Django."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionProxy

from pg_scheduler.store.foreign.adapter import ConnectionAdapter, has_rows, with_percent


def adapter_for(connection: object) -> ConnectionAdapter | None:
    """Return what runs statements on an alias or a connection; None for any other object.

    Raises:
        TypeError: The database is not PostgreSQL.
        ConnectionDoesNotExist: There is no such alias.
    """
    found: Any = connections[connection] if isinstance(connection, str) else connection
    if isinstance(found, ConnectionProxy):  # django.db.connection
        found = connections[found.alias]
    if not isinstance(found, BaseDatabaseWrapper):
        return None
    if found.vendor != "postgresql":
        raise TypeError(f"the connection {found.alias!r} leads to {found.vendor}, and not to PostgreSQL")
    return ConnectionAdapter(partial(_run, found), is_async=False)


def _run(connection: Any, statement: str, texts: Sequence[str]) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(with_percent(statement), texts)
        return [row[0] for row in cursor.fetchall()] if has_rows(statement) else []
