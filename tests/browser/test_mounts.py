"""One journey in the application of each web framework, at the root and below paths."""

from __future__ import annotations

import re

import asyncpg
import pytest
from playwright.async_api import expect

from tests.browser.conftest import Open
from tests.browser.person import job_link
from tests.browser.site import Site, until
from tests.browser.test_reading import heading
from tests.dashboard.test_actions import records
from tests.support.world import World

MOUNTS = [
    ("starlette", "/jobs"),
    ("starlette", "/a/b/"),
    ("fastapi", "/"),
    ("fastapi", "/a/b/"),
    ("litestar", "/"),
    ("litestar", "/jobs"),
    ("quart", "/jobs"),
    ("quart", "/a/b/"),
    ("django", "/"),
    ("django", "/jobs"),
]


@pytest.mark.parametrize("site", MOUNTS, indirect=True, ids=" at ".join)
async def test_person_reads_watches_and_acts_wherever_it_is_mounted(
    open_page: Open, site: Site, pool: asyncpg.Pool, world: World
) -> None:
    await world.job(
        "charge-7", "browser.charge", status="failed", attempt=1, error_message="ConnectionError: no answer"
    )
    page = await open_page("/about")
    navigation = page.get_by_role("navigation")
    async with page.expect_response(lambda answer: "/live?" in answer.url) as streaming:
        await navigation.get_by_role("link", name="Overview", exact=True).click()
    stream = await streaming.value
    assert stream.ok
    assert stream.headers["content-type"].startswith("text/event-stream")
    await until(lambda: site.streams == 1)
    await expect(heading(page)).to_have_text("Overview")

    await navigation.get_by_role("link", name="Jobs", exact=True).click()
    await page.get_by_role("navigation", name="State").get_by_role("link", name=re.compile("^Failed")).click()
    await job_link(page, "charge-7").click()
    await expect(heading(page)).to_have_text("browser.charge")
    await page.get_by_role("button", name="Retry now", exact=True).click()
    await expect(page.locator("#message")).to_contain_text("1 job will run again")
    await expect(page.locator(".status").first).to_have_text("due")
    await expect(heading(page)).to_have_text("browser.charge")
    assert page.url.startswith(f"{site.url}/job?id=charge-7")
    assert await records(pool) == [("ada", "dashboard", "retry_jobs", "charge-7")]
