"""The graph of a workflow on screens that are narrower than it."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from tests.browser.conftest import Open
from tests.support.world import DAY, World


@pytest.mark.parametrize("width", [390, 768])
async def test_step_that_waits_is_on_the_screen(
    open_page: Open, pool: asyncpg.Pool[asyncpg.Record], scheduler: Any, width: int
) -> None:
    await scheduler.initialize_db()
    world = World(pool)
    mark = {"steps": 1, "suspended": {"attempt": 1, "kind": "sleep", "steps": ["delivery"]}}
    await world.job("order:1", "shop.order", attempt=1, due=DAY, options=mark)
    for number in range(6):
        await world.step("order:1", f"step-{number}")
    await world.step("order:1", "delivery", "sleep", until=DAY, ended=None)
    page = await open_page("/job?id=order:1", viewport={"width": width, "height": 860})
    node = page.locator(".flow .current .box")
    box, screen = await node.bounding_box(), await page.locator(".flow").bounding_box()
    assert box is not None
    assert screen is not None
    assert screen["x"] <= box["x"]
    assert box["x"] + box["width"] <= screen["x"] + screen["width"]
