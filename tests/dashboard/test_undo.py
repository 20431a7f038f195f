"""The button "Undo" beside the message of an action: what it restores, and when it is not there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from pg_scheduler.triggers import Every
from tests.dashboard.client import Answer, App, Page, follow, request, send
from tests.dashboard.test_actions import as_role, records
from tests.support.world import HOUR, MINUTE, World

TASK = "SELECT paused_at IS NOT NULL AS is_paused, paused_until, note FROM scheduler_tasks"
JOB = "SELECT execution_time, expires_at, status FROM scheduled_jobs WHERE job_id = 'job'"
SCHEDULE = """
SELECT paused_at IS NULL AS is_active, next_fire_at, resume_from, failures, note FROM scheduler_schedules
"""


@pytest.fixture
def operator(build: Callable[..., App]) -> App:
    return as_role(build, "operator")


async def form_of(app: App, answer: Answer) -> tuple[str, Mapping[str, list[str]]] | None:
    """Return the address and the fields of "Undo" on the page to which an action leads; None without it."""
    assert answer.status == 303, answer.text
    shown = await follow(app, answer)
    assert 'id="message"' in shown.text
    elements = Page(shown.text).elements
    if not any(attrs.get("id") == "undo" for _, attrs in elements):
        return None
    start = next(place for place, (_, attrs) in enumerate(elements) if attrs.get("id") == "message")
    form = next(place for place, (tag, _) in enumerate(elements) if tag == "form" and place > start)
    fields: dict[str, list[str]] = {}
    for tag, attrs in elements[form + 1 :]:
        if tag != "input":
            break
        fields.setdefault(str(attrs["name"]), []).append(attrs["value"] or "")
    return str(elements[form][1]["action"]), fields


async def undo(app: App, answer: Answer) -> Answer:
    """Press "Undo"."""
    found = await form_of(app, answer)
    assert found is not None
    url, fields = found
    return await send(app, url, fields)


async def add(scheduler: Scheduler, schedule_id: str = "hourly") -> None:
    await scheduler.schedules.add("board.mail", Every(HOUR), schedule_id=schedule_id)


# -- tasks ---------------------------------------------------------------------------------------------


async def test_pause_of_a_task_is_undone(operator: App, pool: asyncpg.Pool, world: World) -> None:
    await world.worker(names=["board.mail"])
    answer = await send(operator, "/actions/tasks/pause?id=board.mail", {"note": "wrong task"})
    back = await undo(operator, answer)
    assert (back.headers["location"], back.did) == ("/task?id=board.mail", "task_resumed")
    row = await pool.fetchrow(TASK)
    assert row is None or not row["is_paused"]
    assert [action for _, _, action, _ in await records(pool)] == ["pause_task", "resume_task"]


@pytest.mark.parametrize("until", [None, datetime.now(UTC).replace(microsecond=123456) + HOUR])
@pytest.mark.parametrize("action", ["resume", "pause"])
async def test_pause_of_a_task_is_restored_with_its_note_and_its_end(
    action: str, until: datetime | None, operator: App, scheduler: Scheduler, world: World
) -> None:
    await world.worker(names=["board.mail"])
    await scheduler.tasks.pause("board.mail", until=until, note='the "server" <b>is</b> down; #7 & more~')
    before = await world.pool.fetchrow(TASK)
    answer = await send(operator, f"/actions/tasks/{action}?id=board.mail", {"note": "another one"})
    assert await world.pool.fetchrow(TASK) != before
    await undo(operator, answer)
    assert await world.pool.fetchrow(TASK) == before


async def test_task_that_was_not_paused_has_nothing_to_restore(operator: App, world: World) -> None:
    await world.worker(names=["board.mail"])
    answer = await send(operator, "/actions/tasks/resume?id=board.mail")
    assert answer.did == "task_not_paused"
    assert await form_of(operator, answer) is None


@pytest.mark.parametrize("note", ["right \u202e to left", "x" * 2000])
async def test_note_that_a_form_cannot_carry_is_not_restored(
    note: str, operator: App, scheduler: Scheduler
) -> None:
    await scheduler.tasks.pause("board.mail", note=note)
    answer = await send(operator, "/actions/tasks/resume?id=board.mail")
    assert len(answer.headers["set-cookie"]) < 4096
    assert await form_of(operator, answer) is None


# -- schedules -----------------------------------------------------------------------------------------


async def test_pause_of_a_schedule_is_undone_with_the_fire_times_since(
    operator: App, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    await add(scheduler)
    answer = await send(operator, "/actions/schedules/pause?id=hourly", {"note": "wrong one"})
    await pool.execute("UPDATE scheduler_schedules SET next_fire_at = now() - interval '1 s'")  # it passes
    before = await pool.fetchrow(SCHEDULE)
    assert before is not None
    await undo(operator, answer)
    after = await pool.fetchrow(SCHEDULE)
    assert after is not None
    assert dict(after) == {**dict(before), "is_active": True, "note": None}, "the planner fires it"
    again = await send(operator, "/actions/schedules/resume?id=hourly")
    assert await form_of(operator, again) is None, "it was not paused"


async def test_resumed_schedule_is_paused_again_unless_a_fire_time_was_dropped(
    operator: App, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    await add(scheduler)
    await scheduler.schedules.pause("hourly", note="stocktaking")
    before = await pool.fetchrow(SCHEDULE)
    await undo(operator, await send(operator, "/actions/schedules/resume?id=hourly"))
    assert await pool.fetchrow(SCHEDULE) == before
    await pool.execute("UPDATE scheduler_schedules SET next_fire_at = now() - interval '1 s'")
    answer = await send(operator, "/actions/schedules/resume?id=hourly", {"from": "now"})
    assert await form_of(operator, answer) is None


@pytest.mark.parametrize("at_end", ["now", "pause"])
@pytest.mark.parametrize("action", ["resume", "pause"])
async def test_pause_of_a_schedule_is_restored_with_its_end(
    action: str, at_end: Literal["now", "pause"], operator: App, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    await add(scheduler)
    until = datetime.now(UTC).replace(microsecond=123456) + HOUR
    await scheduler.schedules.pause("hourly", note="stocktaking", until=until, resume_from=at_end)
    before = await scheduler.schedules.get("hourly")
    answer = await send(operator, f"/actions/schedules/{action}?id=hourly", {"note": "for ever"})
    changed = await scheduler.schedules.get("hourly")
    assert changed is not None
    assert changed.paused_until is None
    await undo(operator, answer)
    after = await scheduler.schedules.get("hourly")
    assert before is not None
    assert after is not None
    assert (after.paused_until, after.keeps_fire_times) == (until, at_end == "pause")
    assert (after.note, after.next_fire_at) == ("stocktaking", before.next_fire_at)
    again = await send(operator, "/actions/schedules/pause?id=hourly", {"until": f"{until.isoformat()}"})
    assert await form_of(operator, again) is None, "it was paused until then"


@pytest.mark.parametrize("rows", ["", "&row"])
async def test_schedule_whose_failures_would_be_forgotten_has_no_undo(
    rows: str, operator: App, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    await scheduler.schedules.add("board.mail", Every(HOUR), schedule_id="hourly", pause_after_failures=3)
    await pool.execute("UPDATE scheduler_schedules SET failures = 2")
    url = "/actions/schedules/pause" + ("" if rows else "?id=hourly")
    answer = await send(operator, url, {"row": "hourly"})
    assert await form_of(operator, answer) is None


async def test_pause_of_several_schedules_is_undone_in_their_list(
    operator: App, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    ids = ["a/1 &b~#?", "second", "третий"]
    for each in [*ids, "other"]:
        await add(scheduler, each)
    await scheduler.schedules.pause("other", note="for months")
    rows = [quote(each, safe="") for each in [*ids, "other"]]
    answer = await send(operator, "/actions/schedules/pause?state=active&q=board", {"row": rows})
    assert answer.did == "schedules_pause.3.1.0"
    back = await undo(operator, answer)
    assert (back.headers["location"], back.did) == (
        "/schedules?state=active&q=board",
        "schedules_resume.3.0.0",
    )
    paused = await pool.fetch("SELECT schedule_id FROM scheduler_schedules WHERE paused_at IS NOT NULL")
    assert [each["schedule_id"] for each in paused] == ["other"]


async def test_more_schedules_than_a_cookie_holds_have_no_undo(
    operator: App, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    rows = [f"{'x' * 60}-{number}" for number in range(40)]
    for each in rows:
        await add(scheduler, each)
    answer = await send(operator, "/actions/schedules/pause", {"row": rows})
    assert answer.did == "schedules_pause.40.0.0"
    assert await form_of(operator, answer) is None


# -- jobs ----------------------------------------------------------------------------------------------


async def insert(world: World, delay: timedelta) -> None:
    await world.job("job", "board.mail", due=delay, misfire_grace_time=600, expires_at=delay + 10 * MINUTE)


async def test_job_is_moved_back_to_the_microsecond(operator: App, pool: asyncpg.Pool, world: World) -> None:
    await insert(world, HOUR)
    before = await pool.fetchrow(JOB)
    answer = await send(operator, "/actions/jobs/move?id=job", {"to": "2040-01-01T00:00"})
    assert await pool.fetchrow(JOB) != before
    back = await undo(operator, answer)
    assert (back.headers["location"], back.did) == ("/job?id=job", "move.1.0.0")
    assert await pool.fetchrow(JOB) == before


@pytest.mark.parametrize(
    ("action", "delay"), [("move", -HOUR), ("run", HOUR), ("cancel", HOUR), ("delete", HOUR)]
)
async def test_change_without_an_inverse_has_no_undo(
    action: str, delay: timedelta, build: Callable[..., App], world: World
) -> None:
    await insert(world, delay)
    admin = as_role(build, "admin")
    fields = {"to": "2040-01-01T00:00", "confirm": "yes"}
    assert await form_of(admin, await send(admin, f"/actions/jobs/{action}?id=job", fields)) is None


# -- the message ---------------------------------------------------------------------------------------


async def cookie_of(app: App, scheduler: Scheduler) -> tuple[str, str]:
    """Return the name and the value of the cookie of a message with "Undo"."""
    await add(scheduler)
    answer = await send(app, "/actions/schedules/pause?id=hourly")
    name, _, value = answer.headers["set-cookie"].partition(";")[0].partition("=")
    return name, value


async def test_undo_is_offered_once_and_only_with_its_right(
    operator: App, build: Callable[..., App], scheduler: Scheduler
) -> None:
    name, value = await cookie_of(operator, scheduler)
    cookie = {"cookie": f"{name}={value}"}
    url = "/schedule?id=hourly"
    shown = await request(operator, url, headers=cookie)
    assert 'id="undo"' in shown.text
    assert "Max-Age=0" in shown.headers["set-cookie"]
    assert 'id="undo"' not in (await request(operator, url)).text
    for app in (as_role(build, "viewer"), as_role(build, "operator", can={"retry"})):
        text = (await request(app, url, headers=cookie)).text
        assert "the schedule is paused" in text
        assert 'id="undo"' not in text
        assert (await send(app, "/actions/schedules/resume?id=hourly", {"from": "pause"})).status == 403
    read_only = build(authorize=lambda _: Access("ada", "admin"), read_only=True)
    assert 'id="undo"' not in (await request(read_only, url, headers=cookie)).text


@pytest.mark.parametrize(
    "forged",
    [
        "/actions/jobs/delete?id=job#confirm=yes",
        "https://evil.example/actions/tasks/pause?id=x",
        "//evil.example/actions/jobs/move#to=now",
        "javascript:alert(1)",
        "/actions/tasks/../jobs/delete?id=job",
        "",
        "%",
        "x" * 3000,
    ],
)
async def test_forged_cookie_leads_to_no_other_action(
    forged: str, build: Callable[..., App], scheduler: Scheduler
) -> None:
    admin = as_role(build, "admin")
    name, value = await cookie_of(admin, scheduler)
    code, _, real = value.partition("~")
    assert dict(parse_qsl(unquote(real).partition("#")[2])) == {"from": "pause"}
    cookie = {"cookie": f"{name}={code}~{quote(forged, safe='')}"}
    answer = await request(admin, "/schedules", headers=cookie)
    assert answer.status == 200
    assert "the schedule is paused" in answer.text
    assert 'id="undo"' not in answer.text


# -- the job of a message ------------------------------------------------------------------------------


async def job_links(app: App, answer: Answer) -> list[str]:
    """Return the links of the message on the page to which an action leads."""
    elements = Page((await follow(app, answer)).text).elements
    start = next(place for place, (_, attrs) in enumerate(elements) if attrs.get("id") == "message")
    end = next(place for place, (tag, _) in enumerate(elements) if tag in {"h1", "nav"} and place > start)
    return [str(attrs["href"]) for tag, attrs in elements[start:end] if tag == "a" and "href" in attrs]


async def test_message_about_one_job_links_to_it(
    operator: App, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    await add(scheduler)
    answer = await send(operator, "/actions/schedules/trigger?id=hourly")
    (job_id,) = [row["job_id"] for row in await pool.fetch("SELECT job_id FROM scheduled_jobs")]
    assert await job_links(operator, answer) == [f"/job?id={quote(job_id)}"]
    for name in ("a~!b", "c"):
        await scheduler.enqueue("board.mail", job_id=name)
    one = await send(operator, "/actions/jobs/cancel", {"row": quote("a~!b", safe="")})
    assert one.did == "cancel.1.0.0"
    assert await job_links(operator, one) == ["/job?id=a~%21b"]
    for rows in (["a~!b", "c"], ["gone"]):
        other = await send(operator, "/actions/jobs/retry", {"row": [quote(each, safe="") for each in rows]})
        assert await job_links(operator, other) == [], rows
