"""Journeys of people who act: each change is made in the browser and seen in the database.

Every journey is made with a mouse, with the keyboard alone below a path, and on a phone without JavaScript.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from pg_scheduler import JobStatus, Scheduler, current_job
from pg_scheduler.triggers import Cron
from tests.browser.conftest import Open
from tests.browser.person import WAYS, Person, job_link, navigate
from tests.browser.shop import Shop, mail_customer
from tests.browser.site import Site
from tests.browser.test_accessibility import violations
from tests.browser.test_reading import heading
from tests.support.patience import PATIENCE
from tests.support.world import HOUR


async def reload_until(page: Page, selector: str, text: str | re.Pattern[str]) -> None:
    """Reload the page until an element contains the text."""
    async with asyncio.timeout(PATIENCE):
        while await page.locator(selector).filter(has_text=text).count() == 0:
            await page.reload()


@pytest_asyncio.fixture(loop_scope="session")
async def other_node(pool: asyncpg.Pool) -> AsyncIterator[Site]:
    """The dashboard of another node on the same database."""
    site = Site(Scheduler(pool))
    await site.start()
    yield site
    await site.stop()


@WAYS
async def test_person_learns_why_a_job_waits_and_makes_it_run(person: Person, scheduler: Scheduler) -> None:
    await scheduler.tasks.pause("browser.mail", note="the provider is down")
    await scheduler.start()
    job_id = await scheduler.enqueue(mail_customer, args=("grace",), job_id="mail-grace")
    page = await person.open("/jobs?q=status:due")
    await person.press(job_link(page, job_id))
    await expect(page.locator(".cause")).to_contain_text("TASK-PAUSED")
    await expect(page.locator(".cause")).to_contain_text("the provider is down")
    await navigate(page, "Tasks", person.press)
    await person.press(page.get_by_role("link", name="browser.mail"))
    await person.press(page.get_by_role("button", name="Resume", exact=True))
    await expect(page.locator("#state")).not_to_contain_text("Paused")
    await scheduler.get_job_result(job_id, timeout=PATIENCE)
    await person.press(page.get_by_role("link", name="Its jobs"))
    await person.press(job_link(page, job_id))
    await expect(page.locator(".status").first).to_have_text("completed")


@WAYS
async def test_failed_job_is_retried(person: Person, shop: Shop) -> None:
    page = await person.open(f"/job?id={shop.failed}")
    await person.press(page.get_by_role("button", name="Retry"))
    await expect(page.get_by_role("status").first).not_to_be_empty()
    await reload_until(page, "#attempts", re.compile("attempt 2", re.IGNORECASE))


@WAYS
async def test_schedule_paused_on_one_node_is_paused_on_another(
    person: Person, shop: Shop, other_node: Site
) -> None:
    page = await person.open("/schedules")
    await person.press(page.get_by_role("link", name=shop.schedule, exact=True))
    await person.press(page.get_by_role("button", name="Pause…"))
    await person.fill(page.get_by_label("Note"), "until the audit is over")
    await person.press(page.get_by_role("button", name="Pause", exact=True))
    await expect(page.locator(".status.paused").first).to_be_visible()
    elsewhere = await page.context.new_page()
    await elsewhere.goto(f"{other_node.url}/schedule?id={shop.schedule}")
    await expect(elsewhere.get_by_text("until the audit is over").first).to_be_visible()
    schedule = await other_node.scheduler.schedules.get(shop.schedule)
    assert schedule is not None
    assert schedule.paused_at is not None
    await person.press(elsewhere.get_by_role("button", name="Resume…"))
    await person.press(elsewhere.get_by_role("button", name="Resume", exact=True))
    await expect(elsewhere.get_by_role("status").first).not_to_be_empty()
    await elsewhere.close()  # its stream would break off when the other node stops
    await page.reload()
    await expect(page.locator(".status.active")).to_be_visible()


@WAYS
async def test_preview_shows_the_fire_time_that_a_clock_change_moves(
    person: Person, shop: Shop, scheduler: Scheduler
) -> None:
    # On one of these Sundays, 02:30 does not exist in Berlin.
    await scheduler.schedules.add(
        mail_customer, Cron("30 2 * 3 SUN", timezone="Europe/Berlin"), args=("all",), schedule_id="spring"
    )
    page = await person.open("/schedules")
    await person.press(page.get_by_role("link", name="spring", exact=True))
    fires = page.locator("#next .fires li")
    await expect(fires.first).to_be_visible()
    changed = fires.filter(has=page.locator(".warn-text"))
    await expect(changed.first).to_contain_text("02:30")
    assert await changed.count() < await fires.count()


@WAYS
async def test_person_watches_progress_and_opens_the_result(person: Person, scheduler: Scheduler) -> None:
    is_done = asyncio.Event()

    async def import_rows() -> dict[str, int]:
        current_job().progress(1, 4, "row 1 of 4")
        await is_done.wait()
        return {"rows": 4}

    scheduler.register(import_rows, name="browser.import")
    await scheduler.start()
    job_id = await scheduler.enqueue("browser.import", job_id="import-1", keep_result=HOUR)
    page = await person.open("/jobs?q=status:running")
    await reload_until(page, "tbody tr", "browser.import")
    await person.press(job_link(page, job_id))
    await expect(page.get_by_text("row 1 of 4")).to_be_visible()
    is_done.set()
    await scheduler.get_job_result(job_id, timeout=PATIENCE)
    await person.press(page.get_by_role("link", name="reload"))
    await expect(page.locator(".status").first).to_have_text("completed")
    await expect(page.locator("#result")).to_contain_text('"rows": 4')


@WAYS
async def test_drained_worker_starts_no_job_until_it_is_resumed(
    person: Person, shop: Shop, scheduler: Scheduler, site: Site
) -> None:
    page = await person.open("/workers")
    await person.press(page.get_by_role("link", name=str(scheduler.worker_id)))
    await person.press(page.get_by_role("button", name="Drain…"))
    await expect(page.get_by_text("claims no more, until it is resumed")).to_be_visible()
    await person.press(page.get_by_role("button", name="Drain", exact=True))
    await expect(page.get_by_role("status").first).not_to_be_empty()
    await reload_until(page, ".status", "draining")
    job_id = await scheduler.enqueue(mail_customer, args=("late",), job_id="mail-late")
    await page.goto(f"{site.url}/job?id={job_id}")
    await expect(page.locator(".cause")).to_contain_text("DRAINING")
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert job.status is JobStatus.PENDING
    await page.goto(f"{site.url}/worker?id={scheduler.worker_id}")
    await person.press(page.get_by_role("button", name="Resume", exact=True))
    await scheduler.get_job_result(job_id, timeout=PATIENCE)


@WAYS
async def test_schedule_is_previewed_added_and_edited(
    person: Person, shop: Shop, scheduler: Scheduler
) -> None:
    page = await person.open("/schedules")
    await person.press(page.get_by_role("link", name="Add schedule"))
    await person.choose(page.get_by_label("Task"), "browser.mail")
    await person.fill(page.get_by_label("Id (empty"), "weekly")
    await person.fill(page.get_by_label("Arguments by name"), '{"address": "all"}')
    await person.fill(page.get_by_label("Cron expression"), "0 9 * * MON")
    await person.fill(page.get_by_label("Time zone"), "Europe/Berlin")
    await person.press(page.get_by_role("button", name="Preview"))
    await expect(page.locator("#shown .fires li").first).to_contain_text("09:00")
    assert await scheduler.schedules.get("weekly") is None
    await person.press(page.get_by_role("button", name="Add schedule"))
    await expect(page.locator("main")).to_contain_text("weekly")
    await person.press(page.get_by_role("link", name="Edit", exact=True))
    await person.fill(page.get_by_label("Cron expression"), "0 10 * * MON")
    await person.press(page.get_by_role("button", name="Save"))
    await expect(heading(page)).to_have_text("weekly")
    await expect(page.locator("#next")).to_contain_text("10:00")
    schedule = await scheduler.schedules.get("weekly")
    assert schedule is not None
    assert "10:00" in schedule.described


@pytest.mark.parametrize("has_script", [True, False])
async def test_parameters_of_a_task_are_fields(
    has_script: bool, open_page: Open, shop: Shop, scheduler: Scheduler
) -> None:
    page = await open_page("/schedule-form", java_script_enabled=has_script)
    await page.get_by_label("Cron expression").fill("0 9 * * MON")
    await page.get_by_label("Task").select_option("browser.mail")
    if not has_script:
        await page.get_by_role("button", name="Preview").click()
    address = page.get_by_label("address", exact=True)
    await expect(address).to_be_visible()
    await expect(page.get_by_label("customer")).to_have_count(0)
    await address.fill("007")
    await page.get_by_label("Id (empty").fill("weekly")
    if has_script:
        await expect(page.locator("#shown .fires li").first).to_be_visible()
        await expect(address).to_have_value("007")
        assert await violations(page) == []
    await page.get_by_role("button", name="Add schedule").click()
    await expect(heading(page)).to_have_text("weekly")
    schedule = await scheduler.schedules.get("weekly")
    assert schedule is not None
    assert schedule.kwargs == {"address": "007"}


async def test_form_previews_while_it_is_filled_in_and_violates_no_rule(open_page: Open, shop: Shop) -> None:
    page = await open_page("/schedule-form")
    shown = page.locator("#shown")
    await page.get_by_label("Cron expression").fill("0 9 * * MON")
    await page.get_by_label("Time zone").fill("Berlin")
    await expect(shown).to_contain_text("such as 'Europe/Berlin'")
    await page.get_by_label("Time zone").fill("Europe/Berlin")
    await expect(shown.locator(".fires li").first).to_contain_text("09:00")
    await expect(page.get_by_label("Every", exact=True).first).to_be_hidden()
    await page.get_by_text("Interval", exact=True).click()
    await expect(page.get_by_label("Cron expression")).to_be_hidden()
    await page.locator("#interval").fill("1h30m")
    await expect(shown).to_contain_text("Every 1 hour 30 minutes")
    assert await violations(page) == []
