"""Small things of the layout that a person sees at once: edges, gaps, and words that break."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import asyncpg
import pytest
import pytest_asyncio
from playwright.async_api import expect

from pg_scheduler import Scheduler
from pg_scheduler.triggers import Cron
from tests.browser.conftest import Open
from tests.browser.fixed_demo import open_fixed_demo
from tests.browser.shop import Shop
from tests.browser.site import Site
from tests.dashboard.test_overview import add_figures
from tests.support.errors import count_errors
from tests.support.world import DAY, MINUTE, World

LATEST = datetime(9999, 1, 1, tzinfo=UTC)
LEAST_CELL_PX = 80


@pytest_asyncio.fixture(loop_scope="session")
async def demo(pool: asyncpg.Pool) -> AsyncIterator[Site]:
    """Return the dashboard of a shop with workflows, releases, schedules and failures."""
    site = Site(await open_fixed_demo(pool))
    await site.start()
    yield site
    await site.stop()


async def test_bars_of_errors_begin_at_one_place(open_page: Open, shop: Shop, world: World) -> None:
    for error, count in (("KeyError: 'a'", 1), ("ValueError: no", 1200)):
        await world.jobs(
            count,
            "browser.mail",
            job_id=(error[:3] + "{}").format,
            status="failed",
            ended=-MINUTE,
            error_message=error,
        )
    page = await open_page("/")
    bars = page.locator("#errors .small-bars")
    await expect(bars).to_have_count(3)
    edges = await bars.evaluate_all(
        "found => found.map((each) => Math.round(each.getBoundingClientRect().x))"
    )
    assert len(set(edges)) == 1, edges


async def test_cards_of_a_job_have_one_gap(open_page: Open, shop: Shop) -> None:
    page = await open_page(f"/job?id={shop.failed}")
    gaps = await page.locator(".columns > .column:first-child").evaluate(
        """column => {
            const boxes = [...column.children].map((each) => each.getBoundingClientRect());
            const shown = boxes.filter((box) => box.height > 0);
            return shown.slice(1).map((box, place) => Math.round(box.top - shown[place].bottom));
        }"""
    )
    assert gaps == [16]


@pytest.mark.parametrize("path", ["/jobs?q=status:due", "/schedules"])
async def test_badge_beside_a_name_does_not_raise_its_row(
    path: str, open_page: Open, shop: Shop, world: World
) -> None:
    for job_id, name in (("plain", "browser.charge"), ("held", "browser.export")):
        await world.job(job_id, name)
    await world.paused_task("browser.export")
    page = await open_page(path)
    heights = await page.locator("tbody tr").evaluate_all(
        "rows => rows.map((row) => row.getBoundingClientRect().height)"
    )
    assert max(heights) - min(heights) < 1, heights


async def test_headings_of_lists_are_at_one_height(open_page: Open, shop: Shop, site: Site) -> None:
    page = await open_page("/about")
    places = {}
    for path in ("/about", "/jobs", "/errors", "/schedules", "/workers", "/limits", "/doctor", "/audit", "/"):
        await page.goto(site.url + path)
        box = await page.locator("h1").bounding_box()
        assert box is not None
        places[path] = box["y"]
    assert len(set(places.values())) == 1, places


async def test_plots_of_charts_next_to_each_other_are_level(open_page: Open, world: World) -> None:
    await add_figures(world, ["export"])
    page = await open_page("/task?id=export", viewport={"width": 1440, "height": 900})
    boxes = await page.locator("#charts .chart").evaluate_all(
        """charts => charts.map((chart) => {
            const place = (part) => Math.round(chart.querySelector(part).getBoundingClientRect().y);
            return [place("h2"), place(".legend"), place(".plot")];
        })"""
    )
    assert len(boxes) > 1
    assert boxes[-1] == boxes[-2]
    title, legend, _ = boxes[-1]
    assert legend > title, "a narrow chart has its legend below the title"


@pytest.mark.parametrize("width", [390, 1440])
async def test_names_of_schedules_stay_in_the_cells_of_the_calendar(
    width: int, open_page: Open, shop: Shop, scheduler: Scheduler
) -> None:
    await scheduler.schedules.add(
        "browser.mail", Cron("30 12 * * *"), args=("all",), schedule_id="a-name-that-is-wider-than-the-cell"
    )
    week = datetime.now(UTC).date() + 7 * DAY
    page = await open_page(f"/calendar?start={week}", viewport={"width": width, "height": 844})
    cells = page.locator(".calendar td:has(a)")
    assert await cells.count()
    wide = await cells.evaluate_all(
        """cells => cells.filter((cell) => [...cell.querySelectorAll(".clip, .alone")].some((part) =>
            part.getBoundingClientRect().width > cell.getBoundingClientRect().width)).length"""
    )
    assert wide == 0
    assert (await cells.first.inner_text()).strip(), "the number stays"


async def test_names_do_not_break_within_a_word(open_page: Open, shop: Shop) -> None:
    page = await open_page("/tasks", viewport={"width": 1024, "height": 768})
    link = page.locator(".tasks").get_by_role("link", name="browser.bank")
    await expect(link).to_be_visible()
    assert await link.evaluate("each => each.getClientRects().length") == 1


async def test_kind_of_a_suggestion_is_seen_beside_the_longest_name(
    open_page: Open, shop: Shop, world: World
) -> None:
    await world.job(
        "long", "browser.mail", status="failed", ended=-MINUTE, error_message="ValueError: " + "x" * 200
    )
    page = await open_page("/", viewport={"width": 1280, "height": 800})
    await page.locator("#find").fill("ValueError")
    option = page.get_by_role("option", name="ValueError")
    await expect(option).to_be_visible()
    await expect(option.locator(".note")).to_be_in_viewport(ratio=1)
    assert await page.locator("#found").evaluate("list => list.scrollWidth <= list.clientWidth")


@pytest.mark.parametrize("width", [1201, 1280, 1440])
async def test_tiles_have_no_breaks_and_whole_labels(width: int, open_page: Open, shop: Shop) -> None:
    page = await open_page("/", viewport={"width": width, "height": 800})
    await expect(page.locator(".tile").first).to_be_visible()
    heights = await page.locator(".tile .value").evaluate_all(
        """values => values.map((value) => {
            if (value.textContent.includes("attempts")) value.firstChild.nodeValue = "12.3";
            return value.getBoundingClientRect().height;
        })"""
    )
    assert set(heights) == {32}, heights
    cut = await page.locator(".tile .label").evaluate_all(
        """labels => labels.filter((label) => {
            const change = document.createElement("span");
            Object.assign(change, { className: "change", textContent: "▲ >10x" });
            if (label.nextElementSibling.className !== "change") label.after(change);
            return label.scrollWidth > label.clientWidth;
        }).map((label) => label.textContent)"""
    )
    assert cut == []


@pytest.mark.parametrize("width", [700, 900])
async def test_columns_with_text_stay_readable_on_narrow_screens(
    width: int, demo: Site, open_page: Open, world: World
) -> None:
    await world.job("order:4711:december", "shop.order", due=LATEST, attempt=2, options={"steps": 1})
    await world.step("order:4711:december", "charge-the-card", value={"card": "visa", "amount": 900})
    await world.step("order:4711:december", "label", "child", value="order:4711:december:label")
    await world.step("order:4711:december", "approval", "signal", until=LATEST, ended=None)
    page = await open_page("/about", viewport={"width": width, "height": 800})
    faults = []
    for path in ("/job?id=order:4711:december", "/release", "/schedules", "/jobs?q=status:failed"):
        await page.goto(demo.url + path)
        cells = page.locator("table.rows tbody td:is(.main, .what, .trigger, .value)")
        await expect(cells.first).to_be_visible()
        faults += await page.locator("table.rows").evaluate_all(
            """(tables, [path, least]) => tables.flatMap((table) => {
                const cells = [...table.querySelectorAll("tbody td")].filter((cell) => cell.offsetWidth);
                const narrow = cells.filter((cell) => cell.innerText.trim()
                    && cell.matches(".main, .what, .trigger, .value") && cell.clientWidth < least);
                const cut = cells.filter((cell) => cell.scrollWidth > cell.clientWidth + 1);
                const wide = table.offsetWidth > table.parentElement.clientWidth ? [table] : [];
                return [...narrow, ...cut, ...wide].map((part) =>
                    `${path} ${part.className} ${part.clientWidth}: ${part.innerText.slice(0, 40)}`);
            })""",
            [path, LEAST_CELL_PX],
        )
    assert faults == []


@pytest.mark.parametrize("width", [390, 1440])
async def test_dialog_of_jobs_with_long_arguments_is_not_cut(
    width: int, open_page: Open, world: World
) -> None:
    await world.jobs(
        3,
        "browser.mail",
        status="failed",
        ended=-MINUTE,
        error_message="ValueError: no",
        task_data={"args": ["x" * 200], "kwargs": {}},
    )
    await count_errors(world.pool)
    page = await open_page("/errors", viewport={"width": width, "height": 844})
    await page.get_by_role("button", name="Retry…").first.click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.locator("li.clip")).to_have_count(3)
    assert await dialog.evaluate("part => part.scrollWidth <= part.clientWidth")
