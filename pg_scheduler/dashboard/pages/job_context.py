"""What surrounds a job: the figures of its task, the last runs of its schedule, its error and its limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import itemgetter
from typing import Final

from pg_scheduler.base.figures import JobFigures
from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.pages.limits import LimitRow, limit_rows
from pg_scheduler.facts.outcomes import FAILED_JOBS, failure_rate
from pg_scheduler.inspect import Statistics
from pg_scheduler.inspect.errors import ErrorGroup
from pg_scheduler.inspect.schedule_history import PastFire, newest_results
from pg_scheduler.jobs.error_text import fingerprint_of, text_of
from pg_scheduler.jobs.model import Job

MAX_RUNS: Final = 16
AGE_S: Final = 30.0
"""Seconds for which the figures and errors of a task are kept: each costs a search."""

PERIOD: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class LastRuns:
    """The last jobs of the schedule of a job, and the figures of its task."""

    items: Sequence[Mapping[str, object]]
    """The jobs of the last 16 fire times, the oldest first. A job without a schedule has none, because no
    index has the ends of the completed jobs of a task."""
    p50_s: float | None
    """The duration that half of the attempts of the last day did not exceed; None if that is unknown."""
    p95_s: float | None
    failed_share: float | None
    """The failure rate of the last day."""


async def last_runs_of(job: Job, results: Sequence[PastFire], request: PageRequest) -> LastRuns:
    """Return the last runs of the schedule of a job, and the figures of its task.

    ``results`` are the last fire times of the schedule; there are none without a schedule.
    """
    # A fire time has no status if its job was not enqueued, or was deleted since.
    ids = [result.job_id for result in results[:MAX_RUNS] if result.status is not None]
    jobs = list((await request.inspector.get_jobs(ids)).values()) if ids else []
    items = [
        {
            "job_id": run.job_id,
            "status": run.status.value,
            "ended_at": run.finished_at,
            "seconds": max((run.finished_at - run.started_at).total_seconds(), 0.0),
        }
        for run in jobs
        if run.started_at is not None and run.finished_at is not None
    ]
    figures = await _figures(job.job_name, request)
    return LastRuns(
        sorted(items, key=itemgetter("ended_at")),
        figures.durations.quantile(0.5),
        figures.durations.quantile(0.95),
        failure_rate(figures),
    )


async def _figures(name: str, request: PageRequest) -> JobFigures:
    """Return the figures of the attempts of a job name in the last day."""
    try:
        statistics = await request.read_shared(_read_statistics, name, age_s=AGE_S, is_age_shown=False)
    except ValueError:
        # No task can have this name, so the row of the job was written by hand.
        return JobFigures()
    return statistics.total()


async def _read_statistics(request: PageRequest, name: str) -> Statistics:
    """Read the statistics of a job name for the last day; requests share the result."""
    return await request.inspector.statistics(PERIOD, names=[name])


async def siblings_of(job: Job, request: PageRequest) -> dict[str, object] | None:
    """Return the group of the error of a job, and how many jobs ended with it in the last day.

    The number is None if the job failed before errors were counted. The result is None if the job has not
    failed.
    """
    if job.error_message is None or job.status not in FAILED_JOBS:
        return None
    fingerprint = fingerprint_of(job.job_name, text_of(job.status, job.error_message))
    group = await request.read_shared(_read_group, fingerprint, age_s=AGE_S, is_age_shown=False)
    return {
        "fingerprint": fingerprint,
        "count": None if group is None else group.count,
        "is_capped": group is not None and group.is_capped,
    }


async def _read_group(request: PageRequest, fingerprint: str) -> ErrorGroup | None:
    """Read a group of errors with the number of its jobs in the last day; requests share the result."""
    return await request.inspector.error_group(fingerprint, since=request.now - PERIOD)


async def limits_of(job: Job, request: PageRequest) -> list[LimitRow]:
    """Return the limits that live workers declare for the name of a job, as far as they are visible."""
    return [row for row in await limit_rows(request) if job.job_name in row.tasks]


async def results_of(schedule_id: str | None, request: PageRequest) -> Sequence[PastFire]:
    """Return the last 20 fire times of the schedule of a job, the newest first.

    There are none if the job has no schedule, or the schedule was removed or is hidden.
    """
    schedule = None if schedule_id is None else await request.inspector.get_schedule(schedule_id)
    if schedule is None or not request.access.sees_name(schedule.task):
        return ()
    results = await newest_results(request.inspector, [schedule], request.access.sees_name)
    return results.get(schedule.schedule_id, ())
