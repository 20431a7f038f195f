"""Jobs that wait for others are unblocked or cancelled by whatever ends the others."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, cast

import asyncpg
import pytest

from pg_scheduler import JobStatus
from pg_scheduler.clock import FakeClock
from pg_scheduler.database.faults import is_locked_out
from pg_scheduler.database.statements import Transaction
from pg_scheduler.errors import DatabaseUnavailableError, JobNotFoundError
from pg_scheduler.events import JobCancelled, JobEvent
from pg_scheduler.jobs.history import PARENT, errors_from
from pg_scheduler.queue.dependencies import ScanPosition
from tests.store.test_steps import until_a_lock_is_awaited
from tests.support import inside
from tests.support.dependencies import add, child, edges, state
from tests.support.inside import COMPLETE, RELEASE, Claim, Connections, Extras, Outcome, Store, load_queries
from tests.support.store import LEASE, NAME, NOW, SECOND, Pool, column, new_job, row, running

FREE = ("pending", None)
BLOCKED = ("pending", "after")
CANCELLED = ("cancelled", None)
NOT_COMPLETED = "a job after which this job was to run did not complete"


async def settle(store: Store, claim: Claim, outcome: Outcome = COMPLETE) -> None:
    assert await store.results.settle("w1", [(claim, outcome)]) == {claim.job_id}


async def settle_at_last(store: Store, claim: Claim) -> None:
    """Settle, and again while others hold a lock for longer than a statement waits, as on a slow machine."""
    while True:
        try:
            await settle(store, claim)
        except DatabaseUnavailableError as fault:
            if not is_locked_out(fault):
                raise
        else:
            return


@pytest.fixture
def published(store: Store) -> list[JobEvent]:
    events: list[JobEvent] = []
    store.statements.publish = cast("Any", events.append)
    return events


async def test_job_is_unblocked_when_the_last_of_its_parents_completes(store: Store, pool: Pool) -> None:
    a, b = await running(store, new_job("a"), new_job("b"))
    await add(store, child("c", "a", "b"))
    assert await state(pool, "c") == [BLOCKED]
    assert (await store.claims.exchange("w1", [NAME], 5)).jobs == []
    assert await store.claims.complete("w1", [a], keep=True) == {"a"}, "the fast completion refuses a parent"
    await settle(store, a)
    assert await state(pool, "a", "c") == [("completed", None), BLOCKED]
    await settle(store, b)
    assert await state(pool, "c") == [FREE]
    assert await edges(pool) == set()
    assert await column(pool, "on_end") == dict.fromkeys("abc")
    (claim,) = (await store.claims.exchange("w1", [NAME], 5)).jobs
    assert claim.job_id == "c"


async def test_outcome_of_an_earlier_attempt_unblocks_nothing(store: Store, pool: Pool) -> None:
    (first,) = await running(store, new_job("a"))
    await add(store, child("c", "a"))
    await settle(store, first, RELEASE)
    (second,) = (await store.claims.exchange("w1", [NAME], 5)).jobs
    assert second.attempt == first.attempt + 1
    assert await store.results.settle("w1", [(first, COMPLETE)]) == set()
    assert await state(pool, "a", "c") == [("running", None), BLOCKED]
    await settle(store, second)
    assert await state(pool, "c") == [FREE]


async def test_consequences_of_a_job_that_runs_are_not_applied(store: Store, pool: Pool) -> None:
    (a,) = await running(store, new_job("a"))
    await add(store, child("c", "a"))
    await store.consequences.apply(["a"])
    assert await state(pool, "c") == [BLOCKED]
    await settle(store, a)
    assert await state(pool, "c") == [FREE]


async def test_misfire_grace_time_starts_when_the_job_is_unblocked(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    (a,) = await running(store, new_job("a"))
    await add(store, child("late", "a", misfire_grace_time=5), child("no limit", "a"))
    await add(store, child("future", "a", misfire_grace_time=5, execution_time=NOW + timedelta(hours=2)))
    clock.advance(timedelta(hours=1))
    await settle(store, a)
    assert await column(pool, "expires_at") == {
        "a": None,
        "late": NOW + timedelta(hours=1, seconds=5),
        "no limit": None,
        "future": NOW + timedelta(hours=2, seconds=5),
    }


@pytest.mark.parametrize("outcome", [Outcome.fail("no"), Outcome.skip("no")])
async def test_job_is_cancelled_with_the_reason_when_a_parent_does_not_complete(
    store: Store, pool: Pool, published: list[JobEvent], outcome: Outcome
) -> None:
    a, b = await running(store, new_job("a"), new_job("b"))
    await add(store, child("c", "a", "b"), child("any", "a", outcome="ended"))
    await settle(store, a, outcome)
    status = "failed" if outcome.change.status is JobStatus.FAILED else "cancelled"
    assert await state(pool, "c", "any") == [CANCELLED, FREE]
    found = await row(pool, "c")
    reason = f"job 'a', after which this job was to run, ended as '{status}'"
    assert (found["error_message"], found["finished_at"]) == (NOT_COMPLETED, NOW)
    (entry,) = errors_from(found["errors"])
    assert (entry.outcome, entry.message, entry.ended_at) == (PARENT, reason, NOW)
    assert published == [JobCancelled("c", NAME, 0, reason=reason)]
    await settle(store, b)
    assert await state(pool, "c") == [CANCELLED]


async def test_retries_and_releases_of_a_parent_leave_the_job_blocked(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    (a,) = await running(store, new_job("a", max_retries=1))
    await add(store, child("c", "a"))
    for outcome in (RELEASE, Outcome.retry(SECOND, "no")):
        await settle(store, a, outcome)
        assert await state(pool, "c") == [BLOCKED]
        clock.advance(SECOND)
        (a,) = (await store.claims.exchange("w1", [NAME], 1)).jobs
    await settle(store, a)
    assert await state(pool, "c") == [FREE]


async def test_cancellation_cascades(store: Store, pool: Pool, published: list[JobEvent]) -> None:
    (a,) = await running(store, new_job("a"))
    await add(store, child("b", "a"))
    await add(store, child("c", "b"), child("end", "b", outcome="ended"))
    await add(store, child("d", "c"))
    await settle(store, a, Outcome.fail("no"))
    assert await state(pool, *"bcd", "end") == [CANCELLED] * 3 + [FREE]
    assert [event.job_id for event in published] == ["b", "c", "d"]
    assert "job 'c'" in (await row(pool, "d"))["errors"]
    assert await column(pool, "on_end") == dict.fromkeys([*"abcd", "end"])


async def test_cascade_longer_than_a_transaction_is_continued_by_the_scan(
    store: Store, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, consequence_generations=2)
    (a,) = await running(store, new_job("0"))
    for n in range(1, 5):
        await add(store, child(f"{n}", f"{n - 1}"))
    await settle(store, a, Outcome.fail("no"))
    assert await state(pool, *"1234") == [CANCELLED, CANCELLED, BLOCKED, BLOCKED]
    assert (await store.workers.scan_deadlines(30, 120)).has_ended
    assert await store.consequences.apply_lost(10) == 1
    assert await state(pool, *"1234") == [CANCELLED] * 4
    assert not (await store.workers.scan_deadlines(30, 120)).has_ended


End = Callable[[Store, Claim, FakeClock], Awaitable[object]]


async def expire_in_a_claim(store: Store, claim: Claim, clock: FakeClock) -> None:
    await store.results.settle("w1", [(claim, RELEASE)])
    clock.advance(timedelta(seconds=10))
    await store.workers.renew("w1", {}, LEASE)
    answer = await store.claims.exchange("w1", [NAME], 1)
    await store.claims.explain_expiry("w1", [NAME], answer.expired)


async def expire_unclaimed(store: Store, claim: Claim, clock: FakeClock) -> None:
    await store.results.settle("w1", [(claim, RELEASE)])
    clock.advance(timedelta(seconds=10))
    assert len(await store.jobs.expire("w1", [], 10)) == 1


async def crash(store: Store, _claim: Claim, clock: FakeClock) -> None:
    clock.advance(timedelta(hours=1))
    await store.workers.rescue(120, max_crashes=1)


async def set_by_hand(store: Store, claim: Claim, _clock: FakeClock) -> None:
    await store.results.settle("w1", [(claim, RELEASE)])
    assert (await store.jobs.set_status("a", JobStatus.FAILED, LEASE)).changed


async def quarantine(store: Store, claim: Claim, _clock: FakeClock) -> None:
    await store.results.settle("w1", [(claim, RELEASE)])
    async with store.statements.transaction() as transaction:
        await store.claims._quarantine("a", ValueError("unreadable"), transaction)
    await store.results.consequences.apply(["a"])  # as after the commit of a claim


ENDS: dict[str, End] = {
    "expired": expire_in_a_claim,
    "expired, not claimed": expire_unclaimed,
    "failed, after crashes": crash,
    "failed, by hand": set_by_hand,
    "failed, unreadable": quarantine,
}


@pytest.mark.parametrize("status", ENDS)
async def test_every_other_end_of_a_parent_cancels_the_job(
    store: Store, pool: Pool, clock: FakeClock, status: str
) -> None:
    (a,) = await running(store, new_job("a", misfire_grace_time=5))
    await add(store, child("c", "a"), child("any", "a", outcome="ended"))
    await ENDS[status](store, a, clock)
    assert (await row(pool, "a"))["status"] == status.partition(",")[0]
    assert await state(pool, "c", "any") == [CANCELLED, FREE]
    assert await column(pool, "on_end") == {"a": None, "c": None, "any": None}


async def test_cancelling_a_parent_cancels_the_job(
    store: Store, pool: Pool, published: list[JobEvent]
) -> None:
    await store.inserts.insert([new_job("a")])
    await add(store, child("c", "a"))
    change = await store.jobs.cancel("a")
    assert (change.changed, change.worker_id, change.job_name, change.attempt) == (True, None, NAME, 0)
    assert not (await store.jobs.cancel("a")).changed
    assert await state(pool, "a", "c") == [CANCELLED, CANCELLED]
    assert [event.job_id for event in published] == ["c"]


async def test_blocked_job_can_be_cancelled_and_freed_by_hand(store: Store, pool: Pool) -> None:
    (a,) = await running(store, new_job("a"))
    await add(store, child("b", "a"), child("c", "a"), child("d", "a"))
    assert (await store.jobs.cancel("b")).changed
    await store.jobs.set_status("c", JobStatus.PENDING, LEASE)
    await store.inserts.replace([new_job("d")])
    assert await state(pool, *"bcd") == [CANCELLED, FREE, FREE]
    await settle(store, a, Outcome.fail("no"))
    assert await state(pool, *"bcd") == [CANCELLED, FREE, FREE]
    assert await edges(pool) == set()


async def test_status_set_by_hand_keeps_the_jobs_that_wait(store: Store, pool: Pool) -> None:
    await running(store, new_job("a"))
    await add(store, child("c", "a"))
    await store.inserts.replace([new_job("a", priority=1)])
    for status in (JobStatus.PENDING, JobStatus.RUNNING):
        await store.jobs.set_status("a", status, LEASE)
        assert json.loads((await row(pool, "a"))["on_end"]) == {"child": True}
        assert await state(pool, "c") == [BLOCKED]
    await store.jobs.set_status("a", JobStatus.COMPLETED, LEASE)
    assert await state(pool, "c") == [FREE]


# -- parents that have ended or do not exist -----------------------------------------------------------


@pytest.mark.parametrize(("outcome", "expected"), [("completed", [FREE, CANCELLED]), ("ended", [FREE] * 2)])
async def test_parent_that_has_ended_counts_at_once(
    store: Store, pool: Pool, published: list[JobEvent], outcome: str, expected: object
) -> None:
    a, b = await running(store, new_job("a"), new_job("b"))
    await settle(store, a)
    await settle(store, b, Outcome.fail("no"))
    await add(store, child("good", "a", outcome=outcome), child("bad", "a", "b", outcome=outcome))
    assert await state(pool, "good", "bad") == expected
    assert await edges(pool) == set()


async def test_missing_parent_is_rejected_and_nothing_is_written(store: Store, pool: Pool) -> None:
    await store.inserts.insert([new_job("a")])
    with pytest.raises(JobNotFoundError, match="job 'gone' does not exist"):
        await add(store, child("c", "a", "gone"))
    assert (await column(pool, "on_end"), await edges(pool)) == ({"a": None}, set())


# -- replacing -----------------------------------------------------------------------------------------


async def test_replacement_waits_for_its_own_parents_only(store: Store, pool: Pool) -> None:
    a, b = await running(store, new_job("a"), new_job("b"))
    await add(store, child("c", "a"))
    await add(store, child("c", "b"), replace=True)
    assert await edges(pool) == {("b", "c")}
    await settle(store, a, Outcome.fail("no"))
    assert await state(pool, "c") == [BLOCKED]
    await settle(store, b)
    assert await state(pool, "c") == [FREE]


async def test_job_waits_for_the_new_definition_of_its_parent(store: Store, pool: Pool) -> None:
    (a,) = await running(store, new_job("a"))
    await add(store, child("c", "a"))
    await store.inserts.replace([new_job("a", priority=1)])
    await settle(store, a, Outcome.fail("the old definition"))
    assert await state(pool, "a", "c") == [FREE, BLOCKED]
    (a,) = (await store.claims.exchange("w1", [NAME], 1)).jobs
    await settle(store, a)
    assert await state(pool, "c") == [FREE]


@pytest.mark.parametrize("parent_first", [True, False])
@pytest.mark.parametrize("fails", [True, False])
async def test_definition_that_waits_for_a_running_attempt_waits_for_parents_too(
    store: Store, pool: Pool, fails: bool, parent_first: bool
) -> None:
    c, a = sorted(await running(store, new_job("a"), new_job("c")), reverse=True)
    await add(store, child("c", "a", priority=1), replace=True)
    assert await state(pool, "c") == [("running", None)]
    outcome = Outcome.fail("no") if fails else COMPLETE
    for claim, result in ((a, outcome), (c, COMPLETE))[:: 1 if parent_first else -1]:
        await settle(store, claim, result)
    assert await state(pool, "c") == [CANCELLED if fails else FREE]
    assert await edges(pool) == set()
    assert (await row(pool, "c"))["on_end"] is None


IN_VAIN = "job 'a', after which this job was to run, ended as 'failed'"

OUTCOMES = [COMPLETE, RELEASE, Outcome.fail("no"), Outcome.retry(5 * SECOND, "no"), Outcome.skip("no")]


@pytest.mark.parametrize("end", OUTCOMES, ids=["completed", "released", "failed", "retried", "skipped"])
@pytest.mark.parametrize("failed_before", [True, False])
async def test_definition_that_waits_in_vain_for_a_running_attempt_is_cancelled_with_its_children(
    store: Store, pool: Pool, published: list[JobEvent], failed_before: bool, end: Outcome
) -> None:
    c, a = sorted(await running(store, new_job("a"), new_job("c")), reverse=True)
    await add(store, child("d", "c"))
    if failed_before:
        await settle(store, a, Outcome.fail("no"))
    await add(store, child("c", "a", priority=1), replace=True)
    if not failed_before:
        await settle(store, a, Outcome.fail("no"))
    assert await state(pool, "c", "d") == [("running", None), BLOCKED]
    published.clear()
    await settle(store, c, end)
    assert await state(pool, "c", "d") == [CANCELLED] * 2
    found = await row(pool, "c")
    assert (found["error_message"], found["finished_at"], found["priority"]) == (NOT_COMPLETED, NOW, 1)
    (entry,) = errors_from(found["errors"])
    assert (entry.outcome, entry.message, entry.ended_at) == (PARENT, IN_VAIN, NOW)
    assert JobCancelled("c", NAME, 1, reason=IN_VAIN) in published
    assert await store.jobs.retry("c") is not None
    assert await state(pool, "c") == [FREE]


async def test_definition_that_waits_in_vain_is_cancelled_when_the_worker_of_the_attempt_dies(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    c, a = sorted(await running(store, new_job("a"), new_job("c")), reverse=True)
    await add(store, child("c", "a"), replace=True)
    await settle(store, a, Outcome.fail("no"))
    clock.advance(timedelta(seconds=10 * LEASE))
    await store.workers.rescue(120.0)
    assert c.job_id == "c"
    assert await state(pool, "c") == [CANCELLED]


async def test_newer_definition_takes_the_place_of_one_that_waits_in_vain(store: Store, pool: Pool) -> None:
    c, a = sorted(await running(store, new_job("a"), new_job("c")), reverse=True)
    await add(store, child("c", "a"), replace=True)
    await settle(store, a, Outcome.fail("no"))
    await store.inserts.replace([new_job("c", priority=1)])
    await settle(store, c)
    assert await state(pool, "c") == [FREE]


async def test_definition_that_waits_in_vain_counts_for_its_attempt_only(store: Store, pool: Pool) -> None:
    """A worker of an earlier checkout leaves it in the row, when it retries the job or ends it."""
    c, a = sorted(await running(store, new_job("a"), new_job("c")), reverse=True)
    await add(store, child("c", "a"), replace=True)
    await settle(store, a, Outcome.fail("no"))
    assert (await store.jobs.get_job("c")).replacement  # type: ignore[union-attr]
    await pool.execute("UPDATE scheduled_jobs SET attempt = attempt + 1 WHERE job_id = 'c'")
    assert not (await store.jobs.get_job("c")).replacement  # type: ignore[union-attr]
    await settle(store, c._replace(attempt=c.attempt + 1))
    assert await state(pool, "c") == [("completed", None)]
    assert (await row(pool, "c"))["on_end"] is None


async def test_newer_definition_counts_beside_one_that_waits_in_vain(store: Store, pool: Pool) -> None:
    """A caller of an earlier checkout adds the newer one to what it does not know."""
    c, a = sorted(await running(store, new_job("a"), new_job("c")), reverse=True)
    await store.inserts.replace([new_job("c", priority=1)])
    newer = (await row(pool, "c"))["on_end"]
    await add(store, child("c", "a"), replace=True)
    await settle(store, a, Outcome.fail("no"))
    await pool.execute("UPDATE scheduled_jobs SET on_end = on_end || $1::jsonb WHERE job_id = 'c'", newer)
    assert json.loads((await row(pool, "c"))["on_end"]).keys() == {"in_vain", "replacement"}
    await settle(store, c)
    assert await state(pool, "c") == [FREE]
    assert ((await row(pool, "c"))["priority"], (await row(pool, "c"))["on_end"]) == (1, None)


NOT_IN_VAIN = {
    "ancestor_edges": "its edges are deleted",
    "await_jobs": "its edges are deleted",
    "lock_children": "no results are passed to it",
    "lock_jobs": "no results are passed to it",
    "pass_results": "no results are passed to it",
}
"""The statements that read a definition which waits for the end of an attempt, unless it waits in vain."""


def test_each_other_statement_that_reads_a_definition_that_waits_reads_one_that_waits_in_vain() -> None:
    readers = statements_with("'replacement'")
    assert readers - statements_with("'in_vain'") == {*NOT_IN_VAIN}
    assert statements_with("'in_vain'") <= readers


DROPPING = {
    "apply_replacements": "the definition takes the row",
    "cancel_blocked": "it is kept under another key, until it takes the row and is cancelled",
    "cancel_job": "a caller ends the job",
    "cancel_jobs": "a caller ends the job",
    "clear_consequences": "the job has ended, so none waits",
    "end_past_deadlines": "the job does not run, so none waits",
    "refuse_replacement": "the job fails, and its error has the reason",
    "replace_debounced_jobs": "a newer definition takes its place",
    "replace_extended_jobs": "a newer definition takes its place",
    "replace_jobs": "a newer definition takes its place",
    "set_status": "a caller sets the status",
}
"""What makes a statement drop the new definition that waits for the end of an attempt."""


def statements_with(pattern: str) -> set[str]:
    return {name for name, query in load_queries("s").items() if re.search(pattern, query.text)}


def test_no_other_statement_drops_a_definition_that_waits() -> None:
    """It would disappear without a record."""
    assert statements_with(r"OPERATOR\(pg_catalog\.-\) (ARRAY \[)?'replacement'") == {*DROPPING}


def test_statements_that_drop_a_definition_that_waits_take_over_whose_child_it_is() -> None:
    """The step that has given the child its new definition waits for the child whatever becomes of it."""
    # The others give the row that definition or a newer one, or find none.
    dropping = {"cancel_job", "cancel_jobs", "refuse_replacement", "set_status"}
    # The mark is read from the definition that is dropped, whichever key that is under.
    mark = re.escape("jsonb_build_object('child_of', ((CASE WHEN (job.on_end -> 'replacement') IS NOT NULL")
    assert statements_with(mark.replace(r"\->", r"\S+")) & {*DROPPING} == dropping


async def test_job_that_would_wait_for_itself_is_rejected(store: Store, pool: Pool) -> None:
    await store.inserts.insert([new_job("a")])
    await add(store, child("b", "a"))
    await add(store, child("c", "b"))
    with pytest.raises(ValueError, match="would wait for itself"):
        await add(store, child("a", "c"), replace=True)
    with pytest.raises(ValueError, match="would wait for itself"):
        await add(store, child("x", "y"), child("y", "x"))
    assert await edges(pool) == {("a", "b"), ("b", "c")}
    await add(store, child("c", "a"), replace=True)
    assert await edges(pool) == {("a", "b"), ("a", "c")}


@pytest.mark.parametrize("is_running", [False, True], ids=["pending", "running"])
async def test_job_may_wait_for_one_whose_new_definition_does_not_wait_for_it(
    store: Store, pool: Pool, is_running: bool
) -> None:
    await store.inserts.insert([new_job("b")])
    await add(store, child("a", "b"))
    await store.inserts.replace([new_job("a")])
    if is_running:
        await pool.execute(
            "UPDATE scheduled_jobs SET status = 'running', worker_id = 'w1', attempt = 1, started_at = now(),"
            " lease_until = now() + interval '1 hour' WHERE job_id = 'a'"
        )
    await add(store, child("b", "a"), replace=True)
    assert await state(pool, "b") == [BLOCKED]
    with pytest.raises(ValueError, match="would wait for itself"):
        await add(store, child("a", "b"), replace=True)


async def test_running_job_whose_new_definition_waits_closes_a_circle(store: Store, pool: Pool) -> None:
    await running(store, new_job("a"))
    await store.inserts.insert([new_job("b")])
    await add(store, child("a", "b"), replace=True)
    with pytest.raises(ValueError, match="would wait for itself"):
        await add(store, child("b", "a"), replace=True)


async def test_unusable_definition_that_waited_fails_the_job_and_its_children(
    store: Store, pool: Pool
) -> None:
    (a,) = await running(store, new_job("a"))
    await add(store, child("c", "a"))
    await store.inserts.replace([new_job("a")])
    await pool.execute(
        """UPDATE scheduled_jobs SET on_end = jsonb_set(on_end, '{replacement,priority}', '"x"')
        WHERE job_id = 'a'"""
    )
    assert await store.results.settle("w1", [(a, COMPLETE)]) == set()
    assert await state(pool, "a", "c") == [("failed", None), CANCELLED]


async def test_replacement_of_an_ended_job_waits_for_no_scan_of_its_consequences(
    store: Store, pool: Pool
) -> None:
    """They were withheld at its end, and are applied first, in a transaction of its own or of the caller."""
    a, b, c = await running(store, new_job("a"), new_job("b"), new_job("c"))
    await add(store, child("after a", "a"), child("after b", "b"), child("after c", "c"))
    outcomes = [(a, COMPLETE), (b, Outcome.fail("no")), (c, COMPLETE)]
    await store.results.settle_unlocked("w1", outcomes, with_consequences=False)
    assert await state(pool, "after a", "after b", "after c") == [BLOCKED] * 3
    await store.inserts.replace([new_job("a", priority=1), new_job("new")])
    async with pool.acquire() as connection, connection.transaction():
        keyed = child("b", extras=Extras(unique_key="key"))
        await store.inserts.replace_extended([keyed], connection=connection)
    await add(store, child("c", "new"), replace=True)
    assert await state(pool, "after a", "after b", "after c") == [FREE, CANCELLED, FREE]
    assert await state(pool, "a", "b", "c", "new") == [FREE, FREE, BLOCKED, FREE]
    assert (await row(pool, "a"))["priority"] == 1
    assert (await row(pool, "b"))["unique_key"] == "key"
    assert await edges(pool) == {("new", "c")}


# -- concurrency ---------------------------------------------------------------------------------------


async def test_job_that_would_wait_for_itself_by_two_transactions_at_once_is_rejected(
    store: Store, pool: Pool
) -> None:
    """They share no row."""
    await store.inserts.insert([new_job("a"), new_job("c")])
    await add(store, child("b", "c"), child("d", "a"))
    async with store.statements.transaction() as transaction:
        await store.inserts.replace_extended([child("a", "b")], connection=transaction.connection)
        await store.dependencies.block([child("a", "b")], transaction, replaced=True)
        closing = asyncio.create_task(add(store, child("c", "d"), replace=True))
        await until_a_lock_is_awaited(pool)
    with pytest.raises(ValueError, match="would wait for itself"):
        await closing
    assert await edges(pool) == {("c", "b"), ("a", "d"), ("b", "a")}


async def test_parents_that_end_at_the_same_instant_unblock_the_job_once(
    store: Store, pool: Pool, dsn: str
) -> None:
    """Both transactions have ended their parent before either looks for the other's edge."""
    a, b = await running(store, new_job("a"), new_job("b"))
    await add(store, child("c", "a", "b"))
    first, second = [await asyncpg.connect(dsn) for _ in range(2)]
    try:
        async with first.transaction():
            changes = {("a", a.attempt): COMPLETE.change}
            assert await store.results.settle_within(changes, "w1", Transaction(first, [])) == {"a"}
            other = asyncio.ensure_future(_write_alone(store, b, second))
            await _wait_for_a_lock(pool)
            assert await state(pool, "c") == [BLOCKED]
        await other
    finally:
        await first.close()
        await second.close()
    assert await state(pool, "a", "b", "c") == [("completed", None)] * 2 + [FREE]


