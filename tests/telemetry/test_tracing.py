"""Spans of scheduled jobs and of attempts: how they belong together, and what they contain."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Protocol

import asyncpg
import pytest
from opentelemetry import baggage, context, propagate
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from pg_scheduler import (
    ConfigurationError,
    JobConflictError,
    JobSpec,
    PollingConfig,
    RetryPolicy,
    Scheduler,
    Snooze,
    current_job,
    periodic,
)
from pg_scheduler.events import JobCancelled, JobCompleted, JobFailed, JobReleased, JobSnoozed
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.telemetry import tracing
from pg_scheduler.telemetry.opentelemetry import instrument
from pg_scheduler.triggers import Every
from tests.support.worker import PATIENCE, Recorder, now
from tests.worker import processes

SECRET = "ada@example.org"
AT_ONCE = RetryPolicy(base=timedelta(milliseconds=1), maximum=timedelta(milliseconds=1))


class Spans:
    """The spans that have ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("tests")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans() -> Iterator[Spans]:
    spans = Spans()
    yield spans
    spans.provider.shutdown()


class Make(Protocol):
    """Create an instrumented Scheduler that is shut down at the end of the test."""

    def __call__(self, propagation: Any = "auto", **settings: Any) -> Scheduler: ...


@pytest.fixture
async def make(pool: asyncpg.Pool, spans: Spans) -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        def build(propagation: Any = "auto", **settings: Any) -> Scheduler:
            polling = PollingConfig(idle_start_interval=600, max_interval=600, semaphore_full_interval=600)
            defaults = {"polling_config": polling, "shutdown_timeout": 0.05, "retry_policy": AT_ONCE}
            scheduler = Scheduler(pool, **{**defaults, **settings})
            instrument(scheduler, tracer_provider=spans.provider, propagation=propagation)
            stack.push_async_callback(asyncio.wait_for, scheduler.shutdown(), PATIENCE)
            return scheduler

        yield build


def context_of(span: ReadableSpan) -> SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def ids(span: SpanContext | None) -> tuple[int, int] | None:
    return None if span is None else (span.trace_id, span.span_id)


def links_of(span: ReadableSpan) -> list[tuple[int, int] | None]:
    return [ids(link.context) for link in span.links]


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    same_trace = context_of(span).trace_id == context_of(parent).trace_id
    return same_trace and ids(span.parent) == ids(context_of(parent))


def is_linked_root(span: ReadableSpan, *linked: ReadableSpan) -> bool:
    """Return whether a span begins a trace, and has exactly these links."""
    is_alone = all(context_of(span).trace_id != context_of(each).trace_id for each in linked)
    return span.parent is None and is_alone and links_of(span) == [ids(context_of(each)) for each in linked]


async def nothing(*_args: object, **_kwargs: object) -> None: ...


# -- how spans belong together -------------------------------------------------------------------------


async def test_prompt_job_belongs_to_the_trace_that_scheduled_it(make: Make, spans: Spans) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    current: list[SpanContext] = []

    async def send(_to: str) -> None:
        with spans.tracer.start_as_current_span("inside") as span:
            current.append(span.get_span_context())

    scheduler.register(send, name="tracing.send")
    await scheduler.start()
    with spans.tracer.start_as_current_span("request"):
        job_id = await scheduler.enqueue(send, args=(SECRET,))
    await seen.until(JobCompleted, job_id=job_id)
    request, sent, ran = (
        spans.one("request"),
        spans.one("send tracing.send"),
        spans.one("process tracing.send"),
    )
    assert is_child(sent, request)
    assert is_child(ran, sent)
    assert is_child(spans.one("inside"), ran)
    assert (sent.kind, ran.kind, ran.links) == (SpanKind.PRODUCER, SpanKind.CONSUMER, ())
    common = {
        "messaging.system": "pg_scheduler",
        "messaging.destination.name": "tracing.send",
        "messaging.message.id": job_id,
    }
    assert sent.attributes is not None
    assert ran.attributes is not None
    assert {key: value for key, value in sent.attributes.items() if key != "server.address"} == {
        **common,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
    }
    assert ran.attributes["server.address"]
    lateness = ran.attributes["pg_scheduler.lateness"]
    assert isinstance(lateness, float)
    assert -1 < lateness < PATIENCE
    about = {"server.address", "pg_scheduler.lateness"}
    assert {key: value for key, value in ran.attributes.items() if key not in about} == {
        **common,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "pg_scheduler.attempt": 1,
        "pg_scheduler.worker_id": scheduler.worker_id,
        "pg_scheduler.outcome": "completed",
    }
    assert not any(SECRET in span.to_json() for span in spans.exporter.get_finished_spans())


