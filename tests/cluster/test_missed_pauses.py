"""A task is paused while the only worker is cut off, frozen or blocked: none of its jobs starts or expires.

The worker is a process, and each fault is real. A job of another task, due as early and claimed by the same
statements, shows that the worker has come to the jobs of the paused task. Its `PauseWatcher` reads last.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from pg_scheduler import JobStatus, Scheduler
from tests.cluster.fleet import TIMEOUT_S, Fleet, Node
from tools.chaos.proxy import Proxy

FAULT_S: Final = 2.5
"""Longer than the grace time of the jobs, and than a pause takes to take effect."""

NO_ARGUMENTS: Final[dict[str, Any]] = {"args": [], "kwargs": {}}


@dataclass(frozen=True)
class Scene:
    """A worker behind a proxy, and a client beside it."""

    fleet: Fleet
    node: Node
    proxy: Proxy
    client: Scheduler
    folder: Path

    async def schedule(self, name: str, *args: str, grace_s: int | None = None) -> str:
        """Schedule a job that is due."""
        return await self.client.schedule_job(
            name, datetime.now(UTC), NO_ARGUMENTS | {"args": args}, misfire_grace_time=grace_s
        )

    async def assert_held(self, job_ids: list[str]) -> None:
        """Assert that none of these jobs has started or expired, and wait until all of them are pending.

        A claim that the fault has delayed may have claimed them. The worker releases them then.
        """
        async with asyncio.timeout(TIMEOUT_S):
            while (statuses := await self.statuses(job_ids)) != {JobStatus.PENDING}:
                assert JobStatus.EXPIRED not in statuses
                await asyncio.sleep(0.05)  # a release is no event of the node
        assert not [
            record for job_id in job_ids for record in self.fleet.records("JobStarted", job_id=job_id)
        ]

    async def statuses(self, job_ids: list[str]) -> set[JobStatus]:
        jobs = [await self.client.get_job(job_id) for job_id in job_ids]
        return {job.status for job in jobs if job}


@pytest.fixture
async def scene(proxied: tuple[Proxy, str], client: Scheduler, tmp_path: Path) -> AsyncIterator[Scene]:
    proxy, dsn = proxied
    fleet = Fleet(dsn)
    node = await fleet.start("--jobs", "tests.cluster.paused_jobs")
    yield Scene(fleet, node, proxy, client, tmp_path)
    await fleet.close()


@asynccontextmanager
async def cut_off(scene: Scene) -> AsyncIterator[None]:
    scene.proxy.refuse()
    yield
    scene.proxy.heal()


@asynccontextmanager
async def stalled(scene: Scene) -> AsyncIterator[None]:
    scene.proxy.stall()
    yield
    scene.proxy.heal()


@asynccontextmanager
async def frozen(scene: Scene) -> AsyncIterator[None]:
    scene.node.process.send_signal(signal.SIGSTOP)
    await asyncio.to_thread(os.waitid, os.P_PID, scene.node.process.pid, os.WSTOPPED | os.WNOWAIT)
    yield
    scene.node.resume()


@asynccontextmanager
async def blocked(scene: Scene) -> AsyncIterator[None]:
    end = scene.folder / "end"
    job_id = await scene.schedule("mail.block", str(end))
    await scene.fleet.wait_for("JobStarted", job_id=job_id)
    yield
    end.touch()


@pytest.mark.parametrize("suspends_expiry", [False, True], ids=["plain", "suspends_expiry"])
@pytest.mark.parametrize("fault", [cut_off, stalled, frozen, blocked])
async def test_pause_holds_the_jobs_of_a_worker_that_could_not_read_it(
    scene: Scene,
    pool: asyncpg.Pool,
    fault: Callable[[Scene], AbstractAsyncContextManager[None]],
    suspends_expiry: bool,
) -> None:
    grace_s = 1 if suspends_expiry else None
    first = await scene.schedule("mail.other")
    await scene.fleet.wait_for("JobCompleted", job_id=first)
    async with fault(scene):
        paused = [await scene.schedule("mail.send", grace_s=grace_s) for _ in range(3)]
        other = await scene.schedule("mail.other", grace_s=grace_s)
        assert await scene.client.tasks.pause("mail.send", suspend_expiry=suspends_expiry)
        await pool.execute("SELECT pg_sleep($1)", FAULT_S)  # the subject is a fault that lasts for so long
    end = "JobExpired" if suspends_expiry else "JobCompleted"
    await scene.fleet.wait_for(end, job_id=other)
    await scene.assert_held(paused)
    reading = await scene.schedule("mail.read_pauses")
    await scene.fleet.wait_for("JobCompleted", job_id=reading)
    await scene.assert_held(paused)
    assert await scene.client.tasks.resume("mail.send")
    for job_id in paused:
        await scene.fleet.wait_for("JobCompleted", job_id=job_id)
