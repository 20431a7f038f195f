"""Each change that the public methods make belongs to the transaction of the caller, or a reason is given."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError, JobSpec, Scheduler
from pg_scheduler.base.blocking import CONNECTION, members_of
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.triggers import Every, Trigger, trigger_kind
from tests.api.conftest import Make
from tests.api.test_connections import listening
from tests.support.transactions import KINDS, Application, application, settled

HOUR = timedelta(hours=1)
SPAN = datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, 3, tzinfo=UTC)

STATE: Final = """
SELECT
    (SELECT json_agg(to_jsonb(schedule) ORDER BY schedule_id) FROM scheduler_schedules AS schedule),
    (SELECT json_agg(to_jsonb(job) ORDER BY job_id) FROM scheduled_jobs AS job),
    (SELECT json_agg(to_jsonb(step) ORDER BY job_id, name) FROM scheduler_steps AS step),
    (SELECT json_agg(to_jsonb(audit) ORDER BY id) FROM scheduler_audit AS audit)
"""
"""All that the methods change."""


async def work(number: int = 0) -> None: ...


@dataclass(frozen=True)
class Change:
    """A call that changes something.

    Attributes:
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        seen: Returns whether its transaction sees the change.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    seen: Callable[[Application], Awaitable[object]]


async def schedule_of(app: Application, schedule_id: str = "hourly") -> Any:
    return await app.call("schedules.get", schedule_id)


def is_paused(schedule_id: str, *, paused: bool) -> Callable[[Application], Awaitable[object]]:
    async def seen(app: Application) -> object:
        ids = [schedule.schedule_id for schedule in await app.call("schedules.list", paused=paused)]
        return schedule_id in ids

    return seen


def has_status(job_id: str, status: str) -> Callable[[Application], Awaitable[object]]:
    async def seen(app: Application) -> object:
        job = await app.call("get_job", job_id)
        return job is not None and job.status.value == status

    return seen


async def is_removed(app: Application) -> object:
    return await schedule_of(app) is None and await has_status("of-hourly", "cancelled")(app)


async def is_replaced(app: Application) -> object:
    return (await schedule_of(app)).trigger == Every(minutes=5)


async def is_triggered(app: Application) -> object:
    return (await schedule_of(app)).last_job_id != "of-hourly"


async def is_due(app: Application) -> object:
    return (await app.call("get_job", "waiting")).execution_time < datetime.now(UTC) + timedelta(minutes=1)


async def is_signalled(app: Application) -> object:
    return await app.call("signal", "waiting", "go") is False


async def has_no_open_wait(app: Application) -> object:
    return await app.call("broadcast", "box") == 0


CHANGES: Final[dict[str, Change]] = {
    "schedule": Change((work,), {"execution_time": SPAN[0], "job_id": "new"}, has_status("new", "pending")),
    "enqueue": Change((work,), {"job_id": "new"}, has_status("new", "pending")),
    "schedule_bulk": Change(([JobSpec(work, SPAN[0], job_id="new")],), {}, has_status("new", "pending")),
    "schedule_job": Change(("mail", SPAN[0], {}), {"job_id": "new"}, has_status("new", "pending")),
    "cancel_job": Change(("waiting",), {}, has_status("waiting", "cancelled")),
    "cancel_jobs": Change((), {"status": "pending"}, has_status("parent", "cancelled")),
    "retry_job": Change(("ended",), {}, has_status("ended", "pending")),
    "run_job_now": Change(("waiting",), {}, is_due),
    "signal": Change(("waiting", "go"), {}, is_signalled),
    "send": Change(("waiting", "box"), {}, has_no_open_wait),
    "broadcast": Change(("box",), {}, has_no_open_wait),
    "schedules.add": Change((work, Every(hours=1)), {"schedule_id": "new"}, is_paused("new", paused=False)),
    "schedules.update": Change(("hourly",), {"trigger": Every(minutes=5)}, is_replaced),
    "schedules.pause": Change(("hourly",), {"until": SPAN[0], "note": "a"}, is_paused("hourly", paused=True)),
    "schedules.resume": Change(("paused",), {}, is_paused("paused", paused=False)),
    "schedules.remove": Change(("hourly",), {"cancel_jobs": True}, is_removed),
    "schedules.trigger": Change(("hourly",), {}, is_triggered),
    "schedules.backfill": Change(("hourly", *SPAN), {}, is_triggered),
}
"""The methods that write in the transaction of a connection."""

READS: Final = {
    "count_jobs": "counts all jobs, most of which the transaction has not changed",
    "get_job": "in the transaction",
    "get_job_result": "in the transaction",
    "get_total_vacuum_stats": "reads records of the vacuum",
    "get_value": "waits for what a running job publishes, which another transaction commits",
    "get_vacuum_stats": "reads records of the vacuum",
    "list_jobs": "pages over all jobs, most of which the transaction has not changed",
    "next_event": "waits for events, which follow commits",
    "schedules.get": "in the transaction",
    "schedules.list": "in the transaction",
    "tasks.list": "reads the pauses of tasks",
    "wait": "waits for the end of the Scheduler",
    "workers": "reads the workers",
}

