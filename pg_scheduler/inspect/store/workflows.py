"""Read the jobs that steps connect, and the steps that are open."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Final, NamedTuple

from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.statements import Repository
from pg_scheduler.jobs.step_values import shown_name, stored_name

MAX_CHILDREN: Final = 1_000
"""The maximum number of children of one job that are returned."""

MAX_FAMILY: Final = 10_000
"""Jobs of a family that are counted."""

MAX_OPEN: Final = 1_000
"""Open steps of each kind that are counted."""

MAX_NAMES: Final = 40
MAX_COUNTED: Final = 100
"""Steps of one job of a list that are counted."""


@dataclass(frozen=True, slots=True)
class ChildRow:
    """A job that a step waits for, or has waited for."""

    step: str
    """The step."""
    job_id: str
    job_name: str | None
    """Its name; None if its row was deleted."""
    state: str | None
    """Its state; None if nothing of it is left."""
    retry_count: int | None
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def result(self) -> str:
        """The name of the row that has its result, once it has ended."""
        return f"child:{sha256(self.job_id.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """The job whose step has started a job."""

    job_id: str
    step: str | None
    job_name: str | None
    """Its name; None if it does not exist any more."""
    status: JobStatus | None


class FamilyCount(NamedTuple):
    """The number of jobs of a family that have a name."""

    job_name: str
    jobs: int


class OpenStep(NamedTuple):
    """An open step of a job.

    Attributes:
        is_awaited: Whether the job waits for it. An alternative that has lost stays open.
    """

    name: str
    job_id: str
    is_awaited: bool

    @property
    def position(self) -> tuple[str, str]:
        """The position behind this step."""
        return self.name, self.job_id


FIRST_OPEN: Final = ("", "")
"""The position before all open steps."""


class OpenCount(NamedTuple):
    """The number of jobs that are suspended by steps of a kind.

    Attributes:
        name: The name of the step; None for all steps of the kind.
        examined: The number of open steps of the kind that were examined up to the last one of this name.
    """

    kind: str
    name: str | None
    jobs: int
    examined: int


@dataclass(frozen=True, slots=True)
class StepProgress:
    """How far a job with steps has come."""

    job_id: str
    steps: int
    """The number of its steps, at most 100."""
    name: str | None
    """The open step that ends first; None for none."""
    kind: str | None
    until: datetime | None


class WorkflowRepository(Repository):
    """The statements about the steps of several jobs, and about jobs that steps connect."""

    async def children(self, job_id: str) -> list[ChildRow]:
        """Return the children of a job: one more than are shown if there are more."""
        return await self._rows(ChildRow, "inspect_children", job_id, self._statements.now, MAX_CHILDREN + 1)

    async def family(self, job_id: str, *, for_retry: bool) -> list[FamilyCount]:
        """Count by name which other jobs are cancelled with a job and its children, or retried with them."""
        return await self._rows(FamilyCount, "inspect_family", [job_id], for_retry, MAX_FAMILY)

    async def owner(self, job_id: str) -> OwnerRow | None:
        """Return the job whose child a job is; None for a job that no step has started."""
        rows = await self._statements.fetch("inspect_owner", job_id)
        if not rows:
            return None
        row = rows[0]
        status = None if row["status"] is None else JobStatus(row["status"])
        return OwnerRow(row["job_id"], row["step"], row["job_name"], status)

    async def open_steps(
        self, kind: str, limit: int, name: str | None = None, after: tuple[str, str] = FIRST_OPEN
    ) -> list[OpenStep]:
        """Return open steps of a kind in the order of their names and jobs, those behind a position.

        ``name`` is the name of a step as people see it.
        """
        rows = await self._rows(OpenStep, "inspect_open_steps", kind, limit, name, *after)
        # The name may be that of a message.
        if not rows and name is not None and (message := stored_name(name)) != name:
            rows = await self._rows(OpenStep, "inspect_open_steps", kind, limit, message, *after)
        return rows

    async def count_open(self) -> list[OpenCount]:
        """Return the numbers of suspended jobs by what they wait for and by the name of the step."""
        counts = await self._rows(OpenCount, "inspect_open_counts", MAX_OPEN, MAX_NAMES)
        return [row if row.name is None else row._replace(name=shown_name(row.name)) for row in counts]

    async def progress(self, job_ids: Collection[str]) -> dict[str, StepProgress]:
        """Return how far each of these jobs has come in its steps, by the id of the job."""
        rows = await self._rows(StepProgress, "inspect_step_progress", list(job_ids), MAX_COUNTED)
        return {
            row.job_id: row if row.name is None else replace(row, name=shown_name(row.name)) for row in rows
        }
