"""The jobs that a job waits for, the jobs that wait for it, and the jobs that a bulk run has changed."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.inspect.base import tables_of
from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.inspect.store.inspections import BlockerRow, Edge, LinkedJob
from pg_scheduler.jobs.history import PARENT
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.validation import MAX_ID_BYTES, check_job_id
from pg_scheduler.queue.dependencies import NOT_COMPLETED

MAX_LINKED: Final = 20
"""Jobs of each direction that are shown."""

MAX_EDGES: Final = 100
"""The maximum number of parents of each shown job among which other shown jobs are searched."""

_ESCAPE: Final = r"\\(?:[\\'nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"
_REPR: Final = "|".join(
    rf"{quote}(?:[^{quote}\\]|{_ESCAPE}){{1,{MAX_ID_BYTES}}}{quote}" for quote in ("'", '"')
)
"""The repr of a str that is at most as long as an id. Python's reader of literals can use up its stack for
longer texts, and for other literals."""

_CAUSE: Final = re.compile(re.escape(NOT_COMPLETED).replace(r"\{!r\}", f"({_REPR})"))
"""The message of a job that was cancelled because of a parent. The group is the repr of the parent's id."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The parents of a job, which it waits for, and its children, which wait for it.

    A parent that has ended is left out, and so are children after the end of the job.
    """

    parents: Sequence[LinkedJob] = ()
    """At most 20 parents. For a job that was cancelled, the parent that did not complete is among them."""
    children: Sequence[LinkedJob] = ()
    """At most 20 children."""
    edges: Sequence[Edge] = ()
    """The edges among these jobs: which of them waits for which."""
    has_more_parents: bool = False
    """Whether there are further parents, or hidden ones."""
    has_more_children: bool = False
    """Whether there are further children, or hidden ones."""


async def read_dependencies(
    inspector: Inspector, job: Job, sees_name: Callable[[str], bool] = lambda _: True
) -> Dependencies:
    """Return the parents and children of a job, without jobs of hidden names.

    A job that does not exist has no name, so it is shown only to a person who may see all names.
    """
    reads = tables_of(inspector).reads.inspections
    # One job more than is shown shows whether there are more.
    parents, children = await reads.linked_jobs(job.job_id, MAX_LINKED + 1)
    # A parent that has ended is no longer among them, although it may be the cause of the job's end.
    cause_id = cancelled_because_of(job)
    if cause_id is not None:
        cause = (await inspector.get_jobs([cause_id])).get(cause_id)
        name = None if cause is None else cause.job_name
        status = None if cause is None else cause.status
        parents.append(LinkedJob(cause_id, name, status))
    visible_parents = _visible(parents, sees_name)
    visible_children = _visible(children, sees_name)
    ids = {linked_job.job_id for linked_job in (*visible_parents, *visible_children)}
    # An edge states which of these jobs waits for which. A single job has no edge to another one.
    edges: set[Edge] = set()
    if len(ids) > 1:
        edges = set(await reads.edges(ids, MAX_EDGES))
    return Dependencies(
        visible_parents,
        visible_children,
        tuple(sorted(edges)),
        has_more_parents=len(parents) > len(visible_parents),
        has_more_children=len(children) > len(visible_children),
    )


def _visible(jobs: Sequence[LinkedJob], sees_name: Callable[[str], bool]) -> tuple[LinkedJob, ...]:
    """Return the first jobs whose names are visible, at most ``MAX_LINKED``."""
    return tuple(job for job in jobs if sees_name(job.job_name or ""))[:MAX_LINKED]


def cancelled_because_of(job: Job) -> str | None:
    """Return the id of the parent that caused the cancellation of a job; None if no parent did.

    A parent is a job that this one waited for. Its id is in the message of the newest entry of the history.
    """
    newest = job.errors[-1] if job.errors else None
    if job.status is not JobStatus.CANCELLED or newest is None or newest.outcome != PARENT:
        return None
    match = _CAUSE.fullmatch(newest.message or "")
    # The message has the id as Python writes a str, with quotes and escapes.
    try:
        job_id = ast.literal_eval(match[1]) if match is not None else None
        return check_job_id(job_id) if isinstance(job_id, str) else None
    except (ValueError, SyntaxError):  # the entry was written by hand
        return None


MAX_BLOCKERS: Final = 3
"""Parents that are shown for a job that waits."""

MAX_RECORDS: Final = 100
MAX_CHANGED: Final = 2_000
"""The maximum number of jobs of a bulk run that are looked up, the jobs of its last batches."""


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of the jobs that a bulk run changed.

    Attributes:
        jobs: The ids of the jobs that exist, by status.
        examined: The number of jobs that were looked up.
    """

    jobs: Mapping[JobStatus, Sequence[str]]
    examined: int


async def read_blockers(inspector: Inspector, job_ids: Collection[str]) -> dict[str, list[BlockerRow]]:
    """Return the first unfinished jobs that each of these jobs waits for.

    One more than is shown is returned, so that the caller sees whether there are more.
    """
    blockers: dict[str, list[BlockerRow]] = {}
    reads = tables_of(inspector).reads
    for blocker in await reads.inspections.blockers(job_ids, MAX_BLOCKERS + 1):
        blockers.setdefault(blocker.child_id, []).append(blocker)
    return blockers


async def read_changed(inspector: Inspector, run_id: str) -> Changed:
    """Return what became of the jobs of a bulk run that the newest records of its batches name."""
    ids: list[str] = []
    for record in (await inspector.audit(subject=run_id, limit=MAX_RECORDS)).items:
        recorded_ids = record.details.get("jobs")
        # A person may have written the record by hand, so its values can have any type.
        if isinstance(recorded_ids, list):
            ids += [job_id for job_id in recorded_ids if isinstance(job_id, str)]
    ids = ids[:MAX_CHANGED]
    statuses = await tables_of(inspector).reads.jobs.statuses_of(ids)
    ids_by_status: dict[JobStatus, list[str]] = {}
    for job_id, status in sorted(statuses.items()):
        ids_by_status.setdefault(status, []).append(job_id)
    return Changed(ids_by_status, len(ids))
