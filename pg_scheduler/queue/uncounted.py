"""Jobs whose failure or expiry was written without being counted.

The statements that fail or expire jobs count these for people, in a table of their own. While that table is
locked or refuses the rows, the statements are executed without the count, so that no outcome waits for it.
What was not counted is kept here, and counted when the table accepts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.statements import Statements

MAX_JOBS: Final = 10_000
"""Jobs that are kept."""


class _Failure(NamedTuple):
    """The status of a job that has failed or expired, and the text by which it counts."""

    status: JobStatus
    text: str


class UncountedJobs:
    """The failed and expired jobs of this process that are still to be counted."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._failures: dict[str, _Failure] = {}

    def note(self, texts: Mapping[str, str], status: JobStatus = JobStatus.FAILED) -> None:
        """Keep jobs that have just got this status, with the texts by which they count.

        If there are more than ``MAX_JOBS`` by now, the others are not counted.
        """
        room = MAX_JOBS - len(self._failures)
        noted_texts = [*texts.items()][:room]
        self._failures.update({job_id: _Failure(status, text) for job_id, text in noted_texts})

    def forget(self, job_id: str) -> None:
        """Drop a job that was counted after all."""
        self._failures.pop(job_id, None)

    async def count(self) -> int:
        """Count the jobs that still have their status; return how many these are."""
        # This is a copy, because other tasks may note and forget jobs during the statement.
        failures = dict(self._failures)
        if not failures:
            return 0
        # Two arrays in the order of the ids.
        statuses, texts = zip(*failures.values(), strict=True)
        job_count = await self._statements.number("count_failures", list(failures), texts, statuses)
        for job_id, failure in failures.items():
            # A job that has failed again during the statement is still to be counted.
            if self._failures.get(job_id) == failure:
                del self._failures[job_id]
        return job_count
