"""OpenTelemetry receives linked traces of two processes, and the metrics of a process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from pg_scheduler import JobSpec, Scheduler
from pg_scheduler.base.figures import DURATIONS, LATENESS
from pg_scheduler.base.meter import MAX_NAMES, OTHER
from pg_scheduler.events import JobCompleted, JobFailed
from pg_scheduler.telemetry.observed import JobHistograms
from pg_scheduler.telemetry.opentelemetry import instrument
from tests.support.otlp import receiving
from tests.support.worker import PATIENCE, Recorder, now

OF_CONVENTIONS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
ATTEMPTS = {"job_duration_seconds": DURATIONS, "job_lateness_seconds": LATENESS}

PROGRAM = Path(__file__).with_name("traced.py")


async def run(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, str(PROGRAM), *arguments)
    try:
        assert await asyncio.wait_for(process.wait(), 2 * PATIENCE) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.slow
async def test_receiver_gets_linked_traces_of_the_process_that_schedules_and_the_one_that_runs(
    dsn: str,
) -> None:
    with receiving() as receiver:
        await run("schedule", dsn, receiver.url)
        await run("work", dsn, receiver.url)
    request = receiver.one("schedule", "request")
    sent = {
        attribute.value.string_value: span
        for service, span in receiver.spans
        for attribute in span.attributes
        if (service, span.name) == ("schedule", "send traced.run") and attribute.key == "messaging.message.id"
    }
    assert {span.parent_span_id for span in sent.values()} == {request.span_id}
    attempts: dict[tuple[str, int], Any] = {}
    for service, span in receiver.spans:
        if service == "work":
            assert span.name == "process traced.run"
            values = {attribute.key: attribute.value for attribute in span.attributes}
            job_id = values["messaging.message.id"].string_value
            attempts[job_id, values["pg_scheduler.attempt"].int_value] = span
    assert set(attempts) == {("prompt", 1), ("retried", 1), ("retried", 2)}
    for job_id in ("prompt", "retried"):
        first = attempts[job_id, 1]
        assert (first.trace_id, first.parent_span_id) == (request.trace_id, sent[job_id].span_id)
        assert not first.links
    second = attempts["retried", 2]
    assert second.trace_id != request.trace_id
    assert not second.parent_span_id
    assert [(link.trace_id, link.span_id) for link in second.links] == [
        (request.trace_id, sent["retried"].span_id),
        (request.trace_id, attempts["retried", 1].span_id),
    ]


class Metrics:
    """The data points of one collection."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        data = reader.get_metrics_data()
        assert data is not None
        self.found = {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def values(self, name: str) -> dict[frozenset[tuple[str, Any]], Any]:
        points: Any = self.found[name].data.data_points
        return {frozenset(each.attributes.items()): each.value for each in points}

    def value(self, name: str, **attributes: str) -> Any:
        return self.values(name)[frozenset(attributes.items())]


@pytest.mark.parametrize(("semconv", "histograms"), [(False, True), (True, False)])
async def test_meter_exports_what_the_process_counts(
    pool: asyncpg.Pool, semconv: bool, histograms: bool
) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    tracers = TracerProvider(shutdown_on_exit=False)
    scheduler = Scheduler(pool, shutdown_timeout=0.05)
    instrument(scheduler, tracers, provider, semconv=semconv, histograms=histograms)

    async def job(fails: bool = False) -> None:
        if fails:
            raise ValueError("no")

    scheduler.register(job, name="tracing.counted")
    seen = Recorder(scheduler)
    before = Metrics(reader)
    assert before.value("pg_scheduler.slots") == 0
    async with scheduler:
        await scheduler.enqueue(job)
        await scheduler.enqueue(job, args=(True,))
        await scheduler.schedule_bulk([JobSpec(job, now())] * 3)
        await seen.until(JobCompleted, count=4)
        await seen.until(JobFailed)
        running = Metrics(reader)
        assert running.value("pg_scheduler.slots") == 25
        assert running.found["pg_scheduler.lease_remaining_seconds"].unit == "s"
    after = Metrics(reader)
    assert after.value("pg_scheduler.jobs_scheduled", job_name="tracing.counted") == 5
    assert after.value("pg_scheduler.jobs_started", job_name="tracing.counted") == 5
    for outcome, number in {"completed": 4, "failed": 1, "retried": 0}.items():
        found = after.value("pg_scheduler.jobs_ended", job_name="tracing.counted", outcome=outcome)
        assert found == number
    messaging = {name for name in after.found if name.startswith("messaging.")}
    if not semconv:
        assert not messaging
    else:
        assert messaging == {
            "messaging.client.sent.messages",
            "messaging.client.consumed.messages",
            "messaging.client.operation.duration",
            "messaging.process.duration",
        }
        assert sum(after.values("messaging.client.sent.messages").values()) == 5
        assert sum(after.values("messaging.client.consumed.messages").values()) == 5
        failed = [
            each
            for each in after.values("messaging.client.consumed.messages")
            if ("error.type", "ValueError") in each
        ]
        assert len(failed) == 1
        for name, number in {
            "messaging.process.duration": 5,
            "messaging.client.operation.duration": 3,
        }.items():
            assert after.found[name].unit == "s"
            durations: Any = after.found[name].data.data_points
            assert sum(each.count for each in durations) == number
            assert tuple(durations[0].explicit_bounds) == OF_CONVENTIONS
    recorded: dict[str, Any] = {name: after.found.get(f"pg_scheduler.{name}") for name in ATTEMPTS}
    assert all((metric is not None) == histograms for metric in recorded.values())
    for name, metric in recorded.items() if histograms else ():
        assert metric.unit == "s"
        (point,) = metric.data.data_points
        assert (point.count, point.attributes) == (5, {"job_name": "tracing.counted"})
        assert tuple(point.explicit_bounds) == ATTEMPTS[name]
        assert point.sum >= 0
    provider.shutdown()
    tracers.shutdown()


def test_histograms_have_a_bounded_number_of_names() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    histograms = JobHistograms(provider.get_meter("test"))
    for number in range(MAX_NAMES + 5):
        histograms.record(f"job.{number}", 0.1, 0.0)
        histograms.record(f"job.{number}", 0.1, 0.0)
    points: Any = Metrics(reader).found["pg_scheduler.job_duration_seconds"].data.data_points
    counts = {point.attributes["job_name"]: point.count for point in points}
    assert counts == {**{f"job.{number}": 2 for number in range(MAX_NAMES)}, OTHER: 10}
    provider.shutdown()


def test_attempt_on_a_host_whose_clock_is_behind_is_recorded_as_not_late(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    JobHistograms(provider.get_meter("test")).record("job", 0.1, -0.004)
    data: Any = Metrics(reader).found["pg_scheduler.job_lateness_seconds"].data
    (point,) = data.data_points
    assert (point.count, point.sum) == (1, 0.0)
    assert caplog.messages == []
    provider.shutdown()


async def test_scheduler_without_statistics_exports_gauges_only(pool: asyncpg.Pool) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    instrument(Scheduler(pool, statistics=False), meter_provider=provider)
    found = Metrics(reader).found
    assert "pg_scheduler.pool_connections" in found
    assert "pg_scheduler.jobs_started" not in found
    provider.shutdown()
