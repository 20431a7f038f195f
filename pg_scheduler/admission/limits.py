"""Admit attempts within their limits, and unblock the jobs that wait for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pg_scheduler.database.refused_rows import RefusedRows
from pg_scheduler.database.statements import Repository, Statements
from pg_scheduler.jobs.limits import LimitNumbers
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.shares import BLOCKED_BY_SHARE
from pg_scheduler.queue.locks import LOCK_CLASS


class AdmissionRequest(NamedTuple):
    """An attempt, and the limits that have to admit it, in the order in which they are declared."""

    claim: Claim
    limits: Sequence[tuple[str, LimitNumbers]]


class Unblocked(NamedTuple):
    """The result of unblocking the blocked jobs of a limit.

    Attributes:
        key: The limit.
        free_in: Seconds until one more attempt may start; None if that depends on the end of an attempt.
        jobs: The number of jobs that were unblocked.
        late: The number of them that are past their misfire grace time.
        due: When the first of them is due; None if there is none.
        names: Their names; None if there is none.
    """

    key: str
    free_in: float | None
    jobs: int
    late: int
    due: datetime | None
    names: Sequence[str] | None


class SurplusPosition(NamedTuple):
    """A place in the claim index."""

    priority: int
    execution_time: datetime
    job_id: str


class BlockedJob(NamedTuple):
    """A job that was blocked before it was claimed."""

    job_id: str
    job_name: str
    attempt: int
    execution_time: datetime


class LatePosition(NamedTuple):
    """The last blocked job that was read."""

    key: str
    priority: int
    execution_time: datetime | None
    job_id: str


class LimitRepository(Repository):
    """The statements of limits. They leave out the jobs whose change the application refuses."""

    def __init__(self, statements: Statements) -> None:
        super().__init__(statements)
        self._refused_deletions = RefusedRows("past start {} of scheduler_starts not deleted", are_jobs=False)
        self._refused_unblocks = RefusedRows("job {} not unblocked")
        self._refused_blocks = RefusedRows("job {} not blocked by its limit before it is claimed")

    async def admit(
        self, worker_id: str, requests: Sequence[AdmissionRequest], keep_s: Mapping[str, float]
    ) -> dict[str, str | None]:
        """Admit attempts, or block their jobs, in one transaction.

        The locks of the limits are taken first, by a statement of its own. A single statement would count the
        attempts by a snapshot that is older than its locks.

        Args:
            worker_id: The worker that claimed the jobs.
            requests: The attempts, each job once, in the order of claims.
            keep_s: The seconds for which the starts of each limit count.

        Returns:
            By job id, None for an admitted attempt, else the limit that blocks the job. An attempt is missing
            if this worker does not hold it any more, if a new definition of its job waits, or if the clock
            was set back since its claim.
        """
        # The statement takes four tables, each of them as arrays of equal length: the attempts; the keys of
        # each attempt; the keys with the seconds for which their starts count; the keys with the numbers that
        # are declared for them.
        #
        # The keys of each attempt, each key once, with the number of the attempt, counted from 1.
        requested_keys = [
            (key, number) for number, request in enumerate(requests, 1) for key in dict(request.limits)
        ]
        # Most jobs share the object of their limits, which is then read once.
        distinct_limits = {id(request.limits): request.limits for request in requests}.values()
        # Each pair of a key and its numbers once. Several tasks may declare other numbers for one key.
        declared_numbers = list(dict.fromkeys(pair for limits in distinct_limits for pair in limits))
        keys = list(keep_s)
        async with self._statements.connections.admission() as connection:
            await self._statements.fetch("lock_texts", LOCK_CLASS, keys, on=connection)
            rows = await self._statements.fetch(
                "admit_attempts",
                worker_id,
                self._statements.now,
                [request.claim.job_id for request in requests],
                [request.claim.attempt for request in requests],
                [key for key, _ in requested_keys],
                [number for _, number in requested_keys],
                keys,
                list(keep_s.values()),
                [key for key, _ in declared_numbers],
                *_columns([numbers for _, numbers in declared_numbers]),
                on=connection,
            )
        return {row["job_id"]: row["blocked_on"] for row in rows}

    async def read_surplus(
        self, names: Sequence[str], after: SurplusPosition, limit: int, max_bytes: int
    ) -> list[tuple[str, str, str]]:
        """Return the ids, names and arguments of the due jobs that ``block_surplus()`` would examine.

        From their arguments, the task computes which limits they need. Of the rows that are read, those of
        other tasks are left out, so fewer may be returned.

        Args:
            names: The names under which jobs of the task are stored.
            after: The position in the order of claims after which to read.
            limit: The number of rows to read.
            max_bytes: The maximum size of the arguments of a job; others are left out.
        """
        rows = await self._statements.fetch(
            "read_surplus", names, *after, limit, max_bytes, self._statements.now
        )
        return [(row["job_id"], row["job_name"], row["task_data"]) for row in rows]

    async def block_surplus(
        self,
        key: str,
        names: Sequence[str],
        after: SurplusPosition,
        limit: int,
        job_ids: Sequence[str] | None = None,
    ) -> list[BlockedJob]:
        """Block the due jobs of a task on a full limit, and return them.

        Of the rows that are read, those of other tasks are left alone, so fewer may be blocked.

        Args:
            key: The limit.
            names: The names under which jobs of the task are stored.
            after: The position in the order of claims after which to read.
            limit: The number of rows to read.
            job_ids: The jobs that need the limit; None for all of the task.
        """
        args = key, names, *after, limit, self._statements.now, job_ids
        rows = await self._refused_blocks.fetch("block_surplus", *args, statements=self._statements)
        return [BlockedJob(*row) for row in rows]

    async def unblock(
        self, limits: Mapping[str, Sequence[Sequence[LimitNumbers]]], max_jobs: int
    ) -> list[Unblocked]:
        """Unblock the first jobs of limits that have room, as many as there is room for.

        Args:
            limits: The numbers of each limit, in sets, such as one for each task that declares the limit. All
                numbers of a set have to be kept. The set with the most room decides.
            max_jobs: The maximum number of jobs of each limit.
        """
        # The statement takes a table with a row for each of the numbers: its limit, its set, and itself.
        numbered_limits: list[tuple[str, int, LimitNumbers]] = []
        for key, sets in limits.items():
            for set_number, limit_set in enumerate(sets):
                numbered_limits += [(key, set_number, numbers) for numbers in limit_set]
        rows = await self._refused_unblocks.fetch(
            "unblock_limited",
            self._statements.now,
            [key for key, _, _ in numbered_limits],
            [set_number for _, set_number, _ in numbered_limits],
            *_columns([numbers for _, _, numbers in numbered_limits]),
            max_jobs,
            statements=self._statements,
        )
        return [Unblocked(*(row[name] for name in Unblocked._fields)) for row in rows]

    async def unblock_unclaimed(
        self, keys: Sequence[str], names: Sequence[str], worker_id: str, max_jobs: int
    ) -> set[str]:
        """Unblock the first jobs of limits if no live worker claims their names; return these names.

        Such jobs do not start, and would keep the room of the limit from the jobs behind them.

        Args:
            keys: The limits whose first jobs are examined.
            names: The names to examine. The worker that asks does not claim them.
            worker_id: That worker. Its row may still name them as claimed.
            max_jobs: The number of jobs of each limit that are examined.
        """
        args = keys, names, worker_id, max_jobs, self._statements.now
        # This runs the statement without the jobs whose rows the application has refused to change.
        rows = await self._refused_unblocks.fetch("unblock_unclaimed", *args, statements=self._statements)
        return {row["name"] for row in rows}

    async def blocked_keys(self, after: str, limit: int) -> list[str]:
        """Return limits that block jobs and follow the limit ``after``, in the order of the index."""
        rows = await self._statements.fetch("blocked_keys", after, BLOCKED_BY_SHARE, limit)
        return [row["blocked_on"] for row in rows]

    async def unblock_late(
        self, keys: Sequence[str], since: LatePosition | None, limit: int
    ) -> tuple[int, LatePosition | None]:
        """Unblock those of the next blocked jobs that are past their misfire grace time.

        Args:
            keys: The limits, or tenants.
            since: The last job of the first limit that was read; None to read from the start of that limit.
            limit: The number of jobs to read.

        Returns:
            How many jobs were unblocked, and the position at which to continue; None at the end.
        """
        # The statement takes a position for each limit. Each limit but the first one is read from its start.
        start = since or LatePosition("", 0, None, "")
        later_count = len(keys) - 1
        rows = await self._refused_unblocks.fetch(
            "unblock_late",
            keys,
            [start.priority, *[0] * later_count],
            [start.execution_time, *[None] * later_count],
            [start.job_id, *[""] * later_count],
            limit,
            self._statements.now,
            statements=self._statements,
        )
        if not rows:
            return 0, None
        # Each row is the last job that a statement read, and has the number of that job, counted from 1.
        unblocked_count = sum(row["jobs"] for row in rows)
        last_row = rows[-1]
        is_at_end = last_row["n"] < limit
        if is_at_end:
            return unblocked_count, None
        position = LatePosition(
            last_row["blocked_on"], last_row["priority"], last_row["execution_time"], last_row["job_id"]
        )
        return unblocked_count, position

    async def unblock_forgotten(self, keys: Sequence[str], names: Sequence[str], limit: int) -> int:
        """Unblock jobs of these names that wait for limits or shares that are gone from their code."""
        args = keys, names, limit
        return await self._refused_unblocks.number("unblock_forgotten", *args, statements=self._statements)

    async def delete_past_starts(self, limit: int) -> None:
        """Delete starts that no limit counts any more."""
        args = limit, self._statements.now
        await self._refused_deletions.fetch("delete_past_starts", *args, statements=self._statements)


def _columns(numbers_of_limits: Sequence[LimitNumbers]) -> list[list[Any]]:
    """Return the numbers of limits as one array for each field of `LimitNumbers`, in the order of fields."""
    return [[getattr(numbers, name) for numbers in numbers_of_limits] for name in LimitNumbers._fields]
