"""Snooze, Retry, Abort and the exceptions that a retry policy selects, through the public API."""

from __future__ import annotations

import copy
import json
import os
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pg_scheduler import UNSET, Abort, JobStatus, Retry, RetryPolicy, Snooze, current_job, job
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import JobCompleted, JobFailed, JobRetried, JobSnoozed
from pg_scheduler.jobs.retry import delay_of
from pg_scheduler.worker.runners.protocol import error_from, error_to
from tests.api.conftest import Make
from tests.support.cases import each_case
from tests.support.worker import Recorder

START = datetime(2040, 1, 1, tzinfo=UTC)
QUICK = RetryPolicy(timedelta(milliseconds=1), 1.0, timedelta(milliseconds=1))


def retry() -> None:
    me = current_job()
    try:
        os.environ[f"{me.retry_count} of {me.max_retries}"]
    except KeyError as error:
        raise Retry(0.001) from error


async def retry_in_the_loop() -> None:
    retry()


async def test_snoozed_job_is_due_after_the_delay_with_its_whole_grace_and_all_retries(make: Make) -> None:
    async def wait() -> None:
        raise Snooze(timedelta(hours=2))

    scheduler = make(clock=FakeClock(START))
    seen = Recorder(scheduler)
    await scheduler.start()
    job_id = await scheduler.enqueue(wait, max_retries=1, misfire_grace_time=60)
    (event,) = await seen.until(JobSnoozed, job_id=job_id)
    assert (event.attempt, event.delay) == (1, timedelta(hours=2))
    found = await scheduler.get_job(job_id)
    assert found
    due = START + timedelta(hours=2)
    assert (found.status, found.execution_time, found.expires_at) == (
        JobStatus.PENDING,
        due,
        due + timedelta(seconds=60),
    )
    assert (found.retry_count, found.error_message, found.started_at, found.worker_id) == (
        0,
        None,
        None,
        None,
    )


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_job_runs_again_after_each_snooze(make: Make, kind: str) -> None:
    def step() -> None:
        if current_job().attempt < 4:
            raise Snooze(0.001)

    async def step_in_the_loop() -> None:
        step()

    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    func: Any = scheduler.register(step) if kind == "thread" else step_in_the_loop
    job_id = await scheduler.enqueue(func)
    await seen.until(JobCompleted, job_id=job_id)
    found = await scheduler.get_job(job_id)
    assert found
    assert (found.attempt, found.retry_count) == (4, 0)


async def test_aborted_job_fails_at_once_with_the_reason(make: Make) -> None:
    async def give_up() -> None:
        raise Abort("no such order")

    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    job_id = await scheduler.enqueue(give_up, max_retries=5)
    (event,) = await seen.until(JobFailed, job_id=job_id)
    assert event.error == "Abort: no such order"
    found = await scheduler.get_job(job_id)
    assert found
    assert (found.status, found.attempt, found.error_message) == (JobStatus.FAILED, 1, event.error)


@pytest.mark.parametrize("kind", ["coroutine", "thread", "process"])
async def test_retry_uses_the_retries_of_the_job_and_stores_the_error_behind_it(
    make: Make, kind: str
) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    func = retry_in_the_loop if kind == "coroutine" else retry
    scheduler.register(func, executor="process" if kind == "process" else UNSET)
    await scheduler.start()
    job_id = await scheduler.enqueue(func, max_retries=2)
    (failed,) = await seen.until(JobFailed, job_id=job_id)
    assert failed.error == "KeyError: '2 of 2'"
    retried = seen.of(JobRetried, job_id=job_id)
    assert [(each.delay, each.error) for each in retried] == [
        (timedelta(milliseconds=1), "KeyError: '0 of 2'"),
        (timedelta(milliseconds=1), "KeyError: '1 of 2'"),
    ]
    found = await scheduler.get_job(job_id)
    assert found
    assert (found.status, found.attempt, found.retry_count) == (JobStatus.FAILED, 3, 2)
    for error in found.errors:
        assert (error.outcome, error.error_type) == ("error", "KeyError")
        assert "os.environ[f" in (error.traceback or "")


async def test_retry_has_its_own_delay_with_its_whole_grace_whatever_the_policy_selects(make: Make) -> None:
    @job(max_retries=1, retry=RetryPolicy(only=(OSError,), never=(Retry,)))
    async def again() -> None:
        raise Retry(timedelta(hours=2))

    scheduler = make(clock=FakeClock(START))
    seen = Recorder(scheduler)
    await scheduler.start()
    job_id = await scheduler.enqueue(again, misfire_grace_time=60)
    (event,) = await seen.until(JobRetried, job_id=job_id)
    assert (event.delay, event.error) == (timedelta(hours=2), "Retry: run again in 2:00:00")
    found = await scheduler.get_job(job_id)
    assert found
    due = START + timedelta(hours=2)
    assert (found.status, found.execution_time, found.expires_at, found.retry_count) == (
        JobStatus.PENDING,
        due,
        due + timedelta(seconds=60),
        1,
    )


