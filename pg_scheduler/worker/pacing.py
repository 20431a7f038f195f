"""Pace the claimer: how many jobs it claims, and how long it sleeps.

It sleeps until the next due time, or until the fallback poll. A due time is approached in two steps. A long
sleep ends shortly before it, with a claim: timer, connection and server process are awake then, and the
answer is fresh. The timers of an event loop are a millisecond coarse, so the claimer yields to the event loop
repeatedly during the last millisecond.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from pg_scheduler.base.settings import PollingConfig

SMALL_CLAIM: Final = 10
"""The maximum number of jobs of a claim while the queue is short."""

MAX_FILLED_SLOTS: Final = 128
"""The slots that one claim may fill; half of all slots if that is more. Meanwhile jobs run in the others."""

LARGEST_CLAIM: Final = 500
"""Jobs of the largest claim: larger ones were slower."""

POLL_JITTER: Final = 0.1
"""The random share of a poll interval. A due time has no jitter."""

TIMER_ERROR_S: Final = 0.001
"""Seconds by which timers are early or late."""

MIN_LONG_SLEEP_S: Final = 0.02
"""Seconds from which a sleep is long: processor time is spent so that it ends exactly at the due time."""

APPROACH_S: Final = 0.004
"""Seconds before a due time at which a long sleep ends with a claim."""

NETWORK_JITTER_S: Final = 0.00025
"""Seconds by which one message may reach the server faster than another; an early claim is repeated."""


class ClaimSize:
    """The size of the next claim, unless the user has set it.

    The cost of a claim is mostly that of its round trip and its commit, so few large claims are cheaper than
    many small ones. But while the queue is short, a large claim would leave nothing to the other workers. So
    the size doubles after each claim that returned as many jobs as it could, and is small again after any
    other.

    Args:
        fixed_limit: The size that the user has set, which then never changes; None to adapt it.
        slots: The slots of the worker.
    """

    def __init__(self, fixed_limit: int | None, slots: int) -> None:
        self._small = fixed_limit or SMALL_CLAIM
        # A claim may fill half of the slots, or all of them if they are few.
        half_of_slots, few_slots = min(slots // 2, LARGEST_CLAIM), min(slots, MAX_FILLED_SLOTS)
        self._large = fixed_limit or max(half_of_slots, few_slots, SMALL_CLAIM)
        self.limit = self._small
        """The jobs that the next claim may return, if as many slots are free."""

    def reset(self) -> None:
        """Return to a small claim."""
        self.limit = self._small

    def adapt(self, claim_limit: int, job_count: int) -> None:
        """Choose the next size by how many jobs a claim asked for, and how many it returned."""
        if job_count < claim_limit:
            self.limit = self._small
        # A full claim that was smaller, because fewer slots were free, shows nothing about the queue.
        elif claim_limit == self.limit:
            self.limit = min(2 * claim_limit, self._large)


class Pacing:
    """Compute how long the claimer sleeps before its next claim."""

    def __init__(self, polling: PollingConfig) -> None:
        self._polling = polling
        self._idle_s = polling.idle_start_interval
        self._due_at = 0.0
        self._is_approaching = False

    def reset_polls(self) -> None:
        """Return to the shortest poll interval, since the last claim found jobs."""
        self._idle_s = self._polling.idle_start_interval

    def next_poll(self) -> float:
        """Return the seconds until the next poll: a claim in case that nothing announced a job.

        They are more after each call, until a claim finds jobs.
        """
        polling = self._polling
        poll = self._idle_s
        self._idle_s = min(self._idle_s * polling.backoff_multiplier, polling.max_interval)
        if polling.jitter:
            poll *= 1 + random.uniform(-POLL_JITTER, POLL_JITTER)  # noqa: S311 - jitter, no secret
        return min(max(poll, polling.min_interval), polling.max_interval)

    def seconds_until(self, due_at: float, poll: float) -> float:
        """Return the seconds to sleep until a due time. A long sleep ends at the poll at the latest.

        Args:
            due_at: When the next claim must be sent, by the monotonic clock: the time when the last one was
                sent, plus the seconds it reported. Both claims take equally long to reach the server.
            poll: Seconds until the fallback poll.
        """
        # A claim that came too early would find nothing, so it is sent a little later.
        due_at += NETWORK_JITTER_S
        remaining_s = due_at - time.monotonic()
        # A long sleep ends a few milliseconds before the due time with a claim. The short sleep after that
        # claim ends one millisecond before the due time, and reach_due_time() waits for the last one.
        if remaining_s > MIN_LONG_SLEEP_S:
            self._is_approaching = True
            return min(remaining_s - APPROACH_S, poll)
        if not self._is_approaching:
            return max(remaining_s, 0)
        self._is_approaching, self._due_at = False, due_at
        return max(remaining_s - TIMER_ERROR_S, 0)

    async def reach_due_time(self) -> None:
        """Wait for a due time that is milliseconds away, yielding to other tasks."""
        while 0 < self._due_at - time.monotonic() < 2 * TIMER_ERROR_S:  # noqa: ASYNC110 - no event comes
            await asyncio.sleep(0)
