"""The page that finds jobs, tasks, schedules and workers by name, and offers actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from tests.dashboard.client import JSON, App, Page, request
from tests.dashboard.test_hostile import HOSTILE, check
from tests.dashboard.test_pages import fill


async def find(app: App, q: str) -> list[tuple[str, str]]:
    data = (await request(app, f"/find?q={quote(q)}", headers=JSON)).data
    return [(each["kind"], each["name"]) for each in data["items"]]


async def test_objects_are_found_by_a_part_of_their_name(
    pool: asyncpg.Pool, scheduler: Scheduler, app: App
) -> None:
    await fill(pool, scheduler)
    assert await find(app, "PAYROLL") == [("task", "payroll.run"), ("schedule", "payroll.run-nightly")]
    assert await find(app, "payroll.run-due") == [("job", "payroll.run-due")]
    assert await find(app, "host") == [("worker", "host-1")]
    assert await find(app, "") == []
    page = Page((await request(app, "/find?q=payroll")).text)
    for link in ("/task?id=payroll.run", "/schedule?id=payroll.run-nightly", "/jobs?q=payroll"):
        assert link in page.links()
        assert (await request(app, link)).status == 200


async def test_hidden_names_are_not_found(
    pool: asyncpg.Pool, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await fill(pool, scheduler)
    app = build(authorize=lambda _: Access("bob", names=("billing.*",)))
    for q in ("payroll", "payroll.run-due", "r"):
        assert not [name for _, name in await find(app, q) if "payroll" in name]
    assert await find(app, "billing.invoice-due") == [("job", "billing.invoice-due")]


async def test_many_objects_of_a_kind_leave_room_for_others(
    pool: asyncpg.Pool, scheduler: Scheduler, app: App
) -> None:
    await fill(pool, scheduler)
    await pool.execute(
        "INSERT INTO scheduler_tasks (name, paused_at, actor)"
        " SELECT 'payroll.task-' || n, now(), 'ada' FROM generate_series(1, 100) AS n"
    )
    kinds = [kind for kind, _ in await find(app, "payroll")]
    assert kinds == ["task"] * 8 + ["schedule"]


@pytest.mark.parametrize(("role", "adds"), [("viewer", False), ("operator", False), ("admin", True)])
async def test_actions_follow_the_rights(role: Any, adds: bool, build: Callable[..., App]) -> None:
    app = build(authorize=lambda _: Access("ada", role))
    names = [name for _, name in await find(app, ">")]
    assert ("Add a schedule" in names) is adds
    assert await find(app, "> THEME") == [("action", "Change the theme")]
    assert "Add a schedule" not in [name for _, name in await find(build(read_only=True), ">")]


@pytest.mark.parametrize("text", [*HOSTILE, "\0", "x" * 5000], ids=range(len(HOSTILE) + 2))
async def test_hostile_texts_are_shown_as_text(text: str, pool: asyncpg.Pool, app: App) -> None:
    await pool.execute("INSERT INTO scheduler_tasks (name, paused_at, actor) VALUES ('task', now(), 'ada')")
    answer = await request(app, f"/find?q={quote(text)}")
    assert answer.status == 200
    check(answer.text)
