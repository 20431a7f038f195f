"""The plugin for Litestar: its lifespan, its dependency and its command."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import asyncpg
import pytest
from aiohttp import ClientSession

pytest.importorskip("litestar", exc_type=ImportError, reason="dev.py has not updated this environment")

from litestar import Litestar, post
from litestar.di import NamedDependency, Provide

from pg_scheduler import Scheduler
from pg_scheduler.events import JobCompleted
from pg_scheduler.integrations.litestar import SchedulerPlugin
from tests.docs import asgi
from tests.docs.snippets import ROOT
from tests.support.worker import Recorder

Pool = asyncpg.Pool

SHOP = """
from __future__ import annotations

import os
from typing import TYPE_CHECKING

from litestar import Litestar, post
from litestar.di import NamedDependency
from litestar.params import FromQuery

from pg_scheduler import job
from pg_scheduler.integrations.litestar import SchedulerPlugin

if TYPE_CHECKING:
    from pg_scheduler import Scheduler


@job(name="litestar.welcome")
async def send_welcome(to: str) -> None:
    print("welcome", to, flush=True)


@post("/users")
async def sign_up(email: FromQuery[str], scheduler: NamedDependency[Scheduler]) -> dict[str, str]:
    return {"job_id": await scheduler.enqueue(send_welcome, args=(email,))}


jobs = SchedulerPlugin(os.environ["APP_DSN"], schema="jobs", start="NO_WORKER" not in os.environ)
app = Litestar([sign_up], plugins=[jobs])
"""
"""An application whose handler names the type of the dependency for type checkers only."""


@pytest.mark.parametrize("start", [True, False])
async def test_handler_receives_the_scheduler_of_the_application(
    empty_dsn: str, pool: Pool, monkeypatch: pytest.MonkeyPatch, start: bool
) -> None:
    monkeypatch.setenv("APP_DSN", empty_dsn)
    if not start:
        monkeypatch.setenv("NO_WORKER", "1")
        async with asyncpg.create_pool(empty_dsn, min_size=1) as own:
            await Scheduler(own, schema="jobs").initialize_db()
    shop = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", shop)
    exec(SHOP, shop.__dict__)
    async with asgi.lifespan(shop.app), asyncio.timeout(30):
        scheduler: Scheduler = shop.app.state.scheduler
        assert scheduler.is_running is start
        seen = Recorder(scheduler)
        status, answer = await asgi.request(shop.app, "POST", "/users?email=ada")
        assert status == 201, answer
        job_id = answer["job_id"]
        if start:
            await seen.until(JobCompleted, job_id=job_id)
        else:
            job = await scheduler.get_job(job_id)
            assert job is not None
            assert job.status == "pending"
    assert not scheduler.is_running
    assert scheduler.db_pool.is_closing()


async def test_own_dependency_of_the_application_takes_precedence(dsn: str, pool: Pool) -> None:
    @post("/jobs", sync_to_thread=False)
    def read_identity(scheduler: NamedDependency[Scheduler]) -> dict[str, str]:
        return {"worker_id": scheduler.worker_id}

    own = Scheduler(pool)
    app = Litestar(
        [read_identity],
        dependencies={"scheduler": Provide(lambda: own, sync_to_thread=False)},
        plugins=[SchedulerPlugin(dsn)],
    )
    async with asgi.lifespan(app), asyncio.timeout(30):
        assert app.state.scheduler.worker_id != own.worker_id
        status, answer = await asgi.request(app, "POST", "/jobs")
    assert (status, answer) == (201, {"worker_id": own.worker_id})


@asynccontextmanager
async def litestar(
    folder: Path, dsn: str, *arguments: str, **variables: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run Litestar's command on the application."""
    (folder / "shop.py").write_text(SHOP, encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PG_SCHEDULER")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "litestar", "--app", "shop:app", *arguments),
        cwd=folder,
        env=inherited | {"APP_DSN": dsn, "PYTHONPATH": str(ROOT)} | variables,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def output_of(folder: Path, dsn: str, *arguments: str, **variables: str) -> tuple[int | None, str]:
    async with litestar(folder, dsn, *arguments, **variables) as process:
        output, _ = await process.communicate()
    return process.returncode, output.decode()


@pytest.mark.slow
async def test_command_operates_the_jobs_of_the_application(empty_dsn: str, dsn: str, tmp_path: Path) -> None:
    """Migrate, add a job, and run it with the settings of the plugin. A variable names another database."""
    add = ("jobs", "jobs", "add", "litestar.welcome", "--args", '["ada"]', "--id", "7", "-o", "ids")
    async with asyncio.timeout(200):
        assert (await output_of(tmp_path, empty_dsn, "jobs", "migrate"))[0] == 0
        assert await output_of(tmp_path, empty_dsn, *add) == (0, "7\n")
        drained = await output_of(tmp_path, empty_dsn, "jobs", "worker", "shop:jobs.connect", "--drain")
        assert drained == (0, "welcome ada\n")
        other = {"PG_SCHEDULER_DSN": dsn, "PG_SCHEDULER_SCHEMA": "public"}
        assert await output_of(tmp_path, empty_dsn, *add, **other) == (0, "7\n")
    for address, row in ((empty_dsn, ("jobs", "completed")), (dsn, ("public", "pending"))):
        connection = await asyncpg.connect(address)
        found = await connection.fetchval(f"SELECT status FROM {row[0]}.scheduled_jobs WHERE job_id = '7'")
        assert found == row[1]
        await connection.close()


@pytest.mark.slow
async def test_litestar_run_ends_the_scheduler_at_sigterm(empty_dsn: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with (
        asyncio.timeout(120),
        litestar(tmp_path, empty_dsn, "run", "--port", str(port)) as process,
        ClientSession(f"http://127.0.0.1:{port}") as client,
    ):
        assert process.stdout
        assert process.stderr
        while b"unning on http" not in await process.stderr.readline():
            pass
        async with client.post("/users?email=ada") as response:
            assert response.status == 201
        while await process.stdout.readline() != b"welcome ada\n":
            pass
        process.send_signal(signal.SIGTERM)
        await process.wait()
    connection = await asyncpg.connect(empty_dsn)
    assert await connection.fetchval("SELECT count(*) FROM jobs.scheduler_workers") == 0
    await connection.close()
