"""The metrics of a process, as Prometheus reads them."""

from __future__ import annotations

import urllib.error
import urllib.request
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pg_scheduler import ConfigurationError, JobSpec, RetryPolicy, Scheduler
from pg_scheduler.base.figures import DURATIONS, LATENESS
from pg_scheduler.events import (
    JobCancelled,
    JobCompleted,
    JobExpired,
    JobFailed,
    KeeperConnected,
    ListenerConnected,
)
from pg_scheduler.inspect import Inspector
from pg_scheduler.telemetry.cluster import ClusterCollector
from pg_scheduler.telemetry.prometheus import SchedulerCollector, metrics_app, serve_metrics
from pg_scheduler.telemetry.server import App
from pg_scheduler.tools import meter_of
from tests.support.inside import BOUNDS, OUTCOMES
from tests.support.prometheus import Exposition, promtool
from tests.support.worker import Gate, Recorder, now

P = "pg_scheduler_"
SOON = timedelta(milliseconds=10)
DOCUMENTED = {
    "jobs_scheduled": "counter",
    "jobs_started": "counter",
    "jobs_ended": "counter",
    "job_duration_seconds": "histogram",
    "job_lateness_seconds": "histogram",
    "build_info": "gauge",
    "slots": "gauge",
    "slots_busy": "gauge",
    "results_waiting": "gauge",
    "claims": "counter",
    "exchange_duration_seconds": "histogram",
    "pass_duration_seconds": "histogram",
    "service_errors": "counter",
    "lease_remaining_seconds": "gauge",
    "leases_lost": "counter",
    "loop_blocked_seconds": "counter",
    "loop_lag_seconds": "gauge",
    "clock_offset_seconds": "gauge",
    "listener_connected": "gauge",
    "keeper_connected": "gauge",
    "accepting": "gauge",
    "pool_connections": "gauge",
    "pool_connections_max": "gauge",
    "notifications_sent": "counter",
    "notifications_received": "counter",
    "jobs_reclaimed": "counter",
    "workers_declared_dead": "counter",
    "jobs_vacuumed": "counter",
    "fire_times_planned": "counter",
}


def scrape(scheduler: Scheduler) -> Exposition:
    registry = CollectorRegistry()
    registry.register(SchedulerCollector(scheduler))
    return Exposition(generate_latest(registry).decode())


