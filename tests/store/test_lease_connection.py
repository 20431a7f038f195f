"""The session of the lease connection: TCP keepalives, and whether a proxy lies in between."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from pg_scheduler.database.asyncpg_private import local_port
from pg_scheduler.worker.lease_connection import LeaseConnection
from tests.support.inside import Connections, Store
from tests.support.store import Pool
from tools.chaos.proxy import Proxy

KEEPALIVES = (
    "SELECT current_setting('tcp_keepalives_idle'), current_setting('tcp_keepalives_interval'),"
    " current_setting('tcp_keepalives_count'), current_setting('tcp_user_timeout')"
)
"""Read from the socket of the session."""


@pytest.fixture
async def tcp_pool(tcp_dsn: str) -> AsyncIterator[Pool]:
    async with asyncpg.create_pool(tcp_dsn, min_size=1) as pool:
        yield pool


@pytest.fixture
async def opened() -> AsyncIterator[list[LeaseConnection]]:
    """Lease connections to close."""
    connections: list[LeaseConnection] = []
    yield connections
    for each in connections:
        await each.close()


async def lease_connection(
    opened: list[LeaseConnection], pool: Pool, dsn: str | None, lease_s: float = 60
) -> LeaseConnection:
    connections = Connections(pool, keeper_dsn=dsn)
    connection = LeaseConnection(Store(connections).workers, connections, "w1", lease_s)
    opened.append(connection)
    await connection.open()
    return connection


@pytest.mark.parametrize(("lease_s", "interval_s"), [(3600, 5), (60, 5), (20, 5), (12, 3), (5, 1), (0.5, 1)])
async def test_session_ends_after_four_intervals_without_an_answer(
    opened: list[LeaseConnection], tcp_pool: Pool, tcp_dsn: str, lease_s: float, interval_s: int
) -> None:
    lease = await lease_connection(opened, tcp_pool, tcp_dsn, lease_s)
    assert lease._session is not None
    connection: Any = lease._session.connection
    assert tuple(await connection.fetchrow(KEEPALIVES)) == (
        str(interval_s),
        str(interval_s),
        "3",
        str(4000 * interval_s),
    )
    own = connection._transport.get_extra_info("socket")
    assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
    values = [own.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
    assert values == [interval_s, interval_s, 3]
    assert lease.is_direct
    assert lease.key is not None


async def test_connection_through_a_unix_socket_is_direct(
    opened: list[LeaseConnection], pool: Pool, dsn: str
) -> None:
    lease = await lease_connection(opened, pool, dsn)
    assert lease.is_direct
    await lease.close()
    assert not lease.is_direct


async def test_connection_through_a_proxy_is_not_direct(
    opened: list[LeaseConnection], pool: Pool, tcp_dsn: str, proxied: tuple[Proxy, str]
) -> None:
    _, dsn = proxied
    lease = await lease_connection(opened, pool, dsn)
    assert not lease.is_direct
    assert lease.key is not None, "the lock still shows the death of the process"


async def test_local_port_is_the_port_that_the_server_sees(tcp_dsn: str, dsn: str) -> None:
    for address, has_port in ((tcp_dsn, True), (dsn, False)):
        connection = await asyncpg.connect(address)
        assert local_port(connection) == await connection.fetchval("SELECT inet_client_port()")
        assert (local_port(connection) is not None) is has_port
        await connection.close()