async def test_job_without_retries_fails_when_it_raises_retry(make: Make) -> None:
    async def again() -> None:
        raise Retry(60)

    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    (event,) = await seen.until(JobFailed, job_id=await scheduler.enqueue(again))
    assert event.error == "Retry: run again in 0:01:00"


@pytest.mark.parametrize(
    "last_error",
    [
        pytest.param(KeyError("gone"), id="not in only="),
        pytest.param(ConnectionResetError("gone"), id="in only= and in never="),
    ],
)
async def test_retry_policy_of_a_task_selects_the_exceptions_that_are_retried(
    make: Make, last_error: Exception
) -> None:
    policy = RetryPolicy(QUICK.base, 1.0, QUICK.maximum, only=(OSError,), never=(ConnectionResetError,))

    @job(max_retries=3, retry=policy)
    async def unlucky() -> None:
        raise ConnectionError("away") if current_job().attempt < 3 else last_error

    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    job_id = await scheduler.enqueue(unlucky)
    await seen.until(JobFailed, job_id=job_id, error=f"{type(last_error).__name__}: {last_error}")
    assert len(seen.of(JobRetried, job_id=job_id)) == 2


@each_case(
    ("delay", "error", "rule"),
    [
        (None, ValueError, "delay must be .*not None; (return or raise Abort|pass 0 to retry at once)"),
        (-1, ValueError, "delay must be between 0 and"),
        ("5", TypeError, "delay must be seconds"),
    ],
)
@each_case("kind", [Snooze, Retry])
def test_snooze_and_retry_raise_when_the_delay_is_invalid(
    kind: type[Exception], delay: Any, error: type[Exception], rule: str
) -> None:
    with pytest.raises(error, match=rule):
        kind(delay)


async def test_retry_without_a_delay_is_due_at_once_and_uses_a_retry(make: Make) -> None:
    @job(max_retries=2, retry=RetryPolicy(only=(OSError,)))
    async def call() -> None:
        raise Retry(timedelta(0) if current_job().retry_count else 0) from KeyError("busy")

    scheduler = make(clock=FakeClock(START))
    seen = Recorder(scheduler)
    await scheduler.start()
    job_id = await scheduler.enqueue(call)
    await seen.until(JobFailed, job_id=job_id, error="KeyError: 'busy'")
    assert [event.delay for event in seen.of(JobRetried, job_id=job_id)] == [timedelta(0)] * 2


def test_snooze_raises_when_it_has_no_delay() -> None:
    for delay in (0, 0.0, timedelta(0)):
        with pytest.raises(ValueError, match=r"more than 0 seconds, not .*; return or raise Abort"):
            Snooze(delay)


@pytest.mark.parametrize("kind", [Snooze, Retry])
def test_delay_of_less_than_a_microsecond_is_a_microsecond(kind: type[Snooze | Retry]) -> None:
    exception = kind(1e-7)
    assert exception.delay == delay_of(exception) == timedelta(microseconds=1)
    copy = error_from(json.loads(json.dumps(error_to(exception))))
    assert isinstance(copy, kind)
    assert copy.delay == exception.delay


@pytest.mark.parametrize(("kind", "delay"), [(Snooze, timedelta(minutes=1)), (Retry, timedelta(0))])
def test_delay_of_a_subclass_may_be_zero_for_a_retry_only(
    kind: type[Snooze | Retry], delay: timedelta
) -> None:
    class Soon(kind):  # type: ignore[valid-type, misc] # a base class that is a parameter
        delay = timedelta(0)

    assert delay_of(Soon(1)) == delay


@pytest.mark.parametrize(
    ("error", "kind"), [(Snooze(0.5), Snooze), (Retry(0.5), Retry), (Abort("no"), Abort)]
)
def test_control_exception_of_a_child_process_is_received_by_the_worker(
    error: Exception, kind: type[Exception]
) -> None:
    received = error_from(json.loads(json.dumps(error_to(error))))
    assert isinstance(received, kind)
    assert (type(received).__name__, str(received)) == (kind.__name__, str(error))
    if isinstance(received, Snooze | Retry):
        assert received.delay == timedelta(seconds=0.5)


def test_snooze_of_a_subclass_without_a_delay_is_a_minute() -> None:
    class Later(Snooze):
        def __init__(self) -> None:
            Exception.__init__(self, "later")

    assert Later().delay == timedelta(minutes=1)


@pytest.mark.parametrize("again", [Snooze(5), Retry(5)])
def test_control_exceptions_can_be_copied_and_pickled(again: Snooze | Retry) -> None:
    for copied in (copy.copy(again), pickle.loads(pickle.dumps(again))):
        assert type(copied) is type(again)
        assert (copied.delay, str(copied)) == (timedelta(seconds=5), "run again in 0:00:05")
    assert str(pickle.loads(pickle.dumps(Abort("no")))) == "no"
