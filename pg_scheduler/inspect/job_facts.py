"""Facts about a job and what it needs, from which an explanation is derived.

A fact is None if it is not available: statistics are off, a worker of an earlier release does not report its
names, or the reader may not read a view. Facts that matter only for another status of the job are not read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from pg_scheduler.base.figures import Histogram
from pg_scheduler.base.status import JobStatus
from pg_scheduler.facts.expiry import ExpiryCause
from pg_scheduler.facts.lateness import held_names
from pg_scheduler.inspect.store.inspections import LockRow, QueueRow, WaitRow
from pg_scheduler.inspect.store.limits import HeadRow
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.inspect.store.workers import MAX_WORKERS, InspectedWorker, SlotsRow
from pg_scheduler.inspect.tasks import tasks_of_aliases
from pg_scheduler.inspect.texts import later
from pg_scheduler.jobs.limits import BLOCKED_BY_LIMIT, LimitBook, lowest_numbers, numbers_of
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.pause import Pause
from pg_scheduler.jobs.payload import object_from
from pg_scheduler.jobs.rows import EPOCH
from pg_scheduler.jobs.sequences import BLOCKED_BY_SEQUENCE
from pg_scheduler.jobs.shares import BLOCKED_BY_SHARE
from pg_scheduler.jobs.step_values import CHILD
from pg_scheduler.schedules.row import ScheduleRow

RECENT_S: Final = 900.0
"""The maximum age of the statistics that count as current, in seconds."""

MAX_HOLDERS: Final = 3
"""The maximum number of attempts within a limit that an explanation names."""

MAX_RECENT_ROWS: Final = 5000
"""Rows of statistics that are read: enough for 200 names in each minute of ``RECENT_S``, and a margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUse:
    """The use of the limit that a job waits for.

    Attributes:
        running: Attempts that run within the limit.
        starts: Starts that the limit still counts.
        max_running: Attempts that may run at once; None for no limit, or if no Scheduler here declares it.
        max_starts: Attempts that may start within its time span; None for no limit, or if no Scheduler here
            declares it.
        is_spread: Whether the starts are spread over the time span, so that a job may wait although the limit
            has room.
        per_s: The time span of the starts in seconds; None if ``max_starts`` is None.
        next_start_at: When the limit admits its next start, if all of them are used.
    """

    running: int
    starts: int
    max_running: int | None = None
    max_starts: int | None = None
    is_spread: bool = False
    per_s: float | None = None
    next_start_at: datetime | None = None


class LimitHolder(NamedTuple):
    """A job whose attempt counts for a limit.

    Attributes:
        since: When its attempt was admitted.
        usual_s: The seconds that half of the attempts of its name took lately; None if that is unknown.
    """

    job_id: str
    job_name: str
    since: datetime
    usual_s: float | None


class LimitWait(NamedTuple):
    """Who holds the limit that a job waits for, and its place among those that wait.

    Attributes:
        holders: The attempts that have run longest, at most three.
        ahead: The jobs before it, of those that wait for the same limit.
    """

    holders: Sequence[LimitHolder]
    ahead: QueueRow


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """Everything that an explanation considers.

    Attributes:
        job: The job.
        task: The name that a worker must claim to run the job: the name of its function.
        now: The instant of the facts.
        workers: Every worker.
        pause: The pause of the task; None if it is not paused.
        limit: The limit that the job waits for; None if it waits for no limit.
        limit_wait: Who holds this limit, and the place of the job.
        tenant_queue: The jobs of its tenant before it; None if it does not wait for the turn of its tenant.
        sequence_head: The head of the sequence in which it waits; None if it waits in none, or without one.
        sequence_queue: The jobs that precede it there; None if it does not wait in a sequence.
        waits: What a suspended job waits for, the wait that ends first at the beginning, and signals that
            came before a wait for them.
        parents: The unfinished jobs that it waits for, with their statuses. The status is None if such a job
            does not exist.
        schedule: Its schedule; None if it has none, or if the schedule does not exist.
        queue: The due jobs before it; None if it is not due.
        slots: The slots that are in use, by worker.
        starts_per_s: Attempts of any name that started per second lately, on all workers together.
        run_p95_s: The duration in seconds that 95 of 100 recent attempts of its name did not exceed.
        row_lock: The session that has locked its row; None if no session has.
        advisory_lock: The session that holds its advisory lock; None if no session does.
        standby_lag_s: The age of the facts in seconds if they come from a standby; None otherwise.
        is_debounced: Whether further calls with its unique key postpone it.
        due_at_latest: The time up to which they may; None for no limit.
        slot_use: For a job that expired without a free slot, the names whose attempts ended while it was due,
            and their seconds.
    """

    job: Job
    task: str
    now: datetime
    workers: Sequence[InspectedWorker] = ()
    pause: Pause | None = None
    limit: LimitUse | None = None
    limit_wait: LimitWait | None = None
    tenant_queue: QueueRow | None = None
    sequence_head: HeadRow | None = None
    sequence_queue: QueueRow | None = None
    waits: Sequence[WaitRow] = ()
    parents: Sequence[tuple[str, JobStatus | None]] = ()
    schedule: ScheduleRow | None = None
    queue: QueueRow | None = None
    slots: Sequence[SlotsRow] = ()
    starts_per_s: float | None = None
    run_p95_s: float | None = None
    row_lock: LockRow | None = None
    advisory_lock: LockRow | None = None
    standby_lag_s: float | None = None
    is_debounced: bool = False
    due_at_latest: datetime | None = None
    slot_use: Sequence[tuple[str, float]] = ()

    @property
    def are_workers_capped(self) -> bool:
        """Whether there may be further workers, because not all were read."""
        return len(self.workers) >= MAX_WORKERS


