"""What our own tools read and set inside of a Scheduler, which has no public name.

The command line, the dashboard, the telemetry, the integrations and the test kits call these functions, so
that none of them depends on how a Scheduler is built. They are not for applications.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

from pg_scheduler.base.messages import due_message
from pg_scheduler.base.meter import Meter
from pg_scheduler.base.settings import SchedulerConfig
from pg_scheduler.base.text.numbers import counted
from pg_scheduler.base.text.remedies import SCHEDULER_REMEDY
from pg_scheduler.database.author import Author
from pg_scheduler.database.identity import IdentityRepository
from pg_scheduler.database.session import Connection
from pg_scheduler.events.log import LOG_THREAD, logger, record_fields
from pg_scheduler.jobs.middleware import Middleware
from pg_scheduler.jobs.model import JobFunction
from pg_scheduler.jobs.registry import TaskRegistry, catalogue
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.jobs.rows import AnyJob
from pg_scheduler.jobs.task import JobSpec, Task
from pg_scheduler.jobs.validation import check_instance
from pg_scheduler.migrate import TABLES, verify
from pg_scheduler.queue.unique_keys import Holder
from pg_scheduler.queue.writer import JobWriter
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.scheduler.health import Gauges, gauges_of
from pg_scheduler.scheduler.parts import parts_of
from pg_scheduler.schedules.declared import periodic_catalogue
from pg_scheduler.worker.in_flight import Attempt
from pg_scheduler.worker.vacuum import Vacuum

if TYPE_CHECKING:
    from pg_scheduler.sync import SyncScheduler

ENDED_BATCH_SIZE: Final = 100
"""Ended jobs whose consequences ``is_idle()`` applies at most."""

# -- a Scheduler before its start ----------------------------------------------------------------------


def settings_of(scheduler: Scheduler) -> SchedulerConfig:
    """Return the settings."""
    return parts_of(scheduler).config


def configure(scheduler: Scheduler, **settings: Any) -> None:
    """Change settings of a Scheduler that has not started.

    Raises:
        ConfigurationError: A value is out of range.
    """
    parts = parts_of(scheduler)
    parts.config = replace(parts.config, **settings)


def options_of(scheduler: Scheduler) -> dict[str, Any]:
    """Return the arguments with which another Scheduler stores and runs jobs as this one does."""
    parts = parts_of(scheduler)
    codec = parts.store.statements.codec
    return {
        "misfire_grace_time": parts.config.misfire_grace_time,
        "schema": parts.config.schema,
        "max_payload_bytes": parts.config.max_payload_bytes,
        "retry_policy": parts.retry_policy,
        "executors": parts.executors,
        "middleware": parts.middleware,
        "codec": None if codec is None else codec.codec,
    }


def middleware_of(scheduler: Scheduler) -> Sequence[Middleware]:
    """Return the middleware, the outermost first."""
    return parts_of(scheduler).middleware


def add_middleware(scheduler: Scheduler, middleware: Middleware, *, is_outermost: bool = False) -> None:
    """Add middleware to a Scheduler that has not started: directly around its jobs, or as the outermost."""
    parts = parts_of(scheduler)
    other_middleware = parts.middleware
    # The outermost one comes first.
    if is_outermost:
        parts.use_middleware((middleware, *other_middleware))
    else:
        parts.use_middleware((*other_middleware, middleware))


def declare(
    scheduler: Scheduler | SyncScheduler, name: str, declaration: Callable[[Scheduler], object]
) -> Callable[[], Scheduler]:
    """Call a function with a Scheduler. Of a SyncScheduler, call it with each one that it opens.

    A SyncScheduler opens another Scheduler after a fork, for example.

    Args:
        scheduler: The Scheduler.
        name: The function of the tool that declares something, for errors.
        declaration: The function to call.

    Returns:
        A function that returns the Scheduler which was opened last.

    Raises:
        TypeError: ``scheduler`` is something else.
    """
    if isinstance(scheduler, Scheduler):
        declaration(scheduler)
        return lambda: scheduler
    _method_of(scheduler, "_declare")(name, declaration)
    return lambda: scheduler._last_scheduler  # noqa: SLF001 - a SyncScheduler has no public name for it


def client_of(scheduler: Scheduler | SyncScheduler) -> Scheduler:
    """Return the Scheduler itself; of a SyncScheduler the one that runs its calls with ``connection=``.

    Raises:
        TypeError: ``scheduler`` is something else.
    """
    if isinstance(scheduler, Scheduler):
        return scheduler
    target: Scheduler = _method_of(scheduler, "_local_target")()
    return target


def check_scheduler(scheduler: object, name: str = "scheduler") -> Scheduler:
    """Return the value if it is a Scheduler; raise TypeError with the remedy otherwise."""
    check_instance(name, scheduler, Scheduler, "a Scheduler", SCHEDULER_REMEDY)
    return cast("Scheduler", scheduler)


def _method_of(scheduler: object, name: str) -> Callable[..., Any]:
    """Return a method of a SyncScheduler that has no public name; raise TypeError for another object.

    Callers accept a Scheduler, too. The class of a SyncScheduler is not imported, because most programs have
    none.
    """
    method: Callable[..., Any] | None = None
    if not isinstance(scheduler, type):
        method = getattr(scheduler, name, None)
    if method is None:
        raise TypeError(
            f"scheduler must be a Scheduler or a SyncScheduler, not {type(scheduler).__name__}; "
            f"{SCHEDULER_REMEDY}"
        )
    return method


# -- tasks ---------------------------------------------------------------------------------------------


def tasks_of(scheduler: Scheduler) -> TaskRegistry:
    """Return the registry of its functions."""
    return parts_of(scheduler).tasks


def find_task(scheduler: Scheduler, name: str) -> Task | None:
    """Return the task of a name; None if the name is unknown or ambiguous."""
    return tasks_of(scheduler).resolve(name)


def registered_names(scheduler: Scheduler) -> list[str]:
    """Return the names of the registered functions, with their aliases."""
    return tasks_of(scheduler).lists.names


def retry_policy_of(scheduler: Scheduler, name: str) -> RetryPolicy:
    """Return the retry policy of the task of a name, or that of the Scheduler if the task has none."""
    task = find_task(scheduler, name)
    if task is None or task.retry is None:
        return parts_of(scheduler).retry_policy
    return task.retry


@contextmanager
def own_registrations(includes: Callable[[JobFunction], bool] = lambda _: True) -> Iterator[None]:
    """Forget at the end what was registered meanwhile by ``@job`` and ``@periodic``.

    The block begins with the tasks of the functions that fulfill a condition, and without periodic functions.
    """
    registrations, configs = catalogue.registrations(), periodic_catalogue.configs()
    catalogue.restore(registrations, lambda task: includes(task.func))
    periodic_catalogue.clear()
    try:
        yield
    finally:
        catalogue.restore(registrations)
        periodic_catalogue.restore(configs)


def clear_registrations() -> None:
    """Forget every function that ``@job`` and ``@periodic`` have registered, also those of modules."""
    catalogue.restore(TaskRegistry().registrations())
    periodic_catalogue.clear()


# -- the database --------------------------------------------------------------------------------------


def default_author(scheduler: Scheduler) -> Author:
    """Return the author of changes for which the caller names none."""
    return parts_of(scheduler).store.statements.author


def identity_of(scheduler: Scheduler) -> IdentityRepository:
    """Return what reads and records which database its tables are in."""
    return parts_of(scheduler).store.identity


def server_host(scheduler: Scheduler) -> str | None:
    """Return the host of the server; None if it is unknown."""
    return parts_of(scheduler).store.connections.server_host()


def local_now(scheduler: Scheduler) -> datetime:
    """Return the time: that of the clock that a test gave the Scheduler, else that of this process."""
    return parts_of(scheduler).store.statements.local_now


async def server_now(scheduler: Scheduler) -> datetime:
    """Return the time of the server."""
    return await parts_of(scheduler).store.statements.read_clock()


def prepare_job(scheduler: Scheduler, spec: JobSpec) -> AnyJob:
    """Return the row of a job, whose task may be the name of a function that is not registered here.

    Raises:
        TypeError: An argument does not fit the function.
        ValueError: A value is out of range.
    """
    (job,) = parts_of(scheduler).preparer.prepare((spec,), allows_names=True)
    return job


async def insert_jobs(scheduler: Scheduler, jobs: Sequence[AnyJob], connection: Connection) -> set[str]:
    """Insert jobs, at least one, in the transaction of a connection, whose commit notifies workers.

    Returns:
        The ids of the inserted jobs: those whose id and unique key were free.
    """
    message = due_message("", min(job.execution_time for job in jobs))
    return await JobWriter(parts_of(scheduler).store).insert(jobs, connection, message=message)


async def conflicting_jobs(
    scheduler: Scheduler, jobs: Sequence[AnyJob], connection: Connection
) -> list[Holder]:
    """Return the jobs that have the id of one of these jobs, or hold its unique key."""
    ids = [job.job_id for job in jobs]
    keys = [job.unique_key for job in jobs if job.unique_key is not None]
    return await parts_of(scheduler).store.unique_keys.find_conflicts(ids, keys, connection=connection)


MAX_ADDITIONS: Final = 10
"""The maximum number of records of an id that are examined for its addition or removal, the newest ones."""


async def added_before(scheduler: Scheduler, ids: Sequence[str]) -> set[str]:
    """Return those of these ids of jobs and schedules with a record of their addition or removal."""
    from pg_scheduler.inspect.store.store import InspectionStore  # noqa: PLC0415 - loaded only if needed

    actions = ("add_job", "add_schedule", "remove_schedule")
    store = InspectionStore(parts_of(scheduler).store)
    records = await store.audit_records.newest_records(ids, actions, MAX_ADDITIONS)
    return {record.subject or "" for record in records}


async def record_additions(scheduler: Scheduler, job_ids: Iterable[str], connection: Connection) -> None:
    """Record in a transaction that the current author has added jobs."""
    for job_id in job_ids:
        await parts_of(scheduler).store.audit.record("add_job", job_id, on=connection)


async def task_of(scheduler: Scheduler, job_id: str) -> str | None:
    """Return the name under which the function of a job must be registered; None if there is no such job."""
    from pg_scheduler.inspect.store.store import InspectionStore  # noqa: PLC0415 - loaded only if needed

    job = await InspectionStore(parts_of(scheduler).store).inspections.job(job_id)
    return None if job is None else job.task


async def verify_tables(scheduler: Scheduler) -> None:
    """Raise a SchemaError unless the tables are those of this release."""
    parts = parts_of(scheduler)
    async with parts.store.connections.acquire() as connection:
        await verify(connection, schema=parts.config.schema)


async def obstacle(scheduler: Scheduler) -> str | None:
    """Return why a worker cannot write to the tables, with the remedy; None if it can."""
    from pg_scheduler.inspect.doctor import database  # noqa: PLC0415 - loaded only if needed
    from pg_scheduler.inspect.store.doctor import OFF  # noqa: PLC0415
    from pg_scheduler.inspect.store.store import InspectionStore  # noqa: PLC0415

    store = InspectionStore(parts_of(scheduler).store)
    settings = await store.doctor.settings()
    if settings.get("in_hot_standby", OFF).value == "on":
        return "the server is a standby, where no worker starts; connect to the primary"
    read_only = settings.get("default_transaction_read_only", OFF)
    if read_only.value == "on":
        return (
            f"default_transaction_read_only is on for this role (from: {read_only.source}), so no worker "
            "starts; set it to off for the role and the database of the workers"
        )
    missing = database.missing_privileges(await store.server.rights(TABLES))
    if not any(missing.values()):
        return None
    schema, role = await store.schema(), await store.server.role()
    grants = "; ".join(database.missing_grants(schema, role, missing))
    problem = database.describe_missing(schema, role, missing)
    return f"{problem}; as the owner of the tables: {grants}"


def vacuum_of(scheduler: Scheduler) -> Vacuum:
    """Return what applies the retention of a Scheduler."""
    parts = parts_of(scheduler)
    return Vacuum(
        parts.store,
        parts.events,
        parts.config.vacuum,
        scheduler.worker_id,
        schedules=parts.store.schedules,
        statistics=parts.store.statistics,
        streams=parts.store.streams,
    )


# -- a worker ------------------------------------------------------------------------------------------


async def execute_one(scheduler: Scheduler, job_id: str) -> int | None:
    """Claim a pending job for this worker and start it within its limits.

    Returns:
        The number of the attempt; None if another worker has claimed the job.
    """
    parts = parts_of(scheduler)
    claim = await parts.store.claims.claim_one(scheduler.worker_id, job_id)
    # Without a runtime, no worker runs here. It may have stopped during the statement.
    runtime = parts.runtime
    if claim is None or runtime is None:
        return None
    # The claim of a limited task is not returned: the admission starts it.
    for unlimited_claim in runtime.admission.keep_limited([claim]):
        # A wait that is cancelled leaves the attempt to the shutdown, which releases the job.
        await asyncio.wait([runtime.executor.submit(unlimited_claim)])
    return claim.attempt


def running_attempts(scheduler: Scheduler) -> Sequence[Attempt]:
    """Return the attempts that run; callable from any thread."""
    runtime = parts_of(scheduler).runtime
    return () if runtime is None else list(runtime.node.in_flight.attempts.values())


def claimed_names(scheduler: Scheduler) -> frozenset[str]:
    """Return the names that it claims now, which are not those of paused tasks; none unless it runs jobs."""
    runtime = parts_of(scheduler).runtime
    if runtime is None or not runtime.node.config.runs_jobs:
        return frozenset()
    return frozenset(runtime.node.routing.names())


async def is_idle(scheduler: Scheduler) -> bool:
    """Return whether no attempt runs here, all outcomes are written, and ended jobs make no others due.

    An ended job may have consequences, such as jobs that come after it and become due. Those that are left
    are applied here. Consequences that a lock or the application delays do not count.
    """
    parts = parts_of(scheduler)
    if parts.runtime is not None and parts.runtime.node.in_flight.unreported():
        return False
    applied_count = await parts.store.consequences.apply_lost(ENDED_BATCH_SIZE)
    # A consequence that was just applied may have made a job due.
    return applied_count == 0


def scan_for_dead_workers(scheduler: Scheduler) -> float:
    """Let its worker look for dead workers soon.

    Return the time of the monotonic clock, for ``has_reclaimed_all()``.
    """
    runtime = parts_of(scheduler).runtime
    if runtime is not None:
        runtime.rescuer.scan_locks()
    return time.monotonic()


def has_reclaimed_all(scheduler: Scheduler, since: float) -> bool:
    """Return whether its worker has scanned for dead workers since then, and has left none suspect.

    ``since`` is what ``scan_for_dead_workers()`` has returned.
    """
    runtime = parts_of(scheduler).runtime
    return runtime is None or runtime.rescuer.no_suspects_at >= since


def claims_nothing(scheduler: Scheduler) -> bool:
    """Return whether it has started to run jobs, and no function is registered."""
    runtime = parts_of(scheduler).runtime
    return runtime is not None and runtime.node.config.runs_jobs and not registered_names(scheduler)


def is_draining(scheduler: Scheduler) -> bool | None:
    """Return whether it was requested to claim no more jobs; None while it does not run."""
    runtime = parts_of(scheduler).runtime
    return None if runtime is None else runtime.node.routing.is_draining


def start_draining(scheduler: Scheduler) -> None:
    """Let the worker of a Scheduler that has not started claim no jobs until it is resumed."""
    parts_of(scheduler).starts_draining = True


def hurry(scheduler: Scheduler) -> None:
    """Make a shutdown in progress cancel the running jobs now."""
    parts_of(scheduler).life.hurry()


# -- measures ------------------------------------------------------------------------------------------


def meter_of(scheduler: Scheduler) -> Meter | None:
    """Return what counts in a Scheduler; None if it has ``statistics=False``."""
    return parts_of(scheduler).meter


def read_gauges(scheduler: Scheduler) -> Gauges:
    """Return the values that can fall as well as rise, from memory; callable from any thread."""
    parts = parts_of(scheduler)
    return gauges_of(parts.life, parts.store.connections)


# -- the log -------------------------------------------------------------------------------------------


def join_log_threads(timeout_s: float) -> None:
    """Wait for each thread that logs a message, at most this long."""
    for thread in threading.enumerate():
        if thread.name == LOG_THREAD:
            thread.join(timeout_s)


# -- stacks --------------------------------------------------------------------------------------------

MAX_JOBS = 200
"""Jobs whose stacks are shown."""


def log_stacks(scheduler: Scheduler) -> None:
    """Write one record, from a thread: the event loop may be blocked, and a signal handler must not log."""
    threading.Thread(target=_log, args=(scheduler,), name="pg_scheduler stacks", daemon=True).start()


def _log(scheduler: Scheduler) -> None:
    """Write the record of ``log_stacks()``."""
    logger.info("%s", describe_stacks(scheduler), extra=record_fields(worker_id=scheduler.worker_id))


def describe_stacks(scheduler: Scheduler) -> str:
    """Return the slots, then a stack for each running job and each thread."""
    health = scheduler.health()
    attempts = running_attempts(scheduler)
    lines = [f"worker {scheduler.worker_id} {health.state}: {health.slots_busy} of {health.slots} slots busy"]
    for attempt in attempts[:MAX_JOBS]:
        lines += _lines_of_job(attempt)
    if len(attempts) > MAX_JOBS:
        lines.append(f"and {counted(len(attempts) - MAX_JOBS, 'more job')}")
    lines += _lines_of_threads()
    return "\n".join(lines)


def _lines_of_job(attempt: Attempt) -> Iterator[str]:
    """Yield a line that names a running job, and then the lines of the stack of its task."""
    claim = attempt.claim
    yield f"job {claim.job_name} (id {claim.job_id}, attempt {claim.attempt})"
    # An attempt that waits for its limits has no task yet.
    if attempt.task is None:
        return
    for frame in attempt.task.get_stack(limit=20):
        yield from _lines(traceback.extract_stack(frame, limit=1))


def _lines_of_threads() -> Iterator[str]:
    """Yield a line that names each thread of the process but this one, and the lines of its stack."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    current_ident = threading.get_ident()
    for ident, frame in sys._current_frames().items():
        if ident != current_ident:
            yield f"thread {names.get(ident, ident)}"
            yield from _lines(traceback.extract_stack(frame, limit=20))


def _lines(stack: traceback.StackSummary) -> list[str]:
    """Return the indented lines of a stack. Each of its frames has several lines in one text."""
    return [f"  {line}" for text in stack.format() for line in text.rstrip().splitlines()]
