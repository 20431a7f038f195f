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

from pg_scheduler.base.messages import LOG, STACK, Look
from pg_scheduler.jobs.history import kept_log
from pg_scheduler.jobs.progress import JobProgress
from pg_scheduler.jobs.task import TaskOptions
from pg_scheduler.worker import looks as module
from pg_scheduler.worker.executor import Executor
from pg_scheduler.worker.in_flight import Revocation
from pg_scheduler.worker.looks import MAX_LOOKS, LookWriter
from pg_scheduler.worker.service import NEVER
from tests.support.logs import keeping_lines
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
