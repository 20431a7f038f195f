"""Report jobs to Sentry. The extra ``[sentry]`` installs what this needs."""

from __future__ import annotations

import math
import re
import threading
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import sentry_sdk
from sentry_sdk.crons import capture_checkin
from sentry_sdk.scope import add_global_event_processor
from sentry_sdk.utils import capture_internal_exceptions, event_from_exception

from pg_scheduler.base.foreign import is_a, traceback_lines
from pg_scheduler.errors import ConfigurationError, SchedulerError
from pg_scheduler.events import JobDeadlineExceeded, JobFailed
from pg_scheduler.events.types import TEXTS
from pg_scheduler.jobs.call import JobCall
from pg_scheduler.jobs.context import CurrentJob
from pg_scheduler.jobs.metadata import trace_from
from pg_scheduler.jobs.middleware import ScheduledCall, SendingMiddleware
from pg_scheduler.jobs.retry import naming_leaf_of
from pg_scheduler.telemetry.outcomes import ERRORS, outcome_of
from pg_scheduler.triggers import Cron, Every, Trigger

if TYPE_CHECKING:
    from sentry_sdk._types import Event, Hint, MonitorConfig

__all__ = ["SentryMiddleware"]

On: TypeAlias = Literal["failed", "attempt"]

ORIGIN: Final = "auto.queue.pg_scheduler"

BAGGAGE: Final = "sentry-baggage"
"""The header with the baggage of Sentry: ``baggage`` belongs to OpenTelemetry, which may be used too."""

MAX_BAGGAGE_BYTES: Final = 4096

MAX_REPORTED: Final = 10_000
"""Failed attempts that are remembered until their log record has been dropped."""

DJANGO_LOGGERS: Final = frozenset({"django.tasks", "django_tasks"})
"""The loggers by which Django reports the end of each task, with the exception of one that has failed."""

FAILURE_TEXTS: Final = frozenset({TEXTS[JobFailed], TEXTS[JobDeadlineExceeded]})
"""The texts by which this library logs that a job has failed."""
MAX_SLUG: Final = 50
"""Characters of the name of a monitor."""

DIGEST_LENGTH: Final = 8
"""Characters of a hash that distinguishes monitors whose names would be shortened or empty."""

STATUSES: Final[Mapping[str, str]] = {
    "completed": "ok",
    "snoozed": "ok",
    "failed": "internal_error",
    "retried": "internal_error",
    "crashed": "internal_error",
    "cancelled": "cancelled",
}
"""The status of a transaction for each outcome; ``aborted`` for the others."""

UNITS: Final = (
    ("week", timedelta(weeks=1)),
    ("day", timedelta(days=1)),
    ("hour", timedelta(hours=1)),
    ("minute", timedelta(minutes=1)),
)

_OWN_STATEMENT: Final = re.compile(r"\bscheduled_jobs\b|\b(pg_)?scheduler_\w+")
_NO_SLUG: Final = re.compile(r"[^a-z0-9_-]+")