@pytest.mark.parametrize("propagation", ["auto", "link", "parent"])
async def test_propagation_decides_whether_a_delayed_job_begins_a_trace(
    make: Make, spans: Spans, monkeypatch: pytest.MonkeyPatch, propagation: str
) -> None:
    monkeypatch.setattr(tracing, "PROMPT", timedelta(milliseconds=50))
    scheduler = make(propagation)
    scheduler.register(nothing, name="tracing.delayed")
    await scheduler.start()
    seen = Recorder(scheduler)
    await scheduler.enqueue(nothing, delay=0.2)
    await seen.until(JobCompleted)
    sent, ran = spans.one("send tracing.delayed"), spans.one("process tracing.delayed")
    if propagation == "parent":
        assert is_child(ran, sent)
        assert not ran.links
    else:
        assert is_linked_root(ran, sent)


@pytest.mark.parametrize("propagation", ["auto", "link", "parent"])
async def test_retry_is_linked_to_the_attempt_before(make: Make, spans: Spans, propagation: str) -> None:
    scheduler = make(propagation)
    seen = Recorder(scheduler)

    async def fail() -> None:
        if current_job().attempt < 3:
            raise ValueError(SECRET)

    scheduler.register(fail, name="tracing.retried")
    await scheduler.start()
    await scheduler.enqueue(fail, max_retries=2)
    await seen.until(JobCompleted)
    sent = spans.one("send tracing.retried")
    first, second, third = spans.named("process tracing.retried")
    if propagation == "parent":
        assert all(is_child(attempt, sent) for attempt in (first, second, third))
        assert links_of(third) == [ids(context_of(second))]
    else:
        assert is_child(first, sent) if propagation == "auto" else is_linked_root(first, sent)
        assert is_linked_root(second, sent, first)
        assert is_linked_root(third, sent, second)
    assert second.attributes is not None
    assert second.attributes["pg_scheduler.outcome"] == "retried"
    assert second.attributes["error.type"] == "ValueError"
    assert second.status.status_code is StatusCode.ERROR
    assert third.status.status_code is StatusCode.UNSET
    assert not any(SECRET in span.to_json() for span in spans.exporter.get_finished_spans())


async def test_bulk_call_has_one_span_and_up_to_100_jobs_one_each(make: Make, spans: Spans) -> None:
    scheduler = make()
    scheduler.register(nothing, name="tracing.bulk")
    await scheduler.initialize_db()
    later = now() + timedelta(hours=1)
    await scheduler.schedule_bulk([JobSpec(nothing, later, job_id=str(each)) for each in range(3)])
    bulk = spans.one("send")
    assert bulk.kind is SpanKind.CLIENT
    assert bulk.attributes is not None
    assert bulk.attributes["messaging.batch.message_count"] == 3
    created = spans.named("create tracing.bulk")
    assert len(created) == 3
    for number, span in enumerate(created):
        assert is_child(span, bulk)
        job = await scheduler.get_job(str(number))
        assert job is not None
        assert job.metadata["trace"]["traceparent"].split("-")[2] == f"{context_of(span).span_id:016x}"
    spans.exporter.clear()
    await scheduler.schedule_bulk([])
    many = await scheduler.schedule_bulk([JobSpec(nothing, later)] * 101)
    assert [span.name for span in spans.exporter.get_finished_spans()] == ["send", "send"]
    last = context_of(spans.named("send")[-1])
    for job_id in (many[0], many[-1]):
        job = await scheduler.get_job(job_id or "")
        assert job is not None
        assert job.metadata["trace"]["traceparent"].split("-")[2] == f"{last.span_id:016x}"


