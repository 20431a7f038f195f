"""A process without the code of a task makes the same jobs as one with the code, or states what they lack.

A worker with the code reports the options of the task. A second Scheduler has not registered the task. Each
of its ways to make a job is compared with the same way of the worker. For other ways, see ``test_ways_in``.
"""

from __future__ import annotations

import asyncio
import html
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg
import pytest

from pg_scheduler import ConfigurationError, JobPriority, Overlap, Scheduler, Share, Unique
from pg_scheduler.dashboard import Access, dashboard
from pg_scheduler.triggers import Every
from tests.api.test_ways_in import Row, flat_row
from tests.dashboard.client import App, request, send
from tests.support.inside import run_command

TARGET: Final = "ways.elsewhere"
ID: Final = "ways"
ARGUMENTS: Final = {"number": 7}
HOUR: Final = timedelta(hours=1)
START: Final = datetime(2099, 1, 1, tzinfo=UTC)
END: Final = START + HOUR
"""The end of a backfill, whose fire time is in the future: its misfire grace time grows by no lateness."""

REPORTED: Final[Mapping[str, Any]] = {
    "priority": JobPriority.HIGH,
    "max_retries": 7,
    "timeout": 17,
    "misfire_grace_time": 71,
    "keep_result": timedelta(days=7),
    "on_failure": "ways.page",
    "metadata": {"team": "billing", "cost": {"center": 7}},
}
"""Options that a worker reports with their values, none of them the default."""

OF_CODE: Final[Mapping[str, Any]] = {
    "unique": Unique(args=("number",)),
    "share": Share("ways", key=lambda number: number),
}
"""Options that only the code can apply."""

STATEMENTS: Final = ("New job", "Run with", "jobs add")
"""The ways that state what a job lacks. The others refuse to make such a job."""

COLUMN_OF: Final = {"unique": "unique_key", "share": "blocked_on"}


async def target(number: int) -> None:
    """Take an argument from which a unique key and a tenant follow."""


class Ways:
    """Makes jobs of one task by a Scheduler, which may have the code or not."""

    def __init__(self, worker: Scheduler, scheduler: Scheduler, pool: asyncpg.Pool) -> None:
        self.worker = worker
        self.scheduler = scheduler
        self.pool = pool
        self.stated = ""
        """What the last way stated."""

    @property
    def all(self) -> dict[str, Callable[[], Awaitable[object]]]:
        """The ways, by their names."""
        return {
            "trigger": self.trigger,
            "backfill": self.backfill,
            "run_now": lambda: self.add(run_now=True),
            "Run now": self.run_now,
            "New job": self.add_job,
            "Run with": self.add_job_like,
        }

    async def make(self, way: str) -> Row | None:
        """Make a job in a way, and return its row, or None if the call was refused. Then delete all rows."""
        try:
            await self.all[way]()
        except ConfigurationError as error:
            self.stated = str(error)
        stored = await self.pool.fetchrow("SELECT * FROM scheduled_jobs WHERE job_id <> 'like'")
        await self.pool.execute("DELETE FROM scheduler_schedules")
        await self.pool.execute("DELETE FROM scheduled_jobs")
        return None if stored is None else flat_row(stored)

    async def add(self, *, run_now: bool = False) -> None:
        await self.scheduler.schedules.add(
            TARGET,
            Every(HOUR),
            kwargs=ARGUMENTS,
            schedule_id=ID,
            start=START,
            overlap=Overlap.ALLOW,
            paused=True,
            run_now=run_now,
        )

    async def trigger(self) -> None:
        await self.add()
        await self.scheduler.schedules.trigger(ID)

    async def backfill(self) -> None:
        await self.add()
        await self.scheduler.schedules.backfill(ID, START, END)

    @property
    def dashboard(self) -> App:
        return dashboard(self.scheduler, authorize=lambda _: Access("ada", "admin"))

    async def run_now(self) -> None:
        await self.add()
        answer = await send(self.dashboard, f"/actions/schedules/trigger?id={ID}")
        self.stated = answer.text

    async def add_job(self) -> None:
        fields = dict.fromkeys(
            ("args", "kwargs", "when", "at", "zone", "priority", "max_retries", "show"), ""
        )
        self.stated = (await request(self.dashboard, f"/job-form?task={TARGET}")).text
        form = {**fields, "task": TARGET, "arg.number": "7"}
        answer = await send(self.dashboard, f"/actions/jobs/new?task={TARGET}", form)
        assert answer.status == 303, answer.text

    async def add_job_like(self) -> None:
        options: dict[str, Any] = {"max_retries": 3, "priority": JobPriority.LOW, "timeout": 5}
        await self.worker.enqueue(TARGET, kwargs=ARGUMENTS, job_id="like", **options)
        await self.pool.execute(
            "UPDATE scheduled_jobs SET status = 'failed', finished_at = now(), blocked_on = NULL"
        )
        self.stated = (await request(self.dashboard, "/job-form?id=like")).text
        answer = await send(
            self.dashboard, "/actions/jobs/add?id=like", {"args": "[]", "kwargs": "", "arg.number": "7"}
        )
        assert answer.status == 303, answer.text


