"""Run statements on sessions and connections of SQLAlchemy and SQLModel.

SQLAlchemy begins a transaction with its own first statement. A statement on the connection of the driver
would come before, and be committed alone: therefore SQLAlchemy executes each one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, CursorResult, Dialect
from sqlalchemy.orm import Session, scoped_session

from pg_scheduler.database.callers.adapter import EMPTY_ROWS, ConnectionAdapter, with_percent

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

OPTIONS: Final = {"stream_results": False, "yield_per": None}
"""These values prevent that rows are streamed: a stream is a cursor in the server, which cannot insert."""


def adapter_for(connection: object) -> ConnectionAdapter | None:
    """Return what runs statements on a session or connection; None for any other object."""
    if isinstance(connection, Connection | Session | scoped_session):
        return ConnectionAdapter(partial(_run, connection), is_async=False)
    # The module for asyncio needs greenlet, which other programs may lack, so it is not imported here.
    return _async_adapter_for(connection) if "sqlalchemy.ext.asyncio" in sys.modules else None


def _async_adapter_for(connection: object) -> ConnectionAdapter | None:
    """Return what runs statements on an asynchronous session or connection; None for any other object."""
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session  # noqa: PLC0415

    if isinstance(connection, AsyncConnection):
        return ConnectionAdapter(
            partial(_run_async, connection), transaction=MethodType(_transaction_of, connection)
        )
    if isinstance(connection, AsyncSession | async_scoped_session):
        # A scoped session stands for another session in each context. Its call returns the present one.
        session = connection() if isinstance(connection, async_scoped_session) else connection
        return ConnectionAdapter(
            partial(_run_in_session, connection), transaction=session.sync_session.get_transaction
        )
    return None


async def driver_connection_of(source: Any) -> object:
    """Return the connection of the driver of an asynchronous session or connection of SQLAlchemy.

    If no transaction is open on it, one is begun. None for any other object.
    """
    if _async_adapter_for(source) is None:
        return None
    connection = await _async_connection_of(source)
    # SQLAlchemy begins the transaction with its first statement, so this one has no other effect.
    await connection.exec_driver_sql("SELECT 1")
    return (await connection.get_raw_connection()).driver_connection


async def link_of(source: Any) -> object:
    """Return the connection of the driver beneath a session or connection; open it if it is not open.

    The URL of the engine does not tell where its connections lead: ``connect_args=``, ``creator=`` and
    listeners of ``do_connect`` may lead each of them elsewhere.
    """
    if isinstance(source, Connection | Session | scoped_session):
        return _connection_of(source).connection.driver_connection
    connection = await _async_connection_of(source)
    # This is SQLAlchemy's own wrapper of the connection of the driver.
    raw_connection = await connection.get_raw_connection()
    return raw_connection.driver_connection


def _connection_of(source: Connection | Session | scoped_session[Session]) -> Connection:
    """Return the connection of a session, or the connection itself."""
    return source if isinstance(source, Connection) else source.connection()


async def _async_connection_of(source: Any) -> AsyncConnection:
    """Return the connection of an asynchronous session, or the connection itself."""
    # Only a connection has this method; a session has connection().
    connection: AsyncConnection = (
        source if hasattr(source, "get_raw_connection") else await source.connection()
    )
    return connection


def _transaction_of(source: AsyncConnection) -> object:
    """Return the object of the open transaction; None without one, or before the connection is opened."""
    blocking = source.sync_connection
    return None if blocking is None else blocking.get_transaction()


async def _run_in_session(source: Any, statement: str, texts: Sequence[str]) -> list[str]:
    """Execute a statement on the connection of an asynchronous session; return its rows."""
    return await _run_async(await source.connection(), statement, texts)


async def _run_async(connection: AsyncConnection, statement: str, texts: Sequence[str]) -> list[str]:
    """Execute a statement on an asynchronous connection; return its rows, which have one text each."""
    statement = _for_driver(statement, connection.dialect)
    return _rows(await connection.exec_driver_sql(statement, tuple(texts), OPTIONS))


def _run(source: Any, statement: str, texts: Sequence[str]) -> list[str]:
    """Execute a statement on a blocking session or connection; return its rows, which have one text each."""
    connection = _connection_of(source)
    return _rows(
        connection.exec_driver_sql(_for_driver(statement, connection.dialect), tuple(texts), OPTIONS)
    )


def _for_driver(statement: str, dialect: Dialect) -> str:
    """Return a statement with the placeholders of the driver.

    Raises:
        TypeError: The database is not PostgreSQL.
    """
    if dialect.name != "postgresql":
        raise TypeError(f"connection leads to {dialect.name}, and not to PostgreSQL")
    # This driver takes the placeholders $1, $2 as they are. The others take %s.
    if dialect.paramstyle == "numeric_dollar":
        return statement.removesuffix(EMPTY_ROWS)
    return with_percent(statement)


def _rows(result: CursorResult[Any]) -> list[str]:
    """Return the only column of the rows; an empty list for a statement that returns no rows."""
    return list(result.scalars()) if result.returns_rows else []
