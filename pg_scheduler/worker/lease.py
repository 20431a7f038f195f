"""The lease of this worker by the clock of this process, and steps of the server's clock.

Lease arithmetic as in Gray and Cheriton, "Leases" (SOSP 1989): the holder counts from the moment it asked,
by its own monotonic clock, and stops trusting the lease a margin before the end; the granter counts by its
own clock. So the holder never trusts the lease for longer than the granter grants it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final, TypeVar

from pg_scheduler.errors import DatabaseUnavailableError, PoolClosedError
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.worker.signals import Signal

T = TypeVar("T")

RETRY_DELAY_S: Final = 0.2
"""Seconds between two attempts to reach the database."""

UNTRUSTED_SHARE: Final = 0.1
"""The share of the lease, at its end, in which the worker no longer trusts it."""

RENEWALS_PER_LEASE: Final = 3
"""One heartbeat may fail and one may be late before the lease is in danger."""

TOLERANCE_S: Final = 0.5
"""Seconds by which the clocks may drift apart before that counts as a step."""

MAX_OFFSET_S: Final = 1.0
"""Seconds by which the clock of this host may differ from the server's clock without a WARNING."""

MAX_CORRECTION_S: Final = 3600.0
"""Seconds up to which times of this host are corrected by the difference."""


class Lease:
    """The time until which no other worker reclaims this worker's jobs.

    The heartbeat and the lease keeper's thread write it; any thread may read it.
    """

    __slots__ = ("_longest_extension_s", "extension_s", "liveness_key", "renewals", "renewed_at", "seconds")

    def __init__(self, seconds: float, max_loop_block_s: float = 0) -> None:
        self.seconds: Final = seconds
        self._longest_extension_s: Final = max_loop_block_s - seconds
        self.renewed_at = float("-inf")
        """When the last renewal was requested, by the monotonic clock."""
        self.renewals = 0
        """How often the lease was renewed in time."""
        self.liveness_key: int | None = None
        """Key of the liveness lock that the lease keeper holds; None while there is none."""
        self.extension_s: float | None = None
        """Seconds for which the held lock extends an expired lease; None if it does not."""

    @property
    def was_renewed(self) -> bool:
        """Whether the worker has had a lease since its start."""
        return self.renewals > 0

    @property
    def renewal_interval(self) -> float:
        """Seconds between two renewals."""
        return self.seconds / RENEWALS_PER_LEASE

    @property
    def trusted_until(self) -> float:
        """The monotonic time until which the lease is trusted, unless it is renewed."""
        return self.renewed_at + self.seconds * (1 - UNTRUSTED_SHARE)

    @property
    def is_trusted(self) -> bool:
        """Whether the lease has certainly not expired."""
        return time.monotonic() < self.trusted_until

    def renewed(self, requested_at: float) -> None:
        """Record that the database granted a renewal that was requested at this monotonic time."""
        # Heartbeats and the lease keeper renew it, and their answers may come in another order.
        self.renewed_at = max(requested_at, self.renewed_at)
        if self.is_trusted:
            self.renewals += 1

    def lock_taken(self, key: int | None, *, proves_life: bool) -> None:
        """Record which liveness lock is held; ``key`` is None if none could be taken.

        It is an advisory lock of a session of this process. The server frees it when the session ends. With
        keepalives on the session, that happens soon after this process has ended or has lost its network. So
        while such a lock is held, this process lives (``proves_life``), and other workers do not reclaim its
        jobs: the lease is extended.
        """
        self.liveness_key = key
        extends = key is not None and proves_life and self._longest_extension_s > 0
        self.extension_s = self._longest_extension_s if extends else None

    def lock_lost(self) -> None:
        """Record that the liveness lock is not held."""
        self.liveness_key = self.extension_s = None

    def revoke(self) -> None:
        """Stop trusting the lease until it is renewed."""
        self.renewed_at = float("-inf")


