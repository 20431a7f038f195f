"""Progress is written at most once a second, for all jobs at once, and before the end of an attempt."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobProgress, current_job
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import JobCompleted, JobFailed, JobProgressed, JobRetried
from tests.support import inside
from tests.support.inside import NEVER, Revocation, Store
from tests.support.parts import Parts
from tests.support.worker import Gate, Recorder, claim, holds, new_job

JOB = ("a", "test.job", 1)


class Steps:
    """A job that reports progress, and waits after each report."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.numbers: list[int] = []

    async def job(self, *, fails: bool = False) -> None:
        for number in self.numbers:
            current_job().progress(number)
        await self.gate.job()
        current_job().progress(10, 10, "all")
        if fails:
            raise ValueError("no")


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def steps(gate: Gate) -> Steps:
    return Steps(gate)


def count_writes(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Note the reports of each statement."""
    calls: list[dict[str, Any]] = []
    write = parts.store.progress.write_progress

    async def noted(worker_id: str, reports: Any) -> set[str]:
        calls.append({job_id: progress.done for job_id, (_, progress) in reports.items()})
        return await write(worker_id, reports)

    monkeypatch.setattr(parts.store.progress, "write_progress", noted)
    return calls


async def stored(parts: Parts, job_id: str = "a") -> JobProgress | None:
    job = await parts.store.jobs.get_job(job_id)
    assert job is not None
    return job.progress


async def test_writer_executes_no_statement_when_jobs_report_nothing(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def job() -> None: ...

    calls = count_writes(parts, monkeypatch)
    parts.tasks.register(job, name="test.job")
    completer = parts.completer()
    await parts.run(parts.executor(completer), new_job("a"))
    await completer.run_once()
    assert await parts.progress.run_once() == NEVER
    assert calls == []


async def test_writer_writes_the_last_report_of_all_jobs_at_once_and_waits_for_its_gap(
    parts: Parts, seen: Recorder, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, progress_gap_s=3600.0)
    calls = count_writes(parts, monkeypatch)
    steps.numbers = [1, 2, 3]
    parts.tasks.register(steps.job, name="test.job")
    completer = parts.completer()
    executor = parts.executor(completer)
    for each in await claim(parts.store, new_job("a"), new_job("b")):
        executor.submit(each)
        await steps.gate.wait_begun()
    assert await parts.progress.run_once() == NEVER, "nothing is left"
    assert calls == [{"a": 3, "b": 3}]
    steps.gate.open.set()
    await parts.ended(executor)
    assert 0 < await parts.progress.run_once() <= 3600, "the last statement was just now"
    assert len(calls) == 1
    await completer.run_once()
    assert calls[1:] == [{"a": 10, "b": 10}], "the completer writes it before the outcome"
    assert await parts.progress.run_once() == NEVER
    assert await stored(parts) == JobProgress(10, 10, "all")
    about = [type(each) for each in seen.events if getattr(each, "job_id", "") == "a"]
    assert about[-2:] == [JobProgressed, JobCompleted]
    assert seen.of(JobProgressed, job_id="a") == [
        JobProgressed(*JOB, done=3),
        JobProgressed(*JOB, done=10, total=10, note="all"),
    ]


@pytest.mark.parametrize(("retries", "kind"), [(0, JobFailed), (1, JobRetried)])
async def test_progress_is_written_before_an_attempt_fails_and_kept_for_the_retry(
    retries: int, kind: Any, parts: Parts, seen: Recorder, steps: Steps
) -> None:
    steps.gate.open.set()
    parts.tasks.register(steps.job, name="test.job")
    completer = parts.completer()
    job = new_job("a", task_data='{"args":[],"kwargs":{"fails":true}}', max_retries=retries)
    await parts.run(parts.executor(completer), job)
    await completer.run_once()
    assert [type(each) for each in seen.events[-2:]] == [JobProgressed, kind]
    assert await stored(parts) == JobProgress(10, 10, "all")


async def test_report_during_a_statement_is_kept_for_the_next(
    parts: Parts, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps.numbers = [1]
    parts.tasks.register(steps.job, name="test.job")
    (held,) = await claim(parts.store, new_job("a"))
    executor = parts.executor()
    executor.submit(held)
    await steps.gate.wait_begun()
    write = parts.store.progress.write_progress

    async def late(worker_id: str, reports: Any) -> set[str]:
        parts.progress.report(held, JobProgress(2))
        return await write(worker_id, reports)

    monkeypatch.setattr(parts.store.progress, "write_progress", late)
    assert await parts.progress.run_once() == 1
    assert await stored(parts) == JobProgress(1)
    assert parts.progress.has(held)
    steps.gate.open.set()
    await parts.ended(executor)


async def test_writer_drops_the_report_of_a_lost_attempt_and_keeps_that_of_the_new_one(
    parts: Parts, seen: Recorder, steps: Steps, pool: asyncpg.Pool
) -> None:
    steps.numbers = [1]
    parts.tasks.register(steps.job, name="test.job")
    (held,) = await claim(parts.store, new_job("a"))
    executor = parts.executor()
    executor.submit(held)
    await steps.gate.wait_begun()
    await pool.execute("UPDATE scheduled_jobs SET attempt = 2")
    assert await parts.progress.run_once() == 1, "the worker may still hold it: the row may have been locked"
    newer = held._replace(attempt=2)
    parts.progress.report(newer, JobProgress(5))
    parts.progress.report(held, JobProgress(2))
    assert (parts.progress.has(newer), holds(parts.progress.has(held))) == (True, False)
    parts.in_flight.revoke_all(Revocation.LOST)
    await parts.ended(executor)
    await parts.progress.write_last([held, newer])
    assert await stored(parts) == JobProgress(5)
    parts.progress.report(held, JobProgress(3))
    await parts.progress.write_last([held])
    assert not holds(parts.progress.has(held)), "refused, and the attempt has ended"
    assert await stored(parts) == JobProgress(5)
    assert [each.done for each in seen.of(JobProgressed)] == [5]


async def test_completer_writes_progress_and_outcome_after_an_outage(
    parts: Parts, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps.gate.open.set()
    parts.tasks.register(steps.job, name="test.job")
    completer = parts.completer()
    await parts.run(parts.executor(completer), new_job("a"))

    async def fail(*_: object) -> set[str]:
        raise DatabaseUnavailableError("refused")

    with monkeypatch.context() as outage:
        outage.setattr(parts.store.progress, "write_progress", fail)
        with pytest.raises(DatabaseUnavailableError):
            await completer.run_once()
    await completer.run_once()
    assert await stored(parts) == JobProgress(10, 10, "all")
    assert not parts.result_buffer.has_results


async def test_report_of_a_thread_wakes_the_writer(parts: Parts, store: Store, seen: Recorder) -> None:
    (held,) = await claim(store, new_job("a"))
    await parts.progress.start()
    await asyncio.to_thread(parts.progress.report, held, JobProgress(1))
    await seen.until(JobProgressed)
    await parts.progress.stop()
    parts.progress.report(held, JobProgress(2))
    assert await stored(parts) == JobProgress(1), "a thread that outlives the worker writes nothing"
