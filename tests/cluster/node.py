"""A worker process for the tests of this folder.

It reports events as lines of JSON on its standard output and executes commands (see ``Commands``) from its
standard input. When that closes it shuts down gracefully, so it cannot outlive the test.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import math
import multiprocessing
import os
import re
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from pg_scheduler import (
    CatchUp,
    PeriodicJobConfig,
    RetryPolicy,
    Scheduler,
    VacuumConfig,
    VacuumPolicy,
    current_job,
    job,
    periodic,
)
from pg_scheduler.events import Event, PassFinished
from tests.cluster.fleet import TICK, TOCK

NO_ARGUMENTS: dict[str, Any] = {"args": [], "kwargs": {}}
SOON = RetryPolicy(base=timedelta(milliseconds=50), maximum=timedelta(milliseconds=50))


match_may_begin = asyncio.Event()
match_ended = asyncio.Event()


def report(event: str, **details: Any) -> None:
    """Print one line and flush it, so that the test receives it even if the process ends then."""
    sys.stdout.write(json.dumps({"event": event, **details}, default=str) + "\n")
    sys.stdout.flush()


def report_job(event: str) -> None:
    current = current_job()
    report(event, job_id=current.job_id, attempt=current.attempt, due=current.execution_time)


@job(name="cluster.note")
async def note() -> None:
    """Complete immediately."""
    report_job("ran")


@job(name="cluster.hold")
async def hold() -> None:
    """Run until cancelled at the first attempt; complete immediately at later ones."""
    if current_job().attempt == 1:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            report_job("cancelled")
            raise
    report_job("ran")


@job(name="cluster.freeze")
async def freeze() -> None:
    """Stop its whole process (SIGSTOP) at the first attempt; complete after SIGCONT."""
    if current_job().attempt == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    report_job("ran")


@job(name="cluster.block")
async def block() -> None:
    """Block the event loop for five seconds at the first attempt, as a long computation would."""
    report_job("blocks")
    if current_job().attempt == 1:
        time.sleep(5)  # noqa: ASYNC251 - blocking is its purpose
    report_job("ran")


@job(name="cluster.match")
async def match() -> None:
    """Hold the GIL for seven seconds at the first attempt, in one match with catastrophic backtracking.

    It waits for the command first.
    """
    if current_job().attempt == 1:
        await match_may_begin.wait()
        text, seconds = "a" * 18 + "b", 0.0
        while seconds < 0.3:  # each further letter doubles it
            text = "a" + text
            began = time.thread_time()  # however busy the machine is
            re.match(r"(?:a+)+$", text)
            seconds = time.thread_time() - began
        re.match("|".join([r"(?:a+)+$"] * math.ceil(7 / seconds)), text)
    report_job("ran")
    match_ended.set()


@job(name="cluster.accompany")
async def accompany() -> None:
    """Run until a match on this node has ended at the first attempt; run for a moment at later ones."""
    if current_job().attempt == 1:
        await match_ended.wait()
    else:
        await asyncio.sleep(0.1)  # the moment that it runs for
    report_job("ran")


@job(name="cluster.stumble")
async def stumble() -> None:
    """Fail at the first attempt."""
    report_job("ran")
    if current_job().attempt == 1:
        raise RuntimeError("the first attempt always fails")


def release_standard_streams() -> None:
    """Replace the standard streams: the test waits until no process holds those of the node."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)


@job(name="cluster.fork")
async def fork() -> None:
    """Fork a process pool that outlives this process at the first attempt; complete at later ones."""
    if current_job().attempt == 1:
        context = multiprocessing.get_context("fork")
        processes = ProcessPoolExecutor(1, mp_context=context, initializer=release_standard_streams)
        report("forked", child=await asyncio.get_running_loop().run_in_executor(processes, os.getpid))
        await asyncio.Event().wait()
    report_job("ran")


@job(name="cluster.die")
async def die() -> None:
    """Kill its process at every attempt."""
    report_job("dies")
    os.kill(os.getpid(), signal.SIGKILL)


async def tick() -> None:
    report_job("ticked")


async def tock() -> None:
    report_job("tocked")