async def _write_alone(store: Store, claim: Claim, connection: asyncpg.Connection) -> None:
    async with connection.transaction():
        changes = {(claim.job_id, claim.attempt): COMPLETE.change}
        await store.results.settle_within(changes, "w1", Transaction(connection, []))


async def _wait_for_a_lock(pool: Pool) -> None:
    while not await pool.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_many_parents_that_end_concurrently_unblock_every_job(
    dsn: str, clock: FakeClock, store: Store, pool: Pool
) -> None:
    parents = [f"{n:03}" for n in range(60)]
    claims = await running(store, *(new_job(parent) for parent in parents))
    await add(store, *(child(f"c{n}", *parents[n::3]) for n in range(3)), child("all", *parents))
    async with asyncpg.create_pool(dsn, min_size=8, max_size=8) as many:
        connections = Connections(many)
        others = Store(connections, clock=clock)
        await asyncio.gather(*(settle_at_last(others, claim) for claim in claims))
        await connections.release_held()
    assert await state(pool, "c0", "c1", "c2", "all") == [FREE] * 4
    assert await edges(pool) == set()


async def test_parent_that_ends_while_a_job_is_added_unblocks_it(store: Store, pool: Pool) -> None:
    (a,) = await running(store, new_job("a"))
    async with store.statements.transaction() as transaction:
        job = child("c", "a")
        await store.inserts.insert_extended([job], connection=transaction.connection)
        await store.dependencies.block([job], transaction)
        end = asyncio.ensure_future(settle(store, a))
        await _wait_for_a_lock(pool)
    await end
    assert await state(pool, "a", "c") == [("completed", None), FREE]


