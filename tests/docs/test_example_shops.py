"""The applications of examples/ that use other libraries, and what it takes to connect them."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import asyncpg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from pg_scheduler.events import JobCompleted, JobSuspended
from pg_scheduler.migrate import verify
from pg_scheduler.testing import TestScheduler
from pg_scheduler.triggers import Cron
from tests.conftest import run_on
from tests.docs import asgi, test_files
from tests.docs.snippets import ROOT
from tests.docs.test_examples import load
from tests.support.django import has_tasks
from tests.support.stories import NIGHTLY
from tests.support.transactions import django_address
from tests.support.worker import Recorder

pytestmark = pytest.mark.slow  # programs start and end

Pool = asyncpg.Pool

ORDERS = "CREATE TABLE orders (number int PRIMARY KEY)"
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
"""A Tuesday."""

PYTEST = (
    *("pytest", "-c", os.devnull, "--rootdir", ".", "--import-mode=importlib", "-q", *test_files.PLUGIN),
    *("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"),
    *("-p", "no:randomly", "-p", "no:cacheprovider"),
)
"""The command that runs the tests of an application, without the settings of this repository."""


def url_of(dsn: str, driver: str) -> str:
    """Return the URL of an engine."""
    return dsn.replace("postgresql://", f"postgresql+{driver}://", 1)


async def output_of(dsn: str, *arguments: str, seconds: float = 120) -> str:
    """Run a module of Python in the repository; return what it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *arguments),
        cwd=ROOT,
        env=os.environ | {"DATABASE_URL": dsn, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), seconds)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output.decode()
    return output.decode()


# -- FastAPI, SQLAlchemy and Alembic -------------------------------------------------------------------


@contextmanager
def application(package: str) -> Iterator[Any]:
    """Import the application of a package again, and forget the modules of the package at the end."""
    pytest.importorskip("fastapi", exc_type=ImportError, reason="FastAPI wants a newer pydantic than we do")
    forget(package)
    yield load(f"{package}.app")
    forget(package)


def forget(package: str) -> None:
    for name in [name for name in sys.modules if name.startswith(package)]:
        del sys.modules[name]


