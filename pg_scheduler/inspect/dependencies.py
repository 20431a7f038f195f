"""The jobs that a job waits for, and those that wait for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.inspect.store.inspections import LinkedJob
from pg_scheduler.jobs.history import PARENT
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.validation import check_job_id
from pg_scheduler.status import JobStatus
from pg_scheduler.store.dependencies import NOT_COMPLETED

MAX_LINKED: Final = 20
"""Jobs of each direction that are shown."""

_CAUSE: Final = re.compile(re.escape(NOT_COMPLETED).replace(r"\{!r\}", "(.*)"), re.DOTALL)


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Jobs that a job waits for, and jobs that wait for it, until the job that is waited for has ended."""

    parents: Sequence[LinkedJob] = ()
    """At most 20 jobs that it waits for; for a job that was cancelled, the one that did not complete."""
    children: Sequence[LinkedJob] = ()
    """At most 20 jobs that wait for it."""
    has_more_parents: bool = False
    """Whether there are others, or others that are hidden."""
    has_more_children: bool = False


async def read_dependencies(
    inspector: Inspector, job: Job, sees_name: Callable[[str], bool] = lambda _: True
) -> Dependencies:
    """Return the jobs that are linked with a job, without those of hidden names.

    A job that does not exist has no name, so it is shown only to those who see all of them.
    """
    found = await inspector._reads.inspections.linked_jobs(job.job_id, MAX_LINKED + 1)  # noqa: SLF001
    if (cause_id := cancelled_because_of(job)) is not None:
        cause = (await inspector.get_jobs([cause_id])).get(cause_id)
        found[True].append(
            LinkedJob(cause_id, None if cause is None else cause.job_name, cause.status if cause else None)
        )
    seen = {
        is_parent: [each for each in jobs if sees_name(each.job_name or "")]
        for is_parent, jobs in found.items()
    }
    return Dependencies(
        tuple(seen[True][:MAX_LINKED]),
        tuple(seen[False][:MAX_LINKED]),
        len(found[True]) > len(seen[True][:MAX_LINKED]),
        len(found[False]) > len(seen[False][:MAX_LINKED]),
    )


def cancelled_because_of(job: Job) -> str | None:
    """Return the id of the job because of which a job was cancelled; None if it was not."""
    last = job.errors[-1] if job.errors else None
    if job.status is not JobStatus.CANCELLED or last is None or last.outcome != PARENT:
        return None
    match = _CAUSE.fullmatch(last.message or "")
    try:
        found = ast.literal_eval(match[1]) if match is not None else None
        return check_job_id(found) if isinstance(found, str) else None
    except (ValueError, SyntaxError):  # the entry was written by hand
        return None
