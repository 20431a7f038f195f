"""The page of one worker: its health, the lanes of its slots over the last hour, the jobs that it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.dashboard.context import DECLARE_DEAD, NotFoundError, PageRequest, View
from pg_scheduler.dashboard.job_rows import rows_of
from pg_scheduler.dashboard.lanes import SPAN, lanes_of
from pg_scheduler.dashboard.pages.jobs import summary_of
from pg_scheduler.dashboard.pages.workers import (
    ADVICE,
    MAX_CLOCK_OFFSET_S,
    WorkerRow,
    dead_row,
    difference,
    row_of,
)
from pg_scheduler.facts.job_state import state_of
from pg_scheduler.inspect import AuditRecord
from pg_scheduler.inspect.names import TaskNames
from pg_scheduler.inspect.texts import length, term
from pg_scheduler.inspect.workers import Attempt, EndedAttempts, ended_attempts
from pg_scheduler.jobs.model import Job
from pg_scheduler.worker.worker_rows import MAX_RECORDED

MAX_JOBS: Final = 50
OLDEST: Final = timedelta(days=365)
"""How far back the attempts of a dead worker are read at most: a row that was written by hand may have any
time of its death."""

LANES_AGE_S: Final = 15.0

CRASHED: Final = "crashed"
"""The outcome of an attempt whose worker died."""


@dataclass(frozen=True, slots=True)
class LostJob:
    """A job that a worker was running when it died.

    Attributes:
        state: What has become of the job since.
        attempt: The attempt that ended with the worker; None if the history of the job does not have it any
            more.
        others: The other workers that died while they ran the job, by their names or ids.
    """

    job_id: str
    job_name: str
    state: str
    attempt: Attempt | None
    others: Sequence[str]


async def build(request: PageRequest) -> View:
    """Read a worker, its attempts and the jobs that it runs."""
    worker_id = request.required("id")
    try:
        running = await request.search_jobs(f"status:running {term('worker', worker_id)}", MAX_JOBS)
        item, names, death = await _find(worker_id, request)
    except ValueError as error:
        # The row of the worker was written by hand, with an id that no search can contain.
        raise NotFoundError(str(error)) from error
    died_at = None if item is None else item.died_at
    ended = await request.read_shared(_read_ended, worker_id, died_at, age_s=LANES_AGE_S)
    lost_jobs = await _read_lost(death, request)
    # The attempts of lost jobs may be among the ended ones too. In a set, equal ones are drawn once.
    attempts = set(ended.items)
    attempts.update(job.attempt for job in lost_jobs if job.attempt is not None)
    attempts.update(
        Attempt(job.job_id, job.job_name, job.status.value, job.started_at)
        for job in running.items
        if job.started_at is not None
    )
    visible_attempts = [attempt for attempt in attempts if request.access.sees_name(attempt.job_name)]
    until = _end_of_lanes(request, died_at)
    return View(
        worker_id=worker_id,
        item=item,
        lanes=lanes_of(
            visible_attempts,
            until,
            is_capped=ended.is_capped or running.next is not None,
            is_over=died_at is not None,
        ),
        names=None if item is None or item.worker.names is None else names.main,
        other_names=names.others,
        lost=lost_jobs,
        chips=() if item is None else list(_chips(item)),
        _advice=ADVICE,
        jobs=await rows_of(running.items, request),
        are_all_jobs=running.is_complete,
        summary=summary_of(running, request),
    )


def _end_of_lanes(request: PageRequest, died_at: datetime | None) -> datetime:
    """Return the end of the hour whose attempts are drawn: the death of a worker, else the present time."""
    return max(died_at or request.now, request.now - OLDEST)


async def _read_ended(request: PageRequest, worker_id: str, died_at: datetime | None) -> EndedAttempts:
    """Return the attempts of a worker that ended in the hour that its page draws."""
    until = _end_of_lanes(request, died_at)
    return await ended_attempts(request.inspector, worker_id, until - SPAN, until)


async def _find(
    worker_id: str, request: PageRequest
) -> tuple[WorkerRow | None, TaskNames, AuditRecord | None]:
    """Return a worker, its names, and the record of its death if it has no row any more.

    If only jobs of the worker are left, the result is no worker, no names and no record.

    Raises:
        NotFoundError: There is no row, record or job of it.
    """
    worker = next(
        (worker for worker in await request.inspector.workers() if worker.worker_id == worker_id), None
    )
    if worker is not None:
        return row_of(worker, request), TaskNames.of([worker], request.access.sees_name), None
    died = await request.inspector.audit(action=DECLARE_DEAD, subject=worker_id, limit=1)
    if died.items:
        return dead_row(died.items[0], request), TaskNames(), died.items[0]
    if not (await request.search_jobs(term("worker", worker_id), 1)).items:
        raise NotFoundError(f"there is no worker {worker_id[:200]!r}, and no job that it ran was found")
    return None, TaskNames(), None


async def _read_lost(death: AuditRecord | None, request: PageRequest) -> list[LostJob]:
    """Return the visible jobs that the record of a death names, those under which most workers died first.

    A job that was deleted since is left out.
    """
    if death is None:
        return []
    # People may have written the record by hand, so its details may be anything.
    recorded_ids = death.details.get("jobs")
    if not isinstance(recorded_ids, list):
        return []
    ids = [job_id for job_id in recorded_ids if isinstance(job_id, str)][:MAX_RECORDED]
    try:
        jobs = await request.inspector.get_jobs(ids)
    except ValueError:
        # One of the texts is no id that a job can have.
        return []
    names = await request.worker_names()
    lost_jobs = [
        _lost_job(job, death.subject or "", names, request)
        for job in jobs.values()
        if request.access.sees_name(job.job_name)
    ]
    return sorted(lost_jobs, key=lambda job: (-len(job.others), job.job_name, job.job_id))


def _lost_job(job: Job, worker_id: str, names: Mapping[str, str], request: PageRequest) -> LostJob:
    """Return a job that this worker was running when it died; ``names`` are the names of workers by id."""
    crashes = [error for error in job.errors if error.outcome == CRASHED]
    crash = next((error for error in crashes if error.worker_id == worker_id), None)
    # The same job may have made other workers die. A dict keeps their order, and has each once.
    other_ids = dict.fromkeys(
        error.worker_id for error in crashes if error.worker_id not in {worker_id, None}
    )
    attempt = None
    if crash is not None and crash.started_at is not None:
        attempt = Attempt(job.job_id, job.job_name, CRASHED, crash.started_at, crash.ended_at)
    return LostJob(
        job_id=job.job_id,
        job_name=job.job_name,
        state=state_of(job, request.now),
        attempt=attempt,
        others=[names.get(other_id or "", other_id or "") for other_id in other_ids],
    )


def _chips(row: WorkerRow) -> Iterator[dict[str, object]]:
    """Yield the health of a live worker as small labels (chips): each value, and what it means.

    Those of which the page has a notice are repeated, and only in its data.
    """
    if row.state == "dead":
        return

    def chip(text: str, title: str, *, is_bad: bool = False, is_repeated: bool = False) -> dict[str, object]:
        """Return a label with its tooltip."""
        return {"text": text, "title": title, "is_bad": is_bad, "is_repeated": is_repeated}

    health = row.health
    if health.loop_lag_s is not None:
        title = "how late its event loop ran a callback at the last heartbeat; above 1 s, a job blocks it"
        yield chip(f"loop lag {length(health.loop_lag_s)}", title, is_bad=health.loop_lag_s > 1)
    offset_s = health.clock_offset_s
    if offset_s is not None and abs(offset_s) > MAX_CLOCK_OFFSET_S:
        title = "the clock of its host differs from that of the server; due times computed there are wrong"
        yield chip(f"clock {difference(offset_s)} the server", title, is_bad=True)
    if health.pool.in_use is not None and health.pool.max is not None:
        title = "connections of its pool that are in use, of their maximum number"
        yield chip(f"pool {health.pool.in_use} of {health.pool.max}", title)
    # What every worker has when it is well would only hide what this one lacks.
    if health.is_listening is False:
        title = "it receives no notification of new jobs, so it polls, and starts them later"
        yield chip("polls", title, is_bad=True, is_repeated=True)
    if health.has_liveness_lock is False:
        title = "without its liveness lock, its death is noticed by its lease, and not at once"
        yield chip("no liveness lock", title, is_bad=True, is_repeated=True)
