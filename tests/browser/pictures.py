"""The pictures of the dashboard that the documentation shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from playwright.async_api import Page

TARGET: Final = Path(__file__).parents[2] / "docs" / "figures"
THEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
PICTURES: Final[Mapping[str, str]] = {
    "overview": "/",
    "jobs": "/jobs?q=status:running",
    "job": "/job?id=0195c04d-898b-7cb9-9534-9c3edbfb004d",
    "errors": "/errors",
    "schedules": "/schedules",
    "workers": "/workers",
}
"""The addresses of the pages, by name."""


async def write_pictures(page: Page, url: str) -> None:
    """Photograph the pages of a dashboard in both themes."""
    await page.set_viewport_size({"width": 1280, "height": 860})
    for theme in THEMES:
        await page.emulate_media(color_scheme=theme)
        for name, address in PICTURES.items():
            await page.goto(url + address)
            await page.screenshot(path=TARGET / f"dashboard-{name}-{theme}.png")
