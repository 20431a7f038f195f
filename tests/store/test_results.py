"""Outcomes of attempts are written under their fencing token, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import JobStatus
from pg_scheduler.clock import FakeClock
from pg_scheduler.jobs.step_values import SLEEP
from pg_scheduler.jobs.steps import Suspension
from pg_scheduler.worker import outcome_statements as results_module
from tests.support.inside import COMPLETE, RELEASE, Outcome, Store
from tests.support.patience import PATIENCE
from tests.support.store import LEASE, NAME, NOW, SECOND, Pool, column, new_job, row, running, worker

EVERY_OUTCOME: Sequence[Outcome] = [
    COMPLETE,
    Outcome.fail("ValueError: no"),
    Outcome.retry(timedelta(seconds=90), "ValueError: no"),
    RELEASE,
    Outcome.skip("locked"),
]
ALL_OUTCOMES = pytest.mark.parametrize("outcome", EVERY_OUTCOME, ids=lambda each: each.change.status)
LATER = NOW + 10 * SECOND


async def test_settle_completes_a_batch(store: Store, pool: Pool, clock: FakeClock) -> None:
    claims = await running(store, *(new_job(f"{n}") for n in range(3)))
    clock.advance(10 * SECOND)
    assert await store.results.settle("w1", [(claim, COMPLETE) for claim in claims]) == {
        "0",
        "1",
        "2",
    }
    found = await row(pool, "1")
    assert (found["status"], found["finished_at"], found["lease_until"]) == ("completed", LATER, None)
    assert (found["started_at"], found["worker_id"], found["attempt"]) == (NOW, "w1", 1)


async def test_settle_returns_no_ids_when_the_batch_is_empty(store: Store) -> None:
    assert await store.results.settle("w1", []) == set()


async def test_settle_clears_the_error_of_an_earlier_attempt_when_a_job_completes(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    (claim,) = await running(store, new_job(max_retries=1))
    await store.results.settle("w1", [(claim, Outcome.retry(SECOND, "first"))])
    clock.advance(SECOND)
    (claim,) = (await store.claims.exchange("w1", [NAME], 1)).jobs
    assert (claim.attempt, claim.retry_count) == (2, 1)
    await store.results.settle("w1", [(claim, COMPLETE)])
    found = await row(pool)
    assert (found["status"], found["error_message"], found["retry_count"]) == ("completed", None, 1)


async def test_settle_writes_a_failure_with_its_error(store: Store, pool: Pool, clock: FakeClock) -> None:
    (claim,) = await running(store, new_job())
    clock.advance(10 * SECOND)
    assert await store.results.settle("w1", [(claim, Outcome.fail("ValueError: 'žluť' \" \\ {}"))]) == {"job"}
    found = await row(pool)
    assert (found["status"], found["finished_at"], found["lease_until"]) == ("failed", LATER, None)
    assert found["error_message"] == "ValueError: 'žluť' \" \\ {}"
    assert (found["worker_id"], found["started_at"], found["retry_count"]) == ("w1", NOW, 0)


async def test_settle_makes_a_retry_due_after_its_delay_with_a_new_grace_time(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    (claim,) = await running(store, new_job(max_retries=3, misfire_grace_time=7))
    clock.advance(10 * SECOND)
    assert await store.results.settle("w1", [(claim, Outcome.retry(timedelta(seconds=1.5), "no"))]) == {"job"}
    found = await row(pool)
    assert (found["status"], found["error_message"], found["retry_count"]) == ("pending", "no", 1)
    assert found["execution_time"] == LATER + 1.5 * SECOND
    assert found["expires_at"] == LATER + 8.5 * SECOND
    for name in ("worker_id", "started_at", "last_heartbeat", "lease_until", "finished_at"):
        assert found[name] is None
    assert found["attempt"] == 1, "it is part of the fencing token"


async def test_settle_releases_a_job_at_once_without_counting_a_retry(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    (claim,) = await running(store, new_job(max_retries=3, misfire_grace_time=7))
    clock.advance(10 * SECOND)
    assert await store.results.settle("w1", [(claim, RELEASE)]) == {"job"}
    found = await row(pool)
    assert (found["status"], found["retry_count"], found["execution_time"]) == ("pending", 0, NOW)
    assert found["expires_at"] == LATER + 7 * SECOND
    assert (await store.claims.exchange("w1", [NAME], 1)).jobs == [claim._replace(attempt=2)]


async def test_settle_keeps_expires_at_null_when_a_job_has_no_grace_time(store: Store, pool: Pool) -> None:
    claims = await running(store, new_job("a", max_retries=1), new_job("b"))
    await store.results.settle("w1", list(zip(claims, [Outcome.retry(SECOND, "no"), RELEASE], strict=True)))
    assert await column(pool, "expires_at") == {"a": None, "b": None}


async def test_settle_cancels_a_skipped_job_with_its_reason(store: Store, pool: Pool) -> None:
    (claim,) = await running(store, new_job())
    assert await store.results.settle("w1", [(claim, Outcome.skip("skipped: locked"))]) == {"job"}
    found = await row(pool)
    assert (found["status"], found["error_message"], found["finished_at"]) == (
        "cancelled",
        "skipped: locked",
        NOW,
    )


async def test_settle_writes_different_outcomes_in_one_batch(store: Store, pool: Pool) -> None:
    claims = await running(store, *(new_job(f"{n}", max_retries=1) for n in range(6)))
    outcomes = [*EVERY_OUTCOME, COMPLETE]
    assert await store.results.settle("w1", list(zip(claims, outcomes, strict=True))) == {
        c.job_id for c in claims
    }
    assert await column(pool, "status") == {
        "0": "completed",
        "1": "failed",
        "2": "pending",
        "3": "pending",
        "4": "cancelled",
        "5": "completed",
    }


# -- fencing -----------------------------------------------------------------------------------------


@ALL_OUTCOMES
async def test_settle_refuses_an_outcome_of_another_worker_or_attempt(
    store: Store, pool: Pool, outcome: Outcome
) -> None:
    (claim,) = await running(store, new_job())
    before = await row(pool)
    assert await store.results.settle("w2", [(claim, outcome)]) == set()
    assert await store.results.settle("w1", [(claim._replace(attempt=2), outcome)]) == set()
    assert await store.results.settle("w1", [(claim._replace(attempt=0), outcome)]) == set()
    assert await store.results.settle("w1", [(claim._replace(job_id="gone"), outcome)]) == set()
    assert await row(pool) == before


@ALL_OUTCOMES
@pytest.mark.parametrize("status", [status for status in JobStatus if status is not JobStatus.RUNNING])
async def test_settle_refuses_a_job_that_is_not_running(
    store: Store, pool: Pool, outcome: Outcome, status: JobStatus
) -> None:
    (claim,) = await running(store, new_job())
    await store.jobs.set_status("job", status, LEASE)
    before = await row(pool)
    await store.results.settle("w1", [(claim, outcome)])
    assert await row(pool) == before


@pytest.mark.parametrize(
    "outcome", [COMPLETE, Outcome.fail("no"), Outcome.skip("locked")], ids=lambda each: each.change.status
)
async def test_settle_accepts_an_outcome_that_was_written_before(
    store: Store, pool: Pool, clock: FakeClock, outcome: Outcome
) -> None:
    """The answer was lost, and the worker writes the outcome again."""
    (claim,) = await running(store, new_job())
    assert await store.results.settle("w1", [(claim, outcome)]) == {"job"}
    before = await row(pool)
    clock.advance(SECOND)
    assert await store.results.settle("w1", [(claim, outcome)]) == {"job"}
    for other in EVERY_OUTCOME:
        accepted = await store.results.settle("w1", [(claim, other)])
        assert accepted == ({"job"} if other.change.status is outcome.change.status else set())
    assert await store.results.settle("w2", [(claim, outcome)]) == set()
    assert await store.results.settle("w1", [(claim._replace(attempt=2), outcome)]) == set()
    assert await row(pool) == before


@ALL_OUTCOMES
async def test_settle_refuses_a_job_that_another_attempt_holds(
    store: Store, pool: Pool, outcome: Outcome
) -> None:
    (old,) = await running(store, new_job())
    await store.jobs.set_status("job", JobStatus.PENDING, LEASE)
    (new,) = (await store.claims.exchange("w1", [NAME], 1)).jobs
    before = await row(pool)
    assert await store.results.settle("w1", [(old, outcome)]) == set()
    assert await row(pool) == before
    assert await store.results.settle("w1", [(new, outcome)]) == {"job"}


async def test_settle_writes_the_other_outcomes_when_one_is_refused(store: Store, pool: Pool) -> None:
    claims = await running(store, *(new_job(f"{n}") for n in range(4)))
    await store.jobs.cancel("1")
    await store.jobs.cancel("2")
    outcomes: list[Outcome] = [COMPLETE, COMPLETE, Outcome.fail("no"), Outcome.fail("no")]
    assert await store.results.settle("w1", list(zip(claims, outcomes, strict=True))) == {"0", "3"}
    assert await column(pool, "status") == {
        "0": "completed",
        "1": "cancelled",
        "2": "cancelled",
        "3": "failed",
    }
    by_caller = "cancelled by a caller"
    assert await column(pool, "error_message") == {"0": None, "1": by_caller, "2": by_caller, "3": "no"}


@pytest.mark.parametrize("late", [COMPLETE, Outcome.fail("late")])
async def test_settle_writes_the_current_attempt_when_an_old_one_follows(
    store: Store, pool: Pool, late: Outcome
) -> None:
    """A worker lost a job and claimed it again, and both attempts ended before the batch was written."""
    (stale,) = await running(store, new_job())
    await store.jobs.set_status("job", JobStatus.PENDING, LEASE)
    (fresh,) = (await store.claims.exchange("w1", [NAME], 1)).jobs
    await store.results.settle("w1", [(stale, late), (fresh, COMPLETE)])
    found = await row(pool)
    assert (found["status"], found["error_message"], found["attempt"]) == ("completed", None, 2)


# -- replacements ------------------------------------------------------------------------------------

REPLACEMENT = new_job(
    job_name="app.other",
    execution_time=NOW + 30 * SECOND,
    task_data='{"args": ["new"], "kwargs": {}}',
    priority=1,
    max_retries=9,
    misfire_grace_time=5,
    timeout_seconds=0.1,
    function="app.moved",
    lock_key=2**63 - 1,
)


@ALL_OUTCOMES
async def test_settle_applies_a_replacement_with_every_outcome(
    store: Store, pool: Pool, clock: FakeClock, outcome: Outcome
) -> None:
    (claim, other) = await running(store, new_job(max_retries=1), new_job("other"))
    await store.inserts.replace([REPLACEMENT])
    held = await row(pool)
    assert (held["status"], held["job_name"], held["attempt"]) == ("running", NAME, 1), "undisturbed"
    clock.advance(10 * SECOND)
    assert await store.results.settle("w1", [(claim, outcome), (other, COMPLETE)]) == {
        "job",
        "other",
    }
    found = await row(pool)
    expected = {
        "status": "pending",
        "job_name": "app.other",
        "execution_time": NOW + 30 * SECOND,
        "task_data": '{"args": ["new"], "kwargs": {}}',
        "priority": 1,
        "max_retries": 9,
        "misfire_grace_time": 5,
        "timeout_seconds": 0.1,
        "function": "app.moved",
        "lock_key": 2**63 - 1,
        "expires_at": NOW + 35 * SECOND,
        "retry_count": 0,
        "attempt": 1,
        "on_end": None,
        "error_message": None,
        "worker_id": None,
        "started_at": None,
        "finished_at": None,
        "last_heartbeat": NOW,  # when the definition was given
        "lease_until": None,
    }
    assert {name: found[name] for name in expected} == expected
    assert (await row(pool, "other"))["status"] == "completed"


@pytest.mark.parametrize(
    "outcome",
    [*EVERY_OUTCOME, Outcome.suspend((Suspension(SLEEP, "nap", NOW + 30 * SECOND),))],
    ids=["completed", "failed", "retried", "released", "skipped", "suspended"],
)
async def test_settle_writes_an_outcome_whose_replacement_is_dropped_meanwhile(
    store: Store, pool: Pool, dsn: str, monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> None:
    """The job for which the replacement waits fails when the attempt ends, as ``cancel_blocked`` does it."""
    monkeypatch.setattr(results_module, "LOCK_TIMEOUT_MS", round(PATIENCE * 1000))
    claim, other = await running(store, new_job(max_retries=1), new_job("other"))
    await store.inserts.replace([REPLACEMENT])
    canceller = await asyncpg.connect(dsn)
    try:
        async with asyncio.timeout(PATIENCE), canceller.transaction():
            await canceller.execute(
                "UPDATE scheduled_jobs SET on_end = on_end - 'replacement' WHERE job_id = 'job'"
            )
            outcomes = [(claim, outcome), (other, COMPLETE)]
            settling = asyncio.create_task(store.results.settle("w1", outcomes))
            while not await pool.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                pass
        assert await settling == {"job", "other"}
    finally:
        await canceller.close()
    found = await row(pool)
    assert (found["status"], found["job_name"]) == (outcome.change.status, NAME)
    assert (await row(pool, "other"))["status"] == "completed"


async def test_settle_applies_a_replacement_without_optional_values(store: Store, pool: Pool) -> None:
    (claim,) = await running(
        store, new_job(misfire_grace_time=5, function="app.moved", lock_key=7, job_name="app.moved")
    )
    await store.inserts.replace([new_job(timeout_seconds=None)])
    await store.results.settle("w1", [(claim, COMPLETE)])
    found = await row(pool)
    for name in ("misfire_grace_time", "timeout_seconds", "function", "lock_key", "expires_at"):
        assert found[name] is None


async def test_settle_counts_the_grace_time_of_a_replacement_from_its_earliest_start(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    (claim,) = await running(store, new_job())
    await store.inserts.replace([new_job(misfire_grace_time=5)])
    clock.advance(10 * SECOND)
    await store.results.settle("w1", [(claim, COMPLETE)])
    assert (await row(pool))["expires_at"] == LATER + 5 * SECOND


async def test_settle_keeps_a_replacement_when_it_refuses_the_outcome(store: Store, pool: Pool) -> None:
    (claim,) = await running(store, new_job())
    await store.inserts.replace([REPLACEMENT])
    before = await row(pool)
    for outcome in EVERY_OUTCOME:
        assert await store.results.settle("w1", [(claim._replace(attempt=2), outcome)]) == set()
        assert await store.results.settle("w2", [(claim, outcome)]) == set()
    assert await row(pool) == before


async def test_settle_applies_the_last_of_several_replacements(store: Store, pool: Pool) -> None:
    (claim,) = await running(store, new_job())
    await store.inserts.replace([REPLACEMENT])
    await store.inserts.replace([new_job(priority=8)])
    await store.results.settle("w1", [(claim, COMPLETE)])
    assert (await row(pool))["priority"] == 8


async def test_replaced_job_runs_again_only_after_its_attempt_ended(store: Store, clock: FakeClock) -> None:
    (first,) = await running(store, new_job())
    await store.inserts.replace([new_job(task_data='{"args": ["new"], "kwargs": {}}')])
    await store.workers.register(worker("w2"), LEASE)
    assert (await store.claims.exchange("w2", [NAME], 1)).jobs == []
    await store.results.settle("w1", [(first, Outcome.fail("no"))])
    (second,) = (await store.claims.exchange("w2", [NAME], 1)).jobs
    assert (second.attempt, second.task_data) == (2, '{"args": ["new"], "kwargs": {}}')
