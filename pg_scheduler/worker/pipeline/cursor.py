"""The position in the claim index from which the next claim starts, for each priority.

A claim that walks the index from its start passes running rows, rows of functions unknown here, and dead rows
that another session's snapshot keeps. Claims go in order, so the next one may start where the last one ended.
That overlooks a job that is inserted late with an earlier time, or becomes pending again. So the cursor is
reset when a notification of such a job arrives, before the claimer sleeps, and every two seconds under load.

A reset cursor begins after the rows that no claim of this worker can take, see ``head.py``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from pg_scheduler.jobs.rows import Claim
from pg_scheduler.store.types import FROM_THE_START, NO_IDS, PRIORITY_LEVELS, ClaimPosition

__all__ = ["ClaimCursor", "position_key"]

MAX_AGE_S: Final = 2.0


class ClaimCursor:
    """The execution time and the id of the last claimed job of each priority.

    Args:
        poll_s: Seconds within which polling promises to find a job that was not announced.
        max_age_s: Seconds after which the cursor is reset, if ``poll_s`` is longer.
    """

    def __init__(self, poll_s: float = MAX_AGE_S, max_age_s: float = MAX_AGE_S) -> None:
        self._max_age_s = min(poll_s, max_age_s)
        self.start: ClaimPosition = FROM_THE_START
        """Where a claim begins after a reset; ``since()`` returns this object until the cursor advances."""
        self._start_ids: Sequence[str] = NO_IDS
        self._since: ClaimPosition = FROM_THE_START
        self.after: Sequence[str] = NO_IDS
        """The id to start from at each instant of ``since()``: many jobs may be due at one instant."""
        self._reset_at: float | None = None

    def since(self) -> ClaimPosition:
        """Return where the next claim starts."""
        if self._reset_at is None or time.monotonic() - self._reset_at > self._max_age_s:
            self._since, self.after, self._reset_at = self.start, self._start_ids, time.monotonic()
        return self._since

    def start_at(self, since: ClaimPosition, after: Sequence[str]) -> None:
        """Begin here after a reset. A position before the last one is one: a job there may be claimable."""
        if since is self.start:
            return
        if self._since is self.start or any(
            position_key(since[level], after[level]) < position_key(self.start[level], self._start_ids[level])
            for level in range(len(since))
        ):
            self.reset()
        self.start, self._start_ids = since, after

    def advance(self, claims: Sequence[Claim]) -> None:
        """Continue after these claims, which are sorted by time within each priority."""
        since, after = list(self._since), list(self.after)
        for claim in claims:
            level = PRIORITY_LEVELS[claim.priority]
            since[level], after[level] = claim.execution_time, claim.job_id
        self._since, self.after = since, after

    def reset(self) -> None:
        """Return to the beginning, even if a claim in progress advances the cursor."""
        self._reset_at = None


def position_key(instant: datetime | None, job_id: str) -> tuple[bool, datetime | None, str]:
    """Return a key that sorts positions of one priority."""
    return instant is not None, instant, job_id
