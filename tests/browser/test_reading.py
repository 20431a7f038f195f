"""Journeys of people who look: they find, follow and watch."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from playwright.async_api import Page, expect

from pg_scheduler import Abort, Scheduler, current_job
from pg_scheduler.dashboard import Access
from pg_scheduler.dashboard.texts import DOCUMENTATION
from tests.browser.conftest import Open
from tests.browser.person import PHONE, job_link, navigate
from tests.browser.shop import Shop
from tests.browser.site import Site, until
from tests.support.inside import dashboard_pages
from tests.support.world import HOUR, World

LABELS = [page.label for page in dashboard_pages().values() if page.label]
TABS = 8


def heading(page: Page) -> Any:
    return page.get_by_role("heading", level=1)


@pytest.mark.parametrize(
    "options", [{}, PHONE, {"java_script_enabled": False}], ids=["desktop", "phone", "without JavaScript"]
)
async def test_person_finds_a_failed_job_its_reason_and_its_worker(
    options: dict[str, Any], open_page: Open, shop: Shop, scheduler: Scheduler
) -> None:
    page = await open_page("/", **options)
    await navigate(page, "Errors")
    await page.get_by_role("link", name="ConnectionError").click()
    await expect(heading(page)).to_have_text("ConnectionError")
    await expect(page.locator(".own").first).to_contain_text("in charge")
    await page.get_by_role("link", name="Open", exact=True).click()
    await expect(heading(page)).to_have_text("browser.charge")
    await expect(page.locator("#job-id")).to_have_text(shop.failed)
    await expect(page.locator(".cause")).to_contain_text("the bank does not answer customer 7")
    await expect(page.locator(".cause")).to_contain_text("FAILED")
    await expect(page.locator("#attempts .own").first).to_contain_text("in charge")
    await expect(page.locator("#attempts .own").first).to_be_visible()
    worker_id = str(scheduler.worker_id)
    await page.locator("#attempts").get_by_role("link", name=worker_id).first.click()
    await expect(heading(page)).to_have_text(worker_id)
    await page.locator("#names > summary").click()
    await expect(page.locator("#names").get_by_role("link", name="browser.charge")).to_be_visible()


async def test_keyboard_alone_finds_a_failed_job(open_page: Open, shop: Shop) -> None:
    page = await open_page("/")
    await page.keyboard.press("g")
    await page.keyboard.press("j")
    await expect(heading(page)).to_have_text("Jobs")
    await page.wait_for_load_state()
    await page.keyboard.press("/")
    await page.keyboard.type("status:failed name:browser.*")
    await page.keyboard.press("Enter")
    await expect(page.locator("#summary")).to_contain_text("1 job")
    await press_until(page, "Tab", "browser.charge")
    await page.keyboard.press("Enter")
    await expect(heading(page)).to_have_text("browser.charge")
    await page.keyboard.press("Tab")
    await expect(page.locator(":focus")).to_have_text("Skip to the content")
    await page.keyboard.press("Enter")
    await press_until(page, "Tab", "Raw")
    await page.keyboard.press("Enter")
    await expect(page.locator("pre", has_text="Traceback (most recent call last)")).to_be_visible()


async def press_until(page: Page, key: str, text: str) -> None:
    """Press the key until the element with that text has the focus; each focus must be visible."""
    for _ in range(60):
        await page.keyboard.press(key)
        focused = page.locator(":focus")
        if await focused.count() == 0:
            continue
        # The fields of the top bar and of the search are drawn by the forms around them.
        style = await focused.evaluate(
            "each => getComputedStyle("
            "each.matches('.find input, .filter > input') ? each.parentElement : each).outlineStyle"
        )
        assert style != "none", await focused.inner_html()
        if await focused.inner_text() == text:
            return
    raise AssertionError(f"{key} does not reach {text!r}")


async def test_page_is_updated_without_a_reload(
    open_page: Open, shop: Shop, world: World, site: Site
) -> None:
    page = await open_page("/workers")
    await expect(page.locator("#region tbody tr")).to_have_count(1)
    await page.evaluate("window.isSamePage = true")
    link = page.locator("#region a").first
    await link.focus()
    await world.worker("zz-second")
    await expect(page.get_by_role("link", name="zz-second")).to_be_visible()
    await expect(link).to_be_focused()
    await page.keyboard.press("p")
    await expect(page.get_by_role("button", name="Resume updates")).to_be_visible()
    await until(lambda: site.streams == 0)
    await world.worker("zz-third")
    await page.get_by_role("button", name="Resume updates").click()
    await expect(page.get_by_role("link", name="zz-third")).to_be_visible()
    assert await page.evaluate("window.isSamePage")


async def test_progress_and_retry_of_a_job_are_seen_without_a_reload(
    open_page: Open, scheduler: Scheduler
) -> None:
    steps = [asyncio.Event() for _ in range(3)]
    attempts = 0

    async def watched_import() -> str:
        nonlocal attempts
        attempts += 1
        current_job().progress(attempts, 4, f"row {attempts} of 4")
        await steps[attempts - 1].wait()
        if attempts == 1:
            raise Abort("the file has no header")
        return "imported"

    scheduler.register(watched_import, name="browser.watched_import")
    await scheduler.start()
    job_id = await scheduler.enqueue("browser.watched_import", job_id="watched", keep_result=HOUR)
    page = await open_page(f"/job?id={job_id}")
    await page.evaluate("window.isSamePage = true")
    await expect(page.get_by_text("row 1 of 4")).to_be_visible()
    steps[0].set()
    await expect(page.locator("#attempts")).to_contain_text("the file has no header")
    assert await page.evaluate("window.isSamePage")
    await page.get_by_role("button", name="Retry").click()
    await page.evaluate("window.isSamePage = true")
    await expect(page.get_by_text("row 2 of 4")).to_be_visible()
    steps[1].set()
    await expect(page.locator(".status").first).to_have_text("completed")
    await expect(page.locator("#result")).to_contain_text("imported")
    assert await page.evaluate("window.isSamePage")


async def test_end_of_a_watched_job_is_announced_as_plain_text(
    open_page: Open, shop: Shop, pool: asyncpg.Pool
) -> None:
    page = await open_page(f"/job?id={shop.waiting}")
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = $1", shop.waiting)
    await expect(page.locator("#announcement")).to_have_text(re.compile("^there is no job"))


async def test_more_tabs_than_connections_all_answer(
    open_page: Open, shop: Shop, site: Site, world: World
) -> None:
    first = await open_page("/workers")
    tabs = [first]
    for _ in range(TABS - 1):
        # Without windows, Chromium takes every tab for the one in front.
        await tabs[-1].evaluate(
            """() => {
                Object.defineProperty(document, "hidden", { value: true, configurable: true });
                document.dispatchEvent(new Event("visibilitychange"));
            }"""
        )
        tab = await first.context.new_page()
        await tab.goto(site.url + "/workers")
        await expect(tab.locator("#region tbody tr")).to_have_count(1)
        tabs.append(tab)
    await until(lambda: site.streams == 1)
    await world.worker("zz-second")
    await expect(tabs[-1].get_by_role("link", name="zz-second")).to_be_visible()
    await first.evaluate(
        """() => {
            Object.defineProperty(document, "hidden", { value: false });
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    await expect(first.get_by_role("link", name="zz-second")).to_be_visible()


async def test_page_continues_after_a_restart_of_the_server(
    open_page: Open, shop: Shop, world: World, site: Site, problems: list[str]
) -> None:
    page = await open_page("/workers")
    await until(lambda: site.streams == 1)
    await page.evaluate("window.isSamePage = true")
    await site.stop()
    await until(lambda: bool(problems))
    await world.worker("zz-second")
    await site.start()
    await expect(page.get_by_role("link", name="zz-second")).to_be_visible()
    assert await page.evaluate("window.isSamePage")
    assert all("net::ERR_" in each for each in problems), problems
    problems.clear()


async def test_violation_of_the_policy_reaches_the_console(open_page: Open, problems: list[str]) -> None:
    page = await open_page("/about")
    await page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), { text: 'window.isRun = 1' }))"
    )
    await until(lambda: bool(problems))
    assert "Content Security Policy" in problems.pop()
    assert await page.evaluate("window.isRun") is None


