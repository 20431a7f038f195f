"""Jobs that wait for signals: what arrives, when they continue, and what ends the wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel

from pg_scheduler import (
    Abort,
    ConfigurationError,
    ConflictResolution,
    JobStatus,
    PayloadError,
    RetryPolicy,
    Scheduler,
    Sleep,
    Wait,
    call,
    current_job,
)
from pg_scheduler.errors import DuplicateStepError
from pg_scheduler.events import JobCompleted, JobSuspended
from pg_scheduler.inspect import Inspector
from pg_scheduler.testing import TestScheduler
from tests.api.conftest import Make
from tests.store.test_steps import until_a_lock_is_awaited
from tests.support import inside
from tests.support.codecs import KeyedCodec
from tests.support.worker import PATIENCE, Recorder

START = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NOW = timedelta(0)


class Approval(BaseModel):
    by: str


@pytest.fixture
async def t(pool: asyncpg.Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool, now=START) as scheduler:
        yield scheduler


async def wait() -> Any:
    return await current_job().steps.wait("go", timeout=7 * DAY)


async def wait_or_give_up() -> str:
    try:
        return str(await current_job().steps.wait("go", timeout=7 * DAY))
    except TimeoutError as error:
        return f"timed out: {error}"


async def enqueue(t: TestScheduler, func: Callable[..., Awaitable[Any]] = wait, **options: Any) -> None:
    await t.scheduler.enqueue(func, job_id="job", keep_result=3650 * DAY, **options)


async def value_of(scheduler: Scheduler) -> Any:
    found = await scheduler.get_job_result("job", wait=False)
    assert found is not None, "the job has not ended"
    return found.unwrap()


async def attempts(t: TestScheduler) -> int:
    found = await t.scheduler.get_job("job")
    assert found is not None
    return found.attempt


async def due(t: TestScheduler) -> datetime:
    found = await t.scheduler.get_job("job")
    assert found is not None
    assert found.status is JobStatus.PENDING
    return found.execution_time


async def test_signal_before_the_wait_is_returned_at_once(t: TestScheduler) -> None:
    await enqueue(t)
    assert await t.scheduler.signal("job", "go", {"by": "ann"})
    assert await t.run_one()
    assert await value_of(t.scheduler) == {"by": "ann"}
    assert await attempts(t) == 1


async def test_signal_during_the_wait_continues_the_job(t: TestScheduler) -> None:
    await enqueue(t)
    await t.run_until(DAY)
    assert await due(t) == START + 7 * DAY
    assert await t.scheduler.signal("job", "go", 1)
    assert await due(t) == START + DAY
    assert await t.run_one()
    assert await value_of(t.scheduler) == 1
    assert await attempts(t) == 2


async def test_signal_in_the_attempt_before_its_wait_is_returned(t: TestScheduler) -> None:
    async def signal_itself() -> Any:
        assert await t.scheduler.signal("job", "go", 1)
        return await current_job().steps.wait("go", timeout=DAY)

    await enqueue(t, signal_itself)
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == 1


async def test_first_of_two_signals_is_returned(t: TestScheduler) -> None:
    await enqueue(t)
    assert await t.scheduler.signal("job", "go", 1) is True
    assert await t.scheduler.signal("job", "go", 2) is False
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == 1


async def test_null_is_a_value(t: TestScheduler) -> None:
    await enqueue(t, wait_or_give_up)
    await t.run_until(NOW)
    assert await t.scheduler.signal("job", "go")
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == "None"


async def test_wait_times_out_at_its_deadline_and_accepts_no_signal_then(t: TestScheduler) -> None:
    await enqueue(t, wait_or_give_up)
    await t.run_until(START + 7 * DAY - SECOND)
    assert await attempts(t) == 1
    await t.run_until(START + 7 * DAY)
    reason = "timed out: no signal 'go' came for job 'job' until 2030-01-08 00:00:00+00:00"
    assert await value_of(t.scheduler) == reason
    assert await t.scheduler.signal("job", "go", 1) is False


async def test_wait_that_has_timed_out_stays_so_in_later_attempts(t: TestScheduler) -> None:
    errors: list[str] = []

    async def wait_and_fail() -> None:
        try:
            await current_job().steps.wait("go", timeout=HOUR)
        except TimeoutError as error:
            errors.append(str(error))
            if len(errors) == 1:
                raise

    await enqueue(t, wait_and_fail, max_retries=1)
    await t.run_until(HOUR)
    assert await t.scheduler.signal("job", "go", 1) is False
    await t.run_until(DAY)
    assert errors[0] == errors[1]
    assert await value_of(t.scheduler) is None


async def test_timeout_of_zero_only_looks(t: TestScheduler) -> None:
    async def look() -> list[Any]:
        steps, found = current_job().steps, list[Any]()
        for name in ("here", "not here"):
            try:
                found.append(await steps.wait(name, timeout=0))
            except TimeoutError:
                found.append("none")
        return found

    await enqueue(t, look)
    await t.scheduler.signal("job", "here", 1)
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == [1, "none"]
    assert await attempts(t) == 1


async def test_signal_after_the_deadline_is_returned_if_the_job_has_not_continued(t: TestScheduler) -> None:
    await enqueue(t, wait_or_give_up)
    await t.run_until(NOW)
    t.advance(8 * DAY)
    assert await t.scheduler.signal("job", "go", 1)
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == "1"


async def test_wait_without_a_timeout_lasts(t: TestScheduler) -> None:
    async def wait_for_years() -> Any:
        return await current_job().steps.wait("go")

    await enqueue(t, wait_for_years)
    await t.run_until(1000 * DAY)
    assert (await attempts(t), (await due(t)).year) == (1, 9999)
    await t.scheduler.signal("job", "go", 1)
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == 1


async def test_value_has_the_type_for_which_the_job_waits(t: TestScheduler) -> None:
    async def wait_for_types() -> str:
        steps = current_job().steps
        approval = await steps.wait("approval", kind=Approval)
        when = await steps.wait("when", kind=datetime)
        numbers = await steps.wait("numbers", kind=list[int])
        return f"{approval!r} {when.isoformat()} {sum(numbers)}"

    await enqueue(t, wait_for_types)
    await t.scheduler.signal("job", "approval", Approval(by="ann"))
    await t.scheduler.signal("job", "when", START)
    await t.scheduler.signal("job", "numbers", (1, 2))
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == "Approval(by='ann') 2030-01-01T00:00:00+00:00 3"


async def test_value_of_another_type_fails_the_job_without_retries(t: TestScheduler) -> None:
    async def wait_for_approval() -> None:
        await current_job().steps.wait("go", kind=Approval)

    await enqueue(t, wait_for_approval, max_retries=5)
    await t.scheduler.signal("job", "go", {"from": "ann"})
    await t.run_until(DAY)
    job = await t.scheduler.get_job("job")
    assert job is not None
    assert (job.status, job.attempt) == (JobStatus.FAILED, 1)
    assert "the value of the signal 'go' does not fit kind=" in str(job.error_message)


class Unsupported: ...


@pytest.mark.parametrize("kind", [Unsupported, list["Unsupported"], "Unsupported"])
async def test_type_that_pydantic_does_not_support_is_refused(t: TestScheduler, kind: Any) -> None:
    async def wait_for_it() -> None:
        with pytest.raises(ConfigurationError, match=r"kind=.*Unsupported.* is no type for pydantic"):
            await current_job().steps.wait("go", kind=kind)

    await enqueue(t, wait_for_it)
    await t.run_until(NOW)
    await value_of(t.scheduler)


async def test_name_of_a_wait_is_unique_in_an_attempt_until_it_times_out(t: TestScheduler) -> None:
    async def wait_twice() -> None:
        steps = current_job().steps
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await steps.wait("go", timeout=0)
        with pytest.raises(DuplicateStepError):
            await steps.sleep("go", 1)
        await steps.wait("here")
        for repeated in (steps.wait("here"), steps.wait("here", timeout=0)):
            with pytest.raises(DuplicateStepError):
                await repeated

    await enqueue(t, wait_twice)
    await t.scheduler.signal("job", "here")
    await t.run_until(NOW)
    await value_of(t.scheduler)


async def test_signal_takes_no_name_of_a_step_cursor_sleep_or_child(t: TestScheduler) -> None:
    """Whoever may signal a job cannot fail it. The value stays: no later one replaces it."""

    async def work() -> int:
        return 7

    async def use_the_names() -> list[Any]:
        steps = current_job().steps
        async with steps.cursor("cursor", start=0) as cursor:
            await cursor.save(3)
        await steps.sleep("sleep", 5)
        values = [await steps.run("step", work), await steps.child("child", call(work))]
        return [*values, *await steps.gather("gather", [call(work)])]

    names = ("cursor", "sleep", "step", "child", "gather")
    await enqueue(t, use_the_names)
    for name in names:
        assert await t.scheduler.signal("job", name, "early")
    await t.run_until(HOUR)
    assert await value_of(t.scheduler) == [7, 7, 7]
    rows = {(step.name, step.kind) for step in (await Inspector(t.scheduler).steps("job")).items}
    kinds = {"cursor": "cursor", "sleep": "sleep", "step": "step", "child": "child", "gather": "child"}
    assert rows >= {*kinds.items(), *((name, "signal") for name in names)}


async def test_signal_after_the_step_of_its_name_is_refused(t: TestScheduler) -> None:
    async def work() -> int:
        return 7

    async def use_the_name() -> Any:
        steps = current_job().steps
        await steps.run("go", work)
        return await steps.wait("end")

    await enqueue(t, use_the_name)
    assert await t.scheduler.signal("job", "go", 1)
    await t.run_until(NOW)
    assert await t.scheduler.signal("job", "go", 2) is False
    assert await t.scheduler.signal("job", "end", 3)
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == 3


class Reminders:
    """A job that waits for one signal several times, with a reminder after each timeout."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.accepts = False
        """Whether the job uses a signal; if not, it fails."""

    async def send(self, number: int) -> None:
        self.sent.append(number)

    async def wait(self) -> Any:
        steps = current_job().steps
        for number in (1, 2, 3):
            try:
                answer = await steps.wait("go", timeout=number * DAY)
            except TimeoutError:
                await steps.run(f"remind-{number}", self.send, number)
            else:
                if self.accepts:
                    return answer
                break
        raise Abort("rejected")


