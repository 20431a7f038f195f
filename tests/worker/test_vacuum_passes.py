"""Which worker makes a pass of the vacuum, and which ranges of blocks it reads."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta

import asyncpg
import pytest

from pg_scheduler import JobStatus, VacuumConfig, VacuumPolicy
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import EventBus
from tests.support.inside import Connections, Store, Vacuum
from tests.support.parts import Parts
from tests.support.patience import PATIENCE
from tests.support.store import LEASE, worker
from tests.worker.test_idle import Log

Node = Callable[[str], Parts]
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
JOBS = 400
STEP = 4
CHECK_S = Vacuum.check_interval_s
OF_RANGES = ("vacuum_blocks", "note_range")
AGES = {
    JobStatus.COMPLETED: DAY,
    JobStatus.FAILED: 7 * DAY,
    JobStatus.CANCELLED: 3 * DAY,
    JobStatus.EXPIRED: 7 * DAY,
}
"""The default policies."""


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Vacuum, "step_blocks", STEP)
    monkeypatch.setattr(Vacuum, "interval_jitter", 0)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def node(dsn: str, bus: EventBus, clock: FakeClock, log: Log) -> AsyncIterator[Node]:
    """Builds workers without their rows. Their statements are logged."""
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=4, init=log.listen)
    store = Store(Connections(pool), clock=clock)
    yield lambda worker_id: Parts(store, bus, worker_id)
    await store.connections.release_held()
    await asyncio.wait_for(pool.close(), PATIENCE)


async def make_pass(vacuum: Vacuum) -> int:
    """Make a pass that is due; return how many ranges of blocks it read."""
    steps = 0
    while await vacuum.run_once() == vacuum.pause_s:
        steps += 1
    return steps


async def first_pass(parts: Parts, clock: FakeClock, config: VacuumConfig | None = None) -> Vacuum:
    """Make the first pass, when it is due."""
    vacuum = parts.vacuum(config)
    assert await vacuum.run_once() > 0
    clock.advance(HOUR)
    await make_pass(vacuum)
    return vacuum


async def fill(
    pool: asyncpg.Pool, finished_at: datetime, count: int = JOBS, *, status: str = "completed"
) -> None:
    """Add jobs that finished then, in blocks that follow one another."""
    await pool.execute(
        "INSERT INTO scheduled_jobs (job_name, execution_time, status, finished_at)"
        " SELECT 'n', $1, $2, $1 FROM generate_series(1, $3)",
        finished_at,
        status,
        count,
    )


async def count(pool: asyncpg.Pool) -> int:
    jobs: int = await pool.fetchval("SELECT count(*) FROM scheduled_jobs")
    return jobs


# -- whose turn it is ----------------------------------------------------------------------------------


async def test_first_pass_is_due_at_a_random_part_of_the_interval(node: Node, pool: asyncpg.Pool) -> None:
    delays = []
    for _ in range(20):
        await pool.execute("DELETE FROM scheduler_vacuum_passes")
        delays.append(await node("a").store.retention.begin_pass("p", "a", after_s=3600, within_s=3600))
    assert all(delay is not None and 0 < delay <= 3600 for delay in delays)
    assert len(set(delays)) == 20


async def test_one_worker_makes_the_pass_of_an_interval(node: Node, clock: FakeClock, log: Log) -> None:
    workers = [node(f"w{number}") for number in range(10)]
    for each in workers:
        await each.store.workers.register(worker(each.worker_id), LEASE)
    vacuums = [each.vacuum() for each in workers]
    assert all([await vacuum.run_once() > 0 for vacuum in vacuums])
    for _ in range(3):
        clock.advance(2 * HOUR)
        await log.take()
        while 0 in await asyncio.gather(*(vacuum.run_once() for vacuum in vacuums)):
            pass
        made = Counter(await log.take())
        assert (made["table_blocks"], made["read_ranges"], made["end_vacuum_pass"]) == (1, 1, 1)
        clock.advance(timedelta(minutes=59))
        await asyncio.gather(*(vacuum.run_once() for vacuum in vacuums))
        assert set(await log.take()) == {"vacuum_pass_due", "reset"}, "one statement each"


async def test_one_of_many_workers_begins_a_pass_when_all_find_it_due(dsn: str, pool: asyncpg.Pool) -> None:
    pools = [await asyncpg.create_pool(dsn, min_size=1, max_size=1) for _ in range(8)]
    stores = [Store(Connections(each)) for each in pools]
    for number in range(8):
        await stores[0].workers.register(worker(f"w{number}"), LEASE)
    for _ in range(10):
        await pool.execute("DELETE FROM scheduler_vacuum_passes")
        await stores[0].retention.begin_pass("p", "gone", after_s=0, within_s=0)
        begun = await asyncio.gather(
            *(
                store.retention.begin_pass("p", f"w{number}", after_s=0, within_s=0)
                for number, store in enumerate(stores)
            )
        )
        assert Counter(begun) == {0: 1, None: 7}
    await asyncio.gather(*(asyncio.wait_for(each.close(), PATIENCE) for each in pools))


async def test_another_worker_continues_the_pass_of_one_whose_row_is_gone(
    node: Node, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    first, second = node("first"), node("second")
    for each in (first, second):
        await each.store.workers.register(worker(each.worker_id), LEASE)
    await fill(pool, clock.now)
    blocks = await first.store.retention.table_blocks()
    vacuum, other = first.vacuum(), second.vacuum()
    await vacuum.run_once()
    clock.advance(2 * DAY)
    assert await vacuum.run_once() == vacuum.pause_s
    assert await other.run_once() == CHECK_S, "the first one makes the pass"
    assert await count(pool) > 0
    await pool.execute("DELETE FROM scheduler_workers WHERE worker_id = 'first'")
    assert await make_pass(other) == -(-blocks // STEP) - 1, "without the range that the first one read"
    assert await count(pool) == 0


async def test_workers_with_other_policies_make_passes_of_their_own(
    node: Node, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    await fill(pool, clock.now)
    await first_pass(node("a"), clock)
    assert await count(pool) == JOBS
    await first_pass(node("b"), clock, VacuumConfig(VacuumPolicy.after_days(0.01)))
    assert await count(pool) == 0
    rows = await pool.fetch("SELECT worker_id FROM scheduler_vacuum_passes ORDER BY 1")
    assert [row[0] for row in rows] == ["a", "b"]
    clock.advance(40 * DAY)
    await make_pass(node("a").vacuum())
    assert await pool.fetchval("SELECT string_agg(worker_id, ' ') FROM scheduler_vacuum_passes") == "a"


async def test_pass_is_due_when_its_end_is_in_the_future(node: Node, clock: FakeClock, log: Log) -> None:
    vacuum = await first_pass(node("a"), clock)
    clock.advance(-300 * DAY)
    await log.take()
    await make_pass(vacuum)
    assert "end_vacuum_pass" in await log.take()


# -- which ranges it reads -----------------------------------------------------------------------------


async def test_pass_with_nothing_to_delete_reads_no_range(
    node: Node, clock: FakeClock, pool: asyncpg.Pool, log: Log
) -> None:
    await fill(pool, clock.now)
    vacuum = await first_pass(node("a"), clock)
    for _ in range(5):
        clock.advance(2 * HOUR)
        await log.take()
        await make_pass(vacuum)
        made = await log.take()
        assert not set(made) & set(OF_RANGES)
        assert len(made) <= 34
    newcomer = node("b").vacuum()
    clock.advance(2 * HOUR)
    assert await make_pass(newcomer) == 0, "what is known outlives the worker that read it"


async def test_pass_reads_no_more_pages_when_the_table_grows(
    node: Node, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    parts = node("a")
    pages = []
    for _ in range(2):
        await fill(pool, clock.now, 4000)
        await pool.execute("DELETE FROM scheduler_vacuum_passes")
        await first_pass(parts, clock)
        clock.advance(2 * HOUR)
        async with pool.acquire() as connection, connection.transaction():
            before = "SELECT pg_stat_get_xact_blocks_fetched('scheduled_jobs'::regclass)"
            began = await connection.fetchval(before)
            cutoffs = {status: clock.now - age for status, age in AGES.items()}
            rows = await parts.store.statements.fetch(
                "read_ranges", "public.scheduled_jobs", STEP, *cutoffs.values(), clock.now, on=connection
            )
            assert rows
            assert not any(row["may"] for row in rows)
            pages.append(await connection.fetchval(before) - began)
    assert pages == [0, 0]


async def test_pass_reads_a_range_when_its_first_job_is_due(
    node: Node, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    for _ in range(4):  # an hour of jobs each
        await fill(pool, clock.now)
        clock.advance(HOUR)
    ranges = -(-await node("a").store.retention.table_blocks() // STEP)
    vacuum = await first_pass(node("a"), clock)
    clock.advance(DAY - 5 * HOUR - timedelta(seconds=1))
    assert await make_pass(vacuum) == 0
    for hour in range(4):
        clock.advance(HOUR)
        assert 0 < await make_pass(vacuum) <= ranges // 4 + 2
        assert await count(pool) == JOBS * (3 - hour)


async def test_new_blocks_are_not_read_before_their_jobs_can_be_due(
    node: Node, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    vacuum = await first_pass(node("a"), clock)
    for _ in range(6):
        clock.advance(HOUR)
        await fill(pool, clock.now)
        clock.advance(HOUR)
        assert await make_pass(vacuum) == 0
    clock.advance(DAY)
    assert await make_pass(vacuum) > 0
    assert await count(pool) == 0


async def test_all_ranges_are_read_again_after_the_table_was_rewritten(
    node: Node, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    await fill(pool, clock.now)
    vacuum = await first_pass(node("a"), clock)
    await pool.execute("VACUUM FULL scheduled_jobs")
    clock.advance(2 * HOUR)
    assert await make_pass(vacuum) == -(-await node("a").store.retention.table_blocks() // STEP)
    clock.advance(2 * HOUR)
    assert await make_pass(vacuum) == 0


async def test_all_ranges_are_read_again_after_the_clock_was_set_back(
    node: Node, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    await fill(pool, clock.now - 400 * DAY)
    vacuum = await first_pass(node("a"), clock, VacuumConfig(VacuumPolicy.after_days(500)))
    clock.advance(-390 * DAY)
    assert await make_pass(vacuum) > 0
    clock.advance(2 * HOUR)
    assert await make_pass(vacuum) == 0


async def test_row_with_an_end_in_the_past_is_found_within_a_week(
    node: Node, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    policy = VacuumPolicy.after_days(30)
    config = VacuumConfig(policy, policy, policy, expired=VacuumPolicy.never())
    vacuum = await first_pass(node("a"), clock, config)
    await fill(pool, clock.now - 100 * DAY)
    clock.advance(6 * DAY)
    await make_pass(vacuum)
    assert await count(pool) == JOBS
    clock.advance(DAY)
    await make_pass(vacuum)
    assert await count(pool) == 0


async def test_run_vacuum_reads_ranges_that_a_pass_would_skip(
    node: Node, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    vacuum = await first_pass(node("a"), clock)
    await fill(pool, clock.now - 100 * DAY)
    assert (await vacuum.run())[JobStatus.COMPLETED] == JOBS


async def test_job_that_waits_for_its_consequences_is_deleted_after_them(
    node: Node, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    await fill(pool, clock.now, 1)
    await pool.execute("UPDATE scheduled_jobs SET on_end = '{}'")
    vacuum = await first_pass(node("a"), clock)
    clock.advance(2 * DAY)
    await make_pass(vacuum)
    assert await count(pool) == 1
    await pool.execute("UPDATE scheduled_jobs SET on_end = NULL")
    clock.advance(HOUR)
    await make_pass(vacuum)
    assert await count(pool) == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_passes_delete_exactly_what_is_past_its_retention(
    node: Node, clock: FakeClock, pool: asyncpg.Pool, seed: int
) -> None:
    """Jobs end, run again and are deleted in old and new blocks, and the server maintains the table."""
    chosen = random.Random(seed)
    policies = list(AGES.items())
    vacuum = await first_pass(node("a"), clock)
    read = skipped = 0
    for _ in range(40):
        for _ in range(chosen.randrange(4)):
            clock.advance(timedelta(seconds=chosen.randrange(20_000)))
            kind = chosen.randrange(7)
            some = f"abs(hashtext(job_id || '{chosen.random()}')) % 5 = 0"
            if kind <= 2:
                status, _ = chosen.choice([*policies, policies[0]])
                await pool.execute(
                    "INSERT INTO scheduled_jobs (job_name, execution_time) SELECT 'n', $1"
                    " FROM generate_series(1, $2)",
                    clock.now,
                    chosen.randrange(300),
                )
                await pool.execute(
                    "UPDATE scheduled_jobs SET status = $1, finished_at = $2"
                    f" WHERE finished_at IS NULL AND NOT ({some})",
                    status,
                    clock.now,
                )
            elif kind == 3:
                await pool.execute(
                    f"UPDATE scheduled_jobs SET status = 'pending', finished_at = NULL WHERE {some}"
                )
            elif kind == 4:
                await pool.execute(f"DELETE FROM scheduled_jobs WHERE {some}")
            elif kind == 5:
                await pool.execute(chosen.choice(["VACUUM scheduled_jobs", "VACUUM (FULL) scheduled_jobs"]))
            else:
                vacuum = node(f"worker {chosen.random()}").vacuum()
        clock.advance(HOUR)
        expected = await pool.fetch(
            "SELECT job_id FROM scheduled_jobs WHERE finished_at IS NULL OR finished_at > $1::timestamptz"
            " - CASE status WHEN 'completed' THEN interval '1 day' WHEN 'cancelled' THEN interval '3 days'"
            " ELSE interval '7 days' END ORDER BY 1",
            clock.now,
        )
        ranges = -(-await vacuum._store.retention.table_blocks() // STEP)
        found = await make_pass(vacuum)
        read, skipped = read + found, skipped + ranges - found
        assert await pool.fetch("SELECT job_id FROM scheduled_jobs ORDER BY 1") == expected
    assert skipped > read
