"""Events of other nodes: delivery, subscriptions, gaps, costs, and messages that were written by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    ConfigurationError,
    DatabaseUnavailableError,
    JobSpec,
    NotRunningError,
    Scheduler,
    events,
)
from pg_scheduler.cluster_events.relay import EventRelay
from pg_scheduler.cluster_events.wire import names_of
from pg_scheduler.events import (
    Event,
    EventsDropped,
    EventsMissed,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobScheduled,
    JobStarted,
    LeaseLost,
    ListenerLost,
    PassFinished,
    WorkerStarted,
    WorkerStopped,
)
from pg_scheduler.queue.outbox import MAX_NOTIFICATION_BYTES
from tests.api.conftest import Make, Pools
from tests.support import inside
from tests.support.inside import bus_of, store_of, worker_of
from tests.support.statements import Statements
from tests.support.worker import PATIENCE, Recorder, listening_pid, now, wire_to

TEXT = "x" * 5_000


async def work(*args: Any) -> None: ...


async def fail(text: str = "no") -> None:
    raise ValueError(text)


def relay_of(scheduler: Scheduler) -> EventRelay:
    return worker_of(scheduler).relay


def with_subclasses(names: Iterable[str]) -> set[str]:
    """The names of these classes, and of those that are derived from them."""
    return set(names_of([getattr(events, name) for name in names]))


async def until_wanted(sender: Scheduler, *names: str) -> None:
    """Wait until a node sends exactly these classes."""
    passes = sender.events(PassFinished)
    async with asyncio.timeout(PATIENCE):
        while relay_of(sender)._audience.kinds != with_subclasses(names):
            await anext(passes)
    await passes.aclose()


async def until_announced(scheduler: Scheduler, *names: str) -> None:
    """Wait until a node has announced exactly these classes."""
    passes = scheduler.events(PassFinished)
    async with asyncio.timeout(PATIENCE):
        while relay_of(scheduler)._announced != with_subclasses(names):
            await anext(passes)
    await passes.aclose()


class Seen:
    """A cluster subscriber that records."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.changed.set()

    async def until(self, count: int) -> list[Event]:
        async with asyncio.timeout(PATIENCE):
            while len(self.events) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.events


@pytest.fixture
def sent() -> Statements:
    return Statements()


