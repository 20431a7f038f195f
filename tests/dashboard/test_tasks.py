"""The figures of tasks: what started, failed and how long it took in the last hour, and by whom."""

from __future__ import annotations

from collections.abc import Callable

import asyncpg

from pg_scheduler.dashboard import Access
from tests.dashboard.client import JSON, App, Page, request
from tests.dashboard.test_overview import add_figures
from tests.inspect.workers import add_worker


async def test_tasks_have_the_figures_of_the_last_hour(
    pool: asyncpg.Pool, app: App, build: Callable[..., App]
) -> None:
    await add_figures(pool, ["figures.mail", "figures.report"])
    await add_worker(pool, "w2", names=["figures.idle"])
    idle, mail, _ = (await request(app, "/tasks", headers=JSON)).data["items"]
    assert (mail["name"], mail["failed"], round(60 * mail["per_minute"])) == ("figures.mail", 1, 5)
    assert 0 < mail["run_p50_s"] <= mail["run_p95_s"] < 1
    assert (idle["failed"], idle["per_minute"], idle["run_p50_s"]) == (0, 0, None)
    rows = Page((await request(app, "/tasks")).text).text
    assert "those of the last hour" in rows
    assert "0.1" in rows
    limited = build(authorize=lambda _: Access("bob", names=("figures.idle",)))
    assert [each["name"] for each in (await request(limited, "/tasks", headers=JSON)).data["items"]] == [
        "figures.idle"
    ]


async def test_page_of_a_task_names_the_workers_that_claim_it(pool: asyncpg.Pool, app: App) -> None:
    await add_figures(pool, ["figures.mail"])
    await add_worker(pool, "w2", names=["figures.mail"], identity="node-2")
    await add_worker(pool, "w3", names=["figures.other"])
    await add_worker(pool, "w4", names=None)
    data = (await request(app, "/task?id=figures.mail", headers=JSON)).data
    assert data["workers"] == {"w1": "w1", "w2": "node-2"}
    assert data["task"]["failed"] == 1
    links = Page((await request(app, "/task?id=figures.mail")).text).links()
    assert {"/worker?id=w1", "/worker?id=w2"} <= set(links)
