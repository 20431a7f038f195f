"""The records of bulk runs in the audit, and how far a run is by them.

They have the id of the run as their subject: ``start_bulk`` or ``resume_bulk`` with what to do, a record per
batch with the cursor behind it, ``stop_bulk`` as a request, and ``end_bulk``. Each names the one by which the
run was started or resumed last, so that it is found behind any number of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from pg_scheduler.inspect.bulk_jobs import BulkJobs
from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.inspect.store.audit import AuditRecord

RECENT: Final = 20
"""Records that are read after each batch: fewer are written in between."""

SUSPECT_AFTER_S: Final = 60.0
"""Seconds without a record, beyond those between two batches, after which a run is taken for dead."""

PREFIX: Final = "bulk-"
"""Of the ids of runs."""

START: Final = "start_bulk"
RESUME: Final = "resume_bulk"
STOP: Final = "stop_bulk"
END: Final = "end_bulk"
BEGINNINGS: Final = frozenset({START, RESUME})
CONTROL: Final = BEGINNINGS | {STOP, END}

Phase: TypeAlias = Literal["running", "stopping", "stopped", "complete"]

_PHASES: Final[Mapping[str, Phase]] = {STOP: "stopping", END: "stopped"}


class StartedRun(NamedTuple):
    """A run in a list, as the record of its start has it."""

    run_id: str
    jobs: BulkJobs
    actor: str
    started_at: datetime


async def recent_runs(inspector: Inspector, *, limit: int) -> list[StartedRun]:
    """Return the runs that were started last, the newest first."""
    found = (await inspector.audit(action=START, limit=limit)).items
    read = ((each, BulkJobs.of(each.details)) for each in found)
    return [
        StartedRun(each.subject, jobs, each.actor, each.at)
        for each, jobs in read
        if each.subject and jobs is not None
    ]


@dataclass(frozen=True, slots=True)
class BulkState:
    """How far a run is, as the audit and this process know it.

    Attributes:
        jobs: What it does.
        begun: The id of the record by which it was started or resumed last.
        actor: Who started or resumed it last.
        started_at: When.
        last_at: When its newest record was written.
        answered_at: When its newest record was written that is no request to stop.
        phase: Whether it runs. A run whose process has ended without a record stays ``running``; see
            ``is_suspect()``.
        is_here: Whether it runs in this process.
        cursor: Where it continues; None for the start.
        done: Jobs that were changed, before it was resumed too.
        searched: Jobs that were examined.
        total_estimate: About how many jobs it examines; None if unknown.
        error: Why it has stopped; None if nothing went wrong.
    """

    jobs: BulkJobs
    begun: int
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

    def is_suspect(self, now: datetime) -> bool:
        """Return whether a run that has not ended lacks the records that each batch writes."""
        if self.is_here or self.phase not in {"running", "stopping"}:
            return False
        between_s = 1 / self.jobs.rate if self.jobs.rate else 0.0  # the jobs of a batch are those of a second
        return (now - self.answered_at) / timedelta(seconds=1) > SUSPECT_AFTER_S + between_s


async def read_state(inspector: Inspector, run_id: str) -> BulkState | None:
    """Return how far a run is by its records; None if there is no such run."""
    recent = (await inspector.audit(subject=run_id, limit=RECENT)).items
    begun = await _read_record(inspector, run_id, beginning_of(recent))
    jobs = None if begun is None else BulkJobs.of(begun.details)
    if begun is None or jobs is None:
        return None
    batch = f"{jobs.verb}_jobs"
    newest: Sequence[AuditRecord] = [each for each in recent if each.action == batch][:1]
    newest = newest or (await inspector.audit(subject=run_id, action=batch, limit=1)).items
    records = [each for each in recent if each.id >= begun.id]
    last = last_control(records, begun.id) or begun
    placed = newest[0].details if newest else {}
    cursor, error = placed.get("next"), last.details.get("error")
    return BulkState(
        jobs=jobs,
        begun=begun.id,
        actor=begun.actor,
        started_at=begun.at,
        last_at=records[0].at if records else begun.at,
        answered_at=next((each.at for each in records if each.action != STOP), begun.at),
        phase="complete" if newest and cursor is None else _PHASES.get(last.action, "running"),
        cursor=cursor if isinstance(cursor, str) else None,
        done=sum(_number(placed, name) for name in ("done_before", "done", "count")),
        searched=_number(placed, "searched"),
        total_estimate=_number(last.details, "total") or None,
        error=error if isinstance(error, str) else None,
    )


async def _read_record(inspector: Inspector, run_id: str, record_id: int) -> AuditRecord | None:
    """Return a record of a run by its id; None if it does not exist."""
    if record_id <= 0:
        return None
    found = (await inspector.audit(subject=run_id, after=str(record_id + 1), limit=1)).items
    return next((each for each in found if each.id == record_id), None)


def beginning_of(recent: Sequence[AuditRecord]) -> int:
    """Return the id of the record by which a run was started or resumed last; 0 if none names it."""
    named = [each.id if each.action in BEGINNINGS else _number(each.details, "begun") for each in recent]
    return max(named, default=0)


def last_control(recent: Sequence[AuditRecord], begun: int) -> AuditRecord | None:
    """Return the newest record that is no batch, except those of a task that another one has replaced."""
    own = (each for each in recent if each.details.get("begun", begun) == begun)
    return next((each for each in own if each.action in CONTROL), None)


def _number(details: Mapping[str, Any], name: str) -> int:
    value = details.get(name)
    return value if isinstance(value, int) else 0
