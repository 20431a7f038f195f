"""The programs of docs/start do what the pages show: each chapter runs, and is killed, for real."""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access, dashboard
from tests.dashboard.client import JSON, request
from tests.docs.camera import photograph
from tests.docs.terminal import Terminal, open_terminal
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.slow  # programs start and end

Pool = asyncpg.Pool

EMBEDDED = ("-m", "pg_scheduler.embedded", "--data", "data", "--")
PROGRAM = (sys.executable, "-m", "pg_scheduler")
MISSING = (404, {"detail": "Not Found"})
CALL = '1, "ada@example.org"'
CHAIR = "email=ada@example.org&total=40"


@pytest.fixture
async def terminal(tmp_path: Path, dsn: str) -> AsyncIterator[Terminal]:
    pytest.importorskip("fastapi", exc_type=ImportError, reason="FastAPI wants a newer pydantic than we do")
    folder = tmp_path / "shop"
    folder.mkdir()
    async with open_terminal(folder, dsn) as terminal:
        yield terminal


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter: if root runs the tests, one of them runs the server."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
async def browser(pool: Pool) -> AsyncIterator[Browser]:
    scheduler = Scheduler(pool)
    yield Browser(scheduler)
    await scheduler.shutdown()


class Browser:
    """A browser on the dashboard of the reader's database."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._app = dashboard(scheduler, authorize=lambda _: Access("ada", "admin"))

    async def until_shown(self, address: str) -> None:
        """Wait until a list has an item."""
        async with asyncio.timeout(PATIENCE):
            while not (await self.look(address))["items"]:  # noqa: ASYNC110 - the program is another process
                await asyncio.sleep(0.05)

    async def photograph(self, name: str, address: str, *, height: int = 640) -> None:
        """Renew the picture of a page, if ``dev.py screenshots`` runs the test."""
        await photograph(self.scheduler, name, address, height=height)

    async def look(self, address: str) -> Any:
        """Return what a page shows."""
        answer = await request(self._app, address, headers=JSON)
        assert answer.status == 200, answer.text
        return answer.data


async def send(method: str, address: str) -> tuple[int, Any]:
    """Send a request as curl does; return the status and the response."""
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        response = await client.request(method, address)
    return response.status_code, response.json()


async def until_status(pool: Pool, status: str, count: int = 1) -> list[str]:
    """Wait until so many jobs have a status; return their ids."""
    async with asyncio.timeout(PATIENCE):
        while True:
            rows = await pool.fetch("SELECT job_id FROM scheduled_jobs WHERE status = $1", status)
            if len(rows) == count:
                return [row["job_id"] for row in rows]
            await asyncio.sleep(0.02)


async def test_five_minutes_run_a_job_that_the_dashboard_shows_afterwards(
    open_folder: Path,
) -> None:
    """The server is that of the page: it has its data in a folder, and ends with each program."""
    async with open_terminal(open_folder) as terminal:
        terminal.save("hello.py", "hello.py")
        assert await terminal.run("hello.py") == "hello Ada"
        command = (*EMBEDDED, *PROGRAM, "dashboard", "--port", "0")
        program = await terminal.start(*command)
        dsn = (await program.until(r"PostgreSQL is ready; connect from another terminal: psql '(.+)'"))[1]
        link = (await program.until(r"^serving (http://127\.0\.0\.1:\d+/\?token=\S+)$"))[1]
        async with httpx.AsyncClient(timeout=PATIENCE, follow_redirects=True) as client:
            await client.post(link)
            page = await client.get(str(httpx.URL(link).copy_with(path="/jobs", query=None)), headers=JSON)
        (job,) = page.json()["data"]["items"]
        assert (job["name"], job["arguments"], job["status"]) == ("hello.greet", '"Ada"', "completed")
        async with asyncpg.create_pool(dsn, min_size=1, max_size=4) as pool:
            await photograph(Scheduler(pool), "hello", "/jobs", height=480)
        assert await program.interrupt() == 0


async def test_first_chapter_hands_a_job_to_a_worker_that_starts_later(
    terminal: Terminal, browser: Browser
) -> None:
    terminal.save("chapter1.py")
    assert await terminal.run("shop.py") == ""
    (job,) = (await browser.look("/jobs"))["items"]
    assert (job["name"], job["arguments"], job["state"]) == ("shop.send_receipt", CALL, "due")
    worker = await terminal.start("-m", "pg_scheduler", "worker", "shop")
    await worker.until("^to ada@example.org: receipt for order 1$")
    assert await terminal.run("shop.py") == ""
    await worker.until("^to ada@example.org: receipt for order 1$")
    assert await worker.interrupt() == 0
    assert await terminal.run("shop.py") == ""
    jobs = (await browser.look("/jobs"))["items"]
    assert [job["state"] for job in jobs] == ["due", "completed", "completed"]
    await browser.photograph("chapter1", "/jobs", height=480)


async def test_second_chapter_keeps_order_and_job_together_and_outlives_a_kill(
    terminal: Terminal, browser: Browser, pool: Pool
) -> None:
    terminal.save("chapter2.py")
    shop, address = await terminal.start_shop()
    assert await send("POST", f"{address}/orders?{CHAIR}") == (200, 1)
    declined = await send("POST", f"{address}/orders?{CHAIR}00")
    assert declined == (402, {"detail": "the card was declined"})
    assert await pool.fetchval("SELECT array_agg(number) FROM orders") == [1]
    await shop.until("^writing the receipt for order 1$")
    await shop.kill()
    assert await pool.fetchval("SELECT array_agg(status) FROM scheduled_jobs") == ["running"]
    terminal.save("chapter2.py", sleep_10="0.1")
    shop, _ = await terminal.start_shop()
    await shop.until("^to ada@example.org: receipt for order 1$")
    (job_id,) = await until_status(pool, "completed")
    page = await browser.look(f"/job?id={job_id}")
    titles = [event["title"].partition(" after")[0] for event in page["timeline"]]
    assert titles == ["created", "due", "attempt 1: crashed", "attempt 2 started", "completed"]
    assert page["job"]["crash_count"] == 1
    await browser.photograph("chapter2", f"/job?id={job_id}")


async def test_third_chapter_retries_and_shows_the_error_until_the_mail_server_is_up(
    terminal: Terminal, browser: Browser, pool: Pool
) -> None:
    terminal.save("chapter3.py", seconds_5="0.1")
    _, address = await terminal.start_shop()
    assert await send("POST", f"{address}/orders?{CHAIR}") == (200, 1)
    (job_id,) = await until_status(pool, "failed")
    page = await browser.look(f"/job?id={job_id}")
    errors = [error["error_type"] for error in page["job"]["errors"]]
    assert errors == ["ConnectionRefusedError"] * 3
    (group,) = (await browser.look("/errors"))["items"]
    assert group["job_name"] == "shop.send_receipt"
    listed = await terminal.command("jobs", "errors")
    assert "shop.send_receipt  ConnectionRefusedError" in listed
    await browser.photograph("chapter3", f"/job?id={job_id}", height=860)
    mails = await terminal.start_mail_server()
    await terminal.command("jobs", "retry", "--where", "status:failed", "--yes")
    await mails.until("^to ada@example.org: receipt for order 1$")
    assert await until_status(pool, "completed") == [job_id]


async def test_fourth_chapter_sends_offers_at_nine_in_each_zone_also_after_a_deploy_at_nine(
    terminal: Terminal, browser: Browser, pool: Pool
) -> None:
    terminal.save("chapter4.py")
    shop, address = await terminal.start_shop()
    for email, zone in (("ada", "Europe/Berlin"), ("grace", "America/New_York")):
        answer = await send("PUT", f"{address}/offers/{email}@example.org?zone={zone}")
        assert answer == (200, f"every morning at nine in {zone}")
    status, error = await send("PUT", f"{address}/offers/bob@example.org?zone=Mars")
    assert (status, error["detail"].partition(":")[0]) == (422, "Invalid timezone 'Mars'")
    schedules = (await browser.look("/schedules"))["items"]
    assert {schedule["schedule_id"]: schedule["described"] for schedule in schedules} == {
        "offer:ada@example.org": "at 09:00 every day, Europe/Berlin",
        "offer:grace@example.org": "at 09:00 every day, America/New_York",
    }
    await browser.photograph("chapter4", "/schedules", height=560)
    mails = await terminal.start_mail_server()
    await terminal.command("schedules", "trigger", "offer:ada@example.org")
    await mails.until("^to ada@example.org: today's offer: a chair for 40 euros$")
    assert await shop.interrupt() == 0
    # While the shop is stopped, it was nine in New York.
    await pool.execute(
        "UPDATE scheduler_schedules SET next_fire_at = next_fire_at - interval '1 day'"
        " WHERE schedule_id = 'offer:grace@example.org'"
    )
    await terminal.start_shop()
    await mails.until("^to grace@example.org: today's offer: a chair for 40 euros$")


async def test_fifth_chapter_sends_one_receipt_per_order_and_two_mails_in_ten_seconds(
    terminal: Terminal, browser: Browser, pool: Pool
) -> None:
    terminal.save("chapter5.py")
    mails = await terminal.start_mail_server()
    _, address = await terminal.start_shop()
    for number in range(1, 6):
        assert await send("POST", f"{address}/orders?{CHAIR}") == (200, number)
    _, job_id = await send("POST", f"{address}/orders/5/receipt")
    assert await send("POST", f"{address}/orders/5/receipt") == (200, job_id)
    assert await send("POST", f"{address}/orders/6/receipt") == MISSING
    await mails.until("receipt for order 2")
    await until_status(pool, "completed", 2)
    assert len(await until_status(pool, "pending", 3)) == 3
    (limit,) = (await browser.look("/limits"))["items"]
    assert (limit["name"], limit["waiting"]) == ("mails", 3)
    explained = await terminal.command("jobs", "explain", job_id)
    assert re.search(r"LIMIT +waits for the limit 'mails': 2 started", explained)
    await browser.photograph("chapter5", "/limit?name=mails", height=360)


async def test_sixth_chapter_waits_for_an_approval_and_charges_once_over_a_kill(
    terminal: Terminal, browser: Browser, pool: Pool
) -> None:
    terminal.save("chapter6.py")
    mails = await terminal.start_mail_server()
    shop, address = await terminal.start_shop()
    assert await send("POST", f"{address}/orders?email=ada@example.org&total=800") == (200, 1)
    await browser.until_shown("/jobs?q=status:awaiting")
    assert await send("POST", f"{address}/orders/2/approval?approved=true") == MISSING
    assert await send("POST", f"{address}/orders/1/approval?approved=true") == (200, True)
    await shop.until("^charging 800 euros for order 1$")
    await shop.until("^packing order 1$")
    await shop.kill()
    terminal.save("chapter6.py", sleep_10="0.1")
    shop, _ = await terminal.start_shop()
    await mails.until("^to ada@example.org: receipt for order 1$")
    await shop.until("^packing order 1$")
    assert not any("charging" in line for line in shop.lines)
    await browser.until_shown("/jobs?q=status:sleeping")
    page = await browser.look("/job?id=order:1")
    assert [step["name"] for step in page["steps"]] == ["approval", "charge", "pack", "receipt", "delivery"]
    listed = await terminal.command("jobs", "steps", "order:1")
    assert re.search(r"delivery +sleep +sleeping", listed)
    await browser.photograph("chapter6", "/job?id=order:1", height=860)
    await browser.scheduler.end_sleep("order:1")
    await mails.until("are you content with order 1")
    assert await until_status(pool, "completed") == ["order:1"]


async def test_seventh_chapter_tests_by_the_virtual_clock(terminal: Terminal) -> None:
    terminal.save("chapter7.py")
    terminal.save("test_shop.py", "test_shop.py")
    plugins = ("-p", "no:pg_scheduler", "-p", "pg_scheduler_plugins.pytest", "-p", "no:randomly")
    options = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
    terminal.variables["PG_SCHEDULER_TEST_DSN"] = terminal.variables["PG_SCHEDULER_DSN"]
    output = await terminal.run("-m", "pytest", *plugins, *options, "-p", "no:cacheprovider", "-q")
    assert "2 passed" in output


async def test_seventh_chapter_runs_two_workers_of_which_one_may_stop(
    terminal: Terminal, browser: Browser, pool: Pool
) -> None:
    terminal.save("chapter7.py", sleep_10="0.1")
    await terminal.command("migrate")
    mails = await terminal.start_mail_server()
    _, address = await terminal.start_shop()
    workers = [await terminal.start("-m", "pg_scheduler", "worker", "shop") for _ in range(2)]
    for worker in workers:
        await worker.until("worker .* started")
    shown = (await browser.look("/workers"))["items"]
    assert [(worker["state"], worker["problems"]) for worker in shown] == [("running", [])] * 2
    assert "All is well: 2 workers" in await terminal.command("status")
    await browser.photograph("chapter7", "/workers", height=640)
    assert await workers[0].interrupt() == 0
    assert await send("POST", f"{address}/orders?{CHAIR}") == (200, 1)
    await mails.until("^to ada@example.org: receipt for order 1$")
    await until_status(pool, "pending")
    assert await workers[1].interrupt() == 0
    assert "packing order 1" in workers[1].lines
