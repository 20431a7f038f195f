"""Durable steps and sleeps, through the public API: what later attempts skip, and what suspends them."""

from __future__ import annotations

import asyncio
import gc
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    ConfigurationError,
    ConflictResolution,
    Connection,
    DuplicateStepError,
    JobLostError,
    JobStatus,
    Limit,
    NotRunningError,
    PayloadError,
    RetryPolicy,
    Scheduler,
    VacuumConfig,
    VacuumPolicy,
    call,
    current_job,
    job,
)
from pg_scheduler.base.foreign import leaves_of
from pg_scheduler.events import JobCompleted, JobReleased, JobRetried, JobSuspended
from pg_scheduler.inspect import ChangeOutcome, Inspector
from pg_scheduler.jobs.step_values import MAX_STEP_BYTES, StoredStep
from pg_scheduler.steps import attempt, loaded
from pg_scheduler.steps.statements import StepRepository
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.testing import TestScheduler, job_context
from tests.store.test_steps import until_a_lock_is_awaited
from tests.support import inside
from tests.support.codecs import KeyedCodec
from tests.support.inside import Claim, clock_of, worker_of
from tests.support.statements import Sent, Statements
from tests.support.stories import NIGHTLY
from tests.support.worker import PATIENCE, Recorder, wire_to

MAX_STEPS = inside.internal_setting("steps_of_job")

Pool = asyncpg.Pool

START = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


class Log(list[Any]):
    """What happened, and steps that note it."""

    async def note(self, what: Any) -> Any:
        self.append(what)
        return what

    async def fail(self, what: Any) -> None:
        self.append(what)
        raise ValueError(f"no {what}")


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def t(pool: Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool, now=START, max_result_bytes=1000) as scheduler:
        yield scheduler


async def ended(t: TestScheduler, job_id: str) -> tuple[JobStatus, str | None]:
    found = await t.scheduler.get_job(job_id)
    assert found
    return found.status, found.error_message


async def run(t: TestScheduler, func: Callable[..., Awaitable[Any]], **options: Any) -> Any:
    """Run a job until no attempt is due within a year, and return its value."""
    job_id = await t.scheduler.enqueue(func, keep_result=timedelta(days=3650), **options)
    await t.run_until(365 * DAY)
    result = await t.scheduler.get_job_result(job_id, wait=False)
    assert result
    return result.unwrap()


# -- run() -----------------------------------------------------------------------------------------------


async def test_stored_step_is_not_called_again_and_code_outside_of_steps_is(
    t: TestScheduler, log: Log
) -> None:
    async def place() -> list[str]:
        steps = current_job().steps
        log.append("outside")
        first = await steps.run("first", log.note, "one")
        second = await steps.run("second", log.note, "two")
        if current_job().attempt < 3:
            raise ValueError
        return [first, second]

    assert await run(t, place, max_retries=2) == ["one", "two"]
    assert log == ["outside", "one", "two", "outside", "outside"]


async def test_step_that_failed_is_called_again_by_the_next_attempt(t: TestScheduler, log: Log) -> None:
    async def place() -> None:
        await current_job().steps.run("a", log.note, 1)
        await current_job().steps.run("b", log.fail if len(log) < 3 else log.note, 2)

    await run(t, place, max_retries=2)
    assert log == [1, 2, 2, 2]


async def test_failed_step_may_be_repeated_within_its_attempt(t: TestScheduler, log: Log) -> None:
    async def place() -> None:
        steps = current_job().steps
        with pytest.raises(ValueError, match="no 1"):
            await steps.run("a", log.fail, 1)
        await steps.run("a", log.note, 2)

    await run(t, place)
    assert log == [1, 2]


@pytest.mark.parametrize("is_marked", [True, False])
async def test_step_whose_call_is_cancelled_at_its_commit_is_not_called_again(
    t: TestScheduler, log: Log, is_marked: bool
) -> None:
    """Another connection commits the step, as that of a cancelled call may, or an earlier job of the id."""

    async def be_cancelled() -> None:
        await t.pool.execute(
            "INSERT INTO scheduler_steps"
            " SELECT job_id, 'a', 'step', '7', 1, NULL, now(), now() FROM scheduled_jobs"
        )
        if is_marked:
            await t.pool.execute("""UPDATE scheduled_jobs SET options = options || '{"steps": 1}'""")
        raise asyncio.CancelledError

    async def place() -> Any:
        steps = current_job().steps
        with pytest.raises(asyncio.CancelledError):
            await steps.run("a", be_cancelled)
        return await steps.run("a", log.note, "again")

    assert await run(t, place) == (7 if is_marked else "again")
    assert log == ([] if is_marked else ["again"])


async def test_name_that_is_used_twice_in_an_attempt_is_refused(t: TestScheduler, log: Log) -> None:
    async def place() -> None:
        steps = current_job().steps
        for number in range(2):
            await steps.run(f"page-{number}", log.note, number)
        with pytest.raises(DuplicateStepError, match=r"step 'page-1' occurs twice.*; use names such as"):
            await steps.run("page-1", log.note, 2)

    await run(t, place)
    assert log == [0, 1]


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_name_of_another_kind_of_step_is_refused(t: TestScheduler, log: Log, is_loaded: bool) -> None:
    async def place() -> None:
        steps = current_job().steps
        if current_job().attempt == 1:
            await steps.run("a", log.note, 1)
            raise ValueError
        with pytest.raises(DuplicateStepError, match="another kind"):
            await steps.sleep("a", 1)

    await run(t, place, max_retries=1)


@dataclass
class Quote:
    price: float
    at: datetime


async def fetch_quote(price: float) -> Quote:
    return Quote(price, START)


async def test_annotated_step_returns_its_type_the_first_time_and_later(t: TestScheduler) -> None:
    found: list[object] = []

    async def place() -> None:
        found.append(await current_job().steps.run("quote", partial(fetch_quote, price=9.5)))
        if current_job().attempt == 1:
            raise ValueError

    await run(t, place, max_retries=1)
    assert found == [Quote(9.5, START)] * 2


async def test_step_without_annotation_returns_what_json_carries_the_first_time_and_later(
    t: TestScheduler, log: Log
) -> None:
    found: list[object] = []
    value = {"long": (1, 2), "b": 1e16, "a": None}

    async def place() -> None:
        found.append(await current_job().steps.run("value", log.note, value))
        if current_job().attempt == 1:
            raise ValueError

    await run(t, place, max_retries=1)
    assert found == [{"a": None, "b": 10**16, "long": [1, 2]}] * 2
    assert [str(each) for each in found] == [str(found[0])] * 2, "also the order of the keys and types"


async def returns_a_text() -> int:
    return "no number"  # type: ignore[return-value]


async def return_an_object() -> object:
    return object()


async def return_bytes_that_are_no_text() -> bytes:
    return b"\xff"


async def return_a_list_that_contains_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


async def return_a_number_of_5001_digits() -> int:
    return 10**5000


@pytest.mark.parametrize(
    ("func", "args", "message"),
    [
        (
            Log().note,
            (object(),),
            "step 'a': the value cannot be serialized by pydantic: .*object",
        ),
        (Log().note, (float("nan"),), "step 'a': the value is nan"),
        (
            Log().note,
            ("x" * 999,),
            "step 'a': the value has 1001 bytes of JSON, more than max_result_bytes = 1000",
        ),
        (returns_a_text, (), r"step 'a': the value does not fit the return annotation of returns_a_text\(\)"),
        (
            return_an_object,
            (),
            "step 'a': the value cannot be serialized by pydantic: .*object",
        ),
        (
            return_bytes_that_are_no_text,
            (),
            "step 'a': the value is bytes that are not UTF-8",
        ),
        (
            return_a_list_that_contains_itself,
            (),
            "step 'a': the value cannot be serialized .*Circular reference",
        ),
        (return_a_number_of_5001_digits, (), "step 'a': the value is an int of 16610 bits"),
        (
            Log().note,
            ({"codec": "", "key": "", "data": "", "job_name": ""},),
            "exactly the keys of an encoded one.*add another key",
        ),
    ],
)
async def test_value_that_cannot_be_stored_is_a_payload_error(
    t: TestScheduler, func: Callable[..., Awaitable[Any]], args: tuple[Any, ...], message: str
) -> None:
    async def place() -> None:
        with pytest.raises(PayloadError, match=message):
            await current_job().steps.run("a", func, *args)

    await run(t, place)


async def test_return_annotation_that_pydantic_does_not_support_is_refused_before_the_call(
    t: TestScheduler, log: Log
) -> None:
    async def note() -> None:
        log.append("called")

    async def place() -> None:
        note.__annotations__["return"] = TestScheduler
        with pytest.raises(
            ConfigurationError, match=r"(?s)return annotation of .*note\(\): .*; define the type"
        ):
            await current_job().steps.run("a", note)

    await run(t, place)
    assert log == []


@pytest.mark.parametrize("annotation", ["Undefined", list["Undefined"]])  # type: ignore[name-defined] # noqa: F821
async def test_undefined_return_annotation_concerns_only_values_that_json_cannot_represent(
    t: TestScheduler, annotation: Any
) -> None:
    async def echo(value: Any) -> Any:
        return value

    async def place() -> None:
        echo.__annotations__["return"] = annotation
        assert await current_job().steps.run("a", echo, {"n": [1, None]}) == {"n": [1, None]}
        with pytest.raises(ConfigurationError, match=r"return annotation of .*echo\(\): .*; define the type"):
            await current_job().steps.run("b", echo, datetime(2030, 1, 1, tzinfo=UTC))

    await run(t, place)


async def test_stored_value_that_no_longer_fits_fails_the_job_without_retries(t: TestScheduler) -> None:
    async def before() -> str:
        return "nine"

    async def after() -> int:
        return 9

    async def place() -> None:
        await current_job().steps.run("price", before if current_job().attempt == 1 else after)
        raise ValueError

    job_id = await t.scheduler.enqueue(place, max_retries=5)
    await t.run_until(DAY)
    status, error = await ended(t, job_id)
    assert status is JobStatus.FAILED
    assert error
    assert error.startswith("Abort: the stored value of step 'price' does not fit the return annotation of")
    found = await t.scheduler.get_job(job_id)
    assert found
    assert found.attempt == 2


