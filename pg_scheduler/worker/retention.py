"""Delete finished jobs and count the deletions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final, NamedTuple, TypeAlias

from pg_scheduler.base.sqltext import qualify
from pg_scheduler.base.status import JobStatus
from pg_scheduler.base.text.numbers import counted
from pg_scheduler.database.faults import REFUSALS, is_lock_timeout, is_refusal
from pg_scheduler.database.options import LOCK_TIMEOUT_MS
from pg_scheduler.database.refused_rows import RefusedRows
from pg_scheduler.database.session import Record
from pg_scheduler.database.statements import Repository, Statements
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events.log import log_refusal

Cutoffs: TypeAlias = Mapping[JobStatus, datetime]
"""For each status whose jobs are deleted by age, the instant before which they finished."""

RowPosition: TypeAlias = tuple[int, int]
"""A place of the table: the number of a block, and the number of a row within it."""

MAX_ROWS_OF_BLOCK: Final = 2048
"""More rows than the largest block of a table can have."""

MAX_REFUSALS: Final = 20
"""How many more rows the application may refuse to delete than are deleted. Beyond that, the rest of a range
is left to the next pass, so a pass never costs much more than its deletions are worth."""

TERMINAL: Final = tuple(status for status in JobStatus if status.is_finished)
"""The statuses of finished jobs, in the order in which statements take their values."""


class BlockRange(NamedTuple):
    """A range of blocks of the jobs table.

    Attributes:
        first: Its first block.
        may_have_due: Whether it may have a job to delete.
        due: The statuses of which the range had a job to delete when it was last read.
    """

    first: int
    may_have_due: bool
    due: frozenset[JobStatus]


class Surplus(NamedTuple):
    """Jobs beyond those that ``keep_last`` keeps.

    Attributes:
        size: How many there are, up to the limit of the statement.
        deleted: How many of these were deleted.
    """

    size: int
    deleted: int


@dataclass(frozen=True, slots=True)
class VacuumDay:
    """A row of ``vacuum_stats``."""

    stat_date: date
    deleted_completed: int
    deleted_failed: int
    deleted_cancelled: int
    deleted_expired: int
    last_run: datetime | None
    worker_id: str | None


@dataclass(frozen=True, slots=True)
class VacuumTotal:
    """The sum of all rows of ``vacuum_stats``."""

    total_completed: int
    total_failed: int
    total_cancelled: int
    total_expired: int
    last_vacuum_run: datetime | None


class RetentionRepository(Repository):
    """The statements that delete finished jobs and count them."""

    def __init__(self, statements: Statements) -> None:
        super().__init__(statements)
        self._refused_jobs = RefusedRows("finished job {} not deleted", by_pass=True)
        self._refused_steps = RefusedRows("old steps of job {} not deleted", by_pass=True)

    async def table_blocks(self) -> int:
        """Return the size of the jobs table in blocks."""
        return await self._statements.number("table_blocks", await self._table())

    async def begin_pass(
        self, policies: str, worker_id: str, *, after_s: float, within_s: float
    ) -> float | None:
        """Begin a pass of these policies if it is due.

        Args:
            policies: The policies, as a text that is the same on every node that has them.
            worker_id: This worker.
            after_s: Seconds from the end of a pass to the next one.
            within_s: Seconds within which the first pass of all is due, at a random time.

        Returns:
            0 if the pass has begun, else the seconds until it is due; None while another worker makes it.
        """
        args = policies, worker_id, after_s, self._statements.now
        # Every worker asks, and one begins. The question uses the connection that listens, which each worker
        # has anyway. The pass needs the pool, so a worker whose jobs have used up the pool begins none.
        due_in: float | None = await self._statements.value("vacuum_pass_due", *args)
        if due_in == 0:
            due_in = await self._statements.value("begin_vacuum_pass", *args, within_s)
        return due_in

    async def end_pass(self, policies: str, worker_id: str) -> None:
        """Record the end of a pass."""
        await self._statements.fetch("end_vacuum_pass", policies, worker_id, self._statements.now)

    async def read_ranges(self, blocks: int, cutoffs: Cutoffs) -> list[BlockRange]:
        """Return the ranges of the table in order, each of ``blocks`` blocks, with what the last pass noted.

        ``cutoffs`` has the statuses whose jobs are deleted by age.
        """
        args = await self._table(), blocks, *_cutoffs(cutoffs), self._statements.now
        return [
            BlockRange(row["first_block"], row["may"], _due_statuses(row))
            for row in await self._statements.fetch("read_ranges", *args)
        ]

    async def note_range(self, first: int, blocks: int, cutoffs: Cutoffs) -> frozenset[JobStatus]:
        """Record for the next pass when the first job of each status finished in a range of blocks.

        Return the statuses of which the range has a job to delete now.
        """
        # From row 0 of the first block up to row 0 of the block behind the range.
        bounds = (first, 0), (first + blocks, 0), first, blocks
        args = *bounds, await self._table(), *_cutoffs(cutoffs), self._statements.now
        (row,) = await self._statements.fetch("note_range", *args)
        return _due_statuses(row)

    async def vacuum_blocks(self, first: int, blocks: int, cutoffs: Cutoffs) -> dict[JobStatus, int]:
        """Delete within these blocks the jobs that finished before the cutoff of their status; count them."""
        deleted = {}
        # From row 0 of the first block up to row 0 of the block behind the range.
        low, high = (first, 0), (first + blocks, 0)
        for status, cutoff in cutoffs.items():
            count = await self._delete_between(low, high, status, cutoff)
            if count:
                deleted[status] = count
        return deleted

    async def _delete_between(
        self, low: RowPosition, high: RowPosition, status: JobStatus, cutoff: datetime
    ) -> int:
        """Delete the jobs of a status that finished before ``cutoff``, between two places of the table.

        Return how many were deleted. A part with a row that a trigger or a foreign key of the application
        refuses to delete is halved until the row is alone. If such rows are many, the parts that are left
        wait for the next pass. Which half comes first is random, so that no part always has to wait.
        """
        parts = [(low, high)]
        count = refusals = 0
        # The error of the last row that was refused.
        refusal: Exception | None = None
        while parts:
            part_low, part_high = parts.pop()
            args = part_low, part_high, status.value, cutoff
            try:
                count += await self._delete_unlocked(*args)
            except REFUSALS as error:
                if not is_refusal(error):
                    raise
                # None: the part is one row, which is the refused one.
                if middle := _middle(part_low, part_high):
                    halves = [(part_low, middle), (middle, part_high)]
                    random.shuffle(halves)
                    parts += halves
                    continue
                refusals, refusal = refusals + 1, error
                # Each of the first refusals has a log record. One record counts all others, below.
                if refusals <= MAX_REFUSALS:
                    block, row_number = part_low
                    log_refusal(f"finished job in row {row_number} of block {block} not deleted", error)
                if refusals >= MAX_REFUSALS + count:
                    break
        unlogged_count = refusals - MAX_REFUSALS
        if refusal is not None and unlogged_count > 0:
            (first_block, _), (end_block, _) = low, high
            place = f"blocks {first_block} to {end_block}"
            log_refusal(f"{counted(unlogged_count, 'further finished job')} in {place} not deleted", refusal)
        return count

    async def _delete_unlocked(
        self, low: RowPosition, high: RowPosition, status: str, cutoff: datetime
    ) -> int:
        """Delete the jobs of a part of the table; return how many were deleted.

        If the deletion has to wait long for a lock, another statement deletes only rows that are not locked.
        """
        args = low, high, status, cutoff
        try:
            return await self._statements.change("vacuum_blocks", *args, lock_timeout_ms=LOCK_TIMEOUT_MS)
        except DatabaseUnavailableError as fault:
            if not is_lock_timeout(fault):
                raise
        return await self._statements.number("vacuum_unlocked", *args)

    async def count_in_blocks(self, first: int, blocks: int, cutoffs: Cutoffs) -> dict[JobStatus, int]:
        """Count what ``vacuum_blocks()`` would delete."""
        args = (first, 0), (first + blocks, 0), *_cutoffs(cutoffs)
        rows = await self._statements.fetch("count_in_blocks", *args)
        return {JobStatus(status): count for status, count in rows}

    async def vacuum_surplus(self, status: JobStatus, keep: int, limit: int) -> Surplus:
        """Delete at most ``limit`` jobs of a status beyond the newest ``keep`` of each name.

        The jobs are found once, and deleted in halves if the application refuses some of them.
        """
        left_out = list(self._refused_jobs.keys())
        rows = await self._statements.fetch("find_surplus", status.value, keep, limit, left_out)
        # When each job finished. A job that runs again meanwhile has another end, and is not deleted.
        ends = {row["job_id"]: row["finished_at"] for row in rows}

        async def delete(job_ids: Sequence[str]) -> list[Record]:
            """Delete some of the jobs by one statement; return the rows that were deleted."""
            ends_of_part = [ends[job_id] for job_id in job_ids]
            return await self._statements.fetch("vacuum_surplus", job_ids, ends_of_part)

        deleted = await self._refused_jobs.change_parts(list(ends), delete) if ends else []
        return Surplus(len(ends), len(deleted))

    async def vacuum_steps(self, after: str, limit: int) -> str | None:
        """Delete old steps without a job that reads them.

        Args:
            after: The id of a job; the steps of jobs with higher ids are looked at.
            limit: The number of ids to look at, and of steps to delete at most.

        Returns:
            The id to pass as ``after`` to the next call; None if no further job has steps.
        """
        args = after, limit, self._statements.now
        rows = await self._refused_steps.fetch("vacuum_steps", *args, statements=self._statements)
        return rows[-1]["job_id"] if rows else None

    async def record_vacuum(self, deleted: Mapping[JobStatus, int], worker_id: str) -> None:
        """Add deletions to the counts of the current day."""
        counts = (deleted.get(status, 0) for status in TERMINAL)
        await self._statements.fetch("record_vacuum", *counts, worker_id, self._statements.now)

    async def vacuum_stats(self, days: int) -> list[VacuumDay]:
        """Return the deletions of each of the last days, newest first."""
        rows = await self._statements.fetch("vacuum_stats", days, self._statements.now)
        return [VacuumDay(**dict(row)) for row in rows]

    async def total_vacuum_stats(self) -> VacuumTotal:
        """Return the deletions of all days by status."""
        (row,) = await self._statements.fetch("total_vacuum_stats")
        return VacuumTotal(**dict(row))

    async def _table(self) -> str:
        """Return the name of the jobs table with its schema."""
        return qualify("{schema}scheduled_jobs", await self._statements.schema())


def _cutoffs(cutoffs: Cutoffs) -> Iterator[datetime | None]:
    """Return the cutoffs in the order of ``TERMINAL``; None for a status whose jobs are kept at any age."""
    return (cutoffs.get(status) for status in TERMINAL)


def _middle(low: RowPosition, high: RowPosition) -> RowPosition | None:
    """Return a place that halves the rows between two places; None if they have one row at most.

    ``high`` is behind the last row.
    """
    (low_block, low_row), (high_block, high_row) = low, high
    # Several blocks are halved between two of them, and a single block between two of its rows.
    if high_block - low_block > 1:
        return (low_block + high_block) // 2, 0
    end_row = high_row if high_block == low_block else MAX_ROWS_OF_BLOCK
    if end_row - low_row <= 1:
        return None
    return low_block, (low_row + end_row) // 2


def _due_statuses(row: Record) -> frozenset[JobStatus]:
    """Return the statuses of which a range has a job to delete: each has a column of its name."""
    return frozenset(status for status in TERMINAL if row[status.value])