@pytest.mark.parametrize(("days", "sent"), [(2, [1]), (4, [1, 2]), (10, [1, 2, 3])])
async def test_retry_from_a_step_repeats_the_waits_after_it(
    t: TestScheduler, days: int, sent: list[int]
) -> None:
    """The waits have one row, which is older than the step. On days 2 and 4 the job is in a wait."""
    reminders = Reminders()
    await enqueue(t, reminders.wait)
    await t.run_until(START + days * DAY)
    assert reminders.sent == sent
    await t.scheduler.cancel_job("job")
    assert await t.scheduler.retry_job("job", from_step="remind-1")
    await t.run_until(NOW)
    assert reminders.sent == [*sent, 1]
    assert await due(t) == START + (days + 2) * DAY
    reminders.accepts = True
    assert await t.scheduler.signal("job", "go", 7)
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == 7


async def test_retry_from_a_step_keeps_the_timeouts_before_it(t: TestScheduler) -> None:
    reminders = Reminders()
    await enqueue(t, reminders.wait)
    await t.run_until(10 * DAY)
    assert await t.scheduler.retry_job("job", from_step="remind-3")
    await t.run_until(NOW)
    assert reminders.sent == [1, 2, 3, 3]
    assert await t.scheduler.retry_job("job", from_step="remind-2")
    await t.run_until(NOW)
    assert reminders.sent == [1, 2, 3, 3, 2]
    assert await due(t) == START + 13 * DAY


