"""Signals are stored for a job before or while it waits, the first value of a name once."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel

from pg_scheduler import (
    ConflictResolution,
    JobNotFoundError,
    JobStatus,
    PayloadError,
    RetryPolicy,
)
from pg_scheduler.events import JobCompleted
from pg_scheduler.sync import SyncScheduler
from tests.api.conftest import Make
from tests.support import inside
from tests.support.codecs import KeyedCodec
from tests.support.transactions import KINDS, application, settled
from tests.support.worker import PATIENCE, Recorder

HOUR = timedelta(hours=1)
LATER = datetime(2099, 1, 1, tzinfo=UTC)
INFINITE = datetime(9999, 1, 1, tzinfo=UTC)


class Approval(BaseModel):
    by: str
    at: datetime | None = None


async def work() -> None: ...


async def values(pool: asyncpg.Pool, job_id: str = "job") -> dict[str, Any]:
    rows = await pool.fetch("SELECT name, value FROM scheduler_steps WHERE job_id = $1", job_id)
    return {row["name"]: json.loads(row["value"]) for row in rows}


async def mark(pool: asyncpg.Pool, job_id: str = "job") -> Any:
    text = await pool.fetchval("SELECT options ->> 'steps' FROM scheduled_jobs WHERE job_id = $1", job_id)
    return None if text is None else int(text)


async def suspend(pool: asyncpg.Pool, name: str = "go", *, kind: str = "signal") -> None:
    """Let the job wait for a signal until the year 9999, as steps.wait() does."""
    options = {"steps": 1, "suspended": {"attempt": 1, "steps": [name]}}
    await pool.execute(
        "UPDATE scheduled_jobs SET attempt = 1, options = $2, execution_time = $1",
        INFINITE,
        json.dumps(options),
    )
    await pool.execute(
        "INSERT INTO scheduler_steps (job_id, name, kind, attempt, until, started_at)"
        " VALUES ('job', $1, $2, 1, $3, now())",
        name,
        kind,
        INFINITE,
    )


async def test_first_value_of_a_signal_is_kept(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    await scheduler.schedule(work, execution_time=LATER, job_id="job")
    assert await mark(pool) is None
    assert await scheduler.signal("job", "go", {"n": [1, None]}) is True
    assert await scheduler.signal("job", "go", "another") is False
    assert await scheduler.signal("job", "stop") is True
    assert await values(pool) == {"go": {"n": [1, None]}, "stop": None}
    assert await mark(pool) == 0


async def test_signal_keeps_the_other_options_of_a_job(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    await scheduler.schedule(work, execution_time=LATER, job_id="job", keep_result=HOUR)
    assert await scheduler.signal("job", "go")
    options = await pool.fetchval("SELECT options FROM scheduled_jobs")
    assert json.loads(options) | {"definition": ""} == {"keep_result": 3600, "steps": 0, "definition": ""}


async def test_signal_to_a_job_that_has_ended_is_refused(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    await scheduler.schedule(work, execution_time=LATER, job_id="job")
    await scheduler.cancel_job("job")
    assert await scheduler.signal("job", "go") is False
    assert await values(pool) == {}


async def test_signal_to_an_unknown_job_raises(make: Make) -> None:
    with pytest.raises(JobNotFoundError, match="'job'"):
        await make().signal("job", "go")
    with pytest.raises(JobNotFoundError, match="'job'"):
        await make(codec=KeyedCodec("k1")).signal("job", "go")


async def test_signal_to_a_wait_that_has_timed_out_is_refused(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    await scheduler.schedule(work, execution_time=LATER, job_id="job")
    await suspend(pool)
    await pool.execute("UPDATE scheduler_steps SET ended_at = now()")
    assert await scheduler.signal("job", "go") is False


async def test_signal_does_not_replace_a_step_of_its_name(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    await scheduler.schedule(work, execution_time=LATER, job_id="job")
    for kind in ("step", "cursor", "sleep", "child"):
        await suspend(pool, kind, kind=kind)
        assert await scheduler.signal("job", kind) is False


async def test_rows_of_an_earlier_job_of_the_id_count_for_nothing(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    replace: dict[str, Any] = {"job_id": "job", "conflict_resolution": ConflictResolution.REPLACE}
    await scheduler.schedule(work, execution_time=LATER, **replace)
    assert await scheduler.signal("job", "go", "old")
    assert await scheduler.signal("job", "other", "old")
    await scheduler.schedule(work, execution_time=LATER, **replace)
    assert await mark(pool) is None
    assert await scheduler.signal("job", "go", "new")
    assert await values(pool) == {"go": "new"}


async def test_value_is_what_pydantic_serializes(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    await scheduler.schedule(work, execution_time=LATER, job_id="job")
    await scheduler.signal("job", "model", Approval(by="ann", at=datetime(2030, 1, 1, tzinfo=UTC)))
    await scheduler.signal("job", "list", [Approval(by="bob"), HOUR])
    assert await values(pool) == {
        "model": {"by": "ann", "at": "2030-01-01T00:00:00Z"},
        "list": [{"by": "bob"}, "PT1H"],
    }


@pytest.mark.parametrize(
    "value",
    [
        object(),
        float("nan"),
        "\x00",
        "\ud800",
        {"a": object()},
        dict.fromkeys(("codec", "key", "data", "job_name"), ""),
    ],
    ids=["object", "nan", "nul", "surrogate", "in", "encoded"],
)
async def test_value_that_json_cannot_represent_is_refused(
    value: Any, make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    await scheduler.schedule(work, execution_time=LATER, job_id="job")
    with pytest.raises(PayloadError, match="the value"):
        await scheduler.signal("job", "go", value)
    assert await mark(pool) is None


async def test_value_larger_than_a_result_may_be_is_refused(make: Make) -> None:
    scheduler = make(max_result_bytes=64)
    await scheduler.schedule(work, execution_time=LATER, job_id="job")
    with pytest.raises(PayloadError, match="the value has 65 bytes of JSON, more than max_result_bytes = 64"):
        await scheduler.signal("job", "go", "x" * 63)
    assert await scheduler.signal("job", "go", "x" * 62)


async def test_job_has_a_thousand_signals_at_most(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    await scheduler.schedule(work, execution_time=LATER, job_id="job")
    await scheduler.signal("job", "0")
    copies = """
        INSERT INTO scheduler_steps (job_id, name, kind, value, attempt, started_at, ended_at)
        SELECT job_id, n, $3, value, attempt, started_at, ended_at
        FROM scheduler_steps, generate_series($1::int, $2) AS n
        WHERE name = '0'
    """
    await pool.execute(copies, 1, 998, "signal")
    await pool.execute(copies, 2001, 4000, "result")  # of its predecessors, which are not counted
    assert await scheduler.signal("job", "999")
    with pytest.raises(PayloadError, match="no room for the signal '1000': it stores at most 1000 "):
        await scheduler.signal("job", "1000")
    assert await scheduler.signal("job", "999") is False


async def test_signals_of_a_job_have_so_many_bytes_at_most(
    make: Make, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = make()
    inside.replace(monkeypatch, signal_bytes=100)
    await scheduler.schedule(work, execution_time=LATER, job_id="job")
    assert await scheduler.signal("job", "one", "x" * 60)
    with pytest.raises(PayloadError, match=r"no room for the signal 'two'.* 100 bytes of JSON"):
        await scheduler.signal("job", "two", "x" * 60)
    assert await scheduler.signal("job", "one") is False


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("", ValueError, "must not be empty"),
        ("é" * 101, ValueError, "at most 200 bytes of UTF-8, not 202"),
        ("a\x00", ValueError, "the name of a signal .* contains a NUL"),
        (7, TypeError, "must be a str, not int: 7"),
    ],
)
async def test_name_that_no_row_can_have_is_refused(
    name: Any, error: type[Exception], message: str, make: Make
) -> None:
    with pytest.raises(error, match=message):
        await make().signal("job", name)


async def test_value_is_encoded_by_the_codec(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make(codec=KeyedCodec("k1"))
    await scheduler.schedule(work, execution_time=LATER, job_id="job")
    assert await scheduler.signal("job", "go", "topsecret")
    stored = (await values(pool))["go"]
    assert (stored["codec"], stored["key"]) == ("xor", "k1")
    assert "topsecret" not in json.dumps(stored)


async def test_signal_makes_a_suspended_job_due(make: Make, pool: asyncpg.Pool) -> None:
    worker, client = make(), make()
    worker.register(work, name="signals.work")
    seen = Recorder(worker)
    await worker.start()
    await client.enqueue("signals.work", delay=HOUR, job_id="job")
    await suspend(pool)
    assert await client.signal("job", "another")
    assert await pool.fetchval("SELECT execution_time FROM scheduled_jobs") == INFINITE
    assert await client.signal("job", "go", 7)
    async with asyncio.timeout(PATIENCE):  # polls are ten minutes apart
        await seen.until(JobCompleted)
    assert await values(pool) == {"go": 7, "another": None}


async def test_signal_does_not_wake_a_job_of_which_a_limit_has_no_room(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    await scheduler.schedule(work, execution_time=LATER, job_id="job")
    await suspend(pool)
    await pool.execute("UPDATE scheduled_jobs SET blocked_on = 'limit:x:'")
    assert await scheduler.signal("job", "go", 7)
    assert await pool.fetchval("SELECT execution_time FROM scheduled_jobs") == INFINITE


async def test_signal_changes_nothing_for_a_job_that_does_not_wait(make: Make, pool: asyncpg.Pool) -> None:
    """Such as one of a node that runs an earlier release, which has no steps."""
    attempts = 0

    async def fail_once() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            assert await scheduler.signal("job", "during")
            raise ValueError("once")

    scheduler = make(retry_policy=RetryPolicy(base=timedelta(milliseconds=1)))
    scheduler.register(fail_once, name="signals.fail_once")
    seen = Recorder(scheduler)
    await scheduler.enqueue("signals.fail_once", delay=0.01, max_retries=1, job_id="job")
    assert await scheduler.signal("job", "before")
    await scheduler.start()
    await seen.until(JobCompleted)
    job = await scheduler.get_job("job")
    assert job is not None
    assert (job.status, job.attempt, job.retry_count) == (JobStatus.COMPLETED, 2, 1)
    assert await scheduler.signal("job", "after") is False
    assert await values(pool) == {"before": None, "during": None}


@pytest.mark.parametrize("kind", KINDS)
async def test_signal_takes_effect_at_the_commit_of_the_caller(
    kind: str, dsn: str, pool: asyncpg.Pool, make: Make
) -> None:
    worker = make()
    worker.register(work, name="signals.work")
    seen = Recorder(worker)
    await worker.start()
    await worker.enqueue("signals.work", delay=HOUR, job_id="job")
    await suspend(pool)
    async with application(kind, dsn, pool) as app:
        assert await app.call("signal", "job", "go", Approval(by="ann")) is True
        await settled(app.rollback())
        assert await pool.fetchval("SELECT execution_time FROM scheduled_jobs") == INFINITE
        assert await app.call("signal", "job", "go", Approval(by="bob")) is True
        assert await app.call("signal", "job", "go", Approval(by="eve")) is False
        with pytest.raises(JobNotFoundError):
            await app.call("signal", "no such job", "go")
        await settled(app.commit())
        async with asyncio.timeout(PATIENCE):
            await seen.until(JobCompleted)
    assert await values(pool) == {"go": {"by": "bob"}}


async def test_signal_in_a_transaction_locks_only_a_job_that_stored_nothing(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    await scheduler.schedule(work, execution_time=LATER, job_id="job")
    lock = "SELECT job_id FROM scheduled_jobs FOR UPDATE SKIP LOCKED"
    async with pool.acquire() as connection, connection.transaction():
        await scheduler.signal("job", "one", connection=connection)
        assert await pool.fetch(lock) == []
    async with pool.acquire() as connection, connection.transaction():
        await scheduler.signal("job", "two", connection=connection)
        assert len(await pool.fetch(lock)) == 1


async def test_sync_scheduler_returns_what_the_scheduler_returns(
    dsn: str, make: Make, pool: asyncpg.Pool
) -> None:
    await make().schedule(work, execution_time=LATER, job_id="job")

    def call() -> list[object]:
        with SyncScheduler(dsn) as scheduler:
            found: list[object] = [
                scheduler.signal("job", "go", Approval(by="ann")),
                scheduler.signal("job", "go"),
            ]
            with pytest.raises(JobNotFoundError):
                scheduler.signal("no such job", "go")
            with pytest.raises(PayloadError):
                scheduler.signal("job", "other", object())
            return found

    assert await asyncio.to_thread(call) == [True, False]
    assert await values(pool) == {"go": {"by": "ann"}}