@pytest.mark.parametrize(
    ("name", "func", "error"),
    [
        ("", Log().note, ValueError),
        ("x" * 201, Log().note, ValueError),
        ("a\x00", Log().note, ValueError),
        (7, Log().note, TypeError),
        ("a", len, TypeError),
        ("a", lambda: None, TypeError),
        ("a", None, TypeError),
    ],
)
async def test_invalid_step_is_refused_before_its_function_is_called(
    t: TestScheduler, name: Any, func: Any, error: type[Exception]
) -> None:
    async def place() -> None:
        with pytest.raises(error):
            await current_job().steps.run(name, func)

    await run(t, place)


class Identity:
    async def __call__(self, value: int) -> int:
        return value


async def test_step_calls_methods_partials_and_objects_with_their_arguments(t: TestScheduler) -> None:
    async def named(name: str, *, func: str) -> str:
        return name + func

    async def place() -> list[Any]:
        steps = current_job().steps
        return [
            await steps.run("object", Identity(), 1),
            await steps.run("partial", partial(Identity(), 2)),
            await steps.run("method", Log().note, 3),
            await steps.run("keywords", named, name="a", func="b"),
        ]

    assert await run(t, place) == [1, 2, 3, "ab"]


async def together(*steps: Coroutine[Any, Any, Any]) -> None:
    async with asyncio.TaskGroup() as group:
        for step in steps:
            group.create_task(step)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("why")])
@pytest.mark.parametrize("combined", [asyncio.gather, together])
async def test_exit_of_a_step_beside_others_ends_its_attempt_only(
    t: TestScheduler, log: Log, combined: Callable[..., Awaitable[Any]], error: BaseException
) -> None:
    async def leave() -> None:
        raise error

    async def place() -> None:
        steps = current_job().steps
        await combined(steps.run("a", log.note, "a"), steps.run("leave", leave))
        log.append("went on")

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as in a program whose event loop handles Ctrl-C
    try:
        job_id = await t.scheduler.enqueue(place, max_retries=0)
        await t.drain()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    status, message = await ended(t, job_id)
    assert status is JobStatus.FAILED
    assert "BaseExceptionGroup" in str(message) or type(error).__name__ in str(message)
    assert log == ["a"]


async def test_two_steps_run_at_once(t: TestScheduler, log: Log) -> None:
    async def place() -> list[int]:
        steps = current_job().steps
        found = await asyncio.gather(*(steps.run(f"{n}", log.note, n) for n in range(20)))
        if current_job().attempt == 1:
            raise ValueError
        return found

    assert await run(t, place, max_retries=1) == [*range(20)]
    assert sorted(log) == [*range(20)]


async def test_job_has_at_most_a_thousand_steps(
    t: TestScheduler, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, steps_of_job=3)

    async def place() -> None:
        steps = current_job().steps
        for number in range(3):
            await steps.run(f"{number}", log.note, number)
        for refused in (steps.run("more", log.note, 3), steps.sleep("more", 1)):
            with pytest.raises(PayloadError, match=r"step 'more' is number 4 of job .*, more than 3; store"):
                await refused
        if current_job().attempt == 1:
            raise ValueError

    await run(t, place, max_retries=1)


async def test_steps_in_transactions_of_one_attempt_count(
    t: TestScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, steps_of_job=2)

    async def do_nothing(connection: asyncpg.Connection) -> None: ...

    async def place() -> None:
        steps = current_job().steps
        for number in range(2):
            await steps.transaction(f"{number}", do_nothing)
        with pytest.raises(PayloadError, match=r"step 'more' is number 3 of job .*, more than 2; store"):
            await steps.transaction("more", do_nothing)

    await run(t, place)


async def test_values_of_a_job_have_at_most_64_mib(
    t: TestScheduler, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded, "MAX_STEP_BYTES", 100)

    async def place() -> None:
        steps = current_job().steps
        await steps.run("a", log.note, "x" * 58)
        if current_job().attempt == 1:
            raise ValueError
        with pytest.raises(PayloadError, match=r"with step 'b' the values of job .* have 101 bytes of JSON"):
            await steps.run("b", log.note, "x" * 39)
        await steps.run("b", log.note, "x" * 38)

    await run(t, place, max_retries=1)


def test_bounds_are_those_of_the_documentation() -> None:
    assert (MAX_STEPS, MAX_STEP_BYTES) == (1000, 64 * 1024 * 1024)


# -- retries and expiry ----------------------------------------------------------------------------------

QUICK = RetryPolicy(timedelta(seconds=1), 2.0, timedelta(days=1))


async def test_retries_begin_again_after_progress_and_end_without_it(pool: Pool, log: Log) -> None:
    """With two retries, the job ends at the first failure without a step that follows two others."""
    counts: list[int] = []

    async def place() -> None:
        attempt = current_job().attempt
        counts.append(current_job().retry_count)
        if attempt in {1, 2, 4}:
            await current_job().steps.run(f"{attempt}", log.note, attempt)
        raise ValueError

    async with TestScheduler(pool, now=START, retry_policy=QUICK) as t:
        seen = Recorder(t.scheduler)
        job_id = await t.scheduler.enqueue(place, max_retries=2)
        await t.run_until(DAY)
        assert (await ended(t, job_id))[0] is JobStatus.FAILED
        delays = [event.delay.total_seconds() for event in seen.of(JobRetried)]
    assert counts == [0, 1, 1, 2, 1, 2]
    assert delays == [1, 1, 2, 1, 2]


@pytest.mark.parametrize("stores", [True, False])
async def test_retries_begin_again_after_progress_that_a_crash_followed(
    t: TestScheduler, log: Log, stores: bool
) -> None:
    counts: list[int] = []

    async def place() -> None:
        me = current_job()
        counts.append(me.retry_count)
        if me.attempt == 1:
            raise ValueError
        if me.attempt == 2:
            await me.scheduler.signal("job", "early")
            if stores:
                await me.steps.run("a", log.note, "a")
            t.crash()

    job_id = await t.scheduler.enqueue(place, job_id="job", max_retries=5)
    await t.run_until(DAY)
    assert (await ended(t, job_id))[0] is JobStatus.COMPLETED
    assert counts == [0, 1, 0 if stores else 1]


async def test_job_with_a_stored_step_does_not_expire(t: TestScheduler, log: Log) -> None:
    async def place() -> None:
        await current_job().steps.run("a", log.note, 1)
        if current_job().attempt == 1:
            raise ValueError

    job_id = await t.scheduler.enqueue(place, misfire_grace_time=60, max_retries=1)
    await t.drain()
    t.advance(DAY)
    await t.drain()
    assert (await ended(t, job_id))[0] is JobStatus.COMPLETED


async def test_failed_job_continues_at_its_first_missing_step_when_it_is_retried_by_hand(
    t: TestScheduler, log: Log
) -> None:
    async def place() -> None:
        await current_job().steps.run("a", log.note, "a")
        await current_job().steps.run("b", log.note if len(log) > 1 else log.fail, "b")

    job_id = await t.scheduler.enqueue(place)
    await t.drain()
    assert (await ended(t, job_id))[0] is JobStatus.FAILED
    assert await t.scheduler.retry_job(job_id)
    await t.drain()
    assert (await ended(t, job_id))[0] is JobStatus.COMPLETED
    assert log == ["a", "b", "b"]


@pytest.fixture
async def stored(t: TestScheduler, log: Log) -> str:
    """Return a job that has stored three steps, each before a sleep, and has completed after a signal."""

    async def place() -> None:
        steps = current_job().steps
        for name in ("a", "b", "c"):
            await steps.run(name, log.note, name)
            t.advance(1)
            await steps.sleep(f"after {name}", HOUR)
        log.append(await steps.wait("go"))

    job_id = await t.scheduler.enqueue(place, job_id="stored")
    await t.drain()
    await t.scheduler.signal(job_id, "go", "signal")
    await t.run_until(4 * HOUR)
    assert log == ["a", "b", "c", "signal"]
    log.clear()
    return job_id


@pytest.mark.parametrize(
    ("step", "repeated"),
    [("a", ["a", "b", "c"]), ("b", ["b", "c"]), ("after b", ["c"]), ("after c", [])],
)
async def test_job_that_is_retried_from_a_step_repeats_it_and_the_later_ones(
    t: TestScheduler, log: Log, stored: str, step: str, repeated: list[str]
) -> None:
    """The signal that has come stays: its sender does not repeat it."""
    assert await t.scheduler.retry_job(stored, from_step=step)
    await t.run_until(4 * HOUR)
    assert log == [*repeated, "signal"]


async def test_steps_of_one_instant_before_that_of_a_retry_are_kept(t: TestScheduler, log: Log) -> None:
    async def place() -> None:
        steps = current_job().steps
        await steps.run("b", log.note, "b")
        await steps.child("a", call(log.note, "a"))
        async with steps.cursor("d", start=0) as cursor:
            await cursor.save(1)
        await steps.run("c", log.note, "c")

    job_id = await t.scheduler.enqueue(place)
    await t.drain()
    assert log == ["b", "a", "c"]
    assert t.now == START
    assert await t.scheduler.retry_job(job_id, from_step="d")
    await t.drain()
    assert log == ["b", "a", "c", "c"]


async def test_job_that_is_retried_from_a_signal_waits_for_another_one(
    t: TestScheduler, log: Log, stored: str
) -> None:
    assert await t.scheduler.retry_job(stored, from_step="go")
    await t.run_until(4 * HOUR)
    assert await t.scheduler.signal(stored, "go", "another")
    await t.run_until(4 * HOUR)
    assert log == ["b", "c", "another"]


async def test_wait_that_timed_out_begins_again_after_a_retry_from_a_step_before_it(
    t: TestScheduler, log: Log
) -> None:
    async def place() -> None:
        await current_job().steps.run("a", log.note, "a")
        await current_job().steps.wait("go", timeout=HOUR)

    job_id = await t.scheduler.enqueue(place)
    await t.run_until(4 * HOUR)
    assert (await ended(t, job_id))[0] is JobStatus.FAILED
    assert await t.scheduler.retry_job(job_id, from_step="a")
    await t.drain()
    assert await t.scheduler.signal(job_id, "go")
    await t.drain()
    assert (await ended(t, job_id))[0] is JobStatus.COMPLETED
    assert log == ["a", "a"]


async def test_retry_from_a_step_that_is_not_stored_changes_nothing(
    t: TestScheduler, pool: Pool, stored: str
) -> None:
    rows = "SELECT * FROM scheduler_steps ORDER BY name"
    before = await pool.fetch(rows)
    with pytest.raises(ValueError, match=r"job 'stored' has not stored a step 'd'; pass the name"):
        await t.scheduler.retry_job(stored, from_step="d")
    with pytest.raises(ValueError, match="must not be empty"):
        await t.scheduler.retry_job(stored, from_step="")
    assert (await ended(t, stored))[0] is JobStatus.COMPLETED
    assert await pool.fetch(rows) == before
    await t.scheduler.retry_job(stored)
    assert not await t.scheduler.retry_job(stored, from_step="a"), "it is unfinished"
    assert await pool.fetch(rows) == before
    assert not await t.scheduler.retry_job("no such job", from_step="a")


