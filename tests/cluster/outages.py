"""A Scheduler with work on it while its database fails, and what it must have come through."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

from pg_scheduler import JobStatus, Scheduler, current_job
from pg_scheduler.embedded import EmbeddedPostgres
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import JobCompleted, JobLost, LeaseLost, ServiceFaulted, ServiceRetrying
from tests.support.worker import Recorder
from tools.chaos.proxy import Proxy
from tools.chaos.unhandled import listen

PATIENCE = 30.0
"""Seconds after which a test gives up waiting; the longest backoff is ten."""


class Outage:
    """One started Scheduler and its jobs: some run when the fault comes, one is due in its middle."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.seen = Recorder(scheduler)
        self.open = asyncio.Event()
        self.begun: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.held: list[str] = []
        self.due: list[str] = []
        self.unhandled: list[str] = []
        self.end = asyncio.ensure_future(scheduler.wait())
        self._begin = asyncio.Condition()

    async def hold(self) -> None:
        """Runs until the test lets it end."""
        job_id = current_job().job_id
        self.begun[job_id] += 1
        async with self._begin:
            self._begin.notify_all()
        await self.open.wait()
        self.ended[job_id] += 1

    async def note(self) -> None:
        """Runs in no time."""
        job_id = current_job().job_id
        self.begun[job_id] += 1
        self.ended[job_id] += 1

    async def before(self, count: int = 3, due: float = 0.3) -> None:
        """Work that the fault meets: some jobs run, others are due soon."""
        self.held = [await self._schedule(self.hold) for _ in range(count)]
        self.due = [await self._schedule(self.note, due) for _ in range(count)]
        async with asyncio.timeout(PATIENCE), self._begin:
            await self._begin.wait_for(lambda: all(self.begun[each] for each in self.held))

    def let_end(self) -> None:
        """Jobs end while the fault lasts; their results have to wait."""
        self.open.set()

    async def trouble(self, *services: str) -> list[ServiceRetrying]:
        """Wait until the fault is told."""
        for service in services:
            await self.seen.until(ServiceRetrying, service=service)
        return await self.seen.until(ServiceRetrying)

    async def survived(self, *, lost: bool = False) -> None:
        """Everything came to its end, once, and the Scheduler goes on. Held ones may be lost to the lease."""
        self.open.set()
        async with asyncio.timeout(PATIENCE):
            for job_id in [*self.held, *self.due]:
                await self.seen.until(JobCompleted, job_id=job_id)
            after = await self.afterwards()
            await self.seen.until(JobCompleted, job_id=after)
        assert self.scheduler.is_running
        assert not self.end.done()
        for job_id in [*self.held, *self.due, after]:
            row = await self.scheduler.get_job(job_id)
            assert row is not None
            assert row.status is JobStatus.COMPLETED
            assert self.ended[job_id] == 1, job_id
            if not lost:
                assert (row.attempt, self.begun[job_id]) == (1, 1), job_id
        assert bool(self.seen.of(LeaseLost)) is lost
        assert bool(self.seen.of(JobLost)) is lost
        assert not self.seen.of(ServiceFaulted)

    async def afterwards(self) -> str:
        """Schedule one more, as a caller would that tries again."""
        while True:
            try:
                return await self._schedule(self.note)
            except DatabaseUnavailableError:  # the first use of each broken connection
                await asyncio.sleep(0.05)

    async def _schedule(self, func: Callable[[], Any], seconds: float = 0.0) -> str:
        due = datetime.now(UTC) + timedelta(seconds=seconds)
        return await self.scheduler.schedule(func, execution_time=due, misfire_grace_time=None)


@asynccontextmanager
async def outage(
    dsn: str, *, lease: float = 60, size: int = 5, ends: bool = False, **settings: Any
) -> AsyncIterator[Outage]:
    """A Scheduler on a pool of its own; at the end nothing may be left, and nothing that nobody handled.

    With ``ends`` it is the fault that ends it.
    """

    class Node(Scheduler):
        LEASE_DURATION = lease

    unhandled: list[str] = []
    listen(unhandled.append)
    before = asyncio.all_tasks()
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=size)
    scheduler = Node(pool, **({"shutdown_timeout": 0.5} | settings))
    try:
        await scheduler.start()
        one = Outage(scheduler)
        yield one
        if not ends:
            await asyncio.wait_for(scheduler.shutdown(), PATIENCE)
            await one.end
            await asyncio.wait_for(pool.close(), PATIENCE)
        left = asyncio.all_tasks() - before
        assert not left, left
        gc.collect()
        assert not unhandled, unhandled
    finally:
        pool.terminate()


async def afar(dsn: str, query: str, *args: Any) -> Any:
    """Ask something on a connection of its own."""
    connection = await asyncpg.connect(dsn, timeout=PATIENCE)
    try:
        return await connection.fetchval(query, *args)
    finally:
        await connection.close()


def vanish(proxy: Proxy, connection: Any) -> None:
    """Lose everything on this one connection from now on, without a word to either end."""
    _, port = connection._transport.get_extra_info("sockname")
    (ours,) = [side for side in proxy.sides if side.peer_port == port]
    ours.vanish()


@contextmanager
def tiny_disk(server: EmbeddedPostgres, megabytes: int) -> Iterator[Path | None]:
    """A file system of so many megabytes with a folder for a server; None where there can be none."""
    folder = Path(tempfile.mkdtemp(prefix="pgs-tiny-", dir="/tmp"))  # where 'nobody' may go
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


def fill(folder: Path) -> Path:
    """Use all of a disk up; the file that does."""
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
    """Two servers, of which the second one follows the first one and has what that one has committed."""
    with tempfile.TemporaryDirectory(prefix="pgs-ha-", dir=scratch) as name:
        folder = Path(name)
        folder.chmod(0o755)
        settings = settings | {"wal_level": "replica", "hot_standby": "on"}
        with EmbeddedPostgres(folder / "one", settings=settings) as primary:
            home = primary.dsn().partition("host=")[2].partition("&")[0]
            primary.stop()
            # A data folder of a server that was stopped in order is as good as a base backup.
            subprocess.run(["cp", "-a", folder / "one", folder / "two"], check=True)
            (folder / "two" / "standby.signal").touch()
            to_primary = {"primary_conninfo": f"host={home} port=5432 user=postgres"}
            primary.start()
            with EmbeddedPostgres(folder / "two", settings=settings | to_primary) as standby:
                yield primary, standby


def either(first: str, second: str) -> str:
    """The DSN of whichever of two servers can be written to."""
    hosts = [dsn.partition("host=")[2].partition("&")[0] for dsn in (first, second)]
    return f"{first.partition('?')[0]}?host={','.join(hosts)}&port=5432,5432&target_session_attrs=read-write"
