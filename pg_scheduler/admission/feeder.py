"""Move jobs of tenants to the claim index, in turns.

The feeder makes a pass when its worker has claimed jobs of a share, because other jobs can take their place
in the claim index. A notification announces new jobs, and a scan finds jobs that become due, and jobs that
were not announced. The feeders of other workers do the same; one at a time decides about a share.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import ClassVar

from pg_scheduler.admission.limits import LimitRepository
from pg_scheduler.admission.shares import ShareRepository
from pg_scheduler.admission.unblocker import BlockedJobs
from pg_scheduler.jobs.keys import prefix_of
from pg_scheduler.jobs.shares import BLOCKED_BY_SHARE, share_prefix
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import NEVER


class Feeder(BlockedJobs):
    """Move the next jobs of tenants to the claim index, as many as there are slots for them."""

    name: ClassVar[str] = "feeder"
    gap_s = 0.005
    """Seconds between two passes, at least."""
    rest = 1.0
    """The pause after a pass that moved no job, as a multiple of the duration of that pass."""
    batch_size = 1000
    """Tenants of one pass."""
    locked_pause_s = 1.0
    """Seconds until passes look whether the jobs that they leave out are still locked."""
    max_left_out = 5000
    """Jobs that passes leave out at most, because other transactions have locked their rows."""

    def __init__(self, node: Node, limits: LimitRepository, shares: ShareRepository) -> None:
        super().__init__(node, limits)
        self._share_statements = shares
        self._names = node.routing.names
        self._known_pauses = node.known_pauses
        # The names of tasks that are claimed here, by share, and the list of names that they come from.
        self._names_by_share: Mapping[str, Sequence[str]] = {}
        self._source_of_shares: Sequence[str] = ()
        # The tenant after which the next pass reads.
        self._position = BLOCKED_BY_SHARE
        # How often passes still have to reach the end of the index. Then each tenant has been read since the
        # last wake-up.
        self._ends_left = 0
        # Whether the next pass begins a round over all tenants.
        self._is_woken = True
        self.has_moved = False
        """Whether the last pass moved a job."""
        # The tenant after which the scan continues; None while there is no scan.
        self._scan_position: str | None = None
        self._next_pass = 0.0
        self._left_out: set[str] = set()
        # When a pass finds out again whether the jobs that are left out are locked, by the monotonic clock.
        self._check_locks_at = NEVER

    def wake(self) -> None:
        """Start the next pass now, and make a round over all tenants.

        The round ends early if no slot has room for a further job.
        """
        self._is_woken = True
        super().wake()

    def announce(self, _due: datetime | None = None) -> None:
        """Look for new jobs of tenants, which a notification has announced, whenever they are due."""
        if self._tasks.lists.shared:
            self.wake()

    def request_scan(self) -> None:
        """Scan for jobs of shares that may be gone from the code. A scan in progress continues."""
        self._scan_position = self._scan_position or BLOCKED_BY_SHARE
        self.wake()

    async def run_once(self) -> float:
        """Move jobs of the next tenants, and scan a page of tenants if a scan is due.

        Return the seconds until the next pass.
        """
        if not self._shares() and self._scan_position is None:
            return NEVER
        began = time.monotonic()
        if began < self._next_pass:
            return self._next_pass - began
        await self._known_pauses.refresh()
        shares = self._shares()  # without those whose tasks this read has found paused
        if shares and began >= self._next_scan:
            self._is_woken = True
            self._scan_position = self._scan_position or BLOCKED_BY_SHARE
        self.has_moved = False
        # Whether the next pass follows as soon as it may, because there may be more to do.
        is_behind = False
        if shares:
            is_behind = await self._feed(shares)
        if self._scan_position is not None:
            has_more_to_scan = await self._scan(self._scan_position)
            is_behind = is_behind or has_more_to_scan
        ended = time.monotonic()
        # After a pass in vain, the pause grows with the duration of the pass.
        rest_s = 0.0 if self.has_moved else self.rest * (ended - began)
        self._next_pass = ended + max(self.gap_s, rest_s)
        if is_behind:
            return self._next_pass - ended
        if not shares:
            return NEVER
        return max(min(self._next_scan, self._check_locks_at) - ended, 0)

    def _shares(self) -> Mapping[str, Sequence[str]]:
        """Return the names of tasks that this worker claims, by the prefixes of their shares."""
        names = self._names()
        # It is the same list object as long as the names do not change.
        if names is not self._source_of_shares:
            names_by_share: defaultdict[str, list[str]] = defaultdict(list)
            shared = self._tasks.lists.shared
            for name in names:
                task = shared.get(name)
                if task is not None and task.share is not None:
                    names_by_share[share_prefix(task.share, task.name)].append(name)
            self._source_of_shares, self._names_by_share = names, names_by_share
        return self._names_by_share

    async def _feed(self, shares: Mapping[str, Sequence[str]]) -> bool:
        """Move jobs of the next tenants in the index; return whether another pass may move more at once.

        A round over all tenants takes several passes. It begins where the last pass has ended.
        """
        await self._check_locks()
        # The next tenants with waiting jobs, each as the text by which its jobs are blocked.
        page = await self._share_statements.tenants(self._position, self.batch_size)
        if self._is_woken:
            self._is_woken = False
            # A round that begins in the middle of the index passes its end, and then reaches it once more.
            self._ends_left = 1 if self._position == BLOCKED_BY_SHARE else 2
        is_at_end = len(page) < self.batch_size
        if is_at_end:
            self._ends_left -= 1
        self._position = BLOCKED_BY_SHARE if is_at_end else page[-1]
        tenants = [key for key in page if prefix_of(BLOCKED_BY_SHARE, key) in shares]
        if not tenants:
            return self._ends_left > 0
        fed = await self._share_statements.feed(tenants, shares, self._names(), left_out=self._left_out)
        # Jobs whose rows are locked are left out by the next passes, up to a maximum.
        can_leave_out = len(self._left_out) < self.max_left_out
        if can_leave_out and fed.locked:
            self._left_out.update(fed.locked)
            self._check_locks_at = min(self._check_locks_at, time.monotonic() + self.locked_pause_s)
        self._report(fed.jobs, late_count=0, due=fed.due)
        self.has_moved = fed.jobs > 0
        # These tenants may have more jobs to move: behind those that were moved or that are locked, or in the
        # shares about which another worker decides now. Then the next pass begins another round.
        if self.has_moved or not fed.is_complete or (can_leave_out and fed.locked):
            self._is_woken = True
        has_more_tenants = self._is_woken or self._ends_left > 0
        if not fed.is_complete:
            return True
        return fed.room > 0 and has_more_tenants

    async def _check_locks(self) -> None:
        """Find out from time to time which of the jobs that are left out are not locked any more."""
        if time.monotonic() < self._check_locks_at:
            return
        locked = await self._share_statements.find_locked(self._left_out)
        # Jobs that are not locked any more can be moved, which takes a round over all tenants.
        if len(locked) < len(self._left_out):
            self._is_woken = True
        self._left_out = locked
        self._check_locks_at = NEVER
        if locked:
            self._check_locks_at = time.monotonic() + self.locked_pause_s

    async def _scan(self, since: str) -> bool:
        """Unblock jobs of a page of tenants: late jobs, and those whose share is gone from the code.

        A job is late if it should have been unblocked by now. Return whether there are more tenants.
        """
        keys = await self._share_statements.tenants(since, self.batch_size)
        if keys:
            declared_shares = {
                share_prefix(task.share, task.name)
                for task in self._tasks.lists.shared.values()
                if task.share
            }
            forgotten_keys = [key for key in keys if prefix_of(BLOCKED_BY_SHARE, key) not in declared_shares]
            if forgotten_keys:
                await self._unblock_forgotten(forgotten_keys)
            await self._unblock_late(keys)
        if len(keys) == self.batch_size:
            self._scan_position = keys[-1]
            return True
        self._scan_position = None
        await self._end_scan()
        return False
