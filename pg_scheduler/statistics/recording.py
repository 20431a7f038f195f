"""Count what events report.

Events report the outcomes of jobs, and what the services of this process do. A completed job has an event
only if a subscriber wants it, so the result buffer counts the completions. The planner counts the fire times.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pg_scheduler.base.meter import Meter
from pg_scheduler.database.statements import Statements
from pg_scheduler.events import (
    Event,
    EventBus,
    JobCancelled,
    JobDeadlineExceeded,
    JobEvent,
    JobExpired,
    JobFailed,
    JobLost,
    JobReleased,
    JobRetried,
    JobSnoozed,
    JobsReclaimed,
    JobSuspended,
    JobsVacuumed,
    KeeperConnected,
    KeeperLost,
    LeaseLost,
    ListenerConnected,
    ListenerLost,
    LoopBlocked,
    PassFinished,
    ServiceFaulted,
    ServiceRetrying,
)
from pg_scheduler.events.types import LOCK_TAKEN


def new_meter(statements: Statements, events: EventBus) -> Meter:
    """Return a Meter that counts from now on what these events report."""
    # With the clock of a test, lateness is measured by that clock, else by that of this process.
    get_now = None if statements.clock is None else (lambda: statements.local_now)
    meter = Meter(get_now)

    def record_end(event: Event) -> None:
        """Count an attempt by its outcome, which the class of the event is."""
        if isinstance(event, JobEvent):
            meter.record_end(event.job_name, _OUTCOMES[type(event)])

    def record_cancelled(event: Event) -> None:
        """Count an attempt that was cancelled, or skipped because it did not get its advisory lock."""
        if isinstance(event, JobCancelled):
            outcome = "skipped" if event.reason == LOCK_TAKEN else "cancelled"
            meter.record_end(event.job_name, outcome)

    events.subscribe(record_end, *_OUTCOMES)
    events.subscribe(record_cancelled, JobCancelled)
    for kind, record in _RECORDERS.items():
        events.subscribe(partial(record, meter), kind)
    return meter


_OUTCOMES: Final[dict[type[Event], str]] = {
    JobFailed: "failed",
    JobDeadlineExceeded: "failed",
    JobRetried: "retried",
    JobReleased: "released",
    JobSnoozed: "snoozed",
    JobSuspended: "suspended",
    JobExpired: "expired",
    JobLost: "lost",
}


def _record_reclaimed(meter: Meter, event: JobsReclaimed) -> None:
    """Count jobs that were returned to pending, and the dead workers that had run them."""
    meter.count("jobs_reclaimed", by=len(event.job_ids))
    meter.count("workers_declared_dead", by=len(event.dead_workers))


def _record_vacuumed(meter: Meter, event: JobsVacuumed) -> None:
    """Count the finished jobs that the vacuum has deleted, by status."""
    for status in ("completed", "failed", "cancelled", "expired"):
        deleted_count = getattr(event, status)
        if deleted_count:
            meter.count("jobs_vacuumed", status, by=deleted_count)


_RECORDERS: Final[dict[type[Event], Callable[[Meter, Any], None]]] = {
    PassFinished: lambda meter, event: meter.measure("pass_duration", event.service, event.seconds),
    ServiceRetrying: lambda meter, event: meter.count("service_errors", f"{event.service} transient"),
    ServiceFaulted: lambda meter, event: meter.count("service_errors", f"{event.service} permanent"),
    LeaseLost: lambda meter, _: meter.count("leases_lost"),
    LoopBlocked: lambda meter, event: meter.count(
        "loop_blocked_seconds", event.job_name or "", by=event.seconds
    ),
    ListenerConnected: lambda meter, _: meter.set_gauge("listener_connected", 1),
    ListenerLost: lambda meter, _: meter.set_gauge("listener_connected", 0),
    KeeperConnected: lambda meter, _: meter.set_gauge("keeper_connected", 1),
    KeeperLost: lambda meter, _: meter.set_gauge("keeper_connected", 0),
    JobsReclaimed: _record_reclaimed,
    JobsVacuumed: _record_vacuumed,
}
