"""Before and after a release: what attempts of each task did, new errors, and the card of the overview."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler.dashboard import Access
from pg_scheduler.dashboard.pages import release as page_of_release
from tests.dashboard.client import JSON, App, Page, request
from tests.support.errors import count_since
from tests.support.world import DAY, HOUR, MINUTE, NOW, World


async def add_releases(world: World, **starts: timedelta) -> None:
    """Record the first starts of releases, and add a worker of the last one."""
    names = list(starts)
    await world.audit(
        "start_release",
        lambda number: names[number - 1],
        count=len(names),
        at=lambda number: starts[names[number - 1]],
        actor="w",
        via="worker",
    )
    await world.worker(metadata={"release": list(starts)[-1]}, names=["shop.a"])


async def compared(app: App, url: str = "/release") -> dict[str, Any]:
    answer = await request(app, url, headers=JSON)
    assert answer.status == 200, answer.text
    data: dict[str, Any] = answer.data
    return data


async def test_tasks_that_became_slower_or_fail_more_are_worse(
    world: World, app: App, build: Callable[..., App]
) -> None:
    await add_releases(world, v1=-6 * HOUR, v2=-2 * HOUR)
    for minutes, took_s, failed in ((-150, 0.04, 4), (-60, 0.2, 16)):
        await world.attempts("shop.slow", 40, at=minutes * MINUTE, took_s=took_s)
        await world.attempts("shop.failing", 40, at=minutes * MINUTE, failed=failed)
        await world.attempts("shop.steady", 1200, at=minutes * MINUTE)
        await world.attempts("shop.nudged", 30, at=minutes * MINUTE, took_s=0.04 if minutes < -100 else 0.049)
        await world.attempts("shop.rare", 19, at=minutes * MINUTE, took_s=took_s)
    await world.attempts("shop.new", 60, at=-MINUTE)
    data = await compared(app)
    assert (data["release"]["name"], data["before"]["release"]) == ("v2", "v1")
    rows = {row["name"]: row for row in data["items"]}
    assert [row["name"] for row in data["items"]][:2] == ["shop.failing", "shop.slow"], "the worst first"
    assert {name: row["worse"] for name, row in rows.items()} == {
        "shop.failing": ["failed"],
        "shop.slow": ["p50", "p95"],
        "shop.steady": [],
        "shop.nudged": [],
        "shop.rare": [],
        "shop.new": [],
    }
    nudged = rows["shop.nudged"]
    assert nudged["after"]["run_p50_s"] == pytest.approx(0.049)
    assert (nudged["median_factor"], nudged["tail_factor"]) == (None, None), "both are in one bucket"
    slow, failing, new = rows["shop.slow"], rows["shop.failing"], rows["shop.new"]
    assert slow["before"]["run_p50_s"] <= 0.05
    assert slow["after"]["run_p50_s"] > 0.15
    assert (failing["before"]["failed_share"], failing["after"]["failed_share"]) == (0.1, 0.4)
    assert rows["shop.steady"]["after"]["per_minute"] == pytest.approx(10, rel=0.01)
    assert (new["before"]["started"], new["before"]["run_p50_s"], new["median_factor"]) == (0, None, None)
    text = " ".join(Page((await request(app, "/release")).text).text.split())
    assert "10.0 % → 40.0 % +30.0 pt" in text
    assert "1 of 1 worker" in text
    assert (data["workers"], data["workers_of_release"]) == (1, 1)
    assert "Mixed" not in text
    assert "Release v2 compared with v1" in text
    assert "Compared: 2 h each, as long as v2 has run." in text
    assert "5 percentage points more of its attempts failed" in text
    await world.worker("old", metadata={"release": "v1"})
    mixed = Page((await request(build(), "/release")).text).text
    note = "1 of 2 workers with another release: their attempts count in After, too"
    assert note in " ".join(mixed.split())


async def test_minute_of_the_start_counts_as_after_and_each_period_has_its_ends(
    pool: asyncpg.Pool, world: World, app: App
) -> None:
    await add_releases(world, v1=-5 * HOUR, v2=-2 * HOUR - 30 * MINUTE, v3=-2 * HOUR)
    started_at: datetime = await pool.fetchval("SELECT min(at) FROM scheduler_audit WHERE subject = 'v2'")
    for name, at in (
        ("long before", -2 * HOUR),
        ("before", -MINUTE),
        ("minute of the start", NOW),
        ("last minute", 29 * MINUTE),
        ("minute of the next start", 30 * MINUTE),
    ):
        await world.attempts(name, 1, at=started_at + at)
    data = await compared(app, "/release?id=v2")
    started = {row["name"]: (row["before"]["started"], row["after"]["started"]) for row in data["items"]}
    assert started == {"before": (1, 0), "minute of the start": (0, 1), "last minute": (0, 1)}
    assert datetime.fromisoformat(data["after"]["since"]) == started_at
    assert (data["after"]["until"], data["before"]["until"]) == (
        data["release"]["ended_at"],
        data["release"]["started_at"],
    )
    data = await compared(app, "/release?id=v3&before=v1&range=1h")
    assert datetime.fromisoformat(data["before"]["until"]) == started_at, "the last hour of v1"
    assert [row["name"] for row in data["items"] if row["before"]["started"]] == ["before"]
    assert [row["name"] for row in data["items"] if row["after"]["started"]] == ["minute of the next start"]
    data = await compared(app, "/release?id=v1")
    assert data["before"]["release"] is None, "no release is known before it"


async def test_page_has_the_visible_tasks_under_their_names(
    world: World, app: App, build: Callable[..., App]
) -> None:
    await add_releases(world, v1=-6 * HOUR, v2=-HOUR)
    for name in ("shop.a", "bank.a"):
        await world.attempts(name, 3, at=-5 * MINUTE)
    assert {row["name"] for row in (await compared(app))["items"]} == {"shop.a", "bank.a"}
    (row,) = (await compared(app, "/release?task=bank.a"))["items"]
    assert row["name"] == "bank.a"
    limited = build(authorize=lambda _: Access("bob", names=("shop.*",)))
    data = await compared(limited)
    assert [row["name"] for row in data["items"]] == ["shop.a"]
    assert (data["number_of_tasks"], data["workers"], data["workers_of_release"]) == (1, None, None)
    assert "bank" not in (await request(limited, "/release")).text


async def test_new_errors_are_those_whose_first_failure_was_in_the_release(
    pool: asyncpg.Pool, world: World, app: App, build: Callable[..., App]
) -> None:
    await add_releases(world, v1=-2 * DAY, v2=-HOUR)
    for name, first_release, at in (
        ("shop.old", "v1", DAY),
        ("shop.new", "v2", MINUTE),
        ("bank.new", "v2", MINUTE),
    ):
        await world.job(name, name, status="failed", error_message=f"Declined: {name}", ended=-at)
        await pool.execute(
            "UPDATE scheduler_error_groups SET first_release = $1 WHERE job_name = $2", first_release, name
        )
    await count_since(pool)
    assert {group["job_name"] for group in (await compared(app))["errors"]} == {"shop.new", "bank.new"}
    assert [group["job_name"] for group in (await compared(app, "/release?task=shop.new"))["errors"]] == [
        "shop.new"
    ]
    limited = await compared(build(authorize=lambda _: Access("bob", names=("shop.*",))))
    assert ([group["job_name"] for group in limited["errors"]], limited["number_of_errors"]) == (
        ["shop.new"],
        1,
    )


async def test_page_says_how_a_release_gets_a_name(world: World, app: App, build: Callable[..., App]) -> None:
    text = " ".join(Page((await request(app, "/release")).text).text.split())
    assert 'Scheduler(pool, metadata={"release": "2026.11.2"})' in text
    await add_releases(world, v1=-HOUR)
    app = build()
    assert (await request(app, "/release?id=v1")).status == 200
    for query in ("id=v9", "id=v1&before=v9", "id=v1&before=v1"):
        assert (await request(app, f"/release?{query}")).status == 404
    assert (await request(app, "/release?range=2h")).status == 400


async def test_left_out_statistics_are_stated(
    world: World, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_releases(world, v1=-DAY, v2=-HOUR)
    now = await world.pool.fetchval("SELECT now()")
    for minutes in range(2, 6):
        await world.attempts("shop.a", 1, at=now - minutes * MINUTE)
    assert (await compared(app))["is_complete"]
    monkeypatch.setattr(page_of_release, "MAX_SUMMED_ROWS", 3)
    data = await compared(app, "/release?range=6h")
    assert not data["is_complete"]
    assert [row["after"]["started"] for row in data["items"]] == [3], "the newest ones"


async def test_overview_compares_a_release_for_an_hour(
    world: World, app: App, build: Callable[..., App]
) -> None:
    await add_releases(world, v1=-5 * HOUR, v2=-30 * MINUTE)
    for minutes, took_s in ((-45, 0.04), (-10, 0.2)):
        await world.attempts("shop.slow", 40, at=minutes * MINUTE, took_s=took_s)
        await world.attempts("shop.steady", 40, at=minutes * MINUTE)
    card = (await compared(app, "/"))["release"]
    assert (card["release"]["name"], card["summary"]) == ("v2", "1 of 2 tasks worse, 0 new errors")
    assert [row["name"] for row in card["items"]] == ["shop.slow"]
    text = " ".join(Page((await request(app, "/")).text).text.split())
    assert "started 30 min ago, compared with v1: 1 of 2 tasks worse, 0 new errors" in text
    assert "shop.slow p95 ~40 ms → ~200 ms" in text
    await world.pool.execute("UPDATE scheduler_audit SET at = at - interval '31 minutes'")
    assert (await compared(build(), "/"))["release"] is None
