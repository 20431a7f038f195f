"""The people of the journeys: each one uses the dashboard in another way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from playwright.async_api import Locator, Page

if TYPE_CHECKING:
    from tests.browser.conftest import Open

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}}
MAX_TABS = 300


@dataclass(frozen=True)
class Way:
    """How a person uses the dashboard.

    Attributes:
        options: Options of the browser context.
        has_mouse: False for a person who presses keys only.
    """

    options: dict[str, Any] = field(default_factory=dict)
    has_mouse: bool = True


WAYS = pytest.mark.parametrize(
    ("site", "person"),
    [
        pytest.param(("starlette", "/"), Way(), id="mouse"),
        pytest.param(("starlette", "/a/b"), Way(has_mouse=False), id="keyboard, below a path"),
        pytest.param(
            ("starlette", "/"), Way(PHONE | {"java_script_enabled": False}), id="phone without JavaScript"
        ),
    ],
    indirect=True,
)
"""Each journey is made in every way; the fixtures ``site`` and ``person`` take the parameters."""


async def navigate(
    page: Page, label: str, press: Callable[[Locator], Awaitable[None]] = Locator.click
) -> None:
    """Follow a link of the side bar, which a button shows on phones."""
    menu = page.get_by_role("button", name="Menu")
    if await menu.is_visible():
        await press(menu)
    await press(page.get_by_role("navigation").get_by_role("link", name=label, exact=True))


def job_link(page: Page, job_id: str) -> Locator:
    """Return the link of a job in a list, whose text is its task."""
    return page.locator(f'a[data-job][href$="id={quote(job_id, safe="")}"]')


class Person:
    """Somebody with a browser, who finds what to press by its label, as it is read aloud."""

    def __init__(self, open_page: Open, way: Way) -> None:
        self._open_page = open_page
        self._way = way

    async def open(self, path: str) -> Page:
        """Open a page in a new browser."""
        return await self._open_page(path, **self._way.options)

    async def press(self, target: Locator) -> None:
        """Press a link, a button or a summary."""
        if self._way.has_mouse:
            await target.click()
        else:
            await self._focus(target)
            await target.page.keyboard.press("Enter")

    async def fill(self, target: Locator, text: str) -> None:
        """Replace the content of a field."""
        if self._way.has_mouse:
            await target.fill(text)
        else:
            await self._focus(target)
            await target.page.keyboard.press("Control+A")
            await target.page.keyboard.type(text)

    async def check(self, box: Locator) -> None:
        """Check a box."""
        if self._way.has_mouse:
            await box.check()
        else:
            await self._focus(box)
            await box.page.keyboard.press("Space")

    async def choose(self, target: Locator, option: str) -> None:
        """Choose an option of a list."""
        if self._way.has_mouse:
            await target.select_option(option)
        else:
            await self._focus(target)
            await target.page.keyboard.type(option)
        assert await target.input_value() == option

    async def _focus(self, target: Locator) -> None:
        """Press Tab until the element has the focus, which must be visible."""
        for _ in range(MAX_TABS):
            if await target.evaluate("each => each === document.activeElement"):
                style = await target.evaluate("each => getComputedStyle(each).outlineStyle")
                assert style != "none", f"the focus of {target} is not visible"
                return
            await target.page.keyboard.press("Tab")
        raise AssertionError(f"{MAX_TABS} times Tab do not reach {target}")
