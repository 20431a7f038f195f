"""A worker keeps its jobs, reconnects, settles and shuts down while jobs use up what the process has.

``test_used_up_pool.py`` is about the connections of the pool.
"""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import JobStatus, Scheduler, job
from pg_scheduler.events import (
    JobCompleted,
    JobLost,
    KeeperConnected,
    LeaseLost,
    ListenerConnected,
    PassFinished,
    ServiceFaulted,
    ServiceRetrying,
)
from tests.api.conftest import SLOW_POLLING
from tests.support.worker import PATIENCE, Gate, Recorder, now, wire_to

LEASE = timedelta(seconds=4)
SHUTDOWN_S = 60.0
"""More than running jobs get to finish at a shutdown, and threads to end after that."""
"""Heartbeats follow one another in little more than a second."""

TERMINATE_OTHERS = (
    "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)

SIZE = 6
"""Connections of a pool that does not grow."""

HUGE_STACK = 2**46
"""Bytes of a stack for which no machine has room, so no thread starts."""


@job(name="exhausted.plain")
async def plain() -> None: ...


async def check_work_goes_on(scheduler: Scheduler, seen: Recorder) -> None:
    """Require a heartbeat and an outcome from now on."""
    beats, ended = len(seen.of(PassFinished, service="heartbeat")), len(seen.of(JobCompleted))
    await scheduler.enqueue(plain)
    await seen.until(JobCompleted, ended + 1)
    await seen.until(PassFinished, beats + 1, service="heartbeat")


async def check_reconnection(scheduler: Scheduler, seen: Recorder, admin: asyncpg.Connection) -> None:
    """End every session of the worker, and require new ones, and work after that."""
    listeners, keepers = len(seen.of(ListenerConnected)), len(seen.of(KeeperConnected))
    await admin.execute(TERMINATE_OTHERS)
    await seen.until(KeeperConnected, keepers + 1)
    await seen.until(ListenerConnected, listeners + 1)
    await check_work_goes_on(scheduler, seen)


@pytest.fixture
async def admin(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of somebody else."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def named(dsn: str) -> AsyncIterator[asyncpg.Pool]:
    """A pool whose connections are all open and lead to a host name."""
    async with wire_to(dsn) as wire:
        address = wire.dsn.replace("127.0.0.1", "localhost")
        async with asyncpg.create_pool(address, min_size=SIZE, max_size=SIZE) as pool:
            yield pool


def check_nothing_was_lost(seen: Recorder) -> None:
    assert [event for kind in (JobLost, LeaseLost, ServiceFaulted) for event in seen.of(kind)] == []


@contextmanager
def no_threads() -> Iterator[None]:
    """Let no thread start in this process."""
    usual = threading.stack_size(HUGE_STACK)
    try:
        yield
    finally:
        threading.stack_size(usual)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Use up the file descriptors of this process."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened: list[int] = []
    try:
        with Path(os.devnull).open("rb") as source:
            # The limit is near the largest number in use, so that few are opened.
            resource.setrlimit(resource.RLIMIT_NOFILE, (source.fileno() + 64, usual[1]))
            while True:
                try:
                    opened.append(os.dup(source.fileno()))
                except OSError:
                    break
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
        for number in opened:
            os.close(number)


@pytest.mark.slow
async def test_worker_works_and_reconnects_by_name_while_jobs_fill_the_default_executor(
    named: asyncpg.Pool, admin: asyncpg.Connection
) -> None:
    """Real time: heartbeats of a lease of four seconds."""
    release, began = threading.Event(), asyncio.Event()
    with ThreadPoolExecutor(1) as executor:
        asyncio.get_running_loop().set_default_executor(executor)

        @job(name="exhausted.blocking", timeout=None)
        async def blocking() -> None:
            began.set()
            await asyncio.to_thread(release.wait, SHUTDOWN_S)

        try:
            async with Scheduler(named, lease=LEASE, polling_config=SLOW_POLLING) as scheduler:
                seen = Recorder(scheduler)
                blocked = await scheduler.enqueue(blocking)
                await asyncio.wait_for(began.wait(), PATIENCE)
                await scheduler.enqueue(blocking)  # it waits for a thread, before and after the outage
                await check_work_goes_on(scheduler, seen)
                await check_reconnection(scheduler, seen, admin)
                row = await scheduler.get_job(blocked)
                assert row is not None
                assert (row.status, row.attempt) == (JobStatus.RUNNING, 1)
                check_nothing_was_lost(seen)
                await asyncio.wait_for(scheduler.shutdown(), SHUTDOWN_S)
        finally:
            release.set()


@pytest.mark.slow
async def test_worker_works_without_threads_and_reconnects_by_name_when_there_are_some(
    named: asyncpg.Pool, admin: asyncpg.Connection
) -> None:
    """Real time: heartbeats of a lease of four seconds."""
    async with Scheduler(named, lease=LEASE, polling_config=SLOW_POLLING) as scheduler:
        seen = Recorder(scheduler)
        with no_threads():
            await check_work_goes_on(scheduler, seen)
            await admin.execute(TERMINATE_OTHERS)
            # A statement that the end of its session interrupts is repeated first, for that reason.
            while not any("used up its threads" in str(retry.error) for retry in seen.of(ServiceRetrying)):
                await seen.until(ServiceRetrying, len(seen.of(ServiceRetrying)) + 1)
            keepers, listeners = len(seen.of(KeeperConnected)), len(seen.of(ListenerConnected))
        await seen.until(KeeperConnected, keepers + 1)
        await seen.until(ListenerConnected, listeners + 1)
        await check_work_goes_on(scheduler, seen)
        assert seen.of(ServiceFaulted) == []
        with no_threads():
            await asyncio.wait_for(scheduler.shutdown(), SHUTDOWN_S)


@pytest.mark.slow
async def test_worker_works_and_reconnects_without_file_descriptors(
    dsn: str, gate: Gate, admin: asyncpg.Connection
) -> None:
    """Real time: heartbeats of a lease of four seconds."""
    async with (
        asyncpg.create_pool(dsn, min_size=SIZE, max_size=SIZE) as pool,
        Scheduler(pool, lease=LEASE, polling_config=SLOW_POLLING) as scheduler,
    ):
        seen = Recorder(scheduler)
        held = await scheduler.schedule(gate.job, execution_time=now())
        await gate.wait_begun()
        with no_descriptors():
            await check_work_goes_on(scheduler, seen)
            # A session that ended has left its descriptor, and the next one takes it.
            await check_reconnection(scheduler, seen, admin)
        row = await scheduler.get_job(held)
        assert row is not None
        assert (row.status, row.attempt) == (JobStatus.RUNNING, 1)
        check_nothing_was_lost(seen)
        gate.open.set()
        with no_descriptors():
            await asyncio.wait_for(scheduler.shutdown(), SHUTDOWN_S)