OUTSIDE: Final = {
    "end_sleep": "is an operator's action; signal() ends a wait in the transaction",
    "execute_job": "runs a job",
    "execute_job_with_concurrency_control": "runs a job",
    "initialize_db": "migrates, in transactions of its own",
    "listen_for_jobs": "is a pass of a service",
    "load_task_functions": "only reads and warns",
    "monitor_heartbeats": "is a pass of a service",
    "periodic_orphan_recovery": "is a pass of a service",
    "recover_orphaned_jobs": "is a pass of a service",
    "run_job": "waits for the end of a job, which begins after the commit; it says so",
    "run_vacuum": "is a pass of a service",
    "send_heartbeat": "is a pass of a service",
    "shutdown": "ends the services",
    "start": "starts the services",
    "tasks.pause": "is an operator's switch, which takes effect within a second on all nodes",
    "tasks.resume": "is an operator's switch, which takes effect within a second on all nodes",
    "trigger_periodic_job": "schedules.trigger() of its key is in the transaction",
    "update_job_status": "corrects a row by hand; cancel_job() and retry_job() are in the transaction",
}
"""The methods that write outside of it, and why."""


def coroutines() -> Iterator[tuple[str, Any]]:
    """Yield the public coroutine functions of the Scheduler and its facets, by their names."""
    for member in members_of(Scheduler):
        if member.facet is not None:
            for inner in members_of(member.facet):
                if inspect.iscoroutinefunction(inner.source):
                    yield f"{member.name}.{inner.name}", inner.source
        elif inspect.iscoroutinefunction(member.source):
            yield member.name, member.source


def test_each_public_method_takes_a_connection_or_states_a_reason() -> None:
    methods = dict(coroutines())
    assert sorted(methods) == sorted({*CHANGES, *READS, *OUTSIDE})
    taking = {name for name, method in methods.items() if CONNECTION in inspect.signature(method).parameters}
    assert taking == {*CHANGES} | {name for name, reason in READS.items() if reason == "in the transaction"}


@pytest.fixture(params=KINDS)
async def app(request: Any, dsn: str, pool: asyncpg.Pool) -> AsyncIterator[Application]:
    async with application(request.param, dsn, pool) as opened:
        opened.scheduler.register(work)
        yield opened


@pytest.fixture
async def world(app: Application) -> None:
    """Commit a schedule with a job, one that is paused, and a job of each kind."""
    await app.call("schedules.add", work, Every(hours=1), schedule_id="hourly")
    await app.call("schedules.add", work, Every(hours=1), schedule_id="paused", paused=True)
    for job_id in ("waiting", "ended", "parent", "of-hourly"):
        await app.call("schedule", work, execution_time=SPAN[0], job_id=job_id)
    await app.call("schedule", work, execution_time=SPAN[0], job_id="child", after=["parent"])
    await app.call("cancel_job", "ended")
    await settled(app.commit())
    await app.execute(
        "UPDATE scheduled_jobs SET options = jsonb_build_object('schedule_id', 'hourly') "
        "WHERE job_id = 'of-hourly'"
    )
    await app.execute("UPDATE scheduler_schedules SET last_job_id = 'of-hourly' WHERE schedule_id = 'hourly'")
    await app.execute("UPDATE scheduled_jobs SET options = '{\"steps\": 1}' WHERE job_id = 'waiting'")
    await app.execute(
        "INSERT INTO scheduler_steps (job_id, name, kind, attempt, until, started_at) "
        "VALUES ('waiting', concat(chr(1), 'mail:0001:box'), 'signal', 0, '9999-01-01Z', now())"
    )
    await settled(app.commit())


async def state(pool: asyncpg.Pool) -> tuple[Any, ...]:
    (row,) = await pool.fetch(STATE)
    return tuple(row)


@pytest.mark.usefixtures("world")
async def test_change_is_seen_in_its_transaction_and_undone_by_its_rollback(
    app: Application, pool: asyncpg.Pool
) -> None:
    before = await state(pool)
    for name, change in CHANGES.items():
        assert await app.call(name, *change.args, **change.kwargs), name
        assert await change.seen(app), name
        assert await state(pool) == before, f"{name}() is seen before the commit"
        await settled(app.rollback())
        assert await state(pool) == before, f"{name}() outlives the rollback"


