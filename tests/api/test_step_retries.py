"""Retries and time limits of a step: when its function is called again, and what survives a crash."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    Abort,
    ConfigurationError,
    Connection,
    DuplicateStepError,
    JobStatus,
    PayloadError,
    Retry,
    RetryPolicy,
    Scheduler,
    Snooze,
    StepFailedError,
    current_job,
)
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import JobSnoozed, JobSuspended
from pg_scheduler.inspect import Inspector
from pg_scheduler.jobs.step_retries import MAX_ERROR_BYTES, MAX_ERRORS, failures_from
from pg_scheduler.jobs.step_values import RETRY, StoredStep
from pg_scheduler.steps.attempt import AttemptSteps
from pg_scheduler.sync import StepConnection, current_steps
from pg_scheduler.testing import TestScheduler
from tests.support import inside
from tests.support.inside import load_queries, row_of_retries, store_of
from tests.support.statements import Statements
from tests.support.worker import PATIENCE, Recorder

Pool = asyncpg.Pool

START = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
HALF_A_DAY = timedelta(hours=12)
POLICY = RetryPolicy(base=MINUTE, maximum=HOUR, jitter=0)
"""Delays of 1, 2, 4, ... minutes."""
SHORT = RetryPolicy(base=timedelta(milliseconds=1), maximum=timedelta(milliseconds=2))


class Bank:
    """A service that fails a number of times, and notes its calls."""

    def __init__(self, failures: int = 0, error: Callable[[], BaseException] = ConnectionError) -> None:
        self.failures = failures
        self.error = error
        self.calls: list[datetime] = []
        self.now: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def charge(self, order: int) -> str:
        return self.charge_in_thread(order)

    def charge_in_thread(self, order: int) -> str:
        self.calls.append(self.now())
        if len(self.calls) <= self.failures:
            raise self.error()
        return f"payment-{order}"

    @property
    def delays(self) -> list[timedelta]:
        """The times between two calls."""
        return [later - earlier for earlier, later in pairwise(self.calls)]


@pytest.fixture
async def t(pool: Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool, now=START) as scheduler:
        yield scheduler


@pytest.fixture
def bank(t: TestScheduler) -> Bank:
    bank = Bank()
    bank.now = lambda: t.now
    return bank


async def run(t: TestScheduler, func: Callable[..., Any], **options: Any) -> Any:
    """Run a job until no attempt is due within half a day, and return its row."""
    t.scheduler.register(func, name="shop.order")
    job_id = await t.scheduler.enqueue("shop.order", keep_result=DAY, job_id="order", **options)
    await t.run_until(HALF_A_DAY)
    job = await t.scheduler.get_job(job_id)
    assert job
    return job


def failed(count: int, error: str = "ConnectionError", step: str = "charge") -> str:
    """Return the error of a job that a step has failed whose retries are used up."""
    failure = StepFailedError(step, error, count)
    return f"{type(failure).__name__}: {failure}"


async def row_of(pool: Pool, step: str = "charge") -> dict[str, Any] | None:
    row = await pool.fetchrow("SELECT * FROM scheduler_steps WHERE name = $1", row_of_retries(step))
    return None if row is None else dict(row)


# -- retries ---------------------------------------------------------------------------------------------


async def test_failed_step_is_called_again_after_the_delays_of_its_policy_without_a_retry_of_the_job(
    t: TestScheduler, bank: Bank
) -> None:
    bank.failures = 3
    before: list[int] = []

    async def place() -> str:
        before.append(current_job().retry_count)
        return await current_job().steps.run("charge", bank.charge, 7, retry=POLICY, max_retries=3)

    job = await run(t, place)
    assert (job.status, job.retry_count, job.errors) == (JobStatus.COMPLETED, 0, ())
    assert bank.delays == [MINUTE, 2 * MINUTE, 4 * MINUTE]
    assert before == [0, 0, 0, 0], "each wait suspends the job"


async def test_error_reaches_the_job_when_the_retries_are_used_up_and_a_retry_of_the_job_begins_them_again(
    t: TestScheduler, bank: Bank
) -> None:
    bank.failures = 100
    caught: list[str] = []

    async def place() -> None:
        try:
            await current_job().steps.run("charge", bank.charge, 7, retry=POLICY, max_retries=2)
        except StepFailedError as error:
            caught.append(type(error.__cause__).__name__)
            raise

    job = await run(t, place, max_retries=1)
    assert (job.status, job.error_message) == (JobStatus.FAILED, failed(3))
    assert (len(bank.calls), caught) == (2 * 3, ["ConnectionError"] * 2)
    assert [(entry.step, entry.outcome) for entry in job.errors] == [("charge", "error")] * 2
    row = await row_of(t.pool)
    assert row
    assert row["ended_at"] is not None
    failures = failures_from(row["value"])
    assert (failures.count, len(failures.errors)) == (3, MAX_ERRORS)


async def test_failures_of_a_step_do_not_begin_the_retries_of_its_job_again(
    t: TestScheduler, bank: Bank
) -> None:
    """A stored step does. If a failure did, a job whose step always fails would never end."""
    bank.failures = 100

    async def place() -> None:
        await current_job().steps.run("charge", bank.charge, 7, retry=POLICY, max_retries=1)

    assert (await run(t, place, max_retries=3)).status is JobStatus.FAILED
    assert len(bank.calls) == 4 * 2


async def test_name_of_a_step_that_has_failed_for_good_is_not_used_again_in_the_attempt(
    t: TestScheduler, bank: Bank
) -> None:
    """In a later attempt, the stored error belongs to the only call of the name."""
    bank.failures = 100

    async def place() -> None:
        steps = current_job().steps
        with pytest.raises(StepFailedError):
            await steps.run("charge", bank.charge, 7, retry=POLICY, max_retries=1)
        with pytest.raises(DuplicateStepError, match="occurs twice in attempt"):
            await steps.run("charge", bank.charge, 7, retry=POLICY)
        await steps.run("charge-2", bank.charge, 7, retry=POLICY, max_retries=0)

    job = await run(t, place)
    assert (job.status, job.error_message) == (JobStatus.FAILED, failed(1, step="charge-2"))
    assert len(bank.calls) == 3


async def test_errors_that_the_policy_does_not_retry_reach_the_job_at_once(
    t: TestScheduler, bank: Bank
) -> None:
    bank.failures, bank.error = 1, partial(ValueError, "no such order")
    policy = RetryPolicy(base=MINUTE, only=(OSError,))

    async def place() -> None:
        await current_job().steps.run("charge", bank.charge, 7, retry=policy)

    job = await run(t, place)
    assert (job.status, job.error_message) == (JobStatus.FAILED, failed(1, "ValueError: no such order"))
    row = await row_of(t.pool)
    assert row
    assert [error.error for error in failures_from(row["value"]).errors] == ["ValueError: no such order"]


async def test_abort_ends_the_retries_of_the_step_and_the_job(t: TestScheduler, bank: Bank) -> None:
    bank.failures, bank.error = 1, partial(Abort, "the card is stolen")

    async def place() -> None:
        await current_job().steps.run("charge", bank.charge, 7, retry=POLICY)

    job = await run(t, place, max_retries=5)
    assert (job.status, job.error_message) == (
        JobStatus.FAILED,
        "Abort: step 'charge' failed with Abort: the card is stolen",
    )
    assert len(bank.calls) == 1


async def test_retry_chooses_the_delay_and_its_cause_is_stored(t: TestScheduler, bank: Bank) -> None:
    async def charge() -> str:
        bank.calls.append(t.now)
        if len(bank.calls) == 1:
            raise Retry(HOUR) from ValueError("slow down")
        return "paid"

    async def place() -> str:
        return await current_job().steps.run("charge", charge, retry=RetryPolicy(never=(OSError,)))

    assert (await run(t, place)).status is JobStatus.COMPLETED
    assert bank.delays == [HOUR]
    row = await row_of(t.pool)
    assert row
    assert [error.error for error in failures_from(row["value"]).errors] == ["ValueError: slow down"]


async def test_snooze_postpones_the_job_and_is_no_failure_of_the_step(t: TestScheduler, bank: Bank) -> None:
    bank.failures, bank.error = 1, partial(Snooze, HOUR)
    recorder = Recorder(t.scheduler)

    async def place() -> str:
        return await current_job().steps.run("charge", bank.charge, 7, retry=POLICY, max_retries=0)

    assert (await run(t, place)).status is JobStatus.COMPLETED
    assert (bank.delays, await row_of(t.pool)) == ([HOUR], None)
    assert len(recorder.of(JobSnoozed)) == 1


async def test_group_of_exceptions_counts_by_its_leaves(t: TestScheduler, bank: Bank) -> None:
    bank.failures = 1
    bank.error = lambda: ExceptionGroup("calls", [ConnectionError("a"), ExceptionGroup("b", [OSError("c")])])
    policy = RetryPolicy(base=MINUTE, only=(OSError,), jitter=0)

    async def place() -> str:
        return await current_job().steps.run("charge", bank.charge, 7, retry=policy)

    assert (await run(t, place)).status is JobStatus.COMPLETED
    row = await row_of(t.pool)
    assert row
    assert [error.error for error in failures_from(row["value"]).errors] == [
        "ConnectionError: a (and 1 more)"
    ]


async def test_value_that_cannot_be_stored_is_not_retried(t: TestScheduler, bank: Bank) -> None:
    """The function has done its work, and a second call would return the same."""

    async def charge() -> object:
        bank.calls.append(t.now)
        return object()

    async def place() -> None:
        steps = current_job().steps
        with pytest.raises(PayloadError):
            await steps.run("charge", charge, retry=POLICY)

        async def in_transaction(connection: Connection) -> object:
            return await charge()

        with pytest.raises(PayloadError):
            await steps.transaction("reserve", in_transaction, retry=POLICY)

    assert (await run(t, place)).status is JobStatus.COMPLETED
    assert len(bank.calls) == 2


async def test_policy_that_raises_is_replaced_by_the_default(t: TestScheduler, bank: Bank) -> None:
    class Broken(RetryPolicy):
        def delay(self, retry_count: int, *, spread: float) -> timedelta:
            raise RuntimeError(retry_count, spread)

    bank.failures = 1

    async def place() -> str:
        return await current_job().steps.run("charge", bank.charge, 7, retry=Broken())

    assert (await run(t, place)).status is JobStatus.COMPLETED
    assert timedelta(seconds=50) < bank.delays[0] < timedelta(seconds=70)


async def test_steps_that_run_at_once_have_retries_of_their_own(t: TestScheduler) -> None:
    banks = {name: Bank(failures) for name, failures in (("a", 1), ("b", 3))}

    async def place() -> list[str]:
        steps = current_job().steps
        calls = (steps.run(name, bank.charge, 7, retry=POLICY, max_retries=3) for name, bank in banks.items())
        return await asyncio.gather(*calls)

    assert (await run(t, place)).status is JobStatus.COMPLETED
    assert [len(bank.calls) for bank in banks.values()] == [2, 4]


async def test_errors_are_bounded_and_shortened(t: TestScheduler, bank: Bank) -> None:
    bank.failures, bank.error = 9, lambda: ValueError("ä" * 10_000)

    async def place() -> str:
        return await current_job().steps.run("charge", bank.charge, 7, retry=POLICY, max_retries=9)

    assert (await run(t, place)).status is JobStatus.COMPLETED
    row = await row_of(t.pool)
    assert row
    failures = failures_from(row["value"])
    assert (failures.count, len(failures.errors)) == (9, MAX_ERRORS)
    assert all(
        MAX_ERROR_BYTES - 2 < len(error.error.encode()) <= MAX_ERROR_BYTES for error in failures.errors
    )
    stored = "SELECT max(pg_column_size(value)) FROM scheduler_steps WHERE kind = 'retry'"
    assert await t.pool.fetchval(stored) < 2000, "the row of a step needs no compression"


# -- waits -----------------------------------------------------------------------------------------------


async def test_long_wait_suspends_the_job_and_names_the_step(t: TestScheduler, bank: Bank) -> None:
    bank.failures = 1
    recorder = Recorder(t.scheduler)

    async def place() -> str:
        return await current_job().steps.run("charge", bank.charge, 7, retry=POLICY)

    await t.scheduler.enqueue(place, job_id="order", misfire_grace_time=10)
    await t.run_until(timedelta(seconds=1))
    job = await t.scheduler.get_job("order")
    assert job
    assert (job.status, job.suspended_by, job.execution_time) == (JobStatus.PENDING, RETRY, START + MINUTE)
    assert job.expires_at is None, "a job that has begun does not expire"
    assert recorder.of(JobSuspended) == [
        JobSuspended("order", job.job_name, 1, "charge", RETRY, START + MINUTE)
    ]
    await t.run_until(MINUTE)
    assert len(bank.calls) == 2


async def test_short_wait_passes_in_the_attempt(scheduler: Scheduler, pool: Pool) -> None:
    bank = Bank(2)
    recorder = Recorder(scheduler)

    async def place() -> str:
        return await current_job().steps.run("charge", bank.charge, 7, retry=SHORT)

    value = await scheduler.run_job(place, wait_timeout=PATIENCE)
    assert (value, len(bank.calls)) == ("payment-7", 3)
    assert recorder.of(JobSuspended) == []
    row = await row_of(pool)
    assert row
    assert [(error.attempt, error.error) for error in failures_from(row["value"]).errors] == [
        (1, "ConnectionError")
    ] * 2


async def test_job_that_another_worker_continues_waits_for_the_rest_of_the_delay(
    t: TestScheduler, bank: Bank
) -> None:
    """The attempt died during a wait in memory, so its job is due before the step is."""
    bank.failures = 1

    async def place() -> str:
        return await current_job().steps.run("charge", bank.charge, 7, retry=POLICY)

    await t.scheduler.enqueue(place, job_id="order")
    await t.run_until(timedelta(seconds=1))
    await t.pool.execute("UPDATE scheduled_jobs SET execution_time = $1", START)
    await t.run_until(timedelta(seconds=30))
    assert len(bank.calls) == 1
    await t.run_until(HOUR)
    assert bank.delays == [MINUTE]


async def test_other_code_of_the_job_runs_on_while_a_step_waits(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That code keeps the attempt in memory, where the wait ends too."""
    monkeypatch.setattr(AttemptSteps, "in_place_wait_s", 0.0)
    bank = Bank(1)
    has_ended = asyncio.Event()

    async def place() -> str:
        steps = current_job().steps
        other = asyncio.create_task(has_ended.wait())
        value = await steps.run("charge", bank.charge, 7, retry=SHORT)
        has_ended.set()
        await other
        return value

    recorder = Recorder(scheduler)
    assert await scheduler.run_job(place, wait_timeout=PATIENCE) == "payment-7"
    assert recorder.of(JobSuspended) == []


