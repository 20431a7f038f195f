"""A job that ends because of a default says so where its end is reported, and what changes the default."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Abort, JobStatus, Retry, RetryPolicy, Scheduler
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import JobExpired, JobFailed
from pg_scheduler.inspect import Inspector
from pg_scheduler.jobs.model import DEFAULT_GRACE_S, DEFAULT_TIMEOUT
from pg_scheduler.jobs.outcome import NOT_RETRIED
from pg_scheduler.testing import TestScheduler
from pg_scheduler.worker.overdue import Expirer
from tests.api.conftest import Make
from tests.support import inside
from tests.support.inside import NEVER, load_fragment, quarantine_error
from tests.support.logs import records_of
from tests.support.worker import Recorder

START = datetime(2040, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
Fail = Callable[[], Awaitable[None]]


async def fail() -> None:
    raise ConnectionError("refused")


async def rest(_: object) -> float:
    return NEVER


async def fail_too() -> None:
    raise ConnectionError("refused")


async def ask_for_a_retry() -> None:
    raise Retry(HOUR)


async def give_up() -> None:
    raise Abort("the order was cancelled")


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in records_of(caplog) if record.levelno == logging.ERROR]


async def run(pool: asyncpg.Pool, *jobs: tuple[Fail, dict[str, Any], dict[str, Any]]) -> list[JobFailed]:
    """Run jobs, each with the options of its task and those of its call, and return their failures."""
    async with TestScheduler(pool, now=START) as t:
        seen = Recorder(t.scheduler)
        for func, of_task, of_call in jobs:
            t.scheduler.register(func, **of_task)
            await t.scheduler.enqueue(func, **of_call)
            await t.run_until(10 * HOUR)
        return seen.of(JobFailed)


# -- retries -------------------------------------------------------------------------------------------


async def test_first_failure_of_each_task_names_the_default_of_retries(
    pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, of_second_task = await run(pool, (fail, {}, {}), (fail, {}, {}), (fail_too, {}, {}))
    assert (first.hint, second.hint, of_second_task.hint) == (NOT_RETRIED, None, NOT_RETRIED)
    assert first.error == second.error == "ConnectionError: refused", "the row has the error alone"
    texts = failures(caplog)
    assert [text.endswith(f": ConnectionError: refused; {NOT_RETRIED}") for text in texts] == [
        True,
        False,
        True,
    ]
    assert texts[1].endswith("failed, no retry: ConnectionError: refused")
    assert "max_retries is 0, the default; pass max_retries=" in NOT_RETRIED


async def test_failure_after_a_retry_that_the_job_asked_for_names_the_default(pool: asyncpg.Pool) -> None:
    (failure,) = await run(pool, (ask_for_a_retry, {}, {}))
    assert failure.hint == NOT_RETRIED


@pytest.mark.parametrize(
    ("func", "of_task", "of_call"),
    [
        pytest.param(fail, {"max_retries": 0}, {}, id="the task says 0"),
        pytest.param(fail, {"max_retries": 1}, {}, id="the retries are used"),
        pytest.param(fail, {"max_retries": 1}, {"max_retries": 0}, id="the call says 0"),
        pytest.param(fail, {}, {"max_retries": 1}, id="the call says 1"),
        pytest.param(give_up, {}, {}, id="Abort"),
        pytest.param(fail, {"retry": RetryPolicy(never=(OSError,))}, {}, id="no error to retry"),
    ],
)
async def test_failure_has_no_hint_when_the_default_did_not_decide(
    pool: asyncpg.Pool, func: Fail, of_task: dict[str, Any], of_call: dict[str, Any]
) -> None:
    failed = await run(pool, (func, of_task, of_call))
    assert [failure.hint for failure in failed] == [None]


async def test_task_keeps_its_number_of_retries_when_it_is_registered_again(pool: asyncpg.Pool) -> None:
    (failure,) = await run(pool, (fail, {"max_retries": 0}, {}))
    assert failure.hint is None
    async with TestScheduler(pool, now=START) as t:
        seen = Recorder(t.scheduler)
        t.scheduler.register(fail, max_retries=0)
        t.scheduler.register(fail, aliases=["former.fail"])
        await t.scheduler.enqueue(fail)
        await t.run_until(HOUR)
        assert [failure.hint for failure in seen.of(JobFailed)] == [None]


# -- expiry --------------------------------------------------------------------------------------------

DEFAULT_GRACE = (
    "its misfire grace time is 300 seconds, the default; pass misfire_grace_time=None if late is better than "
    "never"
)


GRACES: dict[str, tuple[dict[str, Any], str, str]] = {
    "default": ({}, DEFAULT_GRACE, "than 300 seconds, the default, or with None"),
    "60": (
        {"misfire_grace_time": 60},
        "its misfire grace time is 60 seconds",
        "than 60 seconds, or with None",
    ),
    "1": ({"misfire_grace_time": 1}, "its misfire grace time is 1 second", "than 1 second, or with None"),
}
"""Options of a call, with the clause of the error and the end of the remedy that they lead to."""


@pytest.mark.parametrize("grace", GRACES)
@pytest.mark.parametrize("is_claimed", [True, False], ids=["claim", "sweep"])
async def test_expired_job_names_its_grace_time_and_whether_that_is_the_default(
    make: Make,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    grace: str,
    is_claimed: bool,
) -> None:
    options, clause, remedy = GRACES[grace]
    clock = FakeClock(START)
    caller, worker = make(clock=clock), make(clock=clock)
    if is_claimed:
        worker.register(fail, name="test.job")
        # Otherwise the sweep would often be faster than the claim.
        monkeypatch.setattr(Expirer, "run_once", rest)
    job_id = await caller.schedule_job("test.job", START, {}, **options)
    clock.advance(timedelta(minutes=6))
    seen = Recorder(worker)
    await worker.start()
    (event,) = await seen.until(JobExpired, job_id=job_id)
    job = await caller.get_job(job_id)
    assert job is not None
    assert job.status is JobStatus.EXPIRED
    assert str(job.error_message).endswith(f"; {clause}")
    assert event.reason == job.error_message
    (text,) = [text for text in caplog.messages if f"(id {job_id}, attempt 0) expired: " in text]
    assert text.endswith(f"; {clause}")
    explanation = await Inspector(caller).explain_job(job_id)
    assert f"longer misfire grace time {remedy}" in str(explanation.reasons[0].remedy)


async def test_expired_job_names_its_grace_time_before_the_error_of_its_last_attempt(
    make: Make, pool: asyncpg.Pool
) -> None:
    clock = FakeClock(START)
    caller, worker = make(clock=clock), make(clock=clock)
    job_id = await caller.schedule_job("test.job", START, {})
    await pool.execute("UPDATE scheduled_jobs SET error_message = 'ValueError: no'")
    clock.advance(timedelta(minutes=6))
    seen = Recorder(worker)
    await worker.start()
    (event,) = await seen.until(JobExpired, job_id=job_id)
    assert event.reason.endswith(f"; {DEFAULT_GRACE}; error of the last attempt: ValueError: no")


def test_default_grace_time_is_the_same_in_the_signature_in_code_and_in_sql() -> None:
    default = inspect.signature(Scheduler).parameters["misfire_grace_time"].default
    (in_sql,) = re.findall(r"misfire_grace_time = (\d{2,})", load_fragment("grace_reason"))
    assert default == DEFAULT_GRACE_S == int(in_sql)


# -- the time limit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_default", [True, False])
async def test_timeout_by_the_default_names_it(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch, is_default: bool
) -> None:
    """An hour passes in a hundredth of a second."""

    async def hang() -> None:
        await asyncio.Event().wait()

    if is_default:
        inside.replace(monkeypatch, default_timeout=timedelta(seconds=0.01))
    (failure,) = await run(pool, (hang, {"timeout": 0.01, "max_retries": 0}, {}))
    hint = ", the default; pass timeout= if its attempts may take longer" if is_default else ""
    assert failure.error == f"TimeoutError: the job ran longer than its timeout of 0.01 seconds{hint}"


async def test_job_without_a_timeout_has_the_one_that_the_message_calls_the_default(
    scheduler: Scheduler,
) -> None:
    job_id = await scheduler.enqueue("test.job", delay=HOUR)
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert job.timeout == DEFAULT_TIMEOUT == HOUR


# -- crashes -------------------------------------------------------------------------------------------


def test_quarantine_names_the_setting_what_is_counted_and_the_remedy() -> None:
    error = quarantine_error(3)
    assert error.startswith("quarantined: 3 workers died while they ran this job; max_crashes= permits no ")
    assert "counts for every job that the worker was running" in error
    assert error.endswith("raise max_crashes=. retry_job() runs this job once more.")
