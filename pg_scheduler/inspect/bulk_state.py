"""How far a bulk run is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

from pg_scheduler.inspect.bulk_jobs import BulkJobs
from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.inspect.store.bulk_runs import BulkRunRow

SUSPECT_AFTER_S: Final = 60.0
"""Seconds without a batch, beyond those between two batches, after which a run is taken for dead."""

Phase: TypeAlias = Literal["running", "stopping", "stopped", "complete"]
"""A CHECK of the table admits no others."""


@dataclass(frozen=True, slots=True)
class BulkState:
    """How far a run is.

    Attributes:
        run_id: Its id.
        jobs: What it does.
        begun: How often it was started and resumed.
        created_by: Who started it.
        created_at: When it was started.
        actor: Who started or resumed it last.
        started_at: When.
        last_at: When it was last changed.
        answered_at: When its process last changed it.
        phase: Whether it runs. A run whose process was killed stays ``running``; see ``is_suspect()``.
        cursor: Where it continues; None for the start, and for the end of a complete run.
        done: Jobs that were changed, before it was resumed too.
        searched: Jobs that were examined.
        total_estimate: About how many jobs it examines; None if unknown.
        error: Why it has stopped; None if nothing went wrong.
        is_here: Whether it runs in this process.
    """

    run_id: str
    jobs: BulkJobs
    begun: int
    created_by: str
    created_at: datetime
    actor: str
    started_at: datetime
    last_at: datetime
    answered_at: datetime
    phase: Phase
    cursor: str | None
    done: int
    searched: int
    total_estimate: int | None
    error: str | None
    is_here: bool = False

    @classmethod
    def of(cls, row: BulkRunRow | None, *, is_here: bool = False) -> BulkState | None:
        """Return the state that a row has; None if there is no row, or a person wrote what it does."""
        jobs = None if row is None else BulkJobs.of(row.jobs)
        if row is None or jobs is None:
            return None
        return cls(**{**row._asdict(), "jobs": jobs}, is_here=is_here)

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
