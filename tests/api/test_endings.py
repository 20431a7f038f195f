"""Every way in which a function may end: the table of the reference, row by row."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from pg_scheduler import Abort, Job, JobResult, ProcessExecutor, Retry, RetryPolicy, Scheduler, Snooze
from pg_scheduler.events import Event, JobCompleted, JobFailed, JobRetried, JobSnoozed
from tests.api.conftest import Make
from tests.support.worker import PATIENCE, Recorder

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference" / "values.md"
HEADING: Final = "## How a function may end"
MISSING_ERROR: Final = "OSError: no answer"
BROKEN_ERROR: Final = "ValueError: no number"
ENDS: Final = (JobCompleted, JobFailed, JobRetried, JobSnoozed)

POLICY: Final = RetryPolicy(
    base=timedelta(hours=1), maximum=timedelta(hours=1), jitter=0, only=(OSError,), never=(InterruptedError,)
)
"""TimeoutError is an OSError, so the policy permits it."""


class Row(NamedTuple):
    """A row of the table."""

    function: str
    status: str
    delay: str
    uses_retry: str
    message: str


def rows() -> list[Row]:
    section = PAGE.read_text("utf-8").partition(f"{HEADING}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines[1:]]


def retry(seconds: float, cause: BaseException | None = None) -> Retry:
    error = Retry(seconds)
    error.__cause__ = cause
    return error


def group(*errors: BaseException) -> BaseException:
    """Return a group in a group, as of nested task groups."""
    return BaseExceptionGroup(
        "outer", [errors[0], BaseExceptionGroup("inner", errors[1:])] if errors[1:] else errors
    )


class Ending(NamedTuple):
    """How the function of a row ends, and what the table says in numbers and texts."""

    raised: BaseException | None
    delay_s: float | None = None
    message: str | None = None
    timeout_s: float | None = None
    policy: RetryPolicy = POLICY
    returned: object = None


POLICY_S: Final = 3600.0
OK, BAD = OSError("no answer"), ValueError("no number")

ENDINGS: Final[dict[str, Ending]] = {
    "returns": Ending(None),
    "returns work that is not done, and `TypeError` is not permitted": Ending(
        None,
        None,
        "TypeError: the function returned a value of the type map, whose work is not done; iterate or "
        "enter it in the function",
        returned=map(print, "abc"),
    ),
    "raises a permitted error": Ending(OK, POLICY_S, MISSING_ERROR),
    "raises an error that is not permitted": Ending(BAD, None, BROKEN_ERROR),
    "raises what is no `Exception`, such as `SystemExit`, and the policy has no `only=`": Ending(
        SystemExit(3), POLICY_S, "SystemExit: 3", policy=replace(POLICY, only=())
    ),
    "raises what is no `Exception`, and `only=` does not select it": Ending(
        SystemExit(3), None, "SystemExit: 3"
    ),
    "exceeds its `timeout=`, and `TimeoutError` is permitted": Ending(
        None,
        POLICY_S,
        "TimeoutError: the job ran longer than its timeout of 0.1 seconds",
        timeout_s=0.1,
    ),
    "raises `Retry`": Ending(retry(120, BAD), 120, BROKEN_ERROR),
    "raises `Snooze`": Ending(Snooze(180), 180),
    "raises `Abort`": Ending(Abort("closed"), None, "Abort: closed"),
    "raises a group of permitted errors": Ending(
        group(OK, ConnectionError(), TimeoutError()), POLICY_S, f"{MISSING_ERROR} (and 2 more)"
    ),
    "raises a group with an error that is not permitted": Ending(
        group(OK, InterruptedError()), None, f"{MISSING_ERROR} (and 1 more)"
    ),
    "raises a group with `Abort`": Ending(
        group(OK, retry(120), Snooze(60), Abort("closed")), None, "Abort: closed (and 3 more)"
    ),
    "raises a group with `Retry` and permitted errors": Ending(
        group(retry(120), OK, retry(240)), 240, f"{MISSING_ERROR} (and 2 more)"
    ),
    "raises a group with `Retry` and an error that is not permitted": Ending(
        group(retry(120), BAD), None, f"{BROKEN_ERROR} (and 1 more)"
    ),
    "raises a group of `Retry` only": Ending(
        group(retry(120, BAD), retry(240)), 240, f"{BROKEN_ERROR} (and 1 more)"
    ),
    "raises a group with `Snooze` and permitted errors": Ending(
        group(Snooze(60), OK), POLICY_S, f"{MISSING_ERROR} (and 1 more)"
    ),
    "raises a group with `Snooze` and `Retry`": Ending(
        group(Snooze(600), retry(120, BAD)), 120, f"{BROKEN_ERROR} (and 1 more)"
    ),
    "raises a group of `Snooze` only": Ending(group(Snooze(60), Snooze(180)), 180),
}


def ending_function(ending: Ending, name: str) -> Callable[[], Awaitable[object]]:
    async def end() -> object:
        if ending.timeout_s is not None:
            await asyncio.Event().wait()
        if ending.raised is not None:
            raise ending.raised
        return ending.returned

    end.__qualname__ = name  # it identifies a function that is registered
    return end


def test_table_of_the_reference_has_a_row_for_each_ending() -> None:
    assert [row.function for row in rows()] == list(ENDINGS)


async def test_every_row_of_the_reference_is_true(make: Make) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    for number, ending in enumerate(ENDINGS.values()):
        timeout = None if ending.timeout_s is None else timedelta(seconds=ending.timeout_s)
        function = ending_function(ending, f"end_{number}")
        scheduler.register(
            function, name=f"ends.{number}", max_retries=2, retry=ending.policy, timeout=timeout
        )
        await scheduler.enqueue(f"ends.{number}", job_id=str(number))
    await scheduler.start()
    for number, (row, ending) in enumerate(zip(rows(), ENDINGS.values(), strict=True)):
        event = await end_of(seen, str(number))
        job = await scheduler.get_job(str(number))
        assert job is not None
        about = f"{row.function}: {event}"
        assert job.status.value == row.status.strip("`"), about
        assert (job.retry_count, job.attempt) == (int(row.uses_retry == "yes"), 1), about
        assert job.error_message == ending.message, about
        delay = getattr(event, "delay", None)
        assert (None if delay is None else delay.total_seconds()) == ending.delay_s, about
        assert bool(row.delay) == (delay is not None), about
        assert bool(row.message) == (ending.message is not None), about


async def end_of(seen: Recorder, job_id: str) -> Event:
    """Return the event about the end of the first attempt of a job."""
    async with asyncio.timeout(PATIENCE):
        while True:
            for kind in ENDS:
                if events := seen.of(kind, job_id=job_id):
                    return events[0]
            seen._changed.clear()
            await seen._changed.wait()


async def failed(scheduler: Scheduler, name: str, **options: Any) -> Job:
    """Run a job that fails, and return it."""
    seen = Recorder(scheduler)
    job_id = await scheduler.enqueue(name, **options)
    await seen.until(JobFailed, job_id=job_id)
    job = await scheduler.get_job(job_id)
    assert job is not None
    return job


async def connect() -> None:
    raise ConnectionError("no answer from the bank")


async def in_group() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(connect())


async def test_history_and_result_of_a_group_name_its_exception_and_have_the_whole_traceback(
    make: Make,
) -> None:
    scheduler = make()
    scheduler.register(in_group, name="grouped", keep_result=timedelta(hours=1))
    await scheduler.start()
    job = await failed(scheduler, "grouped")
    (entry,) = job.errors
    assert (entry.error_type, entry.message) == ("ConnectionError", "no answer from the bank")
    assert entry.traceback is not None
    assert re.search(r"ExceptionGroup.*\(1 sub-exception\).*in connect", entry.traceback, re.DOTALL)
    result: JobResult = await scheduler.get_job_result(job.job_id)
    assert result.error is not None
    assert (result.error.type, result.error.message) == ("ConnectionError", "no answer from the bank")
    assert "in connect" in str(result.error.traceback)


async def test_alert_of_a_group_names_its_exception(make: Make) -> None:
    scheduler, alerts = make(), asyncio.Queue[str | None]()

    async def alert(error: str | None, **_: object) -> None:
        alerts.put_nowait(error)

    scheduler.register(alert, name="alert")
    scheduler.register(in_group, name="grouped", on_failure="alert")
    await scheduler.start()
    await scheduler.enqueue("grouped")
    assert await asyncio.wait_for(alerts.get(), PATIENCE) == "ConnectionError: no answer from the bank"


def in_process(kind: str) -> None:
    """Raise a group in a child process."""
    leaves: dict[str, list[Exception]] = {
        "abort": [OSError("x"), Abort("closed")],
        "snooze": [Snooze(60), Snooze(180)],
    }
    raise ExceptionGroup("errors", leaves.get(kind, [ConnectionError("no answer"), KeyError("k")]))


@pytest.mark.slow
async def test_groups_of_child_processes_act_as_those_of_the_loop(make: Make) -> None:
    scheduler = make(executors={"process": ProcessExecutor(1)})
    seen = Recorder(scheduler)
    scheduler.register(in_process, name="process", executor="process", max_retries=3, retry=POLICY)
    await scheduler.start()
    for kind in ("abort", "snooze", "never"):
        await scheduler.enqueue("process", args=(kind,), job_id=kind)
    await seen.until(JobFailed, job_id="abort", error="Abort: closed (and 1 more)")
    (snoozed,) = await seen.until(JobSnoozed, job_id="snooze")
    assert snoozed.delay == timedelta(seconds=180)
    await seen.until(JobFailed, job_id="never", error="ConnectionError: no answer (and 1 more)")
    job = await scheduler.get_job("never")
    assert job is not None
    assert "KeyError: 'k'" in str(job.errors[0].traceback)


def retry_later() -> None:
    raise Retry(3600)


@pytest.mark.slow
async def test_retry_without_a_cause_is_the_error_of_a_job_in_a_process_as_in_a_thread(make: Make) -> None:
    scheduler = make(executors={"process": ProcessExecutor(1)})
    seen = Recorder(scheduler)
    keep = timedelta(hours=1)
    scheduler.register(retry_later, name="thread", keep_result=keep)
    scheduler.register(retry_later, name="process", executor="process", keep_result=keep)
    await scheduler.start()
    for name in ("thread", "process"):
        job_id = await scheduler.enqueue(name)
        await seen.until(JobFailed, job_id=job_id, error="Retry: run again in 1:00:00")
        job = await scheduler.get_job(job_id)
        assert job is not None
        assert job.errors[0].error_type == "pg_scheduler.Retry"
        assert "in retry_later" in str(job.errors[0].traceback)
        result: JobResult = await scheduler.get_job_result(job_id)
        assert result.error is not None
        assert (result.error.type, result.error.message) == ("Retry", "run again in 1:00:00")