async def test_retry_from_a_step_keeps_the_earlier_ones_after_the_clock_was_set_back(
    t: TestScheduler, log: Log
) -> None:
    async def place() -> None:
        for name in ("a", "b", "c", "d"):
            await current_job().steps.run(name, log.note, name)
            clock_of(t).now -= DAY

    job_id = await t.scheduler.enqueue(place)
    await t.drain()
    log.clear()
    assert await t.scheduler.retry_job(job_id, from_step="c")
    await t.drain()
    assert log == ["c", "d"]


async def test_retry_from_a_step_commits_with_the_transaction_of_the_caller(
    t: TestScheduler, log: Log, pool: Pool, stored: str
) -> None:
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        with pytest.raises(ValueError, match="'d'"):
            await t.scheduler.retry_job(stored, from_step="d", connection=connection)
        assert await t.scheduler.retry_job(stored, from_step="c", connection=connection)
        await transaction.rollback()
        await t.run_until(4 * HOUR)
        assert log == []
        async with connection.transaction():
            assert await t.scheduler.retry_job(stored, from_step="c", connection=connection)
    await t.run_until(4 * HOUR)
    assert log == ["c", "signal"]


async def test_retry_from_a_step_counts_no_rows_of_an_earlier_job_of_the_id(
    t: TestScheduler, log: Log, stored: str
) -> None:
    await t.scheduler.enqueue(
        log.note, args=("new",), job_id=stored, conflict_resolution=ConflictResolution.REPLACE
    )
    await t.drain()
    with pytest.raises(ValueError, match="has not stored a step 'a'"):
        await t.scheduler.retry_job(stored, from_step="a")


async def test_sync_scheduler_retries_from_a_step(t: TestScheduler, log: Log, dsn: str, stored: str) -> None:
    def retry() -> bool:
        with SyncScheduler(dsn) as scheduler:
            with pytest.raises(ValueError, match="has not stored a step 'd'"):
                scheduler.retry_job(stored, from_step="d")
            return scheduler.retry_job(stored, from_step="c")

    assert await asyncio.to_thread(retry)
    await t.run_until(4 * HOUR)
    assert log == ["c", "signal"]


async def test_jobs_of_a_list_are_retried_from_a_step_and_those_without_it_refused(
    t: TestScheduler, log: Log, stored: str
) -> None:
    other = await t.scheduler.enqueue(log.note, args=("other",))
    await t.drain()
    log.clear()
    inspector = Inspector(t.scheduler)
    run = inspector.retry_jobs(ids=[other, stored], from_step="c")
    outcomes = {each.job_id: each.outcome for step in [step async for step in run] for each in step.changes}
    assert outcomes == {other: ChangeOutcome.REFUSED, stored: ChangeOutcome.DONE}
    await t.run_until(4 * HOUR)
    assert log == ["c", "signal"]
    (record,) = (await inspector.audit(action="retry_jobs")).items
    assert record.subject == stored
    assert {"jobs": [stored], "from_step": "c"}.items() <= (record.details or {}).items()


# -- sleep() ---------------------------------------------------------------------------------------------


async def test_sleep_frees_the_worker_and_continues_on_time(t: TestScheduler, log: Log) -> None:
    async def remind() -> None:
        steps = current_job().steps
        await steps.run("first", log.note, "first")
        await steps.sleep("trial", timedelta(days=14))
        log.append(t.now)

    seen = Recorder(t.scheduler)
    job_id = await t.scheduler.enqueue(remind, max_retries=1)
    await t.drain()
    found = await t.scheduler.get_job(job_id)
    assert found
    assert (found.status, found.execution_time) == (JobStatus.PENDING, START + 14 * DAY)
    assert (found.retry_count, found.errors, found.worker_id, found.expires_at) == (0, (), None, None)
    (event,) = seen.of(JobSuspended)
    assert event == JobSuspended(job_id, found.job_name, 1, "trial", "sleep", START + 14 * DAY)
    await t.run_until(START + 14 * DAY)
    assert log == ["first", START + 14 * DAY]
    assert (await ended(t, job_id))[0] is JobStatus.COMPLETED


async def test_sleep_until_a_time(t: TestScheduler, log: Log) -> None:
    async def remind() -> None:
        await current_job().steps.sleep("past", until=START - DAY)
        await current_job().steps.sleep("day", until=START + DAY)
        log.append(t.now)

    await run(t, remind)
    assert log == [START + DAY]


@NIGHTLY
@pytest.mark.slow
async def test_a_year_of_sleeps_ends_on_time(t: TestScheduler, log: Log) -> None:
    async def daily() -> None:
        for day in range(365):
            await current_job().steps.sleep(f"day-{day}", DAY)
            await current_job().steps.run(f"note-{day}", log.note, None)
            if log[-1] is None:
                log[-1] = t.now

    job_id = await t.scheduler.enqueue(daily)
    await t.run_until(364 * DAY)
    assert (await ended(t, job_id))[0] is JobStatus.PENDING
    await t.run_until(DAY)
    assert (await ended(t, job_id))[0] is JobStatus.COMPLETED
    assert log == [START + (day + 1) * DAY for day in range(365)]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": 5}, TypeError, "the name of a step must be a str, not int: 5"),
        ({}, TypeError, "sleep 'a' has no end; pass a delay or until="),
        ({"delay": 1, "until": START}, TypeError, "sleep 'a' has both a delay and until=; pass one of them"),
        ({"delay": -1}, ValueError, "delay"),
        ({"delay": "1"}, TypeError, "delay"),
        ({"until": START.replace(tzinfo=None)}, ValueError, "until"),
    ],
)
async def test_invalid_sleep_is_refused(
    t: TestScheduler, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    async def remind() -> None:
        with pytest.raises(error, match=re.escape(message)):
            await current_job().steps.sleep(**{"name": "a"} | arguments)

    await run(t, remind)


async def test_sleep_within_the_function_of_a_step_is_refused(t: TestScheduler) -> None:
    async def rest() -> None:
        with pytest.raises(RuntimeError, match="'inner' waits within the function of step 'outer'"):
            await current_job().steps.sleep("inner", 1)

    async def remind() -> None:
        await current_job().steps.run("outer", rest)
        await current_job().steps.sleep("after", 1)

    await run(t, remind)


async def test_task_that_a_step_has_begun_may_wait_when_its_function_has_returned(t: TestScheduler) -> None:
    async def rest(returned: asyncio.Event) -> str:
        await returned.wait()
        await current_job().steps.sleep("inner", 1)
        return "rested"

    async def remind() -> str:
        returned, tasks = asyncio.Event(), list[asyncio.Task[str]]()

        async def begin() -> None:
            tasks.append(asyncio.create_task(rest(returned)))

        await current_job().steps.run("outer", begin)
        if not tasks:
            await begin()
        returned.set()
        return await tasks[0]

    assert await run(t, remind) == "rested"


async def test_suspension_runs_finally_blocks_and_drops_what_the_function_makes_of_it(
    t: TestScheduler, log: Log
) -> None:
    async def swallow() -> str:
        try:
            await current_job().steps.sleep("s", HOUR)
        except asyncio.CancelledError:
            log.append("swallowed")
        await asyncio.sleep(0)
        return "done"

    async def raise_another() -> str:
        try:
            await current_job().steps.sleep("s", HOUR)
        finally:
            await asyncio.sleep(0)
            if current_job().attempt == 1:
                log.append("raised")
                raise ValueError
        return "done"

    async def use_steps() -> str:
        steps = current_job().steps
        try:
            await steps.sleep("s", HOUR)
        finally:
            if current_job().attempt == 1:
                log.append("refused")
                with pytest.raises(asyncio.CancelledError):
                    await steps.run("late", log.note, "never")
        return "done"

    async def complete() -> str:
        try:
            await current_job().steps.sleep("s", HOUR)
        finally:
            if current_job().attempt == 1:
                log.append("not completed")
                with pytest.raises(asyncio.CancelledError):
                    async with current_job().completing():
                        log.append("completed")
        return "done"

    for func in (swallow, raise_another, use_steps, complete):
        seen = Recorder(t.scheduler)
        assert await run(t, func) == "done"
        assert len(seen.of(JobSuspended)) == 1
    assert log == ["swallowed", "raised", "refused", "not completed"]


async def test_suspension_waits_for_the_steps_beside_it(t: TestScheduler, log: Log) -> None:
    asleep = asyncio.Event()

    async def slow() -> str:
        log.append("slow")
        await asleep.wait()
        return "slow"

    async def place() -> str:
        steps = current_job().steps

        async def rest() -> None:
            asyncio.get_running_loop().call_later(0.05, asleep.set)
            await steps.sleep("rest", HOUR)

        _, found = await asyncio.gather(rest(), steps.run("slow", slow))
        return found

    seen = Recorder(t.scheduler)
    assert await run(t, place) == "slow"
    assert len(seen.of(JobSuspended)) == 1
    assert log == ["slow"], "it was not interrupted"


async def fail_beside_a_sleep(t: TestScheduler) -> None:
    while not await t.pool.fetchval("SELECT count(*) FROM scheduler_steps"):
        pass  # it is not asleep yet
    await t.pool.execute("SELECT")
    raise ValueError("no stock")


async def test_error_of_a_step_beside_a_sleep_fails_the_attempt(t: TestScheduler) -> None:
    async def place() -> None:
        steps = current_job().steps
        await asyncio.gather(steps.sleep("rest", DAY), steps.run("fail", fail_beside_a_sleep, t))

    job_id = await t.scheduler.enqueue(place, max_retries=0)
    await t.drain()
    assert await ended(t, job_id) == (JobStatus.FAILED, "ValueError: no stock")


@pytest.mark.parametrize("is_asleep", [True, False])
async def test_steps_that_undo_others_do_not_hide_an_error_beside_a_sleep(
    t: TestScheduler, log: Log, is_asleep: bool
) -> None:
    async def place() -> None:
        steps = current_job().steps
        failed = (
            steps.run("fail", fail_beside_a_sleep, t) if is_asleep else steps.run("fail", log.fail, "stock")
        )
        try:
            await asyncio.gather(steps.sleep("rest", DAY), failed)
        except ValueError:
            await steps.run("undo", log.note, "undone")
            raise

    job_id = await t.scheduler.enqueue(place, max_retries=0)
    await t.drain()
    assert await ended(t, job_id) == (JobStatus.FAILED, "ValueError: no stock")
    assert log[-1] == "undone"


async def test_job_that_catches_the_error_of_a_step_beside_a_sleep_is_suspended(t: TestScheduler) -> None:
    async def place() -> list[str]:
        steps = current_job().steps
        rest, failed = steps.sleep("rest", DAY), steps.run("fail", fail_beside_a_sleep, t)
        return [repr(each) for each in await asyncio.gather(rest, failed, return_exceptions=True)]

    seen = Recorder(t.scheduler)
    assert await run(t, place, max_retries=0) == ["None", "ValueError('no stock')"]
    assert len(seen.of(JobSuspended)) == 1


async def test_job_that_sleeps_twice_at_once_is_due_at_the_earlier_end(t: TestScheduler, log: Log) -> None:
    async def place() -> None:
        steps = current_job().steps

        async def rest(name: str, delay: timedelta) -> None:
            await steps.sleep(name, delay)
            log.append((name, t.now))

        await asyncio.gather(rest("long", 2 * HOUR), rest("short", HOUR))

    seen = Recorder(t.scheduler)
    await run(t, place)
    assert log == [("short", START + HOUR), ("short", START + 2 * HOUR), ("long", START + 2 * HOUR)]
    assert [event.step for event in seen.of(JobSuspended)] == ["short", "long"]


async def test_sleep_that_is_cancelled_within_the_job_suspends_nothing(t: TestScheduler, log: Log) -> None:
    async def place() -> str:
        steps = current_job().steps

        async def slow() -> str:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await steps.sleep("rest", HOUR)
            return "slow"

        blocker = asyncio.Event()
        beside = asyncio.create_task(steps.run("beside", blocker.wait))
        await asyncio.sleep(0)
        found = await slow()
        blocker.set()
        await beside
        return found

    seen = Recorder(t.scheduler)
    assert await run(t, place) == "slow"
    assert seen.of(JobSuspended) == []


async def test_step_after_the_end_of_its_attempt_is_refused(t: TestScheduler, log: Log) -> None:
    late: list[asyncio.Task[Any]] = []
    go = asyncio.Event()

    async def place() -> None:
        steps = current_job().steps

        async def beside() -> None:
            await go.wait()
            await steps.run("late", log.note, 1)

        late.append(asyncio.create_task(beside()))

    await run(t, place)
    go.set()
    with pytest.raises(JobLostError):
        await late[0]
    assert log == []


async def test_suspended_jobs_use_no_slot_and_no_limit(pool: Pool, t: TestScheduler) -> None:
    """10,000 of them beside a single slot, and a limit of one job at a time."""

    async def rest() -> None:
        await current_job().steps.sleep("rest", DAY)

    t.scheduler.register(rest, name="rest", limits=[Limit(max_running=1)])
    await t.scheduler.enqueue(rest)
    await t.drain()
    await pool.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, options, task_data)"
        " SELECT 'rest:' || n, job_name, execution_time, options, task_data"
        " FROM scheduled_jobs, generate_series(1, 9999) AS n"
    )
    await pool.execute(
        "INSERT INTO scheduler_steps"
        " SELECT job.job_id, name, kind, value, step.attempt, until, step.started_at"
        " FROM scheduled_jobs AS job, scheduler_steps AS step WHERE job.job_id LIKE 'rest:%'"
    )
    runtime = worker_of(t.scheduler)
    assert runtime.node.in_flight.unreported() == {}
    await t.scheduler.enqueue(rest, job_id="another")
    assert await t.drain() == 1
    waiting = "SELECT count(*) FROM scheduled_jobs WHERE status = 'pending' AND execution_time > $1"
    assert await pool.fetchval(waiting, START) == 10_001