@pytest.fixture
def shop(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The application, imported again with this database."""
    monkeypatch.setenv("DATABASE_URL", url_of(dsn, "asyncpg"))
    with application("examples.fastapi_shop") as shop:
        yield shop


async def alembic(dsn: str, *arguments: str) -> str:
    return await output_of(
        url_of(dsn, "asyncpg"), "alembic", "--config", "examples/fastapi_shop/alembic.ini", *arguments
    )


async def test_fastapi_shop_stores_orders_and_jobs_together(shop: Any, dsn: str, pool: Pool) -> None:
    await alembic(dsn, "upgrade", "head")
    order = {"number": 7, "email": "ada@example.org"}
    async with asgi.lifespan(shop.app) as state, asyncio.timeout(60):
        seen = Recorder(state["scheduler"])
        assert await asgi.request(shop.app, "POST", "/orders", order, state=state) == (201, None)
        await seen.until(JobCompleted, job_name="shop.send_invoice")
        stored = await asgi.get(shop.app, "/orders/7", state=state)
        assert stored == {"email": "ada@example.org", "invoice": "ada@example.org/7.pdf"}
        with pytest.raises(IntegrityError):
            await asgi.request(shop.app, "POST", "/orders", order, state=state)
        assert await asgi.request(shop.app, "DELETE", "/orders/7", state=state) == (200, True)
        assert await asgi.request(shop.app, "DELETE", "/orders/7", state=state) == (200, False)
    rows = await pool.fetch("SELECT job_name, status FROM scheduled_jobs WHERE job_name NOT LIKE '%report'")
    assert {tuple(row) for row in rows} == {
        ("shop.send_invoice", "completed"),
        ("shop.ask_for_review", "cancelled"),
    }
    await sys.modules["examples.fastapi_shop.database"].engine.dispose()


async def test_alembic_of_the_fastapi_shop_leaves_the_tables_of_the_library(dsn: str) -> None:
    """Without the filter the command fails, because the tables are not those of the shop."""
    await alembic(dsn, "upgrade", "head")
    assert "No new upgrade operations detected" in await alembic(dsn, "check")
    await asyncio.to_thread(run_on, dsn, verify)


async def test_tests_of_the_fastapi_shop_pass_and_leave_no_rows(dsn: str, pool: Pool) -> None:
    pytest.importorskip("fastapi", exc_type=ImportError, reason="FastAPI wants a newer pydantic than we do")
    await alembic(dsn, "upgrade", "head")
    output = await output_of(url_of(dsn, "asyncpg"), *PYTEST, "examples/fastapi_shop/test_shop.py")
    assert "2 passed" in output
    for table in ("orders", "scheduled_jobs"):
        assert await pool.fetchval(f"SELECT count(*) FROM {table}") == 0


# -- FastAPI, with durable steps ---------------------------------------------------------------------


ORDER_TESTS = "examples/order_approval/test_orders.py"


@pytest.fixture
def orders(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The application, imported again with this database."""
    monkeypatch.setenv("DATABASE_URL", dsn)
    with application("examples.order_approval") as orders:
        yield orders


async def test_order_example_waits_for_the_webhook_and_charges_once(orders: Any, pool: Pool) -> None:
    """Start the application with its worker, and send the decision of each order twice."""
    await pool.execute((ROOT / "examples/order_approval/schema.sql").read_text(encoding="utf-8"))
    async with asgi.lifespan(orders.app) as state, asyncio.timeout(60):
        seen = Recorder(state["scheduler"])
        for number, granted in ((1, True), (2, False)):
            order, decision = {"number": number, "item": "chair"}, {"by": "ann", "granted": granted}
            assert await asgi.request(orders.app, "POST", "/orders", order, state=state) == (201, None)
            await seen.until(JobSuspended, job_id=f"order:{number}")
            answers = [
                await asgi.request(orders.app, "POST", f"/orders/{number}/approval", decision, state=state)
                for _ in range(2)
            ]
            assert answers == [(200, True), (200, False)]
            await seen.until(JobCompleted, job_id=f"order:{number}")
        stored = [await asgi.get(orders.app, f"/orders/{number}", state=state) for number in (1, 2)]
        await seen.until(JobCompleted, job_name="orders.mail_customer", count=2)
    assert [order["status"] for order in stored] == ["paid", "rejected by ann"]
    services = sys.modules["examples.order_approval.services"]
    assert services.payments == {"order-1": 40}
    assert sorted(services.mails) == ["order 2 is rejected by ann", "receipt of order 1: payment of order-1"]
    assert await pool.fetchval("SELECT count FROM stock WHERE item = 'chair'") == 1


async def test_tests_of_the_order_example_pass(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi", exc_type=ImportError, reason="FastAPI wants a newer pydantic than we do")
    monkeypatch.setenv("PG_SCHEDULER_TEST_DSN", dsn)
    assert "7 passed" in await output_of(dsn, *PYTEST, ORDER_TESTS, "-k", "not crashes")


@pytest.mark.timeout(600)
@NIGHTLY
@pytest.mark.parametrize("decision", ["granted", "expired", "rejected"])
async def test_order_example_survives_a_crash_at_each_statement(
    dsn: str, monkeypatch: pytest.MonkeyPatch, decision: str
) -> None:
    pytest.importorskip("fastapi", exc_type=ImportError, reason="FastAPI wants a newer pydantic than we do")
    monkeypatch.setenv("PG_SCHEDULER_TEST_DSN", dsn)
    assert "1 passed" in await output_of(
        dsn, *PYTEST, ORDER_TESTS, "-k", f"crashes and {decision}", seconds=590
    )


# -- Django --------------------------------------------------------------------------------------------


def test_django_shop_runs_its_tasks_and_its_tests(dsn: str) -> None:
    if not has_tasks():
        pytest.skip("dev.py has not updated this environment")
    address = django_address(dsn)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    environment |= {f"PG{key}": address[key] for key in ("HOST", "PORT", "USER", "PASSWORD")}
    environment |= {"PGDATABASE": address["NAME"], "PYTHONPATH": str(ROOT)}

    def manage(*words: str) -> str:
        ran = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT / "examples" / "django_shop",
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout
        return ran.stdout

    assert "No changes detected" in manage("makemigrations", "--check")
    manage("migrate")
    assert "Ran 3 tests" in manage("test")
    order = "from django.test import Client; print(Client().post('/orders/7').status_code)"
    assert "201" in manage("shell", "-c", order)
    manage("pg_scheduler", "worker", "--drain")
    invoice = "from orders.models import Order; print(Order.objects.get().invoice)"
    assert "7.pdf" in manage("shell", "-c", invoice)


# -- Celery --------------------------------------------------------------------------------------------


async def test_celery_shop_runs_its_jobs_after_the_move(
    dsn: str, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    after = load("examples.celery_shop.after")
    await pool.execute(ORDERS)
    engine = create_engine(url_of(dsn, "psycopg"))
    async with TestScheduler(pool) as t:
        with Session(engine) as session:
            for number in (1, 2):
                after.place_order(session, number)
            after.cancel_order(session, 2)
            with pytest.raises(IntegrityError):
                after.place_order(session, 1)
        await t.run_until(timedelta(days=15))
    engine.dispose()
    ran = Counter(capsys.readouterr().out.splitlines())
    assert ran.pop("report") in {2, 3}  # Mondays
    assert ran == {"invoice 1": 1, "invoice 2": 1, "review of order 1": 1}


def test_celery_shop_ran_the_same_jobs_before_the_move(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not among the development tools, because it pins dependencies of others: pip install celery."""
    pytest.importorskip("celery")
    monkeypatch.setenv("BROKER_URL", "memory://")
    before = load("examples.celery_shop.before")
    before.app.conf.task_always_eager = True
    engine = create_engine("sqlite://")
    with Session(engine) as session:
        session.connection().exec_driver_sql(ORDERS)
        before.place_order(session, 1)
    assert capsys.readouterr().out == "invoice 1\nreview of order 1\n"
    before.app.tasks["shop.report"].delay()
    assert capsys.readouterr().out == "report\n"
    (entry,) = before.app.conf.beat_schedule.values()
    berlin = ZoneInfo(before.app.conf.timezone)
    next_run = Cron("0 7 * * MON", timezone="Europe/Berlin").upcoming(1, after=BEGIN)[0]
    crontab = entry["schedule"]
    crontab.nowfun = lambda: BEGIN.astimezone(berlin)
    assert BEGIN + crontab.remaining_estimate(BEGIN.astimezone(berlin)) == next_run


# -- APScheduler ---------------------------------------------------------------------------------------


async def test_apscheduler_shop_keeps_its_stored_jobs_and_its_rhythm(
    dsn: str, pool: Pool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fill a store with the real library, import it, remove the schedule of the code, and run it."""
    monkeypatch.setenv("DATABASE_URL", dsn)
    now = datetime.now(UTC)
    before = load("examples.apscheduler_shop.before")
    old = before.create_scheduler(url_of(dsn, "psycopg"))
    old.start(paused=True)
    for customer, days in (("ada", 1), ("grace", 2)):
        before.remind_at(old, customer, now + timedelta(days=days))
    old.shutdown()
    # Its thread reads the store once more after the store has closed its connections.
    old._jobstores["default"].engine.dispose()

    url = url_of(dsn, "psycopg")
    listed = await output_of(dsn, "pg_scheduler", "import", "apscheduler", url, "-o", "ids")
    assert set(listed.split()) >= {"sync", "remind-ada", "remind-grace"}
    await output_of(dsn, "pg_scheduler", "schedules", "remove", "aps:sync", "--yes")

    after = load("examples.apscheduler_shop.after")
    await asyncio.to_thread(after.remind_at, "grace", now + timedelta(days=1, hours=1))
    await asyncio.to_thread(after.scheduler.close)
    async with TestScheduler(pool, now=now) as t:
        await t.run_until(timedelta(days=1, hours=2, minutes=1))
    assert await pool.fetchval("SELECT array_agg(schedule_id) FROM scheduler_schedules") == ["sync"]
    assert Counter(capsys.readouterr().out.splitlines()) == {
        "reminding ada": 1,
        "reminding grace": 1,
        "reading the stock": 26 * 4,
    }


# -- the lines that connect libraries ------------------------------------------------------------------


def glue() -> dict[tuple[str, str], list[int | None]]:
    """Return the lines of each task in each application: before, if it was moved, and here."""
    found: dict[tuple[str, str], list[int | None]] = {}
    for path in sorted((ROOT / "examples").glob("**/*.py")):
        application = path.relative_to(ROOT / "examples").parts[0]
        before = 0 if (ROOT / "examples" / application / "before.py").exists() else None
        code = path.read_text(encoding="utf-8")
        statements = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.stmt)]
        sizes = {node.lineno: size_of(node) for node in statements}
        for number, line in enumerate(code.splitlines(), 1):
            if mark := re.search(r"# glue: (.+)$", line):
                counts = found.setdefault((application, mark[1]), [before, 0])
                column = int(path.stem != "before")
                counts[column] = (counts[column] or 0) + sizes.get(number, 1)
    return found


def size_of(node: ast.stmt) -> int:
    """Return the number of lines of a statement, without its body."""
    body = getattr(node, "body", None)
    end = body[0].lineno - 1 if body else node.end_lineno
    return (end or node.lineno) - node.lineno + 1


def stated() -> dict[tuple[str, str], list[int | None]]:
    """Return the lines that the page states, as ``glue()`` does."""
    page = (ROOT / "docs" / "guides" / "web.md").read_text(encoding="utf-8")
    found: dict[tuple[str, str], list[int | None]] = {}
    for application, columns, table in re.findall(
        r"^\| `(\w+_shop)` \|(.+)\|\n\|[-|]+\n((?:\|.+\n)+)", page, re.MULTILINE
    ):
        names = [name.strip() for name in columns.split("|")]
        before = {"celery_shop": "Celery", "apscheduler_shop": "Before"}.get(application)
        for line in table.splitlines():
            task, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            lines = dict(zip(names, cells, strict=True))
            found[application, task] = [int(lines[before]) if before else None, int(lines["Here"])]
    return found


def test_page_states_the_lines_that_connect_each_application() -> None:
    assert stated() == glue()