async def test_name_is_held_while_its_step_waits(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = RetryPolicy(base=timedelta(seconds=9), maximum=timedelta(seconds=9))
    is_waiting = asyncio.Event()
    wait_until_due = AttemptSteps._wait_until_due

    async def noted_wait(self: AttemptSteps, name: str) -> None:
        is_waiting.set()
        await wait_until_due(self, name)

    monkeypatch.setattr(AttemptSteps, "_wait_until_due", noted_wait)
    bank = Bank(1)

    async def place() -> str:
        steps = current_job().steps
        step = asyncio.create_task(steps.run("charge", bank.charge, 7, retry=waits))
        await is_waiting.wait()
        with pytest.raises(DuplicateStepError, match="occurs twice"):
            await steps.run("charge", bank.charge, 7)
        step.cancel()
        await asyncio.wait([step])
        return await steps.run("charge", bank.charge, 7)

    assert await scheduler.run_job(place, wait_timeout=PATIENCE) == "payment-7", "a cancelled wait frees it"


async def test_retries_within_the_function_of_a_step_are_refused(t: TestScheduler, bank: Bank) -> None:
    """The outer step keeps the attempt in memory, so a long wait of the inner one would never end."""

    async def outer() -> None:
        await current_job().steps.run("inner", bank.charge, 7, retry=POLICY)

    async def place() -> None:
        await current_job().steps.run("outer", outer)

    job = await run(t, place)
    assert "step 'inner' waits within the function of step 'outer'" in (job.error_message or "")
    assert bank.calls == []


# -- what is stored --------------------------------------------------------------------------------------


async def test_step_that_does_not_fail_sends_what_one_without_options_sends(dsn: str) -> None:
    async def note() -> int:
        return 7

    async def plain() -> None:
        await current_job().steps.run("note", note)

    async def patient() -> None:
        await current_job().steps.run("note", note, retry=POLICY, timeout=60)

    async def failing() -> None:
        await current_job().steps.run("note", Bank(1).charge, 7, retry=POLICY)

    sent = Statements()
    counts: list[Counter[str]] = []
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=5, init=sent.listen) as pool,
        TestScheduler(pool, now=START) as t,
    ):
        # The first job of a worker sends more.
        for func in (plain, plain, patient, failing):
            await t.scheduler.enqueue(func)
            await sent.take()
            await t.drain()
            counts.append((await sent.take()).named)
    _, without, with_options, with_failure = counts
    names = ("store_step", "load_steps", "settle_jobs", "settle_suspended", "end_step", "BEGIN")
    assert [with_options[name] for name in names] == [without[name] for name in names]
    assert (without["store_step"], with_failure["store_step"], with_failure["settle_suspended"]) == (1, 1, 1)


