"""The idle workers of the row footprint, one for each library, with its default settings and one task.

It is a driver like the others of this folder. It imports only the library that it measures, because those of
other rows also need modules for what they insert.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple

from benchmarks.peers.protocol import resident, send_event

IDLE_S: Final = 5.0
"""The time after the start at which the worker is measured. Then all libraries have done their first work."""


async def work(user_id: int, text: str) -> None:
    """Do nothing. The annotations are those of a typical task."""


@asynccontextmanager
async def _ours(dsn: str) -> AsyncIterator[None]:
    asyncpg, pg_scheduler = map(importlib.import_module, OURS.modules)
    async with (
        asyncpg.create_pool(dsn, min_size=1) as pool,
        pg_scheduler.Scheduler(pool) as scheduler,
    ):
        scheduler.register(work, name="work")
        yield


@asynccontextmanager
async def _needs(dsn: str) -> AsyncIterator[None]:
    """Use these packages as each worker of ours does: validate settings and arguments, connect and listen."""
    asyncpg, pydantic, dataclasses, _ = map(importlib.import_module, NEEDS.modules)
    dataclasses.dataclass(type("Settings", (), {"__annotations__": {"slots": int}, "slots": 25}))()
    pydantic.validate_call(work)
    async with AsyncExitStack() as stack:
        for _number in range(3):
            connection = await asyncpg.connect(dsn)
            stack.push_async_callback(connection.close)
            await connection.fetchval("SELECT $1::text", "text")
            await connection.add_listener("idle", print)
        yield


@asynccontextmanager
async def _pgqueuer(dsn: str) -> AsyncIterator[None]:
    asyncpg, pgqueuer = map(importlib.import_module, PGQUEUER.modules)
    connection = await asyncpg.connect(dsn)
    queuer = pgqueuer.PgQueuer.from_asyncpg_connection(connection)

    @queuer.entrypoint("work")  # type: ignore[untyped-decorator]
    async def work_on(job: Any) -> None:
        """Do nothing."""

    running = asyncio.create_task(queuer.run())
    yield
    queuer.shutdown.set()
    await running
    await connection.close()


@asynccontextmanager
async def _procrastinate(dsn: str) -> AsyncIterator[None]:
    (procrastinate,) = map(importlib.import_module, PROCRASTINATE.modules)
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn))
    app.task(name="work")(work)
    async with app.open_async():
        running = asyncio.create_task(app.run_worker_async(install_signal_handlers=False))
        yield
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Library(NamedTuple):
    """A library: the modules that an application imports, and what runs a worker in a database."""

    modules: tuple[str, ...]
    working: Callable[[str], AbstractAsyncContextManager[None]]


OURS: Final = Library(("asyncpg", "pg_scheduler"), _ours)
NEEDS: Final = Library(("asyncpg", "pydantic", "pydantic.dataclasses", "croniter"), _needs)
PGQUEUER: Final = Library(("asyncpg", "pgqueuer"), _pgqueuer)
PROCRASTINATE: Final = Library(("procrastinate",), _procrastinate)

LIBRARIES: Final = {
    "ours": OURS,
    "our needs": NEEDS,
    "PgQueuer": PGQUEUER,
    "procrastinate": PROCRASTINATE,
}


async def _run(library: Library, dsn: str) -> None:
    began = time.perf_counter()
    for module in library.modules:
        importlib.import_module(module)
    imported = {
        "import_s": time.perf_counter() - began,
        "import_modules": len(sys.modules),
        "import_rss": resident(),
    }
    async with library.working(dsn):
        await asyncio.sleep(IDLE_S)
        send_event(event="started", **imported, modules=len(sys.modules), rss=resident())
        await asyncio.to_thread(sys.stdin.readline)
    send_event(event="result")


def main(order: str) -> None:
    """Run the driver."""
    fields = json.loads(order)
    send_event(event="ready")
    sys.stdin.readline()
    asyncio.run(_run(LIBRARIES[fields["options"]["library"]], fields["dsn"]))