@pytest.mark.usefixtures("world")
async def test_changes_are_made_and_nodes_notified_by_the_commit(
    app: Application, pool: asyncpg.Pool
) -> None:
    async with listening(pool) as received:
        assert await app.call("schedules.pause", "hourly", note="a") is True
        assert await app.call("schedules.resume", "paused") is True
        updated = await app.call("schedules.update", "hourly", max_runs=3, if_version=1)
        assert await app.call("schedules.remove", "paused") is True
        assert await app.call("cancel_jobs", job_name=updated.task) == 4
        assert await received() == []
        await settled(app.commit())
        assert set(await received(1)) >= {"periodic"}
    (row,) = await pool.fetch("SELECT schedule_id, note, max_runs FROM scheduler_schedules")
    assert tuple(row) == ("hourly", "a", 3)
    statuses = await pool.fetch("SELECT DISTINCT status FROM scheduled_jobs")
    assert [tuple(status) for status in statuses] == [("cancelled",)]


@pytest.mark.usefixtures("world")
async def test_jobs_that_wait_are_cancelled_with_a_parent_of_the_same_transaction(
    app: Application, pool: asyncpg.Pool
) -> None:
    later = SPAN[0] + 2 * HOUR
    await app.call("schedule", work, execution_time=later, job_id="late child", after=["waiting"])
    assert await app.call("cancel_jobs", due_before=SPAN[0] + HOUR, status="pending") == 4
    await settled(app.commit())
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE finished_at IS NULL") == 0


WITHOUT_CONFLICT: Final = {
    "signal": "adds a row, and the change of the job does not matter",
    "send": "adds a row, and the change of the job does not matter",
    "broadcast": "is refused at this level",
}
"""Changes that do not fail because another session has changed the job, and why."""


@pytest.mark.usefixtures("world")
async def test_change_after_one_of_another_session_in_a_snapshot_asks_for_a_new_transaction(
    app: Application, pool: asyncpg.Pool, make: Make
) -> None:
    other = make()
    other.register(work)
    for name in sorted(CHANGES.keys() - WITHOUT_CONFLICT.keys()):
        await app.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await app.execute("SELECT count(*) FROM scheduled_jobs")
        if name in {"schedule", "enqueue", "schedule_bulk", "schedule_job"}:
            await other.schedule(work, execution_time=SPAN[0], job_id="new")
        elif name == "schedules.add":
            await other.schedules.add(work, Every(hours=1), schedule_id="new")
        else:
            await pool.execute("UPDATE scheduled_jobs SET priority = priority")
            await pool.execute("UPDATE scheduler_schedules SET note = note")
        with pytest.raises(DatabaseUnavailableError) as caught:
            await app.call(name, *CHANGES[name].args, **CHANGES[name].kwargs)
        assert str(caught.value).endswith("; repeat the transaction from its beginning"), name
        await settled(app.rollback())
        await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'new'")


def instants_in(value: object) -> set[datetime]:
    """Return the times in the rows of a state."""
    if isinstance(value, dict):
        return {instant for item in value.values() for instant in instants_in(item)}
    if isinstance(value, list | tuple):
        return {instant for item in value for instant in instants_in(item)}
    if isinstance(value, str):
        with suppress(ValueError):
            return {datetime.fromisoformat(value).astimezone(UTC)}
    return set()


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("app", ["asyncpg"], indirect=True)
async def test_no_time_of_a_change_is_that_of_the_begin_of_its_transaction(app: Application) -> None:
    """The transaction may be old: a job would be due, and expire, before the call that changes it."""
    await app.execute("SELECT 1")
    begin = await app.connection.fetchval("SELECT now()")
    for name, change in CHANGES.items():
        async with undone(app.connection):
            await app.call(name, *change.args, **change.kwargs)
            rows = await app.connection.fetchrow(STATE)
            assert begin not in instants_in([json.loads(row or "null") for row in rows]), name


@asynccontextmanager
async def undone(connection: asyncpg.Connection) -> AsyncIterator[None]:
    savepoint = connection.transaction()
    await savepoint.start()
    yield
    await savepoint.rollback()


@trigger_kind("test.slow_in_transaction")
@dataclass(frozen=True)
class Daily(Trigger):
    """A trigger of an application, which the library calls in a thread of its own."""

    days: int = 1

    def next_after(self, after: datetime, *, anchor: datetime) -> datetime | None:
        return after + timedelta(days=self.days)


@pytest.mark.usefixtures("world")
async def test_trigger_of_the_application_is_searched_on_any_connection(
    app: Application, pool: asyncpg.Pool
) -> None:
    await app.call("schedules.add", work, Daily(), schedule_id="daily")
    await app.call("schedules.update", "hourly", trigger=Daily(2))
    assert len(await app.call("schedules.backfill", "daily", SPAN[0], SPAN[0] + timedelta(days=3))) in {2, 3}
    await settled(app.commit())
    assert (await schedule_of(app)).trigger == Daily(2)


@pytest.mark.parametrize("name", [name for name in CHANGES if name.startswith("schedules.")])
def test_scheduler_without_a_dsn_asks_for_a_connection(name: str) -> None:
    facet, _, method = name.partition(".")
    with pytest.raises(ValueError, match="SyncScheduler has no DSN; pass connection="):
        getattr(getattr(SyncScheduler(), facet), method)(*CHANGES[name].args, **CHANGES[name].kwargs)