class CommandWays(Ways):
    """Makes jobs of the task by commands."""

    def __init__(
        self,
        worker: Scheduler,
        scheduler: Scheduler,
        pool: asyncpg.Pool,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        super().__init__(worker, scheduler, pool)
        self.capsys = capsys

    @property
    def all(self) -> dict[str, Callable[[], Awaitable[object]]]:
        span = ("--from", START.isoformat(), "--to", END.isoformat())
        definition = ("--every", "1h", "--kwargs", '{"number": 7}', "--id", ID, "--start", START.isoformat())
        return {
            "trigger": lambda: self.run_on("schedules", "trigger", ID),
            "backfill": lambda: self.run_on("schedules", "backfill", ID, *span),
            "run_now": lambda: self.run("schedules", "add", TARGET, *definition, "--paused", "--run-now"),
            "jobs add": lambda: self.run("jobs", "add", TARGET, "--kwargs", '{"number": 7}'),
        }

    async def run_on(self, *arguments: str) -> None:
        await self.add()
        await self.run(*arguments)

    async def run(self, *arguments: str) -> None:
        self.capsys.readouterr()
        code = await asyncio.to_thread(run_command, arguments)
        self.stated = " ".join(self.capsys.readouterr().err.split())
        assert code in (0, 2), self.stated


@asynccontextmanager
async def opened(
    dsn: str, options: Mapping[str, Any]
) -> AsyncIterator[tuple[asyncpg.Pool, Scheduler, Scheduler]]:
    """Run a worker with the code, which leaves the jobs where they are, and open a Scheduler without it."""
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=6) as pool,
        asyncpg.create_pool(dsn, min_size=1, max_size=3) as other_pool,
    ):
        worker = Scheduler(pool)
        worker.register(target, name=TARGET, **options)
        async with worker:
            await worker.tasks.pause(TARGET)
            yield pool, worker, Scheduler(other_pool)


