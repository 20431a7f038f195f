"""Read the durable steps of jobs, a bounded number of rows and bytes at a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pg_scheduler.errors import JobNotFoundError
from pg_scheduler.jobs.step_values import MAX_STEPS
from pg_scheduler.store.statements import Repository

MAX_WAITS: Final = 100


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step as its row has it.

    Attributes:
        value: Its value as JSON; None for none, and for a large one that was not asked for by its name.
        size: The bytes of the stored value.
    """

    name: str
    kind: str
    value: str | None
    size: int
    attempt: int
    until: datetime | None
    started_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class WaitRow:
    """A sleep or a wait of a job, or a signal that came before a wait for it.

    Attributes:
        until: Its end; None for such a signal.
        since: When it began.
        is_open: Whether it lasts.
    """

    name: str
    kind: str
    until: datetime | None
    since: datetime
    is_open: bool


class StepReadRepository(Repository):
    """The statements that read steps for people."""

    async def steps(self, job_id: str, name: str | None = None) -> list[StepRow]:
        """Return the steps of a job, or the one of a name with its whole value.

        At most 1,001 are returned: a job has up to 1,000 of its own, and results that were passed to it.

        Raises:
            JobNotFoundError: There is no such job.
        """
        rows = await self._statements.fetch("inspect_steps", job_id, name, MAX_STEPS + 1)
        if not rows:
            raise JobNotFoundError(job_id)
        return [StepRow(*row) for row in rows if row["name"] is not None]

    async def waits(self, job_id: str) -> list[WaitRow]:
        """Return what a job waits for that is marked, and signals that came before, at most 100 of them."""
        return await self._rows(WaitRow, "inspect_waits", job_id, MAX_WAITS)
