"""A search that its first page does not complete, in a browser."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio
from playwright.async_api import expect

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import search_runs
from pg_scheduler.inspect import Bounds
from tests.browser.conftest import Open
from tests.browser.site import Site
from tests.browser.test_accessibility import violations
from tests.support.world import World

JOBS = 200
CUSTOMER = "4711"


@pytest_asyncio.fixture(loop_scope="session")
async def bounded(scheduler: Scheduler, pool: asyncpg.Pool) -> AsyncIterator[Site]:
    """A dashboard whose pages examine 20 jobs, of which the oldest two are those of the customer."""
    await World(pool).jobs(
        JOBS,
        "mail.send",
        job_id="0{:05}".format,
        status="completed",
        task_data=lambda n: json.dumps({"kwargs": {"customer": 4711 if n < 3 else n}}),
    )
    await pool.execute("ANALYZE scheduled_jobs")
    site = Site(scheduler, "/", bounds=Bounds(rows=20))
    await site.start()
    yield site
    await site.stop()


async def test_all_jobs_of_a_customer_are_three_clicks_away(bounded: Site, open_page: Open) -> None:
    page = await open_page("/")
    await page.goto(f"{bounded.url}/jobs")
    await page.locator("#q").fill(CUSTOMER)
    await page.locator("#q").press("Enter")
    await expect(page.locator("tbody tr")).to_have_count(2)
    await expect(page.locator("#summary")).to_contain_text("2 jobs, ")
    await expect(page.get_by_role("link", name="Continue the search")).to_have_count(0)
    await page.locator(".places a", has_text="arg.customer").click()
    await expect(page).to_have_url(f"{bounded.url}/jobs?q=arg.customer%3A{CUSTOMER}")
    await expect(page.locator("tbody tr")).to_have_count(2)


async def test_search_shows_how_far_it_has_got_and_can_be_stopped(
    bounded: Site, open_page: Open, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_runs, "REST_S", 2.0)
    await World(pool).job("1", "mail.send", task_data='{"kwargs": {"customer": 4711}}')
    page = await open_page("/", viewport={"width": 390, "height": 844})
    await page.goto(f"{bounded.url}/jobs?q={CUSTOMER}")
    bar = page.get_by_role("progressbar", name="Searched")
    await expect(bar).to_be_visible()
    await expect(page.get_by_role("link", name="Continue the search")).not_to_be_visible()
    await expect(page.locator(".searching")).to_contain_text("Searched 60 of about 200 jobs")
    await expect(page.locator(".places")).to_contain_text("arg.customer 4711")
    for color_scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=color_scheme)
        assert await violations(page) == []
    await page.locator("#pause").click()
    await expect(bar).not_to_be_visible()
    await expect(page.get_by_role("link", name="Continue the search")).to_be_visible()
    await page.locator("#pause").click()
    await page.get_by_role("link", name="Stop").click()
    await expect(bar).to_have_count(0)
    monkeypatch.undo()
    await page.get_by_role("link", name="Continue the search").click()
    await expect(page.locator("tbody tr")).to_have_count(2)
    await expect(page.locator("#summary")).to_contain_text("3 jobs, ")


async def test_search_continues_by_clicks_without_a_script(bounded: Site, open_page: Open) -> None:
    page = await open_page("/", java_script_enabled=False)
    await page.goto(f"{bounded.url}/jobs?q={CUSTOMER}")
    clicks = 0
    while await page.locator("tbody tr").count() == 0:
        await expect(page.locator(".searching")).not_to_be_visible()
        button = page.get_by_role("link", name="Continue the search")
        box = await button.bounding_box()
        assert box is not None
        assert box["height"] >= 30, "a button of full size"
        await button.click()
        clicks += 1
        assert clicks < 20
    assert clicks == 9
