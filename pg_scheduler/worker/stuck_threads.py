"""The attempts whose threads run on after their cancellation, and which of them have released their slots.

A chunk whose function runs in a thread counts as an attempt here: its call has the slot, and not its jobs.

A thread cannot be stopped. Its attempt keeps the job, whose lease is renewed until the thread returns, so no
other worker runs the job meanwhile. By default it keeps its slot too. Up to ``max_stuck_threads`` of these
attempts release their slot and their place in their executor, so that other jobs run in new threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pg_scheduler.worker.in_flight import Attempt, GatheredJobs
from pg_scheduler.worker.runners.executors import Place


class StuckThreads:
    """The attempts of a worker whose threads run on, in the order in which they were reported.

    Attributes:
        replaced: Those that have released their slots.
    """

    def __init__(self, limit: int, on_replaced: Callable[[], None]) -> None:
        self._limit = limit
        self._on_replaced = on_replaced
        self._places: dict[Attempt | GatheredJobs, Place] = {}
        self.replaced: Final[set[Attempt | GatheredJobs]] = set()

    def add(self, attempt: Attempt | GatheredJobs, place: Place) -> bool:
        """Note that the thread of an attempt runs on; return whether the attempt has released its slot."""
        # The report of an executor of the application may come after the end of the attempt.
        if attempt.runs_on:
            self._places[attempt] = place
            self._replace()
        return attempt.is_replaced

    def remove(self, attempt: Attempt | GatheredJobs) -> None:
        """Forget an attempt that has ended. Another one may release its slot instead."""
        if self._places.pop(attempt, None) is not None:
            self.replaced.discard(attempt)
            self._replace()

    def _replace(self) -> None:
        """Let as many attempts release their slots as the limit permits, the first ones first."""
        for attempt, place in self._places.items():
            if len(self.replaced) >= self._limit:
                return
            if not attempt.is_replaced:
                attempt.is_replaced = True
                self.replaced.add(attempt)
                place.release()
                self._on_replaced()
