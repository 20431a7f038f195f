"""Few messages, each sent at the right time, none forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError
from pg_scheduler.enqueue.enqueuer import Enqueuer
from pg_scheduler.events import ServiceRetrying
from pg_scheduler.jobs.ids import new_job_id
from pg_scheduler.jobs.model import ConflictResolution
from pg_scheduler.jobs.rows import GeneratedIdJob, NewJob
from pg_scheduler.store.connections.pool import Connections
from pg_scheduler.store.store import Store
from pg_scheduler.worker.announcer import Announcer
from pg_scheduler.worker.service import NEVER
from tests.support.parts import Parts
from tests.support.worker import PATIENCE, Recorder, new_job, now


class Ear:
    """A session that listens on the schedulers' channel."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self._changed = asyncio.Event()

    def hear(self, _connection: object, _pid: int, _channel: str, message: object) -> None:
        self.heard.append(str(message))
        self._changed.set()

    async def until(self, count: int) -> list[str]:
        async with asyncio.timeout(PATIENCE):
            while len(self.heard) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.heard


@pytest.fixture
async def ear(dsn: str, store: Store) -> AsyncIterator[Ear]:
    ear = Ear()
    connection = await asyncpg.connect(dsn)
    await connection.add_listener(await store.channel(), ear.hear)
    yield ear
    await connection.close()


async def test_what_gathers_goes_out_once(parts: Parts, ear: Ear) -> None:
    announcer = parts.announcer()
    for _ in range(50):
        announcer.due_soon()
        announcer.periodic_soon()
    assert await announcer.run_once() > 0
    assert await announcer.run_once() == NEVER
    await parts.store.notify(["end"])
    assert await ear.until(3) == ["due", "periodic", "end"]
    assert parts.calls == ["due"] * 50  # this process is told every time, and at once


async def test_two_batches_keep_their_distance(parts: Parts, ear: Ear) -> None:
    announcer = parts.announcer()
    announcer.due_soon()
    await announcer.run_once()
    announcer.due_soon()
    announcer._next_send += 60  # as if the first one had just gone out
    assert 59 < await announcer.run_once() <= 61
    assert await ear.until(1) == ["due"]


async def test_far_jobs_are_not_announced(parts: Parts) -> None:
    announcer = parts.announcer(horizon=4)
    await announcer.start()
    await announcer.due(now() + timedelta(seconds=10))
    assert parts.calls == []
    assert announcer._messages == {}
    await announcer.due(now() + timedelta(seconds=2))
    assert parts.calls == ["due"]
    await announcer.stop()


async def test_a_process_that_never_starts_sends_at_once(parts: Parts, ear: Ear) -> None:
    announcer = parts.announcer()
    await announcer.due(now())
    await announcer.check("other")
    await announcer.periodic()
    assert announcer._messages == {}
    assert await ear.until(3) == ["due", "check other", "periodic"]


async def test_a_running_one_sends_by_itself_and_the_rest_when_it_stops(parts: Parts, ear: Ear) -> None:
    announcer = parts.announcer()
    await announcer.start()
    await announcer.check("other")
    assert await ear.until(1) == ["check other"]
    announcer._next_send += 60
    await announcer.check("another")
    await announcer.stop()
    assert await ear.until(2) == ["check other", "check another"]


async def test_who_is_asked_is_asked_at_once(parts: Parts, ear: Ear) -> None:
    announcer = parts.announcer()
    await announcer.start()
    announcer._next_send += 60
    await announcer.ask(["one", "x" * 8000, "two"])
    assert await ear.until(2) == ["check one", "check two"]
    await announcer.ask(["x" * 8000])
    await announcer.stop()


async def test_a_message_that_could_not_be_sent_is_kept(bus: Any, dsn: str, ear: Ear) -> None:
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=1)
    announcer = Parts(Store(Connections(pool), schema="public"), bus).announcer()
    announcer.due_soon()
    await pool.close()
    with pytest.raises(DatabaseUnavailableError):
        await announcer.run_once()
    announcer.periodic_soon()
    announcer._store = Store(Connections(pool := await asyncpg.create_pool(dsn, min_size=1, max_size=1)))
    await announcer.run_once()
    assert await ear.until(2) == ["due", "periodic"]
    await pool.close()


