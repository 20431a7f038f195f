"""What only people read never stops a service: its table may refuse it, be locked, or be missing."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from pg_scheduler import JobStatus, PeriodicJobConfig, VacuumConfig
from pg_scheduler.database.options import ConnectionOptions
from pg_scheduler.database.queries import Route, load_variant
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import EventBus, JobExpired, JobsReclaimed
from pg_scheduler.events.types import EXPIRED
from pg_scheduler.jobs.deadlines import DEADLINE, deadline_text
from pg_scheduler.jobs.rows import NO_EXTRAS
from pg_scheduler.queue.jobs import PAST_DEADLINE
from pg_scheduler.schedules.declarations import DeclaredSchedules
from pg_scheduler.statistics.errors import ErrorCounter
from pg_scheduler.statistics.service import StatisticsWriter
from tests.support.inside import (
    COMPLETE,
    NEVER,
    Connections,
    ExtendedJob,
    Meter,
    Outcome,
    PeriodicCatalogue,
    Store,
    load_queries,
)
from tests.support.logs import warnings_of
from tests.support.parts import Parts, sent_statements
from tests.support.worker import (
    PATIENCE,
    Gate,
    Recorder,
    claim,
    insert_unreadable_on,
    new_job,
    new_worker,
    now,
    statuses,
)

FOR_PEOPLE = (
    *("scheduler_audit", "scheduler_bulk_runs", "scheduler_stats", "scheduler_totals", "vacuum_stats"),
    *("scheduler_failures", "scheduler_error_groups", "scheduler_error_counts"),
)
"""The tables that no service reads for its work."""

REFUSE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
"""

PEOPLE, WITH_RECORD, APART = "an action of a person", "with_record()", "for_people() or its like"
WITHOUT_COUNT = "it is written again without the count, and counted later"
WRITERS = {
    "insert_audit": PEOPLE,
    "begin_run": PEOPLE,
    "advance_run": PEOPLE,
    "stop_run": PEOPLE,
    "end_run": PEOPLE,
    "pause_task": PEOPLE,
    "resume_tasks": PEOPLE,
    "request_state": PEOPLE,
    "register_worker": WITH_RECORD,
    "insert_schedule": WITH_RECORD,
    "write_schedule": WITH_RECORD,
    "remove_schedule": WITH_RECORD,
    "pause_schedule": WITH_RECORD,
    "resume_schedule": WITH_RECORD,
    "record_dead_workers": APART,
    "add_statistics": APART,
    "fold_statistics": APART,
    "delete_statistics": APART,
    "fold_failures": APART,
    "count_failures": APART,
    "settle_failed": WITHOUT_COUNT,
    "quarantine_job": WITH_RECORD,
    "refuse_replacement": WITH_RECORD,
    "explain_expiry": WITH_RECORD,
    "expire_jobs": WITH_RECORD,
    "end_past_deadlines": WITH_RECORD,
    "vacuum_audit": APART,
    "record_vacuum": APART,
}
"""Every statement that writes such a table, and why a refusal stops no service."""

BESIDE = {name for name, way in WRITERS.items() if way in {WITH_RECORD, WITHOUT_COUNT}}
"""The statements of services that write such a table beside another one."""

WRITES = re.compile(rf'(?:INSERT INTO|UPDATE|DELETE FROM) "public"\.(?:{"|".join(FOR_PEOPLE)})\b')


def test_every_statement_that_writes_for_people_is_known() -> None:
    writers = {name for name, query in load_queries("public").items() if WRITES.search(query.text)}
    assert writers == WRITERS.keys()
    recorded = {name for name, query in load_queries("public").items() if query.is_recorded}
    assert recorded >= BESIDE
    assert not [
        name for name in recorded if WRITES.search(load_variant("public", name, is_recorded=False).text)
    ]


def test_statements_for_people_only_wait_for_no_lock_for_long() -> None:
    """They would keep a connection of the pool, and a service waits for them."""
    # Those of the vacuum delete what is old, so that only the rest of its own pass waits.
    apart = {name for name, way in WRITERS.items() if way is APART}
    deleting = {"vacuum_audit", "fold_statistics", "delete_statistics"}
    assert {load_queries("public")[name].routes for name in apart - deleting} == {(Route.TUNED,)}


@pytest.fixture
async def refusing(pool: asyncpg.Pool) -> None:
    await pool.execute(REFUSE)
    for table in FOR_PEOPLE:
        await pool.execute(
            f"CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse()"
        )


