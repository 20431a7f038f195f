"""One run: a server, workers, load and faults, then peace, and the verdict."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import asyncpg

from pg_scheduler import Scheduler
from pg_scheduler.embedded import EmbeddedPostgres
from tools.chaos import ledger
from tools.chaos.checker import judge
from tools.chaos.clock import Clock, find_library
from tools.chaos.evidence import Evidence, Row, Verdict
from tools.chaos.fleet import Fleet
from tools.chaos.jobs import PERIODIC
from tools.chaos.load import Load
from tools.chaos.nemesis import Nemesis
from tools.chaos.proxy import Proxy
from tools.chaos.unhandled import listen

__all__ = ["Settings", "run"]

SERVER_SETTINGS: Final = {"max_connections": "60", "max_wal_size": "1GB"}
ON_MEMORY: Final = {"fsync": "off"}
WARM_UP: Final = 2.0
DRAIN: Final = 40.0
STATUS_EVERY: Final = 10.0
GOODBYE: Final = 75.0
"""Seconds in which a worker stops, also one that waits twice in a row on a connection that leads nowhere."""

SOON: Final = 3.0
"""Seconds in which everything is due that the load asked for."""

AT_ONCE: Final = 5000
"""Rows that are read at once."""

UNFINISHED: Final = (
    "SELECT count(*) FROM scheduled_jobs WHERE finished_at IS NULL AND ($1 OR job_name <> ALL ($2))"
)
ROWS: Final = """
    SELECT job_id, job_name, status, worker_id, attempt, retry_count, max_retries, priority,
        extract(epoch FROM execution_time)::float8 - $1, extract(epoch FROM created_at)::float8 - $1,
        extract(epoch FROM started_at)::float8 - $1
    FROM scheduled_jobs
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """How large and how long.

    Attributes:
        seconds: For which there are faults.
        calm: Seconds of load after them.
        scratch: Where the server's data lies; on memory, without fsync.
        timed: Whether lateness is judged.
    """

    seed: int
    seconds: float
    calm: float
    workers: int
    rate: int
    lease: float
    folder: Path
    scratch: Path | None
    timed: bool


@dataclass(frozen=True, slots=True)
class _Stage:
    server: EmbeddedPostgres
    dsn: str
    fleet: Fleet
    clock: Clock | None


async def run(settings: Settings, tell: Callable[[str], None]) -> Verdict:
    """Do all of it."""
    server_settings = SERVER_SETTINGS | (ON_MEMORY if settings.scratch else {})
    library = find_library()
    if library is None:
        tell("libfaketime is not here, so no clock is moved")
    with ExitStack() as stack:
        clock = Clock(library) if library else None
        if clock is not None:
            stack.callback(clock.close)
        server = stack.enter_context(
            EmbeddedPostgres(
                settings=server_settings,
                scratch=settings.scratch,
                environment=clock.environment if clock else None,
            )
        )
        connection = await asyncpg.connect(server.dsn())
        await connection.execute("CREATE DATABASE chaos")
        await connection.close()
        dsn = server.dsn("chaos")
        names = [f"worker-{number}" for number in range(1, settings.workers + 1)]
        fleet = Fleet(settings.folder, dsn, settings.lease, names, library=library)
        try:
            evidence = await _gather(settings, _Stage(server, dsn, fleet, clock), tell)
        finally:
            await fleet.close()
    return judge(evidence)


async def _gather(settings: Settings, stage: _Stage, tell: Callable[[str], None]) -> Evidence:
    offset = time.time() - time.monotonic()
    fleet = stage.fleet
    unhandled: list[str] = []
    listen(unhandled.append)
    async with AsyncExitStack() as stack:
        proxy = Proxy(stage.dsn)
        stack.callback(proxy.close)
        pool = await stack.enter_async_context(
            asyncpg.create_pool(await proxy.start(), min_size=0, max_size=10, timeout=10)
        )
        client = Scheduler(pool, misfire_grace_time=None)
        await client.initialize_db()
        await fleet.start()
        load = Load(client, settings.rate, settings.seed)
        load.start()
        await asyncio.sleep(WARM_UP)
        status = asyncio.create_task(_report(load, tell))
        stack.callback(status.cancel)
        nemesis = Nemesis(stage.server, stage.dsn, fleet, proxy, stage.clock)
        await nemesis.rage(settings.seed, settings.lease, settings.seconds, tell)
        quiet = time.monotonic()
        tell("no more faults")
        await asyncio.sleep(settings.calm)
        await load.stop()
        status.cancel()
        raised = ", ".join(f"{count} {kind}" for kind, count in load.faults.items())
        tell(f"no more load; calls that raised: {raised or 'none'}")
        await asyncio.sleep(SOON)
        nemesis.catch_up()
        await _drained(stage.dsn, periodic=False)
        await _switch_off(client, stage.dsn)
        await _drained(stage.dsn, periodic=True)
        tell("everything has ended")
        stubborn = await fleet.stop(GOODBYE)
    return Evidence(
        wishes=load.wishes,
        rows=await _rows(stage.dsn, offset),
        book=ledger.read(settings.folder),
        faults=nemesis.faults,
        deaths=fleet.deaths,
        lease=settings.lease,
        quiet=quiet,
        unhandled=unhandled,
        mutinies=[*fleet.mutinies, *(f"{name} did not stop within {GOODBYE:g} s" for name in stubborn)],
        timed=settings.timed,
    )


async def _report(load: Load, tell: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(STATUS_EVERY)
        tell(str(load))


async def _drained(dsn: str, *, periodic: bool) -> None:
    """Wait until nothing waits or runs; what does so for ever is found by the verdict."""
    connection = await asyncpg.connect(dsn)
    try:
        deadline = time.monotonic() + DRAIN
        while await connection.fetchval(UNFINISHED, periodic, list(PERIODIC)):
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.2)
    finally:
        await connection.close()


async def _switch_off(client: Scheduler, dsn: str) -> None:
    """No more windows, on any node."""
    for key in PERIODIC:
        assert client.disable_periodic_job(key)
    connection = await asyncpg.connect(dsn)
    try:
        while await connection.fetchval("SELECT bool_or(enabled) FROM scheduler_periodic_jobs"):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    finally:
        await connection.close()
    await asyncio.sleep(1)  # for a planner that is in the middle of a pass


async def _rows(dsn: str, offset: float) -> dict[str, Row]:
    """All of them, of which there may be millions: a part at a time."""
    rows: dict[str, Row] = {}
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            async for record in connection.cursor(ROWS, offset, prefetch=AT_ONCE):
                row = Row(*map(_shared, record))
                rows[row.job_id] = row
    finally:
        await connection.close()
    return rows


def _shared(value: Any) -> Any:
    """Each string once, also those that the ledgers have."""
    return sys.intern(value) if isinstance(value, str) else value