async def test_what_is_committed_is_no_failure_because_word_of_it_could_not_be_sent(
    parts: Parts, seen: Recorder, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever scheduled a job and was told of an error would schedule it again."""

    async def away(_messages: Sequence[str]) -> None:
        raise DatabaseUnavailableError("away")

    announcer = parts.announcer()
    with monkeypatch.context() as patched:
        patched.setattr(parts.store, "notify", away)
        await announcer.due(now())
    assert len(seen.of(ServiceRetrying, service="announcer")) == 1
    await announcer.check("other")
    assert await ear.until(2) == ["due", "check other"]


async def test_a_message_that_comes_while_its_like_is_being_sent_goes_out_too(
    parts: Parts, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one may have been read by others before what the second is about was committed."""
    real = parts.store.notify

    async def slow_answer(messages: Sequence[str], **rest: Any) -> None:
        await real(messages, **rest)
        if not sent.is_set():
            sent.set()
            await answer.wait()

    sent, answer = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(parts.store, "notify", slow_answer)
    announcer = parts.announcer()
    await announcer.start()
    await announcer.check("other")
    await sent.wait()
    await announcer.check("other")
    answer.set()
    assert await ear.until(2) == ["check other", "check other"]
    await announcer.stop()


async def test_a_process_that_only_enqueues_sends_many_words_as_few(parts: Parts, ear: Ear) -> None:
    announcer = parts.announcer()
    await announcer.due(now())
    announcer._next_send += 0.05  # real time: what comes in before that goes out then
    for _ in range(100):
        await announcer.due(now())
    assert await ear.until(1) == ["due"]
    assert await ear.until(2) == ["due", "due"]
    assert announcer._messages == {}


def fresh(**values: Any) -> GeneratedIdJob:
    return GeneratedIdJob(*new_job(new_job_id(), **values))


async def insert(parts: Parts, announcer: Announcer, *jobs: NewJob) -> None:
    """As single calls do."""
    enqueuer = Enqueuer(parts.store, parts.tasks, announcer, misfire_grace_time=None, max_payload_bytes=None)
    await asyncio.gather(*(enqueuer.insert(job, ConflictResolution.IGNORE, None) for job in jobs))


async def test_word_goes_along_with_the_insert(
    parts: Parts, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    announcer = parts.announcer()
    with monkeypatch.context() as patched:
        patched.delattr(Store, "notify")  # nothing else is sent
        await insert(parts, announcer, fresh())
        announcer._next_send = 0
        await insert(parts, announcer, new_job("named"))
    assert announcer._messages == {}
    assert parts.calls == ["due"] * 2
    assert await ear.until(2) == ["due"] * 2


async def test_an_insert_that_inserts_nothing_says_nothing(parts: Parts, ear: Ear) -> None:
    announcer = parts.announcer()
    await parts.store.insert([new_job("a")])
    await insert(parts, announcer, new_job("a"))
    await insert(parts, announcer, fresh(execution_time=now() + timedelta(days=1)))
    await parts.store.notify(["end"])
    assert await ear.until(1) == ["end"]
    assert parts.calls == []


async def test_an_insert_takes_along_what_gathered(
    parts: Parts, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    announcer = parts.announcer()
    announcer._next_send += 10**9  # the last word has only just gone out
    await insert(parts, announcer, fresh(), fresh())
    assert announcer._messages
    announcer._next_send = 0
    with monkeypatch.context() as patched:
        patched.delattr(Store, "notify")
        await insert(parts, announcer, fresh())
    assert (announcer._messages, announcer._trailing) == ({}, None)
    assert await ear.until(1) == ["due"]


async def test_what_was_committed_while_an_insert_was_under_way_is_told_too(parts: Parts, ear: Ear) -> None:
    """Whoever heard the insert's word may have looked before that."""
    announcer = parts.announcer()
    announcer.unsaid()
    announcer.said(since=0)
    assert announcer._messages
    assert await ear.until(1) == ["due"]


async def test_what_no_insert_takes_along_goes_out_by_itself(parts: Parts, ear: Ear) -> None:
    announcer = parts.announcer()
    await insert(parts, announcer, fresh())
    await insert(parts, announcer, fresh())
    assert await ear.until(2) == ["due", "due"]
    await announcer.start()
    announcer.unsaid()
    assert await ear.until(3) == ["due"] * 3
    await announcer.stop()