@pytest.fixture
async def sender(make: Make, dsn: str, sent: Statements) -> AsyncIterator[Scheduler]:
    """Return a running node whose statements are recorded."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5, init=sent.listen) as pool:
        scheduler = make(pool)
        scheduler.register(work)
        scheduler.register(fail)
        async with scheduler:
            yield scheduler


@pytest.fixture
async def watcher(make: Make) -> Scheduler:
    """Return a running node that runs none of the jobs."""
    scheduler = make()
    await scheduler.start()
    relay_of(scheduler).linger_s = 0
    return scheduler


async def test_cluster_subscriber_receives_the_events_of_another_node(
    sender: Scheduler, watcher: Scheduler
) -> None:
    seen = Seen()
    watcher.subscribe(seen, JobStarted, JobFailed, cluster=True)
    await until_wanted(sender, "JobStarted", "JobFailed")
    due = now()
    job_id = await sender.schedule(fail, execution_time=due, args=(TEXT,))
    started, failed = await seen.until(2)
    assert started == JobStarted(job_id, f"{__name__}.fail", 1, due)
    assert failed == JobFailed(job_id, f"{__name__}.fail", 1, error=f"ValueError: {TEXT}"[:200])


async def test_cluster_subscriber_receives_the_events_of_its_own_node_in_the_same_form(
    sender: Scheduler,
) -> None:
    seen = Seen()
    sender.subscribe(seen, JobFailed, cluster=True)
    own = Recorder(sender)
    await sender.schedule(fail, execution_time=now(), args=(TEXT,))
    (failed,) = await seen.until(1)
    (complete,) = await own.until(JobFailed)
    assert isinstance(failed, JobFailed)
    assert (failed.exception, len(failed.error)) == (None, 200)
    assert complete.exception is not None


async def test_next_event_and_events_receive_events_of_another_node(
    sender: Scheduler, watcher: Scheduler
) -> None:
    waiting = asyncio.ensure_future(watcher.next_event(JobCompleted, cluster=True, timeout=PATIENCE))
    await asyncio.sleep(0)
    events = watcher.events(JobEvent, cluster=True)
    await until_wanted(sender, *sorted(relay_of(watcher)._own_names))
    job_id = await sender.schedule(work, execution_time=now())
    assert await waiting == JobCompleted(job_id, f"{__name__}.work", 1)
    assert [type(await anext(events)) for _ in range(2)] == [JobStarted, JobCompleted]


async def test_events_of_a_node_arrive_in_order_and_once(sender: Scheduler, watcher: Scheduler) -> None:
    seen = Seen()
    own = Seen()
    watcher.subscribe(seen, JobStarted, JobCompleted, cluster=True)
    await until_wanted(sender, "JobStarted", "JobCompleted")
    sender.subscribe(own, JobStarted, JobCompleted)
    await sender.schedule_bulk([JobSpec(work, now()) for _ in range(300)])
    await seen.until(600)
    assert seen.events == own.events


async def test_worker_events_include_the_end_of_a_node(make: Make, pools: Pools, watcher: Scheduler) -> None:
    seen = Seen()
    watcher.subscribe(seen, WorkerStarted, WorkerStopped, cluster=True)
    await until_announced(watcher, "WorkerStarted", "WorkerStopped")
    async with make(await pools(5)) as other:
        pass
    started, stopped = await seen.until(2)
    assert isinstance(started, WorkerStarted)
    assert started.worker_id == other.worker_id
    assert stopped == WorkerStopped(other.worker_id)


async def test_node_sends_a_class_only_while_another_worker_subscribes(
    sender: Scheduler, watcher: Scheduler
) -> None:
    unsubscribe = watcher.subscribe(Seen(), JobStarted, cluster=True)
    await until_wanted(sender, "JobStarted")
    second = watcher.subscribe(Seen(), JobFailed, JobStarted, cluster=True)
    await until_wanted(sender, "JobStarted", "JobFailed")
    unsubscribe()
    second()
    await until_wanted(sender)
    assert not bus_of(sender).wants(JobStarted)


async def test_announced_class_remains_announced_for_a_while(make: Make, pool: asyncpg.Pool) -> None:
    """So waiting for one event after the other writes the worker's row once."""
    scheduler = make()
    await scheduler.start()
    unsubscribe = scheduler.subscribe(Seen(), JobFailed, cluster=True)
    await until_announced(scheduler, "JobFailed")
    unsubscribe()
    scheduler.subscribe(Seen(), JobStarted, cluster=True)
    await until_announced(scheduler, "JobFailed", "JobStarted")
    row = "SELECT subscriptions FROM scheduler_workers"
    assert await pool.fetchval(row) == ["JobDeadlineExceeded", "JobFailed", "JobStarted"]
    assert 0 < await relay_of(scheduler).run_once() <= EventRelay.linger_s


async def test_subscription_is_announced_again_when_the_row_of_the_worker_was_deleted(
    sender: Scheduler, watcher: Scheduler, pool: asyncpg.Pool
) -> None:
    watcher.subscribe(Seen(), JobFailed, cluster=True)
    await until_wanted(sender, "JobFailed")
    await pool.execute("DELETE FROM scheduler_workers WHERE worker_id = $1", watcher.worker_id)
    await worker_of(sender).heartbeat.run_once()
    assert relay_of(sender)._audience.kinds == set()
    await worker_of(watcher).heartbeat.run_once()
    await until_wanted(sender, "JobFailed")


async def test_cluster_subscription_continues_after_a_restart(sender: Scheduler, watcher: Scheduler) -> None:
    seen = Seen()
    watcher.subscribe(seen, JobCompleted, cluster=True)
    stream = watcher.events(JobCompleted, cluster=True)
    await watcher.shutdown()
    assert [event async for event in stream] == []
    await watcher.start()
    await until_wanted(sender, "JobCompleted")
    await sender.schedule(work, execution_time=now())
    assert [type(event) for event in await seen.until(1)] == [JobCompleted]


# -- conditions ----------------------------------------------------------------------------------------


async def test_cluster_subscription_raises_not_running_error_when_not_started(make: Make) -> None:
    scheduler = make()
    with pytest.raises(NotRunningError):
        scheduler.subscribe(print, cluster=True)
    with pytest.raises(NotRunningError):
        scheduler.events(cluster=True)
    with pytest.raises(NotRunningError):
        await scheduler.next_event(cluster=True)


async def test_cluster_subscription_raises_configuration_error_without_listen(
    make: Make, pools: Pools
) -> None:
    scheduler = make(await pools(2))
    await scheduler.start()
    with pytest.raises(ConfigurationError, match="requires notifications: the pool is too small"):
        scheduler.subscribe(print, JobFailed, cluster=True)


