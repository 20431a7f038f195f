"""Hand a sequence over from a completed job to the next one, in one commit.

One statement completes the head, makes the next job the head, and claims it for this worker. So a sequence
runs as fast as one commit for each job allows.

A worker claims the next job only while it has other free slots. While it has none, other due jobs may wait
for a slot, and claims decide by priority and time which of them is next. So a long sequence keeps no slot
from them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from pg_scheduler.admission.sequencer import Sequencer
from pg_scheduler.admission.sequences import SequenceRepository
from pg_scheduler.database.faults import REFUSALS, is_lock_timeout, is_refusal
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.worker.claimer import Claimer
from pg_scheduler.worker.executor import Executor
from pg_scheduler.worker.node import Node


class HandOver:
    """Completes jobs of sequences, and starts the next ones."""

    def __init__(
        self,
        node: Node,
        sequences: SequenceRepository,
        executor: Executor,
        claimer: Claimer,
        sequencer: Sequencer,
    ) -> None:
        self._sequences = sequences
        self._executor = executor
        self._claimer = claimer
        self._sequencer = sequencer
        self._worker_id = node.worker_id
        self._keeps_completed = node.result_buffer.keeps_completed
        self._lease = node.lease
        self._signals = node.signals
        self._tasks = node.tasks

    async def complete(self, completed: Sequence[Claim]) -> Collection[str]:
        """Complete jobs of sequences and start the next ones; return the ids of those that are refused.

        A job is refused if it is lost, if its end has other consequences, or if a row is locked. Its outcome
        is then to be written as any other.
        """
        completed_ids = {claim.job_id for claim in completed}
        names = await self._claimer.names_to_claim()
        # The slots of these jobs are free by now. Only if there are others may jobs of a sequence take them.
        room = self._executor.room - self._executor.expected - len(completed)
        room = max(min(room, len(completed)), 0) if names else 0
        sent_at, trusted_until = time.monotonic(), self._lease.trusted_until
        self._executor.expected += room
        try:
            result = await self._sequences.hand_over(
                self._worker_id,
                completed,
                keep=self._keeps_completed,
                names=names,
                room=room,
                isolated_from=self._claimer.isolated_from,
            )
        except BaseException as error:
            self._executor.expect_fewer(room)
            # The statement may be committed, although its answer did not come.
            self._claimer.reconcile_claims()
            # Nothing was written if the table refuses one of the jobs, or if a trigger waits for a lock.
            if isinstance(error, REFUSALS) and is_refusal(error):
                return completed_ids
            if isinstance(error, DatabaseUnavailableError) and is_lock_timeout(error):
                return completed_ids
            raise
        if result.moved:
            self._signals.jobs_released(result.due)
        # A job may have been added since the statement began, which it did not see.
        self._sequencer.examine(result.idle)
        await self._claimer.start_claimed(result.claims, sent_at, trusted_until, expected=room)
        # The claimer may have seen no room because of slots that are not needed.
        if len(result.claims) < room:
            self._signals.slot_free()
        return completed_ids.difference(result.ended)
