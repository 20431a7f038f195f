"""Read the jobs that others wait for, and those that a bulk run has changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.inspect.store.inspections import BlockerRow
from pg_scheduler.status import JobStatus

MAX_BLOCKERS: Final = 3
"""Jobs that are shown for one that waits."""

MAX_RECORDS: Final = 100
MAX_CHANGED: Final = 2_000
"""Jobs of a bulk run that are looked up, those of its last batches."""


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of the jobs that a bulk run changed.

    Attributes:
        jobs: The ids of those that exist, by status.
        examined: The number of jobs that were looked up.
    """

    jobs: Mapping[JobStatus, Sequence[str]]
    examined: int


async def read_blockers(inspector: Inspector, job_ids: Collection[str]) -> dict[str, list[BlockerRow]]:
    """Return the first unfinished jobs that each of these jobs waits for, one more than are shown."""
    found: dict[str, list[BlockerRow]] = {}
    store = inspector._reads  # noqa: SLF001 - front ends share it, callers do not
    for each in await store.inspections.blockers(job_ids, MAX_BLOCKERS + 1):
        found.setdefault(each.child_id, []).append(each)
    return found


async def read_changed(inspector: Inspector, run_id: str) -> Changed:
    """Return what became of the jobs of a bulk run, as far as the newest records of its batches name them."""
    ids: list[str] = []
    for record in (await inspector.audit(subject=run_id, limit=MAX_RECORDS)).items:
        named = record.details.get("jobs")
        ids += [each for each in named if isinstance(each, str)] if isinstance(named, list) else []
    ids = ids[:MAX_CHANGED]
    found: dict[JobStatus, list[str]] = {}
    store = inspector._reads  # noqa: SLF001 - front ends share it, callers do not
    for job_id, status in sorted((await store.inspections.statuses(ids)).items()):
        found.setdefault(status, []).append(job_id)
    return Changed(found, len(ids))
