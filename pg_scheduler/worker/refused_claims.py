"""The jobs that a worker does not claim for now, because the application refuses a row of them.

A trigger or a constraint of the application may refuse what a claim or an admission writes, or wait for a
lock of another transaction. The statement then fails for all of its jobs, so claims leave that job out until
its pause has ended.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Final

from pg_scheduler.database.faults import REFUSED_PAUSE_S
from pg_scheduler.events.log import log_refusal, log_waits

WAITING_PAUSE_S: Final = 1.0
"""Seconds for which claims leave out a job whose trigger waits for a lock, which may end at any time."""

WAITS_REPORT_INTERVAL_S: Final = 60.0
"""Seconds between two records about such jobs."""

MAX_JOBS: Final = 500
"""Jobs that claims leave out at most. More mean that the application refuses nearly all."""


class RefusedClaims:
    """The jobs that claims of one worker leave out."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._until: dict[str, float] = {}
        self._next_report_at = 0.0

    def __bool__(self) -> bool:
        """Return whether there are such jobs."""
        return bool(self._until)

    @property
    def is_full(self) -> bool:
        """Whether claims cannot leave out more jobs."""
        return len(self.ids()) >= MAX_JOBS

    @property
    def ends_in(self) -> float:
        """Seconds until the first pause ends; infinite if no job is left out."""
        return max(min(self._until.values(), default=float("inf")) - time.monotonic(), 0.0)

    def leave_out(self, job_id: str, refusal: Exception) -> None:
        """Leave out a job from now on, with a log record."""
        self._until[job_id] = time.monotonic() + REFUSED_PAUSE_S
        problem = f"job {job_id} cannot be claimed"
        log_refusal(problem, refusal, pause_s=REFUSED_PAUSE_S, job_id=job_id, worker_id=self._worker_id)

    def leave_out_waiting(self, waits: Mapping[str, Exception]) -> None:
        """Leave out jobs for which a trigger waits for a lock, with a log record about the first of them.

        Args:
            waits: The errors of their claims, by id.
        """
        now = time.monotonic()
        self._until |= dict.fromkeys(waits, now + WAITING_PAUSE_S)
        if waits and now >= self._next_report_at:
            self._next_report_at = now + WAITS_REPORT_INTERVAL_S
            job_id, error = next(iter(waits.items()))
            log_waits(job_id, len(waits), error, pause_s=WAITING_PAUSE_S, worker_id=self._worker_id)

    def ids(self) -> Collection[str]:
        """Return the ids of the jobs whose pause has not ended."""
        if self._until:
            now = time.monotonic()
            self._until = {job_id: until for job_id, until in self._until.items() if until > now}
        return self._until