async def test_cluster_subscription_raises_configuration_error_when_notifications_do_not_arrive(
    make: Make, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind PgBouncer in transaction mode. Real time: that nothing comes has to be waited for."""
    async with wire_to(dsn) as wire:
        wire.loses_notifications = True
        scheduler = make(direct_dsn=wire.dsn)
        inside.replace(monkeypatch, probe_timeout_of_listener_s=0.1)
        await scheduler.start()
        with pytest.raises(ConfigurationError, match=r"notifications do not arrive.*direct_dsn"):
            await scheduler.next_event(JobFailed, cluster=True)
        await scheduler.shutdown()


@pytest.mark.parametrize("kind", [PassFinished, JobScheduled])
async def test_cluster_subscription_raises_value_error_when_a_class_is_not_sent(
    watcher: Scheduler, kind: type[Event]
) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__} concerns one process only"):
        watcher.subscribe(print, JobFailed, kind, cluster=True)
    with pytest.raises(TypeError, match="must be event classes"):
        watcher.subscribe(print, int, cluster=True)  # type: ignore[arg-type]


async def test_cluster_subscription_may_name_the_events_about_lost_ones(watcher: Scheduler) -> None:
    seen = Seen()
    watcher.subscribe(seen, EventsMissed, EventsDropped, cluster=True)
    relay_of(watcher).missed(now())
    (missed,) = await seen.until(1)
    assert isinstance(missed, EventsMissed)


# -- costs ---------------------------------------------------------------------------------------------


async def test_node_sends_nothing_for_events_when_no_worker_subscribes(
    sender: Scheduler, watcher: Scheduler, sent: Statements
) -> None:
    relay = relay_of(sender)
    completed = Recorder(sender)
    await sent.take()
    await sender.schedule_bulk([JobSpec(work, now()) for _ in range(50)])
    await completed.until(JobCompleted, 50)
    drain = await sent.take()
    assert drain.named["announce_subscriptions"] == 0
    assert drain.named["notify"] <= 1, "the notification of the due jobs"
    assert relay._number == 0
    assert (await sent.of(relay.run_once())).named == {}
    assert await relay.run_once() == float("inf")


async def test_events_within_the_gap_share_one_statement(
    make: Make, pools: Pools, sent: Statements, watcher: Scheduler, dsn: str
) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5, init=sent.listen) as pool:
        sender = make(pool, max_concurrent_jobs=50)
        sender.register(work)
        async with sender:
            relay_of(sender).gap_s = 3600
            seen = Seen()
            watcher.subscribe(seen, JobCompleted, cluster=True)
            await until_wanted(sender, "JobCompleted")
            relay_of(sender)._next_send = float("inf")
            completed = Recorder(sender)
            await sender.schedule_bulk([JobSpec(work, now(), job_id="j" * 500 + str(n)) for n in range(50)])
            await completed.until(JobCompleted, 50)
            sends = await sent.of(relay_of(sender)._send(at_once=True))
            assert sends.named == {"notify": 1}
            assert 4 <= relay_of(sender)._number <= 5, "27 kB in notifications of 7 kB"
            assert len(await seen.until(50)) == 50


# -- gaps ----------------------------------------------------------------------------------------------


async def test_subscriber_is_told_what_it_missed_when_the_listen_connection_was_lost(
    sender: Scheduler, watcher: Scheduler, pool: asyncpg.Pool
) -> None:
    seen = Seen()
    watcher.subscribe(seen, JobCompleted, cluster=True)
    await until_wanted(sender, "JobCompleted")
    own = Recorder(watcher)
    before = datetime.now(UTC)
    await pool.execute("SELECT pg_terminate_backend($1)", listening_pid(watcher))
    await own.until(ListenerLost)
    (missed,) = await seen.until(1)
    assert isinstance(missed, EventsMissed)
    assert before - timedelta(seconds=PATIENCE) < missed.since <= datetime.now(UTC)
    await until_wanted(sender, "JobCompleted")
    await sender.schedule(work, execution_time=now())
    await seen.until(2)
    assert isinstance(seen.events[1], JobCompleted)


async def test_subscriber_is_told_when_the_notifications_of_a_node_have_a_gap(
    sender: Scheduler, watcher: Scheduler
) -> None:
    seen = Seen()
    watcher.subscribe(seen, JobCompleted, cluster=True)
    await until_wanted(sender, "JobCompleted")
    relay = relay_of(sender)
    relay.max_waiting = 2
    for job_id in "abc":
        relay.relay(JobCompleted(job_id, "name", 1))
    relay.relay(JobCompleted("x" * MAX_NOTIFICATION_BYTES, "too long", 1))
    await relay._send(at_once=True)
    relay.relay(JobCompleted("d", "name", 1))
    relay.relay(JobCompleted("x" * MAX_NOTIFICATION_BYTES, "too long", 1))
    await relay._send(at_once=True)
    relay.relay(JobCompleted("e", "name", 1))
    await relay._send(at_once=True)
    await seen.until(4)
    assert [getattr(event, "job_id", type(event).__name__) for event in seen.events] == [
        "c",
        "EventsMissed",
        "d",
        "e",
    ]


async def test_node_drops_events_and_continues_when_the_database_is_unavailable(
    sender: Scheduler, watcher: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher.subscribe(Seen(), JobCompleted, cluster=True)
    await until_wanted(sender, "JobCompleted")
    relay = relay_of(sender)

    async def refuse(_messages: object) -> None:
        raise DatabaseUnavailableError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(store_of(sender).locks, "notify", refuse)
        relay._waiting.append(JobCompleted("a", "name", 1))
        with pytest.raises(DatabaseUnavailableError):
            await relay._send(at_once=True)
        assert not relay._waiting
        assert relay._number == 1, "so receivers detect the gap"
        relay._waiting.append(JobCompleted("b", "name", 1))
        await relay.stop()  # the results of the worker are not concerned
    assert not bus_of(sender).wants(JobCompleted)


# -- messages written by hand --------------------------------------------------------------------------

EVENT = '["JobCompleted",{"job_id":"a","job_name":"b","attempt":1}]'

HOSTILE = [
    "events",
    "events ",
    "events a",
    "events a 1",
    "events a b []",
    "events a -1 []",
    "events a ² []",
    f"events a {'9' * 16} [{EVENT}]",
    f"events {'s' * 33} 1 [{EVENT}]",
    "events a 1 " + "[" * 7_900,
    "events a 1 null",
    "events a 1 " + json.dumps([["JobCompleted", {"job_id": [], "job_name": {}, "attempt": "x"}]]),
    "events a 1 " + json.dumps([["LeaseLost", {"worker_id": None}], ["os.system", {}]]),
    "subscriptions",
    "subscriptions " + "x" * 7_000,
    "\u202e",
    "",
]


async def test_messages_written_by_hand_change_nothing(
    watcher: Scheduler, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    watcher.subscribe(seen, JobCompleted, LeaseLost, cluster=True)
    channel = await store_of(watcher).locks.channel()
    for message in [*HOSTILE, f"events a 7 [{EVENT}]"]:
        await pool.execute("SELECT pg_notify($1, $2)", channel, message)
    assert await seen.until(1) == [JobCompleted("a", "b", 1)]
    assert watcher.is_running
    assert not [record for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}]


async def test_node_ignores_events_when_it_has_no_subscriber(watcher: Scheduler, pool: asyncpg.Pool) -> None:
    relay = relay_of(watcher)
    relay.receive(f"a 1 [{EVENT}]")
    assert not relay._last_received


async def test_node_remembers_a_bounded_number_of_senders(watcher: Scheduler) -> None:
    seen = Seen()
    watcher.subscribe(seen, JobCompleted, cluster=True)
    relay = relay_of(watcher)
    for number in range(1_100):
        relay.receive(f"sender{number} 1 [{EVENT}]")
    assert len(relay._last_received) == 1_000
    assert len(seen.events) == 1_100


@pytest.mark.parametrize(
    "names", ["{NULL}", "{unknown,JobFailed}", "{{JobFailed},{x}}", "{}", "{PassFinished}"]
)
async def test_subscriptions_written_by_hand_change_nothing(
    sender: Scheduler, watcher: Scheduler, pool: asyncpg.Pool, names: str
) -> None:
    seen = Recorder(sender)
    await pool.execute("UPDATE scheduler_workers SET subscriptions = $1::text::text[]", names)
    await worker_of(sender).heartbeat.run_once()
    await sender.schedule(fail, execution_time=now())
    await seen.until(JobFailed)
    assert sender.is_running


async def test_table_rejects_subscriptions_that_are_long(watcher: Scheduler, pool: asyncpg.Pool) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        await pool.execute(
            "UPDATE scheduler_workers"
            " SET subscriptions = ARRAY (SELECT md5(n::text) FROM generate_series(1, 500) AS n)"
        )
