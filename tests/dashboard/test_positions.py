"""Positions in addresses: they continue a list in any process, and reveal nothing of hidden rows."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from pg_scheduler.inspect import Bounds
from pg_scheduler.triggers import Every
from tests.dashboard.client import JSON, App, request
from tests.support import inside
from tests.support.world import SECOND, World

pytestmark = pytest.mark.slow

HIDDEN = "hidden-id-0815"


async def fill(world: World) -> None:
    """Add jobs of two teams, of which every third is visible; the ids of the others contain a text."""
    await world.jobs(
        300,
        lambda n: "payroll.run" if n % 3 else "billing.mail",
        job_id=lambda n: f"{n:05}{HIDDEN if n % 3 else ''}",
        due=lambda n: n * SECOND,
    )


@pytest.fixture
def create(build: Callable[..., App]) -> Callable[[], App]:
    """Return a function that builds an application, as a process has one, for users who see some names."""
    bounds = Bounds(rows=41)  # so that a page ends at a hidden job
    return lambda: build(authorize=lambda _: Access("bob", names=("billing.*",)), bounds=bounds)


async def read(app: App, url: str) -> Any:
    answer = await request(app, url, headers=JSON)
    assert answer.status == 200, answer.text
    return answer.data


async def test_search_of_visible_jobs_continues_behind_hidden_ones_in_another_process(
    create: Callable[[], App], world: World
) -> None:
    await fill(world)
    found: list[str] = []
    lengths = set()
    url = "/jobs?q=id%3A0*"
    while url:
        page = await read(create(), url)
        found += [each["job_id"] for each in page["items"]]
        assert "searched" not in page["summary"]
        url = ""
        if page["next"] is not None:
            url = f"/jobs?q=id%3A0*&after={page['next']}"
            lengths.add(len(page["next"]))
            assert HIDDEN.encode() not in urlsafe_b64decode(f"{page['next']}===")
    assert found == [f"{number:05}" for number in range(300, 0, -3)]
    assert len(lengths) == 1, "an id is not recognized by its length"


async def test_list_of_visible_schedules_continues_behind_hidden_ones(
    create: Callable[[], App], scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, examined_schedules=2)
    for number in range(6):
        name, suffix = ("billing.mail", "") if number in {0, 5} else ("payroll.run", HIDDEN)
        await scheduler.schedules.add(name, Every(hours=1), schedule_id=f"{number}{suffix}")
    first = await read(create(), "/schedules")
    assert ([each["schedule_id"] for each in first["items"]], HIDDEN in str(first)) == (["0"], False)
    second = await read(create(), f"/schedules?after={first['next']}")
    assert (second["items"], HIDDEN in str(second)) == ([], False)
    third = await read(create(), f"/schedules?after={second['next']}")
    assert [each["schedule_id"] for each in third["items"]] == ["5"]


async def test_position_that_was_not_given_is_rejected(
    create: Callable[[], App], app: App, world: World
) -> None:
    await fill(world)
    plain = (await read(app, "/jobs"))["next"]
    sealed = (await read(create(), "/jobs?q=status%3Apending"))["next"]
    assert (await request(create(), f"/jobs?q=status%3Apending&after={sealed}")).status == 200
    changed = ("A" if sealed[0] != "A" else "B") + sealed[1:]
    for after in (plain, changed, sealed[:40], "x", "ü", HIDDEN, "A" * 1000):
        answer = await request(create(), f"/jobs?q=status%3Apending&after={quote(after)}")
        assert (answer.status, "no position of this list" in answer.text) == (400, True), after
        answer = await request(create(), f"/schedules?after={quote(after)}")
        assert (answer.status, "no position of this list" in answer.text) == (404, True), after
    assert (await request(app, f"/jobs?after={plain}")).status == 200


async def test_position_shows_no_key_of_a_limit_to_those_who_see_no_arguments(
    build: Callable[..., App], world: World
) -> None:
    await world.jobs(100, "billing.mail", blocked_on="limit:cards:4242-1881")
    for access, is_shown in ((Access("ada"), True), (Access("bob", sees_arguments=False), False)):
        app = build(authorize=lambda _, access=access: access)
        url = "/jobs?q=status%3Ablocked"
        first = await read(app, url)
        assert (b"4242-1881" in urlsafe_b64decode(f"{first['next']}===")) is is_shown
        second = await read(app, f"{url}&after={first['next']}")
        ids = {job["job_id"] for page in (first, second) for job in page["items"]}
        assert len(ids) == 100
