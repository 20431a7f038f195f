"""Updates of pages in use: each element keeps its row, its focus and what a person did to it."""

from __future__ import annotations

from playwright.async_api import Locator, Page, expect

from pg_scheduler import Scheduler
from tests.browser.conftest import Open
from tests.browser.shop import Shop, mail_customer
from tests.browser.site import Site, until
from tests.browser.test_accessibility import violations
from tests.support.world import HOUR, World


def row_of(page: Page, key: str) -> Locator:
    return page.locator(f'[data-key="{key}"]')


async def test_focus_stays_with_its_job_when_others_come_before_it(
    open_page: Open, shop: Shop, scheduler: Scheduler
) -> None:
    page = await open_page("/jobs?q=name:browser.*&sort=job")
    link = row_of(page, shop.waiting).get_by_role("link").first
    await link.focus()
    for job_id in ("00-first", "00-second"):
        await scheduler.enqueue(mail_customer, delay=HOUR, args=("eve",), job_id=job_id)
    await expect(page.locator("#news")).to_have_text("2 new, show them")
    await page.keyboard.press("n")
    await expect(row_of(page, "00-second")).to_be_visible()
    await expect(link).to_be_focused()
    await page.keyboard.press("x")
    await expect(row_of(page, shop.waiting).get_by_role("checkbox")).to_be_checked()
    await expect(page.get_by_role("checkbox", checked=True).and_(page.locator("[name=row]"))).to_have_count(1)


async def test_focus_goes_to_no_other_job_when_its_own_disappears(
    open_page: Open, shop: Shop, scheduler: Scheduler
) -> None:
    page = await open_page("/jobs?q=status:pending name:browser.mail&sort=job")
    await row_of(page, shop.waiting).get_by_role("link").first.focus()
    await scheduler.cancel_job(shop.waiting)
    await expect(page.locator("#news")).to_have_text("1 gone, update the list")
    await page.keyboard.press("n")
    await expect(row_of(page, shop.waiting)).to_have_count(0)
    await expect(page.locator("tbody :focus")).to_have_count(0)


async def test_opened_error_stays_open_and_no_other_one_opens(
    open_page: Open, shop: Shop, world: World
) -> None:
    page = await open_page("/errors")
    row = page.locator("tbody tr", has_text="the bank does not answer")
    await row.get_by_role("button", name="Actions of").click()
    error = "UnicodeDecodeError: not an address"
    await world.job("newest", "browser.mail", status="failed", error_message=error)
    await expect(page.locator("#news")).to_have_text("1 new, show them")
    await page.keyboard.press("n")
    await expect(page.locator("tbody tr").first).to_contain_text("UnicodeDecodeError")
    await expect(page.locator("tbody :popover-open")).to_have_count(1)
    await expect(row.locator(":popover-open")).to_be_visible()


async def test_list_under_the_pointer_stands_still_and_collects_new_rows(
    open_page: Open, shop: Shop, scheduler: Scheduler
) -> None:
    page = await open_page("/jobs?q=name:browser.mail&sort=job")
    row, news = row_of(page, shop.waiting), page.locator("#news")
    await expect(news).to_be_hidden()
    await row.hover()
    before = await row.bounding_box()
    for job_id in ("00-first", "00-second"):
        await scheduler.enqueue(mail_customer, delay=HOUR, args=("eve",), job_id=job_id)
    await expect(news).to_have_text("2 new, show them")
    assert await violations(page) == []
    await scheduler.cancel_job(shop.waiting)
    await expect(row).to_contain_text("cancelled")
    assert await row.bounding_box() == before
    await expect(row_of(page, "00-first")).to_have_count(0)
    await news.click()
    await expect(row_of(page, "00-first")).to_be_visible()
    await expect(row_of(page, "00-first")).to_have_class("new")
    await expect(news).to_be_hidden()


async def test_list_goes_on_once_it_is_not_read_any_more(
    open_page: Open, shop: Shop, scheduler: Scheduler
) -> None:
    page = await open_page("/jobs?q=name:browser.mail&sort=job")
    await row_of(page, shop.waiting).hover()
    await scheduler.enqueue(mail_customer, delay=HOUR, args=("eve",), job_id="00-first")
    await expect(page.locator("#news")).to_have_text("1 new, show them")
    await page.locator("h1").hover()
    await expect(row_of(page, "00-first")).to_be_visible()
    await expect(page.locator("#news")).to_be_hidden()


async def test_list_whose_beginning_is_above_the_screen_stands_still(
    open_page: Open, shop: Shop, scheduler: Scheduler
) -> None:
    for number in range(30):
        await scheduler.enqueue(mail_customer, delay=HOUR, args=(number,), job_id=f"mail-{number:02}")
    page = await open_page("/jobs?q=name:browser.mail&sort=job", viewport={"width": 390, "height": 844})
    await page.evaluate("window.scrollTo(0, 900)")
    await scheduler.enqueue(mail_customer, delay=HOUR, args=("eve",), job_id="00-first")
    news = page.locator("#news")
    await expect(news).to_have_text("1 new, show them")
    await news.click()
    await expect(row_of(page, "00-first")).to_be_in_viewport()


