"""The turns of tenants, against a real server: which jobs a pass moves to the claim index, and when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from pg_scheduler.admission.shares import Fed
from pg_scheduler.clock import FakeClock
from tests.support import inside
from tests.support.inside import COMPLETE, RELEASE, Claim, ExtendedJob, Extras, Store
from tests.support.store import LEASE, NAME, NOW, SECOND, Pool, new_job, running, worker

LOCK_CLASS = inside.internal_setting("class_of_advisory_locks")

SHARE = "share:s:"
SHARES = {SHARE: [NAME]}
D = timedelta(seconds=50)
"""The duration of every job in a simulation."""


def queued(job_id: str, tenant: str, due: datetime = NOW, **changes: object) -> ExtendedJob:
    """Return a job that waits for the turn of its tenant."""
    row = new_job(job_id, **({"execution_time": due} | changes))
    return ExtendedJob(row, Extras(blocked_on=f"{SHARE}{tenant}"))


async def insert(store: Store, *jobs: ExtendedJob) -> None:
    await store.inserts.insert_extended(jobs)


async def loud(store: Store, count: int, tenant: str = "loud") -> None:
    """Insert many jobs of a tenant, which are due before all others."""
    hour = timedelta(hours=1)
    await insert(
        store, *(queued(f"{tenant}-{n:05}", tenant, NOW - hour + n * SECOND / 100) for n in range(count))
    )


async def start_worker(store: Store, slots: int, worker_id: str = "w1", **changes: object) -> None:
    await store.workers.register(worker(worker_id, max_concurrent_jobs=slots, **changes), LEASE)


async def feed(store: Store, names: Sequence[str] = (NAME,), *, tenants: Sequence[str] | None = None) -> Fed:
    found = await store.shares.tenants(SHARE, 1000) if tenants is None else tenants
    return await store.shares.feed(found, SHARES, names)


async def claimable(pool: Pool) -> list[str]:
    """Return the jobs that claims see, in their order."""
    rows = await pool.fetch(
        "SELECT job_id FROM scheduled_jobs WHERE blocked_on IS NULL AND status = 'pending'"
        " ORDER BY priority, execution_time, job_id"
    )
    return [row[0] for row in rows]


class Simulation:
    """Slots of a worker, whose jobs all take the same time, in steps of this time."""

    def __init__(self, store: Store, clock: FakeClock, slots: int) -> None:
        self.store = store
        self.clock = clock
        self.slots = slots
        self.running: list[Claim] = []
        self.started: list[str] = []

    async def begin(self) -> None:
        await start_worker(self.store, self.slots)

    async def step(self) -> None:
        """End every job, then feed and claim until the slots are full or nothing is left."""
        self.clock.advance(D)
        await self.store.workers.renew("w1", {each.job_id: each.attempt for each in self.running}, LEASE)
        await self.store.results.settle("w1", [(claim, COMPLETE) for claim in self.running])
        self.running = []
        await self.claim()
        await feed(self.store)

    async def claim(self) -> None:
        while True:
            free = self.slots - len(self.running)
            claims = (await self.store.claims.exchange("w1", [NAME], free)).jobs if free else []
            self.running += claims
            self.started += [claim.job_id for claim in claims]
            if not claims and not (free and (await feed(self.store)).jobs):
                return

    async def kill(self) -> None:
        """Let the worker die: its jobs are pending again."""
        await self.store.results.settle("w1", [(claim, RELEASE) for claim in self.running])
        self.running = []

    async def steps_until(self, job_id: str, *, kill_at: int | None = None) -> int:
        """Return the number of steps until a job starts."""
        for n in range(10_000):
            if job_id in self.started:
                return n
            if n == kill_at:
                await self.kill()
            await self.step()
        raise AssertionError(f"{job_id} has not started")


async def test_first_job_of_each_tenant_precedes_the_others_of_a_tenant_with_many(
    store: Store, pool: Pool
) -> None:
    await start_worker(store, 4)
    await loud(store, 100)
    await insert(store, queued("a", "a"), queued("b", "b"))
    fed = await feed(store)
    assert (fed.jobs, fed.room, fed.is_complete) == (4, 0, True)
    assert await claimable(pool) == ["loud-00000", "a", "b", "loud-00001"]
    assert (await feed(store)).jobs == 0, "no slot is free for more"


@pytest.mark.parametrize(("tenants", "slots"), [(1, 5), (7, 5), (100, 25)])
@pytest.mark.parametrize("kill_at", [None, 1], ids=["", "killed"])
async def test_quiet_tenant_waits_at_most_a_round_of_all_tenants(
    store: Store, clock: FakeClock, tenants: int, slots: int, kill_at: int | None
) -> None:
    for n in range(tenants):
        await loud(store, 40 if tenants > 1 else 400, f"loud-{n:03}")
    simulation = Simulation(store, clock, slots)
    await simulation.begin()
    for _ in range(3):
        await simulation.step()
    await insert(store, queued("quiet", "zz", clock.now))
    bound = 1 + math.ceil((tenants + 1) / slots)
    steps = await simulation.steps_until("quiet", kill_at=kill_at)
    assert steps <= bound + (kill_at is not None)  # a step is lost


@pytest.mark.parametrize("by", [timedelta(0), timedelta(hours=-1)])
async def test_tenants_take_turns_while_the_clock_stands_still_and_after_it_was_set_back(
    store: Store, clock: FakeClock, by: timedelta
) -> None:
    for tenant in "ab":
        await insert(store, *(queued(f"{tenant}-{n}", tenant, NOW - timedelta(days=1)) for n in range(4)))
    simulation = Simulation(store, clock, 1)
    await simulation.begin()
    for number in range(8):
        await simulation.claim()
        await store.results.settle("w1", [(claim, COMPLETE) for claim in simulation.running])
        simulation.running = []
        if number == 1:
            clock.advance(by)
    assert [job_id[0] for job_id in simulation.started] == list("abababab")


async def test_share_uses_every_slot_while_one_tenant_has_jobs(store: Store, clock: FakeClock) -> None:
    await loud(store, 40)
    simulation = Simulation(store, clock, 5)
    await simulation.begin()
    for n in range(1, 8):
        await simulation.step()
        assert len(simulation.started) == 5 * n


async def test_tenants_with_long_jobs_get_no_more_slots(store: Store, clock: FakeClock) -> None:
    await start_worker(store, 4)
    for tenant in ("long", "short"):
        await loud(store, 40, tenant)
    await feed(store)
    claims = (await store.claims.exchange("w1", [NAME], 4)).jobs
    held = [claim for claim in claims if claim.job_id.startswith("long")]
    assert len(held) == 2
    for _ in range(5):
        done = [claim for claim in claims if claim.job_id.startswith("short")]
        await store.results.settle("w1", [(claim, COMPLETE) for claim in done])
        clock.advance(SECOND)
        await feed(store)
        claims = (await store.claims.exchange("w1", [NAME], 2)).jobs
    assert [claim.job_id[:5] for claim in claims] == ["short", "short"]


async def test_moved_job_gets_the_time_of_its_move_or_it_would_precede_those_moved_before(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await start_worker(store, 2)
    await insert(store, queued("new", "new"))
    await feed(store)
    clock.advance(SECOND)
    await loud(store, 5)
    await feed(store)
    assert await claimable(pool) == ["new", "loud-00000"]


async def test_tenants_beyond_one_page_have_their_turn(store: Store, pool: Pool) -> None:
    await start_worker(store, 1)
    await insert(store, *(queued(f"job-{n}", f"t{n}") for n in range(5)))
    position, moved = SHARE, []
    for _ in range(6):
        page = await store.shares.tenants(position, 2)
        position = page[-1] if len(page) == 2 else SHARE
        await feed(store, tenants=page)
        moved += await claimable(pool)
        await pool.execute("DELETE FROM scheduled_jobs WHERE blocked_on IS NULL")
    assert sorted(moved) == [f"job-{n}" for n in range(5)]


async def test_higher_priorities_come_first_whatever_tenant_they_are_of(store: Store, pool: Pool) -> None:
    await start_worker(store, 3)
    await insert(
        store, *(queued(f"high-{n}", "loud", priority=3) for n in range(3)), queued("quiet", "quiet")
    )
    await feed(store)
    assert await claimable(pool) == ["high-0", "high-1", "high-2"]


async def test_timed_jobs_are_moved_four_seconds_ahead_beside_the_due_ones(store: Store, pool: Pool) -> None:
    await start_worker(store, 2)
    for n in range(4):
        await insert(
            store, queued(f"soon-{n}", "a", NOW + 3 * SECOND), queued(f"later-{n}", "a", NOW + 5 * SECOND)
        )
    await insert(store, queued("due-0", "a"), queued("due-1", "a"))
    fed = await feed(store)
    assert (fed.jobs, fed.room) == (4, 0)
    assert await claimable(pool) == ["due-0", "due-1", "soon-0", "soon-1"]
    times = await pool.fetch("SELECT DISTINCT execution_time FROM scheduled_jobs WHERE job_id LIKE 'soon%'")
    assert [row[0] for row in times] == [NOW + 3 * SECOND]


async def test_jobs_of_names_that_no_worker_claims_take_no_room(store: Store, pool: Pool) -> None:
    await start_worker(store, 2)
    await insert(
        store, *(queued(f"paused-{n}", "a", job_name="app.paused") for n in range(3)), queued("z", "a")
    )
    assert (await feed(store, [NAME, "app.paused"])).jobs == 2
    assert (await feed(store)).jobs == 1, "those that were moved before the pause take no room"
    assert await claimable(pool) == ["paused-0", "paused-1", "z"]


@pytest.mark.parametrize(
    ("names_of_other_worker", "place"), [("'{app.paused}'", 2), ("NULL", 2), ("'{app.work}'", 0)]
)
async def test_moved_jobs_that_no_worker_claims_count_for_no_turn_of_their_tenant(
    store: Store, pool: Pool, clock: FakeClock, names_of_other_worker: str, place: int
) -> None:
    await start_worker(store, 4)
    await start_worker(store, 4, "w2")
    await pool.execute("UPDATE scheduler_workers SET names = $1", [NAME])
    await insert(store, *(queued(f"paused-{n}", "a", job_name="app.paused") for n in range(2)))
    assert (await feed(store, [NAME, "app.paused"])).jobs == 2
    await pool.execute(f"UPDATE scheduler_workers SET names = {names_of_other_worker} WHERE worker_id = 'w2'")
    clock.advance(SECOND)
    # The job of this tenant is due first. It comes last if its tenant has more jobs in flight.
    later = NOW + SECOND / 2
    await insert(store, queued("of a", "a"), queued("of b", "b", later), queued("of c", "c", later))
    assert (await feed(store)).jobs == 3
    assert (await claimable(pool))[2:].index("of a") == place


async def test_room_is_that_of_live_workers_that_claim_the_task(store: Store, pool: Pool) -> None:
    await start_worker(store, 1)
    await start_worker(store, 2, "second")
    await start_worker(store, 10, "observer", role="observer")
    for change in (
        "names = '{app.other}'",
        "stopping = true",
        "state = 'draining'",
        "lease_until = '2000-01-01'",
    ):
        await start_worker(store, 10, change)
        await pool.execute(f"UPDATE scheduler_workers SET {change} WHERE worker_id = $1", change)
    await pool.execute("UPDATE scheduler_workers SET names = $1 WHERE worker_id = 'second'", [NAME])
    await loud(store, 20)
    assert (await feed(store)).jobs == 3


async def test_jobs_of_a_task_that_the_row_of_the_worker_does_not_name_yet_are_moved(
    store: Store, pool: Pool
) -> None:
    await start_worker(store, 4)
    await pool.execute("UPDATE scheduler_workers SET names = '{app.other}'")
    await loud(store, 3)
    assert (await feed(store)).jobs == 1
    assert (await feed(store)).jobs == 0


async def test_jobs_in_flight_count_until_they_end_or_wait_for_a_retry(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await start_worker(store, 4)
    await loud(store, 10)
    await feed(store)
    claims = (await store.claims.exchange("w1", [NAME], 4)).jobs
    assert await in_flight(pool) == 4
    await store.results.settle("w1", [(claims[0], COMPLETE)])
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = $1", claims[1].job_id)
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'pending', worker_id = NULL, lease_until = NULL,"
        " execution_time = $2 WHERE job_id = $1",
        claims[2].job_id,
        NOW + 10 * SECOND,
    )
    clock.advance(SECOND)
    assert (await feed(store)).jobs == 4
    assert await in_flight(pool) == 5, "one runs, and four were moved"


async def in_flight(pool: Pool) -> int:
    number: int = await pool.fetchval("SELECT count(*) FROM scheduler_starts WHERE key = 'share:s:loud'")
    return number


async def test_jobs_that_a_limit_blocks_count_as_in_flight(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await start_worker(store, 4)
    await loud(store, 20)
    await feed(store)
    await pool.execute("UPDATE scheduled_jobs SET blocked_on = 'limit:a:' WHERE blocked_on IS NULL")
    clock.advance(SECOND)
    await loud(store, 20, "other")
    await feed(store)
    assert [job_id[:5] for job_id in await claimable(pool)] == ["other"] * 4


async def test_cleanup_of_starts_keeps_the_jobs_in_flight(store: Store, pool: Pool, clock: FakeClock) -> None:
    await start_worker(store, 4)
    await loud(store, 10)
    await feed(store)
    clock.advance(timedelta(hours=2))
    await store.limits.delete_past_starts(100)
    assert await in_flight(pool) == 4
    assert await pool.fetchval("SELECT count(*) FROM scheduler_starts") == 4, "no turn of long ago"


async def test_job_that_is_replaced_waits_for_the_turn_of_its_new_tenant(store: Store, pool: Pool) -> None:
    await start_worker(store, 4)
    await insert(store, queued("job", "a"))
    await feed(store)
    await store.inserts.replace_extended([queued("job", "b")])
    assert await claimable(pool) == []
    await feed(store)
    assert await claimable(pool) == ["job"]
    await feed(store, tenants=[f"{SHARE}x"])
    keys = await pool.fetch("SELECT key FROM scheduler_starts WHERE job_id = 'job'")
    assert [row[0] for row in keys] == ["share:s:b"]


async def test_cancelled_job_leaves_its_queue(store: Store, pool: Pool) -> None:
    await start_worker(store, 4)
    await insert(store, queued("a", "t"), queued("b", "t"))
    await store.jobs.cancel("a")
    await feed(store)
    assert await claimable(pool) == ["b"]


async def test_late_jobs_of_tenants_are_unblocked_to_expire(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await insert(store, queued("late", "t", misfire_grace_time=10), queued("job", "t"))
    clock.advance(11 * SECOND)
    assert await store.limits.unblock_late([f"{SHARE}t"], None, 10) == (1, None)
    assert await claimable(pool) == ["late"]


async def test_feeders_of_one_share_take_turns(store: Store, pool: Pool) -> None:
    await start_worker(store, 4)
    await loud(store, 10)
    async with pool.acquire() as other, other.transaction():
        await other.execute(f"SELECT pg_advisory_xact_lock({LOCK_CLASS}, hashtext('{SHARE}'))")
        assert await feed(store) == Fed(0, None, 0, is_complete=False)
    assert (await feed(store)).jobs == 4


async def test_locked_job_is_passed_over(store: Store, pool: Pool) -> None:
    await start_worker(store, 4)
    await insert(store, queued("a", "t"), queued("b", "t"))
    async with pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM scheduled_jobs WHERE job_id = 'a' FOR UPDATE")
        assert (await feed(store)).jobs == 1
    assert await claimable(pool) == ["b"]
    assert (await feed(store)).jobs == 1


async def test_locked_jobs_take_no_turns_of_other_tenants(store: Store, pool: Pool) -> None:
    await start_worker(store, 2)
    await loud(store, 2, "locked")
    await loud(store, 2, "other")
    async with pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM scheduled_jobs WHERE job_id LIKE 'locked%' FOR UPDATE")
        assert (await feed(store)).jobs == 2
    assert await claimable(pool) == ["other-00000", "other-00001"]


async def test_feed_names_the_locked_jobs_before_the_last_one_that_it_moves(store: Store, pool: Pool) -> None:
    await start_worker(store, 2)
    await loud(store, 9, "loud")
    await loud(store, 9, "other")
    tenants = await store.shares.tenants(SHARE, 1000)
    async with pool.acquire() as other, other.transaction():
        query = (
            "SELECT FROM scheduled_jobs WHERE job_id LIKE 'loud-0000_' AND job_id < 'loud-00004' FOR UPDATE"
        )
        await other.execute(query)
        fed = await store.shares.feed(tenants, SHARES, [NAME])
        assert (fed.jobs, sorted(fed.locked)) == (2, ["loud-00000", "loud-00001"])
        await pool.execute("UPDATE scheduled_jobs SET blocked_on = 'moved' WHERE blocked_on IS NULL")
        left_out = [f"loud-{n:05}" for n in range(4)]
        fed = await store.shares.feed(tenants, SHARES, [NAME], left_out=left_out)
        assert (fed.jobs, fed.locked) == (2, ())
    assert "loud-00004" in await claimable(pool)


async def test_room_of_a_task_is_that_of_the_workers_that_claim_it(store: Store, pool: Pool) -> None:
    both = {SHARE: [NAME, "app.rare"]}
    await start_worker(store, 1)
    await start_worker(store, 9, "plain")
    await pool.execute("UPDATE scheduler_workers SET names = $1 WHERE worker_id = 'plain'", [NAME])
    await insert(store, *(queued(f"rare-{n}", "t", job_name="app.rare") for n in range(3)))
    tenants = [f"{SHARE}t"]
    assert (await store.shares.feed(tenants, both, both[SHARE])).jobs == 1
    await insert(store, queued("work", "t", NOW + SECOND))
    assert (await store.shares.feed(tenants, both, both[SHARE])).jobs == 1, "jobs without room are in no way"
    assert await claimable(pool) == ["rare-0", "work"]


async def test_cleanup_of_starts_waits_for_no_turn_that_a_feeder_writes(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await start_worker(store, 2)
    await insert(store, queued("a", "a"), queued("b", "b"))
    await feed(store)
    clock.advance(timedelta(hours=2))
    turns = "SELECT key FROM scheduler_starts WHERE key LIKE 'fed:%' ORDER BY key"
    async with pool.acquire() as feeder, feeder.transaction():
        await feeder.execute("UPDATE scheduler_starts SET at = $1 WHERE key = 'fed:s:b'", clock.now)
        await store.limits.delete_past_starts(100)
    assert [row[0] for row in await pool.fetch(turns)] == ["fed:s:b"]


async def test_tenants_of_other_shares_and_limits_are_left(store: Store, pool: Pool) -> None:
    await start_worker(store, 4)
    other = ExtendedJob(new_job("other"), Extras(blocked_on="share:st:a"))
    limited = ExtendedJob(new_job("limited"), Extras(blocked_on="limit:s:a"))
    await insert(store, queued("job", "a"), other, limited)
    assert await store.shares.tenants(SHARE[:6], 10) == ["share:s:a", "share:st:a"]
    assert await store.limits.blocked_keys("after", 10) == ["limit:s:a"]
    await store.shares.feed(["share:s:a", "share:st:a"], SHARES, [NAME])
    assert await claimable(pool) == ["job"]
    assert (await store.workers.scan_deadlines(30, 120)).has_queued
    assert (await store.workers.scan_deadlines(30, 120)).has_blocked


async def test_job_that_waited_for_others_waits_for_the_turn_of_its_tenant(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    (parent,) = await running(store, new_job("parent"))
    child = ExtendedJob(new_job("child"), Extras(blocked_on=f"{SHARE}t")).queued_after(("parent",))

    async def write(transaction: object) -> None:
        await store.inserts.insert_extended([child], connection=transaction.connection)  # type: ignore[attr-defined]
        await store.dependencies.block([child], transaction)  # type: ignore[arg-type]

    await store.statements.run_retrying(write)
    clock.advance(SECOND)
    await store.results.settle("w1", [(parent, COMPLETE)])
    assert await pool.fetchval("SELECT blocked_on FROM scheduled_jobs WHERE job_id = 'child'") == f"{SHARE}t"
    await feed(store)
    assert await claimable(pool) == ["child"]


@pytest.mark.parametrize("share", ["limit:a:", "after", "share:" + "x" * 5000, 7, None])
async def test_share_that_was_written_by_hand_keeps_no_job_from_starting(
    store: Store, pool: Pool, share: object
) -> None:
    (parent,) = await running(store, new_job("parent"))
    await pool.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, blocked_on, options)"
        " VALUES ('child', $1, $2, 'after', jsonb_build_object('share', $3::text))",
        NAME,
        NOW,
        None if share is None else str(share),
    )
    await pool.execute("INSERT INTO scheduler_after (parent_id, child_id) VALUES ('parent', 'child')")
    await pool.execute("""UPDATE scheduled_jobs SET on_end = '{"child": true}' WHERE job_id = 'parent'""")
    await store.results.settle("w1", [(parent, COMPLETE)])
    assert await claimable(pool) == ["child"]
