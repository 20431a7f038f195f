"""Calls of several statements that end after one of them: a caller is cancelled, or loses the database.

Each test ends a call after its n-th statement, for every n. The workers poll for pauses and schedules every
two minutes, which is longer than a test waits: so they learn of a change by a notification.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError, JobStatus, Scheduler
from pg_scheduler.events import JobCompleted, TaskResumed
from pg_scheduler.triggers import Every
from tests.api.conftest import Make
from tests.api.test_tasks_facet import until_claimed
from tests.support import inside
from tests.support.inside import store_of
from tests.support.worker import PATIENCE, Gate, Recorder, now

pytestmark = pytest.mark.usefixtures("own_catalogue")

NAME = "mail.send"
CUTS = (asyncio.CancelledError, DatabaseUnavailableError)
MAX_STATEMENTS = 20


class Interruption:
    """Ends the calls of a Scheduler after so many statements, each of which was committed."""

    def __init__(self, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
        self.remaining: int | None = None
        self.error: type[BaseException] = asyncio.CancelledError
        statements = store_of(scheduler).statements
        fetch = statements.fetch

        async def interrupted(*args: Any, **options: Any) -> Any:
            rows = await fetch(*args, **options)
            if self.remaining is not None and options.get("on") is None:
                self.remaining -= 1
                if self.remaining <= 0:
                    self.remaining = None
                    raise self.error
            return rows

        monkeypatch.setattr(statements, "fetch", interrupted)

    async def end(self, call: Awaitable[object], after: int, error: type[BaseException]) -> bool:
        """Make a call, and end it after so many statements; return False if it has fewer."""
        self.remaining, self.error = after, error
        try:
            await call
        except CUTS:
            return True
        finally:
            self.remaining = None
        return False


@pytest.fixture
def caller(make: Make) -> Scheduler:
    """Return a Scheduler that is not started, as that of a web application."""
    return make(identity="caller", misfire_grace_time=60)


@pytest.fixture
def interruption(caller: Scheduler, monkeypatch: pytest.MonkeyPatch) -> Interruption:
    return Interruption(caller, monkeypatch)


@pytest.fixture
async def worker(make: Make, open_gate: Gate) -> Scheduler:
    worker = make(identity="worker")
    worker.register(open_gate.job, name=NAME)
    await worker.start()
    return worker


@pytest.mark.parametrize("error", CUTS)
@pytest.mark.parametrize("suspends", [False, True])
async def test_interrupted_resumption_takes_effect_on_the_workers(
    caller: Scheduler,
    interruption: Interruption,
    worker: Scheduler,
    suspends: bool,
    error: type[BaseException],
) -> None:
    seen = Recorder(worker)
    hour_ago = now() - timedelta(hours=1)
    for count in range(1, MAX_STATEMENTS):
        assert await caller.tasks.pause(NAME, suspend_expiry=suspends)
        await until_claimed(worker, seen, NAME, False)
        due, grace = (hour_ago, 60) if suspends else (now(), None)
        job_id = await caller.schedule_job(NAME, due, {}, misfire_grace_time=grace)
        was_cut = await interruption.end(caller.tasks.resume(NAME), count, error)
        await seen.until(JobCompleted, job_id=job_id)
        assert await caller.tasks.list() == []
        if not was_cut:
            break
    else:
        pytest.fail("the call has too many statements")


@pytest.mark.parametrize("suspends", [False, True])
async def test_interrupted_pause_takes_effect_on_the_workers(
    caller: Scheduler, interruption: Interruption, worker: Scheduler, suspends: bool
) -> None:
    seen = Recorder(worker)
    assert await interruption.end(
        caller.tasks.pause(NAME, suspend_expiry=suspends), 1, asyncio.CancelledError
    )
    await until_claimed(worker, seen, NAME, False)


async def test_resumption_that_does_the_rest_of_an_interrupted_one_says_so(
    make: Make, caller: Scheduler, interruption: Interruption
) -> None:
    seen = Recorder(caller)
    await caller.tasks.pause(NAME, suspend_expiry=True)
    assert await interruption.end(caller.tasks.resume(NAME), 1, asyncio.CancelledError)
    assert [info.name for info in await caller.tasks.list()] == [NAME], "no worker has ended it"
    assert seen.of(TaskResumed) == []
    assert await caller.tasks.resume(NAME)
    assert await caller.tasks.list() == []
    assert seen.of(TaskResumed) == [TaskResumed(NAME, actor="caller")]
    assert not await caller.tasks.resume(NAME)


async def test_workers_end_a_pause_while_a_call_waits_for_a_lock(
    caller: Scheduler, worker: Scheduler, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is cancelled while it waits, as by the time limit of a request."""
    inside.replace(monkeypatch, patience_of_renewal_of_pause_s=PATIENCE)
    seen = Recorder(worker)
    await caller.tasks.pause(NAME, suspend_expiry=True)
    await until_claimed(worker, seen, NAME, False)
    job_ids = [await caller.schedule_job(NAME, now() - timedelta(hours=1), {}) for _ in range(2)]
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs WHERE job_id = $1 FOR UPDATE", job_ids[0])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):  # the subject is a call that is cancelled while it waits
                await caller.tasks.resume(NAME)
    for job_id in job_ids:
        await seen.until(JobCompleted, job_id=job_id)
        job = await caller.get_job(job_id)
        assert job
        assert job.status is JobStatus.COMPLETED


@asynccontextmanager
async def heard(caller: Scheduler, dsn: str) -> AsyncIterator[asyncio.Queue[str]]:
    """Yield the notifications of the schema."""
    messages: asyncio.Queue[str] = asyncio.Queue()
    connection = await asyncpg.connect(dsn)
    try:
        channel = await store_of(caller).statements.channel()
        await connection.add_listener(channel, lambda *args: messages.put_nowait(args[-1]))
        yield messages
    finally:
        await connection.close()


async def until_heard(messages: asyncio.Queue[str], message: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while await messages.get() != message:
            pass


@pytest.mark.parametrize("error", CUTS)
@pytest.mark.parametrize("method", ["add", "update", "resume"])
async def test_interrupted_change_of_a_schedule_wakes_the_planners(
    caller: Scheduler, dsn: str, monkeypatch: pytest.MonkeyPatch, method: str, error: type[BaseException]
) -> None:
    await caller.schedules.add(NAME, Every(hours=1), schedule_id="old")
    await caller.schedules.pause("old")
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "add": lambda: caller.schedules.add(NAME, Every(hours=1), schedule_id="new"),
        "update": lambda: caller.schedules.update("old", trigger=Every(minutes=1)),
        "resume": lambda: caller.schedules.resume("old"),
    }
    owner: Any = store_of(caller).schedules if method == "resume" else caller.schedules._calls
    write = getattr(owner, method)

    async def committed(*args: Any, **options: Any) -> None:
        await write(*args, **options)
        raise error

    monkeypatch.setattr(owner, method, committed)
    async with heard(caller, dsn) as messages:
        with pytest.raises(error):
            await calls[method]()
        await until_heard(messages, "periodic")
