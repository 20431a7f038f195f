"""Workflows: jobs with steps, their children, what they wait for, and what people can do about that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from pg_scheduler import call, current_job
from pg_scheduler.dashboard import Access, dashboard
from pg_scheduler.testing import TestScheduler
from tests.dashboard.client import JSON, App, Page, request
from tests.support.world import DAY, World

LATEST = datetime(9999, 1, 1, tzinfo=UTC)


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


async def test_page_links_children_and_parents_both_ways(kit: TestScheduler, app: App) -> None:
    await start(kit)
    page = await page_of(app, "/job?id=order:1")
    assert "/job?id=order%3A1%3Alabel" in page.links()
    child = await page_of(app, "/job?id=order:1:label")
    assert "/job?id=order%3A1" in child.links()
    assert "Started by the step label of order:1" in " ".join(child.text.split())
    data = (await request(app, "/job?id=order:1", headers=JSON)).data
    assert [step["name"] for step in data["steps"]] == ["charge", "label", "delivery"]
    assert [row["job_id"] for row in data["children"]["label"]] == ["order:1:label"]
    assert (await request(app, "/job?id=order:1:label", headers=JSON)).data["owner"]["job_id"] == "order:1"


async def test_child_whose_row_was_deleted_keeps_its_state_and_value(
    kit: TestScheduler, app: App, pool: asyncpg.Pool
) -> None:
    await start(kit)
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'order:1:label'")
    text = " ".join((await page_of(app, "/job?id=order:1")).text.split())
    assert 'label child order:1:label completed "label-1"' in text


async def test_jobs_of_hidden_names_are_not_seen_through_steps(kit: TestScheduler) -> None:
    await start(kit)
    hidden = dashboard(kit.scheduler, authorize=lambda _: Access("bob", "admin", names=("flow.order",)))
    answer = await request(hidden, "/job?id=order:1")
    assert answer.status == 200
    assert "flow.label" not in answer.text
    assert "order%3A1%3Alabel" not in answer.text
    assert "label-1" not in answer.text
    assert "There are further children" in Page(answer.text).text
    only_child = dashboard(kit.scheduler, authorize=lambda _: Access("bob", "admin", names=("flow.label",)))
    answer = await request(only_child, "/job?id=order:1:label")
    assert answer.status == 200
    assert "flow.order" not in answer.text
    assert "Started by" not in answer.text


async def test_many_children_are_counted_and_those_that_need_a_look_come_first(
    world: World, app: App
) -> None:
    ids = [f"fan:parts:{number}" for number in range(1_200)]
    await world.job("fan", "flow.fan", options={"steps": 1}, attempt=1, blocked_on="after")
    await world.step("fan", "parts", "child", value=ids, ended=None, until=LATEST)
    await world.jobs(
        1_200,
        "flow.part",
        job_id=lambda n: ids[n - 1],
        status=lambda n: "failed" if n % 300 == 7 else "completed",
        error_message=lambda n: "no" if n % 300 == 7 else None,
    )
    page = await page_of(app, "/job?id=fan")
    text = " ".join(page.text.split())
    assert "996 of 1,000" in text
    assert "4 failed" in text
    links = [link for link in page.links() if "fan%3Aparts%3A" in link]
    assert len(links) < 20
    assert "There are further children" in text
    (everything,) = [link for link in page.links() if "step=parts" in link and link.startswith("/job")]
    links = (await page_of(app, everything.partition("#")[0])).links()
    assert len([link for link in links if "fan%3Aparts%3A" in link]) >= 1_000
