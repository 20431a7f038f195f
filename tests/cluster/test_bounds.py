"""Every call to the database ends within its time limit while the server is frozen or its connection ends."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import fields
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, Final

import asyncpg
import pytest

from pg_scheduler import (
    ConflictResolution,
    JobPriority,
    JobProgress,
    JobSpec,
    JobStatus,
    Scheduler,
    VacuumConfig,
    periodic,
)
from pg_scheduler.admission.limits import AdmissionRequest, SurplusPosition
from pg_scheduler.database.identity import Identity, IdentityRepository
from pg_scheduler.database.options import ConnectionOptions
from pg_scheduler.database.queries import Route
from pg_scheduler.database.statements import CallersTransaction, Transaction
from pg_scheduler.embedded import EmbeddedPostgres
from pg_scheduler.errors import ConnectionLostError, DatabaseUnavailableError
from pg_scheduler.inspect.store.audit import AuditFilters
from pg_scheduler.inspect.store.bulk import Batch
from pg_scheduler.inspect.store.deploy import CheckedJob, CheckedStep
from pg_scheduler.inspect.store.schedules import ScheduleFilters
from pg_scheduler.inspect.store.searches import Scan
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.inspect.store.workers import IdRange
from pg_scheduler.jobs.limits import LimitNumbers
from pg_scheduler.jobs.pause import Pause
from pg_scheduler.jobs.result import KeptResult
from pg_scheduler.jobs.rows import EPOCH
from pg_scheduler.jobs.sequences import BLOCKED_BY_SEQUENCE, SEQUENCE
from pg_scheduler.queue.consequences import EndedJob
from pg_scheduler.queue.dependencies import ScanPosition
from pg_scheduler.queue.jobs import JobFilters
from pg_scheduler.queue.passed_results import Edge
from pg_scheduler.schedules.statements import Plannable, ScheduleChange
from pg_scheduler.steps.signals import Audience
from pg_scheduler.streams.statements import NewItem, Wanted
from pg_scheduler.worker.claims import FROM_THE_START, NO_IDS
from tests.support import inside
from tests.support.inside import (
    COMPLETE,
    RELEASE,
    Claim,
    Connections,
    ExtendedJob,
    Extras,
    GeneratedIdJob,
    JobFigures,
    Outcome,
    Store,
)
from tests.support.store import LEASE, NAME, methods_of, new_job, new_schedule, parts_of, worker
from tests.support.stories import NIGHTLY
from tests.support.worker import now

LIMIT_S = 0.3
"""Replaces every timeout of the library, which are up to an hour."""
PARTS = 8
"""Of the calls to the store: each has a connection of its own, so that none waits for another."""
MAX_CALL_S = 30 * LIMIT_S
"""A call may wait for a connection, several statements, concurrent calls of its kind, and a busy CPU."""
TIMEOUTS: dict[str, Any] = {
    each.name: LIMIT_S for each in fields(ConnectionOptions) if "timeout_s" in each.name
}
OPTIONS = ConnectionOptions(**TIMEOUTS)
NOTHING = Plannable([], [], [])
MIGRATION_TIMEOUTS = {"MIGRATION_TIMEOUT_S", "QUERY_TIMEOUT_S"}

Call = Callable[[Any, Any], Awaitable[object]]


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set every timeout of the library to the limit."""
    inside.replace(monkeypatch, connections_of_scheduler=partial(Connections, options=OPTIONS))
    for module in [each for name, each in sys.modules.items() if name.startswith("pg_scheduler.")]:
        for name in MIGRATION_TIMEOUTS & set(vars(module)):
            monkeypatch.setattr(module, name, LIMIT_S)


@asynccontextmanager
async def frozen(server: EmbeddedPostgres) -> AsyncIterator[None]:
    await asyncio.to_thread(server.freeze)
    try:
        yield
    finally:
        await asyncio.to_thread(server.thaw)


async def assert_all_end(
    calls: dict[str, Call], subject: Any, private_dsn: str, server: EmbeddedPostgres
) -> None:
    """Make all calls concurrently on a frozen server, each with a connection in a transaction."""
    async with AsyncExitStack() as stack:
        connections = [await asyncpg.connect(private_dsn) for _ in calls]
        for each in connections:
            stack.callback(each.terminate)
            await each.transaction().start()
        async with frozen(server):
            tasks = {
                name: asyncio.ensure_future(call(subject, connection))
                for (name, call), connection in zip(calls.items(), connections, strict=True)
            }
            await asyncio.wait(tasks.values(), timeout=MAX_CALL_S)
            ends = {
                name: task.exception() if task.done() else "still waiting" for name, task in tasks.items()
            }
    for task in tasks.values():
        task.cancel()
    await asyncio.wait(tasks.values())
    assert {name: end for name, end in ends.items() if not isinstance(end, DatabaseUnavailableError)} == {}


async def swallowing(call: Awaitable[object]) -> None:
    """Await a call that returns without an error when the database is unavailable; raise that error then."""
    await call
    raise DatabaseUnavailableError("swallowed by the call")


async def guard_again(identity: IdentityRepository) -> None:
    """Guard a worker that has started in this database."""
    identity.started_in = identity.started_in or Identity(None, 0, None, "")
    await identity.guard_again("refuse")


def due(**arguments: Any) -> dict[str, Any]:
    return {"execution_time": now(), **arguments}