@pytest.mark.slow
async def test_deadlock_of_a_cancellation_is_repeated(store: Store, pool: Pool, dsn: str) -> None:
    """The other transaction holds the child, and then needs the parent."""
    await store.inserts.insert([new_job("a")])
    await add(store, child("c", "a"))
    other = await asyncpg.connect(dsn)
    try:
        await other.execute("SET deadlock_timeout = '1h'")
        async with other.transaction():
            await other.execute("SELECT FROM scheduled_jobs WHERE job_id = 'c' FOR UPDATE")
            cancelled = asyncio.ensure_future(store.jobs.cancel("a"))
            await _wait_for_a_lock(pool)
            await other.execute("UPDATE scheduled_jobs SET priority = 1 WHERE job_id = 'a'")
        assert (await cancelled).changed
    finally:
        await other.close()
    assert await state(pool, "a", "c") == [CANCELLED, CANCELLED]


async def test_unblocking_a_job_whose_time_is_out_of_range_keeps_a_valid_expiry(
    store: Store, pool: Pool
) -> None:
    (a,) = await running(store, new_job("a"))
    await add(store, child("c", "a", misfire_grace_time=2**31 - 1))
    await pool.execute(
        "UPDATE scheduled_jobs SET execution_time = '294276-12-31 23:59:59Z' WHERE job_id = 'c'"
    )
    await settle(store, a)
    assert await state(pool, "c") == [FREE]


