"""Findings about retention, made for real and resolved by their remedies."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import asyncpg

from pg_scheduler import Scheduler, VacuumConfig, VacuumPolicy, Worker
from pg_scheduler.clock import FakeClock
from pg_scheduler.inspect import FindingCode, Severity
from pg_scheduler.inspect.doctor.retention import Growth, days_kept, judge_growth
from tests.docs.snippets import ROOT
from tests.inspect.doctor.conftest import Make
from tests.inspect.doctor.support import examine, find, subjects
from tests.support.cases import each_case
from tests.support.inside import OUTCOMES, Connections, JobFigures, Store
from tests.support.world import World

NOW = datetime(2027, 1, 1, tzinfo=UTC)
FAIL = (
    "UPDATE scheduled_jobs SET status = 'failed', error_message = 'x', attempt = 1, "
    "finished_at = now() - interval '15 days'"
)


async def test_old_failed_jobs_are_found_until_the_vacuum_runs(pool: asyncpg.Pool, make: Make) -> None:
    policy = VacuumConfig(failed=VacuumPolicy.after_days(7))
    await make(vacuum_enabled=True, vacuum_config=policy)
    await Scheduler(pool).schedule_job("doctor.old", datetime.now(UTC), {})
    assert await subjects(pool, FindingCode.RETENTION) == []
    await pool.execute(FAIL)
    finding = await find(pool, FindingCode.RETENTION)
    assert (finding.subject, finding.severity) == ("failed", Severity.WARNING)
    assert finding.evidence == "the oldest failed job ended 15 d ago; the workers keep such jobs for 7 days"
    await Scheduler(pool, vacuum_config=policy).run_vacuum()
    assert await subjects(pool, FindingCode.RETENTION) == []


async def test_jobs_that_are_kept_without_limit_are_no_finding(pool: asyncpg.Pool, world: World) -> None:
    await Scheduler(pool).schedule_job("doctor.old", datetime.now(UTC), {})
    await pool.execute(FAIL)
    for number, settings in enumerate(
        (
            '{"vacuum_enabled": true, "vacuum": {"failed": {"trigger": "never", "days": null}}}',
            '{"vacuum_enabled": false, "vacuum": {"failed": {"days": 1}}}',
            '{"vacuum_enabled": true, "vacuum": [1]}',
        )
    ):
        await world.worker(f"w{number}", settings=settings)
    assert await subjects(pool, FindingCode.RETENTION) == []


async def test_large_table_is_found(pool: asyncpg.Pool) -> None:
    await Scheduler(pool).schedule_job("doctor.old", datetime.now(UTC), {})
    assert "scheduled_jobs" in await subjects(pool, FindingCode.RETENTION, table_bytes=8192)


async def test_age_is_not_examined_without_its_index(pool: asyncpg.Pool) -> None:
    await pool.execute("DROP INDEX scheduled_jobs_unsuccessful")
    (unmade,) = (await examine(pool, FindingCode.RETENTION)).not_made
    assert "scheduled_jobs_unsuccessful" in unmade.reason


async def fill(world: World, jobs: int) -> int:
    """Store completed jobs; return the size of the table."""
    await world.jobs(jobs, "doctor.grows", status="completed")
    size: int = await world.pool.fetchval("SELECT pg_table_size('scheduled_jobs')")
    return size


async def count(world: World, ago: timedelta, jobs: int) -> None:
    """Count jobs that completed so long ago."""
    await world.worker("counter")
    store = Store(Connections(world.pool), clock=FakeClock(datetime.now(UTC) - ago))
    figures = JobFigures(started=jobs, ended=(jobs, *[0] * (len(OUTCOMES) - 1)))
    assert await store.statistics.add("counter", 1, {"doctor.grows": figures})


async def test_growing_table_is_found_until_a_worker_deletes_its_jobs(
    pool: asyncpg.Pool, world: World, make: Make
) -> None:
    size = await fill(world, 2000)
    await count(world, timedelta(days=4), 2000)
    await pool.execute("ANALYZE scheduled_jobs")
    keeping = await make(vacuum_enabled=False)
    finding = await find(pool, FindingCode.RETENTION, table_bytes=2 * size)
    assert (finding.subject, finding.severity) == ("scheduled_jobs", Severity.WARNING)
    assert " in about 2,000 rows; with 500 jobs a day, as in the last 4 d, it has " in finding.evidence
    assert finding.evidence.endswith(" GB in about 4 d")
    assert await subjects(pool, FindingCode.RETENTION, table_bytes=2 * size, table_days=3) == []
    assert finding.remedy is not None
    assert finding.remedy.startswith("vacuum_enabled=True on a worker")
    await keeping.shutdown()
    await make(vacuum_enabled=True, vacuum_config=VacuumConfig(completed=VacuumPolicy.after_days(1)))
    assert await subjects(pool, FindingCode.RETENTION, table_bytes=2 * size) == []


async def test_unknown_growth_is_listed_with_its_reason(pool: asyncpg.Pool, world: World, make: Make) -> None:
    size = await fill(world, 2000)

    async def reason() -> str:
        (unmade,) = (await examine(pool, FindingCode.RETENTION, table_bytes=2 * size)).not_made
        assert unmade.reason.startswith("the growth of scheduled_jobs is unknown: ")
        return unmade.reason.partition(": ")[2]

    await pool.execute("ALTER TABLE scheduled_jobs SET (autovacuum_enabled = off)")
    assert await reason() == "no live worker reports its retention"
    silent = await make(statistics=False)
    assert (await reason()).startswith("statistics are off (statistics=False): ")
    await silent.shutdown()
    await make()
    assert await reason() == "statistics of a day are needed; there are 0 ms"
    await count(world, timedelta(days=2), 10)
    assert await reason() == (
        "the server does not know the number of its rows; execute ANALYZE scheduled_jobs"
    )
    await pool.execute("ANALYZE scheduled_jobs")
    assert (await examine(pool, FindingCode.RETENTION, table_bytes=2 * size)).not_made == ()
    assert (await examine(pool, FindingCode.RETENTION)).not_made == (), "a small table is not forecast"


@each_case(
    ("rows", "ended", "days"),
    [
        (1_000, {"completed": (100.0, math.inf)}, 10.0),
        (1_000, {"completed": (100.0, 30.0)}, 10.0),
        (1_000, {"completed": (100.0, 15.0)}, None),
        (1_300, {"completed": (1_000.0, 1.0), "failed": (10.0, 90.0)}, None),
        (1_300, {"completed": (1_000.0, 1.0), "failed": (100.0, 90.0)}, 13.0),
        (1_000, {"completed": (1_000.0, 0.0)}, None),
        (1_000, {"completed": (0.0, math.inf)}, None),
        (1_000, {}, None),
    ],
)
def test_table_grows_until_each_status_has_its_retention(
    rows: int, ended: dict[str, tuple[float, float]], days: float | None
) -> None:
    growth = Growth(bytes=1000 * rows, rows=rows, unfinished=0, ended=ended, since_s=86_400.0)
    found = list(judge_growth(growth, 2000 * rows, 1000.0))
    if days is None:
        assert found == []
    else:
        (finding,) = found
        assert finding.evidence.endswith(f" GB in about {days:.0f} d")
        assert list(judge_growth(growth, 2000 * rows, days - 1)) == []


def test_policy_that_keeps_a_number_of_jobs_counts_as_no_growth() -> None:
    def kept(vacuum: object, *, enabled: bool = True) -> float:
        worker = Worker("w", "host", 1, "1", 1, 0, NOW, NOW, NOW, True)
        return days_kept(
            [replace(worker, settings={"vacuum_enabled": enabled, "vacuum": vacuum})], "completed"
        )

    assert kept({"completed": {"trigger": "count_based", "keep_count": 9, "days": None}}) == 0.0
    assert kept({"completed": {"trigger": "immediate", "days": None}}) == 0.0
    assert kept({"completed": {"trigger": "never", "days": None}}) == math.inf
    assert kept({"completed": {"trigger": "time_based", "days": 2.5}}) == 2.5
    assert kept({"completed": {"trigger": "time_based", "days": 2.5}}, enabled=False) == math.inf
    assert kept([1]) == math.inf
    assert days_kept([], "completed") == math.inf


async def test_steps_of_jobs_that_sql_deleted_are_found_until_these_are_deleted_too(
    pool: asyncpg.Pool,
    world: World,
) -> None:
    for job_id in ("deleted", "overwritten", "marked"):
        await Scheduler(pool).schedule_job("doctor.steps", datetime.now(UTC), {}, job_id=job_id)
        await world.step(job_id, "page-{}".format, count=2)
    await pool.execute("UPDATE scheduled_jobs SET options = '{\"steps\": 1}' WHERE job_id = 'marked'")
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'deleted'")
    finding = await find(pool, FindingCode.STEPS_ORPHANED)
    assert finding.severity is Severity.WARNING
    assert finding.evidence == (
        "4 of the first 10,000 stored steps belong to no job, such as deleted, overwritten"
    )
    runbook = (ROOT / "docs/operations/runbook.md").read_text(encoding="utf-8")
    statement = runbook.partition("### STEPS-ORPHANED")[2].partition("```sql\n")[2].partition("```")[0]
    assert await pool.execute(statement) == "DELETE 4"
    assert await subjects(pool, FindingCode.STEPS_ORPHANED) == []
