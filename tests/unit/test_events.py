"""The bus, and what of it is logged how loud."""

from __future__ import annotations

import logging
import os
import platform
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pg_scheduler import events
from pg_scheduler.clock import Clock, FakeClock, SystemClock
from pg_scheduler.errors import JobConflictError, SchemaMissingError
from pg_scheduler.events import (
    Event,
    EventBus,
    JobCompleted,
    JobFailed,
    JobStarted,
    PassFinished,
    ServiceFaulted,
    ServiceRetrying,
    WorkerStarted,
    log,
)
from pg_scheduler.events.log import EventLog

DONE = JobCompleted("id", "app.work", 1)
FAILED = JobFailed("id", "app.work", 1, error="ValueError: no")
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def bus() -> EventBus:
    return EventBus()


def test_each_event_goes_to_the_subscribers_of_its_class(bus: EventBus) -> None:
    everything: list[Event] = []
    ends: list[Event] = []
    jobs: list[Event] = []
    bus.subscribe(everything.append)
    bus.subscribe(ends.append, JobCompleted, JobFailed)
    bus.subscribe(jobs.append, events.JobEvent)
    happened = [WorkerStarted("w"), JobStarted("id", "app.work", 1, execution_time=NOW), DONE, FAILED]
    for event in happened:
        bus.publish(event)
    assert everything == happened
    assert ends == [DONE, FAILED]
    assert jobs == happened[1:]


def test_a_subscription_ends_when_it_is_told_to(bus: EventBus) -> None:
    one: list[Event] = []
    two: list[Event] = []
    stop = bus.subscribe(one.append)
    bus.subscribe(two.append)
    bus.publish(DONE)
    stop()
    stop()
    bus.publish(FAILED)
    assert (one, two) == ([DONE], [DONE, FAILED])


def test_the_same_subscriber_may_come_twice(bus: EventBus) -> None:
    seen: list[Event] = []
    stop = bus.subscribe(seen.append)
    bus.subscribe(seen.append)
    bus.publish(DONE)
    stop()
    bus.publish(FAILED)
    assert seen == [DONE, DONE, FAILED]