# -- retention, repair -----------------------------------------------------------------------------------


async def test_vacuum_keeps_a_parent_until_its_children_are_settled(store: Store, pool: Pool) -> None:
    await running(store, new_job("a"))
    await add(store, child("c", "a"))
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'completed', finished_at = $1 WHERE job_id = 'a'", NOW
    )
    blocks = await store.retention.table_blocks()
    for _ in range(2):
        await store.retention.vacuum_blocks(0, blocks, {JobStatus.COMPLETED: NOW})
        await store.retention.vacuum_surplus(JobStatus.COMPLETED, 0, 10)
        assert await state(pool, "a", "c") == [("completed", None), BLOCKED]
    assert await store.consequences.apply_lost(10) == 1
    assert await state(pool, "c") == [FREE]
    assert await store.retention.vacuum_blocks(0, blocks, {JobStatus.COMPLETED: NOW}) == {
        JobStatus.COMPLETED: 1
    }


async def test_row_of_an_attempt_that_may_still_run_is_left_alone(store: Store, pool: Pool) -> None:
    await store.inserts.insert([new_job("a")])
    await pool.execute(
        """UPDATE scheduled_jobs SET status = 'cancelled', finished_at = $1,
        on_end = '{"alive": true}'""",
        NOW,
    )
    assert await store.consequences.apply_lost(10) == 0
    assert await store.retention.vacuum_blocks(0, 10, {JobStatus.CANCELLED: NOW}) == {}
    await pool.execute("""UPDATE scheduled_jobs SET on_end = '{"alive": true, "child": true}'""")
    assert await store.consequences.apply_lost(10) == 0


