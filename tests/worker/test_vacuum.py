"""What the vacuum deletes, and how it counts."""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError, JobStatus, VacuumConfig, VacuumPolicy
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import EventBus, JobsVacuumed
from tests.support.inside import Connections, Store, Vacuum
from tests.support.parts import Parts
from tests.support.worker import Recorder, locked, new_job

PAUSE_S = Vacuum.pause_s
ALL = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.EXPIRED)


@pytest.fixture
def parts(clocked: Store, bus: EventBus) -> Parts:
    return Parts(clocked, bus)


async def ended(parts: Parts, status: JobStatus, *job_ids: str, name: str = "test.job") -> None:
    """Jobs that end now, one after the other."""
    clock = parts.store.statements.clock
    assert isinstance(clock, FakeClock)
    for job_id in job_ids:
        due = clock.now - timedelta(days=365)
        await parts.store.inserts.insert([new_job(job_id, name, execution_time=due)])
        await parts.store.jobs.set_status(job_id, status, 60)
        clock.advance(timedelta(milliseconds=1))


async def left(parts: Parts) -> set[str]:
    async with parts.store.connections.acquire() as connection:
        return {row[0] for row in await connection.fetch("SELECT job_id FROM scheduled_jobs")}


async def due(parts: Parts, config: VacuumConfig) -> Vacuum:
    """A vacuum whose first pass is due."""
    vacuum = parts.vacuum(config)
    assert await vacuum.run_once() > PAUSE_S
    async with parts.store.connections.acquire() as connection:
        await connection.execute("UPDATE scheduler_vacuum_passes SET ended_at = ended_at - interval '1 year'")
    return vacuum


def only(policy: VacuumPolicy, **rest: object) -> VacuumConfig:
    return VacuumConfig(policy, policy, policy, expired=policy, **rest)  # type: ignore[arg-type]


async def test_vacuum_deletes_by_age_since_the_job_finished_with_the_default_policies(
    parts: Parts, clock: FakeClock
) -> None:
    for status in ALL:
        await ended(parts, status, status.value)
    await parts.store.inserts.insert([new_job("pending", execution_time=clock.now - timedelta(days=365))])
    vacuum = parts.vacuum()
    gone = []
    for days in (0.9, 0.2, 1.8, 0.2, 3.8, 0.2):
        clock.advance(timedelta(days=days))
        gone.append({status.value for status, count in (await vacuum.run()).items() if count})
    assert gone == [set(), {"completed"}, set(), {"cancelled"}, set(), {"failed", "expired"}]
    assert await left(parts) == {"pending"}


async def test_vacuum_deletes_every_finished_job_with_the_immediate_policy(parts: Parts) -> None:
    for status in ALL:
        await ended(parts, status, f"{status} 1", f"{status} 2")
    assert await parts.vacuum(only(VacuumPolicy.immediate())).run() == dict.fromkeys(ALL, 2)


@pytest.mark.parametrize("policy", [VacuumPolicy.immediate(), VacuumPolicy.keep_last(0)])
async def test_vacuum_deletes_the_steps_of_marked_jobs_with_them(parts: Parts, policy: VacuumPolicy) -> None:
    await ended(parts, JobStatus.COMPLETED, "marked", "plain")
    await parts.store.inserts.insert([new_job("waits")])
    async with parts.store.connections.acquire() as connection:
        await connection.execute("""
            UPDATE scheduled_jobs SET options = '{"steps": 1}' WHERE job_id IN ('marked', 'waits');
            INSERT INTO scheduler_steps (job_id, name, kind, attempt, started_at)
            SELECT job_id, 'pay', 'step', 1, now() FROM scheduled_jobs
        """)
        assert (await parts.vacuum(only(policy)).run())[JobStatus.COMPLETED] == 2
        rows = await connection.fetch("SELECT job_id FROM scheduler_steps ORDER BY job_id")
        assert [row[0] for row in rows] == ["plain", "waits"]  # only those of marked jobs count
        assert [each.changed for each in await parts.store.jobs.delete(["waits"])] == [True]
        assert await connection.fetchval("SELECT job_id FROM scheduler_steps") == "plain"


