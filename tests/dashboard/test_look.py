"""A running job, live: its last log lines while the page is open, and its stack when somebody asks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler, current_job
from pg_scheduler.dashboard import Access
from pg_scheduler.inspect import Inspector
from tests.dashboard.client import JSON, App, Page, request, send
from tests.support.inside import reads_of
from tests.support.logs import keeping_lines
from tests.support.patience import PATIENCE
from tests.support.world import World

STACK = "/actions/jobs/stack?id=a"
LINE = "sec-line <b>"
LOOK = {"attempt": 1, "log": [LINE], "stack": {"at": "2026-11-01T00:00:00+00:00", "text": f"in {LINE}"}}


@pytest.fixture
def kept_lines_of_jobs() -> Iterator[None]:
    with keeping_lines(logging.getLogger("looks")):
        yield


@pytest.fixture
def operator(build: Callable[..., App]) -> App:
    return build(authorize=lambda _: Access("ada", "operator"))


async def seen(app: App, is_there: Callable[[Any], object]) -> Any:
    """Return what an open page shows, as soon as it shows what a test waits for."""
    async with asyncio.timeout(PATIENCE):
        while True:
            look = (await request(app, "/job?id=a&look=log", headers=JSON)).data["look"]
            if is_there(look):
                return look
            await asyncio.sleep(0.05)


@pytest.mark.usefixtures("kept_lines_of_jobs")
async def test_log_of_a_job_stays_while_it_reports_progress(scheduler: Scheduler, operator: App) -> None:
    reports, may_end = asyncio.Queue[int](), asyncio.Event()

    async def work() -> None:
        logging.getLogger("looks").warning("the only line")
        current_job().progress(1, 9)
        await reports.get()
        current_job().progress(2, 9)
        await may_end.wait()

    scheduler.register(work, name="render")
    await scheduler.start()
    await scheduler.enqueue(work, job_id="a")
    await seen(operator, lambda look: look and look["log"])
    reports.put_nowait(2)
    async with asyncio.timeout(PATIENCE):
        while True:
            job = (await request(operator, "/job?id=a&look=log", headers=JSON)).data
            if job["job"]["progress"]["done"] == 2:
                break
            await asyncio.sleep(0.05)
    assert (job["look"]["log"], job["look"]["problem"]) == (["the only line"], None)
    may_end.set()


@pytest.mark.usefixtures("kept_lines_of_jobs")
async def test_log_and_stack_of_a_running_job_are_shown_by_its_worker(
    scheduler: Scheduler, operator: App, pool: asyncpg.Pool
) -> None:
    may_end = asyncio.Event()

    async def work() -> None:
        logging.getLogger("looks").warning("frame 1 of 9")
        await may_end.wait()

    scheduler.register(work, name="render")
    await scheduler.start()
    await scheduler.enqueue(work, job_id="a")
    await seen(operator, lambda look: look is not None)
    page = Page((await request(operator, "/job?id=a")).text)
    assert "/job?id=a&look=log" in page.links()
    assert STACK in [form["action"] for form in page.all("form")]
    look = await seen(operator, lambda look: look["log"])
    assert (look["log"], look["problem"], look["stack"]) == (["frame 1 of 9"], None, None)
    answer = await send(operator, STACK)
    assert (answer.did, answer.headers["location"]) == ("stack_requested", "/job?id=a&look=log")
    assert "await may_end.wait()" in (await seen(operator, lambda look: look["stack"]))["stack"]
    html = (await request(operator, "/job?id=a&look=log")).text
    assert "frame 1 of 9" in html
    assert "await may_end.wait()" in html
    records = await pool.fetch("SELECT action, subject, actor, via FROM scheduler_audit")
    assert [tuple(record) for record in records] == [("show_stack", "a", "ada", "dashboard")], "not the log"
    may_end.set()
    await seen(operator, lambda look: look is None)
    assert (await send(operator, STACK)).status == 409
    async with asyncio.timeout(PATIENCE):
        while await pool.fetchval("SELECT progress FROM scheduled_jobs") is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_open_pages_share_one_request_and_others_make_none(
    world: World, operator: App, pool: asyncpg.Pool, dsn: str
) -> None:
    await world.worker("w1")
    await world.job("a", status="running", attempt=1, progress={"look": LOOK})
    messages: list[str] = []
    connection = await asyncpg.connect(dsn)
    try:
        channel = await reads_of(Inspector(pool)).locks.channel()
        await connection.add_listener(channel, lambda *arguments: messages.append(str(arguments[-1])))
        for url, expected in (("/job?id=a", []), ("/job?id=a&look=log", ["look w1 log a"])):
            for _ in range(3):
                await request(operator, url)
            await connection.execute("SELECT 1")
            assert messages == expected
    finally:
        await connection.close()


async def test_only_who_sees_arguments_and_has_the_right_looks(
    world: World, build: Callable[..., App]
) -> None:
    await world.worker("w1")
    await world.job("a", "payroll.run", status="running", attempt=1, progress={"look": LOOK})
    for access, status in (
        (Access("ada", "operator", sees_arguments=False), 403),
        (Access("ada", "operator", names=("billing.*",)), 404),
        (Access("ada", "viewer"), 403),
    ):
        app = build(authorize=lambda _, access=access: access)
        for url in ("/job?id=a&look=log", "/job?id=a", "/jobs", "/worker?id=w1"):
            for headers in ({}, JSON):
                assert "sec-line" not in (await request(app, url, headers=headers)).text
        assert (await send(app, STACK)).status == status
    app = build(authorize=lambda _: Access("ada", can={"look"}))
    html = (await request(app, "/job?id=a&look=log")).text
    assert html.count("sec-line &lt;b&gt;") == 2
    assert (await send(app, STACK)).did == "stack_requested"


async def test_page_states_why_there_is_nothing_to_see(
    world: World, pool: asyncpg.Pool, build: Callable[..., App]
) -> None:
    async def text() -> str:
        app = build(authorize=lambda _: Access("ada", "operator"))
        return Page((await request(app, "/job?id=a&look=log")).text).text

    await world.worker("w1", health={"is_listening": False})
    await world.job("a", status="running", attempt=2, progress={"look": LOOK})
    assert "receives no notifications" in await text()
    await pool.execute("UPDATE scheduler_workers SET health = '{}'")
    assert "has not answered yet" in await text(), "the row has the lines of another attempt"
    for look, reason in (
        ('{"attempt": 2}', "keeps no log lines"),
        ('{"attempt": 2, "log": []}', "logged nothing yet"),
        ('{"attempt": 2, "log": "odd", "stack": "odd"}', "keeps no log lines"),
        ('{"attempt": 2, "stack": {"at": "2026-11-01T00:00:00+00:00"}}', "could not be read"),
    ):
        await pool.execute("UPDATE scheduled_jobs SET progress = jsonb_build_object('look', $1::jsonb)", look)
        assert reason in await text(), look
