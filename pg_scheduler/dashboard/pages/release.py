"""The page of a release: what attempts of each task did before it started and since, and its new errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.base.figures import JobFigures, are_in_one_bucket
from pg_scheduler.base.settings import JOB_ROLES
from pg_scheduler.dashboard.charts import Mark
from pg_scheduler.dashboard.context import NotFoundError, PageRequest, View
from pg_scheduler.dashboard.pages.errors import MAX_GROUPS, NewReleases
from pg_scheduler.dashboard.pages.history import HISTORY_AGE_S, RANGES, known_releases
from pg_scheduler.database.author import release_of
from pg_scheduler.facts.outcomes import count_decided, failure_rate
from pg_scheduler.inspect import ErrorGroup
from pg_scheduler.inspect.base import tables_of
from pg_scheduler.inspect.errors import ErrorGroups
from pg_scheduler.inspect.names import TaskNames
from pg_scheduler.inspect.statistics import MAX_SUMMED_ROWS, why_uncounted
from pg_scheduler.inspect.store.statistics import StatisticsByName
from pg_scheduler.inspect.texts import count, counted

LENGTHS: Final = {name: RANGES[name].length for name in ("1h", "6h", "1d", "7d")}
"""The maximum length of each of the two periods, by the parameter ``range``."""

RECENT: Final = timedelta(hours=1)
"""For how long after its first start the overview compares a release with the one before it."""

SHOWN_TASKS: Final = 100
SHOWN_ERRORS: Final = 20
SHOWN_ON_OVERVIEW: Final = 3

FEWEST_ATTEMPTS: Final = 20
"""Attempts that each period needs before a task counts as worse: fewer differ by chance."""
MORE_FAILURES: Final = 0.05
"""By how much the share of failed attempts has grown if the task is worse."""
SLOWER_MEDIAN: Final = 1.5
SLOWER_TAIL: Final = 2.0
"""By which factor the median, or the 95th percentile, of the durations has grown if the task is worse.

The bounds of the buckets in which durations are counted have a distance of up to a factor of two, so smaller
factors may come from the counting.
"""


WORSE_RULE: Final = (
    f"A task is worse if {100 * MORE_FAILURES:.0f} percentage points more of its attempts failed, "
    f"or its p50 is {SLOWER_MEDIAN:g} times as long, or its p95 {SLOWER_TAIL:g} times, "
    f"with {FEWEST_ATTEMPTS} or more attempts in each time"
)


@dataclass(frozen=True, slots=True)
class Release:
    """A release of the application, which workers name by ``metadata={"release": ...}``."""

    name: str
    started_at: datetime
    """When a worker of it first started."""
    ended_at: datetime | None
    """When the release after it first started; None for the newest."""


@dataclass(frozen=True, slots=True)
class ComparedPeriod:
    """A period in which attempts are counted, before or after the start of a release."""

    since: datetime
    until: datetime
    release: str | None
    """The release that was the newest then; None if none is known."""

    @property
    def length(self) -> timedelta:
        """Its length."""
        return self.until - self.since

    @property
    def minutes(self) -> float:
        """Its length, at least a minute."""
        return max((self.until - self.since) / timedelta(minutes=1), 1.0)


@dataclass(frozen=True, slots=True)
class PeriodFigures:
    """What the attempts of a task did in one period."""

    started: int
    per_minute: float
    decided: int
    """Attempts that count for the failure rate."""
    failed_share: float | None
    """The share of these that failed; None without any."""
    run_p50_s: float | None
    """The duration that half of the attempts did not exceed, in seconds; None without attempts."""
    run_p95_s: float | None
    """The duration that 95 % of them did not exceed, in seconds; None without attempts."""

    @classmethod
    def of(cls, figures: JobFigures, period: ComparedPeriod) -> PeriodFigures:
        """Return the figures of a period."""
        return cls(
            started=figures.started,
            per_minute=figures.started / period.minutes,
            decided=count_decided(figures),
            failed_share=failure_rate(figures),
            run_p50_s=figures.durations.quantile(0.5),
            run_p95_s=figures.durations.quantile(0.95),
        )


@dataclass(frozen=True, slots=True)
class TaskComparison:
    """A task before and after the start of a release."""

    name: str
    before: PeriodFigures
    after: PeriodFigures
    more_failures: float | None
    """By how much the share of failed attempts has grown; None if one of the periods has no attempts."""
    median_factor: float | None
    """By which factor the median of the durations has grown; None if it is unknown, or within one bucket."""
    tail_factor: float | None
    """By which factor the 95th percentile of the durations has grown; None if it is unknown."""
    worse: Sequence[str]
    """Which figures are clearly worse than before: ``failed``, ``p50`` and ``p95``."""

    @classmethod
    def of(cls, name: str, before: PeriodFigures, after: PeriodFigures) -> TaskComparison:
        """Return the comparison of the figures of a task before and after the start of a release."""
        more_failures = None
        if before.failed_share is not None and after.failed_share is not None:
            more_failures = after.failed_share - before.failed_share
        median_factor = _factor(before.run_p50_s, after.run_p50_s)
        tail_factor = _factor(before.run_p95_s, after.run_p95_s)
        # By figure, its growth, and the growth from which on it counts as worse.
        growths = {
            "failed": (more_failures, MORE_FAILURES),
            "p50": (median_factor, SLOWER_MEDIAN),
            "p95": (tail_factor, SLOWER_TAIL),
        }
        # A few attempts differ by chance.
        has_enough = min(before.decided, after.decided) >= FEWEST_ATTEMPTS
        worse = [
            figure
            for figure, (growth, limit) in growths.items()
            if has_enough and growth is not None and growth >= limit
        ]
        return cls(name, before, after, more_failures, median_factor, tail_factor, worse)

    @property
    def severity(self) -> float:
        """A number by which tasks are sorted, the worst first; 0 for a task that is not worse.

        It is the largest factor by which a duration has grown. A failure rate that has grown by five
        percentage points counts as much as a factor of 1.
        """
        if not self.worse:
            return 0.0
        failure_severity = (self.more_failures or 0.0) / MORE_FAILURES
        return max(failure_severity, self.median_factor or 0.0, self.tail_factor or 0.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two periods, with the figures of each name."""

    before: ComparedPeriod
    after: ComparedPeriod
    figures_before: StatisticsByName
    figures_after: StatisticsByName
    groups: ErrorGroups
    """The groups of errors since the start of the release."""

    @property
    def is_complete(self) -> bool:
        """Whether all statistics of both periods were read."""
        return self.figures_before.is_complete and self.figures_after.is_complete

    def tasks(self, names: TaskNames, request: PageRequest) -> list[TaskComparison]:
        """Return the visible tasks under their main names: those that are worse first, then by starts."""
        before = _by_task(self.figures_before.totals, names, request)
        after = _by_task(self.figures_after.totals, names, request)
        rows = [
            TaskComparison.of(
                name,
                PeriodFigures.of(before.get(name, JobFigures()), self.before),
                PeriodFigures.of(after.get(name, JobFigures()), self.after),
            )
            for name in sorted({*before, *after})
        ]
        attempted_rows = [row for row in rows if row.before.started or row.after.started]
        return sorted(attempted_rows, key=lambda row: (-row.severity, -row.after.started, row.name))

    def new_errors(self, releases: Sequence[Mark], request: PageRequest) -> list[ErrorGroup]:
        """Return the visible groups of errors that are new in the release, the most frequent first."""
        new_in = NewReleases(self.after.since, self.groups.counted_since, releases)
        groups = [group for group in self.groups.items if new_in.first_of(group) == self.after.release]
        return sorted(request.visible_groups(groups), key=lambda group: -group.count)


