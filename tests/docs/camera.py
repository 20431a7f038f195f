"""Pictures of the dashboard for docs/start: what a test has made and checked, photographed."""

from __future__ import annotations

from pathlib import Path

from pg_scheduler import Scheduler
from tests.browser.pictures import TARGET
from tests.browser.site import Site
from tests.docs.terminal import EXAMPLES
from tests.support.debian import required
from tests.support.golden import IS_RENEWING
from tools.chromium import run_chromium

__all__ = ["photograph", "picture_of"]


def picture_of(name: str) -> Path:
    """Return the file of a picture, which has the name of a program in examples/shop."""
    assert (EXAMPLES / f"{name}.py").exists()
    return TARGET / f"shop-{name}.png"


async def photograph(scheduler: Scheduler, name: str, address: str, *, height: int = 640) -> None:
    """Write the picture of a page into docs/figures, if ``dev.py screenshots`` runs the test."""
    target = picture_of(name)
    if not IS_RENEWING:
        return
    site = Site(scheduler)
    await site.start()
    try:
        async with run_chromium(required("chromium")) as browser:
            page = await browser.new_page(
                viewport={"width": 1280, "height": height}, timezone_id="UTC", color_scheme="light"
            )
            await page.goto(site.url + address)
            await page.screenshot(path=target)
    finally:
        await site.stop()
