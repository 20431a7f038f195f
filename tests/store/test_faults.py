"""Errors are transient or permanent by class or SQLSTATE."""

from __future__ import annotations

import asyncio
import ssl
import time

import asyncpg
import pytest

from pg_scheduler.database.faults import ENDED_WHILE_IDLE, is_refusal, is_transient, translated
from pg_scheduler.database.statements import MAX_ATTEMPTS, Transaction
from pg_scheduler.errors import (
    ConnectionLostError,
    DatabaseUnavailableError,
    SchemaError,
    SchemaForbiddenError,
    SchemaMissingError,
)
from tests.support.cases import each_case
from tests.support.inside import Connections, Store

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
    asyncpg.IdleInTransactionSessionTimeoutError("x"),  # 25P03: this process was suspended in one
    asyncpg.PostgresIOError("x"),  # 58030
    asyncpg.LockNotAvailableError("x"),  # 55P03
    asyncpg.ObjectInUseError("x"),  # 55006
    asyncpg.InvalidCachedStatementError("x"),  # 0A000, as a feature that is not supported
    asyncpg.InterfaceError("pool is closed"),
    asyncpg.ProtocolError("broke off"),
    ConnectionResetError(),
    ConnectionRefusedError(),
    BrokenPipeError(),
    OSError("no route to host"),
    ssl.SSLError("broken"),
    TimeoutError("x"),
    asyncpg.QueryCanceledError("x"),  # 57014: by a person, or a statement_timeout
    DatabaseUnavailableError("known"),
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


BY_STATE = {
    "08000 08001 08003 08004 08006 08007 08P01": True,  # the connection, or a pooler's equivalent
    "40001 40P01 40003": True,  # lost against another transaction
    "53000 53100 53200 53300 53400": True,  # disk, memory, connections
    "57014 57P01 57P02 57P03 57P05": True,  # cancelled, shut down, crashed, starting, idle too long
    "58000 58030": True,  # the server's own system
    "72000": True,  # a snapshot too old, with old_snapshot_threshold of servers before 17
    "25006 25P03 25P04 55P03 55006": True,
    "22001 22P02 23505 23514": False,  # data
    "25P02 26000 42601 42P01 42703 3F000": False,  # a mistake, or another schema
    "28000 28P01 3D000 42501": False,  # no privilege, or missing
    "54000 P0001 XX000 XX001 XX002": False,  # a limit of a row, a user's trigger, a broken database
}


@each_case(
    ("state", "passes"), [(state, passes) for states, passes in BY_STATE.items() for state in states.split()]
)
def test_is_transient_depends_on_the_sqlstate(state: str, passes: bool) -> None:
    assert is_transient(asyncpg.PostgresError.new({"C": state, "M": "whatever it says"})) is passes


BY_ROUTINE = {
    "PreCommit_Notify": True,  # the queue of notifications is full
    "GetNewTransactionId": True,  # no numbers of transactions are left until old rows are frozen
    "GetNewMultiXactId": True,
    "_bt_check_third_page": False,  # a value is too large for an index
    "exec_stmt_raise": False,  # a trigger has chosen this SQLSTATE
}


@each_case(("routine", "passes"), [*BY_ROUTINE.items()])
@each_case("context", ["", "PL/pgSQL function app.audit() line 3 at SQL statement"])
def test_limit_of_the_server_is_an_outage_and_one_of_a_row_is_not(
    routine: str, passes: bool, context: str
) -> None:
    error = asyncpg.PostgresError.new({"C": "54000", "M": "whatever it says", "R": routine, "W": context})
    assert is_transient(error) is passes
    assert is_refusal(error) is not passes


async def test_transaction_raises_unavailable_when_the_server_ended_it_while_idle(pool: asyncpg.Pool) -> None:
    """asyncpg raises 25P03, the end of the connection or an InternalClientError, by chance."""
    connections = Connections(pool)

    async def use() -> None:
        async with connections.transaction() as connection:
            await connection.execute("SET LOCAL idle_in_transaction_session_timeout = '1ms'")
            time.sleep(0.1)  # noqa: ASYNC251 - the process is suspended, or its event loop blocked
            await connection.execute("SELECT 1")

    with pytest.raises(DatabaseUnavailableError):
        await use()
    assert await pool.fetchval("SELECT 1") == 1


async def test_outage_in_a_parallel_worker_of_the_server_is_one(dsn: str) -> None:
    """Its error has a context, as that of a trigger, although no code of the application ran."""
    settings = {"temp_file_limit": "64kB", "work_mem": "64kB"}
    connection = await asyncpg.connect(dsn, server_settings=settings)
    is_new = connection.get_server_version().major >= 16
    await connection.execute(f"SET {'debug_parallel_query' if is_new else 'force_parallel_mode'} = on")
    with pytest.raises(DatabaseUnavailableError) as caught, translated():
        await connection.fetch("SELECT n FROM generate_series(1, 100000) AS n ORDER BY n DESC")
    await connection.close()
    assert isinstance(caught.value.__cause__, asyncpg.ConfigurationLimitExceededError)
    assert caught.value.__cause__.context