@pytest.mark.parametrize("by", [-30 * DAY, 30 * DAY])
async def test_server_clock_that_is_set_repeats_no_step(t: TestScheduler, log: Log, by: timedelta) -> None:
    async def place() -> None:
        steps = current_job().steps
        await steps.run("a", log.note, "a")
        await steps.sleep("rest", DAY)
        await steps.run("b", log.note, "b")
        if current_job().attempt < 4:
            raise ValueError

    seen = Recorder(t.scheduler)
    await t.scheduler.enqueue(place, max_retries=3)
    await t.drain()
    await t.run_until(DAY)
    clock_of(t).now += by
    await t.run_until(31 * DAY)
    assert len(seen.of(JobCompleted)) == 1
    assert log == ["a", "b"]


# -- versions --------------------------------------------------------------------------------------------


async def test_version_stays_that_of_the_first_step_after_a_crash_and_a_deploy(
    t: TestScheduler, log: Log
) -> None:
    async def place() -> None:
        steps = current_job().steps
        log.append(steps.version)
        attempt = current_job().attempt
        if attempt == 2:
            await steps.run("a", log.note, "stored")
        if attempt < 3:
            t.scheduler.register(place, version=attempt + 1)
            t.crash()

    await t.scheduler.enqueue(place)
    await t.run_until(HOUR)
    assert log == [1, 2, "stored", 2]


@pytest.mark.parametrize("has_early_signal", [False, True])
async def test_version_is_that_of_now_after_a_retry_from_the_first_step(
    t: TestScheduler, log: Log, has_early_signal: bool
) -> None:
    """A signal that came before the first step, or for a later one, is no step of the former version."""

    async def place() -> None:
        steps = current_job().steps
        log.append(steps.version)
        await steps.run("a", log.note, "a")
        await steps.run("b", log.note, "b")
        await steps.wait("go")

    t.scheduler.register(place, name="place")
    await t.scheduler.enqueue("place", job_id="job")
    if has_early_signal:
        await t.scheduler.signal("job", "go")
        await t.scheduler.signal("job", "other")
    await t.drain()
    await t.scheduler.signal("job", "go")
    await t.drain()
    t.scheduler.register(place, name="place", version=2)
    for step, version in (("b", 1), ("a", 2), ("b", 2)):
        log.clear()
        assert await t.scheduler.retry_job("job", from_step=step)
        await t.drain()
        assert log == ([version, "a", "b"] if step == "a" else [version, "b"])


async def test_version_stays_after_a_retry_from_a_step_behind_a_wait(t: TestScheduler, log: Log) -> None:
    async def place() -> None:
        steps = current_job().steps
        log.append(steps.version)
        await steps.wait("go")
        await steps.run("a", log.note, "a")

    t.scheduler.register(place, name="place")
    await t.scheduler.enqueue("place", job_id="job")
    await t.drain()
    await t.scheduler.signal("job", "go")
    await t.drain()
    t.scheduler.register(place, name="place", version=2)
    assert await t.scheduler.retry_job("job", from_step="a")
    await t.drain()
    assert log == [1, 1, "a", 1, "a"]


@pytest.mark.parametrize(("version", "error"), [(0, ValueError), ("2", TypeError), (True, TypeError)])
def test_invalid_version_is_refused(version: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="version must be"):

        @job(version=version)
        async def place() -> None: ...


# -- crashes, shutdown, replacement, deletion ------------------------------------------------------------


async def test_attempt_that_lost_its_job_stores_nothing(t: TestScheduler, pool: Pool, log: Log) -> None:
    """Its worker stands still within a step, while another one finishes the job."""

    async def stand_still() -> int:
        await pool.execute(
            "UPDATE scheduled_jobs SET status = 'completed', attempt = 2, worker_id = 'other',"
            " finished_at = now(), lease_until = NULL"
        )
        return 1

    async def place() -> None:
        steps = current_job().steps
        await steps.run("a", log.note, 1)
        with pytest.raises(TimeoutError):
            await steps.wait("w", timeout=0)
        for refused in (steps.run("b", stand_still), steps.sleep("c", 1), steps.wait("w", timeout=1)):
            with pytest.raises(JobLostError, match="does not hold job"):
                await refused
            log.append("refused")

    await t.scheduler.enqueue(place)
    await t.drain()
    assert log == [1, "refused", "refused", "refused"]
    rows = await pool.fetch("SELECT name, timeouts FROM scheduler_steps ORDER BY name")
    assert [tuple(row) for row in rows] == [("a", None), ("w", None)]
    assert await pool.fetchval("SELECT worker_id FROM scheduled_jobs") == "other"


async def test_replaced_job_reads_no_step_of_the_one_before(t: TestScheduler, log: Log) -> None:
    async def place() -> None:
        await current_job().steps.run("a", log.note, "a")
        await current_job().steps.sleep("rest", DAY)

    for _ in range(2):
        await t.scheduler.enqueue(place, job_id="one", conflict_resolution=ConflictResolution.REPLACE)
        await t.drain()
        assert (await ended(t, "one"))[0] is JobStatus.PENDING
    assert log == ["a", "a"]


async def test_retried_job_reads_no_step_of_the_job_that_it_replaced(t: TestScheduler, log: Log) -> None:
    async def place(number: int) -> None:
        steps = current_job().steps
        if number == 1:
            await steps.run("a", log.note, "former")
            await steps.sleep("rest", DAY)
        await steps.run("b", log.note, "b")
        if current_job().attempt == 2:
            raise ValueError
        await steps.run("a", log.note, "a")

    for number in (1, 2):
        replace = ConflictResolution.REPLACE
        options: dict[str, Any] = {"job_id": "one", "conflict_resolution": replace, "max_retries": 1}
        await t.scheduler.enqueue(place, args=(number,), **options)
        await t.run_until(HOUR)
    assert log == ["former", "b", "a"]


async def test_job_that_is_replaced_while_it_runs_leaves_no_step_to_the_new_one(
    t: TestScheduler, log: Log
) -> None:
    async def place(number: int) -> None:
        steps = current_job().steps
        await steps.run("a", log.note, number)
        if number == 1:
            again = ConflictResolution.REPLACE
            await current_job().scheduler.enqueue(place, args=(2,), job_id="one", conflict_resolution=again)
        await steps.sleep("rest", DAY)

    await t.scheduler.enqueue(place, args=(1,), job_id="one")
    await t.drain()
    assert log == [1, 2]


