"""Databases whose encoding lacks characters of a job's error message."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import JobStatus, PollingConfig, Scheduler, current_job
from pg_scheduler.embedded import Server
from pg_scheduler.events import JobCompleted, JobFailed, JobRetried, ServiceFaulted
from tests.conftest import run_on
from tests.support.worker import Recorder, now

OWL = "🦉 Ünïcode"


@pytest.fixture(params=["LATIN1", "SQL_ASCII", "UTF8"])
def encoding(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def encoded_dsn(server: Server, encoding: str) -> Iterator[str]:
    """The DSN of an empty database with the encoding."""
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
    assert row.error_message == f"ValueError: {escaped if encoding == 'LATIN1' else OWL}"
    (error,) = row.errors
    assert error.message == (escaped if encoding == "LATIN1" else OWL)
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
    shown = OWL.encode("ascii", "backslashreplace").decode() if encoding == "LATIN1" else OWL
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
