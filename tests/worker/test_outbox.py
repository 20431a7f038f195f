"""Few notifications, each sent at the right time, none forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import ConflictResolution, DatabaseUnavailableError, JobStatus, Scheduler
from pg_scheduler.base.messages import due_message, earliest_due
from pg_scheduler.events import EventBus, ServiceRetrying
from pg_scheduler.jobs.rows import EPOCH
from pg_scheduler.queue.enqueuer import Enqueuer
from pg_scheduler.queue.locks import LockRepository
from pg_scheduler.queue.outbox import Outbox
from pg_scheduler.queue.prepare import JobPreparer, new_job_id
from tests.support.dependencies import add, child
from tests.support.inside import COMPLETE, NEVER, Connections, GeneratedIdJob, PlainJob, Store, outbox_of
from tests.support.parts import Parts
from tests.support.worker import PATIENCE, Recorder, claim, holds, new_job, now

NEVER_S = 1e9
"""The first notification is the last one."""


class Ear:
    """A session that listens on the schedulers' channel; ``heard`` has no due times."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.due: list[datetime | None] = []
        self._changed = asyncio.Event()

    def hear(self, _connection: object, _pid: int, _channel: str, message: object) -> None:
        kind, _, about = str(message).partition(" ")
        if kind == "due":
            self.due.append(earliest_due(about.partition(" ")[2]))
        self.heard.append(kind if kind == "due" else str(message))
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
    await connection.add_listener(await store.locks.channel(), ear.hear)
    yield ear
    await connection.close()


async def spent(parts: Parts, ear: Ear, gap_s: float = NEVER_S) -> Outbox:
    """An outbox that has just sent a notification, and must wait before the next."""
    outbox = parts.use_outbox(gap_s=gap_s)
    await outbox.notify_schedules()
    assert await ear.until(1) == ["periodic"]
    ear.heard.clear()
    return outbox


# -- with a notifier -----------------------------------------------------------------------------------


async def test_notifier_sends_each_message_once_when_it_was_added_many_times(parts: Parts, ear: Ear) -> None:
    outbox = parts.use_outbox()
    notifier = parts.notifier()
    await notifier.prepare()
    for _ in range(50):
        outbox.add_due()
        outbox.add_schedules()
    assert await notifier.run_once() > 0
    assert await notifier.run_once() == NEVER
    await parts.store.locks.notify(["end"])
    assert await ear.until(3) == ["due", "periodic", "end"]
    assert parts.calls == ["due"] * 50, "this process is woken every time, and at once"


async def test_notifier_waits_for_the_minimum_delay_between_two_notifications(parts: Parts, ear: Ear) -> None:
    outbox = await spent(parts, ear, gap_s=60)
    notifier = parts.notifier()
    await notifier.prepare()
    outbox.add_due()
    assert 30 < await notifier.run_once() <= 60
    assert ear.heard == []


async def test_outbox_sends_notifications_only_for_jobs_within_its_horizon(parts: Parts) -> None:
    outbox = parts.use_outbox(horizon_s=4)
    notifier = parts.notifier()
    await notifier.start()
    await outbox.notify_due(now() + timedelta(seconds=10))
    assert parts.calls == []
    assert outbox.flush_in is None
    await outbox.notify_due(now() + timedelta(seconds=2))
    assert parts.calls == ["due"]
    await notifier.stop()


async def test_notifier_sends_the_remaining_messages_when_it_stops(parts: Parts, ear: Ear) -> None:
    outbox = parts.use_outbox(gap_s=NEVER_S)
    notifier = parts.notifier()
    await notifier.start()
    await outbox.notify_worker("other")
    assert await ear.until(1) == ["check other"]
    await outbox.notify_worker("another")
    await notifier.stop()
    assert await ear.until(2) == ["check other", "check another"]


async def test_outbox_requests_heartbeats_at_once(parts: Parts, ear: Ear) -> None:
    outbox = await spent(parts, ear)
    notifier = parts.notifier()
    await notifier.start()
    await outbox.request_heartbeats(["one", "x" * 8000, "two"])
    assert await ear.until(2) == ["check one", "check two"]
    await outbox.request_heartbeats(["x" * 8000])
    await notifier.stop()


