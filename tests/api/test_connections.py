"""Jobs in the transaction of the caller, on the connections of eight kinds."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import md5
from typing import Any, Literal

import asyncpg
import psycopg
import pytest

from pg_scheduler import (
    ConflictResolution,
    ConnectionAdapter,
    JobConflictError,
    JobNotFoundError,
    JobSpec,
    JobStatus,
    PayloadError,
    Scheduler,
)
from pg_scheduler.triggers import Every
from tests.support.inside import outbox_of
from tests.support.transactions import ASYNC_KINDS, KINDS, Application, application, settled
from tests.support.worker import PATIENCE, now

HOUR = timedelta(hours=1)
REPLACE = ConflictResolution.REPLACE
CHANNEL = f"pg_scheduler_{md5(b'public').hexdigest()}"


async def work(number: int = 0) -> None: ...


@pytest.fixture(params=KINDS)
async def app(request: Any, dsn: str, pool: asyncpg.Pool) -> AsyncIterator[Application]:
    async with application(request.param, dsn, pool) as opened:
        yield opened


@pytest.fixture(params=KINDS)
async def notifying(request: Any, dsn: str, pool: asyncpg.Pool) -> AsyncIterator[Application]:
    """An application whose commits notify workers."""
    async with application(request.param, dsn, pool, notify="commit") as opened:
        yield opened


async def ids_in(pool: asyncpg.Pool) -> set[str]:
    return {row[0] for row in await pool.fetch("SELECT job_id FROM scheduled_jobs")}


@asynccontextmanager
async def listening(pool: asyncpg.Pool) -> AsyncIterator[Callable[..., Awaitable[list[str]]]]:
    """Yield a function that returns the notifications that have been sent since, at least so many."""
    messages: list[str] = []
    arrived = asyncio.Event()

    def note(*notification: Any) -> None:
        messages.append(notification[-1])
        arrived.set()

    async with pool.acquire() as connection:

        async def received(least: int = 0) -> list[str]:
            await connection.execute("SELECT 1")  # notifications arrive with its answer
            async with asyncio.timeout(PATIENCE):
                while len(messages) < least:
                    arrived.clear()
                    await arrived.wait()
            return messages

        await connection.add_listener(CHANNEL, note)
        try:
            yield received
        finally:
            await connection.remove_listener(CHANNEL, note)


async def test_job_of_the_first_statement_is_gone_after_a_rollback(
    app: Application, pool: asyncpg.Pool
) -> None:
    await app.call("schedule", work, execution_time=now())
    await app.execute("CREATE TABLE orders ()")
    await settled(app.rollback())
    assert await ids_in(pool) == set()


async def test_job_exists_once_the_transaction_is_committed(app: Application, pool: asyncpg.Pool) -> None:
    await app.execute("CREATE TABLE orders ()")
    job_id = await app.call("schedule", work, execution_time=now(), args=(1,))
    assert await ids_in(pool) == set()
    await settled(app.commit())
    assert await ids_in(pool) == {job_id}


async def test_job_of_a_savepoint_is_gone_when_that_is_rolled_back(
    app: Application, pool: asyncpg.Pool
) -> None:
    kept = await app.call("enqueue", work)
    await app.execute("SAVEPOINT one")
    await app.call("enqueue", work)
    await app.call("schedule_bulk", [JobSpec(work, now()) for _ in range(3)])
    await app.execute("ROLLBACK TO SAVEPOINT one")
    await settled(app.commit())
    assert await ids_in(pool) == {kept}


async def test_transaction_goes_on_after_errors_of_a_call(app: Application, pool: asyncpg.Pool) -> None:
    job_id = await app.call("schedule", work, execution_time=now(), job_id="one", unique="key")
    for twice in ({"job_id": "one"}, {"unique": "key"}):
        with pytest.raises(JobConflictError, match="'one'"):
            await app.call("schedule", work, execution_time=now(), **twice)
    specs = [JobSpec(work, now()), JobSpec(work, now(), job_id="one")]
    with pytest.raises(JobConflictError):
        await app.call("schedule_bulk", specs, conflict_resolution=ConflictResolution.RAISE)
    with pytest.raises(PayloadError):
        await app.call("enqueue", work, args=(object(),))
    with pytest.raises(TypeError):
        await app.call("enqueue", work, args=(1, 2, 3))
    await app.execute("CREATE TABLE orders ()")
    await settled(app.commit())
    assert await ids_in(pool) == {job_id}


async def test_workers_are_notified_by_the_commit(notifying: Application, pool: asyncpg.Pool) -> None:
    async with listening(pool) as received:
        await notifying.call("schedule", work, execution_time=now())
        assert await received() == []
        await settled(notifying.commit())
        assert [each.split()[0] for each in await received()] == ["due"]


async def test_workers_are_notified_when_the_transaction_has_ended(
    app: Application, pool: asyncpg.Pool
) -> None:
    async with listening(pool) as received:
        await app.call("schedule", work, execution_time=now())
        await app.call("schedule_bulk", [JobSpec(work, now())] * 2)
        await app.call("enqueue", work, delay=0.01)
        assert await received() == []
        await settled(app.commit())  # that of asyncpg begins another transaction at once
        messages = await received(1)
        assert {each.split()[0] for each in messages} == {"due"}
        assert all(len(each.split()) > 1 for each in messages), "the time is unknown"


SLOW_COMMIT = """
    CREATE TABLE orders ();
    CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql
        AS 'BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION wait();
