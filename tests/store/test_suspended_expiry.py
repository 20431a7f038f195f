"""No statement expires a job whose task has a pause that suspends expiry, whatever names a worker passes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from pg_scheduler.clock import FakeClock
from pg_scheduler.testing.written import WrittenJobs
from tests.support.inside import Store, load_queries
from tests.support.store import LEASE, NAME, SECOND, Pool, new_job, worker

QUERIES = load_queries("public")

WRITES_EXPIRED = re.compile(r"\bstatus\s+= (?:CASE(?:(?!\bEND\b).)*?)?'expired'", re.DOTALL)

EXEMPT = {
    "try_claim": "is rolled back, since it only finds out whether the table refuses a claim",
    "find_late": "writes nothing, but finds what expire_jobs expires",
    "unblock_late": "lets late jobs expire, by another statement",
    "unblock_limited": "notes why late jobs will expire",
    "scan_deadlines": "writes nothing, but leaves jobs that expire to expire_jobs",
    "end_past_deadlines": "fails jobs, also those that a pause keeps from expiring",
}
GUARDED = {
    *("exchange_jobs", "expire_jobs", "find_late", "claim_next", "unblock_late", "unblock_limited"),
    *("scan_deadlines", "end_past_deadlines"),
}


def test_statements_that_write_the_status_expired_ask_for_pauses_that_suspend_it() -> None:
    writers, guarded = set(), set()
    for name, query in QUERIES.items():
        text = re.sub(r"--.*", "", query.text)
        changes = re.findall(r"UPDATE .*?SET(.*?)\bWHERE\b", text, re.DOTALL)
        if any(WRITES_EXPIRED.search(change) for change in changes):
            writers.add(name)
        if re.search(r"WHERE paused\.suspends_expiry\s+AND \(paused\.name ", text):
            guarded.add(name)
    assert guarded == GUARDED
    assert writers - EXEMPT.keys() == GUARDED - EXEMPT.keys()


Expire: TypeAlias = Callable[[Store], Awaitable[set[str]]]


async def sweep(store: Store) -> set[str]:
    return {job.job_id for job in await store.jobs.expire("w1", [], 100)}


async def find(store: Store) -> set[str]:
    rows = await store.statements.fetch("find_late", 100, store.statements.now, [])
    return {row["job_id"] for row in rows}


async def claim(store: Store) -> set[str]:
    answer = await store.claims.exchange("w1", [NAME, "paused", "plain"], 100)
    assert answer.jobs == []
    return {job.job_id for job in answer.expired}


async def claim_in_a_test(store: Store) -> set[str]:
    expired, written = set(), WrittenJobs(store.statements, store.consequences)
    while result := await written.claim_next("w1", [NAME, "paused", "plain"], None):
        assert result[1]
        expired.add(result[0].job_id)
    return expired


@pytest.mark.parametrize("expire", [sweep, find, claim, claim_in_a_test])
@pytest.mark.parametrize("ends", [None, -1], ids=["lasts", "is being ended"])
async def test_job_does_not_expire_although_a_worker_has_not_read_the_pause(
    store: Store, pool: Pool, clock: FakeClock, expire: Expire, ends: int | None
) -> None:
    await store.workers.register(worker(), LEASE)
    jobs = [new_job(name, job_name=name, misfire_grace_time=10) for name in (NAME, "paused", "plain")]
    await store.inserts.insert(jobs)
    clock.advance(11 * SECOND)
    until = None if ends is None else clock.now + ends * SECOND
    await store.pauses.pause("paused", until, None, "ada", suspends_expiry=True)
    await store.pauses.pause("plain", until, None, "ada")
    assert await expire(store) == {NAME, "plain"}
    assert await pool.fetchval("SELECT status FROM scheduled_jobs WHERE job_id = 'paused'") == "pending"


@pytest.mark.parametrize("expire", [sweep, find, claim, claim_in_a_test])
async def test_job_under_another_name_of_the_paused_task_does_not_expire(
    store: Store, pool: Pool, clock: FakeClock, expire: Expire
) -> None:
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert(
        [new_job(name, job_name=name, misfire_grace_time=10) for name in (NAME, "paused")]
    )
    clock.advance(11 * SECOND)
    await store.pauses.pause("main name", None, None, "ada", suspends_expiry=True, exact_names=["paused"])
    assert await expire(store) == {NAME}
    assert await pool.fetchval("SELECT status FROM scheduled_jobs WHERE job_id = 'paused'") == "pending"
