"""The progress of a bulk run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.inspect.bulk_jobs import BulkJobs
from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.inspect.store.bulk_runs import BulkRunRow
from pg_scheduler.text.values import copy_fields

SUSPECT_AFTER_S: Final = 60.0
"""Seconds without a batch, beyond those between two batches, after which a run is taken for dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkState(BulkRunRow):
    """The progress of a run, its action and its jobs.

    Attributes:
        jobs: The action and its jobs.
        is_here: Whether it runs in this process.
    """

    jobs: BulkJobs
    is_here: bool = False

    @classmethod
    def of(cls, row: BulkRunRow | None, *, is_here: bool = False) -> BulkState | None:
        """Return the state that a row has; None if there is no row, or a person wrote what it does."""
        jobs = None if row is None else BulkJobs.of(row.details)
        if row is None or jobs is None:
            return None
        return copy_fields(cls, row, jobs=jobs, is_here=is_here)

    def is_suspect(self, now: datetime) -> bool:
        """Return whether a run that has not ended lacks the changes that each batch makes."""
        if self.is_here or self.phase not in {"running", "stopping"}:
            return False
        between_s = 1 / self.jobs.rate if self.jobs.rate else 0.0  # the jobs of a batch are those of a second
        return (now - self.answered_at) / timedelta(seconds=1) > SUSPECT_AFTER_S + between_s


async def recent_runs(inspector: Inspector, *, limit: int) -> list[BulkState]:
    """Return the runs that were started last, the newest first."""
    rows = await inspector._reads.bulk_runs.recent(limit)  # noqa: SLF001 - runs are no public part of it
    return [state for row in rows if (state := BulkState.of(row)) is not None]
