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
from pg_scheduler.jobs.validation import check_job_id
from pg_scheduler.queue.dependencies import NOT_COMPLETED

MAX_LINKED: Final = 20
"""Jobs of each direction that are shown."""

MAX_EDGES: Final = 100
"""Jobs before each of these that are examined for edges among them."""

_CAUSE: Final = re.compile(re.escape(NOT_COMPLETED).replace(r"\{!r\}", "(.*)"), re.DOTALL)


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
    """Which of these jobs wait for which others of them."""
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
    parents, children = await reads.linked_jobs(job.job_id, MAX_LINKED + 1)
    if (cause_id := cancelled_because_of(job)) is not None:
        cause = (await inspector.get_jobs([cause_id])).get(cause_id)
        parents.append(
            LinkedJob(cause_id, None if cause is None else cause.job_name, cause.status if cause else None)
        )
    visible_parents, visible_children = (
        tuple(linked_job for linked_job in jobs if sees_name(linked_job.job_name or ""))[:MAX_LINKED]
        for jobs in (parents, children)
    )
    ids = {linked_job.job_id for linked_job in (*visible_parents, *visible_children)}
    return Dependencies(
        visible_parents,
        visible_children,
        tuple(sorted(set(await reads.edges(ids, MAX_EDGES)))) if len(ids) > 1 else (),
        has_more_parents=len(parents) > len(visible_parents),
        has_more_children=len(children) > len(visible_children),
    )


def cancelled_because_of(job: Job) -> str | None:
    """Return the id of the parent that caused the cancellation of a job; None if no parent did."""
    newest = job.errors[-1] if job.errors else None
    if job.status is not JobStatus.CANCELLED or newest is None or newest.outcome != PARENT:
        return None
    match = _CAUSE.fullmatch(newest.message or "")
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
        named = record.details.get("jobs")
        ids += [job_id for job_id in named if isinstance(job_id, str)] if isinstance(named, list) else []
    ids = ids[:MAX_CHANGED]
    ids_by_status: dict[JobStatus, list[str]] = {}
    reads = tables_of(inspector).reads
    for job_id, status in sorted((await reads.jobs.statuses_of(ids)).items()):
        ids_by_status.setdefault(status, []).append(job_id)
    return Changed(ids_by_status, len(ids))
