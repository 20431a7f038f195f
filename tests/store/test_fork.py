"""The sockets that forked children close. ``tests/cluster/test_fork.py`` forks for real."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler.database import fork
from pg_scheduler.database.asyncpg_private import connect_as_pool, file_number
from pg_scheduler.database.fork import InheritedSockets
from tests.support.inside import Connections

NULL = Path(os.devnull).stat().st_rdev


async def close_with_copies(dsn: str) -> None:
    """Close the sockets of a process that has copies of them, as the parent of a forked child has."""
    sockets = InheritedSockets()
    async with asyncpg.create_pool(dsn, min_size=2, max_size=3) as pool:
        connections = Connections(pool)
        sockets.close_in_children(connections)
        extra = await sockets.open(lambda: connect_as_pool(pool))
        held = [*connections.open_connections(), extra]
        numbers = [file_number(connection) for connection in held]
        copies = [socket.socket(fileno=os.dup(number)) for number in numbers]
        assert len(set(numbers)) == 3
        sockets.close()
        assert [os.fstat(number).st_rdev for number in numbers] == [NULL] * 3
        pool.terminate()
        extra.terminate()
        for copy in copies:
            copy.setblocking(False)
            with pytest.raises(BlockingIOError):  # the server has sent nothing, so the session lives
                copy.recv(1)
            copy.close()


@pytest.mark.parametrize("library", ["asyncio", "uvloop"])
def test_closing_inherited_sockets_sends_nothing_to_the_server(dsn: str, library: str) -> None:
    with asyncio.Runner(loop_factory=pytest.importorskip(library).new_event_loop) as runner:
        runner.run(close_with_copies(dsn))


async def test_closing_inherited_sockets_leaves_a_reused_descriptor_alone(dsn: str, tmp_path: Path) -> None:
    sockets = InheritedSockets()
    connection = await sockets.open(lambda: asyncpg.connect(dsn))
    number = file_number(connection)
    await connection.close()
    other = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
    os.dup2(other, number)
    before = os.fstat(number)
    sockets.close()
    assert os.fstat(number) == before
    for descriptor in {other, number}:
        os.close(descriptor)


@pytest.mark.parametrize(("forks", "opened"), [(0, 1), (1, 2), (99, fork.MAX_OPENINGS)])
async def test_connection_is_opened_again_when_the_process_forks_meanwhile(
    dsn: str, forks: int, opened: int
) -> None:
    sockets = InheritedSockets()
    connections: list[asyncpg.Connection] = []

    async def connect() -> asyncpg.Connection:
        connections.append(await asyncpg.connect(dsn))
        if len(connections) <= forks:
            sockets.count_fork()
        return connections[-1]

    last = await sockets.open(connect)
    assert len(connections) == opened
    assert [connection for connection in connections if not connection.is_closed()] == [last]
    await last.close()
