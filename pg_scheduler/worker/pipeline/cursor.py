"""Up to where nothing is left to claim, for each priority.

A claim walks the index from its start: over rows that run, that nobody here knows, and dead ones that
somebody's snapshot keeps from being removed. Claims go in order, so the next one may begin where the last
one ended. That overlooks a job that comes in late with an earlier time, or comes back; so the marks are
forgotten whenever something of that kind is heard of, before the worker sleeps, and every other second in
any case.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from pg_scheduler.jobs.rows import Claim
from pg_scheduler.store.types import FROM_THE_START, NO_IDS, PRIORITY_LEVELS, ClaimPosition

__all__ = ["ClaimCursor"]

LIFETIME: Final = 2.0
"""Seconds for which a job may be overlooked under load, unless less is promised."""


class ClaimCursor:
    """The execution time and the id of the last claimed job of each priority.

    Args:
        longest: Seconds for which a job that nobody told of may be overlooked.
    """

    def __init__(self, longest: float = LIFETIME) -> None:
        self._longest = longest
        self._since: ClaimPosition = FROM_THE_START
        self.after: Sequence[str] = NO_IDS
        """Of the instants that ``since()`` tells, the id to begin at: many jobs may be due at one."""
        self._began: float | None = None

    def since(self) -> ClaimPosition:
        """Where the next claim begins; ``FROM_THE_START`` itself when nothing is passed over."""
        if self._began is None or time.monotonic() - self._began > min(LIFETIME, self._longest):
            self._since, self.after, self._began = FROM_THE_START, NO_IDS, time.monotonic()
        return self._since

    def advance(self, claims: Sequence[Claim]) -> None:
        """These were claimed, each priority in the order of time."""
        since, after = list(self._since), list(self.after)
        for claim in claims:
            level = PRIORITY_LEVELS[claim.priority]
            since[level], after[level] = claim.execution_time, claim.job_id
        self._since, self.after = since, after

    def reset(self) -> None:
        """Begin at the start again, also when a claim is under way that will advance."""
        self._began = None
