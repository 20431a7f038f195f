"""The side bar: its numbers, who sees them, and the item of each page."""

from __future__ import annotations

from collections.abc import Callable

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from pg_scheduler.dashboard.pages import PAGES
from tests.dashboard.client import App, Page, request
from tests.dashboard.test_pages import fill
from tests.inspect.workers import add_worker


class Bar(Page):
    """The side bar of a page.

    Attributes:
        counts: The texts of its numbers by the notes on them.
    """

    def __init__(self, html: str) -> None:
        self.counts: dict[str, str] = {}
        self._note = ""
        super().__init__(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        found = dict(attrs)
        is_count = tag == "span" and (found.get("class") or "").split()[:1] == ["count"]
        self._note = (found["title"] or "").partition(" ")[2] if is_count else ""

    def handle_data(self, data: str) -> None:
        super().handle_data(data)
        if self._note:
            self.counts[self._note] = data
            self._note = ""

    @property
    def current(self) -> list[str | None]:
        """The addresses of the items that are marked."""
        return [each["href"] for each in self.all("a") if each.get("data-key") and "aria-current" in each]


async def test_numbers_count_what_the_request_sees(
    pool: asyncpg.Pool, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await fill(pool, scheduler)
    await pool.execute("ANALYZE scheduled_jobs")
    access = [Access("ada"), Access("bob", names=("billing.*",)), Access("eve", names=())]
    app = build(authorize=lambda _: access[0])
    found = []
    for _ in range(3):
        counts = Bar((await request(app, "/about")).text).counts
        counts.pop("findings", None)
        found.append(counts)
        access.append(access.pop(0))
    errors = "groups of errors in the last 24 hours"
    assert found == [
        {"jobs, about": "10", errors: "2", "schedules": "2", "tasks": "2", "live workers": "1"},
        {errors: "1", "schedules": "1", "tasks": "1", "live workers": "1"},
        {"live workers": "1"},
    ]


async def test_numbers_are_read_once_for_all_requests(app: App, pool: asyncpg.Pool) -> None:
    await add_worker(pool)
    first = Bar((await request(app, "/about")).text).counts
    await add_worker(pool, "w2")
    assert Bar((await request(app, "/audit")).text).counts == first
    assert first["live workers"] == "1"


async def test_pages_without_the_database_have_no_numbers(app: App, pool: asyncpg.Pool) -> None:
    await pool.execute("ALTER TABLE scheduled_jobs RENAME TO hidden")
    answer = await request(app, "/about")
    assert answer.status == 200
    assert Bar(answer.text).counts == {}


async def test_pages_state_that_no_worker_is_alive(
    app: App, build: Callable[..., App], pool: asyncpg.Pool
) -> None:
    assert "No worker is alive" in (await request(app, "/jobs")).text
    await add_worker(pool)
    assert "No worker is alive" not in (await request(build(), "/jobs")).text


@pytest.mark.parametrize("path", PAGES)
async def test_each_page_marks_its_item(path: str, app: App) -> None:
    answer = await request(app, path)
    page = PAGES[path]
    expected = path if page.label else page.parent
    assert Bar(answer.text).current == ([expected] if expected else [])