async def test_job_that_cannot_hold_its_row_stores_no_failure(t: TestScheduler, bank: Bank) -> None:
    async def charge() -> None:
        bank.calls.append(t.now)
        await t.pool.execute("UPDATE scheduled_jobs SET attempt = attempt + 1")
        raise ConnectionError

    async def place() -> None:
        await current_job().steps.run("charge", charge, retry=POLICY)

    await t.scheduler.enqueue(place, job_id="order")
    await t.run_until(timedelta(seconds=1))
    assert (len(bank.calls), await row_of(t.pool)) == (1, None)


async def test_failures_take_no_room_of_steps(
    t: TestScheduler, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, steps_of_job=1)
    inside.replace(monkeypatch, step_bytes=11)
    bank.failures = 2

    async def place() -> str:
        return await current_job().steps.run("charge", bank.charge, 7, retry=POLICY)

    assert (await run(t, place)).status is JobStatus.COMPLETED


async def test_repeated_step_begins_its_retries_again(t: TestScheduler, bank: Bank) -> None:
    bank.failures = 2

    async def place() -> None:
        await current_job().steps.run("charge", bank.charge, 7, retry=POLICY, max_retries=2)
        raise ValueError("no stock")

    await run(t, place)
    assert await row_of(t.pool)
    bank.calls.clear()
    assert await t.scheduler.retry_job("order", from_step="charge")
    assert await row_of(t.pool) is None
    await t.run_until(HALF_A_DAY)
    assert len(bank.calls) == 3


