"""Run two workers for about twenty seconds, kill one of them, and check that no job was lost.

The demo starts a private PostgreSQL server. If ``PG_SCHEDULER_DSN`` is set, it uses that database instead,
in a schema of its own that it drops at the end. The exit code is 1 if a job was lost or completed twice.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

from pg_scheduler import Scheduler, embedded
from pg_scheduler.base.dsn import normalise_dsn
from pg_scheduler.cli.errors import CommandError, ExitCode
from pg_scheduler.database.opening import create_pool, open_connection_to

from .afterwards import show_dashboard
from .jobs import Ledger
from .nodes import NodeDiedError, Nodes
from .report import build_report
from .scenario import Scenario, build_view
from .screen import Screen, choose_screen

NODES: Final = ["node-1", "node-2"]
REFRESH_S: Final = 0.2


@contextmanager
def database() -> Iterator[str]:
    """Yield the address of the database to use; start a server if none is configured."""
    dsn = os.environ.get("PG_SCHEDULER_DSN") or embedded.server_dsn()
    if dsn:
        yield normalise_dsn(dsn, "the DSN of the demo")
    else:
        with embedded.server() as server:
            yield server.dsn()


@asynccontextmanager
async def temporary_schema(dsn: str) -> AsyncIterator[str]:
    """Create a schema, yield an address that selects it, and drop it at the end."""
    name = f"demo_{uuid.uuid4().hex[:8]}"
    connection = await open_connection_to(dsn, "the DSN of the demo")
    try:
        await connection.execute(f'CREATE SCHEMA "{name}"')
        try:
            # asyncpg sends unknown parameters of an address to the server as session settings.
            separator = "&" if urlsplit(dsn).query else "?"
            yield f"{dsn}{separator}search_path={name}"
        finally:
            await connection.execute(f'DROP SCHEMA "{name}" CASCADE')
    finally:
        await connection.close()


async def refresh(scenario: Scenario, nodes: Nodes, ledger: Ledger, screen: Screen) -> None:
    """Update the screen until cancelled."""
    while True:
        screen.update(build_view(scenario, nodes, await ledger.tallies()))
        await asyncio.sleep(REFRESH_S)


async def run_demo(dsn: str, screen: Screen, port: int | None) -> ExitCode:
    """Run the demo on a database and return the exit code."""
    async with (
        temporary_schema(dsn) as demo_dsn,
        create_pool(demo_dsn, "the DSN of the demo", min_size=1, max_size=4) as pool,
    ):
        scheduler = Scheduler(pool)  # never started: it only enqueues, as a web service would
        await scheduler.initialize_db()
        ledger = Ledger(pool)
        await ledger.create()
        async with Nodes(scheduler, demo_dsn, NODES) as nodes:

            def log(line: str) -> None:
                screen.log(scenario.elapsed, line)

            scenario = Scenario(scheduler, nodes, pool, ledger, log)
            with screen:
                await run_scenario(scenario, nodes, ledger, screen)
        # The scenario has killed a node, unless it has raised an error.
        assert scenario.victim is not None
        assert scenario.killed_at is not None
        attempts = await ledger.attempts()
        report = build_report(scenario.expected, attempts, NODES, scenario.victim.name, scenario.killed_at)
        screen.show_report(report)
        if port is not None:
            await show_dashboard(demo_dsn, pool, scheduler, port)
        return ExitCode.DONE if report.passed else ExitCode.NEGATIVE


async def run_scenario(scenario: Scenario, nodes: Nodes, ledger: Ledger, screen: Screen) -> None:
    """Run the scenario and keep the screen up to date. Raise an error if a process ends unexpectedly."""
    background = [
        asyncio.create_task(refresh(scenario, nodes, ledger, screen)),
        asyncio.create_task(nodes.monitor()),
    ]
    running = asyncio.create_task(scenario.run())
    try:
        ended_tasks, _ = await asyncio.wait([running, *background], return_when=asyncio.FIRST_COMPLETED)
        # The result of a task raises the error that ended it, such as the end of a node.
        for task in ended_tasks:
            task.result()
    finally:
        for task in (running, *background):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    # The screen that stays has the last figures.
    screen.update(build_view(scenario, nodes, await ledger.tallies()))


def run(*, plain: bool, port: int | None) -> ExitCode:
    """Run the demo. With a port, serve the dashboard of its data on that port until Ctrl-C."""
    screen = choose_screen(plain=plain)
    print("starting PostgreSQL and two worker processes ...", flush=True)
    try:
        with database() as dsn:
            return asyncio.run(run_demo(dsn, screen, port))
    except KeyboardInterrupt:
        print("stopped", flush=True)
        return ExitCode.INTERRUPTED
    except (NodeDiedError, embedded.EmbeddedError) as problem:
        raise CommandError(ExitCode.NEGATIVE, str(problem)) from problem
