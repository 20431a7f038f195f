"""Collect the facts of an explanation: only those that the status of the job calls for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from pg_scheduler.inspect.facts import (
    Facts,
    LimitUse,
    LockHolder,
    ParentJob,
    QueuePosition,
    ScheduleState,
    TaskStatistics,
    WorkerState,
)
from pg_scheduler.inspect.model import TaskState
from pg_scheduler.inspect.store.inspections import BacklogRow, InspectedWorker, LockRow
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.jobs.limits import BLOCKED_BY_LIMIT, LimitBook
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.pause import Pause
from pg_scheduler.measure.figures import Histogram
from pg_scheduler.status import JobStatus

RECENT_S: Final = 900.0
"""How far back statistics count as those of now."""

MAX_RECENT_ROWS: Final = 5000
"""Rows of statistics that are read: those of 200 names in this time, and a margin."""


async def collect_facts(store: InspectionStore, job_id: str, limits: LimitBook) -> Facts | None:
    """Return the facts about a job, or None if it does not exist.

    Args:
        store: The tables.
        job_id: The id of the job.
        limits: The limits that this process declares; empty without a Scheduler.
    """
    found = await store.inspections.job(job_id)
    if found is None:
        return None
    job = found.job
    if job.status is JobStatus.COMPLETED:
        return Facts(job=job, task=found.task, now=found.now)
    is_pending = job.status is JobStatus.PENDING
    is_due = is_pending and job.execution_time <= found.now and job.blocked_on is None
    is_limited = is_pending and job.blocked_on is not None and job.blocked_on.startswith(BLOCKED_BY_LIMIT)
    workers = [] if job.status.is_finished else await store.inspections.workers()
    locks = await store.inspections.locks(job_id) if is_due else []
    return Facts(
        job=job,
        task=found.task,
        now=found.now,
        workers=[_state(each, found.task) for each in workers],
        pause=await _pause(store, found.task, tasks_of_aliases(workers)) if is_pending else None,
        limit=await _limit(store, job.blocked_on or "", limits) if is_limited else None,
        parents=await _parents(store, job) if is_pending else (),
        schedule=await _schedule(store, job),
        queue=QueuePosition(**(await store.inspections.queue(job))._asdict()) if is_due else None,
        statistics=await _statistics(store, job, is_due=is_due),
        row_lock=_holder(locks, "row"),
        advisory_lock=_holder(locks, "advisory"),
        standby_lag_s=found.standby_lag_s,
        slot_use=await _slot_use(store, job),
    )


def claimed_names(workers: Sequence[InspectedWorker]) -> set[str]:
    """Return the names of the tasks that live workers claim, without aliases."""
    return {
        name
        for each in workers
        if each.is_alive
        for name in (each.names or frozenset()) - each.aliases.keys()
    }


def tasks_of_aliases(workers: Sequence[InspectedWorker]) -> dict[str, str]:
    """Return the name of the task of each alias that live workers report. A pause holds all of its names."""
    return {alias: task for each in workers if each.is_alive for alias, task in each.aliases.items()}


def count_claiming(
    workers: Sequence[InspectedWorker], name: str, *, with_draining: bool = False
) -> int | None:
    """Return the number of live workers that claim a name; None if one of them does not report its names."""
    alive = [
        each
        for each in workers
        if each.is_alive and each.claims_jobs and (with_draining or not each.is_draining)
    ]
    if any(each.names is None for each in alive):
        return None
    return sum(name in (each.names or ()) for each in alive)


def task_state(name: str, row: BacklogRow | None, pause: Pause | None, workers: int | None) -> TaskState:
    """Return a name with its due jobs and its pause, if there are any."""
    due, running, oldest = (row.due, row.running, row.oldest_due_at) if row else (0, 0, None)
    state = TaskState(name, due, running, oldest, workers)
    if pause is None:
        return state
    return replace(
        state,
        paused_at=pause.paused_at,
        paused_until=pause.paused_until,
        note=pause.note,
        actor=pause.actor,
    )


def _state(worker: InspectedWorker, task: str) -> WorkerState:
    blocked_s, job_id = worker.health.get("loop_blocked_s"), worker.health.get("blocking_job_id")
    return WorkerState(
        worker_id=worker.worker_id,
        hostname=worker.hostname,
        slots=worker.slots,
        running_jobs=worker.running_jobs,
        is_alive=worker.is_alive,
        claims_jobs=worker.claims_jobs,
        is_draining=worker.is_draining,
        names=worker.names,
        lease_until=worker.lease_until,
        reclaim_at=worker.reclaim_at,
        loop_blocked_s=float(blocked_s) if isinstance(blocked_s, int | float) else None,
        blocking_job_id=job_id if isinstance(job_id, str) else None,
        missing_executor=worker.missing_executor(task),
    )


async def _pause(store: InspectionStore, name: str, tasks: Mapping[str, str]) -> Pause | None:
    paused = sorted(await store.pauses.paused(), key=lambda pause: not pause.is_over)  # the last one counts
    pauses = {tasks.get(pause.name, pause.name): pause for pause in paused}
    return pauses.get(tasks.get(name, name))


async def _limit(store: InspectionStore, blocked_on: str, limits: LimitBook) -> LimitUse:
    running, starts = await store.inspections.limit_use(blocked_on)
    declared = limits.declared(blocked_on)
    name, _, key = blocked_on.removeprefix(BLOCKED_BY_LIMIT).partition(":")
    return LimitUse(
        name=name,
        key=key,
        running=running,
        starts=starts,
        max_running=min(
            (each.max_running for each in declared if each.max_running is not None), default=None
        ),
        max_starts=min((each.max_starts for each in declared if each.max_starts is not None), default=None),
        is_spread=any(each.spread for each in declared),
    )


async def _parents(store: InspectionStore, job: Job) -> list[ParentJob]:
    if job.blocked_on is None or job.blocked_on.startswith(BLOCKED_BY_LIMIT):
        return []
    return [ParentJob(*each) for each in await store.inspections.parents(job.job_id)]


async def _schedule(store: InspectionStore, job: Job) -> ScheduleState | None:
    if job.schedule_id is None:
        return None
    row = await store.schedules.get(job.schedule_id)
    if row is None:
        return ScheduleState(schedule_id=job.schedule_id, exists=False)
    return ScheduleState(schedule_id=job.schedule_id, paused_at=row.paused_at, note=row.note)


async def _statistics(store: InspectionStore, job: Job, *, is_due: bool) -> TaskStatistics | None:
    if is_due:
        return TaskStatistics(starts_per_s=await store.statistics.starts_per_s(RECENT_S))
    if job.status is not JobStatus.RUNNING:
        return None
    rows = (await store.statistics.read(RECENT_S, [job.job_name], MAX_RECENT_ROWS)).rows
    durations = Histogram.added(Histogram(), *(row.figures.durations for row in rows))
    return TaskStatistics(run_p95_s=durations.quantile(0.95))


async def _slot_use(store: InspectionStore, job: Job) -> list[tuple[str, float]]:
    if job.status is not JobStatus.EXPIRED or job.expires_at is None:
        return []
    return await store.inspections.slot_use(job.execution_time, job.expires_at)


def _holder(locks: list[LockRow], kind: str) -> LockHolder | None:
    for lock in locks:
        if lock.kind == kind:
            return LockHolder(
                pid=lock.pid, application=lock.application, since=lock.since, statement=lock.statement
            )
    return None
