"""The metrics of all workers: what they equal in the database, their bounds, and what errors lead to."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pg_scheduler import Scheduler
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.store.doctor import TableRow
from pg_scheduler.telemetry import cluster
from pg_scheduler.telemetry.cluster import ClusterCollector
from pg_scheduler.triggers import Every
from tests.support import inside
from tests.support.inside import BOUNDS, OUTCOMES
from tests.support.logs import records_of
from tests.support.patience import PATIENCE
from tests.support.prometheus import Exposition, promtool
from tests.support.world import DAY, HOUR, MINUTE, SECOND, World
from tools.chaos.proxy import Proxy

C = "pg_scheduler_cluster_"
DOCUMENTED = {
    "jobs_due": "gauge",
    "jobs_due_capped": "gauge",
    "oldest_due_seconds": "gauge",
    "jobs_unknown_name": "gauge",
    "jobs_quarantined": "gauge",
    "jobs_blocked": "gauge",
    "jobs_unfinished_estimate": "gauge",
    "jobs_finished_estimate": "gauge",
    "workers": "gauge",
    "slots": "gauge",
    "slots_busy": "gauge",
    "last_death_timestamp_seconds": "gauge",
    "task_paused": "gauge",
    "schedule_enabled": "gauge",
    "schedule_next_fire_timestamp_seconds": "gauge",
    "schedule_last_fire_timestamp_seconds": "gauge",
    "schedule_overdue_seconds": "gauge",
    "jobs_ended": "counter",
    "job_duration_seconds": "histogram",
    "job_lateness_seconds": "histogram",
    "table_bytes": "gauge",
    "dead_rows": "gauge",
    "hot_update_ratio": "gauge",
    "oldest_transaction_seconds": "gauge",
    "clock_skew_seconds": "gauge",
    "collect_duration_seconds": "gauge",
    "collect_errors": "counter",
}


async def scrape(collector: ClusterCollector) -> Exposition:
    registry = CollectorRegistry()
    registry.register(collector)
    return Exposition((await asyncio.to_thread(generate_latest, registry)).decode())


async def scrape_anew(pool: asyncpg.Pool, **options: Any) -> Exposition:
    return await scrape(ClusterCollector(Inspector(pool, **options)))


async def add_totals(pool: asyncpg.Pool, name: str, completed: int) -> None:
    counts = [completed, completed, completed, *([0] * (len(OUTCOMES) - 1))]
    buckets = [completed, *([0] * len(BOUNDS))]
    await pool.execute(
        "INSERT INTO scheduler_totals VALUES ($1, $2, $3, $4, $4, now())", name, counts, [1.5, 2.5], buckets
    )


@pytest.mark.slow
async def test_exposition_has_every_documented_family_and_no_other(
    pool: asyncpg.Pool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "MIN_UPDATES", 1)
    await world.jobs(3, "cluster.due")
    await pool.execute("ANALYZE scheduled_jobs")
    await pool.execute("UPDATE scheduled_jobs SET crash_count = crash_count")
    async with asyncio.timeout(PATIENCE):
        while (found := await scrape_anew(pool)).get(C + "hot_update_ratio") is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # the server counts with a delay
    assert found.types == {C + name: kind for name, kind in DOCUMENTED.items()}
    promtool("check", "metrics", text=found.text)
    assert found[C + "collect_errors_total"] == 0
    assert abs(found[C + "clock_skew_seconds"]) < 5
    assert found.by(C + "table_bytes", "table")["scheduled_jobs"] > 0
    assert found[C + "jobs_unfinished_estimate"] == 3
    assert found[C + "jobs_finished_estimate"] == 0


async def test_jobs_are_counted_by_the_name_that_a_worker_must_claim(
    pool: asyncpg.Pool, world: World
) -> None:
    await world.jobs(4, "daily", function="report", due=lambda n: -n * HOUR)
    await world.jobs(3, "mail", due=lambda n: -n * MINUTE)
    await world.jobs(2, "mail", due=DAY)
    await world.jobs(3, "mail", blocked_on="limit:stripe:customer-{}".format)
    await world.jobs(2, "mail", blocked_on="after")
    await world.jobs(2, "mail", blocked_on="share:mails:customer-{}".format)
    await world.jobs(2, "mail", status="failed", error_message="quarantined: 3 workers died")
    await world.jobs(3, "mail", status="failed", error_message="ValueError: quarantined: no")
    await world.worker(names=["mail", "idle"], running_jobs=1, max_concurrent_jobs=2)
    await Scheduler(pool).tasks.pause("mail")
    found = await scrape_anew(pool)
    assert found.by(C + "jobs_due", "job_name") == {"report": 4, "mail": 3, "idle": 0}
    ages = found.by(C + "oldest_due_seconds", "job_name")
    assert 4 * 3600 <= ages["report"] < 5 * 3600
    assert ages["mail"] == 0, "its task is paused, so its jobs are not late"
    assert ages["idle"] == 0
    assert found.by(C + "jobs_unknown_name", "job_name") == {"report": 4, "mail": 0, "idle": 0}
    expired = found.by(C + "jobs_ended_total", "job_name", outcome="expired")
    assert expired["report"] == 0, "the first expired job of a name that no worker claims is an increase"
    assert found.by(C + "jobs_blocked", "on") == {
        "after": 2,
        "limit:stripe": 3,
        "share:mails": 2,
    }
    assert found[C + "jobs_quarantined"] == 2
    assert found[C + "jobs_due_capped"] == 0
    assert found.by(C + "task_paused", "job_name") == {"report": 0, "mail": 1, "idle": 0}
    assert [found[C + "slots"], found[C + "slots_busy"]] == [2, 1]


async def test_counting_due_jobs_states_that_it_stopped(
    pool: asyncpg.Pool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, backlog_rows=5)
    await world.jobs(7, "cluster.due")
    found = await scrape_anew(pool)
    assert found[C + "jobs_due_capped"] == 1
    assert found.by(C + "jobs_due", "job_name") == {"cluster.due": 5}


async def test_workers_that_run_jobs_are_counted_by_state(pool: asyncpg.Pool, world: World) -> None:
    await world.worker("w1")
    await world.worker("w2", wanted="drain")
    await world.worker("w3", lease=-SECOND)
    await world.worker("w4", role="scheduler")
    found = await scrape_anew(pool)
    assert found.by(C + "workers", "state") == {"alive": 1, "draining": 1, "dead": 1}


async def test_last_death_of_a_worker_is_that_of_its_record(pool: asyncpg.Pool, world: World) -> None:
    now = await pool.fetchval("SELECT now()")
    assert (await scrape_anew(pool))[f"{C}last_death_timestamp_seconds"] == 0
    await world.audit("declare_dead", "w1", at=now - 2 * HOUR)
    await world.audit("pause_task", "w1", at=now)
    assert (await scrape_anew(pool))[f"{C}last_death_timestamp_seconds"] == 0
    await world.audit("declare_dead", "w1", at=now - 9 * MINUTE)
    await world.audit("declare_dead", "w1", at=now - 5 * MINUTE)
    died_at = (await scrape_anew(pool))[f"{C}last_death_timestamp_seconds"]
    assert died_at == pytest.approx((now - 5 * MINUTE).timestamp())


async def test_no_name_is_unknown_while_no_worker_reports_names(pool: asyncpg.Pool, world: World) -> None:
    await world.jobs(1, "cluster.due")
    assert (await scrape_anew(pool)).by(C + "jobs_unknown_name", "job_name") == {}
    await world.worker(names=None)
    assert (await scrape_anew(pool)).by(C + "jobs_unknown_name", "job_name") == {}


async def test_schedules_have_their_fire_times(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    for name in ("late", "paused", "strange"):
        await scheduler.schedules.add("cluster.task", Every(minutes=5), schedule_id=name)
    await pool.execute(
        "UPDATE scheduler_schedules SET next_fire_at = now() - interval '2 minutes',"
        " last_fire_at = '2030-01-01+00', paused_at = CASE WHEN schedule_id = 'paused' THEN now() END"
    )
    await pool.execute(
        "UPDATE scheduler_schedules SET next_fire_at = '-infinity', last_fire_at = NULL"
        " WHERE schedule_id = 'strange'"
    )
    found = await scrape_anew(pool)
    assert found.by(C + "schedule_enabled", "task") == {"cluster.task": 1}
    assert found.by(C + "schedule_enabled", "schedule") == {"late": 1, "paused": 0, "strange": 1}
    overdue = found.by(C + "schedule_overdue_seconds", "schedule")
    assert 120 <= overdue["late"] < 1000
    assert overdue["paused"] == 0
    assert overdue["strange"] > 1e9
    last = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
    assert found.by(C + "schedule_last_fire_timestamp_seconds", "schedule") == {"late": last, "paused": last}


async def test_totals_are_exported_and_hostile_ones_are_completed(pool: asyncpg.Pool) -> None:
    await add_totals(pool, "cluster.a", 7)
    await pool.execute("INSERT INTO scheduler_totals VALUES ('short', '{1}', '{}', '{NULL}', '{2}', now())")
    found = await scrape_anew(pool)
    assert found.get(C + "jobs_ended_total", job_name="cluster.a", outcome="completed") == 7
    assert found.get(C + "job_duration_seconds_sum", job_name="cluster.a") == 1.5
    assert found.get(C + "job_lateness_seconds_bucket", job_name="cluster.a", le="0.001") == 7
    assert found.get(C + "jobs_ended_total", job_name="short", outcome="failed") == 0
    assert found.get(C + "job_lateness_seconds_count", job_name="short") == 2


async def test_names_beyond_the_limit_are_other_and_no_counter_decreases(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "MAX_NAMES", 2)
    monkeypatch.setattr(cluster, "MAX_AGE_S", 0)
    for name in ("m", "n", "o"):
        await add_totals(pool, name, 1)
    collector = ClusterCollector(Inspector(pool))
    counts = {"m": 1, "n": 1, "(other)": 1}
    assert (await scrape(collector)).by(C + "job_duration_seconds_count", "job_name") == counts
    await add_totals(pool, "a", 5)
    found = (await scrape(collector)).by(C + "job_duration_seconds_count", "job_name")
    assert found == {**counts, "(other)": 6}


async def test_scrapes_within_ten_seconds_get_the_same_answer(
    pool: asyncpg.Pool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = ClusterCollector(Inspector(pool))
    first = await scrape(collector)
    await world.jobs(1, "cluster.due")
    assert (await scrape(collector)).text == first.text
    monkeypatch.setattr(cluster, "MAX_AGE_S", 0)
    assert (await scrape(collector)).by(C + "jobs_due", "job_name") == {"cluster.due": 1}


async def test_failed_collection_is_counted_and_exports_nothing_stale(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster, "MAX_AGE_S", 0)
    collector = ClusterCollector(Inspector(pool))
    await scrape(collector)
    await pool.execute("ALTER TABLE scheduler_totals RENAME TO gone")
    with caplog.at_level(logging.INFO, "pg_scheduler"):
        failed = await scrape(collector)
        await scrape(collector)
        assert set(failed.types) == {C + "collect_duration_seconds", C + "collect_errors"}
        assert failed[C + "collect_errors_total"] == 1
        await pool.execute("ALTER TABLE gone RENAME TO scheduler_totals")
        assert (await scrape(collector))[C + "collect_errors_total"] == 2
    assert [record.message for record in records_of(caplog)] == [
        "metrics of the cluster could not be collected",
        "metrics of the cluster are collected again, after 2 failures",
    ]


@pytest.mark.parametrize("fault", ["refuse", "stall"])
async def test_collection_fails_in_time_during_an_outage_and_succeeds_after_it(
    proxied: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(cluster, "MAX_AGE_S", 0)
    proxy, dsn = proxied
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2, timeout=PATIENCE) as pool:
        collector = ClusterCollector(Inspector(pool))
        await scrape(collector)
        monkeypatch.setattr(cluster, "COLLECT_TIMEOUT_S", 0.5)
        getattr(proxy, fault)()
        began = asyncio.get_running_loop().time()
        failed = await scrape(collector)
        assert failed[C + "collect_errors_total"] == 1
        assert asyncio.get_running_loop().time() - began < PATIENCE / 2
        proxy.heal()
        monkeypatch.setattr(cluster, "COLLECT_TIMEOUT_S", PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while C + "workers" not in (await scrape(collector)).types:  # noqa: ASYNC110 - the server is a proxy
                await asyncio.sleep(0.1)


async def test_missing_index_of_unsuccessful_jobs_leaves_out_the_quarantined_ones(pool: asyncpg.Pool) -> None:
    await pool.execute("DROP INDEX scheduled_jobs_unsuccessful")
    found = await scrape_anew(pool)
    assert C + "jobs_quarantined" not in found.types
    assert found[C + "collect_errors_total"] == 0


async def test_oldest_transaction_is_found(pool: asyncpg.Pool) -> None:
    assert (await scrape_anew(pool))[C + "oldest_transaction_seconds"] == 0
    async with pool.acquire() as connection, connection.transaction(isolation="repeatable_read"):
        await connection.execute("SELECT 1 FROM scheduled_jobs")
        found = await scrape_anew(pool)
    assert 0 < found[C + "oldest_transaction_seconds"] < 1000


async def test_collector_of_a_schema_labels_every_sample(pool: asyncpg.Pool) -> None:
    found = await scrape_anew(pool, schema="public")
    assert found.get(C + "collect_errors_total", schema="public") == 0
    assert found.get(C + "jobs_blocked", schema="public", on="after") == 0


async def test_collect_in_the_event_loop_of_the_pool_is_refused(pool: asyncpg.Pool) -> None:
    registry = CollectorRegistry(auto_describe=True)
    collector = ClusterCollector(Inspector(pool))
    registry.register(collector)  # runs no query
    with pytest.raises(RuntimeError, match=r"asyncio\.to_thread"):
        generate_latest(registry)


def test_hot_ratio_is_that_of_recent_updates() -> None:
    ratio = cluster._HotRatio()

    def after(updates: int, hot: int) -> float | None:
        return ratio.of(TableRow("scheduled_jobs", {}, 0, 0, 0, 0, updates, hot, None, 0, 0))

    assert ratio.of(None) is None
    assert after(999, 0) is None
    assert after(2000, 1000) == 0.5
    assert after(2999, 1000) == 0.5, "too few updates"
    assert after(4000, 1000) == 0
    assert after(1000, 900) == 0.9, "the server's statistics were reset"