class Reporter:
    """Reports every event, and the state of each schedule when the planner has read a change."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._enabled: dict[str, bool] = {}

    def report_event(self, event: Event) -> None:
        if not isinstance(event, PassFinished):
            report(type(event).__name__, **asdict(event))
        elif event.service == "planner":
            configs = self._scheduler.get_periodic_jobs()
            for key, config in configs.items():
                self._report_switch(key, config)

    def _report_switch(self, key: str, config: PeriodicJobConfig) -> None:
        if self._enabled.get(key) is not config.enabled:
            self._enabled[key] = config.enabled
            report("switched", key=key, enabled=config.enabled)


class Commands:
    """Executes commands, lines of the form ``COMMAND ARGUMENT...``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    async def run(self) -> None:
        """Execute the commands from the standard input until it closes."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := (await reader.readline()).decode().split():
            command, *arguments = line
            await getattr(self, command)(*arguments)
            report("done", line=" ".join(line))
        transport.close()

    async def enable(self, key: str) -> None:
        assert self._scheduler.enable_periodic_job(key), key

    async def disable(self, key: str) -> None:
        assert self._scheduler.disable_periodic_job(key), key

    async def enqueue(self, name: str, prefix: str, first: str, end: str) -> None:
        """Enqueue jobs one by one, with one retry each."""
        for number in range(int(first), int(end)):
            await self._scheduler.schedule_job(
                name, datetime.now(UTC), NO_ARGUMENTS, max_retries=1, job_id=f"{prefix}-{number}"
            )

    async def cancel(self, job_id: str) -> None:
        assert await self._scheduler.cancel_job(job_id), job_id

    async def vacuum(self) -> None:
        await self._scheduler.run_vacuum()

    async def match(self) -> None:
        match_may_begin.set()

    async def shutdown(self) -> None:
        await self._scheduler.shutdown()

    async def reclaim(self) -> None:
        await self._scheduler.recover_orphaned_jobs()

    async def fork(self) -> None:
        """Fork a child that terminates its copies of the pool's connections, and wait for its end."""
        child = multiprocessing.get_context("fork").Process(target=self._scheduler.db_pool.terminate)
        child.start()
        await asyncio.to_thread(child.join)
        assert child.exitcode == 0, child.exitcode


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    parser.add_argument("--lease", type=float, default=60)
    parser.add_argument("--slots", type=int, default=25)
    parser.add_argument("--max-loop-block", type=float)
    parser.add_argument("--stop-grace", type=float)
    parser.add_argument("--tick", type=float, help="seconds between two ticks")
    parser.add_argument("--role", help="the role that each connection sets before its use")
    parser.add_argument("--jobs", help="a module with further jobs")
    parser.add_argument("--immediate", action="store_true", help="delete jobs as they complete")
    parser.add_argument("--tock", action="store_true", help="every second by cron")
    parser.add_argument("--catch-up", action="store_true", help="run each fire time that a busy node misses")
    options = parser.parse_args()
    if options.jobs:
        importlib.import_module(options.jobs)
    catch_up = CatchUp.all() if options.catch_up else CatchUp.latest()
    if options.tick:
        periodic(every=timedelta(seconds=options.tick), dedup_key=TICK, catch_up=catch_up)(tick)
    if options.tock:
        periodic(cron="* * * * * *", dedup_key=TOCK, catch_up=catch_up)(tock)

    class Node(Scheduler):
        LEASE_DURATION = options.lease

    async def set_role(connection: Any) -> None:
        await connection.execute(f"SET ROLE {options.role}")

    hooks: dict[str, Any] = {"setup": set_role} if options.role else {}
    async with asyncpg.create_pool(options.dsn, min_size=1, max_size=4, **hooks) as pool:
        settings: dict[str, Any] = {
            name: value
            for name in ("max_loop_block", "stop_grace")
            if (value := getattr(options, name)) is not None
        }
        if options.immediate:
            settings["vacuum_config"] = VacuumConfig(completed=VacuumPolicy.immediate())
        scheduler = Node(
            pool,
            max_concurrent_jobs=options.slots,
            shutdown_timeout=1,
            retry_policy=SOON,
            **settings,
        )
        scheduler.subscribe(Reporter(scheduler).report_event)
        async with scheduler:
            await Commands(scheduler).run()


if __name__ == "__main__":
    asyncio.run(main())