"""


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_hint_waits_for_the_end_of_the_commit(kind: str, dsn: str, pool: asyncpg.Pool) -> None:
    await pool.execute(SLOW_COMMIT)
    async with application(kind, dsn, pool) as app, listening(pool) as received:
        await app.execute("INSERT INTO orders DEFAULT VALUES")
        job_id = await app.call("schedule", work, execution_time=now())
        commit = asyncio.ensure_future(settled(app.commit()))
        await received(1)
        assert await ids_in(pool) == {job_id}
        await commit


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_commit_of_the_caller_notifies_only_by_the_setting(
    kind: str, dsn: str, pool: asyncpg.Pool
) -> None:
    async def notified(notify: str) -> bool:
        async with application(kind, dsn, pool, notify=notify) as app, listening(pool) as received:
            outbox_of(app.scheduler).first_look_s = HOUR.total_seconds()
            await app.call("schedule", work, execution_time=now())
            await app.call("schedule_bulk", [JobSpec(work, now())])
            await settled(app.commit())
            return bool(await received())

    assert [await notified(each) for each in ("commit", "hint", "never")] == [True, False, False]


@pytest.mark.parametrize("setting", ["commit", "hint", "never"])
async def test_commit_of_the_caller_notifies_by_the_mode_of_the_call(
    setting: Literal["commit", "hint", "never"], pool: asyncpg.Pool
) -> None:
    async def notified(method: str, *args: Any, **options: Any) -> bool:
        async with listening(pool) as received:
            async with pool.acquire() as connection, connection.transaction():
                await getattr(scheduler, method)(*args, connection=connection, **options)
            return bool(await received())

    scheduler = Scheduler(pool, notify=setting)
    outbox_of(scheduler).first_look_s = HOUR.total_seconds()
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "schedule": ((work,), {"execution_time": now()}),
        "enqueue": ((work,), {"keep_result": HOUR}),
        "schedule_bulk": (([JobSpec(work, now())],), {"conflict_resolution": ConflictResolution.REPLACE}),
        "schedule_job": (("any", now(), {}), {"conflict_resolution": ConflictResolution.REPLACE}),
    }
    for method, (args, options) in calls.items():
        for mode, expected in (
            ("commit", True),
            ("hint", False),
            ("never", False),
            (None, setting == "commit"),
        ):
            assert await notified(method, *args, **options, notify=mode) is expected, (method, mode)


async def test_hint_of_a_call_notifies_after_the_transaction_whatever_the_setting(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool, notify="never")
    async with listening(pool) as received:
        async with pool.acquire() as connection, connection.transaction():
            await scheduler.enqueue(work, connection=connection)
            await scheduler.enqueue(work, connection=connection, notify="hint")
        assert len(await received(1)) == 1


async def test_mode_of_a_call_needs_a_transaction_of_the_caller(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    with pytest.raises(ValueError, match="pass connection= too, or omit notify="):
        await scheduler.enqueue(work, notify="never")
    with pytest.raises(ValueError, match="pass connection= too, or omit notify="):
        await scheduler.schedule_bulk([JobSpec(work, now())], notify="hint")
    async with pool.acquire() as connection, connection.transaction():
        with pytest.raises(ValueError, match="notify must be 'commit', 'hint', 'never' or None, not 'soon'"):
            await scheduler.schedule(work, execution_time=now(), connection=connection, notify="soon")  # type: ignore[arg-type]
    assert await ids_in(pool) == set()


async def test_hint_finds_a_connection_that_was_released_and_is_silent_by_never(pool: asyncpg.Pool) -> None:
    async with listening(pool) as received:
        for setting in ("never", "hint"):
            scheduler = Scheduler(pool, notify=setting)
            async with pool.acquire() as connection, connection.transaction():
                await scheduler.schedule(work, execution_time=now(), connection=connection)
                await asyncio.sleep(0.1)  # several looks at a transaction that stays open
                assert await received() == []
        assert len(await received(1)) == 1


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_hint_has_one_timer_for_all_jobs_of_a_transaction(
    kind: str, dsn: str, pool: asyncpg.Pool
) -> None:
    async with application(kind, dsn, pool) as app, listening(pool) as received:
        outbox = outbox_of(app.scheduler)
        outbox.first_look_s = HOUR.total_seconds()
        timers = set()
        for _ in range(3):
            await app.call("enqueue", work)
            timers |= {watch.timer for watch in outbox._watched.values()}
        assert len(timers) == 1
        (watch,) = outbox._watched.values()
        await settled(app.commit())
        outbox._look(watch)
        assert outbox._watched == {}
        assert len(await received(1)) == 1


@pytest.mark.parametrize("is_async", [True, False])
async def test_hint_takes_any_answer_of_an_adapter_about_its_transaction(
    dsn: str, pool: asyncpg.Pool, is_async: bool
) -> None:
    def fail() -> object:
        raise SystemExit

    async with (
        application("asyncpg" if is_async else "psycopg2", dsn, pool) as app,
        listening(pool) as received,
    ):

        async def run(statement: str, texts: Sequence[str]) -> list[str]:
            return [row[0] for row in await app.connection.fetch(statement, *texts)]

        def run_blocking(statement: str, texts: Sequence[str]) -> list[str]:
            with app.connection.cursor() as cursor:
                cursor.execute(re.sub(r"\$\d+", "%s", statement.replace("%", "%%")), texts)
                return [row[0] for row in cursor.fetchall()]

        adapter = ConnectionAdapter(run if is_async else run_blocking, is_async, fail)
        job_id = await settled(app.scheduler.schedule(work, execution_time=now(), connection=adapter))
        await settled(app.commit())
        assert await ids_in(pool) == {job_id}
        assert len(await received(1)) == 1


async def test_hint_is_sent_by_the_commit_in_another_event_loop_than_that_of_the_pool(
    dsn: str, pool: asyncpg.Pool
) -> None:
    scheduler = Scheduler(pool)

    async def insert() -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await scheduler.enqueue(work, connection=connection)
            await scheduler.schedule_bulk([JobSpec(work, now())], connection=connection)

    async with listening(pool) as received:
        await asyncio.to_thread(asyncio.run, insert())
        assert await received(2)
    assert not outbox_of(scheduler)._watched


class Databases:
    """A library whose methods use the connection of the current context."""

    connection: ContextVar[asyncpg.Connection] = ContextVar("connection")

    async def run(self, statement: str, texts: Sequence[str]) -> list[str]:
        return [row[0] for row in await self.connection.get().fetch(statement, *texts)]

    def is_in_transaction(self) -> bool:
        return self.connection.get().is_in_transaction()


async def test_hint_asks_an_adapter_in_the_context_of_each_call(dsn: str, pool: asyncpg.Pool) -> None:
    databases, scheduler = Databases(), Scheduler(pool)
    adapter = ConnectionAdapter(databases.run, transaction=databases.is_in_transaction)

    async def begin() -> asyncpg.Connection:
        connection = await asyncpg.connect(dsn)
        databases.connection.set(connection)
        await connection.execute("BEGIN")
        await scheduler.enqueue(work, connection=adapter)
        return connection

    async with asyncio.TaskGroup() as group, listening(pool) as received:
        one, other = await group.create_task(begin()), await group.create_task(begin())
        for number, connection in enumerate((one, other), start=1):
            await connection.execute("COMMIT")
            assert len(await received(number)) == number
            await connection.close()


async def test_call_that_needs_a_savepoint_rejects_a_transaction_that_a_statement_began(
    dsn: str, pool: asyncpg.Pool
) -> None:
    """A retry cannot succeed, so it is no outage."""
    scheduler = Scheduler(pool)
    schedule = await scheduler.schedules.add(work, Every(hours=1))
    connection = await asyncpg.connect(dsn)
    await connection.execute("BEGIN")
    parent = await scheduler.enqueue(work, connection=connection)
    needs = r"in which asyncpg sets no savepoint, .* async with connection\.transaction\(\)"
    with pytest.raises(ValueError, match=needs):
        await scheduler.enqueue(work, after=[parent], connection=connection)
    with pytest.raises(ValueError, match=needs):
        await scheduler.schedules.trigger(schedule.schedule_id, connection=connection)
    await connection.execute("COMMIT")
    await connection.close()
    assert await ids_in(pool) == {parent}


@pytest.mark.parametrize("options", [{}, {"keep_result": HOUR, "metadata": {"tenant": 7}, "timeout": None}])
@pytest.mark.parametrize("notify", ["commit", "never"])
@pytest.mark.parametrize("kind", KINDS)
async def test_due_job_has_the_row_of_a_call_without_a_connection(
    kind: str, notify: str, dsn: str, pool: asyncpg.Pool, options: dict[str, Any]
) -> None:
    """Statements of their own insert it, one with a notification and one without."""
    async with application(kind, dsn, pool, notify=notify) as app:
        job_id = await app.call("enqueue", work, args=(1,), **options)
        await settled(app.commit())
    other = await Scheduler(pool).enqueue(work, args=(1,), **options)
    one, two = await pool.fetch(
        "SELECT to_jsonb(job) - '{job_id,created_at,execution_time}'::text[] FROM scheduled_jobs AS job "
        "WHERE job_id = ANY ($1)",
        [job_id, other],
    )
    assert one == two


async def test_due_job_is_notified_with_its_time(notifying: Application, pool: asyncpg.Pool) -> None:
    started = await pool.fetchval("SELECT now()")
    async with listening(pool) as received:
        job_id = await notifying.call("enqueue", work)
        assert await received() == []
        await settled(notifying.commit())
        (message,) = await received()
    word, mark, time = message.split(" ")
    due = await pool.fetchval("SELECT execution_time FROM scheduled_jobs WHERE job_id = $1", job_id)
    assert (word, mark, datetime.fromtimestamp(float(time), UTC)) == ("due", "", due)
    assert started < due < await pool.fetchval("SELECT now()")


@pytest.mark.parametrize("year", [2030, 9999])
async def test_job_expires_when_its_grace_ends(app: Application, pool: asyncpg.Pool, year: int) -> None:
    due = datetime(year, 12, 31, 23, 59, tzinfo=UTC)
    for grace in (None, 7, 90):
        await app.call("schedule", work, execution_time=due, misfire_grace_time=grace)
    await settled(app.commit())
    rows = await pool.fetch(
        "SELECT extract(epoch FROM expires_at - execution_time)::int FROM scheduled_jobs ORDER BY job_id"
    )
    assert [row[0] for row in rows] == [None, 7, 90]


async def test_bulk_call_returns_ids_in_order_and_skips_existing_ones(
    app: Application, pool: asyncpg.Pool
) -> None:
    await app.call("enqueue", work, job_id="taken")
    specs = [JobSpec(work, now() + HOUR, (number,)) for number in range(150)]
    specs.insert(7, JobSpec(work, now(), job_id="taken"))
    specs.append(JobSpec(work, now(), unique="one", keep_result=HOUR, metadata={"tenant": 7}))
    ids = await app.call("schedule_bulk", specs, batch_size=40)
    assert ids[7] is None
    await settled(app.commit())
    assert await ids_in(pool) == {each for each in ids if each} | {"taken"}
    assert len(ids) == 152


async def test_replace_gives_a_job_its_new_definition(app: Application, pool: asyncpg.Pool) -> None:
    for number in (1, 2):
        await app.call("enqueue", work, args=(number,), job_id="plain", conflict_resolution=REPLACE)
        await app.call("enqueue", work, args=(number,), unique="key", conflict_resolution=REPLACE)
    specs = [JobSpec(work, now(), (3,), job_id="plain"), JobSpec(work, now(), (3,), unique="key")]
    await app.call("schedule_bulk", specs, conflict_resolution=REPLACE)
    await settled(app.commit())
    found = await pool.fetch("SELECT task_data -> 'args' ->> 0 FROM scheduled_jobs")
    assert [row[0] for row in found] == ["3", "3"]


async def test_job_after_another_one_waits_and_is_cancelled_with_it(
    app: Application, pool: asyncpg.Pool
) -> None:
    first = await app.call("enqueue", work, keep_result=HOUR)
    second = await app.call("enqueue", work, after=[first])
    assert (await app.call("get_job", second)).blocked_on == "after"
    assert await app.call("cancel_job", first) is True
    assert await app.call("cancel_job", first) is False
    assert (await app.call("get_job", second)).status is JobStatus.CANCELLED
    await settled(app.commit())
    assert await pool.fetchval("SELECT count(*) FROM scheduler_results") == 1


async def test_cancelled_job_is_pending_again_after_a_rollback(app: Application, pool: asyncpg.Pool) -> None:
    job_id = await app.call("schedule", work, execution_time=now() + HOUR)
    await settled(app.commit())
    assert await app.call("cancel_job", job_id) is True
    await settled(app.rollback())
    assert await pool.fetchval("SELECT status FROM scheduled_jobs") == "pending"


async def test_worker_of_a_running_job_is_notified_of_its_cancellation_by_the_commit(
    notifying: Application, pool: asyncpg.Pool
) -> None:
    job_id = await notifying.call("schedule", work, execution_time=now())
    await settled(notifying.commit())
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'running', attempt = 1, worker_id = 'w', started_at = now(), "
        "last_heartbeat = now(), lease_until = now() + interval '1 hour'"
    )
    async with listening(pool) as received:
        assert await notifying.call("cancel_job", job_id) is True
        await settled(notifying.commit())
        assert await received() == ["check w"]


async def test_finished_job_is_retried_and_a_later_one_made_due_by_the_commit(
    notifying: Application, pool: asyncpg.Pool
) -> None:
    ids = [
        await notifying.call("schedule", work, execution_time=now() + 2 * HOUR, misfire_grace_time=60)
        for _ in range(2)
    ]
    await notifying.call("cancel_job", ids[0])
    await settled(notifying.commit())
    async with listening(pool) as received:
        assert await notifying.call("retry_job", ids[0]) is True
        assert await notifying.call("retry_job", ids[0]) is False
        assert await notifying.call("run_job_now", ids[1]) is True
        assert await notifying.call("run_job_now", "none") is False
        assert await received() == []
        await settled(notifying.rollback())
        assert await pool.fetchval("SELECT min(execution_time) FROM scheduled_jobs") > now() + HOUR
        assert await notifying.call("retry_job", ids[0]) is True
        assert await notifying.call("run_job_now", ids[1]) is True
        await settled(notifying.commit())
        messages = [each.split() for each in await received()]
    assert {each[0] for each in messages} == {"due"}
    rows = await pool.fetch("SELECT status, execution_time, expires_at - execution_time FROM scheduled_jobs")
    assert [row[0] for row in rows] == ["pending", "pending"]
    announced = min(float(time) for each in messages for time in each[1:])
    first = min(row[1] for row in rows).timestamp()
    assert announced == pytest.approx(first, abs=1e-6), "a claim would begin after the job, due at the BEGIN"
    assert all(row[1] < now() + HOUR for row in rows)
    # run_job_now() reads the time before it writes, and the grace time begins with the write.
    assert all(timedelta(seconds=60) <= row[2] < timedelta(seconds=70) for row in rows)
    await pool.execute("UPDATE scheduled_jobs SET status = 'completed', finished_at = now()")
    assert await notifying.call("run_job_now", ids[1]) is False


async def test_transaction_goes_on_after_a_retry_that_conflicts(app: Application, pool: asyncpg.Pool) -> None:
    ended = await app.call("enqueue", work, unique="key")
    await app.call("cancel_job", ended)
    holder = await app.call("enqueue", work, unique="key")
    with pytest.raises(JobConflictError, match=holder):
        await app.call("retry_job", ended)
    await app.call("cancel_job", holder)
    assert await app.call("retry_job", ended) is True
    await settled(app.commit())
    rows = await pool.fetch("SELECT job_id, status FROM scheduled_jobs")
    assert {tuple(row) for row in rows} == {(ended, "pending"), (holder, "cancelled")}


async def test_schedule_is_triggered_by_the_commit(notifying: Application, pool: asyncpg.Pool) -> None:
    notifying.scheduler.register(work)
    await notifying.call("schedules.add", work, Every(hours=1), schedule_id="one")
    await settled(notifying.commit())
    lost = await notifying.call("schedules.trigger", "one")
    await settled(notifying.rollback())
    async with listening(pool) as received:
        kept = await notifying.call("schedules.trigger", "one")
        assert await notifying.call("schedules.trigger", "none") is None
        assert await received() == []
        await settled(notifying.commit())
        assert {each.split()[0] for each in await received()} == {"due"}
    assert await ids_in(pool) == {kept} != {lost}
    audit = "SELECT details ->> 'job_id' FROM scheduler_audit WHERE action = 'trigger_schedule'"
    assert await pool.fetchval(audit) == kept


async def test_get_job_returns_what_the_transaction_has_written(app: Application, pool: asyncpg.Pool) -> None:
    due = now() + HOUR
    options: dict[str, Any] = {"timeout": 2.5, "misfire_grace_time": 7, "metadata": {"a": "ü\\'\"%$1:x"}}
    job_id = await app.call("schedule", work, execution_time=due, args=(5,), job_id='a"\\{}%s:b', **options)
    job = await app.call("get_job", job_id)
    assert (job.execution_time, job.args, job.metadata) == (due, (5,), options["metadata"])
    assert (job.timeout, job.expires_at) == (timedelta(seconds=2.5), due + timedelta(seconds=7))
    assert job.created_at.utcoffset() == timedelta(0)
    await settled(app.commit())
    assert await app.call("get_job", job_id) == job
    assert await app.call("get_job", "none") is None


async def test_result_is_read_in_the_transaction(app: Application, pool: asyncpg.Pool) -> None:
    job_id = await app.call("enqueue", work, keep_result=HOUR)
    read = partial(app.call, "get_job_result", wait=False)
    assert await read(job_id) is None
    assert await app.call("cancel_job", job_id) is True
    assert (await read(job_id)).status is JobStatus.CANCELLED
    with pytest.raises(JobNotFoundError):
        await read("none")
    with pytest.raises(ValueError, match="pass wait=False"):
        await app.call("get_job_result", job_id)
    await settled(app.commit())
    assert (await read(job_id)).expires_at is not None


async def test_schedule_by_name_is_part_of_the_transaction(app: Application, pool: asyncpg.Pool) -> None:
    await app.call("schedule_job", "mail.send", now(), {"args": [1]}, job_id="one")
    await settled(app.rollback())
    await app.call("schedule_job", "mail.send", now(), {"args": [1]}, job_id="two")
    await settled(app.commit())
    assert await ids_in(pool) == {"two"}


async def test_schedule_of_jobs_is_part_of_the_transaction(app: Application, pool: asyncpg.Pool) -> None:
    app.scheduler.register(work)
    await app.call("schedules.add", work, Every(hours=1), schedule_id="one", run_now=True)
    await settled(app.rollback())
    added = await app.call("schedules.add", work, Every(hours=1), schedule_id="two")
    await settled(app.commit())
    rows = await pool.fetch("SELECT schedule_id, next_fire_at FROM scheduler_schedules")
    assert [tuple(row) for row in rows] == [("two", added.next_fire_at)]