def test_a_subscriber_that_fails_is_logged_and_stops_nobody(
    bus: EventBus, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []

    def fail(_event: Event) -> None:
        raise LookupError("mine")

    bus.subscribe(fail)
    bus.subscribe(seen.append)
    bus.publish(DONE)
    assert seen == [DONE]
    (record,) = caplog.records
    assert record.exc_info
    assert isinstance(record.exc_info[1], LookupError)
    assert "JobCompleted(job_id='id'" in record.getMessage()


def test_subscribers_may_come_and_go_while_an_event_is_published(bus: EventBus) -> None:
    seen: list[Event] = []

    def once(event: Event) -> None:
        seen.append(event)
        stop()
        bus.subscribe(seen.append)

    stop = bus.subscribe(once)
    bus.publish(DONE)
    bus.publish(FAILED)
    assert seen == [DONE, FAILED]


def test_an_event_that_nobody_would_see_need_not_be_made(bus: EventBus) -> None:
    assert not bus.wants(JobCompleted)
    stop = bus.subscribe(lambda _event: None, events.JobEvent)
    assert (bus.wants(JobCompleted), bus.wants(WorkerStarted)) == (True, False)
    stop_all = bus.subscribe(lambda _event: None)
    assert (bus.wants(JobCompleted), bus.wants(WorkerStarted)) == (True, True)
    stop()
    stop_all()
    assert (bus.wants(JobCompleted), bus.wants(WorkerStarted)) == (False, False)


class Tap:
    """A sink that takes one class."""

    def __init__(self, order: list[str]) -> None:
        self.order = order
        self.wanted: type[Event] = JobFailed

    def wants(self, kind: type[Event]) -> bool:
        return kind is self.wanted

    def __call__(self, event: Event) -> None:
        self.order.append(f"sink {type(event).__name__}")


def test_the_sink_says_anew_each_time_what_it_wants_and_comes_first() -> None:
    order: list[str] = []
    tap = Tap(order)
    bus = EventBus(tap)
    assert (bus.wants(JobFailed), bus.wants(JobCompleted)) == (True, False)
    tap.wanted = JobCompleted
    assert (bus.wants(JobFailed), bus.wants(JobCompleted)) == (False, True)
    bus.subscribe(lambda event: order.append(f"subscriber {type(event).__name__}"), JobFailed)
    assert bus.wants(JobFailed)
    bus.publish(FAILED)
    assert order == ["sink JobFailed", "subscriber JobFailed"]


@pytest.mark.parametrize(
    ("level", "wanted"),
    [
        (logging.DEBUG, {JobCompleted, JobFailed, WorkerStarted}),
        (logging.INFO, {JobFailed, WorkerStarted}),
        (logging.ERROR, {JobFailed}),
    ],
)
def test_the_log_wants_what_its_level_lets_through(
    level: int, wanted: set[type[Event]], caplog: pytest.LogCaptureFixture
) -> None:
    bus = EventBus(EventLog())
    caplog.set_level(level, "pg_scheduler")
    assert {kind for kind in (JobCompleted, JobFailed, WorkerStarted) if bus.wants(kind)} == wanted


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (WorkerStarted("w"), "INFO"),
        (DONE, "DEBUG"),
        (FAILED, "ERROR"),
        (events.JobRetried("id", "n", 1, error="no", delay=timedelta(seconds=60)), "WARNING"),
        (events.JobLost("id", "n", 1), "WARNING"),
        (events.JobExpired("id", "n", 1), "WARNING"),
        (events.LeaseLost("w"), "ERROR"),
        (events.ListenerLost("closed"), "WARNING"),
        (events.JobsReclaimed(("id",), ("w",)), "WARNING"),
        (PassFinished("claimer", 0.1, 1.0), "DEBUG"),
    ],
)
def test_an_event_is_one_line(event: Event, level: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "pg_scheduler")
    EventLog()(event)
    (record,) = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == ("pg_scheduler", level, repr(event))
    assert not record.exc_info


