"""The position in the claim index from which the next claim begins, for each priority.

A claim that begins at the start of the index reads running rows, rows of functions that are unknown here, and
dead rows that another session's snapshot keeps. Once a second a claim from the start counts the entries that
it reads. While these are few, claims begin at the start, and only a claim that follows a full claim begins
where the full claim ended.

Once a claim from the start has read many entries, the position is kept:

- A full claim moves the position behind the claimed jobs. Any other claim moves it to a moment before the
  time of the claim, because nothing earlier is left to claim. If the claim left a due job that was locked,
  the position stays before that job until the job is ``max_age_s`` late.
- A notification has the due time of the job that it announces. The position moves back to it.
- ``HeadScanner`` searches from the start of the index for jobs that nothing announced, and announces them. It
  also finds out when claims may begin at the start again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import ClassVar, Final

from pg_scheduler.jobs.rows import Claim
from pg_scheduler.worker.claims import FROM_THE_START, NO_IDS, PRIORITY_LEVELS, ClaimPosition
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import NEVER, Service

MAX_AGE_S: Final = 2.0
"""Seconds for which a job without a notification may be overlooked under load."""

MANY_ENTRIES: Final = 2000
"""The number of entries of unclaimed jobs up to which every claim begins at the start of the index. To read
so many takes 1 ms or 2."""

MARGIN: Final = timedelta(seconds=0.25)
"""How far the position stays behind the time of a claim. A job that was due before that time may have been
inserted by a transaction that was not yet committed, or not yet announced."""

MARGIN_WITHOUT_NOTIFICATIONS: Final = timedelta(seconds=1)
"""How far it stays behind while no notifications arrive. The clocks of other processes, which insert jobs,
may differ."""

PAUSE_RATIO: Final = 4
"""The least pause after a search, as a multiple of its duration."""


class ClaimCursor:
    """The execution time and the id to begin at, of each priority."""

    many_entries = MANY_ENTRIES

    def __init__(self, poll_s: float = MAX_AGE_S) -> None:
        self.max_age_s = min(poll_s, MAX_AGE_S)
        self.is_kept = False
        """Whether claims do not begin at the start of the index, because it has many entries."""
        self.after: Sequence[str] = NO_IDS
        """The id to begin at, at each instant of ``since()``: many jobs may be due at one instant."""
        self._since: ClaimPosition = FROM_THE_START
        # When the position was last set to the start of the index, by the monotonic clock; None to do so now.
        self._reset_at: float | None = None
        # The earliest due time that was announced since the last claim.
        self._announced_due: datetime | None = None

    def since(self) -> ClaimPosition:
        """Return where the next claim begins; the object ``FROM_THE_START`` if nothing is skipped.

        It is the due time at which the claim begins, for each priority.
        """
        now = time.monotonic()
        # Unless the position is kept, it returns to the start after ``max_age_s`` seconds.
        is_too_old = self._reset_at is not None and now - self._reset_at > self.max_age_s
        if self._reset_at is None or (is_too_old and not self.is_kept):
            self.is_kept = False
            self._since, self.after, self._reset_at = FROM_THE_START, NO_IDS, now
        # A job was announced that is due then, and may lie before the position.
        elif self._announced_due is not None and self._since is not FROM_THE_START:
            self._move_back(self._announced_due)
        self._announced_due = None
        return self._since

    @property
    def position(self) -> tuple[ClaimPosition, Sequence[str]]:
        """Where the last claim left the cursor: for each priority, the due time and the id to begin at."""
        return self._since, self.after

    def return_to(self, due: datetime) -> None:
        """Begin the next claim at this due time or earlier, because a job was announced that is due then.

        This holds even if a claim in progress moves the position.
        """
        self._announced_due = due if self._announced_due is None else min(self._announced_due, due)

    def reset(self) -> None:
        """Begin the next claim at the start of the index, which is the earliest due time of each priority.

        This holds even if a claim in progress moves the position.
        """
        # None makes since() return to the start.
        self._reset_at = None

    def is_crowded(self, unclaimed_entries: int) -> bool:
        """Return whether a claim has read so many entries of jobs it could not claim that it was slow.

        Then claims are faster if they do not begin at the start of the index.
        """
        return unclaimed_entries > self.many_entries

    def advance(self, claims: Sequence[Claim]) -> None:
        """Begin the next claim behind these claims, which are sorted by due time within each priority."""
        since, after = list(self._since), list(self.after)
        for claim in claims:
            level = PRIORITY_LEVELS[claim.priority]
            since[level], after[level] = claim.execution_time, claim.job_id
        self._since, self.after = since, after

    def pass_until(self, instant: datetime, *, is_notified: bool) -> None:
        """Begin the next claim shortly before this instant, since a claim has left no earlier job.

        ``is_notified`` is whether notifications announce jobs that are inserted before that position.
        """
        margin = MARGIN if is_notified else MARGIN_WITHOUT_NOTIFICATIONS
        self._since, self.after = (instant - margin,) * len(FROM_THE_START), NO_IDS

    def _move_back(self, due: datetime) -> None:
        """Let each priority that begins at this instant or later begin at this instant, with any id."""
        since, after = list(self._since), list(self.after)
        # None: this priority begins at the start.
        for level, instant in enumerate(since):
            if instant is not None and instant >= due:
                since[level], after[level] = due, ""
        self._since, self.after = since, after


class HeadScanner(Service):
    """Search for claimable jobs from the start of the claim index, while claims do not begin there.

    A search runs on another connection than the claims. So no claim waits for it, however many dead rows the
    snapshots of other sessions keep. A search of t seconds is followed by a pause of 4 t, and of at least
    ``max_age_s`` unless a job was announced whose due time is unknown.
    """

    name: ClassVar[str] = "head_scanner"

    def __init__(self, node: Node, cursor: ClaimCursor, *, isolated_from: int) -> None:
        super().__init__(node.events)
        self._claims = node.store.claims
        self._cursor = cursor
        self._in_flight = node.in_flight
        self._names = node.routing.names
        self._known_pauses = node.known_pauses
        self._signals = node.signals
        self._isolated_from = isolated_from
        self._is_requested = False
        self._ended_at = self._pause_s = 0.0

    def announce(self, due: datetime | None = None) -> None:
        """Search soon if a job was announced without its due time: claims may overlook it."""
        if due is None:
            self._is_requested = True
            self.wake()

    def begin(self) -> None:
        """Begin to search at intervals: claims do not begin at the start of the index any more."""
        self._ended_at, self._pause_s = time.monotonic(), 0.0
        self.wake()

    async def run_once(self) -> float:
        """Search once for jobs that claims overlook, if it is time to; return the seconds until the next.

        Do nothing while claims begin at the start of the index, because then they overlook none.
        """
        if not self._cursor.is_kept:
            self._is_requested = False
            return NEVER
        # A search for an announced job follows the last one sooner.
        pause = self._pause_s if self._is_requested else max(self._pause_s, self._cursor.max_age_s)
        if (remaining_s := self._ended_at + pause - time.monotonic()) > 0:
            return remaining_s
        await self._known_pauses.refresh()
        self._is_requested = False
        began = time.monotonic()
        try:
            overlooked = await self._claims.find_claimable(
                self._names(),
                *self._cursor.position,
                crashed=not self._in_flight.has_crashed_job,
                isolated_from=self._isolated_from,
            )
        finally:  # a search that took too long is not repeated at once
            self._ended_at = time.monotonic()
            self._pause_s = PAUSE_RATIO * (self._ended_at - began)
        if overlooked.due is not None:
            self._signals.due(overlooked.due)
        # Few entries are left at the start of the index, so claims may begin there again.
        elif not self._cursor.is_crowded(overlooked.read):
            self._cursor.reset()
        return max(self._pause_s, self._cursor.max_age_s)
