"""The page of workers: those with a lease, and those that died within a day."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from pg_scheduler.base.settings import JOB_ROLES
from pg_scheduler.dashboard.context import PageRequest, View, identity_of
from pg_scheduler.dashboard.redaction import HIDDEN
from pg_scheduler.database.author import release_of
from pg_scheduler.facts.worker_state import WorkerState, state_of
from pg_scheduler.inspect import AuditRecord, Thresholds
from pg_scheduler.inspect.texts import count, counted, length
from pg_scheduler.inspect.workers import Attempt, running_attempts
from pg_scheduler.jobs.history import instant_from
from pg_scheduler.jobs.model import Worker
from pg_scheduler.jobs.worker_report import TASK_METADATA, ReportedHealth

MAX_WORKERS: Final = 500
MAX_CLOCK_OFFSET_S: Final = Thresholds().clock_s
"""Seconds by which the clock of a host may differ from that of the server: as for the doctor."""

RUNNING_AGE_S: Final = 5.0

POLLS: Final = "it receives no notifications, so it polls"
HAS_NO_LOCK: Final = "it has no liveness lock, so its death is noticed by its lease"

ADVICE: Final = {
    POLLS: "A job that another process adds starts at its next poll, by default up to 2 s late. Give it "
    "direct_dsn= or a larger pool",
    HAS_NO_LOCK: "If its process is killed, its jobs wait until its lease ends. Give it a larger pool, "
    "keeper_dsn= or direct_dsn=",
}
"""The consequence and the remedy of problems, for the page of the worker."""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker, with what follows from its row, or from the record of its death.

    Attributes:
        worker: The worker, without what the request may not see.
        state: Its state.
        release: The release of the application; None if its metadata name none.
        health: What it reports of itself, without what the request may not see.
        problems: What is wrong with it, according to its health.
        died_at: When it was declared dead, or its lease expired; None for a live worker.
        reclaimed: How many of its jobs were reclaimed after its death; None if that is unknown or hidden.
        oldest: The visible job that it has run for the longest time.
    """

    worker: Worker
    state: WorkerState
    release: str | None
    health: ReportedHealth
    problems: Sequence[str] = ()
    died_at: datetime | None = None
    reclaimed: int | None = None
    oldest: Attempt | None = None

    @property
    def name(self) -> str:
        """The name that people gave it, else its id."""
        return self.worker.identity or self.worker.worker_id


TABS: Final[Mapping[str, Callable[[WorkerRow], bool]]] = {
    "": lambda _: True,
    "live": lambda row: row.state != "dead",
    "draining": lambda row: row.state in {"draining", "stopping"},
    "dead": lambda row: row.state == "dead",
}
"""The workers of each tab, by the parameter ``state``."""

GROUPS: Final[Mapping[str, Callable[[WorkerRow], str]]] = {
    "release": lambda row: row.release or "no release",
    "host": lambda row: row.worker.hostname,
    "role": lambda row: row.worker.role,
}
"""The headings of workers in a list, by the parameter ``group``."""


async def build(request: PageRequest) -> View:
    """Read the workers of a tab. A list has no names, health, settings and metadata."""
    state, group = request.choice("state", TABS), request.choice("group", ("", *GROUPS))
    workers = await request.inspector.workers()
    attempts = await attempts_by_worker(request)
    rows: list[WorkerRow] = []
    for worker in workers[:MAX_WORKERS]:
        # The attempts of a worker are in the order of their starts.
        visible_attempts = (
            attempt
            for attempt in attempts.get(worker.worker_id, ())
            if request.access.sees_name(attempt.job_name)
        )
        rows.append(replace(listed_row(worker, request), oldest=next(visible_attempts, None)))
    dead_rows, has_more_dead = await _dead(request, {worker.worker_id for worker in workers})
    rows += dead_rows
    has_more = len(workers) > MAX_WORKERS

    def position(row: WorkerRow) -> tuple[bool, float]:
        """Return the sort key: live workers come first, then dead ones, from the last death to the first."""
        return row.died_at is not None, -row.died_at.timestamp() if row.died_at else 0.0

    rows.sort(key=position)
    return View(
        items=[row for row in rows if TABS[state](row)],
        counts={name: sum(map(is_in, rows)) for name, is_in in TABS.items()},
        capped={name: has_more or (has_more_dead and name in {"", "dead"}) for name in TABS},
        summary=_summary(rows, has_more=has_more, has_more_dead=has_more_dead),
        state=state,
        group=group,
    )


