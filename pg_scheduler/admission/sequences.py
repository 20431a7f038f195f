"""Move the jobs of sequences to the claim index, one of each key at a time, in their order.

Three rules keep the order:

1. **One decision at a time.** Who changes the row of a sequence in ``scheduler_sequences`` has locked it. The
   row names the head: the only job of the key that is neither finished nor blocked.
2. **On what is true now.** `SequenceRepository.move()` locks the rows by one statement and decides by the
   next one, whose snapshot has what the last holder of the lock committed. `hand_over()` needs one statement
   only, since it also has the fence of the head: it runs under its attempt, so no other transaction has moved
   the sequence on.
3. **No job is passed over.** If the first job is locked by another transaction, its sequence waits for it.

A job that is committed after a decision is announced, and the pass that follows decides anew. What no
notification announced, as after a crash, is found by a scan.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from pg_scheduler.base.messages import due_message
from pg_scheduler.database.statements import Repository, Transaction
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.sequences import BLOCKED_BY_SEQUENCE, SEQUENCE
from pg_scheduler.queue.consequences import EndedJob
from pg_scheduler.worker.claims import CLAIM_COLUMNS, START_ORDER

END: Final = "zz"
"""Follows every sequence in the index of blocked jobs."""


class Moved(NamedTuple):
    """The result of moving the heads of sequences.

    Attributes:
        jobs: The number of jobs that were moved to the claim index.
        due: When the first of them is due; None if there is none.
        undecided: The sequences that other transactions keep from being decided now.
        refused: The sequences whose first job the application refuses to change, with the errors.
    """

    jobs: int
    due: datetime | None
    undecided: Collection[str]
    refused: dict[str, Exception]


class HandedOver(NamedTuple):
    """The result of handing sequences over to their next jobs.

    Attributes:
        ended: The ids of the heads that were completed.
        claims: The next jobs that were claimed, in the order in which they start.
        moved: The number of the other next jobs, which any worker may claim now.
        due: When the first of them is due; None if there is none.
        idle: The sequences in which no next job was seen, or in which it was locked.
    """

    ended: Collection[str]
    claims: list[Claim]
    moved: int
    due: datetime | None
    idle: Sequence[str]


class SequenceRepository(Repository):
    """The statements of sequences."""

    async def waiting(self, after: str, limit: int) -> list[str]:
        """Return sequences with waiting jobs that follow ``after``, in the order of the index."""
        rows = await self._statements.fetch("blocked_keys", after, END, limit)
        return [row["blocked_on"] for row in rows]

    async def find_idle(self, keys: Sequence[str]) -> dict[str, float]:
        """Return which of these sequences have no head, and the seconds until their first jobs are due."""
        rows = await self._statements.fetch("find_idle", keys, self._statements.now)
        return {row["key"]: row["due_in"] for row in rows}

    async def find_past(self, limit: int) -> list[str]:
        """Return sequences without waiting jobs whose rows are not needed any more, or not up to date."""
        rows = await self._statements.fetch("find_past_heads", limit)
        return [row["key"] for row in rows]

    async def move(self, keys: Collection[str]) -> Moved:
        """Make the next due job of each of these sequences its head, unless it has one.

        Sequences that another transaction has locked are left to the caller, as are those whose first job is
        locked: it decides when to call this again.
        """
        moved_count, undecided = 0, set[str]()
        due_times: list[datetime] = []

        async def run(part: Sequence[str], transaction: Transaction) -> None:
            """Move the heads of some of the sequences in one transaction."""
            nonlocal moved_count
            locked = await self._statements.fetch("lock_sequences", part, on=transaction.connection)
            free_keys = [row["key"] for row in locked]
            undecided.update({*part} - {*free_keys})
            row = await self._move(free_keys, transaction)
            moved_count += row.jobs
            undecided.update(row.undecided)
            if row.due is not None:
                due_times.append(row.due)

        refused = await self._statements.run_divided(sorted(keys), run)
        return Moved(moved_count, min(due_times, default=None), undecided - refused.keys(), refused)

    async def pass_on(self, jobs: Sequence[EndedJob], transaction: Transaction) -> Collection[str]:
        """Pass the place of heads that have ended on to the next jobs, in the transaction that ends them.

        A sequence stops at a failed head if its rule is so. The commit announces what was moved. It also
        announces that a sequence has no head any more, since a job may have been added meanwhile that this
        transaction does not see.
        """
        keys = {_key_of(job) for job in jobs} - {None}
        args = [*keys], [job.job_id for job in jobs]
        locked = await self._statements.fetch("lock_heads", *args, on=transaction.connection)
        if locked:
            moved = await self._move([row["key"] for row in locked], transaction)
            message = due_message("", moved.due or self._statements.server_now)
            await self._statements.fetch("notify", [message], on=transaction.connection)
        return ()

    async def _move(self, keys: Sequence[str], transaction: Transaction) -> Moved:
        """Move the heads of sequences that the transaction has locked."""
        args = keys, self._statements.now
        (row,) = await self._statements.fetch("move_heads", *args, on=transaction.connection)
        return Moved(row["jobs"], row["due"], row["locked"], {})

    async def hand_over(
        self,
        worker_id: str,
        completed: Sequence[Claim],
        *,
        keep: bool,
        names: Sequence[str],
        room: int,
        isolated_from: int,
    ) -> HandedOver:
        """Complete heads of sequences, make the next jobs the heads, and claim some of them, in one commit.

        Args:
            worker_id: The worker.
            completed: The attempts that completed, all with the same number and each job once.
            keep: Whether to keep the rows of completed jobs; otherwise they are deleted.
            names: The names of the jobs that it may claim.
            room: The maximum number of jobs to claim.
            isolated_from: A job counts as crashed if at least so many workers died while they ran it.
        """
        ids = [claim.job_id for claim in completed]
        attempt = completed[0].attempt if completed else 0
        args = worker_id, names, room, self._statements.now, ids, attempt, isolated_from
        rows = await self._statements.fetch("hand_over", *args, deletes=not keep)
        # The last row has no job. It has what concerns the whole statement.
        totals = rows.pop()
        # The columns of a row begin with those of a claim.
        claims = [Claim._make(row[:CLAIM_COLUMNS]) for row in rows if row["is_claimed"]]
        claims.sort(key=START_ORDER)
        due_times = [row["execution_time"] for row in rows if not row["is_claimed"]]
        return HandedOver(
            totals["ended"], claims, len(due_times), min(due_times, default=None), totals["idle"]
        )

    async def resume(self, key: str, job_id: str | None = None) -> str | None:
        """Let a sequence continue that has stopped; return the failed job, or None if it has not stopped.

        With ``job_id`` it continues only if it has stopped at this job.
        """
        rows = await self._statements.fetch_retrying("resume_sequence", key, job_id)
        return rows[0]["job_id"] if rows else None

    async def skip_failed(self, key: str, job_id: str) -> bool:
        """Let a sequence continue behind its failed head once the attempt of that has ended.

        Return whether the job is such a head. The sequence stops at it only when its attempt has ended.
        """
        return bool(await self._statements.fetch_retrying("skip_failed_head", key, job_id))

    async def move_to_front(self, job_id: str) -> datetime | None:
        """Make a waiting job the next of its sequence; return when it is due, None if it does not wait."""
        rows = await self._statements.fetch_retrying("move_to_front", job_id, self._statements.now)
        return rows[0]["due"] if rows else None


def _key_of(job: EndedJob) -> str | None:
    """Return the sequence of a job; None if its options, which people may have changed, have none."""
    place = job.options.get(SEQUENCE)
    key = place.get("key") if isinstance(place, dict) else None
    return key if isinstance(key, str) and key.startswith(BLOCKED_BY_SEQUENCE) else None
