"""User code ends its own attempt at most, whatever it raises, returns, overrides or keeps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from pg_scheduler import (
    JobCall,
    JobExecutor,
    JobResult,
    JobSpec,
    JobStatus,
    Limit,
    RetryPolicy,
    ScheduledCall,
    Scheduler,
)
from pg_scheduler.events import (
    Event,
    JobCancelled,
    JobCompleted,
    JobFailed,
    JobRetried,
    JobSnoozed,
    JobStarted,
    ServiceFaulted,
)
from pg_scheduler.telemetry.logging import JobLogHandler
from pg_scheduler.triggers import Every
from tests.api.conftest import Make
from tests.support import foreign
from tests.support.foreign import MISTAKES, Vanished, overriding
from tests.support.worker import PATIENCE, Recorder, now

pytestmark = pytest.mark.slow  # every mistake, everywhere

HOUR = timedelta(hours=1)

every_mistake = pytest.mark.parametrize("mistake", MISTAKES)


async def check(scheduler: Scheduler) -> None:
    """The Scheduler runs, and other jobs complete."""
    assert scheduler.is_running
    async with asyncio.timeout(PATIENCE):
        assert await scheduler.run_job(double, args=(4,)) == 8
    assert scheduler.is_running


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def results_of(
    scheduler: Scheduler, func: Any, names: Sequence[str], mistakes: Sequence[int]
) -> list[tuple[str, JobResult]]:
    """Run a job for each hostile object and each mistake; return what it is, and the result."""
    cases = [(name, number) for name in names for number in mistakes]
    ids = await scheduler.schedule_bulk([JobSpec(func, now(), args=each, keep_result=HOUR) for each in cases])
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*(scheduler.get_job_result(str(job_id)) for job_id in ids))
    found = []
    for (name, number), result in zip(cases, results, strict=True):
        assert result is not None
        found.append((f"{name}, {MISTAKES[number].__name__}", result))
    return found


ALL = range(len(MISTAKES))
FEW = (0, 2)
"""Mistakes in processes, which are slow: an Exception and another one."""


@pytest.mark.parametrize(
    ("func", "mistakes"),
    [
        (foreign.give, ALL),
        (foreign.give_later, ALL),
        (foreign.give_in_thread, ALL),
        (foreign.give_in_process, FEW),
    ],
)
async def test_value_whose_inspection_raises_completes_its_job(
    scheduler: Scheduler, func: object, mistakes: Sequence[int]
) -> None:
    for about, result in await results_of(scheduler, func, list(foreign.VALUES), mistakes):
        assert result.status is JobStatus.COMPLETED, (about, result)
        assert (result.value is None) == (result.no_value_reason is not None), (about, result)
    await check(scheduler)


@pytest.mark.parametrize(
    ("func", "mistakes"),
    [
        (foreign.fail, ALL),
        (foreign.fail_later, ALL),
        (foreign.fail_in_thread, ALL),
        (foreign.fail_in_process, FEW),
    ],
)
async def test_exception_whose_inspection_raises_fails_its_job(
    scheduler: Scheduler, func: object, mistakes: Sequence[int]
) -> None:
    for about, result in await results_of(scheduler, func, list(foreign.ERRORS), mistakes):
        assert result.status is JobStatus.FAILED, (about, result)
        assert result.error is not None
        job = await scheduler.get_job(result.job_id)
        assert job is not None
        (error,) = job.errors
        assert error.outcome == "error", about
        assert f".{error.error_type}".endswith(f".{result.error.type}"), about
    await check(scheduler)


class Policy(RetryPolicy):
    """A policy that raises in both of its methods."""

    def allows(self, error: BaseException) -> bool:
        raise SystemExit

    def delay(self, retry_count: int, *, spread: float) -> timedelta:
        raise Vanished


class LongPolicy(RetryPolicy):
    def delay(self, retry_count: int, *, spread: float) -> timedelta:
        return timedelta.max


class Untested(type):
    """The class of exception classes that do not tell which classes are derived."""

    def __subclasscheck__(cls, _other: object) -> bool:
        raise Vanished


HIDDEN: Any = (Untested("Hidden", (Exception,), {}),)


@pytest.mark.parametrize("policy", [Policy(), LongPolicy(), RetryPolicy(only=HIDDEN)])
async def test_default_retry_policy_applies_if_that_of_the_task_raises(
    make: Make, policy: RetryPolicy
) -> None:
    async def work() -> None:
        raise ValueError("no")

    scheduler = make()
    scheduler.register(work, name="foreign.work", max_retries=1, retry=policy)
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.enqueue(work)
    (event,) = await seen.until(JobRetried)
    assert timedelta(seconds=50) < event.delay < timedelta(seconds=70)
    await check(scheduler)


@every_mistake
@pytest.mark.parametrize(("func", "kind"), [(foreign.snooze, JobSnoozed), (foreign.retry, JobRetried)])
async def test_snooze_and_retry_without_a_valid_delay_last_a_minute(
    scheduler: Scheduler,
    seen: Recorder,
    mistake: type[BaseException],
    func: Any,
    kind: type[JobSnoozed | JobRetried],
) -> None:
    await scheduler.enqueue(func, args=(MISTAKES.index(mistake),))
    (event,) = await seen.until(kind)
    assert event.delay == timedelta(minutes=1)
    await check(scheduler)


async def test_progress_that_its_classes_misrepresent_fails_its_job_only(scheduler: Scheduler) -> None:
    job_id = await scheduler.enqueue(foreign.report)
    result = await scheduler.get_job_result(job_id)
    assert result is not None
    assert str(result.error) == "ValueError: done must be finite and at most 1e300, not inf"
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert job.progress is not None
    assert (job.progress.done, job.progress.total, job.progress.note) == (3, 4, "half")
    await check(scheduler)


@pytest.fixture
def log_of_jobs() -> Iterator[logging.Logger]:
    """A logger whose formatter returns texts that are hostile to their readers."""

    class Formatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return foreign.Text(super().format(record))

    handler, logger = JobLogHandler(), logging.getLogger("tests.foreign")
    handler.setFormatter(Formatter())
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)


async def test_lines_of_a_hostile_formatter_are_kept(make: Make, log_of_jobs: logging.Logger) -> None:
    async def work() -> None:
        log_of_jobs.warning("before the end")
        raise ValueError("no")

    scheduler = make()
    scheduler.register(work, name="foreign.work", max_retries=0)
    await scheduler.start()
    job_id = await scheduler.enqueue(work)
    await scheduler.get_job_result(job_id)
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert job.errors[0].log == ("before the end",)


@every_mistake
async def test_subscriber_that_raises_stops_no_other_subscriber(
    scheduler: Scheduler, seen: Recorder, mistake: type[BaseException]
) -> None:
    class Subscriber:
        def __call__(self, _event: Event) -> None:
            raise mistake("subscriber")

    async def subscriber(_event: Event) -> None:
        await asyncio.sleep(0)
        handled.append(1)
        raise foreign.error_of("traceback", MISTAKES.index(mistake)) if len(handled) > 1 else mistake

    handled: list[int] = []
    scheduler.subscribe(Subscriber(), JobCompleted)
    setattr(Subscriber, "__getattr__", foreign.raising(mistake))  # noqa: B010 - read for the log
    scheduler.subscribe(subscriber, JobCompleted)
    for count in (1, 2, 3):
        await scheduler.enqueue(foreign.neighbour, args=(1,))
        await seen.until(JobCompleted, count)
    async with asyncio.timeout(PATIENCE):
        while len(handled) < 3:  # noqa: ASYNC110 - the events of the subscriber that is tested
            await asyncio.sleep(0)
    await check(scheduler)


@every_mistake
@pytest.mark.parametrize("func", [foreign.neighbour, foreign.give_in_thread])
async def test_middleware_that_raises_fails_the_attempt(
    make: Make, mistake: type[BaseException], func: Any
) -> None:
    async def before(attempt: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
        if attempt.job.job_name.startswith("foreign"):
            raise mistake("middleware")
        return await call_next()

    scheduler = make(middleware=[before])
    scheduler.register(func, max_retries=0)
    seen = Recorder(scheduler)
    await scheduler.start()
    for count in (1, 2):
        await scheduler.enqueue(func, args=("key", 0) if func is foreign.give_in_thread else (1,))
        await seen.until(JobFailed, count)
    await check(scheduler)


@every_mistake
async def test_hostile_trace_of_middleware_is_not_stored(make: Make, mistake: type[BaseException]) -> None:
    async def trace(attempt: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
        attempt.trace = overriding(dict, mistake, "items", "__iter__", "keys", "@__class__")(a="b")
        return await call_next()

    scheduler = make(middleware=[trace])
    await scheduler.start()
    job_id = await scheduler.enqueue(foreign.fail, args=("str", 0))
    await scheduler.get_job_result(job_id)
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert (job.status, job.errors[0].trace) == (JobStatus.FAILED, None)
    await check(scheduler)


@every_mistake
async def test_headers_that_raise_leave_out_the_headers_of_a_planned_job(
    make: Make, mistake: type[BaseException]
) -> None:
    class Headers:
        async def __call__(self, _: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
            return await call_next()

        def headers(self, job: ScheduledCall) -> dict[str, str]:
            if job.schedule_id is not None:
                raise mistake("headers")
            return {}

    scheduler = make(middleware=[Headers()])
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.schedules.add(foreign.neighbour, Every(HOUR), args=(1,), run_now=True)
    await seen.until(JobCompleted)
    await check(scheduler)


@every_mistake
async def test_key_function_of_a_limit_that_raises_fails_its_job(
    make: Make, mistake: type[BaseException]
) -> None:
    def key(kind: str) -> Any:
        if kind == "raise":
            raise mistake("key")
        return foreign.value_of(kind, MISTAKES.index(mistake))

    async def work(kind: str) -> None: ...

    scheduler = make()
    scheduler.register(work, name="foreign.work", limits=[Limit(max_running=1, key=key)])
    await scheduler.start()
    found = {}
    for kind in ("raise", "no class", "no attributes", "text", "int"):
        result = await scheduler.get_job_result(await scheduler.enqueue(work, args=(kind,)))
        assert result is not None
        found[kind] = result.status
    failed, completed = JobStatus.FAILED, JobStatus.COMPLETED
    assert list(found.values()) == [failed, failed, failed, completed, completed]
    await check(scheduler)


@every_mistake
async def test_validator_of_a_typed_argument_that_raises_fails_its_job(
    make: Make, mistake: type[BaseException]
) -> None:
    is_stored = False

    def validate(value: int) -> int:
        if is_stored:
            raise mistake("validator")
        return value

    async def work(number: Annotated[int, AfterValidator(validate)]) -> None: ...

    work.__annotations__["number"] = Annotated[int, AfterValidator(validate)]
    scheduler = make()
    scheduler.register(work, name="foreign.work", typed=True, max_retries=0)
    job_id = await scheduler.enqueue(work, args=(1,))
    is_stored = True
    await scheduler.start()
    result = await scheduler.get_job_result(job_id)
    assert result is not None
    assert result.status is JobStatus.FAILED
    await check(scheduler)


# -- executors of the user -----------------------------------------------------------------------------


class Broken(JobExecutor):
    """An executor that raises at a chosen place."""

    def __init__(self, place: str, mistake: type[BaseException]) -> None:
        self._place = place
        self._mistake = mistake
        self.cancelled = asyncio.Event()

    def _reach(self, place: str) -> None:
        if place == self._place:
            raise self._mistake(place)

    async def start(self) -> None:
        self._reach("start")

    async def run(self, call: JobCall) -> Any:
        self._reach("run")
        self.goes_on = asyncio.Event()
        call.on_cancel(self._cancel, is_running=self._is_running)
        try:
            await self.goes_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def stop(self, grace: float) -> None:
        self._reach("stop")

    def _cancel(self) -> None:
        self._reach("on_cancel")
        self.goes_on.set()

    def _is_running(self) -> bool:
        self._reach("is_running")
        return False


def plain() -> None: ...


@every_mistake
@pytest.mark.parametrize("place", ["start", "run", "stop", "on_cancel"])
async def test_executor_that_raises_concerns_its_attempt_only(
    make: Make, mistake: type[BaseException], place: str
) -> None:
    executor = Broken(place, mistake)
    scheduler = make(executors={"broken": executor}, stop_grace=5)
    scheduler.register(plain, name="foreign.plain", executor="broken", max_retries=0)
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.enqueue(plain, timeout=timedelta(milliseconds=20))
    ended = await seen.until(JobCompleted if place == "stop" else JobFailed)
    assert len(ended) == 1
    assert executor.cancelled.is_set() == (place == "on_cancel")
    job_id = await scheduler.enqueue(plain)
    if place not in {"start", "run"}:
        await seen.until(JobStarted, 2)
        await scheduler.cancel_job(job_id)
        await seen.until(JobCancelled)
    await check(scheduler)
    await scheduler.shutdown()
    assert not seen.of(ServiceFaulted)


class Deaf(Broken):
    """One that ends no job, and does not tell whether it runs."""

    def _cancel(self) -> None: ...


@every_mistake
async def test_is_running_that_raises_does_not_break_the_shutdown(
    make: Make, mistake: type[BaseException]
) -> None:
    executor = Deaf("is_running", mistake)
    scheduler = make(executors={"broken": executor}, stop_grace=0.05)
    scheduler.register(plain, name="foreign.plain", executor="broken")
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.enqueue(plain)
    await seen.until(JobStarted)
    await scheduler.shutdown()
    assert not seen.of(ServiceFaulted)
    executor.goes_on.set()
