"""The page of one worker: its health, the lanes of its slots over the last hour, the jobs that it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from pg_scheduler.dashboard.context import NotFoundError, PageRequest
from pg_scheduler.dashboard.job_rows import JobRow, rows_of
from pg_scheduler.dashboard.lanes import SPAN, Lanes, lanes_of
from pg_scheduler.dashboard.pages.jobs import summary_of
from pg_scheduler.dashboard.pages.workers import DECLARE_DEAD, WorkerRow, dead_row, row_of
from pg_scheduler.inspect.attempts import Attempt, ended_attempts
from pg_scheduler.inspect.names import TaskNames
from pg_scheduler.inspect.texts import length, term

MAX_JOBS: Final = 50
OLDEST: Final = timedelta(days=365)
"""The oldest death whose last hour is read: the row of a worker may have been written by hand."""

LANES_AGE_S: Final = 15.0
"""Seconds for which the ended attempts of a worker are kept."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A value of a worker's health, and what it means."""

    text: str
    title: str
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class WorkerPage:
    """A worker.

    Attributes:
        worker_id: Its id.
        item: The worker; None if it shut down, or died more than a day ago, and only its jobs are known.
        names: The visible tasks that it claims; None if it does not report them.
        other_names: The other names of each of them.
        chips: Its health.
        jobs: The jobs that it runs.
        summary: The extent of the search for them.
        lanes: Its attempts of the last hour, or of that before its death.
    """

    worker_id: str
    item: WorkerRow | None
    lanes: Lanes
    names: Sequence[str] | None = None
    other_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    chips: Sequence[Chip] = ()
    jobs: Sequence[JobRow] = ()
    summary: str = ""


async def build(request: PageRequest) -> WorkerPage:
    """Read a worker, its attempts and the jobs that it runs."""
    worker_id = request.required("id")
    try:
        running = await request.inspector.search_jobs(
            f"status:running {term('worker', worker_id)}", limit=MAX_JOBS, names=request.access.visible_names
        )
        item, names = await _find(worker_id, request)
    except ValueError as error:  # a row written by hand, whose id no search can contain
        raise NotFoundError(str(error)) from error
    died_at = request.now if item is None or item.died_at is None else item.died_at
    until = max(died_at, request.now - OLDEST)
    attempts = await request.cache.get(
        ("attempts", worker_id),
        LANES_AGE_S,
        lambda: ended_attempts(request.inspector, worker_id, until - SPAN, until),
    )
    attempts = attempts + [
        Attempt(job.job_id, job.job_name, job.status.value, job.started_at)
        for job in running.items
        if job.started_at is not None
    ]
    sees_name = request.access.sees_name
    return WorkerPage(
        worker_id,
        item,
        lanes_of([each for each in attempts if sees_name(each.job_name)], until),
        names=None if item is None or item.worker.names is None else names.main,
        other_names=names.others,
        chips=() if item is None else _chips(item),
        jobs=await rows_of(running.items, request),
        summary=summary_of(running, request),
    )


async def _find(worker_id: str, request: PageRequest) -> tuple[WorkerRow | None, TaskNames]:
    """Return a worker with a row and its names, or one that died; None for one that has jobs only.

    Raises:
        NotFoundError: There is no trace of it.
    """
    worker = next((each for each in await request.inspector.workers() if each.worker_id == worker_id), None)
    if worker is not None:
        return row_of(worker, request), TaskNames.of([worker], request.access.sees_name)
    died = await request.inspector.audit(action=DECLARE_DEAD, subject=worker_id, limit=1)
    if died.items:
        return dead_row(died.items[0], request), TaskNames()
    names = request.access.visible_names
    ran = await request.inspector.search_jobs(term("worker", worker_id), limit=1, names=names)
    if not ran.items:
        raise NotFoundError(f"there is no worker {worker_id[:200]!r}, and no job that it ran was found")
    return None, TaskNames()


def _chips(row: WorkerRow) -> list[Chip]:
    """Return the health of a live worker."""
    if row.state == "dead":
        return []
    found = []
    if row.lag_s is not None:
        title = "how late its event loop ran a callback at the last heartbeat; above 1 s, a job blocks it"
        found.append(Chip(f"lag {length(row.lag_s)}", title, row.lag_s > 1))
    if row.pool is not None:
        title = "connections of its pool that are in use, of their maximum number"
        found.append(Chip(f"pool {row.pool.in_use:g} of {row.pool.most:g}", title))
    health = row.worker.health
    if isinstance(is_listening := health.get("is_listening"), bool):
        text = "listening" if is_listening else "polls"
        title = "it receives a notification of each new job, and starts it at once; otherwise it polls"
        found.append(Chip(text, title, not is_listening))
    if isinstance(has_lock := health.get("has_liveness_lock"), bool):
        title = "while it holds its liveness lock, its death is noticed at once, otherwise by its lease"
        found.append(Chip("liveness lock" if has_lock else "no liveness lock", title, not has_lock))
    return found