async def test_retry_from_a_step_gives_the_signal_to_the_wait_after_it(t: TestScheduler) -> None:
    reminders = Reminders()
    await enqueue(t, reminders.wait)
    await t.run_until(START + 4 * DAY)
    assert await t.scheduler.signal("job", "go", 7)
    await t.run_until(NOW)
    reminders.accepts = True
    assert await t.scheduler.retry_job("job", from_step="remind-1")
    await t.run_until(NOW)
    assert reminders.sent == [1, 2, 1]
    assert await value_of(t.scheduler) == 7


@pytest.mark.parametrize("days", [2, 4])
@pytest.mark.parametrize("step", ["reminder", "remind"])
async def test_retry_from_a_step_repeats_the_first_wait_with_a_timeout(
    t: TestScheduler, days: int, step: str
) -> None:
    """The wait began before the step, without a timeout. On day 2 the job waits, on day 4 it has failed."""
    reminders = Reminders()

    async def remind_and_wait() -> Any:
        steps = current_job().steps
        await steps.first("answer", Wait("go"), Sleep("reminder", DAY))
        await steps.run("remind", reminders.send, 1)
        return await steps.wait("go", timeout=2 * DAY)

    await enqueue(t, remind_and_wait)
    await t.run_until(START + days * DAY)
    await t.scheduler.cancel_job("job")
    assert await t.scheduler.retry_job("job", from_step=step)
    await t.run_until(START + (days + 1) * DAY)
    assert reminders.sent == [1, 1]
    assert await due(t) == START + (days + (2 if step == "remind" else 3)) * DAY
    assert await t.scheduler.signal("job", "go", 7)
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == 7


