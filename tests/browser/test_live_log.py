"""The log of a running job appears on its page while the page is open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from playwright.async_api import expect

from pg_scheduler import Scheduler
from tests.browser.conftest import Open
from tests.support.logs import keeping_lines


@pytest.fixture
def kept_lines_of_jobs() -> Iterator[None]:
    with keeping_lines(logging.getLogger("render")):
        yield


@pytest.mark.usefixtures("kept_lines_of_jobs")
async def test_new_lines_of_a_running_job_appear_without_a_reload(
    scheduler: Scheduler, open_page: Open
) -> None:
    may_log, may_end, has_begun = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        logging.getLogger("render").warning("frame 1 of 2")
        has_begun.set()
        await may_log.wait()
        logging.getLogger("render").warning("frame 2 of 2")
        await may_end.wait()

    scheduler.register(work, name="render")
    await scheduler.start()
    await scheduler.enqueue(work, job_id="a")
    await has_begun.wait()
    page = await open_page("/job?id=a")
    await page.click("#follow")
    log = page.locator("#live-log")
    await expect(log).to_have_text("frame 1 of 2")
    may_log.set()
    await expect(log).to_contain_text("frame 2 of 2")
    await page.click("#stack")
    await expect(page.locator("#live-stack")).to_contain_text("await may_end.wait()")
    may_end.set()
    await expect(log).to_have_count(0)
