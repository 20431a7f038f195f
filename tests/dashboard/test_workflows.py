"""Workflows: jobs with steps, their children, what they wait for, and what people can do about that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from pg_scheduler import call, current_job
from pg_scheduler.dashboard import Access, dashboard
from pg_scheduler.testing import TestScheduler
from tests.dashboard.client import JSON, App, Page, request
from tests.support.world import DAY


async def charge(order: int) -> dict[str, Any]:
    return {"payment": order}


async def label(order: int) -> str:
    return f"label-{order}"


async def order(number: int) -> None:
    steps = current_job().steps
    await steps.run("charge", charge, number)
    await steps.child("label", call(label, number))
    await steps.sleep("delivery", 14 * DAY)


async def approval(number: int) -> None:
    await current_job().steps.wait("approved")


@pytest.fixture
async def kit(pool: asyncpg.Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool) as kit:
        for function in (label, order, approval):
            kit.scheduler.register(function, name=f"flow.{function.__name__}")
        yield kit


@pytest.fixture
def app(kit: TestScheduler) -> App:
    return dashboard(kit.scheduler, authorize=lambda _: Access("ada", "admin"))


async def start(kit: TestScheduler, name: str = "order", job_id: str = "order:1") -> None:
    await kit.scheduler.enqueue(f"flow.{name}", args=(1,), job_id=job_id)
    await kit.drain()


async def page_of(app: App, url: str) -> Page:
    answer = await request(app, url)
    assert answer.status == 200, answer.text
    return Page(answer.text)


async def test_suspended_job_has_attempts_behind_it_and_no_useless_button(
    kit: TestScheduler, app: App
) -> None:
    await start(kit)
    data = (await request(app, "/job?id=order:1", headers=JSON)).data
    titles = [(event["title"], event["is_ahead"]) for event in data["timeline"]]
    assert titles == [
        ("created", False),
        ("attempt 1: suspended", False),
        ("attempt 2: suspended", False),
        ("continues after its sleep", True),
    ]
    assert "run" not in data["actions"]
    page = await page_of(app, "/job?id=order:1")
    assert not [button for button in page.all("button") if button.get("id") == "run"]
    text = " ".join(page.text.split())
    assert "Continues" in text
    assert "Would start" not in text
