"""The pages of workers, tasks, schedules and errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from pg_scheduler.dashboard.access import Right
from pg_scheduler.dashboard.pages.about import RIGHTS_BY_OBJECT
from pg_scheduler.triggers import Cron
from tests.dashboard.client import JSON, App, Page, request
from tests.dashboard.test_hostile import check
from tests.support import inside
from tests.support.hostile_texts import HOSTILE
from tests.support.world import HOUR, MINUTE, World

SECRET = "hunter2-secret"


def restricted(_request: object) -> Access:
    return Access("bob", names=("billing.*",), sees_arguments=False)


async def fill(world: World, scheduler: Scheduler) -> None:
    """Add workers, running and failed jobs, schedules and a pause, of two teams."""
    pool_use = {"size": 3, "idle": 1, "max": 10}
    health = {"pool": pool_use, "loop_lag_s": 7.5, "is_listening": False, "blocking_job_id": "payroll-run"}
    await world.worker(
        names=["billing.invoice", "payroll.run"],
        health=health,
        settings={"limits": ["payroll.limit"]},
        identity="payroll-host",
    )
    await world.pool.execute("UPDATE scheduler_workers SET identity = 'host-1'")
    await world.worker("w2", names=None, lease=-HOUR)
    for name in ("billing.invoice", "payroll.run"):
        await world.job(f"{name}-run", name, status="running", due=-HOUR)
        await world.job(f"{name}-due", name, due=-2 * HOUR)
        await world.jobs(
            3,
            name,
            job_id=(name + "{}").format,
            status="failed",
            ended=lambda n: -n * MINUTE,
            error_message=f"TimeoutError: {name} after {{}} s".format,
        )
        await scheduler.tasks.pause(name, note=f"{name} is broken")
        await scheduler.schedules.add(
            name,
            Cron("30 2 * * *", "Europe/Berlin"),
            schedule_id=f"{name}-nightly",
            kwargs={"token": SECRET, "plain": "shown"},
            metadata={"token": SECRET},
        )


async def test_workers_page_states_what_is_wrong(
    pool: asyncpg.Pool, world: World, scheduler: Scheduler, app: App
) -> None:
    await fill(world, scheduler)
    data = (await request(app, "/workers", headers=JSON)).data
    assert data["summary"] == "1 live, 1 dead within a day, 1 of 2 slots busy"
    found = [
        (each["worker"]["worker_id"], each["state"], each["health"]["loop_lag_s"], each["health"]["pool"])
        for each in data["items"]
    ]
    unknown = {"size": None, "idle": None, "max": None}
    assert found == [
        ("w1", "running", 7.5, {"size": 3, "idle": 1, "max": 10}),
        ("w2", "dead", None, unknown),
    ]
    text = Page((await request(app, "/workers")).text).text
    assert "its event loop lags by 7.5 s; it receives no notifications" in text
    assert "2 / 10" in text
    one = (await request(app, "/worker?id=w1", headers=JSON)).data
    assert one["item"]["worker"]["names"] == ["billing.invoice", "payroll.run"]
    assert {each["job_id"] for each in one["jobs"]} == {"billing.invoice-run", "payroll.run-run"}
    assert one["item"]["worker"]["settings"] == {"limits": ["payroll.limit"]}
    text = " ".join(Page((await request(app, "/worker?id=w1")).text).text.split())
    assert "receives no notifications, so it polls. A job that another process adds starts at" in text
    assert [(each["text"], each["is_bad"]) for each in one["chips"]] == [
        ("loop lag 8 s", True),
        ("pool 2 of 10", False),
        ("polls", True),
    ]
    await world.worker("w3", names=None)
    assert "does not report" in (await request(app, "/worker?id=w3")).text
    assert (await request(app, "/worker?id=w4")).status == 404


@pytest.mark.parametrize("number", ["1e400", "1" + "0" * 400, '"many"', "true", "null", "[]"])
async def test_health_that_no_worker_reports_is_not_shown(number: str, world: World, app: App) -> None:
    health = f'{{"loop_lag_s": {number}, "pool": {{"size": {number}, "idle": 1, "max": 10}}}}'
    await world.worker(health=health)
    for url in ("/workers", "/worker?id=w1", "/doctor", "/"):
        assert (await request(app, url)).status == 200
    (worker,) = (await request(app, "/workers", headers=JSON)).data["items"]
    assert (worker["health"]["loop_lag_s"], worker["health"]["pool"]["size"]) == (None, None)


async def test_worker_states_that_it_drains(world: World, app: App) -> None:
    await world.worker(wanted="drain")
    await world.worker("w2", state="draining")
    await world.worker("w3", stopping=True)
    await world.worker("w4", wanted="drain", state="stopping")
    data = (await request(app, "/workers", headers=JSON)).data
    states = [worker["state"] for worker in data["items"]]
    assert states == ["draining", "draining", "stopping", "stopping"]


async def test_restricted_request_sees_the_health_of_a_worker_without_names(
    world: World, build: Callable[..., App]
) -> None:
    health = {
        "pool": {"size": 3, "idle": 1, "max": 10},
        "loop_lag_s": 7.5,
        "is_listening": False,
        "has_liveness_lock": True,
        "clock_offset_s": 60,
        "loop_blocked_s": 5,
        "blocking_job_id": "payroll-id",
        "blocking_job_name": "payroll.run",
        "last_blocked": {"seconds": 7, "job_id": "payroll-id", "job_name": "payroll.run"},
        "missing_executors": {"payroll.run": "process"},
        "unknown_zones": {"payroll.nightly": "Europe/Berlin"},
    }
    await world.worker(names=["billing.invoice"], health=health)
    app = build(authorize=restricted)
    data = (await request(app, "/worker?id=w1", headers=JSON)).data
    assert [chip["text"] for chip in data["chips"]] == [
        "loop lag 8 s",
        "clock 60 s ahead of the server",
        "pool 2 of 10",
        "polls",
    ]
    assert data["item"]["problems"][0] == "its event loop is blocked for 0:00:05"
    for url in ("/worker?id=w1", "/workers", "/"):
        for headers in ({}, JSON):
            text = (await request(app, url, headers=headers)).text
            assert "payroll" not in text
            assert "Berlin" not in text


async def test_release_of_a_worker_is_that_of_the_application(
    world: World, build: Callable[..., App]
) -> None:
    await world.worker(version="1.2.3", metadata={"release": "2026.11.2"})
    await world.worker("w2", version="1.2.3", metadata={"release": 7})
    found = (await request(build(), "/workers", headers=JSON)).data["items"]
    releases = [(each["release"], each["worker"]["version"]) for each in found]
    assert releases == [("2026.11.2", "1.2.3"), (None, "1.2.3")]
    assert "1.2.3" not in Page((await request(build(), "/workers")).text).text
    for url in ("/workers", "/worker?id=w1"):
        assert "2026.11.2" in Page((await request(build(), url)).text).text
        assert "2026.11.2" not in (await request(build(redact=["release"]), url)).text


async def test_tasks_page_shows_backlog_and_pauses(world: World, scheduler: Scheduler, app: App) -> None:
    await fill(world, scheduler)
    data = (await request(app, "/tasks", headers=JSON)).data
    assert data["summary"] == "2 tasks, 2 paused, 2 running, waiting 2: due 2, blocked 0"
    text = Page((await request(app, "/tasks")).text).text
    assert "payroll.run is broken" in text
    assert "2 h ago" in text


async def test_errors_page_groups_by_name_and_text(
    pool: asyncpg.Pool, world: World, scheduler: Scheduler, app: App, build: Callable[..., App]
) -> None:
    await fill(world, scheduler)
    answer = await request(app, "/errors")
    assert "TimeoutError billing.invoice after # s" in " ".join(Page(answer.text).text.split())
    for since in ("1h", "7d", "all"):
        data = (await request(app, f"/errors?since={since}", headers=JSON)).data
        assert [group["count"] for group in data["items"]] == [3, 3]
        assert data["total"] == "2 groups, 6 failures"
    link = next(each for each in Page(answer.text).links() if "/jobs?q=status" in each)
    assert len((await request(app, link, headers=JSON)).data["items"]) == 3
    assert (await request(app, "/errors?since=2h")).status == 400
    await pool.execute("DROP INDEX scheduled_jobs_unsuccessful")
    text = " ".join(Page((await request(build(), "/errors")).text).text.split())
    assert "TimeoutError billing.invoice after # s" in text
    data = (await request(build(authorize=restricted), "/errors", headers=JSON)).data
    assert data["total"] == "1 group, 3 failures", "the numbers of hidden names are hidden too"


async def test_schedule_page_shows_fire_times_in_the_zone_of_the_trigger(
    world: World, scheduler: Scheduler, app: App
) -> None:
    await fill(world, scheduler)
    listed = (await request(app, "/schedules", headers=JSON)).data
    assert [each["schedule_id"] for each in listed["items"]] == [
        "billing.invoice-nightly",
        "payroll.run-nightly",
    ]
    data = (await request(app, "/schedule?id=payroll.run-nightly", headers=JSON)).data
    assert len(data["fire_times"]) == 20
    times = {fire["local"].split(" ", 2)[2] for fire in data["fire_times"]}
    assert times <= {"02:30:00 CET", "02:30:00 CEST", "03:00:00 CEST", "03:30:00 CEST"}
    assert data["kwargs"] == {"token": SECRET, "plain": "shown"}
    page = await request(app, "/schedule?id=payroll.run-nightly")
    assert "Europe/Berlin" in Page(page.text).text
    for missing in ("nothing", "%00"):
        assert (await request(app, f"/schedule?id={missing}")).status == 404


async def test_schedule_of_an_unknown_trigger_is_shown_without_fire_times(
    pool: asyncpg.Pool, world: World, scheduler: Scheduler, app: App
) -> None:
    await fill(world, scheduler)
    await pool.execute(
        """UPDATE scheduler_schedules SET trigger = '{"kind": "moon"}', described = 'full moon'"""
    )
    page = Page((await request(app, "/schedule?id=payroll.run-nightly")).text)
    assert "cannot interpret" in page.text
    assert "full moon" in page.text
    assert (await request(app, "/schedules")).status == 200


async def test_schedules_are_continued(
    world: World, scheduler: Scheduler, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(world, scheduler)
    inside.replace(monkeypatch, schedules_page=1)
    first = (await request(app, "/schedules", headers=JSON)).data
    second = (await request(app, f"/schedules?after={first['next']}", headers=JSON)).data
    assert first["items"] != second["items"]
    assert (
        second["next"] is None
        or (await request(app, f"/schedules?after={second['next']}", headers=JSON)).data["items"] == []
    )


URLS = [
    "/workers",
    "/worker?id=w1",
    "/tasks",
    "/errors",
    "/schedules",
    "/schedule?id=billing.invoice-nightly",
]


async def test_restricted_requests_see_no_other_names_and_no_arguments(
    world: World, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await fill(world, scheduler)
    app = build(authorize=restricted)
    for url in URLS:
        for headers in ({}, JSON):
            answer = await request(app, url, headers=headers)
            assert answer.status == 200, url
            assert "payroll" not in answer.text, url
            assert SECRET not in answer.text, url
            assert "billing" in answer.text or url == "/workers", url
            assert "searched" not in answer.text, "the number of all jobs is hidden"
    assert (await request(app, "/schedule?id=payroll.run-nightly")).status == 404


async def test_values_of_schedules_are_redacted(
    world: World, scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await fill(world, scheduler)
    app = build(redact=["token"])
    for headers in ({}, JSON):
        answer = await request(app, "/schedule?id=payroll.run-nightly", headers=headers)
        assert SECRET not in answer.text
        assert "shown" in answer.text


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_rows_are_shown_as_text(text: str, pool: asyncpg.Pool, world: World, app: App) -> None:
    await world.worker(
        text,
        hostname=text,
        version=text,
        identity=text,
        role=text[:20],
        names=[text],
        health={text: text, "loop_lag_s": 1e308, "loop_blocked_s": 1e308},
        settings={text: text},
        metadata={text: text},
        wanted=text,
        state=text,
    )
    await world.paused_task(text[:500], note=text[:500], actor=text[:500])
    await world.job(text[:200], text[:500], status="failed", error_message=text[:200])
    await insert_schedule(pool, text)
    for url in ("/workers", "/tasks", "/errors", "/schedules"):
        answer = await request(app, url)
        assert answer.status == 200
        check(answer.text)
        links = [link for link in Page(answer.text).links() if "id=" in link]
        assert links or url == "/tasks"
        for link in links:
            one = await request(app, link)
            assert one.status == 200, link
            check(one.text)
            json.loads((await request(app, link, headers=JSON)).body)
    assert (await request(app, f"/worker?id={quote(text)}", headers=JSON)).data["item"]["worker"][
        "hostname"
    ] == text


async def insert_schedule(pool: asyncpg.Pool, text: str) -> None:
    now, text = datetime.now(UTC), text[:200]
    values: dict[str, Any] = {
        "schedule_id": text[:250],
        "owner": "api",
        "task": text[:500],
        "trigger": '{"kind": "every", "every": "PT1H"}',
        "described": text,
        "kinds": ["every"],
        "options": "{}",
        "created_at": now,
        "updated_at": now,
        "overlap": "allow",
        "catch_up": "latest",
        "anchor": now,
        "next_fire_at": now + timedelta(hours=1),
        "paused_at": now,
        "note": text,
        "last_job_id": text[:250],
        "task_data": json.dumps({"args": [text], "kwargs": {text: text}}),
        "metadata": json.dumps({text: text}),
    }
    places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
    await pool.execute(
        f"INSERT INTO scheduler_schedules ({', '.join(values)}) VALUES ({places})", *values.values()
    )


@pytest.mark.parametrize(
    ("url", "status", "link", "text"),
    [
        ("/tasks?sort=size", 400, "/tasks", "open the page without its parameters"),
        ("/audit", 403, "/about", "lists what you may do and see"),
        ("/worker?id=gone", 404, "/", "It may have been deleted since"),
    ],
)
async def test_page_of_an_error_states_the_next_step(
    url: str, status: int, link: str, text: str, build: Callable[..., App]
) -> None:
    app = build(authorize=lambda _: Access("bob", names=("shop.*",)))
    answer = await request(app, url)
    page = Page(answer.text)
    assert answer.status == status
    assert text in page.text
    (section,) = [attrs for attrs in page.all("section") if "data-dialog" in attrs]
    assert section["class"] == "card"
    assert link in page.links()
    about = Page((await request(app, "/about")).text).text
    assert "You may" in about
    assert "read only" in about


async def test_about_groups_all_rights_of_the_request_by_what_they_are_about(
    build: Callable[..., App],
) -> None:
    assert {right for rights in RIGHTS_BY_OBJECT.values() for right in rights} == set(get_args(Right))
    operator = build(authorize=lambda _: Access("ada", "operator", can={"retry", "schedule_trigger"}))
    html = (await request(operator, "/about")).text
    rights = re.findall(r"<div><strong>(.*?)</strong>: (.*?)</div>", html)
    assert rights == [("jobs", "retry"), ("schedules", "run now")]
