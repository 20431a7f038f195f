"""What is written to the tables of statistics, once each, and how rows of the past are merged."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import EventBus
from tests.support.inside import BOUNDS, OUTCOMES, JobFigures, Meter, StatisticsWriter, Store
from tests.support.parts import Parts
from tests.support.worker import LEASE, locked, new_worker

NOON = datetime(2030, 1, 1, 12, 0, 30, tzinfo=UTC)
COMPLETED = 2 + OUTCOMES.index("completed")
FAILED = 2 + OUTCOMES.index("failed")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON)


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
async def parts(clocked: Store, bus: EventBus) -> Parts:
    await clocked.workers.register(new_worker(), LEASE)
    return Parts(clocked, bus)


@pytest.fixture
def writer(parts: Parts, meter: Meter) -> StatisticsWriter:
    return StatisticsWriter(parts, meter, parts.store.statistics)


def work(meter: Meter, name: str = "mail", *, completed: int = 0, failed: int = 0) -> None:
    for _ in range(completed):
        meter.record_end(name, "completed")
        meter.record_duration(name, 0.02)
    for _ in range(failed):
        meter.record_end(name, "failed")
        meter.record_duration(name, 2.0)


def figures(completed: int) -> JobFigures:
    meter = Meter()
    work(meter, completed=completed)
    return meter.snapshot().jobs["mail"]


async def ended(pool: asyncpg.Pool, table: str = "scheduler_totals") -> dict[str, tuple[int, int]]:
    """The completed and failed jobs that a table counts, by name."""
    rows = await pool.fetch(f"SELECT job_name, counts FROM {table} ORDER BY job_name")
    return {row["job_name"]: (row["counts"][COMPLETED], row["counts"][FAILED]) for row in rows}


async def spans(pool: asyncpg.Pool) -> list[tuple[int, str, int]]:
    """The rows of statistics: span, start of the bucket and completed jobs."""
    rows = await pool.fetch("SELECT * FROM scheduler_stats ORDER BY span, bucket, job_name")
    return [
        (row["span"], row["bucket"].astimezone(UTC).strftime("%d %H:%M:%S"), row["counts"][COMPLETED])
        for row in rows
    ]


# -- writing ------------------------------------------------------------------------------------------


async def test_writer_adds_to_the_row_of_the_minute_and_to_the_totals(
    writer: StatisticsWriter, meter: Meter, pool: asyncpg.Pool, clock: FakeClock
) -> None:
    work(meter, completed=3, failed=1)
    work(meter, "report", completed=1)
    await writer.run_once()
    clock.advance(timedelta(seconds=20))
    work(meter, completed=2)
    await writer.run_once()
    clock.advance(timedelta(seconds=20))
    work(meter, completed=4)
    await writer.run_once()
    assert await ended(pool) == {"mail": (9, 1), "report": (1, 0)}
    assert await spans(pool) == [(60, "01 12:00:00", 5), (60, "01 12:00:00", 1), (60, "01 12:01:00", 4)]
    row = await pool.fetchrow("SELECT * FROM scheduler_totals WHERE job_name = 'mail'")
    assert row is not None
    total = meter.snapshot().jobs["mail"]
    assert row["counts"] == [total.scheduled, total.started, *total.ended]
    assert row["sums"] == pytest.approx([total.durations.total, total.lateness.total])
    assert tuple(row["run_hist"]) == total.durations.buckets
    assert tuple(row["late_hist"]) == total.lateness.buckets
    assert row["updated_at"] == clock.now


async def test_writer_writes_nothing_if_nothing_was_counted(
    writer: StatisticsWriter, meter: Meter, pool: asyncpg.Pool, dsn: str
) -> None:
    work(meter, completed=1)
    await writer.run_once()
    async with locked(dsn, "scheduler_totals"):
        assert await writer.run_once() == 10.0


async def test_batch_that_is_written_twice_counts_once(parts: Parts, pool: asyncpg.Pool) -> None:
    statistics = parts.store.statistics
    assert [await statistics.add("me", batch, {"mail": figures(batch)}) for batch in (1, 2, 2, 1, 3)] == [
        True
    ] * 5
    assert await ended(pool) == {"mail": (6, 0)}


async def test_batch_is_written_again_after_an_error_with_what_was_counted_since_behind_it(
    touchy: Store, bus: EventBus, meter: Meter, pool: asyncpg.Pool, dsn: str
) -> None:
    await touchy.workers.register(new_worker(), LEASE)
    writer = StatisticsWriter(Parts(touchy, bus), meter, touchy.statistics)
    work(meter, completed=3)
    async with locked(dsn, "scheduler_stats"):
        with pytest.raises(DatabaseUnavailableError):
            await writer.run_once()
    work(meter, completed=2)
    await writer.run_once()
    assert await ended(pool) == {"mail": (3, 0)}
    await writer.run_once()
    assert await ended(pool) == {"mail": (5, 0)}


async def test_batch_waits_until_the_row_of_the_worker_is_written_again(
    writer: StatisticsWriter, meter: Meter, parts: Parts, pool: asyncpg.Pool
) -> None:
    await parts.store.workers.deregister("me")
    work(meter, completed=3)
    await writer.run_once()
    assert await ended(pool) == {}
    await parts.store.workers.register(new_worker(), LEASE)
    await writer.run_once()
    assert await ended(pool) == {"mail": (3, 0)}


async def test_batches_of_two_workers_add_up(parts: Parts, pool: asyncpg.Pool) -> None:
    await parts.store.workers.register(new_worker("other"), LEASE)
    for worker in ("me", "other"):
        for number in (1, 2):
            await parts.store.statistics.add(worker, number, {"mail": figures(10)})
    assert await ended(pool) == {"mail": (40, 0)}


async def test_rest_is_written_at_the_end(writer: StatisticsWriter, meter: Meter, pool: asyncpg.Pool) -> None:
    await writer.start()
    work(meter, completed=3)
    await writer.stop()
    assert await ended(pool) == {"mail": (3, 0)}


async def test_rest_is_kept_for_the_next_start_if_the_database_is_unavailable_at_the_end(
    touchy: Store, bus: EventBus, meter: Meter, pool: asyncpg.Pool, dsn: str
) -> None:
    await touchy.workers.register(new_worker(), LEASE)
    writer = StatisticsWriter(Parts(touchy, bus), meter, touchy.statistics)
    await writer.start()
    work(meter, completed=3)
    async with locked(dsn, "scheduler_totals"):
        await writer.stop()
    assert await ended(pool) == {}
    await StatisticsWriter(Parts(touchy, bus), meter, touchy.statistics).run_once()
    assert await ended(pool) == {"mail": (3, 0)}


async def test_arrays_of_another_release_may_be_longer_or_shorter(
    writer: StatisticsWriter, meter: Meter, pool: asyncpg.Pool
) -> None:
    for table in ("scheduler_stats (bucket, span,", "scheduler_totals (updated_at,"):
        keys = "'2030-01-01 12:00Z', 60," if "span" in table else "now(),"
        await pool.execute(
            f"INSERT INTO {table} job_name, counts, sums, run_hist, late_hist) VALUES "
            f"({keys} 'mail', array_fill(1, ARRAY[20]), '{{}}', '{{5, NULL}}', '{{}}')"
        )
    work(meter, completed=3)
    await writer.run_once()
    for table in ("scheduler_stats", "scheduler_totals"):
        row = await pool.fetchrow(f"SELECT * FROM {table}")
        assert row is not None
        assert row["counts"] == [1, 1, 4, *[1] * 17]
        assert row["sums"] == pytest.approx([0.06, 0])
        assert sum(row["run_hist"]) == 5 + 3
        assert len(row["run_hist"]) == len(row["late_hist"]) == len(BOUNDS) + 1


# -- merging ------------------------------------------------------------------------------------------


async def write(parts: Parts, clock: FakeClock, *minutes: int, name: str = "mail") -> None:
    """Complete as many jobs in each minute from now on as the number says."""
    for number in minutes:
        batch = int(clock.now.timestamp())
        await parts.store.statistics.add("me", batch, {name: figures(number)} if number else {})
        clock.advance(timedelta(minutes=1))


async def test_vacuum_merges_rows_of_minutes_hours_and_days(
    parts: Parts, pool: asyncpg.Pool, clock: FakeClock
) -> None:
    vacuum = parts.vacuum()
    await write(parts, clock, 1, 2, 3, *[0] * 7, 4, 5)
    await vacuum.run()
    assert [row[2] for row in await spans(pool)] == [1, 2, 3, 4, 5]
    clock.advance(timedelta(hours=6))
    await vacuum.run()
    assert await spans(pool) == [
        (60, "01 12:10:00", 4),
        (60, "01 12:11:00", 5),
        (600, "01 12:00:00", 6),
    ]
    clock.advance(timedelta(minutes=10))
    await vacuum.run()
    assert await spans(pool) == [(600, "01 12:00:00", 6), (600, "01 12:10:00", 9)]
    clock.advance(timedelta(days=7))
    await vacuum.run()
    assert await spans(pool) == [(3600, "01 12:00:00", 15)]
    row = await pool.fetchrow("SELECT * FROM scheduler_stats")
    assert row is not None
    expected = figures(15)
    assert row["counts"] == [0, 0, *expected.ended]
    assert row["sums"] == pytest.approx([0.3, 0.0])
    assert tuple(row["run_hist"]) == expected.durations.buckets
    assert tuple(row["late_hist"]) == expected.lateness.buckets
    clock.advance(timedelta(days=82, hours=17))
    await vacuum.run()
    assert await spans(pool) == [(3600, "01 12:00:00", 15)]
    clock.advance(timedelta(hours=2))
    await vacuum.run()
    assert await spans(pool) == []
    assert await ended(pool) == {"mail": (15, 0)}, "totals are kept"


async def test_merging_adds_to_rows_that_an_earlier_pass_has_merged(
    parts: Parts, pool: asyncpg.Pool, clock: FakeClock
) -> None:
    vacuum = parts.vacuum()
    await write(parts, clock, 1)
    clock.now = NOON + timedelta(hours=7)
    await vacuum.run()
    clock.now = NOON
    await write(parts, clock, 2)
    await parts.store.statistics.add("me", 2**40, {"mail": figures(2)})
    clock.now = NOON + timedelta(hours=7)
    await vacuum.run()
    assert [row[2] for row in await spans(pool)] == [3]


@pytest.mark.parametrize("size", [1, 7, 100])
async def test_merging_in_bounded_batches_loses_nothing(
    parts: Parts, pool: asyncpg.Pool, clock: FakeClock, size: int
) -> None:
    for name in ("mail", "report"):
        await write(parts, clock, *range(1, 21), name=name)
    clock.advance(timedelta(hours=7))
    vacuum = parts.vacuum()
    vacuum.statistics_batch_size = size
    await vacuum.run()
    rows = await pool.fetch(
        "SELECT span, job_name, sum(counts[3]) FROM scheduler_stats GROUP BY 1, 2 ORDER BY 2"
    )
    assert [tuple(row) for row in rows] == [(600, "mail", 210), (600, "report", 210)]


async def test_rows_of_names_are_written_in_one_order(parts: Parts, pool: asyncpg.Pool) -> None:
    names = ["b", "a", "Z", "é", "(other)"]
    await parts.store.statistics.add("me", 1, {name: figures(1) for name in names})
    for table in ("scheduler_stats", "scheduler_totals"):
        places: Sequence[asyncpg.Record] = await pool.fetch(f"SELECT job_name FROM {table} ORDER BY ctid")
        found = [row[0].encode() for row in places]
        assert all(first < second for first, second in pairwise(found))
        assert len(found) == len(names)