class SentryMiddleware(SendingMiddleware):
    """Middleware that reports jobs to Sentry: errors, traces, and check-ins of schedules.

    Pass it to the Schedulers of workers and of processes that only schedule, and call ``sentry_sdk.init()``
    before the first job. Each attempt has an isolation scope of its own, with the tags ``job_id``,
    ``job_name``, ``attempt`` and ``schedule_id``.

    Args:
        on: ``"failed"`` reports the error of the last attempt of a job, ``"attempt"`` that of each one.
        monitor_schedules: Whether the jobs of schedules check in as Sentry's cron monitors: True for all
            schedules, or the ids of some. Each job then reads its schedule.

    Raises:
        ConfigurationError: ``on`` is something else; a ValueError.
        TypeError: ``monitor_schedules`` is a str; pass a list.

    Example::

        from pg_scheduler.integrations.sentry import SentryMiddleware

        async with asyncpg.create_pool(dsn) as pool:
            async with Scheduler(pool, middleware=[SentryMiddleware()]) as scheduler:
                await scheduler.enqueue(send_mail, args=("ada@example.org",))
    """

    def __init__(self, *, on: On = "failed", monitor_schedules: bool | Collection[str] = False) -> None:
        if on not in get_args(On):
            raise ConfigurationError(f"on must be 'failed' or 'attempt', not {on!r}")
        if isinstance(monitor_schedules, str):
            raise TypeError(f"monitor_schedules must be a bool or a list; pass [{monitor_schedules!r}]")
        self._on: Final = on
        self._monitored: Final = monitor_schedules

    # -- jobs that are scheduled -----------------------------------------------------------------------

    @contextmanager
    def sending(self, call: ScheduledCall | None, count: int) -> Iterator[None]:
        """Make the span of a call that stores jobs, if there is a transaction.

        ``call`` is the job that is stored; None for a call that stores several ones, ``count`` of them.
        """
        if sentry_sdk.get_current_span() is None:
            yield
            return
        name = "schedule_bulk" if call is None else call.job_name
        with sentry_sdk.start_span(op="queue.publish", name=name, origin=ORIGIN) as span:
            span.set_data("messaging.system", "pg_scheduler")
            if call is None:
                span.set_data("messaging.batch.message_count", count)
            else:
                span.set_data("messaging.message.id", call.job_id)
                span.set_data("messaging.destination.name", call.job_name)
            yield

    def headers(self, call: ScheduledCall) -> Mapping[str, str]:
        """Return the trace of the caller; none for the job of a schedule, which begins a trace of its own."""
        if call.schedule_id is not None or not sentry_sdk.get_client().is_active():
            return {}
        trace = sentry_sdk.get_traceparent()
        baggage = sentry_sdk.get_baggage()
        if not trace:
            return {}
        # Long baggage is left out: the headers of all middleware have a limit in the metadata of a job.
        if baggage and len(baggage) <= MAX_BAGGAGE_BYTES:
            return {"sentry-trace": trace, BAGGAGE: baggage}
        return {"sentry-trace": trace}

    # -- attempts --------------------------------------------------------------------------------------

    async def __call__(self, call: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Run an attempt in a scope and a transaction of its own."""
        if not sentry_sdk.get_client().is_active():
            return await call_next()
        check_in = await self._check_in_of(call)
        # The tags, the breadcrumbs and the trace of this attempt are not seen by attempts that run meanwhile.
        with sentry_sdk.isolation_scope() as scope:
            # The breadcrumbs are those of the worker: its statements, and the records of other jobs.
            scope.clear_breadcrumbs()
            _describe(scope, call)
            scope.set_new_propagation_context()
            transaction = scope.continue_trace(
                _headers_of(call), op="queue.process", name=call.job.job_name, source="task", origin=ORIGIN
            )
            raised: BaseException | None = None
            value = None
            outcome = "completed"
            with sentry_sdk.start_transaction(transaction) as span:
                _measure(span, call)
                check_in.begin()
                try:
                    value = await call_next()
                except BaseException as error:  # noqa: BLE001 - raised again below
                    # The error is raised after the transaction, to which Sentry would give its own status.
                    raised = error
                    outcome, cause = outcome_of(call.job.scheduler, call, error)
                    if outcome == "failed" or (outcome in ERRORS and self._on == "attempt"):
                        _capture(call, error, cause)
                check_in.end(outcome)
                is_timeout = outcome in ERRORS and call.cancelled_by == "timeout"
                span.set_status("deadline_exceeded" if is_timeout else STATUSES.get(outcome, "aborted"))
                span.set_data("pg_scheduler.outcome", outcome)
        try:
            if raised is not None:
                raise raised
            return value
        finally:
            # The traceback of the error refers to this frame, so this variable would make a cycle.
            del raised

    async def _check_in_of(self, call: JobCall) -> _CheckIn:
        """Return the check-in of an attempt. If the job is not monitored, the check-in sends nothing."""
        job = call.job
        schedule_id = job.schedule_id
        # The job of a schedule has no fire time if a person requested it. A monitor does not expect such a
        # job.
        if schedule_id is None or job.fire_time is None or not self._is_monitored(schedule_id):
            return _CheckIn(None, "", None)
        trigger = None
        try:
            schedule = await job.scheduler.schedules.get(schedule_id)
            trigger = None if schedule is None else schedule.trigger
        except SchedulerError:
            # The database is unavailable. Sentry still has the definition of the monitor's last check-in.
            pass
        return _CheckIn(slug_of(schedule_id), job.job_id, config_of(trigger, call.claim.timeout_seconds))

    def _is_monitored(self, schedule_id: str) -> bool:
        """Return whether the jobs of a schedule check in as a cron monitor."""
        # The setting is True or False for all schedules, or the ids of some.
        if isinstance(self._monitored, bool):
            return self._monitored
        return schedule_id in self._monitored


class _CheckIn:
    """The check-in of one job, the same for all of its attempts.

    Args:
        slug: The name of the monitor of its schedule; None if the job is not monitored.
        job_id: The id of the job.
        config: The definition of the monitor, if Sentry can express the trigger of the schedule.
    """

    def __init__(self, slug: str | None, job_id: str, config: MonitorConfig | None) -> None:
        self._slug = slug
        # Sentry wants a UUID. It is derived from the id of the job, so each attempt of the job has the same.
        self._id = uuid.uuid5(uuid.NAMESPACE_OID, job_id).hex
        self._config = config
        self._began = datetime.now(UTC)

    def begin(self) -> None:
        """Report the begin of an attempt."""
        self._send("in_progress")

    def end(self, outcome: str) -> None:
        """Report the end of the job; nothing if it runs again."""
        duration_s = (datetime.now(UTC) - self._began).total_seconds()
        if outcome == "completed":
            self._send("ok", duration_s)
        elif outcome in {"failed", "cancelled"}:
            self._send("error", duration_s)

    def _send(self, status: str, duration_s: float | None = None) -> None:
        """Send the status of the job to Sentry, unless the job is not monitored."""
        if self._slug is not None:
            capture_checkin(self._slug, self._id, status, duration_s, self._config)


def slug_of(schedule_id: str) -> str:
    """Return the name of the monitor of a schedule, with the characters and the length that Sentry allows."""
    slug = _NO_SLUG.sub("-", schedule_id.lower()).strip("-")
    if slug and len(slug) <= MAX_SLUG:
        return slug
    digest = sha256(schedule_id.encode()).hexdigest()[:DIGEST_LENGTH]
    # A text without any character of a slug becomes the digest alone.
    return f"{slug[: MAX_SLUG - DIGEST_LENGTH - 1]}-{digest}".lstrip("-")


def config_of(trigger: Trigger | None, timeout_s: float | None) -> MonitorConfig | None:
    """Return the definition of a monitor; None if Sentry cannot express the trigger."""
    config: MonitorConfig
    if isinstance(trigger, Cron):
        fields = trigger.expression.split()
        # Sentry's expressions have no seconds, which are the optional sixth field here.
        if len(fields) == 6 and fields[5] != "0":
            return None
        value = " ".join(fields[:5])
        config = {"schedule": {"type": "crontab", "value": value}, "timezone": trigger.timezone}
    elif isinstance(trigger, Every):
        # Sentry wants a whole number of one unit. The longest unit that divides the interval comes first.
        fitting_units = [(unit, length) for unit, length in UNITS if not trigger.every % length]
        if not fitting_units:
            return None
        unit, length = fitting_units[0]
        config = {"schedule": {"type": "interval", "value": trigger.every // length, "unit": unit}}  # type: ignore[typeddict-item]
    else:
        return None
    if timeout_s is not None:
        # Sentry wants minutes.
        config["max_runtime"] = math.ceil(timeout_s / 60)
    return config


def _describe(scope: sentry_sdk.Scope, call: JobCall) -> None:
    """Set the tags and the context that describe an attempt."""
    job = call.job
    tags = {"job_id": job.job_id, "job_name": job.job_name, "attempt": str(job.attempt)}
    if job.schedule_id is not None:
        tags["schedule_id"] = job.schedule_id
    scope.set_tags(tags)
    context: dict[str, Any] = dict(tags)
    # A tag must be a text, and a value of a context may be a number.
    context["attempt"] = job.attempt
    context["execution_time"] = job.execution_time.isoformat()
    context["worker_id"] = job.scheduler.worker_id
    scope.set_context("job", context)


def _headers_of(call: JobCall) -> dict[str, str]:
    """Return the trace in the metadata of a job, under the names of headers that Sentry reads.

    Metadata without Sentry's baggage may have the baggage of OpenTelemetry.
    """
    trace = trace_from(call.metadata) or {}
    baggage = trace.get(BAGGAGE, trace.get("baggage"))
    headers = {"sentry-trace": trace.get("sentry-trace"), "baggage": baggage}
    return {name: value for name, value in headers.items() if value is not None}


def _measure(span: Any, call: JobCall) -> None:
    """Set what Sentry's pages about queues show."""
    job: CurrentJob = call.job
    # It is negative if the clock of this machine is behind the one that set the due time.
    lateness_s = (datetime.now(UTC) - job.execution_time).total_seconds()
    span.set_data("messaging.system", "pg_scheduler")
    span.set_data("messaging.message.id", job.job_id)
    span.set_data("messaging.destination.name", job.job_name)
    span.set_data("messaging.message.retry.count", call.claim.retry_count)
    span.set_data("messaging.message.receive.latency", max(0.0, lateness_s) * 1000)  # milliseconds


def _capture(call: JobCall, raised: BaseException, cause: BaseException) -> None:
    """Report an error, and remember the attempt, so that the log record of the same error is dropped.

    ``raised`` is the error that the function raised. ``cause`` is the error that the job gets for it, such as
    a TimeoutError for a cancellation.
    """
    if cause is not raised and call.cancelled_by == "timeout":
        # This traceback leads to where the job was when its time was up.
        cause = cause.with_traceback(raised.__traceback__)
    is_group = is_a(cause, BaseExceptionGroup)
    # Sentry would call every group of exceptions ExceptionGroup, so one exception stands for the group.
    reported_error = naming_leaf_of(cause) if is_group else cause
    with capture_internal_exceptions():
        event, hint = event_from_exception(
            reported_error,
            client_options=sentry_sdk.get_client().options,
            mechanism={"type": "pg_scheduler", "handled": False},
        )
        if is_group:
            event.setdefault("extra", {})["exception_group"] = "".join(traceback_lines(cause))
        sentry_sdk.capture_event(event, hint=hint)
    with _lock:
        _reported[call.job.job_id, call.job.attempt] = None
        # The first key is the oldest.
        if len(_reported) > MAX_REPORTED:
            del _reported[next(iter(_reported))]


# -- events of the whole process -----------------------------------------------------------------------

_reported: Final[dict[tuple[str, int], None]] = {}
"""The reported attempts, by job id and number, oldest first."""

_lock: Final = threading.Lock()


def _process(event: Event, hint: Hint) -> Event | None:
    """Drop the log record of an error that was reported, and the breadcrumbs of this library's statements.

    Sentry's own integration that drops duplicates does not see these: a batch of outcomes is logged in
    another task than the attempts, and Django logs in the thread of its task.
    """
    record = hint.get("log_record")
    # This is the record by which this library logs a failed attempt. One that was not reported is kept.
    if record is not None and record.name == "pg_scheduler" and record.msg in FAILURE_TEXTS:
        with _lock:
            key = (getattr(record, "job_id", ""), getattr(record, "attempt", 0))
            if key in _reported:
                del _reported[key]
                return None
    if record is not None and record.name in DJANGO_LOGGERS and "job" in event.get("contexts", {}):
        # The context "job" is that of an attempt, within which Django logs the record. The attempt reports
        # its exception itself.
        return None
    crumbs = event.get("breadcrumbs")
    if isinstance(crumbs, dict):
        crumbs["values"] = [crumb for crumb in crumbs.get("values", []) if not _is_of_library(crumb)]
    return event


def _is_of_library(crumb: Mapping[str, Any]) -> bool:
    """Return whether a breadcrumb is an SQL statement that names a table or function of this library."""
    if crumb.get("category") != "query":
        return False
    return bool(_OWN_STATEMENT.search(crumb.get("message") or ""))


add_global_event_processor(_process)