@pytest.mark.slow
async def test_job_of_a_schedule_begins_a_trace_linked_to_a_span_of_its_own(make: Make, spans: Spans) -> None:
    scheduler = make("parent")
    seen = Recorder(scheduler)
    scheduler.register(nothing, name="tracing.scheduled")
    with spans.tracer.start_as_current_span("startup"):
        await scheduler.start()
    await scheduler.schedules.add(nothing, Every(seconds=1), schedule_id="often")
    await seen.until(JobCompleted)
    await scheduler.schedules.remove("often")
    sent = spans.named("send tracing.scheduled")[0]
    ran = spans.named("process tracing.scheduled")[0]
    assert sent.parent is None
    assert is_linked_root(ran, sent)
    for span in (sent, ran):
        assert span.attributes is not None
        assert span.attributes["pg_scheduler.schedule"] == "often"


@pytest.mark.slow
async def test_spans_of_a_periodic_job_have_the_name_of_its_function(make: Make, spans: Spans) -> None:
    """The column ``job_name`` has the name that pg-scheduler 0.2 gave it."""

    @periodic(every=timedelta(seconds=1))
    async def tick() -> None: ...

    scheduler = make()
    seen = Recorder(scheduler)
    async with scheduler:
        await seen.until(JobCompleted)
    name = seen.of(JobCompleted)[0].job_name
    assert name.endswith("tick")
    assert spans.named(f"send {name}")
    assert spans.named(f"process {name}")


# -- rows that others have written ---------------------------------------------------------------------

