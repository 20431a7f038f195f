"""The list of jobs in a browser: its density, the selection, the completion of terms, and saved views."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from pg_scheduler import Scheduler
from tests.browser.conftest import Open
from tests.browser.person import PHONE, job_link
from tests.browser.shop import Shop
from tests.dashboard.test_job_list import fill
from tests.support.world import World

FAILED = "/jobs?q=status:failed"
DENSITY = """() => {
    const rows = [...document.querySelectorAll("tbody tr")].map((each) => each.getBoundingClientRect());
    return {
        first: rows[0].top,
        heights: rows.map((each) => each.height),
        visible: rows.filter((each) => each.bottom <= window.innerHeight).length,
    };
}"""


@pytest_asyncio.fixture(loop_scope="session")
async def jobs(scheduler: Scheduler, world: World) -> None:
    await scheduler.initialize_db()
    await world.worker()  # without one, each page says so first
    await fill(world, 40)


def boxes(page: Page) -> Any:
    return page.locator("[name=row]")


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    ("width", "height", "most_first", "most_height", "least_visible"),
    [(1440, 900, 250, 52, 12), (1024, 768, 250, 52, 9), (390, 844, 310, 77, 7)],
)
async def test_first_screen_shows_many_failed_jobs(
    width: int, height: int, most_first: float, most_height: float, least_visible: int, *, open_page: Open
) -> None:
    page = await open_page(FAILED, viewport={"width": width, "height": height})
    found = await page.evaluate(DENSITY)
    assert found["first"] <= most_first
    assert max(found["heights"]) <= most_height
    assert found["visible"] >= least_visible
    assert await page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.usefixtures("jobs")
async def test_bar_shows_what_can_be_done_with_the_selection(open_page: Open, scheduler: Scheduler) -> None:
    await scheduler.schedule_job("list.mail", datetime.now(UTC) + timedelta(days=1), {}, job_id="later")
    page = await open_page("/jobs")
    bar = page.get_by_role("group", name="Selected jobs")
    await expect(bar).to_be_hidden()
    rows = boxes(page)
    await rows.nth(1).check()
    await rows.nth(4).click(modifiers=["Shift"])
    await expect(bar).to_contain_text("4 selected")
    await expect(bar.get_by_role("button", name="Retry")).to_be_visible()
    await expect(bar.get_by_role("button", name="Cancel")).to_be_hidden()
    await page.locator("[name=row][value=later]").check()
    await expect(bar.get_by_role("button", name="Cancel")).to_have_attribute("data-number", "1")
    await bar.get_by_role("button", name="Clear the selection").click()
    await expect(bar).to_be_hidden()
    await expect(page.locator("[name=row]:checked")).to_have_count(0)


@pytest.mark.usefixtures("jobs")
async def test_row_opens_its_job_wherever_it_is_pressed(open_page: Open) -> None:
    page = await open_page(FAILED)
    row = page.locator("tbody tr", has=job_link(page, "j007"))
    await row.get_by_text(re.compile("retries used")).click(force=True)  # the link lies above it
    await expect(page).to_have_url(re.compile(r"/job\?id=j007$"))


@pytest.mark.usefixtures("jobs")
async def test_argument_is_found_by_completion(open_page: Open) -> None:
    page = await open_page(FAILED)
    field = page.get_by_role("combobox", name="Search")
    await field.click()
    await field.type("arg.")
    options = page.get_by_role("listbox").get_by_role("option")
    await options.filter(has_text="arg.account:").click()
    await options.filter(has_text=re.compile("^arg.account:3")).click()
    await expect(page.locator("#summary")).to_contain_text("10 jobs")
    await expect(page.locator(".term")).to_have_count(2)
    await page.get_by_role("link", name="Remove status:failed").click()
    await expect(page.locator(".term")).to_have_count(1)
    assert page.url.endswith("q=arg.account%3A3")


@pytest.mark.usefixtures("jobs")
async def test_term_is_completed_and_changed_with_keys_only(open_page: Open) -> None:
    page = await open_page("/jobs")
    options = page.get_by_role("listbox").get_by_role("option")
    await page.keyboard.press("/")
    await page.keyboard.type("name:list.r")
    await expect(options).to_have_count(1)
    await page.keyboard.press("ArrowDown")
    await expect(options).to_have_attribute("aria-selected", "true")
    await page.keyboard.press("Enter")
    await expect(page.locator(".term")).to_have_count(1)
    await expect(page.locator("#summary")).to_contain_text("20 jobs")
    await page.wait_for_load_state()
    await page.keyboard.press("/")
    await page.keyboard.press("Backspace")
    await expect(page.locator("#q")).to_have_value("name:list.report")
    for _ in "report":
        await page.keyboard.press("Backspace")
    await page.keyboard.type("mai")
    await expect(page.get_by_role("option", name="name:list.mail")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("listbox")).to_be_hidden()
    await page.keyboard.type("l")
    await page.keyboard.press("Enter")
    await expect(page.locator(".term")).to_contain_text("list.mail")


@pytest.mark.usefixtures("jobs")
async def test_view_is_saved_and_removed_in_the_browser(open_page: Open) -> None:
    page = await open_page(f"{FAILED}&sort=ended")
    menu = page.get_by_role("button", name="Views")
    await menu.click()
    await page.get_by_role("button", name="Save this view").click()
    await page.get_by_role("link", name="Bulk runs").click()
    await page.go_back()
    await page.goto(page.url.partition("?")[0])
    await menu.click()
    await page.locator("#views").get_by_role("link", name="status:failed").click()
    await expect(page).to_have_url(re.compile("q=status:failed&sort=ended$"))
    await menu.click()
    await page.get_by_role("button", name="Remove this view").click()
    await expect(page.locator("#views a")).to_have_count(0)


@pytest.mark.usefixtures("jobs")
async def test_list_works_without_a_script(open_page: Open, pool: asyncpg.Pool) -> None:
    page = await open_page(FAILED, **PHONE, java_script_enabled=False)
    await page.locator("#q").fill("arg.account:3")
    await page.get_by_role("button", name="Search").click()
    await expect(page.locator(".term")).to_have_count(2)
    await expect(page.locator("tbody tr")).to_have_count(10)
    bar = page.get_by_role("group", name="Selected jobs")
    await bar.get_by_role("button", name="Retry").click()
    await expect(page.get_by_role("status").first).to_contain_text("select rows first")
    await expect(page.locator("tbody tr")).to_have_count(10)
    await boxes(page).nth(0).check()
    await bar.get_by_role("button", name="Retry").click()
    await expect(page.get_by_role("status").first).to_contain_text("1 job will run again")
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'pending'") == 1


async def test_narrow_rows_of_failed_jobs_show_arguments_beside_the_task(open_page: Open, shop: Shop) -> None:
    page = await open_page(FAILED, viewport={"width": 1024, "height": 768})
    row = page.locator(f'[data-key="{shop.failed}"]')
    task = await row.locator("[data-job]").bounding_box()
    arguments = await row.locator(".main .sub").bounding_box()
    assert task is not None
    assert arguments is not None
    assert arguments["width"] > 0
    assert arguments["x"] >= task["x"] + task["width"]
    assert task["y"] <= arguments["y"] + arguments["height"] / 2 <= task["y"] + task["height"], "one line"


async def test_phone_shows_errors_and_the_tab_of_the_state(open_page: Open, shop: Shop) -> None:
    page = await open_page("/jobs?q=status:failed", viewport={"width": 390, "height": 844})
    row = page.locator(f'[data-key="{shop.failed}"]')
    error = await row.get_by_text("the bank does not answer").bounding_box()
    state = await row.locator(".status").bounding_box()
    assert error is not None
    assert state is not None
    assert error["height"] > 0
    assert error["y"] < state["y"], "the error precedes the state"
    arguments = await row.locator(".main .sub").bounding_box()
    assert arguments is not None
    assert arguments["height"] > 0
    assert arguments["y"] < error["y"]
    tab = await page.locator(".tabs [aria-current]").bounding_box()
    assert tab is not None
    assert tab["x"] >= 0
    assert tab["x"] + tab["width"] <= 390
    await page.locator(".tabs").evaluate("each => { each.scrollLeft = 0; }")
    edges = await page.locator(".tabs a").evaluate_all(
        "tabs => tabs.map((each) => each.getBoundingClientRect()).map((box) => [box.left, box.right])"
    )
    places = sorted(map(tuple, edges))
    assert all(left >= before for (_, before), (left, _) in pairwise(places)), "none is covered"


async def test_boxes_of_columns_are_beside_their_labels(open_page: Open, shop: Shop) -> None:
    page = await open_page("/jobs")
    await page.get_by_role("button", name="Columns").click()
    box = await page.locator("[name=cols]").first.bounding_box()
    assert box is not None
    assert box["width"] < 30