async def attempts_by_worker(request: PageRequest) -> Mapping[str, Sequence[Attempt]]:
    """Return the running attempts of each worker; all requests share the read for some seconds."""
    return await request.read_shared(_read_running, age_s=RUNNING_AGE_S)


async def _read_running(request: PageRequest) -> Mapping[str, Sequence[Attempt]]:
    """Read the running attempts of each worker; requests share the result."""
    return await running_attempts(request.inspector)


def grouped(rows: Sequence[WorkerRow], group: str) -> Mapping[str, Sequence[WorkerRow]]:
    """Return workers by their headings; all of them under an empty heading if they are not grouped."""
    groups: dict[str, list[WorkerRow]] = {}
    heading = GROUPS.get(group)
    for row in rows:
        groups.setdefault("" if heading is None else heading(row), []).append(row)
    return dict(sorted(groups.items()))


def _summary(rows: Sequence[WorkerRow], *, has_more: bool, has_more_dead: bool) -> str:
    """Return the numbers of live and dead workers and of their slots, as a text.

    ``has_more`` and ``has_more_dead`` are whether there may be further workers, and further dead ones.
    """
    live_workers = [row.worker for row in rows if row.state != "dead"]
    live_text = count(len(live_workers), is_capped=has_more)
    busy_text = count(sum(worker.running_jobs for worker in live_workers), is_capped=has_more)
    slots_text = count(sum(worker.max_concurrent_jobs for worker in live_workers), is_capped=has_more)
    dead_count = len(rows) - len(live_workers)
    died_text = ""
    if dead_count:
        died_text = f", {count(dead_count, is_capped=has_more or has_more_dead)} dead within a day"
    limit_text = f"; the first {MAX_WORKERS} are shown" if has_more else ""
    return f"{live_text} live{died_text}, {busy_text} of {slots_text} slots busy{limit_text}"


async def _dead(request: PageRequest, live_ids: set[str]) -> tuple[list[WorkerRow], bool]:
    """Return workers without a row that died within a day, the last one first.

    The second value is whether others may have died too. ``live_ids`` are the ids of the workers with a row.
    """
    deaths = await request.deaths()
    records: dict[str, AuditRecord] = {}
    for record in deaths.items:
        if record.subject is not None and record.subject not in live_ids:
            # The newest record about a worker comes first, and is kept.
            records.setdefault(record.subject, record)
    return [dead_row(record, request) for record in records.values()], deaths.next is not None


def dead_row(record: AuditRecord, request: PageRequest) -> WorkerRow:
    """Return a worker as the audit record of its death describes it.

    The record may have been written by hand, so the type of each detail is checked.
    """
    worker_details = record.details.get("worker")
    values: Mapping[str, Any] = worker_details if isinstance(worker_details, Mapping) else {}

    def text(name: str) -> str:
        """Return the detail if it is a text, else an empty text."""
        value = values.get(name)
        return value if isinstance(value, str) else ""

    def number(value: object) -> int | None:
        """Return the value if it is a whole number from 0 on, else None. In Python, a bool is an int too."""
        if not isinstance(value, int) or isinstance(value, bool):
            return None
        return value if value >= 0 else None

    release = text("release")
    worker = Worker(
        worker_id=record.subject or "",
        hostname=text("hostname"),
        pid=number(values.get("pid")) or 0,
        version=text("version"),
        max_concurrent_jobs=number(values.get("slots")) or 0,
        running_jobs=0,
        started_at=instant_from(values.get("started_at")) or record.at,
        last_beat=instant_from(values.get("last_beat")) or record.at,
        lease_until=record.at,
        is_alive=False,
        role=text("role"),
        identity=identity_of(record) or None,
        metadata={"release": release} if release else {},
    )
    # The jobs of the worker may have hidden names, so their number is for a request that sees all names.
    is_open = request.access.visible_names is None
    reclaimed = number(record.details.get("count")) if is_open else None
    return replace(listed_row(worker, request), died_at=record.at, reclaimed=reclaimed)