@pytest.mark.parametrize("site", [("starlette", "/a/b")], indirect=True)
async def test_links_stay_below_the_path_of_the_mount(open_page: Open, shop: Shop, site: Site) -> None:
    page = await open_page("/")
    for label in LABELS:
        await page.get_by_role("navigation").get_by_role("link", name=label, exact=True).click()
        await expect(heading(page)).to_have_text(label)
        links = await page.locator("a[href]").evaluate_all("each => each.map(a => a.href)")
        assert all(link.startswith((site.url + "/", DOCUMENTATION)) for link in links), links
        assert await page.evaluate("getComputedStyle(document.querySelector('main')).maxWidth") != "none"
    await page.wait_for_load_state()
    await page.keyboard.press("g")
    await page.keyboard.press("w")
    await expect(heading(page)).to_have_text("Workers")
    await until(lambda: site.streams == 1)


async def test_viewer_has_no_actions_and_sees_no_arguments(
    open_page: Open, shop: Shop, site: Site, scheduler: Scheduler
) -> None:
    site.access = Access("eve", "viewer", sees_arguments=False)
    paths = [path for path, page in dashboard_pages().items() if page.label]
    paths += [f"/job?id={shop.completed}", f"/schedule?id={shop.schedule}", "/task?id=browser.mail"]
    page = await open_page("/about")
    for path in (*paths, f"/worker?id={scheduler.worker_id}"):
        await page.goto(site.url + path)
        await expect(heading(page)).to_be_visible()
        await expect(page.locator("main form[method=post]")).to_have_count(0)
        await expect(page.get_by_text("sent to ada")).to_have_count(0)
    page = await open_page(f"/job?id={shop.completed}")
    await expect(page.get_by_text("You may not see arguments, results and metadata")).to_be_visible()