async def test_row_that_was_changed_by_hand_is_read_as_far_as_possible() -> None:
    assert failures_from(None).count == 0
    assert failures_from('{"count": "x", "errors": 7}').count == 0
    entries = [7, {"attempt": "1", "error": "a"}, {"attempt": 1, "error": "b", "at": "never"}]
    failures = failures_from(json.dumps({"count": -1, "errors": entries}))
    assert (failures.count, [(error.at, error.error) for error in failures.errors]) == (1, [(None, "b")])


async def test_crash_between_two_calls_does_not_begin_the_count_again(t: TestScheduler, bank: Bank) -> None:
    bank.failures = 100

    async def place() -> None:
        if len(bank.calls) == 2:
            bank.calls.append(t.now)
            t.crash()
            await asyncio.Event().wait()
        await current_job().steps.run("charge", bank.charge, 7, retry=POLICY, max_retries=2)

    job = await run(t, place)
    assert (job.status, job.error_message) == (JobStatus.FAILED, failed(3))
    assert len(bank.calls) == 2 + 1 + 1, "two calls, the crash, and the last call"


async def test_failure_before_a_crash_does_not_begin_the_retries_of_the_job_again(t: TestScheduler) -> None:
    retry_counts: list[int] = []

    async def charge() -> None:
        raise ConnectionError

    async def place() -> None:
        me = current_job()
        retry_counts.append(me.retry_count)
        if me.retry_count == 0:
            raise ValueError("first")
        step = asyncio.create_task(me.steps.run("charge", charge, retry=POLICY))
        while len(retry_counts) == 2 and await row_of(t.pool) is None:  # noqa: ASYNC110 - a row, not an event
            await asyncio.sleep(0)
        if len(retry_counts) == 2:
            t.crash()
        await step

    await run(t, place, max_retries=1)
    assert retry_counts[:3] == [0, 1, 1]