def listed_row(worker: Worker, request: PageRequest) -> WorkerRow:
    """Return a worker as lists show it, without what only its page shows."""
    row = row_of(worker, request)
    listed_worker = replace(row.worker, names=None, health={}, settings={}, metadata={})
    return replace(row, worker=listed_worker, health=row.health.without_names())


def slots_of(worker: Worker) -> int:
    """Return the slots of a worker: 0 if its role runs no jobs, although its row has the setting."""
    return worker.max_concurrent_jobs if worker.role in JOB_ROLES else 0


def _visible_worker(worker: Worker, request: PageRequest) -> Worker:
    """Return a worker without what the request may not see: settings and health may mention any job."""
    is_open = request.access.visible_names is None
    return replace(
        worker,
        max_concurrent_jobs=slots_of(worker),
        names=None if worker.names is None else tuple(filter(request.access.sees_name, worker.names)),
        health=worker.health if is_open else {},
        settings=_visible_settings(worker, request) if is_open else {},
        metadata=request.settings.redaction.values(worker.metadata) if is_open else {},
    )


def _visible_settings(worker: Worker, request: PageRequest) -> dict[str, Any]:
    """Return the settings of a worker; with the metadata of tasks only if the request may see arguments."""
    metadata = worker.settings.get(TASK_METADATA)
    settings = {name: value for name, value in worker.settings.items() if name != TASK_METADATA}
    if request.access.sees_arguments and isinstance(metadata, dict):
        settings[TASK_METADATA] = request.settings.redaction.values(metadata)
    return settings


def row_of(worker: Worker, request: PageRequest) -> WorkerRow:
    """Return a worker with what follows from its row: its state, its release, and what is wrong with it."""
    release, health = release_of(worker.metadata), ReportedHealth.of(worker.health)
    if release and request.settings.redaction.is_hidden("release"):
        release = HIDDEN
    if request.access.visible_names is not None:
        abandoned_attempts = [
            attempt for attempt in health.abandoned if request.access.sees_name(attempt.job_name)
        ]
        health = replace(health.without_names(), abandoned=abandoned_attempts)
    return WorkerRow(
        worker=_visible_worker(worker, request),
        state=state_of(worker),
        release=release,
        health=health,
        problems=_problems(health) if worker.is_alive else [],
        died_at=None if worker.is_alive else worker.lease_until,
    )


def difference(offset_s: float) -> str:
    """Return how far one clock is from another, such as ``10 min behind`` or ``3 s ahead of``."""
    return f"{length(abs(offset_s))} {'ahead of' if offset_s > 0 else 'behind'}"


def _problems(health: ReportedHealth) -> list[str]:
    """Return what is wrong with a live worker, as it reports it."""
    problems = []
    if health.block is not None:
        blocked = timedelta(seconds=round(health.block.seconds))
        problems.append(f"its event loop is blocked for {blocked}")
    elif health.loop_lag_s is not None and health.loop_lag_s > 1:
        problems.append(f"its event loop lags by {health.loop_lag_s:.1f} s")
    if health.clock_offset_s is not None and abs(health.clock_offset_s) > MAX_CLOCK_OFFSET_S:
        problems.append(f"the clock of its host is {difference(health.clock_offset_s)} that of the server")
    if health.abandoned:
        attempts = counted(len(health.abandoned), "attempt")
        was, runs = ("was", "runs") if len(health.abandoned) == 1 else ("were", "run")
        problems.append(f"{attempts} that {was} to stop {runs} on")
    if health.is_listening is False:
        problems.append(POLLS)
    if health.has_liveness_lock is False:
        problems.append(HAS_NO_LOCK)
    return problems
