"""What the Meter counts of events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest

from pg_scheduler.clock import FakeClock
from pg_scheduler.events import (
    Event,
    EventBus,
    JobCancelled,
    JobCompleted,
    JobExpired,
    JobFailed,
    JobLost,
    JobReleased,
    JobRetried,
    JobScheduled,
    JobSnoozed,
    JobsReclaimed,
    JobStarted,
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
from pg_scheduler.events.types import BY_CALLER, LOCK_TAKEN
from pg_scheduler.statistics.recording import new_meter
from tests.support.inside import OUTCOMES, Meter, Store

JOB = ("id", "mail", 1)
ERROR = ValueError("no")
SOON = timedelta(0)


class Start(NamedTuple):
    """A claim, as far as it is counted."""

    job_name: str
    execution_time: datetime


@pytest.fixture
def meter(store: Store, bus: EventBus) -> Meter:
    return new_meter(store.statements, bus)


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (JobFailed(*JOB, error="no"), "failed"),
        (JobRetried(*JOB, error="no", delay=SOON), "retried"),
        (JobCancelled(*JOB, reason=BY_CALLER), "cancelled"),
        (JobCancelled(*JOB, reason=LOCK_TAKEN), "skipped"),
        (JobReleased(*JOB), "released"),
        (JobSnoozed(*JOB, delay=SOON), "snoozed"),
        (JobExpired(*JOB), "expired"),
        (JobLost(*JOB), "lost"),
        (JobSuspended(*JOB, step="nap", kind="sleep", until=datetime.now(UTC)), "suspended"),
    ],
)
def test_event_of_a_job_counts_its_outcome(meter: Meter, bus: EventBus, event: Event, outcome: str) -> None:
    bus.publish(event)
    found = meter.snapshot().jobs["mail"].ended
    assert {name: n for name, n in zip(OUTCOMES, found, strict=True) if n} == {outcome: 1}


@pytest.mark.parametrize("kind", [JobCompleted, JobStarted, JobScheduled])
def test_meter_causes_no_event_per_job(meter: Meter, bus: EventBus, kind: type[Event]) -> None:
    assert not bus.wants(kind)


@pytest.mark.parametrize(
    ("event", "counted"),
    [
        (ServiceRetrying("claimer", ERROR, 1), {("service_errors", "claimer transient"): 1}),
        (ServiceFaulted("claimer", ERROR), {("service_errors", "claimer permanent"): 1}),
        (LeaseLost("me"), {("leases_lost", ""): 1}),
        (LoopBlocked("id", "mail", 1.5, ""), {("loop_blocked_seconds", "mail"): 1.5}),
        (LoopBlocked(None, None, 1.5, ""), {("loop_blocked_seconds", ""): 1.5}),
        (JobsReclaimed(("a", "b"), ("w",)), {("jobs_reclaimed", ""): 2, ("workers_declared_dead", ""): 1}),
        (JobsVacuumed(3, 0, 1, 0), {("jobs_vacuumed", "completed"): 3, ("jobs_vacuumed", "cancelled"): 1}),
    ],
)
def test_event_of_a_service_is_counted(
    meter: Meter, bus: EventBus, event: Event, counted: dict[tuple[str, str], float]
) -> None:
    bus.publish(event)
    assert meter.snapshot().counters == counted
    assert not meter.snapshot().jobs


def test_connections_are_gauges(meter: Meter, bus: EventBus) -> None:
    bus.publish(ListenerConnected("channel"))
    bus.publish(KeeperConnected(has_lock=True))
    assert meter.snapshot().gauges == {"listener_connected": 1, "keeper_connected": 1}
    bus.publish(ListenerLost("gone"))
    bus.publish(KeeperLost("gone"))
    assert meter.snapshot().gauges == {"listener_connected": 0, "keeper_connected": 0}


def test_passes_of_services_are_measured(meter: Meter, bus: EventBus) -> None:
    bus.publish(PassFinished("planner", 0.2, 1))
    bus.publish(PassFinished("planner", 0.3, 1))
    passes = meter.snapshot().durations["pass_duration", "planner"]
    assert passes.number == 2
    assert passes.total == pytest.approx(0.5)


def test_lateness_is_measured_by_the_clock_of_the_store(
    clocked: Store, bus: EventBus, clock: FakeClock
) -> None:
    meter = new_meter(clocked.statements, bus)
    meter.record_starts([Start("mail", clock.now - timedelta(seconds=100))])
    assert meter.snapshot().jobs["mail"].lateness.total == pytest.approx(100)


def test_lateness_is_measured_by_the_clock_of_the_host_in_production(meter: Meter) -> None:
    meter.record_starts([Start("mail", datetime.now(UTC) - timedelta(seconds=100))])
    assert 100 <= meter.snapshot().jobs["mail"].lateness.total < 110