@pytest.mark.parametrize("on_end", ["5", '"x"', "[1]", "null", "{}", '{"unknown": 1}'])
async def test_consequences_written_by_hand_are_cleared(store: Store, pool: Pool, on_end: str) -> None:
    (a,) = await running(store, new_job("a"))
    await pool.execute("UPDATE scheduled_jobs SET on_end = $1", on_end)
    await settle(store, a)
    assert (await row(pool, "a"))["on_end"] is None


END = "UPDATE scheduled_jobs SET finished_at = now(), on_end = NULL,"
WHOLE = {"blocks": 100, "jobs": 100}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("DELETE FROM scheduled_jobs WHERE job_id = 'a'", [CANCELLED, FREE]),
        (
            f"{END} status = 'completed' WHERE job_id = 'a'",
            [FREE, FREE],
        ),
        (
            f"{END} status = 'failed' WHERE job_id = 'a'",
            [CANCELLED, FREE],
        ),
        ("DELETE FROM scheduler_after", [FREE, FREE]),
        ("SELECT 1", [BLOCKED, BLOCKED]),
    ],
)
async def test_repair_derives_the_state_from_rows_that_were_changed_by_hand(
    store: Store, pool: Pool, published: list[JobEvent], change: str, expected: object
) -> None:
    await running(store, new_job("a"))
    await add(store, child("c", "a"), child("any", "a", outcome="ended"))
    await pool.execute(change)
    assert await store.dependencies.repair(ScanPosition(), **WHOLE) == ScanPosition()
    assert await state(pool, "c", "any") == expected
    assert [event.job_id for event in published] == (["c"] if expected == [CANCELLED, FREE] else [])


