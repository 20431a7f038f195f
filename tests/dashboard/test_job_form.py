"""Add a job like another one, with other arguments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler import JobPriority, Limit, Scheduler, Unique
from pg_scheduler.dashboard import Access
from pg_scheduler.events import JobBlocked, JobCompleted
from tests.dashboard.client import JSON, App, Page, follow, request, send
from tests.dashboard.test_actions import as_role, records
from tests.dashboard.test_job_actions import FAIL
from tests.dashboard.test_jobs import SECRET, add
from tests.support.worker import PATIENCE, Recorder
from tests.support.world import World

FORM = "/job-form?id=pay"
SEND = "/actions/jobs/add?id=pay"


@pytest.fixture
def admin(build: Callable[..., App]) -> App:
    return as_role(build, "admin")


async def add_failed(scheduler: Scheduler, pool: asyncpg.Pool, **options: Any) -> None:
    await add(scheduler, "board.charge", **{"job_id": "pay", "kwargs": {"account": 113}, **options})
    await pool.execute(FAIL, "pay")


def links(html: str) -> list[str]:
    return [each for each in Page(html).links() if each.startswith("/job-form")]


async def test_retry_with_adds_a_job_with_the_options_of_the_other_one(
    scheduler: Scheduler, admin: App, pool: asyncpg.Pool
) -> None:
    metadata = {"tags": ["eu"], "trace": {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}}
    options = {
        "priority": JobPriority.HIGH,
        "max_retries": 2,
        "misfire_grace_time": 60,
        "timeout": timedelta(seconds=7),
        "unique": "account 113",
    }
    await add_failed(scheduler, pool, metadata=metadata, **options)
    before = await pool.fetchrow("SELECT * FROM scheduled_jobs")
    assert links((await request(admin, "/job?id=pay")).text) == [FORM]
    form = await request(admin, FORM)
    assert form.status == 200
    page = Page(form.text)
    assert "<h1>Run <bdi>board.charge</bdi> with…</h1>" in form.text, (
        "a job is added, the other one is not retried"
    )
    assert '{\n  "account": 113\n}' in page.text
    assert "priority high, 2 retries, a timeout of 7 s, the unique key account 113." in page.text
    answer = await send(admin, SEND, {"args": "[1]", "kwargs": '{"account": 114}'})
    assert answer.status == 303, answer.text
    shown = Page((await follow(admin, answer)).text)
    assert "this new job was added; the other one stays as it was" in shown.text
    assert "added it in the dashboard" in shown.text
    job_id = answer.headers["location"].removeprefix("/job?id=")
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert (job.job_name, job.args, job.kwargs) == ("board.charge", (1,), {"account": 114})
    found = (job.priority, job.max_retries, job.misfire_grace_time, job.timeout, job.unique_key)
    assert found == tuple(options.values())
    assert job.metadata == {"tags": ["eu"]}, "the trace is that of the other one"
    assert await pool.fetchrow("SELECT * FROM scheduled_jobs WHERE job_id = 'pay'") == before
    assert await pool.fetchval("SELECT execution_time <= now() FROM scheduled_jobs WHERE job_id = $1", job_id)
    assert await records(pool) == [("ada", "dashboard", "add_job", job_id)]
    details = json.loads(await pool.fetchval("SELECT details::text FROM scheduler_audit"))
    assert (details["name"], details["like"]) == ("board.charge", "pay")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"args": "[1"}, "enter a JSON list"),
        ({"args": "{}"}, "enter a JSON list, such as [113]"),
        ({"kwargs": "[]"}, 'enter a JSON object, such as {"account": 113}'),
        ({"kwargs": '{"a": NaN}'}, "NaN"),
        ({"kwargs": '{"a": "\\u0000"}'}, "NUL"),
        ({"args": f'["{"x" * 100_000}"]'}, "the limit is 100,000"),
        ({"args": "[" * 100_000}, "recursion"),
    ],
)
async def test_invalid_arguments_add_nothing_and_stay_in_the_form(
    fields: dict[str, str], text: str, *, scheduler: Scheduler, admin: App, pool: asyncpg.Pool
) -> None:
    await add_failed(scheduler, pool)
    answer = await send(admin, SEND, fields)
    assert answer.status == 400
    page = Page(answer.text)
    assert text in page.text
    assert all(value in page.text for value in fields.values())
    assert [each["role"] for each in page.all("p") if each.get("id") == "problem"] == ["alert"]
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 1
    assert await records(pool) == []


async def test_taken_unique_key_adds_nothing(scheduler: Scheduler, admin: App, pool: asyncpg.Pool) -> None:
    await add_failed(scheduler, pool, unique="account 113")
    await add(scheduler, "board.charge", job_id="other", unique="account 113")
    answer = await send(admin, SEND, {"kwargs": '{"account": 114}'})
    assert answer.status == 409
    assert "account 113" in answer.text
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 2


async def test_arguments_that_are_hidden_cannot_be_sent_again(
    scheduler: Scheduler, build: Callable[..., App], pool: asyncpg.Pool
) -> None:
    deep: Any = {"token": SECRET}
    for _ in range(60):
        deep = [deep]
    await add_failed(scheduler, pool, kwargs={"account": 113, "deep": deep})
    await add(scheduler, "payroll.run", job_id="other", kwargs={"token": SECRET})
    await pool.execute(FAIL, "other")
    seen = as_role(build, "admin")
    assert SECRET in (await request(seen, FORM)).text
    apps = [
        (as_role(build, "admin", sees_arguments=False), 403),
        (as_role(build, "operator"), 403),
        (build(authorize=lambda _: Access("ada", "admin"), read_only=True), 403),
        (build(authorize=lambda _: Access("ada", "admin"), redact=["token"]), 403),
        (as_role(build, "admin", names=("payroll.*",)), 404),
    ]
    for app, status in apps:
        for headers in ({}, JSON):
            answer = await request(app, FORM, headers=headers)
            assert answer.status == status
            assert SECRET not in answer.text
        if status == 403:
            html = (await request(app, "/job?id=pay")).text
            assert links(html) == []
        sent = await send(app, SEND, {"kwargs": "{}"})
        assert sent.status in {403, 404, 405}
    redacted = build(authorize=lambda _: Access("ada", "admin"), redact=["token"])
    assert SECRET not in (await request(redacted, "/job?id=pay")).text, "not in the command either"
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 2


async def test_texts_that_a_page_escapes_are_sent_as_they_are(
    scheduler: Scheduler, admin: App, pool: asyncpg.Pool
) -> None:
    kwargs = {"to": "\u202eada", "at": "\x9bx", "tag": "\U000e0041", "city": "Köln"}
    await add_failed(scheduler, pool, kwargs=kwargs)
    form = (await request(admin, FORM)).text
    page = Page(form)
    start = page.text.index('{\n  "')
    text = page.text[start : page.text.index("}", start) + 1]
    answer = await send(admin, SEND, {"kwargs": text})
    job = await scheduler.get_job(answer.headers["location"].removeprefix("/job?id="))
    assert job is not None
    assert job.kwargs == kwargs


async def test_button_is_there_once_the_job_has_ended(
    scheduler: Scheduler, admin: App, pool: asyncpg.Pool
) -> None:
    await add(scheduler, "board.charge", job_id="pay", kwargs={"text": "x" * 100_000})
    assert links((await request(admin, "/job?id=pay")).text) == [], "it is pending"
    await pool.execute(FAIL, "pay")
    assert links((await request(admin, "/job?id=pay")).text) == [], "its arguments are too long"
    assert (await request(admin, FORM)).status == 403


# -- fields for parameters ---------------------------------------------------------------------------------

VALUES: list[Any] = [
    113,
    -0.5,
    True,
    None,
    "ada",
    "007",
    "7",
    "true",
    "",
    " ",
    " x",
    "a\nb",
    "\u202e",
    "NaN",
    ["x"],
    {"a": {}},
]


async def report(world: World, *parameters: tuple[str, bool]) -> None:
    settings = json.dumps({"parameters": {"board.charge": parameters}})
    await world.worker(names=["board.charge"], settings=settings)


def fields_of(html: str) -> dict[str, str]:
    return {
        str(each["name"]): each["value"] or ""
        for each in Page(html).all("input")
        if str(each.get("name")).startswith("arg.")
    }


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
async def test_argument_is_sent_again_as_it_was(
    value: Any, scheduler: Scheduler, admin: App, pool: asyncpg.Pool, world: World
) -> None:
    await report(world, ("account", True), ("note", False))
    await add_failed(scheduler, pool, kwargs={"account": value, "more": [1]})
    form = await request(admin, FORM)
    fields = fields_of(form.text)
    assert list(fields) == ["arg.account", "arg.note"]
    assert '"more"' in Page(form.text).text
    assert '"account"' not in Page(form.text).text
    answer = await send(admin, SEND, {**fields, "args": "[]", "kwargs": '{"more": [1]}'})
    assert answer.status == 303, answer.text
    job = await scheduler.get_job(answer.headers["location"].removeprefix("/job?id="))
    assert job is not None
    assert job.kwargs == {"account": value, "more": [1]}


async def test_wrong_field_is_named(
    scheduler: Scheduler, admin: App, pool: asyncpg.Pool, world: World
) -> None:
    await report(world, ("account", True))
    await add_failed(scheduler, pool)
    for fields, text in (
        ({"arg.account": "", "kwargs": "{}"}, "enter a value"),
        ({"arg.account": "1", "kwargs": '{"account": 2}'}, "remove one of them"),
        ({"arg.account": "1", "arg.other": "2"}, "has the parameter &#39;other&#39;"),
        ({"arg.account": "1", "kwargs": "{"}, "enter a JSON object"),
    ):
        answer = await send(admin, SEND, fields)
        assert (answer.status, text in answer.text) == (400, True), fields
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 1


async def test_job_with_positional_arguments_has_no_fields(
    scheduler: Scheduler, admin: App, pool: asyncpg.Pool, world: World
) -> None:
    await report(world, ("account", True), ("note", False))
    await scheduler.enqueue("board.charge", args=(113,), kwargs={"note": "x"}, job_id="pay")
    await pool.execute(FAIL, "pay")
    form = await request(admin, FORM)
    assert (form.status, fields_of(form.text)) == (200, {})
    assert '"note": "x"' in Page(form.text).text


async def test_positional_arguments_have_fields_if_they_can_be_passed_by_name(
    scheduler: Scheduler, admin: App, pool: asyncpg.Pool, world: World
) -> None:
    parameters = {"board.charge": [("account", True), ("note", False)]}
    await world.worker(
        names=["board.charge"], settings={"parameters": parameters, "positional": {"board.charge": 2}}
    )
    await scheduler.enqueue("board.charge", args=(113,), kwargs={"note": "x"}, job_id="pay")
    await pool.execute(FAIL, "pay")
    form = await request(admin, FORM)
    assert fields_of(form.text) == {"arg.account": "113", "arg.note": "x"}
    assert "Positional arguments" not in form.text
    answer = await send(admin, SEND, {"args": "[]", "kwargs": "", "arg.account": "114", "arg.note": "x"})
    assert answer.did == "job_added"
    task_data = await pool.fetchval("SELECT task_data::text FROM scheduled_jobs WHERE job_id <> 'pay'")
    assert json.loads(task_data) == {"args": [], "kwargs": {"account": 114, "note": "x"}}


# -- the change of a job that waits --------------------------------------------------------------------

CHANGE_FORM = "/job-form?id=pay&change=yes"
CHANGE = "/actions/jobs/change?id=pay"


RUNNING = """
    UPDATE scheduled_jobs SET status = 'running', worker_id = 'w', attempt = 1, started_at = now(),
        last_heartbeat = now(), lease_until = now()
