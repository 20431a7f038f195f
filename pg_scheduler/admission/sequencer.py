"""Give each sequence that has waiting jobs a head.

Most sequences are handed over by the completion of their head; see ``hand_over.py``. The sequencer attends to
the others: those whose first job was just added, those whose first job has become due, and those whose head
ended in a way that handed nothing over, as by a crash. A notification announces new jobs, and a scan finds
all else. The sequencers of other workers do the same; the lock of a sequence orders what they do.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import datetime
from typing import ClassVar

from pg_scheduler.admission.sequences import SequenceRepository
from pg_scheduler.database.faults import REFUSED_PAUSE_S, is_refusal
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.outcome import describe
from pg_scheduler.jobs.sequences import BLOCKED_BY_SEQUENCE
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import NEVER, Service


class Sequencer(Service):
    """Make the first due jobs of sequences without a head their heads."""

    name: ClassVar[str] = "sequencer"
    gap_s = 0.005
    """Seconds between two passes, at least."""
    rest = 4.0
    """The pause after a pass that moved no job, as a multiple of the duration of that pass."""
    scan_interval_s = 2.0
    """Seconds between two scans, while tasks with sequences are registered."""
    cleanup_interval_s = 600.0
    """Seconds between two searches for rows of sequences that are not needed any more."""
    batch_size = 1000
    """Sequences of one pass."""
    locked_pause_s = 0.05
    """Seconds until a sequence is examined again that another transaction has locked."""

    def __init__(self, node: Node, sequences: SequenceRepository) -> None:
        super().__init__(node.events)
        self._sequences = sequences
        self._tasks = node.tasks
        self._signals = node.signals
        # The sequence after which the round over all of them continues; None while there is no round.
        self._position: str | None = None
        # Whether a round is to begin.
        self._is_woken = True
        # When each of these sequences is to be examined, by the monotonic clock.
        self._examine_at: dict[str, float] = {}
        # Until when these sequences are left out, because the application refuses to change their first job.
        self._refused_until: dict[str, float] = {}
        self._next_pass = self._next_scan = self._next_cleanup = 0.0
        self.has_moved = False
        """Whether the last pass moved a job."""

    async def prepare(self) -> None:
        """Sleep until there is work, unless tasks with sequences are registered.

        The deadline scanner, which starts before, wakes this service if rows of sequences wait.
        """
        self.begins_asleep = not self._tasks.lists.sequenced

    def wake(self) -> None:
        """Start the next pass now, and make a round over all sequences."""
        self._is_woken = True
        super().wake()

    def announce(self, _due: datetime | None = None) -> None:
        """Look for new jobs of sequences, which a notification has announced."""
        if self._tasks.lists.sequenced:
            self.wake()

    def examine(self, keys: Collection[str]) -> None:
        """Look at sequences that were handed over, and whose next job was not seen or is locked."""
        if keys:
            self._examine_at.update(dict.fromkeys(keys, 0.0))
            super().wake()

    async def run_once(self) -> float:
        """Move the heads of the next sequences; return the seconds until the next pass."""
        began = time.monotonic()
        if began < self._next_pass:
            return self._next_pass - began
        await self._begin_scan(began)
        keys = await self._next_keys(began)
        idle = await self._sequences.find_idle(keys) if keys else {}
        # A sequence whose first job is due before the next scan is examined when it is due.
        self._examine_at.update(
            {key: began + due_in for key, due_in in idle.items() if 0 < due_in < self.scan_interval_s}
        )
        due_keys = [key for key, due_in in idle.items() if due_in <= 0 and key not in self._refused_until]
        self.has_moved = await self._move(due_keys) if due_keys else False
        ended = time.monotonic()
        rest_s = 0.0 if self.has_moved else self.rest * (ended - began)
        self._next_pass = ended + max(self.gap_s, rest_s)
        if self._position is not None or self._is_woken:
            return self._next_pass - ended
        instants = [max(instant, self._next_pass) for instant in self._examine_at.values()]
        if self._tasks.lists.sequenced:
            instants.append(self._next_scan)
        return max(min(instants, default=NEVER) - ended, 0)

    async def _begin_scan(self, now: float) -> None:
        """Begin a round over all sequences if a scan is due. From time to time, look for rows of the past."""
        self._refused_until = {key: until for key, until in self._refused_until.items() if until > now}
        if not self._tasks.lists.sequenced or now < self._next_scan:
            return
        self._is_woken = True
        self._next_scan = now + self.scan_interval_s
        if now >= self._next_cleanup:
            self._next_cleanup = now + self.cleanup_interval_s
            past_keys = await self._sequences.find_past(self.batch_size)
            if past_keys:
                await self._sequences.move(past_keys)

    async def _next_keys(self, now: float) -> list[str]:
        """Return the sequences to examine in this pass: those that are due, and a page of the round."""
        keys = [key for key, instant in self._examine_at.items() if instant <= now][: self.batch_size]
        for key in keys:
            del self._examine_at[key]
        if self._position is None and self._is_woken:
            self._position, self._is_woken = BLOCKED_BY_SEQUENCE, False
        if self._position is not None:
            page = await self._sequences.waiting(self._position, self.batch_size)
            self._position = page[-1] if len(page) == self.batch_size else None
            keys = [*dict.fromkeys([*keys, *page])]
        return keys

    async def _move(self, keys: Collection[str]) -> bool:
        """Move the heads of sequences, and report that; return whether any job was moved."""
        moved = await self._sequences.move(keys)
        now = time.monotonic()
        self._examine_at.update(dict.fromkeys(moved.undecided, now + self.locked_pause_s))
        for key, error in moved.refused.items():
            # Whatever else may be the reason, such as a lock, ends soon.
            if not is_refusal(error):
                self._examine_at[key] = now + self.locked_pause_s
                continue
            self._refused_until[key] = now + REFUSED_PAUSE_S
            logger.error(
                "next job of the sequence %s refused by the table, next attempt in %s s: %s",
                key,
                round(REFUSED_PAUSE_S),
                describe(error),
                extra=record_fields(),
            )
        if moved.jobs:
            self._signals.jobs_released(moved.due)
        return moved.jobs > 0
