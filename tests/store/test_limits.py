"""Admission control and unblocking, against a real server."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import JobStatus
from pg_scheduler.admission.limits import (
    AdmissionRequest,
    BlockedJob,
    LatePosition,
    SurplusPosition,
)
from pg_scheduler.clock import FakeClock
from pg_scheduler.database.faults import is_lock_timeout
from pg_scheduler.database.options import ADMISSION_SETTINGS
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.jobs.limits import LimitNumbers
from tests.support import inside
from tests.support.inside import COMPLETE, RELEASE, Claim, Store
from tests.support.store import LEASE, NAME, NOW, SECOND, Pool, new_job, running, worker

LOCK_CLASS = inside.internal_setting("class_of_advisory_locks")

KEY = "limit:api:"
OTHER = "limit:account:7"


def most(number: int) -> LimitNumbers:
    """Return a limit of running attempts."""
    return LimitNumbers(number, None, None)


def rate(number: int, seconds: float) -> LimitNumbers:
    """Return a limit of starts."""
    return LimitNumbers(None, number, seconds)


async def admit(
    store: Store, claims: Sequence[Claim], *limits: tuple[str, LimitNumbers], keep_s: float = 0.0
) -> dict[str, str | None]:
    """Ask for admission of claims within the same limits."""
    requests = [AdmissionRequest(claim, limits) for claim in claims]
    return await store.limits.admit("w1", requests, {key: keep_s for key, _ in limits})


async def claims_of(store: Store, count: int, prefix: str = "job") -> list[Claim]:
    return await running(store, *(new_job(f"{prefix}-{n}") for n in range(count)))


async def blocked(pool: Pool) -> dict[str, str]:
    rows = await pool.fetch(
        "SELECT job_id, blocked_on FROM scheduled_jobs WHERE blocked_on IS NOT NULL ORDER BY 1"
    )
    return {row[0]: row[1] for row in rows}


async def starts(pool: Pool) -> list[str]:
    return [row[0] for row in await pool.fetch("SELECT job_id FROM scheduler_starts ORDER BY 1")]


async def test_admit_starts_the_first_attempts_and_blocks_the_rest_when_a_limit_is_full(
    store: Store, pool: Pool
) -> None:
    claims = await claims_of(store, 5)
    assert await admit(store, claims, (KEY, most(2))) == {
        "job-0": None,
        "job-1": None,
        "job-2": KEY,
        "job-3": KEY,
        "job-4": KEY,
    }
    assert await blocked(pool) == {"job-2": KEY, "job-3": KEY, "job-4": KEY}
    assert await starts(pool) == ["job-0", "job-1"]


async def test_admit_leaves_a_blocked_job_as_if_it_had_not_run_except_for_its_attempt(
    store: Store, pool: Pool
) -> None:
    claims = await claims_of(store, 2)
    await admit(store, claims, (KEY, most(1)))
    row = await pool.fetchrow("SELECT * FROM scheduled_jobs WHERE job_id = 'job-1'")
    assert row is not None
    assert row["status"] == "pending"
    assert (row["attempt"], row["retry_count"], row["crash_count"]) == (1, 0, 0)
    assert row["worker_id"] is row["started_at"] is row["lease_until"] is row["errors"] is None


async def test_admit_counts_attempts_of_other_workers_when_they_run(store: Store) -> None:
    first = await running(store, new_job("a"), worker_id="w2")
    assert await store.limits.admit("w2", [AdmissionRequest(first[0], [(KEY, most(1))])], {KEY: 0}) == {
        "a": None
    }
    second = await running(store, new_job("b"))
    assert await admit(store, second, (KEY, most(1))) == {"b": KEY}


async def test_admit_has_room_again_when_an_attempt_ended_in_any_way(store: Store, pool: Pool) -> None:
    for n, end in enumerate(("completed", "retried", "reclaimed and claimed again", "deleted")):
        (claim,) = await running(store, new_job(f"first-{n}"))
        assert await admit(store, [claim], (KEY, most(1))) == {claim.job_id: None}
        if end == "completed":
            await store.results.settle("w1", [(claim, COMPLETE)])
        elif end == "retried":
            await store.results.settle("w1", [(claim, RELEASE)])
        elif end == "reclaimed and claimed again":
            await pool.execute("UPDATE scheduled_jobs SET attempt = attempt + 1 WHERE status = 'running'")
        else:
            await pool.execute("DELETE FROM scheduled_jobs WHERE status = 'running'")
        (claim,) = await running(store, new_job(f"second-{n}"))
        assert await admit(store, [claim], (KEY, most(1))) == {claim.job_id: None}, end
        await pool.execute("DELETE FROM scheduled_jobs")


async def test_admit_counts_a_cancelled_attempt_for_two_more_seconds(store: Store, clock: FakeClock) -> None:
    first = await running(store, new_job("a"))
    await admit(store, first, (KEY, most(1)))
    await store.jobs.cancel("a")
    clock.advance(timedelta(seconds=1.9))
    assert await admit(store, await running(store, new_job("b")), (KEY, most(1))) == {"b": KEY}
    await store.jobs.cancel("b")
    clock.advance(timedelta(seconds=0.1))
    assert await admit(store, await running(store, new_job("c")), (KEY, most(1))) == {"c": None}


@pytest.mark.parametrize("change", ["retry", "replace", "set pending", "replace after set pending"])
async def test_admit_counts_an_attempt_that_was_ended_by_hand_whatever_becomes_of_its_job(
    store: Store, clock: FakeClock, change: str
) -> None:
    first = await running(store, new_job("a"))
    await admit(store, first, (KEY, most(1)))
    clock.advance(timedelta(seconds=30))
    if "pending" not in change:
        await store.jobs.cancel("a")
    else:
        await store.jobs.set_status("a", JobStatus.PENDING, LEASE)
    if change == "retry":
        await store.jobs.retry("a")
    elif "replace" in change:
        await store.inserts.replace([new_job("a")])
    clock.advance(timedelta(seconds=1.9))
    again = (await store.claims.exchange("w1", [NAME], 10)).jobs
    assert await admit(store, again, (KEY, most(1))) == {"a": KEY}
    (found,) = await store.limits.unblock({KEY: [[most(1)]]}, 100)
    assert found.jobs == 0
    clock.advance(timedelta(seconds=0.1))
    (found,) = await store.limits.unblock({KEY: [[most(1)]]}, 100)
    assert found.jobs == 1


async def test_admit_counts_an_attempt_that_was_ended_by_hand_after_a_waiting_definition_applied(
    store: Store, clock: FakeClock
) -> None:
    first = await running(store, new_job("a"))
    await admit(store, first, (KEY, most(2)))
    await store.jobs.cancel("a")
    await store.jobs.retry("a")
    (second,) = (await store.claims.exchange("w1", [NAME], 10)).jobs
    assert await admit(store, [second], (KEY, most(2))) == {"a": None}
    await store.inserts.replace([new_job("a")])
    await store.results.settle("w1", [(second, COMPLETE)])
    (third,) = (await store.claims.exchange("w1", [NAME], 10)).jobs
    assert await admit(store, [third], (KEY, most(1))) == {"a": KEY}
    (job,) = await store.jobs.get_jobs(["a"])
    assert [(each.attempt, each.outcome) for each in job.errors] == [(1, "cancelled")]


async def test_admit_allows_no_more_starts_than_the_rate_in_any_span(
    store: Store, clock: FakeClock, pool: Pool
) -> None:
    limit = (KEY, rate(2, 10))
    for second, admitted in ((0, 1), (6, 1), (9, 0), (10, 1), (15, 0), (16, 1), (30, 2)):
        clock.now = NOW + second * SECOND
        claims = await claims_of(store, 1 if second == 0 else 3, f"at-{second}")
        answer = await admit(store, claims, limit, keep_s=10)
        assert list(answer.values()).count(None) == admitted, second
        await pool.execute("DELETE FROM scheduled_jobs")


async def test_admit_counts_the_starts_of_deleted_jobs_whose_id_is_used_again(
    store: Store, clock: FakeClock, pool: Pool
) -> None:
    limit = (KEY, rate(3, 10))
    for second, admitted in (
        (0, True),
        (2, True),
        (4, True),
        (9, False),
        (10, True),
        (11, False),
        (12, True),
    ):
        clock.now = NOW + second * SECOND
        (claim,) = await running(store, new_job("same"))
        answer = await admit(store, [claim], limit, keep_s=10)
        assert answer == {"same": None if admitted else KEY}, second
        assert await pool.fetchval("DELETE FROM scheduled_jobs RETURNING attempt") == 1


async def test_admit_does_not_count_an_earlier_job_with_the_same_id_as_running(
    store: Store, pool: Pool
) -> None:
    for _ in range(2):
        (claim,) = await running(store, new_job("same"))
        assert await admit(store, [claim], (KEY, most(1)), keep_s=10) == {"same": None}
        assert await admit(store, await running(store, new_job("other")), (KEY, most(1))) == {"other": KEY}
        await pool.execute("DELETE FROM scheduled_jobs")


@pytest.mark.parametrize("has_limit", [False, True], ids=["without a limit", "within another limit"])
async def test_start_of_an_earlier_job_does_not_count_as_running_while_a_later_one_with_its_id_runs(
    store: Store, pool: Pool, clock: FakeClock, has_limit: bool
) -> None:
    """The later job is not within the limit of the earlier one, whose start stays in its log."""
    assert await admit(store, await running(store, new_job("same")), (KEY, most(1)), keep_s=60) == {
        "same": None
    }
    await pool.execute("DELETE FROM scheduled_jobs")
    clock.advance(SECOND)
    later = await running(store, new_job("same"))
    if has_limit:
        assert await admit(store, later, (OTHER, most(1))) == {"same": None}
    others = await running(store, new_job("a"), new_job("b"))
    assert await admit(store, others, (KEY, most(1)), keep_s=60) == {"a": None, "b": KEY}
    clock.advance(timedelta(hours=2))
    await store.limits.delete_past_starts(100)
    assert await starts(pool) == ["a", *(["same"] if has_limit else [])]


async def test_attempt_counts_as_running_after_a_past_start_of_an_earlier_job_with_its_number(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await admit(store, await running(store, new_job("same")), (KEY, most(1)), keep_s=10)
    await pool.execute("DELETE FROM scheduled_jobs")
    clock.advance(timedelta(minutes=1))
    assert await admit(store, await running(store, new_job("same")), (KEY, most(1)), keep_s=10) == {
        "same": None
    }
    assert await admit(store, await running(store, new_job("b")), (KEY, most(1))) == {"b": KEY}


@pytest.mark.parametrize("back", [SECOND, timedelta(days=1)])
@pytest.mark.parametrize("limit", [most(1), rate(1, 10)])
async def test_attempt_that_was_claimed_before_the_clock_was_set_back_is_left_to_be_released(
    store: Store, pool: Pool, clock: FakeClock, back: timedelta, limit: LimitNumbers
) -> None:
    claims = await running(store, new_job("a"), new_job("b"))
    clock.advance(-back)
    for claim in claims:
        assert await admit(store, [claim], (KEY, limit), keep_s=10) == {}
    assert await starts(pool) == []
    clock.advance(back)
    assert await admit(store, claims, (KEY, limit), keep_s=10) == {"a": None, "b": KEY}


async def test_admit_ignores_starts_in_the_future_after_the_clock_was_set_back(
    store: Store, clock: FakeClock
) -> None:
    clock.now = NOW + timedelta(days=30)
    await admit(store, await running(store, new_job("a")), (KEY, rate(1, 10)), keep_s=10)
    clock.now = NOW
    assert await admit(store, await running(store, new_job("b")), (KEY, rate(1, 10)), keep_s=10) == {
        "b": None
    }


async def test_admit_requires_room_in_every_limit_and_blocks_on_the_first_full_one(
    store: Store, pool: Pool
) -> None:
    first, second, third = await claims_of(store, 3)
    requests = [
        AdmissionRequest(first, [(KEY, most(2)), (OTHER, most(1))]),
        AdmissionRequest(second, [(KEY, most(2)), (OTHER, most(1))]),
        AdmissionRequest(third, [(KEY, most(2)), ("limit:account:8", most(1))]),
    ]
    keep = {KEY: 0.0, OTHER: 0.0, "limit:account:8": 0.0}
    assert await store.limits.admit("w1", requests, keep) == {"job-0": None, "job-1": OTHER, "job-2": None}
    assert await starts(pool) == ["job-0", "job-0", "job-2", "job-2"]


async def test_admit_lets_no_new_job_overtake_a_blocked_one(store: Store, pool: Pool) -> None:
    first, *others = await running(
        store, *(new_job(name, execution_time=NOW - n * SECOND) for name, n in (("a", 9), ("b", 8), ("d", 6)))
    )
    await admit(store, [first, *others], (KEY, most(1)))
    assert await blocked(pool) == {"b": KEY, "d": KEY}
    await store.results.settle("w1", [(first, COMPLETE)])
    (between,) = await running(store, new_job("c", execution_time=NOW - 7 * SECOND))
    assert await admit(store, [between], (KEY, most(2))) == {"c": None}, "there is room for b and c"
    (last,) = await running(store, new_job("e", execution_time=NOW - 5 * SECOND))
    assert await admit(store, [last], (KEY, most(2))) == {"e": KEY}, "b comes first"


async def test_admit_starts_an_unblocked_job_while_another_session_holds_one_before_it(
    store: Store, pool: Pool
) -> None:
    claims = await claims_of(store, 3)
    await admit(store, claims, (KEY, most(1)))
    await store.results.settle("w1", [(claims[0], COMPLETE)])
    async with pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM scheduled_jobs WHERE job_id = 'job-1' FOR UPDATE")
        await store.limits.unblock({KEY: [[most(1)]]}, 100)
        (claim,) = (await store.claims.exchange("w1", [NAME], 10)).jobs
        assert await admit(store, [claim], (KEY, most(1))) == {"job-2": None}


async def test_admit_applies_the_smallest_of_several_numbers_of_one_limit(store: Store) -> None:
    claims = await claims_of(store, 4)
    answer = await admit(store, claims, (KEY, most(3)), (KEY, rate(2, 60)), (KEY, rate(9, 600)))
    assert [answer[claim.job_id] for claim in claims] == [None, None, KEY, KEY]


async def test_admit_answers_nothing_for_attempts_that_the_worker_does_not_hold(
    store: Store, pool: Pool
) -> None:
    cancelled, reclaimed, replaced, again, held = await claims_of(store, 5)
    await store.jobs.cancel(cancelled.job_id)
    await pool.execute("UPDATE scheduled_jobs SET attempt = 2 WHERE job_id = $1", again.job_id)
    await pool.execute("UPDATE scheduled_jobs SET worker_id = 'w2' WHERE job_id = $1", reclaimed.job_id)
    await store.inserts.replace([new_job(replaced.job_id)])
    answer = await admit(store, [cancelled, reclaimed, replaced, again, held], (KEY, most(1)))
    assert answer == {held.job_id: None}
    assert await starts(pool) == [held.job_id]


async def test_admit_deletes_starts_that_neither_run_nor_count(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    ended, runs = await claims_of(store, 2)
    await admit(store, [ended, runs], (KEY, most(9)), keep_s=10)
    await store.results.settle("w1", [(ended, COMPLETE)])
    clock.advance(timedelta(seconds=9))
    await admit(store, await running(store, new_job("b")), (KEY, most(9)))
    assert await starts(pool) == ["b", ended.job_id, runs.job_id]  # kept for 10 s, as its task wants
    clock.advance(timedelta(seconds=1))
    await admit(store, await running(store, new_job("c")), (KEY, most(9)))
    assert await starts(pool) == ["b", "c", runs.job_id]


@pytest.mark.slow
async def test_admit_fails_within_its_lock_timeout_while_another_session_holds_the_lock(
    store: Store, pool: Pool, dsn: str
) -> None:
    claims = await claims_of(store, 1)
    other = await asyncpg.connect(dsn)
    await other.execute(f"SELECT pg_advisory_lock({LOCK_CLASS}, hashtext('{KEY}'))")
    with pytest.raises(DatabaseUnavailableError) as caught:
        await admit(store, claims, (KEY, most(1)))
    assert is_lock_timeout(caught.value)
    await other.close()


async def test_admit_reads_committed_rows_when_the_role_has_another_default(
    store: Store, pool: Pool, dsn: str
) -> None:
    claims = await claims_of(store, 1)
    await pool.execute("ALTER ROLE CURRENT_USER SET default_transaction_isolation = 'serializable'")
    try:
        async with store.limits._statements.connections.admission() as connection:
            assert await connection.fetchval("SHOW transaction_isolation") == "read committed"
    finally:
        await pool.execute("ALTER ROLE CURRENT_USER RESET default_transaction_isolation")
    assert claims


# -- unblocking ------------------------------------------------------------------------------------------


async def test_unblock_takes_the_first_jobs_in_claim_order_for_as_many_as_there_is_room(
    store: Store, pool: Pool
) -> None:
    claims = await running(
        store,
        new_job("running"),
        new_job("low", priority=8),
        new_job("late", execution_time=NOW - SECOND),
        new_job("b"),
        new_job("a"),
    )
    first = next(claim for claim in claims if claim.job_id == "running")
    await admit(store, [first], (KEY, most(1)))
    await admit(store, [each for each in claims if each is not first], (KEY, most(1)))
    (found,) = await store.limits.unblock({KEY: [[most(1)]]}, 100)
    assert (found.jobs, found.free_in, found.due) == (0, None, None)
    (found,) = await store.limits.unblock({KEY: [[most(1)], [most(4)]]}, 100)
    assert (found.key, found.jobs, found.late, found.due) == (KEY, 3, 0, NOW - SECOND)
    assert await blocked(pool) == {"low": KEY}
    jobs = (await store.claims.exchange("w1", [NAME], 10)).jobs
    assert [(claim.job_id, claim.attempt) for claim in jobs] == [("late", 2), ("a", 2), ("b", 2)]


async def test_unblock_returns_when_a_rate_allows_the_next_start(
    store: Store, clock: FakeClock, pool: Pool
) -> None:
    limit = rate(2, 10)
    for second in (0, 4):
        clock.now = NOW + second * SECOND
        await admit(store, await running(store, new_job(f"at-{second}")), (KEY, limit), keep_s=10)
    await admit(store, await claims_of(store, 2), (KEY, limit), keep_s=10)
    (found,) = await store.limits.unblock({KEY: [[limit]]}, 100)
    assert (found.jobs, found.free_in) == (0, 6.0)
    clock.now = NOW + 10 * SECOND
    (found,) = await store.limits.unblock({KEY: [[limit]]}, 100)
    assert (found.jobs, found.free_in) == (1, None)
    assert list(await blocked(pool)) == ["job-1"]


async def test_unblock_reports_late_jobs_and_leaves_them_to_expire(store: Store, clock: FakeClock) -> None:
    claims = await running(store, new_job("a"), new_job("b", misfire_grace_time=5))
    await admit(store, claims, (KEY, most(1)))
    clock.advance(timedelta(seconds=6))
    (found,) = await store.limits.unblock({KEY: [[most(2)]]}, 100)
    assert (found.jobs, found.late) == (1, 1)
    assert [each.job_id for each in (await store.claims.exchange("w1", [NAME], 10)).expired] == ["b"]


async def test_unblock_has_no_answer_for_limits_without_blocked_jobs(store: Store) -> None:
    assert await store.limits.unblock({KEY: [[most(1)]], OTHER: [[most(1)]]}, 100) == []


async def test_block_surplus_blocks_due_jobs_of_the_names_behind_a_position(store: Store, pool: Pool) -> None:
    late, soon = NOW - 60 * SECOND, NOW + SECOND
    await store.inserts.insert(
        [
            *(new_job(job_id, execution_time=late) for job_id in ("a", "b", "c", "d")),
            new_job("other", execution_time=late, job_name="other"),
            new_job("first", execution_time=late, priority=1),
            new_job("future", execution_time=soon),
            new_job("expired", execution_time=late, misfire_grace_time=5),
            new_job("waits", execution_time=late),
        ]
    )
    await pool.execute("UPDATE scheduled_jobs SET blocked_on = $1 WHERE job_id = 'waits'", OTHER)
    async with pool.acquire() as session, session.transaction():
        await session.execute("SELECT FROM scheduled_jobs WHERE job_id = 'c' FOR UPDATE")
        found = await store.limits.block_surplus(KEY, [NAME], SurplusPosition(5, late, "a"), 100)
    assert sorted(found) == [BlockedJob(job_id, NAME, 0, late) for job_id in ("b", "d")]
    assert await blocked(pool) == {"b": KEY, "d": KEY, "waits": OTHER}
    found = await store.limits.block_surplus(KEY, [NAME], SurplusPosition(5, late, ""), 1)
    assert [job.job_id for job in found] == ["a"], "the number of rows is bounded"
    found = await store.limits.block_surplus(KEY, ["other"], SurplusPosition(5, late, ""), 100)
    assert [job.job_id for job in found] == ["other"]


async def test_block_surplus_blocks_only_the_jobs_that_need_the_limit(store: Store, pool: Pool) -> None:
    large = json.dumps({"args": ["x" * 3000], "kwargs": {}})
    await store.inserts.insert([*(new_job(job_id) for job_id in "abc"), new_job("d", task_data=large)])
    await store.inserts.insert(
        [new_job("future", execution_time=NOW + SECOND), new_job("other", job_name="other")]
    )
    first = SurplusPosition(5, NOW - SECOND, "")
    read = await store.limits.read_surplus([NAME], first, 100, 2000)
    assert [job_id for job_id, *_ in read] == ["a", "b", "c"], "large arguments are left to the claim"
    assert json.loads(read[0][2]) == {"args": [], "kwargs": {}}
    assert [job_id for job_id, *_ in await store.limits.read_surplus([NAME], first, 2, 2000)] == ["a", "b"]
    found = await store.limits.block_surplus(KEY, [NAME], first, 100, ["b", "future", "other"])
    assert [job.job_id for job in found] == ["b"]
    assert await blocked(pool) == {"b": KEY}


async def block_by_hand(pool: Pool, store: Store, key: str, *job_ids: str) -> None:
    await store.inserts.insert([new_job(job_id, misfire_grace_time=60) for job_id in job_ids])
    await pool.execute("UPDATE scheduled_jobs SET blocked_on = $1 WHERE job_id = ANY ($2)", key, [*job_ids])


async def test_blocked_keys_returns_each_limit_once_after_a_position(store: Store, pool: Pool) -> None:
    await block_by_hand(pool, store, "after", "x")
    await block_by_hand(pool, store, KEY, "a", "b")
    await block_by_hand(pool, store, OTHER, "c", "d")
    assert await store.limits.blocked_keys("after", 10) == [OTHER, KEY]
    assert await store.limits.blocked_keys("after", 1) == [OTHER]
    assert await store.limits.blocked_keys(OTHER, 10) == [KEY]
    assert (await store.workers.scan_deadlines(30, 120)).has_blocked


async def test_scan_deadlines_reports_no_limit_for_jobs_that_wait_for_other_jobs(
    store: Store, pool: Pool
) -> None:
    await block_by_hand(pool, store, "after", "x")
    assert not (await store.workers.scan_deadlines(30, 120)).has_blocked


async def test_unblock_late_walks_the_blocked_jobs_in_bounded_steps(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await block_by_hand(pool, store, OTHER, "a", "b")
    await block_by_hand(pool, store, KEY, "c", "d", "e")
    clock.advance(timedelta(seconds=61))
    await block_by_hand(pool, store, KEY, "in time")
    later = "expires_at + interval '1 hour'"
    await pool.execute(f"UPDATE scheduled_jobs SET expires_at = {later} WHERE job_id = 'in time'")
    await pool.execute("UPDATE scheduled_jobs SET expires_at = NULL WHERE job_id = 'e'")
    count, position = await store.limits.unblock_late([OTHER, KEY], None, 3)
    assert (count, position) == (3, LatePosition(KEY, 5, NOW, "c"))
    assert await store.limits.unblock_late([KEY], position, 100) == (1, None)
    assert await blocked(pool) == {"e": KEY, "in time": KEY}
    assert await store.limits.unblock_late(["limit:none:"], None, 100) == (0, None)


@pytest.mark.parametrize(
    ("worker_columns", "claims"),
    [
        ("names = ARRAY['other', 'app.work']", True),
        ("names = NULL", True),
        ("names = ARRAY['other']", False),
        ("names = ARRAY['app.work'], stopping = true", False),
        ("names = ARRAY['app.work'], state = 'draining'", False),
        ("names = ARRAY['app.work'], role = 'planner'", False),
        ("names = ARRAY['app.work'], lease_until = started_at", False),
    ],
)
async def test_unblock_unclaimed_leaves_the_jobs_that_a_live_worker_claims(
    store: Store, pool: Pool, clock: FakeClock, worker_columns: str, claims: bool
) -> None:
    for worker_id in ("w1", "w2"):
        await store.workers.register(worker(worker_id), LEASE)
    await block_by_hand(pool, store, KEY, "a", "b")
    await block_by_hand(pool, store, OTHER, "c")
    await pool.execute("UPDATE scheduled_jobs SET job_name = 'else' WHERE job_id = 'b'")
    clock.advance(SECOND)
    await pool.execute(f"UPDATE scheduler_workers SET {worker_columns} WHERE worker_id = 'w2'")
    unblocked = await store.limits.unblock_unclaimed([KEY], [NAME], "w1", 100)
    assert unblocked == (set() if claims else {NAME})
    assert await blocked(pool) == {"b": KEY, "c": OTHER} | ({"a": KEY} if claims else {})


async def test_unblock_unclaimed_reads_the_first_jobs_only(store: Store, pool: Pool) -> None:
    await block_by_hand(pool, store, KEY, "a", "b", "c")
    await pool.execute("UPDATE scheduled_jobs SET job_name = 'else' WHERE job_id = 'a'")
    assert await store.limits.unblock_unclaimed([KEY], [NAME], "w1", 2) == {NAME}
    assert await blocked(pool) == {"a": KEY, "c": KEY}


async def test_unblock_forgotten_leaves_the_jobs_of_other_names(store: Store, pool: Pool) -> None:
    await block_by_hand(pool, store, KEY, "a", "b")
    await pool.execute("UPDATE scheduled_jobs SET job_name = 'other' WHERE job_id = 'b'")
    assert await store.limits.unblock_forgotten([KEY], [NAME], 100) == 1
    assert await blocked(pool) == {"b": KEY}


async def test_delete_past_starts_keeps_those_that_run_or_count(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    ended, runs = await claims_of(store, 2)
    await admit(store, [ended, runs], (KEY, most(9)), keep_s=60)
    await store.results.settle("w1", [(ended, COMPLETE)])
    clock.advance(timedelta(hours=1, seconds=59))
    await store.limits.delete_past_starts(100)
    assert await starts(pool) == [ended.job_id, runs.job_id]
    clock.advance(timedelta(seconds=2))
    await store.limits.delete_past_starts(100)
    assert await starts(pool) == [runs.job_id]


@pytest.mark.parametrize("change", ["cancel", "replace", "set pending"])
async def test_changing_a_blocked_job_unblocks_it(store: Store, pool: Pool, change: str) -> None:
    await store.workers.register(worker(), LEASE)
    await block_by_hand(pool, store, KEY, "a")
    if change == "cancel":
        assert (await store.jobs.cancel("a")).changed
    elif change == "replace":
        await store.inserts.replace([new_job("a")])
    else:
        await store.jobs.set_status("a", JobStatus.PENDING, LEASE)
    assert await blocked(pool) == {}
    assert len((await store.claims.exchange("w1", [NAME], 10)).jobs) == (change != "cancel")


async def test_no_plan_of_an_admission_looks_up_jobs_in_the_starts_of_all_limits(
    store: Store, pool: Pool
) -> None:
    """A plan that is made for an empty table is kept. It took 58 of the 68 ms of an admission."""
    query = await store.statements.query("admit_attempts")
    attempts, limits = "text[], int[], text[], bigint[]", "text[], float8[], text[], int[], int[], float8[]"
    types = f"text, timestamptz, {attempts}, {limits}"
    arguments = ", ".join(["NULL"] * len(types.split(",")))
    await pool.execute("VACUUM (ANALYZE) scheduler_starts")  # an empty table has other costs then
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(ADMISSION_SETTINGS)
        await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        await connection.execute(f"PREPARE admission ({types}) AS {query.text}")
        plan = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE admission ({arguments})")
    # The index of the starts begins with the key of the limit.
    scans = re.findall(r'"Index Name": "scheduler_starts_pkey".*?"Index Cond": "([^"]*)"', plan, re.DOTALL)
    assert scans
    assert not [condition for condition in scans if "key =" not in condition]
