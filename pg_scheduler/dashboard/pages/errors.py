"""The pages of errors: failed and expired jobs, grouped by name and text, and one group."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from pg_scheduler.base.status import JobStatus
from pg_scheduler.dashboard.charts import Mark
from pg_scheduler.dashboard.context import NotFoundError, PageRequest, View
from pg_scheduler.dashboard.job_rows import row_of, tags_of
from pg_scheduler.dashboard.pages.history import known_releases
from pg_scheduler.dashboard.redaction import HIDDEN
from pg_scheduler.dashboard.texts import plain
from pg_scheduler.database.author import release_of
from pg_scheduler.facts.job_state import QUARANTINED
from pg_scheduler.inspect import ErrorGroup
from pg_scheduler.inspect.audit import is_muted, read_muted, read_mutes
from pg_scheduler.inspect.errors import ErrorGroups, is_in_group
from pg_scheduler.inspect.texts import count, counted, quoted, term
from pg_scheduler.jobs.model import Job, Worker
from pg_scheduler.jobs.outcome import without_quarantine_remedy

MAX_GROUPS: Final = 200
"""Groups that a page reads. If there are more, its numbers have a "+"."""
SHOWN_GROUPS: Final = 100
GROUPS_AGE_S: Final = 2.0
"""Seconds for which groups are kept. If the read is slow, they are kept ten times as long as it took."""

SAMPLE: Final = 50
"""Jobs of a group whose workers and arguments are counted: each is read with its arguments."""
SAMPLE_AGE_S: Final = 10.0
SHOWN_JOBS: Final = 10
SHOWN_VALUES: Final = 8
MAX_VALUE: Final = 80

SPANS: Final[Mapping[str, timedelta | None]] = {
    "1h": timedelta(hours=1),
    "1d": timedelta(days=1),
    "7d": timedelta(days=7),
    "all": None,
}
"""The length of the period, by the parameter ``since``."""

PERIODS: Final[Mapping[str, str]] = {
    "1h": "in the last hour",
    "1d": "in the last day",
    "7d": "in the last 7 days",
    "all": "at any time",
}
"""The periods in words, by the parameter ``since``."""

STATES: Final = ("failed", "expired", "quarantined", "muted")
"""The states of groups, each of which has a tab. What was cancelled is no error."""

SORTS: Final[Mapping[str, Callable[[ErrorGroup], Any]]] = {
    "jobs": lambda group: (-group.count, -group.last_at.timestamp()),
    "newest": lambda group: -group.last_at.timestamp(),
    "first": lambda group: -group.first_at.timestamp(),
    "task": lambda group: (group.job_name, -group.count),
}

_KIND: Final = re.compile(r"([A-Za-z_][\w.]*): +(?=\S)|([A-Za-z_][\w.]*(?:Error|Exception|Exit))$")

_INTERVAL: Final = re.compile(r"not started between \S+ \S+ and \S+ \S+ UTC(?:; )?")
"""The start of the error of an expired job, before the reason."""


class ErrorText(NamedTuple):
    """The text of an error: the name of its class, and its message."""

    kind: str
    message: str


def error_text(text: str, status: JobStatus = JobStatus.FAILED) -> ErrorText:
    """Return the class and the message of an error; the class is empty if it has none.

    For an expired job, the class is ``Expired`` and the message is the reason. For a quarantined job, the
    class is ``Quarantined``.

    Example:
        >>> error_text("acme.errors.UpstreamError: 502 Bad Gateway")
        ErrorText(kind='UpstreamError', message='502 Bad Gateway')
    """
    if status is JobStatus.EXPIRED:
        # The text begins with the interval in which the job could have started. Only the reason is shown.
        return ErrorText("Expired", _INTERVAL.sub("", text, count=1) or "not started in time")
    match = _KIND.match(text)
    if match is None:
        return ErrorText("", text)
    message = text[match.end() :]
    if text.startswith(QUARANTINED):
        return ErrorText("Quarantined", without_quarantine_remedy(message))
    # The expression matches a class with a message after it, or a class alone.
    qualified_name = match[1] or match[2]
    _module, _, class_name = qualified_name.rpartition(".")
    return ErrorText(class_name, message)


def title_of(group: ErrorGroup) -> ErrorText:
    """Return the class and the message of a group; for expired jobs, the reason of the last one."""
    if group.status is not JobStatus.EXPIRED:
        return error_text(group.text, group.status)
    return error_text(group.example.partition("\n")[0], group.status)


@dataclass(frozen=True, slots=True)
class ValueCount:
    """How many jobs of a sample have a value."""

    label: str
    jobs: int
    worker_id: str | None = None


def retrying(group: ErrorGroup) -> str:
    """Return the search for jobs that wait for a retry after the error of a group."""
    return f"status:pending {_like(group)}"


def search_of(group: ErrorGroup) -> str:
    """Return the search for the jobs of a group."""
    return f"status:{group.status.value} {_like(group)}"


def _like(group: ErrorGroup) -> str:
    """Return the terms of a search for jobs with the error of a group."""
    name_term = term("name", group.job_name)
    # A hidden message cannot be searched. The message of an expired job has instants, and the text of a mixed
    # group stands for different messages. So all jobs of the name are searched.
    if group.text.endswith(HIDDEN) or group.is_mixed or group.status is JobStatus.EXPIRED:
        return name_term
    # In the text of a group, "#" stands for numbers and ids that differ. In a search, "*" stands for any
    # text.
    error = "*".join(quoted(part) for part in group.text.split("#") if part)
    return f"{name_term} error:~{error}" if error else name_term


def release_at(at: datetime, releases: Iterable[Mark]) -> str | None:
    """Return the release that had started last at an instant; the releases are in descending order."""
    return next((release.label for release in releases if release.at <= at), None)


@dataclass(frozen=True, slots=True)
class NewReleases:
    """What decides which errors are new in a release.

    Attributes:
        since: The start of the period; None for any time.
        counted_since: Since when errors are counted. A release that started earlier may have had the error
            earlier, too.
        releases: The releases, the newest first.
    """

    since: datetime | None
    counted_since: datetime | None
    releases: Sequence[Mark]

    def of(self, group: ErrorGroup) -> str | None:
        """Return the newest release if a group of errors began in it; None for an older group."""
        release = self.first_of(group)
        return release if release is not None and self.releases[0].label == release else None

    def first_of(self, group: ErrorGroup) -> str | None:
        """Return the release in which a group of errors began.

        None if its first release is unknown, or if it may have begun earlier than that release or the period.
        """
        release = group.first_release
        started_at = next((mark.at for mark in self.releases if mark.label == release), None)
        if started_at is None:
            return None
        # Errors were not counted before this release started, so an earlier release may have had the error.
        if self.counted_since is not None and started_at <= self.counted_since:
            return None
        return release if self.since is None or group.first_at >= self.since else None

    def by_group(self, groups: Iterable[ErrorGroup]) -> dict[str, str]:
        """Return, by the fingerprint of a group, the newest release, for the groups that are new in it."""
        new_in: dict[str, str] = {}
        for group in groups:
            release = self.of(group)
            if release is not None:
                new_in[group.fingerprint] = release
        return new_in


async def new_releases(request: PageRequest, groups: ErrorGroups) -> NewReleases:
    """Read the releases, and return the object that decides which groups of errors are new in one of them."""
    return NewReleases(groups.since, groups.counted_since, await known_releases(request))


async def read_groups(request: PageRequest) -> tuple[str, ErrorGroups, Sequence[ErrorGroup]]:
    """Return the name of the requested period, all its groups of errors, and those that are visible.

    Raises:
        RejectedError: There is no such period.
    """
    since = request.choice("since", SPANS, "1d")
    groups = await request.read_shared(_read_groups, SPANS[since], age_s=GROUPS_AGE_S)
    return since, groups, request.visible_groups(groups.items)


async def _read_groups(request: PageRequest, span: timedelta | None) -> ErrorGroups:
    """Read the groups of errors of a time span up to now (None: any time); requests share it."""
    since = None if span is None else request.now - span
    return await request.inspector.error_groups(since=since, limit=MAX_GROUPS)


async def build(request: PageRequest) -> View:
    """Group the errors of a period, and return those of a state."""
    state, sort = request.choice("state", STATES, STATES[0]), request.choice("sort", SORTS, "jobs")
    since, groups, visible = await read_groups(request)
    fingerprints = [group.fingerprint for group in visible]
    mutes = await read_muted(request.inspector, "error", fingerprints, request.now)
    states = ["muted" if group.fingerprint in mutes else group.state for group in visible]
    items = [group for group, group_state in zip(visible, states, strict=True) if group_state == state]
    items.sort(key=SORTS[sort])
    # If groups were left out, each number of the whole page gets a "+".
    is_capped = groups.is_capped
    # A group counts failures and not jobs: a job that is retried and fails again is two failures.
    failures = sum(group.count for group in visible)
    groups_text = counted(len(visible), "group", is_capped=is_capped)
    failures_text = counted(failures, "failure", is_capped=is_capped)
    summary = ""
    if len(items) > SHOWN_GROUPS:
        summary = f"the first {SHOWN_GROUPS} of {count(len(items), is_capped=is_capped)} groups"
    return View(
        since=since,
        state=state,
        sort=sort,
        counts={name: states.count(name) for name in STATES},
        is_capped=is_capped,
        items=items[:SHOWN_GROUPS],
        total=f"{groups_text}, {failures_text}",
        starts_at=groups.since,
        counted_since=_counted_since(groups),
        summary=summary,
        _listed=_listed_text(items, state, since, is_capped=is_capped),
        _noun=_noun_of(state),
        new_in=(await new_releases(request, groups)).by_group(items[:SHOWN_GROUPS]),
        mutes=mutes,
    )


def _noun_of(state: str) -> str:
    """Return what the groups of a state count, such as ``expired job``."""
    # Muted groups may have any state. A job has failed if its status is failed or expired.
    return "failed job" if state == "muted" else f"{state} job"


def _listed_text(items: Sequence[ErrorGroup], state: str, since: str, *, is_capped: bool) -> str:
    """Return how many groups a tab has, with how many jobs, and for which period."""
    job_count = sum(group.count for group in items)
    groups_text = counted(len(items), "group", is_capped=is_capped)
    jobs_text = counted(job_count, _noun_of(state), is_capped=is_capped)
    return f"{groups_text}, {jobs_text} {PERIODS[since]}"


def _counted_since(groups: ErrorGroups) -> datetime | None:
    """Return since when errors are counted, if that is later than the start of the period."""
    counted_since = groups.counted_since
    is_later = counted_since is not None and (groups.since is None or counted_since > groups.since)
    return counted_since if is_later else None


async def build_one(request: PageRequest) -> View:
    """Read a group, its newest job, and a sample of its jobs."""
    fingerprint = request.required("id")
    since, groups, _ = await read_groups(request)
    group = await read_group(request, fingerprint, SPANS[since])
    where = search_of(group)
    # When the group has a new failure, its ``last_at`` changes, so the sample is read again.
    sample = await request.sample_jobs(where, SAMPLE, SAMPLE_AGE_S, version=group.last_at)
    # The search may find jobs of other groups with a similar text too.
    jobs = [job for job in sample if is_in_group(job, group)]
    last_job = await request.inspector.get_job(group.last_job_id)
    newest_job = None if last_job is None else request.visible_job(last_job)
    attempts = () if newest_job is None else newest_job.errors
    new_in = await new_releases(request, groups)
    workers_by_id = {worker.worker_id: worker for worker in await request.workers()}
    names_of_workers = await request.worker_names()
    text = title_of(group)
    mutes = (await read_mutes(request.inspector, "error", [fingerprint])).get(fingerprint, ())
    return View(
        group=group,
        since=since,
        state=group.state,
        kind=text.kind,
        message=text.message,
        new_in=new_in.of(group),
        counted_since=_counted_since(groups),
        error=(None if newest_job is None else newest_job.error_message) or group.example,
        traceback=next((attempt.traceback for attempt in reversed(attempts) if attempt.traceback), None),
        sampled=len(jobs),
        is_sample=group.is_capped or len(jobs) != group.count,
        releases=_counts_of(_release_of(job, workers_by_id, new_in.releases) for job in jobs),
        # Jobs are counted by the ids of their workers, and shown with the names of the workers.
        workers=[
            replace(count, label=names_of_workers.get(count.label, count.label), worker_id=count.label)
            for count in _counts_of(job.worker_id for job in jobs)
        ],
        # Only what most of the jobs have in common may be the cause.
        values=[value for value in frequent_values(jobs, request) if 2 * value.jobs > len(jobs)],
        tags=_counts_of(tag for job in jobs for tag in tags_of(job, request)),
        jobs=[row_of(job, request) for job in jobs[:SHOWN_JOBS]],
        where=where,
        retrying=retrying(group),
        is_muted=is_muted(mutes, request.now),
        mutes=mutes,
    )


async def read_group(request: PageRequest, fingerprint: str, span: timedelta | None = None) -> ErrorGroup:
    """Return a group that the request sees, with the number of its jobs in a period; None for any time.

    Raises:
        NotFoundError: There is no such group, or the request may not see it.
    """
    group = await request.read_shared(_read_group, fingerprint, span, age_s=GROUPS_AGE_S)
    visible_groups = () if group is None else request.visible_groups([group])
    if not visible_groups:
        raise NotFoundError(f"there is no group of errors {fingerprint[:50]!r}, or you may not see it")
    return visible_groups[0]


async def _read_group(request: PageRequest, fingerprint: str, span: timedelta | None) -> ErrorGroup | None:
    """Read a group of errors with the number of its jobs in a time span; requests share the result."""
    since = None if span is None else request.now - span
    return await request.inspector.error_group(fingerprint, since=since)


def _counts_of(labels: Iterable[str | None]) -> list[ValueCount]:
    """Return how often each label that is not empty occurs, the most frequent ones first."""
    counts = Counter(label for label in labels if label)
    return [ValueCount(label, jobs) for label, jobs in counts.most_common(SHOWN_VALUES)]


def _release_of(job: Job, workers: Mapping[str, Worker], releases: Sequence[Mark]) -> str | None:
    """Return the release of the worker that ran a job; None if it is unknown.

    If the worker has no row, or names no release, this is the release that had started last when the job
    ended.
    """
    worker = workers.get(job.worker_id or "")
    release = None if worker is None else release_of(worker.metadata)
    if release is not None:
        return release
    return None if job.finished_at is None else release_at(job.finished_at, releases)


def frequent_values(jobs: Sequence[Job], request: PageRequest) -> list[ValueCount]:
    """Return the visible arguments that two or more jobs have in common, the most frequent ones first."""
    if not request.access.sees_arguments:
        return []
    # The set lets a job count once for a value, even if it has the value in two equal arguments.
    counts = _counts_of(value for job in jobs for value in set(_values_of(job, request)))
    return [count for count in counts if count.jobs > 1]


def _values_of(job: Job, request: PageRequest) -> Iterator[str]:
    """Yield the visible arguments of a job that are no objects or lists, as ``name = value``."""
    hide = request.settings.redaction.values
    # The key of a positional argument is its number, and that of a keyword argument its name.
    for key, value in [*enumerate(hide(job.args)), *hide(job.kwargs).items()]:
        plain_value: Any = plain(value)
        is_scalar = isinstance(plain_value, str | int | float | bool)
        if is_scalar and plain_value != HIDDEN and len(str(plain_value)) <= MAX_VALUE:
            name = key if isinstance(key, str) else f"args[{key}]"
            yield f"{name} = {plain_value}"
