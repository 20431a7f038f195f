"""Change jobs from their page and from lists: each change happens in the database, with its record."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler.dashboard import Access
from tests.dashboard.client import App, Page, follow, request, send
from tests.dashboard.test_actions import as_role, insert, records, status
from tests.support import inside
from tests.support.hostile_texts import HOSTILE
from tests.support.world import World

FAIL = (
    "UPDATE scheduled_jobs SET status = 'failed', attempt = 1, finished_at = now(), error_message = 'E'"
    " WHERE job_id = $1"
)

RECORDED = {"run": "move_jobs"}


@pytest.fixture
def admin(build: Callable[..., App]) -> App:
    return as_role(build, "admin")


def buttons(html: str) -> set[str | None]:
    """Return the ids of the buttons that send a form of the page, not that of the menu of the user."""
    found = [each for each in Page(html).all("button") if each.get("type") != "button"]
    return {each.get("id") for each in found if each.get("name") != "rows"}


@pytest.mark.parametrize(
    ("action", "before", "after"),
    [
        ("cancel", "pending", "cancelled"),
        ("retry", "failed", "pending"),
        ("run", "pending", "pending"),
        ("move", "pending", "pending"),
        ("delete", "failed", None),
    ],
)
async def test_action_of_the_page_changes_the_job_and_is_recorded(
    action: str, before: str, after: str | None, admin: App, world: World
) -> None:
    await insert(world)
    if before == "failed":
        await world.pool.execute(FAIL, "job")
    page = await request(admin, "/job?id=job")
    assert buttons(page.text) == (
        {"retry", "delete"} if before == "failed" else {"cancel", "run", "move", "delete"}
    )
    fields = {"to": "2031-02-03T04:05", "confirm": "yes"}
    answer = await send(admin, f"/actions/jobs/{action}?id=job", fields)
    assert answer.status == 303, answer.text
    assert await status(world.pool) == after
    assert await records(world.pool) == [("ada", "dashboard", RECORDED.get(action, f"{action}_jobs"), "job")]
    due = await world.pool.fetchval("SELECT execution_time <= now() FROM scheduled_jobs WHERE job_id = 'job'")
    assert due is {"cancel": False, "retry": True, "run": True, "move": False, "delete": None}[action]
    if action == "move":
        time = await world.pool.fetchval("SELECT execution_time::text FROM scheduled_jobs")
        assert str(time).startswith("2031-02-03 04:05:00")
    assert (await follow(admin, answer)).status == 200


async def protect(pool: asyncpg.Pool, job_id: str) -> None:
    """Create a trigger of the application that refuses changes of a job; its message quotes arguments."""
    await pool.execute(f"""
        CREATE FUNCTION protect() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF OLD.job_id = '{job_id}' THEN RAISE 'the invoice of ada is protected'; END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER protect BEFORE UPDATE ON scheduled_jobs FOR EACH ROW EXECUTE FUNCTION protect()
    """)


@pytest.mark.parametrize("sees_arguments", [True, False])
@pytest.mark.parametrize("action", ["cancel", "run", "move"])
async def test_change_that_a_trigger_refuses_is_answered_with_the_reason(
    action: str, sees_arguments: bool, build: Callable[..., App], world: World
) -> None:
    await insert(world)
    await protect(world.pool, "job")
    app = as_role(build, "admin", sees_arguments=sees_arguments)
    answer = await send(app, f"/actions/jobs/{action}?id=job", {"to": "2031-02-03T04:05"})
    assert answer.status == 409
    text = Page(answer.text).text
    assert "trigger or a constraint of the application refused a row (P0001, PL/pgSQL function" in text
    assert ("the invoice of ada is protected" in text) is sees_arguments
    assert (await status(world.pool), await records(world.pool)) == ("pending", [])


async def test_selected_jobs_are_changed_and_others_are_not(
    admin: App, pool: asyncpg.Pool, world: World
) -> None:
    for job_id in ("a", "b", "c"):
        await insert(world, job_id)
    await pool.execute(FAIL, "b")
    page = Page((await request(admin, "/jobs?q=board")).text)
    boxes = [each["value"] for each in page.all("input") if each.get("name") == "row"]
    assert sorted(map(str, boxes)) == ["a", "b", "c"]
    (cancel,) = [each for each in page.all("button") if each.get("id") == "cancel"]
    answer = await send(admin, str(cancel["formaction"]), {"row": ["a", "b", "missing"]})
    assert (answer.headers["location"], answer.did) == ("/jobs?q=any%3A~board", "cancel.1.1.1")
    assert [await status(pool, each) for each in "abc"] == ["cancelled", "failed", "pending"]
    page = Page((await follow(admin, answer)).text)
    assert (
        "1 job cancelled, 1 refused (only pending and running jobs can be cancelled), 1 not found"
        in page.text
    )


async def test_selected_jobs_are_changed_besides_one_that_a_trigger_refuses(
    admin: App, pool: asyncpg.Pool, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for job_id in ("a", "b", "c"):
        await insert(world, job_id)
    await pool.execute(FAIL, "c")
    await protect(pool, "b")
    answer = await send(admin, "/actions/jobs/cancel", {"row": ["a", "b", "c"]})
    assert answer.did == "cancel.1.1.0.1"
    assert [await status(pool, job_id) for job_id in "abc"] == ["cancelled", "pending", "failed"]
    text = Page((await follow(admin, answer)).text).text
    assert "1 job cancelled, 1 refused (only pending and running jobs can be cancelled), 1 failed" in text
    assert "job 'b' is left as it is, no further attempt: a trigger or a constraint" in caplog.text


async def test_page_after_an_action_has_fresh_numbers_in_each_process(
    build: Callable[..., App], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, job_counts_age_s=59.0)
    for job_id in ("a", "b"):
        await insert(world, job_id)

    async def scheduled(app: App, cookie: str = "") -> str:
        answer = await request(app, "/jobs", headers={"cookie": cookie} if cookie else {})
        (number,) = re.findall(r">Scheduled <span[^>]*>([^<]+)<", answer.text)
        return str(number)

    one, other, viewer = as_role(build, "admin"), as_role(build, "admin"), build()
    assert [await scheduled(app) for app in (one, other, viewer)] == ["2", "2", "2"]
    answer = await send(one, "/actions/jobs/cancel?q=board", {"row": ["a"]})
    cookie = answer.headers["set-cookie"].partition(";")[0]
    assert await scheduled(viewer) == "2", "numbers are kept"
    assert await scheduled(one) == "1", "without the message too"
    assert await scheduled(other, cookie) == "1"
    assert await scheduled(viewer, cookie) == "2", "without rights there is no action before"


async def test_deletion_asks_first(admin: App, pool: asyncpg.Pool, world: World) -> None:
    for job_id in ("a", "b"):
        await insert(world, job_id)
    asked = await send(admin, "/actions/jobs/delete?q=board", {"row": ["a", "b", "missing"]})
    page = Page(asked.text)
    assert "Delete these 2 jobs?" in page.text
    assert [await status(pool, each) for each in "ab"] == ["pending", "pending"]
    (form,) = [each for each in page.all("form") if each["method"] == "post"]
    fields = [(each["name"], each["value"]) for each in page.all("input")]
    rows = [value for name, value in fields if name == "row"]
    answer = await send(admin, str(form["action"]), {"row": rows, "confirm": "yes"})
    assert (answer.headers["location"], answer.did) == ("/jobs?q=board", "delete.2.0.0")
    assert [await status(pool, each) for each in "ab"] == [None, None]
    assert (await send(admin, "/actions/jobs/delete?id=a")).status == 404


@pytest.mark.parametrize("action", ["cancel", "retry", "run", "move", "delete"])
async def test_names_restrict_which_jobs_an_action_touches(
    action: str, build: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await insert(world, "mine", "billing.invoice")
    await insert(world, "other", "mail.send")
    if action == "retry":
        await pool.execute(FAIL, "mine")
        await pool.execute(FAIL, "other")
    before = await pool.fetchrow("SELECT * FROM scheduled_jobs WHERE job_id = 'other'")
    app = as_role(build, "admin", names=("billing.*",))
    fields: dict[str, Any] = {"to": "2031-01-01T00:00Z", "confirm": "yes"}
    assert (await send(app, f"/actions/jobs/{action}?id=other", fields)).status == 404
    answer = await send(app, f"/actions/jobs/{action}", {"row": ["mine", "other"], **fields})
    assert (answer.headers["location"], answer.did) == ("/jobs", f"{action}.1.0.1")
    assert await pool.fetchrow("SELECT * FROM scheduled_jobs WHERE job_id = 'other'") == before
    asked = await send(app, "/actions/jobs/delete", {"row": "other"})
    assert asked.status == 404


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_ids_are_changed_by_the_forms_of_the_pages(
    text: str, build: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    job_id = text[:255]
    await insert(world, job_id)
    app = build(authorize=lambda _: Access(text[:100], "admin"))
    page = Page((await request(app, "/jobs")).text)
    (box,) = [each["value"] for each in page.all("input") if each.get("name") == "row"]
    answer = await send(app, "/actions/jobs/cancel", {"row": box})
    assert (answer.headers["location"], answer.did) == ("/jobs", "cancel.1.0.0")
    page = Page((await request(app, f"/job?id={quote(job_id)}")).text)
    (retry,) = [each["action"] for each in page.all("form") if "retry" in str(each["action"])]
    assert (await send(app, str(retry))).status == 303
    assert await status(pool, job_id) == "pending"
    assert [each[0] for each in await records(pool)] == [text[:100]] * 2


@pytest.mark.parametrize("to", ["", "soon", "2031-13-01", "0001-01-01T00:00+14:00"])
async def test_wrong_time_moves_nothing(to: str, admin: App, pool: asyncpg.Pool, world: World) -> None:
    await insert(world)
    assert (await send(admin, "/actions/jobs/move?id=job", {"to": to})).status == 400
    assert await records(pool) == []
