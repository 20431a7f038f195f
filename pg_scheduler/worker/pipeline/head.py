"""The head of the claim index, which this worker cannot claim: claims begin after it.

Rows of functions that are not registered here and rows that run elsewhere stay at the head of the index. A
claim that reads 100,000 of them takes 40 ms or more. So a claim checks once a second whether the index is
crowded. If it is, the claimer walks the index with ``skip_head``, a bounded number of rows after each claim,
and later claims begin where the walk stopped.

No job is forgotten:

- A walk stops at the first claimable row of each priority, locked or not.
- A job may become claimable in front of the position: one that is inserted with an earlier time or by a long
  transaction, one that is released, any job after the server's clock was set back. If it is announced, a walk
  from the start of the index follows. Such a walk also begins every ``max_age_s``, since plain SQL and lost
  notifications announce nothing.
- A walk in progress ends before the next one begins, so it reaches every row under constant notifications.
- When the registered names change, claims begin at the start of the index again.

A walk of t seconds is followed by a pause of 3 t, so walks take at most a quarter of the time. A job without
a notification is found within ``max_age_s`` or 4 t, whichever is longer, and one more walk.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pg_scheduler.store.claims import ClaimRepository
from pg_scheduler.store.types import FROM_THE_START, NO_IDS, ClaimPosition
from pg_scheduler.worker.pipeline.cursor import position_key

__all__ = ["CHECK_INTERVAL_S", "UnclaimableHead"]

CHECK_INTERVAL_S: Final = 1.0
"""Seconds between two checks whether the index is crowded."""

PAUSE_RATIO: Final = 3
"""The least pause after a walk, as a multiple of its duration."""

LEVELS: Final = tuple(range(len(FROM_THE_START)))


class UnclaimableHead:
    """Where claims may begin, for each priority.

    Args:
        claims: Walks the index.
        max_age_s: Seconds after which a walk from the start of the index is repeated.
    """

    def __init__(self, claims: ClaimRepository, max_age_s: float) -> None:
        self._claims = claims
        self._max_age_s = max_age_s
        self.since: ClaimPosition = FROM_THE_START
        """The instants before which no job is claimable; the object ``FROM_THE_START`` if none is skipped."""
        self.after: Sequence[str] = NO_IDS
        """The ids before which no job is claimable at those instants."""
        self._names: Sequence[str] = ()
        self._walk: _Walk | None = None
        self._is_requested = False
        self._next_walk_at = self._pause_until = self._next_check_at = 0.0

    @property
    def walk_in(self) -> float:
        """Seconds until the next step of a walk; infinite if no row is skipped."""
        if self._walk is not None:
            return 0.0
        if self.since is FROM_THE_START:
            return math.inf
        due_at = self._pause_until if self._is_requested else max(self._next_walk_at, self._pause_until)
        return max(due_at - time.monotonic(), 0.0)

    def use_names(self, names: Sequence[str]) -> None:
        """Forget the position if these registered names are not the ones for which it was found."""
        if names is not self._names:
            self._names = names
            self.forget()

    def forget(self) -> None:
        """Begin claims at the start of the index again."""
        self._walk, self._next_check_at = None, 0.0
        self.since, self.after = FROM_THE_START, NO_IDS

    def request_walk(self) -> None:
        """Walk again from the start of the index, since a job at the head may be claimable."""
        self._is_requested = True

    def should_check(self) -> bool:
        """Return whether a claim that begins here should check for a crowd: at most once in a while."""
        now = time.monotonic()
        if self._walk is not None or now < self._next_check_at:
            return False
        self._next_check_at = now + CHECK_INTERVAL_S
        return True

    def extend(self) -> None:
        """Walk on from where claims begin, since a check found many rows there. No walk is in progress."""
        self._begin(self.since, self.after)

    async def walk(self) -> bool:
        """Make one step of a walk if one is due; return whether a step was made."""
        if self.walk_in > 0:
            return False
        walk = self._walk or self._begin(FROM_THE_START, NO_IDS)
        sent_at = time.monotonic()
        stops = await self._claims.skip_head(self._names, walk.levels, walk.since, walk.after)
        walk.seconds += time.monotonic() - sent_at
        since, after = list(self.since), list(self.after)
        for level in walk.levels:
            stop = stops.get(level)
            if stop is not None:
                walk.since[level], walk.after[level] = stop.due, stop.job_id
            has_ended = stop is None or stop.ended
            if has_ended and walk.is_complete and not walk.has_skipped:
                since[level], after[level] = None, ""  # too few rows to skip
            elif has_ended or (
                position_key(since[level], after[level]) < position_key(walk.since[level], walk.after[level])
            ):
                since[level], after[level] = walk.since[level], walk.after[level]
        walk.levels = [level for level in walk.levels if level in stops and not stops[level].ended]
        walk.has_skipped = True
        self.since, self.after = (since, after) if any(since) else (FROM_THE_START, NO_IDS)
        if not walk.levels:
            self._walk = None
            self._pause_until = time.monotonic() + PAUSE_RATIO * walk.seconds
        return True

    def _begin(self, since: ClaimPosition, after: Sequence[str]) -> _Walk:
        is_complete = since is FROM_THE_START
        if is_complete:
            self._is_requested = False
            self._next_walk_at = time.monotonic() + self._max_age_s
        self._walk = _Walk(list(since), list(after), is_complete)
        return self._walk


@dataclass(slots=True)
class _Walk:
    """A walk over due rows that no claim can take."""

    since: list[datetime | None]
    after: list[str]
    is_complete: bool
    """Whether it began at the start of the index."""
    levels: Sequence[int] = LEVELS
    """The priorities that have not ended."""
    has_skipped: bool = False
    """Whether it has made a step, and passed many rows of each of these priorities."""
    seconds: float = 0.0