async def test_signal_that_gave_way_to_a_step_counts_for_a_later_wait(t: TestScheduler) -> None:
    """The code has changed: the name is that of a wait now."""
    waits = False

    async def work() -> int:
        return 7

    async def use_the_name() -> Any:
        steps = current_job().steps
        if waits:
            return await steps.wait("go", timeout=1)
        await steps.run("go", work)
        raise Abort("the code is to change")

    await enqueue(t, use_the_name)
    assert await t.scheduler.signal("job", "go", "early")
    await t.run_until(NOW)
    waits = True
    assert await t.scheduler.retry_job("job", from_step="go")
    assert await t.scheduler.signal("job", "go", "late") is False
    await t.run_until(HOUR)
    assert await value_of(t.scheduler) == "early"


async def test_step_stored_while_a_signal_of_its_name_is_being_sent(
    t: TestScheduler, pool: asyncpg.Pool
) -> None:
    """The statement that stores the step waits for the signal, which it does not see."""
    begun = asyncio.Event()

    async def work() -> int:
        begun.set()
        return 7

    async def use_the_name() -> Any:
        steps = current_job().steps
        await steps.run("first", work)
        return await steps.run("go", work)

    await enqueue(t, use_the_name)
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await t.scheduler.signal("job", "mark")
        await transaction.start()
        assert await t.scheduler.signal("job", "go", connection=connection)
        running = asyncio.create_task(t.run_one())
        await begun.wait()
        await until_a_lock_is_awaited(pool)
        await transaction.commit()
        await running
    assert await value_of(t.scheduler) == 7


async def test_signal_after_replace_is_for_the_new_definition(t: TestScheduler) -> None:
    """The former attempt runs on. A second REPLACE forgets what was sent to the first one."""
    received: list[Any] = []
    replacements = 0

    async def replace(scheduler: Scheduler) -> bool:
        nonlocal replacements
        replacements += 1
        await scheduler.enqueue(
            waiting, job_id="job", conflict_resolution=ConflictResolution.REPLACE, keep_result=DAY
        )
        return await scheduler.signal("job", "go", replacements)

    async def former() -> None:
        steps = current_job().steps
        assert await steps.wait("go") == 0
        assert await replace(t.scheduler)
        assert await t.scheduler.signal("job", "go", "late") is False
        assert await replace(t.scheduler)

    async def waiting() -> Any:
        received.append(await current_job().steps.wait("go", timeout=DAY))
        return received

    await enqueue(t, former)
    assert await t.scheduler.signal("job", "go", 0)
    assert await t.run_one()
    rows = [(step.name, step.value) for step in (await Inspector(t.scheduler).steps("job")).items]
    assert rows == [("go", 2)]
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == [2]


