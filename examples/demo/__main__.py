"""Twenty seconds of the main job: ``python -m examples.demo``.

A server, two worker processes, and jobs of every sort; one of the workers is killed in the middle. The exit
code is 1 if a job was lost or completed twice. With ``PG_SCHEDULER_DSN`` it uses that database, in a schema
of its own that it drops at the end; otherwise it starts a private server.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

import asyncpg

from examples.demo.checks import judge
from examples.demo.ledger import Ledger
from examples.demo.nodes import NodeDiedError, Nodes
from examples.demo.screen import Screen, choose
from examples.demo.story import Story
from examples.demo.view import look
from examples.demo.worker import DemoScheduler
from pg_scheduler import embedded

__all__ = ["main"]

NODES: Final = ["node-1", "node-2"]
FRAME: Final = 0.2
INTERRUPTED: Final = 130


@contextmanager
def database() -> Iterator[str]:
    """The address of the database to work on."""
    dsn = os.environ.get("PG_SCHEDULER_DSN") or embedded.server_dsn()
    if dsn:
        yield dsn
    else:
        with embedded.server() as server:
            yield server.dsn()


@asynccontextmanager
async def schema_of_our_own(dsn: str) -> AsyncIterator[str]:
    """An address that leads into a new schema, which is dropped at the end."""
    name = f"demo_{uuid.uuid4().hex[:8]}"
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f'CREATE SCHEMA "{name}"')
        try:
            # Whatever asyncpg does not know in an address is a setting of the session.
            yield f"{dsn}{'&' if urlsplit(dsn).query else '?'}search_path={name}"
        finally:
            await connection.execute(f'DROP SCHEMA "{name}" CASCADE')
    finally:
        await connection.close()


async def watch(story: Story, nodes: Nodes, ledger: Ledger, screen: Screen) -> None:
    """Show how things stand, again and again."""
    while True:
        screen.show(look(story, nodes, await ledger.tallies()))
        await asyncio.sleep(FRAME)


async def perform(dsn: str, screen: Screen) -> int:
    """The whole demo on a database."""
    async with schema_of_our_own(dsn) as ours, asyncpg.create_pool(ours, min_size=1, max_size=4) as pool:
        scheduler = DemoScheduler(pool)  # never started: it only schedules, as a web service might
        await scheduler.initialize_db()
        ledger = Ledger(pool)
        await ledger.create()
        async with Nodes(ours, NODES) as nodes:
            story = Story(scheduler, nodes, pool, ledger, lambda line: screen.tell(story.elapsed, line))
            with screen:
                await play(story, nodes, ledger, screen)
        assert story.victim is not None
        assert story.killed_at is not None
        verdict = judge(story.expected, await ledger.runs(), NODES, story.victim.name, story.killed_at)
        screen.conclude(verdict)
        return 0 if verdict.holds else 1


async def play(story: Story, nodes: Nodes, ledger: Ledger, screen: Screen) -> None:
    """Play the story, and show it meanwhile."""
    aside = [
        asyncio.create_task(watch(story, nodes, ledger, screen)),
        asyncio.create_task(nodes.watch()),
    ]
    playing = asyncio.create_task(story.play())
    try:
        done, _ = await asyncio.wait([playing, *aside], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (playing, *aside):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    screen.show(look(story, nodes, await ledger.tallies()))


def main() -> int:
    """Read the command line, find a server and perform."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--plain", action="store_true", help="lines of text, also on a terminal")
    screen = choose(plain=parser.parse_args().plain)
    print("starting PostgreSQL and two worker processes ...", flush=True)
    try:
        with database() as dsn:
            return asyncio.run(perform(dsn, screen))
    except KeyboardInterrupt:
        print("stopped", flush=True)
        return INTERRUPTED
    except (NodeDiedError, embedded.EmbeddedError) as problem:
        print(problem, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