def test_what_ends_the_scheduler_is_told_once_in_each_life(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog()
    for _ in range(2):
        log(events.ServiceFaulted("claimer", SchemaMissingError("one table is gone")))
        log(events.ServiceFaulted("completer", SchemaMissingError("another too")))
        log(events.ServiceFaulted("planner", KeyError("one mistake")))
        log(events.ServiceFaulted("rescuer", KeyError("another mistake")))
        log(events.WorkerStopped("w"))
    told = [record.getMessage().partition("'")[2].partition("'")[0] for record in caplog.records]
    assert told == ["claimer", "planner", "rescuer"] * 2


@pytest.mark.parametrize("level", [logging.INFO, logging.ERROR])
def test_what_nobody_wants_is_not_written(level: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(level, "pg_scheduler")
    EventLog()(DONE)
    assert caplog.records == []


def test_a_fault_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    error = OSError("gone")
    EventLog()(ServiceFaulted("claimer", error))
    EventLog()(ServiceRetrying("claimer", error, next_in=1.0))
    assert [record.levelname for record in caplog.records] == ["CRITICAL", "WARNING"]
    assert all(record.exc_info and record.exc_info[1] is error for record in caplog.records)


def test_every_event_with_a_level_of_its_own_is_public() -> None:
    assert {kind.__name__ for kind in log._LEVELS} <= set(events.__all__)


def test_clocks() -> None:
    system: Clock = SystemClock()
    assert system.override() is None
    clock = FakeClock(NOW)
    clock.advance(timedelta(hours=1))
    clock.advance(-timedelta(minutes=1))
    assert clock.override() == clock.now == NOW + timedelta(minutes=59)


def test_a_conflict_says_what_it_met() -> None:
    taken = JobConflictError("id", "running")
    assert (taken.job_id, taken.status) == ("id", "running")
    assert "job id 'id' already exists with status 'running'" in str(taken)
    twice = JobConflictError("id", None)
    assert twice.status is None
    assert "comes more than once in this call" in str(twice)


async def _later(_event: Event) -> None: ...


@pytest.mark.parametrize("subscriber", [_later, None, "print"])
def test_a_subscriber_is_a_plain_function(bus: EventBus, subscriber: Any) -> None:
    with pytest.raises(TypeError, match="plain function"):
        bus.subscribe(subscriber)
    bus.publish(DONE)


@pytest.mark.parametrize("kind", [[JobCompleted], "JobCompleted", int, DONE])
def test_the_kinds_are_classes_of_events(bus: EventBus, kind: Any) -> None:
    with pytest.raises(TypeError, match="classes of Event"):
        bus.subscribe(print, kind)


def test_what_a_job_raised_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        int("deep down")
    except ValueError as error:
        EventLog()(JobFailed("id", "app.work", 1, error="ValueError: no", exception=error))
    (record,) = caplog.records
    assert "id" in record.message
    assert "in test_what_a_job_raised" in (record.exc_text or "")


class Watch:
    """A clock for the log, in seconds."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def retrying(service: str) -> ServiceRetrying:
    return ServiceRetrying(service, OSError("away"), next_in=1.0)


def passed(service: str) -> PassFinished:
    return PassFinished(service, 0.1, 1.0)


def test_an_outage_is_a_traceback_a_line_of_each_service_and_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = Watch()
    log = EventLog(watch)
    caplog.set_level(logging.INFO, "pg_scheduler")
    for service in ("claimer", "claimer", "heartbeat", "claimer", "heartbeat"):
        log(retrying(service))
    assert [record.getMessage() for record in caplog.records] == [
        repr(retrying("claimer")),
        repr(retrying("heartbeat")),
    ]
    assert [bool(record.exc_info) for record in caplog.records] == [True, False]
    caplog.clear()
    watch.seconds += 40.26
    log(passed("planner"))  # it may not have asked the database anything
    log(passed("claimer"))
    assert not caplog.records
    log(passed("heartbeat"))
    log(passed("claimer"))
    (end,) = caplog.records
    assert end.levelname == "WARNING"
    assert end.getMessage() == (
        "the database answers again: every service goes on, 40.3 s after the first fault"
    )
    log(retrying("claimer"))
    assert caplog.records[-1].exc_info


def test_of_a_long_outage_one_retry_is_told_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    log = EventLog(watch)
    caplog.set_level(logging.INFO, "pg_scheduler")
    for _ in range(40):
        log(retrying("claimer"))
        log(retrying("heartbeat"))
        watch.seconds += 1
    assert [record.exc_info is not None for record in caplog.records] == [True, *[False] * 4]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_the_retries_that_are_not_told_are_debug(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog(Watch())
    caplog.set_level(logging.DEBUG, "pg_scheduler")
    log(retrying("claimer"))
    log(retrying("claimer"))
    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG"]


def test_a_shutdown_ends_an_outage_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog(Watch())
    log(retrying("claimer"))
    log(events.WorkerStopped("w"))
    log(passed("claimer"))
    assert len(caplog.records) == 1


def test_seconds_are_rounded_in_lines(caplog: pytest.LogCaptureFixture) -> None:
    EventLog()(ServiceRetrying("claimer", OSError("away"), next_in=0.06205580909557001))
    EventLog()(ServiceRetrying("announcer", OSError("away"), next_in=float("inf")))
    assert [record.getMessage().rpartition(" ")[2] for record in caplog.records] == [
        "next_in=0.062)",
        "next_in=inf)",
    ]


def test_a_worker_that_starts_says_where() -> None:
    event = WorkerStarted("w")
    assert (event.hostname, event.pid) == (platform.node(), os.getpid())
