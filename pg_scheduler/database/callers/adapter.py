"""Recognise the connections of other libraries, without importing those."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, Final, Protocol, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from pg_scheduler.base.dsn import Address
from pg_scheduler.base.public import public
from pg_scheduler.database.asyncpg_private import address_of, opened_by_pool

Texts: TypeAlias = Iterable[str]

LIBRARIES: Final = ("django", "psycopg", "psycopg2", "sqlalchemy")

TEXT: Final = "CAST(${} AS pg_catalog.text)"
"""A placeholder, for drivers that convert a value to the type that a statement gives it."""

PLACEHOLDER: Final = re.compile(re.escape(TEXT).replace(r"\{\}", r"\d+"))

EMPTY_ROWS: Final = " RETURNING '{}'"
"""The end of a statement without results, for a ConnectionAdapter, which returns rows of every statement."""

COMMANDS: Final = ("BEGIN", "COMMIT", "RELEASE", "ROLLBACK", "SAVEPOINT")
"""How statements begin that have no rows."""

ACCEPTED: Final = (
    "pass a connection of asyncpg, psycopg or psycopg2, a session or connection of SQLAlchemy or SQLModel, "
    "an alias or connection of Django, or a ConnectionAdapter(); open one first if you have an engine, a "
    "pool or a session factory"
)


@public
@dataclass(frozen=True, slots=True)
class ConnectionAdapter:
    """Runs statements on a connection that the Scheduler does not know.

    Attributes:
        run: Called with a statement and the texts of its placeholders ``$1``, ``$2`` ..., each of which
            occurs once and in this order. It executes the statement in the transaction of the caller, and
            returns the rows, which have one text each. Commands such as ``SAVEPOINT`` have none.
        is_async: Whether ``run`` returns an awaitable: for `Scheduler`; otherwise for `SyncScheduler`.
        transaction: Returns the object of the open transaction, True if there is none for it, or something
            false outside of a transaction: for ``notify="hint"``. None if that is unknown, so the commit
            notifies the workers.

    Example:
        >>> def adapter_of(connection):
        ...     async def run(statement, texts):
        ...         return [row[0] for row in await connection.fetch(statement, *texts)]
        ...
        ...     return ConnectionAdapter(run)
    """

    run: Callable[[str, Sequence[str]], Texts | Awaitable[Texts]]
    is_async: bool = True
    transaction: Callable[[], object] | None = None


class Result(Protocol):
    """The result of a statement, or a cursor, whose rows are there."""

    def fetchall(self) -> Sequence[Any]:
        """Return the rows."""


class AsyncConnection(Protocol):
    """A connection or session of asyncpg, psycopg, SQLAlchemy or SQLModel whose methods are awaited."""

    def execute(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Execute a statement."""


class ExecutingConnection(Protocol):
    """A connection or session of psycopg, SQLAlchemy or SQLModel whose methods block."""

    def execute(self, *args: Any, **kwargs: Any) -> Result:
        """Execute a statement."""


class CursorConnection(Protocol):
    """A connection of psycopg2 or Django."""

    def cursor(self, *args: Any, **kwargs: Any) -> Result:
        """Return a cursor."""


AnyConnection: TypeAlias = AsyncConnection | ConnectionAdapter
"""What callers of `Scheduler` pass as a connection."""

AnySyncConnection: TypeAlias = ExecutingConnection | CursorConnection | ConnectionAdapter | str
"""What callers of `SyncScheduler` pass as a connection; a text is an alias of Django."""


@lru_cache(maxsize=1000)
def with_percent(statement: str) -> str:
    """Return a statement with the placeholders ``%s``, for drivers that leave values as they are.

    The clause that returns rows without contents is left out, because a driver spends more time on such a row
    than on the statement.
    """
    # The drivers take %% for the character itself.
    escaped = statement.removesuffix(EMPTY_ROWS).replace("%", "%%")
    return PLACEHOLDER.sub("%s", escaped)


def has_rows(statement: str) -> bool:
    """Return whether a statement is one whose rows have contents, even if it finds no row."""
    return not (statement.startswith(COMMANDS) or statement.endswith(EMPTY_ROWS))


def library_of(connection: object) -> str | None:
    """Return the library that defines the class of a connection or one of its bases; None if none does.

    The ``__class__`` counts too, because that of a proxy is the class of its target.
    """
    # A text is an alias of Django.
    if isinstance(connection, str):
        return "django"
    return _library_of((type(connection), connection.__class__))