async def test_notifier_keeps_a_message_that_it_could_not_send(
    parts: Parts, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = parts.use_outbox()
    notifier = parts.notifier()
    await notifier.prepare()
    outbox.add_due()
    with monkeypatch.context() as patched:
        patched.setattr(parts.store.locks, "notify", unavailable)
        with pytest.raises(DatabaseUnavailableError):
            await notifier.run_once()
    outbox.add_schedules()
    await notifier.run_once()
    assert await ear.until(2) == ["due", "periodic"]


async def test_notifier_sends_a_message_again_when_it_is_added_during_its_send(
    parts: Parts, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other nodes may have acted on the first one before the second one's cause was committed."""
    real = parts.store.locks.notify

    async def slow_answer(messages: Sequence[str], **rest: Any) -> None:
        await real(messages, **rest)
        if not sent.is_set():
            sent.set()
            await answer.wait()

    sent, answer = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(parts.store.locks, "notify", slow_answer)
    outbox = parts.use_outbox()
    notifier = parts.notifier()
    await notifier.start()
    await outbox.notify_worker("other")
    await sent.wait()
    await outbox.notify_worker("other")
    answer.set()
    assert await ear.until(2) == ["check other", "check other"]
    await notifier.stop()


# -- alone ---------------------------------------------------------------------------------------------


async def unavailable(_messages: Sequence[str]) -> None:
    raise DatabaseUnavailableError("away")


async def test_outbox_sends_at_once_when_no_notifier_runs(parts: Parts, ear: Ear) -> None:
    outbox = parts.use_outbox()
    await outbox.notify_due(now())
    await outbox.notify_worker("other")
    await outbox.notify_schedules()
    assert outbox.flush_in is None
    assert await ear.until(3) == ["due", "check other", "periodic"]


async def test_outbox_sends_added_messages_when_no_notifier_runs(parts: Parts, ear: Ear) -> None:
    """It used to wait for the pass of a service that was never started."""
    outbox = parts.use_outbox()
    outbox.add_due()
    outbox.add_schedules()
    assert await ear.until(2) == ["due", "periodic"]
    assert outbox.flush_in is None


async def test_outbox_sends_added_messages_after_its_notifier_stopped(parts: Parts, ear: Ear) -> None:
    outbox = parts.use_outbox()
    notifier = parts.notifier()
    await notifier.start()
    await notifier.stop()
    outbox.add_due()
    assert await ear.until(1) == ["due"]
    assert parts.calls == [], "the claimer has stopped before the notifier"


async def test_retry_job_sends_a_notification_when_the_scheduler_was_not_started(
    pool: asyncpg.Pool, store: Store, ear: Ear
) -> None:
    await store.inserts.insert([new_job("a")])
    await store.jobs.set_status("a", JobStatus.FAILED, 60)
    assert await Scheduler(pool).retry_job("a")
    (message,) = await ear.until(1)
    assert message == "due"
    assert ear.due != [None]


async def test_outbox_raises_no_error_to_the_caller_when_only_the_notification_failed(
    parts: Parts, seen: Recorder, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that got an error for a committed job would schedule it again."""
    outbox = parts.use_outbox()
    with monkeypatch.context() as patched:
        patched.setattr(parts.store.locks, "notify", unavailable)
        await outbox.notify_due(now())
    assert len(seen.of(ServiceRetrying, service="notifier")) == 1
    await outbox.notify_worker("other")
    assert await ear.until(2) == ["due", "check other"]


async def test_outbox_keeps_its_messages_when_the_pool_was_closed(bus: EventBus, dsn: str) -> None:
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=1)
    outbox = Parts(Store(Connections(pool), schema="public"), bus).use_outbox()
    outbox.add_due()
    await pool.close()
    with pytest.raises(DatabaseUnavailableError):
        await outbox.flush()
    assert outbox.flush_in is not None


@pytest.mark.slow
async def test_outbox_sends_one_notification_for_many_calls(parts: Parts, ear: Ear) -> None:
    """Real time: what comes in before the gap is over goes out then."""
    outbox = await spent(parts, ear, gap_s=1)
    for _ in range(100):
        await outbox.notify_due(now())
    assert ear.heard == []
    assert await ear.until(1) == ["due"]
    assert outbox.flush_in is None


# -- due times --------------------------------------------------------------------------------------------


async def test_outbox_merges_notifications_into_one_with_the_earliest_due_time(
    parts: Parts, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[datetime | None] = []
    outbox = parts.use_outbox()
    outbox.attach(on_due=told.append, on_message=lambda: None)
    first = now() - timedelta(hours=1)
    times = [now(), first, now()]
    for due in times:
        outbox.add_due(due)
    with monkeypatch.context() as patched:
        patched.setattr(parts.store.locks, "notify", unavailable)
        with pytest.raises(DatabaseUnavailableError):
            await outbox.flush()
    outbox.add_due(now())
    await outbox.flush()
    assert await ear.until(1) == ["due"]
    outbox.add_due(now())
    await outbox.flush()
    await ear.until(2)
    assert ear.due[0] == first
    assert ear.due[1] is not None
    assert ear.due[1] > first
    assert told[:3] == times


async def test_outbox_sends_no_due_time_when_one_is_unknown(parts: Parts, ear: Ear) -> None:
    outbox = parts.use_outbox()
    outbox.attach(on_due=lambda due: None, on_message=lambda: None)
    outbox.add_due(now())
    outbox.add_due()
    await outbox.flush()
    outbox.add_due()
    outbox.add_due(now())
    await outbox.flush()
    await ear.until(2)
    assert ear.due == [None, None]


@pytest.mark.parametrize("queued", [True, False])
async def test_insert_statement_sends_the_due_time_of_its_jobs_and_of_the_queued_notification(
    parts: Parts, ear: Ear, queued: bool
) -> None:
    outbox = parts.use_outbox(gap_s=0)
    outbox.attach(on_due=lambda due: None, on_message=lambda: None)
    first, second = now() - timedelta(hours=2), now() - timedelta(hours=1)
    if queued:
        outbox.add_due(first)
    await insert(parts, outbox, generated(execution_time=second))
    await ear.until(1)
    assert ear.due == [first if queued else second]


@pytest.mark.parametrize("queued", ["nothing", "a time", "no time"])
async def test_enqueue_sends_its_time_by_the_clock_of_the_database(
    parts: Parts, ear: Ear, queued: str
) -> None:
    """Also in a transaction that began long before."""
    outbox = parts.use_outbox(gap_s=0)
    told: list[datetime | None] = []
    outbox.attach(on_due=told.append, on_message=lambda: None)
    preparer = JobPreparer(parts.tasks, misfire_grace_time=None, max_payload_bytes=None)
    enqueuer = Enqueuer(parts.store, parts.events, outbox, preparer)
    first = now() - timedelta(hours=2)
    if queued != "nothing":
        outbox.add_due(first if queued == "a time" else None)
    due = EPOCH + timedelta(seconds=1.5)
    await enqueuer.insert(new_job("a", execution_time=due), ConflictResolution.RAISE, None, is_delayed=True)
    async with parts.store.connections.transaction() as connection:
        await enqueuer.insert(
            new_job("b", execution_time=due), ConflictResolution.RAISE, connection, is_delayed=True
        )
    await ear.until(2)
    async with parts.store.connections.acquire() as connection:
        rows = await connection.fetch("SELECT job_id, execution_time FROM scheduled_jobs")
    called_at = {job_id: due - timedelta(seconds=1.5) for job_id, due in rows}
    assert told[-1] == called_at["a"]
    sent = {"nothing": called_at["a"], "a time": first, "no time": None}[queued]
    assert ear.due == [sent, called_at["b"]]


async def test_insert_in_a_transaction_sends_the_due_time_with_the_commit(parts: Parts, ear: Ear) -> None:
    preparer = JobPreparer(parts.tasks, misfire_grace_time=None, max_payload_bytes=None)
    enqueuer = Enqueuer(parts.store, parts.events, parts.outbox, preparer)
    due = now() - timedelta(hours=1)
    async with parts.store.connections.transaction() as connection:
        await enqueuer.insert(new_job("a", execution_time=due), ConflictResolution.RAISE, connection)
        await enqueuer.insert(new_job("a", execution_time=due), ConflictResolution.REPLACE, connection)
    await ear.until(1)
    assert set(ear.due) == {due}  # a busy machine sends two messages


async def test_notification_is_not_tried_once_the_pool_closes(dsn: str) -> None:
    async with asyncpg.create_pool(dsn) as pool:
        scheduler = Scheduler(pool)
        seen = Recorder(scheduler)
        outbox_of(scheduler).notify_due_later(now())
    await asyncio.sleep(10 * Outbox.carrier_wait_s)
    assert not seen.of(ServiceRetrying)


def test_due_message_can_be_read_by_every_release() -> None:
    """An older release compares what follows ``due`` with its own mark, and ignores nothing else."""
    due = now()
    message = due_message("mark", None, due)
    assert message.partition(" ")[0] == "due"
    assert message.partition(" ")[2] != "mark"
    kind, mark, times = due_message("mark", due, due + timedelta(seconds=1)).split(" ", 2)
    assert (kind, mark, earliest_due(times)) == ("due", "mark", due)
    assert earliest_due("") is None  # of an older release
    for unknown in ("1 ?", "x", "nan", "1e99", " "):
        assert earliest_due(unknown) is None


# -- carried by inserts --------------------------------------------------------------------------------


def generated(**values: Any) -> GeneratedIdJob:
    return GeneratedIdJob(*new_job(new_job_id(), **values))


async def insert(parts: Parts, outbox: Outbox, *jobs: PlainJob) -> None:
    """Insert jobs as single calls do."""
    preparer = JobPreparer(parts.tasks, misfire_grace_time=None, max_payload_bytes=None)
    enqueuer = Enqueuer(parts.store, parts.events, outbox, preparer)
    await asyncio.gather(*(enqueuer.insert(job, ConflictResolution.IGNORE, None) for job in jobs))


async def test_insert_statement_sends_the_notification(
    parts: Parts, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = parts.use_outbox(gap_s=0)
    await parts.notifier().prepare()
    with monkeypatch.context() as patched:
        patched.delattr(LockRepository, "notify")  # nothing else is sent
        await insert(parts, outbox, generated())
        await insert(parts, outbox, new_job("named"))
    assert outbox.flush_in is None
    assert parts.calls == ["due"] * 2
    assert await ear.until(2) == ["due"] * 2


async def test_insert_statement_sends_no_notification_when_it_inserts_no_job_that_is_due_soon(
    parts: Parts, ear: Ear
) -> None:
    outbox = parts.use_outbox()
    await parts.notifier().prepare()
    await parts.store.inserts.insert([new_job("a")])
    await insert(parts, outbox, new_job("a"))
    await insert(parts, outbox, generated(execution_time=now() + timedelta(days=1)))
    await parts.store.locks.notify(["end"])
    assert await ear.until(1) == ["end"]
    assert parts.calls == []


async def test_insert_statement_sends_the_pending_notification_of_earlier_inserts(
    parts: Parts, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = await spent(parts, ear)
    await insert(parts, outbox, generated(), generated())
    assert outbox.flush_in is not None
    outbox._next_send = 0  # as when the gap is over
    with monkeypatch.context() as patched:
        patched.delattr(LockRepository, "notify")
        await insert(parts, outbox, generated())
    assert not holds(outbox.flush_in is not None)
    assert outbox._timer is None
    assert await ear.until(1) == ["due"]


async def test_outbox_sends_a_notification_for_jobs_committed_after_the_one_of_an_insert(
    parts: Parts, ear: Ear
) -> None:
    """Other nodes may have acted on the insert's notification before that."""
    outbox = parts.use_outbox()
    outbox.notify_due_later(now())
    outbox.carried(since=0, due=now())
    assert outbox.flush_in is not None
    assert await ear.until(1) == ["due"]


async def test_outbox_sends_a_pending_notification_when_no_insert_follows(parts: Parts, ear: Ear) -> None:
    outbox = parts.use_outbox()
    notifier = parts.notifier()
    await insert(parts, outbox, generated())
    await insert(parts, outbox, generated())
    assert await ear.until(2) == ["due", "due"]
    await notifier.start()
    outbox.notify_due_later(now())
    assert await ear.until(3) == ["due"] * 3
    await notifier.stop()


# -- announced by other statements ---------------------------------------------------------------------


async def test_unblocked_job_is_announced_with_its_due_time(parts: Parts, ear: Ear) -> None:
    (parent,) = await claim(parts.store, new_job("parent"))
    due = now() - timedelta(hours=1)
    await add(parts.store, child("child", "parent", execution_time=due))
    await parts.store.results.settle("me", [(parent, COMPLETE)])
    assert await ear.until(1) == ["due"]
    assert ear.due == [due]


async def test_replacement_is_announced_with_its_due_time_when_it_takes_the_row(
    parts: Parts, ear: Ear
) -> None:
    (held,) = await claim(parts.store, new_job("a"))
    due = now() - timedelta(hours=1)
    await parts.store.inserts.replace([new_job("a", execution_time=due)])
    await parts.store.results.settle("me", [(held, COMPLETE)])
    assert await ear.until(1) == ["due"]
    assert ear.due == [due]
