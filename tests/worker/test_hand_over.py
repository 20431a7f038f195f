"""The hand-over of a sequence from a completed job to the next one, and the sequencer."""

from __future__ import annotations

import asyncpg
import pytest

from pg_scheduler.admission.hand_over import HandOver
from pg_scheduler.admission.sequencer import Sequencer
from pg_scheduler.worker.executor import Executor
from pg_scheduler.worker.lease import Lease
from tests.support.inside import NEVER, Claim, ExtendedJob, Extras, TaskOptions
from tests.support.parts import Parts
from tests.support.worker import LEASE, new_job, new_worker

NAME = "test.job"


class Slots:
    """The parts of a worker with so many slots that hand sequences over."""

    def __init__(self, parts: Parts, slots: int) -> None:
        self.started: list[str] = []
        parts.tasks.register(self.job, name=NAME, options=TaskOptions(sequence=lambda key: key))
        self.executor: Executor = parts.executor(slots=slots)
        self.sequencer = parts.sequencer()
        claimer = parts.claimer(self.executor)
        self.hand_over = HandOver(parts, parts.store.sequences, self.executor, claimer, self.sequencer)

    async def job(self, key: str) -> None:
        self.started.append(key)


async def first_claims(parts: Parts, *keys: str) -> list[Claim]:
    """Insert two jobs of each key, and claim the first ones."""
    await parts.store.workers.register(new_worker("me"), LEASE)
    jobs = [
        ExtendedJob(
            new_job(f"{key}-{n}", task_data=f'{{"args": ["{key}"], "kwargs": {{}}}}'),
            Extras().in_sequence({"key": f"zsequence:s:{key}", "on_failure": "stop"}),
        )
        for key in keys
        for n in range(2)
    ]
    await parts.store.inserts.insert_extended(jobs)
    await parts.store.sequences.move([f"zsequence:s:{key}" for key in keys])
    claims = (await parts.store.claims.exchange("me", [NAME], len(keys))).jobs
    assert len(claims) == len(keys)
    return claims


async def passes(sequencer: Sequencer) -> float:
    """Make passes until the sequencer sleeps; return for how long."""
    while (delay := await sequencer.run_once()) <= 0:
        pass
    return delay


async def statuses(pool: asyncpg.Pool) -> dict[str, str]:
    rows = await pool.fetch("SELECT job_id, status FROM scheduled_jobs ORDER BY job_id")
    return {row["job_id"]: row["status"] for row in rows}


@pytest.mark.parametrize(("slots", "status"), [(1, "pending"), (2, "running")])
async def test_next_job_is_claimed_only_while_other_slots_are_free(
    parts: Parts, pool: asyncpg.Pool, slots: int, status: str
) -> None:
    worker = Slots(parts, slots)
    claims = await first_claims(parts, "a")
    assert await worker.hand_over.complete(claims) == set()
    assert await statuses(pool) == {"a-0": "completed", "a-1": status}
    assert worker.started == (["a"] if status == "running" else [])
    assert ("jobs_released" in parts.calls) is (status == "pending")
    assert worker.executor.expected == 0


async def test_slots_for_which_a_claim_is_under_way_are_not_used_twice(
    parts: Parts, pool: asyncpg.Pool
) -> None:
    worker = Slots(parts, 5)
    claims = await first_claims(parts, "a", "b")
    worker.executor.expected = 2
    assert await worker.hand_over.complete(claims) == set()
    assert [*(await statuses(pool)).values()].count("running") == 1
    assert worker.executor.expected == 2


async def test_no_job_is_claimed_while_the_lease_is_not_trusted(parts: Parts, pool: asyncpg.Pool) -> None:
    parts.lease = Lease(LEASE)
    worker = Slots(parts, 5)
    claims = await first_claims(parts, "a")
    assert await worker.hand_over.complete(claims) == set()
    assert await statuses(pool) == {"a-0": "completed", "a-1": "pending"}


async def test_job_that_another_worker_has_is_refused(parts: Parts, pool: asyncpg.Pool) -> None:
    worker = Slots(parts, 5)
    (claim,) = await first_claims(parts, "a")
    await pool.execute("UPDATE scheduled_jobs SET attempt = 2 WHERE job_id = 'a-0'")
    assert await worker.hand_over.complete([claim]) == {"a-0"}
    assert await statuses(pool) == {"a-0": "running", "a-1": "pending"}


@pytest.fixture
async def sequencer(parts: Parts) -> Sequencer:
    """A sequencer of two sequences a pass, of a worker with a task that has a sequence."""
    sequencer = Slots(parts, 5).sequencer
    sequencer.batch_size = 2
    sequencer.gap_s = sequencer.rest = 0.0
    return sequencer


async def test_passes_go_round_all_sequences(sequencer: Sequencer, parts: Parts, pool: asyncpg.Pool) -> None:
    keys = "abcde"
    await parts.store.inserts.insert_extended(
        [
            ExtendedJob(
                new_job(key), Extras().in_sequence({"key": f"zsequence:s:{key}", "on_failure": "stop"})
            )
            for key in keys
        ]
    )
    await passes(sequencer)
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE blocked_on IS NULL") == len(keys)
    assert "jobs_released" in parts.calls
    parts.calls.clear()
    sequencer.announce()
    await passes(sequencer)
    assert not parts.calls


async def test_sequencer_without_a_task_sleeps_until_a_job_waits(parts: Parts, pool: asyncpg.Pool) -> None:
    sequencer = parts.sequencer()
    sequencer.gap_s = sequencer.rest = 0.0
    await passes(sequencer)
    assert await sequencer.run_once() == NEVER
    await first_claims(parts, "a")
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'a-0'")
    sequencer.announce()
    assert await sequencer.run_once() == NEVER, "another worker does that"
    sequencer.wake()  # as the deadline scanner does, which has found a waiting job
    await passes(sequencer)
    assert await pool.fetchval("SELECT blocked_on FROM scheduled_jobs") is None