async def test_run_retrying_runs_again_after_deadlocks_and_no_other_fault(pool: asyncpg.Pool) -> None:
    statements = Store(Connections(pool)).statements
    runs = 0

    async def deadlocked(transaction: Transaction) -> int:
        nonlocal runs
        runs += 1
        await transaction.connection.fetchval("SELECT 1")
        if runs < successful_run:
            raise DatabaseUnavailableError("deadlock") from asyncpg.DeadlockDetectedError("deadlock")
        return runs

    for successful_run in (1, 2, MAX_ATTEMPTS):
        runs = 0
        assert await statements.run_retrying(deadlocked) == successful_run
    runs, successful_run = 0, MAX_ATTEMPTS + 1
    with pytest.raises(DatabaseUnavailableError, match="deadlock"):
        await statements.run_retrying(deadlocked)
    assert runs == MAX_ATTEMPTS

    async def unreachable(_transaction: Transaction) -> None:
        nonlocal runs
        runs += 1
        raise DatabaseUnavailableError("down")

    runs = 0
    with pytest.raises(DatabaseUnavailableError, match="down"):
        await statements.run_retrying(unreachable)
    assert runs == 1


def name(error: BaseException) -> str:
    return type(error).__name__


@each_case("error", TRANSIENT, ids=name)
def test_translated_raises_unavailable_for_a_transient_error(error: BaseException) -> None:
    assert is_transient(error)
    with pytest.raises(DatabaseUnavailableError) as caught, translated():
        raise error
    if not isinstance(error, DatabaseUnavailableError):
        assert caught.value.__cause__ is error
        problem = f"{name(error)}: {error}" if str(error) else name(error)
        is_conflict = isinstance(error, asyncpg.SerializationError | asyncpg.DeadlockDetectedError)
        remedy = "; repeat the transaction from its beginning" if is_conflict else ""
        assert str(caught.value) == f"{problem}{remedy}"


def test_translated_names_the_remedy_where_a_session_may_not_write() -> None:
    with (
        pytest.raises(DatabaseUnavailableError, match="set default_transaction_read_only = off"),
        translated(),
    ):
        raise asyncpg.ReadOnlySQLTransactionError("cannot execute INSERT in a read-only transaction")


LOST: list[Exception] = [
    asyncpg.AdminShutdownError("x"),
    asyncpg.CrashShutdownError("x"),
    asyncpg.IdleSessionTimeoutError("x"),
    asyncpg.IdleInTransactionSessionTimeoutError("x"),
    asyncpg.ConnectionDoesNotExistError("x"),
    asyncpg.ConnectionFailureError("x"),
    ConnectionResetError("x"),
    BrokenPipeError("x"),
]


@each_case("error", LOST, ids=name)
def test_translated_raises_connection_lost_for_a_connection_that_ended(error: Exception) -> None:
    with pytest.raises(ConnectionLostError) as caught, translated():
        raise error
    assert caught.value.__cause__ is error


def test_translated_describes_a_connection_that_ended_while_it_was_idle() -> None:
    with pytest.raises(ConnectionLostError) as caught, translated():
        raise asyncpg.InternalClientError("cannot switch to state 11; another operation (2) is in progress")
    assert str(caught.value) == ENDED_WHILE_IDLE


def test_translated_describes_a_timeout_without_a_message() -> None:
    message = r"^TimeoutError: no answer in time; .* holds a lock .*see pg_locks"
    with pytest.raises(DatabaseUnavailableError, match=message), translated():
        raise TimeoutError


@each_case("error", LASTING, ids=name)
def test_translated_keeps_a_permanent_error(error: BaseException) -> None:
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
def test_translated_raises_schema_missing_for_a_missing_table(error: asyncpg.PostgresError) -> None:
    with pytest.raises(SchemaMissingError, match=r"missing or old \(x\)") as caught, translated():
        raise error
    assert caught.value.__cause__ is error


def test_translated_raises_schema_forbidden_for_a_missing_privilege() -> None:
    with pytest.raises(SchemaForbiddenError, match=r"\(x\); grant it") as caught, translated():
        raise asyncpg.InsufficientPrivilegeError("x")
    assert isinstance(caught.value.__cause__, asyncpg.InsufficientPrivilegeError)


def test_translated_keeps_an_unavailable_error() -> None:
    with pytest.raises(DatabaseUnavailableError) as caught, translated(), translated():
        raise ConnectionResetError("peer")
    assert str(caught.value) == "ConnectionResetError: peer"


def test_translated_does_nothing_without_an_error() -> None:
    with translated():
        pass
