"""Count what events report: outcomes of jobs, and what the services of this process do.

Completions have no event unless a subscriber wants it; the result buffer counts them, and the planner the
fire times.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pg_scheduler.events import (
    Event,
    EventBus,
    JobCancelled,
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
from pg_scheduler.measure.meter import Meter
from pg_scheduler.store.store import Store


def new_meter(store: Store, events: EventBus) -> Meter:
    """Return a Meter that counts from now on what these events report."""
    statements = store.statements
    meter = Meter(None if statements.clock is None else lambda: statements.local_now)

    def record_end(event: Event) -> None:
        if isinstance(event, JobEvent):
            meter.record_end(event.job_name, _OUTCOMES[type(event)])

    def record_cancelled(event: Event) -> None:
        if isinstance(event, JobCancelled):
            meter.record_end(event.job_name, "skipped" if event.reason == LOCK_TAKEN else "cancelled")

    events.subscribe(record_end, *_OUTCOMES)
    events.subscribe(record_cancelled, JobCancelled)
    for kind, record in _RECORDERS.items():
        events.subscribe(partial(record, meter), kind)
    return meter


_OUTCOMES: Final[dict[type[Event], str]] = {
    JobFailed: "failed",
    JobRetried: "retried",
    JobReleased: "released",
    JobSnoozed: "snoozed",
    JobSuspended: "snoozed",
    JobExpired: "expired",
    JobLost: "lost",
}


def _record_reclaimed(meter: Meter, event: JobsReclaimed) -> None:
    meter.count("jobs_reclaimed", by=len(event.job_ids))
    meter.count("workers_declared_dead", by=len(event.dead_workers))


def _record_vacuumed(meter: Meter, event: JobsVacuumed) -> None:
    for status in ("completed", "failed", "cancelled", "expired"):
        if number := getattr(event, status):
            meter.count("jobs_vacuumed", status, by=number)


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
