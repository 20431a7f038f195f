"""The pages of errors: the newest unsuccessful jobs, grouped by name and text, and one group."""

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
from pg_scheduler.dashboard.pages.history import read_releases
from pg_scheduler.dashboard.redaction import HIDDEN
from pg_scheduler.dashboard.texts import plain
from pg_scheduler.database.author import release_of
from pg_scheduler.facts.job_state import QUARANTINED
from pg_scheduler.inspect import ErrorGroup
from pg_scheduler.inspect.audit import is_muted, read_muted, read_mutes
from pg_scheduler.inspect.errors import ErrorGroups, index_note, is_in_group
from pg_scheduler.inspect.texts import counted, quoted, term
from pg_scheduler.jobs.model import Job, Worker

MAX_GROUPS: Final = 1000
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
"""The age up to which errors are read, by the parameter ``since``."""

STATES: Final = ("failed", "expired", "quarantined", "cancelled", "muted")
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
        return ErrorText("Expired", _INTERVAL.sub("", text, count=1) or "not started in time")
    match = _KIND.match(text)
    if match is None:
        return ErrorText("", text)
    kind = (match[1] or match[2]).rpartition(".")[2]
    return ErrorText("Quarantined" if text.startswith(QUARANTINED) else kind, text[match.end() :])


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
    # The message is hidden, so it cannot be searched.
    if group.text.endswith(HIDDEN):
        return term("name", group.job_name)
    # In the text of a group, "#" stands for numbers and ids that differ.
    error = "*".join(quoted(part) for part in group.text.split("#") if part)
    return f"{term('name', group.job_name)} error:~{error}" if error else term("name", group.job_name)


def release_at(at: datetime, releases: Iterable[Mark]) -> str | None:
    """Return the release that had started last at an instant; the releases are in descending order."""
    return next((release.label for release in releases if release.at <= at), None)


async def read_groups(request: PageRequest) -> tuple[str, ErrorGroups, Sequence[ErrorGroup]]:
    """Return the period that the request names, its groups, and those that are visible.

    Raises:
        RejectedError: There is no such period.
    """
    since = request.choice("since", SPANS, "1d")
    groups = await request.read_shared(_read_groups, SPANS[since], age_s=GROUPS_AGE_S)
    return since, groups, request.visible_groups(groups.items)


async def _read_groups(request: PageRequest, span: timedelta | None) -> ErrorGroups:
    since = None if span is None else request.now - span
    return await request.inspector.error_groups(since=since, limit=MAX_GROUPS)


async def build(request: PageRequest) -> View:
    """Group the newest errors, and return those of a state."""
    state, sort = request.choice("state", STATES, STATES[0]), request.choice("sort", SORTS, "jobs")
    since, groups, visible = await read_groups(request)
    fingerprints = [group.fingerprint for group in visible]
    mutes = await read_muted(request.inspector, "error", fingerprints, request.now)
    states = ["muted" if group.fingerprint in mutes else group.state for group in visible]
    items = [group for group, group_state in zip(visible, states, strict=True) if group_state == state]
    items.sort(key=SORTS[sort])
    summary = groups.summary
    if request.access.visible_names is not None:
        # The numbers of the whole summary would tell of jobs that the request may not see.
        incomplete = "" if groups.is_complete else "; the search is not complete"
        summary = f"{counted(len(visible), 'group')} that you may see{incomplete}{index_note(groups)}"
    if len(items) > SHOWN_GROUPS:
        summary = f"{summary}; the first {SHOWN_GROUPS} are shown"
    return View(
        since=since,
        state=state,
        sort=sort,
        counts={name: states.count(name) for name in STATES},
        items=items[:SHOWN_GROUPS],
        total=f"{counted(len(visible), 'group')}, {counted(sum(group.count for group in visible), 'job')}",
        summary=summary,
        is_complete=groups.is_complete,
        releases=await read_releases(request.inspector, None),
        mutes=mutes,
    )


async def build_one(request: PageRequest) -> View:
    """Read a group, its newest job, and a sample of its jobs."""
    fingerprint = request.required("id")
    since, _, visible = await read_groups(request)
    group = next((group for group in visible if group.fingerprint == fingerprint), None)
    if group is None:
        raise NotFoundError(
            f"there is no group of errors {fingerprint[:50]!r} in this period, or you may not see it"
        )
    where = search_of(group)
    sample = await request.sample_jobs(where, SAMPLE, SAMPLE_AGE_S, version=group.last_at)
    jobs = [job for job in sample if is_in_group(job, group)]
    newest = await request.inspector.get_job(group.last_job_id)
    newest = None if newest is None else request.visible_job(newest)
    attempts = () if newest is None else newest.errors
    releases = await read_releases(request.inspector, None)
    workers_by_id = {worker.worker_id: worker for worker in await request.workers()}
    names_of_workers = await request.worker_names()
    text = error_text(group.text, group.status)
    mutes = (await read_mutes(request.inspector, "error", [fingerprint])).get(fingerprint, ())
    return View(
        group=group,
        since=since,
        state=group.state,
        kind=text.kind,
        message=text.message,
        began_in=release_at(group.first_at, releases),
        error=newest.error_message if newest is not None else group.example,
        traceback=next((attempt.traceback for attempt in reversed(attempts) if attempt.traceback), None),
        sampled=len(jobs),
        releases=_counts_of(_release_of(job, workers_by_id, releases) for job in jobs),
        workers=[
            replace(count, label=names_of_workers.get(count.label, count.label), worker_id=count.label)
            for count in _counts_of(job.worker_id for job in jobs)
        ],
        values=[value for value in frequent_values(jobs, request) if 2 * value.jobs > len(jobs)],
        tags=_counts_of(tag for job in jobs for tag in tags_of(job, request)),
        jobs=[row_of(job, request) for job in jobs[:SHOWN_JOBS]],
        where=where,
        retrying=retrying(group),
        is_muted=is_muted(mutes, request.now),
        mutes=mutes,
    )


def _counts_of(labels: Iterable[str | None]) -> list[ValueCount]:
    """Return how often each label occurs, the most frequent ones first."""
    counts = Counter(label for label in labels if label)
    return [ValueCount(label, jobs) for label, jobs in counts.most_common(SHOWN_VALUES)]


def _release_of(job: Job, workers: Mapping[str, Worker], releases: Sequence[Mark]) -> str | None:
    """Return the release of the worker that ran a job, or the release that had started last when it ended.

    The second is for a worker that has no row, or names no release. None if both are unknown.
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
    counts = _counts_of(value for job in jobs for value in set(_values_of(job, request)))
    return [count for count in counts if count.jobs > 1]


def _values_of(job: Job, request: PageRequest) -> Iterator[str]:
    """Yield the visible arguments of a job that are no objects or lists, as ``name = value``."""
    hide = request.settings.redaction.values
    for name, value in [*enumerate(hide(job.args)), *hide(job.kwargs).items()]:
        shown: Any = plain(value)
        if shown != HIDDEN and isinstance(shown, str | int | float | bool) and len(str(shown)) <= MAX_VALUE:
            yield f"{name if isinstance(name, str) else f'args[{name}]'} = {shown}"
