"""The relay of events to other nodes, pass by pass."""

from __future__ import annotations

import asyncio

import asyncpg

from pg_scheduler.events import EventBus, JobCompleted
from tests.support.inside import Store
from tests.support.parts import Parts
from tests.support.patience import PATIENCE


async def listen(dsn: str, store: Store) -> tuple[asyncpg.Connection, asyncio.Queue[str]]:
    """Return a connection that listens, and the queue of the messages that it receives."""
    messages: asyncio.Queue[str] = asyncio.Queue()
    connection = await asyncpg.connect(dsn)
    await connection.add_listener(
        await store.statements.channel(), lambda _c, _p, _n, text: messages.put_nowait(text)
    )
    return connection, messages


async def test_relay_omits_an_event_that_no_notification_can_hold_and_leaves_a_gap(
    parts: Parts, bus: EventBus, dsn: str
) -> None:
    connection, messages = await listen(dsn, parts.store)
    parts.audience.update({"JobCompleted"})
    relay = parts.relay()
    relay.gap_s = 0.0
    await relay.prepare()
    bus.publish(JobCompleted("x" * 9000, "too long", 1))
    await relay.run_once()
    bus.publish(JobCompleted("a", "short", 1))
    await relay.run_once()
    message = await asyncio.wait_for(messages.get(), PATIENCE)
    assert '"short"' in message
    assert message.split()[2] == "2"  # number 1 is the event that was omitted
    assert messages.empty()
    await relay.drain()
    await connection.close()


async def test_relay_that_was_not_started_ends_iterations_and_sends_nothing(parts: Parts, dsn: str) -> None:
    connection, messages = await listen(dsn, parts.store)
    stream = parts.cluster_events.stream()
    parts.cluster_events.publish(JobCompleted("a", "b", 1))
    await parts.relay().drain()
    async with asyncio.timeout(PATIENCE):
        assert [event async for event in stream] == [JobCompleted("a", "b", 1)]
    await connection.execute("SELECT 1")  # a notification would have arrived before the answer
    assert messages.empty()
    await connection.close()
