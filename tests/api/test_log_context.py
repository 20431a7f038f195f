"""The running job in log records."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import timedelta
from typing import Any

import pytest

from pg_scheduler import Scheduler, periodic
from pg_scheduler.events import JobCompleted
from pg_scheduler.telemetry.logging import (
    FIELDS,
    JobContextFilter,
    JobContextProcessor,
    add_job_context,
)
from tests.api.conftest import Make
from tests.support.worker import Recorder, now

logger = logging.getLogger("tests.log_context")

TRACE = "0af7651916cd43dd8448eb211c80319c"
METADATA = {"request_id": "r-1", "trace": {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}}


OTHER_THREADS = ("run_in_executor", "pool", "Thread")


class Records(logging.Handler):
    """Every record, with its fields."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, dict[str, Any]] = {}
        self.addFilter(JobContextFilter(metadata=["request_id"]))

    def emit(self, record: logging.LogRecord) -> None:
        self.found[record.getMessage()] = {name: getattr(record, name) for name in (*FIELDS, "request_id")}


@pytest.fixture
def records() -> Iterator[dict[str, dict[str, Any]]]:
    handler = Records()
    root = logging.getLogger()
    before = logger.level
    logger.setLevel(logging.INFO)
    root.addHandler(handler)
    yield handler.found
    root.removeHandler(handler)
    logger.setLevel(before)


def log_in_threads() -> None:
    """Log in threads of a job, with and without a copy of its context."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(logger.info, "pool").result()
        threads.submit(copy_context().run, logger.info, "copy in pool").result()
    # Builds of Python without the global lock pass the context to threads by themselves.
    plain = threading.Thread(target=logger.info, args=("Thread",))
    copied = threading.Thread(target=copy_context().run, args=(logger.info, "copy in Thread"))
    for thread in (plain, copied):
        thread.start()
        thread.join()


def log_in_process() -> None:
    """A job of a child process."""
    logging.getLogger("tests.log_context").warning("process")


async def test_records_of_a_job_and_of_what_it_starts_have_its_fields(
    scheduler: Scheduler, seen: Recorder, records: dict[str, dict[str, Any]]
) -> None:
    @scheduler.register(name="test.async")
    async def in_loop() -> None:
        logger.info("job")
        await asyncio.create_task(started())
        await asyncio.to_thread(logger.info, "to_thread")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, logger.info, "run_in_executor")
        await loop.run_in_executor(None, copy_context().run, logger.info, "copy in run_in_executor")
        log_in_threads()

    async def started() -> None:
        logger.info("task")

    @scheduler.register(name="test.thread")
    def in_thread() -> None:
        logger.info("thread")

    one = await scheduler.schedule_job("test.async", now(), {}, metadata=METADATA)
    two = await scheduler.enqueue(in_thread)
    for job_id in (one, two):
        await seen.until(JobCompleted, job_id=job_id)
    logger.info("outside")
    expected = {
        "job_id": one,
        "job_name": "test.async",
        "attempt": 1,
        "worker_id": scheduler.worker_id,
        "schedule": None,
        "trace_id": TRACE,
        "request_id": "r-1",
    }
    with_context = ("job", "task", "to_thread", *(f"copy in {name}" for name in OTHER_THREADS))
    assert [records[name] for name in with_context] == [expected] * len(with_context)
    assert [records[name]["job_id"] for name in OTHER_THREADS] == [None] * 3
    assert records["thread"] == dict.fromkeys(records["thread"]) | {
        "job_id": two,
        "job_name": "test.thread",
        "attempt": 1,
        "worker_id": scheduler.worker_id,
    }
    assert records["outside"] == dict.fromkeys((*FIELDS, "request_id"))


@pytest.mark.slow
async def test_records_of_a_job_in_a_process_have_its_fields(
    make: Make, records: dict[str, dict[str, Any]]
) -> None:
    scheduler = make(shutdown_timeout=20)
    scheduler.register(log_in_process, name="test.process", executor="process")
    seen = Recorder(scheduler)
    await scheduler.start()
    job_id = await scheduler.schedule_job("test.process", now(), {}, metadata=METADATA)
    await seen.until(JobCompleted, job_id=job_id)
    found = records["process"]
    assert (found["job_id"], found["worker_id"]) == (job_id, scheduler.worker_id)
    assert (found["request_id"], found["trace_id"]) == ("r-1", TRACE)


async def test_records_of_a_scheduled_job_name_the_schedule(
    make: Make, records: dict[str, dict[str, Any]]
) -> None:
    @periodic(every=timedelta(hours=1), dedup_key="hourly")
    async def hourly() -> None:
        logger.info("hourly")

    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.trigger_periodic_job("hourly")
    await seen.until(JobCompleted)
    assert records["hourly"]["schedule"] == "hourly"


async def test_record_about_another_job_keeps_its_own_fields(
    scheduler: Scheduler, seen: Recorder, records: dict[str, dict[str, Any]]
) -> None:
    @scheduler.register(name="test.other")
    async def run() -> None:
        logger.info("about another", extra={"job_id": "another", "attempt": None})
        logger.info("own value", extra={"attempt": 99})

    job_id = await scheduler.schedule_job("test.other", now(), {}, metadata=METADATA)
    await seen.until(JobCompleted, job_id=job_id)
    found = records["about another"]
    assert found == dict.fromkeys(found) | {"job_id": "another"}
    assert (records["own value"]["job_id"], records["own value"]["attempt"]) == (job_id, 99)


@pytest.mark.parametrize("trace", [{}, {"traceparent": "x"}, {"other": "y"}])
async def test_trace_of_another_form_has_no_trace_id(
    scheduler: Scheduler, seen: Recorder, records: dict[str, dict[str, Any]], trace: dict[str, str]
) -> None:
    @scheduler.register(name="test.trace")
    async def run() -> None:
        logger.info("trace")

    job_id = await scheduler.schedule_job("test.trace", now(), {}, metadata={"trace": trace})
    await seen.until(JobCompleted, job_id=job_id)
    assert records["trace"]["trace_id"] is None


async def test_processor_adds_the_fields_that_apply(scheduler: Scheduler, seen: Recorder) -> None:
    found: list[Any] = []

    @scheduler.register(name="test.structlog")
    async def run() -> None:
        found.append(add_job_context(None, "info", {"event": "a"}))
        found.append(JobContextProcessor(["request_id", "none"])(None, "info", {"attempt": 99}))
        found.append(add_job_context(None, "info", {"job_id": "another"}))

    job_id = await scheduler.schedule_job("test.structlog", now(), {}, metadata=METADATA)
    await seen.until(JobCompleted, job_id=job_id)
    about = {"job_id": job_id, "job_name": "test.structlog", "worker_id": scheduler.worker_id}
    about["trace_id"] = TRACE
    assert found[0] == {"event": "a", "attempt": 1, **about}
    assert found[1] == {"attempt": 99, "request_id": "r-1", **about}
    assert found[2] == {"job_id": "another"}
    assert add_job_context(None, "info", {"event": "b"}) == {"event": "b"}


@pytest.mark.parametrize("kind", [JobContextFilter, JobContextProcessor])
@pytest.mark.parametrize("key", ["job_id", "msg", "message"])
def test_key_that_every_record_has_is_rejected(kind: Any, key: str) -> None:
    with pytest.raises(ValueError, match=f"metadata key '{key}' is a field of every log record"):
        kind(metadata=[key])
    with pytest.raises(TypeError, match="pass \\['request_id'\\]"):
        kind(metadata="request_id")
