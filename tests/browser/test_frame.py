"""The frame of every page: menu, dialogs, suggestions, messages, keys and the tab."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from playwright.async_api import expect

from pg_scheduler import Scheduler
from pg_scheduler.triggers import Cron
from tests.browser.conftest import Open
from tests.browser.person import PHONE, navigate
from tests.browser.shop import Shop, block_charge
from tests.browser.site import Site
from tests.browser.test_accessibility import violations
from tests.browser.test_reading import heading
from tests.support.inside import worker_of
from tests.support.world import HOUR, World


@pytest.mark.parametrize("has_script", [True, False])
async def test_menu_of_a_phone_leads_to_the_lists(has_script: bool, open_page: Open, shop: Shop) -> None:
    page = await open_page("/", **PHONE, java_script_enabled=has_script)
    link = page.get_by_role("navigation").get_by_role("link", name="Workers", exact=True)
    await expect(link).to_be_hidden()
    await page.get_by_role("button", name="Menu").click()
    await expect(link).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(link).to_be_hidden()
    await navigate(page, "Workers")
    await expect(heading(page)).to_have_text("Workers")


@pytest.mark.parametrize(
    "path", ["/jobs", "/schedule?id=nightly", "/task?id=browser.mail", "/job?id=charge-7"]
)
async def test_menus_of_a_phone_stay_on_its_screen(path: str, open_page: Open, shop: Shop) -> None:
    page = await open_page(path, **PHONE)
    menus = page.locator(".menu:visible")
    assert await menus.count() > 0
    for number in range(await menus.count()):
        menu = menus.nth(number)
        await menu.locator("> button").click()
        box = await menu.locator("> .items").bounding_box()
        assert box is not None
        assert box["x"] >= 0, await menu.inner_text()
        assert box["x"] + box["width"] <= 390, await menu.inner_text()
        await menu.locator("> button").click()
        await expect(menu.locator("> .items")).to_be_hidden()


@pytest.mark.parametrize("has_script", [True, False])
async def test_menu_closes_by_escape_a_click_elsewhere_and_another_menu(
    has_script: bool, open_page: Open, shop: Shop
) -> None:
    page = await open_page("/jobs", java_script_enabled=has_script)
    export, columns = (page.get_by_role("button", name=name, exact=True) for name in ("Export", "Columns"))
    shown = page.locator(".items:popover-open")
    await export.click()
    await expect(shown).to_contain_text("JSON lines")
    box, place = await export.bounding_box(), await shown.bounding_box()
    assert box is not None
    assert place is not None
    assert 0 <= place["y"] - (box["y"] + box["height"]) < 8, "below its button"
    await page.keyboard.press("Escape")
    await expect(shown).to_have_count(0)
    await export.click()
    await heading(page).click()
    await expect(shown).to_have_count(0)
    await export.click()
    await columns.click()
    await expect(shown).to_have_count(1)
    await expect(shown).to_contain_text("Show")


async def test_focus_returns_from_a_question_of_a_menu_to_the_button_of_the_menu(
    open_page: Open, shop: Shop
) -> None:
    page = await open_page("/errors")
    menu = page.get_by_role("button", name="Actions of ConnectionError")
    await menu.click()
    await page.get_by_role("button", name="Cancel retries…").click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(menu).to_be_focused()


async def test_menu_is_within_the_screen_in_a_browser_without_anchors(open_page: Open, shop: Shop) -> None:
    page = await open_page("/jobs")
    await page.evaluate(
        """() => {
            const [sheet] = document.styleSheets;
            const isOfAnchors = (rule) => rule.conditionText?.includes("position-area");
            sheet.deleteRule([...sheet.cssRules].findIndex(isOfAnchors));
        }"""
    )
    await page.get_by_role("button", name="Export").click()
    menu = page.locator(".items:popover-open")
    await expect(menu).to_be_in_viewport(ratio=1)
    async with page.expect_download():
        await menu.get_by_role("link", name="CSV").click()
    await page.keyboard.press("Escape")
    await expect(menu).to_have_count(0)


async def test_menu_is_below_its_button(open_page: Open, shop: Shop) -> None:
    page = await open_page("/jobs")
    export, shown = page.get_by_role("button", name="Export"), page.locator(".items:popover-open")
    await export.click()
    box, place = await export.bounding_box(), await shown.bounding_box()
    assert box is not None
    assert place is not None
    assert 0 <= place["y"] - (box["y"] + box["height"]) < 8
    assert abs(place["x"] + place["width"] - box["x"] - box["width"]) < 2


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("path", ["/schedule?id=nightly", "/task?id=browser.mail"])
async def test_open_menus_do_not_widen_the_page(path: str, width: int, open_page: Open, shop: Shop) -> None:
    page = await open_page(path, viewport={"width": width, "height": 900})
    await page.locator(".head .menu > button").last.click()
    await expect(page.locator(".head .items").last).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [700, 800, 900])
async def test_names_of_tasks_stay_within_their_column(width: int, open_page: Open, shop: Shop) -> None:
    page = await open_page("/tasks", viewport={"width": width, "height": 900})
    await expect(page.get_by_role("link", name="browser.charge")).to_be_visible()
    assert await page.locator(".tasks .main").evaluate_all(
        """cells => cells.every(cell => {
            const link = cell.querySelector("a").getBoundingClientRect(), box = cell.getBoundingClientRect();
            return box.width >= 120 && link.right <= box.right;
        })"""
    )
    wide = page.locator(".wide:has(.tasks)")
    assert await wide.evaluate("each => each.scrollWidth <= each.clientWidth")


async def test_lists_of_a_phone_stay_within_their_cards(open_page: Open, shop: Shop) -> None:
    page = await open_page(f"/schedule?id={shop.schedule}", **PHONE)
    await expect(page.locator(".card .list").first).to_be_visible()
    outside = await page.locator(".card .list").evaluate_all(
        """lists => lists.filter(each => {
            const [list, card] = [each, each.closest(".card")].map(one => one.getBoundingClientRect());
            return list.left < card.left || list.right > card.right;
        }).length"""
    )
    assert outside == 0


async def test_phone_shows_the_triggers_of_schedules(open_page: Open, shop: Shop) -> None:
    page = await open_page("/schedules", **PHONE)
    trigger = page.locator(f'[data-key="{shop.schedule}"] .trigger > div')
    await expect(trigger).to_be_visible()
    box = await trigger.bounding_box()
    assert box is not None
    assert box["width"] > 100


async def test_phone_shows_what_blocks_a_job(open_page: Open, shop: Shop, world: World) -> None:
    blocked = await block_charge(world)
    page = await open_page("/jobs?q=status:blocked", **PHONE)
    row = page.locator(f'[data-key="{blocked}"]')
    await expect(row.get_by_role("link", name="browser.bank")).to_be_visible()
    await row.get_by_role("link", name="browser.bank").click()
    await expect(heading(page)).to_have_text("browser.bank")


async def test_phone_shows_the_release_of_a_worker_and_drains_it(
    open_page: Open, shop: Shop, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    await pool.execute("""UPDATE scheduler_workers SET metadata = '{"release": "2026.11.2"}'""")
    page = await open_page("/workers", **PHONE)
    row = page.locator(f'[data-key="{scheduler.worker_id}"]')
    await expect(row.get_by_text("2026.11.2")).to_be_visible()
    await row.get_by_role("button", name="Drain…").click()
    await expect(page.get_by_role("dialog")).to_contain_text("claims no more, until it is resumed")


async def test_zone_and_theme_are_in_the_menu_of_the_account_on_phones(open_page: Open, shop: Shop) -> None:
    page = await open_page("/schedules", timezone_id="America/New_York", **PHONE)
    zone, theme = page.get_by_label("Show times in"), page.get_by_role("button", name="Theme")
    await expect(zone).to_be_hidden()
    await page.get_by_role("button", name="ada").click()
    await zone.select_option("America/New_York")
    await theme.click()
    assert await violations(page) == []
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
    await page.set_viewport_size({"width": 1280, "height": 800})
    await page.keyboard.press("Escape")
    await expect(zone).to_be_visible()
    await expect(theme).to_be_visible()


async def test_row_of_a_schedule_opens_it_by_a_click_anywhere(open_page: Open, shop: Shop) -> None:
    page = await open_page("/schedules")
    await page.locator(f'[data-key="{shop.schedule}"] .trigger').click(force=True)
    await expect(page).to_have_url(re.compile(f"/schedule\\?id={shop.schedule}$"))


async def test_message_covers_no_part_of_the_side_bar(open_page: Open, shop: Shop) -> None:
    page = await open_page(f"/schedule-pause?id={shop.schedule}")
    await page.get_by_role("button", name="Pause").click()
    message = await page.locator("[data-toast]").bounding_box()
    release = await page.locator(".release").bounding_box()
    assert message is not None
    assert release is not None
    assert message["x"] >= release["x"] + release["width"]


async def test_zone_that_was_chosen_is_that_of_every_page_and_form(
    open_page: Open, shop: Shop, site: Site
) -> None:
    page = await open_page(f"/schedule?id={shop.schedule}", timezone_id="UTC")
    zone = page.get_by_label("Show times in")
    assert await zone.locator("option").all_inner_texts() == ["UTC", "Europe/Berlin"], "that of the trigger"
    await zone.select_option("Europe/Berlin")
    for path in ("/jobs", "/schedules", f"/schedule-pause?id={shop.schedule}"):
        await page.goto(site.url + path)
        await expect(zone).to_have_value("Europe/Berlin")
    await expect(page.locator("input[name=zone]")).to_have_value("Europe/Berlin")


LEFT_IN_UTC = """() => {
    const main = document.querySelector("main"), texts = [];
    const walker = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const { parentElement, nodeValue } = walker.currentNode;
        if (parentElement.closest("pre, code, option") === null) texts.push(nodeValue);
    }
    for (const each of main.querySelectorAll("[title], [aria-label]")) texts.push(each.title, each.ariaLabel);
    return texts.filter((text) => /\\d\\d:\\d\\d UTC/.test(text ?? ""));
}"""


async def test_all_instants_of_a_page_are_in_the_zone_that_was_chosen(
    open_page: Open, shop: Shop, scheduler: Scheduler, site: Site, world: World
) -> None:
    until = datetime(2099, 7, 1, 12, tzinfo=UTC)
    await scheduler.tasks.pause("browser.mail", until=until, note="the provider is down")
    # The worker claims the job before it reads the pause, unless it reads it here.
    await worker_of(scheduler).pauses.run_once()
    job_id = await scheduler.enqueue("browser.mail", args=("eve",), job_id="mail-eve")
    await scheduler.schedules.pause(shop.schedule, until=until)
    await scheduler.schedules.add("browser.mail", Cron("30 12 * * *"), args=("all",), schedule_id="noon")
    await world.job("fired", "browser.mail", status="failed", error_message="late at 2026-01-01 00:00:00 UTC")
    page = await open_page("/about", timezone_id="America/New_York")
    zone = page.get_by_label("Show times in")
    await zone.select_option("America/New_York")
    cause = page.locator("#explanation")
    for path in (
        f"/job?id={job_id}", "/audit", "/task?id=browser.mail", "/", "/doctor", "/schedule?id=noon",
        f"/schedule?id={shop.schedule}", "/schedules", "/tasks", "/workers", "/errors", "/chart?id=outcomes",
    ):  # fmt: skip
        await page.goto(site.url + path)
        await expect(zone).to_have_value("America/New_York")
        assert await page.evaluate(LEFT_IN_UTC) == [], path
    calendar = page.get_by_role("navigation").get_by_role("link", name="Calendar", exact=True)
    await expect(calendar).to_have_attribute("href", "/calendar?zone=America%2FNew_York")
    await page.goto(f"{site.url}/schedule?id=noon")
    fire = page.locator("#next .fires time[data-local]").first
    await expect(fire).to_have_text(re.compile(r"^\w{3} \d{4}-\d\d-\d\d 0[78]:30:00$"))
    await page.goto(f"{site.url}/schedule?id={shop.schedule}")
    await expect(fire).to_have_text(re.compile(r"^\w{3} \d{4}-\d\d-\d\d (19|20|21):30:00$"))
    await expect(fire).to_have_attribute("title", re.compile(" 02:30:00 CES?T$"))
    await page.goto(f"{site.url}/job?id={job_id}")
    await expect(cause).to_contain_text("until 2099-07-01 08:00:00")
    await scheduler.tasks.pause("browser.mail", until=until, note="an update keeps the zone")
    await expect(cause).to_contain_text("an update keeps the zone")
    await expect(cause).to_contain_text("until 2099-07-01 08:00:00")
    await zone.select_option("UTC")
    await expect(cause).to_contain_text("until 2099-07-01 12:00:00 UTC")
    await expect(calendar).to_have_attribute("href", "/calendar")
    await page.goto(f"{site.url}/job?id=fired")
    await zone.select_option("America/New_York")
    await expect(cause.locator(".error")).to_contain_text("2026-01-01 00:00:00 UTC")


async def test_zone_menu_has_the_same_width_on_every_page(open_page: Open, shop: Shop, site: Site) -> None:
    page = await open_page("/about", timezone_id="America/Argentina/ComodRivadavia")
    widths = set()
    for path in ("/about", "/jobs", f"/schedule?id={shop.schedule}"):
        await page.goto(site.url + path)
        box = await page.get_by_label("Show times in").bounding_box()
        assert box is not None
        widths.add(box["width"])
    assert len(widths) == 1


async def test_question_is_a_dialog_that_can_be_closed_or_answered(
    open_page: Open, shop: Shop, scheduler: Scheduler
) -> None:
    page = await open_page(f"/job?id={shop.waiting}")
    delete = page.locator("main").get_by_role("button", name="Delete…")
    dialog = page.get_by_role("dialog")
    await delete.click()
    await expect(dialog).to_have_accessible_name("Delete")
    assert await violations(page) == []
    await dialog.get_by_role("link", name="Back").click()
    await expect(dialog).to_have_count(0)
    await delete.click()
    await expect(dialog).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    assert await scheduler.get_job(shop.waiting) is not None
    await delete.click()
    await dialog.get_by_role("button", name="Delete").click()
    await expect(page.locator("#message")).to_have_text("1 job deleted")
    assert await scheduler.get_job(shop.waiting) is None


@pytest.mark.parametrize("has_script", [True, False])
async def test_action_is_undone_beside_its_message(
    has_script: bool, open_page: Open, shop: Shop, scheduler: Scheduler
) -> None:
    page = await open_page(f"/schedule-pause?id={shop.schedule}", java_script_enabled=has_script)
    await page.get_by_role("button", name="Pause").click()
    await expect(page.locator("#message")).to_have_text("the schedule is paused")
    schedule = await scheduler.schedules.get(shop.schedule)
    assert schedule is not None
    assert schedule.paused_at is not None
    assert await violations(page) == [] if has_script else True
    await page.get_by_role("button", name="Undo").click()
    await expect(page.locator("#message")).to_have_text("the schedule is resumed")
    schedule = await scheduler.schedules.get(shop.schedule)
    assert schedule is not None
    assert schedule.paused_at is None


@pytest.mark.parametrize("has_script", [True, False])
async def test_user_chooses_dense_rows(has_script: bool, open_page: Open, shop: Shop, site: Site) -> None:
    page = await open_page("/jobs?q=name:browser.*", java_script_enabled=has_script)
    row = page.locator("tbody tr").first

    async def height() -> float:
        box = await row.bounding_box()
        assert box is not None
        return box["height"]

    assert 50 <= await height() <= 52
    await page.get_by_role("button", name="ada").click()
    await page.get_by_role("button", name="Compact rows").click()
    await expect(page.locator("html")).to_have_attribute("data-density", "compact")
    assert page.url == f"{site.url}/jobs?q=name%3Abrowser.%2A"
    assert 42 <= await height() <= 44
    await page.goto(f"{site.url}/schedules")
    await expect(page.locator("html")).to_have_attribute("data-density", "compact")
    await page.get_by_role("button", name="ada").click()
    if has_script:
        assert await violations(page) == []
    await page.get_by_role("button", name="Normal rows").click()
    await expect(page.locator("html")).not_to_have_attribute("data-density", "compact")


async def test_toast_stays_while_somebody_reaches_it(open_page: Open, shop: Shop) -> None:
    page = await open_page(f"/schedule-pause?id={shop.schedule}")
    await page.clock.install()
    await page.get_by_role("button", name="Pause").click()
    undo = page.get_by_role("button", name="Undo")
    await undo.focus()
    await page.clock.fast_forward(20_000)
    await expect(undo).to_be_focused()
    await undo.blur()
    await page.clock.fast_forward(6000)
    await expect(undo).to_have_count(0)


async def test_pause_of_a_schedule_is_asked_in_a_dialog_and_ends_at_a_time(
    open_page: Open, shop: Shop, scheduler: Scheduler
) -> None:
    page = await open_page(f"/schedule?id={shop.schedule}")
    dialog = page.get_by_role("dialog")
    await page.get_by_role("button", name="Pause…").click()
    await expect(dialog).to_have_accessible_name(f"Pause {shop.schedule}")
    assert await violations(page) == []
    await dialog.get_by_role("link", name="Cancel").click()
    await expect(dialog).to_have_count(0)
    await page.get_by_role("button", name="Pause…").click()
    await dialog.get_by_label("Note").fill("moving")
    await dialog.get_by_label("Until").fill("2099-01-04T00:00:00")
    await dialog.get_by_role("radio", name="Catch up").check()
    await dialog.get_by_role("button", name="Preview").click()
    await expect(page.get_by_label("Note")).to_have_value("moving")
    await expect(page.get_by_text("100+ fire times before that")).to_be_visible()
    await page.get_by_role("button", name="Pause", exact=True).click()
    await expect(page.locator("#if-resumed")).to_contain_text("The pause ends")
    schedule = await scheduler.schedules.get(shop.schedule)
    assert schedule is not None
    assert schedule.paused_until == datetime(2099, 1, 4, tzinfo=UTC)
    assert schedule.keeps_fire_times


async def test_refusal_is_stated_in_a_dialog(
    open_page: Open, shop: Shop, pool: asyncpg.Pool, problems: list[str]
) -> None:
    page = await open_page(f"/job?id={shop.waiting}")
    await page.keyboard.press("p")
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = $1", shop.waiting)
    await page.locator("main").get_by_role("button", name="Delete…").click()
    await expect(page.get_by_role("dialog")).to_contain_text("There are no such jobs")
    assert page.url.endswith(shop.waiting)
    assert "404" in problems.pop()


async def test_keys_are_listed_in_a_dialog(open_page: Open, shop: Shop) -> None:
    page = await open_page("/jobs")
    await page.keyboard.press("?")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_have_accessible_name("Keys")
    assert await violations(page) == []
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    assert page.url.endswith("/jobs")


async def test_field_of_the_top_bar_suggests_and_opens(open_page: Open, shop: Shop, site: Site) -> None:
    page = await open_page("/about")
    field = page.get_by_role("combobox", name="Find")
    await page.keyboard.press("/")
    await expect(field).to_be_focused()
    await page.keyboard.type("night")
    choices = page.locator("#found [role=option]")
    await expect(choices).to_have_count(1)
    assert await violations(page) == []
    await page.keyboard.press("Escape")
    await expect(page.locator("#found")).to_be_hidden()
    await page.keyboard.press("End")
    await page.keyboard.type("l")
    await expect(page.locator("#found")).to_be_visible()
    await expect(choices).to_have_text(re.compile("nightly"))
    await page.keyboard.press("ArrowDown")
    await expect(choices).to_have_attribute("aria-selected", "true")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(f"{site.url}/schedule?id=nightly")
    await field.fill("> theme")
    await choices.click()
    assert await page.evaluate("document.documentElement.dataset.theme") is not None
    await field.fill("browser.mail")
    await expect(choices.first).to_be_visible()
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(f"{site.url}/jobs?q=browser.mail")


async def test_action_of_the_palette_is_sent(open_page: Open, shop: Shop, scheduler: Scheduler) -> None:
    page = await open_page("/about")
    await page.get_by_role("combobox", name="Find").fill("> run night")
    await expect(page.locator("#found [role=option]")).to_have_count(1)
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await expect(page.locator("#message")).to_contain_text("one job of the schedule was enqueued")
    schedule = await scheduler.schedules.get(shop.schedule)
    assert schedule is not None
    assert schedule.last_job_id is not None


async def test_palette_opens_from_every_field_with_what_was_opened_last(
    open_page: Open, shop: Shop, site: Site
) -> None:
    page = await open_page(f"/job?id={shop.failed}")
    await expect(page.locator("kbd", has_text="Ctrl K")).to_be_visible()
    for address in (f"/schedule?id={shop.schedule}", "/jobs"):
        await page.goto(site.url + address)
    await page.locator("#q").click()
    await page.keyboard.press("Control+k")
    field, choices = page.get_by_role("combobox", name="Find"), page.locator("#found [role=option]")
    await expect(field).to_be_focused()
    await expect(choices).to_have_text(["nightlyschedule", re.compile("charge-7job · browser.charge")])
    assert await violations(page) == []
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(f"{site.url}/job?id={shop.failed}")
    await page.keyboard.press("Control+k")
    await page.keyboard.type("browser.chrage")
    await expect(choices.first).to_have_text("browser.chargetask")
    await field.fill("conectionerror")
    await expect(choices.first).to_contain_text("ConnectionError: the bank does not answer customer #")


@pytest.mark.parametrize("has_script", [True, False])
async def test_palette_leads_to_the_form_of_a_pause(
    has_script: bool, open_page: Open, shop: Shop, scheduler: Scheduler
) -> None:
    page = await open_page("/find?q=> pause task browser.mail", java_script_enabled=has_script)
    await page.get_by_role("link", name="Pause task browser.mail…").click()
    await page.get_by_label("Note").fill("the provider is down")
    assert [task.name for task in await scheduler.tasks.list() if task.paused_at] == []
    await page.get_by_role("button", name="Pause", exact=True).click()
    await expect(page.locator("#state")).to_contain_text("the provider is down")


async def test_palette_asks_in_a_dialog_before_a_worker_is_drained(
    open_page: Open, shop: Shop, scheduler: Scheduler
) -> None:
    page = await open_page("/about")
    await page.get_by_role("combobox", name="Find").fill(f"> drain {scheduler.worker_id}")
    await page.locator("#found [role=option]").click()
    await expect(page.get_by_role("dialog")).to_contain_text("claims no more, until it is resumed")
    assert page.url.endswith("/about")


async def test_actions_work_without_a_script(open_page: Open, shop: Shop) -> None:
    page = await open_page("/find?q=%3E+run+night", java_script_enabled=False)
    await page.get_by_role("button", name="Run schedule nightly").click()
    await expect(page.locator("#message")).to_contain_text("one job of the schedule was enqueued")


@pytest.mark.parametrize("has_script", [True, False])
async def test_views_of_the_team_stand_with_saved_ones(
    has_script: bool, open_page: Open, scheduler: Scheduler, shop: Shop
) -> None:
    site = Site(scheduler, views={"Failed": "/jobs?q=status:failed", "Yesterday": "/audit?since=1d"})
    await site.start()
    page = await open_page("/about", java_script_enabled=has_script)
    await page.goto(f"{site.url}/jobs?q=browser")
    views = page.locator("#views")
    await views.get_by_role("button", name="Views").click()
    save = views.get_by_role("button", name="Save this view")
    if has_script:
        await save.click()
        await expect(views.get_by_role("link")).to_have_text(["Failed", "Yesterday", "browser"])
        assert await violations(page) == []
    else:
        await expect(save).to_be_hidden()
    await views.get_by_role("link", name="Failed").click()
    await expect(page).to_have_url(f"{site.url}/jobs?q=status:failed")
    await page.goto("about:blank")
    await site.stop()


async def test_relative_times_go_on(open_page: Open, shop: Shop) -> None:
    page = await open_page("/about")
    await page.clock.install()
    await page.goto(page.url)
    await page.evaluate(
        """at => document.querySelector("main").append(
            Object.assign(document.createElement("time"), { id: "probe", dateTime: at, title: "UTC" }))""",
        (datetime.now(UTC) - timedelta(seconds=30)).isoformat(),
    )
    probe = page.locator("#probe")
    await probe.evaluate("each => { each.dataset.ago = ''; }")
    await page.clock.fast_forward(1000)
    await expect(probe).to_have_text(re.compile(r"^3\d s ago$"))
    await page.clock.fast_forward(600_000)
    await expect(probe).to_have_text(re.compile("^1[01] min ago$"))


async def test_findings_are_counted_in_the_title_and_mark_the_icon(open_page: Open, world: World) -> None:
    await world.job("late", "browser.unknown", due=-HOUR)
    page = await open_page("/about")
    count = page.locator("#pages [data-findings]")
    await expect(count).to_be_visible()
    assert (await page.title()).startswith(f"({await count.inner_text()}) About")
    icon = page.locator("link[rel=icon]")
    assert re.search("icon-bad.svg$", str(await icon.get_attribute("href")))
    await expect(page.locator(".notice")).to_contain_text("No worker is alive")
