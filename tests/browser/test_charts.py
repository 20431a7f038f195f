"""The charts of the overview: readouts and links without a script, keys and drags with one."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from tests.browser.conftest import Open
from tests.dashboard.test_overview import FIGURES, add_figures
from tests.support.inside import Connections, Store
from tests.support.world import World

pytestmark = pytest.mark.usefixtures("figures")


@pytest_asyncio.fixture(loop_scope="session")
async def figures(pool: asyncpg.Pool, world: World) -> None:
    """Attempts of this minute, and of twenty minutes ago."""
    await add_figures(world, ["board.mail"])
    await pool.execute("UPDATE scheduler_stats SET bucket = bucket - interval '20 min'")
    assert await Store(Connections(pool)).statistics.add("w1", 2, {"board.mail": FIGURES})


def slots(page: Page) -> Locator:
    return page.get_by_label("Outcomes per minute").locator(".slot")


def search_of(page: Page) -> str:
    return parse_qs(urlsplit(page.url).query)["q"][0]


@pytest.mark.parametrize("width", [1440, 390])
async def test_slot_shows_its_values_and_leads_to_its_jobs_without_a_script(
    width: int, open_page: Open
) -> None:
    page = await open_page("/", java_script_enabled=False, viewport={"width": width, "height": 900})
    slot = slots(page).last
    tip = slot.locator(".tip")
    await expect(tip).to_be_hidden()
    await slot.hover()
    await expect(tip).to_be_visible()
    await expect(tip).to_contain_text("Completed")
    box = await tip.bounding_box()
    assert box is not None
    assert 0 <= box["x"] <= box["x"] + box["width"] <= width
    await slot.click()
    await expect(page.locator("h1")).to_have_text("Jobs")
    # The slot of a minute that has just begun has no failed jobs, and leads to all of its jobs.
    assert search_of(page).startswith(("status:failed,expired finished:", "finished:"))


@pytest.mark.parametrize("width", [1440, 1024, 390])
async def test_texts_of_charts_have_one_size_at_every_width(width: int, open_page: Open) -> None:
    page = await open_page("/", viewport={"width": width, "height": 900})
    heights = await page.locator(".plot text, .tick:visible").evaluate_all(
        "found => found.map((each) => [getComputedStyle(each).fontSize, each.getBoundingClientRect().height])"
    )
    assert {size for size, _ in heights} == {"11px"}
    assert all(11 <= height <= 15 for _, height in heights), "nothing scales the text"


async def test_keys_read_a_chart_and_open_the_jobs_of_a_slot(open_page: Open) -> None:
    page = await open_page("/")
    await page.get_by_role("link", name="Table of Outcomes per minute").focus()
    await page.keyboard.press("ArrowRight")
    said = page.get_by_role("status").filter(has_text="so far")
    await expect(said).to_contain_text("Completed, 4")
    assert await page.locator(".slot.on").count() == 3, "the same time in each chart"
    await page.keyboard.press("ArrowLeft")
    await expect(said).to_have_count(0)
    await page.keyboard.press("End")
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("Jobs")
    assert search_of(page).startswith("status:failed,expired finished:")


async def test_drag_across_slots_opens_the_jobs_of_all_of_them(open_page: Open) -> None:
    page = await open_page("/")
    await slots(page).nth(10).hover()
    await page.mouse.down()
    await slots(page).nth(12).hover()
    await expect(page.locator(".brushed")).to_have_count(3)
    await page.keyboard.press("Escape")
    await expect(page.locator(".brushed")).to_have_count(0)
    await page.mouse.up()
    await expect(page.locator("h1")).to_have_text("Overview")
    await slots(page).nth(10).hover()
    await page.mouse.down()
    await slots(page).nth(12).hover()
    await page.mouse.up()
    await expect(page.locator("h1")).to_have_text("Jobs")
    first, _, last = search_of(page).removeprefix("finished:").partition("..")
    assert int(last[14:16]) - int(first[14:16]) in {2, -58}
