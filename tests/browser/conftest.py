"""One Chromium for the session, and a dashboard of its own, with a database and a worker, for each test.

Any message in the console of a page, an error of its script or a violation of the content security policy
fails the test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, expect

from pg_scheduler import Scheduler
from tests.browser.person import Person
from tests.browser.shop import Shop, open_shop
from tests.browser.site import Site
from tests.support.debian import component
from tests.support.patience import PATIENCE
from tests.support.world import world  # noqa: F401 - a fixture of this folder
from tools.chromium import run_chromium

Open: TypeAlias = Callable[..., Awaitable[Page]]
"""Open a page of a new browser context: ``await open_page("/jobs", viewport=...)``."""

FOLDER = Path(__file__).parent

expect.set_options(timeout=PATIENCE * 1000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests, and run them in the event loop of the browser, which is that of the session."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    root = component("chromium")
    if root is None:
        pytest.skip("Debian's Chromium could not be downloaded")
    async with run_chromium(root) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def pool(dsn: str) -> AsyncIterator[asyncpg.Pool[asyncpg.Record]]:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=8) as pool:
        yield pool


@pytest_asyncio.fixture(loop_scope="session")
async def scheduler(pool: asyncpg.Pool) -> AsyncIterator[Scheduler]:
    """The Scheduler of the dashboard, which runs jobs once the test starts it."""
    scheduler = Scheduler(pool)
    yield scheduler
    await scheduler.shutdown()


@pytest_asyncio.fixture(loop_scope="session")
async def site(scheduler: Scheduler, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """The dashboard; a test gives framework and path of its mount as an indirect parameter."""
    framework, path = getattr(request, "param", ("starlette", "/"))
    site = Site(scheduler, path, framework)
    await site.start()
    yield site
    await site.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def shop(scheduler: Scheduler) -> Shop:
    """Jobs that have ended, wait and repeat, and a worker."""
    return await open_shop(scheduler)


@pytest.fixture
def problems() -> list[str]:
    """The messages of all consoles; a test that expects some removes them."""
    return []


@pytest_asyncio.fixture(loop_scope="session")
async def open_page(browser: Browser, site: Site, problems: list[str]) -> AsyncIterator[Open]:
    contexts = []

    def record(message: ConsoleMessage) -> None:
        problems.append(f"{message.type}: {message.text}")

    async def open_page(path: str, **options: Any) -> Page:
        context = await browser.new_context(
            **{"timezone_id": "UTC"} | options
        )  # in another, pages offer it too
        context.set_default_timeout(PATIENCE * 1000)
        contexts.append(context)
        context.on("console", record)
        context.on("weberror", lambda error: problems.append(str(error.error)))
        page = await context.new_page()
        await page.goto(site.url + path)
        return page

    yield open_page
    for context in contexts:
        await context.close()
    assert problems == []


@pytest.fixture
def person(open_page: Open, request: pytest.FixtureRequest) -> Person:
    """Somebody who uses the dashboard in the way of the parameter."""
    return Person(open_page, request.param)
