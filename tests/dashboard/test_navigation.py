"""The side bar: its numbers, who sees them, and the item of each page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from tests.dashboard.client import App, Page, request, send
from tests.dashboard.test_pages import fill
from tests.support.cases import each_case
from tests.support.inside import dashboard_pages
from tests.support.world import World


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
    pool: asyncpg.Pool, world: World, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await fill(world, scheduler)
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
        {"jobs, about": "~10", errors: "2", "schedules": "2", "tasks": "2", "live workers": "1"},
        {errors: "1", "schedules": "1", "tasks": "1", "live workers": "1"},
        {"live workers": "1"},
    ]


async def test_numbers_are_read_once_for_all_requests(app: App, world: World) -> None:
    await world.worker()
    first = Bar((await request(app, "/about")).text).counts
    await world.worker("w2")
    assert Bar((await request(app, "/audit")).text).counts == first
    assert first["live workers"] == "1"


async def test_pages_without_the_database_have_no_numbers(app: App, pool: asyncpg.Pool) -> None:
    await pool.execute("ALTER TABLE scheduled_jobs RENAME TO hidden")
    answer = await request(app, "/about")
    assert answer.status == 200
    assert Bar(answer.text).counts == {}


async def test_pages_state_that_no_worker_is_alive(app: App, build: Callable[..., App], world: World) -> None:
    fresh = (await request(app, "/jobs")).text
    assert "No worker is alive" not in fresh, "nothing is wrong yet"
    assert Bar(fresh).counts["live workers"] == "0"
    assert 'class="count bad"' not in " ".join(fresh.split())
    await world.job("one")
    assert "No worker is alive" in (await request(build(), "/jobs")).text
    await world.worker()
    assert "No worker is alive" not in (await request(build(), "/jobs")).text


@each_case("path", dashboard_pages())
async def test_each_page_marks_its_item(path: str, app: App) -> None:
    answer = await request(app, path)
    page = dashboard_pages()[path]
    expected = path if page.label else page.parent
    assert Bar(answer.text).current == ([expected] if expected else [])


# -- the density of tables ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("role", ["viewer", "admin"])
async def test_density_is_kept_in_a_cookie_and_written_into_pages(
    scheme: str, role: Any, build: Callable[..., App]
) -> None:
    app = build(authorize=lambda _: Access("ada", role), read_only=True)
    page = (await request(app, "/jobs?q=name%3Aa%26b&sort=-name")).text
    assert '<html lang="en">' in page
    assert 'value="/jobs?q=name%3Aa%26b&amp;sort=-name"' in page
    fields = {"rows": "compact", "back": "/jobs?q=name%3Aa%26b&sort=-name"}
    answer = await send(app, "/density", fields, scheme=scheme)
    assert (answer.status, answer.headers["location"]) == (303, fields["back"])
    cookie, _, attributes = answer.headers["set-cookie"].partition(";")
    prefix, secure = ("__Host-", "; Secure") if scheme == "https" else ("", "")
    assert cookie == f"{prefix}pg_scheduler-density=compact"
    assert attributes == f" HttpOnly; Max-Age=31536000; Path=/; SameSite=lax{secure}"
    shown = (await request(app, "/jobs", headers={"cookie": cookie}, scheme=scheme)).text
    assert '<html lang="en" data-density="compact">' in shown
    assert "Normal rows" in shown
    again = await send(app, "/density", {"rows": "normal"}, headers={"cookie": cookie}, scheme=scheme)
    assert again.headers["location"] == "/"
    assert "Max-Age=0" in again.headers["set-cookie"]


@pytest.mark.parametrize(
    "back", ["//evil.example", "https://evil.example/", "/actions/jobs/delete?id=x", "jobs", "", "/a\r\nx: y"]
)
async def test_choice_of_density_leads_to_no_other_site(back: str, app: App) -> None:
    answer = await send(app, "/mount/density", {"rows": "compact", "back": back}, root_path="/mount")
    assert (answer.status, answer.headers["location"]) == (303, "/mount/")


async def test_density_is_chosen_by_own_forms_only(app: App) -> None:
    answer = await send(app, "/density", {"rows": "compact"}, headers={"sec-fetch-site": "cross-site"})
    assert (answer.status, "set-cookie" in answer.headers) == (403, False)
    assert (await request(app, "/density")).status == 405
    long = await send(app, "/density", {"rows": "x" * 600_000})
    assert long.status == 413
    forged = {"cookie": 'pg_scheduler-density="><script>'}
    assert '<html lang="en">' in (await request(app, "/jobs", headers=forged)).text


@pytest.mark.parametrize("names", [None, ("billing.*",), ()])
async def test_items_are_the_pages_that_the_request_may_open(
    names: tuple[str, ...] | None, build: Callable[..., App]
) -> None:
    app = build(authorize=lambda _: Access("bob", "admin", names=names))
    page = Bar((await request(app, "/about")).text)
    targets = [str(each["href"]) for each in page.all("a") if each.get("data-key")]
    assert [(await request(app, target)).status for target in targets] == [200] * len(targets)
    assert ("/audit" in targets) is (names is None)