@pytest.mark.parametrize("how", ["by hand", "vacuum"])
async def test_job_of_a_deleted_id_reads_no_step_of_the_one_before(
    t: TestScheduler, pool: Pool, log: Log, how: str
) -> None:
    async def place() -> None:
        await current_job().steps.run("a", log.note, "a")

    for _ in range(2):
        await t.scheduler.enqueue(place, job_id="one")
        await t.drain()
        if how == "by hand":
            await pool.execute("DELETE FROM scheduled_jobs")
        else:
            await t.run_until(40 * DAY)
            assert await pool.fetch("SELECT FROM scheduler_steps") == []
    assert log == ["a", "a"]


async def test_steps_of_a_job_that_is_deleted_at_once_go_with_its_row(pool: Pool, log: Log) -> None:
    async def place() -> None:
        await current_job().steps.run("a", log.note, "a")
        if len(log) == 1:
            log.append("failed")
            raise ValueError

    config = VacuumConfig(completed=VacuumPolicy.immediate())
    async with TestScheduler(pool, now=START, vacuum_config=config) as t:
        await t.scheduler.enqueue(place, max_retries=1)
        await t.run_until(HOUR / 2)  # the vacuum would delete them after an hour
        assert await pool.fetch("SELECT FROM scheduled_jobs") == []
        assert await pool.fetch("SELECT FROM scheduler_steps") == []


async def signal_itself(t: TestScheduler) -> None:
    assert await t.scheduler.signal("job", "go")


async def store_a_step(t: TestScheduler) -> None:
    async with t.pool.acquire() as connection, connection.transaction():
        await current_job().steps.transaction("a", reserve, 1, connection=connection)


async def save_a_cursor(t: TestScheduler) -> None:
    steps = current_job().steps
    async with t.pool.acquire() as connection, connection.transaction(), steps.cursor("a") as cursor:
        await cursor.save(1, connection=connection)


@pytest.mark.usefixtures("stock")
@pytest.mark.parametrize("mark", [signal_itself, store_a_step, save_a_cursor])
async def test_steps_that_the_worker_does_not_know_go_with_a_row_that_is_deleted_at_once(
    pool: Pool, mark: Callable[[TestScheduler], Awaitable[None]]
) -> None:
    config = VacuumConfig(completed=VacuumPolicy.immediate())
    async with TestScheduler(pool, now=START, vacuum_config=config) as t:

        async def place() -> None:
            await mark(t)

        await t.scheduler.enqueue(place, job_id="job")
        await t.run_until(DAY)
        assert await pool.fetch("SELECT FROM scheduled_jobs") == []
        assert await pool.fetch("SELECT FROM scheduler_steps") == []


async def test_steps_of_a_job_that_completes_itself_go_with_its_row(pool: Pool, log: Log) -> None:
    async def place() -> None:
        me = current_job()
        await me.steps.run("a", log.note, "a")
        await me.steps.sleep("rest", HOUR)
        async with me.completing() as connection:
            await me.steps.transaction("b", note_on, connection=connection)

    async def note_on(connection: Any) -> None:
        log.append(await connection.fetchval("SELECT 'b'"))

    config = VacuumConfig(completed=VacuumPolicy.immediate())
    async with TestScheduler(pool, now=START, vacuum_config=config) as t:
        job_id = await t.scheduler.enqueue(place)
        await t.run_until(HOUR)
        found = await t.scheduler.get_job(job_id)
        assert found is not None
        assert found.status is JobStatus.COMPLETED
        assert log == ["a", "b"]
        await t.scheduler.run_vacuum()
        assert await pool.fetch("SELECT FROM scheduled_jobs") == []
        assert await pool.fetch("SELECT FROM scheduler_steps") == []


async def test_sleep_in_a_block_of_completing_rolls_it_back_until_the_end_of_the_sleep(
    t: TestScheduler, pool: Pool, log: Log
) -> None:
    await pool.execute("CREATE TABLE effects (attempt integer)")

    async def place() -> None:
        me = current_job()
        async with me.completing() as connection:
            await connection.execute("INSERT INTO effects VALUES ($1)", me.attempt)
            await me.steps.sleep("rest", DAY)
            log.append("ends")

    await t.scheduler.enqueue(place)
    await t.drain()
    assert await pool.fetch("SELECT FROM effects") == []
    await t.run_until(2 * DAY)
    assert [row["attempt"] for row in await pool.fetch("SELECT attempt FROM effects")] == [2]
    assert log == ["ends"]


async def test_shutdown_keeps_the_steps_of_the_attempt_that_it_interrupts(pool: Pool, log: Log) -> None:
    began = asyncio.Event()

    async def place() -> None:
        steps = current_job().steps
        await steps.run("a", log.note, "a")
        if current_job().attempt == 1:
            began.set()
            await asyncio.Event().wait()

    async with Scheduler(pool, shutdown_timeout=0.05) as first:
        seen = Recorder(first)
        await first.enqueue(place)
        await began.wait()
    assert len(seen.of(JobReleased)) == 1
    async with Scheduler(pool) as second:
        second.register(place)
        await Recorder(second).until(JobCompleted)
    assert log == ["a"]


async def test_cancelled_job_that_sleeps_ends_at_once_and_runs_no_code(t: TestScheduler, log: Log) -> None:
    async def place() -> None:
        log.append("run")
        await current_job().steps.sleep("rest", DAY)

    job_id = await t.scheduler.enqueue(place)
    await t.drain()
    assert await t.scheduler.cancel_job(job_id)
    await t.run_until(2 * DAY)
    assert log == ["run"]
    assert (await ended(t, job_id))[0] is JobStatus.CANCELLED


# -- where there are none --------------------------------------------------------------------------------


def test_context_of_a_test_has_no_steps() -> None:
    with job_context() as context, pytest.raises(NotRunningError, match="has no durable steps"):
        _ = context.steps


async def statements_of(t: TestScheduler, sent: Statements, func: Callable[..., Awaitable[Any]]) -> Sent:
    """Run a job until it ends or is suspended, and return what was sent for that."""
    await t.scheduler.enqueue(func)
    await sent.take()
    await t.drain()
    return await sent.take()


async def test_job_sends_a_statement_for_each_step_and_one_more_in_an_attempt_that_continues(
    dsn: str, log: Log
) -> None:
    async def bare() -> None: ...

    async def plain() -> None:
        assert current_job().steps.version == 1

    async def place() -> None:
        steps = current_job().steps
        for name in "abc":
            await steps.run(name, log.note, name)
        await steps.sleep("rest", DAY)
        await steps.run("d", log.note, "d")

    sent = Statements()
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=5, init=sent.listen) as pool,
        TestScheduler(pool, now=START) as t,
    ):
        await statements_of(t, sent, bare)  # the first job of a worker
        without = await statements_of(t, sent, bare)
        assert (await statements_of(t, sent, plain)).named == without.named
        assert await pool.fetchval("SELECT max(options ->> 'steps') FROM scheduled_jobs") is None
        await sent.take()
        first = await statements_of(t, sent, place)
        await t.run_until(DAY)
        second = await sent.take()
    steps = ("load_steps", "store_step", "end_step")
    assert [first.named[name] for name in steps] == [0, 4, 0]
    assert [second.named[name] for name in steps] == [1, 1, 1]


# -- transaction() ---------------------------------------------------------------------------------------


@pytest.fixture
async def stock(pool: Pool) -> None:
    await pool.execute("CREATE TABLE stock (item integer)")


async def items(pool: Pool) -> list[int]:
    return [row["item"] for row in await pool.fetch("SELECT item FROM stock ORDER BY item")]


async def reserve(connection: Any, item: int) -> int:
    await connection.execute("INSERT INTO stock VALUES ($1)", item)
    return item


@pytest.mark.usefixtures("stock")
async def test_transaction_commits_the_writes_of_its_function_with_the_step(t: TestScheduler) -> None:
    async def place() -> list[int]:
        steps = current_job().steps
        found = [await steps.transaction("a", reserve, 1), await steps.transaction("b", reserve, item=2)]
        if current_job().attempt == 1:
            raise ValueError
        return found

    assert await run(t, place, max_retries=1) == [1, 2]
    assert await items(t.pool) == [1, 2]


@pytest.mark.usefixtures("stock")
@pytest.mark.parametrize("error", [ValueError, PayloadError])
async def test_transaction_that_stores_no_step_writes_nothing(
    t: TestScheduler, error: type[Exception]
) -> None:
    async def spoil(connection: asyncpg.Connection) -> Any:
        await reserve(connection, 1)
        if error is ValueError:
            raise ValueError
        return object()  # which JSON cannot represent

    async def place() -> None:
        with pytest.raises(error):
            await current_job().steps.transaction("a", spoil)

    await run(t, place)
    assert await t.pool.fetch("SELECT FROM stock") == []
    assert await t.pool.fetch("SELECT FROM scheduler_steps") == []


@pytest.mark.usefixtures("stock")
async def test_transaction_of_an_attempt_that_lost_its_job_is_rolled_back(t: TestScheduler) -> None:
    async def lose(connection: asyncpg.Connection) -> None:
        await reserve(connection, 1)
        await t.pool.execute("UPDATE scheduled_jobs SET attempt = 2")

    async def place() -> None:
        with pytest.raises(JobLostError):
            await current_job().steps.transaction("a", lose)

    await t.scheduler.enqueue(place)
    await t.drain()
    assert await t.pool.fetch("SELECT FROM stock") == []


@pytest.mark.usefixtures("stock")
@pytest.mark.parametrize("is_committed", [True, False])
async def test_step_in_the_transaction_of_the_caller_commits_or_rolls_back_with_it(
    t: TestScheduler, is_committed: bool
) -> None:
    async def place() -> None:
        steps, attempt = current_job().steps, current_job().attempt
        async with t.pool.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            await steps.transaction("a", reserve, attempt, connection=connection)
            await (transaction.commit() if is_committed or attempt == 2 else transaction.rollback())
        if attempt == 1:
            raise ValueError

    await run(t, place, max_retries=1)
    expected = 1 if is_committed else 2
    assert await items(t.pool) == [expected]