INSERT = """
    INSERT INTO scheduled_jobs (job_id, job_name, execution_time, task_data, status, created_at)
    VALUES ($1, 'tracing.row', now(), $2::text::jsonb, 'pending', now() - $3::interval)
"""
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"
HOSTILE: list[Any] = [
    None,
    1,
    [],
    "x",
    {"traceparent": 1},
    {"traceparent": ""},
    {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
    {"traceparent": "x" * 7000},
    {"traceparent": "00-1-2-3", "tracestate": "=,=" * 100, "baggage": "=;%%%,é,a=b;c"},
    {"traceparent": PARENT, "tracestate": "\u0001" * 50, "baggage": "k=%ff%00"},
    {"traceparent": PARENT, "scheduled_at": "tomorrow"},
    {"traceparent": PARENT, "scheduled_at": "0001-01-01T00:00:00+23:59"},
    {"traceparent": PARENT, "scheduled_at": "9999-12-31T23:59:59-23:59"},
    {"traceparent": "y" * 9000},
]


async def test_job_with_any_trace_in_its_row_runs(make: Make, pool: asyncpg.Pool, spans: Spans) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    scheduler.register(nothing, name="tracing.row")
    await scheduler.initialize_db()
    for number, trace in enumerate(HOSTILE):
        row = json.dumps({"args": [], "kwargs": {}, "metadata": {"trace": trace}})
        await pool.execute(INSERT, str(number), row, timedelta(0))
    await pool.execute(INSERT, "older", '{"args": [], "kwargs": {}}', timedelta(0))
    await scheduler.start()
    await seen.until(JobCompleted, count=len(HOSTILE) + 1)
    assert len(spans.named("process tracing.row")) == len(HOSTILE) + 1
    assert not seen.of(JobFailed)


@pytest.mark.parametrize(("age", "is_prompt"), [(0, True), (120, False)])
async def test_trace_of_a_row_written_by_sql_is_continued_or_linked(
    make: Make, pool: asyncpg.Pool, spans: Spans, age: int, is_prompt: bool
) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    scheduler.register(nothing, name="tracing.row")
    await scheduler.initialize_db()
    row = json.dumps({"args": [], "kwargs": {}, "metadata": {"trace": {"traceparent": PARENT}}})
    await pool.execute(INSERT, "mine", row, timedelta(seconds=age))
    await scheduler.start()
    await seen.until(JobCompleted)
    ran = spans.one("process tracing.row")
    creator = (int(TRACE_ID, 16), 0xB7AD6B7169203331)
    assert (ids(ran.parent) if is_prompt else links_of(ran)[0]) == creator
    assert (context_of(ran).trace_id == creator[0]) is is_prompt


async def test_error_of_the_propagator_breaks_neither_call_nor_job(
    make: Make, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(TextMapPropagator):
        fields: ClassVar[set[str]] = set()

        def inject(self, *_args: object, **_kwargs: object) -> None:
            raise ValueError("cannot write")

        def extract(self, *_args: object, **_kwargs: object) -> Any:
            raise ValueError("cannot read")

    request.addfinalizer(partial(propagate.set_global_textmap, propagate.get_global_textmap()))
    propagate.set_global_textmap(Broken())
    scheduler = make()
    seen = Recorder(scheduler)
    scheduler.register(nothing, name="tracing.broken")
    await scheduler.start()
    await scheduler.enqueue(nothing)
    await seen.until(JobCompleted)
    assert "could not write trace context" in caplog.text
    assert "could not read trace context" in caplog.text


async def test_baggage_travels_unless_it_is_too_large(make: Make) -> None:
    scheduler = make()
    found: dict[str, object] = {}

    async def read() -> None:
        found[current_job().job_id] = baggage.get_baggage("0")

    seen = Recorder(scheduler)
    scheduler.register(read, name="tracing.baggage")
    await scheduler.start()
    for value in ("7", "x" * 2700):  # the propagator writes at most 8192 bytes
        entries = context.get_current()
        for name in ("0", "1", "2"):
            entries = baggage.set_baggage(name, value, entries)
        token = context.attach(entries)
        await scheduler.enqueue(read, job_id=value[0])
        context.detach(token)
    await seen.until(JobCompleted, count=2)
    assert found == {"7": "7", "x": None}


# -- outcomes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["loop", "thread"])
async def test_span_has_the_outcome_of_its_attempt(make: Make, spans: Spans, kind: str) -> None:
    scheduler = make(stop_grace=PATIENCE)
    seen = Recorder(scheduler)
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def in_loop(what: str) -> None:
        begun.set()
        if what == "wait":
            await asyncio.Event().wait()
        react(what)

    def in_thread(what: str) -> None:
        loop.call_soon_threadsafe(begun.set)
        while what == "wait" and not current_job().is_cancelled:
            time.sleep(0.005)
        react(what)

    def react(what: str) -> None:
        if what == "snooze":
            raise Snooze(3600)
        if what == "fail":
            raise asyncio.QueueFull("no")

    function = in_loop if kind == "loop" else in_thread
    scheduler.register(function, name="tracing.outcome")
    await scheduler.start()

    async def outcome_of(what: str, event: Any, **options: Any) -> tuple[Any, Any]:
        spans.exporter.clear()
        begun.clear()
        job_id = await scheduler.enqueue("tracing.outcome", args=(what,), **options)
        if event is JobCancelled:
            await asyncio.wait_for(begun.wait(), PATIENCE)
            await scheduler.cancel_job(job_id)
        if event is JobReleased:
            await asyncio.wait_for(begun.wait(), PATIENCE)
            await scheduler.shutdown()
        await seen.until(event, job_id=job_id)
        attributes = spans.one("process tracing.outcome").attributes
        assert attributes is not None
        return attributes["pg_scheduler.outcome"], attributes.get("error.type")

    assert await outcome_of("return", JobCompleted) == ("completed", None)
    assert await outcome_of("snooze", JobSnoozed) == ("snoozed", None)
    assert await outcome_of("fail", JobFailed) == ("failed", "asyncio.queues.QueueFull")
    assert await outcome_of("wait", JobFailed, timeout=0.1) == ("failed", "TimeoutError")
    assert await outcome_of("wait", JobCancelled) == ("cancelled", None)
    assert await outcome_of("wait", JobReleased) == ("released", None)


async def test_attempt_that_fails_after_it_completed_its_job_has_the_outcome_completed(
    make: Make, spans: Spans
) -> None:
    scheduler = make()
    seen = Recorder(scheduler)

    async def complete_and_fail() -> None:
        async with current_job().completing():
            pass
        raise ValueError("too late")

    scheduler.register(complete_and_fail, name="tracing.late")
    await scheduler.start()
    job_id = await scheduler.enqueue("tracing.late", max_retries=1)
    await seen.until(JobCompleted, job_id=job_id)
    await scheduler.shutdown()
    ran = spans.one("process tracing.late")
    assert ran.attributes is not None
    assert ran.attributes["pg_scheduler.outcome"] == "completed"
    assert ran.status.status_code is StatusCode.UNSET


@pytest.mark.slow
async def test_attempt_whose_process_dies_has_crashed_and_the_next_one_is_linked_to_it(
    make: Make, spans: Spans
) -> None:
    scheduler = make(max_crashes=2, shutdown_timeout=PATIENCE)
    seen = Recorder(scheduler)
    scheduler.register(processes.die, name="tracing.crash", executor="process")
    await scheduler.start()
    await scheduler.enqueue("tracing.crash")
    await seen.until(JobFailed)
    first, second = spans.named("process tracing.crash")
    for ran in (first, second):
        assert ran.attributes is not None
        assert ran.attributes["pg_scheduler.outcome"] == "crashed"
        assert ran.status.status_code is StatusCode.ERROR
    assert is_linked_root(second, spans.one("send tracing.crash"), first)


async def test_call_that_fails_has_the_class_of_its_error(make: Make, spans: Spans) -> None:
    scheduler = make()
    await scheduler.initialize_db()
    await scheduler.enqueue("tracing.conflict", job_id=SECRET[:3])
    with pytest.raises(JobConflictError):
        await scheduler.enqueue("tracing.conflict", job_id=SECRET[:3])
    failed = spans.named("send tracing.conflict")[-1]
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "pg_scheduler.JobConflictError"
    assert failed.status.status_code is StatusCode.ERROR


# -- where it is used ----------------------------------------------------------------------------------


async def test_sync_scheduler_continues_the_trace_of_its_caller(dsn: str, spans: Spans) -> None:
    def schedule() -> Any:
        with SyncScheduler(dsn) as scheduler:
            instrument(scheduler, tracer_provider=spans.provider)
            with spans.tracer.start_as_current_span("request"):
                job_id = scheduler.enqueue("tracing.sync")
            with pytest.raises(ConfigurationError, match="was instrumented before"):
                instrument(scheduler)
            return scheduler.get_job(job_id)

    job = await asyncio.to_thread(schedule)
    sent = spans.one("send tracing.sync")
    assert is_child(sent, spans.one("request"))
    assert f"{context_of(sent).span_id:016x}" in job.metadata["trace"]["traceparent"]


async def test_mistakes_raise_an_error_with_the_remedy(make: Make) -> None:
    scheduler = make()
    with pytest.raises(ConfigurationError, match=r"instrumented before: call instrument\(\) once"):
        instrument(scheduler)
    plain = Scheduler(scheduler.db_pool)
    with pytest.raises(ConfigurationError, match="propagation must be 'auto', 'link' or 'parent', not 'no'"):
        instrument(plain, propagation="no")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="scheduler must be a Scheduler or a SyncScheduler, not str"):
        instrument("scheduler")  # type: ignore[arg-type]
    async with plain:
        with pytest.raises(ConfigurationError, match=r"has started: call instrument\(\) before start\(\)"):
            instrument(plain)


async def test_without_an_sdk_jobs_have_no_headers(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    instrument(scheduler)
    await scheduler.initialize_db()
    job = await scheduler.get_job(await scheduler.enqueue("tracing.plain"))
    assert job is not None
    assert job.metadata == {}


def test_the_library_imports_opentelemetry_only_where_it_is_used() -> None:
    code = (
        "import sys, pg_scheduler, pg_scheduler.sync, pg_scheduler.telemetry.logging\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
