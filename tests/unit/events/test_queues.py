"""Async subscribers and iterators: order, overflow, errors, and their end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import pytest

from pg_scheduler.events import Event, EventBus, EventsDropped, JobCompleted, JobFailed, WorkerStarted
from pg_scheduler.events.log import EventLog
from tests.support import inside
from tests.support.logs import records_of

MAX_QUEUED_EVENTS = inside.internal_setting("events_in_queue")

PATIENCE = 60.0
FAILED = JobFailed("id", "app.work", 1, error="ValueError: no")


def completed(number: int) -> JobCompleted:
    return JobCompleted(f"job {number}", "app.work", 1)


@pytest.fixture
def bus() -> EventBus:
    return EventBus(EventLog(), worker_id=lambda: "w1")


class Handler:
    """An async subscriber that waits until it may go on."""

    def __init__(self) -> None:
        self.handled: list[Event] = []
        self.began: asyncio.Queue[Event] = asyncio.Queue()
        self.may_end = asyncio.Event()

    async def __call__(self, event: Event) -> None:
        self.began.put_nowait(event)
        await self.may_end.wait()
        self.handled.append(event)


async def test_async_subscriber_handles_events_one_by_one_in_order(bus: EventBus) -> None:
    handler = Handler()
    bus.subscribe(handler, JobCompleted)
    events = [completed(number) for number in range(20)]
    for event in events:
        bus.publish(event)
    assert await handler.began.get() == events[0]
    await asyncio.sleep(0)
    assert handler.began.empty(), "the second event waits for the first"
    handler.may_end.set()
    await bus.drain(PATIENCE)
    assert handler.handled == events
    bus.publish(completed(20))
    await bus.drain(PATIENCE)
    assert handler.handled == [*events, completed(20)]


async def test_async_subscriber_that_never_suspends_lets_others_run(bus: EventBus) -> None:
    order: list[str] = []

    async def handle(_event: Event) -> None:
        order.append("subscriber")

    bus.subscribe(handle)
    bus.publish(completed(1))
    bus.publish(completed(2))
    asyncio.get_running_loop().call_soon(order.append, "other")
    await bus.drain(PATIENCE)
    assert order == ["subscriber", "other", "subscriber"]


async def _raise() -> None:
    raise LookupError("mine")


async def _await_cancelled() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


@pytest.mark.parametrize("fail", [_raise, _await_cancelled])
async def test_async_subscriber_that_raises_is_logged_and_receives_further_events(
    bus: EventBus, caplog: pytest.LogCaptureFixture, fail: Callable[[], Awaitable[None]]
) -> None:
    handled: list[Event] = []

    async def handle(event: Event) -> None:
        handled.append(event)
        await fail()

    bus.subscribe(handle, JobCompleted)
    bus.publish(completed(1))
    bus.publish(completed(2))
    await bus.drain(PATIENCE)
    assert handled == [completed(1), completed(2)]
    assert len(records_of(caplog)) == 2
    record = records_of(caplog)[0]
    assert record.exc_info
    assert record.getMessage().endswith(
        "handle raised an exception on: job app.work (id job 1, attempt 1) completed"
    )
    assert (vars(record)["event_type"], vars(record)["worker_id"]) == ("JobCompleted", "w1")


async def test_async_subscriber_receives_the_number_of_dropped_events_when_its_queue_is_full(
    bus: EventBus, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Handler()
    bus.subscribe(handler, JobCompleted)
    bus.publish(completed(0))
    await handler.began.get()  # in progress: no longer in the queue
    for number in range(1, MAX_QUEUED_EVENTS + 251):
        bus.publish(completed(number))
    assert [record.levelname for record in records_of(caplog)] == ["WARNING"]
    assert "is 1,000 events behind" in caplog.text
    handler.may_end.set()
    await bus.drain(PATIENCE)
    first, dropped, *rest = handler.handled
    assert (first, dropped) == (completed(0), EventsDropped(250, "Handler"))
    assert rest == [completed(number) for number in range(251, MAX_QUEUED_EVENTS + 251)]


async def test_full_queue_is_logged_again_after_it_was_empty(
    bus: EventBus, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Handler()
    handler.may_end.set()
    bus.subscribe(handler)
    for _ in range(2):
        for number in range(MAX_QUEUED_EVENTS + 5):
            bus.publish(completed(number))
        await bus.drain(PATIENCE)
    assert len(records_of(caplog)) == 2
    assert sum(event.number for event in handler.handled if isinstance(event, EventsDropped)) == 10


async def test_async_subscriber_handles_no_queued_event_after_unsubscribing(bus: EventBus) -> None:
    handler = Handler()
    unsubscribe = bus.subscribe(handler)
    bus.publish(completed(1))
    bus.publish(completed(2))
    await handler.began.get()
    unsubscribe()
    unsubscribe()
    bus.publish(completed(3))
    handler.may_end.set()
    await bus.drain(PATIENCE)
    assert handler.handled == [completed(1)], "the call in progress ends"


async def test_async_subscriber_handles_one_event_when_it_subscribed_once(bus: EventBus) -> None:
    handler = Handler()
    handler.may_end.set()
    bus.subscribe(handler, JobCompleted, once=True)
    bus.publish(completed(1))
    bus.publish(completed(2))
    await bus.drain(PATIENCE)
    assert handler.handled == [completed(1)]


async def test_async_subscriber_runs_in_the_context_of_its_subscription(bus: EventBus) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="none")
    seen: list[str] = []

    async def handle(_event: Event) -> None:
        seen.append(variable.get())

    variable.set("subscribed")
    bus.subscribe(handle)
    variable.set("published")
    bus.publish(FAILED)
    await bus.drain(PATIENCE)
    assert seen == ["subscribed"]


async def test_async_subscriber_goes_on_with_the_next_event_when_its_task_was_cancelled(
    bus: EventBus,
) -> None:
    handler = Handler()
    bus.subscribe(handler)
    bus.publish(completed(1))
    bus.publish(completed(2))
    await handler.began.get()
    (task,) = bus._busy
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    handler.may_end.set()
    bus.publish(completed(3))
    await bus.drain(PATIENCE)
    assert handler.handled == [completed(2), completed(3)]


async def test_drain_cancels_a_subscriber_that_does_not_end(
    bus: EventBus, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Handler()
    bus.subscribe(handler)
    for number in range(3):
        bus.publish(completed(number))
    await handler.began.get()
    await bus.drain(0)
    assert not bus._busy
    assert handler.handled == []
    assert records_of(caplog)[0].getMessage() == (
        "event subscriber Handler cancelled: it did not handle its events within 0 s after the shutdown, "
        "2 more are discarded"
    )
    handler.may_end.set()
    bus.publish(completed(3))
    await bus.drain(PATIENCE)
    assert handler.handled == [completed(3)]


async def test_drain_does_not_wait_for_the_subscriber_that_calls_it(bus: EventBus) -> None:
    drained = asyncio.Event()

    async def handle(_event: Event) -> None:
        await bus.drain(PATIENCE)
        drained.set()

    bus.subscribe(handle)
    bus.publish(FAILED)
    await asyncio.wait_for(drained.wait(), PATIENCE / 2)


def test_async_subscriber_works_in_a_second_event_loop(bus: EventBus) -> None:
    handled: list[Event] = []

    async def handle(event: Event) -> None:
        handled.append(event)
        await asyncio.sleep(0)

    bus.subscribe(handle)

    async def publish(event: Event) -> None:
        bus.publish(event)
        await bus.drain(PATIENCE)

    asyncio.run(publish(FAILED))
    asyncio.run(publish(completed(1)))
    assert handled == [FAILED, completed(1)]


async def test_stream_returns_events_in_order_from_its_creation_on(bus: EventBus) -> None:
    bus.publish(completed(0))
    stream = bus.stream(JobCompleted)
    bus.publish(completed(1))
    bus.publish(WorkerStarted("w"))
    bus.publish(completed(2))
    assert [await anext(stream), await anext(stream)] == [completed(1), completed(2)]
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    bus.publish(completed(3))
    assert await waiting == completed(3)


async def test_stream_returns_the_number_of_dropped_events_when_it_is_not_read(bus: EventBus) -> None:
    stream = bus.stream(JobCompleted)
    for number in range(MAX_QUEUED_EVENTS + 3):
        bus.publish(completed(number))
    assert await anext(stream) == EventsDropped(3, "events()")
    assert await anext(stream) == completed(3)


async def test_stream_ends_after_its_events_when_the_scheduler_stops(bus: EventBus) -> None:
    stream = bus.stream()
    idle = bus.stream()
    seen: list[Event] = []
    bus.subscribe(seen.append)
    waiting = asyncio.ensure_future(anext(idle, None))
    await asyncio.sleep(0)
    bus.publish(FAILED)
    assert await waiting == FAILED
    waiting = asyncio.ensure_future(anext(idle, None))
    await asyncio.sleep(0)
    bus.end_streams()
    assert await waiting is None
    bus.publish(completed(1))
    assert [event async for event in stream] == [FAILED]
    assert seen == [FAILED, completed(1)], "functions remain subscribed"


async def test_closed_stream_returns_nothing(bus: EventBus) -> None:
    stream = bus.stream(JobFailed)
    bus.publish(FAILED)
    await stream.aclose()
    assert [event async for event in stream] == []
    assert not bus._subscriptions


async def test_subscription_of_a_stream_ends_when_its_loop_is_left(bus: EventBus) -> None:
    bus.publish(FAILED)
    stream = bus.stream(JobFailed)
    bus.publish(FAILED)
    async for event in stream:
        assert event == FAILED
        break
    del stream
    gc.collect()
    assert not bus._subscriptions
