"""Streams: what they send, to whom, and when they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import asyncpg
import pytest

from pg_scheduler.dashboard import Access
from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.pages import PAGES
from pg_scheduler.dashboard.rendering import static_files
from tests.dashboard.client import App, Page, request, stream
from tests.dashboard.test_security import check_headers
from tests.inspect.workers import add_worker
from tests.support.worker import PATIENCE

LIVE = [path for path, page in PAGES.items() if page.is_live and path not in {"/run", "/job"}]


JOBS = (
    "INSERT INTO scheduled_jobs (job_id, job_name, execution_time)"
    " VALUES ('1', 'billing.x', now()), ('2', 'payroll.x', now())"
)


def html_of(event: str) -> str:
    assert event.startswith("event: region\ndata: ")
    region, _, read = event.partition("\n\nevent: read\ndata: ")
    assert "read" in json.loads(read)
    return str(json.loads(region.partition("data: ")[2]))


def problem_of(event: str) -> str:
    assert event.startswith("event: problem\ndata: ")
    return str(json.loads(event.removeprefix("event: problem\ndata: ")))


async def test_stream_sends_the_region_when_its_data_changes(
    build: Callable[..., App], pool: asyncpg.Pool
) -> None:
    await add_worker(pool, "worker-1")
    async with asyncio.timeout(PATIENCE), stream(build(refresh=0.5), "/live?page=/workers") as read:
        assert await read() == "retry: 1000\n\n"
        first = html_of(await read())
        Page(first)
        assert "worker-1" in first
        await add_worker(pool, "worker-2")
        assert "worker-2" in html_of(await read()), "nothing was sent before the change"


async def test_jobs_with_a_following_page_are_sent_once_until_they_change(
    build: Callable[..., App], pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pool.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time)"
        " SELECT 'job-' || n, 'billing.x', now() FROM generate_series(100, 159) AS n"
    )
    await pool.execute("ANALYZE scheduled_jobs")  # autovacuum would change the number of jobs on the page
    page, built = PAGES["/jobs"], asyncio.Semaphore(0)

    async def count(page_request: PageRequest) -> object:
        found = await page.build(page_request)
        built.release()
        return found

    monkeypatch.setitem(PAGES, "/jobs", page._replace(build=count))
    async with asyncio.timeout(PATIENCE), stream(build(refresh=0.5), "/live?page=/jobs") as read:
        await read()
        assert 'rel="next"' in html_of(await read())
        following = asyncio.ensure_future(read())
        for _ in range(3):
            await built.acquire()
        assert not following.done(), "unchanged jobs are sent again"
        await pool.execute("UPDATE scheduled_jobs SET status = 'cancelled', finished_at = now()")
        assert "cancelled" in html_of(await following)


@pytest.mark.parametrize("path", LIVE)
async def test_region_of_the_stream_is_that_of_the_page(path: str, app: App, pool: asyncpg.Pool) -> None:
    await add_worker(pool)
    answer = await request(app, path)
    (region,) = [each for each in Page(answer.text).all("div") if each.get("id") == "region"]
    url = region["data-live"] or ""
    async with asyncio.timeout(PATIENCE), stream(app, url) as read:
        await read()
        html = html_of(await read())
        assert "1 of 2" in html or path in {"/tasks", "/limits", "/jobs", "/errors"}


@pytest.mark.parametrize("url", ["/workers", "/job&id=1"])
async def test_viewers_share_reads(
    url: str, build: Callable[..., App], pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pool.execute(JOBS)
    path = url.partition("&")[0]
    built, page = 0, PAGES[path]

    async def count(page_request: object) -> object:
        nonlocal built
        built += 1
        return await page.build(page_request)  # type: ignore[arg-type]

    monkeypatch.setitem(PAGES, path, page._replace(build=count))
    app = build(refresh=60.0)
    async with asyncio.timeout(PATIENCE):
        for _ in range(5):
            async with stream(app, f"/live?page={url}") as read:
                await read()
                html_of(await read())
    assert built == 1


async def test_stream_of_a_job_follows_its_progress_to_the_end(
    build: Callable[..., App], pool: asyncpg.Pool
) -> None:
    await pool.execute(JOBS)
    app = build(refresh=0.5)
    page = Page((await request(app, "/job?id=1")).text)
    (region,) = [each for each in page.all("div") if each.get("id") == "region"]
    async with asyncio.timeout(PATIENCE), stream(app, region["data-live"] or "") as read:
        await read()
        assert "billing.x" in html_of(await read())
        progress = json.dumps({"done": 1, "total": 4, "note": "quarter"})
        await pool.execute("UPDATE scheduled_jobs SET progress = $1 WHERE job_id = '1'", progress)
        assert "quarter" in html_of(await read())
        await pool.execute(
            "UPDATE scheduled_jobs SET status = 'completed', finished_at = now() WHERE job_id = '1'"
        )
        assert "It completed" in html_of(await read())
        await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = '1'")
        assert problem_of(await read()).startswith("there is no job")


async def test_stream_of_a_job_has_what_its_viewer_may_see(
    build: Callable[..., App], pool: asyncpg.Pool
) -> None:
    await pool.execute(JOBS)
    await pool.execute("""UPDATE scheduled_jobs SET task_data = '{"kwargs": {"token": "hunter2"}}'""")
    access = [
        Access("ada", "admin"),
        Access("bob", sees_arguments=False),
        Access("eve", names=("payroll.*",)),
    ]
    app = build(authorize=lambda _: access[0], refresh=60.0)
    found = []
    for _ in range(len(access)):
        async with asyncio.timeout(PATIENCE), stream(app, "/live?page=/job&id=1") as read:
            await read()
            event = await read()
            found.append(("hunter2" in event, "Cancel" in event, "billing.x" in event))
        access.append(access.pop(0))
    assert found == [(True, True, True), (False, False, True), (False, False, False)]


async def test_stream_keeps_the_search_and_its_page(build: Callable[..., App], pool: asyncpg.Pool) -> None:
    await pool.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time)"
        " SELECT 'job-' || n, 'billing.x', now() FROM generate_series(100, 199) AS n"
    )
    app = build()
    first = Page((await request(app, "/jobs?q=name:billing.x&sort=job")).text)
    (following,) = [each["href"] or "" for each in first.all("a") if each.get("rel") == "next"]
    answer = await request(app, following)
    (region,) = [each for each in Page(answer.text).all("div") if each.get("id") == "region"]
    async with asyncio.timeout(PATIENCE), stream(app, region["data-live"] or "") as read:
        await read()
        html = html_of(await read())
    assert "job-149" in html
    assert "job-150" not in html


async def test_viewers_with_other_rights_share_nothing(build: Callable[..., App], pool: asyncpg.Pool) -> None:
    await pool.execute(JOBS)
    access = [Access("ada"), Access("bob", names=("billing.*",)), Access("eve", names=())]
    app = build(authorize=lambda _: access[0], refresh=60.0)
    for expected in ({"billing.x", "payroll.x"}, {"billing.x"}, set[str]()):
        for path in ("/tasks", "/"):
            async with asyncio.timeout(PATIENCE), stream(app, f"/live?page={path}") as read:
                await read()
                html = html_of(await read())
                found = {name for name in ("billing.x", "payroll.x") if name in html}
                assert found == expected if path == "/tasks" else found <= expected
        access.pop(0)
        if not access:
            break


async def test_stream_ends_so_that_rights_are_decided_again(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pg_scheduler.dashboard.live.MAX_SECONDS", 0.0)
    async with asyncio.timeout(PATIENCE), stream(app, "/live?page=/workers") as read:
        assert await read() == "retry: 1000\n\n"
        assert await read() == ""


async def test_outage_is_reported_and_the_stream_continues(
    build: Callable[..., App], pool: asyncpg.Pool
) -> None:
    await add_worker(pool)
    await pool.execute("ALTER TABLE scheduler_workers RENAME TO hidden")
    async with asyncio.timeout(PATIENCE), stream(build(refresh=0.5), "/live?page=/workers") as read:
        await read()
        assert problem_of(await read()) == "the database did not answer in time"
        await pool.execute("ALTER TABLE hidden RENAME TO scheduler_workers")
        while "event: region" not in await read():
            pass


@pytest.mark.parametrize("path", ["/schedules", "/audit", "/nothing", "", "/live"])
async def test_other_pages_have_no_stream(path: str, app: App) -> None:
    answer = await request(app, f"/live?page={path}")
    assert answer.status == 404
    check_headers(answer)


async def test_streams_pass_authorize(build: Callable[..., App]) -> None:
    answer = await request(build(authorize=lambda _: None), "/live?page=/workers")
    assert answer.status == 403
    head = await request(build(), "/live?page=/workers", method="HEAD")
    assert (head.status, head.body) == (200, b"")
    check_headers(head)


def test_scripts_are_short_and_build_no_html() -> None:
    scripts = [file.content.decode() for name, file in static_files().items() if name.endswith(".js")]
    assert sum(len(text.splitlines()) for text in scripts) <= 750
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert not any(forbidden in text for text in scripts), forbidden
