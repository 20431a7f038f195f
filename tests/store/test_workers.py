"""Workers register, renew their leases, and lose their jobs when they die."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import datetime

import pytest

from pg_scheduler import JobStatus
from pg_scheduler.clock import FakeClock
from pg_scheduler.worker.worker_rows import RenewResult, RescueResult
from tests.support.inside import COMPLETE, Store
from tests.support.store import (
    LEASE,
    NAME,
    NOW,
    SECOND,
    Pool,
    claim_on,
    column,
    new_job,
    row,
    running,
    worker,
)

THRESHOLD = 120.0
NOTHING = RescueResult([], [])


async def test_worker_registers_and_deregisters(store: Store, clock: FakeClock) -> None:
    await store.workers.register(worker("w2"), LEASE)
    clock.advance(SECOND)
    await store.workers.register(worker("w1", hostname="other", pid=9, version="2", max_concurrent_jobs=3), 5)
    first, second = await store.workers.list_workers()
    until = NOW + LEASE * SECOND
    assert first == replace(worker("w2"), started_at=NOW, last_beat=NOW, lease_until=until)
    assert (second.worker_id, second.hostname, second.pid, second.version) == ("w1", "other", 9, "2")
    assert (second.max_concurrent_jobs, second.running_jobs) == (3, 0)
    assert second.lease_until == NOW + 6 * SECOND
    clock.advance(10 * SECOND)
    assert [each.is_alive for each in await store.workers.list_workers()] == [True, False]
    await store.workers.deregister("w2")
    await store.workers.deregister("missing")
    assert [each.worker_id for each in await store.workers.list_workers()] == ["w1"]


async def test_register_renews_the_lease_of_a_registered_worker(store: Store, clock: FakeClock) -> None:
    await store.workers.register(worker(), LEASE)
    clock.advance(90 * SECOND)
    await store.workers.register(worker(), LEASE)
    (found,) = await store.workers.list_workers()
    assert (found.last_beat, found.is_alive) == (clock.now, True)


async def test_renew_extends_the_leases_of_the_worker_and_its_jobs(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await running(store, new_job("a"), new_job("b"))
    clock.advance(20 * SECOND)
    assert await store.workers.renew("w1", {"a": 1, "b": 1}, LEASE) == RenewResult(True, [], clock.now)
    (found,) = await store.workers.list_workers()
    until = clock.now + LEASE * SECOND
    assert (found.last_beat, found.lease_until, found.running_jobs) == (clock.now, until, 2)
    assert set((await column(pool, "lease_until")).values()) == {until}
    assert set((await column(pool, "last_heartbeat")).values()) == {clock.now}
    assert await store.workers.renew("w1", {}, LEASE) == RenewResult(True, [], clock.now)
    assert (await store.workers.list_workers())[0].running_jobs == 0


async def test_renew_returns_the_jobs_that_were_lost(store: Store, pool: Pool, clock: FakeClock) -> None:
    await running(
        store, *(new_job(each) for each in ("cancelled", "deleted", "done", "mine", "replaced", "retaken"))
    )
    held = dict.fromkeys(await column(pool, "status"), 1)
    await store.workers.register(worker("w2"), LEASE)
    await store.jobs.cancel("cancelled")
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'deleted'")
    await store.jobs.set_status("done", JobStatus.COMPLETED, LEASE)
    await store.inserts.replace([new_job("replaced")])
    await store.jobs.set_status("retaken", JobStatus.PENDING, LEASE)
    await store.claims.exchange("w1", [NAME], 1)
    before = await row(pool, "retaken")
    clock.advance(SECOND)
    renewal = await store.workers.renew("w1", held, LEASE)
    assert renewal.alive
    assert sorted(renewal.lost) == ["cancelled", "deleted", "done", "retaken"]
    assert await row(pool, "retaken") == before, "the attempt that holds it renews it itself"


async def test_renew_returns_every_job_when_the_worker_has_no_row(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await running(store, new_job())
    await store.workers.deregister("w1")
    before = await row(pool)
    clock.advance(SECOND)
    assert await store.workers.renew("w1", {"job": 1}, LEASE) == RenewResult(False, ["job"], clock.now)
    assert await row(pool) == before


async def test_renew_restores_an_expired_lease_before_the_rescue(store: Store, clock: FakeClock) -> None:
    await running(store, new_job())
    clock.advance(10 * LEASE * SECOND)
    assert await store.workers.renew("w1", {"job": 1}, LEASE) == RenewResult(True, [], clock.now, late=True)
    assert await store.workers.rescue(THRESHOLD) == NOTHING
    clock.advance(SECOND)
    assert await store.workers.renew("w1", {"job": 1}, LEASE) == RenewResult(True, [], clock.now)


# -- rescue --------------------------------------------------------------------------------------------


async def test_rescue_releases_the_jobs_of_a_dead_worker(store: Store, pool: Pool, clock: FakeClock) -> None:
    old = await running(store, new_job("a", misfire_grace_time=9), new_job("b", priority=1))
    clock.advance(LEASE * SECOND / 2)
    await running(store, new_job("c"), worker_id="alive")
    clock.advance(LEASE * SECOND / 2 + SECOND)
    assert await store.workers.rescue(THRESHOLD) == RescueResult(["w1"], ["a", "b"])
    assert await column(pool, "status") == {"a": "pending", "b": "pending", "c": "running"}
    assert [each.worker_id for each in await store.workers.list_workers()] == ["alive"]
    found = await row(pool, "a")
    assert (found["retry_count"], found["attempt"], found["worker_id"]) == (0, 1, None)
    assert found["expires_at"] == clock.now + 9 * SECOND
    assert await store.results.settle("w1", [(claim, COMPLETE) for claim in old]) == set(), (
        "the zombie learns it"
    )
    assert await store.workers.rescue(THRESHOLD) == NOTHING


async def test_rescue_counts_no_crash_when_the_worker_was_stopping(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await running(store, new_job("a"))
    await running(store, new_job("b"), worker_id="w2")
    await store.workers.mark_stopping("w1")
    assert [each.is_stopping for each in await store.workers.list_workers()] == [True, False]
    clock.advance(2 * LEASE * SECOND)
    rescued = await store.workers.rescue(THRESHOLD, max_crashes=1)
    assert rescued.job_ids == ["a"]
    assert await column(pool, "crash_count") == {"a": 0, "b": 1}
    assert await column(pool, "status") == {"a": "pending", "b": "failed"}


async def test_rescue_does_not_change_live_workers(store: Store, pool: Pool, clock: FakeClock) -> None:
    await running(store, new_job())
    clock.advance(LEASE * SECOND)
    before = await row(pool)
    assert await store.workers.rescue(THRESHOLD) == NOTHING
    assert await row(pool) == before


async def rescue_own(store: Store, known: dict[str, int]) -> RescueResult:
    """Reclaim jobs as worker w1 does, which knows these attempts."""
    return await store.workers.rescue(THRESHOLD, worker_id="w1", known_attempts=lambda: known)


async def test_rescue_releases_a_job_of_this_worker_when_its_claim_was_not_answered(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await running(store, new_job("lost"), new_job("held"))
    attempts = {"held": 1, "of another attempt": 1}
    clock.advance(LEASE * SECOND - SECOND)
    await store.workers.renew("w1", attempts, LEASE)
    clock.advance(2 * SECOND)
    # It may have been claimed during that heartbeat; the next one decides.
    assert await rescue_own(store, attempts) == NOTHING
    await store.workers.renew("w1", attempts, LEASE)
    assert await store.workers.rescue(THRESHOLD) == NOTHING, "other workers do not know what it has"
    assert (await store.workers.scan_deadlines(30, THRESHOLD, "w2")).lapse_in == LEASE
    assert (await store.workers.scan_deadlines(30, THRESHOLD, "w1")).lapse_in == -1
    assert await rescue_own(store, attempts) == RescueResult([], ["lost"])
    assert await column(pool, "status") == {"lost": "pending", "held": "running"}


async def test_rescue_leaves_a_job_to_its_live_worker_when_its_row_was_locked_for_longer_than_the_lease(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    (claim,) = await running(store, new_job())
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs FOR UPDATE")
        for _ in range(8):
            clock.advance(LEASE * SECOND / 3)
            await store.workers.renew("w1", {"job": 1}, LEASE)
    assert (await row(pool))["lease_until"] < clock.now - LEASE * SECOND
    assert await store.workers.rescue(THRESHOLD) == NOTHING
    assert await rescue_own(store, {"job": 1}) == NOTHING
    assert await store.results.settle("w1", [(claim, COMPLETE)]) == {"job"}


async def test_rescue_releases_a_job_whose_row_was_locked_when_its_worker_died(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await running(store, new_job())
    clock.advance(LEASE * SECOND + SECOND)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs FOR UPDATE")
        assert await store.workers.rescue(THRESHOLD) == RescueResult(["w1"], [])
        assert (await store.workers.scan_deadlines(30, THRESHOLD, "w2")).lapse_in == -1
    assert await store.workers.rescue(THRESHOLD) == RescueResult([], ["job"])


async def test_rescue_leaves_a_job_to_its_stopping_worker_when_its_row_was_locked_for_longer_than_the_lease(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    """Its thread runs on."""
    await running(store, new_job("held"), new_job("ended"))
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs FOR UPDATE")
        for beat in range(8):
            clock.advance(LEASE * SECOND / 3)
            await store.workers.renew("w1", {"held": 1} if beat > 4 else {"held": 1, "ended": 1}, LEASE)
            if beat == 3:
                await store.workers.mark_stopping("w1")
    assert (await row(pool, "held"))["lease_until"] < clock.now - LEASE * SECOND
    assert (await store.workers.scan_deadlines(30, THRESHOLD, "w2")).lapse_in == -5 / 3 * LEASE
    assert await store.workers.rescue(THRESHOLD) == RescueResult([], ["ended"])
    assert (await store.workers.scan_deadlines(30, THRESHOLD, "w2")).lapse_in == LEASE


async def test_rescue_leaves_the_jobs_of_a_stopping_worker_to_it_before_it_names_those_that_run_on(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await running(store, new_job())
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs FOR UPDATE")
        for _ in range(8):
            clock.advance(LEASE * SECOND / 3)
            await store.workers.renew("w1", {"job": 1}, LEASE)
    await store.workers.mark_stopping("w1")
    assert await store.workers.rescue(THRESHOLD) == NOTHING


async def test_rescue_releases_a_job_of_a_stopping_worker_when_it_is_not_renewed(
    store: Store, clock: FakeClock
) -> None:
    await running(store, new_job("lost"), new_job("held"))
    await store.workers.mark_stopping("w1")
    for _ in range(4):
        clock.advance(LEASE * SECOND / 3)
        await store.workers.renew("w1", {"held": 1}, LEASE)
    assert (await store.workers.scan_deadlines(30, THRESHOLD, "w2")).lapse_in is not None
    assert await store.workers.rescue(THRESHOLD) == RescueResult([], ["lost"])


async def test_release_unacknowledged_releases_claims_that_the_worker_never_received(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await running(store, new_job("lost"), new_job("held"), new_job("of an earlier attempt"))
    await running(store, new_job("another's"), worker_id="w2")
    known = {"held": 1, "of an earlier attempt": 7, "gone": 1}
    assert await store.claims.release_unacknowledged("w1", known, limit=1) in (
        ["lost"],
        ["of an earlier attempt"],
    )
    assert len(await store.claims.release_unacknowledged("w1", known)) == 1
    assert await column(pool, "status") == {
        "lost": "pending",
        "held": "running",
        "of an earlier attempt": "pending",
        "another's": "running",
    }
    assert set((await column(pool, "retry_count")).values()) == {0}
    assert await store.claims.release_unacknowledged("w1", known) == []


@pytest.mark.parametrize(("heartbeat_age_s", "orphaned"), [(119, False), (121, True), (None, True)])
async def test_rescue_uses_the_last_heartbeat_when_a_row_has_no_lease(
    store: Store, pool: Pool, heartbeat_age_s: int | None, orphaned: bool
) -> None:
    await running(store, new_job())
    await pool.execute(
        "UPDATE scheduled_jobs SET lease_until = NULL, worker_id = 'of 0.2', last_heartbeat = $1",
        None if heartbeat_age_s is None else NOW - heartbeat_age_s * SECOND,
    )
    assert await store.workers.rescue(THRESHOLD) == RescueResult([], ["job"] if orphaned else [])


async def test_rescue_skips_a_claim_in_progress_when_the_clock_was_set_forward(
    store: Store, clock: FakeClock
) -> None:
    """Its worker renews the expired lease at once, and has not received the claim yet."""
    await running(store, new_job())
    clock.advance(10 * LEASE * SECOND)
    await store.workers.renew("w1", {}, LEASE)
    assert await store.workers.rescue(THRESHOLD) == NOTHING
    clock.advance(SECOND)
    await store.workers.renew("w1", {"job": 1}, LEASE)
    assert await store.workers.rescue(THRESHOLD) == NOTHING


async def test_restart_leases_shortens_leases_when_the_clock_was_set_back(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    clock.advance(1000 * SECOND)
    await running(store, new_job("lost", execution_time=NOW), new_job("held", execution_time=NOW))
    await running(store, new_job("of the dead", execution_time=NOW), worker_id="dead")
    clock.advance(-900 * SECOND)
    ahead = await store.workers.scan_deadlines(30, THRESHOLD)
    assert ahead.lapse_in == 0
    await store.workers.restart_leases()
    assert await store.workers.rescue(THRESHOLD) == NOTHING
    assert set((await column(pool, "lease_until")).values()) == {clock.now + LEASE * SECOND}
    ahead = await store.workers.scan_deadlines(30, THRESHOLD)
    assert ahead.lapse_in == LEASE
    clock.advance(LEASE * SECOND)
    await store.workers.renew("w1", {"held": 1}, LEASE)
    clock.advance(SECOND)
    await store.workers.renew("w1", {"held": 1}, LEASE)
    assert await rescue_own(store, {"held": 1}) == RescueResult(["dead"], ["lost", "of the dead"])
    assert await column(pool, "status") == {"lost": "pending", "held": "running", "of the dead": "pending"}


async def test_rescue_counts_the_attempts_that_ended_with_their_workers(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    """Whatever becomes of their jobs, but not those of a live worker, nor of a job that fails instead."""
    names = ("crashed", "locked", "replaced", "quarantined")
    await running(store, *(new_job(name, job_name=f"app.{name}") for name in names))
    await running(store, new_job("in a thread", job_name="app.thread"), worker_id="stopping")
    await running(store, new_job("never received", job_name="app.received"), worker_id="w2")
    await store.workers.mark_stopping("stopping")
    await store.inserts.replace([new_job("replaced", job_name="app.replaced")])
    await pool.execute("UPDATE scheduled_jobs SET crash_count = 2 WHERE job_id = 'quarantined'")
    clock.advance(LEASE * SECOND + SECOND)
    await store.workers.renew("w2", {}, LEASE)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs WHERE job_id = 'locked' FOR UPDATE")
        first = await store.workers.rescue(THRESHOLD, max_crashes=3)
    assert sorted(first.dead_workers) == ["stopping", "w1"]
    assert first.lost == {"app.crashed": 1, "app.replaced": 1, "app.thread": 1}
    assert [failed.job_id for failed in first.quarantined] == ["quarantined"]
    second = await store.workers.rescue(THRESHOLD)
    assert (second.job_ids, second.lost) == (["locked"], {"app.locked": 1})
    clock.advance(SECOND)
    await store.workers.renew("w2", {}, LEASE)
    third = await store.workers.rescue(THRESHOLD, worker_id="w2", known_attempts=dict)
    assert (third.job_ids, third.lost) == (["never received"], {})


async def test_rescue_applies_the_replacement_of_an_orphan(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await running(store, new_job())
    await store.inserts.replace([new_job(priority=1)])
    clock.advance(LEASE * SECOND + SECOND)
    assert await store.workers.rescue(THRESHOLD) == RescueResult(["w1"], ["job"])
    found = await row(pool)
    assert (found["status"], found["priority"], found["on_end"]) == ("pending", 1, None)


async def test_rescue_releases_orphans_of_several_workers(store: Store, clock: FakeClock) -> None:
    for n in range(3):
        await running(store, new_job(f"a{n}"), new_job(f"b{n}"), worker_id=f"w{n}")
    clock.advance(LEASE * SECOND + SECOND)
    rescue = await store.workers.rescue(THRESHOLD)
    assert sorted(rescue.dead_workers) == ["w0", "w1", "w2"]
    assert rescue.job_ids == ["a0", "a1", "a2", "b0", "b1", "b2"]


async def test_rescue_records_dead_workers_with_the_number_of_their_jobs(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    labels = {"identity": "spot-4", "metadata": {"release": "2026.11"}}
    await store.workers.register(worker("w1", **labels), LEASE)
    await running(store, new_job("a"), new_job("b"), worker_id="w1")
    await store.workers.register(worker("stopped"), LEASE)
    await store.workers.mark_stopping("stopped")
    long = "ж" * 3000
    await store.workers.register(worker(long), LEASE)
    clock.advance(LEASE * SECOND + SECOND)
    rescue = await store.workers.rescue(THRESHOLD)
    assert (sorted(rescue.dead_workers), rescue.job_ids) == (["stopped", "w1", long], ["a", "b"])
    rows = await pool.fetch("SELECT * FROM scheduler_audit WHERE action = 'declare_dead' ORDER BY subject")
    assert [(each["subject"], each["via"], each["at"]) for each in rows] == [
        ("w1", "worker", clock.now),
        (long[:500], "worker", clock.now),
    ]
    details = json.loads(rows[0]["details"])
    found = details["worker"]
    assert (details["count"], found["identity"], found["release"]) == (2, "spot-4", "2026.11")
    assert (details["jobs"], "jobs" in found) == (["a", "b"], False)
    assert datetime.fromisoformat(found["last_beat"]) == NOW


async def test_rescue_skips_a_worker_that_is_claiming(store: Store, pool: Pool, clock: FakeClock) -> None:
    await store.inserts.insert([new_job()])
    await store.workers.register(worker(), LEASE)
    async with pool.acquire() as claiming:
        transaction = claiming.transaction()
        await transaction.start()
        (claimed,) = await claim_on(claiming, store, 1)
        assert claimed["job_id"] == "job"
        clock.advance(LEASE * SECOND + SECOND)
        assert await store.workers.rescue(THRESHOLD) == NOTHING, "its row is locked FOR KEY SHARE"
        await transaction.commit()
    assert await store.workers.rescue(THRESHOLD) == RescueResult(["w1"], ["job"])


async def test_exchange_claims_nothing_when_the_worker_was_declared_dead(
    store: Store, clock: FakeClock
) -> None:
    await store.inserts.insert([new_job()])
    await store.workers.register(worker(), LEASE)
    clock.advance(LEASE * SECOND + SECOND)
    assert await store.workers.rescue(THRESHOLD) == RescueResult(["w1"], [])
    assert (await store.claims.exchange("w1", [NAME], 1)).jobs == []


async def test_concurrent_rescues_release_each_job_once(store: Store, clock: FakeClock) -> None:
    import asyncio

    await running(store, *(new_job(f"{n}") for n in range(20)))
    clock.advance(LEASE * SECOND + SECOND)
    rescues = await asyncio.gather(*(store.workers.rescue(THRESHOLD) for _ in range(4)))
    assert sorted(each for rescue in rescues for each in rescue.job_ids) == sorted(f"{n}" for n in range(20))
    assert [each for rescue in rescues for each in rescue.dead_workers] == ["w1"]


async def test_renew_skips_a_locked_job_row(store: Store, pool: Pool, clock: FakeClock) -> None:
    """A caller's open transaction replaces a running job."""
    await running(store, new_job("locked"), new_job("free"))
    clock.advance(SECOND)
    async with pool.acquire() as other, other.transaction():
        await store.inserts.replace([new_job("locked")], connection=other)
        async with asyncio.timeout(10):
            renewal = await store.workers.renew("w1", {"locked": 1, "free": 1}, LEASE)
        assert (renewal.alive, renewal.lost) == (True, [])
        leases = await column(pool, "lease_until")
        assert leases["free"] - leases["locked"] == SECOND
    await store.workers.renew("w1", {"locked": 1, "free": 1}, LEASE)
    leases = await column(pool, "lease_until")
    assert leases["free"] == leases["locked"]
