"""No order of the statements of a deadline and of what else changes its job leaves a job that never ends.

The job has passed its deadline. A service ends it, while another session claims it, settles its attempt,
cancels it or retries it. The orders of all statements and commits are exhausted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobStatus
from pg_scheduler.jobs.deadlines import deadline_text
from pg_scheduler.queue.jobs import OverrunJob
from tests.store.protocol import Op, interleave
from tests.store.test_signals import Waits
from tests.support.inside import COMPLETE, RELEASE, Claim, ExtendedJob, Extras, Outcome, Store
from tests.support.store import LEASE, NAME, NOW, SECOND, new_job, worker

DEADLINE = NOW - SECOND
EXTRAS = Extras(options=f'{{"deadline": "{deadline_text(DEADLINE)}"}}', on_end='{"on_failure": "app.page"}')


@dataclass
class EndPast(Op):
    """A service fails jobs that have passed their deadlines."""

    async def run(self, store: Store) -> list[OverrunJob]:
        return await store.jobs.end_past_deadlines(10)


@dataclass
class Call(Op):
    """What another session does with the job."""

    act: Callable[[Store], Awaitable[Any]]

    async def run(self, store: Store) -> Any:
        return await self.act(store)


async def claim(store: Store) -> list[Claim]:
    return list((await store.claims.exchange("w1", [NAME], 1)).jobs)


async def cancel(store: Store) -> bool:
    return (await store.jobs.cancel("job")).changed


async def retry(store: Store) -> bool:
    return await store.jobs.retry("job") is not None


def settle(outcome: Outcome) -> Callable[[Claim], Callable[[Store], Awaitable[set[str]]]]:
    return lambda running: lambda store: store.results.settle("w1", [(running, outcome)])


RETRY = Outcome.retry(timedelta(hours=1), "no route")

WITH_A_PENDING_JOB: dict[str, Callable[[Store], Awaitable[Any]]] = {
    "claim": claim,
    "cancel": cancel,
    "retry": retry,
    "end": lambda store: store.jobs.end_past_deadlines(10),
}
WITH_AN_ATTEMPT: dict[str, Callable[[Claim], Callable[[Store], Awaitable[Any]]]] = {
    "complete": settle(COMPLETE),
    "retry": settle(RETRY),
    "release": settle(RELEASE),
    "fail": settle(Outcome.fail("no")),
    "cancel": lambda _: cancel,
}


async def prepare(world: Waits) -> None:
    """Insert the job, and register the worker."""
    store = world.actors[0].store
    await world.do(Call(lambda _: store.inserts.insert_extended([ExtendedJob(new_job("job"), EXTRAS)])))
    await world.do(Call(lambda _: store.workers.register(worker("w1"), LEASE)))


async def run_orders(
    world: Waits, pool: asyncpg.Pool, check: Callable[[Sequence[Op]], Awaitable[None]], *ops: Callable[[], Op]
) -> None:
    """Run the operations in each order. The entries are restored with the rows."""
    restore = await world.save()
    await pool.execute("CREATE TABLE kept_deadlines AS TABLE scheduler_deadlines")

    async def begin() -> None:
        await restore()
        await pool.execute(
            "DELETE FROM scheduler_deadlines; INSERT INTO scheduler_deadlines TABLE kept_deadlines"
        )

    world.check = check
    assert await interleave(world, begin, lambda: [make() for make in ops]) > 3


async def check_end(pool: asyncpg.Pool, world: Waits) -> None:
    """Assert that the job has ended, or is ended by the next pass."""
    columns = "status, options ->> 'deadline' AS deadline"
    (row,) = await pool.fetch(f"SELECT {columns} FROM scheduled_jobs")
    if row["status"] == "pending" and row["deadline"] is not None:
        (job,) = await world.do(EndPast())
        assert job.job_id == "job"
        (row,) = await pool.fetch(f"SELECT {columns} FROM scheduled_jobs")
        assert row["status"] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_A_PENDING_JOB)
async def test_no_order_of_a_deadline_and_a_change_of_a_pending_job_loses_either(
    dsn: str, pool: asyncpg.Pool, name: str
) -> None:
    async with Waits.on(dsn, 2) as world:
        assert isinstance(world, Waits)
        await prepare(world)

        async def check(ops: Sequence[Op]) -> None:
            ended, other = (op.answer for op in ops)
            status = await pool.fetchval("SELECT status FROM scheduled_jobs WHERE job_id = 'job'")
            if name == "retry":
                assert len(ended) == 1
                assert status == ("pending" if other else "failed")
            elif name == "end":
                assert [len(ended), len(other)] in ([0, 1], [1, 0]), "one of them has ended it"
            else:
                # Either the deadline was first, or the other session was.
                assert bool(ended) is not bool(other)
            await check_end(pool, world)

        await run_orders(world, pool, check, EndPast, lambda: Call(WITH_A_PENDING_JOB[name]))


@pytest.mark.parametrize("name", WITH_AN_ATTEMPT)
async def test_no_order_of_a_deadline_and_the_end_of_an_attempt_ends_a_job_twice(
    dsn: str, pool: asyncpg.Pool, name: str
) -> None:
    async with Waits.on(dsn, 2) as world:
        assert isinstance(world, Waits)
        await prepare(world)
        (running,) = await world.do(Call(claim))

        async def check(ops: Sequence[Op]) -> None:
            ended, settled = (op.answer for op in ops)
            status = await pool.fetchval("SELECT status FROM scheduled_jobs WHERE job_id = 'job'")
            assert settled, "the outcome of the attempt counts, whatever its order"
            match name:
                case "complete":
                    assert (status, ended) == ("completed", [])
                case "fail":
                    assert (status, ended) == ("failed", [])
                case "cancel":
                    assert (status, ended) == ("cancelled", [])
                case _:
                    assert status == ("failed" if ended else "pending")
            await check_end(pool, world)

        await run_orders(world, pool, check, EndPast, lambda: Call(WITH_AN_ATTEMPT[name](running)))


async def test_entry_stays_as_long_as_its_job_may_need_it(store: Store, pool: asyncpg.Pool) -> None:
    """An entry of a job that runs stays: its attempt may make the job pending again."""
    hour = timedelta(hours=1)
    for status in ("pending", "running", "failed", "other", "none"):
        text = deadline_text(NOW - hour if status != "other" else NOW + hour)
        job = ExtendedJob(new_job(status), Extras(options=f'{{"deadline": "{text}"}}'))
        await store.inserts.insert_extended([job])
        await pool.execute(
            "UPDATE scheduler_deadlines SET at = $1, noted_at = $1 WHERE job_id = $2", NOW - hour, status
        )
    await store.jobs.set_status("running", JobStatus.RUNNING, LEASE)
    await store.jobs.set_status("failed", JobStatus.FAILED, LEASE)
    await store.jobs.delete(["none"])
    assert await store.jobs.forget_deadlines(10) == 3
    rows = await pool.fetch("SELECT job_id FROM scheduler_deadlines ORDER BY 1")
    assert [row["job_id"] for row in rows] == ["pending", "running"]
    assert [job.job_id for job in await store.jobs.end_past_deadlines(10)] == ["pending"]


async def test_entry_of_the_last_minute_is_not_forgotten(store: Store, pool: asyncpg.Pool) -> None:
    """It is written before its job, whose transaction may still be open."""
    await pool.execute("INSERT INTO scheduler_deadlines (job_id, at) VALUES ('job', $1)", NOW - 59 * SECOND)
    assert await store.jobs.forget_deadlines(10) == 0
    assert not (await store.workers.scan_deadlines(30, 120)).has_passed
    await pool.execute("UPDATE scheduler_deadlines SET at = $1", NOW - 61 * SECOND)
    assert (await store.workers.scan_deadlines(30, 120)).has_passed
    assert await store.jobs.forget_deadlines(10) == 1


@pytest.mark.parametrize("text", ["x", "", "9", "2030-01-01", "{}", "-infinity"])
async def test_deadline_that_was_written_by_hand_breaks_no_scan(
    store: Store, pool: asyncpg.Pool, text: str
) -> None:
    job = ExtendedJob(new_job("job"), Extras(options='{"deadline": "2029-01-01T00:00:00.000000+00:00"}'))
    await store.inserts.insert_extended([job])
    await pool.execute("UPDATE scheduled_jobs SET options = jsonb_build_object('deadline', $1::text)", text)
    assert (await store.workers.scan_deadlines(30, 120)).lapse_in is None
    await store.jobs.end_past_deadlines(10)
    await store.jobs.forget_deadlines(10)
    found = await store.jobs.get_job("job")
    assert found is not None
    assert found.deadline is None


async def test_next_deadline_is_the_next_scan(store: Store) -> None:
    job = ExtendedJob(new_job("job"), Extras(options=f'{{"deadline": "{deadline_text(NOW + 7 * SECOND)}"}}'))
    await store.inserts.insert_extended([job])
    scan = await store.workers.scan_deadlines(30, 120)
    assert (scan.deadline_in, scan.has_passed) == (7.0, False)


# -- entries without an unfinished job ---------------------------------------------------------------------

HOUR = timedelta(hours=1)
LATER = NOW + HOUR


def job_with_deadline(job_id: str, deadline: datetime = LATER) -> ExtendedJob:
    return ExtendedJob(new_job(job_id), Extras(options=f'{{"deadline": "{deadline_text(deadline)}"}}'))


async def vacuum(store: Store, pool: asyncpg.Pool, *, limit: int = 100) -> list[tuple[str, datetime]]:
    """Let a pass of the vacuum find entries that are two hours old, and return those that it leaves."""
    await pool.execute("UPDATE scheduler_deadlines SET noted_at = noted_at - interval '2 hours'")
    entry_id = await store.jobs.vacuum_deadlines(None, limit)
    while entry_id is not None:
        entry_id = await store.jobs.vacuum_deadlines(entry_id, limit)
    rows = await pool.fetch("SELECT job_id, at FROM scheduler_deadlines ORDER BY job_id, at")
    return [(row["job_id"], row["at"]) for row in rows]


@pytest.mark.parametrize("limit", [1, 100])
async def test_vacuum_leaves_one_entry_of_each_unfinished_job(
    store: Store, pool: asyncpg.Pool, limit: int
) -> None:
    """Calls that were refused or replaced have left entries, and so have jobs that ended or were deleted."""
    ids = ["pending", "running", *(status.value for status in JobStatus if status.is_finished), "deleted"]
    await store.inserts.insert_extended([job_with_deadline(job_id) for job_id in ids])
    await store.jobs.set_status("running", JobStatus.RUNNING, LEASE)
    for status in JobStatus:
        if status.is_finished:
            await store.jobs.set_status(status.value, status, LEASE)
    await store.jobs.delete(["deleted"])
    # Refused calls, one of them with the deadline that the job has.
    assert await store.inserts.insert_extended([job_with_deadline("pending", LATER + HOUR)]) == set()
    assert await store.inserts.insert_extended([job_with_deadline("pending")]) == set()
    # Replaced jobs, of which one runs: its new definition waits for the end of the attempt.
    await store.inserts.insert_extended([job_with_deadline("replaced"), job_with_deadline("dropped")])
    await store.inserts.replace_extended(
        [job_with_deadline(job_id, LATER + HOUR) for job_id in ("replaced", "running")]
    )
    await store.inserts.replace([new_job("dropped")])
    assert await vacuum(store, pool, limit=limit) == [
        ("pending", LATER),
        ("replaced", LATER + HOUR),
        ("running", LATER),
        ("running", LATER + HOUR),
    ]


async def test_vacuum_leaves_an_entry_of_the_last_hour(store: Store, pool: asyncpg.Pool) -> None:
    """It is written before its job, whose transaction may still be open."""
    minute = timedelta(minutes=1)
    await pool.executemany(
        "INSERT INTO scheduler_deadlines (job_id, at, noted_at) VALUES ($1, $2, $3)",
        [("new", LATER, NOW - 59 * minute), ("old", LATER, NOW - 61 * minute)],
    )
    assert await store.jobs.vacuum_deadlines(None, 100) is None
    rows = await pool.fetch("SELECT job_id FROM scheduler_deadlines")
    assert [row["job_id"] for row in rows] == ["new"]


async def set_pending(store: Store) -> bool:
    return (await store.jobs.set_status("job", JobStatus.PENDING, LEASE)).changed


async def retry_family(store: Store) -> bool:
    return bool(await store.jobs.retry_family("job"))


RETRIES: dict[str, Callable[[Store], Awaitable[bool]]] = {
    "retry_job": retry,
    "retry_job with children": retry_family,
    "update_job_status": set_pending,
}


@pytest.mark.parametrize("name", RETRIES)
async def test_job_that_runs_again_gets_the_entry_back_that_the_vacuum_has_deleted(
    store: Store, pool: asyncpg.Pool, name: str
) -> None:
    await store.inserts.insert_extended([job_with_deadline("job"), ExtendedJob(new_job("plain"), Extras())])
    await store.jobs.set_status("job", JobStatus.FAILED, LEASE)
    assert await vacuum(store, pool) == []
    assert await RETRIES[name](store)
    assert await vacuum(store, pool) == [("job", LATER)]


@pytest.mark.parametrize("text", ["x", "", "9", "2030-13-01T00:00:00.000000+00:00", "-infinity", "{}"])
@pytest.mark.parametrize("name", RETRIES)
async def test_job_whose_deadline_was_written_by_hand_runs_again_without_an_entry(
    store: Store, pool: asyncpg.Pool, name: str, text: str
) -> None:
    await store.inserts.insert_extended([job_with_deadline("job")])
    await store.jobs.set_status("job", JobStatus.FAILED, LEASE)
    await pool.execute("UPDATE scheduled_jobs SET options = jsonb_build_object('deadline', $1::text)", text)
    assert await RETRIES[name](store)
    assert await vacuum(store, pool) == []


@pytest.mark.parametrize(
    ("noted_before_s", "is_forgotten"),
    [(0, False), (59, False), (61, True), (-59, False), (-61, True)],
    ids=[
        "now",
        "in this minute",
        "before",
        "by a clock that was a little ahead",
        "by one that was far ahead",
    ],
)
async def test_entry_stays_until_the_call_that_wrote_it_has_inserted_its_job(
    store: Store, pool: asyncpg.Pool, noted_before_s: int, is_forgotten: bool
) -> None:
    """The deadline has passed already, as by a clock that is ahead."""
    noted_at = NOW - noted_before_s * SECOND
    entry = "INSERT INTO scheduler_deadlines (job_id, at, noted_at) VALUES ('job', $1, $2)"
    await pool.execute(entry, NOW - timedelta(hours=1), noted_at)
    assert await store.jobs.forget_deadlines(10) == is_forgotten
