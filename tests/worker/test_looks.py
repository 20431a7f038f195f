"""What people see of a running attempt: its last log lines while they look, and its stack when they ask."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobProgress
from pg_scheduler.base.messages import LOG, STACK, Look
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.jobs.history import kept_log
from pg_scheduler.worker import looks as module
from pg_scheduler.worker.executor import Executor
from pg_scheduler.worker.looks import MAX_LOOKS, LookWriter
from tests.support.inside import NEVER, Claim, Revocation, TaskOptions
from tests.support.logs import keeping_lines, warnings_of
from tests.support.parts import Parts
from tests.support.worker import PATIENCE, claim, new_job

logger = logging.getLogger("looks")


@pytest.fixture
def kept_lines_of_jobs() -> Iterator[None]:
    with keeping_lines(logger):
        yield


class Talker:
    """A job that logs what a test says, until it may end."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[str | None] = asyncio.Queue()

    async def job(self) -> None:
        await self.talk()

    async def talk(self) -> None:
        while (line := await self.lines.get()) is not None:
            logger.warning(line)

    async def say(self, line: str | None) -> None:
        self.lines.put_nowait(line)
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def talker(parts: Parts) -> Talker:
    talker = Talker()
    parts.tasks.register(talker.job, name="test.job")
    return talker


@pytest.fixture
async def writer(parts: Parts) -> LookWriter:
    return LookWriter(parts)


async def submit(parts: Parts, *job_ids: str) -> Executor:
    executor = parts.executor()
    for held in await claim(parts.store, *map(new_job, job_ids)):
        executor.submit(held)
    await asyncio.sleep(0)
    return executor


async def seen_of(pool: asyncpg.Pool, job_id: str = "a") -> Any:
    text = await pool.fetchval("SELECT progress -> 'look' FROM scheduled_jobs WHERE job_id = $1", job_id)
    return None if text is None else json.loads(text)


def look(parts: Parts, what: str = LOG, job_id: str = "a") -> None:
    parts.looks.append(Look("me", what, job_id))


async def write_look(parts: Parts, writer: LookWriter) -> None:
    """Start the job "a", and write what somebody who looks at it sees."""
    await submit(parts, "a")
    look(parts)
    await writer.run_once()


@pytest.mark.usefixtures("kept_lines_of_jobs")
async def test_last_lines_are_written_while_somebody_looks(
    parts: Parts, pool: asyncpg.Pool, talker: Talker, writer: LookWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit(parts, "a")
    await talker.say("one")
    assert await writer.run_once() == NEVER
    assert await seen_of(pool) is None, "nobody looks"
    look(parts)
    assert await writer.run_once() == module.GAP_S
    assert await seen_of(pool) == {"attempt": 1, "log": ["one"]}
    version = "SELECT xmin::text FROM scheduled_jobs"
    before = await pool.fetchval(version)
    await writer.run_once()
    assert await pool.fetchval(version) == before, "nothing has changed"
    await talker.say("two")
    claimed = parts.in_flight.attempts["a"].claim
    await parts.store.progress.write_progress("me", {"a": (claimed, JobProgress(1, 2))})
    await writer.run_once()
    assert (await seen_of(pool))["log"] == ["one", "two"]
    assert (await parts.store.jobs.get_jobs(["a"]))[0].progress == JobProgress(1, 2), "its report stays"
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    look(parts)
    assert await writer.run_once() == NEVER, "the minute is over"
    assert await seen_of(pool) is None
    assert (await parts.store.jobs.get_jobs(["a"]))[0].progress == JobProgress(1, 2)


async def test_lines_are_removed_when_the_job_has_ended_or_was_cancelled(
    parts: Parts, pool: asyncpg.Pool, talker: Talker, writer: LookWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_log, "is_used", False)  # the handlers of other tests have set it
    await submit(parts, "a", "b")
    for job_id in "ab":
        look(parts, job_id=job_id)
    await writer.run_once()
    assert await seen_of(pool) == {"attempt": 1}, "no handler keeps lines"
    parts.in_flight.revoke("a", 1, Revocation.CANCELLED)
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'cancelled', finished_at = now() WHERE job_id = 'a'"
    )
    await writer.run_once()
    assert await pool.fetchval("SELECT progress FROM scheduled_jobs WHERE job_id = 'a'") is None
    assert await seen_of(pool, "b") is not None
    await writer.drain()
    assert await seen_of(pool, "b") is None


