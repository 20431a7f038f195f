"""Create the databases of the pytest plugin."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import asyncpg

from pg_scheduler import embedded
from pg_scheduler.database.opening import open_connection_to
from pg_scheduler.embedded import Server
from pg_scheduler.migrate import migrate

FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
"""Settings of the private server: its data need not survive."""


def database_server() -> AbstractContextManager[Server]:
    """Provide the server of the environment variable, or a private one."""
    return embedded.server(settings=FAST)


@contextmanager
def temporary_database(server: Server, template: str | None = None) -> Iterator[str]:
    """Create a database; yield its name, and drop the database at the end.

    It is a copy of the template. Without a template, it is a new one with the tables of the library.
    """
    name = f"scheduler_{uuid.uuid4().hex}"

    async def create(connection: asyncpg.Connection) -> None:
        """Create the database by a connection to the server's own database."""
        source = f'template "{template or "template0"}"'
        # Older servers know no other strategy, and no word for it.
        if connection.get_server_version() >= (15,):
            source += " strategy file_copy"
        await connection.execute(f'create database "{name}" {source}')

    async def drop(connection: asyncpg.Connection) -> None:
        """Drop the database, also if sessions are connected to it."""
        await connection.execute(f'drop database "{name}" with (force)')

    _run(server.dsn(), create)
    try:
        if template is None:
            _run(server.dsn(name), migrate)
        yield name
    finally:
        _run(server.dsn(), drop)


def _run(dsn: str, work: Callable[[asyncpg.Connection], Awaitable[Any]]) -> None:
    """Run a coroutine function with a connection to a database, and wait until it has ended.

    It runs in another thread, because an event loop may already run in that of the caller.
    """

    async def run() -> None:
        """Open the connection, pass it to the function, and close it."""
        connection = await open_connection_to(dsn, "the DSN of the tests")
        try:
            await work(connection)
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, run()).result()
