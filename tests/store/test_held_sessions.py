"""Sessions that hold something for others: locks, rows of an open transaction, a place in LISTEN.

Such a session must end soon after its process or its network is gone, because others wait for what it holds.
And it must not end before, whatever limit the role has for idle sessions.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeAlias

import asyncpg
import pytest

from pg_scheduler import Connection
from pg_scheduler.database.migrations import indexes
from pg_scheduler.database.options import held_settings, probe_settings
from pg_scheduler.migrate import migrate
from pg_scheduler.worker.lease_connection import LeaseConnection
from pg_scheduler.worker.notifications import Subscription
from tests.support.inside import Connections, Store
from tests.support.store import Pool

INTERVAL_S = 5
IDLE_LIMIT_S = 0.2
SOCKET_OPTIONS: Final = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")


# -- each session ------------------------------------------------------------------------------------------


@asynccontextmanager
async def lock(connections: Connections) -> AsyncIterator[Connection]:
    """The session of the advisory lock of an attempt."""
    async with connections.checkout_for_lock() as connection:
        yield connection


@asynccontextmanager
async def listening(connections: Connections) -> AsyncIterator[Connection]:
    """The session that listens."""
    subscription = Subscription(Store(connections), lambda _: None, lambda: None)
    await subscription.open()
    connection: Any = subscription._connection
    yield connection
    await subscription.close()


@asynccontextmanager
async def dedicated(connections: Connections) -> AsyncIterator[Connection]:
    """The session of claims and completions."""
    async with connections.dedicated_connection as connection:
        assert connection is not None
        yield connection
    await connections.release_held()


@asynccontextmanager
async def liveness(connections: Connections) -> AsyncIterator[Connection]:
    """The session of the liveness lock."""
    lease = LeaseConnection(Store(connections).workers, connections, "w1", 60)
    await lease.open()
    assert lease._session is not None
    connection: Any = lease._session.connection
    yield connection
    await lease.close()


@asynccontextmanager
async def building(connections: Connections) -> AsyncIterator[Connection]:
    """The session that builds indexes."""
    async with connections.checkout() as connection, indexes._only_builder(connection, "public"):
        yield connection


@asynccontextmanager
async def migrating(connections: Connections) -> AsyncIterator[Connection]:
    """The transaction that migrates, which locks the tables."""
    async with connections.checkout() as connection:
        transaction = connection.transaction(isolation="read_committed")
        await transaction.start()
        await migrate(connection, schema="migrated")
        yield connection
        await transaction.rollback()


Way: TypeAlias = Callable[[Connections], AbstractAsyncContextManager[Connection]]
SESSIONS: Final[list[Way]] = [lock, listening, dedicated, liveness, building]
TRANSACTIONS: Final[list[Way]] = [Connections.transaction_of_job, migrating]


async def settings_of(connection: Connection) -> dict[str, str]:
    rows = await connection.fetch(
        "SELECT name, setting FROM pg_settings WHERE name = ANY ($1)", list(held_settings())
    )
    return {row["name"]: row["setting"] for row in rows}


@asynccontextmanager
async def connected(dsn: str, **settings: Any) -> AsyncIterator[Connections]:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5, **settings) as pool:
        yield Connections(pool)


async def keep(_connection: object) -> None:
    """Reset nothing, as the ``reset=`` of a pool."""


HAS_RESET: Final = pytest.mark.skipif(
    "reset" not in inspect.signature(asyncpg.create_pool).parameters, reason="an asyncpg before 0.30"
)


@pytest.mark.parametrize("way", [*SESSIONS, *TRANSACTIONS])
async def test_session_that_holds_something_ends_soon_after_its_peer(tcp_dsn: str, way: Way) -> None:
    is_session = way in SESSIONS
    async with connected(tcp_dsn) as connections:
        async with way(connections) as connection:
            settings = await settings_of(connection)
            tcp: Any = connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
            if way is not migrating:  # its connection is that of the caller
                assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                values = [
                    tcp.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in SOCKET_OPTIONS
                ]
                assert values == [INTERVAL_S, INTERVAL_S, 3]
        expected = held_settings(INTERVAL_S) if is_session else probe_settings(INTERVAL_S)
        assert expected["tcp_user_timeout"] == "20000", "the liveness lock is detected after 25 s"
        assert settings.items() >= expected.items()


@pytest.mark.parametrize("way", SESSIONS)
async def test_session_is_held_beyond_the_limit_for_idle_sessions(pool: Pool, dsn: str, way: Way) -> None:
    name = await pool.fetchval("SELECT current_database()")
    await pool.execute(f"ALTER DATABASE {name} SET idle_session_timeout = '{IDLE_LIMIT_S}s'")
    async with connected(dsn) as connections, way(connections) as connection:
        process_id = await connection.fetchval("SELECT pg_backend_pid()")
        await asyncio.sleep(4 * IDLE_LIMIT_S)  # the server's time is the subject
        assert await connection.fetchval("SELECT pg_backend_pid()") == process_id


@HAS_RESET
@pytest.mark.parametrize("way", [*SESSIONS, *TRANSACTIONS])
async def test_session_has_its_former_settings_in_the_pool(tcp_dsn: str, way: Way) -> None:
    async with connected(tcp_dsn, reset=keep) as connections:
        async with connections.checkout() as connection:
            before = await settings_of(connection)
        async with way(connections):
            pass
        for opened in connections.open_connections():
            assert await settings_of(opened) == before


async def test_what_is_written_at_the_end_of_the_process_holds_no_rows_when_it_stops(
    dsn: str,
) -> None:
    limits: list[str] = []

    async def read_limit(connection: Connection) -> None:
        limits.append(await connection.fetchval("SHOW idle_in_transaction_session_timeout"))

    async with connected(dsn) as connections:
        await asyncio.to_thread(connections.run_at_exit, read_limit)
    assert limits == ["10s"]


# -- all places --------------------------------------------------------------------------------------------

OPENERS: Final = {
    *("checkout", "connect_as_pool", "open_beside_pool", "open_connection_to", "take_from", "transact"),
    *("transact_with", "take_session"),
}
"""Functions that open a session or a transaction; besides, the method of a connection."""

TESTED = "test_session_that_holds_something_ends_soon_after_its_peer"
LIMITED = "the server ends its transactions after ten idle seconds, or two"
SHORT = "it holds nothing that others wait for"
STATEMENT = "it runs single statements, each of which is a transaction"
SAVEPOINT = "it is a savepoint in a transaction of one of these"
RAW = "its callers are below"

PLACES: Final = {
    "cli/imports.py:_import": "a person runs it once, and its new rows are visible to no one else",
    "database/held.py:HeldConnection._open": TESTED,
    "database/pool_database.py:PoolDatabase._read_own": SHORT,
    "database/migrations/apply.py:_transaction": TESTED,
    "database/migrations/engine.py:check_engine": SHORT,
    "database/opening.py:probe_statements": SHORT,
    "database/pool.py:Connections._open": TESTED,
    "database/pool.py:Connections.acquire": STATEMENT,
    "database/pool.py:Connections.admission": LIMITED,
    "database/pool.py:Connections.checkout": RAW,
    "database/pool.py:Connections.connect": TESTED,
    "database/pool.py:Connections.run_at_exit.run_on_own": LIMITED,
    "database/pool.py:Connections.take_session": RAW,
    "database/pool.py:Connections.transaction": LIMITED,
    "database/pool.py:Connections.transaction_of_job": TESTED,
    "database/pool.py:HeldSession.__aenter__": TESTED,
    "database/pool.py:StickyConnection.__aenter__": STATEMENT,
    "database/session.py:transact": RAW,
    "database/statements.py:Statements.transaction": SAVEPOINT,
    "importing/procrastinate.py:read_store": SHORT,
    "inspect/store/connections.py:ReadingConnections.acquire": LIMITED,
    "inspect/store/connections.py:open_connection": STATEMENT,
    "inspect/store/server.py:ServerRepository.changes_session": SHORT,
    "inspect/store/server.py:ServerRepository.has_own_session": SHORT,
    "inspect/store/server.py:ServerRepository.ping": SHORT,
    "inspect/store/server.py:ServerRepository.receives_notification": SHORT,
    "scheduler/store.py:Store._migrate_on": SHORT,
    "worker/claims.py:ClaimRepository._reading_error": SAVEPOINT,
    "worker/outcome_statements.py:ResultRepository._replace": SAVEPOINT,
}
"""Every place that opens a session or a transaction, and why what it holds does not outlive its machine."""


class Openers(ast.NodeVisitor):
    """Finds the functions that open sessions or transactions."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.scope: list[str] = []
        self.places: set[str] = set()

    def visit(self, node: ast.AST) -> None:
        """Visit a node, and note where it is."""
        is_scope = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.scope.append(node.name)
        if isinstance(node, ast.Call) and self.opens(node):
            self.places.add(f"{self.path}:{'.'.join(self.scope)}")
        self.generic_visit(node)
        if is_scope:
            self.scope.pop()

    @staticmethod
    def opens(call: ast.Call) -> bool:
        """Return whether a call opens a session or a transaction, or is partial() of such a function."""
        for function in (call.func, *call.args[:1]):
            owner, _, name = ast.unparse(function).rpartition(".")
            if name in OPENERS or (name == "transaction" and owner.endswith("connection")):
                return True
        return False


def test_each_place_that_opens_a_session_or_a_transaction_bounds_what_it_holds() -> None:
    """A new place needs a reason here, and one that holds something for long a way in the tests above."""
    root = Path(str(files("pg_scheduler")))
    places: set[str] = set()
    for path in root.rglob("*.py"):
        visitor = Openers(path.relative_to(root).as_posix())
        visitor.visit(ast.parse(path.read_text("utf-8")))
        places |= visitor.places
    assert {place for place in places if not place.startswith(("cli/demo/", "testing/"))} == set(PLACES)