@pytest.mark.parametrize("batch_size", [2, 100])
async def test_vacuum_deletes_the_steps_that_no_job_reads(
    parts: Parts, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    """New ones may be those of a job that begins meanwhile."""
    monkeypatch.setattr(Vacuum, "surplus_batch_size", batch_size)
    await parts.store.inserts.insert([new_job("1 marked"), new_job("2 replaced")])
    await pool.execute("""UPDATE scheduled_jobs SET options = '{"steps": 1}'""")
    await parts.store.inserts.replace([new_job("2 replaced")])
    for job_id in ("1 marked", "2 replaced", "3 deleted", "4 deleted", "5 new"):
        await pool.execute(
            "INSERT INTO scheduler_steps (job_id, name, kind, attempt, started_at)"
            " VALUES ($1, 'pay', 'step', 1, now() - $2::interval)",
            job_id,
            timedelta(hours=0 if "new" in job_id else 2),
        )
    await parts.vacuum().run()
    rows = await pool.fetch("SELECT job_id FROM scheduler_steps ORDER BY job_id")
    assert [row[0] for row in rows] == ["1 marked", "5 new"]


async def test_vacuum_deletes_nothing_with_the_never_policy(
    parts: Parts, clock: FakeClock, seen: Recorder
) -> None:
    for status in ALL:
        await ended(parts, status, status.value)
    clock.advance(timedelta(days=10_000))
    assert await parts.vacuum(only(VacuumPolicy.never())).run() == dict.fromkeys(ALL, 0)
    assert seen.events == []


async def test_vacuum_keeps_the_newest_jobs_of_each_name_with_keep_last(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Vacuum, "surplus_batch_size", 2)
    await ended(parts, JobStatus.COMPLETED, *"edcba", name="one")
    await ended(parts, JobStatus.COMPLETED, "x", "y", name="two")
    await ended(parts, JobStatus.FAILED, "z", name="one")
    config = VacuumConfig(VacuumPolicy.keep_last(2), VacuumPolicy.keep_last(1))
    deleted = await parts.vacuum(config).run()
    assert deleted[JobStatus.COMPLETED] == 3
    assert await left(parts) == {"a", "b", "x", "y", "z"}
    await parts.vacuum(VacuumConfig(VacuumPolicy.keep_last(0))).run()
    assert await left(parts) == {"z"}


async def test_vacuum_deletes_no_running_job(parts: Parts, clock: FakeClock) -> None:
    await parts.store.inserts.insert([new_job("a")])
    await parts.store.jobs.set_status("a", JobStatus.RUNNING, 60)
    clock.advance(timedelta(days=10_000))
    await parts.vacuum(only(VacuumPolicy.immediate())).run()
    await parts.vacuum(only(VacuumPolicy.keep_last(0))).run()
    assert await left(parts) == {"a"}


async def test_vacuum_deletes_one_range_of_blocks_per_step(
    parts: Parts, clock: FakeClock, seen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Vacuum, "step_blocks", 1)
    for number in range(30):
        await ended(parts, JobStatus.COMPLETED, f"{number:02}" + "x" * 1000)
    blocks = await parts.store.retention.table_blocks()
    assert blocks > 3
    vacuum = await due(parts, only(VacuumPolicy.immediate(), interval_minutes=9))
    delays = [await vacuum.run_once() for _ in range(blocks + 1)]
    assert delays == [PAUSE_S] * blocks + [0]
    assert await left(parts) == set()
    assert seen.events == []
    assert 486 <= await vacuum.run_once() <= 594
    assert seen.events == [JobsVacuumed(completed=30, failed=0, cancelled=0, expired=0)]


async def test_vacuum_records_deletions_by_day_with_track_metrics(parts: Parts, clock: FakeClock) -> None:
    vacuum = parts.vacuum(only(VacuumPolicy.immediate(), track_metrics=True))
    await vacuum.run()
    assert await parts.store.retention.vacuum_stats(7) == []
    for status, count in zip(ALL, range(1, 5), strict=True):
        await ended(parts, status, *(f"{status} {n}" for n in range(count)))
    await vacuum.run()
    await ended(parts, JobStatus.COMPLETED, "more")
    await vacuum.run()
    (day,) = await parts.store.retention.vacuum_stats(7)
    counts = (day.deleted_completed, day.deleted_failed, day.deleted_cancelled, day.deleted_expired)
    assert (counts, day.worker_id, day.last_run) == ((2, 2, 3, 4), "me", clock.now)
    clock.advance(timedelta(days=1))
    await ended(parts, JobStatus.COMPLETED, "next day")
    await vacuum.run()
    assert [each.deleted_completed for each in await parts.store.retention.vacuum_stats(7)] == [1, 2]
    assert len(await parts.store.retention.vacuum_stats(1)) == 1
    total = await parts.store.retention.total_vacuum_stats()
    assert (total.total_completed, total.total_expired) == (3, 4)
    assert total.last_vacuum_run == clock.now


async def test_vacuum_records_nothing_without_track_metrics(parts: Parts) -> None:
    await ended(parts, JobStatus.COMPLETED, "a")
    await parts.vacuum(only(VacuumPolicy.immediate())).run()
    assert await parts.store.retention.vacuum_stats(7) == []


async def test_vacuum_continues_its_pass_after_a_database_error(
    touchy: Store, bus: EventBus, seen: Recorder, dsn: str
) -> None:
    await touchy.inserts.insert([new_job("a")])
    await touchy.jobs.set_status("a", JobStatus.COMPLETED, 60)
    vacuum = await due(Parts(touchy, bus), only(VacuumPolicy.immediate()))
    async with locked(dsn, "scheduled_jobs"):
        with pytest.raises(DatabaseUnavailableError):
            await vacuum.run_once()
    assert [await vacuum.run_once(), await vacuum.run_once()] == [PAUSE_S, 0]
    await vacuum.drain()
    assert seen.of(JobsVacuumed) == [JobsVacuumed(completed=1, failed=0, cancelled=0, expired=0)]


async def test_vacuum_deletes_the_rows_around_one_that_another_session_holds(
    touchy: Store, bus: EventBus, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Vacuum, "step_blocks", 1)
    for number in range(30):
        await touchy.inserts.insert([new_job(f"{number:02}" + "x" * 1000)])
        await touchy.jobs.set_status(f"{number:02}" + "x" * 1000, JobStatus.COMPLETED, 60)
    blocks = await touchy.retention.table_blocks()
    assert blocks > 1
    vacuum = await due(Parts(touchy, bus), only(VacuumPolicy.immediate()))
    async with pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM scheduled_jobs WHERE job_id LIKE '00%' FOR UPDATE")
        for _ in range(blocks):
            await vacuum.run_once()
        assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 1
    await vacuum.run()
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


async def test_vacuum_keeps_its_counts_for_the_next_write_when_a_write_fails(
    touchy: Store, bus: EventBus, dsn: str
) -> None:
    await touchy.inserts.insert([new_job("a")])
    await touchy.jobs.set_status("a", JobStatus.COMPLETED, 60)
    config = only(VacuumPolicy.immediate(), track_metrics=True, interval_minutes=1)
    vacuum = await due(Parts(touchy, bus), config)
    assert [await vacuum.run_once(), await vacuum.run_once()] == [PAUSE_S, 0]
    async with locked(dsn, "vacuum_stats"):
        with pytest.raises(DatabaseUnavailableError):
            await vacuum.run_once()
    assert await vacuum.run_once() > 1
    assert (await touchy.retention.total_vacuum_stats()).total_completed == 1


async def test_vacuum_deletes_jobs_in_another_schema(pool: asyncpg.Pool, bus: EventBus) -> None:
    store = Store(Connections(pool), schema='Odd "one"')
    await store.migrate()
    await store.inserts.insert([new_job("a")])
    await store.jobs.set_status("a", JobStatus.COMPLETED, 60)
    assert (await Parts(store, bus).vacuum(only(VacuumPolicy.immediate())).run())[JobStatus.COMPLETED] == 1


async def test_vacuum_deletes_results_past_their_lifetime_in_batches(
    parts: Parts, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Vacuum, "surplus_batch_size", 2)
    await pool.execute(
        "INSERT INTO scheduler_results (job_id, status, attempts, finished_at, expires_at)"
        " SELECT n::text, 'completed', 1, now(), now() + (n - 4.5) * interval '1 day'"
        " FROM generate_series(1, 5) AS n"
    )
    await parts.vacuum().run()
    assert [row[0] for row in await pool.fetch("SELECT job_id FROM scheduler_results")] == ["5"]
