"""The state inside of a Scheduler that commands read, set and log, which has no public name."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pg_scheduler import Scheduler
from pg_scheduler.base.text.numbers import counted
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.inspect.doctor.database import describe_missing, missing_grants, missing_privileges
from pg_scheduler.inspect.store.doctor import OFF
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.jobs.middleware import Middleware, check_middleware
from pg_scheduler.migrate import TABLES, verify
from pg_scheduler.worker.in_flight import Attempt
from pg_scheduler.worker.vacuum import Vacuum


def configure(scheduler: Scheduler, **settings: Any) -> None:
    """Change settings of a Scheduler that has not started.

    Raises:
        ConfigurationError: A value is out of range.
    """
    scheduler._parts.config = replace(scheduler._parts.config, **settings)  # noqa: SLF001


def add_middleware(scheduler: Scheduler, middleware: Middleware) -> None:
    """Put middleware directly around the jobs of a Scheduler that has not started."""
    scheduler._parts.middleware = check_middleware((*scheduler._parts.middleware, middleware))  # noqa: SLF001


async def execute_one(scheduler: Scheduler, job_id: str) -> int | None:
    """Claim a pending job for this worker and start it within its limits.

    Returns:
        The number of the attempt; None if another worker has claimed the job.
    """
    claim = await scheduler._parts.store.claims.claim_one(scheduler.worker_id, job_id)  # noqa: SLF001
    runtime = scheduler._parts.runtime  # noqa: SLF001
    if claim is None or runtime is None:
        return None
    for each in runtime.admission.keep_limited([claim]):
        # A wait that is cancelled leaves the attempt to the shutdown, which releases the job.
        await asyncio.wait([runtime.executor.submit(each)])
    return claim.attempt


async def task_of(scheduler: Scheduler, job_id: str) -> str | None:
    """Return the name under which the function of a job must be registered; None if there is no such job."""
    found = await InspectionStore(scheduler._parts.store).inspections.job(job_id)  # noqa: SLF001
    return None if found is None else found.task


def registered_names(scheduler: Scheduler) -> list[str]:
    """Return the names of the registered functions, with their aliases."""
    return scheduler._parts.tasks.lists.names  # noqa: SLF001


def claimed_names(scheduler: Scheduler) -> frozenset[str]:
    """Return the names that it claims now, which are not those of paused tasks; none unless it runs jobs."""
    runtime = scheduler._parts.runtime  # noqa: SLF001
    if runtime is None or not runtime.node.config.runs_jobs:
        return frozenset()
    return frozenset(runtime.node.routing.names())


def claims_nothing(scheduler: Scheduler) -> bool:
    """Return whether it has started to run jobs, and no function is registered."""
    runtime = scheduler._parts.runtime  # noqa: SLF001
    return runtime is not None and runtime.node.config.runs_jobs and not scheduler._parts.tasks.lists.names  # noqa: SLF001


def is_draining(scheduler: Scheduler) -> bool | None:
    """Return whether it was requested to claim no more jobs; None while it does not run."""
    runtime = scheduler._parts.runtime  # noqa: SLF001
    return None if runtime is None else runtime.node.routing.is_draining


def start_draining(scheduler: Scheduler) -> None:
    """Let the worker of a Scheduler that has not started claim no jobs until it is resumed."""
    scheduler._parts.starts_draining = True  # noqa: SLF001


def running_attempts(scheduler: Scheduler) -> Sequence[Attempt]:
    """Return the attempts that run; callable from any thread."""
    runtime = scheduler._parts.runtime  # noqa: SLF001
    return () if runtime is None else list(runtime.node.in_flight.attempts.values())


def hurry(scheduler: Scheduler) -> None:
    """Make a shutdown in progress cancel the running jobs now."""
    scheduler._parts.life.hurry()  # noqa: SLF001


async def verify_tables(scheduler: Scheduler) -> None:
    """Raise a SchemaError unless the tables are those of this release."""
    async with scheduler._parts.store.connections.acquire() as connection:  # noqa: SLF001
        await verify(connection, schema=scheduler._parts.config.schema)  # noqa: SLF001


async def obstacle(scheduler: Scheduler) -> str | None:
    """Return why a worker cannot write to the tables, with the remedy; None if it can."""
    store = InspectionStore(scheduler._parts.store)  # noqa: SLF001
    settings = await store.doctor.settings()
    if settings.get("in_hot_standby", OFF).value == "on":
        return "the server is a standby, where no worker starts; connect to the primary"
    if (read_only := settings.get("default_transaction_read_only", OFF)).value == "on":
        return (
            f"default_transaction_read_only is on for this role (from: {read_only.source}), so no worker "
            "starts; set it to off for the role and the database of the workers"
        )
    missing = missing_privileges(await store.server.rights(TABLES))
    if not any(missing.values()):
        return None
    schema, role = await store.schema(), await store.server.role()
    grants = missing_grants(schema, role, missing)
    return f"{describe_missing(schema, role, missing)}; as the owner of the tables: {grants}"


def vacuum_of(scheduler: Scheduler) -> Vacuum:
    """Return what applies the retention of a Scheduler."""
    store, events, config = scheduler._parts.store, scheduler._parts.events, scheduler._parts.config  # noqa: SLF001
    return Vacuum(
        store,
        events,
        config.vacuum,
        scheduler.worker_id,
        schedules=store.schedules,
        statistics=store.statistics,
    )


MAX_JOBS = 200
"""Jobs whose stacks are shown."""


def log_stacks(scheduler: Scheduler) -> None:
    """Write one record, from a thread: the event loop may be blocked, and a signal handler must not log."""
    threading.Thread(target=_log, args=(scheduler,), name="pg_scheduler stacks", daemon=True).start()


def _log(scheduler: Scheduler) -> None:
    logger.info("%s", describe(scheduler), extra=record_fields(worker_id=scheduler.worker_id))


def describe(scheduler: Scheduler) -> str:
    """Return the slots, then a stack for each running job and each thread."""
    health = scheduler.health()
    attempts = running_attempts(scheduler)
    lines = [f"worker {scheduler.worker_id} {health.state}: {health.slots_busy} of {health.slots} slots busy"]
    for attempt in attempts[:MAX_JOBS]:
        lines += _of_job(attempt)
    if len(attempts) > MAX_JOBS:
        lines.append(f"and {counted(len(attempts) - MAX_JOBS, 'more job')}")
    lines += _of_threads()
    return "\n".join(lines)


def _of_job(attempt: Attempt) -> Iterator[str]:
    claim = attempt.claim
    yield f"job {claim.job_name} (id {claim.job_id}, attempt {claim.attempt})"
    for frame in attempt.task.get_stack(limit=20) if attempt.task is not None else ():
        yield from _lines(traceback.extract_stack(frame, limit=1))


def _of_threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    for ident, frame in sys._current_frames().items():
        if ident != own:
            yield f"thread {names.get(ident, ident)}"
            yield from _lines(traceback.extract_stack(frame, limit=20))


def _lines(stack: traceback.StackSummary) -> list[str]:
    return [f"  {line}" for text in stack.format() for line in text.rstrip().splitlines()]
