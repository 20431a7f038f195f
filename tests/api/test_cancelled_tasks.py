"""Tasks of the Scheduler that the application or a job cancels, and handlers and subscribers that raise.

The Scheduler stops with the reason, or keeps running; it never stands still while ``is_running`` is True.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pg_scheduler import JobStatus, Scheduler, ServiceCancelledError
from pg_scheduler.events import Event, JobCompleted, ServiceFaulted
from tests.api.conftest import Make
from tests.support.worker import PATIENCE, Gate, Recorder, holds, now

SERVICES = [
    "heartbeat",
    "completer",
    "notifier",
    "listener",
    "rescuer",
    "expirer",
    "deadline_scanner",
    "planner",
    "claimer",
    "vacuum",
]


RELEASE = "PoolConnectionHolder.release"
"""The coroutine by which asyncpg returns a connection to its pool, in a task of its own.

If that task is cancelled before it begins, the pool counts the connection as used for good, and ``close()``
waits for it. The library has no part in that, so the tests do not cancel this task.
"""


async def succeed() -> None: ...


def cancel_tasks(*spared: asyncio.Task[object] | None) -> None:
    for task in asyncio.all_tasks():
        if task not in spared and getattr(task.get_coro(), "__qualname__", "") != RELEASE:
            task.cancel()


async def assert_stopped(
    scheduler: Scheduler, match: str = "was cancelled, but not by the Scheduler"
) -> None:
    with pytest.raises(ServiceCancelledError, match=match):
        async with asyncio.timeout(PATIENCE):  # not wait_for(), whose task a job may cancel
            await scheduler.wait()
    assert not holds(scheduler.is_running)


async def test_scheduler_stops_when_a_job_cancels_every_task(
    scheduler: Scheduler, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    test = asyncio.current_task()
    interrupted = await scheduler.schedule(gate.job, execution_time=now())
    await gate.wait_begun()

    async def cancel_everything() -> None:
        cancel_tasks(test)

    await scheduler.schedule(cancel_everything, execution_time=now())
    await assert_stopped(scheduler)
    row = await scheduler.get_job(interrupted)
    assert row is not None
    assert (row.status, row.retry_count) == (JobStatus.PENDING, 0)
    assert await scheduler.workers() == []
    (record,) = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert "cancel only tasks of your own" in record.getMessage()


@pytest.mark.parametrize("service", SERVICES)
async def test_scheduler_stops_when_the_task_of_one_service_is_cancelled(
    scheduler: Scheduler, service: str
) -> None:
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == f"pg_scheduler {service}"]
    task.cancel()
    await assert_stopped(scheduler, match=f"the task of the {service} was cancelled")


async def test_scheduler_starts_again_after_its_tasks_were_cancelled(scheduler: Scheduler) -> None:
    seen = Recorder(scheduler)
    cancel_tasks(asyncio.current_task())
    await assert_stopped(scheduler)
    await scheduler.start()
    await seen.until(JobCompleted, job_id=await scheduler.schedule(succeed, execution_time=now()))


async def test_calls_of_schedule_end_when_their_shared_insert_is_cancelled(scheduler: Scheduler) -> None:
    calls = [asyncio.create_task(scheduler.schedule(succeed, execution_time=now())) for _ in range(5)]
    insert = None
    while insert is None:
        await asyncio.sleep(0)
        tasks = [each for each in asyncio.all_tasks() if each.get_name() == "pg_scheduler insert"]
        insert = tasks[0] if tasks else None
    insert.cancel()
    first, *others = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE)
    assert isinstance(first, str)
    assert [type(each) for each in others] == [ServiceCancelledError] * 4
    assert await asyncio.wait_for(scheduler.schedule(succeed, execution_time=now()), PATIENCE)


ENDING = """
import asyncio, sys
import asyncpg
from pg_scheduler import Scheduler

async def main():
    pool = await asyncpg.create_pool(sys.argv[1], min_size=1, max_size=5)
    await Scheduler(pool).start()

asyncio.run(main())
"""


@pytest.mark.slow
def test_asyncio_run_that_ends_without_a_shutdown_reports_no_cancellation(dsn: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDING, dsn], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 0
    assert "was cancelled" not in ended.stderr
    assert "destroyed" not in ended.stderr


class RaisingHandler(logging.Handler):
    """A handler of the application that does not catch its errors."""

    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("no log collector")


@pytest.fixture
def raising_handler() -> Iterator[None]:
    logger = logging.getLogger("pg_scheduler")
    handler, level = RaisingHandler(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.mark.usefixtures("raising_handler")
async def test_jobs_run_when_a_logging_handler_raises(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    await seen.until(JobCompleted, job_id=await scheduler.schedule(succeed, execution_time=now()))
    assert scheduler.is_running
    assert not seen.of(ServiceFaulted)
    assert "no log collector" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
async def test_jobs_run_when_a_subscriber_raises(
    make: Make, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def subscriber(_: Event) -> None:
        raise error

    scheduler = make()
    scheduler.subscribe(subscriber)
    seen = Recorder(scheduler)
    await scheduler.start()
    await seen.until(JobCompleted, job_id=await scheduler.schedule(succeed, execution_time=now()))
    assert scheduler.is_running
    assert not seen.of(ServiceFaulted)
    assert "raised an exception on: worker" in caplog.text