async def test_signal_to_a_replacement_of_a_job_without_steps(t: TestScheduler) -> None:
    """It marks the running attempt too, whose first step forgets nothing of the next definition."""

    async def work() -> int:
        return 7

    async def waiting() -> Any:
        return await current_job().steps.wait("go", timeout=DAY)

    async def former() -> None:
        await t.scheduler.enqueue(
            waiting, job_id="job", conflict_resolution=ConflictResolution.REPLACE, keep_result=DAY
        )
        assert await t.scheduler.signal("job", "go", "new")
        await current_job().steps.run("go", work)

    await enqueue(t, former)
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == "new"


@pytest.mark.parametrize(
    "name",
    ["\x01next:go", f"child:{'a' * 64}", f"again:{'a' * 64}", f"result:{'0' * 64}", f"next:{'f' * 64}"],
)
async def test_signal_takes_no_name_of_rows_that_are_no_steps(t: TestScheduler, name: str) -> None:
    async def nothing() -> None: ...

    await enqueue(t, nothing)
    with pytest.raises(ValueError, match="which is reserved; use another name"):
        await t.scheduler.signal("job", name)


async def test_signals_that_nobody_waits_for_take_no_room_of_steps(
    t: TestScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, steps_of_job=3)
    inside.replace(monkeypatch, step_bytes=20)
    inside.replace(monkeypatch, signals_of_job=2)

    async def work() -> int:
        return 7

    async def use_steps() -> Any:
        steps = current_job().steps
        for number in range(2):
            await steps.run(f"step-{number}", work)
        return await steps.wait("go")

    await enqueue(t, use_steps)
    assert await t.scheduler.signal("job", "a", "x" * 40)
    assert await t.scheduler.signal("job", "b", "x" * 40)
    with pytest.raises(PayloadError, match=r"no room for the signal 'c': .* at most 2 signals .* not waited"):
        await t.scheduler.signal("job", "c")
    await t.run_until(NOW)
    assert await t.scheduler.signal("job", "go", 1), "it waits for this one"
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == 1


async def test_job_waits_for_several_signals_at_once(t: TestScheduler) -> None:
    async def wait_for_both() -> list[Any]:
        steps = current_job().steps
        return list(await asyncio.gather(steps.wait("a", timeout=2 * DAY), steps.wait("b", timeout=3 * DAY)))

    await enqueue(t, wait_for_both)
    await t.run_until(HOUR)
    assert await due(t) == START + 2 * DAY
    assert await t.scheduler.signal("job", "b", 2)
    await t.run_until(HOUR)
    assert await due(t) == START + 2 * DAY
    assert await t.scheduler.signal("job", "a", 1)
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == [1, 2]


async def test_signal_does_not_shorten_the_delay_of_a_retry(t: TestScheduler) -> None:
    async def fail() -> None:
        while await t.pool.fetchval("SELECT count(*) FROM scheduler_steps") < 2:
            pass  # it does not wait yet
        raise ValueError

    async def place() -> list[Any]:
        steps = current_job().steps
        waits = steps.wait("paid"), steps.wait("packed", timeout=DAY)
        failed = [steps.run("fail", fail)] if current_job().attempt == 1 else []
        return list(await asyncio.gather(*waits, *failed))

    t.scheduler.register(place, name="place", retry=RetryPolicy(HOUR, maximum=HOUR, jitter=0))

    await enqueue(t, place, max_retries=3)
    await t.run_until(NOW)
    assert await due(t) == START + HOUR
    assert await t.scheduler.signal("job", "paid", 1)
    assert await t.scheduler.signal("job", "packed", 2)
    assert await due(t) == START + HOUR
    await t.run_until(HOUR)
    assert await value_of(t.scheduler) == [1, 2]
    assert await attempts(t) == 2