async def collect_job_facts(store: InspectionStore, job_id: str, limits: LimitBook) -> JobFacts | None:
    """Return the facts about a job, or None if it does not exist.

    ``limits`` are the limits that this process declares. Without a Scheduler there are none.
    """
    row = await store.inspections.job(job_id)
    if row is None:
        return None
    job = row.job
    # A completed job needs no explanation, so nothing else is read.
    if job.status is JobStatus.COMPLETED:
        return JobFacts(job=job, task=row.task, now=row.now)
    is_pending = job.status is JobStatus.PENDING
    is_due = is_pending and job.execution_time <= row.now and job.blocked_on is None
    # A pending job with blocked_on waits for a limit, for the turn of its tenant (a share), for its place in
    # a sequence, or else for jobs.
    blocked_on = job.blocked_on if is_pending else None
    is_limited = blocked_on is not None and blocked_on.startswith(BLOCKED_BY_LIMIT)
    is_shared = blocked_on is not None and blocked_on.startswith(BLOCKED_BY_SHARE)
    is_sequenced = blocked_on is not None and blocked_on.startswith(BLOCKED_BY_SEQUENCE)
    waits_for_jobs = blocked_on is not None and not is_limited and not is_shared and not is_sequenced
    heads = await store.limits.heads([blocked_on or ""]) if is_sequenced else {}
    waits = await store.inspections.waits(job_id) if is_pending and row.has_steps else []
    # A suspended job that waits for its child jobs has them as parents: jobs that must end first.
    has_parents = waits_for_jobs or any(wait.is_open and wait.kind == CHILD for wait in waits)
    workers = [] if job.status.is_finished else await store.worker_reads.workers()
    tasks = tasks_of_aliases(workers)
    pauses = await store.pauses.paused() if is_pending else []
    locks = await store.inspections.locks(job_id) if is_due else []
    return JobFacts(
        job=job,
        task=row.task,
        now=row.now,
        workers=workers,
        pause=_pause(row.task, pauses, tasks),
        limit=await _limit(store, blocked_on or "", limits) if is_limited else None,
        limit_wait=await read_limit_wait(store, job) if is_limited else None,
        tenant_queue=await store.inspections.tenant_queue(job) if is_shared else None,
        sequence_head=heads.get(blocked_on or ""),
        sequence_queue=await store.inspections.sequence_queue(job) if is_sequenced else None,
        waits=waits,
        parents=await store.inspections.parents(job_id) if has_parents else (),
        schedule=None if job.schedule_id is None else await store.schedules.get(job.schedule_id),
        queue=await store.inspections.queue(job, _paused_names(pauses, tasks)) if is_due else None,
        slots=await store.worker_reads.slots(job_id) if is_due else (),
        starts_per_s=await store.statistics.starts_per_s(RECENT_S) if is_due else None,
        run_p95_s=await _run_s(store, job.job_name, 0.95) if job.status is JobStatus.RUNNING else None,
        row_lock=next((lock for lock in locks if lock.kind == "row"), None),
        advisory_lock=next((lock for lock in locks if lock.kind == "advisory"), None),
        standby_lag_s=row.standby_lag_s,
        is_debounced=row.debounce is not None,
        due_at_latest=None if row.debounce is None else _due_at_latest(row.debounce),
        # Of the jobs with a known cause, only those that found no free slot waited for slots.
        slot_use=await _slot_use(store, job) if row.expiry_cause in {None, ExpiryCause.NO_FREE_SLOT} else (),
    )


