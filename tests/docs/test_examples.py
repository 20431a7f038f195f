"""The applications of examples/ that were ported from APScheduler; that of Flask is in tests/sync."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from types import ModuleType

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.events import JobCompleted
from pg_scheduler.testing import TestScheduler
from tests.docs import asgi
from tests.docs.snippets import ROOT
from tests.support.worker import Recorder

Pool = asyncpg.Pool


def load(name: str) -> ModuleType:
    """Import an example again: its decorators fill the catalogue of this test."""
    sys.modules.pop(name, None)
    return importlib.import_module(name)


async def test_fastapi_example_keeps_the_schedules_of_its_tenants(
    dsn: str, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi", exc_type=ImportError, reason="FastAPI wants a newer pydantic than we do")
    monkeypatch.setenv("DATABASE_URL", dsn)
    app = load("examples.fastapi_reports.app").app
    times = {"cron": "0 8 * * 1-5", "timezone": "Europe/Berlin"}
    async with asgi.lifespan(app), asyncio.timeout(30):
        status, stored = await asgi.request(app, "PUT", "/reports/ada", times)
        assert (status, stored["paused"], len(stored["next"])) == (200, False, 3)
        assert stored["times"] == "at 08:00 on Monday to Friday, Europe/Berlin"
        assert await asgi.request(app, "PUT", "/reports/ada", times) == (200, stored)
        assert (await asgi.request(app, "POST", "/reports/ada/pause"))[1]["paused"]
        status, moved = await asgi.request(app, "PUT", "/reports/ada", {"cron": "0 9 * * *"})
        assert (status, moved["paused"], moved["times"]) == (200, True, "at 09:00 every day, UTC")
        assert not (await asgi.request(app, "POST", "/reports/ada/resume"))[1]["paused"]

        status, error = await asgi.request(app, "PUT", "/reports/grace", {"cron": "61 * * * *"})
        assert status == 422
        assert "61" in error["detail"]
        assert await pool.fetchval("SELECT count(*) FROM report_times") == 1  # the transaction rolled back
        assert (await asgi.request(app, "GET", "/reports/grace"))[0] == 404
        assert (await asgi.request(app, "POST", "/reports/ada/explode"))[0] == 404

        scheduler: Scheduler = app.state.scheduler
        seen = Recorder(scheduler)
        await asgi.request(app, "POST", "/reports/ada/run")
        await seen.until(JobCompleted, job_name="reports.send")
    assert [tuple(row) for row in await pool.fetch("SELECT tenant, cron FROM reports")] == [
        ("ada", "0 9 * * *")
    ]


async def test_fastapi_example_schedules_rows_of_other_programs_when_it_starts(
    dsn: str, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi", exc_type=ImportError, reason="FastAPI wants a newer pydantic than we do")
    monkeypatch.setenv("DATABASE_URL", dsn)
    module = load("examples.fastapi_reports.app")
    async with asgi.lifespan(module.app), asyncio.timeout(30):
        await asgi.request(module.app, "PUT", "/reports/ada", {"cron": "0 8 * * *"})
        before = await asgi.get(module.app, "/reports/ada")
    await pool.execute("INSERT INTO report_times VALUES ('grace', '0 7 * * *', 'UTC')")
    async with asgi.lifespan(module.app), asyncio.timeout(30):
        assert await asgi.get(module.app, "/reports") == ["ada", "grace"]
        assert await asgi.get(module.app, "/reports/ada") == before
        assert await asgi.request(module.app, "DELETE", "/reports/grace") == (200, True)
        assert await asgi.request(module.app, "DELETE", "/reports/grace") == (200, False)
        assert await asgi.get(module.app, "/reports") == ["ada"]
    assert await pool.fetchval("SELECT string_agg(tenant, ',') FROM report_times") == "ada"


@pytest.mark.slow
async def test_opening_hours_example_fires_when_the_shop_is_open(pool: Pool) -> None:
    """Run the first week of 2030, which begins with a holiday, by a virtual clock."""
    module = load("examples.opening_hours.__main__")
    ran: Counter[str] = Counter()
    async with TestScheduler(pool, now=datetime(2029, 12, 31, 18, tzinfo=UTC)) as t:
        t.scheduler.subscribe(lambda event: ran.update([event.job_name]), JobCompleted)  # type: ignore[attr-defined]
        for name in ("stock", "lock-up", "books"):
            func, trigger = module.SCHEDULES[name]
            await t.scheduler.schedules.add(func, trigger, schedule_id=name)
        await t.run_until(timedelta(days=7))
    assert ran == {
        "shop.count_stock": 4 * 17 + 6,  # 9:00 to 17:00 on four days, 10:00 to 12:30 on Saturday
        "shop.lock_up": 4 + 1,
        "shop.close_books": 1,  # 7 January is the first Monday
    }


@pytest.mark.slow
async def test_opening_hours_example_runs_as_a_script_until_it_is_interrupted(dsn: str, pool: Pool) -> None:
    """Real time: a job is due every second."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "examples.opening_hours"),
        cwd=ROOT,
        env=os.environ | {"DATABASE_URL": dsn, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(40):
            assert process.stdout
            lines = [(await process.stdout.readline()).decode() for _ in range(4)]
            assert [line.partition(":")[0] for line in lines] == ["stock", "lock-up", "books", "till"]
            assert await process.stdout.readline() == b"reading the till\n"
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    rows = await pool.fetch("SELECT schedule_id, next_fire_at > now() AS later FROM scheduler_schedules")
    assert {row["schedule_id"] for row in rows if row["later"]} >= {"books", "lock-up", "stock"}