@pytest.mark.usefixtures("stock")
@pytest.mark.parametrize("kind", ["run", "transaction", "save", "sleep", "wait", "child", "cursor"])
async def test_step_that_would_wait_for_the_transaction_of_its_caller_raises_at_once(
    t: TestScheduler, pool: Pool, log: Log, kind: str
) -> None:
    async def write(connection: Connection) -> None: ...

    async def use(kind: str) -> None:
        steps = current_job().steps
        match kind:
            case "run":
                await steps.run("b", log.note, "b")
            case "transaction":
                await steps.transaction("b", write)
            case "sleep":
                await steps.sleep("b", 0)
            case "wait":
                await steps.wait("b", timeout=0)
            case "child":
                await steps.child("b", call(log.note, "child"))
            case "save" | "cursor":
                async with steps.cursor("b") as cursor:
                    await cursor.save(1)

    async def place() -> None:
        steps = current_job().steps
        async with pool.acquire() as connection, connection.transaction():
            if kind == "save":
                async with steps.cursor("a") as cursor:
                    await cursor.save(1, connection=connection)
            else:
                await steps.transaction("a", write, connection=connection)
            if current_job().attempt == 1:  # the one after the child finds step 'a' stored
                for _ in range(2):
                    with pytest.raises(RuntimeError, match=r"step 'b' .* would wait .* step 'a' commits"):
                        await use(kind)
            await steps.transaction("c", write, connection=connection)
        with suppress(TimeoutError):
            await use(kind)

    await run(t, place)
    assert len(log) <= 1, "its function was not called before"


async def await_in_group(step: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0))
        group.create_task(step)


async def await_in_wait(step: Coroutine[Any, Any, None]) -> None:
    (done, _) = await asyncio.wait([asyncio.create_task(step)])
    await done.pop()


@pytest.mark.parametrize(
    "await_step",
    [
        asyncio.create_task,
        lambda step: asyncio.gather(asyncio.sleep(0), step),
        lambda step: asyncio.gather(asyncio.gather(step)),
        lambda step: asyncio.wait_for(step, PATIENCE),
        lambda step: asyncio.create_task(await_in_group(step)),
        await_in_group,
        await_in_wait,
    ],
)
async def test_step_that_the_caller_of_a_transaction_awaits_through_tasks_raises_at_once(
    t: TestScheduler, pool: Pool, log: Log, await_step: Callable[[Any], Awaitable[Any]]
) -> None:
    async def write(connection: Connection) -> None: ...

    async def place() -> None:
        steps = current_job().steps
        async with pool.acquire() as connection, connection.transaction():
            await steps.transaction("a", write, connection=connection)
            try:
                async with asyncio.timeout(PATIENCE):
                    await await_step(steps.run("b", log.note, "b"))
            except (RuntimeError, ExceptionGroup) as error:
                (leaf,) = leaves_of(error)
                log.append(str(leaf))

    await run(t, place)
    (message,) = log
    assert re.search("step 'b' .* would wait .* step 'a' commits", message)


async def test_step_of_another_task_waits_for_the_transaction_of_a_step(
    t: TestScheduler, pool: Pool, log: Log
) -> None:
    async def write(connection: Connection) -> None: ...

    async def place() -> None:
        steps = current_job().steps
        async with pool.acquire() as connection, connection.transaction():
            await steps.transaction("a", write, connection=connection)
            beside = asyncio.create_task(steps.run("b", log.note, "b"))
            await until_a_lock_is_awaited(pool)
        await beside

    await run(t, place)
    assert log == ["b"]


async def test_step_that_the_caller_rolls_back_does_not_begin_the_retries_again(t: TestScheduler) -> None:
    async def place() -> None:
        async with t.pool.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            await current_job().steps.transaction("a", reserve, 1, connection=connection)
            await transaction.rollback()
        raise ValueError

    job_id = await t.scheduler.enqueue(place, max_retries=2)
    await t.run_until(DAY)
    found = await t.scheduler.get_job(job_id)
    assert found
    assert (found.status, found.attempt) == (JobStatus.FAILED, 3)


@pytest.mark.parametrize("rolls_back", ["transaction", "savepoint", "other"])
async def test_step_that_the_caller_rolled_back_may_be_repeated_within_its_attempt(
    t: TestScheduler, pool: Pool, log: Log, rolls_back: str
) -> None:
    async def write(connection: Connection, what: str) -> None:
        log.append(what)

    async def place() -> None:
        steps = current_job().steps
        async with pool.acquire() as connection, pool.acquire() as other:
            async with connection.transaction():
                savepoint = connection.transaction()
                await savepoint.start()
                await steps.transaction("a", write, "rolled back", connection=connection)
                with pytest.raises(DuplicateStepError, match="occurs twice"):
                    await steps.transaction("a", write, "twice", connection=connection)
                await savepoint.rollback()
                if rolls_back == "savepoint":
                    await steps.transaction("a", write, "repeated", connection=connection)
            if rolls_back != "savepoint":
                next_connection = other if rolls_back == "other" else connection
                async with next_connection.transaction():
                    await steps.transaction("a", write, "repeated", connection=next_connection)
            with pytest.raises(DuplicateStepError, match="occurs twice"):
                await steps.run("a", log.note, "twice")

    await run(t, place)
    assert log == ["rolled back", "repeated"]


async def test_step_found_stored_in_a_transaction_that_was_rolled_back_may_be_repeated_within_its_attempt(
    t: TestScheduler, pool: Pool, log: Log
) -> None:
    """The caller repeats its whole transaction, as after a deadlock."""

    async def write(connection: Connection) -> int:
        log.append("written")
        return 7

    async def place() -> list[int]:
        steps, values = current_job().steps, list[int]()
        async with pool.acquire() as connection:
            for is_repeated in (False, True):
                transaction = connection.transaction()
                await transaction.start()
                values.append(await steps.transaction("a", write, connection=connection))
                with pytest.raises(DuplicateStepError, match="occurs twice"):
                    await steps.transaction("a", write, connection=connection)
                if current_job().attempt == 1 or is_repeated:
                    await transaction.commit()
                    break
                await transaction.rollback()
            async with connection.transaction():
                with pytest.raises(DuplicateStepError, match="occurs twice"):
                    await steps.transaction("a", write, connection=connection)
        if current_job().attempt == 1:
            raise ValueError
        return values

    assert await run(t, place, max_retries=1) == [7, 7]
    assert log == ["written"]


async def test_steps_in_transactions_of_the_caller_count_within_their_attempt(
    t: TestScheduler, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, steps_of_job=3)

    async def write(connection: Connection) -> None: ...

    async def place() -> int:
        steps = current_job().steps
        async with pool.acquire() as connection:
            for name in ("rolled back", "a", "b", "c"):
                transaction = connection.transaction()
                await transaction.start()
                await steps.transaction(name, write, connection=connection)
                await (transaction.rollback() if name == "rolled back" else transaction.commit())
            async with connection.transaction():
                with pytest.raises(PayloadError, match="is number 4 of job 'job', more than 3"):
                    await steps.transaction("d", write, connection=connection)
        with pytest.raises(PayloadError, match="is number 4 of job 'job', more than 3"):
            await steps.sleep("d", 1)
        return 7

    assert await run(t, place, job_id="job") == 7


@pytest.mark.parametrize(
    ("bound", "error"),
    [
        (("MAX_STEPS", 2), "is number 3 of job 'job', more than 2"),
        (("MAX_STEP_BYTES", 20), "have 21 bytes of JSON, more than 20"),
    ],
)
async def test_cursors_in_transactions_of_the_caller_count_within_their_attempt(
    t: TestScheduler, log: Log, monkeypatch: pytest.MonkeyPatch, bound: tuple[str, int], error: str
) -> None:
    monkeypatch.setattr(loaded, *bound)

    async def place() -> int:
        steps = current_job().steps
        async with t.pool.acquire() as connection:
            for name in ("rolled back", "a", "b"):
                async with steps.cursor(name, start="") as cursor:
                    transaction = connection.transaction()
                    await transaction.start()
                    for value in ("1234", "123456"):
                        await cursor.save(value, connection=connection)
                    await (transaction.rollback() if name == "rolled back" else transaction.commit())
        with pytest.raises(PayloadError, match=error):
            await steps.run("c", log.note, "ccc")
        return 7

    assert await run(t, place, job_id="job") == 7


async def test_connection_that_cannot_store_a_step_is_refused(t: TestScheduler) -> None:
    async def place() -> None:
        steps = current_job().steps
        async with t.pool.acquire() as connection:
            with pytest.raises(ValueError, match="not in a transaction"):
                await steps.transaction("a", reserve, 1, connection=connection)
            async with connection.transaction(isolation="repeatable_read"):
                with pytest.raises(ValueError, match="REPEATABLE READ"):
                    await steps.transaction("a", reserve, 1, connection=connection)
        with pytest.raises(TypeError):
            await steps.transaction("a", reserve, 1, connection=object())

    await run(t, place)


@pytest.mark.usefixtures("stock")
async def test_transaction_whose_commit_lost_its_answer_is_not_repeated(t: TestScheduler) -> None:
    """Another connection commits the step while the function runs, as a commit without an answer may."""

    async def again(connection: asyncpg.Connection) -> None:
        await t.pool.execute(
            "INSERT INTO scheduler_steps"
            " SELECT job_id, 'a', 'step', '7', 1, NULL, now(), now() FROM scheduled_jobs"
        )
        await t.pool.execute("""UPDATE scheduled_jobs SET options = options || '{"steps": 1}'""")
        await reserve(connection, 1)

    async def place() -> int:
        steps = current_job().steps
        if current_job().attempt == 1:
            with pytest.raises(DuplicateStepError, match="was stored meanwhile, so the"):
                await steps.transaction("a", again)
            raise ValueError
        return await steps.transaction("a", reserve, 1)

    assert await run(t, place, max_retries=1) == 7
    assert await t.pool.fetch("SELECT FROM stock") == []


# -- cursor() --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "shipped"),
    [("ship-2", [0, 1, 2, 3, 2, 3]), ("lines", [0, 1, 2, 3, 1, 2, 3]), ("bill", [0, 1, 2, 3])],
)
@pytest.mark.parametrize("set_back_at", [None, 1, 2, 3, 4])
async def test_loop_runs_again_if_the_retry_names_a_step_before_its_last_value(
    t: TestScheduler, log: Log, step: str, shipped: list[int], set_back_at: int | None
) -> None:
    """The cursor was first stored after the first line, and last before the bill."""

    async def place() -> None:
        steps = current_job().steps
        async with steps.cursor("lines", start=0) as cursor:
            for line in range(cursor.value, 4):
                await steps.run(f"ship-{line}", log.note, line)
                t.advance(HOUR)
                await cursor.save(line + 1)
                t.advance(HOUR)
                if set_back_at == line + 1:
                    clock_of(t).now -= DAY
        await steps.run("bill", log.note, "bill")

    await t.scheduler.enqueue(place, job_id="job")
    await t.drain()
    log.remove("bill")
    assert await t.scheduler.retry_job("job", from_step=step)
    await t.drain()
    assert log == [*shipped, "bill"]