@lru_cache(maxsize=100)
def _library_of(classes: tuple[type, ...]) -> str | None:
    """Return the library that defines one of these classes or their bases; None if none does."""
    bases = (base for kind in classes for base in kind.__mro__)
    packages = (base.__module__.partition(".")[0] for base in bases)
    return next((package for package in packages if package in LIBRARIES), None)


def adapter_for(
    connection: object,
    *,
    is_async: bool,
    takers: tuple[str, str] = ("Scheduler", "SyncScheduler"),
) -> ConnectionAdapter:
    """Return what runs statements on a connection of another library than asyncpg.

    Args:
        connection: The connection, session or alias.
        is_async: Whether the caller needs an asynchronous connection; otherwise a blocking one.
        takers: The classes that take asynchronous and blocking connections, for errors.

    Raises:
        TypeError: The connection is not supported, or belongs to the other class.
    """
    adapter: ConnectionAdapter | None = None
    library = library_of(connection)
    # An alias of Django is always a blocking connection, so it need not exist for the error below.
    if isinstance(connection, str) and is_async:
        adapter = ConnectionAdapter(_not_here, is_async=False)
    elif isinstance(connection, ConnectionAdapter):
        adapter = _separate(connection)
    elif library is not None:
        adapter = _module_of(library).adapter_for(connection)
    elif isinstance(connection, asyncpg.Connection | PoolConnectionProxy):
        adapter = ConnectionAdapter(_not_here)
    if adapter is not None and adapter.is_async is is_async:
        return adapter
    # What follows raises the error for a connection that the caller cannot use.
    kind = type(connection).__name__  # its repr could be a DSN with a password
    if adapter is None:
        raise TypeError(f"connection must not be of the type {kind}; {ACCEPTED}")
    # The class of the caller, and the class that takes the connection.
    here, other = takers if is_async else takers[::-1]
    how = "blocks" if is_async else "is asynchronous"
    raise TypeError(f"a connection of the type {kind} {how}; use {other} for it, not {here}")


async def asyncpg_connection_of(connection: object) -> asyncpg.Connection | PoolConnectionProxy:
    """Return the connection of asyncpg that a caller passed, or the one beneath a connection of SQLAlchemy.

    Raises:
        TypeError: It is neither.
    """
    driver_connection = connection
    if library_of(connection) == "sqlalchemy":
        driver_connection = await _module_of("sqlalchemy").driver_connection_of(connection)
    if isinstance(driver_connection, asyncpg.Connection | PoolConnectionProxy):
        return driver_connection
    raise TypeError(
        f"connection must not be of the type {type(connection).__name__}; pass a connection of asyncpg, or "
        "an AsyncSession or AsyncConnection of SQLAlchemy whose engine uses asyncpg"
    )


def _separate(adapter: ConnectionAdapter) -> ConnectionAdapter:
    """Return an adapter of an application for one call, which differs from those of other calls.

    Calls whose ``transaction`` is equal are taken for calls on one connection. An adapter of an application
    may use another connection in each context, so its function is wrapped: no two partials are equal.
    """
    if adapter.transaction is None:
        return adapter
    return ConnectionAdapter(adapter.run, adapter.is_async, partial(adapter.transaction))


async def link_of(connection: object) -> object:
    """Return the connection of the driver beneath a connection, which leads to one database for all its life.

    None for a ConnectionAdapter, and for a connection of asyncpg that was released to its pool.
    """
    if isinstance(connection, asyncpg.Connection | PoolConnectionProxy):
        return opened_by_pool(connection)
    library = library_of(connection)
    return None if library is None else await _module_of(library).link_of(connection)


def address_of_link(link: Any) -> Address | None:
    """Return where the connection of a driver leads; None if that is unknown."""
    if isinstance(link, asyncpg.Connection):
        return address_of(link)
    # psycopg and psycopg2 have the same attributes.
    if (info := getattr(link, "info", None)) is not None:
        return Address.of(info.host, info.port, info.dbname)
    return None


@lru_cache(maxsize=len(LIBRARIES))
def _module_of(library: str) -> Any:
    """Return the module of this package for a library. It imports the library, so it is imported late."""
    return import_module(f"pg_scheduler.database.callers.{library}")


def _not_here(_statement: str, _texts: Sequence[str]) -> Texts:
    """Stand for the ``run`` of a connection that only the other class accepts; it is never called."""
    raise NotImplementedError
