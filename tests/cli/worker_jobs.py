"""Jobs and targets of the workers that tests start as programs; each has a name of its own."""

from __future__ import annotations

import asyncio
import builtins
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg

from pg_scheduler import Chunk, Scheduler, job
from pg_scheduler.cli.worker.stop import END_TIMEOUT_S

DSN = os.environ.get("PG_SCHEDULER_DSN")


def write_pid(path: str) -> None:
    Path(path).write_text(str(os.getpid()), encoding="utf-8")


def exists(path: str) -> bool:
    return Path(path).exists()


@job(name="cliworker.write", aliases=["cliworker.old"])
async def write(path: str) -> None:
    logging.getLogger("shop").info("writing")
    write_pid(path)


@job(name="cliworker.index", chunk=100, chunk_wait=3600)
async def index(chunk: Chunk[str]) -> None:
    for member in chunk:
        write_pid(member.item)


@job(name="cliworker.wait")
async def wait(begun: str, until: str) -> None:
    """Write the process id to a file, and end when another file exists."""
    write_pid(begun)
    while not exists(until):  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.02)  # until the test lets it end


@job(name="cliworker.stay")
async def stay(begun: str, until: str) -> None:
    """The same, but it suppresses its cancellation."""
    write_pid(begun)
    while not exists(until):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.02)  # until the test lets it end


@job(name="cliworker.stay_in_thread")
async def stay_in_thread(begun: str, until: str) -> None:
    """Block a thread of asyncio, for which the interpreter waits."""
    await asyncio.to_thread(_block, begun, until)


@job(name="cliworker.block")
async def block(begun: str, until: str) -> None:
    """The same, but it blocks the event loop."""
    _block(begun, until)


def _block(begun: str, until: str) -> None:
    write_pid(begun)
    while not exists(until):
        time.sleep(0.02)  # until the test lets it end


@job(name="cliworker.fail", max_retries=0)
async def fail(word: str) -> None:
    logging.getLogger("shop").info("failing")
    raise LookupError(word)


def plain() -> Scheduler:
    return Scheduler(asyncpg.create_pool(DSN, min_size=1, max_size=5))


async def coroutine() -> Scheduler:
    return Scheduler(await asyncpg.create_pool(DSN, min_size=1, max_size=5))


@asynccontextmanager
async def context() -> AsyncIterator[Scheduler]:
    async with asyncpg.create_pool(DSN, min_size=1, max_size=5) as pool:
        yield Scheduler(pool)


def with_argument(dsn: str) -> Scheduler:
    return Scheduler(asyncpg.create_pool(dsn))


def nothing() -> None: ...


ERROR = "ValueError"


def broken() -> Scheduler:
    raise vars(builtins)[ERROR]("the setting")


@asynccontextmanager
async def impatient() -> AsyncIterator[Scheduler]:
    async with asyncpg.create_pool(DSN, min_size=1, max_size=5) as pool:
        yield Scheduler(pool, shutdown_timeout=0.1, stop_grace=0.1)


@asynccontextmanager
async def tidy() -> AsyncIterator[Scheduler]:
    async with asyncpg.create_pool(DSN, min_size=1, max_size=5) as pool:
        yield Scheduler(pool)
        await asyncio.sleep(END_TIMEOUT_S + 0.5)  # in real time: the process must not end before
        logging.getLogger("shop").warning("tidied up")


@asynccontextmanager
async def started() -> AsyncIterator[Scheduler]:
    dsn = os.environ["PG_SCHEDULER_DSN"]  # now: the module may have been imported for another database
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5) as pool, Scheduler(pool) as scheduler:
        yield scheduler


number = 3