async def test_cursor_that_is_saved_after_the_clock_was_set_back_keeps_its_place(
    t: TestScheduler, log: Log
) -> None:
    """The value after the first line is the first one, and that after the second the next write of all."""

    async def place() -> None:
        steps = current_job().steps
        async with steps.cursor("lines", start=0) as cursor:
            for line in range(cursor.value, 2):
                await cursor.save(line + 1)
                await steps.run(f"ship-{line}", log.note, line)
                await steps.run(f"bill-{line}", log.note, line)
                clock_of(t).now -= DAY

    await t.scheduler.enqueue(place, job_id="job")
    await t.drain()
    assert await t.scheduler.retry_job("job", from_step="lines")
    await t.drain()
    assert log == [0, 0, 1, 1, 0, 0, 1, 1]


async def test_retry_from_a_step_keeps_a_cursor_after_the_clock_was_set_back_during_its_loop(
    t: TestScheduler, log: Log
) -> None:
    """Only the clock of the last value was ahead, and no step comes before the job is suspended."""

    async def place() -> None:
        steps = current_job().steps
        async with steps.cursor("lines", start=0) as cursor:
            for line in range(cursor.value, 3):
                log.append(line)
                await cursor.save(line + 1)
                t.advance(DAY)
        clock_of(t).now = START + HOUR
        await steps.sleep("rest", 60)
        await steps.run("bill", log.note, "bill")

    await t.scheduler.enqueue(place, job_id="job")
    await t.run_until(2 * HOUR)
    assert log == [0, 1, 2, "bill"]
    assert await t.scheduler.retry_job("job", from_step="rest")
    await t.run_until(2 * HOUR)
    assert log == [0, 1, 2, "bill", "bill"]


async def test_cursor_continues_where_the_attempt_before_ended(t: TestScheduler, log: Log) -> None:
    async def ship() -> None:
        async with current_job().steps.cursor("lines", start=0) as cursor:
            for line in range(cursor.value, 6):
                if (line, current_job().attempt) in {(2, 1), (4, 2)}:
                    raise ValueError
                log.append(line)
                await cursor.set(line + 1)
                assert cursor.value == line + 1

    await run(t, ship, max_retries=1)
    assert log == [0, 1, 2, 3, 4, 5], "each new value begins the retries again"


async def test_cursor_is_written_at_most_once_a_second_and_at_the_end(
    t: TestScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str | None] = []

    async def read() -> str | None:
        return await t.pool.fetchval("SELECT value FROM scheduler_steps")  # type: ignore[no-any-return]

    async def ship() -> None:
        async with current_job().steps.cursor("lines") as cursor:
            assert cursor.value is None
            for line in range(3):
                await cursor.set(line)
            written.append(await read())
            monkeypatch.setattr(attempt, "CURSOR_GAP_S", -1.0)
            await cursor.save()
            written.append(await read())
            await cursor.set("next")
            written.append(await read())
        written.append(await read())

    await run(t, ship)
    assert written == [None, "2", '"next"', '"next"']


async def ship_lines(log: Log) -> AsyncGenerator[int, None]:
    """Yield the lines after the cursor, and store how many of them the caller has dealt with."""
    async with current_job().steps.cursor("lines", start=0) as cursor:
        for line in range(cursor.value, 6):
            log.append(line)
            await cursor.set(line + 1)
            yield line


@pytest.mark.parametrize("way", ["aclosing", "dropped", "raised within", "closed by a task", "exit stack"])
async def test_cursor_of_a_generator_that_is_left_early_is_written(
    t: TestScheduler, log: Log, way: str
) -> None:
    async def ship() -> None:
        lines = ship_lines(log)
        match way:
            case "aclosing":
                async with aclosing(lines):
                    await anext(lines)
                    await anext(lines)
            case "dropped":
                async for line in lines:
                    if line % 2:
                        break
                del lines
                gc.collect()
                async with asyncio.timeout(PATIENCE):
                    while not await t.pool.fetchval("SELECT count(*) FROM scheduler_steps"):
                        pass
            case "raised within":
                await anext(lines)
                await anext(lines)
                with pytest.raises(GeneratorExit):
                    await lines.athrow(GeneratorExit)
            case "closed by a task":
                await anext(lines)
                await anext(lines)
                await asyncio.create_task(lines.aclose())
            case "exit stack":
                async with AsyncExitStack() as stack:
                    stack.push_async_callback(lines.aclose)
                    await anext(lines)
                    await anext(lines)
        if current_job().attempt == 1:
            async with aclosing(ship_lines(log)) as again:
                assert await anext(again) == 2, "the block may be entered again"
            raise ValueError

    await run(t, ship, max_retries=1)
    assert log[:3] == [0, 1, 2]
    assert log[3] == 3


async def store_nothing() -> None: ...


async def test_cursor_of_a_coroutine_that_python_closes_does_not_wait(t: TestScheduler) -> None:
    async def wait() -> None:
        async with current_job().steps.cursor("lines", start=0) as cursor:
            await cursor.set(1)
            await asyncio.Event().wait()

    async def ship() -> None:
        await current_job().steps.run("loaded", store_nothing)
        coroutine = wait()
        coroutine.send(None)
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[None] = loop.create_future()

        def close() -> None:
            try:
                coroutine.close()
            except RuntimeError as error:
                closed.set_exception(error)
            else:
                closed.set_result(None)

        loop.call_soon(close)  # a callback is outside of any task, as the end of the event loop is
        await closed

    await run(t, ship)


@pytest.mark.parametrize("way", ["coroutine", "generator", "task"])
async def test_cursor_of_code_that_python_closes_within_a_task_is_written(
    t: TestScheduler, log: Log, way: str
) -> None:
    async def ship_and_wait(reached: asyncio.Event) -> None:
        # The event refers to the task that waits for it, so only the garbage collector destroys the two.
        event = asyncio.Event()
        vars(event)["task"] = asyncio.current_task()
        lines = ship_lines(log)
        if way == "generator":
            async with aclosing(lines):
                await anext(lines)
                await event.wait()
        async with current_job().steps.cursor("lines", start=0) as cursor:
            await cursor.set(1)
            reached.set()
            await event.wait()

    async def ship() -> int:
        steps = current_job().steps
        await steps.run("loaded", store_nothing)
        if current_job().attempt == 1:
            reached = asyncio.Event()
            coroutine = ship_and_wait(reached)
            if way == "task":
                asyncio.create_task(coroutine)  # noqa: RUF006 - it is to be destroyed
                await reached.wait()
                del coroutine
                gc.collect()
            else:
                coroutine.send(None)
                coroutine.close()
        await steps.sleep("pause", DAY)
        assert current_job().attempt == 2, "the attempt was suspended"
        async with steps.cursor("lines", start=0) as cursor:
            value: int = cursor.value
        return value

    assert await run(t, ship) == 1


async def test_cursor_refuses_values_after_its_block_which_nothing_would_write(
    t: TestScheduler, pool: Pool
) -> None:
    async def ship() -> None:
        async with current_job().steps.cursor("lines", start=0) as cursor:
            await cursor.set(7)
        for change in (cursor.set, cursor.save):
            with pytest.raises(
                RuntimeError, match="the block of cursor 'lines' has ended; set its value within"
            ):
                await change(8)
        assert cursor.value == 7
        assert await pool.fetchval("SELECT value FROM scheduler_steps") == "7"

    await run(t, ship)


async def test_cursor_without_a_new_value_writes_nothing(t: TestScheduler, pool: Pool) -> None:
    async def ship() -> None:
        async with current_job().steps.cursor("lines", start=[1]) as cursor:
            await cursor.set((1,))
            await cursor.save()
        raise ValueError

    job_id = await t.scheduler.enqueue(ship, max_retries=1)
    await t.run_until(DAY)
    assert (await ended(t, job_id))[0] is JobStatus.FAILED
    assert await pool.fetch("SELECT FROM scheduler_steps") == []


async def test_cursor_commits_with_the_transaction_of_the_caller(t: TestScheduler, pool: Pool) -> None:
    async def ship() -> int:
        async with current_job().steps.cursor("lines", start=0) as cursor:
            async with pool.acquire() as connection:
                if current_job().attempt == 1:
                    async with connection.transaction():
                        await cursor.save(1, connection=connection)
                    transaction = connection.transaction()
                    await transaction.start()
                    await cursor.save(2, connection=connection)
                    await transaction.rollback()
                    raise ValueError
            return cursor.value  # type: ignore[no-any-return]

    assert await run(t, ship, max_retries=1) == 1


async def test_cursor_that_could_not_be_saved_in_a_transaction_keeps_its_value(
    t: TestScheduler, pool: Pool
) -> None:
    """The effect is rolled back, so the next attempt must repeat it."""

    async def ship() -> int:
        async with current_job().steps.cursor("lines", start=0) as cursor:
            if current_job().attempt == 1:
                async with pool.acquire() as connection, connection.transaction():
                    await connection.execute("SET LOCAL transaction_read_only = on")
                    await cursor.save(1, connection=connection)
        return cursor.value  # type: ignore[no-any-return]

    assert await run(t, ship, max_retries=1) == 0


async def test_cursor_keeps_what_was_set_before_a_transaction_that_was_rolled_back(
    t: TestScheduler, pool: Pool
) -> None:
    async def ship() -> int:
        async with current_job().steps.cursor("lines", start=0) as cursor:
            if current_job().attempt == 1:
                await cursor.set(1)
                async with pool.acquire() as connection, connection.transaction():
                    await cursor.save(2, connection=connection)
                    # This value belongs to the transaction. To store it, another session would wait for it.
                    await cursor.set(3)
                    await cursor.save(4, connection=connection)
                    raise ValueError
        return cursor.value  # type: ignore[no-any-return]

    assert await run(t, ship, max_retries=1) == 1


@pytest.mark.parametrize("is_given", [False, True], ids=["at once", "with a transaction"])
async def test_cursor_is_saved_again_after_its_transaction_was_rolled_back(
    t: TestScheduler, pool: Pool, is_given: bool
) -> None:
    async def ship() -> int:
        async with current_job().steps.cursor("lines", start=0) as cursor:
            if current_job().attempt == 1:
                async with pool.acquire() as connection:
                    transaction = connection.transaction()
                    await transaction.start()
                    await cursor.save(1, connection=connection)
                    await transaction.rollback()
                    async with connection.transaction():
                        await cursor.save(1, connection=connection if is_given else None)
                raise ValueError
        return cursor.value  # type: ignore[no-any-return]

    assert await run(t, ship, max_retries=1) == 1


