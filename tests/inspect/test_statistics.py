"""Inspector.statistics(): what workers counted and measured, by name and time, and in explanations."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler.clock import FakeClock
from pg_scheduler.inspect import Inspector, ReasonCode
from tests.support import inside
from tests.support.inside import BOUNDS, Connections, Histogram, JobFigures, Store
from tests.support.world import MINUTE, SECOND, World

SIZE = len(BOUNDS) + 1


def lasting(bound: float, number: int) -> Histogram:
    """Durations of so many attempts, all in the bucket of this bound."""
    buckets = [0] * SIZE
    buckets[BOUNDS.index(bound)] = number
    return Histogram(tuple(buckets), bound * number)


def figures(started: int) -> JobFigures:
    return JobFigures(0, started, (started, *[0] * 9), lasting(60.0, started), lasting(0.1, started))


async def add(world: World, at: datetime, **jobs: JobFigures) -> None:
    """Write figures as a worker does at an instant."""
    store = Store(Connections(world.pool), clock=FakeClock(at))
    worker_id = f"at {at}"
    await world.worker(worker_id)
    assert await store.statistics.add(worker_id, 1, jobs)


async def now_of(pool: asyncpg.Pool) -> datetime:
    now: datetime = await pool.fetchval("SELECT now()")
    return now


async def test_statistics_are_those_of_the_period_by_name_and_time(pool: asyncpg.Pool, world: World) -> None:
    now = await now_of(pool)
    await add(world, now, mail=figures(3), report=figures(1))
    await add(world, now - 30 * MINUTE, mail=figures(4))
    await add(world, now - 90 * MINUTE, mail=figures(5))
    inspector = Inspector(pool)
    found = await inspector.statistics()
    assert found.is_complete
    assert found.duration == timedelta(hours=1)
    assert found.by_name() == {"mail": JobFigures.added(figures(3), figures(4)), "report": figures(1)}
    assert [each.started for each in found.by_time().values()] == [4, 4]
    assert [each.started for each in found.by_time(timedelta(days=10_000)).values()] == [8]
    assert found.total().started == 8
    assert (await inspector.statistics(2 * timedelta(hours=1), names=["mail"])).total().started == 12
    assert (await inspector.statistics(names=["other"])).total() == JobFigures()


async def test_statistics_by_time_are_added_up_by_the_database(
    pool: asyncpg.Pool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = await now_of(pool)
    last = Histogram((*[0] * (SIZE - 1), 7), 3.5)
    rare = JobFigures(1, 2, (*[0] * 9, 3), last, last)  # the last element of each array
    for started, hours in enumerate((0, 1, 2, 4, 6), 1):  # rows merge at full spans: the ages differ by more
        await add(world, now - hours * 60 * MINUTE, mail=figures(started), report=rare)
    store = Store(Connections(pool))
    assert await store.statistics.fold(60, 600, 3 / 24, 99) == 4
    assert await store.statistics.fold(600, 3600, 4.5 / 24, 99) == 2
    inspector = Inspector(pool)
    period = timedelta(hours=8)
    apart = await inspector.statistics(period)
    assert {row.span for row in apart.rows} == {MINUTE, 10 * MINUTE, 60 * MINUTE}
    inside.replace(monkeypatch, statistics_batch=3)
    for width in (MINUTE, 30 * MINUTE, timedelta(days=30)):
        added = await inspector.statistics_by_time(period, width=width)
        assert added.by_time(width) == apart.by_time(width)
        assert {row.job_name for row in added.rows} == {""}
        assert added.is_complete
    assert (await inspector.statistics_by_time(period, names=["ma*"])).total().started == 1 + 2 + 3 + 4 + 5
    assert (await inspector.statistics_by_time(period, names=[])).rows == ()
    inside.replace(monkeypatch, summed_rows=2)
    some = await inspector.statistics_by_time(timedelta(hours=1.5))
    assert (some.is_complete, some.total().started) == (False, 1 + 2)
    with pytest.raises(ValueError, match="width must be at least a minute"):
        await inspector.statistics_by_time(width=timedelta(seconds=59))
    with pytest.raises(ValueError, match="between 0 and 90 days"):
        await inspector.statistics_by_time(timedelta(days=91))


async def test_workers_that_count_nothing_are_stated(pool: asyncpg.Pool, world: World) -> None:
    inspector = Inspector(pool)
    await world.worker("silent", settings='{"statistics": false}')
    text = "statistics are off (statistics=False): silent on host"
    assert (await inspector.statistics()).uncounted == text
    assert (await inspector.statistics_by_time()).uncounted == text
    status = await inspector.status()
    assert next(each.text for each in status.areas if each.area == "results").endswith(f"; {text}")
    await pool.execute("UPDATE scheduler_workers SET lease_until = now() - interval '1 s'")
    await world.worker("counting", settings='{"statistics": true}')
    assert (await inspector.statistics()).uncounted is None


async def test_merged_rows_belong_to_the_period_in_which_they_end(pool: asyncpg.Pool, world: World) -> None:
    now = await now_of(pool)
    await add(world, now - 3 * timedelta(hours=1), mail=figures(2))
    await Store(Connections(pool)).statistics.fold(60, 600, 0.0, 9)
    (row,) = (await Inspector(pool).statistics(timedelta(hours=4))).rows
    assert (row.span, row.job_name, row.figures) == (10 * MINUTE, "mail", figures(2))


async def test_oldest_rows_are_left_out_at_the_bound(
    pool: asyncpg.Pool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = await now_of(pool)
    inside.replace(monkeypatch, statistics_rows=2)
    for minutes in range(3):
        await add(world, now - minutes * 5 * MINUTE, mail=figures(minutes + 1))
    found = await Inspector(pool).statistics()
    assert (found.is_complete, found.total().started) == (False, 1 + 2)


async def test_elements_of_a_later_release_are_left_out(pool: asyncpg.Pool, world: World) -> None:
    await add(world, await now_of(pool), mail=figures(2))
    await pool.execute(
        "UPDATE scheduler_stats SET counts = counts || 7::bigint, sums = sums || 1.5::float8,"
        " run_hist = run_hist || 9, late_hist = late_hist || 9"
    )
    assert (await Inspector(pool).statistics()).total() == figures(2)


async def test_rows_of_an_earlier_release_with_fewer_elements_are_read_and_added(
    pool: asyncpg.Pool, world: World
) -> None:
    now = await now_of(pool)
    await add(world, now, mail=figures(2), report=figures(3))
    await pool.execute(
        "UPDATE scheduler_stats SET counts = counts[:8], sums = sums[:1], run_hist = run_hist[:40],"
        " late_hist = late_hist[:20] WHERE job_name = 'mail'"
    )
    short = figures(2)._replace(lateness=figures(2).lateness._replace(total=0.0))
    inspector = Inspector(pool)
    assert (await inspector.statistics()).by_name() == {"mail": short, "report": figures(3)}
    assert (await inspector.statistics_by_time()).total() == JobFigures.added(short, figures(3))
    await add(world, now - timedelta(seconds=1), mail=figures(1))
    assert (await inspector.statistics(names=["mail"])).total() == JobFigures.added(short, figures(1))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"since": 60}, TypeError),
        ({"since": timedelta(seconds=-1)}, ValueError),
        ({"since": timedelta(days=91)}, ValueError),
        ({"names": [5]}, TypeError),
    ],
)
async def test_wrong_periods_and_names_are_rejected(
    pool: asyncpg.Pool, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match="must be"):
        await Inspector(pool).statistics(**arguments)


async def test_explanation_of_a_running_job_compares_it_with_others_of_its_name(
    pool: asyncpg.Pool, world: World
) -> None:
    await add(world, await now_of(pool), mail=figures(20))
    await world.worker("w1")
    await world.job("a", "mail", status="running")
    explanation = await Inspector(pool).explain_job("a")
    assert explanation.reasons[0].code is ReasonCode.RUNNING
    assert "95 % of the attempts take at most ~60 s" in explanation.reasons[0].text


async def test_estimate_of_a_waiting_job_follows_from_the_rate_of_starts(
    pool: asyncpg.Pool, world: World
) -> None:
    now = await now_of(pool)
    await add(world, now - 2 * MINUTE, mail=figures(120))
    await world.worker("w1", running_jobs=2, names=["mail"])
    await world.jobs(30, "mail", job_id="job-{}".format, due=lambda n: (n - 50) * SECOND)
    explanation = await Inspector(pool).explain_job("job-30")
    assert explanation.reasons[0].code is ReasonCode.SLOTS_FULL
    assert explanation.eta is not None
    assert timedelta(seconds=20) < explanation.eta - now < timedelta(minutes=5)


async def test_counts_of_a_clock_that_was_ahead_are_in_no_period(pool: asyncpg.Pool, world: World) -> None:
    """The server's clock was ten years ahead, while as many attempts failed as before and since."""
    await world.worker()
    for minutes in (1, 20):
        await world.attempts("mail", 30, at=-minutes * MINUTE, failed=20)
    await world.jobs(20, "mail", status="failed", error_message="ValueError: no", ended=-MINUTE)
    await world.jobs(1, "mail", status="expired", ended=-MINUTE)
    inspector = Inspector(pool)

    async def read() -> list[object]:
        statistics = await inspector.statistics()
        by_time = await inspector.statistics_by_time(timedelta(hours=1))
        status = await inspector.status()
        findings = (await inspector.doctor()).findings
        groups = await inspector.error_groups(since=await now_of(pool) - timedelta(hours=1))
        return [
            statistics.by_name(),
            statistics.by_time(timedelta(days=20_000)),
            by_time.total(),
            [area.text for area in status.areas if area.area == "results"],
            [(row.code, row.evidence if row.code.value == "FAILING" else "") for row in findings],
            [(group.text, group.count, sum(group.history)) for group in groups.items],
        ]

    expected = await read()
    for table in ("scheduler_stats", "scheduler_error_counts"):
        columns = await pool.fetchval(
            "SELECT string_agg(attname, ', ') FROM pg_attribute"
            f" WHERE attrelid = '{table}'::regclass AND attnum > 0 AND attname <> 'bucket'"
        )
        for ahead in ("2 hours", "10 years"):
            await pool.execute(
                f"INSERT INTO {table} (bucket, {columns})"
                f" SELECT bucket + interval '{ahead}', {columns} FROM {table} WHERE bucket < now()"
            )
    assert await read() == expected
