"""Jobs whose failure or expiry was written without being counted.

The statements that fail or expire jobs count these for people, in a table of their own. While that table is
locked or refuses the rows, the statements are executed without the count, so that no outcome waits for it.
What was not counted is kept here, and counted when the table accepts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.statements import Statements

MAX_JOBS: Final = 10_000
"""Jobs that are kept."""


class UncountedJobs:
    """The failed and expired jobs of this process that are still to be counted."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._texts: dict[str, tuple[JobStatus, str]] = {}

    def note(self, texts: Mapping[str, str], status: JobStatus = JobStatus.FAILED) -> None:
        """Keep jobs that have just got this status, with the texts by which they count."""
        room = MAX_JOBS - len(self._texts)
        self._texts.update({job_id: (status, text) for job_id, text in [*texts.items()][:room]})

    def forget(self, job_id: str) -> None:
        """Drop a job that was counted after all."""
        self._texts.pop(job_id, None)

    async def count(self) -> int:
        """Count the jobs that still have their status; return how many there were."""
        texts = dict(self._texts)
        if not texts:
            return 0
        statuses, error_texts = zip(*texts.values(), strict=True)
        counted_count = await self._statements.number("count_failures", list(texts), error_texts, statuses)
        for job_id, text in texts.items():
            if self._texts.get(job_id) == text:
                del self._texts[job_id]
        return counted_count
