"""Bulk actions of the Inspector: each job changes once, each batch is recorded, each stop can be resumed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from inspect import signature
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Job, JobStatus, Scheduler
from pg_scheduler.base.messages import due_message
from pg_scheduler.database.author import Author, acting_as
from pg_scheduler.inspect import ChangeOutcome, Inspector, Progress, SearchError
from pg_scheduler.inspect.job_actions import BulkOptions
from pg_scheduler.inspect.store.bulk import MAX_RECORDED_BYTES
from tests.support import inside
from tests.support.cases import each_case
from tests.support.errors import recount_errors
from tests.support.patience import PATIENCE
from tests.support.world import HOUR, SECOND, World

DUE = datetime(2099, 1, 2, 3, tzinfo=UTC)


@pytest.fixture
async def inspector(pool: asyncpg.Pool) -> Inspector:
    return Inspector(pool, actor="ada")


async def fill(world: World, count: int, status: str = "failed", prefix: str = "j") -> None:
    columns: dict[str, Any] = {}
    if status in {"completed", "failed", "expired", "cancelled"}:
        columns["ended"] = lambda n: -n * SECOND
    if status in {"failed", "expired", "cancelled"}:
        columns["error_message"] = "BulkError: no answer after {} s".format
    await world.jobs(
        count,
        lambda n: f"bulk.{n % 2}",
        job_id=lambda n: f"{prefix}{n:05}",
        status=status,
        due=lambda n: DUE + n * SECOND,
        **columns,
    )
    await world.pool.execute("VACUUM ANALYZE scheduled_jobs")


async def last_of(steps: AsyncGenerator[Progress, None]) -> Progress:
    found = [step async for step in steps]
    return found[-1]


async def statuses(pool: asyncpg.Pool) -> dict[str, int]:
    rows = await pool.fetch("SELECT status, count(*) FROM scheduled_jobs GROUP BY status")
    return {row[0]: row[1] for row in rows}


async def records(pool: asyncpg.Pool) -> list[tuple[str, str, str, dict[str, Any]]]:
    rows = await pool.fetch("SELECT action, actor, via, details FROM scheduler_audit ORDER BY id")
    return [(*row[:3], json.loads(row[3])) for row in rows]


async def snapshot(pool: asyncpg.Pool) -> list[asyncpg.Record]:
    return await pool.fetch("SELECT * FROM scheduled_jobs ORDER BY job_id")


async def test_names_restrict_the_jobs_of_a_search_and_of_a_list(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 4, "pending")
    ids = [f"j0000{number}" for number in range(1, 5)]
    for dry_run in (True, False):
        by_id = await last_of(inspector.cancel_jobs(ids=ids[:2], names=["bulk.1"], dry_run=dry_run))
        assert (by_id.done, by_id.skipped, by_id.refused) == (1, 1, 0)
        assert {each.job_id: each.job_name for each in by_id.changes if each.outcome == "done"} == {
            "j00001": "bulk.1"
        }
    searched = await last_of(inspector.cancel_jobs(where="status:pending", names=["*.1"]))
    assert searched.done == 1
    nothing = await last_of(inspector.delete_jobs(ids=ids, names=[]))
    assert (nothing.done, nothing.skipped) == (0, 4)
    assert await statuses(pool) == {"pending": 2, "cancelled": 2}


async def test_search_cancels_the_jobs_that_its_own_batches_unblock(
    inspector: Inspector, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, bulk_batch=3)
    scheduler = Scheduler(pool)
    for number in range(5):
        previous = [await scheduler.enqueue("bulk.image", job_id=f"image {number} {n}") for n in range(2)]
        for name in ("publish", "report", "clean"):
            job_id = f"{name} {number}"
            await scheduler.enqueue(f"bulk.{name}", job_id=job_id, after=previous, after_outcome="ended")
            previous = [job_id]
    dry = await last_of(inspector.cancel_jobs(where="status:pending name:bulk.*", dry_run=True))
    last = await last_of(inspector.cancel_jobs(where="status:pending name:bulk.*"))
    assert (last.done, last.skipped, last.refused) == (25, 0, 0)
    assert dry.done == 25, "each job is counted once"
    assert await statuses(pool) == {"cancelled": 25}


async def test_search_cancels_the_jobs_that_a_worker_blocks_meanwhile(
    inspector: Inspector, pool: asyncpg.Pool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, bulk_batch=3)
    await fill(world, 9, "pending")
    steps = inspector.cancel_jobs(where="status:pending")
    await anext(steps)
    # As if a limit were full.
    await pool.execute("UPDATE scheduled_jobs SET blocked_on = 'limit:api' WHERE status = 'pending'")
    last = await last_of(steps)
    assert last.done == 9
    assert await statuses(pool) == {"cancelled": 9}


async def test_records_of_a_named_run_have_its_id_and_the_cursor(inspector: Inspector, world: World) -> None:
    await fill(world, 600, "pending")
    steps = [step async for step in inspector.cancel_jobs(where="name:bulk.*", run_id="run:1")]
    page = await inspector.audit(subject="run:1")
    found = [(each.details["done"], each.details["count"], each.details["next"]) for each in page.items]
    assert found == [(500, 100, None), (0, 500, steps[0].cursor)]


@pytest.mark.parametrize("action", ["cancel", "retry", "delete", "move"])
async def test_records_have_the_details_of_the_caller(
    action: str, inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 1, "pending")
    moved = {"by": timedelta(hours=1)} if action == "move" else {}
    call = getattr(inspector, f"{action}_jobs")
    await last_of(call(where="name:bulk.*", run_id="run:4", details={"ticket": 17}, **moved))
    ((*_, details),) = await records(pool)
    assert details["ticket"] == 17


async def test_batch_of_a_run_is_changed_by_one_call_only(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 1_100, "completed")
    run: dict[str, Any] = {"where": "status:completed", "run_id": "run:2"}
    first = inspector.retry_jobs(**run)
    step = await anext(first)
    second = inspector.retry_jobs(**run, after=step.cursor)
    assert (await anext(second)).done == 500
    await pool.execute("UPDATE scheduled_jobs SET status = 'completed', finished_at = now()")
    for stale in (first, inspector.retry_jobs(**run), inspector.retry_jobs(**run, after=step.cursor)):
        with pytest.raises(ValueError, match="another call has continued the bulk run 'run:2'"):
            await anext(stale)
    assert (await last_of(second)).done == 600
    changed = [each for *_, details in await records(pool) for each in details["jobs"]]
    assert len(changed) == len(set(changed)) == 1_100


async def test_batches_of_a_run_without_a_change_are_recorded(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 1, "pending")
    assert (await last_of(inspector.retry_jobs(where="name:none", run_id="run:3"))).done == 0
    ((action, *_, details),) = await records(pool)
    assert (action, details["count"], details["next"]) == ("retry_jobs", 0, None)


async def test_cancel_changes_every_job_of_a_search_in_batches_with_records(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 1_200, "pending")
    await fill(world, 3, "completed", "done")
    steps = [step async for step in inspector.cancel_jobs(where="name:bulk.1")]
    last = steps[-1]
    assert (last.done, last.refused, last.skipped, last.cursor) == (600, 0, 0, None)
    assert [len(step.changes) for step in steps] == [500, 100]
    assert last.summary.startswith("600 done, 0 refused, 0 skipped; searched all of ")
    assert await statuses(pool) == {"pending": 600, "cancelled": 600, "completed": 3}
    reasons = await pool.fetch("SELECT DISTINCT error_message FROM scheduled_jobs WHERE status = 'cancelled'")
    assert [row[0] for row in reasons] == ["cancelled by ada"]
    found = await records(pool)
    assert [(*each[:3], each[3]["count"]) for each in found] == [
        ("cancel_jobs", "ada", "inspector", 500),
        ("cancel_jobs", "ada", "inspector", 100),
    ]
    assert [job_id for each in found for job_id in each[3]["jobs"]] == [
        change.job_id for step in steps for change in step.changes
    ]
    assert found[0][3]["where"] == "name:bulk.1"


async def test_jobs_that_fail_again_at_once_are_not_retried_twice(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 1_100)
    retried = 0
    async for step in inspector.retry_jobs(where="status:failed"):
        retried += len(step.changes)
        await pool.execute(
            "UPDATE scheduled_jobs SET status = 'failed', finished_at = now(), error_message = 'again' "
            "WHERE status = 'pending'"
        )
    assert retried == 1_100
    assert await statuses(pool) == {"failed": 1_100}


async def test_retry_leaves_completed_jobs_unless_the_search_names_them(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 4)
    await fill(world, 3, "completed", "done")
    assert (await last_of(inspector.retry_jobs(where="name:bulk.*"))).done == 4
    assert await statuses(pool) == {"pending": 4, "completed": 3}
    assert (await last_of(inspector.retry_jobs(where="status:completed"))).done == 3
    assert await statuses(pool) == {"pending": 7}


async def test_retried_jobs_are_due_now_keep_their_attempts_and_are_announced_with_their_time(
    inspector: Inspector, pool: asyncpg.Pool, world: World, dsn: str
) -> None:
    await fill(world, 1)
    await pool.execute("UPDATE scheduled_jobs SET attempt = 7, retry_count = 3, crash_count = 2")
    listener = await asyncpg.connect(dsn)
    received: asyncio.Queue[str] = asyncio.Queue()
    channel = await inspector._store.statements.channel()
    await listener.add_listener(channel, lambda *args: received.put_nowait(str(args[3])))
    await last_of(inspector.retry_jobs(ids=["j00001"]))
    job = await inspector.get_job("j00001")
    assert job is not None
    assert (job.status, job.attempt, job.retry_count, job.crash_count) == (JobStatus.PENDING, 7, 0, 0)
    assert job.execution_time < DUE
    message = await asyncio.wait_for(received.get(), PATIENCE)
    assert message == due_message("", job.execution_time)
    past = DUE - 10**6 * HOUR
    await last_of(inspector.move_jobs(ids=["j00001"], to=past))
    assert await asyncio.wait_for(received.get(), PATIENCE) == due_message("", past)
    await listener.close()


async def test_retry_refuses_jobs_whose_unique_key_is_taken(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 5)
    await fill(world, 1, "pending", "holder")
    await pool.execute("""
        UPDATE scheduled_jobs SET unique_key = 'free' WHERE job_id = ANY ('{j00001,j00002}');
        UPDATE scheduled_jobs SET unique_key = 'taken' WHERE job_id = ANY ('{j00003,holder00001}');
        UPDATE scheduled_jobs SET on_end = '{"alive": true}' WHERE job_id = 'j00004'
    """)
    step = await last_of(inspector.retry_jobs(ids=[f"j0000{n}" for n in range(1, 7)]))
    assert [change.outcome.value for change in step.changes] == [
        "done", "refused", "refused", "refused", "done", "skipped",
    ]  # fmt: skip
    assert (step.done, step.refused, step.skipped) == (2, 3, 1)


async def test_retry_of_a_group_of_errors_leaves_other_errors(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 20)
    await pool.execute(
        "UPDATE scheduled_jobs SET error_message = 'BulkError: no answer after 3 s, 100% \\_#' "
        "WHERE job_id < 'j00005'"
    )
    await recount_errors(pool)
    groups = (await inspector.error_groups()).items
    group = next(each for each in groups if "100%" in each.example or each.text.endswith("_#"))
    step = await last_of(inspector.retry_jobs(group=group))
    assert step.done == group.count == 2
    assert {change.job_name for change in step.changes} == {group.job_name}
    assert (await records(pool))[0][3]["group"] == group.fingerprint
    other = next(each for each in groups if each.text == "BulkError: no answer after # s")
    step = await last_of(inspector.retry_jobs(group=other, where="id:j0001*"))
    assert step.done == 5


async def test_retry_of_a_group_of_errors_leaves_jobs_that_ended_before_or_after_those_counted(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 8)
    await pool.execute("UPDATE scheduled_jobs SET job_name = 'bulk.span'")
    await pool.execute("UPDATE scheduled_jobs SET finished_at = '2026-01-01Z' WHERE job_id < 'j00004'")
    await recount_errors(pool)
    groups = await inspector.error_groups(since=datetime(2026, 1, 2, tzinfo=UTC))
    (group,) = groups.items
    assert group.count == 5
    await pool.execute("UPDATE scheduled_jobs SET finished_at = now() WHERE job_id = 'j00008'")
    assert (await last_of(inspector.retry_jobs(group=group, dry_run=True))).done == 4
    by_id = await last_of(inspector.retry_jobs(group=group, ids=["j00001", "j00005", "j00008"]))
    assert [change.outcome.value for change in by_id.changes] == ["skipped", "done", "skipped"]
    assert (await last_of(inspector.retry_jobs(group=group))).done == 3
    assert await statuses(pool) == {"failed": 4, "pending": 4}


async def test_delete_refuses_running_jobs_and_those_that_others_wait_for(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 3, "pending")
    await fill(world, 2, "completed", "done")
    await pool.execute("""
        UPDATE scheduled_jobs SET status = 'running', worker_id = 'w1', attempt = 1 WHERE job_id = 'j00001';
        UPDATE scheduled_jobs SET on_end = '{"after": true}' WHERE job_id = 'j00002'
    """)
    step = await last_of(inspector.delete_jobs(where="name:bulk.*"))
    assert (step.done, step.refused, step.skipped) == (3, 2, 0)
    assert {row["job_id"] for row in await snapshot(pool)} == {"j00001", "j00002"}
    assert sorted((await records(pool))[0][3]["jobs"]) == ["done00001", "done00002", "j00003"]


@pytest.mark.parametrize("by", [HOUR, -HOUR, timedelta(seconds=1)])
async def test_move_moves_each_job_once(
    inspector: Inspector, pool: asyncpg.Pool, world: World, by: timedelta
) -> None:
    await fill(world, 1_100, "pending")
    before = {row["job_id"]: row["execution_time"] for row in await snapshot(pool)}
    step = await last_of(inspector.move_jobs(where="status:pending", by=by))
    assert (step.done, step.cursor) == (1_100, None)
    assert {row["job_id"]: row["execution_time"] - by for row in await snapshot(pool)} == before
    assert (await records(pool))[0][3]["by_s"] == by.total_seconds()


async def test_move_to_an_instant_refuses_jobs_that_are_not_pending(
    inspector: Inspector, world: World
) -> None:
    await fill(world, 1, "pending")
    await fill(world, 1, "failed", "f")
    step = await last_of(inspector.move_jobs(ids=["j00001", "f00001"], to=DUE - HOUR))
    assert [change.outcome for change in step.changes] == [ChangeOutcome.DONE, ChangeOutcome.REFUSED]
    job = await inspector.get_job("j00001")
    assert job is not None
    assert job.execution_time == DUE - HOUR


async def test_cancelled_running_job_is_reported_to_its_worker(
    inspector: Inspector, pool: asyncpg.Pool, world: World, dsn: str
) -> None:
    await fill(world, 2, "running")
    await world.worker()
    received: asyncio.Queue[str] = asyncio.Queue()
    listener = await asyncpg.connect(dsn)
    channel = await inspector._store.statements.channel()
    await listener.add_listener(channel, lambda *args: received.put_nowait(str(args[3])))
    assert (await last_of(inspector.cancel_jobs(ids=["j00001", "j00002"]))).done == 2
    assert await asyncio.wait_for(received.get(), PATIENCE) == "check w1"
    await listener.close()


async def test_job_that_left_the_search_before_it_was_locked_is_skipped(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    """A search of pending jobs must not cancel a job that a worker has claimed in between."""
    await fill(world, 2, "pending")
    async with pool.acquire() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute(
            "UPDATE scheduled_jobs SET status = 'running', worker_id = 'w1', attempt = 1 "
            "WHERE job_id = 'j00001'"
        )
        task = asyncio.create_task(last_of(inspector.cancel_jobs(where="status:pending")))
        await wait_for_lock(pool)
        await transaction.commit()
    step = await asyncio.wait_for(task, PATIENCE)
    assert {change.job_id: change.outcome.value for change in step.changes} == {
        "j00001": "skipped",
        "j00002": "done",
    }


async def test_condition_of_the_caller_is_examined_while_the_job_is_locked(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    """A person has seen a pending job. What a worker has claimed in between is not what they confirmed."""
    await fill(world, 2, "pending")

    def is_as_seen(job: Job) -> bool:
        return job.attempt == 0

    async with pool.acquire() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute(
            "UPDATE scheduled_jobs SET status = 'running', worker_id = 'w1', attempt = 1 "
            "WHERE job_id = 'j00001'"
        )
        steps = inspector.cancel_jobs(ids=["j00001", "j00002"], matches=is_as_seen)
        task = asyncio.create_task(last_of(steps))
        await wait_for_lock(pool)
        await transaction.commit()
    step = await asyncio.wait_for(task, PATIENCE)
    assert {change.job_id: change.outcome.value for change in step.changes} == {
        "j00001": "skipped",
        "j00002": "done",
    }
    dry_run = await last_of(inspector.cancel_jobs(ids=["j00001"], matches=is_as_seen, dry_run=True))
    assert (dry_run.done, dry_run.skipped) == (0, 1)


async def test_condition_of_the_caller_applies_to_a_group_of_errors_too(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 4)
    await recount_errors(pool)
    (group, *_) = (await inspector.error_groups()).items
    retried = inspector.retry_jobs(group=group, matches=lambda job: job.job_id > "j00002")
    assert (await last_of(retried)).done == 1
    assert await statuses(pool) == {"failed": 3, "pending": 1}


async def wait_for_lock(pool: asyncpg.Pool) -> None:
    """Wait until a session waits for the lock of another one."""
    waits = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    async with asyncio.timeout(PATIENCE):
        while not await pool.fetchval(waits):  # noqa: ASYNC110 - a lock wait raises no event
            await asyncio.sleep(0.01)


async def test_dry_run_changes_nothing_and_counts_what_the_statuses_allow(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 700, "pending")
    await fill(world, 2, "running", "r")
    await fill(world, 3, "failed", "f")
    before = await snapshot(pool)
    everything = [f"j{n:05}" for n in range(1, 701)] + ["r00001", "f00001", "nothing"]
    for steps, expected in (
        (inspector.cancel_jobs(where="name:bulk.*", dry_run=True), (702, 0, 0)),
        (inspector.cancel_jobs(ids=everything, dry_run=True), (701, 1, 1)),
        (inspector.retry_jobs(where="name:bulk.*", dry_run=True), (3, 0, 0)),
        (inspector.delete_jobs(where="name:bulk.*", dry_run=True), (703, 2, 0)),
        (inspector.move_jobs(ids=everything, by=HOUR, dry_run=True, rate=1), (700, 2, 1)),
    ):
        last = await last_of(steps)
        assert (last.done, last.refused, last.skipped, last.cursor) == (*expected, None)
    assert await snapshot(pool) == before
    assert await records(pool) == []


@pytest.mark.parametrize("kind", ["ids", "where"])
async def test_stopped_action_continues_at_its_cursor(
    inspector: Inspector, pool: asyncpg.Pool, world: World, kind: str
) -> None:
    await fill(world, 1_200, "pending")
    jobs: dict[str, Any] = (
        {"where": "status:pending"} if kind == "where" else {"ids": [f"j{n:05}" for n in range(1, 1_201)]}
    )
    steps = inspector.move_jobs(by=HOUR, **jobs)
    first = await anext(steps)
    await steps.aclose()
    assert (first.done, first.cursor is None) == (500, False)
    rest = await last_of(inspector.move_jobs(by=HOUR, after=first.cursor, **jobs))
    assert (rest.done, rest.cursor, rest.searched) == (700, None, 1_200)
    moved = await pool.fetchval(
        "SELECT count(*) FROM scheduled_jobs WHERE execution_time = $1::timestamptz + interval '1 hour' "
        "+ right(job_id, 5)::integer * interval '1 second'",
        DUE,
    )
    assert moved == 1_200


async def test_limit_counts_changed_jobs(inspector: Inspector, pool: asyncpg.Pool, world: World) -> None:
    await fill(world, 600, "pending")
    await pool.execute("""UPDATE scheduled_jobs SET on_end = '{"after": true}' WHERE job_id < 'j00100'""")
    steps = inspector.delete_jobs(where="status:pending", limit=3)
    last = await last_of(steps)
    assert (last.done, last.refused) == (3, 99)
    assert last.cursor is not None
    assert await statuses(pool) == {"pending": 597}


@pytest.mark.slow
async def test_rate_spreads_the_batches_over_time(inspector: Inspector, world: World) -> None:
    """Real time is the subject."""
    await fill(world, 11)
    started = time.monotonic()
    done = [step.done async for step in inspector.retry_jobs(where="status:failed", rate=10)]
    assert done == [10, 11]
    assert time.monotonic() - started >= 1.0


async def test_cancelled_iteration_ends_after_the_batch_in_progress(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 600, "pending")
    seen: list[Progress] = []

    async def consume() -> None:
        async for step in inspector.cancel_jobs(where="status:pending"):
            seen.append(step)
            await asyncio.sleep(0)

    async with pool.acquire() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT FROM scheduled_jobs FOR UPDATE")
        task = asyncio.create_task(consume())
        await wait_for_lock(pool)
        task.cancel()
        await transaction.commit()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, PATIENCE)
    (step,) = seen
    assert step.done == 500
    assert await statuses(pool) == {"cancelled": 500, "pending": 100}
    assert [each[3]["count"] for each in await records(pool)] == [500]


async def test_failed_batch_leaves_no_change_and_no_record(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 3, "pending")
    await pool.execute("""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no record'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON scheduler_audit EXECUTE FUNCTION refuse()
    """)
    with pytest.raises(asyncpg.RaiseError, match="no record"):
        await last_of(inspector.cancel_jobs(where="status:pending"))
    assert await statuses(pool) == {"pending": 3}


async def test_author_of_the_context_acts_unless_the_inspector_has_an_actor(
    pool: asyncpg.Pool, world: World
) -> None:
    await fill(world, 4, "pending")
    plain = Inspector(pool)
    await last_of(plain.cancel_jobs(ids=["j00001"]))
    with acting_as(Author("grace@host", "cli")):
        await last_of(plain.cancel_jobs(ids=["j00002"]))
        await last_of(Inspector(pool, actor="ada").cancel_jobs(ids=["j00003"]))
    await last_of(
        Inspector(Scheduler(pool, metadata={"release": "v7"}), actor="ada").cancel_jobs(ids=["j00004"])
    )
    found = await records(pool)
    assert [each[1:3] for each in found] == [
        (plain.actor, "inspector"), ("grace@host", "cli"), ("ada", "cli"), ("ada", "inspector"),
    ]  # fmt: skip
    assert found[3][3]["release"] == "v7"
    subjects = await pool.fetch("SELECT subject FROM scheduler_audit ORDER BY id")
    assert [row[0] for row in subjects] == [f"j0000{n}" for n in range(1, 5)]


async def test_record_has_a_bounded_size(inspector: Inspector, pool: asyncpg.Pool, world: World) -> None:
    await fill(world, 100, "pending", "x" * 1_000)
    await last_of(inspector.cancel_jobs(where="status:pending"))
    ((*_, details),) = await records(pool)
    assert details["count"] == 100
    assert 0 < sum(map(len, details["jobs"])) <= MAX_RECORDED_BYTES


@each_case(
    ("arguments", "message"),
    [
        ({}, "either ids= or where="),
        ({"ids": ["a"], "where": "status:failed"}, "either ids= or where="),
        ({"where": "  "}, "to name all jobs, pass 'status:pending,running'"),
        ({"where": "status:pending", "limit": 0}, "limit"),
        ({"where": "status:pending", "rate": 0}, "rate"),
        ({"where": "status:pending", "rate": float("nan")}, "rate"),
        ({"ids": ["a"], "after": "b"}, "none of the ids"),
        ({"ids": [""]}, "job_id must not be empty"),
        ({"ids": ["\x00"]}, "NUL"),
    ],
)
async def test_invalid_argument_is_rejected_before_anything_is_read(
    inspector: Inspector, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        inspector.cancel_jobs(**arguments)


@each_case(
    ("arguments", "message"),
    [
        ({"names": "bulk.*"}, r"names must be a list of names, not the str 'bulk\.\*'; pass \['bulk\.\*'\]"),
        ({"names": 5}, "names must be a list of names, not int: 5"),
        ({"names": [5]}, "a name in names must be a str"),
        ({"rate": "10"}, "rate must be a number of jobs per second, not '10'"),
        ({"dry_run": "no"}, "dry_run must be a bool, not str: 'no'"),
        ({"details": [1]}, "details must be a dict"),
        ({"details": {"by": object()}}, "details.*JSON"),
    ],
)
async def test_argument_of_a_wrong_type_is_rejected_at_the_call(
    inspector: Inspector, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        inspector.cancel_jobs(where="status:pending", **arguments)


async def test_reads_reject_a_str_instead_of_a_list(inspector: Inspector) -> None:
    for read in (
        lambda: inspector.search_jobs(names="bulk.*"),
        lambda: inspector.statistics(names="bulk.*"),
        lambda: inspector.statistics_by_time(names="bulk.*"),
        lambda: inspector.get_jobs("j00001"),
    ):
        with pytest.raises(TypeError, match=r"must be a list of .*, not the str"):
            await read()


async def test_invalid_search_or_cursor_is_rejected(inspector: Inspector) -> None:
    with pytest.raises(TypeError, match="a list of ids"):
        inspector.cancel_jobs(ids="abc")
    with pytest.raises(SearchError, match="did you mean"):
        await anext(inspector.cancel_jobs(where="stats:pending"))
    with pytest.raises(ValueError, match="no position of this search"):
        await anext(inspector.cancel_jobs(where="status:pending", after="nonsense"))
    with pytest.raises(TypeError, match="tz must be a tzinfo or None, not 'UTC'"):
        await anext(inspector.cancel_jobs(where="status:pending", tz="UTC"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the search must be a str, not int: 5"):
        await inspector.search_jobs(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="by must be a timedelta, not int: 3600"):
        inspector.move_jobs(ids=["a"], by=3600)  # type: ignore[arg-type]
    both: list[dict[str, Any]] = [{}, {"to": DUE, "by": HOUR}]
    for times in both:
        with pytest.raises(ValueError, match="either to= or by="):
            inspector.move_jobs(ids=["a"], **times)
    with pytest.raises(ValueError, match="36500 days"):
        inspector.move_jobs(ids=["a"], by=timedelta(days=40_000))
    with pytest.raises(ValueError, match="no time zone"):
        inspector.move_jobs(ids=["a"], to=DUE.replace(tzinfo=None))


def test_signatures_and_types_have_the_same_options() -> None:
    methods = (Inspector.cancel_jobs, Inspector.retry_jobs, Inspector.delete_jobs, Inspector.move_jobs)
    options = [*BulkOptions.__annotations__]
    for method in methods:
        assert [*signature(method).parameters][-len(options) :] == options


def test_unknown_option_is_rejected(inspector: Inspector) -> None:
    options: dict[str, Any] = {"ids": ["a"], "limt": 1}
    with pytest.raises(TypeError, match="unexpected keyword argument 'limt'"):
        inspector.cancel_jobs(**options)


HOSTILE_IDS = [
    "'; DROP TABLE scheduled_jobs; --",
    "\u202e$1 %s",
    "\x1b[31m",
    "{schema}",
    "🦉" * 200,
    "a,b",
    '"',
    "\\",
]


async def test_hostile_ids_are_data(inspector: Inspector, pool: asyncpg.Pool, world: World) -> None:
    for job_id in HOSTILE_IDS:
        await world.job(job_id, job_id, due=DUE)
    step = await last_of(inspector.cancel_jobs(ids=[*HOSTILE_IDS, "%"]))
    assert (step.done, step.skipped) == (len(HOSTILE_IDS), 1)
    assert sorted((await records(pool))[0][3]["jobs"]) == sorted(HOSTILE_IDS)


async def test_jobs_that_have_changed_since_their_versions_were_read_are_left_out(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    await world.jobs(3, job_id="j{}".format, due=HOUR)
    versions = await inspector.job_versions(["j1", "j2", "j3", "none"])
    assert versions.keys() == {"j1", "j2", "j3"}
    await pool.execute("UPDATE scheduled_jobs SET priority = 1 WHERE job_id = 'j2'")
    await pool.execute("UPDATE scheduled_jobs SET errors = '[]', last_heartbeat = now() WHERE job_id = 'j3'")
    step = await last_of(inspector.cancel_jobs(ids=["j1", "j2", "j3"], versions=versions))
    assert {change.job_id: change.outcome for change in step.changes} == {
        "j1": ChangeOutcome.DONE,
        "j2": ChangeOutcome.SKIPPED,
        "j3": ChangeOutcome.DONE,
    }
    # A job without a version is left out too.
    assert (await last_of(inspector.cancel_jobs(ids=["j2"], versions={}))).skipped == 1


async def test_invalid_versions_are_rejected(inspector: Inspector) -> None:
    with pytest.raises(TypeError, match="versions must be a mapping of ids to versions, not list"):
        inspector.cancel_jobs(ids=["j1"], versions=["j1"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most 500 ids, not 501; pass them in parts"):
        await inspector.job_versions([f"j{number}" for number in range(501)])
