"""The rules of WCAG 2.2 AA and of good practice that a program can check, on every page, in both themes."""

from __future__ import annotations

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import Page, expect

from pg_scheduler import Scheduler
from tests.browser.conftest import Open
from tests.browser.shop import Shop, block_charge
from tests.browser.site import Site
from tests.support.inside import dashboard_pages, fingerprint_of
from tests.support.stories import LONG
from tests.support.world import DAY, World

RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "rules": {"label-content-name-mismatch": {"enabled": True}},
    "resultTypes": ["violations"],
}
MISSING = "/job?id=missing"
UNANSWERED = "ConnectionError: the bank does not answer customer #"


def addresses(shop: Shop, worker_id: str) -> dict[str, str]:
    """Return an address with content for each page."""
    special = {
        "/job": f"/job?id={shop.failed}",
        "/job-form": f"/job-form?id={shop.failed}",
        "/signal-form": f"/signal-form?id={shop.waiting}",
        "durable": f"/job?id={shop.waiting}",
        "/schedule": f"/schedule?id={shop.schedule}",
        "/schedule-pause": f"/schedule-pause?id={shop.schedule}",
        "/worker": f"/worker?id={worker_id}",
        "/jobs": "/jobs?q=name:browser.*",
        "blocked": "/jobs?q=status:blocked",
        "/task": "/task?id=browser.mail",
        "/job-form of a task": "/job-form?task=browser.mail",
        "/limit": "/limit?name=browser.bank",
        "/chart": "/chart?id=outcomes",
        "/error": f"/error?id={fingerprint_of('browser.charge', UNANSWERED)}",
        "missing": MISSING,
        "/find": "/find?q=browser",
    }
    return {path: path for path in dashboard_pages() if path != "/run"} | special


async def violations(page: Page) -> list[str]:
    """Return the rules that a page with open details violates, and whether it is wider than its window."""
    await page.locator("details").evaluate_all("found => found.forEach((each) => { each.open = true; })")
    results = await Axe().run(page, options=RULES)
    found = [f"{page.url}: {results.generate_report()}"] if results.violations_count else []
    overflow = await page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    return [*found, f"{page.url}: {overflow} px wider than the window"] if overflow > 0 else found


@pytest.mark.parametrize(
    ("width", "color_scheme"),
    [(1280, "light"), *([(1280, "dark"), (390, "light"), (390, "dark")] if LONG else [])],
)
async def test_no_page_violates_a_rule(
    color_scheme: str,
    width: int,
    *,
    world: World,
    open_page: Open,
    shop: Shop,
    scheduler: Scheduler,
    site: Site,
    problems: list[str],
) -> None:
    page = await open_page("/about", color_scheme=color_scheme, viewport={"width": width, "height": 900})
    await scheduler.signal(shop.waiting, "question", {"by": "ann"})
    await world.step(shop.waiting, "approval", "signal", until=100 * DAY, ended=None)
    await world.step(shop.waiting, "parts", "child", value=[shop.failed, shop.completed], until=100 * DAY)
    await world.job("queued", "browser.export", blocked_on="share:browser.exports:ada")
    await block_charge(world)
    found = []
    for path in addresses(shop, str(scheduler.worker_id)).values():
        answer = await page.goto(site.url + path)
        assert answer is not None
        assert answer.ok or path == MISSING, path
        found += await violations(page)
    await page.goto(f"{site.url}/jobs?q=status:completed,failed")
    await page.locator("[name=row]").first.check()  # with each of them, there is no further one to select
    await page.locator("[name=all]").check()
    found += await violations(page)
    for title, button in (("Retry", "Retry"), ("Bulk run", "Retry all")):
        await page.get_by_role("button", name=button, exact=True).click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text(title)
        found += await violations(page)
    assert not found, "\n".join(found)
    assert "404" in problems.pop()  # of the page about an error