async def test_value_stays_for_the_retries_of_a_job(t: TestScheduler) -> None:
    found: list[Any] = []

    async def wait_and_fail() -> None:
        found.append(await current_job().steps.wait("go"))
        if len(found) < 3:
            raise ValueError

    await enqueue(t, wait_and_fail, max_retries=1)
    await t.scheduler.signal("job", "go", 7)
    await t.run_until(DAY)
    await t.scheduler.retry_job("job")
    await t.run_until(DAY)
    assert found == [7, 7, 7]


async def test_signal_to_a_job_that_was_cancelled_while_it_waited_is_refused(t: TestScheduler) -> None:
    await enqueue(t)
    await t.run_until(HOUR)
    assert await t.scheduler.cancel_job("job")
    assert await t.scheduler.signal("job", "go", 1) is False


async def test_signal_to_a_replaced_job_does_not_reach_its_successor(t: TestScheduler) -> None:
    await enqueue(t, wait_or_give_up)
    await t.run_until(HOUR)
    await t.scheduler.signal("job", "go", "old")
    await enqueue(t, wait_or_give_up, conflict_resolution=ConflictResolution.REPLACE)
    await t.run_until(HOUR)
    assert await due(t) == START + HOUR + 7 * DAY
    await t.scheduler.signal("job", "go", "new")
    await t.run_until(HOUR)
    assert await value_of(t.scheduler) == "new"


async def test_suspended_job_receives_the_signal_of_a_transaction_of_ten_seconds(
    t: TestScheduler, pool: asyncpg.Pool
) -> None:
    await enqueue(t)
    await t.run_until(NOW)
    async with pool.acquire() as connection, connection.transaction():
        assert await t.scheduler.signal("job", "go", 1, connection=connection)
        await t.run_until(10 * SECOND)
        assert await attempts(t) == 1
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == 1


async def test_job_looks_each_second_while_a_signal_is_being_stored(
    t: TestScheduler, pool: asyncpg.Pool
) -> None:
    """The transaction of ten seconds sends its signal while the job runs, so it has no suspension to end."""
    async with pool.acquire() as connection:
        transaction = connection.transaction()

        async def send_and_wait() -> Any:
            steps = current_job().steps
            if current_job().attempt == 2:  # the first one has stored the wait
                await transaction.start()
                assert await t.scheduler.signal("job", "go", 1, connection=connection)
            return await steps.wait("go", timeout=DAY)

        await enqueue(t, send_and_wait)
        await t.run_until(NOW)
        await t.scheduler.run_job_now("job")
        await t.run_until(10 * SECOND)
        assert await attempts(t) == 12
        await transaction.commit()
    await t.run_until(SECOND)
    assert await value_of(t.scheduler) == 1


async def test_aborted_signal_does_not_arrive(t: TestScheduler, pool: asyncpg.Pool) -> None:
    await enqueue(t, wait_or_give_up)
    await t.run_until(NOW)
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        assert await t.scheduler.signal("job", "go", 1, connection=connection)
        await t.run_until(8 * DAY)  # at the deadline the row is locked
        assert await attempts(t) == 1
        await transaction.rollback()
    await t.run_until(NOW)
    assert (await value_of(t.scheduler)).startswith("timed out")


async def test_value_is_decoded_by_the_codec(pool: asyncpg.Pool) -> None:
    async with TestScheduler(pool, now=START, codec=KeyedCodec("k1")) as t:
        await enqueue(t)
        await t.scheduler.signal("job", "go", {"card": "4242"})
        assert "4242" not in await pool.fetchval("SELECT value::text FROM scheduler_steps")
        await t.run_until(NOW)
        assert await value_of(t.scheduler) == {"card": "4242"}


async def test_signal_of_another_process_continues_the_job_without_a_poll(make: Make) -> None:
    worker, client = make(), make()
    worker.register(wait, name="waits.wait")
    seen = Recorder(worker)
    await worker.start()
    await client.enqueue("waits.wait", job_id="job", keep_result=HOUR)
    async with asyncio.timeout(PATIENCE):
        await seen.until(JobSuspended)
        assert await client.signal("job", "go", 7)
        await seen.until(JobCompleted)
    assert await value_of(client) == 7
