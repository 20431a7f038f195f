"""Trace jobs with OpenTelemetry, and export its metrics. The extra ``[otel]`` installs what this needs.

Trace context travels in the rows of jobs, so the process that runs a job continues or links the trace of the
one that scheduled it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, get_args

from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.trace import TracerProvider, get_tracer

from pg_scheduler.errors import ConfigurationError
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.telemetry.observed import JobHistograms, MessagingMetrics, observe
from pg_scheduler.telemetry.tracing import Propagation, Tracing
from pg_scheduler.tools import add_middleware, declare, middleware_of
from pg_scheduler.version import __version__

if TYPE_CHECKING:
    from pg_scheduler.sync import SyncScheduler

__all__ = ["instrument"]

SCOPE: Final = "pg_scheduler"


def instrument(
    scheduler: Scheduler | SyncScheduler,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    propagation: Literal["auto", "link", "parent"] = "auto",
    semconv: bool = False,
    *,
    histograms: bool = False,
) -> None:
    """Trace the calls that schedule jobs and the attempts of jobs, and export the metrics of the process.

    Call it before ``start()``, and in processes that only schedule too: it adds middleware, the outermost.

    Args:
        scheduler: A `Scheduler` or a `SyncScheduler`.
        tracer_provider: Provides the tracer; None for the global one.
        meter_provider: Provides the meter; None for the global one.
        propagation: ``"auto"`` makes the first attempt a child of the span that scheduled the job if the job
            was due within 60 seconds. Every other attempt begins a trace of its own, with a link to that
            span. With ``"link"``, every attempt begins a trace; with ``"parent"``, none does. The attempts of
            jobs of schedules always begin one.
        semconv: Whether the messaging metrics of the semantic conventions are recorded too, which costs a
            few microseconds per job.
        histograms: Whether durations and lateness of attempts are recorded too, as the histograms
            ``pg_scheduler.job_duration_seconds`` and ``pg_scheduler.job_lateness_seconds``. It costs
            about 60 % of the processor time of the span of an attempt.

    Raises:
        TypeError: ``scheduler`` is something else.
        ConfigurationError: The Scheduler has started or was instrumented before, or ``propagation`` is
            unknown. This error is a ValueError.

    Example::

        from pg_scheduler.telemetry.opentelemetry import instrument

        async with asyncpg.create_pool(dsn, min_size=1) as pool:
            scheduler = Scheduler(pool)
            instrument(scheduler)
            async with scheduler:
                await scheduler.enqueue(send_mail, args=("ada@example.org",))
    """
    if propagation not in get_args(Propagation):
        raise ConfigurationError(f"propagation must be 'auto', 'link' or 'parent', not {propagation!r}")
    tracer = get_tracer(SCOPE, __version__, tracer_provider)
    meter = get_meter(SCOPE, __version__, meter_provider)
    metrics = MessagingMetrics(meter) if semconv else None
    recorded = JobHistograms(meter) if histograms else None

    def attach(target: Scheduler) -> None:
        """Add the middleware that makes spans to a Scheduler."""
        _check(target)
        tracing = Tracing(target, tracer, propagation, metrics, recorded)
        add_middleware(target, tracing, is_outermost=True)

    # declare() calls attach() with each Scheduler that ``scheduler`` opens, and returns a function that
    # returns the last one.
    observe(meter, declare(scheduler, "instrument", attach))


def _check(scheduler: Scheduler) -> None:
    """Raise ConfigurationError if a Scheduler has started, or was instrumented before."""
    if scheduler.is_running or scheduler.is_shutting_down:
        raise ConfigurationError("the Scheduler has started: call instrument() before start()")
    if any(isinstance(middleware, Tracing) for middleware in middleware_of(scheduler)):
        raise ConfigurationError("the Scheduler was instrumented before: call instrument() once")