# -- used-up retries -------------------------------------------------------------------------------------


async def test_job_of_two_steps_that_fail_at_once_ends(t: TestScheduler) -> None:
    banks = Bank(100), Bank(100, ValueError)
    waits = RetryPolicy(base=MINUTE, maximum=MINUTE, jitter=0)

    async def place() -> list[str]:
        steps = current_job().steps
        calls = [
            steps.run(f"charge-{n}", bank.charge, 7, retry=waits, max_retries=3 - n)
            for n, bank in enumerate(banks)
        ]
        return [type(error).__name__ for error in await asyncio.gather(*calls, return_exceptions=True)]

    assert (await run(t, place)).status is JobStatus.COMPLETED
    assert [len(bank.calls) for bank in banks] == [4, 3]
    result = await t.scheduler.get_job_result("order", wait=False)
    assert result
    assert result.value == ["StepFailedError"] * 2


async def test_step_whose_retries_were_used_up_raises_the_same_error_after_a_suspension(
    t: TestScheduler, bank: Bank
) -> None:
    bank.failures, bank.error = 100, partial(ConnectionError, "no answer")
    errors: list[StepFailedError] = []

    async def place() -> None:
        steps = current_job().steps
        with pytest.raises(StepFailedError) as raised:
            await steps.run("charge", bank.charge, 7, retry=POLICY, max_retries=1)
        errors.append(raised.value)
        for number in range(3):
            await steps.sleep(f"pause-{number}", MINUTE)
            with pytest.raises(DuplicateStepError):
                await steps.run("charge", bank.charge, 7, retry=POLICY, max_retries=1)

    assert (await run(t, place)).status is JobStatus.COMPLETED
    assert len(bank.calls) == 2
    assert [type(error.__cause__) for error in errors] == [ConnectionError, *[type(None)] * 3]
    # It is the same in each attempt, so code that reads it takes the same way.
    assert len({str(error) for error in errors}) == 1
    error = errors[-1]
    assert (error.step, error.error, error.count) == ("charge", "ConnectionError: no answer", 2)
    assert "step 'charge' failed 2 times, the last time with ConnectionError: no answer" in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.count) == (str(error), 2)
    row = await row_of(t.pool)
    assert row
    assert failures_from(row["value"]).count == 2


async def test_used_up_retries_do_not_begin_again_after_a_crash_or_a_snooze(
    t: TestScheduler, bank: Bank
) -> None:
    bank.failures = 100
    attempts: list[int] = []

    async def place() -> None:
        attempts.append(current_job().attempt)
        try:
            await current_job().steps.run("charge", bank.charge, 7, retry=POLICY, max_retries=0)
        except StepFailedError:
            if len(attempts) == 1:
                t.crash()
                await asyncio.Event().wait()
            if len(attempts) == 2:
                raise Snooze(60) from None
            raise

    job = await run(t, place)
    assert (job.status, attempts, len(bank.calls)) == (JobStatus.FAILED, [1, 2, 3], 1)
    assert str(job.error_message).startswith("StepFailedError: step 'charge' failed once")
    assert job.errors[-1].step == "charge"


async def test_used_up_retries_begin_again_if_the_job_has_failed_in_a_later_attempt_and_slept_since(
    t: TestScheduler, bank: Bank
) -> None:
    """The sleep sets the retries of the job back to 0, so their number alone does not show the failure."""
    bank.failures = 100
    retry_counts: list[int] = []

    async def place() -> None:
        me = current_job()
        retry_counts.append(me.retry_count)
        if len(retry_counts) > 2:
            await me.steps.sleep("pause", MINUTE)
        with pytest.raises(StepFailedError):
            await me.steps.run("charge", bank.charge, 7, retry=POLICY, max_retries=0)
        if len(retry_counts) == 1:
            await me.steps.sleep("first-pause", MINUTE)
        if len(retry_counts) == 2:
            raise ValueError("no stock")

    assert (await run(t, place, max_retries=1)).status is JobStatus.COMPLETED
    assert retry_counts == [0, 0, 1, 0]
    assert len(bank.calls) == 2


