"""The accessibility tree of each page, as screen readers have it, compared with a committed one."""

from __future__ import annotations

import re
from difflib import unified_diff
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from pg_scheduler import Scheduler
from tests.browser.conftest import Open
from tests.browser.fixed_demo import NOW, WORKERS, open_fixed_demo
from tests.browser.pictures import PICTURES, write_pictures
from tests.browser.site import Site
from tests.support.golden import IS_RENEWING
from tests.support.inside import dashboard_pages, fingerprint_of

DECLINED = "PermissionError: the bank declined the card of order #"
TREES = Path(__file__).parent / "trees"
ADDRESSES = {path.strip("/") or "overview": path for path in dashboard_pages() if path != "/run"} | {
    "job": PICTURES["job"],
    "jobs": PICTURES["jobs"],
    "job-form": PICTURES["job"].replace("/job", "/job-form"),
    "signal-form": "/signal-form?id=0195c00c-898b-7cb9-9534-9c3edbfb000c",
    "chart": "/chart?id=outcomes",
    "error": f"/error?id={fingerprint_of('shop.charge', DECLINED)}",
    "schedule": "/schedule?id=shop.invoices",
    "schedule-pause": "/schedule-pause?id=shop.invoices",
    "task": "/task?id=shop.report",
    "limit": "/limit?name=bank",
    "worker": f"/worker?id={WORKERS['node-4']}",
}
"""An address for each page by the name of its file; a bulk run has no fixed id."""

VARYING = {"doctor": "main .summary, main .card"}
"""What depends on the server and its settings, and is left out."""

MASKS = [
    (re.compile(r"pg_scheduler \d\S*"), "pg_scheduler <release>"),
    (re.compile(r'", some parts are up to [^"]* older ·"'), "·"),
    (re.compile(r'  - text: ", some parts are up to [^"]* older"\n'), ""),
    (re.compile(r"(?<=definition: )\d+\.\d+\.\d\S*"), "<release>"),
    (re.compile(r"(?<=term: Migration\n  - definition: )\"?\d+\"?"), "<number>"),
]
"""What differs between releases of pg_scheduler and Python, and the age of what requests share."""


@pytest_asyncio.fixture(loop_scope="session")
async def scheduler(pool: asyncpg.Pool) -> Scheduler:
    return await open_fixed_demo(pool)


async def tree_of(page: Page, name: str) -> str:
    """Return the tree of the page that is open."""
    if name in VARYING:
        await page.locator(VARYING[name]).evaluate_all("found => found.forEach(each => each.remove())")
    tree = await page.locator("body").aria_snapshot()
    for pattern, replacement in MASKS:
        tree = pattern.sub(replacement, tree)
    return f"{tree}\n"


def difference(name: str, tree: str) -> str:
    """Return how a tree differs from the committed one; empty if it does not."""
    path = TREES / f"{name}.yml"
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = unified_diff(
        known.splitlines(), tree.splitlines(), f"committed {name}", f"seen {name}", lineterm=""
    )
    return "\n".join(lines)


async def test_no_job_of_the_demo_ended_in_the_future(scheduler: Scheduler, pool: asyncpg.Pool) -> None:
    row = await pool.fetchrow(
        "SELECT count(*), count(*) FILTER (WHERE greatest(started_at, finished_at) > $1)"
        " FROM scheduled_jobs WHERE finished_at IS NOT NULL",
        NOW,
    )
    assert row is not None
    assert row[0] > 100
    assert row[1] == 0


async def test_trees_are_the_committed_ones(open_page: Open, site: Site) -> None:
    page = await open_page("/about")
    await page.clock.set_fixed_time(NOW)
    trees = {}
    for name, address in ADDRESSES.items():
        await page.goto(site.url + address)
        trees[name] = await tree_of(page, name)
    if IS_RENEWING:
        for name, tree in trees.items():
            (TREES / f"{name}.yml").write_text(tree, encoding="utf-8")
        await write_pictures(page, site.url)
    found = "\n".join(filter(None, (difference(name, tree) for name, tree in trees.items())))
    if found:
        pytest.fail(f"{found}\nif the pages are right: python3 dev.py screenshots", pytrace=False)
    assert {path.stem for path in TREES.iterdir()} == set(trees)


async def test_another_heading_is_another_tree(open_page: Open) -> None:
    page = await open_page("/workers")
    await page.locator("h1").evaluate("each => { each.outerHTML = '<p>Workers</p>'; }")
    await expect(page.locator("h1")).to_have_count(0)
    lines = difference("workers", await tree_of(page, "workers")).splitlines()
    assert [line for line in lines if line.startswith(("-  ", "+  "))] == [
        '-  - heading "Workers" [level=1]',
        "+  - paragraph: Workers",
    ]
