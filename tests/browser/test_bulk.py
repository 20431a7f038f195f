"""The journey of a person who changes thousands of jobs at once."""

from __future__ import annotations

import asyncio
import re

import asyncpg
from playwright.async_api import expect

from pg_scheduler import Scheduler
from tests.browser.conftest import Open
from tests.browser.test_accessibility import violations
from tests.browser.test_reading import heading
from tests.support.worker import PATIENCE

FAILURES = 5000

INSERT_FAILURES = """
    INSERT INTO scheduled_jobs
        (job_id, job_name, execution_time, status, task_data, attempt, error_message, finished_at)
    SELECT 'old-' || n, 'browser.mail', now() - interval '1 hour', 'failed', '{"args": ["eve"]}', 1,
        'ConnectionError: no answer', now() - interval '1 hour'
    FROM generate_series(1, $1) AS n
"""


async def test_failures_are_retried_at_a_rate_stopped_and_resumed_in_another_browser(
    open_page: Open, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    await pool.execute(INSERT_FAILURES, FAILURES)
    await pool.execute("ANALYZE scheduled_jobs")
    page = await open_page("/jobs?q=status:failed")
    await page.get_by_text("All jobs that match").click()
    await page.get_by_label("At most jobs/s").fill("500")
    await page.get_by_role("button", name="Retry all").click()
    label = page.locator("label", has_text="to confirm")
    number = re.sub(r"\D", "", await label.inner_text())
    assert await violations(page) == []
    await page.get_by_role("textbox").fill(number)
    await page.get_by_role("button", name="Retry all").click()
    await expect(heading(page)).to_contain_text("Bulk run")
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible()
    retried = await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'pending'")
    assert retried < FAILURES

    second = await open_page("/runs")
    await second.locator("tbody a").first.click()
    assert await violations(second) == []
    await second.get_by_role("button", name="Resume", exact=True).click()
    await expect(second.locator("#region")).to_contain_text("Complete:", timeout=PATIENCE * 2000)
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'pending'") == FAILURES
    await scheduler.start()
    async with asyncio.timeout(PATIENCE):
        while (await scheduler.count_jobs(job_name="browser.mail")).completed < FAILURES:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
