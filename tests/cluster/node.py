"""A real worker process for the tests of this folder.

It says what happens in lines of JSON on its standard output, takes commands (see ``Orders``) on its standard
input, and ends in peace when that is closed: it cannot outlive the test. It also runs with the library as it
was (see ``previous.py``), so it asks for what is new only when an option says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from pg_scheduler import (
    ConflictResolution,
    JobPriority,
    PeriodicJobConfig,
    RetryPolicy,
    Scheduler,
    current_job,
    job,
    periodic,
)
from pg_scheduler.events import Event, PassFinished
from tests.cluster.fleet import TICK, TOCK

FORMER_NAMES = {"JobsRescued": "JobsReclaimed"}
"""Events as the previous library names them, by the names that tests wait for."""

NOTHING: dict[str, Any] = {"args": [], "kwargs": {}}
SOON = RetryPolicy(base=timedelta(milliseconds=50), maximum=timedelta(milliseconds=50))


def say(event: str, **about: Any) -> None:
    """One line; it is on its way when this returns, whatever happens to the process then."""
    sys.stdout.write(json.dumps({"event": event, **about}, default=str) + "\n")
    sys.stdout.flush()


def say_of_job(event: str) -> None:
    current = current_job()
    say(event, job_id=current.job_id, attempt=current.attempt, due=current.execution_time)


@job(name="cluster.note")
async def note() -> None:
    """Runs in no time."""
    say_of_job("ran")


@job(name="cluster.hold")
async def hold() -> None:
    """The first try never ends by itself; later ones run in no time."""
    if current_job().attempt == 1:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            say_of_job("cancelled")
            raise
    say_of_job("ran")


@job(name="cluster.freeze")
async def freeze() -> None:
    """The first try halts its whole process in the middle; whoever wakes that lets it go on to its end."""
    if current_job().attempt == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    say_of_job("ran")


@job(name="cluster.block")
async def block() -> None:
    """Blocks the event loop for five seconds, as a long computation would."""
    say_of_job("blocks")
    time.sleep(5)  # noqa: ASYNC251 - that is what it is about
    say_of_job("ran")


@job(name="cluster.stumble")
async def stumble() -> None:
    """Fails at the first try."""
    say_of_job("ran")
    if current_job().attempt == 1:
        raise RuntimeError("the first try fails")


@job(name="cluster.die")
async def die() -> None:
    """Takes its process with it, each time."""
    say_of_job("dies")
    os.kill(os.getpid(), signal.SIGKILL)


async def tick() -> None:
    say_of_job("ticked")


async def tock() -> None:
    say_of_job("tocked")


class Mouth:
    """Tells every event, and the state of each schedule whenever the planner finds it changed."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._enabled: dict[str, bool] = {}

    def tell(self, event: Event) -> None:
        if not isinstance(event, PassFinished):
            say(FORMER_NAMES.get(type(event).__name__, type(event).__name__), **asdict(event))
        elif event.service == "planner":
            configs = self._scheduler.get_periodic_jobs()
            for key, config in configs.items():
                self._tell_switch(key, config)

    def _tell_switch(self, key: str, config: PeriodicJobConfig) -> None:
        if self._enabled.get(key) is not config.enabled:
            self._enabled[key] = config.enabled
            say("switched", key=key, enabled=config.enabled)


class Orders:
    """The commands: ``COMMAND ARGUMENT...`` each."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    async def obey(self) -> None:
        """Do what comes on the standard input until its end."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := (await reader.readline()).decode().split():
            command, *arguments = line
            await getattr(self, command)(*arguments)
            say("done", line=" ".join(line))
        transport.close()

    async def enable(self, key: str) -> None:
        assert self._scheduler.enable_periodic_job(key), key

    async def disable(self, key: str) -> None:
        assert self._scheduler.disable_periodic_job(key), key

    async def enqueue(self, name: str, prefix: str, first: str, end: str) -> None:
        """One by one, with a retry each."""
        for number in range(int(first), int(end)):
            await self._put(name, f"{prefix}-{number}", ConflictResolution.RAISE)

    async def replace(self, name: str, job_id: str) -> None:
        await self._put(name, job_id, ConflictResolution.REPLACE)

    async def cancel(self, job_id: str) -> None:
        assert await self._scheduler.cancel_job(job_id), job_id

    async def vacuum(self) -> None:
        await self._scheduler.run_vacuum()

    async def rescue(self) -> None:
        await self._scheduler.recover_orphaned_jobs()

    async def _put(self, name: str, job_id: str, resolution: ConflictResolution) -> None:
        await self._scheduler.schedule_job(
            name, datetime.now(UTC), NOTHING, JobPriority.NORMAL, 1, job_id, resolution
        )


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    parser.add_argument("--lease", type=float, default=60)
    parser.add_argument("--slots", type=int, default=25)
    parser.add_argument("--max-loop-block", type=float)
    parser.add_argument("--tick", type=float, help="seconds between two ticks")
    parser.add_argument("--tock", action="store_true", help="every second by cron")
    options = parser.parse_args()
    if options.tick:
        periodic(every=timedelta(seconds=options.tick), dedup_key=TICK)(tick)
    if options.tock:
        periodic(cron="* * * * * *", dedup_key=TOCK)(tock)

    class Node(Scheduler):
        LEASE_DURATION = options.lease

    async with asyncpg.create_pool(options.dsn, min_size=1, max_size=4) as pool:
        settings = {"max_loop_block": options.max_loop_block} if options.max_loop_block else {}
        scheduler = Node(
            pool,
            max_concurrent_jobs=options.slots,
            shutdown_timeout=1,
            retry_policy=SOON,
            **settings,
        )
        scheduler.subscribe(Mouth(scheduler).tell)
        async with scheduler:
            await Orders(scheduler).obey()


if __name__ == "__main__":
    asyncio.run(main())
