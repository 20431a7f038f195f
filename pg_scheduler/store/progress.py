"""Write the progress that running jobs report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pg_scheduler.jobs.progress import JobProgress, progress_text
from pg_scheduler.store.results import UNSTORABLE_TEXTS
from pg_scheduler.store.statements import Statements


class ProgressRepository:
    """The progress of running attempts."""

    def __init__(self, statements: Statements) -> None:
        self._statements: Final = statements

    async def write_progress(
        self, worker_id: str, reports: Mapping[str, tuple[int, JobProgress]]
    ) -> set[str]:
        """Write the progress of attempts, with one statement.

        If the encoding of the database lacks a character of a note, all notes are written in ASCII, with
        escapes.

        Args:
            worker_id: The worker that runs the attempts.
            reports: Attempt numbers and progress by job id.

        Returns:
            The ids of the jobs whose progress was written: not of jobs that this worker does not hold in that
            attempt, or whose rows are locked.
        """
        try:
            return await self._write(worker_id, reports, in_ascii=False)
        except UNSTORABLE_TEXTS:
            return await self._write(worker_id, reports, in_ascii=True)

    async def _write(
        self, worker_id: str, reports: Mapping[str, tuple[int, JobProgress]], *, in_ascii: bool
    ) -> set[str]:
        each = reports.values()
        rows = await self._statements.fetch(
            "write_progress",
            list(reports),
            [attempt for attempt, _ in each],
            [progress_text(progress, in_ascii=in_ascii) for _, progress in each],
            worker_id,
        )
        return {row["job_id"] for row in rows}