async def test_used_up_retries_begin_again_however_many_snoozes_follow_the_failure(
    t: TestScheduler, bank: Bank
) -> None:
    """The history has ten entries, so it has forgotten the failure."""
    bank.failures = 1

    async def place() -> None:
        attempt = current_job().attempt
        if 1 < attempt < 14:
            raise Snooze(60)
        await current_job().steps.run("charge", bank.charge, 7, retry=POLICY, max_retries=0)

    job = await run(t, place, max_retries=1)
    assert (job.status, job.attempt, len(bank.calls)) == (JobStatus.COMPLETED, 14, 2)
    assert {entry.outcome for entry in job.errors} == {"snoozed"}


async def retry_in_bulk(scheduler: Scheduler) -> None:
    async for _ in Inspector(scheduler).retry_jobs(ids=["order"]):
        pass


async def reserve(scheduler: Scheduler) -> None:
    """Reserve the job for one lease, after which a worker takes it."""
    await scheduler.update_job_status("order", "running")
    await scheduler.update_job_status("order", "pending")


DOORS: dict[str, Callable[[Scheduler], Awaitable[object]]] = {
    "retry_job": lambda it: it.retry_job("order"),
    "retry_job with children": lambda it: it.retry_job("order", children=True),
    "in bulk": retry_in_bulk,
    "update_job_status": lambda it: it.update_job_status("order", "pending"),
    "update_job_status, running": reserve,
}
"""How a person lets an ended job run again. The command line, the dashboard and Django call these."""


@pytest.mark.parametrize("door", DOORS)
async def test_used_up_retries_begin_again_when_a_person_lets_the_job_run_again(
    t: TestScheduler, bank: Bank, door: str
) -> None:
    bank.failures = 100

    async def place() -> None:
        with pytest.raises(StepFailedError):
            await current_job().steps.run("charge", bank.charge, 7, retry=POLICY, max_retries=1)

    assert (await run(t, place)).status is JobStatus.COMPLETED
    for _ in range(2):
        await DOORS[door](t.scheduler)
        await t.run_until(HALF_A_DAY)
    job = await t.scheduler.get_job("order")
    assert job
    assert (job.status, len(bank.calls)) == (JobStatus.COMPLETED, 3 * 2)


def test_statements_that_let_an_ended_job_run_again_are_known() -> None:
    """Each has the options of a retry, or gives the job a new definition."""
    texts = {name: query.text for name, query in load_queries("public").items()}
    restarting = {name for name, text in texts.items() if re.search(r"\bfinished_at +(= NULL|= CASE)", text)}
    retrying = {name for name in restarting if "retried_by_hand" in texts[name]}
    assert retrying == {"retry_job", "retry_jobs", "set_status"}
    assert restarting - retrying == {
        *("replace_jobs", "replace_extended_jobs", "replace_debounced_jobs"),
        # They end jobs, or claim pending ones.
        *("claim_next", "exchange_jobs", "try_claim", "cancel_blocked", "hand_over"),
    }


async def test_job_without_steps_is_retried_by_a_caller_without_a_mark(t: TestScheduler) -> None:
    async def place() -> None:
        raise ValueError("no stock")

    await run(t, place)
    options = "SELECT options FROM scheduled_jobs"
    before = await t.pool.fetchval(options)
    assert await t.scheduler.retry_job("order")
    assert await t.pool.fetchval(options) == before


async def test_abort_of_a_step_fails_the_job_also_after_a_crash(t: TestScheduler, bank: Bank) -> None:
    bank.failures, bank.error = 100, partial(Abort, "no such order")

    async def place() -> None:
        try:
            await current_job().steps.run("charge", bank.charge, 7, retry=POLICY)
        except Abort:
            if current_job().attempt == 1:
                t.crash()
                await asyncio.Event().wait()
            raise

    job = await run(t, place, max_retries=3)
    assert (job.status, job.attempt, len(bank.calls)) == (JobStatus.FAILED, 2, 1)
    assert job.error_message == "Abort: step 'charge' failed with Abort: no such order"


# -- time limits -----------------------------------------------------------------------------------------


