"""A program of two processes that send their spans to a receiver: one schedules jobs, one runs them.

Usage: traced.py schedule|work DSN URL
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

import asyncpg
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from pg_scheduler import RetryPolicy, Scheduler, current_job
from pg_scheduler.events import Event, JobCompleted
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.telemetry.opentelemetry import instrument


async def run() -> None:
    """Fail in the first attempt of the job "retried"."""
    if current_job().job_id == "retried" and current_job().attempt == 1:
        raise ValueError("no")


def schedule(dsn: str, provider: TracerProvider) -> None:
    with SyncScheduler(dsn) as scheduler:
        instrument(scheduler, tracer_provider=provider)
        scheduler.initialize_db()
        with provider.get_tracer("traced").start_as_current_span("request"):
            for job_id in ("prompt", "retried"):
                scheduler.enqueue("traced.run", job_id=job_id, max_retries=1)


async def work(dsn: str, provider: TracerProvider) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=4) as pool:
        policy = RetryPolicy(base=timedelta(milliseconds=1), maximum=timedelta(milliseconds=1))
        scheduler = Scheduler(pool, retry_policy=policy)
        instrument(scheduler, tracer_provider=provider)
        scheduler.register(run, name="traced.run")
        ended: set[str] = set()
        done = asyncio.Event()

        def note(event: Event) -> None:
            assert isinstance(event, JobCompleted)
            ended.add(event.job_id)
            if len(ended) == 2:
                done.set()

        scheduler.subscribe(note, JobCompleted)
        async with scheduler:
            await done.wait()


def main(what: str, dsn: str, url: str) -> None:
    provider = TracerProvider(resource=Resource({"service.name": what}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=url)))
    if what == "schedule":
        schedule(dsn, provider)
    else:
        asyncio.run(work(dsn, provider))
    provider.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
