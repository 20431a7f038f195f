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
from tests.support.worker import PATIENCE, Recorder

FAILURES = 5000

INSERT_FAILURES = """
    INSERT INTO scheduled_jobs
        (job_id, job_name, execution_time, status, task_data, attempt, error_message, finished_at)
    SELECT 'old-' || n, 'browser.mail', now() - interval '1 hour', 'failed', '{"args": ["eve"]}', 1,
        'ConnectionError: no answer', now() - interval '1 hour'
    FROM generate_series(1, $1) AS n
"""


@pytest.mark.timeout(360)  # 5,000 jobs at 500 a second, twice on a slow machine
@WAYS
async def test_failures_are_retried_at_a_rate_stopped_and_resumed_in_another_browser(
    person: Person, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    await pool.execute(INSERT_FAILURES, FAILURES)
    await pool.execute("ANALYZE scheduled_jobs")
    page = await person.open("/jobs?q=status:failed")
    await person.check(page.locator("[name=row]").first)
    await person.check(page.get_by_role("group", name="Selected jobs").get_by_label("Select all"))
    await person.press(page.get_by_role("button", name="Retry", exact=True))
    await person.fill(page.get_by_label("At most jobs/s"), "500")
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