async def test_error_that_a_function_makes_of_its_cancellation_counts_as_the_timeout(
    t: TestScheduler,
) -> None:
    calls: list[int] = []

    async def charge() -> None:
        calls.append(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("interrupted") from None

    policy = RetryPolicy(base=MINUTE, maximum=MINUTE, only=(TimeoutError,))

    async def place() -> None:
        with pytest.raises(StepFailedError, match=r"TimeoutError: .* ran longer than its timeout") as raised:
            await current_job().steps.run("charge", charge, retry=policy, max_retries=1, timeout=0.01)
        cause = raised.value.__cause__
        assert isinstance(cause, TimeoutError)
        assert isinstance(cause.__cause__, ValueError)

    assert (await run(t, place)).status is JobStatus.COMPLETED
    assert len(calls) == 2


async def test_call_that_exceeds_its_timeout_is_cancelled_and_retried(
    scheduler: Scheduler, pool: Pool
) -> None:
    cancelled: list[int] = []

    async def charge() -> str:
        if not cancelled:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(1)
                raise
        return "paid"

    async def place() -> str:
        return await current_job().steps.run("charge", charge, retry=SHORT, timeout=0.01)

    assert await scheduler.run_job(place, wait_timeout=PATIENCE) == "paid"
    row = await row_of(pool)
    assert row
    errors = [error.error for error in failures_from(row["value"]).errors]
    assert errors == ["TimeoutError: step 'charge' ran longer than its timeout of 0.01 seconds"]


async def test_timeout_without_retries_fails_the_attempt_and_stores_nothing(
    scheduler: Scheduler, pool: Pool
) -> None:
    async def place() -> None:
        await current_job().steps.run("charge", asyncio.Event().wait, timeout=timedelta(milliseconds=1))

    job_id = await scheduler.enqueue(place, keep_result=HOUR)
    result = await scheduler.get_job_result(job_id, timeout=PATIENCE)
    assert "step 'charge' ran longer than its timeout of 0.001 seconds" in str(result.error)
    assert await row_of(pool) is None


async def test_timeout_error_of_the_function_itself_is_kept(t: TestScheduler, bank: Bank) -> None:
    bank.failures, bank.error = 1, partial(TimeoutError, "no answer from the bank")

    async def place() -> str:
        return await current_job().steps.run("charge", bank.charge, 7, retry=POLICY, timeout=60)

    assert (await run(t, place)).status is JobStatus.COMPLETED
    row = await row_of(t.pool)
    assert row
    errors = [error.error for error in failures_from(row["value"]).errors]
    assert errors == ["TimeoutError: no answer from the bank"]


async def test_value_that_is_returned_in_spite_of_the_timeout_is_stored(t: TestScheduler) -> None:
    async def charge() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "paid"
        return "never"

    async def place() -> None:
        assert await current_job().steps.run("charge", charge, timeout=0.001) == "paid"

    assert (await run(t, place)).status is JobStatus.COMPLETED


async def test_timeout_of_the_job_is_no_failure_of_the_step(scheduler: Scheduler, pool: Pool) -> None:
    async def place() -> None:
        await current_job().steps.run("charge", asyncio.Event().wait, retry=SHORT, timeout=3600)

    job_id = await scheduler.enqueue(place, keep_result=HOUR, timeout=0.05)
    result = await scheduler.get_job_result(job_id, timeout=PATIENCE)
    assert "the job ran longer than its timeout" in str(result.error)
    assert await row_of(pool) is None


# -- transactions ----------------------------------------------------------------------------------------


async def test_transaction_is_rolled_back_and_repeated_as_a_new_one(t: TestScheduler, bank: Bank) -> None:
    await t.pool.execute("CREATE TABLE effect (name text)")
    bank.failures = 2

    async def reserve(connection: Connection) -> str:
        await connection.execute("INSERT INTO effect VALUES ('reserved')")
        return await bank.charge(7)

    async def place() -> str:
        return await current_job().steps.transaction("charge", reserve, retry=POLICY)

    assert (await run(t, place)).status is JobStatus.COMPLETED
    assert (len(bank.calls), await t.pool.fetchval("SELECT count(*) FROM effect")) == (3, 1)


async def test_transaction_whose_answer_was_lost_is_not_repeated(
    scheduler: Scheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pool.execute("CREATE TABLE effect (name text)")
    bank = Bank()
    lost: list[bool] = []
    transaction = AttemptSteps._transaction

    @asynccontextmanager
    async def lossy(self: AttemptSteps, connection: Any) -> AsyncIterator[Any]:
        async with transaction(self, connection) as connections:
            yield connections
        if not lost:
            lost.append(True)
            raise DatabaseUnavailableError("the answer was lost")

    async def reserve(connection: Connection) -> str:
        await connection.execute("INSERT INTO effect VALUES ('reserved')")
        return await bank.charge(7)

    async def place() -> str:
        return await current_job().steps.transaction("charge", reserve, retry=SHORT)

    monkeypatch.setattr(AttemptSteps, "_transaction", lossy)
    assert await scheduler.run_job(place, wait_timeout=PATIENCE) == "payment-7"
    assert (lost, len(bank.calls)) == ([True], 1)
    assert await pool.fetchval("SELECT count(*) FROM effect") == 1


async def test_retries_in_a_transaction_of_the_caller_are_refused(t: TestScheduler) -> None:
    async def reserve(connection: Connection) -> None:
        await connection.execute("SELECT 1")

    async def place() -> None:
        steps = current_job().steps
        async with current_job().pool.acquire() as connection, connection.transaction():
            with pytest.raises(ValueError, match=r"cannot be retried in your transaction.*omit connection="):
                await steps.transaction("reserve", reserve, connection=connection, retry=POLICY)
            await steps.transaction("reserve", reserve, connection=connection, timeout=60)

    assert (await run(t, place)).status is JobStatus.COMPLETED


# -- arguments -------------------------------------------------------------------------------------------


async def fetch(url: str, timeout: float = 1.0, retry: object = None) -> list[Any]:
    return [url, timeout, retry]


async def test_option_that_is_a_parameter_of_the_function_is_refused_with_the_remedy(
    t: TestScheduler,
) -> None:
    async def place() -> None:
        steps = current_job().steps
        for options in ({"timeout": 5}, {"retry": POLICY}, {"retry": None}):
            with pytest.raises(
                TypeError, match=r"pass functools\.partial\(function, (timeout|retry)=\.\.\.\)"
            ):
                await steps.run("fetch", fetch, "a", **options)
        both = await steps.run("fetch", partial(fetch, timeout=5), "a", timeout=60)
        assert both == ["a", 5, None]

    job = await run(t, place)
    assert (job.status, job.error_message) == (JobStatus.COMPLETED, None)


async def test_arguments_out_of_range_are_refused(t: TestScheduler, bank: Bank) -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"max_retries": 3}, TypeError, "max_retries= of a step needs retry=; pass retry="),
        ({"retry": POLICY, "max_retries": -1}, ConfigurationError, "max_retries must be between 0"),
        ({"retry": 3}, TypeError, "retry must be a RetryPolicy, not int"),
        ({"timeout": 0}, ConfigurationError, "timeout must be more than 0 seconds"),
        ({"timeout": "5"}, TypeError, "timeout must be"),
    ]

    async def place() -> None:
        for options, kind, message in cases:
            with pytest.raises(kind, match=message):
                await current_job().steps.run("charge", bank.charge, 7, **options)

    job = await run(t, place)
    assert (job.status, job.error_message, bank.calls) == (JobStatus.COMPLETED, None, [])