async def test_list_that_is_read_is_not_replaced_when_all_of_its_rows_are_gone(
    open_page: Open, shop: Shop, scheduler: Scheduler
) -> None:
    page = await open_page("/jobs?q=status:pending name:browser.mail")
    row = row_of(page, shop.waiting)
    await row.hover()
    await scheduler.cancel_job(shop.waiting)
    await expect(page.locator("#news")).to_have_text("1 gone, update the list")
    await expect(row).to_be_visible()
    await page.keyboard.press("n")
    await expect(row).to_have_count(0)
    await expect(page.locator("#region")).to_contain_text("No job matches")


async def test_selected_rows_stay_until_the_selection_ends(
    open_page: Open, shop: Shop, scheduler: Scheduler
) -> None:
    page = await open_page("/jobs?q=status:pending name:browser.mail")
    summary = page.locator("#summary")
    before = await summary.inner_text()
    row, selected = row_of(page, shop.waiting), page.locator("[data-selected]")
    await row.get_by_role("checkbox").check()
    await scheduler.cancel_job(shop.waiting)
    await expect(summary).not_to_have_text(before)
    await expect(row.get_by_role("checkbox")).to_be_checked()
    await expect(selected).to_have_text("1 selected")
    note = await selected.evaluate("each => getComputedStyle(each, '::after').content")
    assert "updates wait" in note
    await page.get_by_role("button", name="Clear the selection").click()
    await expect(row).to_have_count(0)


async def test_checked_boxes_and_filled_fields_are_kept_while_rows_arrive(
    open_page: Open, shop: Shop, scheduler: Scheduler
) -> None:
    page = await open_page("/jobs?q=name:browser.mail&sort=job")
    await page.evaluate("window.isSamePage = true")
    await page.get_by_label(f"Select {shop.waiting}").check()
    box = page.locator("[name=all]")
    await box.check()
    await page.get_by_label(f"Select {shop.waiting}").uncheck()
    await box.check()
    await page.get_by_role("button", name="Move to").click()
    field = page.locator("#selection input[type=datetime-local]")
    await field.fill("2030-01-01T09:00:00")
    await scheduler.enqueue(mail_customer, delay=HOUR, args=("eve",), job_id="00-mail")
    fresh = row_of(page, "00-mail")
    await expect(fresh).to_be_visible()
    await expect(fresh).to_have_class("new")
    await expect(box).to_be_checked()
    await expect(field).to_be_focused()
    assert (await field.input_value()).startswith("2030-01-01T09:00")
    await expect(fresh).not_to_have_class("new")
    assert "sort=job" in page.url
    assert await page.evaluate("window.isSamePage")


async def test_pause_of_updates_goes_on_over_the_pages_of_a_tab(
    open_page: Open, shop: Shop, scheduler: Scheduler, site: Site
) -> None:
    page = await open_page("/jobs?q=name:browser.mail")
    pause = page.locator("#pause")
    await pause.click()
    await page.get_by_role("link", name="Workers", exact=True).click()
    await expect(pause).to_have_attribute("aria-pressed", "true")
    await expect(pause).to_have_text("Paused, resume updates")
    await page.go_back()
    await expect(pause).to_have_attribute("aria-pressed", "true")
    await until(lambda: site.streams == 0)
    await scheduler.enqueue("browser.mail", args=("eve",), job_id="mail-eve")
    other = await page.context.new_page()
    await other.goto(page.url)
    await expect(other.locator("#pause")).to_have_attribute("aria-pressed", "false")
    await expect(row_of(page, "mail-eve")).to_have_count(0)
    await pause.click()
    await expect(row_of(page, "mail-eve")).to_be_visible()


async def test_message_of_an_action_is_shown_once(open_page: Open, shop: Shop) -> None:
    page = await open_page(f"/job?id={shop.waiting}")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.locator("#message")).to_contain_text("1 job cancelled")
    assert page.url.endswith(f"/job?id={shop.waiting}")
    await page.reload()
    await expect(page.locator("#message")).to_have_count(0)
    await page.goto(f"{page.url}&did=schedule_removed")
    await expect(page.locator("#message")).to_have_count(0)


async def test_instant_slightly_ahead_is_not_in_the_future(open_page: Open, shop: Shop) -> None:
    page = await open_page("/")
    texts = await page.evaluate("""["data-ago", "data-until"].map((name) => {
      document.querySelector("#read time").dateTime = new Date().toISOString();
      const time = document.createElement("time");
      time.setAttribute(name, "");
      time.dateTime = new Date(Date.now() + (name === "data-ago" ? 1000 : 400)).toISOString();
      document.querySelector("#read").append(time);
      document.dispatchEvent(new Event("updated"));
      return [time.textContent, document.querySelector("#read time").textContent];
    })""")
    assert texts == [["0 s ago", "0 s ago"], ["now", "0 s ago"]]
