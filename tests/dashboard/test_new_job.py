"""Add a job of a task by its form, without another job to begin with."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from pg_scheduler import Scheduler, Unique
from tests.dashboard.client import Answer, App, Page, follow, request, send
from tests.dashboard.test_actions import as_role, records
from tests.support.world import World

SEND = "/actions/jobs/new?task=board.mail"


@pytest.fixture
def admin(build: Callable[..., App]) -> App:
    return as_role(build, "admin")


@pytest.fixture(autouse=True)
async def _worker(world: World) -> None:
    parameters = {"board.mail": [["to", True], ["copies", False]]}
    await world.worker(names=["board.mail", "billing.invoice"], settings={"parameters": parameters})


async def test_form_asks_for_a_task_and_preselects_none(admin: App) -> None:
    answer = await request(admin, "/job-form")
    page = Page(answer.text)
    (task,) = (field for field in page.all("input") if field.get("id") == "task")
    assert (answer.status, task["value"]) == (200, "")
    assert {option["value"] for option in page.all("option")} >= {"board.mail", "billing.invoice"}
    assert "/actions/jobs/new" not in answer.text
    for path in ("/jobs", "/tasks", "/task?id=board.mail"):
        links = [
            link for link in Page((await request(admin, path)).text).links() if link.startswith("/job-form")
        ]
        assert links == ["/job-form?task=board.mail" if "?" in path else "/job-form"], path


async def test_job_of_a_task_that_never_ran_is_added(admin: App, pool: asyncpg.Pool) -> None:
    page = Page((await request(admin, "/job-form?task=board.mail")).text)
    assert {"arg.to", "arg.copies"} <= {str(field.get("name")) for field in page.all("input")}
    fields = {"task": "board.mail", "arg.to": "ann@example.com", "arg.copies": "2", "priority": "high"}
    answer = await send(admin, SEND, {**fields, "max_retries": "4", "kwargs": ""})
    assert answer.status == 303, Page(answer.text).text
    row = await pool.fetchrow("SELECT * FROM scheduled_jobs")
    assert row is not None
    assert answer.headers["location"] == f"/job?id={row['job_id']}"
    assert (row["job_name"], row["max_retries"], row["priority"]) == ("board.mail", 4, 3)
    assert '"ann@example.com"' in row["task_data"]
    assert "this job was added" in Page((await follow(admin, answer)).text).text
    assert await records(pool) == [("ada", "dashboard", "add_job", row["job_id"])]


async def test_form_states_which_options_of_the_task_the_job_has(
    admin: App, build: Callable[..., App], scheduler: Scheduler, world: World
) -> None:
    def remark_of(answer: Answer) -> str:
        (text,) = re.findall('id="remark">(.*?)</p>', answer.text, re.DOTALL)
        return html.unescape(" ".join(text.split()))

    url = "/job-form?task=board.mail"
    unknown = await request(admin, url)
    missing = remark_of(unknown)
    assert missing.startswith(
        "No live worker reports the options of <bdi>board.mail</bdi>, so the job has the"
    )
    assert "pg-scheduler jobs add board.mail --jobs MODULE" in " ".join(Page(unknown.text).text.split())
    options = {"board.mail": {"max_retries": 7, "code": ["share"]}}
    await world.worker("w2", names=["board.mail"], settings={"options": options})
    stated = remark_of(await request(as_role(build, "admin"), url))
    assert stated == (
        "Options of the task 'board.mail', as a live worker reports them: max_retries=7; without share, "
        "which only the code can apply: run pg-scheduler jobs add board.mail --jobs MODULE"
    )
    limited = as_role(build, "admin", names=("billing.*",))
    assert "remark" not in (await request(limited, url)).text, "the task may not be seen"

    async def mail(to: str, copies: int = 1) -> None: ...

    scheduler.register(mail, name="board.mail")
    assert "remark" not in (await request(as_role(build, "admin"), url)).text


@pytest.mark.parametrize(
    ("fields", "delay"),
    [
        ({"when": "+1h"}, timedelta(hours=1)),
        ({"when": "at", "at": "2099-01-01T09:00", "zone": "Asia/Tokyo"}, None),
    ],
)
async def test_job_is_due_when_the_form_says(
    admin: App, pool: asyncpg.Pool, fields: dict[str, str], delay: timedelta | None
) -> None:
    answer = await send(admin, SEND, {"task": "board.mail", "arg.to": "x", **fields})
    assert answer.status == 303
    due = await pool.fetchval("SELECT execution_time FROM scheduled_jobs")
    wanted = datetime(2099, 1, 1, tzinfo=UTC) if delay is None else datetime.now(UTC) + delay
    assert abs(due - wanted) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "enter a value"),
        ({"arg.to": "x", "kwargs": "[]"}, "enter a JSON object"),
        ({"arg.to": "x", "when": "at", "at": "soon"}, "at must be a time"),
        ({"arg.to": "x", "when": "at"}, "enter the time, or choose when the job is due"),
        ({"arg.to": "x", "when": "+1h", "at": "2099-01-01T09:00"}, "leave this field empty"),
        ({"arg.to": "x", "max_retries": "-1"}, "must be a whole number"),
        ({"arg.to": "x", "priority": "most"}, "'most' is not a valid"),
        ({"arg.to": "x", "task": "board.mial"}, "did you mean 'board.mail'?"),
    ],
)
async def test_what_is_wrong_is_shown_and_what_was_typed_is_kept(
    admin: App, pool: asyncpg.Pool, fields: dict[str, str], text: str
) -> None:
    answer = await send(admin, SEND, {"task": "board.mail", "args": "", **fields})
    assert answer.status == 400
    assert text in Page(answer.text).text
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


async def test_remedy_of_an_option_that_the_task_rejects_is_for_the_form(
    admin: App, scheduler: Scheduler
) -> None:
    async def mail(to: str) -> None: ...

    scheduler.register(mail, name="board.mail", unique=Unique(debounce=60))
    answer = await send(admin, SEND, {"task": "board.mail", "arg.to": "ann", "when": "+1h"})
    assert answer.status == 400
    assert "but it was given one; choose “now”" in Page(answer.text).text


async def test_code_of_the_job_is_shown_without_adding_it(admin: App, pool: asyncpg.Pool) -> None:
    fields = {"task": "board.mail", "arg.to": "<b>", "priority": "low", "show": "code"}
    text = Page((await send(admin, SEND, fields)).text).text
    assert "await scheduler.enqueue('board.mail', kwargs={'to': '<b>'}, priority=JobPriority.LOW)" in text
    assert "pg-scheduler jobs add board.mail" in text
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


async def test_form_needs_the_right_and_offers_visible_tasks(
    build: Callable[..., App], pool: asyncpg.Pool
) -> None:
    viewer = as_role(build, "viewer")
    assert (await request(viewer, "/job-form")).status == 403
    assert "/job-form" not in (await request(viewer, "/jobs")).text
    assert (await send(viewer, SEND, {"task": "board.mail"})).status == 403
    limited = as_role(build, "admin", names=("billing.*",))
    answer = await request(limited, "/job-form?task=board.mail")
    assert "arg.to" not in answer.text
    assert "board.mail" not in {
        option["value"] for option in Page(answer.text).all("option") if "value" in option
    }
    answer = await send(limited, SEND, {"task": "board.mail"})
    assert (answer.status, "you may not see it" in answer.text) == (400, True)
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


async def test_registered_task_without_a_worker_can_be_run(
    build: Callable[..., App], scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    async def work() -> None: ...

    scheduler.register(work, name="board.fresh")
    answer = await send(
        as_role(build, "admin"), "/actions/jobs/new?task=board.fresh", {"task": "board.fresh"}
    )
    assert answer.status == 303
    assert await pool.fetchval("SELECT job_name FROM scheduled_jobs") == "board.fresh"