"""


async def version_of(app: App) -> str:
    """Return the version of the job that the form sends."""
    page = Page((await request(app, CHANGE_FORM)).text)
    (version,) = [str(field["value"]) for field in page.all("input") if field.get("name") == "version"]
    return version


async def add_waiting(scheduler: Scheduler, **options: Any) -> None:
    waiting = {"job_id": "pay", "kwargs": {"account": 113}, "delay": timedelta(hours=1)}
    await scheduler.enqueue("board.charge", **{**waiting, **options})


async def test_change_replaces_arguments_and_priority_and_nothing_else(
    scheduler: Scheduler, admin: App, pool: asyncpg.Pool
) -> None:
    await add_waiting(scheduler, metadata={"tags": ["eu"]}, max_retries=2, keep_result=timedelta(hours=1))
    before = await pool.fetchrow("SELECT * FROM scheduled_jobs")
    assert links((await request(admin, "/job?id=pay")).text) == [CHANGE_FORM]
    page = Page((await request(admin, CHANGE_FORM)).text)
    assert '"account": 113' in page.text
    fields = {
        "args": "[1]",
        "kwargs": '{"account": 114}',
        "priority": "high",
        "version": await version_of(admin),
    }
    answer = await send(admin, CHANGE, fields)
    assert answer.status == 303, answer.text
    assert "the job was changed" in Page((await follow(admin, answer)).text).text
    job = await scheduler.get_job("pay")
    assert job is not None
    assert (job.args, job.kwargs, job.priority) == ((1,), {"account": 114}, JobPriority.HIGH)
    assert job.metadata == {"tags": ["eu"]}
    after = await pool.fetchrow("SELECT * FROM scheduled_jobs")
    assert before is not None
    assert after is not None
    assert {name for name in dict(before) if before[name] != after[name]} == {"task_data", "priority"}
    assert await records(pool) == [("ada", "dashboard", "change_job", "pay")]


async def test_change_that_somebody_else_has_overtaken_shows_the_values_now(
    scheduler: Scheduler, admin: App, pool: asyncpg.Pool
) -> None:
    await add_waiting(scheduler)
    version = await version_of(admin)
    fields = {"args": "", "kwargs": '{"account": 1}', "priority": "normal", "version": version}
    assert (await send(admin, CHANGE, fields)).status == 303
    answer = await send(admin, CHANGE, {**fields, "kwargs": '{"account": 2}'})
    assert answer.status == 409
    assert "the job has changed since the form was opened" in Page(answer.text).text
    assert '"account": 1' in Page(answer.text).text
    job = await scheduler.get_job("pay")
    assert job is not None
    assert job.kwargs == {"account": 1}
    assert await pool.fetchval("SELECT count(*) FROM scheduler_audit") == 1


@pytest.mark.parametrize(
    ("options", "statement"),
    [
        ({"unique": "account 113"}, None),
        ({}, "UPDATE scheduled_jobs SET options = '{\"steps\": 1}'"),
        ({}, RUNNING),
        ({}, "UPDATE scheduled_jobs SET blocked_on = 'share:exports:7'"),
        ({}, "UPDATE scheduled_jobs SET status = 'cancelled', finished_at = now()"),
    ],
)
async def test_job_with_values_that_follow_from_its_arguments_is_not_changed(
    options: dict[str, Any], statement: str | None, scheduler: Scheduler, admin: App, pool: asyncpg.Pool
) -> None:
    await add_waiting(scheduler)
    version = await version_of(admin)
    await pool.execute("DELETE FROM scheduled_jobs")
    await add_waiting(scheduler, **options)
    if statement is not None:
        await pool.execute(statement)
    assert CHANGE_FORM not in (await request(admin, "/job?id=pay")).text
    assert (await request(admin, CHANGE_FORM)).status == 409
    fields = {"args": "", "kwargs": '{"account": 1}', "priority": "normal", "version": version}
    before = await pool.fetchrow("SELECT * FROM scheduled_jobs")
    assert (await send(admin, CHANGE, fields)).status == 409
    assert await pool.fetchrow("SELECT * FROM scheduled_jobs") == before


async def test_job_of_a_time_span_is_not_changed(scheduler: Scheduler, admin: App) -> None:
    async def send_digest(account: int) -> None: ...

    scheduler.register(send_digest, name="board.digest", unique=Unique(per=timedelta(days=1)))
    job_id = await scheduler.enqueue("board.digest", kwargs={"account": 1}, delay=3600)
    form = f"/job-form?id={quote(job_id)}&change=yes"
    assert form not in (await request(admin, f"/job?id={quote(job_id)}")).text
    assert (await request(admin, form)).status == 409


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"args": "{}"}, "enter a JSON list"),
        ({"kwargs": "7"}, "enter a JSON object"),
        ({"priority": "urgent"}, "not a valid JobPriority"),
        ({"kwargs": json.dumps({"account": "x" * 99_000})}, ""),
    ],
)
async def test_wrong_change_is_shown_again(
    fields: dict[str, str], text: str, scheduler: Scheduler, admin: App
) -> None:
    await add_waiting(scheduler)
    entered = {"args": "", "kwargs": "", "priority": "low", "version": await version_of(admin), **fields}
    answer = await send(admin, CHANGE, entered)
    assert answer.status == (400 if text else 303)
    assert text in Page(answer.text).text


async def test_change_needs_the_right_to_add_and_all_arguments(
    scheduler: Scheduler, build: Callable[..., App]
) -> None:
    await add_waiting(scheduler)
    for access in (Access("bob", "operator", sees_arguments=False), Access("bob", "viewer")):
        app = build(authorize=lambda _, access=access: access)
        assert CHANGE_FORM not in (await request(app, "/job?id=pay")).text
        assert (await request(app, CHANGE_FORM)).status == 403
        assert (await send(app, CHANGE, {"version": "x"})).status == 403


async def test_job_that_waited_for_the_limit_of_other_arguments_starts_after_its_change(
    scheduler: Scheduler, admin: App
) -> None:
    entered, left = asyncio.Event(), asyncio.Event()

    async def charge(account: int) -> None:
        if account == 1:
            entered.set()
            await left.wait()

    limit = Limit("accounts", max_running=1, key=lambda account: f"account {account}")
    scheduler.register(charge, name="board.limited", limits=[limit])
    seen = Recorder(scheduler)
    async with scheduler:
        await scheduler.enqueue("board.limited", kwargs={"account": 1})
        await asyncio.wait_for(entered.wait(), PATIENCE)
        await scheduler.enqueue("board.limited", kwargs={"account": 1}, job_id="pay")
        await seen.until(JobBlocked, job_id="pay")
        async with asyncio.timeout(PATIENCE):
            fields = {"args": "", "kwargs": '{"account": 2}', "priority": "normal"}
            answer = await send(admin, CHANGE, fields | {"version": await version_of(admin)})
        assert answer.status == 303, answer.text
        await seen.until(JobCompleted, job_id="pay")
        left.set()


async def test_job_that_waits_for_a_retry_gets_other_arguments(
    scheduler: Scheduler, admin: App, pool: asyncpg.Pool
) -> None:
    await add_waiting(scheduler)
    await pool.execute("UPDATE scheduled_jobs SET attempt = 1, retry_count = 1, error_message = 'no'")
    fields = {"args": "", "kwargs": '{"account": 2}', "priority": "normal"}
    answer = await send(admin, CHANGE, fields | {"version": await version_of(admin)})
    assert answer.status == 303, answer.text
    job = await scheduler.get_job("pay")
    assert job is not None
    assert (job.kwargs, job.retry_count, job.error_message) == ({"account": 2}, 1, "no")