@pytest.mark.parametrize("fails_before", [False, True], ids=["after the write", "before it"])
async def test_cursor_that_the_caller_rolled_back_may_be_entered_again_within_its_attempt(
    t: TestScheduler, pool: Pool, fails_before: bool
) -> None:
    """It has the value that is committed, so the caller repeats what it rolled back."""
    errors: list[int] = []

    async def ship() -> list[int]:
        steps, lines = current_job().steps, list[int]()
        async with pool.acquire() as connection:
            while len(lines) < 2:
                with suppress(KeyError):
                    async with steps.cursor("lines", start=0) as cursor:
                        for line in range(cursor.value, 2):
                            async with connection.transaction():
                                if not fails_before:
                                    await cursor.save(line + 1, connection=connection)
                                if len(errors) == line:
                                    errors.append(line)
                                    raise KeyError
                                if fails_before:
                                    await cursor.save(line + 1, connection=connection)
                            lines.append(line)
            with pytest.raises(DuplicateStepError, match="occurs twice"):
                async with steps.cursor("lines"):
                    pass
        return lines

    assert await run(t, ship) == [0, 1]


async def test_cursor_of_an_interrupted_attempt_is_written(pool: Pool, log: Log) -> None:
    began = asyncio.Event()

    async def ship() -> None:
        async with current_job().steps.cursor("lines", start=0) as cursor:
            log.append(cursor.value)
            await cursor.set(5)
            if current_job().attempt == 1:
                began.set()
                await asyncio.Event().wait()

    async with Scheduler(pool, shutdown_timeout=0.05) as first:
        await first.enqueue(ship)
        await began.wait()
    async with Scheduler(pool) as second:
        second.register(ship)
        await Recorder(second).until(JobCompleted)
    assert log == [0, 5]


async def test_error_of_the_block_of_a_cursor_is_not_hidden_by_that_of_its_write(
    t: TestScheduler, pool: Pool
) -> None:
    async def loop() -> None:
        async with current_job().steps.cursor("lines", start=0) as cursor:
            await cursor.set(1)
            await pool.execute("UPDATE scheduled_jobs SET attempt = 2")
            raise ZeroDivisionError

    async def ship() -> None:
        with pytest.raises(ZeroDivisionError):
            await loop()

    await t.scheduler.enqueue(ship)
    await t.drain()


async def test_value_of_a_cursor_that_cannot_be_stored_is_a_payload_error(t: TestScheduler) -> None:
    async def ship() -> None:
        async with current_job().steps.cursor("lines", start=0) as cursor:
            for value in (object(), "x" * 1000):
                with pytest.raises(PayloadError, match="step 'lines': the value"):
                    await cursor.set(value)
            assert cursor.value == 0
        with pytest.raises(PayloadError):
            async with current_job().steps.cursor("other", start=object()):
                pass

    await run(t, ship)


async def test_sleep_within_the_block_of_a_cursor_keeps_its_value(t: TestScheduler, log: Log) -> None:
    async def ship() -> None:
        async with current_job().steps.cursor("lines", start=0) as cursor:
            for line in range(cursor.value, 3):
                log.append(line)
                await cursor.set(line + 1)
                await current_job().steps.sleep(f"rest-{line}", HOUR)

    await run(t, ship)
    assert log == [0, 1, 2]


# -- outages, crashes and codecs -------------------------------------------------------------------------


@pytest.mark.slow
async def test_step_before_an_outage_of_the_database_runs_once(dsn: str, log: Log) -> None:
    """The connections break within the function, and no new one is accepted for a while."""
    async with wire_to(dsn) as wire, asyncpg.create_pool(wire.dsn, min_size=1, max_size=5) as pool:

        async def break_down() -> str:
            wire.cut()
            asyncio.get_running_loop().call_later(1.0, healing.set)
            return "kept"

        async def place() -> None:
            log.append(await current_job().steps.run("a", break_down))

        healing = asyncio.Event()
        async with Scheduler(pool) as scheduler:
            seen = Recorder(scheduler)
            await scheduler.enqueue(place)
            await healing.wait()
            await wire.heal()
            await seen.until(JobCompleted)
    assert log == ["kept"]


class Crashes:
    """Lets the worker crash before or after one of the statements that jobs cause."""

    def __init__(self) -> None:
        self.count = 0
        self.at: float = -1.0
        self.crash: Callable[[], None] = lambda: None

    def before(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.crash()

    def after(self) -> None:
        if self.count + 0.5 == self.at:
            self.crash()


crashes = Crashes()


class CrashingConnection(asyncpg.Connection):
    """Counts the statements about steps, and those that end transactions and attempts."""

    async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
        of_jobs = any(part in query for part in ("scheduler_steps", "AS change", "stock"))
        if not of_jobs or query.startswith("-- Delete steps without a marked job"):
            return await super().fetch(query, *args, **options)
        crashes.before()
        found = await super().fetch(query, *args, **options)
        crashes.after()
        return found

    async def execute(self, query: str, *args: Any, **options: Any) -> Any:
        if query not in {"COMMIT;", "BEGIN;"} and "stock" not in query:
            return await super().execute(query, *args, **options)
        crashes.before()
        tag = await super().execute(query, *args, **options)
        crashes.after()
        return tag


@NIGHTLY
@pytest.mark.slow
@pytest.mark.usefixtures("stock")
async def test_crash_before_or_after_any_statement_changes_no_end_state(dsn: str) -> None:
    """A plain step is called at most twice, and what a transaction writes is there once."""
    options: dict[str, Any] = {"min_size": 1, "max_size": 5, "connection_class": CrashingConnection}
    points = 0
    calls: list[str] = []

    async def quote() -> int:
        calls.append("quote")
        return 9

    async def place() -> str:
        steps = current_job().steps
        price = await steps.run("quote", quote)
        async with steps.cursor("lines", start=0) as cursor:
            for line in range(cursor.value, 2):
                async with pool.acquire() as connection, connection.transaction():
                    await reserve(connection, line)
                    await cursor.save(line + 1, connection=connection)
        await steps.sleep("rest", DAY)
        item = await steps.transaction("reserve", reserve, price)
        return f"{price} {item}"

    async with asyncpg.create_pool(dsn, **options) as pool:
        while True:
            calls.clear()
            await pool.execute("TRUNCATE stock, scheduled_jobs, scheduler_steps, scheduler_results")
            # Without the vacuum, whose transactions have no attempt that could continue after a crash.
            async with TestScheduler(pool, now=START, max_crashes=None, vacuum_enabled=False) as kit:

                def crash() -> None:
                    crashes.at = -1.0
                    kit.lose_connection()
                    kit.crash()

                crashes.crash = crash
                crashes.count, crashes.at = 0, points / 2 + 1
                job_id = await kit.scheduler.enqueue(place, keep_result=30 * DAY, max_retries=3)
                await kit.run_until(3 * DAY)
                result = await kit.scheduler.get_job_result(job_id, wait=False)
                is_over, crashes.at = crashes.at > 0, -1.0
            assert result, f"at {points / 2}"
            assert result.unwrap() == "9 9", f"at {points / 2}"
            assert await items(pool) == [0, 1, 9], f"at {points / 2}"
            assert len(calls) <= 2, f"at {points / 2}"
            if is_over:
                break
            points += 1
    assert points > 20


async def test_values_of_steps_are_encoded_by_the_codec(pool: Pool, log: Log) -> None:
    async def place() -> list[Any]:
        steps = current_job().steps
        found = await steps.run("secret", log.note, "the secret")
        async with steps.cursor("lines", start="the secret") as cursor:
            if current_job().attempt == 1:
                await cursor.set("another secret")
                raise ValueError
            return [found, cursor.value]

    async with TestScheduler(pool, now=START, codec=KeyedCodec("k")) as t:
        job_id = await t.scheduler.enqueue(place, max_retries=1, keep_result=DAY)
        await t.run_until(HOUR)
        result = await t.scheduler.get_job_result(job_id, wait=False)
        assert result
        assert result.unwrap() == ["the secret", "another secret"]
        values = [row["value"] for row in await pool.fetch("SELECT value::text FROM scheduler_steps")]
        assert all("secret" not in value and '"codec"' in value for value in values)
    assert log == ["the secret"]


async def test_step_that_no_codec_here_can_decode_fails_the_job_without_retries(pool: Pool, log: Log) -> None:
    async def place() -> None:
        await current_job().steps.run("secret", log.note, "the secret")
        raise ValueError

    async with TestScheduler(pool, now=START, codec=KeyedCodec("k")) as t:
        job_id = await t.scheduler.enqueue(place, max_retries=5)
        await t.drain()
    async with TestScheduler(pool, now=START + HOUR) as t:
        t.scheduler.register(place)
        await t.drain()
        status, error = await ended(t, job_id)
    assert status is JobStatus.FAILED
    assert error
    assert error.startswith("Abort: the stored value of step 'secret' cannot be read: encrypted with")


async def test_step_that_is_committed_while_others_are_loaded_is_not_called_again(
    t: TestScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled step makes the next one load all; meanwhile another one is committed and cancelled."""
    calls: list[str] = []
    read, committed, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
    load, store = StepRepository.load, StepRepository.store

    async def load_slowly(self: StepRepository, job_id: str) -> list[StoredStep]:
        steps = await load(self, job_id)
        if not read.is_set():
            read.set()
            await cancelled.wait()
        return steps

    async def store_slowly(
        self: StepRepository, worker_id: str, claim: Claim, name: str, *args: Any, **kwargs: Any
    ) -> StoredStep:
        if name == "b":
            await read.wait()
        stored = await store(self, worker_id, claim, name, *args, **kwargs)
        if name == "b" and not committed.is_set():
            committed.set()
            await asyncio.Event().wait()
        return stored

    monkeypatch.setattr(StepRepository, "load", load_slowly)
    monkeypatch.setattr(StepRepository, "store", store_slowly)

    async def note(name: str) -> str:
        calls.append(name)
        if name == "a":
            await asyncio.Event().wait()
        return name

    async def place() -> None:
        run = current_job().steps.run
        other = asyncio.create_task(run("b", note, "b"))
        await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await run("a", note, "a")
        loading = asyncio.create_task(run("c", note, "c"))
        await read.wait()
        await committed.wait()
        other.cancel()
        await asyncio.wait([other])
        cancelled.set()
        await loading
        await run("b", note, "b")

    t.scheduler.register(place, name="place")
    await t.scheduler.enqueue("place", job_id="job")
    await t.run_one()
    assert await ended(t, "job") == (JobStatus.COMPLETED, None)
    assert calls.count("b") == 1