# -- threads ---------------------------------------------------------------------------------------------


async def test_step_of_a_job_in_a_thread_is_retried(t: TestScheduler, bank: Bank) -> None:
    bank.failures = 2

    def place() -> str:
        return current_steps().run("charge", bank.charge_in_thread, 7, retry=POLICY, max_retries=2)

    assert (await run(t, place)).status is JobStatus.COMPLETED
    assert bank.delays == [MINUTE, 2 * MINUTE]


async def test_failure_of_a_step_in_a_thread_has_the_error_as_its_cause(t: TestScheduler, bank: Bank) -> None:
    bank.failures = 100
    caught: list[type] = []

    def place() -> None:
        try:
            current_steps().run("charge", bank.charge_in_thread, 7, retry=POLICY, max_retries=1)
        except StepFailedError as error:
            caught.append(type(error.__cause__))

    assert (await run(t, place)).status is JobStatus.COMPLETED
    assert (caught, len(bank.calls)) == ([ConnectionError], 2)


async def test_short_wait_of_a_job_in_a_thread_passes_in_the_attempt(scheduler: Scheduler) -> None:
    bank = Bank(2)
    recorder = Recorder(scheduler)

    def place() -> str:
        return current_steps().run("charge", bank.charge_in_thread, 7, retry=SHORT)

    scheduler.register(place, name="shop.order")
    assert await scheduler.run_job("shop.order", wait_timeout=PATIENCE) == "payment-7"
    assert (len(bank.calls), recorder.of(JobSuspended)) == (3, [])


async def test_transaction_of_a_job_in_a_thread_is_repeated(t: TestScheduler, bank: Bank) -> None:
    await t.pool.execute("CREATE TABLE effect (name text)")
    bank.failures = 1

    def reserve(connection: StepConnection, name: str) -> str:
        connection.execute("INSERT INTO effect VALUES ($1)", name)
        return bank.charge_in_thread(7)

    def place() -> str:
        return current_steps().transaction("charge", reserve, name="reserved", retry=POLICY)

    assert (await run(t, place)).status is JobStatus.COMPLETED
    assert await t.pool.fetchval("SELECT count(*) FROM effect") == 1


async def test_timeout_in_a_thread_is_an_argument_of_the_function(t: TestScheduler, bank: Bank) -> None:
    def get(url: str, timeout: float = 1.0) -> list[Any]:
        return [url, timeout]

    def place() -> list[Any]:
        with pytest.raises(TypeError, match=r"has no timeout=.*give a time limit to what it calls"):
            current_steps().run("charge", bank.charge_in_thread, 7, timeout=5)  # type: ignore[call-arg]
        return current_steps().run("get", get, "a", timeout=5)

    job = await run(t, place)
    assert (job.status, job.error_message) == (JobStatus.COMPLETED, None)
    result = await t.scheduler.get_job_result("order", wait=False)
    assert result
    assert result.value == ["a", 5]


async def test_failure_is_stored_as_a_row_that_is_open_until_the_next_call(
    t: TestScheduler, bank: Bank
) -> None:
    bank.failures = 1

    async def place() -> str:
        return await current_job().steps.run("charge", bank.charge, 7, retry=POLICY)

    await t.scheduler.enqueue(place, job_id="order")
    await t.run_until(timedelta(seconds=1))
    row = await row_of(t.pool)
    assert row
    assert (row["kind"], row["attempt"], row["until"], row["ended_at"]) == (RETRY, 1, START + MINUTE, None)
    steps = await store_of(t.scheduler).steps.load("order")
    assert steps == [
        StoredStep(
            row_of_retries("charge"),
            RETRY,
            row["value"],
            has_ended=False,
            until=START + MINUTE,
            left_s=60.0 - (t.now - START).total_seconds(),
        )
    ]
