"""Every recipe runs, and has the effect that its page promises."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import asyncpg
import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from pg_scheduler import (
    Job,
    JobProgress,
    JobStatus,
    NameConflictError,
    PayloadError,
    Scheduler,
    current_job,
)
from pg_scheduler.clock import FakeClock
from pg_scheduler.dashboard import Access, dashboard
from pg_scheduler.embedded import Server
from pg_scheduler.events import (
    JobBlocked,
    JobCompleted,
    JobFailed,
    JobProgressed,
    JobRetried,
    JobStarted,
    PassFinished,
    SchedulePaused,
)
from pg_scheduler.testing import TestScheduler
from pg_scheduler.triggers import Every
from tests.conftest import Admin, database
from tests.dashboard.client import JSON, request
from tests.docs import asgi, test_files
from tests.docs.snippets import ROOT, Snippet, run_python, snippets_of
from tests.docs.test_files import program
from tests.support.event_client import Client
from tests.support.inside import worker_of
from tests.support.transactions import django_address
from tests.support.worker import Gate, Recorder

pytestmark = pytest.mark.slow  # programs start and end

T = TypeVar("T")
Load = Callable[[str], Awaitable[Any]]
Pool = asyncpg.Pool

FILES = {name.removeprefix("docs/"): file for name, file in test_files.FILES.items()}
TESTED: set[str] = set()


def recipe(*names: str) -> Callable[[T], T]:
    """Note which recipes a test runs."""
    TESTED.update(names)
    return lambda test: test


def code_of(name: str) -> str:
    return FILES[name].code


def block(page: str, kind: str) -> str:
    """Return the only block of that kind on a page."""
    (snippet,) = [each for each in snippets_of(ROOT / "docs" / page) if each.kind == kind]
    return snippet.code


@pytest.fixture
def load(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Import a recipe, under the name of its file."""
    monkeypatch.setenv("DATABASE_URL", dsn)

    async def load(name: str) -> ModuleType:
        snippet = FILES[name]
        assert snippet.file
        module = ModuleType(snippet.file.removesuffix(".py"))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        await run_python(snippet, module)
        return module

    return load


@asynccontextmanager
async def running(pool: Pool, *, clock: FakeClock | None = None) -> AsyncIterator[tuple[Scheduler, Recorder]]:
    """Start a Scheduler and record its events."""
    scheduler = Scheduler(pool, clock=clock, shutdown_timeout=5)
    seen = Recorder(scheduler)
    async with scheduler, asyncio.timeout(30):
        yield scheduler, seen


async def job_of(scheduler: Scheduler, job_id: str) -> Job:
    job = await scheduler.get_job(job_id)
    assert job is not None
    return job


def now() -> datetime:
    return datetime.now(UTC)


def test_every_file_of_a_page_has_a_test() -> None:
    assert TESTED | {name.removeprefix("docs/") for name in test_files.TESTED} == set(FILES)


def test_recipes_have_at_most_15_lines_of_code() -> None:
    """Count the lines of users: no imports, comments and blank lines, and not the guard of a script."""
    other = re.compile(r"\s*(from |import |#|if __name__ == |$)")
    lengths = {name: sum(not other.match(line) for line in FILES[name].code.splitlines()) for name in TESTED}
    assert {name: length for name, length in lengths.items() if length > 15} == {}


def sections_of(page: str) -> dict[str, set[str]]:
    """Return the files below each heading of a page, by the anchor of the heading."""
    _, *sections = re.split(
        r"^#{2,3} ", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    return {
        re.sub(r"[^\w-]", "", section.partition("\n")[0].lower().replace(" ", "-")): {
            f"{page} {name}" for name in re.findall(r"<!-- snippet: file (\S+) -->", section)
        }
        for section in sections
    }


def test_recipe_index_links_every_recipe() -> None:
    """Compare the links of the index with the headings above the recipes."""
    index = (ROOT / "docs" / "how-do-i.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\(([\w/-]+\.md)#([\w-]+)\)", index))
    recipes = {
        (page, anchor)
        for page in {name.partition(" ")[0] for name in TESTED}
        for anchor, names in sections_of(page).items()
        if names & TESTED
    }
    assert recipes - linked == set()


def test_recipe_index_has_a_recipe_that_runs_for_each_of_24_needs() -> None:
    index = (ROOT / "docs" / "how-do-i.md").read_text(encoding="utf-8")
    needs = re.findall(r"^(\d+)\. \[[^]]+\]\(([\w/-]+\.md)#([\w-]+)\)$", index, re.MULTILINE)
    assert [int(number) for number, _, _ in needs] == list(range(1, 25))
    assert len({(page, anchor) for _, page, anchor in needs}) == 24
    assert [need for need in needs if not sections_of(need[1])[need[2]]] == []


def test_recipe_index_links_every_guide() -> None:
    index = (ROOT / "docs" / "how-do-i.md").read_text(encoding="utf-8")
    guides = {f"guides/{page.name}" for page in (ROOT / "docs" / "guides").glob("*.md")}
    assert guides - set(re.findall(r"\(([\w/-]+\.md)", index)) == set()


# -- web services --------------------------------------------------------------------------------------


@recipe("guides/schedules.md tenants.py", "guides/schedules.md moved.py")
async def test_schedule_of_a_tenant_is_added_replaced_and_moved(load: Load, pool: Pool) -> None:
    tenants, moved = (
        await load("guides/schedules.md tenants.py"),
        await load("guides/schedules.md moved.py"),
    )
    scheduler = Scheduler(pool)
    first = await tenants.save(scheduler, 7, "0 8 * * *", "Europe/Berlin")
    assert await tenants.save(scheduler, 7, "0 8 * * *", "Europe/Berlin") == first
    later = await tenants.save(scheduler, 7, "0 9 * * *", "Europe/Berlin")
    assert (later.version, later.args) == (2, (7,))
    with pytest.raises(ValueError, match="61"):
        await tenants.save(scheduler, 7, "61 9 * * *", "Europe/Berlin")
    assert await moved.slow_down(scheduler, later.schedule_id) == later
    await scheduler.schedules.update(later.schedule_id, trigger=Every(minutes=5))
    assert (await moved.slow_down(scheduler, later.schedule_id)).trigger == Every(hours=1)
    assert await moved.slow_down(scheduler, "unknown") is None


@recipe("guides/schedules.md withdrawals.py")
async def test_schedule_is_removed_with_its_order(load: Load, pool: Pool) -> None:
    withdrawals = await load("guides/schedules.md withdrawals.py")
    scheduler = Scheduler(pool)
    await scheduler.initialize_db()
    await scheduler.schedules.add("shop.check", Every(minutes=5), schedule_id="delivery:7")
    with pytest.raises(asyncpg.UndefinedTableError):
        await withdrawals.withdraw(pool, scheduler, 7)
    assert await scheduler.schedules.get("delivery:7") is not None
    await pool.execute("CREATE TABLE orders (number integer)")
    await withdrawals.withdraw(pool, scheduler, 7)
    assert await scheduler.schedules.get("delivery:7") is None


@recipe("guides/triggers.md office.py")
async def test_business_hours_recipe_skips_nights_weekends_and_holidays(load: Load, pool: Pool) -> None:
    module = await load("guides/triggers.md office.py")
    scheduler = Scheduler(pool)
    await scheduler.initialize_db()
    schedule = await module.sync_by_day(scheduler, 7, "Europe/Berlin", [date(2030, 1, 1)])
    new_year = datetime(2029, 12, 31, 15, 0, tzinfo=UTC)  # a Monday, 16:00 in Berlin
    fires = schedule.trigger.upcoming(4, after=new_year, anchor=new_year)
    assert [f"{fire:%d %H:%M}" for fire in fires] == ["31 15:30", "02 08:00", "02 08:30", "02 09:00"]
    friday = datetime(2030, 1, 4, 15, 30, tzinfo=UTC)
    assert schedule.trigger.upcoming(1, after=friday, anchor=friday) == [datetime(2030, 1, 7, 8, tzinfo=UTC)]


@recipe("guides/schedules.md feeds.py")
async def test_schedule_pauses_when_its_job_fails(load: Load, pool: Pool) -> None:
    feeds = await load("guides/schedules.md feeds.py")
    async with running(pool) as (scheduler, seen):
        schedule = await feeds.subscribe(scheduler, "https://example.org/feed")
        await seen.until(SchedulePaused)
        schedule = await scheduler.schedules.get(schedule.schedule_id)
    assert schedule is not None
    assert schedule.note == "ConnectionError: no answer from https://example.org/feed"


