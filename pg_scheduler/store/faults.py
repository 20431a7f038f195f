"""What a failed database call means, told by class or SQLSTATE, never by the text.

A transient fault goes away by itself: the connection broke, the server restarts, has no connection
left, or asks to run the transaction again. Everything else is a mistake or a broken database, and
trying again would only hide it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg

from pg_scheduler.errors import (
    DatabaseUnavailableError,
    SchemaError,
    SchemaForbiddenError,
    SchemaMissingError,
)

__all__ = ["REFUSALS", "is_lock_timeout", "is_transient", "translated"]

REFUSALS: Final = (asyncpg.PostgresError, SchemaError)
"""What a statement raises that the database understood and would not do."""

TRANSIENT_CLASSES: Final = frozenset({"08", "40", "53", "57", "58"})
"""Connection exception, transaction rollback, insufficient resources (disk, memory, connections), operator
intervention (shutdown, crash, not ready yet, a cancelled statement), system error."""

TRANSIENT_STATES: Final = frozenset({"25006", "25P03", "25P04", "55P03", "55006"})
"""Read-only transaction (the old primary after a failover, a standby), a transaction that the server ended
since we were halted in it for too long, lock not available, object in use."""


def is_transient(error: BaseException) -> bool:
    """Whether trying again later can help."""
    if isinstance(error, asyncpg.InvalidCachedStatementError):  # the table was altered: prepare it again
        return True
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return state[:2] in TRANSIENT_CLASSES or state in TRANSIENT_STATES
    if isinstance(error, asyncpg.DataError | ValueError):  # a wrong argument, found before it was sent
        return False
    # InterfaceError: the connection or the pool is closed. InternalClientError: the protocol broke off.
    return isinstance(
        error,
        OSError
        | TimeoutError
        | asyncpg.InterfaceError
        | asyncpg.InternalClientError
        | DatabaseUnavailableError,
    )


TELLING_CLASSES: Final = frozenset({"22", "23"})
"""Data exception, integrity constraint violation: their DETAIL shows the failing row, arguments and all."""


def _conceal(error: BaseException) -> None:
    if isinstance(error, asyncpg.PostgresError) and (error.sqlstate or "")[:2] in TELLING_CLASSES:
        error.detail = None


def _in_words(error: BaseException) -> str:
    text = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_lock_timeout(fault: DatabaseUnavailableError) -> bool:
    """Whether a statement ended because somebody has locked what it wants; nothing is broken then."""
    return isinstance(fault.__cause__, asyncpg.LockNotAvailableError)


@contextmanager
def translated() -> Iterator[None]:
    """Raise DatabaseUnavailableError and SchemaError for what they stand for; let everything else through.

    What is let through may end in a log, so the values of rows are taken out of it.
    """
    try:
        yield
    except (
        asyncpg.UndefinedTableError,
        asyncpg.UndefinedColumnError,
        asyncpg.InvalidSchemaNameError,
    ) as error:
        raise SchemaMissingError(
            f"the scheduler's tables are missing or old ({error}). "
            "Call await scheduler.initialize_db() or start()."
        ) from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaForbiddenError(
            f"this database role lacks a right on the scheduler's tables ({error}). Grant it as their owner; "
            "the page on the database lists, under Roles, what a worker and an enqueuer need."
        ) from error
    except (
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        OSError,
        TimeoutError,
    ) as error:
        if isinstance(error, DatabaseUnavailableError) or not is_transient(error):
            _conceal(error)
            raise
        raise DatabaseUnavailableError(_in_words(error)) from error
