"""How each alert is caused, and what cures it besides the commands of its page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import asyncpg

from pg_scheduler import JobSpec, Scheduler
from pg_scheduler.inspect import Inspector, Thresholds
from pg_scheduler.triggers import Every
from tools.alerts import application
from tools.alerts.application import SLOTS
from tools.alerts.fleet import WORKERS, Service
from tools.alerts.forgotten import forgotten

FAILURES: Final = 20
BULK: Final = 3000
OVERDUE: Final = "forgotten-schedule"

FUNCTIONS: Final = {
    "quick": application.quick,
    "slow": application.slow,
    "fail": application.fail,
    "block": application.block,
    "die": application.die,
    "forgotten": forgotten,
}
"""The functions by the names of their jobs."""


@dataclass(slots=True)
class Situation:
    """One service, its database, and what a cause leaves for its cure."""

    service: Service
    pool: asyncpg.Pool
    scheduler: Scheduler
    forgotten: list[str] = field(default_factory=list)
    snapshot: asyncpg.Connection | None = None

    async def add(self, name: str, number: int = 1, **options: Any) -> list[str]:
        """Enqueue jobs."""
        now = datetime.now(UTC)
        specs = [JobSpec(FUNCTIONS[name], now, **options) for _ in range(number)]
        return [job_id for job_id in await self.scheduler.schedule_bulk(specs) if job_id]

    async def statuses(self, name: str) -> set[str]:
        """Return the statuses of the jobs of a name."""
        rows = await self.pool.fetch("SELECT DISTINCT status FROM scheduled_jobs WHERE job_name = $1", name)
        return {row[0] for row in rows}


Action = Callable[[Situation], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Cause:
    """How one alert is caused and cured.

    Attributes:
        alert: The alert, without its prefix.
        cause: Makes it fire.
        cure: What a person does after the commands that find the cause, before the retries; None for nothing.
        within_s: Seconds in which it must fire.
        name: The name of the jobs that the alert is about; None for none.
        subject: The id of the schedule that it is about; None for none.
        afterwards: What must be true after the commands of the page; None for nothing.
    """

    alert: str
    cause: Action
    cure: Action | None = None
    within_s: float = 90
    name: str | None = None
    subject: str | None = None
    afterwards: Callable[[Situation], Awaitable[bool]] | None = None


async def nothing(_: Situation) -> None:
    """Do nothing: what was done for another alert causes this one too."""


async def start_workers(at: Situation) -> None:
    """Start the workers, and let Prometheus scrape them once."""
    await asyncio.to_thread(at.service.start_workers)
    await asyncio.sleep(25)


async def lose_import(at: Situation) -> None:
    """Enqueue jobs of a module that no worker imports; one of them expires before the page is followed."""
    at.forgotten = await at.add("forgotten", 3)
    at.forgotten += await at.add("forgotten", misfire_grace_time=40)


async def start_forgotten(at: Situation) -> None:
    """Start a worker with the module."""
    await asyncio.to_thread(at.service.start_forgotten)
    for _ in range(60):
        if "pending" not in await at.statuses("forgotten"):
            return
        await asyncio.sleep(1)


async def has_brought_back(at: Situation) -> bool:
    """Whether the jobs that had expired have completed."""
    for _ in range(30):
        if await at.statuses("forgotten") == {"completed"}:
            await asyncio.to_thread(at.service.stop_forgotten)
            return True
        await asyncio.sleep(1)
    return False


async def fail_often(at: Situation) -> None:
    """Let jobs fail, over several scrapes."""
    for _ in range(FAILURES):
        await at.add("fail")
        await asyncio.sleep(0.5)


async def correct(at: Situation) -> None:
    """Correct the faulty functions."""
    at.service.corrected.touch()


async def has_no_failures(at: Situation) -> bool:
    """Whether the failed jobs have completed."""
    for _ in range(30):
        if await at.statuses("fail") == {"completed"}:
            return True
        await asyncio.sleep(1)
    return False


async def block_loops(at: Situation) -> None:
    """Block the event loops."""
    await at.add("block", 2 * WORKERS)


async def add_forgotten_schedule(at: Situation) -> None:
    """Add a schedule whose task no worker has."""
    await at.scheduler.schedules.add("forgotten.report", Every(seconds=1), schedule_id=OVERDUE)


async def hold_snapshot(at: Situation) -> None:
    """Leave a transaction open."""
    at.snapshot = await asyncpg.connect(at.service.dsn)
    await at.snapshot.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await at.snapshot.fetchval("SELECT pg_current_xact_id()::text")


async def terminate_snapshot(at: Situation) -> None:
    """Terminate the session, as its page requires, with the process id that the doctor names.

    The command names it after ten minutes, long before the alert; so this asks with the scale of the run.
    """
    diagnosis = await Inspector(at.scheduler).doctor(only=["XMIN-HELD"], thresholds=Thresholds(held_s=1))
    pids = await at.pool.fetch(
        "SELECT pid FROM pg_stat_activity "
        "WHERE datname = current_database() AND state = 'idle in transaction'"
    )
    for row in pids:
        if str(row[0]) in str(diagnosis.findings):
            await at.pool.execute("SELECT pg_terminate_backend($1)", row[0])


async def fill_slots(at: Situation) -> None:
    """Fill all slots, and let further jobs wait."""
    await at.add("slow", SLOTS * WORKERS)
    await asyncio.sleep(3)
    await at.add("quick", 5, misfire_grace_time=None)


async def free_slots(at: Situation) -> None:
    """Cancel the jobs that keep the slots."""
    words = "jobs", "cancel", "--where", "name:slow", "--yes"
    await asyncio.to_thread(at.service.run, *words)


async def lose_hot(at: Situation) -> None:
    """Build an index with a column that claims change, and run many jobs."""
    await at.pool.execute("CREATE INDEX mine ON scheduled_jobs (worker_id, lease_until)")
    await at.add("quick", BULK, misfire_grace_time=None)


async def drop_index(at: Situation) -> None:
    """Drop the index, as its page requires, and run many jobs."""
    await at.pool.execute("DROP INDEX mine")
    await at.add("quick", 2 * BULK, misfire_grace_time=None)


async def kill_worker(at: Situation) -> None:
    """Kill a worker while it runs a job."""
    await asyncio.to_thread(at.service.kill_worker)


async def crash_repeatedly(at: Situation) -> None:
    """Let workers die of one job until it is quarantined, and start others in the meantime."""
    at.service.corrected.unlink(missing_ok=True)
    await at.add("die")
    for _ in range(90):
        await asyncio.sleep(1)
        await asyncio.to_thread(at.service.start_workers)
        if "failed" in await at.statuses("die"):
            return


async def has_no_quarantined(at: Situation) -> bool:
    """Whether the quarantined job has completed."""
    await asyncio.to_thread(at.service.start_workers)
    for _ in range(40):
        if await at.statuses("die") == {"completed"}:
            return True
        await asyncio.sleep(1)
    return False


async def lose_leases(at: Situation) -> None:
    """Take the leases away, as if the workers had not reached the database."""
    await at.pool.execute("DELETE FROM scheduler_workers")


async def restart_small(at: Situation) -> None:
    """Restart the workers with too few connections."""
    await asyncio.to_thread(at.service.stop_workers)
    await asyncio.to_thread(at.service.start_workers, is_small=True)


async def restart(at: Situation) -> None:
    """Restart the workers with enough connections."""
    await asyncio.to_thread(at.service.stop_workers)
    await asyncio.to_thread(at.service.start_workers)


async def close_database(at: Situation) -> None:
    """Make the database unavailable for a minute and a half."""
    name = at.service.dsn.partition("?")[0].rpartition("/")[2]
    maintenance = await asyncpg.connect(at.service.dsn.replace(f"/{name}", "/postgres", 1))
    try:
        await maintenance.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        for _ in range(18):
            await maintenance.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name
            )
            await asyncio.sleep(5)
    finally:
        await maintenance.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        await maintenance.close()
    for _ in range(60):
        with suppress(asyncpg.PostgresError, OSError):
            await at.pool.fetchval("SELECT 1")
            return
        await asyncio.sleep(1)


async def grow(at: Situation) -> None:
    """Insert jobs that are due tomorrow."""
    await at.pool.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, priority, task_data) "
        "SELECT 'growth-' || n, 'quick', now() + interval '1 day', 5, $1::jsonb "
        "FROM generate_series(1, 20000) AS n",
        '{"args": [], "kwargs": {}}',
    )


async def stop_exporter(at: Situation) -> None:
    """Stop the exporter."""
    assert at.service.exporter is not None
    at.service.exporter.terminate()
    await asyncio.to_thread(at.service.exporter.wait, 30)


async def start_exporter(at: Situation) -> None:
    """Start the exporter again."""
    await asyncio.to_thread(at.service.start_exporter)


CAUSES: Final = (
    Cause("NoWorker", nothing, start_workers),
    Cause("SnapshotHeld", hold_snapshot, terminate_snapshot),
    Cause("LoopBlocked", block_loops, name="block"),
    Cause("Expiring", lose_import, None, 150, "forgotten"),
    Cause("NameUnknown", nothing, start_forgotten, 90, "forgotten", afterwards=has_brought_back),
    Cause("FailureRatio", fail_often, correct, name="fail", afterwards=has_no_failures),
    Cause("ScheduleOverdue", add_forgotten_schedule, None, 150, "forgotten.report", OVERDUE),
    Cause("SlotsFull", fill_slots),
    Cause("JobsLate", nothing, free_slots, 150, "quick"),
    Cause("LatenessP99", nothing),
    Cause("TableGrows", grow),
    Cause("HotLost", lose_hot, drop_index, 180),
    Cause("WorkerDied", kill_worker, start_workers),
    Cause("Quarantined", crash_repeatedly, correct, 120, "die", afterwards=has_no_quarantined),
    Cause("LeaseLost", lose_leases, None, 120),
    Cause("WorkerNoListen", restart_small, restart),
    Cause("DatabaseErrors", close_database),
    Cause("ExporterDown", stop_exporter, start_exporter),
)
"""The alerts in the order in which they are caused. Some follow from the same cause."""
