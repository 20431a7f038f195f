"""A Scheduler with jobs while its database fails, and the assertions on its recovery."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import asyncpg

from pg_scheduler import JobStatus, Scheduler, current_job
from pg_scheduler.base.dsn import address_parts
from pg_scheduler.embedded import EmbeddedPostgres
from pg_scheduler.errors import ConnectionRejectedError, DatabaseUnavailableError
from pg_scheduler.events import (
    JobCompleted,
    JobLost,
    JobReleased,
    JobsReclaimed,
    LeaseLost,
    ServiceFaulted,
    ServiceRetrying,
)
from tests.support.worker import Recorder
from tools.chaos.proxy import Proxy
from tools.chaos.unhandled import report_unhandled_errors

TIMEOUT_S = 90.0
"""A test fails after this wait; the longest backoff is ten seconds."""


class Workload:
    """A started Scheduler and its jobs: some run when the fault starts, others become due during it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.recorder = Recorder(scheduler)
        self.may_end = asyncio.Event()
        self.started: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self.held: list[str] = []
        self.due: list[str] = []
        self.unhandled: list[str] = []
        self.stopped = asyncio.ensure_future(scheduler.wait())
        self._started_one = asyncio.Condition()

    async def hold(self) -> None:
        """Run until `finish_held_jobs` is called."""
        job_id = current_job().job_id
        self.started[job_id] += 1
        async with self._started_one:
            self._started_one.notify_all()
        await self.may_end.wait()
        self.finished[job_id] += 1

    async def note(self) -> None:
        """Complete immediately."""
        job_id = current_job().job_id
        self.started[job_id] += 1
        self.finished[job_id] += 1

    async def schedule_jobs(self, count: int = 3, due: float = 0.3) -> None:
        """Start some jobs, and schedule others that become due in so many seconds."""
        self.held = [await self._schedule(self.hold) for _ in range(count)]
        self.due = [await self._schedule(self.note, due) for _ in range(count)]
        async with asyncio.timeout(TIMEOUT_S), self._started_one:
            await self._started_one.wait_for(lambda: all(self.started[each] for each in self.held))

    def finish_held_jobs(self) -> None:
        """Let the running jobs end; their results wait until the database is available."""
        self.may_end.set()

    async def wait_for_retries(self, *services: str) -> list[ServiceRetrying]:
        """Wait until these services, or any, have reported that they retry."""
        for service in services:
            await self.recorder.until(ServiceRetrying, service=service)
        return await self.recorder.until(ServiceRetrying)

    async def assert_recovered(self, *, lost: bool = False) -> None:
        """Assert that the Scheduler runs and completed every job, once unless their lease was lost."""
        self.may_end.set()
        async with asyncio.timeout(TIMEOUT_S):
            for job_id in [*self.held, *self.due]:
                await self.recorder.until(JobCompleted, job_id=job_id)
            after = await self.schedule_with_retries()
            await self.recorder.until(JobCompleted, job_id=after)
        assert self.scheduler.is_running
        assert not self.stopped.done()
        # A claim may have committed whose response the fault lost; then its jobs are claimed once more. If
        # the response came after the lease that it counts on, the worker releases them before their start.
        reclaimed = Counter(job_id for event in self.recorder.of(JobsReclaimed) for job_id in event.job_ids)
        released = Counter(event.job_id for event in self.recorder.of(JobReleased))
        for job_id in [*self.held, *self.due, after]:
            row = await self.scheduler.get_job(job_id)
            assert row is not None
            assert row.status is JobStatus.COMPLETED
            assert self.finished[job_id] == 1, job_id
            if not lost:
                claims = 1 + reclaimed[job_id] + released[job_id]
                assert (row.attempt, self.started[job_id]) == (claims, 1), job_id
        assert bool(self.recorder.of(LeaseLost)) is lost
        assert bool(self.recorder.of(JobLost)) is lost
        assert not self.recorder.of(ServiceFaulted)

    async def schedule_until_rejected(self) -> None:
        """Schedule jobs for later until a call raises an error that is not a broken connection."""
        while True:
            try:
                await self._schedule(self.note, 3600)
            except ConnectionRejectedError:
                raise
            except DatabaseUnavailableError:
                await asyncio.sleep(0.05)  # nothing reports when the server accepts connections again

    async def schedule_with_retries(self) -> str:
        """Schedule a job, with retries while the database is unavailable."""
        while True:
            try:
                return await self._schedule(self.note)
            except DatabaseUnavailableError:  # on the first use of each broken connection
                await asyncio.sleep(0.05)

    async def _schedule(self, func: Callable[[], Any], seconds: float = 0.0) -> str:
        due = datetime.now(UTC) + timedelta(seconds=seconds)
        return await self.scheduler.schedule(func, execution_time=due, misfire_grace_time=None)


