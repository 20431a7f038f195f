"""The event bus: routing to subscribers, subscriptions, and subscribers that raise."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from pg_scheduler import events
from pg_scheduler.events import Event, EventBus, JobCompleted, JobFailed, JobStarted, WorkerStarted

COMPLETED = JobCompleted("id", "app.work", 1)
FAILED = JobFailed("id", "app.work", 1, error="ValueError: no")


@pytest.fixture
def bus() -> EventBus:
    return EventBus()


def test_bus_passes_each_event_to_the_subscribers_of_its_class(bus: EventBus) -> None:
    everything: list[Event] = []
    ends: list[Event] = []
    jobs: list[Event] = []
    bus.subscribe(everything.append)
    bus.subscribe(ends.append, JobCompleted, JobFailed)
    bus.subscribe(jobs.append, events.JobEvent)
    started = JobStarted("id", "app.work", 1, execution_time=datetime(2030, 1, 1, tzinfo=UTC))
    published = [WorkerStarted("w"), started, COMPLETED, FAILED]
    for event in published:
        bus.publish(event)
    assert everything == published
    assert ends == [COMPLETED, FAILED]
    assert jobs == published[1:]


def test_unsubscribing_ends_one_subscription_when_it_is_called_twice(bus: EventBus) -> None:
    one: list[Event] = []
    two: list[Event] = []
    unsubscribe = bus.subscribe(one.append)
    bus.subscribe(two.append)
    bus.publish(COMPLETED)
    unsubscribe()
    unsubscribe()
    bus.publish(FAILED)
    assert (one, two) == ([COMPLETED], [COMPLETED, FAILED])


def test_subscriber_receives_an_event_twice_when_it_subscribed_twice(bus: EventBus) -> None:
    seen: list[Event] = []
    unsubscribe = bus.subscribe(seen.append)
    bus.subscribe(seen.append)
    bus.publish(COMPLETED)
    unsubscribe()
    bus.publish(FAILED)
    assert seen == [COMPLETED, COMPLETED, FAILED]


def test_bus_logs_the_error_and_calls_the_others_when_a_subscriber_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = EventBus(worker_id=lambda: "w1")
    seen: list[Event] = []

    def fail(_event: Event) -> None:
        raise LookupError("mine")

    bus.subscribe(fail)
    bus.subscribe(seen.append)
    bus.publish(COMPLETED)
    assert seen == [COMPLETED]
    (record,) = caplog.records
    assert record.exc_info
    assert isinstance(record.exc_info[1], LookupError)
    assert record.getMessage().startswith("event subscriber test_bus_logs")
    assert record.getMessage().endswith(
        "fail raised an exception on: job app.work (id id, attempt 1) completed"
    )
    assert (vars(record)["event_type"], vars(record)["worker_id"]) == ("JobCompleted", "w1")


def test_bus_names_the_class_of_a_subscriber_that_raises_when_it_has_no_name(
    bus: EventBus, caplog: pytest.LogCaptureFixture
) -> None:
    class Subscriber:
        def __call__(self, _event: Event) -> None:
            raise LookupError("mine")

    bus.subscribe(Subscriber())
    bus.publish(COMPLETED)
    assert caplog.records[0].getMessage().startswith("event subscriber Subscriber raised")


def test_bus_applies_a_subscription_change_made_by_a_subscriber_at_the_next_event(bus: EventBus) -> None:
    seen: list[Event] = []

    def once(event: Event) -> None:
        seen.append(event)
        unsubscribe()
        bus.subscribe(seen.append)

    unsubscribe = bus.subscribe(once)
    bus.publish(COMPLETED)
    bus.publish(FAILED)
    assert seen == [COMPLETED, FAILED]


def test_bus_wants_only_events_that_a_subscriber_receives(bus: EventBus) -> None:
    assert not bus.wants(JobCompleted)
    unsubscribe = bus.subscribe(lambda _event: None, events.JobEvent)
    assert (bus.wants(JobCompleted), bus.wants(WorkerStarted)) == (True, False)
    unsubscribe_all = bus.subscribe(lambda _event: None)
    assert (bus.wants(JobCompleted), bus.wants(WorkerStarted)) == (True, True)
    unsubscribe()
    unsubscribe_all()
    assert (bus.wants(JobCompleted), bus.wants(WorkerStarted)) == (False, False)


def test_bus_calls_the_sink_before_the_subscribers() -> None:
    order: list[str] = []
    bus = EventBus(lambda event: order.append(f"sink {type(event).__name__}"))
    bus.subscribe(lambda event: order.append(f"subscriber {type(event).__name__}"), JobFailed)
    bus.publish(FAILED)
    assert order == ["sink JobFailed", "subscriber JobFailed"]


@pytest.mark.parametrize("subscriber", [None, "print"])
def test_subscribe_raises_type_error_when_the_subscriber_is_not_a_function(
    bus: EventBus, subscriber: Any
) -> None:
    with pytest.raises(TypeError, match="must be a function or an async function"):
        bus.subscribe(subscriber)
    bus.publish(COMPLETED)


def test_bus_calls_a_subscriber_once_when_it_subscribed_once(bus: EventBus) -> None:
    seen: list[Event] = []
    unsubscribe = bus.subscribe(seen.append, JobCompleted, JobFailed, once=True)
    bus.publish(WorkerStarted("w"))
    bus.publish(FAILED)
    bus.publish(COMPLETED)
    unsubscribe()
    assert seen == [FAILED]
    assert not bus.wants(JobFailed)


def test_bus_calls_a_subscriber_once_when_another_one_publishes_an_event_before(bus: EventBus) -> None:
    seen: list[Event] = []

    def publish_more(event: Event) -> None:
        if event is FAILED:
            bus.publish(COMPLETED)

    bus.subscribe(publish_more)
    bus.subscribe(seen.append, once=True)
    bus.publish(FAILED)
    assert seen == [COMPLETED]


@pytest.mark.parametrize("kind", [[JobCompleted], "JobCompleted", int, COMPLETED])
def test_subscribe_raises_type_error_when_a_kind_is_not_an_event_class(bus: EventBus, kind: Any) -> None:
    with pytest.raises(TypeError, match="must be event classes"):
        bus.subscribe(print, kind)
    with pytest.raises(TypeError, match="must be event classes"):
        bus.stream(kind)
