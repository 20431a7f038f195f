"""Which faults go away by themselves, told by class or SQLSTATE."""

from __future__ import annotations

import asyncio
import ssl

import asyncpg
import pytest

from pg_scheduler.errors import SchemaError, SchemaForbiddenError, SchemaMissingError, TransientFault
from pg_scheduler.store.faults import is_transient, translated

TRANSIENT: list[BaseException] = [
    asyncpg.ConnectionDoesNotExistError("x"),  # 08003
    asyncpg.ConnectionFailureError("x"),
    asyncpg.SerializationError("x"),  # 40001
    asyncpg.DeadlockDetectedError("x"),
    asyncpg.DiskFullError("x"),  # 53100
    asyncpg.OutOfMemoryError("x"),
    asyncpg.TooManyConnectionsError("x"),
    asyncpg.AdminShutdownError("x"),  # 57P01
    asyncpg.CrashShutdownError("x"),
    asyncpg.CannotConnectNowError("x"),
    asyncpg.IdleSessionTimeoutError("x"),
    asyncpg.PostgresIOError("x"),  # 58030
    asyncpg.ReadOnlySQLTransactionError("x"),  # 25006
    asyncpg.LockNotAvailableError("x"),  # 55P03
    asyncpg.ObjectInUseError("x"),  # 55006
    asyncpg.InterfaceError("pool is closed"),
    asyncpg.InternalClientError("broke off"),
    asyncpg.ProtocolError("broke off"),
    ConnectionResetError(),
    ConnectionRefusedError(),
    BrokenPipeError(),
    OSError("no route to host"),
    ssl.SSLError("broken"),
    TimeoutError(),
    asyncpg.QueryCanceledError("x"),  # 57014: by a person, or a statement_timeout
    TransientFault("known"),
]
LASTING: list[BaseException] = [
    asyncpg.UniqueViolationError("x"),
    asyncpg.CheckViolationError("x"),
    asyncpg.NotNullViolationError("x"),
    asyncpg.PostgresSyntaxError("x"),
    asyncpg.InsufficientPrivilegeError("x"),
    asyncpg.InvalidPasswordError("x"),
    asyncpg.InvalidCatalogNameError("x"),
    asyncpg.UndefinedTableError("x"),
    asyncpg.DatetimeFieldOverflowError("x"),
    asyncpg.NumericValueOutOfRangeError("x"),
    asyncpg.DataCorruptedError("x"),  # XX001
    asyncpg.InFailedSQLTransactionError("x"),
    asyncpg.PostgresError("without a state"),
    asyncpg.DataError("a wrong argument"),
    asyncpg.ClientConfigurationError("a bad dsn"),
    ValueError(),
    TypeError(),
    KeyError(),
    asyncio.CancelledError(),
]


def name(error: BaseException) -> str:
    return type(error).__name__


@pytest.mark.parametrize("error", TRANSIENT, ids=name)
def test_what_goes_away_by_itself(error: BaseException) -> None:
    assert is_transient(error)
    with pytest.raises(TransientFault) as caught, translated():
        raise error
    if not isinstance(error, TransientFault):
        assert caught.value.__cause__ is error
        assert str(caught.value).startswith(f"{name(error)}: ")


@pytest.mark.parametrize("error", LASTING, ids=name)
def test_what_does_not(error: BaseException) -> None:
    assert not is_transient(error)
    with pytest.raises((type(error), SchemaError)) as caught, translated():
        raise error
    assert error in (caught.value, caught.value.__cause__)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.UndefinedTableError("x"),
        asyncpg.UndefinedColumnError("x"),
        asyncpg.InvalidSchemaNameError("x"),
    ],
    ids=name,
)
def test_tables_that_are_not_there(error: asyncpg.PostgresError) -> None:
    with pytest.raises(SchemaMissingError, match=r"missing or old \(x\)") as caught, translated():
        raise error
    assert caught.value.__cause__ is error


def test_a_right_that_is_missing() -> None:
    with pytest.raises(SchemaForbiddenError, match=r"\(x\)\. Grant it") as caught, translated():
        raise asyncpg.InsufficientPrivilegeError("x")
    assert isinstance(caught.value.__cause__, asyncpg.InsufficientPrivilegeError)


def test_a_fault_is_translated_once() -> None:
    with pytest.raises(TransientFault) as caught, translated(), translated():
        raise ConnectionResetError("peer")
    assert str(caught.value) == "ConnectionResetError: peer"


def test_no_fault() -> None:
    with translated():
        pass