@dataclass(frozen=True, slots=True)
class RecentRelease:
    """What the overview shows of a release in the hour after its first start."""

    release: Release
    before: ComparedPeriod
    items: Sequence[TaskComparison]
    """The tasks that are worse, the worst first, at most three."""
    new_errors: int
    summary: str


async def build(request: PageRequest) -> View:
    """Compare a release, by default the newest, with another one, by default the one before it."""
    range_name, task = request.choice("range", LENGTHS, "1d"), request.parameters.get("task", "")
    releases = releases_of(await known_releases(request))
    newest_release = next(iter(releases), None)
    release = _named(releases, request.parameters.get("id", "")) or newest_release
    if release is None:
        return View(release=None, releases=[], range=range_name, task=task)
    earlier_releases = [other for other in releases if other.started_at < release.started_at]
    earlier_release = _named(earlier_releases, request.parameters.get("before", ""))
    if earlier_release is None:
        earlier_release = next(iter(earlier_releases), None)
    comparison = await _compare(request, release, earlier_release, LENGTHS[range_name])
    names = await request.task_names()
    rows = comparison.tasks(names, request)
    errors = comparison.new_errors(await known_releases(request), request)
    if task:
        main_name = names.task_of(task)
        rows = [row for row in rows if row.name == main_name]
        errors = [group for group in errors if names.task_of(group.job_name) == main_name]
    workers = [worker for worker in await request.workers() if worker.is_alive and worker.role in JOB_ROLES]
    # Workers run jobs of all names, so their numbers are for a request that sees all names.
    is_open = request.access.visible_names is None
    workers_of_release = sum(release_of(worker.metadata) == release.name for worker in workers)
    return View(
        release=release,
        releases=releases,
        earlier=earlier_releases,
        range=range_name,
        task=task,
        before=comparison.before,
        after=comparison.after,
        items=rows[:SHOWN_TASKS],
        number_of_tasks=len(rows),
        are_tasks_capped=not comparison.is_complete,
        errors=errors[:SHOWN_ERRORS],
        number_of_errors=len(errors),
        are_errors_capped=comparison.groups.is_capped,
        workers=len(workers) if is_open else None,
        workers_of_release=workers_of_release if is_open else None,
        _worse_rule=WORSE_RULE,
        _is_newest=release == releases[0],
        _is_mixed=is_open and release == releases[0] and 0 < workers_of_release < len(workers),
        _is_shorter=comparison.after.until - comparison.after.since < LENGTHS[range_name],
        is_complete=comparison.is_complete,
        uncounted=request.uncounted(why_uncounted(workers)),
    )