SCHEDULER_CALLS: dict[str, Call] = {
    "schedule": lambda it, _: it.schedule(work, **due()),
    "schedule, replacing": lambda it, _: it.schedule(
        work, **due(job_id="a", conflict_resolution=ConflictResolution.REPLACE)
    ),
    "schedule, on a connection": lambda it, conn: it.schedule(work, **due(connection=conn)),
    "enqueue": lambda it, _: it.enqueue(work),
    "enqueue, replacing": lambda it, _: it.enqueue(work, conflict_resolution=ConflictResolution.REPLACE),
    "enqueue, on a connection": lambda it, conn: it.enqueue(work, connection=conn),
    "schedule_bulk": lambda it, _: it.schedule_bulk([JobSpec(work, now())] * 3),
    "schedule_bulk, by COPY": lambda it, _: it.schedule_bulk([JobSpec(work, now())] * 300),
    "schedule_bulk, on a connection": lambda it, conn: it.schedule_bulk(
        [JobSpec(work, now())] * 300, connection=conn, conflict_resolution=ConflictResolution.RAISE
    ),
    "schedule_job": lambda it, _: it.schedule_job("some.name", now(), {"args": [], "kwargs": {}}),
    "cancel_job": lambda it, _: it.cancel_job("a"),
    "cancel_jobs": lambda it, _: it.cancel_jobs(job_name="a"),
    "retry_job": lambda it, _: it.retry_job("a"),
    "run_job_now": lambda it, _: it.run_job_now("a"),
    "signal": lambda it, _: it.signal("a", "b"),
    "send": lambda it, _: it.send("a", "b"),
    "broadcast": lambda it, _: it.broadcast("b"),
    "get_value": lambda it, _: it.get_value("a", "b", wait=False),
    "end_sleep": lambda it, _: it.end_sleep("a"),
    "update_job_status": lambda it, _: it.update_job_status("a", "pending"),
    "get_job": lambda it, _: it.get_job("a"),
    "get_job_result": lambda it, _: it.get_job_result("a", wait=False),
    "run_job": lambda it, _: it.run_job(work),
    "list_jobs": lambda it, _: it.list_jobs(),
    "count_jobs": lambda it, _: it.count_jobs(),
    "workers": lambda it, _: it.workers(),
    "recover_orphaned_jobs": lambda it, _: it.recover_orphaned_jobs(),
    "periodic_orphan_recovery": lambda it, _: it.periodic_orphan_recovery(),
    "monitor_heartbeats": lambda it, _: it.monitor_heartbeats(),
    "listen_for_jobs": lambda it, _: it.listen_for_jobs(),
    "send_heartbeat": lambda it, _: it.send_heartbeat("a"),
    "load_task_functions": lambda it, _: it.load_task_functions(),
    "execute_job": lambda it, _: it.execute_job({"job_id": "a"}),
    "execute_job_with_concurrency_control": lambda it, _: it.execute_job_with_concurrency_control(
        {"job_id": "a"}
    ),
    "run_vacuum": lambda it, _: it.run_vacuum(),
    "get_vacuum_stats": lambda it, _: it.get_vacuum_stats(),
    "get_total_vacuum_stats": lambda it, _: it.get_total_vacuum_stats(),
    "trigger_periodic_job": lambda it, _: it.trigger_periodic_job("hourly"),
    "start": lambda it, _: Scheduler(it.db_pool).start(),
    "initialize_db": lambda it, _: it.initialize_db(),
}


async def work() -> None: ...


