"""Spans around the calls that schedule jobs and around attempts, as middleware."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.propagate import get_global_textmap
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)

from pg_scheduler.base.foreign import class_path
from pg_scheduler.errors import PayloadError, SchedulerError
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.call import JobCall
from pg_scheduler.jobs.context import CurrentJob
from pg_scheduler.jobs.history import instant_from
from pg_scheduler.jobs.metadata import trace_from
from pg_scheduler.jobs.middleware import ScheduledCall, SendingMiddleware
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.retry import naming_leaf_of
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.telemetry.observed import Attributes, JobHistograms, MessagingMetrics
from pg_scheduler.telemetry.outcomes import ERRORS, outcome_of
from pg_scheduler.tools import local_now, server_host

Propagation: TypeAlias = Literal["auto", "link", "parent"]

SYSTEM: Final = "pg_scheduler"

SCHEDULED_AT: Final = "scheduled_at"
"""The header with the time of the call that scheduled the job, added to the headers of the propagator."""

PROMPT: Final = timedelta(seconds=60)
"""How soon after that call a job must be due for its attempt to belong to the trace of the call."""

MAX_SPANS_OF_BULK: Final = 100
"""The number of jobs of a bulk call up to which each job has a span of its own."""

_has_span_per_job: Final[ContextVar[bool]] = ContextVar("pg_scheduler_span_per_job", default=False)
"""Whether the jobs of the bulk call in progress have spans of their own."""


class Tracing(SendingMiddleware):
    """Middleware that makes spans."""

    def __init__(
        self,
        scheduler: Scheduler,
        tracer: Tracer,
        propagation: Propagation,
        metrics: MessagingMetrics | None,
        histograms: JobHistograms | None,
    ) -> None:
        self._scheduler: Final = scheduler
        self._tracer: Final = tracer
        self._propagation: Final = propagation
        self._metrics: Final = metrics
        self._histograms: Final = histograms
        self._server: str | None = None

    # -- jobs that are scheduled -----------------------------------------------------------------------

    @contextmanager
    def sending(self, call: ScheduledCall | None, count: int) -> Iterator[None]:
        """Make the span of a call that stores jobs, which the block makes.

        It stores one job; or, if ``call`` is None, ``count`` jobs.
        """
        job_name = None if call is None else call.job_name
        attributes = self._attributes("send", job_name)
        span_attributes = dict(attributes)
        if call is None:
            name, kind = "send", SpanKind.CLIENT
            span_attributes["messaging.batch.message_count"] = count
        else:
            name, kind = f"send {job_name}", SpanKind.PRODUCER
            span_attributes["messaging.message.id"] = call.job_id
        is_small_bulk_call = call is None and count <= MAX_SPANS_OF_BULK
        token = _has_span_per_job.set(is_small_bulk_call)
        began = time.monotonic()
        try:
            with self._span(name, kind, span_attributes) as span:
                try:
                    yield
                except BaseException as error:  # recorded in the span, and raised again
                    attributes["error.type"] = _fail(span, error)
                    raise
        finally:
            _has_span_per_job.reset(token)
            if self._metrics is not None:
                self._metrics.record_sent(attributes, count, time.monotonic() - began)

    def headers(self, call: ScheduledCall) -> Mapping[str, str]:
        """Return the trace context of a job: that of the current span, or of a span of its own.

        A job of a schedule, and a job of a small bulk call, has its own span. A context that is too large is
        returned without its baggage. If it still is too large, no header is returned.
        """
        context = contexts.get_current()
        if call.schedule_id is not None:
            # No call of the application schedules this job, so its span begins a trace.
            context = self._sent("send", call, Context())
            if self._metrics is not None:
                self._metrics.record_sent(self._attributes("send", call.job_name), 1)
        elif _has_span_per_job.get():
            context = self._sent("create", call, context)
        headers = _injected(context)
        if headers:
            headers[SCHEDULED_AT] = self._now().isoformat()
        if _is_too_large(headers):
            headers.pop("baggage", None)
        return {} if _is_too_large(headers) else headers

    def _sent(self, operation: str, call: ScheduledCall, parent: Context) -> Context:
        """Make a span of one job, and return the context in which it is the current one."""
        attributes = self._attributes(operation, call.job_name)
        attributes["messaging.message.id"] = call.job_id
        if call.schedule_id is not None:
            attributes["pg_scheduler.schedule"] = call.schedule_id
        span = self._tracer.start_span(
            f"{operation} {call.job_name}", context=parent, kind=SpanKind.PRODUCER, attributes=attributes
        )
        span.end()
        return set_span_in_context(span, parent)

    # -- attempts --------------------------------------------------------------------------------------

    async def __call__(self, call: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Run an attempt within its span."""
        job = call.job
        headers = trace_from(call.metadata) or {}
        # The trace context of the call that scheduled the job.
        creating_context = _extracted(headers, job)
        is_child, links = await self._relation(job, creating_context, headers)
        # A span that begins a trace has no parent, but the baggage of the call that scheduled the job.
        parent = creating_context if is_child else set_span_in_context(INVALID_SPAN, creating_context)
        attributes = self._attributes("process", job.job_name)
        lateness_s = (self._now() - job.execution_time).total_seconds()
        span_attributes: Attributes = {
            **attributes,
            "messaging.message.id": job.job_id,
            "pg_scheduler.attempt": job.attempt,
            "pg_scheduler.worker_id": self._scheduler.worker_id,
            "pg_scheduler.lateness": lateness_s,
        }
        if job.schedule_id is not None:
            span_attributes["pg_scheduler.schedule"] = job.schedule_id
        began = time.monotonic()
        token = contexts.attach(parent)
        try:
            with self._span(f"process {job.job_name}", SpanKind.CONSUMER, span_attributes, links) as span:
                # The history of the job keeps this, so that the next attempt can link to this span.
                call.trace = _injected(set_span_in_context(span, Context()))
                try:
                    value = await call_next()
                except BaseException as error:  # recorded in the span, and raised again
                    outcome, cause = outcome_of(self._scheduler, call, error)
                    span.set_attribute("pg_scheduler.outcome", outcome)
                    if outcome in ERRORS:
                        attributes["error.type"] = _fail(span, cause)
                    raise
                span.set_attribute("pg_scheduler.outcome", "completed")
                return value
        finally:
            contexts.detach(token)
            duration_s = time.monotonic() - began
            if self._metrics is not None:
                self._metrics.record_processed(attributes, duration_s)
            if self._histograms is not None:
                self._histograms.record(job.job_name, duration_s, lateness_s)

    async def _relation(
        self, job: CurrentJob, creating_context: Context, headers: Mapping[str, str]
    ) -> tuple[bool, list[Link]]:
        """Return whether an attempt is a child of the span that scheduled its job, and its links.

        An attempt that is no child has a link to this span. One that is not the first has a link to the span
        of the attempt before it.
        """
        creator = get_current_span(creating_context).get_span_context()
        has_creator = creator.is_valid
        scheduled_at = instant_from(headers.get(SCHEDULED_AT))
        row: Job | None = None
        # The row has the spans of earlier attempts, and the time of creation if the headers have no time.
        needs_time = has_creator and self._propagation == "auto" and scheduled_at is None
        if job.attempt > 1 or needs_time:
            row = await self._read(job)
        if scheduled_at is None and row is not None:
            scheduled_at = row.created_at
        is_child = has_creator and job.schedule_id is None and self._propagation != "link"
        if self._propagation == "auto":
            is_prompt = scheduled_at is not None and job.execution_time - scheduled_at <= PROMPT
            is_child = is_child and job.attempt == 1 and is_prompt
        links = [Link(creator)] if has_creator and not is_child else []
        if job.attempt > 1 and row is not None:
            traces = [error.trace for error in row.errors if error.trace and error.attempt < job.attempt]
            previous_headers = traces[-1] if traces else {}
            context = _extracted(previous_headers, job)
            previous_attempt = get_current_span(context).get_span_context()
            if previous_attempt.is_valid:
                links.append(Link(previous_attempt))
        return is_child, links

    async def _read(self, job: CurrentJob) -> Job | None:
        """Return the row of a job; None if it cannot be read: then a link is missing, but the job runs."""
        try:
            return await self._scheduler.get_job(job.job_id)
        except SchedulerError:
            logger.debug("cannot read the trace of the attempt before", exc_info=True, extra=record_fields())
            return None

    # -- both ------------------------------------------------------------------------------------------

    def _now(self) -> datetime:
        """Return the time of this process, or of the clock that a test gave the Scheduler."""
        return local_now(self._scheduler)

    @contextmanager
    def _span(
        self, name: str, kind: SpanKind, attributes: Attributes, links: list[Link] | None = None
    ) -> Iterator[Span]:
        """Make a span that is the current one in the block.

        Exceptions are not recorded in it, because their messages may contain arguments of jobs.
        """
        with self._tracer.start_as_current_span(
            name,
            kind=kind,
            attributes=attributes,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield span

    def _attributes(self, operation: str, job_name: str | None) -> Attributes:
        """Return the attributes that a span and its metrics share; without a job name if that is None."""
        values: Attributes = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
        }
        if job_name is not None:
            values["messaging.destination.name"] = job_name
        self._server = self._server or server_host(self._scheduler)
        if self._server is not None:
            values["server.address"] = self._server
        return values


