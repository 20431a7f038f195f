"""The journey of a person who changes thousands of jobs at once."""

from __future__ import annotations

import re

import asyncpg
import pytest
from playwright.async_api import expect

from pg_scheduler import Scheduler
from pg_scheduler.events import JobCompleted
from tests.browser.person import WAYS, Person
from tests.browser.test_reading import heading
from tests.support.stories import NIGHTLY
from tests.support.worker import PATIENCE, Recorder
from tests.support.world import HOUR, World

FAILURES = 5000


@pytest.mark.timeout(360)  # 5,000 jobs at 500 a second, twice on a slow machine
@WAYS
@NIGHTLY
async def test_failures_are_retried_at_a_rate_stopped_and_resumed_in_another_browser(
    person: Person, scheduler: Scheduler, pool: asyncpg.Pool, world: World
) -> None:
    await world.jobs(
        FAILURES,
        "browser.mail",
        job_id="old-{}".format,
        status="failed",
        due=-HOUR,
        ended=-HOUR,
        attempt=1,
        error_message="ConnectionError: no answer",
        task_data={"args": ["eve"]},
    )
    await pool.execute("ANALYZE scheduled_jobs")
    page = await person.open("/jobs?q=status:failed")
    await person.check(page.locator("[name=row]").first)
    await person.check(page.get_by_role("group", name="Selected jobs").get_by_label("Select all"))
    await person.press(page.get_by_role("button", name="Retry", exact=True))
    await person.fill(page.get_by_label("At most this many jobs per second"), "500")
    label = page.locator("label", has_text="to confirm")
    number = re.sub(r"\D", "", await label.inner_text())
    await person.fill(page.get_by_label("to confirm"), number)
    await person.press(page.get_by_role("button", name="Retry all"))
    await expect(heading(page)).to_contain_text("Bulk run")
    await person.press(page.get_by_role("button", name="Stop"))
    await expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible()
    retried = await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'pending'")
    assert retried < FAILURES

    second = await person.open("/runs")
    await person.press(second.locator("tbody a").first)
    await person.press(second.get_by_role("button", name="Resume", exact=True))
    await expect(second.locator("#region")).to_contain_text("Complete:", timeout=PATIENCE * 2000)
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'pending'") == FAILURES
    seen = Recorder(scheduler)
    await scheduler.start()
    await seen.until(JobCompleted, FAILURES)
    assert (await scheduler.count_jobs(job_name="browser.mail")).completed == FAILURES