async def test_attempt_of_another_worker_is_not_written(
    parts: Parts, pool: asyncpg.Pool, talker: Talker, writer: LookWriter
) -> None:
    await submit(parts, "a")
    await pool.execute("UPDATE scheduled_jobs SET attempt = 2")
    look(parts)
    look(parts, job_id="elsewhere")
    await writer.run_once()
    assert await seen_of(pool) is None


async def test_locked_row_is_written_by_a_later_pass(
    parts: Parts, pool: asyncpg.Pool, talker: Talker, writer: LookWriter
) -> None:
    await submit(parts, "a")
    look(parts)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs FOR UPDATE")
        async with asyncio.timeout(PATIENCE):
            await writer.run_once()
    assert await seen_of(pool) is None
    await writer.run_once()
    assert await seen_of(pool) is not None


async def test_log_is_removed_when_its_row_is_free_after_the_look(
    parts: Parts, pool: asyncpg.Pool, talker: Talker, writer: LookWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_look(parts, writer)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs FOR UPDATE")
        monkeypatch.setattr(module, "LOOK_S", 0.0)
        look(parts)
        assert await writer.run_once() == module.GAP_S, "the row is locked when the look ends"
        assert await writer.run_once() == module.GAP_S
    assert await seen_of(pool) is not None
    assert await writer.run_once() == NEVER
    assert await seen_of(pool) is None


async def test_look_that_begins_again_before_the_log_was_removed_shows_it(
    parts: Parts, pool: asyncpg.Pool, talker: Talker, writer: LookWriter
) -> None:
    await write_look(parts, writer)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs FOR UPDATE")
        writer._jobs["a"].until = 0.0
        assert await writer.run_once() == module.GAP_S
    look(parts)
    await writer.run_once()
    await writer.run_once()
    assert await seen_of(pool) is not None
    writer._jobs["a"].until = 0.0
    assert await writer.run_once() == NEVER
    assert await seen_of(pool) is None


@pytest.mark.parametrize(
    "change",
    [
        "status = 'completed', finished_at = now(), lease_until = NULL",
        "status = 'pending', worker_id = NULL, lease_until = NULL",
        "attempt = 2, worker_id = 'other'",
    ],
)
async def test_log_is_removed_from_a_row_that_was_locked_until_the_job_had_another_state(
    parts: Parts, pool: asyncpg.Pool, talker: Talker, writer: LookWriter, change: str
) -> None:
    await write_look(parts, writer)
    parts.in_flight.revoke("a", 1, Revocation.CANCELLED)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(f"UPDATE scheduled_jobs SET {change}")
        assert await writer.run_once() == module.GAP_S
    assert await writer.run_once() == NEVER
    assert await pool.fetchval("SELECT progress FROM scheduled_jobs") is None


async def test_log_of_a_later_attempt_on_another_worker_stays(
    parts: Parts, pool: asyncpg.Pool, talker: Talker, writer: LookWriter
) -> None:
    await write_look(parts, writer)
    later = {"attempt": 2, "log": ["later"]}
    await pool.execute(
        "UPDATE scheduled_jobs SET attempt = 2, worker_id = 'other',"
        " progress = jsonb_build_object('look', $1::jsonb)",
        json.dumps(later),
    )
    await writer.drain()
    assert await seen_of(pool) == later


async def test_worker_that_stops_waits_for_a_locked_row_to_remove_the_log(
    parts: Parts, pool: asyncpg.Pool, talker: Talker, writer: LookWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DRAIN_S", PATIENCE)
    remove, was_refused = parts.store.progress.remove_look, asyncio.Event()

    async def observed(claim: Claim) -> bool:
        is_removed = await remove(claim)
        if not is_removed:
            was_refused.set()
        return is_removed

    monkeypatch.setattr(parts.store.progress, "remove_look", observed)
    await submit(parts, "a", "b")
    for job_id in "ab":
        look(parts, job_id=job_id)
    await writer.run_once()
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs WHERE job_id = 'a' FOR UPDATE")
        drain = asyncio.create_task(writer.drain())
        await asyncio.wait_for(was_refused.wait(), PATIENCE)
    await drain
    assert [await seen_of(pool, job_id) for job_id in "ab"] == [None, None]


async def test_worker_that_stops_names_the_job_whose_row_stays_locked(
    parts: Parts,
    pool: asyncpg.Pool,
    writer: LookWriter,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "DRAIN_S", 0.0)
    parts.tasks.register(Talker().job, name="test.job")
    await write_look(parts, writer)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs FOR UPDATE")
        await writer.drain()
    (warning,) = warnings_of(caplog)
    assert "the log of job 'a' that people followed stays in its row" in warning


async def test_log_is_removed_after_an_outage_in_which_the_look_ended(
    parts: Parts, pool: asyncpg.Pool, talker: Talker, writer: LookWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement that wrote the log was committed, and its answer was lost."""
    progress = parts.store.progress
    write, remove = progress.write_look, progress.remove_look

    async def write_and_lose(*args: Any) -> bool:
        await write(*args)
        raise DatabaseUnavailableError("away")

    async def lose(*args: Any) -> bool:
        raise DatabaseUnavailableError("away")

    monkeypatch.setattr(progress, "write_look", write_and_lose)
    monkeypatch.setattr(progress, "remove_look", lose)
    await submit(parts, "a")
    look(parts)
    for _ in range(2):
        with pytest.raises(DatabaseUnavailableError):
            await writer.run_once()
        writer._jobs.get("a", module._WatchedJob(0.0)).until = 0.0
    assert await seen_of(pool) is not None
    monkeypatch.setattr(progress, "remove_look", remove)
    assert await writer.run_once() == NEVER
    assert await seen_of(pool) is None


async def test_people_look_at_a_bounded_number_of_jobs(
    parts: Parts, pool: asyncpg.Pool, talker: Talker, writer: LookWriter
) -> None:
    parts.configure(max_concurrent_jobs=MAX_LOOKS + 1)
    await submit(parts, *map(str, range(MAX_LOOKS + 1)))
    for number in range(MAX_LOOKS + 1):
        look(parts, job_id=str(number))
    await writer.run_once()
    found = await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE progress -> 'look' IS NOT NULL")
    assert found == MAX_LOOKS


async def test_stack_of_a_coroutine_has_its_own_frames(
    parts: Parts, pool: asyncpg.Pool, talker: Talker, writer: LookWriter
) -> None:
    await submit(parts, "a")
    await talker.say("begun")
    look(parts, STACK)
    await writer.run_once()
    stack = (await seen_of(pool))["stack"]
    lines = stack["text"].splitlines()
    assert "in job" in lines[0]
    assert lines[1].strip() == "await self.talk()"
    assert "in talk" in lines[2]
    await writer.run_once()
    assert (await seen_of(pool))["stack"] == stack, "it is taken once"


async def test_stack_of_a_thread_has_its_own_frames(
    parts: Parts, pool: asyncpg.Pool, writer: LookWriter
) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def job() -> None:
        has_begun.set()
        may_end.wait(PATIENCE)

    parts.tasks.register(job, name="test.job", options=TaskOptions(executor="thread"))
    await submit(parts, "a")
    assert await asyncio.to_thread(has_begun.wait, PATIENCE)
    look(parts, STACK)
    await writer.run_once()
    text = (await seen_of(pool))["stack"]["text"]
    assert "in job" in text.splitlines()[0]
    assert "may_end.wait(PATIENCE)" in text
    (attempt,) = parts.in_flight.attempts.values()
    assert attempt.call is not None
    attempt.call.thread = None  # as in a child process, and with executors that do not set it
    look(parts, STACK)
    await writer.run_once()
    assert "text" not in (await seen_of(pool))["stack"]
    may_end.set()


def test_message_with_another_form_is_no_request() -> None:
    sent = Look("me", LOG, "a job: 1")
    assert Look.of(sent.message.partition(" ")[2]) == sent
    assert Look.of("me log") is None