@recipe("guides/schedules.md hourly.py")
async def test_missed_hours_are_made_up_for_one_by_one(load: Load, pool: Pool) -> None:
    await load("guides/schedules.md hourly.py")
    async with running(pool) as (scheduler, seen):
        first = await pool.fetchval(
            "UPDATE scheduler_schedules SET next_fire_at = date_trunc('hour', now()) - interval '2 hours'"
            " RETURNING next_fire_at"
        )
        worker_of(scheduler).node.signals.schedules_changed()
        await seen.until(JobCompleted, 3)
        schedule = await scheduler.schedules.get("hourly")
    assert schedule is not None
    assert schedule.next_fire_at is not None
    assert schedule.runs == (schedule.next_fire_at - first) // timedelta(hours=1) >= 3  # a new hour may begin
    assert schedule.missed == 0


def with_driver(dsn: str, driver: str = "asyncpg") -> str:
    """Return the URL of an engine of SQLAlchemy."""
    return dsn.replace("postgresql://", f"postgresql+{driver}://", 1)


@recipe("guides/web.md database.py", "guides/web.md app.py")
async def test_fastapi_endpoint_stores_the_job_with_its_order(
    load: Load, dsn: str, pool: Pool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fastapi", exc_type=ImportError, reason="FastAPI wants a newer pydantic than we do")
    await pool.execute("CREATE TABLE orders (number int PRIMARY KEY)")
    monkeypatch.setenv("DATABASE_URL", with_driver(dsn))
    database = await load("guides/web.md database.py")
    app = (await load("guides/web.md app.py")).app
    async with asgi.lifespan(app) as state, asyncio.timeout(30):
        seen = Recorder(state["scheduler"])
        answer = await asgi.post(app, "/orders?number=7", state=state)
        await seen.until(JobCompleted, job_id=answer["job_id"])
        job = await job_of(state["scheduler"], answer["job_id"])
        assert (job.job_name, job.max_retries, job.args) == ("billing.send_invoice", 5, (7,))
        with pytest.raises(IntegrityError):  # the order exists, so no job is stored either
            await asgi.post(app, "/orders?number=7", state=state)
        assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 1
        assert capsys.readouterr().out == "invoice for order 7\n"
    assert not state["scheduler"].is_running
    await database.engine.dispose()


@recipe("guides/web.md test_app.py")
async def test_test_of_an_endpoint_passes_and_leaves_no_rows(dsn: str, pool: Pool, tmp_path: Path) -> None:
    pytest.importorskip("fastapi", exc_type=ImportError, reason="FastAPI wants a newer pydantic than we do")
    await pool.execute("CREATE TABLE orders (number int PRIMARY KEY)")
    for name in ("app", "database"):
        (tmp_path / f"{name}.py").write_text(code_of(f"guides/web.md {name}.py"), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n", encoding="utf-8"
    )
    arguments = ["-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", *test_files.PLUGIN, "-q"]
    file = FILES["guides/web.md test_app.py"]
    async with program(file, tmp_path, with_driver(dsn), *arguments) as process, asyncio.timeout(60):
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
    assert b"1 passed" in output
    for table in ("orders", "scheduled_jobs"):
        assert await pool.fetchval(f"SELECT count(*) FROM {table}") == 0


@recipe("guides/web.md litestar_app.py")
async def test_litestar_handler_schedules_a_job_that_runs(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    app = (await load("guides/web.md litestar_app.py")).app
    async with asgi.lifespan(app), asyncio.timeout(30):
        seen = Recorder(app.state.scheduler)
        status, answer = await asgi.request(app, "POST", "/users?email=ada@example.org")
        assert status == 201
        await seen.until(JobCompleted, job_id=answer["job_id"])
    assert "welcome ada@example.org" in capsys.readouterr().out


@recipe("guides/web.md flask_orders.py")
async def test_flask_view_stores_the_job_with_its_order(
    load: Load, dsn: str, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flask_sqlalchemy", reason="dev.py has not updated this environment")
    await pool.execute("CREATE TABLE orders (number int PRIMARY KEY)")
    monkeypatch.setenv("DATABASE_URL", with_driver(dsn, "psycopg"))
    module = await load("guides/web.md flask_orders.py")
    client = module.app.test_client()
    answer = await asyncio.to_thread(client.post, "/orders?number=7")
    assert (await asyncio.to_thread(client.post, "/orders?number=7")).status_code == 500
    row = await pool.fetchrow("SELECT job_id, job_name, max_retries FROM scheduled_jobs")
    assert row is not None
    assert tuple(row) == (answer.json["job_id"], "billing.send_invoice", 5)
    with module.app.app_context():
        module.db.engine.dispose()


@recipe("guides/web.md starlette_app.py")
async def test_starlette_route_schedules_a_job_that_runs(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    app = (await load("guides/web.md starlette_app.py")).app
    async with asgi.lifespan(app) as state, asyncio.timeout(30):
        seen = Recorder(state["scheduler"])
        answer = await asgi.post(app, "/users?email=ada@example.org", state=state)
        await seen.until(JobCompleted, job_id=answer["job_id"])
    assert "welcome ada@example.org" in capsys.readouterr().out
    assert not state["scheduler"].is_running


@recipe("guides/web.md aiohttp_app.py")
async def test_aiohttp_handler_schedules_a_job_that_runs(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("guides/web.md aiohttp_app.py")
    async with TestClient(TestServer(module.app)) as client, asyncio.timeout(30):
        scheduler = module.app[module.SCHEDULER]
        seen = Recorder(scheduler)
        response = await client.post("/users", params={"email": "ada@example.org"})
        assert response.status == 200
        await seen.until(JobCompleted, job_id=(await response.json())["job_id"])
    assert "welcome ada@example.org" in capsys.readouterr().out
    assert not scheduler.is_running


@recipe("guides/web.md jobs.py", "guides/web.md web.py", "guides/shutdown.md worker.py")
async def test_worker_process_runs_jobs_that_a_web_process_enqueues(
    load: Load, dsn: str, pool: Pool, tmp_path: Path
) -> None:
    pytest.importorskip("fastapi", exc_type=ImportError, reason="FastAPI wants a newer pydantic than we do")
    (tmp_path / "jobs.py").write_text(code_of("guides/web.md jobs.py"), encoding="utf-8")
    await load("guides/web.md jobs.py")
    app = (await load("guides/web.md web.py")).app
    async with (
        asgi.lifespan(app) as state,
        program(FILES["guides/shutdown.md worker.py"], tmp_path, dsn) as worker,
        asyncio.timeout(30),
    ):
        assert worker.stdout
        assert await worker.stdout.readline() == b"ready\n"
        answer = await asgi.post(app, "/users?email=ada@example.org", state=state)
        assert await worker.stdout.readline() == b"welcome ada@example.org\n"
        assert not state["scheduler"].is_running
        worker.send_signal(signal.SIGTERM)
        assert await worker.wait() == 0
        assert (await job_of(state["scheduler"], answer["job_id"])).status is JobStatus.COMPLETED
    assert await pool.fetchval("SELECT count(*) FROM scheduler_workers") == 0


@recipe("guides/web.md live.py", "guides/web.md sockets.py")
async def test_websocket_recipe_sends_the_events_of_one_job(load: Load, dsn: str, pool: Pool) -> None:
    pytest.importorskip("fastapi", exc_type=ImportError, reason="FastAPI wants a newer pydantic than we do")
    await load("guides/web.md live.py")
    app = (await load("guides/web.md sockets.py")).app
    gate = Gate()
    async with asgi.lifespan(app) as state, asyncio.timeout(40), Scheduler(pool) as worker:
        worker.register(gate.job, name="gate")
        job_id = await worker.enqueue("gate")
        await gate.began.wait()
        async with asgi.websocket(app, f"/jobs/{job_id}", state=state) as receive:
            assert await receive() == {"status": "running"}
            relay = worker_of(worker).relay
            seen = Recorder(worker)
            while not relay._audience.kinds:
                await seen.until(PassFinished, len(seen.of(PassFinished)) + 1)
            gate.open.set()
            assert await receive() == {"event": "JobCompleted"}


@recipe("guides/streams.md answers.py")
async def test_stream_recipe_sends_the_items_of_a_job(load: Load, dsn: str, pool: Pool) -> None:
    pytest.importorskip("fastapi", exc_type=ImportError, reason="FastAPI wants a newer pydantic than we do")
    app = (await load("guides/streams.md answers.py")).app

    async def speak() -> None:
        for word in ("a", "b"):
            await current_job().stream("words").append(word)

    async with asgi.lifespan(app) as state, asyncio.timeout(40), Scheduler(pool) as worker:
        job_id = await worker.enqueue(speak)
        async with Client(app, f"/answers/{job_id}", state["scheduler"]) as client:
            assert await client.rest() == [
                ": open\n\n",
                'id: 1\ndata: "a"\n\n',
                'id: 2\ndata: "b"\n\n',
                'event: end\ndata: {"status":"completed"}\n\n',
            ]


@recipe("guides/web.md stream.py")
@pytest.mark.parametrize("kind", ["websocket", "stream"])
@pytest.mark.parametrize(
    "host",
    [
        "uvicorn",
        pytest.param(
            "hypercorn",
            marks=pytest.mark.skipif(
                sys.version_info >= (3, 12), reason="Server.wait_closed() of Python waits for the clients"
            ),
        ),
    ],
)
async def test_web_server_ends_within_seconds_after_sigterm_with_a_client_connected(
    dsn: str, pool: Pool, tmp_path: Path, host: str, kind: str
) -> None:
    pytest.importorskip("fastapi", exc_type=ImportError, reason="FastAPI wants a newer pydantic than we do")
    await Scheduler(pool).initialize_db()
    job_id = await Scheduler(pool).enqueue("elsewhere.work")
    for name in ("live", "sockets", "stream"):
        (tmp_path / f"{name}.py").write_text(code_of(f"guides/web.md {name}.py"), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "uvicorn": ("--port", str(port), "--timeout-graceful-shutdown", "3"),
        "hypercorn": ("--bind", f"127.0.0.1:{port}", "--workers", "0"),  # in one process
    }
    app = {"websocket": "sockets:app", "stream": "stream:app"}[kind]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", host, app, *options[host]),
        cwd=tmp_path,
        env=os.environ | {"DATABASE_URL": dsn, "PYTHONPATH": str(ROOT)},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(120), ClientSession(f"http://127.0.0.1:{port}") as client:
            assert process.stderr
            while b"unning on http" not in await process.stderr.readline():
                pass
            if kind == "websocket":
                websocket = await client.ws_connect(f"/jobs/{job_id}")
                assert await websocket.receive_json() == {"status": "pending"}
            else:
                response = await client.get(f"/jobs/{job_id}/events")
                assert await response.content.readline() == b"data: pending\n"
            assert await pool.fetchval("SELECT count(*) FROM scheduler_workers") == 1
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            await process.wait()
            assert time.monotonic() - began < 15, "3 seconds, and the time of a busy machine"
        assert await pool.fetchval("SELECT count(*) FROM scheduler_workers") == 0, "the lifespan has ended"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


# -- code without asyncio ------------------------------------------------------------------------------


async def names_and_arguments(pool: Pool) -> list[tuple[str, str]]:
    rows = await pool.fetch("SELECT job_name, task_data FROM scheduled_jobs ORDER BY job_id")
    return [(row["job_name"], json.loads(row["task_data"])["args"][0]) for row in rows]


@recipe("guides/sync.md flask_app.py")
async def test_flask_view_enqueues_a_job(load: Load, pool: Pool) -> None:
    pytest.importorskip("flask", reason="dev.py has not updated this environment")
    module = await load("guides/sync.md flask_app.py")
    client = module.app.test_client()
    answer = await asyncio.to_thread(client.post, "/users?email=ada@example.org")
    await asyncio.to_thread(module.scheduler.close)
    assert await names_and_arguments(pool) == [("mail.welcome", "ada@example.org")]
    assert answer.json["job_id"] == await pool.fetchval("SELECT job_id FROM scheduled_jobs")


@recipe("guides/sync.md views.py")
async def test_django_view_enqueues_a_job_when_its_transaction_commits(
    pool: Pool, dsn: str, tmp_path: Path
) -> None:
    pytest.importorskip("django", reason="dev.py has not updated this environment")
    (tmp_path / "views.py").write_text(code_of("guides/sync.md views.py"), encoding="utf-8")
    main = """
import os
from urllib.parse import parse_qs, urlsplit

from django.conf import settings

address = urlsplit(os.environ["DATABASE_URL"])
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": address.path[1:],
            "USER": address.username,
            "HOST": address.hostname or parse_qs(address.query)["host"][0],
            "PORT": parse_qs(address.query).get("port", [address.port or ""])[0],
        }
    },
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
)
import django
from django.db import transaction
from django.test import Client
from django.urls import path

django.setup()
import views

urlpatterns = [path("users", views.sign_up)]
assert Client().get("/users?email=ada@example.org").status_code == 202
try:
    with transaction.atomic():
        Client().get("/users?email=grace@example.org")
        raise LookupError("rolls back")
except LookupError:
    pass
"""
    snippet = Snippet(Path(__file__), 1, "python", main, file="main.py")
    async with program(snippet, tmp_path, dsn) as process, asyncio.timeout(30):
        assert await process.wait() == 0
    assert await names_and_arguments(pool) == [("mail.welcome", "ada@example.org")]


@recipe("guides/sync.md orders_sync.py")
async def test_blocking_session_commits_the_job_with_the_order(load: Load, dsn: str, pool: Pool) -> None:
    pytest.importorskip("psycopg2")
    module = await load("guides/sync.md orders_sync.py")
    await pool.execute(ORDERS)
    await pool.execute("INSERT INTO orders VALUES (2)")
    engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg2://", 1))
    with Session(engine) as session:
        module.place_order(session, 1)
        with pytest.raises(IntegrityError):
            module.place_order(session, 2)
    engine.dispose()
    assert await pool.fetchval("SELECT array_agg(job_id) FROM scheduled_jobs") == ["invoice:1"]


@recipe("guides/sync.md enqueue.py")
async def test_script_enqueues_jobs_by_name(pool: Pool, dsn: str, tmp_path: Path) -> None:
    (tmp_path / "enqueue.py").write_text(code_of("guides/sync.md enqueue.py"), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        tmp_path / "enqueue.py",
        "ada@example.org",
        "grace@example.org",
        env=os.environ | {"DATABASE_URL": dsn, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 30)
    assert len(output.split()) == 2
    assert await names_and_arguments(pool) == [
        ("mail.welcome", "ada@example.org"),
        ("mail.welcome", "grace@example.org"),
    ]


@recipe("guides/sync.md cron.py")
async def test_script_without_asyncio_runs_periodic_jobs_until_it_is_interrupted(
    pool: Pool, dsn: str, tmp_path: Path
) -> None:
    """Real time: the job is due after a second, as on the page."""
    async with program(FILES["guides/sync.md cron.py"], tmp_path, dsn) as process, asyncio.timeout(30):
        assert process.stdout
        assert await process.stdout.readline() == b"report\n"
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    assert await pool.fetchval("SELECT count(*) FROM scheduler_workers") == 0


# -- writing jobs --------------------------------------------------------------------------------------


@recipe("guides/executors.md threads.py")
async def test_blocking_code_recipe_runs_in_a_thread(load: Load, pool: Pool, tmp_path: Path) -> None:
    module = await load("guides/executors.md threads.py")
    file = tmp_path / "data.bin"
    file.write_bytes(b"data")
    async with running(pool) as (scheduler, seen):
        job_id = await scheduler.schedule(module.add_checksum, execution_time=now(), args=(str(file),))
        await seen.until(JobCompleted)
    digest = "3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7"
    assert file.with_suffix(".sha256").read_text(encoding="utf-8") == f"{digest} by job {job_id}"


@recipe("guides/executors.md processes.py")
async def test_cpu_bound_recipe_runs_in_a_process(dsn: str, pool: Pool, tmp_path: Path) -> None:
    snippet = FILES["guides/executors.md processes.py"]
    async with program(snippet, tmp_path, dsn) as process, asyncio.timeout(50):
        assert process.stdout
        assert await process.stdout.readline() == b"168 primes below 1000\n"
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    rows = await pool.fetch("SELECT status, job_name FROM scheduled_jobs")
    assert [tuple(row) for row in rows] == [("completed", "processes.report_primes")]


@recipe("guides/results.md exports.py")
async def test_export_recipe_shows_the_progress_and_then_the_download(
    load: Load, pool: Pool, tmp_path: Path
) -> None:
    module = await load("guides/results.md exports.py")
    client = Scheduler(pool)
    await client.initialize_db()
    job_id = await client.enqueue(module.export, args=(7, 3, str(tmp_path)))
    assert await module.state_of(client, job_id) == {"progress": None}
    async with running(pool) as (scheduler, seen):
        (last,) = (await seen.until(JobProgressed, note="month 3"))[-1:]
        assert (last.done, last.total) == (3, 3)
        await seen.until(JobCompleted)
        assert await module.state_of(scheduler, job_id) == {"download": str(tmp_path / "7.csv")}
        job = await scheduler.get_job(job_id)
        assert job
        assert job.progress == JobProgress(3, 3, "month 3")
    assert (tmp_path / "7.csv").read_text(encoding="utf-8") == "7,1\n7,2\n7,3\n"


@recipe("guides/retries.md retries.py")
async def test_retry_recipe_retries_network_errors_only(load: Load, pool: Pool) -> None:
    module = await load("guides/retries.md retries.py")
    errors = [ConnectionResetError("reset"), TimeoutError(), ValueError("no JSON")]

    async def get(url: str) -> str:
        raise errors.pop(0)

    module.get = get
    async with TestScheduler(pool) as t:
        job_id = await t.scheduler.enqueue(module.import_prices, args=("https://example.org",))
        await t.drain()
        retry = await job_of(t.scheduler, job_id)
        assert timedelta(seconds=4) < retry.execution_time - t.now < timedelta(seconds=6)
        await t.run_until(timedelta(hours=1))
        job = await job_of(t.scheduler, job_id)
    assert (job.status, job.retry_count, job.error_message) == (JobStatus.FAILED, 2, "ValueError: no JSON")


@recipe("guides/retries.md snooze.py")
async def test_snooze_recipe_asks_again_every_ten_minutes(
    load: Load, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("guides/retries.md snooze.py")
    states = ["pending", "pending", "paid", "cancelled"]

    async def state_of(payment: int) -> str:
        return states.pop(0)

    module.state_of = state_of
    async with TestScheduler(pool, now=datetime(2030, 1, 1, tzinfo=UTC)) as t:
        paid = await t.scheduler.enqueue(module.capture, args=(17,))
        await t.run_until(timedelta(minutes=19))
        assert (await job_of(t.scheduler, paid)).status is JobStatus.PENDING
        await t.run_until(timedelta(minutes=1))
        job = await job_of(t.scheduler, paid)
        assert (job.status, job.attempt, job.retry_count) == (JobStatus.COMPLETED, 3, 0)
        cancelled = await t.scheduler.enqueue(module.capture, args=(18,))
        await t.drain()
        job = await job_of(t.scheduler, cancelled)
        assert (job.status, job.error_message) == (JobStatus.FAILED, "Abort: payment 18 was cancelled")
    assert capsys.readouterr().out == "captured payment 17\n"


@recipe("guides/retries.md deadline.py")
async def test_deadline_recipe_ends_a_job_that_waits(load: Load, pool: Pool) -> None:
    module = await load("guides/retries.md deadline.py")
    async with TestScheduler(pool, now=datetime(2030, 1, 1, 9, tzinfo=UTC)) as t:
        job_id = await t.scheduler.enqueue(module.ship, args=(7,))
        await t.run_until(timedelta(days=2, seconds=1))
        job = await job_of(t.scheduler, job_id)
    assert job.status is JobStatus.FAILED
    assert (
        job.error_message == "DeadlineExceededError: the job passed its deadline of 2030-01-03 09:00:00 UTC"
    )


@recipe("guides/retries.md retry_after.py")
async def test_retry_recipe_waits_as_long_as_the_service_asks_until_its_retries_are_used_up(
    load: Load, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("guides/retries.md retry_after.py")
    async with TestScheduler(pool, now=datetime(2030, 1, 1, tzinfo=UTC)) as t:
        job_id = await t.scheduler.enqueue(module.send_sms, args=("hello",))
        await t.run_until(timedelta(seconds=59))
        assert t.ran(module.send_sms) == 3
        await t.run_until(timedelta(hours=1))
        job = await job_of(t.scheduler, job_id)
    assert (job.status, job.attempt, job.error_message) == (
        JobStatus.FAILED,
        4,
        "TooManyRequests: slow down",
    )
    assert capsys.readouterr().out == "".join(f"attempt {n} of 4\n" for n in range(1, 5))


@recipe("guides/registering.md invoices.py")
async def test_registered_methods_recipe_uses_the_pool_and_the_scheduler(
    load: Load, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("guides/registering.md invoices.py")
    await pool.execute("CREATE TABLE invoices (number int, sent bool DEFAULT false, paid bool DEFAULT false)")
    await pool.execute("INSERT INTO invoices VALUES (1), (2)")
    clock = FakeClock(now())
    scheduler = Scheduler(pool, clock=clock)
    invoices = module.Invoices(pool, scheduler)
    seen = Recorder(scheduler)
    async with scheduler:
        for number in (1, 2):
            await scheduler.schedule(invoices.send, execution_time=clock.now, args=(number,))
        await seen.until(JobCompleted, 2, job_name="invoices.send")
        with pytest.raises(NameConflictError):
            await scheduler.schedule(module.Invoices.send.__get__(object()), execution_time=clock.now)
    assert await pool.fetchval("SELECT count(*) FROM invoices WHERE sent") == 2
    await pool.execute("UPDATE invoices SET paid = true WHERE number = 1")
    clock.advance(timedelta(days=14, seconds=30))
    async with scheduler:
        await seen.until(JobCompleted, 2, job_name="invoices.remind")
    assert capsys.readouterr().out == "please pay invoice 2\n"


@recipe("guides/retries.md on_failure.py")
async def test_on_failure_recipe_alerts_once_after_the_last_attempt(
    load: Load, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("guides/retries.md on_failure.py")
    async with TestScheduler(pool) as t:
        job_id = await t.scheduler.enqueue(module.charge, args=(7,))
        await t.drain()
        t.assert_not_scheduled(module.page)
        await t.run_until(timedelta(hours=1))
        assert (t.ran(module.charge), t.ran(module.page)) == (3, 1)
        assert (await job_of(t.scheduler, f"{job_id}:failed")).status is JobStatus.COMPLETED
    error = "ConnectionError: no answer from the bank for order 7"
    assert capsys.readouterr().out == f"billing.charge {job_id} failed after 3 attempts: {error}\n"


@recipe("guides/events.md alerts.py")
async def test_alert_recipe_reports_the_failures_of_another_node(
    load: Load, pool: Pool, dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("guides/events.md alerts.py")

    async def fail() -> None:
        raise ValueError("no")

    async with asyncpg.create_pool(dsn) as own_pool, Scheduler(own_pool) as watcher:
        watching = asyncio.create_task(module.watch(watcher))
        async with running(pool) as (scheduler, seen):
            relay = worker_of(scheduler).relay
            while not relay._audience.kinds:
                await seen.until(PassFinished, len(seen.of(PassFinished)) + 1)
            job_id = await scheduler.schedule(fail, execution_time=datetime.now(UTC))
            assert isinstance(await watcher.next_event(JobFailed, cluster=True, timeout=10), JobFailed)
    await watching
    assert f"alert: {fail.__module__}.{fail.__qualname__} {job_id}: ValueError: no" in capsys.readouterr().out


# -- coordinating jobs ---------------------------------------------------------------------------------


@recipe("guides/scheduling.md own_ids.py")
async def test_unique_job_recipe_schedules_the_job_once(
    load: Load, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("guides/scheduling.md own_ids.py")
    async with running(pool) as (scheduler, seen):
        ids = await asyncio.gather(*[module.welcome(scheduler, 17) for _ in range(5)])
        assert set(ids) == {"welcome:17"}
        await seen.until(JobCompleted)
        assert await module.welcome(scheduler, 17) == "welcome:17"
        assert (await job_of(scheduler, "welcome:17")).status is JobStatus.COMPLETED
        await module.welcome(scheduler, 18)
        await seen.until(JobCompleted, job_id="welcome:18")
    assert capsys.readouterr().out == "welcome, user 17\nwelcome, user 18\n"


@recipe("guides/scheduling.md rescheduled.py")
async def test_reschedule_recipe_moves_the_job_and_calls_it_off(load: Load, pool: Pool) -> None:
    module = await load("guides/scheduling.md rescheduled.py")
    scheduler = Scheduler(pool)
    await scheduler.initialize_db()
    for days in (3, 1):
        when = datetime(2030, 1, days, tzinfo=UTC)
        await module.remind_at(scheduler, 17, when)
        assert (await job_of(scheduler, "remind:17")).execution_time == when
    assert (await scheduler.count_jobs()).total == 1
    assert await module.forget(scheduler, 17)
    assert not await module.forget(scheduler, 17)
    assert (await job_of(scheduler, "remind:17")).status is JobStatus.CANCELLED


@recipe("guides/unique.md unique_by_arguments.py")
async def test_unique_by_arguments_recipe_schedules_no_second_job_before_the_first_has_ended(
    load: Load, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("guides/unique.md unique_by_arguments.py")
    front = Scheduler(pool)
    ids = await asyncio.gather(*[module.contacts_changed(front, 7, "import") for _ in range(5)])
    assert len({*ids}) == 1
    assert await module.contacts_changed(front, 7, "edit") == ids[0]
    async with running(pool) as (scheduler, seen):
        await seen.until(JobCompleted, job_id=ids[0])
        again = await module.contacts_changed(scheduler, 7, "edit")
        assert again != ids[0]
        await seen.until(JobCompleted, job_id=again)
    assert capsys.readouterr().out == "syncing 7 because of import\nsyncing 7 because of edit\n"


@recipe("guides/unique.md debounce.py")
async def test_debounce_recipe_runs_the_job_once_with_the_last_arguments(
    load: Load, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("guides/unique.md debounce.py")
    clock = FakeClock(datetime(2030, 1, 1, tzinfo=UTC))
    front = Scheduler(pool, clock=clock)
    begun_at = clock.now
    due_times = []
    for version in (1, 2, 3):
        job_id = await module.document_saved(front, 7, version)
        due_times.append((await job_of(front, job_id)).execution_time - begun_at)
        clock.advance(timedelta(seconds=29))
    assert due_times == [timedelta(seconds=30), timedelta(seconds=59), timedelta(seconds=88)]
    clock.advance(timedelta(seconds=1))
    async with running(pool, clock=clock) as (scheduler, seen):
        await seen.until(JobCompleted)
        assert (await scheduler.count_jobs()).total == 1
    assert capsys.readouterr().out == "indexing document 7 version 3\n"


@recipe("guides/dependencies.md chain.py")
async def test_chain_recipe_schedules_job_b_once_when_job_a_is_repeated(
    load: Load, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("guides/dependencies.md chain.py")
    clock = FakeClock(datetime(2030, 1, 1, tzinfo=UTC))
    scheduler = Scheduler(pool, clock=clock)
    seen = Recorder(scheduler)
    await scheduler.schedule(module.begin, execution_time=clock.now, args=(17,), job_id="trial:17")
    async with scheduler:
        await seen.until(JobCompleted)
        first = await job_of(scheduler, "trial:17:ask")
        clock.advance(timedelta(seconds=5))
        assert await scheduler.retry_job("trial:17")  # the attempt that is repeated
        await seen.until(JobCompleted, 2, job_id="trial:17")
        assert await job_of(scheduler, "trial:17:ask") == first
    assert first.execution_time == datetime(2030, 1, 4, tzinfo=UTC)
    clock.advance(timedelta(days=3))
    async with scheduler:
        await seen.until(JobCompleted, job_id="trial:17:ask")
        assert len(await scheduler.list_jobs(job_name="trial.ask")) == 1
    begins = "the trial of user 17 begins\n"
    assert capsys.readouterr().out == f"{begins}{begins}how do you like it, user 17\n"


@recipe("guides/dependencies.md after.py")
async def test_after_recipe_runs_job_b_three_days_later_once_job_a_completed(load: Load, pool: Pool) -> None:
    module = await load("guides/dependencies.md after.py")
    scheduler = Scheduler(pool)
    before = datetime.now(UTC)
    await module.start_trial(scheduler, 17)
    begin, ask = sorted(await scheduler.list_jobs(), key=lambda job: job.execution_time)
    assert (begin.blocked_on, ask.blocked_on) == (None, "after")
    assert timedelta(days=3) <= ask.execution_time - before < timedelta(days=3, minutes=1)
    seen = Recorder(scheduler)
    async with scheduler:
        await seen.until(JobCompleted, job_id=begin.job_id)
    assert (await job_of(scheduler, ask.job_id)).blocked_on is None


@recipe("guides/dependencies.md batch.py")
async def test_batch_recipe_runs_the_callback_after_all_jobs(
    load: Load, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("guides/dependencies.md batch.py")
    async with running(pool) as (scheduler, seen):
        await module.resize_album(scheduler, pool, 5, range(7))
        await seen.until(JobCompleted, 8)
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines[:-1]) == [f"resizing {n}" for n in range(7)]
    assert lines[-1] == "publishing album 5"


@recipe("guides/dependencies.md passed.py")
async def test_recipe_adds_up_the_results_of_other_jobs(
    load: Load, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("guides/dependencies.md passed.py")
    async with running(pool) as (scheduler, seen):
        await module.count_book(scheduler, range(3))
        await seen.until(JobCompleted, 4)
    assert capsys.readouterr().out == "the book has 15 words\n"


@recipe("guides/limits.md account_rows.py")
async def test_account_row_recipe_merges_requests_while_its_job_runs(load: Load, pool: Pool) -> None:
    module = await load("guides/limits.md account_rows.py")
    gate = Gate()
    module.fetch_transactions = gate.job
    async with running(pool) as (scheduler, seen):
        await module.request_sync(scheduler, 17)
        await gate.began.wait()
        for _ in range(3):
            await module.request_sync(scheduler, 17)
        assert (await job_of(scheduler, "sync:17")).replacement
        gate.open.set()
        await seen.until(JobCompleted, 2, job_id="sync:17")
        assert (await job_of(scheduler, "sync:17")).status is JobStatus.COMPLETED
    assert (gate.calls, gate.most) == ([(17,), (17,)], 1)


@recipe("guides/limits.md account_limit.py")
async def test_account_limit_recipe_runs_one_job_per_account_at_a_time(load: Load, pool: Pool) -> None:
    module = await load("guides/limits.md account_limit.py")
    gate = Gate()
    module.deliver = gate.job
    async with running(pool) as (scheduler, seen):
        for account, text in ((17, "one"), (17, "two"), (18, "three")):
            await module.message(scheduler, account, text)
        await seen.until(JobStarted, 2)
        await seen.until(JobBlocked)
        assert sorted(account for account, _ in gate.calls) == [17, 18]
        gate.open.set()
        await seen.until(JobCompleted, 3)
    assert sorted(gate.calls) == [(17, "one"), (17, "two"), (18, "three")]


@recipe("guides/shares.md exports.py")
async def test_exports_recipe_lets_tenants_take_turns(
    load: Load, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("guides/shares.md exports.py")
    async with TestScheduler(pool) as t:
        for n in range(3):
            await module.request_export(t.scheduler, "loud", f"table {n}")
        await module.request_export(t.scheduler, "quiet", "table")
        assert await t.drain() == 4
    lines = capsys.readouterr().out.splitlines()
    assert lines.index("exporting table of quiet") == 1


@recipe("guides/sequences.md bookings.py")
async def test_bookings_recipe_runs_the_bookings_of_an_account_in_order(
    load: Load, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("guides/sequences.md bookings.py")
    async with TestScheduler(pool) as t:
        for amount in range(4):
            await module.receive(t.scheduler, "ab"[amount % 2], amount)
        assert await t.drain() == 4
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith("a")] == ["book 0 for a", "book 2 for a"]
    assert [line for line in lines if line.endswith("b")] == ["book 1 for b", "book 3 for b"]


@recipe("guides/chunks.md documents.py")
async def test_documents_recipe_sends_all_documents_at_once(load: Load, pool: Pool) -> None:
    module = await load("guides/chunks.md documents.py")
    sizes: list[int] = []
    send = module.send_bulk

    async def send_bulk(documents: list[str]) -> dict[int, str]:
        sizes.append(len(documents))
        errors: dict[int, str] = await send(documents)
        return errors

    module.send_bulk = send_bulk
    async with TestScheduler(pool) as t:
        for document in ("a", "", "c"):
            await module.document_changed(t.scheduler, document)
        assert await t.drain() == 3
        (refused,) = await t.scheduler.list_jobs(status=JobStatus.PENDING)
        assert refused.errors[0].message == "it is empty"
    assert sizes == [3]


@recipe("guides/limits.md api_rate.py")
async def test_api_rate_recipe_makes_five_calls_per_second(load: Load, pool: Pool) -> None:
    module = await load("guides/limits.md api_rate.py")
    gate = Gate()
    gate.open.set()
    module.get = gate.job
    async with running(pool) as (scheduler, seen):
        await module.fetch_all(scheduler, 7)
        await seen.until(JobBlocked, 2)
        await seen.until(JobCompleted, 7)
    instants = [row[0] for row in await pool.fetch("SELECT started_at FROM scheduled_jobs ORDER BY 1")]
    assert instants[5] - instants[0] > timedelta(seconds=0.9)  # started_at is the claim, before the admission


@recipe("guides/limits.md customer_rate.py")
async def test_customer_rate_recipe_starts_ten_per_second_of_each_customer(load: Load, pool: Pool) -> None:
    module = await load("guides/limits.md customer_rate.py")
    gate = Gate()
    gate.open.set()
    module.post = gate.job
    async with running(pool) as (scheduler, seen):
        for number in range(12):
            await module.report_change(scheduler, 17, f"change {number}")
        other_id = await module.report_change(scheduler, 18, "change")
        await seen.until(JobCompleted, 13)
        assert seen.of(JobBlocked)
        assert not seen.of(JobBlocked, job_id=other_id)
    rows = await pool.fetch("SELECT started_at FROM scheduled_jobs WHERE job_id <> $1 ORDER BY 1", other_id)
    assert rows[11][0] - rows[0][0] > timedelta(seconds=0.9)  # started_at is the claim, before the admission


# -- completing in your transaction ---------------------------------------------------------------------


ACCOUNTS = "CREATE TABLE accounts (id int PRIMARY KEY, balance int)"


@recipe("guides/completing.md charges.py")
async def test_charge_and_its_receipt_are_committed_with_the_end_of_the_job(load: Load, pool: Pool) -> None:
    module = await load("guides/completing.md charges.py")
    await pool.execute(ACCOUNTS)
    await pool.execute("INSERT INTO accounts VALUES (7, 100)")
    async with running(pool) as (scheduler, seen):
        assert await scheduler.run_job(module.charge, args=(7, 5), wait_timeout=30) == {"charged": 5}
        await seen.until(JobCompleted, job_name="mail.send_receipt")
    assert await pool.fetchval("SELECT balance FROM accounts") == 95


@recipe("guides/completing.md sqlalchemy_charges.py")
async def test_refund_is_committed_by_the_session_with_the_end_of_the_job(
    load: Load, dsn: str, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", with_driver(dsn))
    module = await load("guides/completing.md sqlalchemy_charges.py")
    await pool.execute(ACCOUNTS)
    await pool.execute("INSERT INTO accounts VALUES (7, 100)")
    async with running(pool) as (scheduler, seen):
        await scheduler.enqueue(module.refund, args=(7, 5))
        await seen.until(JobCompleted)
    assert await pool.fetchval("SELECT balance FROM accounts") == 105
    await module.engine.dispose()


# -- jobs in your transaction --------------------------------------------------------------------------


ORDERS = "CREATE TABLE orders (number int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)"
"""A second order of the same number fails at the commit, after the job was inserted."""


@recipe("guides/transactions.md orders.py")
async def test_asyncpg_outbox_commits_the_job_with_the_order(load: Load, pool: Pool) -> None:
    module = await load("guides/transactions.md orders.py")
    await pool.execute(ORDERS)
    await pool.execute("INSERT INTO orders VALUES (2)")
    async with running(pool) as (scheduler, seen):
        await module.place_order(pool, scheduler, 1)
        await seen.until(JobCompleted, job_id="invoice:1")
        with pytest.raises(asyncpg.UniqueViolationError):
            await module.place_order(pool, scheduler, 2)
        assert await scheduler.get_job("invoice:2") is None


@recipe("guides/transactions.md webhooks.py")
async def test_webhook_recipe_handles_an_event_once(
    load: Load, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("guides/transactions.md webhooks.py")
    await pool.execute("CREATE TABLE events (id text PRIMARY KEY, body text)")
    async with running(pool) as (scheduler, seen):
        bodies = ['{"id": "evt_1"}'] * 3 + ['{"id": "evt_2"}']
        ids = await asyncio.gather(*[module.receive(pool, scheduler, body) for body in bodies])
        assert ids == ["event:evt_1"] * 3 + ["event:evt_2"]
        await seen.until(JobCompleted, 2)
        assert await module.receive(pool, scheduler, bodies[0]) == "event:evt_1"
        assert (await scheduler.count_jobs()).total == 2
    assert await pool.fetchval("SELECT count(*) FROM events") == 2
    assert sorted(capsys.readouterr().out.splitlines()) == ["handling event evt_1", "handling event evt_2"]


@recipe("guides/transactions.md sqlalchemy_orders.py")
async def test_sqlalchemy_outbox_commits_the_job_with_the_order(
    load: Load, dsn: str, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("guides/transactions.md sqlalchemy_orders.py")
    await pool.execute(ORDERS)
    await pool.execute("INSERT INTO orders VALUES (2)")
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://", 1))
    async with running(pool) as (scheduler, seen):
        async with AsyncSession(engine) as session:
            await module.place_order(session, scheduler, 1)
            with pytest.raises(IntegrityError):
                await module.place_order(session, scheduler, 2)
        await seen.until(JobCompleted, job_id="invoice:1")
        assert await scheduler.get_job("invoice:2") is None
        job = await job_of(scheduler, "invoice:1")
        assert (job.args, job.kwargs, job.max_retries) == ((1,), {}, 5)
        assert not seen.of(JobFailed)
    await engine.dispose()
    assert capsys.readouterr().out == "invoice for order 1\n"


@recipe("guides/transactions.md tortoise_orders.py")
async def test_tortoise_outbox_commits_the_job_with_the_order(load: Load, dsn: str, pool: Pool) -> None:
    tortoise = pytest.importorskip("tortoise", reason="dev.py has not updated this environment")
    module = await load("guides/transactions.md tortoise_orders.py")
    await pool.execute(ORDERS)
    await pool.execute("INSERT INTO orders VALUES (2)")
    address = {name.lower(): value for name, value in django_address(dsn).items()}
    credentials = {"database": address.pop("name"), **address}
    connections = {"default": {"engine": "tortoise.backends.asyncpg", "credentials": credentials}}
    apps = {"shop": {"models": ["tortoise_orders"], "default_connection": "default"}}
    with pytest.warns(RuntimeWarning, match="has no models"):
        await tortoise.Tortoise.init(config={"connections": connections, "apps": apps})
    async with running(pool) as (scheduler, seen):
        await module.place_order(scheduler, 1)
        (done,) = await seen.until(JobCompleted)
        with pytest.raises(asyncpg.UniqueViolationError):  # at the commit
            await module.place_order(scheduler, 2)
        assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 1
        job = await job_of(scheduler, done.job_id)
        assert (job.job_name, job.args, job.max_retries) == ("billing.send_invoice", (1,), 5)
    await tortoise.Tortoise.close_connections()


async def test_jobs_are_part_of_the_transactions_of_piccolo(dsn: str, pool: Pool) -> None:
    """It is not among the development tools, because of its dependencies: pip install piccolo."""
    postgres = pytest.importorskip("piccolo.engine.postgres")
    engine = postgres.PostgresEngine({"dsn": dsn})
    scheduler = Scheduler(pool)
    for rolls_back in (True, False):
        async with engine.transaction() as transaction:
            job_id = await scheduler.enqueue("mail.welcome", connection=transaction.connection)
            if rolls_back:
                await transaction.rollback()
        assert (await scheduler.get_job(job_id) is None) is rolls_back


async def test_inserted_row_has_the_defaults_that_the_page_lists(pool: Pool) -> None:
    await pool.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, task_data) "
        "VALUES ('x', 'x', now(), '{\"args\": [], \"kwargs\": {}}')"
    )
    row = await pool.fetchrow("SELECT * FROM scheduled_jobs")
    assert row
    page = (ROOT / "docs" / "guides/transactions.md").read_text(encoding="utf-8")
    table = page.partition("| Column | Default |\n")[2].partition("\n\n")[0]
    defaults = {}
    for line in table.splitlines()[1:]:
        columns, default = line.strip("|").split("|")
        for column in re.findall(r"`(\w+)`", columns):
            is_null = default.strip().startswith("NULL")
            defaults[column] = None if is_null else float(re.findall(r"\d+", default)[0])
    assert defaults.keys() >= {"priority", "max_retries", "timeout_seconds", "expires_at"}
    assert {column: row[column] for column in defaults} == defaults


# -- deploying -----------------------------------------------------------------------------------------


@recipe("guides/shutdown.md migrate.py")
async def test_migration_recipe_creates_the_tables_and_may_run_again(empty_dsn: str, tmp_path: Path) -> None:
    for _ in range(2):
        async with program(FILES["guides/shutdown.md migrate.py"], tmp_path, empty_dsn) as process:
            async with asyncio.timeout(30):
                assert await process.wait() == 0
        async with asyncpg.create_pool(empty_dsn, min_size=1) as pool:
            assert (await Scheduler(pool).count_jobs()).total == 0


SLOW = """
import asyncio
from pg_scheduler import job

@job(name="slow")
async def slow():
    print("started", flush=True)
    await asyncio.sleep(1)
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_worker_finishes_its_running_job_after_a_signal(
    dsn: str, pool: Pool, tmp_path: Path, signum: signal.Signals
) -> None:
    """Real time: the job runs for a second after the signal."""
    (tmp_path / "jobs.py").write_text(SLOW, encoding="utf-8")
    snippet = FILES["guides/shutdown.md worker.py"]
    async with program(snippet, tmp_path, dsn) as worker, asyncio.timeout(30):
        assert worker.stdout
        assert await worker.stdout.readline() == b"ready\n"
        await Scheduler(pool).schedule_job("slow", now(), {}, job_id="slow")
        assert await worker.stdout.readline() == b"started\n"
        worker.send_signal(signum)
        assert await worker.wait() == 0
    job = await job_of(Scheduler(pool), "slow")
    assert (job.status, job.attempt) == (JobStatus.COMPLETED, 1)


TWO_KINDS = """
from pg_scheduler import job

@job(name="reports.build")
async def build(): ...

@job(name="mail.send")
async def send(): ...
"""


@recipe("guides/roles.md pools.py")
async def test_pools_recipe_runs_reports_and_mail_in_workers_of_their_own(
    dsn: str, pool: Pool, tmp_path: Path
) -> None:
    (tmp_path / "jobs.py").write_text(TWO_KINDS, encoding="utf-8")
    (tmp_path / "pools.py").write_text(code_of("guides/roles.md pools.py"), encoding="utf-8")
    client = Scheduler(pool)
    await client.initialize_db()
    ids = {name: await client.enqueue(name) for name in ("reports.build", "mail.send")}
    environment = os.environ | {"DATABASE_URL": dsn, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    workers = [
        await asyncio.create_subprocess_exec(sys.executable, "pools.py", kind, cwd=tmp_path, env=environment)
        for kind in ("reports", "rest")
    ]
    try:
        for name, kind in (("reports.build", "reports"), ("mail.send", "rest")):
            result = await client.get_job_result(ids[name], timeout=40)
            assert result is not None
            assert result.status is JobStatus.COMPLETED
            job = await job_of(client, ids[name])
            assert [each.identity for each in await client.workers() if each.worker_id == job.worker_id] == [
                kind
            ]
    finally:
        for worker in workers:
            worker.kill()
            await worker.wait()


def test_container_recipe_runs_the_documented_worker() -> None:
    dockerfile = block("guides/shutdown.md", "dockerfile")
    command = json.loads(re.findall(r"^CMD (.+)$", dockerfile, re.MULTILINE)[0])
    assert command == ["python", "worker.py"]
    (copied,) = re.findall(r"^COPY (.+) \./$", dockerfile.replace("*.whl ./", ""), re.MULTILINE)
    assert copied.split() == ["jobs.py", "worker.py"]
    assert f"command: {json.dumps(command)}" in block("guides/shutdown.md", "yaml")


def test_container_recipe_stop_timeout_covers_jobs_their_clean_up_and_results() -> None:
    worker = code_of("guides/shutdown.md worker.py")
    (timeout,) = re.findall(r"shutdown_timeout=(\d+)", worker)
    (grace,) = re.findall(r"terminationGracePeriodSeconds: (\d+)", block("guides/shutdown.md", "yaml"))
    (stop,) = re.findall(
        r"--stop-timeout (\d+)", shlex.join(shlex.split(block("guides/shutdown.md", "console")))
    )
    assert int(grace) == int(stop) == 2 * int(timeout) + 15
    assert f"`stop_grace_period: {grace}s`" in (ROOT / "docs" / "guides/shutdown.md").read_text(
        encoding="utf-8"
    )


# -- moving from another scheduler ---------------------------------------------------------------------


@recipe("how-do-i/moving.md celery_tasks.py")
async def test_celery_recipe_schedules_a_task_and_plans_a_beat_entry(
    load: Load, dsn: str, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("how-do-i/moving.md celery_tasks.py")
    engine = create_engine(with_driver(dsn, "psycopg2"))
    async with TestScheduler(pool) as t:
        with Session(engine) as session:
            module.place_order(session, 1)
        await t.run_until(timedelta(seconds=9))
        assert "invoice" not in capsys.readouterr().out
        await t.run_until(timedelta(minutes=1))
        assert "invoice 1\n" in capsys.readouterr().out
        job = await job_of(t.scheduler, "invoice-1")
        assert (job.job_name, job.max_retries) == ("shop.send_invoice", 5)
        status = t.scheduler.get_periodic_job_status("weekly")
        assert status is not None
        assert (status["cron"], status["timezone"]) == ("0 7 * * MON", "Europe/Berlin")
        await t.scheduler.trigger_periodic_job("weekly")
        await t.drain()
        assert capsys.readouterr().out == "weekly report\n"
    engine.dispose()


@recipe("how-do-i/moving.md celery_retries.py")
async def test_task_of_celery_is_retried_only_where_it_asks_for_it(load: Load, pool: Pool) -> None:
    module = await load("how-do-i/moving.md celery_retries.py")
    calls: list[str] = []

    def connect(_: str, to: str) -> None:
        calls.append(to)
        if to == "unreachable" and len(calls) == 1:
            raise ConnectionError
        if to == "unexpected":
            raise KeyError

    module.print = connect
    async with TestScheduler(pool) as t:
        for to, status, times in (("unreachable", "completed", 2), ("unexpected", "failed", 1)):
            calls.clear()
            job_id = await t.scheduler.enqueue(module.send_mail, args=(to,))
            await t.run_until(timedelta(minutes=5))
            assert (str((await job_of(t.scheduler, job_id)).status), calls) == (status, [to] * times)


@recipe("guides/middleware.md dishka_jobs.py")
async def test_dishka_recipe_opens_a_scope_for_each_attempt(
    load: Load, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("dishka", reason="dev.py has not updated this environment")
    module = await load("guides/middleware.md dishka_jobs.py")
    sessions: list[object] = []

    def remember(session: object) -> None:
        sessions.append(session)

    module.Session.__init__ = remember
    scheduler = Scheduler(pool, middleware=[module.open_scope])
    scheduler.register(module.ship, typed=True)
    async with scheduler, asyncio.timeout(30):
        for order in (1, 2):
            await scheduler.run_job(module.ship, args=(order,))
        with pytest.raises(PayloadError, match="order: Input should be a valid integer"):
            await scheduler.enqueue(module.ship, args=("x",))
        with pytest.raises(PayloadError, match="session: Unexpected keyword argument"):
            await scheduler.enqueue(module.ship, args=(3,), kwargs={"session": 4})
    assert capsys.readouterr().out == "ship 1 by Session\nship 2 by Session\n"
    assert len(set(map(id, sessions))) == 2


@recipe("guides/middleware.md depends_jobs.py")
async def test_fast_depends_recipe_passes_a_dependency(
    load: Load, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fast_depends", reason="dev.py has not updated this environment")
    module = await load("guides/middleware.md depends_jobs.py")
    async with Scheduler(pool) as scheduler, asyncio.timeout(30):
        await scheduler.run_job(module.pay, args=(7,))
        await scheduler.run_job(module.pay, args=(8,), metadata={"tenant": "acme"})
    steps = "".join(f"open\npay {order} of {tenant}\nclose\n" for order, tenant in ((7, "all"), (8, "acme")))
    assert capsys.readouterr().out == steps


@recipe("guides/inspecting.md tenants.py")
async def test_tenants_recipe_finds_the_jobs_of_one_tenant(load: Load, pool: Pool) -> None:
    module = await load("guides/inspecting.md tenants.py")
    scheduler = Scheduler(pool)
    await scheduler.initialize_db()
    ids = [await module.send_for(scheduler, n % 2, "ada@example.org") for n in range(4)]
    found = await module.jobs_of(scheduler, 1)
    assert [job.job_id for job in found] == [ids[1], ids[3]]
    assert found[0].metadata == {"area": "mail", "tenant": 1}


@recipe("guides/inspecting.md offboard.py")
async def test_offboard_recipe_removes_the_schedules_and_cancels_the_jobs_of_one_tenant(
    load: Load, pool: Pool
) -> None:
    offboard = (await load("guides/inspecting.md offboard.py")).offboard
    tenants = await load("guides/inspecting.md tenants.py")
    scheduler = Scheduler(pool)
    await scheduler.initialize_db()
    for number in range(120):  # more than a page
        await scheduler.schedules.add(
            tenants.send_mail,
            Every(hours=1),
            args=("ada@example.org",),
            schedule_id=f"s{number:03}",
            metadata={"tenant": 1 + number // 119},
        )
    for tenant in (1, 1, 2):
        await tenants.send_for(scheduler, tenant, "ada@example.org")
    await scheduler.schedules.trigger("s000")
    assert await offboard(scheduler, 1) == 3  # with the job of a schedule
    assert [schedule.schedule_id for schedule in await scheduler.schedules.list()] == ["s119"]
    assert (await scheduler.count_jobs()).pending == 1
    assert await offboard(scheduler, 1) == 0


@recipe("guides/registering.md incident.py")
async def test_incident_recipe_pauses_a_task_for_an_hour(load: Load, pool: Pool) -> None:
    module = await load("guides/registering.md incident.py")
    scheduler = Scheduler(pool)
    await scheduler.initialize_db()
    await module.stop_mail(scheduler, "the mail server is down")
    assert await module.paused_tasks(scheduler) == ["mail.welcome: the mail server is down"]
    (task,) = [task for task in await scheduler.tasks.list() if task.is_paused]
    assert task.paused_until is not None
    assert timedelta(minutes=59) < task.paused_until - now() < timedelta(minutes=61)
    await module.resume_mail(scheduler)
    assert await module.paused_tasks(scheduler) == []


@recipe("guides/registering.md outage.py")
async def test_outage_recipe_loses_no_job_that_waits_for_longer_than_its_grace_time(
    load: Load, pool: Pool
) -> None:
    scheduler = Scheduler(pool)
    await scheduler.initialize_db()
    await (await load("guides/registering.md outage.py")).stop_mail_without_losing_any(scheduler)
    await scheduler.schedule_job("mail.welcome", now() - timedelta(minutes=9), {}, job_id="a")
    (task,) = [task for task in await scheduler.tasks.list() if task.is_paused]
    assert task.suspends_expiry
    await scheduler.tasks.resume("mail.welcome")
    job = await scheduler.get_job("a")
    assert job is not None
    assert job.status == "pending"


@recipe("guides/inspecting.md health.py")
async def test_health_recipe_reports_dead_workers_and_late_jobs(load: Load, pool: Pool) -> None:
    problems = (await load("guides/inspecting.md health.py")).problems
    observer = Scheduler(pool)
    await observer.initialize_db()
    assert await problems(observer) == ["no worker runs jobs"]
    await observer.schedule_job("shop.unknown", now() - timedelta(minutes=2), {}, job_id="a")
    async with Scheduler(pool, identity="pod-1") as worker:
        assert await problems(worker) == ["shop.unknown a is late, waiting for a slot"]
        await worker.cancel_job("a")
        assert await problems(worker) == []
        await pool.execute("UPDATE scheduler_workers SET lease_until = now() - interval '1 second'")
        assert await problems(worker) == ["pod-1 is dead", "no worker runs jobs"]


@recipe("guides/inspecting.md post_mortem.py")
async def test_post_mortem_recipe_shows_an_error_for_each_attempt(load: Load, pool: Pool) -> None:
    module = await load("guides/inspecting.md post_mortem.py")
    clock = FakeClock(now())
    async with running(pool, clock=clock) as (scheduler, seen):
        job_id = await scheduler.enqueue(module.charge, args=(7,))
        for retries in (1, 2):
            await seen.until(JobRetried, retries, job_id=job_id)
            clock.advance(timedelta(minutes=4))
            worker_of(scheduler).node.signals.due()
        await seen.until(JobFailed, job_id=job_id)
        errors = await module.post_mortem(scheduler, job_id)
        assert await module.post_mortem(scheduler, "unknown") == []
    assert [error.splitlines()[0] for error in errors] == [
        f"attempt {n}, error: ConnectionError: no connection to the bank for order 7" for n in (1, 2, 3)
    ]


@recipe("guides/inspecting.md retry_failed.py")
async def test_retry_recipe_shows_the_failed_jobs_and_runs_them_again(
    load: Load, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("guides/inspecting.md retry_failed.py")
    is_up = False

    async def send_mail() -> None:
        if not is_up:
            raise ConnectionError("no mail server")

    async with running(pool) as (scheduler, seen):
        scheduler.register(send_mail, name="mail.send")
        job_id = await scheduler.enqueue(send_mail)
        await seen.until(JobFailed, job_id=job_id)
        is_up = True
        await module.retry_failed(scheduler)
        await seen.until(JobCompleted, job_id=job_id)
    assert capsys.readouterr().out == f"{job_id} mail.send ConnectionError: no mail server\n"


@recipe("how-do-i/moving.md apscheduler_jobs.py")
async def test_apscheduler_recipe_replaces_a_date_and_triggers_a_schedule(
    load: Load, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    module = await load("how-do-i/moving.md apscheduler_jobs.py")
    async with running(pool) as (scheduler, seen):
        await module.remind_at(scheduler, 17, now() + timedelta(hours=1))
        await module.remind_at(scheduler, 17, now())
        await seen.until(JobCompleted, job_id="remind-17")
        status = scheduler.get_periodic_job_status("sweep")
        assert status is not None
        assert status["interval"] == 300
        await module.trigger_sweep(scheduler)
        await seen.until(JobCompleted, 2)
    assert capsys.readouterr().out == "reminding user 17\nsweeping\n"


@pytest.fixture
def other_dsn(server: Server, server_admin: Admin, template: str) -> Iterator[str]:
    """The DSN of a second database."""
    with database(server_admin, template) as name:
        yield server.dsn(name)


@recipe("operations/deployment.md shards.py")
async def test_jobs_are_divided_among_two_databases_with_one_dashboard(
    load: Load, pool: Pool, other_dsn: str
) -> None:
    module = await load("operations/deployment.md shards.py")
    keys = {f"tenant-{number}" for number in range(40)}
    async with (
        asyncpg.create_pool(other_dsn, min_size=1, max_size=5) as other,
        running(pool) as (east, seen_east),
        running(other) as (west, seen_west),
    ):
        shards = module.Shards(east=east, west=west)
        for key in keys:
            await shards.of(key).enqueue(nothing, job_id=key)
        board = dashboard(shards.schedulers, authorize=lambda _request: Access("ada", "viewer"))
        for name, scheduler, seen in (("east", east, seen_east), ("west", west, seen_west)):
            own = {key for key in keys if shards.of(key) is scheduler}
            assert 10 < len(own) < 30
            assert {each.job_id for each in await seen.until(JobCompleted, len(own))} == own
            answer = await request(board, f"/{name}/jobs", headers=JSON)
            assert {each["job_id"] for each in answer.data["items"]} == own
        wider = module.Shards(east=east, west=west, north=Scheduler(pool))
        moved = [key for key in keys if wider.of(key) is not shards.of(key)]
        assert 0 < len(moved) < 20
        assert {wider.of(key) for key in moved} == {wider.schedulers["north"]}


async def nothing() -> None: ...