async def test_scheduler_methods_raise_within_the_limit_when_the_server_is_frozen(
    private_server: EmbeddedPostgres, private_dsn: str, short_timeouts: None
) -> None:
    @periodic(every=timedelta(hours=1), dedup_key="hourly")
    async def hourly() -> None: ...

    public = {
        name
        for name, _ in inspect.getmembers(Scheduler, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }
    assert {name.partition(",")[0] for name in SCHEDULER_CALLS} == public - {"wait", "shutdown", "next_event"}
    async with asyncpg.create_pool(private_dsn, min_size=32, max_size=32) as pool:
        scheduler = Scheduler(pool, vacuum_config=VacuumConfig(track_metrics=True), shutdown_timeout=LIMIT_S)
        await scheduler.start()
        await assert_all_end(SCHEDULER_CALLS, scheduler, private_dsn, private_server)
        async with frozen(private_server):
            await asyncio.wait_for(scheduler.shutdown(), 2 * MAX_CALL_S)  # no result is unwritten
        assert not scheduler.is_running


CANCELLED_CALLS = {
    "schedule",
    "get_job",
    "list_jobs",
    "cancel_job",
    "retry_job",
    "run_vacuum",
    "initialize_db",
}
CANCELLED_CALLS |= {
    "schedule, replacing",
    "schedule_bulk",
    "schedule_bulk, by COPY",
    "update_job_status",
    "workers",
}


async def test_cancelled_call_ends_at_once_when_the_server_is_frozen(
    private_server: EmbeddedPostgres, private_dsn: str
) -> None:
    """The timeouts are the real ones, which are longer than the test."""
    async with asyncpg.create_pool(private_dsn, min_size=16, max_size=16) as pool:
        scheduler = Scheduler(pool)
        await scheduler.initialize_db()
        async with frozen(private_server):
            calls = {
                name: asyncio.ensure_future(SCHEDULER_CALLS[name](scheduler, None))
                for name in CANCELLED_CALLS
            }
            await asyncio.wait(calls.values(), timeout=0.3)  # real time: until all have sent their query
            for call in calls.values():
                call.cancel()
            await asyncio.wait(calls.values(), timeout=10)
            assert [name for name, call in calls.items() if not call.cancelled()] == []
        assert await scheduler.list_jobs() is not None


async def first(pages: AsyncIterator[object]) -> object:
    return await anext(pages)


async def enter(block: AbstractAsyncContextManager[object]) -> None:
    async with block:
        raise AssertionError("the block was entered")


def claimed() -> list[Claim]:
    return [Claim("a", NAME, NAME, 1, now(), "{}", 5, 0, 0, None, None)]


ENDED_PAUSE = Pause(NAME, EPOCH, EPOCH, None, "me", -1.0, suspends_expiry=True)
ENDED = EndedJob("a", NAME, JobStatus.FAILED, 1, None, {}, {"schedule_id": "a"})
IN_SEQUENCE = ENDED._replace(options={SEQUENCE: {"key": f"{BLOCKED_BY_SEQUENCE}s:t"}})
KEPT = ENDED._replace(options={"keep_result": 60})
EXTENDED = ExtendedJob(new_job(), Extras(unique_key="key"))
DUE_NOW = GeneratedIdJob(*new_job(execution_time=EPOCH)._replace(misfire_grace_time=None))

LIMITS = [("limit:a:", LimitNumbers(1, None, None))]
KEEP = {"limit:a:": 0.0}

CHECKED = CheckedJob("a", NAME, NAME, None, None, None, None, 9)
CHECKED_STEP = CheckedStep("a", "step", "step", None, 9)
SCAN = Scan((), 1, 1)
PLACE: Any = SimpleNamespace(
    job_id="a", priority=JobPriority.NORMAL, execution_time=now(), blocked_on="share:s:t"
)
"""What the place of a job in the queue follows from."""


async def count_missed(it: Any) -> object:
    it.uncounted.note({"a": "lost"})
    return await it.uncounted.count()


STORE_CALLS: dict[str, Call] = {
    "schema": lambda it, _: Store(it.connections).schema(),
    "schema, on a connection": lambda it, conn: Store(it.connections).schema(on=conn),
    "channel": lambda it, _: Store(it.connections).locks.channel(),
    "migrate": lambda it, _: it.migrate(),
    "insert": lambda it, _: it.inserts.insert([new_job()]),
    "insert, with a message": lambda it, conn: it.inserts.insert([new_job()], message="due", connection=conn),
    "insert, on a sticky connection": lambda it, _: it.inserts.insert([new_job()], route=Route.STICKY),
    "enqueue": lambda it, _: it.inserts.enqueue([new_job(execution_time=EPOCH)]),
    "enqueue, in a transaction": lambda it, conn: it.inserts.enqueue(
        [DUE_NOW], message="due", connection=conn
    ),
    "enqueue, without a message": lambda it, conn: it.inserts.enqueue([DUE_NOW], connection=conn),
    "enqueue_extended": lambda it, _: it.inserts.enqueue_extended([EXTENDED]),
    "pause, of a task": lambda it, _: it.pauses.pause(NAME, None, None, "me"),
    "resume, of a task": lambda it, _: it.pauses.resume([NAME]),
    "end_pauses": lambda it, _: it.pauses.end_pauses(),
    "paused": lambda it, _: it.pauses.paused(),
    "add_names": lambda it, _: it.pauses.add_names(NAME, {"alias"}),
    "renew_due": lambda it, _: it.pauses.renew_due([NAME], now(), 5, ("-infinity", ""), 500),
    "renew_blocked": lambda it, _: it.pauses.renew_blocked([NAME], now(), ("", 0, "-infinity", ""), 500),
    "delete_renewed": lambda it, _: it.pauses.delete_renewed([NAME], ENDED_PAUSE),
    "copy": lambda it, _: it.inserts.copy([GeneratedIdJob(*new_job())], 1000),
    "replace": lambda it, _: it.inserts.replace([new_job()]),
    "insert_extended": lambda it, _: it.inserts.insert_extended([EXTENDED]),
    "find_conflicts": lambda it, _: it.unique_keys.find_conflicts(["a"], ["key"]),
    "lock_holders": lambda it, conn: it.unique_keys.lock_holders(["key"], conn),
    "restart": lambda it, _: it.unique_keys.restart("a", it.jobs.waiting_names),
    "replace_extended": lambda it, _: it.inserts.replace_extended([EXTENDED]),
    "replace_debounced": lambda it, conn: it.inserts.replace_debounced([EXTENDED], connection=conn),
    "block": lambda it, conn: it.dependencies.block([EXTENDED], Transaction(conn, [])),
    "await_jobs": lambda it, conn: it.dependencies.await_jobs("a", "1", ["b"], Transaction(conn, [])),
    "resolve": lambda it, conn: it.dependencies.resolve(["a"], Transaction(conn, [])),
    "release_children": lambda it, conn: it.dependencies.release_children([ENDED], Transaction(conn, [])),
    "repair": lambda it, _: it.dependencies.repair(ScanPosition(), blocks=1, jobs=1),
    "statuses_of": lambda it, _: it.jobs.statuses_of(["a"]),
    "free_fire_times": lambda it, conn: it.jobs.free_fire_times(["a"], {"b": now()}, conn),
    "read_revoked": lambda it, _: it.jobs.read_revoked(["a"]),
    "transaction, of any statements": lambda it, _: enter(it.statements.transaction()),
    "transaction, on a connection": lambda it, conn: enter(it.statements.transaction(within=conn)),
    "exchange": lambda it, _: it.claims.exchange("w1", [NAME], 1),
    "exchange, with completions": lambda it, _: it.claims.exchange("w1", [NAME], 1, completed=claimed()),
    "count_crashes": lambda it, _: it.results.count_crashes([(claimed()[0], Outcome.crash("", 1))]),
    "settle": lambda it, _: it.results.settle("w1", [(claimed()[0], COMPLETE)]),
    "settle_unlocked": lambda it, _: it.results.settle_unlocked("w1", [(claimed()[0], COMPLETE)]),
    "find_blockers": lambda it, _: swallowing(it.results.find_blockers("w1", claimed()[0], COMPLETE)),
    "find_cancelled": lambda it, _: it.results.find_cancelled({"job": 1}),
    "settle_divided": lambda it, conn: it.results.settle_divided(
        {("a", 1): RELEASE.change}, "w1", Transaction(conn, [])
    ),
    "settle_within": lambda it, conn: it.results.settle_within(
        {("a", 1): RELEASE.change}, "w1", Transaction(conn, [])
    ),
    "complete_plain": lambda it, conn: it.results.complete_plain(claimed()[0], "w1", conn),
    "complete_own": lambda it, conn: it.results.complete_own(
        claimed()[0], COMPLETE.change, "w1", Transaction(conn, []), is_own=True
    ),
    "write_own_progress": lambda it, conn: it.progress.write_own_progress(
        "w1", claimed()[0], JobProgress(1), Transaction(conn, [])
    ),
    "transaction_id": lambda it, conn: it.results.transaction_id(conn),
    "has_committed": lambda it, _: it.results.has_committed(claimed()[0], "w1", 1),
    "was_rolled_back": lambda it, _: it.results.was_rolled_back(claimed()[0], "w1", 1),
    "version": lambda it, _: it.jobs.version("a"),
    "change, a waiting job": lambda it, _: it.jobs.change("a", "version", "{}", 5),
    "keep": lambda it, conn: it.kept_results.keep({"a": KeptResult(1.0)}, conn, are_outcomes=True),
    "keep_ended": lambda it, conn: it.kept_results.keep_ended([KEPT], Transaction(conn, [])),
    "get": lambda it, _: it.kept_results.get(["a"]),
    "vacuum": lambda it, _: it.kept_results.vacuum(10),
    "clear": lambda it, conn: it.passed_results.clear(["a"], conn),
    "copy, a result": lambda it, conn: it.passed_results.copy([Edge("a", "b", "")], {"b": "result:"}, conn),
    "take_over": lambda it, conn: it.passed_results.take_over(["a"], conn),
    "names, of passed results": lambda it, _: it.passed_results.names("a"),
    "of_children": lambda it, _: it.passed_results.of_children("a", "step", ["b"]),
    "get, passed results": lambda it, _: it.passed_results.get("a", ["result:b"]),
    "write_progress": lambda it, _: it.progress.write_progress("w1", {"a": (claimed()[0], JobProgress(1))}),
    "remove_look": lambda it, _: it.progress.remove_look(claimed()[0]),
    "write_look": lambda it, _: it.progress.write_look("w1", claimed()[0], "{}"),
    "held_claim": lambda it, _: it.claims.held_claim("a", "w1"),
    "quarantine": lambda it, _: it.claims.quarantine("w1", [NAME], 1),
    "quarantine_oversized": lambda it, _: it.claims.quarantine_oversized([NAME], 1),
    "claim": lambda it, _: it.claims.claim("w1", [NAME], 1),
    "explain_expiry": lambda it, _: it.claims.explain_expiry("w1", [NAME], claimed()),
    "complete": lambda it, _: it.claims.complete("w1", claimed(), keep=True),
    "find_claimable": lambda it, _: it.claims.find_claimable([NAME], FROM_THE_START, NO_IDS),
    "delete": lambda it, _: it.jobs.delete(["a"]),
    "move": lambda it, _: it.jobs.move(["a"], to=now()),
    "change": lambda it, _: it.people.bulk.change(Batch("cancel", ["a"], subject="run")),
    "versions": lambda it, _: it.people.bulk.versions(["a"]),
    "claim_one": lambda it, _: it.claims.claim_one("w1", "a"),
    "cancel": lambda it, _: it.jobs.cancel("a"),
    "cancel_within": lambda it, conn: it.jobs.cancel_within(Transaction(conn, []), "a", "a reason"),
    "cancel_family": lambda it, _: it.jobs.cancel_family("a", "a reason"),
    "cancel_next": lambda it, _: it.jobs.cancel_next(None, JobFilters()),
    "retry": lambda it, _: it.jobs.retry("a"),
    "retry_family": lambda it, _: it.jobs.retry_family("a"),
    "end_past_deadlines": lambda it, _: it.jobs.end_past_deadlines(9),
    "forget_deadlines": lambda it, _: it.jobs.forget_deadlines(9),
    "keep, of a job": lambda it, _: it.jobs.keep("a"),
    "retry_from": lambda it, _: it.jobs.retry_from("a", "b"),
    "send": lambda it, _: it.signals.send("a", "b", "1"),
    "send_message": lambda it, _: it.signals.send_message("a", "b", "1"),
    "broadcast": lambda it, _: it.signals.broadcast("b", Audience(), str),
    "append": lambda it, _: it.streams.append("w1", claimed()[0], "d", [NewItem("a", 1, "1")]),
    "sizes, of streams": lambda it, _: it.streams.sizes("a"),
    "read, of streams": lambda it, _: it.streams.read([Wanted("a", "b", 0, 9)]),
    "vacuum, of streams": lambda it, _: it.streams.vacuum(""),
    "end_sleep": lambda it, _: it.signals.end_sleep("a"),
    "job_name": lambda it, _: it.signals.job_name("a"),
    "set_status": lambda it, _: it.jobs.set_status("a", JobStatus.PENDING, LEASE),
    "register": lambda it, _: it.workers.register(worker(), LEASE),
    "renew": lambda it, _: it.workers.renew("w1", {}, LEASE),
    "announce_subscriptions": lambda it, _: it.workers.announce_subscriptions("w1", ["JobFailed"], ""),
    "request_state": lambda it, _: it.workers.request_state(["w1"], None),
    "suspect_workers": lambda it, _: it.workers.suspect_workers("w1"),
    "ended_namesakes": lambda it, _: it.workers.ended_namesakes("w1", "pod", "host"),
    "restart_leases": lambda it, _: it.workers.restart_leases(),
    "correct_due_times": lambda it, _: it.jobs.correct_due_times(10),
    "find_uncorrected": lambda it, _: it.jobs.find_uncorrected(),
    "mark_stopping": lambda it, _: it.workers.mark_stopping("w1"),
    "deregister": lambda it, _: it.workers.deregister("w1"),
    "list_workers": lambda it, _: it.workers.list_workers(),
    "rescue": lambda it, _: it.workers.rescue(120),
    "release_unacknowledged": lambda it, _: it.claims.release_unacknowledged("w1", {}),
    "scan_deadlines": lambda it, _: it.workers.scan_deadlines(30, 120),
    "next_instants": lambda it, _: it.workers.next_instants("w1"),
    "expire": lambda it, _: it.jobs.expire("w1", [NAME], 10),
    "load": lambda it, _: it.steps.load("a"),
    "store": lambda it, _: it.steps.store("w1", claimed()[0], "a", "step", "1", version=1),
    "find_children": lambda it, conn: it.steps.find_children("w1", claimed()[0], "s", {"a": None}, conn),
    "keep_holders_results": lambda it, conn: it.steps.keep_holders_results(["a"], 1.0, conn),
    "repeat_wait": lambda it, _: it.steps.repeat_wait("w1", claimed()[0], "a", 1, delay_s=1.0, until=None),
    "is_locked_by": lambda it, _: it.steps.is_locked_by("a", 1),
    "has_rolled_back": lambda it, _: it.steps.has_rolled_back(1),
    "end, of a step": lambda it, _: it.steps.end("w1", claimed()[0], "a"),
    "record": lambda it, _: it.audit.record("trigger_schedule", "a"),
    "migrations": lambda it, _: it.people.inspections.migrations(9),
    "running, of workers": lambda it, _: it.people.worker_reads.running(),
    "unsuccessful, of a worker": lambda it, _: it.people.worker_reads.unsuccessful("a", EPOCH),
    "completed": lambda it, _: it.people.worker_reads.completed("a", EPOCH, [IdRange("a", "b", 1)]),
    "next_starts": lambda it, _: it.people.limits.next_starts([("limit:a:", 1, 1.0)]),
    "tenants, of shares": lambda it, _: it.people.limits.tenants(["share:s:t"]),
    "in_flight": lambda it, _: it.people.limits.in_flight(),
    "waits, of steps": lambda it, _: it.people.inspections.waits("a"),
    "children": lambda it, _: it.people.workflows.children("a"),
    "owner": lambda it, _: it.people.workflows.owner("a"),
    "open_steps": lambda it, _: it.people.workflows.open_steps("signal", 9),
    "family": lambda it, _: it.people.workflows.family("a", for_retry=False),
    "count_open": lambda it, _: it.people.workflows.count_open(),
    "progress, of steps": lambda it, _: it.people.workflows.progress(["a"]),
    "holders, of limits": lambda it, _: it.people.limits.holders(["limit:a:"], 1),
    "queue, of limits": lambda it, _: it.people.limits.queue(["limit:a:"], 1),
    "read, of the audit": lambda it, _: it.people.audit_records.read(None, 1, 1, AuditFilters()),
    "read, of a subject": lambda it, _: it.people.audit_records.read(None, 1, 1, AuditFilters(), "a"),
    "newest_records": lambda it, _: it.people.audit_records.newest_records(["a"], ["mute_error"], 1),
    "is_writable": lambda it, _: it.people.audit_records.is_writable(),
    "trigger_changes": lambda it, _: it.people.audit_records.trigger_changes(["a"], 1),
    "count, of schedules": lambda it, _: it.people.schedule_lists.count(ScheduleFilters()),
    "find, of schedules": lambda it, _: it.people.schedule_lists.find(ScheduleFilters(), "all", None, 1),
    "state, of a schedule": lambda it, _: it.people.schedule_lists.state("a"),
    "vacuum, of the audit": lambda it, _: it.audit.vacuum(now(), 10),
    "begin, of a bulk run": lambda it, _: it.people.bulk_runs.begin("run", {}, "start_bulk"),
    "stop, of a bulk run": lambda it, _: it.people.bulk_runs.stop("run"),
    "end, of a bulk run": lambda it, _: it.people.bulk_runs.end("run", 1, None),
    "read, of a bulk run": lambda it, _: it.people.bulk_runs.read("run"),
    "recent, bulk runs": lambda it, _: it.people.bulk_runs.recent(1),
    "table_blocks": lambda it, _: it.retention.table_blocks(),
    "vacuum_blocks": lambda it, _: it.retention.vacuum_blocks(0, 1, {JobStatus.COMPLETED: now()}),
    "note_range": lambda it, _: it.retention.note_range(0, 1, {JobStatus.COMPLETED: now()}),
    "read_ranges": lambda it, _: it.retention.read_ranges(1, {JobStatus.COMPLETED: now()}),
    "begin_pass": lambda it, _: it.retention.begin_pass("p", "w", after_s=1, within_s=1),
    "end_pass": lambda it, _: it.retention.end_pass("p", "w"),
    "count_in_blocks": lambda it, _: it.retention.count_in_blocks(0, 1, {JobStatus.COMPLETED: now()}),
    "vacuum_surplus": lambda it, _: it.retention.vacuum_surplus(JobStatus.FAILED, 1, 10),
    "vacuum_steps": lambda it, _: it.retention.vacuum_steps("", 10),
    "vacuum_deadlines": lambda it, _: it.jobs.vacuum_deadlines(None, 10),
    "record_vacuum": lambda it, _: it.retention.record_vacuum({}, "w1"),
    "vacuum_stats": lambda it, _: it.retention.vacuum_stats(1),
    "total_vacuum_stats": lambda it, _: it.retention.total_vacuum_stats(),
    "get_job": lambda it, _: it.jobs.get_job("a"),
    "list_jobs": lambda it, _: it.jobs.list_jobs(
        after=None, statuses=None, names=None, worker_id=None, due_from=None, due_before=None, limit=9
    ),
    "count_jobs": lambda it, _: it.jobs.count_jobs(None),
    "overdue_names": lambda it, _: it.jobs.overdue_names("w1", [NAME], 10),
    "waiting_names": lambda it, _: it.jobs.waiting_names(),
    "reported_options": lambda it, conn: it.schedules.reported_options(NAME, on=conn),
    "get, of a schedule": lambda it, _: it.schedules.get("key"),
    "list_page": lambda it, _: it.schedules.list_page(
        after=None, owner=None, paused=None, tasks=None, metadata=None, due_before=None, limit=9
    ),
    "insert, of a schedule": lambda it, _: it.schedules.insert(new_schedule(), ["every"]),
    "write, of a schedule": lambda it, conn: it.schedules.write(new_schedule(), ["every"], on=conn),
    "lock": lambda it, conn: it.schedules.lock(["key"], on=conn),
    "lock, of free schedules": lambda it, conn: it.schedules.lock(["key"], skip_locked=True, on=conn),
    "remove": lambda it, _: it.schedules.remove("key"),
    "pause": lambda it, _: it.schedules.pause("key", None),
    "resume": lambda it, _: it.schedules.resume("key", from_now=True),
    "note_last_job": lambda it, conn: it.schedules.note_last_job("key", "a", on=conn),
    "declared": lambda it, _: it.schedules.declared([]),
    "undeclared_modules": lambda it, _: it.schedules.undeclared_modules(["key"]),
    "declared_later": lambda it, _: it.schedules.declared_later(["key"], "me"),
    "continue_stalled": lambda it, _: it.schedules.continue_stalled(NOTHING),
    "retire": lambda it, _: it.schedules.retire(["key"], ["app.jobs"]),
    "read": lambda it, _: it.schedules.read(["key"]),
    "declaring": lambda it, _: enter(it.schedules.declaring()),
    "chain_due_times": lambda it, conn: it.schedules.chain_due_times(["key"], on=conn),
    "lock_due": lambda it, conn: it.schedules.lock_due(NOTHING, 9, on=conn),
    "next_fire_in": lambda it, _: it.schedules.next_fire_in(NOTHING),
    "advance": lambda it, conn: it.schedules.advance([ScheduleChange("key")], on=conn),
    "guard": lambda it, _: it.identity.guard("refuse"),
    "guard_again": lambda it, _: guard_again(it.identity),
    "read, of the database": lambda it, _: it.identity.read(),
    "adopt": lambda it, _: it.identity.adopt(hold=True),
    "held": lambda it, _: it.identity.held(),
    "release": lambda it, _: it.identity.release(),
    "keeping": lambda it, conn: it.dependencies.keeping(["a"], conn),
    "lock_dependents": lambda it, conn: it.dependencies.lock_dependents(
        [EXTENDED], CallersTransaction(conn, [])
    ),
    "lock_retried": lambda it, conn: it.dependencies.lock_retried("a", Transaction(conn, [])),
    "wait_again": lambda it, conn: it.dependencies.wait_again(["a"], ["b"], conn),
    "forget_children": lambda it, conn: it.dependencies.forget_children(["a"], conn),
    "lock_unfinished": lambda it, conn: it.dependencies.lock_unfinished(["a"], Transaction(conn, [])),
    "lock_last_jobs": lambda it, conn: it.schedules.lock_last_jobs(["a"], on=conn),
    "note_ends": lambda it, conn: it.schedules.note_ends([ENDED], Transaction(conn, [])),
    "note_ends_of_replacements": lambda it, conn: it.schedules.note_ends_of_replacements(
        [ENDED._replace(on_end={"fixed_delay": "key"})], Transaction(conn, [])
    ),
    "pending_jobs": lambda it, _: it.schedules.pending_jobs("key"),
    "vacuum, of schedules": lambda it, _: it.schedules.vacuum(now(), 9),
    "admit": lambda it, _: it.limits.admit(
        "w1",
        [AdmissionRequest(Claim("a", "a", "a", 1, now(), "{}", 5, 0, 0, None, None), LIMITS)],
        KEEP,
    ),
    "unblock": lambda it, _: it.limits.unblock({"limit:a:": [[LimitNumbers(1, None, None)]]}, 1),
    "block_surplus": lambda it, _: it.limits.block_surplus(
        "limit:a:", [NAME], SurplusPosition(5, now(), ""), 1
    ),
    "read_surplus": lambda it, _: it.limits.read_surplus([NAME], SurplusPosition(5, now(), ""), 1, 100),
    "blocked_keys": lambda it, _: it.limits.blocked_keys("after", 1),
    "tenants": lambda it, _: it.shares.tenants("share:", 1),
    "feed": lambda it, _: it.shares.feed(["share:s:t"], {"share:s:": [NAME]}, [NAME]),
    "find_locked": lambda it, _: it.shares.find_locked(["a"]),
    "unblock_late": lambda it, _: it.limits.unblock_late(["limit:a:"], None, 1),
    "unblock_unclaimed": lambda it, _: it.limits.unblock_unclaimed(["limit:a:"], [NAME], "w1", 1),
    "unblock_forgotten": lambda it, _: it.limits.unblock_forgotten(["limit:a:"], [NAME], 1),
    "waiting, of sequences": lambda it, _: it.sequences.waiting("", 9),
    "find_idle": lambda it, _: it.sequences.find_idle(["a"]),
    "find_past": lambda it, _: it.sequences.find_past(9),
    "move, of sequences": lambda it, _: it.sequences.move(["a"]),
    "pass_on": lambda it, conn: it.sequences.pass_on([IN_SEQUENCE], Transaction(conn, [])),
    "hand_over": lambda it, _: it.sequences.hand_over(
        "w1", claimed(), keep=True, names=[NAME], room=1, isolated_from=3
    ),
    "resume, of a sequence": lambda it, _: it.sequences.resume("a"),
    "skip_failed": lambda it, _: it.sequences.skip_failed("a", "b"),
    "move_to_front": lambda it, _: it.sequences.move_to_front("a"),
    "delete_past_starts": lambda it, _: it.limits.delete_past_starts(1),
    "add": lambda it, _: it.statistics.add("w1", 1, {NAME: JobFigures(started=1)}),
    "read, statistics": lambda it, _: it.people.statistics.read(60.0, None, 9),
    "add_up_by_name": lambda it, _: it.people.statistics.add_up_by_name(EPOCH, None, 9),
    "add_up": lambda it, _: it.people.statistics.add_up(60.0, timedelta(hours=1), None, 9),
    "starts_per_s": lambda it, _: it.people.statistics.starts_per_s(60.0),
    "fold": lambda it, _: it.statistics.fold(60, 600, 1.0, 9),
    "fold, without a longer span": lambda it, _: it.statistics.fold(3600, None, 1.0, 9),
    "transaction": lambda it, _: enter(it.people.searches.transaction()),
    "sizes": lambda it, conn: it.people.searches.sizes(on=conn),
    "ids": lambda it, conn: it.people.searches.ids(["a"], SCAN, on=conn),
    "waiting": lambda it, conn: it.people.searches.waiting(5, (now(), ""), None, SCAN, on=conn),
    "due, in a search": lambda it, conn: it.people.searches.due([5], (now(), ""), None, SCAN, on=conn),
    "blocked, in a search": lambda it, conn: it.people.searches.blocked(("", 0, now(), ""), SCAN, on=conn),
    "unsuccessful": lambda it, conn: it.people.searches.unsuccessful((now(), ""), None, SCAN, on=conn),
    "newest": lambda it, conn: it.people.searches.newest(None, SCAN, on=conn),
    "get_jobs": lambda it, _: it.jobs.get_jobs(["a"]),
    "job": lambda it, _: it.people.inspections.job("a"),
    "locks": lambda it, _: it.people.inspections.locks("a"),
    "look": lambda it, _: it.people.inspections.look("a"),
    "workers, inspected": lambda it, _: it.people.worker_reads.workers(),
    "queue": lambda it, _: it.people.inspections.queue(PLACE, ()),
    "slots, in use": lambda it, _: it.people.worker_reads.slots("a"),
    "sequence_queue": lambda it, _: it.people.inspections.sequence_queue(PLACE),
    "published": lambda it, _: it.people.inspections.published("a"),
    "tenant_queue": lambda it, _: it.people.inspections.tenant_queue(PLACE),
    "use, of limits": lambda it, _: it.people.limits.use("limit:a:"),
    "keys, of limits": lambda it, _: it.people.limits.keys("limit:a:"),
    "slot_use": lambda it, _: it.people.inspections.slot_use(now(), now()),
    "backlog": lambda it, _: it.people.inspections.backlog(),
    "blocked": lambda it, _: it.people.limits.blocked(),
    "sequences": lambda it, _: it.people.limits.sequences(9),
    "heads": lambda it, _: it.people.limits.heads(["a"]),
    "sequence_of": lambda it, _: it.people.limits.sequence_of("a"),
    "blocked_names": lambda it, _: it.people.limits.blocked_names(),
    "expiring": lambda it, _: it.people.inspections.expiring([NAME], [None]),
    "estimate_due": lambda it, _: it.people.inspections.estimate_due(),
    "list, of errors": lambda it, _: it.people.errors.list(60, now(), now(), 1),
    "read, a group of errors": lambda it, _: it.people.errors.read(60, now(), now(), "f"),
    "fold, failures": lambda it, _: it.errors.fold(10),
    "count, uncounted jobs": lambda it, _: count_missed(it),
    "blockers, of jobs": lambda it, _: it.people.inspections.blockers(["a"], 1),
    "parents": lambda it, _: it.people.inspections.parents("a"),
    "edges": lambda it, _: it.people.inspections.edges(["a"], 9),
    "linked_jobs": lambda it, _: it.people.inspections.linked_jobs("a", 9),
    "schema_problem": lambda it, _: it.people.doctor.schema_problem(),
    "find_missing_indexes": lambda it, _: it.people.doctor.find_missing_indexes(),
    "tables": lambda it, _: it.people.doctor.tables(),
    "indexes": lambda it, _: it.people.doctor.indexes(),
    "settings": lambda it, _: it.people.doctor.settings(),
    "unsuccessful, by status": lambda it, conn: it.people.cluster.unsuccessful(1, on=conn),
    "unfinished": lambda it, conn: it.people.cluster.unfinished(1, on=conn),
    "totals": lambda it, _: it.people.cluster.totals(1),
    "schedules": lambda it, _: it.people.cluster.schedules(1),
    "server": lambda it, _: it.people.cluster.server(),
    "last_death": lambda it, _: it.people.cluster.last_death(10),
    "quarantined, of a week": lambda it, _: it.people.doctor.quarantined(9.0),
    "failing": lambda it, _: it.people.doctor.failing(9.0, 99.0),
    "expiry_causes": lambda it, _: it.people.doctor.expiry_causes(9.0),
    "expired_names": lambda it, _: it.people.doctor.expired_names(9.0),
    "endings": lambda it, _: it.people.doctor.endings(9.0),
    "running": lambda it, _: it.people.doctor.running(),
    "payloads": lambda it, _: it.people.doctor.payloads(9, 9),
    "oldest": lambda it, _: it.people.doctor.oldest(),
    "overdue": lambda it, _: it.people.doctor.overdue(9.0),
    "retired": lambda it, _: it.people.doctor.retired(),
    "lost_schedules": lambda it, _: it.people.doctor.lost_schedules(["a"]),
    "schedule_tasks": lambda it, _: it.people.doctor.schedule_tasks(),
    "herds": lambda it, _: it.people.doctor.herds(9),
    "ahead": lambda it, _: it.people.doctor.ahead(),
    "broken": lambda it, _: it.people.doctor.broken(),
    "orphaned_steps": lambda it, _: it.people.doctor.orphaned_steps(),
    "zoned": lambda it, _: it.people.doctor.zoned(),
    "tables, of a deployment": lambda it, _: it.people.deploy.tables(),
    "unfinished, of a deployment": lambda it, _: first(it.people.deploy.unfinished(is_migrated=True)),
    "with_arguments": lambda it, _: first(it.people.deploy.with_arguments([CHECKED])),
    "steps": lambda it, _: first(it.people.deploy.steps(["a"])),
    "with_values": lambda it, _: first(it.people.deploy.with_values([CHECKED_STEP])),
    "ping": lambda it, _: it.people.server.ping(),
    "role": lambda it, _: it.people.server.role(),
    "rights": lambda it, _: it.people.server.rights(["scheduled_jobs"]),
    "holders": lambda it, _: it.people.server.holders(),
    "notification_queue": lambda it, _: it.people.server.notification_queue(),
    "connections": lambda it, _: it.people.server.connections(),
    "locking_schedules": lambda it, _: it.people.server.locking_schedules(),
    "changes_session": lambda it, _: it.people.server.changes_session(),
    "receives_notification": lambda it, _: it.people.server.receives_notification(0.1),
    "notify": lambda it, _: it.locks.notify(["due"]),
    "notify_once": lambda it, _: it.locks.notify_once("due"),
    "session_pid": lambda it, conn: it.locks.session_pid(conn),
    "blockers": lambda it, _: it.locks.blockers(1),
    "find_holders": lambda it, _: swallowing(it.locks.find_holders()),
    "watching": lambda it, conn: enter(it.locks.watching(conn, [])),
    "advisory_lock": lambda it, _: enter(it.locks.advisory_lock(1)),
}


@NIGHTLY
@pytest.mark.parametrize("part", range(PARTS))
async def test_store_methods_raise_within_the_limit_when_the_server_is_frozen(
    part: int, private_server: EmbeddedPostgres, private_dsn: str, short_timeouts: None
) -> None:
    async with asyncpg.create_pool(private_dsn, min_size=20, max_size=20) as pool:
        await Scheduler(pool).initialize_db()
        connections = Connections(pool, options=OPTIONS)
        store = Store(connections, schema="public")
        people = InspectionStore(store)
        assert {name.partition(",")[0] for name in STORE_CALLS} == {
            name.rpartition(".")[2] for name in methods_of(store) | methods_of(people)
        }
        try:
            calls = dict(list(STORE_CALLS.items())[part::PARTS])
            it = SimpleNamespace(**parts_of(store), migrate=store.migrate, people=people)
            await assert_all_end(calls, it, private_dsn, private_server)
        finally:
            await connections.release_held()


class EndingConnection(asyncpg.Connection):
    """A connection that can end after it has prepared a statement and before it executes it."""

    ends: ClassVar[bool] = False

    async def _get_statement(self, *args: Any, **kwargs: Any) -> Any:
        parent: Any = super()  # the stubs of asyncpg lack the method
        statement = await parent._get_statement(*args, **kwargs)
        if self.ends:
            self.terminate()
        return statement


OTHER_ENDS: Final = {
    "copy": type(None),  # asyncpg copies in one step
    "ping": DatabaseUnavailableError,  # asyncpg itself checks the connection of a prepared statement
    # Blocks without a statement, which end by the error of enter():
    "transaction, of any statements": AssertionError,
    "transaction, on a connection": AssertionError,
    "transaction": AssertionError,
    "declaring": AssertionError,
    # Calls that describe another error, and swallow their own:
    "find_blockers": DatabaseUnavailableError,
    "find_holders": DatabaseUnavailableError,
}
"""What ends the calls that do not raise ConnectionLostError if their connection ends between two steps."""


async def test_store_methods_raise_connection_lost_when_their_connection_ends_between_two_steps(
    private_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when `pool.terminate()` runs during a call: asyncpg itself raises an AttributeError."""
    pool = await asyncpg.create_pool(private_dsn, min_size=1, max_size=5, connection_class=EndingConnection)
    await Scheduler(pool).initialize_db()
    store = Store(Connections(pool), schema="public")
    it = SimpleNamespace(**parts_of(store), migrate=store.migrate, people=InspectionStore(store))
    others: dict[str, BaseException | None] = {}
    monkeypatch.setattr(EndingConnection, "ends", True)
    for name, call in STORE_CALLS.items():
        # The setup of this connection executes no prepared statement.
        connection = await asyncpg.connect(private_dsn, connection_class=EndingConnection)
        await connection.transaction().start()
        task = asyncio.ensure_future(call(it, connection))
        await asyncio.wait([task], timeout=MAX_CALL_S)
        error = task.exception() if task.done() else TimeoutError()
        if not (isinstance(error, ConnectionLostError) and "between two steps" in str(error)):
            others[name] = error
        task.cancel()
        connection.terminate()
    pool.terminate()
    assert {name: type(error) for name, error in others.items()} == OTHER_ENDS, others
