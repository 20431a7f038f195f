"""The keys of one letter, the selection of rows, and the time that is left."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from playwright.async_api import expect

from pg_scheduler import Scheduler
from tests.browser.conftest import Open
from tests.browser.person import job_link
from tests.browser.shop import Shop
from tests.browser.test_reading import heading


async def test_keys_select_rows_and_explain_a_job(open_page: Open, shop: Shop) -> None:
    page = await open_page("/jobs?q=name:browser.*")
    rows = page.get_by_role("checkbox", name="Select", exact=False).and_(page.locator("[name=row]"))
    await expect(rows).to_have_count(3)
    await page.keyboard.press("j")
    await page.keyboard.press("x")
    await expect(rows.nth(0)).to_be_checked()
    await page.keyboard.press("j")
    await page.keyboard.press("x")
    await expect(rows.nth(1)).to_be_checked()
    await expect(rows.nth(2)).not_to_be_checked()
    await page.get_by_role("checkbox", name="Select all jobs of this page").check()
    await expect(rows.nth(2)).to_be_checked()
    await page.keyboard.press("j")
    await page.keyboard.press("x")
    await expect(rows.nth(0)).not_to_be_checked()
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("X")
    for number in range(3):
        await expect(rows.nth(number)).to_be_checked()
    await page.keyboard.press("a")
    actions = page.get_by_role("group", name="Selected jobs").get_by_role("button")
    await expect(actions.first).to_be_focused()

    await page.goto(page.url.partition("?")[0] + "?q=status:failed")
    await page.keyboard.press("j")
    await page.keyboard.press("e")
    await expect(heading(page)).to_have_text("browser.charge")
    explanation = page.locator("#explanation")
    await expect(explanation).to_be_focused()
    await page.reload()
    await page.get_by_role("link", name="Skip to the content").focus()
    await page.keyboard.press("e")
    await expect(explanation).to_be_focused()


async def test_jobs_are_updated_while_no_row_is_selected(
    open_page: Open, shop: Shop, scheduler: Scheduler
) -> None:
    page = await open_page("/jobs?q=name:browser.*")
    await expect(page.get_by_role("checkbox", name="Select all jobs of this page")).to_be_visible()
    job_id = await scheduler.enqueue("browser.mail", args=("eve",), job_id="mail-eve")
    await expect(job_link(page, job_id)).to_be_visible()


async def test_keys_do_nothing_in_a_browser_that_turned_them_off(open_page: Open, shop: Shop) -> None:
    page = await open_page("/jobs?q=name:browser.*")
    await page.keyboard.press("?")
    await page.get_by_role("dialog").get_by_role("checkbox", name="Use the keys").uncheck()
    await page.keyboard.press("Escape")
    for key in ("g", "e"):
        await page.keyboard.press(key)
    await page.get_by_role("link", name="Jobs", exact=True).click()
    await expect(heading(page)).to_have_text("Jobs")
    await page.wait_for_load_state()
    for key in ("j", "/", "x", "t", "?", "g", "o"):
        await page.keyboard.press(key)
    await expect(heading(page)).to_have_text("Jobs")
    await expect(page.locator("main :focus")).to_have_count(0)
    assert await page.evaluate("document.documentElement.dataset.theme") is None


async def test_time_left_until_a_fire_time_counts_down(open_page: Open, shop: Shop) -> None:
    page = await open_page("/about")
    await page.clock.install()
    await page.goto(page.url.replace("/about", "/schedules"))
    left = page.locator("tr", has_text=shop.schedule).locator("[data-until]")
    await expect(left).to_have_text(re.compile(r"in [\d]+ (h|min)"))
    until = await left.get_attribute("data-until")
    assert until is not None
    ahead = datetime.fromisoformat(until) - datetime.now(UTC) - timedelta(seconds=90)
    await page.clock.fast_forward(int(ahead.total_seconds() * 1000))
    await expect(left).to_have_text(re.compile(r"in (8\d|90) s"))
    await page.clock.fast_forward(120_000)
    await expect(left).to_have_text("now")
