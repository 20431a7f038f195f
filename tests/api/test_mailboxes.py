"""Mailboxes: a job receives many messages of a name in the order of their commits, each once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel

from pg_scheduler import (
    Abort,
    ConflictResolution,
    DuplicateStepError,
    JobNotFoundError,
    JobStatus,
    PayloadError,
    current_job,
)
from pg_scheduler.events import JobCompleted, JobSuspended
from pg_scheduler.sync import SyncScheduler, current_steps
from pg_scheduler.testing import TestScheduler
from tests.api.conftest import Make
from tests.support.codecs import KeyedCodec
from tests.support.worker import Recorder

START = datetime(2030, 1, 1, tzinfo=UTC)
LATER = datetime(2099, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NOW = timedelta(0)


class Order(BaseModel):
    sku: str


@pytest.fixture
async def t(pool: asyncpg.Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool, now=START) as scheduler:
        yield scheduler


async def receive_three() -> list[Any]:
    return [await current_job().steps.receive("orders") for _ in range(3)]


def receive_three_in_a_thread() -> list[Any]:
    return [current_steps().receive("orders") for _ in range(3)]


async def never() -> None: ...


async def enqueue(t: TestScheduler, func: Callable[..., Any] = receive_three, **options: Any) -> None:
    if not asyncio.iscoroutinefunction(func):
        t.scheduler.register(func, name="mailboxes.thread")
    await t.scheduler.enqueue(func, job_id="job", keep_result=3650 * DAY, **options)


async def value_of(t: TestScheduler) -> Any:
    result = await t.scheduler.get_job_result("job", wait=False)
    assert result is not None, "the job has not ended"
    return result.unwrap()


async def send(t: TestScheduler, *values: Any, name: str = "orders") -> None:
    for value in values:
        assert await t.scheduler.send("job", name, value) is True


async def attempts(t: TestScheduler) -> int:
    job = await t.scheduler.get_job("job")
    assert job is not None
    return job.attempt


@pytest.mark.parametrize("func", [receive_three, receive_three_in_a_thread])
async def test_messages_before_the_job_runs_are_received_in_order_in_one_attempt(
    func: Callable[..., Any], t: TestScheduler
) -> None:
    await enqueue(t, func)
    await send(t, "a", "b", "c", "d")
    await t.run_until(NOW)
    assert await value_of(t) == ["a", "b", "c"]
    assert await attempts(t) == 1


@pytest.mark.parametrize("func", [receive_three, receive_three_in_a_thread])
async def test_each_message_continues_the_job_that_waits_for_it(
    func: Callable[..., Any], t: TestScheduler
) -> None:
    await enqueue(t, func)
    for number in range(3):
        await t.run_until(HOUR)
        await send(t, number)
    await t.run_until(NOW)
    assert await value_of(t) == [0, 1, 2]
    assert await attempts(t) == 4


async def test_message_that_has_come_is_received_without_a_write(
    t: TestScheduler, pool: asyncpg.Pool
) -> None:
    rows = "SELECT xmin::text, name, attempt, until FROM scheduler_steps ORDER BY name"
    await enqueue(t)
    await send(t, 1, 2, 3)
    before = await pool.fetch(rows)
    await t.run_until(NOW)
    assert await value_of(t) == [1, 2, 3]
    assert await pool.fetch(rows) == before


async def test_retry_receives_the_same_messages_again(t: TestScheduler) -> None:
    seen: list[list[Any]] = []

    async def fail_once() -> list[Any]:
        seen.append(await receive_three())
        if len(seen) == 1:
            raise ValueError("once")
        return seen[-1]

    await enqueue(t, fail_once, max_retries=1)
    await send(t, 1, 2)
    await t.run_until(HOUR)
    await send(t, 3, 4)
    await t.run_until(HOUR)
    assert await value_of(t) == [1, 2, 3]
    assert seen == [[1, 2, 3], [1, 2, 3]]


async def test_message_signal_and_step_of_one_name_do_not_meet(t: TestScheduler) -> None:
    async def use_the_name_in_three_ways() -> list[Any]:
        async def seven() -> int:
            return 7

        steps = current_job().steps
        return [await steps.receive("x"), await steps.receive("x"), await steps.run("x", seven)]

    await enqueue(t, use_the_name_in_three_ways)
    await send(t, 1, name="x")
    assert await t.scheduler.signal("job", "x", "signal") is True
    await send(t, 2, name="x")
    assert await t.scheduler.signal("job", "x", "another") is False
    await t.run_until(NOW)
    assert await value_of(t) == [1, 2, 7]


async def test_mailboxes_are_separate_even_if_one_name_begins_as_another(t: TestScheduler) -> None:
    async def read() -> list[Any]:
        steps = current_job().steps
        return [await steps.receive("a"), await steps.receive("a:b"), await steps.receive("0001:a")]

    await enqueue(t, read)
    await send(t, "ab", name="a:b")
    await send(t, "1a", name="0001:a")
    await send(t, "a", name="a")
    await t.run_until(NOW)
    assert await value_of(t) == ["a", "ab", "1a"]


async def receive_or_give_up() -> list[Any]:
    received: list[Any] = []
    while len(received) < 3:
        try:
            received.append(await current_job().steps.receive("orders", timeout=DAY))
        except TimeoutError as error:
            received.append(str(error))
    return received


async def test_receive_times_out_and_the_next_call_waits_for_the_same_message(t: TestScheduler) -> None:
    await enqueue(t, receive_or_give_up)
    await t.run_until(DAY)
    await send(t, "late")
    await t.run_until(NOW)
    await send(t, "next")
    await t.run_until(NOW)
    reason = "no message 1 of 'orders' came for job 'job' until 2030-01-02 00:00:00+00:00"
    assert await value_of(t) == [reason, "late", "next"]


async def test_message_between_a_timeout_and_the_next_call_is_kept_in_every_attempt(t: TestScheduler) -> None:
    seen: list[list[Any]] = []

    async def receive_late() -> list[Any]:
        steps = current_job().steps
        received: list[Any] = []
        seen.append(received)
        try:
            received.append(await steps.receive("orders", timeout=DAY))
        except TimeoutError:
            received.append("timeout")
            await steps.sleep("pause", HOUR)
        received.append(await steps.receive("orders", timeout=DAY))
        received.append(await steps.receive("orders"))
        return received

    await enqueue(t, receive_late)
    await t.run_until(DAY)
    await send(t, 1)
    await t.run_until(2 * HOUR)
    await send(t, 2)
    await t.run_until(NOW)
    assert await value_of(t) == ["timeout", 1, 2]
    assert seen == [[], ["timeout"], ["timeout", 1], ["timeout", 1, 2]]


async def test_message_just_after_the_timeout_was_stored_follows_it_in_every_attempt(
    t: TestScheduler, pool: asyncpg.Pool
) -> None:
    """It comes between the statement that ends the wait and the one that reads the wait again."""
    seen: list[list[Any]] = []

    async def receive_late() -> list[Any]:
        received: list[Any] = []
        seen.append(received)
        for _ in range(2):
            try:
                received.append(await current_job().steps.receive("orders", timeout=DAY))
            except TimeoutError:
                received.append("timeout")
        received.append(await current_job().steps.receive("orders"))
        return received

    await pool.execute("""
        CREATE FUNCTION send_late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            NEW.value := '"late"';
            NEW.timeouts := array_append(NEW.timeouts, NEW.until);
            RETURN NEW;
        END $$;
        CREATE TRIGGER send_late BEFORE UPDATE ON scheduler_steps FOR EACH ROW
        WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL AND NEW.value IS NULL)
        EXECUTE FUNCTION send_late()
    """)
    await enqueue(t, receive_late)
    await t.run_until(DAY)
    await send(t, "last")
    await t.run_until(NOW)
    assert await value_of(t) == ["timeout", "late", "last"]
    assert seen == [[], ["timeout", "late"], ["timeout", "late", "last"]]


async def test_receive_without_a_timeout_follows_one_that_timed_out(t: TestScheduler) -> None:
    async def receive_twice() -> list[Any]:
        steps = current_job().steps
        try:
            return [await steps.receive("orders", timeout=DAY)]
        except TimeoutError:
            return ["timeout", await steps.receive("orders")]

    await enqueue(t, receive_twice)
    await t.run_until(100 * DAY)
    await send(t, 1)
    await t.run_until(NOW)
    assert await value_of(t) == ["timeout", 1]


@pytest.mark.parametrize("is_awaited", [True, False], ids=["awaited", "not awaited"])
async def test_cancelled_receive_loses_no_message(is_awaited: bool, t: TestScheduler) -> None:
    async def cancel_one() -> list[Any]:
        steps = current_job().steps
        waiting = asyncio.create_task(steps.receive("orders"))
        await asyncio.sleep(0)
        waiting.cancel()
        if is_awaited:
            await asyncio.gather(waiting, return_exceptions=True)
        return await receive_three()

    await enqueue(t, cancel_one)
    await t.run_until(NOW)
    await send(t, 1, 2, 3)
    await t.run_until(NOW)
    assert await value_of(t) == [1, 2, 3]


@pytest.mark.parametrize("sent_before", [0, 1, 3])
async def test_second_call_at_once_is_refused_and_takes_no_message(
    sent_before: int, t: TestScheduler
) -> None:
    async def gather() -> list[Any]:
        steps = current_job().steps
        received: list[Any] = []
        for _ in range(3):
            calls = (steps.receive("orders", timeout=DAY) for _ in range(2))
            received += await asyncio.gather(*calls, return_exceptions=True)
        return [str(value) if isinstance(value, DuplicateStepError) else value for value in received]

    await enqueue(t, gather)
    await send(t, *range(sent_before))
    await t.run_until(NOW)
    for number in range(sent_before, 3):
        await send(t, number)
        await t.run_until(NOW)
    reason = (
        "receive('orders') is called while another call waits for this mailbox, in attempt "
        f"{await attempts(t)} of job 'job'; receive one message after the other, or use several mailboxes"
    )
    assert await value_of(t) == [0, reason, 1, reason, 2, reason]


async def test_calls_for_different_mailboxes_wait_at_once(t: TestScheduler) -> None:
    async def gather() -> list[Any]:
        steps = current_job().steps
        return list(await asyncio.gather(*(steps.receive(name) for name in "abc")))

    await enqueue(t, gather)
    await t.run_until(NOW)
    for name in "cab":
        await send(t, name, name=name)
    await t.run_until(NOW)
    assert await value_of(t) == ["a", "b", "c"]


@pytest.mark.parametrize("end", ["timeout", "cancellation"])
async def test_wait_that_ended_without_a_message_leaves_it_to_the_next_call(
    end: str, t: TestScheduler, pool: asyncpg.Pool
) -> None:
    """Whatever sends a value gives it to the wait that is open, and leaves no number behind."""

    async def read() -> list[Any]:
        steps = current_job().steps
        received: list[Any] = []
        if end == "timeout":
            with suppress(TimeoutError):
                received.append(await steps.receive("orders", timeout=DAY))
        else:
            waiting = asyncio.create_task(steps.receive("orders"))
            while not await pool.fetchval("SELECT count(*) FROM scheduler_steps"):
                pass
            waiting.cancel()
            # In a later attempt the message may have come before the cancellation.
            with suppress(asyncio.CancelledError):
                received.append(await waiting)
        while len(received) < 4:
            received.append(await steps.receive("orders", timeout=10 * DAY))
        return received

    await enqueue(t, read)
    await t.run_until(2 * DAY)
    assert await t.scheduler.broadcast("orders", 0) == 1
    await send(t, 1)
    await t.run_until(NOW)
    assert await t.scheduler.broadcast("orders", 2) == 1
    await t.run_until(NOW)
    await send(t, 3)
    await t.run_until(NOW)
    assert await value_of(t) == [0, 1, 2, 3]


async def test_values_become_the_kind(t: TestScheduler) -> None:
    async def read() -> str:
        order = await current_job().steps.receive("orders", kind=Order)
        assert isinstance(order, Order)
        return order.sku

    await enqueue(t, read)
    await send(t, Order(sku="A-1"))
    await t.run_until(NOW)
    assert await value_of(t) == "A-1"


async def test_value_that_does_not_fit_fails_the_job_unless_the_code_skips_it(t: TestScheduler) -> None:
    async def skip() -> Any:
        steps = current_job().steps
        try:
            await steps.receive("orders", kind=int)
        except Abort as error:
            assert "the value of the message 1 of 'orders' does not fit kind=" in str(error)  # noqa: PT017
        return await steps.receive("orders", kind=int)

    await enqueue(t, skip)
    await send(t, "no number", 2)
    await t.run_until(NOW)
    assert await value_of(t) == 2


async def test_job_that_has_ended_gets_no_message(t: TestScheduler) -> None:
    await enqueue(t, never)
    await t.run_until(NOW)
    assert await t.scheduler.send("job", "orders") is False


async def test_hostile_calls_are_rejected(t: TestScheduler) -> None:
    await enqueue(t, never)
    with pytest.raises(JobNotFoundError):
        await t.scheduler.send("no such job", "orders")
    with pytest.raises(ValueError, match="the name of a mailbox must not be empty"):
        await t.scheduler.send("job", "")
    with pytest.raises(ValueError, match="reserved"):
        await t.scheduler.send("job", "\x01mail:0001:orders")
    with pytest.raises(ValueError, match="200"):
        await t.scheduler.send("job", "x" * 201)
    with pytest.raises(PayloadError):
        await t.scheduler.send("job", "orders", object())


async def test_name_of_a_message_is_reserved_for_steps_too(t: TestScheduler) -> None:
    async def forge() -> None:
        await current_job().steps.wait("\x01mail:0001:orders")

    await enqueue(t, forge)
    await t.run_until(NOW)
    job = await t.scheduler.get_job("job")
    assert job is not None
    assert job.status is JobStatus.FAILED
    assert "which is reserved" in (job.error_message or "")


async def test_replaced_job_does_not_get_messages_of_the_former_one(t: TestScheduler) -> None:
    await enqueue(t)
    await send(t, "former")
    await enqueue(t, conflict_resolution=ConflictResolution.REPLACE)
    await send(t, 1, 2, 3)
    await t.run_until(NOW)
    assert await value_of(t) == [1, 2, 3]


async def test_messages_during_a_replaced_attempt_are_for_the_new_definition(t: TestScheduler) -> None:
    async def replace() -> None:
        steps = current_job().steps
        await steps.receive("orders")
        await enqueue(t, conflict_resolution=ConflictResolution.REPLACE)
        await send(t, 1, 2, 3)

    await enqueue(t, replace)
    await send(t, "former", "another")
    await t.run_until(NOW)
    assert await value_of(t) == [1, 2, 3]


async def test_retry_from_a_step_receives_all_messages_again(t: TestScheduler) -> None:
    calls: list[Any] = []

    async def handle() -> list[Any]:
        async def note(order: Any) -> None:
            calls.append(order)

        for number in range(3):
            order = await current_job().steps.receive("orders")
            await current_job().steps.run(f"handle-{number}", note, order)
        return calls

    await enqueue(t, handle)
    await t.run_until(NOW)
    await send(t, 1)
    await t.run_until(HOUR)
    await send(t, 2, 3)
    await t.run_until(HOUR)
    assert await t.scheduler.retry_job("job", from_step="handle-1")
    await t.run_until(HOUR)
    assert await value_of(t) == [1, 2, 3, 2, 3]


async def test_mailbox_is_bounded_and_leaves_room_for_signals(t: TestScheduler, pool: asyncpg.Pool) -> None:
    await enqueue(t, never)
    await send(t, 1)
    await pool.execute("""
        INSERT INTO scheduler_steps (job_id, name, kind, value, attempt, started_at, ended_at, definition)
        SELECT job_id, concat(chr(1), 'mail:', lpad(number::text, 4, '0'), ':orders'), kind, value, attempt,
            started_at, ended_at, definition
        FROM scheduler_steps, generate_series(2, 1000) AS number
    """)
    with pytest.raises(PayloadError, match="no room for the message 1001 of 'orders'"):
        await t.scheduler.send("job", "orders", 1)
    with pytest.raises(PayloadError, match="no room for the message 1 of 'others'"):
        await t.scheduler.send("job", "others", 1)
    assert await t.scheduler.signal("job", "approval", 1) is True


async def test_thousand_messages_are_received_in_order(t: TestScheduler, pool: asyncpg.Pool) -> None:
    async def read() -> list[Any]:
        return [await current_job().steps.receive("orders") for _ in range(1000)]

    await enqueue(t, read)
    await send(t, 1)
    await pool.execute("""
        INSERT INTO scheduler_steps (job_id, name, kind, value, attempt, started_at, ended_at, definition)
        SELECT job_id, concat(chr(1), 'mail:', lpad(number::text, 4, '0'), ':orders'), kind, to_jsonb(number),
            attempt, started_at, ended_at, definition
        FROM scheduler_steps, generate_series(2, 1000) AS number
    """)
    await t.run_until(NOW)
    assert await value_of(t) == list(range(1, 1001))


async def test_message_takes_effect_at_the_commit_of_the_caller(t: TestScheduler, pool: asyncpg.Pool) -> None:
    await enqueue(t)
    await t.run_until(NOW)
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        assert await t.scheduler.send("job", "orders", "aborted", connection=connection)
        await transaction.rollback()
        async with connection.transaction():
            assert await t.scheduler.send("job", "orders", 1, connection=connection)
            assert await t.scheduler.send("job", "orders", 2, connection=connection)
    await send(t, 3)
    await t.run_until(NOW)
    assert await value_of(t) == [1, 2, 3]


async def test_fifty_concurrent_senders_lose_and_double_nothing(make: Make) -> None:
    scheduler = make()
    total = 50

    async def read() -> list[Any]:
        return [await current_job().steps.receive("orders") for _ in range(total)]

    scheduler.register(read, name="mail.read")
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.enqueue("mail.read", job_id="job", keep_result=HOUR)
    await asyncio.gather(*(scheduler.send("job", "orders", number) for number in range(total)))
    await seen.until(JobCompleted)
    result = await scheduler.get_job_result("job")
    assert sorted(result.unwrap()) == list(range(total))


async def test_codec_encodes_messages(pool: asyncpg.Pool) -> None:
    async with TestScheduler(pool, now=START, codec=KeyedCodec("k1")) as t:
        await enqueue(t)
        await send(t, 1, 2, 3)
        assert "data" in await pool.fetchval("SELECT value::text FROM scheduler_steps LIMIT 1")
        await t.run_until(NOW)
        assert await value_of(t) == [1, 2, 3]


async def test_suspension_for_a_message_names_it_for_people(t: TestScheduler) -> None:
    seen = Recorder(t.scheduler)
    await enqueue(t)
    await send(t, 1)
    await t.run_until(NOW)
    (event,) = await seen.until(JobSuspended)
    assert (event.step, event.kind) == ("orders#2", "signal")


async def test_sync_scheduler_sends_messages(dsn: str, make: Make) -> None:
    await make().schedule(never, execution_time=LATER, job_id="job")

    def call() -> list[bool]:
        with SyncScheduler(dsn) as scheduler:
            with pytest.raises(JobNotFoundError):
                scheduler.send("no such job", "orders")
            return [scheduler.send("job", "orders", Order(sku="A-1")), scheduler.send("job", "orders")]

    assert await asyncio.to_thread(call) == [True, True]
