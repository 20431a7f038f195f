"""The programs of docs/start do what the pages show: each chapter runs, and is killed, for real."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest

from pg_scheduler import Scheduler
from tests.dashboard.client import JSON
from tests.docs.camera import photograph
from tests.docs.terminal import open_terminal
from tests.support.worker import PATIENCE

pytestmark = pytest.mark.slow  # programs start and end

EMBEDDED = ("-m", "pg_scheduler.embedded", "--data", "data", "--")
PROGRAM = (sys.executable, "-m", "pg_scheduler")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter: if root runs the tests, one of them runs the server."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


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
