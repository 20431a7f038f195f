"""The results of jobs are copied to the jobs that wait for them, by the transactions that end the others."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from pg_scheduler import JobStatus
from pg_scheduler.clock import FakeClock
from pg_scheduler.errors import JobError, JobResult, ResultUnavailableError
from pg_scheduler.jobs.outcome import RowChange
from pg_scheduler.jobs.result import kept_error, kept_value
from pg_scheduler.queue.dependencies import ScanPosition
from tests.support.dependencies import add, child, edges, passed, reader, state
from tests.support.inside import COMPLETE, Claim, ExtendedJob, Extras, Outcome, Store
from tests.support.store import LEASE, NAME, NOW, Pool, column, new_job, running, worker

KEEPS = Extras(options='{"keep_result": 1}')
DAY = timedelta(days=1)


async def keeping(store: Store, *job_ids: str, extras: Extras = KEEPS) -> list[Claim]:
    """Insert jobs that keep their results for a second, and have a worker claim them."""
    await store.inserts.insert_extended([ExtendedJob(new_job(job_id), extras) for job_id in job_ids])
    return await claim(store, len(job_ids))


async def claim(store: Store, count: int = 1) -> list[Claim]:
    await store.workers.register(worker(), LEASE)
    claims = (await store.claims.exchange("w1", [NAME], count)).jobs
    assert len(claims) == count
    return sorted(claims, key=lambda each: each.job_id)


def completed(value: object) -> Outcome:
    return Outcome(RowChange(JobStatus.COMPLETED, kept=kept_value(1, value, None)), None)


def failed() -> Outcome:
    def print_label() -> None:
        raise ValueError("no paper")

    with pytest.raises(ValueError, match="no paper") as raised:
        print_label()
    return Outcome.fail("ValueError: no paper", kept=kept_error(1, "ValueError: no paper", raised.value))


async def settle(store: Store, claim: Claim, outcome: Outcome) -> None:
    assert await store.results.settle("w1", [(claim, outcome)]) == {claim.job_id}


async def values(store: Store, job_id: str) -> dict[str, object]:
    return {each: result.value for each, result in (await passed(store, job_id)).items()}


async def add_step(pool: Pool, job_id: str, name: str) -> None:
    await pool.execute(
        "INSERT INTO scheduler_steps (job_id, name, kind, value, attempt, started_at, ended_at)"
        " VALUES ($1, $2, 'step', '1', 1, now(), now())",
        job_id,
        name,
    )


async def steps(pool: Pool) -> set[tuple[str, str]]:
    """Return the stored steps and results, as the job and what precedes the name's digest."""
    rows = await pool.fetch("SELECT job_id, name FROM scheduler_steps")
    return {(row["job_id"], row["name"].partition(":")[0]) for row in rows}


async def test_result_is_passed_by_the_transaction_that_ends_the_predecessor(store: Store) -> None:
    a, b = await keeping(store, "a", "b")
    await add(store, reader("c", "b", "a"))
    await settle(store, b, completed({"sum": [1, None]}))
    done = JobResult(
        "b", JobStatus.COMPLETED, {"sum": [1, None]}, attempts=1, started_at=NOW, finished_at=NOW
    )
    assert await passed(store, "c") == {"b": done}
    await settle(store, a, completed(None))
    assert list(await passed(store, "c")) == ["a", "b"], "in the order of the ids"
    assert (await passed(store, "c"))["a"].unwrap() is None


async def test_result_whose_lifetime_has_ended_is_kept_until_it_is_passed(
    store: Store, clock: FakeClock
) -> None:
    """The rows of those that wait were locked, so the outcome was written without what follows from it."""
    (a,) = await keeping(store, "a")
    await add(store, reader("b", "a"))
    await store.results.settle_unlocked("w1", [(a, completed(1))], with_consequences=False)
    clock.advance(DAY)
    assert await store.kept_results.vacuum(10) == 0
    await store.consequences.apply_lost(10)
    assert await values(store, "b") == {"a": 1}
    assert await store.kept_results.vacuum(10) == 1


async def test_failure_is_passed_with_its_traceback(store: Store) -> None:
    """Values and errors of outcomes are kept before the consequences of the ends follow."""
    (a,) = await keeping(store, "a")
    await add(store, reader("b", "a"))
    await settle(store, a, failed())
    result = (await passed(store, "b"))["a"]
    assert result.status is JobStatus.FAILED
    assert result.error is not None
    assert (result.error.type, result.error.message) == ("ValueError", "no paper")
    assert "in print_label" in (result.error.traceback or "")
    kept = (await store.kept_results.get(["a"]))["a"]
    assert kept is not None
    assert kept.error == result.error


