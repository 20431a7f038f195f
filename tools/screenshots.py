"""Photograph the dashboard on the data of the demo: ``python3 dev.py screenshots``.

Each page is written to ``docs/figures`` in light and dark. The traffic of the demo and its history are
generated from a fixed seed; times and durations are those of the run.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

from playwright.async_api import Page, expect

from tools.chromium import run_chromium

__all__ = ["NAMES", "TARGET", "THEMES", "main"]

TARGET: Final = Path(__file__).parents[1] / "docs" / "figures"
CHROMIUM: Final = Path(os.environ.get("PG_SCHEDULER_DEBIAN") or Path(sys.prefix, "debian")) / "chromium"
COMMAND: Final = [sys.executable, "-m", "pg_scheduler", "demo", "--plain", "--dashboard", "--port", "0"]
NAMES: Final = ("overview", "jobs", "job", "errors", "schedules", "workers")
THEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
WIDTH: Final = 1280
HEIGHT: Final = 860
ENOUGH_S: Final = 60
"""Seconds of traffic after which there is something on each page."""


@asynccontextmanager
async def running_demo() -> AsyncIterator[str]:
    """Run the demo, and yield the link that it prints."""
    demo = await asyncio.create_subprocess_exec(*COMMAND, stdout=asyncio.subprocess.PIPE)
    assert demo.stdout is not None
    try:
        async for line in demo.stdout:
            if link := re.search(r"http://\S+", line.decode()):
                yield link[0]
                break
        else:
            raise SystemExit("the demo did not serve the dashboard; the screenshots were not changed")
    finally:
        if demo.returncode is None:
            demo.send_signal(signal.SIGINT)
        await demo.wait()


async def photograph(page: Page, name: str) -> None:
    """Write a page in both themes."""
    for theme in THEMES:
        await page.emulate_media(color_scheme=theme)
        path = TARGET / f"dashboard-{name}-{theme}.png"
        await page.screenshot(path=path)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


async def photograph_all() -> None:
    """Open each page as a person does."""
    async with running_demo() as link, run_chromium(CHROMIUM) as browser:
        page = await browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        await page.goto(link)
        await asyncio.sleep(ENOUGH_S)
        await page.reload()
        await photograph(page, "overview")
        root = page.url
        await page.goto(f"{root}jobs?q=status:running")
        await photograph(page, "jobs")
        for name in ("schedules", "workers", "errors"):
            await page.goto(root + name)
            await photograph(page, name)
        await page.locator("tr", has_text="shop.charge").locator("a.id").first.click()
        await expect(page.locator(".timeline")).to_be_visible()
        await photograph(page, "job")


def main() -> None:
    """Write all screenshots."""
    if not CHROMIUM.is_dir():
        raise SystemExit(f"{CHROMIUM} is missing; python3 dev.py test downloads it")
    asyncio.run(photograph_all())


if __name__ == "__main__":
    main()