async def persistently(lease: Lease, call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a call; repeat it while the database is unavailable and the lease is trusted."""
    while True:
        try:
            return await call()
        except DatabaseUnavailableError as fault:
            # A closed pool opens no connection again. After its lease, the worker may have lost the job.
            if isinstance(fault, PoolClosedError) or not lease.is_trusted:
                raise
        await asyncio.sleep(RETRY_DELAY_S)


class ServerClock:
    """Compare the server's clock with those of this host, by the times that heartbeats and claims return.

    The clock of this host and its monotonic clock are both compared. The worker sleeps by the monotonic
    clock, so a sleep that is to end at a time of the server becomes wrong when the server's clock is set.
    """

    __slots__ = (
        "_highest_difference",
        "_is_offset_large",
        "_lowest_difference",
        "_set_back",
        "_stepped",
        "offset_s",
    )

    def __init__(self, stepped: Signal, set_back: Signal) -> None:
        self._stepped = stepped
        self._set_back = set_back
        self._is_offset_large = False
        self.offset_s: float | None = None
        """Seconds by which the clock of this host is ahead of the server's clock; None before a heartbeat."""
        # The bounds of the difference between the server's clock and the monotonic one of this process.
        self._lowest_difference = float("-inf")
        self._highest_difference = float("inf")

    @property
    def correction_s(self) -> float:
        """The offset if it is large enough for a WARNING, and small enough to trust the server; else 0.

        If the clocks are hours apart, the server's clock may be the wrong one, and be set back soon.
        """
        if self.offset_s is None or not self._is_offset_large or abs(self.offset_s) > MAX_CORRECTION_S:
            return 0.0
        return self.offset_s

    def read(self, server_now: datetime, requested_at: float) -> None:
        """Compare the clocks by an answer of the server that has just arrived.

        The server read its clock between the request and the arrival, so each answer bounds the difference of
        the clocks. The clock was set if the bounds contradict those of earlier answers, however long each
        answer took.

        Args:
            server_now: The time of the server in the answer.
            requested_at: When the answer was requested, by the monotonic clock of this process.
        """
        server_time = server_now.timestamp()
        # The monotonic clock had a value between the one at the request and the one now when the server read
        # its clock. So the difference of the two clocks lies between these bounds.
        lowest, highest = server_time - time.monotonic(), server_time - requested_at
        was_set_back = highest < self._lowest_difference - TOLERANCE_S
        was_set_forward = lowest > self._highest_difference + TOLERANCE_S
        if was_set_back or was_set_forward:
            # The bounds of earlier answers do not hold for the new time.
            self._lowest_difference, self._highest_difference = lowest, highest
            self._stepped()
            if was_set_back:
                self._set_back()
        else:
            self._lowest_difference = max(self._lowest_difference, lowest)
            self._highest_difference = min(self._highest_difference, highest)

    def seconds_until(self, moment: datetime) -> float | None:
        """Return the seconds until a time of the server, which may be negative; None before the first answer.

        The clock of this host may be set at any time, so the monotonic one counts. The result is too long by
        the round trip of an answer at most, and too short only if the server's clock was set back since.
        """
        if self._lowest_difference == float("-inf"):
            return None
        return moment.timestamp() - (time.monotonic() + self._lowest_difference)

    def compare(self, now: datetime, requested_at: float) -> None:
        """Measure by how much the clock of this host differs, from a time of the server as in ``read()``.

        The server is taken to have read its clock in the middle of the round trip, so the result is wrong by
        half of the round trip at most. The log has a record when the difference becomes too large, and when
        it is small again.
        """
        half_trip_s = (time.monotonic() - requested_at) / 2
        # The time of this host in the middle of the round trip, minus that of the server.
        self.offset_s = offset = time.time() - half_trip_s - now.timestamp()
        if abs(offset) - half_trip_s > MAX_OFFSET_S and not self._is_offset_large:
            self._is_offset_large = True
            direction = "ahead of" if offset > 0 else "behind"
            logger.warning(
                "the clock of this host is %.1f s %s that of the server; due times that jobs and callers "
                "compute here are wrong by that; synchronize both clocks by NTP",
                abs(offset),
                direction,
                extra=record_fields(),
            )
        elif abs(offset) + half_trip_s <= MAX_OFFSET_S and self._is_offset_large:
            self._is_offset_large = False
            logger.info("the clock of this host agrees with that of the server again", extra=record_fields())