async def test_reader_opens_the_result_of_a_job(open_page: Open, shop: Shop) -> None:
    page = await open_page("/jobs?q=status:completed")
    await job_link(page, shop.completed).click()
    await expect(page.get_by_text("sent to ada")).to_be_visible()


async def test_theme_is_kept_for_the_next_page(open_page: Open, shop: Shop) -> None:
    page = await open_page("/jobs", color_scheme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = await page.evaluate(paper)
    await page.get_by_role("button", name="Theme").click()
    dark = await page.evaluate(paper)
    assert dark != light
    await page.get_by_role("link", name="Errors", exact=True).click()
    await expect(heading(page)).to_have_text("Errors")
    assert await page.evaluate(paper) == dark


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
async def test_large_arguments_and_the_result_need_little_room(
    size: tuple[int, int], open_page: Open, shop: Shop, scheduler: Scheduler
) -> None:
    rows = [{"number": number, "text": "x" * 80} for number in range(2_000)]
    await scheduler.schedule_job(
        "browser.mail", datetime.now(UTC) + HOUR, {"kwargs": {"address": rows}}, job_id="large"
    )
    page = await open_page("/job?id=large", viewport={"width": size[0], "height": size[1]})
    await expect(page.get_by_role("link", name="Show all")).to_be_visible()
    await page.locator(".json details").evaluate_all("each => each.forEach(one => { one.open = true; })")
    assert await page.evaluate("document.documentElement.scrollHeight") < 5_000
    for job_id, target in ((shop.completed, "#result .json"), (shop.failed, "#attempts .traceback")):
        await page.goto(f"{page.url.partition('?')[0]}?id={job_id}")
        box = await page.locator(target).first.bounding_box()
        assert box is not None
        assert size[0] < 1440 or box["y"] + box["height"] < size[1], "it needs scrolling"
