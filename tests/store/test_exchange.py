"""Completions and claims in one statement."""

from __future__ import annotations

import asyncio

import pytest

from pg_scheduler import JobStatus
from pg_scheduler.clock import FakeClock
from pg_scheduler.worker.claims import ExchangeResult
from tests.support.inside import COMPLETE, RELEASE, Store
from tests.support.store import LEASE, NAME, NOW, SECOND, Pool, column, new_job, row, running, worker


def ids(jobs: object) -> list[str]:
    return [job.job_id for job in jobs]  # type: ignore[attr-defined]


async def test_exchange_completes_and_claims_in_one_statement(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    done = await running(store, new_job("a"), new_job("b"), new_job("stays"))
    await store.inserts.insert(
        [new_job("next"), new_job("more"), new_job("future", execution_time=NOW + 9 * SECOND)]
    )
    clock.advance(SECOND)
    answer = await store.claims.exchange("w1", [NAME], 5, completed=done[:2])
    assert (ids(answer.jobs), answer.expired, answer.due_in) == (["more", "next"], [], 8)
    assert answer.refused == set()
    assert await column(pool, "status") == {
        "a": "completed",
        "b": "completed",
        "stays": "running",
        "next": "running",
        "more": "running",
        "future": "pending",
    }
    found = await row(pool, "a")
    assert (found["finished_at"], found["lease_until"], found["attempt"]) == (NOW + SECOND, None, 1)


async def test_exchange_only_completes_when_the_limit_is_zero(store: Store, pool: Pool) -> None:
    done = await running(store, new_job("a"))
    await store.inserts.insert([new_job("waits")])
    answer = await store.claims.exchange("w1", [NAME], 0, completed=done)
    assert answer == ExchangeResult([], [], None)
    assert await column(pool, "status") == {"a": "completed", "waits": "pending"}


async def test_exchange_only_claims_when_there_are_no_completions(store: Store) -> None:
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert([new_job("a")])
    answer = await store.claims.exchange("w1", [NAME], 5)
    assert (ids(answer.jobs), answer.refused) == (["a"], set())


async def test_exchange_returns_an_empty_result_when_there_is_nothing_to_do(store: Store) -> None:
    nothing = ExchangeResult([], [], None)
    assert await store.claims.exchange("w1", [], 0) == nothing
    assert await store.claims.exchange("w1", [NAME], 5) == nothing
    await store.workers.register(worker(), LEASE)
    assert await store.claims.exchange("w1", [NAME], 5) == nothing


async def test_exchange_names_refused_completions_and_writes_the_others(store: Store, pool: Pool) -> None:
    done = await running(
        store, *(new_job(each) for each in ("fine", "gone", "again", "cancelled", "replaced"))
    )
    by_id = {claim.job_id: claim for claim in done}
    await store.jobs.cancel("cancelled")
    await store.inserts.replace([new_job("replaced", priority=1)])
    await store.jobs.set_status("again", JobStatus.PENDING, LEASE)
    await store.claims.exchange("w1", [NAME], 1)  # its second attempt
    await store.inserts.insert([new_job("next")])
    by_id["gone"] = by_id["gone"]._replace(job_id="never was")
    answer = await store.claims.exchange("w1", [NAME], 5, completed=list(by_id.values()))
    assert answer.refused == {"never was", "again", "cancelled", "replaced"}
    assert ids(answer.jobs) == ["next"]
    assert await column(pool, "status") == {
        "fine": "completed",
        "gone": "running",
        "again": "running",
        "cancelled": "cancelled",
        "replaced": "running",
        "next": "running",
    }
    replaced = by_id["replaced"]
    assert await store.results.settle("w1", [(replaced, COMPLETE), (by_id["again"], COMPLETE)]) == {
        "replaced"
    }
    assert (await row(pool, "replaced"))["status"] == "pending"


@pytest.mark.parametrize("attempt", [2, 0])
async def test_exchange_refuses_a_completion_of_another_attempt(
    store: Store, pool: Pool, attempt: int
) -> None:
    (claim,) = await running(store, new_job())
    before = await row(pool)
    answer = await store.claims.exchange("w1", [], 0, completed=[claim._replace(attempt=attempt)])
    assert answer.refused == {"job"}
    assert (await store.claims.exchange("w2", [], 0, completed=[claim])).refused == {"job"}
    assert await row(pool) == before


async def test_exchange_deletes_fenced_completions_when_rows_are_not_kept(store: Store, pool: Pool) -> None:
    own, lost, replaced = await running(store, new_job("own"), new_job("lost"), new_job("replaced"))
    await store.jobs.cancel("lost")
    await store.inserts.replace([new_job("replaced", execution_time=NOW + SECOND)])
    await store.inserts.insert([new_job("next")])
    answer = await store.claims.exchange("w1", [NAME], 5, completed=[own, lost, replaced], keep=False)
    assert (ids(answer.jobs), answer.refused) == (["next"], {"lost", "replaced"})
    assert await column(pool, "status") == {"lost": "cancelled", "replaced": "running", "next": "running"}


async def test_exchange_accepts_a_completion_listed_twice(store: Store) -> None:
    (claim,) = await running(store, new_job())
    assert (await store.claims.exchange("w1", [], 0, completed=[claim, claim])).refused == set()
    assert (await store.claims.exchange("w1", [], 0, completed=[claim])).refused == {"job"}, (
        "it was completed before"
    )


async def test_exchange_completes_held_jobs_and_claims_nothing_when_the_lease_expired(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    done = await running(store, new_job("a"))
    await store.inserts.insert([new_job("next")])
    clock.advance(2 * LEASE * SECOND)
    answer = await store.claims.exchange("w1", [NAME], 5, completed=done)
    assert (answer.jobs, answer.refused) == ([], set())
    assert answer.due_in is not None
    assert answer.due_in < 0
    assert await column(pool, "status") == {"a": "completed", "next": "pending"}


async def test_exchange_starts_at_the_claim_position_of_each_priority(store: Store) -> None:
    await store.workers.register(worker(), LEASE)
    for priority in (1, 3, 5, 8):
        await store.inserts.insert(
            [
                new_job(f"{priority} before", priority=priority, execution_time=NOW - 2 * SECOND),
                new_job(f"{priority} at", priority=priority, execution_time=NOW - SECOND),
                new_job(f"{priority} after", priority=priority),
            ]
        )
    mark = NOW - SECOND
    first = await store.claims.exchange("w1", [NAME], 100, since=(mark, None, NOW, mark))
    assert ids(first.jobs) == [
        "1 at",
        "1 after",
        "3 before",
        "3 at",
        "3 after",
        "5 after",
        "8 at",
        "8 after",
    ]
    rest = await store.claims.exchange("w1", [NAME], 100)
    assert ids(rest.jobs) == ["1 before", "5 before", "5 at", "8 before"]


async def test_exchange_writes_the_other_completions_when_a_row_is_locked(store: Store, pool: Pool) -> None:
    """A caller's open transaction that replaces a running job must not block all claims of its worker."""
    done = await running(store, new_job("a"), new_job("locked"))
    await store.inserts.insert([new_job("next")])
    async with pool.acquire() as other:
        transaction = other.transaction()
        await transaction.start()
        await store.inserts.replace([new_job("locked", priority=1)], connection=other)
        answer = await asyncio.wait_for(store.claims.exchange("w1", [NAME], 5, completed=done), 10)
        assert (ids(answer.jobs), answer.refused) == (["next"], {"locked"})
        finishing = asyncio.create_task(store.results.settle("w1", [(done[1], COMPLETE)]))
        waiting, _ = await asyncio.wait([finishing], timeout=0.05)  # real time: that one waits for the lock
        assert not waiting
        await transaction.rollback()
    assert await finishing == {"locked"}
    assert await column(pool, "status") == {"a": "completed", "locked": "completed", "next": "running"}


async def test_settle_writes_mixed_outcomes_in_one_transaction(store: Store, pool: Pool) -> None:
    """If one cannot be written, all are written the next time, and none is refused."""
    first = await running(store, new_job("a"), new_job("b"))
    await store.results.settle("w1", [(first[1], RELEASE)])
    (second,) = (await store.claims.exchange("w1", [NAME], 1)).jobs
    assert (first[0].attempt, second.attempt) == (1, 2)
    await pool.execute("ALTER TABLE scheduled_jobs ADD CHECK (job_id <> 'b' OR status <> 'completed')")
    with pytest.raises(Exception, match="check"):
        await store.results.settle("w1", [(first[0], COMPLETE), (second, COMPLETE)])
    assert await column(pool, "status") == {"a": "running", "b": "running"}
    await pool.execute("ALTER TABLE scheduled_jobs DROP CONSTRAINT scheduled_jobs_check")
    assert await store.results.settle("w1", [(first[0], COMPLETE), (second, COMPLETE)]) == {
        "a",
        "b",
    }


async def test_exchange_starts_at_an_id_when_many_jobs_share_an_instant(store: Store) -> None:
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert([new_job(job_id, execution_time=NOW) for job_id in "abcd"])
    answer = await store.claims.exchange(
        "w1", [NAME], 2, since=(None, None, NOW, None), after=("", "", "c", "")
    )
    assert ids(answer.jobs) == ["c", "d"]
    assert ids((await store.claims.exchange("w1", [NAME], 4)).jobs) == ["a", "b"]