def _fail(span: Span, error: BaseException) -> str:
    """Mark a span as failed; return the class of the error."""
    name = class_path(naming_leaf_of(error))
    span.set_attribute("error.type", name)
    span.set_status(StatusCode.ERROR)
    return name


def _injected(context: Context) -> dict[str, str]:
    """Return a trace context as headers; no headers if the propagator raises an exception."""
    headers: dict[str, str] = {}
    try:
        get_global_textmap().inject(headers, context)
    except Exception:  # configured by the user; a trace must not keep a job from being stored
        logger.exception("the propagator could not write trace context", extra=record_fields())
        return {}
    return headers


def _extracted(headers: Mapping[str, str], job: CurrentJob) -> Context:
    """Return the trace context that headers have; an empty one if the propagator raises an exception."""
    try:
        return get_global_textmap().extract(headers, Context())
    except Exception:  # configured by the user, and the row may be written by hand
        logger.exception(
            "the propagator could not read trace context of job %r",
            job.job_id,
            extra=record_fields(job_id=job.job_id, job_name=job.job_name),
        )
        return Context()


def _is_too_large(headers: Mapping[str, str]) -> bool:
    """Return whether headers are too large to be stored, or cannot be stored for another reason."""
    try:
        return trace_from({"trace": headers}) is None
    except PayloadError:  # a propagator of the user wrote a character that PostgreSQL cannot store
        return True
