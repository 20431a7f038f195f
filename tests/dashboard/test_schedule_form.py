"""Preview, add and edit schedules by a form, and read the triggers that people write in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.triggers import Cron, Every
from tests.dashboard.client import App, Page, request, send
from tests.dashboard.test_actions import as_role, records
from tests.dashboard.test_hostile import HOSTILE, LONG, check
from tests.inspect.workers import add_worker

HOUR = timedelta(hours=1)
ADD = "/actions/schedules/add"
UPDATE = "/actions/schedules/update?id=mine"
FIELDS = {"task": "board.mail", "schedule_id": "mine", "trigger": "0 8 * * 1-5", "timezone": "Europe/Berlin"}


@pytest.fixture
async def admin(build: Callable[..., App], pool: asyncpg.Pool) -> App:
    await add_worker(pool, names=["board.mail", "billing.invoice"])
    return as_role(build, "admin")


def entered(html: str) -> dict[str, Any]:
    return {str(each["name"]): each.get("value") for each in Page(html).all("input")}


# -- the form ------------------------------------------------------------------------------------------


async def test_schedule_is_previewed_added_and_edited(
    admin: App, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    assert "add-schedule" in {
        each.get("id") for each in Page((await request(admin, "/schedules")).text).all("a")
    }
    page = Page((await request(admin, "/schedule-form")).text)
    assert [each["value"] for each in page.all("option")] == ["billing.invoice", "board.mail"]
    shown = Page((await send(admin, "/actions/schedules/preview", FIELDS)).text)
    assert "at 08:00 on Monday to Friday" in shown.text
    assert shown.text.count("08:00:00 CE") == 20
    assert await scheduler.schedules.get("mine") is None
    fields = {**FIELDS, "kwargs": '{"tenant": 7}', "max_runs": "5", "end": "2099-01-01T00:00"}
    answer = await send(admin, ADD, fields)
    assert (answer.headers["location"], answer.did) == ("/schedule?id=mine", "schedule_added")
    schedule = await scheduler.schedules.get("mine")
    assert schedule is not None
    assert schedule.trigger == Cron("0 8 * * 1-5", timezone="Europe/Berlin")
    assert (schedule.task, schedule.kwargs, schedule.max_runs) == ("board.mail", {"tenant": 7}, 5)
    edit = await request(admin, "/schedule-form?id=mine")
    assert entered(edit.text)["trigger"] == "0 8 * * 1-5"
    changed = {**entered(edit.text), "trigger": "every 15m", "task": "billing.invoice", "kwargs": "{}"}
    answer = await send(admin, UPDATE, changed)
    assert (answer.headers["location"], answer.did) == ("/schedule?id=mine", "schedule_updated")
    after = await scheduler.schedules.get("mine")
    assert after is not None
    assert (after.trigger, after.end, after.max_runs) == (Every(minutes=15), schedule.end, 5)
    assert (after.task, after.kwargs) == ("board.mail", {"tenant": 7}), "the form edits neither"
    stale = await send(admin, UPDATE, changed)
    assert stale.status == 409
    assert "changed meanwhile" in stale.text
    assert entered(stale.text)["trigger"] == "every 15m", "what was entered is kept"
    assert await records(pool) == [
        ("ada", "dashboard", "add_schedule", "mine"),
        ("ada", "dashboard", "update_schedule", "mine"),
    ]


async def test_unchanged_fields_keep_their_exact_values(
    admin: App, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    await scheduler.schedules.add("board.mail", Every(HOUR) | Cron("0 8 * * *"), schedule_id="mine")
    await pool.execute("UPDATE scheduler_schedules SET start_at = '2020-01-01T00:00:00.123456Z'")
    before = await scheduler.schedules.get("mine")
    fields = entered((await request(admin, "/schedule-form?id=mine")).text)
    assert (await send(admin, UPDATE, {**fields, "max_runs": "9"})).status == 303
    after = await scheduler.schedules.get("mine")
    assert before is not None
    assert after is not None
    assert (after.trigger, after.start, after.next_fire_at) == (
        before.trigger,
        before.start,
        before.next_fire_at,
    )
    assert after.max_runs == 9


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"trigger": ""}, "enter a trigger"),
        ({"trigger": "every minute"}, "write a length"),
        ({"trigger": "61 * * * *"}, "61"),
        ({"timezone": "Nowhere/City"}, "Nowhere"),
        ({"start": "soon"}, "start must be a time"),
        ({"start": "2031-01-02", "end": "2031-01-01"}, "end"),
        ({"max_runs": "0"}, "max_runs"),
        ({"max_runs": "-1"}, "whole number"),
    ],
)
async def test_wrong_definition_is_rejected_with_what_was_entered(
    fields: dict[str, str], text: str, admin: App, scheduler: Scheduler
) -> None:
    answer = await send(admin, ADD, {**FIELDS, **fields})
    assert answer.status == 400
    page = Page(answer.text)
    assert "problem" in {each.get("id") for each in page.all("p")}
    assert text in page.text
    assert entered(answer.text)["schedule_id"] == "mine"
    assert await scheduler.schedules.get("mine") is None
    await scheduler.schedules.add("board.mail", Every(HOUR), schedule_id="mine")
    version = {"version": "1", "trigger": "every 1h", "timezone": "UTC"}
    assert (await send(admin, UPDATE, {**version, **fields})).status == 400
    schedule = await scheduler.schedules.get("mine")
    assert schedule is not None
    assert schedule.version == 1


@pytest.mark.parametrize(
    "kwargs", ["[]", "7", "{", '{"a":' * 20_000, '{"a": "' + "x" * 100_001 + '"}', '{"a": NaN}']
)
async def test_wrong_arguments_are_rejected(kwargs: str, admin: App, scheduler: Scheduler) -> None:
    assert (await send(admin, ADD, {**FIELDS, "kwargs": kwargs})).status == 400
    assert await scheduler.schedules.get("mine") is None


async def test_arguments_must_fit_the_task(admin: App, scheduler: Scheduler) -> None:
    async def mail(tenant: int) -> None: ...

    scheduler.register(mail, name="board.mail")
    answer = await send(admin, ADD, {**FIELDS, "kwargs": json.dumps({"wrong": 1})})
    assert answer.status == 400
    assert "tenant" in answer.text


async def test_new_schedule_has_a_claimed_visible_task(
    admin: App, build: Callable[..., App], scheduler: Scheduler
) -> None:
    limited = as_role(build, "admin", names=("billing.*",))
    page = Page((await request(limited, "/schedule-form")).text)
    assert [each["value"] for each in page.all("option")] == ["billing.invoice"]
    for app, task in ((limited, "board.mail"), (admin, "board.unknown"), (admin, "")):
        assert (await send(app, ADD, {**FIELDS, "task": task})).status == 400
    await scheduler.schedules.add("board.mail", Every(HOUR), schedule_id="mine")
    for url in (UPDATE, "/actions/schedules/preview?id=mine"):
        assert (await send(limited, url, {"trigger": "every 5m", "version": "1"})).status == 404
    assert (await request(limited, "/schedule-form?id=mine")).status == 404
    taken = await send(admin, ADD, FIELDS)
    assert taken.status == 409
    assert "exists" in taken.text


async def test_schedule_of_code_is_not_edited(admin: App, scheduler: Scheduler, pool: asyncpg.Pool) -> None:
    await scheduler.schedules.add("board.mail", Every(HOUR), schedule_id="mine")
    await pool.execute("UPDATE scheduler_schedules SET owner = 'code'")
    assert "schedule-form" not in (await request(admin, "/schedule?id=mine")).text
    answer = await send(admin, UPDATE, {"trigger": "every 5m", "version": "1"})
    assert answer.status == 409
    schedule = await scheduler.schedules.get("mine")
    assert schedule is not None
    assert schedule.trigger == Every(HOUR)


@pytest.mark.parametrize("text", [*HOSTILE, LONG], ids=range(len(HOSTILE) + 1))
async def test_hostile_text_of_the_form_is_shown_as_text(text: str, admin: App, scheduler: Scheduler) -> None:
    await scheduler.schedules.add("board.mail", Every(HOUR), schedule_id="mine")
    for url in (ADD, UPDATE, "/actions/schedules/preview", "/actions/schedules/preview?id=mine"):
        answer = await send(admin, url, {**dict.fromkeys(FIELDS, text), "kwargs": text, "start": text})
        assert answer.status == 400
        check(answer.text)
