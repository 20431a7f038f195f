"""The pages that the documentation shows look like its pictures: the shop of the demo at a fixed instant."""

from __future__ import annotations

import asyncpg
import pytest
import pytest_asyncio
from playwright.async_api import Page, Route

from pg_scheduler import Scheduler
from tests.browser.conftest import Open
from tests.browser.fixed_demo import NOW, open_fixed_demo
from tests.browser.pictures import (
    PICTURES,
    SIZE,
    TARGET,
    THEMES,
    is_renewing,
    read_blocks,
    share_of_other_blocks,
)
from tests.browser.site import Site

MAX_SHARE = 0.05
"""The share of blocks that may differ. It is 0 for the same page, 0.06 to 0.3 for a missing column, 0.13 and
more for a missing heading, 0.26 and more without styles, and 1 for the other theme."""


@pytest_asyncio.fixture(loop_scope="session")
async def scheduler(pool: asyncpg.Pool) -> Scheduler:
    return await open_fixed_demo(pool)


async def photograph(page: Page, site: Site, name: str, theme: str) -> bytes:
    """Return a picture of a page."""
    await page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    await page.goto(site.url + PICTURES[name])
    return await page.screenshot()


async def shares(page: Page, pictures: dict[str, bytes]) -> dict[str, float]:
    """Return the share of each picture that differs from the committed one."""
    blank = await page.context.new_page()
    seen = await read_blocks(blank, list(pictures.values()))
    known = await read_blocks(blank, [(TARGET / name).read_bytes() for name in pictures])
    return {
        name: share_of_other_blocks(one, other)
        for name, one, other in zip(pictures, seen, known, strict=True)
    }


async def test_pages_look_like_the_pictures_of_the_documentation(open_page: Open, site: Site) -> None:
    page = await open_page("/about", viewport=SIZE)
    await page.clock.set_fixed_time(NOW)
    pictures = {
        f"dashboard-{name}-{theme}.png": await photograph(page, site, name, theme)
        for theme in THEMES
        for name in PICTURES
    }
    if is_renewing():
        for name, content in pictures.items():
            (TARGET / name).write_bytes(content)
        return
    differing = {name: share for name, share in (await shares(page, pictures)).items() if share > MAX_SHARE}
    assert differing == {}, "look at the pages; if they are right: python3 dev.py screenshots"


async def answer_without_styles(route: Route) -> None:
    await route.fulfill(body="", content_type="text/css")


@pytest.mark.parametrize("name", PICTURES)
async def test_pages_without_styles_or_in_the_other_theme_look_different(
    name: str, open_page: Open, site: Site
) -> None:
    page = await open_page("/about", viewport=SIZE)
    await page.clock.set_fixed_time(NOW)
    light = await photograph(page, site, name, "light")
    assert (await shares(page, {f"dashboard-{name}-dark.png": light})).popitem()[1] > 4 * MAX_SHARE
    await page.route("**/dashboard.css*", answer_without_styles)
    bare = await photograph(page, site, name, "light")
    assert (await shares(page, {f"dashboard-{name}-light.png": bare})).popitem()[1] > 4 * MAX_SHARE
