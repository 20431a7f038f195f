"""Statistics of nodes that die, and of a batch whose response is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError, Scheduler
from pg_scheduler.embedded import EmbeddedPostgres
from pg_scheduler.events import EventBus
from pg_scheduler.inspect import Inspector
from pg_scheduler.telemetry.cluster import ClusterCollector
from tests.cluster.fleet import TIMEOUT_S, Fleet
from tests.cluster.test_lost_answer import terminate_waiting, until_commits_wait
from tests.support.inside import OUTCOMES, Connections, Meter, StatisticsWriter, Store
from tests.support.parts import Parts
from tests.support.worker import LEASE, new_worker
from tests.telemetry.test_cluster_metrics import scrape

NO_ARGUMENTS: dict[str, object] = {"args": [], "kwargs": {}}


async def ended(pool: asyncpg.Pool) -> dict[str, dict[str, int]]:
    """The totals by job name and outcome."""
    rows = await pool.fetch("SELECT job_name, counts FROM scheduler_totals")
    return {
        row["job_name"]: {outcome: n for outcome, n in zip(OUTCOMES, row["counts"][2:], strict=True) if n}
        for row in rows
    }


async def test_statistics_of_a_killed_node_lack_its_last_seconds_and_those_of_others_are_exact(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool
) -> None:
    async def enqueue(name: str, number: int) -> None:
        for _ in range(number):
            await client.schedule_job(f"cluster.{name}", datetime.now(UTC), NO_ARGUMENTS, max_retries=1)

    victim = await fleet.start("--lease", "2")
    await enqueue("note", 5)
    await enqueue("hold", 3)
    await fleet.wait_for("JobCompleted", count=5)
    await fleet.wait_for("JobStarted", node=victim, count=8)
    await victim.kill()
    survivors = [await fleet.start("--lease", "2"), await fleet.start("--lease", "2")]
    await fleet.wait_for("JobCompleted", count=8)  # three were reclaimed
    await enqueue("stumble", 20)
    await enqueue("note", 20)
    await fleet.wait_for("JobCompleted", count=48)
    for node in survivors:
        await node.stop()
    found = await ended(pool)
    assert found.pop("cluster.note")["completed"] in range(20, 26), "the killed node wrote any of its five"
    assert found == {
        "cluster.hold": {"lost": 3, "completed": 3},  # who reclaims the jobs counts the attempts
        "cluster.stumble": {"retried": 20, "completed": 20},
    }


async def test_counters_equal_the_rows_but_for_the_last_seconds_of_killed_nodes(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool
) -> None:
    enqueued = Counter[str]()
    survivor, killed = await fleet.start("--lease", "2"), []
    for _ in range(3):
        victim = await fleet.start("--lease", "2")
        while not fleet.records("JobStarted", node=victim):  # the survivor may claim any number
            for name in ("cluster.note", "cluster.note", "cluster.stumble"):
                await client.schedule_job(name, datetime.now(UTC), NO_ARGUMENTS, max_retries=1)
                enqueued[name] += 1
        await victim.kill()  # while jobs run
        killed.append(victim.worker_id)
    async with asyncio.timeout(TIMEOUT_S):
        while await pool.fetchval(  # noqa: ASYNC110
            "SELECT count(*) FROM scheduled_jobs WHERE finished_at IS NULL"
        ):
            await asyncio.sleep(0.05)  # a killed node reports nothing
    await survivor.stop()
    rows = await pool.fetch(
        "SELECT job_name, count(*) AS ended, count(*) FILTER (WHERE worker_id = ANY ($1)) AS by_killed"
        " FROM scheduled_jobs WHERE status = 'completed' GROUP BY job_name",
        killed,
    )
    assert {row["job_name"]: row["ended"] for row in rows} == enqueued
    totals = {name: outcomes["completed"] for name, outcomes in (await ended(pool)).items()}
    for row in rows:
        lost = row["ended"] - totals.get(row["job_name"], 0)
        assert 0 <= lost <= row["by_killed"], row["job_name"]
    scraped = await scrape(ClusterCollector(Inspector(pool)))
    completed = scraped.by("pg_scheduler_cluster_jobs_ended_total", "job_name", outcome="completed")
    assert {name: count for name, count in completed.items() if count} == totals


async def test_batch_whose_response_was_lost_counts_once(
    private_server: EmbeddedPostgres, private_dsn: str
) -> None:
    """The connection ends after the local commit, while the server waits for a missing standby."""
    async with (
        asyncpg.create_pool(private_dsn, min_size=0, server_settings={"synchronous_commit": "on"}) as pool,
        asyncpg.create_pool(private_server.dsn(), min_size=1, max_size=1) as other,
    ):
        await Scheduler(pool).initialize_db()
        store, meter = Store(Connections(pool)), Meter()
        await store.workers.register(new_worker(), LEASE)
        writer = StatisticsWriter(Parts(store, EventBus()), meter, store.statistics)
        meter.record_end("mail", "failed")
        await other.execute("ALTER SYSTEM SET synchronous_standby_names = 'missing'")
        try:
            await other.execute("SELECT pg_reload_conf()")
            async with asyncio.timeout(60):
                await until_commits_wait(pool, other)
                call = asyncio.create_task(writer.run_once())
                await terminate_waiting(other)
                with pytest.raises(DatabaseUnavailableError):
                    await call
        finally:
            await other.execute("ALTER SYSTEM RESET synchronous_standby_names")
            await other.execute("SELECT pg_reload_conf()")
        assert await ended(pool) == {"mail": {"failed": 1}}, "it was committed"
        meter.record_end("mail", "failed")
        await writer.run_once()
        assert await ended(pool) == {"mail": {"failed": 1}}
        await writer.run_once()
        assert await ended(pool) == {"mail": {"failed": 2}}
        await store.connections.release_held()
