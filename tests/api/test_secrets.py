"""Passwords in DSNs and arguments of jobs appear in no log record and no error."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler import (
    ConfigurationError,
    ConflictResolution,
    DatabaseUnavailableError,
    JobSpec,
    PayloadError,
    RetryPolicy,
    Scheduler,
)
from pg_scheduler.events import JobCompleted, JobExpired, JobFailed, JobRetried
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.testing import TestScheduler
from tests.api.conftest import Make
from tests.support.cases import each_case
from tests.support.inside import Connections, config_of, registry_of, store_of
from tests.support.worker import Recorder, now

SECRET = "correct-horse-battery"
DSN = f"postgresql://me:{SECRET}@127.0.0.1:1/db"


def logged_text(error: BaseException) -> str:
    """Return everything that a log record would contain of an error."""
    return f"{error!r} {error} {''.join(traceback.format_exception(error))}"


@pytest.mark.parametrize("address", [DSN.encode(), [DSN]])
async def test_error_omits_the_password_when_the_dsn_has_the_wrong_type(
    pool: asyncpg.Pool, address: Any
) -> None:
    with pytest.raises(ConfigurationError, match="direct_dsn") as raised:
        Scheduler(pool, direct_dsn=address)
    assert SECRET not in logged_text(raised.value)


@pytest.mark.parametrize(
    "address",
    [
        DSN.replace("127.0.0.1:1", f"{SECRET}:{SECRET}@host"),
        DSN.replace("127.0.0.1:1", f"[{SECRET}"),
        DSN.replace("postgresql", "mysql"),
        DSN + f"?sslmode={SECRET}",
        DSN,
    ],
    ids=["port", "bracket", "scheme", "option", "unreachable"],
)
async def test_error_omits_the_password_when_the_dsn_cannot_be_used(pool: asyncpg.Pool, address: str) -> None:
    held = Connections(pool, address).checkout()
    with pytest.raises((ConfigurationError, DatabaseUnavailableError)) as raised:
        await held.__aenter__()
    assert SECRET not in logged_text(raised.value)


@each_case(
    "receive",
    [
        lambda pool, dsn: Scheduler(pool, direct_dsn=dsn),
        lambda pool, dsn: Scheduler(pool, keeper_dsn=dsn),
        lambda _, dsn: SyncScheduler(dsn),
        lambda _, dsn: TestScheduler(dsn),
    ],
    ids=["direct_dsn", "keeper_dsn", "SyncScheduler", "TestScheduler"],
)
@each_case(
    ("password", "remedy"),
    [
        (f"p@{SECRET}:1", "@ as %40"),
        (f"p/{SECRET}:1", "/ as %2F"),
        (f"1?{SECRET}=1", r"\? as %3F"),
        (f"1#{SECRET}", "# as %23"),
        (f"[{SECRET}", r"\[ as %5B"),
        (f"\N{ACCOUNT OF}{SECRET}", "special characters"),
    ],
)
async def test_error_names_the_character_to_encode_when_a_password_is_not_encoded(
    pool: asyncpg.Pool, receive: Callable[[asyncpg.Pool, str], object], password: str, remedy: str
) -> None:
    with pytest.raises(ConfigurationError, match=remedy) as raised:
        receive(pool, f"postgresql://me:{password}@127.0.0.1:1/db")
    assert SECRET not in logged_text(raised.value)
    assert quote(SECRET) not in logged_text(raised.value)


async def test_error_omits_the_password_when_a_dsn_is_passed_for_another_parameter(
    pool: asyncpg.Pool,
) -> None:
    with pytest.raises(TypeError) as raised:
        Scheduler(DSN)  # type: ignore[arg-type]
    assert SECRET not in logged_text(raised.value)
    scheduler = Scheduler(pool, direct_dsn=DSN)
    with pytest.raises(TypeError) as raised:
        await scheduler.schedule(work, execution_time=now(), connection=DSN)  # type: ignore[arg-type]
    assert SECRET not in logged_text(raised.value)
    shown = [scheduler, config_of(scheduler), store_of(scheduler), store_of(scheduler).connections]
    assert SECRET not in repr(shown)


async def work(*_args: object, **_kwargs: object) -> None: ...


async def fail(*_args: object, **_kwargs: object) -> None:
    raise RuntimeError("on purpose")


async def without_parameters() -> None: ...


async def test_logs_and_events_contain_no_job_arguments(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="asyncio")
    quick = timedelta(milliseconds=1)
    scheduler = make(retry_policy=RetryPolicy(quick, 1.0, quick))
    seen = Recorder(scheduler)

    def broken(_event: object) -> None:
        raise RuntimeError("a bug in the subscriber")

    scheduler.subscribe(broken)
    await scheduler.start()
    arguments: dict[str, Any] = {"args": (SECRET,), "kwargs": {"password": SECRET}}
    await scheduler.schedule(work, execution_time=now(), **arguments)
    await scheduler.schedule(fail, execution_time=now(), max_retries=1, **arguments)
    with pytest.raises(TypeError) as refused:
        await scheduler.schedule(without_parameters, execution_time=now(), **arguments)
    assert SECRET not in str(refused.value)
    name = registry_of(scheduler).adopt(without_parameters).name
    await make().schedule_job(name, now(), arguments)  # from a process in which the name is unknown
    await scheduler.schedule(work, execution_time=now() - timedelta(days=1), **arguments)
    await scheduler.schedule_bulk([JobSpec(work, now(), **arguments)] * 150)
    await scheduler.schedule_job("unknown.function", now(), arguments, job_id="unknown")
    await scheduler.load_task_functions()
    await seen.until(JobCompleted, 151)
    await seen.until(JobFailed, 2)
    await seen.until(JobRetried)
    await seen.until(JobExpired)
    await scheduler.cancel_job("unknown")
    await scheduler.shutdown()
    assert "on purpose" in caplog.text
    assert "a bug in the subscriber" in caplog.text
    assert SECRET not in caplog.text
    assert SECRET not in repr(seen.events)


async def test_database_errors_contain_no_job_arguments(pool: asyncpg.Pool) -> None:
    """A constraint added by the user fails; the DETAIL of its error would contain the row."""
    await pool.execute("ALTER TABLE scheduled_jobs ADD CONSTRAINT odd CHECK (job_name <> 'odd')")
    scheduler = Scheduler(pool)
    data = {"args": [SECRET]}
    with pytest.raises(asyncpg.CheckViolationError, match="odd") as raised:
        await scheduler.schedule_job("odd", now(), data)
    assert SECRET not in logged_text(raised.value)
    with pytest.raises(asyncpg.CheckViolationError) as raised:
        await scheduler.schedule_job("odd", now(), data, conflict_resolution=ConflictResolution.REPLACE)
    assert SECRET not in logged_text(raised.value)
    scheduler.register(work, name="odd")
    with pytest.raises(asyncpg.CheckViolationError) as raised:
        await scheduler.schedule_bulk([JobSpec(work, now(), (SECRET,))] * 100)
    assert SECRET not in logged_text(raised.value)
    async with pool.acquire() as connection, connection.transaction():
        with pytest.raises(asyncpg.CheckViolationError) as raised:
            await scheduler.schedule(work, execution_time=now(), args=(SECRET,), connection=connection)
    assert SECRET not in logged_text(raised.value)
    await scheduler.shutdown()


@pytest.mark.parametrize(
    "call",
    [
        {"args": SECRET},
        {"args": {SECRET}},
        {"kwargs": [SECRET]},
        {"args": (SECRET, object())},
        {"kwargs": {"x": {SECRET}}},
        {"args": ("\x00" + SECRET,)},
        {"args": (SECRET * 60_000,)},
    ],
)
async def test_payload_errors_contain_no_job_arguments(pool: asyncpg.Pool, call: dict[str, Any]) -> None:
    scheduler = Scheduler(pool)
    with pytest.raises(PayloadError) as raised:
        await scheduler.schedule(work, execution_time=now(), **call)
    assert SECRET not in logged_text(raised.value)
    with pytest.raises(TypeError) as wrong:
        await scheduler.schedule_bulk([call])  # type: ignore[list-item]
    assert SECRET not in logged_text(wrong.value)
