"""Run statements on connections of psycopg 3."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from types import MethodType
from typing import Any, Final

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, adapters
from psycopg.adapt import AdaptersMap
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.string import StrDumper, TextLoader

from pg_scheduler.database.callers.adapter import ConnectionAdapter, has_rows, with_percent

ADAPTERS: Final = AdaptersMap(adapters)
"""The adapters of psycopg, without what the owner of a connection has registered for texts.

Texts are the only values of statements.
"""
ADAPTERS.register_dumper(str, StrDumper)
ADAPTERS.register_loader("text", TextLoader)


class TextCursor(Cursor[Any]):
    """A cursor for texts."""

    adapters = ADAPTERS


class AsyncTextCursor(AsyncCursor[Any]):
    """A cursor for texts."""

    adapters = ADAPTERS


def adapter_for(connection: object) -> ConnectionAdapter | None:
    """Return what runs statements on a connection; None for any other object."""
    if isinstance(connection, AsyncConnection):
        return ConnectionAdapter(
            partial(_run_async, connection), transaction=MethodType(_is_in_transaction, connection)
        )
    if isinstance(connection, Connection):
        return ConnectionAdapter(partial(_run, connection), is_async=False)
    return None


async def link_of(connection: Any) -> Any:
    """Return the connection itself, since this library is the driver."""
    return connection


@lru_cache(maxsize=1000)
def _encoded(statement: str) -> bytes:
    """Return a statement for psycopg: the same object each time, by which it finds what it has prepared."""
    return with_percent(statement).encode()


async def _run_async(connection: AsyncConnection[Any], statement: str, texts: Sequence[str]) -> list[str]:
    """Execute a statement on an asynchronous connection; return its rows, which have one text each."""
    async with AsyncTextCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(_encoded(statement), texts)
        return [row[0] for row in await cursor.fetchall()] if has_rows(statement) else []


def _run(connection: Connection[Any], statement: str, texts: Sequence[str]) -> list[str]:
    """Execute a statement on a blocking connection; return its rows, which have one text each."""
    with TextCursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(_encoded(statement), texts)
        return [row[0] for row in cursor.fetchall()] if has_rows(statement) else []


def _is_in_transaction(connection: AsyncConnection[Any]) -> bool:
    """Return whether a transaction is open; psycopg has no object for it. False if the connection is lost."""
    status = connection.pgconn.transaction_status
    return status not in {TransactionStatus.IDLE, TransactionStatus.UNKNOWN}
