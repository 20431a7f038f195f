"""The last runs of the task of a job, jobs with its error, its limits, and the names of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.pages import limits
from pg_scheduler.dashboard.pages.limits import LimitRow
from pg_scheduler.inspect import Statistics
from pg_scheduler.inspect.errors import MAX_ERROR_LENGTH, fingerprint_of, normalized
from pg_scheduler.inspect.schedule_history import PastFire
from pg_scheduler.inspect.texts import term
from pg_scheduler.jobs.model import Job
from pg_scheduler.measure.figures import OUTCOMES, JobFigures
from pg_scheduler.status import JobStatus

MAX_RUNS: Final = 16
AGE_S: Final = 30.0
"""Seconds for which the runs, figures and errors of a task are kept: each costs a search."""

SAMPLE: Final = 64
"""Jobs of a status among which the last runs are: completed ones are found by id, not by end."""

PERIOD: Final = timedelta(days=1)
MAX_GROUPS: Final = 1000
RAN: Final = ("completed", "failed")


@dataclass(frozen=True, slots=True)
class LastRun:
    """A job that ran."""

    job_id: str
    status: str
    ended_at: datetime
    seconds: float


@dataclass(frozen=True, slots=True)
class LastRuns:
    """The last jobs of a task, or of the schedule of a job, and the figures of the task."""

    of: str
    """Whose runs these are: ``task`` or ``schedule``."""
    items: Sequence[LastRun]
    """At most 16, the oldest first, within the bounds of a search."""
    p50_s: float | None
    """The duration that half of the attempts of the last day did not exceed; None if that is unknown."""
    p95_s: float | None
    failed_share: float | None
    """The share of the attempts of the last day that failed."""

    @property
    def longest_s(self) -> float:
        """The duration of the longest one."""
        return max((each.seconds for each in self.items), default=0.0)


@dataclass(frozen=True, slots=True)
class Siblings:
    """The jobs that ended with the same error as a job."""

    fingerprint: str
    """Identifies the group of their error."""
    count: int | None
    """Their number in the last day with this one; None if it is not among those that were examined."""


async def last_runs_of(job: Job, results: Sequence[PastFire], request: PageRequest) -> LastRuns:
    """Return the last runs of the schedule of a job, whose fire times these are; else of its task."""
    names = request.access.visible_names
    if job.schedule_id is not None:
        ids = [each.job_id for each in results[:MAX_RUNS] if each.status is not None]
        jobs: Sequence[Job] = list((await request.inspector.get_jobs(ids)).values())
    else:

        async def search() -> Sequence[Job]:
            found: list[Job] = []
            for status in RAN:  # apart, so that failed jobs are read by their ends
                where = f"{term('name', job.job_name)} status:{status}"
                found += (await request.inspector.search_jobs(where, limit=SAMPLE, names=names)).items
            return found

        try:
            jobs = await request.cache.get(("last runs", job.job_name, names), AGE_S, search, is_data=False)
        except ValueError:  # no search can contain the name: the row was written by hand
            jobs = ()
    items = [
        LastRun(
            each.job_id,
            each.status.value,
            each.finished_at,
            max((each.finished_at - each.started_at).total_seconds(), 0.0),
        )
        for each in jobs
        if each.started_at is not None and each.finished_at is not None
    ]
    figures = await _figures(job.job_name, request)
    ended = sum(figures.ended)
    return LastRuns(
        "task" if job.schedule_id is None else "schedule",
        sorted(items, key=lambda run: run.ended_at)[-MAX_RUNS:],
        figures.durations.quantile(0.5),
        figures.durations.quantile(0.95),
        figures.ended[OUTCOMES.index("failed")] / ended if ended else None,
    )


async def _figures(name: str, request: PageRequest) -> JobFigures:
    async def read() -> Statistics:
        return await request.inspector.statistics(PERIOD, names=[name])

    try:
        found = await request.cache.get(("figures", name), AGE_S, read, is_data=False)
    except ValueError:  # no name that a task can have: the row was written by hand
        return JobFigures()
    return found.total()


async def siblings_of(job: Job, request: PageRequest) -> Siblings | None:
    """Return how many jobs ended with the error of a job in the last day."""
    if job.error_message is None or job.status not in {JobStatus.FAILED, JobStatus.EXPIRED}:
        return None
    fingerprint = fingerprint_of(job.job_name, normalized(job.error_message[:MAX_ERROR_LENGTH]))
    found = await request.cache.get(
        "error groups of a day",
        AGE_S,
        lambda: request.inspector.error_groups(since=request.now - PERIOD, limit=MAX_GROUPS),
        is_data=False,
    )
    count = next((each.count for each in found.items if each.fingerprint == fingerprint), None)
    return Siblings(fingerprint, count)


async def limits_of(job: Job, request: PageRequest) -> list[LimitRow]:
    """Return the limits that live workers declare for the name of a job, as far as they are visible."""
    return [each for each in (await limits.build(request)).items if job.job_name in each.tasks]
