"""The listener receives notifications, and detects when none arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError
from pg_scheduler.database.options import ConnectionOptions
from pg_scheduler.events import EventBus, ListenerConnected, ListenerLost, ServiceFaulted, ServiceRetrying
from pg_scheduler.worker import notifications
from pg_scheduler.worker.notifications import NOT_RECEIVING, TOO_SMALL, Listener
from tests.support.inside import NEVER, Connections, Store
from tests.support.parts import Parts
from tests.support.worker import PATIENCE, Recorder, Wire, holds, kill_backends, wire_to

SIGNALS = {
    "due": "due",
    "due other": "due",
    "due other 1.5": "due",
    "check me": "heartbeat_requested",
    "periodic": "schedules_changed",
}


@pytest.fixture
async def wire(dsn: str) -> AsyncIterator[Wire]:
    async with wire_to(dsn) as wire:
        yield wire


async def received(parts: Parts, *messages: str) -> None:
    """Wait until what was sent has arrived, and nothing else."""
    parts.calls.clear()
    await parts.store.locks.notify([*messages, "check me"])
    await parts.calls.until(*(SIGNALS[message] for message in (*messages, "check me")))


async def test_listener_receives_notifications_when_it_has_started(parts: Parts, seen: Recorder) -> None:
    listener = parts.listener()
    assert not holds(listener.is_receiving)
    await listener.start()
    assert holds(listener.is_receiving)
    assert parts.calls == ["notifications_up"]
    assert seen.of(ListenerConnected) == [ListenerConnected(await parts.store.locks.channel())]
    await received(parts, "due", "due other", "due other 1.5", "periodic")
    assert 0 < await listener.run_once() <= Listener.check_interval_s
    await listener.stop()
    assert not holds(listener.is_receiving)


@pytest.mark.parametrize("message", ["hello other", "check other", "due mine", "due mine 1.5", "unknown"])
async def test_listener_ignores_notifications_for_others(parts: Parts, message: str) -> None:
    listener = parts.listener()
    await listener.start()
    parts.calls.clear()
    await parts.store.locks.notify([message, "due"])
    await parts.calls.until("due")
    await listener.stop()


async def test_listener_receives_nothing_from_another_schema(parts: Parts, pool: asyncpg.Pool) -> None:
    listener = parts.listener()
    await listener.start()
    await Store(Connections(pool), schema="other").locks.notify(["due"])
    await received(parts, "periodic")
    await listener.stop()


@pytest.mark.parametrize("size", [1, 2])
async def test_listener_does_not_listen_when_the_pool_is_too_small(
    dsn: str, bus: EventBus, seen: Recorder, size: int
) -> None:
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=size)
    listener = Parts(Store(Connections(pool)), bus).listener()
    assert await listener.run_once() == NEVER
    assert seen.events == [ListenerLost(TOO_SMALL)]
    assert not holds(listener.is_receiving)
    await pool.close()


async def test_listener_uses_the_direct_dsn_when_the_pool_is_too_small(
    dsn: str, bus: EventBus, seen: Recorder
) -> None:
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=1)
    listener = Parts(Store(Connections(pool, direct_dsn=dsn)), bus).listener()
    await listener.start()
    assert holds(listener.is_receiving)
    await listener.stop()
    await pool.close()
    assert not seen.of(ServiceRetrying)


@pytest.mark.parametrize("own", [False, True], ids=["pooled", "own"])
async def test_listener_reconnects_when_its_connection_is_terminated(
    dsn: str, pool: asyncpg.Pool, bus: EventBus, seen: Recorder, own: bool
) -> None:
    parts = Parts(Store(Connections(pool, direct_dsn=dsn if own else None)), bus)
    listener = parts.listener()
    await listener.start()
    assert await kill_backends(dsn, "LISTEN%") == 1
    await seen.until(ListenerLost)
    await seen.until(ListenerConnected, 2)
    assert holds(listener.is_receiving)
    missed = ["notifications_up", "connection_lost", "notifications_lost", "notifications_up"]
    assert parts.calls == missed  # what was missed meanwhile is looked up
    await received(parts, "due")
    await listener.stop()
    assert not seen.of(ServiceFaulted)


async def test_listener_reconnects_after_an_outage(
    wire: Wire, pool: asyncpg.Pool, bus: EventBus, seen: Recorder
) -> None:
    parts = Parts(Store(Connections(pool, direct_dsn=wire.dsn)), bus)
    listener = parts.listener()
    await listener.start()
    wire.cut()
    await seen.until(ServiceRetrying, 2)
    assert not holds(listener.is_receiving)
    await wire.heal()
    await seen.until(ListenerConnected, 2)
    assert holds(listener.is_receiving)
    await listener.stop()


async def test_listener_reports_a_connection_that_receives_no_notifications(
    wire: Wire, pool: asyncpg.Pool, bus: EventBus, seen: Recorder
) -> None:
    """As behind PgBouncer in transaction mode. Real time: that nothing comes has to be waited for."""
    parts = Parts(Store(Connections(pool, direct_dsn=wire.dsn)), bus)
    listener = parts.listener()
    listener.probe_timeout_s = 0.2
    wire.loses_notifications = True
    assert await listener.run_once() == Listener.retry_interval_s
    assert seen.events == [ListenerLost(NOT_RECEIVING)]
    assert not holds(listener.is_receiving)
    wire.loses_notifications = False
    assert await listener.run_once() == Listener.check_interval_s
    assert holds(listener.is_receiving)
    await listener.drain()


async def test_listener_replaces_a_half_open_connection(
    wire: Wire, pool: asyncpg.Pool, bus: EventBus, seen: Recorder
) -> None:
    """Real time: no answer comes, which has to be waited for."""
    options = ConnectionOptions(answer_timeout_s=0.2)
    parts = Parts(Store(Connections(pool, direct_dsn=wire.dsn, options=options)), bus)
    listener = parts.listener()
    listener.check_interval_s = 0.1
    await listener.start()
    wire.freeze_old_connections()
    await seen.until(ServiceRetrying)
    await seen.until(ListenerConnected, 2)
    await received(parts, "due")
    await listener.stop()


async def test_listener_stops_when_its_connection_is_half_open(
    wire: Wire, pool: asyncpg.Pool, bus: EventBus
) -> None:
    """Real time: no answer comes, which has to be waited for."""
    options = ConnectionOptions(call_timeout_s=0.1, close_timeout_s=0.1)
    listener = Parts(Store(Connections(pool, direct_dsn=wire.dsn, options=options)), bus).listener()
    await listener.start()
    wire.freeze_old_connections()
    async with asyncio.timeout(PATIENCE):
        await listener.stop()
    assert not holds(listener.is_receiving)


async def test_subscription_closes_a_half_open_connection_that_it_has_not_shared(
    wire: Wire, pool: asyncpg.Pool
) -> None:
    """Real time: no answer comes, which has to be waited for."""
    store = Store(Connections(pool, direct_dsn=wire.dsn, options=ConnectionOptions(close_timeout_s=0.1)))
    subscription = notifications.Subscription(store, lambda message: None, lambda: None)
    assert await subscription.open()
    subscription._call_timeout_s = 0.1
    connection = subscription._connection
    assert connection is not None
    wire.freeze_old_connections()
    async with asyncio.timeout(PATIENCE):
        await subscription.close()
    assert connection.is_closed()


async def test_subscription_check_does_nothing_without_a_connection(store: Store) -> None:
    subscription = notifications.Subscription(store, lambda message: None, lambda: None)
    await subscription.check(1)
    await subscription.close()
    assert not holds(subscription.is_open)


async def test_listener_leaves_no_connection_when_it_cannot_connect(
    pool: asyncpg.Pool, bus: EventBus
) -> None:
    parts = Parts(Store(Connections(pool, direct_dsn="postgresql://127.0.0.1:1/none")), bus)
    listener: Listener = parts.listener()
    with pytest.raises(DatabaseUnavailableError):
        await listener.run_once()
    await listener.drain()
    assert pool.get_idle_size() == pool.get_size()