def _due_at_latest(debounce: str) -> datetime | None:
    """Return up to when calls may postpone a job; None for no limit, or if that was written by hand."""
    mark = object_from(debounce)
    since, max_wait = mark.get("since"), mark.get("max_wait")
    if not isinstance(since, int | float) or not isinstance(max_wait, int | float):
        return None
    return later(EPOCH, since + max_wait)


def _pause(name: str, pauses: Sequence[Pause], tasks_by_alias: Mapping[str, str]) -> Pause | None:
    """Return the pause of a task under any of its names, preferably one that has not ended.

    None if the task was not paused.
    """
    pauses_of_task = [pause for pause in pauses if held_names([name], [pause], tasks_by_alias)]
    lasting_pauses = [pause for pause in pauses_of_task if not pause.is_over]
    candidates = lasting_pauses or pauses_of_task
    return candidates[-1] if candidates else None


def _paused_names(pauses: Sequence[Pause], tasks_by_alias: Mapping[str, str]) -> Collection[str]:
    """Return all names of the tasks that are paused now."""
    lasting_pauses = [pause for pause in pauses if not pause.is_over]
    # A paused name is that of a pause, or another name of its task, which live workers report. So of all
    # these names, those are returned that a pause holds.
    stopped_names = {name for pause in lasting_pauses for name in pause.stopped_names}
    candidates = stopped_names.union(tasks_by_alias.keys(), tasks_by_alias.values())
    return held_names(candidates, lasting_pauses, tasks_by_alias)


async def _limit(store: InspectionStore, blocked_on: str, limits: LimitBook) -> LimitUse:
    """Return the use of the limit that a job waits for, and the lowest numbers that this process declares.

    ``blocked_on`` is the text of the limit and its key: ``limit:<name>:<key>``.
    """
    running, starts = await store.limits.use(blocked_on)
    # Several tasks of this process may share the limit, with different numbers.
    declared = limits.declared(blocked_on)
    lowest = lowest_numbers([numbers_of(limit) for limit in declared])
    # Only a limit whose starts are all used has a next start in the future.
    next_starts: dict[str, datetime] = {}
    if lowest.max_starts is not None and lowest.per_s is not None and starts >= lowest.max_starts:
        next_starts = await store.limits.next_starts([(blocked_on, lowest.max_starts, lowest.per_s)])
    return LimitUse(
        running=running,
        starts=starts,
        max_running=lowest.max_running,
        max_starts=lowest.max_starts,
        is_spread=any(limit.spread for limit in declared),
        per_s=lowest.per_s,
        next_start_at=next_starts.get(blocked_on),
    )


async def read_limit_wait(store: InspectionStore, job: Job) -> LimitWait:
    """Return which attempts hold the limit that a job waits for, and how many jobs wait before it."""
    rows = await store.limits.holders([job.blocked_on or ""], MAX_HOLDERS)
    names = {row.job_name for row in rows}
    usual_durations = {name: await _run_s(store, name, 0.5) for name in names}
    holders = [LimitHolder(row.job_id, row.job_name, row.at, usual_durations[row.job_name]) for row in rows]
    # The jobs that wait for the same limit are counted like those of the same tenant: by ``blocked_on``.
    return LimitWait(holders, await store.inspections.tenant_queue(job))


async def _run_s(store: InspectionStore, name: str, share: float) -> float | None:
    """Return the seconds that this share, such as 0.95, of the recent attempts of a name did not exceed.

    None if the statistics have no attempt of the name.
    """
    rows = (await store.statistics.read(RECENT_S, [name], MAX_RECENT_ROWS)).rows
    durations = Histogram.added(Histogram(), *(row.figures.durations for row in rows))
    return durations.quantile(share)


async def _slot_use(store: InspectionStore, job: Job) -> list[tuple[str, float]]:
    """Return the names that used slots for most time while an expired job was due, with their seconds.

    Nothing for a job that has not expired.
    """
    if job.status is not JobStatus.EXPIRED or job.expires_at is None:
        return []
    return await store.inspections.slot_use(job.execution_time, job.expires_at)