@asynccontextmanager
async def start_workload(
    dsn: str,
    *,
    lease: float = 60,
    size: int = 5,
    stops: bool = False,
    pool_settings: Mapping[str, Any] = MappingProxyType({}),
    **settings: Any,
) -> AsyncIterator[Workload]:
    """Start a Scheduler on its own pool; at the end assert that no task and no unhandled error is left.

    With ``stops`` the fault stops the Scheduler.
    """

    class Node(Scheduler):
        LEASE_DURATION = lease

    unhandled: list[str] = []
    report_unhandled_errors(unhandled.append)
    before = asyncio.all_tasks()
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=size, **pool_settings)
    scheduler = Node(pool, **({"shutdown_timeout": 0.5} | settings))
    try:
        await scheduler.start()
        workload = Workload(scheduler)
        yield workload
        if not stops:
            await asyncio.wait_for(scheduler.shutdown(), TIMEOUT_S)
            await workload.stopped
            await asyncio.wait_for(pool.close(), TIMEOUT_S)
        left = asyncio.all_tasks() - before
        assert not left, left
        gc.collect()
        assert not unhandled, unhandled
    finally:
        pool.terminate()


async def fetch_value(dsn: str, query: str, *args: Any) -> Any:
    """Run a query on a new connection and return its first value."""
    connection = await asyncpg.connect(dsn, timeout=TIMEOUT_S)
    try:
        return await connection.fetchval(query, *args)
    finally:
        await connection.close()


def drop_connection(proxy: Proxy, connection: Any) -> None:
    """Drop all data of one connection from now on, without closing it on either side."""
    _, port = connection._transport.get_extra_info("sockname")
    (ours,) = [side for side in proxy.sides if side.peer_port == port]
    ours.vanish()


@contextmanager
def small_disk(server: EmbeddedPostgres, megabytes: int) -> Iterator[Path | None]:
    """Mount a small file system with a folder for the server; yield None without the privilege to mount."""
    folder = Path(tempfile.mkdtemp(prefix="pgs-small-", dir="/tmp"))  # the server's user can enter it
    folder.chmod(0o755)
    size = f"size={megabytes}m"
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        folder.rmdir()
        yield None
        return
    try:
        data = folder / "data"
        data.mkdir(mode=0o700)
        os.chown(data, Path(f"/proc/{server.pid}").stat().st_uid, -1)
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
        folder.rmdir()


def fill_disk(folder: Path) -> Path:
    """Use up a disk and return the file that does so."""
    ballast = folder / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(65536)):
            pass
    with suppress(OSError), ballast.open("ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return ballast


@contextmanager
def primary_and_standby(settings: dict[str, str], scratch: Path | None) -> Iterator[tuple[Any, Any]]:
    """Start a primary and a standby that replicates from it."""
    with tempfile.TemporaryDirectory(prefix="pgs-ha-", dir=scratch) as name:
        folder = Path(name)
        folder.chmod(0o755)
        settings = settings | {"wal_level": "replica", "hot_standby": "on"}
        with EmbeddedPostgres(folder / "one", settings=settings) as primary:
            home = address_parts(primary.dsn())["host"]
            primary.stop()
            # The data folder of a stopped server serves as a base backup.
            subprocess.run(["cp", "-a", folder / "one", folder / "two"], check=True)
            (folder / "two" / "standby.signal").touch()
            to_primary = {"primary_conninfo": f"host='{home}' port=5432 user=postgres"}
            primary.start()
            with EmbeddedPostgres(folder / "two", settings=settings | to_primary) as standby:
                yield primary, standby


def writable_dsn(first: str, second: str) -> str:
    """Return a DSN that leads to the writable one of two servers."""
    hosts = ",".join(address_parts(dsn)["host"] for dsn in (first, second))
    return f"{first.partition('?')[0]}?host={quote(hosts)}&port=5432,5432&target_session_attrs=read-write"