async def recent(request: PageRequest) -> RecentRelease | None:
    """Return what is worse since the newest release; None if it started more than an hour ago."""
    releases = releases_of(await known_releases(request))
    if not releases or request.now - releases[0].started_at > RECENT:
        return None
    release = releases[0]
    earlier_release = releases[1] if len(releases) > 1 else None
    comparison = await _compare(request, release, earlier_release, RECENT)
    rows = comparison.tasks(await request.task_names(), request)
    errors = comparison.new_errors(await known_releases(request), request)
    worse_tasks = [row for row in rows if row.worse]
    is_cut = not comparison.is_complete
    return RecentRelease(
        release=release,
        before=comparison.before,
        items=worse_tasks[:SHOWN_ON_OVERVIEW],
        new_errors=len(errors),
        summary=f"{count(len(worse_tasks), is_capped=is_cut)} of "
        f"{counted(len(rows), 'task', is_capped=is_cut)} worse, "
        f"{counted(len(errors), 'new error', is_capped=comparison.groups.is_capped)}",
    )


def releases_of(marks: Sequence[Mark]) -> list[Release]:
    """Return the releases, the one that started last first, from the marks of their first starts."""
    releases: list[Release] = []
    # A release ends when the one after it starts, and the newest one has not ended.
    next_start: datetime | None = None
    for mark in sorted(marks, key=lambda mark: mark.at, reverse=True):
        releases.append(Release(mark.label, mark.at, next_start))
        next_start = mark.at
    return releases


def _named(releases: Sequence[Release], name: str) -> Release | None:
    """Return the release with this name, which is a parameter of the address; None for an empty name.

    Raises:
        NotFoundError: There is no such release.
    """
    if not name:
        return None
    release = next((release for release in releases if release.name == name), None)
    if release is None:
        raise NotFoundError(f"no release {name[:50]!r} is among those to compare")
    return release


async def _compare(
    request: PageRequest, release: Release, earlier_release: Release | None, length: timedelta
) -> Comparison:
    """Compare the beginning of a release with the end of an earlier one; requests share the reads."""
    return await request.read_shared(_read, release, earlier_release, length, age_s=HISTORY_AGE_S)


async def _read(
    request: PageRequest, release: Release, earlier_release: Release | None, length: timedelta
) -> Comparison:
    """Read the statistics of the beginning of a release and of the end of an earlier one, to compare them.

    The period "after" begins with the start of the release, and has at most this length. The period "before"
    ends with the end of the earlier release, which is the start of the release that followed it. Without an
    earlier release, it ends with the start of the release itself. It is not longer than the period after.
    """
    after_end = min(release.ended_at or request.now, release.started_at + length)
    # The release may have started since ``request.now`` was read. Then the period is empty, not negative.
    after_end = max(after_end, release.started_at)
    after = ComparedPeriod(release.started_at, after_end, release.name)
    before_end = release.started_at
    if earlier_release is not None and earlier_release.ended_at is not None:
        before_end = earlier_release.ended_at
    # Figures are kept per minute, so a shorter period could have none.
    before_start = before_end - max(after.until - after.since, timedelta(minutes=1))
    earlier_name = None
    if earlier_release is not None:
        earlier_name = earlier_release.name
        before_start = max(before_start, earlier_release.started_at)
    before = ComparedPeriod(before_start, before_end, earlier_name)
    # Workers add their figures some seconds later, so a period that ends now is read without an end.
    after_until = None if after.until >= request.now else after.until
    statistics = tables_of(request.inspector).reads.statistics
    return Comparison(
        before=before,
        after=after,
        figures_before=await statistics.add_up_by_name(before.since, before.until, MAX_SUMMED_ROWS),
        figures_after=await statistics.add_up_by_name(after.since, after_until, MAX_SUMMED_ROWS),
        groups=await request.inspector.error_groups(since=release.started_at, limit=MAX_GROUPS),
    )


def _by_task(
    totals: Mapping[str, JobFigures], names: TaskNames, request: PageRequest
) -> dict[str, JobFigures]:
    """Return the figures of the visible names, added up by the main name of their task."""
    by_task: dict[str, list[JobFigures]] = {}
    for name, figures in totals.items():
        if request.access.sees_name(name):
            by_task.setdefault(names.task_of(name), []).append(figures)
    return {task: JobFigures.added(*figures) for task, figures in by_task.items()}


def _factor(before: float | None, after: float | None) -> float | None:
    """Return the factor of a growth; None if a value is missing, or both are estimates within one bucket."""
    if not before or after is None or are_in_one_bucket(before, after):
        return None
    return after / before
