"""Databases whose encoding lacks characters of jobs: names, arguments, results, errors and searches."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from urllib.parse import urlencode

import asyncpg
import pytest

from pg_scheduler import (
    ConfigurationError,
    JobSpec,
    JobStatus,
    PayloadError,
    PollingConfig,
    Scheduler,
    SchedulerError,
    current_job,
)
from pg_scheduler.dashboard import Access, dashboard
from pg_scheduler.database.faults import UnstorableTextError
from pg_scheduler.embedded import Server
from pg_scheduler.events import JobCompleted, JobFailed, JobRetried, ServiceFaulted
from pg_scheduler.inspect import Inspector
from pg_scheduler.migrate import migrate
from pg_scheduler.triggers import Every
from tests.conftest import run_on
from tests.dashboard.client import request
from tests.support.cases import each_case
from tests.support.inside import Connections, Store, dashboard_pages, dashboard_streams, load_queries
from tests.support.worker import Recorder, now

OWL = "🦉 Ünïcode"


@pytest.fixture(params=["LATIN1", "EUC_JP", "UTF8"])
def encoding(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def encoded_dsn(server: Server, encoding: str) -> Iterator[str]:
    """The DSN of an empty database with the encoding."""
    with database_with(server, encoding) as dsn:
        yield dsn


@contextmanager
def database_with(server: Server, encoding: str) -> Iterator[str]:
    """Yield the DSN of an empty database with an encoding."""
    name = f"test_{uuid.uuid4().hex}"

    async def create(connection: asyncpg.Connection) -> None:
        options = f"TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
        await connection.execute(f'CREATE DATABASE "{name}" {options}')

    async def drop(connection: asyncpg.Connection) -> None:
        await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    run_on(server.dsn(), create)
    yield server.dsn(name)
    run_on(server.dsn(), drop)


@pytest.fixture
async def encoded(encoded_dsn: str) -> AsyncIterator[Scheduler]:
    """A running Scheduler on the database."""
    async with asyncpg.create_pool(encoded_dsn, min_size=1, max_size=5) as pool:
        polling = PollingConfig(max_interval=0.5)
        async with Scheduler(pool, polling_config=polling, shutdown_timeout=0.05) as scheduler:
            yield scheduler


async def fail() -> None:
    raise ValueError(OWL)


async def succeed() -> None: ...


@pytest.mark.parametrize("max_retries", [0, 1])
async def test_job_fails_when_the_encoding_lacks_characters_of_its_error(
    encoded: Scheduler, encoding: str, max_retries: int
) -> None:
    seen = Recorder(encoded)
    failing = await encoded.schedule(fail, execution_time=now(), max_retries=max_retries)
    await seen.until(JobRetried if max_retries else JobFailed, job_id=failing)
    row = await encoded.get_job(failing)
    assert row is not None
    assert row.status is (JobStatus.PENDING if max_retries else JobStatus.FAILED)
    escaped = OWL.encode("ascii", "backslashreplace").decode()
    assert row.error_message == f"ValueError: {OWL if encoding == 'UTF8' else escaped}"
    (error,) = row.errors
    assert error.message == (OWL if encoding == "UTF8" else escaped)
    assert error.traceback is not None
    assert error.traceback.endswith(f"ValueError: {error.message}\n")
    await seen.until(JobCompleted, job_id=await encoded.schedule(succeed, execution_time=now()))
    assert not seen.of(ServiceFaulted)


async def give_owl() -> str:
    return OWL


async def test_value_is_not_kept_when_the_encoding_lacks_its_characters(
    encoded: Scheduler, encoding: str
) -> None:
    job_id = await encoded.enqueue(give_owl, keep_result=timedelta(hours=1))
    result = await encoded.get_job_result(job_id)
    assert result is not None
    assert result.status is JobStatus.COMPLETED
    assert (result.value == OWL) is (encoding == "UTF8")
    if encoding != "UTF8":
        assert result.no_value_reason == "the encoding of the database lacks a character of the value"
    failed = await encoded.get_job_result(await encoded.enqueue(fail, keep_result=timedelta(hours=1)))
    assert failed is not None
    assert failed.error is not None
    assert failed.error.message == (
        OWL if encoding == "UTF8" else OWL.encode("ascii", "backslashreplace").decode()
    )


async def give_owl_as_key() -> dict[str, object]:
    return {OWL: object()}


async def test_reason_without_a_value_is_escaped_when_the_encoding_lacks_its_characters(
    encoded: Scheduler, encoding: str
) -> None:
    job_id = await encoded.enqueue(give_owl_as_key, keep_result=timedelta(hours=1))
    result = await encoded.get_job_result(job_id)
    assert result is not None
    assert result.status is JobStatus.COMPLETED
    assert result.no_value_reason is not None
    shown = OWL if encoding == "UTF8" else OWL.encode("ascii", "backslashreplace").decode()
    assert shown in result.no_value_reason


class ExitError(Exception):
    """An exception that cannot be described."""

    def __str__(self) -> str:
        raise SystemExit(3)


async def exit_when_described() -> None:
    raise ExitError


async def test_job_fails_when_the_text_of_its_error_exits(scheduler: Scheduler, seen: Recorder) -> None:
    job_id = await scheduler.schedule(exit_when_described, execution_time=now())
    (failed,) = await seen.until(JobFailed, job_id=job_id)
    assert failed.error == "ExitError: (str() of it raised SystemExit)"
    await seen.until(JobCompleted, job_id=await scheduler.schedule(succeed, execution_time=now()))


async def report() -> None:
    current_job().progress(1, note=OWL)


async def test_note_is_escaped_when_the_encoding_lacks_its_characters(
    encoded: Scheduler, encoding: str
) -> None:
    seen = Recorder(encoded)
    encoded.register(report)
    job_id = await encoded.enqueue(report)
    await seen.until(JobCompleted)
    job = await encoded.get_job(job_id)
    assert job is not None
    assert job.progress is not None
    assert job.progress.note == (OWL if encoding == "UTF8" else "\\U0001f989 \\xdcn\\xefcode")
    assert not seen.of(ServiceFaulted)


async def test_step_reports_that_the_encoding_lacks_characters_of_its_value(
    encoded: Scheduler, encoding: str
) -> None:
    async def look() -> str:
        return OWL

    async def use_a_step() -> None:
        assert await current_job().steps.run("look", look) == OWL

    seen = Recorder(encoded)
    await encoded.enqueue(use_a_step)
    if encoding == "UTF8":
        await seen.until(JobCompleted)
    else:
        (failed,) = await seen.until(JobFailed)
        assert failed.error.startswith("PayloadError: step 'look': the encoding of the database lacks")


@pytest.fixture
def latin1_dsn(server: Server) -> Iterator[str]:
    """The DSN of an empty LATIN1 database."""
    with database_with(server, "LATIN1") as dsn:
        yield dsn


@pytest.fixture
async def latin1_pool(latin1_dsn: str) -> AsyncIterator[asyncpg.Pool]:
    """A pool of a LATIN1 database with the tables."""
    async with asyncpg.create_pool(latin1_dsn, min_size=1, max_size=5) as pool:
        async with pool.acquire() as connection:
            await migrate(connection)
        yield pool


@pytest.fixture
async def latin1(latin1_pool: asyncpg.Pool) -> AsyncIterator[Scheduler]:
    """A Scheduler that is not started, on the LATIN1 database."""
    scheduler = Scheduler(latin1_pool)
    yield scheduler
    await scheduler.shutdown()


async def take(text: str) -> None: ...


VALUES: dict[str, object] = {
    "text": OWL,
    "varchar": OWL,
    "text[]": [OWL],
    "varchar[]": [OWL],
    "json": f'"{OWL}"',
    "jsonb": f'"{OWL}"',
}
"""A value with the character for each type of the parameters of statements that has texts."""

CALLS: list[Callable[[Scheduler], Awaitable[object]]] = [
    lambda scheduler: scheduler.enqueue(OWL),
    lambda scheduler: scheduler.enqueue("task", args=(OWL,)),
    lambda scheduler: scheduler.enqueue("task", job_id=OWL),
    lambda scheduler: scheduler.enqueue("task", metadata={"note": OWL}),
    lambda scheduler: scheduler.enqueue("task", unique=OWL),
    lambda scheduler: scheduler.enqueue("task", after=[OWL]),
    lambda scheduler: scheduler.schedule_bulk([JobSpec(take, now(), args=(text,)) for text in ("", OWL)]),
    lambda scheduler: scheduler.schedule_bulk([JobSpec(take, now(), args=(OWL,)) for _ in range(3000)]),
    lambda scheduler: scheduler.retry_job(OWL),
    lambda scheduler: scheduler.run_job_now(OWL),
    lambda scheduler: scheduler.get_job(OWL),
    lambda scheduler: scheduler.cancel_job(OWL),
    lambda scheduler: scheduler.signal(OWL, "paid"),
    lambda scheduler: scheduler.tasks.pause(OWL),
    lambda scheduler: scheduler.schedules.add("task", trigger=Every(hours=1), args=(OWL,)),
    lambda scheduler: scheduler.schedules.get(OWL),
    lambda scheduler: scheduler.schedules.pause(OWL),
    lambda scheduler: Inspector(scheduler).search_jobs(f"arg.0:{OWL}"),
]


@each_case("call", CALLS)
async def test_call_names_a_character_that_the_encoding_lacks(
    call: Callable[[Scheduler], Awaitable[object]], latin1: Scheduler
) -> None:
    with pytest.raises(PayloadError) as caught:
        await call(latin1)
    assert "the character '\N{OWL}'" in str(caught.value)
    assert str(caught.value).endswith("use other characters, or a database with the encoding UTF8")


async def test_every_statement_names_a_text_that_the_encoding_lacks(latin1_pool: asyncpg.Pool) -> None:
    """Each statement is called with the character in one of its texts at a time."""
    pool, calls = latin1_pool, 0
    silent: list[tuple[str, int, Exception | None]] = []
    statements = Store(Connections(pool)).statements
    async with pool.acquire() as connection:
        for name, query in load_queries("public").items():
            prepared = await connection.prepare(query.text)
            types = [parameter.name for parameter in prepared.get_parameters()]
            for place, kind in enumerate(types):
                if kind not in VALUES:
                    continue
                values: list[object] = [None] * len(types)
                values[place] = VALUES[kind]
                calls += 1
                transaction = connection.transaction()
                await transaction.start()
                try:
                    await statements.fetch(name, *values, on=connection)
                except UnstorableTextError:
                    continue
                except (asyncpg.PostgresError, SchedulerError) as error:
                    silent.append((name, place, error))
                else:
                    silent.append((name, place, None))
                finally:
                    await transaction.rollback()
    assert calls > 400
    assert silent == []


PARAMETERS = ("id", "q", "name", "task", "group", "after", "term", "key", "state", "range", "page", "error")
"""The parameters of pages that have texts of the application."""


async def test_no_page_fails_when_the_encoding_lacks_a_character_of_its_address(latin1: Scheduler) -> None:
    board = dashboard(latin1, authorize=lambda _: Access("ada", "admin"))
    failed = []
    for path in (*dashboard_pages(), *(stream for stream in dashboard_streams() if stream != "/live")):
        for parameter in PARAMETERS:
            answer = await request(board, f"{path}?{urlencode({parameter: OWL})}")
            if answer.status not in {200, 400, 404}:
                failed.append((path, parameter, answer.status))
    assert failed == []
    search = await request(board, f"/jobs?{urlencode({'q': OWL})}")
    assert "the encoding of the database lacks the character" in search.text


def test_migrations_refuse_a_database_without_an_encoding(server: Server) -> None:
    async def refuse(connection: asyncpg.Connection) -> None:
        with pytest.raises(ConfigurationError, match=r"SQL_ASCII.*ENCODING 'UTF8'"):
            await migrate(connection)
        assert await connection.fetchval("SELECT to_regclass('scheduler_migrations')") is None

    with database_with(server, "SQL_ASCII") as dsn:
        run_on(dsn, refuse)
