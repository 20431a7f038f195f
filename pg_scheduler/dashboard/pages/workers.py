"""The pages of workers, and of one worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pg_scheduler.dashboard.context import NotFoundError, PageRequest
from pg_scheduler.dashboard.job_rows import JobRow, row_of
from pg_scheduler.dashboard.pages.jobs import summary_of
from pg_scheduler.dashboard.redaction import HIDDEN
from pg_scheduler.inspect.names import TaskNames
from pg_scheduler.inspect.texts import quoted
from pg_scheduler.jobs.model import Worker
from pg_scheduler.store.author import release_of
from pg_scheduler.text.values import copy_fields

MAX_WORKERS: Final = 500
MAX_JOBS: Final = 50
MAX_NUMBER: Final = 1e9
"""The largest number of a worker's health that is shown."""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker in a list."""

    worker_id: str
    state: str
    """``running``, ``draining``, ``stopping`` or ``dead``."""
    running_jobs: int
    slots: int
    hostname: str
    pid: int
    release: str | None
    """The release of the application; None if its metadata name none."""
    version: str
    """The version of this library."""
    identity: str | None
    role: str
    started_at: datetime
    last_beat: datetime
    lease_until: datetime
    lag_s: float | None
    """Seconds for which its event loop kept a callback waiting at the last heartbeat; None if unknown."""
    pool: str | None
    """The connections of its pool that are in use, and their maximum number."""
    problems: Sequence[str]


@dataclass(frozen=True, slots=True)
class WorkersPage:
    """All workers."""

    items: Sequence[WorkerRow]
    summary: str


@dataclass(frozen=True, slots=True)
class WorkerPage:
    """A worker. What the request may not see is None or empty."""

    worker: WorkerRow
    wanted: str | None
    names: Sequence[str] | None
    """The visible tasks that it claims; None if it does not report them."""
    other_names: Mapping[str, Sequence[str]]
    """The other names of each of them."""
    health: Mapping[str, Any]
    settings: Mapping[str, Any]
    metadata: Mapping[str, Any]
    jobs: Sequence[JobRow]
    summary: str
    """The extent of the search for its jobs."""


async def build(request: PageRequest) -> WorkersPage:
    """Read the workers."""
    workers = await request.inspector.workers()
    rows = [_row(worker, request) for worker in workers[:MAX_WORKERS]]
    alive = [row for row in rows if row.state != "dead"]
    busy, slots = sum(row.running_jobs for row in alive), sum(row.slots for row in alive)
    dead = f", {len(rows) - len(alive)} dead" if len(rows) > len(alive) else ""
    more = f"; the first {MAX_WORKERS} are shown" if len(workers) > MAX_WORKERS else ""
    return WorkersPage(rows, f"{len(alive)} live workers{dead}, {busy} of {slots} slots busy{more}")


async def build_one(request: PageRequest) -> WorkerPage:
    """Read a worker and the jobs that it runs."""
    worker_id = request.required("id")
    worker = next((each for each in await request.inspector.workers() if each.worker_id == worker_id), None)
    if worker is None:
        raise NotFoundError(f"there is no worker {worker_id[:200]!r}; it may have ended")
    try:
        page = await request.inspector.search_jobs(
            f"status:running worker:{quoted(worker_id)}", limit=MAX_JOBS, names=request.access.visible_names
        )
    except ValueError as error:  # a row written by hand, whose id no search can contain
        raise NotFoundError(str(error)) from error
    names = TaskNames.of([worker], request.access.sees_name)
    is_open = request.access.visible_names is None  # settings and health may mention any job
    return WorkerPage(
        worker=_row(worker, request),
        wanted=worker.wanted,
        names=None if worker.names is None else names.main,
        other_names=names.others,
        health=worker.health if is_open else {},
        settings=worker.settings if is_open else {},
        metadata=request.settings.redaction.values(worker.metadata) if is_open else {},
        jobs=[row_of(job, request) for job in page.items],
        summary=summary_of(page, request),
    )


def _row(worker: Worker, request: PageRequest) -> WorkerRow:
    return copy_fields(
        WorkerRow,
        worker,
        state=_state(worker),
        slots=worker.max_concurrent_jobs,
        release=_release(worker, request),
        lag_s=_number(worker.health.get("loop_lag_s")),
        pool=_pool(worker.health.get("pool")),
        problems=list(_problems(worker)),
    )


def _release(worker: Worker, request: PageRequest) -> str | None:
    release = release_of(worker.metadata)
    return HIDDEN if release and request.settings.redaction.is_hidden("release") else release


def _number(value: object) -> float | None:
    """Return the value if it is a number that a worker can report; a row may have been written by hand."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_NUMBER:
        return None
    return float(value)


def _pool(value: object) -> str | None:
    found = value if isinstance(value, Mapping) else {}
    size, idle, most = (_number(found.get(name)) for name in ("size", "idle", "max"))
    return None if size is None or idle is None or most is None else f"{size - idle:g} of {most:g}"


def _state(worker: Worker) -> str:
    if not worker.is_alive:
        return "dead"
    if worker.is_stopping:
        return "stopping"
    if worker.wanted == "drain":
        return "draining"
    return worker.state if worker.state in {"draining", "stopping"} else "running"


def _problems(worker: Worker) -> list[str]:
    """Return what is wrong with a live worker, as it reports it."""
    if not worker.is_alive:
        return []
    health, found = worker.health, []
    blocked_s, lag_s = _number(health.get("loop_blocked_s")), _number(health.get("loop_lag_s"))
    if blocked_s is not None:
        found.append(f"its event loop is blocked for {timedelta(seconds=round(blocked_s))}")
    elif lag_s is not None and lag_s > 1:
        found.append(f"its event loop lags by {lag_s:.1f} s")
    if health.get("is_listening") is False:
        found.append("it receives no notifications, so it polls")
    if health.get("has_liveness_lock") is False:
        found.append("it has no liveness lock, so its death is noticed by its lease")
    return found