@pytest.mark.usefixtures("refusing")
async def test_jobs_of_a_dead_worker_are_reclaimed_without_the_record(
    parts: Parts, pool: asyncpg.Pool, seen: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    await claim(parts.store, new_job("a"), worker_id="dead")
    await pool.execute("UPDATE scheduler_workers SET lease_until = now() - interval '1 hour'")
    rescuer = parts.rescuer()
    rescuer.answer_timeout_s = 0.0
    await rescuer.run_once()
    await rescuer.run_once()
    assert seen.of(JobsReclaimed) == [JobsReclaimed(("a",), ("dead",))]
    assert await statuses(parts.store, "a") == [JobStatus.PENDING.value]
    *_, warning = warnings_of(caplog)
    assert warning.startswith(
        "the server refused the record of the dead workers ['dead'] (RaiseError: refused)"
    )


@pytest.mark.usefixtures("refusing")
async def test_worker_of_a_new_release_registers_without_the_record(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    worker = replace(new_worker(), metadata={"release": "2"})
    await parts.store.workers.register(worker, 60)
    assert [worker.worker_id for worker in await parts.store.workers.list_workers()] == ["me"]
    (warning,) = warnings_of(caplog)
    assert warning.startswith("the server refused the record of the start of worker me (RaiseError: refused)")


@pytest.mark.usefixtures("refusing")
async def test_statistics_that_are_refused_are_reported_once_and_kept(
    parts: Parts, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    await parts.store.workers.register(new_worker(), 60)
    meter = Meter()
    writer = StatisticsWriter(parts, meter, parts.store.statistics)
    meter.record_end("work", "failed")
    for _ in range(2):
        assert await writer.run_once() == writer.interval_s
    _, warning = warnings_of(caplog)  # the first is about the registration
    assert warning.startswith("the server refused statistics of jobs (RaiseError: refused)")
    for table in FOR_PEOPLE:
        await pool.execute(f"DROP TRIGGER refuse ON {table}")
    await writer.run_once()
    assert await pool.fetchval("SELECT job_name FROM scheduler_totals") == "work"


@pytest.mark.usefixtures("refusing")
async def test_vacuum_deletes_jobs_where_records_cannot_be_deleted(
    parts: Parts, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    await pool.execute("ALTER TABLE scheduled_jobs DISABLE TRIGGER USER")
    await pool.execute("""
        INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status, finished_at)
        VALUES ('old', 'work', now(), 'completed', now() - interval '1 year')
    """)
    assert (await parts.vacuum(VacuumConfig(track_metrics=True)).run())[JobStatus.COMPLETED] == 1
    refused = [re.sub(r" \(.*", "", warning) for warning in warnings_of(caplog)]
    assert refused == [
        "the server refused the deletion of old records",
        "the server refused to merge old statistics",
        "the server refused the number of deleted jobs",
    ]


@pytest.mark.usefixtures("refusing")
async def test_jobs_expire_without_the_count_while_a_pause_suspends_the_expiry_of_others(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    """The statement without the count leaves out the same names."""
    late: dict[str, Any] = {"execution_time": now() - timedelta(minutes=1), "misfire_grace_time": 1}
    jobs = [new_job("late", **late), new_job("paused", "paused", **late)]
    await parts.store.inserts.insert(jobs)
    expired = await parts.store.jobs.expire("me", [], 10, unexpiring_names={"paused"})
    assert [job.job_id for job in expired] == ["late"]
    assert await statuses(parts.store, "late", "paused") == ["expired", "pending"]
    (warning,) = warnings_of(caplog)
    assert warning.startswith("the server refused the count of expired jobs (RaiseError: refused)")


# -- tables that are locked, missing, or closed to the role of the worker --------------------------------


class Trouble(ABC):
    """What keeps a worker from all tables for people."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.role: str | None = None
        """The role of the worker; None for the owner of the tables."""

    async def begin(self) -> None:
        """Begin."""
        self._owner = await asyncpg.connect(self._dsn)
        await self._begin(self._owner)

    async def end(self) -> None:
        """Give the worker all tables back."""
        if not self._owner.is_closed():
            await self._end(self._owner)
            await self._owner.close()

    @abstractmethod
    async def _begin(self, owner: asyncpg.Connection) -> None: ...

    @abstractmethod
    async def _end(self, owner: asyncpg.Connection) -> None: ...


class Privilege(Trouble):
    """The role has no privilege on them, as before the grants of an upgrade are repeated."""

    async def _begin(self, owner: asyncpg.Connection) -> None:
        self.role = f"worker_{uuid4().hex}"
        await owner.execute(
            f"CREATE ROLE {self.role}; GRANT ALL ON ALL TABLES IN SCHEMA public TO {self.role};"
            f"REVOKE ALL ON {', '.join(FOR_PEOPLE)} FROM {self.role}"
        )

    async def _end(self, owner: asyncpg.Connection) -> None:
        await owner.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {self.role}")


class Lock(Trouble):
    """Another transaction has locked them, as VACUUM FULL and ALTER TABLE do."""

    async def _begin(self, owner: asyncpg.Connection) -> None:
        await owner.execute(f"BEGIN; LOCK TABLE {', '.join(FOR_PEOPLE)} IN ACCESS EXCLUSIVE MODE")

    async def _end(self, owner: asyncpg.Connection) -> None:
        await owner.execute("ROLLBACK")


class Absence(Trouble):
    """They are missing."""

    async def _begin(self, owner: asyncpg.Connection) -> None:
        for table in FOR_PEOPLE:
            await owner.execute(f"ALTER TABLE {table} RENAME TO {table}_gone")

    async def _end(self, owner: asyncpg.Connection) -> None:
        for table in FOR_PEOPLE:
            await owner.execute(f"ALTER TABLE {table}_gone RENAME TO {table}")


@pytest.fixture(params=[Privilege, Lock, Absence])
async def trouble(request: pytest.FixtureRequest, dsn: str) -> AsyncIterator[Trouble]:
    trouble: Trouble = request.param(dsn)
    await trouble.begin()
    yield trouble
    await trouble.end()
    if trouble.role is not None:
        owner = await asyncpg.connect(dsn)
        await owner.execute(f"DROP OWNED BY {trouble.role}; DROP ROLE {trouble.role}")
        await owner.close()


@pytest.fixture
async def troubled(trouble: Trouble, dsn: str, bus: EventBus) -> AsyncIterator[Parts]:
    """A worker that cannot use the tables for people."""
    settings = {} if trouble.role is None else {"role": trouble.role}
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=5, server_settings=settings)
    connections = Connections(pool, options=ConnectionOptions(hot_timeout_s=30))
    yield Parts(Store(connections), bus)
    await connections.release_held()
    await asyncio.wait_for(pool.close(), PATIENCE)


async def register(parts: Parts, _pool: asyncpg.Pool) -> None:
    await parts.store.workers.register(replace(new_worker(), metadata={"release": "2"}), 60)
    assert [worker.worker_id for worker in await parts.store.workers.list_workers()] == ["me"]


async def fire() -> None: ...


def declared(parts: Parts, key: str, **settings: Any) -> DeclaredSchedules:
    """Return the schedules of code that declares this one."""
    catalogue = PeriodicCatalogue()
    catalogue.add(PeriodicJobConfig(fire, timedelta(minutes=1), dedup_key=key, **settings))
    return DeclaredSchedules(parts.store, parts.store.schedules, catalogue)


async def declare(parts: Parts, pool: asyncpg.Pool) -> None:
    await declared(parts, "key").sync()
    assert await pool.fetchval("SELECT job_name FROM scheduler_schedules WHERE schedule_id = 'key'")


async def declare_again(parts: Parts, pool: asyncpg.Pool) -> None:
    await declare(parts, pool)
    await declared(parts, "key", max_retries=7).sync()
    assert await pool.fetchval("SELECT options ->> 'max_retries' FROM scheduler_schedules") == "7"


async def declare_under_another_key(parts: Parts, pool: asyncpg.Pool) -> None:
    await declared(parts, "").sync()
    await declared(parts, "new").sync()
    assert [tuple(row) for row in await pool.fetch("SELECT schedule_id FROM scheduler_schedules")] == [
        ("new",)
    ]


async def switch(parts: Parts, pool: asyncpg.Pool, *, enabled: bool) -> None:
    schedules = declared(parts, "key")
    await schedules.sync()
    for value in (False, True)[: 1 + enabled]:
        schedules.enable("key", enabled=value)
        assert await schedules.write_switches()
    assert (await pool.fetchval("SELECT paused_at FROM scheduler_schedules") is None) is enabled


async def disable(parts: Parts, pool: asyncpg.Pool) -> None:
    await switch(parts, pool, enabled=False)


async def enable(parts: Parts, pool: asyncpg.Pool) -> None:
    await switch(parts, pool, enabled=True)


async def fail(parts: Parts, pool: asyncpg.Pool) -> None:
    """Each way in which an outcome is written: at once, alone, and that of a dead worker."""
    outcome = Outcome.fail("why")
    together, alone = sorted(await claim(parts.store, new_job("together"), new_job("alone")), reverse=True)
    with suppress(DatabaseUnavailableError):  # a lock, after which the completer writes it in the other way
        await parts.store.results.settle("me", [(together, outcome)])
    await parts.store.results.settle_unlocked("me", [(together, outcome)])
    assert (await parts.store.results.settle_unlocked("me", [(alone, outcome)])).locked == set()
    await claim(parts.store, new_job("crashed"), worker_id="dead")
    await pool.execute("UPDATE scheduler_workers SET lease_until = now() - interval '1 hour'")
    assert (await parts.store.workers.rescue(120.0, max_crashes=1)).quarantined
    assert await statuses(parts.store, "together", "alone", "crashed") == ["failed"] * 3


async def quarantine(parts: Parts, pool: asyncpg.Pool) -> None:
    await parts.store.workers.register(new_worker(), 60)
    await insert_unreadable_on(pool)
    quarantine = await parts.store.claims.quarantine("me", ["test.job"], 10)
    assert [job.job_id for job in quarantine.unreadable] == ["unreadable"]


async def refuse_replacement(parts: Parts, pool: asyncpg.Pool) -> None:
    (held,) = await claim(parts.store, new_job("a"))
    await parts.store.inserts.replace([new_job("a")])
    await pool.execute(
        """UPDATE scheduled_jobs SET on_end = jsonb_set(on_end, '{replacement,priority}', '"x"')"""
    )
    await parts.store.results.settle("me", [(held, COMPLETE)])
    assert await statuses(parts.store, "a") == ["failed"]


LATE: dict[str, Any] = {"execution_time": now() - timedelta(hours=1), "misfire_grace_time": 1}


async def claim_late(parts: Parts, pool: asyncpg.Pool) -> None:
    """The job that is claimed with it runs."""
    await parts.store.workers.register(new_worker(), 60)
    await parts.store.inserts.insert([new_job("late", **LATE), new_job("due")])
    seen, gate = Recorder(parts.events), Gate()
    parts.tasks.register(gate.job, name="test.job")
    executor = parts.executor()
    await parts.claimer(executor).run_once()
    assert [event.job_id for event in seen.of(JobExpired)] == ["late"]
    assert parts.in_flight.held() == {"due": 1}
    gate.open.set()
    await Parts.ended(executor)
    assert "it was scheduled later" in await pool.fetchval(
        "SELECT error_message FROM scheduled_jobs WHERE job_id = 'late'"
    )


async def expire(parts: Parts, _pool: asyncpg.Pool) -> None:
    await parts.store.inserts.insert([new_job("late", **LATE)])
    assert [job.job_id for job in await parts.store.jobs.expire("me", [], 10)] == ["late"]


async def end_past_deadline(parts: Parts, _pool: asyncpg.Pool) -> None:
    past = deadline_text(now() - timedelta(minutes=1))
    job = ExtendedJob(new_job("past"), NO_EXTRAS.with_options(**{DEADLINE: past}))
    await parts.store.inserts.insert_extended([job])
    assert [job.job_id for job in await parts.store.jobs.end_past_deadlines(10)] == ["past"]


BESIDES: dict[str, tuple[Callable[[Parts, asyncpg.Pool], Awaitable[None]], list[str]]] = {
    "register_worker": (register, []),
    "insert_schedule": (declare, []),
    "write_schedule": (declare_again, []),
    "remove_schedule": (declare_under_another_key, []),
    "pause_schedule": (disable, []),
    "resume_schedule": (enable, []),
    "settle_failed": (fail, ["quarantined: # worker died while it ran", "why", "why"]),
    "quarantine_job": (quarantine, ["the row of this job cannot be read"]),
    "refuse_replacement": (refuse_replacement, ["the new definition that waited for this job"]),
    "explain_expiry": (claim_late, [EXPIRED]),
    "expire_jobs": (expire, [EXPIRED]),
    "end_past_deadlines": (end_past_deadline, [PAST_DEADLINE]),
}
"""What a service does by each of these statements, and the texts of the errors that it is to count."""


def test_each_statement_with_a_record_is_tried_without_access_to_the_record() -> None:
    assert BESIDES.keys() == BESIDE


@pytest.mark.parametrize("statement", BESIDES)
async def test_service_changes_jobs_and_schedules_while_it_cannot_write_records(
    troubled: Parts, trouble: Trouble, pool: asyncpg.Pool, statement: str
) -> None:
    change, texts = BESIDES[statement]
    names = sent_statements(troubled)
    await change(troubled, pool)
    assert statement in names
    await trouble.end()
    assert await pool.fetchval("SELECT count(*) FROM scheduler_failures") == 0
    assert await troubled.store.uncounted.count() == len(texts)
    assert await troubled.store.uncounted.count() == 0
    rows = await pool.fetch("SELECT text, jobs FROM scheduler_failures")
    counted = sorted(text for text, jobs in rows for _ in range(jobs))
    assert all(text.startswith(start) for text, start in zip(counted, texts, strict=True)), counted


async def test_vacuum_deletes_jobs_while_it_cannot_use_tables_for_people(
    troubled: Parts, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(troubled.store.statements, "call_timeout_s", 5.0)  # how long it waits for a lock
    await pool.execute("""
        INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status, finished_at)
        VALUES ('old', 'work', now(), 'completed', now() - interval '1 year')
    """)
    with suppress(DatabaseUnavailableError):  # a lock, after which the loop of the service repeats the pass
        await troubled.vacuum(VacuumConfig(track_metrics=True)).run()
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


async def test_jobs_of_a_dead_worker_are_reclaimed_while_deaths_cannot_be_recorded(
    troubled: Parts, pool: asyncpg.Pool
) -> None:
    await claim(troubled.store, new_job("a"), worker_id="dead")
    await pool.execute("UPDATE scheduler_workers SET lease_until = now() - interval '1 hour'")
    assert (await troubled.store.workers.rescue(120.0)).dead_workers == ["dead"]
    assert await statuses(troubled.store, "a") == ["pending"]


async def test_counts_are_added_after_they_could_not_be_written(
    troubled: Parts, trouble: Trouble, pool: asyncpg.Pool
) -> None:
    """The services of the counts repeat their passes, and nothing else waits for these."""
    (held,) = await claim(troubled.store, new_job("a"))
    meter = Meter()
    meter.record_end("work", "failed")
    counter = ErrorCounter(troubled, troubled.store.errors)
    counter.gap_s = 0.0
    statistics = StatisticsWriter(troubled, meter, troubled.store.statistics)
    await troubled.store.results.settle_unlocked("me", [(held, Outcome.fail("why"))])
    counter.begin()
    for service in (counter, statistics):
        with suppress(DatabaseUnavailableError):  # a lock, after which the loop of the service repeats it
            assert await service.run_once() > 0
    await trouble.end()
    await counter.run_once()
    await statistics.run_once()
    assert await pool.fetchval("SELECT text FROM scheduler_error_groups") == "why"
    assert await pool.fetchval("SELECT job_name FROM scheduler_totals") == "work"


async def test_failure_that_is_written_during_a_pass_makes_another_one_due(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass may not have seen its row."""
    counter = ErrorCounter(parts, parts.store.errors)
    counter.gap_s, fold = 0.0, parts.store.errors.fold

    async def fold_meanwhile(limit: int) -> int:
        counter.begin()
        return await fold(limit)

    monkeypatch.setattr(parts.store.errors, "fold", fold_meanwhile)
    counter.begin()
    assert await counter.run_once() == 0
    monkeypatch.undo()
    assert await counter.run_once() == NEVER


async def test_job_that_was_retried_and_expired_is_not_counted_as_a_failure(
    parts: Parts, pool: asyncpg.Pool
) -> None:
    await parts.store.inserts.insert([new_job("late", **LATE), new_job("again", **LATE)])
    parts.store.uncounted.note({"late": "why", "gone": "why"})
    await parts.store.jobs.expire("me", [], 10)
    assert await parts.store.uncounted.count() == 0
    rows = await pool.fetch("SELECT text, jobs FROM scheduler_failures")
    assert [tuple(row) for row in rows] == [(EXPIRED, 2)]