async def test_repair_deletes_edges_of_jobs_that_do_not_wait(store: Store, pool: Pool) -> None:
    await store.inserts.insert([new_job("c")])
    await pool.execute("INSERT INTO scheduler_after VALUES ('gone', 'c'), ('gone', 'missing')")
    assert (await store.workers.scan_deadlines(30, 120)).has_waiting
    await store.dependencies.repair(ScanPosition(), **WHOLE)
    assert (await edges(pool), await state(pool, "c")) == (set(), [FREE])
    assert not (await store.workers.scan_deadlines(30, 120)).has_waiting


async def test_repair_reads_everything_in_bounded_parts(store: Store, pool: Pool) -> None:
    await store.inserts.insert([new_job("a")])
    await add(store, *(child(f"{n:03}", "a") for n in range(250)))
    await pool.execute("DELETE FROM scheduler_after WHERE child_id = ANY ('{000,120,249}')")
    await pool.execute("INSERT INTO scheduler_after SELECT 'gone', '130' FROM generate_series(1, 300)")
    position, seen = ScanPosition(), 0
    while seen == 0 or position != ScanPosition():
        position = await store.dependencies.repair(position, blocks=1, jobs=100)
        seen += 1
    assert 3 <= seen < 20
    free = [job_id for job_id, why in (await column(pool, "blocked_on")).items() if why is None]
    assert sorted(free) == ["000", "120", "130", "249", "a"]


async def test_extras_of_a_blocked_job_stay(store: Store, pool: Pool) -> None:
    (a,) = await running(store, new_job("a"))
    extras = Extras('{"keep_result": 60}', "key", "after", '{"on_failure": "app.page"}')
    await add(store, child("c", "a", extras=extras))
    await settle(store, a)
    found = await row(pool, "c")
    assert (found["unique_key"], json.loads(found["options"])) == ("key", {"keep_result": 60})
    assert json.loads(found["on_end"]) == {"on_failure": "app.page"}
