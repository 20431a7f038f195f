"""Streams: what they send, to whom, and when they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access
from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.snapshot import Snapshot, thinned
from pg_scheduler.triggers import Every
from tests.dashboard.client import App, Page, request, stream
from tests.dashboard.test_overview import FIGURES, add_figures
from tests.dashboard.test_security import check_headers
from tests.support import inside
from tests.support.inside import Connections, Histogram, JobFigures, Store, dashboard_files, dashboard_pages
from tests.support.patience import PATIENCE
from tests.support.world import World

ADDRESSES = {"/worker": "/worker?id=w1", "/limit": "/limit?name=bank"}
UNADDRESSED = {"/run", "/job", "/schedule", "/error", "/task"}
LIVE = [
    ADDRESSES.get(path, path)
    for path, page in dashboard_pages().items()
    if page.is_live and path not in UNADDRESSED
]


async def add_jobs(world: World) -> None:
    """Add a job of each of two teams."""
    await world.job("1", "billing.x")
    await world.job("2", "payroll.x")


def parts_of(event: str) -> dict[str, str]:
    """Return the parts of an event, with ``read``, which states when they were read."""
    assert event.startswith("event: parts\nid: "), event
    found: dict[str, str] = json.loads(event.partition("\ndata: ")[2])
    assert "<time " in found["read"]
    return found


def html_of(event: str) -> str:
    """Return the HTML of all parts of an event."""
    return "".join(html for name, html in parts_of(event).items() if name != "read")


def url_of(html: str, *, is_shown: bool = False) -> str:
    """Return the address of the stream of a page, for a browser that shows the page, or nothing yet."""
    (main,) = Page(html).all("main")
    return f"{main['data-live']}{'&seen=' + quote(main['data-versions'] or '') if is_shown else ''}"


def problem_of(event: str) -> str:
    assert event.startswith("event: problem\ndata: ")
    return str(json.loads(event.removeprefix("event: problem\ndata: ")))


@pytest.mark.slow
async def test_stream_sends_a_part_when_it_changes(build: Callable[..., App], world: World) -> None:
    await world.worker("worker-1")
    async with asyncio.timeout(PATIENCE), stream(build(refresh=0.5), "/live?page=/workers") as read:
        assert await read() == "retry: 1000\n\n"
        first = html_of(await read())
        Page(first)
        assert "worker-1" in first
        await world.worker("worker-2")
        assert "worker-2" in html_of(await read()), "nothing was sent before the change"


@pytest.mark.slow
async def test_stream_of_schedules_sends_what_the_filter_of_the_address_shows(
    build: Callable[..., App], scheduler: Scheduler
) -> None:
    for name in ("mail.send", "mail.other"):
        await scheduler.schedules.add(name, Every(timedelta(days=9)), schedule_id=f"{name}-9")
    url = "/live?page=/schedules&task=mail.send&state=active"
    async with asyncio.timeout(PATIENCE), stream(build(refresh=0.5), url) as read:
        await read()
        first = parts_of(await read())
        assert set(first) == {"states", "list", "pages", "read"}
        assert ("mail.send-9" in first["list"], "mail.other" in first["list"]) == (True, False)
        await scheduler.schedules.pause("mail.send-9")
        assert "mail.send-9" not in parts_of(await read())["list"]
    async with asyncio.timeout(PATIENCE), stream(build(), "/live?page=/schedule&id=mail.send-9") as read:
        await read()
        assert {"state", "next", "runs", "details"} < set(parts_of(await read()))


@pytest.mark.slow
async def test_jobs_with_a_following_page_are_sent_once_until_they_change(
    build: Callable[..., App], pool: asyncpg.Pool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.jobs(60, "billing.x", job_id=lambda n: f"job-{99 + n}")
    await pool.execute("ANALYZE scheduled_jobs")  # autovacuum would change the number of jobs on the page
    page, built = dashboard_pages()["/jobs"], asyncio.Semaphore(0)

    async def count(page_request: PageRequest) -> object:
        found = await page.build(page_request)
        built.release()
        return found

    monkeypatch.setitem(dashboard_pages(), "/jobs", page._replace(build=count))
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
async def test_stream_sends_the_parts_of_the_page_unless_the_browser_shows_them(
    path: str, build: Callable[..., App], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_jobs(world)
    await world.worker(settings={"limits": [{"name": "bank", "task": "work", "max_running": 1}]})
    app = build(refresh=0.5)
    answer = await request(app, path)
    assert answer.status == 200
    places = {each["id"] for _, each in Page(answer.text).elements if "data-live-part" in each}
    async with asyncio.timeout(PATIENCE), stream(app, url_of(answer.text)) as read:
        await read()
        assert set(parts_of(await read())) == places
    inside.replace(monkeypatch, live_seconds=0.1)
    async with asyncio.timeout(PATIENCE), stream(app, url_of(answer.text, is_shown=True)) as read:
        assert [await read(), await read()] == ["retry: 1000\n\n", ""]


@pytest.mark.slow
async def test_unchanged_overview_sends_nothing_before_and_after_a_reconnect(
    build: Callable[..., App], pool: asyncpg.Pool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_jobs(world)
    await world.worker()
    page, built = dashboard_pages()["/"], asyncio.Semaphore(0)

    async def count(page_request: PageRequest) -> object:
        found = await page.build(page_request)
        built.release()
        return found

    app = build(refresh=0.5)
    url = url_of((await request(app, "/")).text, is_shown=True)
    monkeypatch.setitem(dashboard_pages(), "/", page._replace(build=count))
    async with asyncio.timeout(PATIENCE), stream(app, url) as read:
        await read()
        following = asyncio.ensure_future(read())
        for _ in range(3):
            await built.acquire()
        assert not following.done(), following.result()
        await pool.execute("UPDATE scheduled_jobs SET status = 'cancelled', finished_at = now()")
        event = await following
    number = event.partition("id: ")[2].partition("\n")[0]
    inside.replace(monkeypatch, live_seconds=0.1)
    async with asyncio.timeout(PATIENCE), stream(app, url, {"last-event-id": number}) as read:
        assert [await read(), await read()] == ["retry: 1000\n\n", ""]


async def test_parts_that_are_older_than_the_page_are_not_sent(
    build: Callable[..., App], pool: asyncpg.Pool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_jobs(world)
    app = build(refresh=0.5)
    async with asyncio.timeout(PATIENCE), stream(app, "/live?page=/job&id=1") as read:
        await read()
        assert 'class="status due' in html_of(await read())
    await pool.execute("UPDATE scheduled_jobs SET status = 'cancelled', finished_at = now()")
    answer = await request(app, "/job?id=1")
    assert "cancelled" in answer.text
    inside.replace(monkeypatch, live_seconds=0.1)
    async with asyncio.timeout(PATIENCE), stream(app, url_of(answer.text, is_shown=True)) as read:
        assert [await read(), await read()] == ["retry: 1000\n\n", ""]


def test_only_parts_that_differ_and_are_not_older_are_new_to_a_page() -> None:
    at = datetime(2027, 3, 24, tzinfo=UTC)
    time = '<time datetime="2027-03-24" title="{0} ago">{0}</time>'
    page = Snapshot({"one": time.format("1 s"), "two": "old"}, "", at)
    later = Snapshot({"one": time.format("9 s"), "two": "new"}, "", at + timedelta(seconds=8))
    assert later.since(page.versions, later.at) == {"two": "new"}
    assert later.since("", later.at) == later.parts
    assert page.since(later.versions, later.at) == {}
    assert page.since(later.versions, at) == {"two": "old"}, "the clock of another process is ahead"


@pytest.mark.parametrize("seen", ["", "x", "1~", "1~region-1", "9" * 99, "1~region-00000000\n", "~" * 999])
async def test_versions_that_no_page_has_are_ignored(seen: str, app: App, world: World) -> None:
    await world.worker()
    url = f"/live?page=/workers&seen={quote(seen)}"
    async with asyncio.timeout(PATIENCE), stream(app, url) as read:
        await read()
        assert "region" in parts_of(await read())


@pytest.mark.parametrize("url", ["/workers", "/job&id=1"])
async def test_viewers_share_reads(
    url: str, build: Callable[..., App], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_jobs(world)
    path = url.partition("&")[0]
    built, page = 0, dashboard_pages()[path]

    async def count(page_request: object) -> object:
        nonlocal built
        built += 1
        return await page.build(page_request)  # type: ignore[arg-type]

    monkeypatch.setitem(dashboard_pages(), path, page._replace(build=count))
    app = build(refresh=60.0)
    async with asyncio.timeout(PATIENCE):
        for _ in range(5):
            async with stream(app, f"/live?page={url}") as read:
                await read()
                html_of(await read())
    assert built == 1


@pytest.mark.slow
async def test_stream_of_a_job_follows_its_progress_to_the_end(
    build: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await add_jobs(world)
    app = build(refresh=0.5)
    url = url_of((await request(app, "/job?id=1")).text)
    async with asyncio.timeout(PATIENCE), stream(app, url) as read:
        await read()
        assert "billing.x" in html_of(await read())
        progress = json.dumps({"done": 1, "total": 4, "note": "quarter"})
        await pool.execute("UPDATE scheduled_jobs SET progress = $1 WHERE job_id = '1'", progress)
        assert "quarter" in html_of(await read())
        await pool.execute(
            "UPDATE scheduled_jobs SET status = 'completed', finished_at = now() WHERE job_id = '1'"
        )
        assert 'class="status completed' in html_of(await read())
        await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = '1'")
        assert problem_of(await read()).startswith("there is no job")


async def test_stream_of_a_job_has_what_its_viewer_may_see(
    build: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await add_jobs(world)
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


async def test_stream_keeps_the_search_and_its_page(build: Callable[..., App], world: World) -> None:
    await world.jobs(100, "billing.x", job_id=lambda n: f"job-{99 + n}")
    app = build()
    first = Page((await request(app, "/jobs?q=name:billing.x&sort=job")).text)
    (following,) = [each["href"] or "" for each in first.all("a") if each.get("rel") == "next"]
    answer = await request(app, following)
    async with asyncio.timeout(PATIENCE), stream(app, url_of(answer.text)) as read:
        await read()
        html = html_of(await read())
    assert "job-149" in html
    assert "job-150" not in html


async def test_viewers_with_other_rights_share_nothing(build: Callable[..., App], world: World) -> None:
    await add_jobs(world)
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
    inside.replace(monkeypatch, live_seconds=0.0)
    async with asyncio.timeout(PATIENCE), stream(app, "/live?page=/workers") as read:
        assert await read() == "retry: 1000\n\n"
        assert await read() == ""


async def test_outage_is_reported_and_the_stream_continues(
    build: Callable[..., App], pool: asyncpg.Pool, world: World
) -> None:
    await world.worker()
    await pool.execute("ALTER TABLE scheduler_workers RENAME TO hidden")
    async with asyncio.timeout(PATIENCE), stream(build(refresh=0.5), "/live?page=/workers") as read:
        await read()
        assert problem_of(await read()) == "the database did not answer in time"
        await pool.execute("ALTER TABLE hidden RENAME TO scheduler_workers")
        while "event: parts" not in await read():
            pass


@pytest.mark.parametrize("path", ["/calendar", "/audit", "/nothing", "", "/live"])
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
    scripts = [file.content.decode() for name, file in dashboard_files().items() if name.endswith(".js")]
    lines = [line for text in scripts for line in text.splitlines()]
    assert len(lines) <= 845
    assert max(map(len, lines)) <= 120
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert not any(forbidden in text for text in scripts), forbidden


# -- what an update of rows sends ----------------------------------------------------------------------


def rows_of(*rows: tuple[str, str]) -> str:
    return "".join(f'<li class="x" data-key="{key}">{text}</li>\n' for key, text in rows)


@pytest.mark.parametrize(
    ("known", "html", "sent"),
    [
        ("", rows_of(("a", "1")), rows_of(("a", "1"))),
        (
            rows_of(("a", "1"), ("b", "2")),
            rows_of(("a", "1"), ("b", "2")),
            '<li data-key="a" data-same="2"></li>\n',
        ),
        (
            rows_of(("a", "1"), ("b", "2"), ("c", "3")),
            rows_of(("b", "2"), ("c", "4"), ("d", "5")),
            f'<li data-key="b" data-same="1"></li>\n{rows_of(("c", "4"), ("d", "5"))}',
        ),
        (
            rows_of(("a", "1"), ("b", "2")),
            rows_of(("b", "2"), ("a", "1")),
            '<li data-key="b" data-same="1"></li>\n<li data-key="a" data-same="1"></li>\n',
        ),
        (
            f"{rows_of(('a', '1'))}<hr>{rows_of(('b', '2'))}",
            rows_of(("a", "1"), ("b", "2")),
            '<li data-key="a" data-same="1"></li>\n<li data-key="b" data-same="1"></li>\n',
        ),
        (
            '<li data-key="a"><time title="1">1 s ago</time></li>',
            '<li data-key="a"><time title="2">2 s ago</time></li>',
            '<li data-key="a" data-same="1"></li>',
        ),
        (
            '<li data-key="a"><ol><li>1</li></ol></li>',
            '<li data-key="a"><ol><li>1</li></ol></li>',
            '<li data-key="a"><ol><li>1</li></ol></li>',  # it contains another element of its name
        ),
    ],
)
def test_rows_that_are_as_before_are_one_element(known: str, html: str, sent: str) -> None:
    assert thinned(html, known) == sent


MINUTES = """
    INSERT INTO scheduler_stats (bucket, span, job_name, counts, sums, run_hist, late_hist)
    SELECT bucket - n * interval '1 min', span, job_name, counts, sums, run_hist, late_hist
    FROM scheduler_stats, generate_series(1, 59) AS n