class Compared:
    """The ways of the worker, and those of the process without the code."""

    def __init__(
        self, pool: asyncpg.Pool, worker: Scheduler, client: Scheduler, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.with_code = Ways(worker, worker, pool)
        self.without_code = (Ways(worker, client, pool), CommandWays(worker, client, pool, capsys))

    async def rows(self) -> AsyncIterator[tuple[str, Row | None, Row, str]]:
        """Yield each way with its row, that of the worker, and what the way states."""
        expected_rows: dict[str, Row] = {}
        for way in self.with_code.all:
            row = await self.with_code.make(way)
            assert row is not None, self.with_code.stated
            assert "without" not in self.with_code.stated
            expected_rows[way] = row
        expected_rows["jobs add"] = dict(expected_rows["New job"])
        for ways in self.without_code:
            for way in ways.all:
                yield way, await ways.make(way), expected_rows[way], ways.stated


@pytest.fixture(autouse=True)
def database(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands use the database of the test."""
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)


@pytest.mark.timeout(300)
async def test_job_has_the_options_that_a_live_worker_reports(
    dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with opened(dsn, REPORTED) as (pool, worker, client):
        async for way, row, expected_row, stated in Compared(pool, worker, client, capsys).rows():
            if way in STATEMENTS:
                assert "without on_failure, which only the code can apply" in stated, way
                assert expected_row.pop("on_end.on_failure") == "ways.page", way
            assert row == expected_row, way
        # A declared schedule exists in a process with the code only.
        assert await client.trigger_periodic_job(ID) is None


@pytest.mark.timeout(300)
@pytest.mark.parametrize("option", [*OF_CODE])
async def test_job_with_an_option_of_the_code_is_refused_or_the_lack_is_stated(
    dsn: str, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    async with opened(dsn, {option: OF_CODE[option]}) as (pool, worker, client):
        async for way, row, expected_row, stated in Compared(pool, worker, client, capsys).rows():
            assert COLUMN_OF[option] in expected_row, way
            if way == "Run with" and option == "unique":
                assert row == expected_row, "the key of the other job is copied"
            elif way in STATEMENTS:
                assert f"without {option}, which only the code can apply" in stated, way
                del expected_row[COLUMN_OF[option]]
                assert row == expected_row, way
            else:
                assert row is None, way
                problem = f"its task '{TARGET}' has {option}, which only its code can apply"
                assert problem in html.unescape(stated), way
                assert "--jobs MODULE" in stated, way


async def test_refused_call_writes_nothing(dsn: str) -> None:
    async with opened(dsn, OF_CODE) as (pool, _, client):
        async with pool.acquire() as connection, connection.transaction():
            with pytest.raises(ConfigurationError, match="share and unique"):
                await client.schedules.add(
                    TARGET, Every(HOUR), kwargs=ARGUMENTS, run_now=True, connection=connection
                )
        assert await pool.fetchval("SELECT count(*) FROM scheduler_schedules") == 0
        assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


async def test_options_of_the_schedule_precede_those_of_the_report(dsn: str) -> None:
    async with opened(dsn, REPORTED) as (pool, _, client):
        await client.schedules.add(
            TARGET,
            Every(HOUR),
            kwargs=ARGUMENTS,
            max_retries=0,
            keep_result=None,
            metadata={"team": "shop"},
            run_now=True,
        )
        (stored,) = await pool.fetch("SELECT * FROM scheduled_jobs")
    row = flat_row(stored)
    assert (row["max_retries"], row["priority"]) == (0, JobPriority.HIGH.db_value)
    assert "options.keep_result" not in row
    assert (row["metadata.team"], row["metadata.cost"]) == ("shop", {"center": 7})


async def test_task_that_no_live_worker_reports_has_the_defaults_and_a_warning(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(dsn, REPORTED) as (pool, _, client):
        await pool.execute("UPDATE scheduler_workers SET lease_until = now() - interval '1 hour'")
        await client.schedules.add(TARGET, Every(HOUR), kwargs=ARGUMENTS, schedule_id=ID, run_now=True)
        assert await pool.fetchval("SELECT max_retries FROM scheduled_jobs") == 0
    warnings = [record.getMessage() for record in caplog.records if "no live worker" in record.getMessage()]
    (warning,) = warnings
    assert f"schedule '{ID}' of the task '{TARGET}': this process has not registered the task" in warning


@pytest.mark.parametrize(
    "report", ["7", '{"options": [], "aliases": 7}', '{"aliases": {"ways.elsewhere": 7}}']
)
async def test_report_of_another_shape_counts_as_none(dsn: str, report: str) -> None:
    async with opened(dsn, REPORTED) as (pool, _, client):
        await pool.execute("UPDATE scheduler_workers SET settings = $1::text::jsonb", report)
        await client.schedules.add(TARGET, Every(HOUR), kwargs=ARGUMENTS, run_now=True)
        assert await pool.fetchval("SELECT max_retries FROM scheduled_jobs") == 0


async def test_other_name_of_a_task_has_its_options(dsn: str) -> None:
    async with opened(dsn, REPORTED) as (pool, worker, client):
        name = f"{target.__module__}.{target.__qualname__}"
        await client.schedules.add(name, Every(HOUR), kwargs=ARGUMENTS, run_now=True)
        (stored,) = await pool.fetch("SELECT * FROM scheduled_jobs")
        row = flat_row(stored)
        assert (row["job_name"], row["max_retries"]) == (name, REPORTED["max_retries"])
        assert row["on_end.on_failure"] == REPORTED["on_failure"]
        assert await worker.schedules.list(task=target)