async def ask(
    app: App, method: str = "GET", accept: str = "", path: str = "/metrics", root_path: str = ""
) -> tuple[int, dict[str, str], str]:
    """Send a request to an ASGI application."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"accept", accept.encode())]
    scope = {"type": "http", "method": method, "path": path, "root_path": root_path, "headers": headers}
    await app(scope, receive, send)
    start, body = sent
    return start["status"], {k.decode(): v.decode() for k, v in start["headers"]}, body["body"].decode()


async def test_exposition_has_every_documented_family_and_no_other(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    seen = Recorder(scheduler)

    async def metered() -> None: ...

    scheduler.register(metered, name="metered.once")
    gauges = ["slots", "slots_busy", "listener_connected", "keeper_connected", "accepting"]
    async with scheduler:
        await scheduler.enqueue(metered)
        for kind in (JobCompleted, KeeperConnected, ListenerConnected):
            await seen.until(kind)
        found = scrape(scheduler)
        assert found.types == {P + name: kind for name, kind in DOCUMENTED.items()}
        promtool("check", "metrics", text=found.text)
        assert [found[P + name] for name in gauges] == [25, 0, 1, 1, 1]
        assert list(found.by(P + "build_info", "schema_version").values()) == [1]
        assert found[P + "lease_remaining_seconds"] > 0
        assert found[P + "pool_connections_max"] == 5
        assert sum(found.by(P + "pool_connections", "state").values()) == pool.get_size()
    stopped = scrape(scheduler)
    assert [stopped[P + name] for name in gauges] == [0, 0, 0, 0, 0]
    assert stopped.get(P + "jobs_started_total", job_name="metered.once") == 1
    promtool("check", "metrics", text=stopped.text)


async def test_series_of_counters_begin_at_zero(pool: asyncpg.Pool) -> None:
    """rate() and increase() do not find the first value of a series."""
    scheduler = Scheduler(pool)
    async with scheduler:
        await scheduler.enqueue("metered.unknown")
        found = scrape(scheduler)
    ended = found.by(P + "jobs_ended_total", "outcome", job_name="metered.unknown")
    assert ended == dict.fromkeys(OUTCOMES, 0)
    assert set(found.by(P + "claims_total", "result")) == {"full", "part", "empty"}
    errors = found.by(P + "service_errors_total", "kind", service="claimer")
    assert errors == {"transient": 0, "permanent": 0}
    blocked = found.by(P + "loop_blocked_seconds_total", "job_name")
    assert blocked == {"": 0, "metered.unknown": 0}
    assert set(found.by(P + "jobs_vacuumed_total", "status").values()) == {0}


async def test_counters_equal_the_jobs_after_failures_retries_expiry_and_cancellations(
    pool: asyncpg.Pool,
) -> None:
    scheduler = Scheduler(pool, retry_policy=RetryPolicy(base=SOON, maximum=SOON))
    gate, seen = Gate(), Recorder(scheduler)

    async def work() -> None: ...

    async def fail() -> None:
        raise ValueError("no")

    for name, func in {"work": work, "fail": fail, "gate": gate.job}.items():
        scheduler.register(func, name=f"metered.{name}")
    await scheduler.schedule_bulk([JobSpec(work, now())] * 40)
    await scheduler.schedule(work, execution_time=now() - timedelta(hours=1), misfire_grace_time=1)
    await scheduler.schedule(work, execution_time=now() + timedelta(days=1), job_id="far")
    await scheduler.schedule_bulk([JobSpec(fail, now(), max_retries=2)] * 3)
    await scheduler.enqueue("metered.gate", job_id="running")
    async with scheduler:
        await gate.wait_begun()
        assert scrape(scheduler)[P + "slots_busy"] >= 1
        await scheduler.cancel_job("far")
        await scheduler.cancel_job("running")
        for kind, number in ((JobCompleted, 40), (JobFailed, 3), (JobExpired, 1), (JobCancelled, 2)):
            await seen.until(kind, number)
    found = scrape(scheduler)
    jobs: dict[tuple[str, str], int] = {
        (row[0], row[1]): row[2]
        for row in await pool.fetch("SELECT job_name, status, count(*) FROM scheduled_jobs GROUP BY 1, 2")
    }
    names = ["metered.work", "metered.fail", "metered.gate"]
    counted = {
        (name, outcome): number
        for name in names
        for outcome, number in found.by(P + "jobs_ended_total", "outcome", job_name=name).items()
        if number
    }
    assert counted == {**jobs, ("metered.fail", "retried"): 6}
    assert found.by(P + "jobs_started_total", "job_name") == dict(zip(names, (40, 9, 1), strict=True))
    assert found.by(P + "jobs_scheduled_total", "job_name") == dict(zip(names, (42, 3, 1), strict=True))
    assert found.by(P + "job_duration_seconds_count", "job_name") == dict(zip(names, (40, 9, 1), strict=True))
    assert found.get(P + "job_lateness_seconds_bucket", job_name="metered.work", le="+Inf") == 40
    cluster = Exposition((await ask(metrics_app(ClusterCollector(Inspector(pool)))))[2])
    for name in names:
        ended = found.by(P + "jobs_ended_total", "outcome", job_name=name)
        assert cluster.by(P + "cluster_jobs_ended_total", "outcome", job_name=name) == ended
    for metric in ("job_duration_seconds_count", "job_lateness_seconds_count"):
        assert cluster.by(f"{P}cluster_{metric}", "job_name") == found.by(P + metric, "job_name")


async def test_label_schema_names_the_schema_that_was_given(pool: asyncpg.Pool) -> None:
    found = scrape(Scheduler(pool, schema="other"))
    assert found.get(P + "slots", schema="other") == 0
    assert found.get(P + "claims_total", schema="other", result="full") == 0
    promtool("check", "metrics", text=found.text)


def test_exported_buckets_are_among_those_that_are_counted() -> None:
    assert {*DURATIONS, *LATENESS} <= {*BOUNDS}


class TestApplication:
    async def test_answers_get_with_both_formats(self, pool: asyncpg.Pool) -> None:
        app = metrics_app(Scheduler(pool))
        status, headers, body = await ask(app)
        assert status == 200
        assert headers["content-type"].startswith("text/plain; version=0.0.4")
        assert headers["cache-control"] == "no-store"
        assert Exposition(body)[P + "slots"] == 0
        _, headers, body = await ask(app, accept="application/openmetrics-text; version=1.0.0")
        assert headers["content-type"].startswith("application/openmetrics-text")
        assert body.endswith("# EOF\n")

    async def test_answers_head_without_a_body_and_rejects_other_methods(self, pool: asyncpg.Pool) -> None:
        app = metrics_app(Scheduler(pool))
        status, headers, body = await ask(app, "HEAD")
        assert (status, body) == (200, "")
        assert int(headers["content-length"]) > 1000
        assert (await ask(app, "POST"))[0] == 405

    @pytest.mark.parametrize(
        ("path", "root_path", "expected"),
        [
            ("/", "", 200),
            ("", "", 200),
            ("/metrics", "", 200),
            ("/metrics/", "/metrics", 200),
            ("/ops/metrics", "/ops", 200),
            ("/metrics", "/proxy", 200),
            ("/favicon.ico", "", 404),
            ("/metrics/other", "", 404),
            ("/metrics/other", "/metrics", 404),
        ],
    )
    async def test_answers_404_at_other_paths(
        self, path: str, root_path: str, expected: int, pool: asyncpg.Pool
    ) -> None:
        app = metrics_app(Scheduler(pool))
        assert (await ask(app, path=path, root_path=root_path))[0] == expected

    async def test_answers_with_the_metrics_of_all_workers(self, pool: asyncpg.Pool) -> None:
        app = metrics_app(ClusterCollector(Inspector(pool)))
        assert Exposition((await ask(app))[2])["pg_scheduler_cluster_collect_errors_total"] == 0

    async def test_runs_without_a_web_application(self, pool: asyncpg.Pool) -> None:
        app = metrics_app(Scheduler(pool))
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "lifespan.startup"}

        async def send(message: Any) -> None:
            sent.append(message["type"])

        await app({"type": "lifespan"}, receive, send)
        await app({"type": "websocket"}, receive, send)
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]


async def test_server_answers_from_a_thread_and_closes(pool: asyncpg.Pool) -> None:
    def read(port: int, path: str = "/metrics") -> str:  # while the event loop is blocked
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            text: str = answer.read().decode()
            return text

    with serve_metrics(Scheduler(pool), port=0) as port:
        assert Exposition(read(port))[P + "slots"] == 0
        assert Exposition(read(port, "/?x=1"))[P + "slots"] == 0
        with pytest.raises(urllib.error.HTTPError, match="404"):
            read(port, "/favicon.ico")
    with pytest.raises(urllib.error.URLError):
        read(port)


async def test_collector_is_refused_where_nothing_is_counted(pool: asyncpg.Pool) -> None:
    with pytest.raises(ConfigurationError, match="it has statistics=False"):
        metrics_app(Scheduler(pool, statistics=False))


@pytest.mark.parametrize("variable", ["PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"])
async def test_multiprocess_mode_is_refused_with_the_other_ways(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    scheduler = Scheduler(pool)
    monkeypatch.setenv(variable, "/tmp")
    with pytest.raises(ConfigurationError, match=rf"{variable} is set.*pg-scheduler exporter.*serve_metrics"):
        metrics_app(scheduler)


async def test_names_beyond_the_limit_are_counted_as_other(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    meter = meter_of(scheduler)
    assert meter is not None
    for number in range(210):
        meter.record_scheduled(f"metered.{number}")
    found = scrape(scheduler).by(P + "jobs_scheduled_total", "job_name")
    assert (len(found), found["(other)"]) == (201, 10)
