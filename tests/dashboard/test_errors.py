"""The pages of errors: groups by state, in the chosen order, and the page of a group."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler import JobStatus
from pg_scheduler.dashboard import Access
from pg_scheduler.dashboard.pages.errors import error_text
from tests.dashboard.client import JSON, App, Page, request, send
from tests.dashboard.test_hostile import check, insert
from tests.support import inside
from tests.support.errors import count_since
from tests.support.hostile_texts import HOSTILE
from tests.support.inside import quarantine_error
from tests.support.world import DAY, HOUR, MINUTE, SECOND, World

GATEWAY = "UpstreamError: 502 Bad Gateway in 31 ms"
TRACEBACK = 'Traceback (most recent call last):\n  File "app/web.py", line 7, in call\n' + GATEWAY


async def add_job(world: World, job_id: str, error: str, minutes: int = 1, **columns: Any) -> None:
    """Insert a job that failed some minutes ago."""
    failure = {"name": "errors.call", "status": "failed", "error_message": error, "task_data": "{}"}
    ended = -minutes * MINUTE
    await world.job(job_id, **{**failure, "started": ended - 2 * SECOND, "ended": ended, **columns})


async def fingerprint_of(app: App, text: str, **parameters: str) -> str:
    query = "&".join(f"{key}={value}" for key, value in parameters.items())
    items = (await request(app, f"/errors?{query}", headers=JSON)).data["items"]
    return next(str(each["fingerprint"]) for each in items if text in each["text"])


# -- the list ------------------------------------------------------------------------------------------


async def test_groups_have_tabs_by_state(world: World, app: App) -> None:
    await add_job(world, "a", GATEWAY)
    await add_job(world, "b", "quarantined: 3 workers died while they ran this job.")
    await add_job(world, "c", "not started in time", status="expired")
    await add_job(world, "d", "cancelled by ada", status="cancelled")
    for state, text in (
        ("failed", "UpstreamError: 502 Bad Gateway in # ms"),
        ("quarantined", "quarantined: # workers died while they ran this job."),
        ("expired", "not started within its misfire grace time"),
    ):
        data = (await request(app, f"/errors?state={state}", headers=JSON)).data
        assert [each["text"] for each in data["items"]] == [text]
        states = ("failed", "expired", "quarantined")
        assert data["counts"] == dict.fromkeys(states, 1) | {"muted": 0}
    default = (await request(app, "/errors", headers=JSON)).data
    assert default["state"] == "failed"
    assert default["total"] == "3 groups, 3 failures", "what a person cancelled is no error"
    assert (await request(app, "/errors?state=cancelled")).status == 400
    page = Page((await request(app, "/errors")).text)
    assert {"/errors?state=quarantined&since=1d&sort=jobs"} <= set(page.links())
    assert (await request(app, "/errors?state=lost")).status == 400


async def test_groups_are_sorted_by_the_parameter_of_the_address(world: World, app: App) -> None:
    await add_job(world, "a1", "First: x", 30)
    await add_job(world, "a2", "First: x", 20)
    await add_job(world, "b1", "Second: x", 10, name="errors.after")
    for sort, kinds in (
        ("jobs", ["First: x", "Second: x"]),
        ("newest", ["Second: x", "First: x"]),
        ("first", ["Second: x", "First: x"]),
        ("task", ["Second: x", "First: x"]),
    ):
        items = (await request(app, f"/errors?sort={sort}", headers=JSON)).data["items"]
        assert [each["text"] for each in items] == kinds, sort
    assert (await request(app, "/errors?sort=size")).status == 400


async def test_row_of_a_group_has_two_lines_and_a_menu(world: World, build: Callable[..., App]) -> None:
    await add_job(world, "a", GATEWAY)
    app = build(authorize=lambda _: Access("ada", "operator"))
    page = Page((await request(app, "/errors")).text)
    text = " ".join(page.text.split())
    assert "UpstreamError 502 Bad Gateway in # ms errors.call" in text
    rows = [each for each in page.all("tr") if "data-key" in each]
    assert [each["data-key"] for each in rows] == [await fingerprint_of(app, "Upstream")]
    assert {f"/error?id={rows[0]['data-key']}&since=1d", "/task?id=errors.call"} <= set(page.links())
    search = next(each for each in page.links() if each.startswith("/jobs?q=status"))
    assert [each["job_id"] for each in (await request(app, search, headers=JSON)).data["items"]] == ["a"]
    (retry,) = [each for each in page.all("button") if str(each.get("id")).startswith("retry-")]
    (form,) = [each for each in page.all("form") if str(each.get("action")).startswith("/actions/errors/")]
    assert retry["form"] == form["id"], "it is beside the menu that has its form"
    viewer = Page((await request(build(), "/errors")).text)
    assert not [each for each in viewer.all("button") if str(each.get("id")).startswith("retry-")]


async def test_trend_of_a_day_ends_now(world: World, app: App) -> None:
    await add_job(world, "a", GATEWAY, minutes=90)
    await add_job(world, "b", GATEWAY, minutes=12 * 60 + 1)
    (group,) = (await request(app, "/errors?since=1d", headers=JSON)).data["items"]
    now = await world.pool.fetchval("SELECT now()")
    hours = [
        int(now.timestamp() // 3600 - (now - age).timestamp() // 3600)
        for age in (12 * HOUR + MINUTE, 90 * MINUTE)
    ]
    assert [place for place, count in enumerate(group["history"]) if count] == [24 - hour for hour in hours]


async def test_errors_without_groups_say_so(app: App) -> None:
    text = Page((await request(app, "/errors")).text).text
    assert "No job failed or expired in this period." in text
    assert "pg-scheduler jobs errors" in text
    assert "0 groups, 0 failed jobs in the last day" in text


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (GATEWAY, "UpstreamError", "502 Bad Gateway in 31 ms"),
        ("acme.errors.Declined: card", "Declined", "card"),
        ("KeyError", "KeyError", ""),
        ("quarantined: 3 workers died", "Quarantined", "3 workers died"),
        (quarantine_error(3), "Quarantined", "3 workers died while they ran this job"),
        ("not started in time", "", "not started in time"),
        ("", "", ""),
    ],
)
def test_error_is_split_into_its_class_and_message(text: str, kind: str, message: str) -> None:
    assert error_text(text) == (kind, message)


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("; the task shop.mail was paused", "the task shop.mail was paused"),
        ("", "not started in time"),
    ],
)
async def test_group_of_expired_jobs_is_titled_by_its_state(
    reason: str, message: str, pool: asyncpg.Pool, world: World, app: App
) -> None:
    error = f"not started between 2030-01-01 12:00:00 and 2030-01-01 12:00:10 UTC{reason}"
    await add_job(world, "a", error, status="expired")
    await world.worker(names=["errors.call"])
    group = await fingerprint_of(app, "not started", state="expired")
    for url in ("/errors?state=expired", "/", "/task?id=errors.call"):
        page = Page((await request(app, url)).text)
        assert f"Expired {message}" in " ".join(page.text.split()), url
        assert "#-#-#" not in page.text, url
    data = (await request(app, f"/error?id={group}", headers=JSON)).data
    assert (data["kind"], data["message"]) == ("Expired", message)
    assert "<h1>Expired</h1>" in (await request(app, f"/error?id={group}")).text
    unexplained = error_text("not started within its misfire grace time", JobStatus.EXPIRED)
    assert unexplained == ("Expired", "not started within its misfire grace time")


# -- a group -------------------------------------------------------------------------------------------


async def add_group(world: World) -> None:
    """Add three failed jobs of a group, two workers and two releases, and a job of another group."""
    await world.worker("w1", identity="node-1", metadata={"release": "v2"})
    for release, age in (("v1", 10 * HOUR), ("v2", HOUR)):
        await world.audit("start_release", release, at=-age, actor="w", via="worker")
    error = {"attempt": 1, "outcome": "error", "error_type": "UpstreamError", "traceback": TRACEBACK}
    for number, worker in enumerate(("w1", "w1", "gone")):
        data = {
            "args": [number],
            "kwargs": {"source": "sap.eu", "card": "visa 4711", "deep": {"x": 1}},
            "metadata": {"tags": ["eu"]},
        }
        await add_job(
            world,
            f"job-{number}",
            GATEWAY.replace("31", str(number)),
            minutes=5 + number,
            worker_id=worker,
            task_data=data,
            errors=[error],
        )
    await count_since(world.pool)
    await world.pool.execute("UPDATE scheduler_error_groups SET first_release = 'v2'")
    await add_job(world, "other", "UpstreamError: 404 Not Found in 7 ms")


async def test_page_of_a_group_has_its_traceback_and_what_its_jobs_share(
    world: World, build: Callable[..., App]
) -> None:
    await add_group(world)
    app = build(redact=["card"])
    url = f"/error?id={await fingerprint_of(app, '502')}"
    data = (await request(app, url, headers=JSON)).data
    assert (data["kind"], data["message"]) == ("UpstreamError", "502 Bad Gateway in # ms")
    assert (data["sampled"], data["traceback"], data["new_in"]) == (3, TRACEBACK, "v2")
    assert data["releases"] == [{"label": "v2", "jobs": 3, "worker_id": None}]
    assert data["workers"] == [
        {"label": "node-1", "jobs": 2, "worker_id": "w1"},
        {"label": "gone", "jobs": 1, "worker_id": "gone"},
    ]
    assert [each["label"] for each in data["values"]] == ["source = sap.eu"], "neither hidden nor different"
    assert [each["label"] for each in data["tags"]] == ["eu"]
    assert [each["job_id"] for each in data["jobs"]] == ["job-0", "job-1", "job-2"]
    assert "visa 4711" not in data["jobs"][1]["arguments"]
    assert data["jobs"][1]["ran_s"] == 2.0
    page = Page((await request(app, url)).text)
    assert "app/web.py" in page.text
    assert "ArgumentsRanEnded" in page.text
    assert "visa 4711" not in page.text
    assert {"/job?id=job-0", "/worker?id=w1", "/task?id=errors.call"} <= set(page.links())
    found = (await request(app, f"/jobs?q={quote(data['where'])}", headers=JSON)).data["items"]
    assert {each["job_id"] for each in found} == {"job-0", "job-1", "job-2"}


async def test_page_of_a_group_hides_what_its_list_hides(world: World, build: Callable[..., App]) -> None:
    await add_group(world)
    fingerprint = await fingerprint_of(build(), "502")
    blind = build(authorize=lambda _: Access("bob", sees_arguments=False))
    for headers in ({}, JSON):
        answer = await request(blind, f"/error?id={fingerprint}", headers=headers)
        assert answer.status == 200
        assert "sap.eu" not in answer.text
        assert "visa 4711" not in answer.text
        assert "errors/retry" not in answer.text
    other = build(authorize=lambda _: Access("eve", names=("billing.*",)))
    assert (await request(other, f"/error?id={fingerprint}")).status == 404
    for query in ("", "?id=unknown"):
        assert (await request(blind, f"/error{query}")).status in {400, 404}


async def test_page_of_a_group_retries_the_jobs_that_it_counted(
    world: World, build: Callable[..., App]
) -> None:
    await add_group(world)
    app = build(authorize=lambda _: Access("ada", "operator"))
    page = Page((await request(app, f"/error?id={await fingerprint_of(app, '502')}")).text)
    (form,) = [str(each["action"]) for each in page.all("form") if "errors/retry" in str(each["action"])]
    assert "group=" in form
    names = [each["name"] for each in page.all("input") if each.get("name") in {"last", "rate"}]
    assert names == ["last"], "the question that follows asks for the rate"
    question = Page((await send(app, form, {"last": datetime.now(UTC).isoformat()})).text)
    assert [field["name"] for field in question.all("input") if field.get("name") == "rate"] == ["rate"]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_page_of_a_hostile_group_shows_text(text: str, app: App, world: World) -> None:
    await insert(world, 1, text)
    (group,) = (await request(app, "/errors", headers=JSON)).data["items"]
    answer = await request(app, f"/error?id={group['fingerprint']}")
    assert answer.status == 200
    check(answer.text)
    data = (await request(app, f"/error?id={group['fingerprint']}", headers=JSON)).data
    assert data["traceback"] == text


# -- releases ------------------------------------------------------------------------------------------


async def test_error_of_before_a_release_is_not_new_in_it_in_any_period(world: World, app: App) -> None:
    """The error has occurred for five days, the release for two."""
    await count_since(world.pool)
    for release, days in (("v1", 6), ("v2", 2)):
        await world.audit("start_release", release, at=-days * DAY, actor="w", via="worker")
    for number, (release, age) in enumerate((("v1", 5 * DAY), ("v2", 20 * MINUTE))):
        await world.worker(f"w{number}", metadata={"release": release})
        await add_job(world, f"old-{number}", GATEWAY, int(age / MINUTE), worker_id=f"w{number}")
    await add_job(world, "new", "Late: x", 30, worker_id="w1", name="errors.late")
    for since in ("1h", "1d", "7d", "all"):
        data = (await request(app, f"/errors?since={since}", headers=JSON)).data
        groups = {group["job_name"]: group for group in data["items"]}
        assert data["new_in"].get(groups["errors.late"]["fingerprint"]) == "v2", since
        old = groups["errors.call"]
        assert old["fingerprint"] not in data["new_in"], since
        assert (old["first_release"], old["count"]) == ("v1", 2 if since in {"7d", "all"} else 1)
        page = (await request(app, f"/error?id={old['fingerprint']}&since={since}", headers=JSON)).data
        assert page["new_in"] is None, since


async def test_release_that_ran_before_errors_were_counted_has_no_new_errors(world: World, app: App) -> None:
    """The error may be older than the counts."""
    await world.audit("start_release", "v2", at=-HOUR, actor="w", via="worker")
    await world.worker("w1", metadata={"release": "v2"})
    await add_job(world, "a", GATEWAY, worker_id="w1")
    data = (await request(app, "/errors", headers=JSON)).data
    assert (data["items"][0]["first_release"], data["new_in"]) == ("v2", {})
    assert data["counted_since"] is not None
    assert "Errors are counted since" in (await request(app, "/errors")).text


# -- bounds --------------------------------------------------------------------------------------------


async def test_numbers_of_a_list_that_is_cut_have_a_plus(
    world: World, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, shown_error_groups=2)
    for number in range(3):
        await add_job(world, f"job-{number}", f"Error{chr(65 + number)}: x", number + 1)
    data = (await request(app, "/errors", headers=JSON)).data
    assert (data["total"], data["is_capped"]) == ("2+ groups, 2+ failures", True)
    assert "Failed 2+" in " ".join(Page((await request(app, "/errors")).text).text.split())


async def test_head_counts_the_groups_and_jobs_of_the_tab(world: World, app: App) -> None:
    for number, error in enumerate(("KeyError: 'a'", "KeyError: 'a'", "ValueError: no")):
        await world.job(f"j{number}", "errors.call", status="failed", ended=-MINUTE, error_message=error)
    await world.job(
        "late", "errors.call", status="expired", ended=-MINUTE, error_message="not started in time"
    )
    for state, head in (
        ("failed", "2 groups, 3 failed jobs in the last day"),
        ("expired", "1 group, 1 expired job in the last day"),
        ("quarantined", "0 groups, 0 quarantined jobs in the last day"),
        ("muted", "0 groups, 0 failed jobs in the last day"),
    ):
        assert head in Page((await request(app, f"/errors?state={state}")).text).text
