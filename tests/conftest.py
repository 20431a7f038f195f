"""A real PostgreSQL for every test, and a database of its own for each that asks for one.

One server per session (and per xdist worker): embedded, or the one named in PG_SCHEDULER_TEST_DSN. A template
database is migrated once, and each test gets a copy of it, which takes some milliseconds. All of this happens
outside the tests' event loops, so sync tests can use it too.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import asyncpg
import hypothesis
import pytest

from pg_scheduler import embedded
from tools.chaos.proxy import Proxy

# A shell's background jobs inherit an ignored Ctrl-C, and so would the programs that tests send one to.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests share the machine with a database: a slow example says nothing about the code.
hypothesis.settings.register_profile("pg_scheduler", deadline=None)
hypothesis.settings.load_profile("pg_scheduler")

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

FAST = {"fsync": "off", "full_page_writes": "off", "max_connections": "200", "max_wal_size": "256MB"}
MEMORY = Path("/dev/shm")
ENOUGH = 2 * 2**30


async def _with_connection(dsn: str, work: Callable[[Connection], Awaitable[None]]) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await work(connection)
    finally:
        await connection.close()


def run_on(dsn: str, work: Callable[[Connection], Awaitable[None]]) -> None:
    """Do some work on a connection, in a loop of its own that never becomes the tests' current one."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(_with_connection(dsn, work))


@contextmanager
def database(server: embedded.Server, template: str | None = None) -> Iterator[str]:
    """Create a database, empty or copied from the template; yields its name and drops it at the end."""
    name = f"test_{uuid.uuid4().hex}"

    async def create(connection: Connection) -> None:
        source = f'template "{template}"' if template else "template template0"
        if connection.get_server_version() >= (15,):
            source += " strategy file_copy"
        await connection.execute(f'create database "{name}" {source}')

    async def drop(connection: Connection) -> None:
        await connection.execute(f'drop database "{name}" with (force)')

    run_on(server.dsn(), create)
    try:
        yield name
    finally:
        run_on(server.dsn(), drop)


async def _migrate(connection: Connection) -> None:
    from pg_scheduler.migrate import migrate

    await migrate(connection)


@pytest.fixture(scope="session")
def scratch() -> Path | None:
    """Memory to put data in, if there is enough: containers often have 64 MB."""
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ENOUGH
    return MEMORY if roomy else None


@pytest.fixture(scope="session")
def server(scratch: Path | None) -> Iterator[embedded.Server]:
    """The session's server."""
    with embedded.server(settings=FAST, scratch=scratch) as running:
        yield running


@pytest.fixture(scope="session")
def template(server: embedded.Server) -> Iterator[str]:
    """The name of a migrated database to copy from."""
    with database(server) as name:
        run_on(server.dsn(name), _migrate)
        yield name


@pytest.fixture
def dsn(server: embedded.Server, template: str) -> Iterator[str]:
    """A migrated database of the test's own."""
    with database(server, template) as name:
        yield server.dsn(name)


@pytest.fixture
def empty_dsn(server: embedded.Server) -> Iterator[str]:
    """An empty database of the test's own."""
    with database(server) as name:
        yield server.dsn(name)


@pytest.fixture
async def proxied(server: embedded.Server, dsn: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy to the test's database, which can do what networks do, and the DSN that leads through it."""
    if not isinstance(server, embedded.EmbeddedPostgres):
        pytest.skip("the proxy leads to a socket of this machine")
    proxy = Proxy(dsn)
    yield proxy, await proxy.start()
    proxy.close()


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[asyncpg.Pool[asyncpg.Record]]:
    """A pool of up to five connections to the test's database."""
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=5)
    yield pool
    # A connection that was never given back would make this wait for ever.
    await asyncio.wait_for(pool.close(), 5)
