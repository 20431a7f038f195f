"""Unblock the jobs that wait for a limit when the limit has room.

Three things give a limit room: an attempt of this worker ended, an instant passed at which a rate allows
another start, or something happened that this worker did not see (an attempt of a dead worker ended, a job
was cancelled, the limit changed), which a scan finds. Admission control decides again about each job, so a
job that is unblocked too early does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import ClassVar, Final

from pg_scheduler.admission.limits import LatePosition, LimitRepository, Unblocked
from pg_scheduler.database.faults import REFUSALS, is_refusal
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.jobs.limits import LimitBook, LimitNumbers
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.task import Task
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import NEVER, Service

BEFORE_LIMITS: Final = "after"
"""The reason of jobs that wait for other jobs. It precedes every limit in the index of blocked jobs."""


class BlockedJobs(Service):
    """A service that scans the index of blocked jobs."""

    scan_interval_s = 2.0
    """Seconds between two scans, while tasks with limits or shares are registered."""
    batch_size = 500
    """The maximum number of limits or tenants, and of jobs of each of them, in one statement."""
    late_batch_size = 5000
    """Blocked jobs whose misfire grace time one scan reads."""
    cleanup_interval_s = 600.0
    """Seconds between two deletions of starts that nothing counts any more."""

    def __init__(self, node: Node, limits: LimitRepository) -> None:
        super().__init__(node.events)
        self._limits = limits
        self._tasks = node.tasks
        self._signals = node.signals
        # The last job whose misfire grace time was read; None to begin at the start.
        self._late_position: LatePosition | None = None
        # When a scan, and a deletion of old starts, may begin, by the monotonic clock.
        self._next_scan = self._next_cleanup = 0.0

    async def _unblock_forgotten(self, keys: list[str]) -> None:
        """Unblock jobs of registered tasks that wait for limits or shares which the code has no more."""
        size = self.batch_size
        unblocked = await self._limits.unblock_forgotten(keys, self._tasks.lists.names, size)
        self._report(unblocked, late_count=0)

    async def _unblock_late(self, keys: list[str]) -> None:
        """Unblock jobs past their misfire grace time, so that they expire as others do.

        One call reads a batch of the jobs of these limits or tenants, and the next call continues behind it.
        """
        since = self._late_position
        # A limit whose blocked jobs are gone is not in the list any more, so the reading begins at the start.
        if since is not None and since.key not in keys:
            since = None
        if since is not None:
            keys = keys[keys.index(since.key) :]
        late_count, self._late_position = await self._limits.unblock_late(keys, since, self.late_batch_size)
        self._report(late_count, late_count)

    async def _end_scan(self) -> None:
        """Plan the next scan. From time to time, delete the starts that no limit counts any more."""
        now = time.monotonic()
        self._next_scan = now + self.scan_interval_s
        if now >= self._next_cleanup:
            self._next_cleanup = now + self.cleanup_interval_s
            await self._limits.delete_past_starts(self.late_batch_size)

    def _report(self, unblocked_count: int, late_count: int, due: datetime | None = None) -> None:
        """Wake the services that claim or expire jobs after jobs were unblocked.

        The first of them is due at ``due``, and ``late_count`` of them are past their misfire grace time.
        """
        if late_count:
            self._signals.grace_expired()
        if unblocked_count:
            self._signals.jobs_released(due)


class Unblocker(BlockedJobs):
    """Unblock jobs that wait for a limit.

    Attributes:
        next_room_in: The seconds after which the first of the limits that block jobs may have room. It is
            computed from the checks since the last scan began. None if no limit blocks jobs.
    """

    name: ClassVar[str] = "unblocker"
    gap_s = 0.005
    """Seconds between two passes after ends of attempts."""
    unclaimed_grace_s = 5.0
    """Seconds for which jobs that no worker claims keep their place in a limit: their workers may restart."""
    max_foreign_names = 1000
    """Names that other workers claim, for which this one keeps since when it has unblocked their jobs."""

    def __init__(self, node: Node, limits: LimitRepository) -> None:
        super().__init__(node, limits)
        self._result_buffer = node.result_buffer
        self._in_flight = node.in_flight
        # The limits of the registered tasks, and the tasks from which they were computed.
        self._book: tuple[Mapping[str, Task], LimitBook] = ({}, LimitBook(()))
        # The number of the admitted attempt of each job, and its limits.
        self._admitted: dict[str, tuple[int, Sequence[tuple[str, LimitNumbers]]]] = {}
        # The limits of attempts that have ended, in order.
        self._freed: dict[str, None] = {}
        # The limits of jobs that were just blocked, in order.
        self._blocked: dict[str, None] = {}
        # When a limit with a rate allows the next start, by the monotonic clock.
        self._free_at: dict[str, float] = {}
        self._routing = node.routing
        self._worker_id = node.worker_id
        # Since when jobs of a name that this worker does not claim were unblocked, by the monotonic clock.
        self._foreign_since: dict[str, float] = {}
        self._next_pass = 0.0
        self._is_scan_requested = False
        # The limit after which the scan continues.
        self._scan_position = BEFORE_LIMITS
        self.next_room_in: float | None = None

    def book(self) -> LimitBook:
        """Return the limits of the registered tasks."""
        tasks_of_book, book = self._book
        limited = self._tasks.lists.limited
        # The registry makes a new mapping when a task is added or changed.
        if tasks_of_book is not limited:
            book = LimitBook({task.name: task.limits for task in limited.values()}.items())
            self._book = (limited, book)
        return book

    def admitted(self, claim: Claim, limits: Sequence[tuple[str, LimitNumbers]]) -> None:
        """Watch for the end of an attempt within these limits."""
        self._result_buffer.on_settled = self.settled
        self._admitted[claim.job_id] = (claim.attempt, limits)

    def blocked(self, keys: Iterable[str]) -> None:
        """Check limits again that have just blocked jobs.

        An attempt may have ended before the jobs were blocked, so that its end unblocked none of them.
        """
        self._blocked.update(dict.fromkeys(keys))
        self.wake()

    def settled(self, claims: Iterable[Claim]) -> None:
        """Unblock jobs in place of attempts that ended, if they were within limits."""
        for claim in claims:
            attempt, limits = self._admitted.get(claim.job_id, (0, None))
            # The entry may be that of a later attempt of the job, which has not ended.
            if limits is not None and attempt == claim.attempt:
                del self._admitted[claim.job_id]
                for key, _ in limits:
                    self._freed[key] = None
        if self._freed:
            self.wake()

    @property
    def has_ends_to_check(self) -> bool:
        """Whether the limits of attempts that have ended are still to be checked."""
        return bool(self._freed)

    def request_scan(self) -> None:
        """Scan for jobs that are blocked by a limit that may be gone from the code."""
        self._is_scan_requested = True
        self.wake()

    async def run_once(self) -> float:
        """Unblock jobs of limits that may have room, and scan a page of the limits if a scan is due.

        Return the seconds until the next pass.
        """
        now = time.monotonic()
        is_behind = False
        if now >= self._next_pass:
            is_behind = await self._check_limits()
        is_scan_due = now >= self._next_scan and bool(self._tasks.lists.limited)
        if is_scan_due or self._is_scan_requested:
            has_more_to_scan = await self._scan()
            is_behind = is_behind or has_more_to_scan
        return self._next_delay(is_behind=is_behind)

    async def drain(self) -> None:
        """Unblock jobs in place of the last attempts of this worker, so that other workers start them."""
        if self._freed:
            # Jobs that were only just blocked are left to the scans of other workers.
            self._blocked.clear()
            try:
                await self._check_limits()
            except (DatabaseUnavailableError, *REFUSALS) as error:
                # The scans of other workers find these jobs. No result of an attempt depends on them.
                may_be_left = isinstance(error, DatabaseUnavailableError) or is_refusal(error)
                if not may_be_left:
                    raise

    async def _check_limits(self) -> bool:
        """Unblock jobs of the limits that may have got room; return whether some jobs may be left.

        These are the limits of attempts that ended, those whose rate allows another start by now, and those
        that have just blocked jobs.
        """
        now = time.monotonic()
        due_keys = [key for key, free_at in self._free_at.items() if free_at <= now]
        freed_keys = dict.fromkeys([*self._freed, *due_keys])  # each key once, in order
        blocked_keys = [key for key in self._blocked if key not in freed_keys]
        if not freed_keys and not blocked_keys:
            return False
        book = self.book()
        # Several tasks may give one limit different numbers, so it has several sets of numbers. After the end
        # of an attempt, the set with the most room decides. Where jobs were only just blocked, all sets apply
        # together, which is the strictest: otherwise a job that one set blocks and another one admits would
        # be unblocked and blocked in turns.
        limits: dict[str, Sequence[Sequence[LimitNumbers]]] = {
            key: book.number_sets(key) for key in freed_keys
        }
        limits.update({key: [_together(book.number_sets(key))] for key in blocked_keys})
        self._freed, self._blocked = {}, {}
        for key in due_keys:
            del self._free_at[key]
        # A limit without numbers is gone from the code. Its jobs are left to the scan.
        try:
            is_behind = await self._unblock({key: sets for key, sets in limits.items() if any(sets)})
        except BaseException:  # whatever it was, the limits are checked later
            self._freed.update(dict.fromkeys(limits))
            raise
        self._next_pass = time.monotonic() + self.gap_s
        return is_behind

    async def _unblock(self, limits: Mapping[str, Sequence[Sequence[LimitNumbers]]]) -> bool:
        """Unblock jobs of those limits that have room; return whether to check a limit again at once."""
        if not limits:
            return False
        size, is_behind = self.batch_size, False
        results = await self._limits.unblock(limits, size)
        for result in results:
            # Late jobs expire instead of starting, which leaves their room to others. And after a full batch,
            # there may be room for more jobs.
            if result.late or result.jobs == size:
                self._freed[result.key] = None
                is_behind = True
            if result.free_in is not None:
                self._free_at[result.key] = time.monotonic() + result.free_in
            # Without a rate, the end of an attempt gives the limit room, which the next scan finds at the
            # latest.
            room_in = self.scan_interval_s if result.free_in is None else result.free_in
            if self.next_room_in is None:
                self.next_room_in = room_in
            else:
                self.next_room_in = min(self.next_room_in, room_in)
        if await self._unblock_unclaimed(results):
            is_behind = True
        due_times = [result.due for result in results if result.due is not None]
        unblocked_count = sum(result.jobs for result in results)
        late_count = sum(result.late for result in results)
        self._report(unblocked_count, late_count, min(due_times, default=None))
        return is_behind

    async def _unblock_unclaimed(self, results: Iterable[Unblocked]) -> bool:
        """Unblock further jobs of names which no worker starts, if jobs of such names were just unblocked.

        These jobs do not use the room of their limits, so the limits are checked once more. Return whether
        there are such limits.
        """
        names_by_key = {result.key: self._stalled_names(result.names) for result in results if result.names}
        keys = [key for key, names in names_by_key.items() if names]
        if not keys:
            return False
        names = {name for key in keys for name in names_by_key[key]}
        unclaimed_names = await self._limits.unblock_unclaimed(
            keys, list(names), self._worker_id, self.batch_size
        )
        # A worker claims the other names, so their time begins again.
        self._foreign_since.update(dict.fromkeys(names - unclaimed_names, time.monotonic()))
        stalled_keys = [key for key in keys if not unclaimed_names.isdisjoint(names_by_key[key])]
        self._freed.update(dict.fromkeys(stalled_keys))
        return bool(stalled_keys)

    def _stalled_names(self, names: Iterable[str]) -> list[str]:
        """Return those of the names that this worker does not claim, and perhaps no other worker either.

        These are the names of tasks that are paused here, because a task is paused everywhere, and the names
        of other workers' tasks. The latter count only after some time, because their workers may restart.
        """
        # A worker that drains claims no names at all, which has nothing to do with the tasks.
        if self._routing.is_draining:
            return []
        now = time.monotonic()
        claimed_names, claimable_names = self._routing.names(), self._routing.claimable()
        foreign_names = [name for name in names if name not in claimed_names]
        if len(self._foreign_since) > self.max_foreign_names:
            self._foreign_since.clear()
        stalled_names = []
        for name in foreign_names:
            # This worker could run the task, so it is paused here.
            if name in claimable_names:
                stalled_names.append(name)
                continue
            unclaimed_s = now - self._foreign_since.setdefault(name, now)
            if unclaimed_s >= self.unclaimed_grace_s:
                stalled_names.append(name)
        return stalled_names

    async def _scan(self) -> bool:
        """Check a page of the limits that block jobs; return whether there may be more."""
        if self._scan_position == BEFORE_LIMITS:
            self.next_room_in = None
        keys = await self._limits.blocked_keys(self._scan_position, self.batch_size)
        if keys:
            book = self.book()
            sets_by_key = {key: book.number_sets(key) for key in keys}
            # A limit without a set of numbers is gone from the code.
            declared_sets = {key: sets for key, sets in sets_by_key.items() if sets}
            await self._unblock(declared_sets)
            forgotten_keys = [key for key in keys if key not in declared_sets]
            if forgotten_keys:
                await self._unblock_forgotten(forgotten_keys)
            await self._unblock_late(keys)
        if len(keys) == self.batch_size:
            self._scan_position = keys[-1]
            return True
        self._scan_position = BEFORE_LIMITS
        self._is_scan_requested = False
        # Attempts that were cancelled or lost do not count any more. This worker does not hold them.
        held_attempts = self._in_flight.unreported()
        lost_ids = [
            job_id for job_id, (attempt, _) in self._admitted.items() if held_attempts.get(job_id) != attempt
        ]
        for job_id in lost_ids:
            del self._admitted[job_id]
        await self._end_scan()
        return False

    def _next_delay(self, *, is_behind: bool) -> float:
        """Return the seconds until the next pass: 0 if the last one left something to do at once."""
        if is_behind:
            return 0
        now = time.monotonic()
        # The instants at which something is to be done, by the monotonic clock.
        times = [max(free_at, self._next_pass) for free_at in self._free_at.values()]
        if self._freed or self._blocked:
            times.append(self._next_pass)
        if self._tasks.lists.limited:
            times.append(self._next_scan)
        return max(min(times, default=NEVER) - now, 0)


def _together(number_sets: Iterable[Iterable[LimitNumbers]]) -> list[LimitNumbers]:
    """Return one set of numbers, which has room only if each of these sets has."""
    return [numbers for number_set in number_sets for numbers in number_set]
