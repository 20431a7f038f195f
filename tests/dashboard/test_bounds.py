"""The bounds of pages: what reaches them states what was searched, and continues."""

from __future__ import annotations

from collections.abc import Callable

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import dashboard
from pg_scheduler.inspect import Bounds
from tests.dashboard.client import App, Page, request
from tests.dashboard.conftest import read_all
from tests.support.world import MINUTE, World


async def test_pages_within_small_bounds_state_what_they_searched(
    build: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await world.jobs(
        30,
        "bounds.mail",
        job_id="job-{}".format,
        status="failed",
        ended=lambda n: -n * MINUTE,
        error_message="Error: no answer",
    )
    await pool.execute("VACUUM ANALYZE scheduled_jobs")
    app = build(bounds=Bounds(rows=10, milliseconds=60_000))
    url, summaries = "/jobs?q=-name:bounds.mail", list[str]()
    while url:
        page = Page((await request(app, url)).text)
        summaries += [line for line in page.text.splitlines() if " found, " in line or line == "0 jobs"]
        url = next((attrs["href"] or "" for attrs in page.all("a") if attrs.get("rel") == "next"), "")
    assert summaries == [
        "0 found, 10 of about 30 jobs searched",
        "0 found, 20 of about 30 jobs searched",
        "0 found, 30 of about 31 jobs searched",
        "0 jobs",
    ]
    errors = Page((await request(app, "/errors")).text).text
    assert "1 group, 30 failed jobs in the last day" in errors, "they are counted, not searched"


async def test_bounds_of_another_type_are_rejected(scheduler: Scheduler) -> None:
    with pytest.raises(TypeError, match="bounds must be a Bounds, not int: 7"):
        dashboard(scheduler, authorize=read_all, bounds=7)  # type: ignore[arg-type]