async def test_outcome_that_is_in_the_row_already_keeps_no_other_value(store: Store) -> None:
    """Its function went on after a completion in a transaction whose commit had no answer."""
    (a,) = await keeping(store, "a")
    await settle(store, a, completed("of the commit"))
    await settle(store, a, completed("of the function"))
    kept = (await store.kept_results.get(["a"]))["a"]
    assert kept is not None
    assert kept.value == "of the commit"


async def test_result_kept_for_a_second_is_read_a_day_later(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    a, b = await keeping(store, "a", "b")
    await add(store, reader("c", "a", "b"))
    await settle(store, a, completed(7))
    clock.advance(DAY)
    assert await store.kept_results.vacuum(10) == 1
    await store.workers.register(worker(), LEASE)
    await settle(store, b, completed(8))
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id IN ('a', 'b')")
    assert await values(store, "c") == {"a": 7, "b": 8}


async def test_results_of_predecessors_that_have_ended_are_passed_when_the_job_is_inserted(
    store: Store, pool: Pool
) -> None:
    a, b = await keeping(store, "a", "b")
    await settle(store, a, completed(7))
    await add(store, reader("c", "a", "b"))
    assert await values(store, "c") == {"a": 7}
    await settle(store, b, failed())
    await add(store, reader("d", "a", "b"))
    assert await state(pool, "d") == [("pending", None)]
    assert await values(store, "d") == {"a": 7, "b": None}


async def test_result_that_was_deleted_before_the_job_was_inserted_has_no_value(
    store: Store, clock: FakeClock
) -> None:
    a, b = await keeping(store, "a", "b")
    await settle(store, a, completed(7))
    await settle(store, b, failed())
    clock.advance(DAY)
    assert await store.kept_results.vacuum(10) == 2
    await add(store, reader("c", "a", "b"))
    found = await passed(store, "c")
    assert found["a"].finished_at == NOW
    with pytest.raises(ResultUnavailableError, match=r"lifetime has ended; pass keep_result="):
        found["a"].unwrap()
    assert found["b"].error == JobError("", "ValueError: no paper")


async def test_result_of_a_job_whose_end_was_set_by_sql_is_passed_by_the_scan(
    store: Store, pool: Pool
) -> None:
    await keeping(store, "a", "b")
    await add(store, reader("c", "a", "b"))
    for job_id, status in (("a", "failed"), ("b", "completed")):
        await pool.execute(
            "UPDATE scheduled_jobs SET status = $2, finished_at = $3 WHERE job_id = $1", job_id, status, NOW
        )
    await pool.execute("UPDATE scheduled_jobs SET on_end = NULL WHERE job_id = 'b'")
    assert await store.consequences.apply_lost(10) == 1
    await store.dependencies.repair(ScanPosition(), blocks=100, jobs=100)
    found = await passed(store, "c")
    assert {each: result.status for each, result in found.items()} == {"a": "failed", "b": "completed"}
    assert await state(pool, "c") == [("pending", None)]


async def test_two_predecessors_that_end_at_once_pass_both_results_and_unblock_once(
    store: Store, pool: Pool
) -> None:
    """Each round is one race of two transactions."""
    for number in range(20):
        ids = [f"{number}:{each}" for each in "ab"]
        a, b = await keeping(store, *ids)
        await add(store, reader(f"{number}:c", *ids, execution_time=NOW + DAY))
        await asyncio.gather(settle(store, a, completed(1)), settle(store, b, completed(2)))
        assert await values(store, f"{number}:c") == {ids[0]: 1, ids[1]: 2}
    assert set((await column(pool, "blocked_on")).values()) == {None}
    assert await edges(pool) == set()


async def test_unmarked_job_gets_no_results(store: Store, pool: Pool) -> None:
    (a,) = await keeping(store, "a")
    await add(store, child("b", "a"))
    await settle(store, a, completed(7))
    assert await state(pool, "b") == [("pending", None)]
    assert await steps(pool) == set()


async def test_predecessor_that_keeps_no_result_is_refused(store: Store, pool: Pool) -> None:
    await running(store, new_job("a"))
    message = r"job 'a' keeps no result that could be passed to job 'b'; pass keep_result= to the first"
    with pytest.raises(ValueError, match=message):
        await add(store, reader("b", "a"))
    assert set(await column(pool, "status")) == {"a"}
    assert await edges(pool) == set()


async def test_waiting_definition_of_a_predecessor_decides_whether_its_result_is_kept(store: Store) -> None:
    a, _ = await keeping(store, "a", "b")
    plain, keeps = ExtendedJob(new_job("b"), Extras(options="{}")), ExtendedJob(new_job("a"), KEEPS)
    async with store.statements.transaction() as (connection, _):
        await store.inserts.replace_extended([keeps, plain], connection=connection)
    with pytest.raises(ValueError, match="job 'b' keeps no result"):
        await add(store, reader("c", "a", "b"))
    await add(store, reader("c", "a"))
    await settle(store, a, completed(1))
    assert await passed(store, "c") == {}, "the new definition has not run"
    (a,) = await claim(store)
    await settle(store, a, completed(2))
    assert await values(store, "c") == {"a": 2}


async def test_retry_of_a_predecessor_changes_nothing_that_was_passed(store: Store) -> None:
    (a,) = await keeping(store, "a")
    await add(store, reader("b", "a", execution_time=NOW + DAY))
    await settle(store, a, completed(1))
    await store.jobs.retry("a")
    (a,) = await claim(store)
    await settle(store, a, completed(2))
    assert await values(store, "b") == {"a": 1}


async def test_retried_job_has_the_results_that_were_passed(store: Store) -> None:
    (a,) = await keeping(store, "a")
    await add(store, reader("b", "a"))
    await settle(store, a, completed(1))
    (b,) = await claim(store)
    await settle(store, b, COMPLETE)
    await store.jobs.retry("b")
    assert await values(store, "b") == {"a": 1}


async def test_replaced_job_reads_only_what_was_passed_to_the_new_definition(
    store: Store, pool: Pool
) -> None:
    a, b = await keeping(store, "a", "b")
    await settle(store, a, completed(1))
    await settle(store, b, completed(2))
    await add(store, reader("c", "a"))
    await add_step(pool, "c", "old")
    await add(store, reader("c", "b"), replace=True)
    assert await values(store, "c") == {"b": 2}
    assert await steps(pool) == {("c", "result")}


async def test_new_job_reads_no_steps_of_a_deleted_job_of_its_id(store: Store, pool: Pool) -> None:
    (a,) = await keeping(store, "a")
    await add_step(pool, "c", "old")
    await settle(store, a, completed(1))
    await add(store, reader("c", "a"))
    assert await steps(pool) == {("c", "result")}


@pytest.mark.parametrize("is_reader", [False, True])
async def test_running_job_keeps_its_results_until_its_new_definition_replaces_it(
    store: Store, pool: Pool, is_reader: bool
) -> None:
    """The attempt stores a step, and another predecessor ends, while the new definition waits."""
    a, b = await keeping(store, "a", "b")
    await settle(store, a, completed(1))
    await add(store, reader("c", "a") if is_reader else child("c", "a"))
    (c,) = await claim(store)
    await add(store, reader("c", "b", "a"), replace=True)
    await add(store, reader("c", "a", "b"), replace=True)
    await store.steps.store("w1", c, "now", "step", "1", version=1)
    await settle(store, b, completed(2))
    assert await values(store, "c") == ({"a": 1} if is_reader else {})
    await settle(store, c, COMPLETE)
    assert await state(pool, "c") == [("pending", None)]
    assert await values(store, "c") == {"a": 1, "b": 2}
    assert await steps(pool) == {("c", "result")}


async def test_result_written_by_hand_does_not_stop_the_job(store: Store, pool: Pool) -> None:
    a, b = await keeping(store, "a", "b")
    await add(store, reader("c", "a", "b"))
    await settle(store, a, completed(1))
    await settle(store, b, completed(2))
    results = [
        "5",
        "{}",
        '{"job_id": "b", "status": "completed", "value": 1, "attempts": "x", "started_at": "?", "error": 5}',
    ]
    for document in results:
        await pool.execute("UPDATE scheduler_steps SET value = $1::text::jsonb", document)
        found = await store.passed_results.get("c", await store.passed_results.names("c"))
        assert [(each.value, each.attempts, each.started_at) for each in found] in ([], [(1, 0, None)] * 2)
