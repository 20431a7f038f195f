"""The sequences that an Inspector reads and changes, and the explanation of a job that waits in one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import JobStatus, Scheduler, Sequence
from pg_scheduler.clock import FakeClock
from pg_scheduler.inspect import Inspector, ReadSettings, ReasonCode
from pg_scheduler.inspect.sequences import sequence_text
from pg_scheduler.jobs.keys import readable
from pg_scheduler.jobs.payload import encode
from pg_scheduler.jobs.sequences import sequence_place
from tests.store.test_sequences import KEY, OTHER, claim, insert, move, queued, sequences
from tests.store.test_steps import until_a_lock_is_awaited
from tests.support.inside import COMPLETE, Connections, Outcome, Store
from tests.support.store import NOW, SECOND

LONG_AGO = NOW - timedelta(days=5000)
"""Before the real time, by which an Inspector decides what is due."""


@pytest.fixture
async def store(pool: asyncpg.Pool) -> AsyncIterator[Store]:
    connections = Connections(pool)
    yield Store(connections, clock=FakeClock(NOW))
    await connections.release_held()


@pytest.fixture
async def filled(store: Store) -> None:
    """A sequence that has stopped at its first job, one whose head runs, and one that is not due."""
    await insert(
        store,
        *(queued(f"a{number}", LONG_AGO) for number in range(4)),
        *(queued(f"b{number}", LONG_AGO, key=OTHER) for number in range(3)),
        queued("c0", NOW + 3600 * SECOND, key="zsequence:s:\\u20ac"),
    )
    await move(store, [KEY, OTHER])
    claims = {each.job_id: each for each in await claim(store, 2)}
    await store.results.settle("w1", [(claims["a0"], Outcome.fail("why"))])


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("is_bounded", [False, True])
async def test_sequences_are_listed_with_their_heads(pool: asyncpg.Pool, *, is_bounded: bool) -> None:
    inspector = Inspector(pool, read_settings=ReadSettings() if is_bounded else None)
    found = await inspector.sequences()
    assert [(each.name, each.key, each.state, each.head, each.waiting) for each in found.items] == [
        ("s", "a", "stopped", "a0", 3),
        ("s", "b", "running", "b0", 2),
        ("s", "€", "no head", None, 1),
    ]
    assert found.summary == "3 sequences, 1 stopped, 6 waiting"
    assert (found.is_capped, found.is_waiting_capped) == (False, False)


@pytest.mark.usefixtures("filled")
async def test_explanation_names_the_head_and_the_place(pool: asyncpg.Pool) -> None:
    inspector = Inspector(pool)
    stopped = await inspector.explain_job("a2")
    assert stopped is not None
    (reason, *_) = stopped.reasons
    assert reason.code is ReasonCode.SEQUENCE_STOPPED
    assert reason.text == (
        "the sequence 's' of the key 'a' stands still at the failed job 'a0'; 1 waiting job ahead of this one"
    )
    assert "pg-scheduler jobs retry a0" in str(reason.remedy)
    assert "pg-scheduler sequences skip s a" in str(reason.remedy)
    waiting = await inspector.explain_job("b1")
    assert waiting is not None
    (reason, *_) = waiting.reasons
    assert reason.code is ReasonCode.SEQUENCE
    assert reason.text.endswith("the job 'b0' is first (running); 0 waiting jobs ahead of this one")


@pytest.mark.usefixtures("filled")
async def test_sequence_whose_failed_job_waits_again_has_not_stopped(
    pool: asyncpg.Pool, store: Store
) -> None:
    inspector = Inspector(pool)
    await store.jobs.retry("a0")
    first = (await inspector.sequences()).items[0]
    assert (first.key, first.state, first.head, first.stopped_at) == ("a", "waiting", "a0", None)
    explained = await inspector.explain_job("a2")
    assert explained is not None
    assert explained.reasons[0].text.endswith(
        "the job 'a0' is first (pending); 1 waiting job ahead of this one"
    )
    await store.inserts.replace_extended([queued("a0", NOW + 3600 * SECOND)])
    first = (await inspector.sequences()).items[0]
    assert (first.key, first.state, first.head, first.stopped_at) == ("a", "no head", None, None)
    explained = await inspector.explain_job("a2")
    assert explained is not None
    assert [reason.code for reason in explained.reasons] == [ReasonCode.SEQUENCE]


@pytest.mark.usefixtures("filled")
async def test_skipped_head_is_cancelled_or_left_behind(pool: asyncpg.Pool, store: Store) -> None:
    inspector = Inspector(pool, actor="ada")
    assert await inspector.skip_head("s", "a") == "a0"
    assert (await move(store, [KEY])).jobs == 1
    assert (await sequences(pool))[KEY] == ("a1", False)
    assert await inspector.skip_head("s", "a") is None, "a second call spares the next job"
    assert await inspector.skip_head("s", "a", job_id="a0") is None, "another job is first"
    assert not await inspector.skip_job("a0"), "another job is first"
    assert (await sequences(pool))[KEY] == ("a1", False)
    assert await inspector.skip_head("s", "a", job_id="a1") == "a1"
    assert await pool.fetchval("SELECT status FROM scheduled_jobs WHERE job_id = 'a1'") == "cancelled"
    assert (await sequences(pool))[KEY] == ("a2", False)
    assert not await inspector.skip_job("a3"), "it waits"
    assert await inspector.skip_head("s", "a", running=True) == "a2"
    assert await inspector.skip_head("s", "none", running=True) is None
    records = await pool.fetch("SELECT subject FROM scheduler_audit WHERE action = 'skip_head' ORDER BY id")
    assert [record["subject"] for record in records] == ["a0", "a1", "a2"]


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_no_other_job_is_skipped_if_the_head_ends_meanwhile(pool: asyncpg.Pool, status: str) -> None:
    """The end of the head, and the move of the next job, are committed while the call waits for the head."""
    inspector = Inspector(pool, actor="ada")
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            "UPDATE scheduled_jobs SET status = $1, finished_at = now(), on_end = NULL WHERE job_id = 'b0'",
            status,
        )
        if status == "completed":
            await connection.execute("UPDATE scheduled_jobs SET blocked_on = NULL WHERE job_id = 'b1'")
            await connection.execute("UPDATE scheduler_sequences SET job_id = 'b1' WHERE job_id = 'b0'")
        else:
            await connection.execute("UPDATE scheduler_sequences SET stopped_at = now() WHERE job_id = 'b0'")
        skipping = asyncio.create_task(inspector.skip_job("b0"))
        await until_a_lock_is_awaited(pool)
        await transaction.commit()
    assert await skipping is (status == "failed")
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'cancelled'") == 0
    records = await pool.fetchval("SELECT count(*) FROM scheduler_audit WHERE action = 'skip_head'")
    assert records == (status == "failed")


@pytest.mark.usefixtures("filled")
async def test_failed_head_is_skipped_when_its_attempt_has_ended(pool: asyncpg.Pool, store: Store) -> None:
    inspector = Inspector(pool, actor="ada")
    head = await store.claims.held_claim("b0", "w1")
    assert head is not None
    # A deadline has ended the job, whose thread runs on.
    await store.jobs.set_status("b0", JobStatus.FAILED, 30)
    assert await inspector.skip_head("s", "b") == "b0"
    assert (await sequences(pool))[OTHER] == ("b0", False), "its attempt runs on"
    await store.results.settle("w1", [(head, COMPLETE)])
    assert (await sequences(pool))[OTHER] == ("b1", False)


@pytest.mark.usefixtures("filled")
async def test_job_moves_to_the_front_once(pool: asyncpg.Pool, store: Store) -> None:
    inspector = Inspector(pool, actor="ada")
    assert await inspector.move_to_front("a3")
    assert not await inspector.move_to_front("b0"), "it is the head"
    assert not await inspector.move_to_front("none")
    await inspector.skip_head("s", "a")
    await move(store, [KEY])
    assert (await sequences(pool))[KEY] == ("a3", False)
    assert await pool.fetchval("SELECT count(*) FROM scheduler_audit WHERE action = 'move_to_front'") == 1


@pytest.mark.usefixtures("filled")
async def test_state_of_one_key_is_that_of_the_list(pool: asyncpg.Pool) -> None:
    inspector = Inspector(pool)
    found = await inspector.sequences()
    assert [await inspector.sequence(each.name, each.key) for each in found.items] == list(found.items)
    assert await inspector.sequence("s", "none") is None


@pytest.mark.parametrize("key", ["é" * 90, "a:b", "中" * 60, -7])
async def test_key_finds_its_sequence_however_long_its_text_is(pool: asyncpg.Pool, key: str | int) -> None:
    place = sequence_place(Sequence("s", key=lambda key: key), "s", encode((key,), {}))
    assert sequence_text("s", key) == place["key"]
    listed = readable(place["key"].partition(":s:")[2])
    assert sequence_text("s", listed) == place["key"], "as the list shows it"


async def test_inspector_of_a_scheduler_wakes_its_sequences(pool: asyncpg.Pool) -> None:
    inspector = Inspector(Scheduler(pool))
    with pytest.raises(TypeError, match="key must be a str or an int"):
        await inspector.skip_head("s", 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="either job_id= or running=True"):
        await inspector.skip_head("s", "a", job_id="a0", running=True)
    with pytest.raises(TypeError, match="running"):
        await inspector.skip_head("s", "a", running=1)  # type: ignore[arg-type]
    assert (await inspector.sequences()).items == []