"""


@pytest.mark.slow
async def test_update_of_the_overview_is_small(
    build: Callable[..., App], pool: asyncpg.Pool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, live_seconds=PATIENCE, history_age_s=0.0, overview_history_age_s=0.0)
    names = [f"board.task-{number}" for number in range(8)]
    await add_figures(world, names)
    store = Store(Connections(pool)).statistics
    assert await store.add("w1", 2, dict.fromkeys(names, JobFigures.added(*[FIGURES] * 20)))
    await pool.execute(MINUTES)  # of more attempts than those that follow, which do not change the scale
    await world.jobs(
        7, "board.task-{}".format, job_id=str, status="failed", error_message="ValueError: no {}".format
    )
    app = build(refresh=0.5)
    page = (await request(app, "/")).text
    async with asyncio.timeout(PATIENCE), stream(app, url_of(page, is_shown=True)) as read:
        assert await read() == "retry: 1000\n\n"
        sizes, changed, minute, batch = list[int](), set[str](), 0, 20
        while len(sizes) < 3:
            following, before, batch = asyncio.ensure_future(read()), minute, batch + 1
            taken = Histogram((0,) * (batch % 4 + 16) + (40,) + (0,) * (31 - batch % 4), 3.0)
            figures = FIGURES._replace(durations=taken, lateness=taken)
            assert await store.add("w1", batch, dict.fromkeys(names[:3], figures))
            event = await following
            minute = int(event.partition("\nid: ")[2].partition("~")[0]) // 60_000
            if minute == before:  # the start of a minute moves all that is drawn
                changed |= set(parts_of(event))
                sizes.append(len(event))
    assert {"outcomes", "lateness", "duration", "tasks"} <= changed
    # On a busy machine other parts of the page may have changed as well, such as the errors of a period.
    assert max(sizes) <= len(page) / 5, sizes
