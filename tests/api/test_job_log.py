"""The last log lines of an attempt that fails, kept with its error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

from pg_scheduler import AttemptError, Scheduler
from pg_scheduler.events import JobCompleted, JobFailed
from pg_scheduler.telemetry.logging import JobLogHandler
from tests.api.conftest import Make
from tests.support.worker import Recorder

logger = logging.getLogger("tests.job_log")


@pytest.fixture
def handler() -> Iterator[JobLogHandler]:
    handler = JobLogHandler()
    before = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


async def errors_of(scheduler: Scheduler, job_id: str) -> tuple[AttemptError, ...]:
    job = await scheduler.get_job(job_id)
    assert job is not None
    return job.errors


@pytest.mark.usefixtures("handler")
async def test_failed_attempt_keeps_what_it_and_its_tasks_and_threads_logged(make: Make) -> None:
    scheduler = make()
    seen = Recorder(scheduler)

    async def part() -> None:
        logger.info("task")

    async def fail() -> None:
        logger.debug("below the level")
        logger.info("started with %d", 5)
        await asyncio.create_task(part())
        await asyncio.to_thread(logger.warning, "thread \x00")
        with ThreadPoolExecutor(1) as threads:
            threads.submit(logger.info, "pool").result()
            threads.submit(copy_context().run, logger.info, "copy in pool").result()
        raise ValueError("no")

    scheduler.register(fail, name="job_log.fail")
    await scheduler.start()
    job_id = await scheduler.enqueue("job_log.fail", max_retries=0)
    await seen.until(JobFailed, job_id=job_id)
    (error,) = await errors_of(scheduler, job_id)
    assert error.log == ("started with 5", "task", "thread \\x00", "copy in pool")


@pytest.mark.usefixtures("handler")
async def test_plain_function_keeps_its_lines_and_a_timeout_does_too(make: Make) -> None:
    scheduler = make()
    seen = Recorder(scheduler)

    def fail() -> None:
        logger.info("in a thread")
        raise ValueError("no")

    async def late() -> None:
        logger.info("waits")
        await asyncio.Event().wait()

    scheduler.register(fail, name="job_log.plain")
    scheduler.register(late, name="job_log.late")
    await scheduler.start()
    plain = await scheduler.enqueue("job_log.plain", max_retries=0)
    slow = await scheduler.enqueue("job_log.late", max_retries=0, timeout=0.05)
    for job_id, line in ((plain, "in a thread"), (slow, "waits")):
        await seen.until(JobFailed, job_id=job_id)
        assert [error.log for error in await errors_of(scheduler, job_id)] == [(line,)]


async def test_newest_lines_are_kept_within_the_bounds(make: Make, handler: JobLogHandler) -> None:
    scheduler = make()
    seen = Recorder(scheduler)

    async def talk(number: int, length: int) -> None:
        for place in range(number):
            logger.info("%s", f"{place}".ljust(length, "."))
        raise ValueError("no")

    scheduler.register(talk, name="job_log.talk")
    handler.setFormatter(logging.Formatter("%(message)s"))
    await scheduler.start()
    many = await scheduler.enqueue("job_log.talk", args=[100, 3], max_retries=0)
    long = await scheduler.enqueue("job_log.talk", args=[20, 2000], max_retries=0)
    await seen.until(JobFailed, job_id=many)
    await seen.until(JobFailed, job_id=long)
    ((few, *_, last),) = [error.log for error in await errors_of(scheduler, many)]
    assert (few, last) == ("36.", "99.")
    ((*lines,),) = [error.log for error in await errors_of(scheduler, long)]
    assert [line[:2] for line in lines] == [f"{place}" for place in range(13, 20)]
    assert {len(line) for line in lines} == {1004}


def fail_in_process() -> None:
    """Log in a child process, and fail."""
    logger.warning("process")
    raise ValueError("no")


@pytest.mark.slow
@pytest.mark.usefixtures("handler")
async def test_lines_of_a_process_belong_to_its_job(make: Make) -> None:
    scheduler = make(shutdown_timeout=20)
    scheduler.register(fail_in_process, name="job_log.process", executor="process")
    seen = Recorder(scheduler)
    await scheduler.start()
    job_id = await scheduler.enqueue("job_log.process", max_retries=0)
    await seen.until(JobFailed, job_id=job_id)
    (error,) = await errors_of(scheduler, job_id)
    assert error.log == ("process",)


@pytest.mark.usefixtures("handler")
async def test_completed_attempt_stores_no_line(make: Make) -> None:
    scheduler = make()
    seen = Recorder(scheduler)

    async def succeed() -> None:
        logger.info("fine")

    scheduler.register(succeed, name="job_log.succeed")
    await scheduler.start()
    job_id = await scheduler.enqueue("job_log.succeed")
    await seen.until(JobCompleted, job_id=job_id)
    assert await errors_of(scheduler, job_id) == ()


def test_lines_outside_of_a_job_are_ignored(handler: JobLogHandler) -> None:
    logger.info("nobody runs")
    assert handler.level == logging.INFO
