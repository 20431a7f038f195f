"""Change every job of a search, or of a list of ids, in batches."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Final, NamedTuple, TypeVar

from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.author import Author, acting_as
from pg_scheduler.inspect.pages import Wanted, find_page
from pg_scheduler.inspect.store.bulk import Batch, BulkAction, ChangeOutcome, JobChange
from pg_scheduler.inspect.store.searches import Condition, Scan
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.inspect.texts import counted, extent_of
from pg_scheduler.jobs.model import Job

BATCH_SIZE: Final = 500
"""Jobs of a transaction."""

ALLOWED: Final[Mapping[BulkAction, AbstractSet[JobStatus]]] = {
    "cancel": {JobStatus.PENDING, JobStatus.RUNNING},
    "retry": {JobStatus.FAILED, JobStatus.EXPIRED, JobStatus.CANCELLED, JobStatus.COMPLETED},
    "delete": set(JobStatus) - {JobStatus.RUNNING},
    "move": {JobStatus.PENDING},
}
"""The statuses of jobs that each action changes."""

RULES: Final[Mapping[BulkAction, str]] = {
    "cancel": "only pending and running jobs can be cancelled",
    "retry": "only finished jobs can run again, and only while no unfinished job has their unique key; a "
    "cancelled one only when its attempt, and the job before it in its schedule, have ended; from a step "
    "only if they have stored it",
    "delete": "running jobs, and those for whose end others wait, cannot be deleted",
    "move": "only pending jobs can be moved, and a job that waits without end only to a given time",
}
"""Why each action refuses jobs, as every front end states it."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a bulk action. The action is complete if ``cursor`` is None."""

    done: int
    """Jobs that were changed; in a dry run, jobs whose status allows the change."""
    skipped: int
    """Jobs that do not exist, or that did not match the search any more when they were locked."""
    refused: int
    """Jobs whose state does not allow the action, or that a trigger or a constraint of yours refused."""
    total_estimate: int | None
    """About how many jobs the whole action examines; None if the table was never analyzed."""
    cursor: str | None
    """The ``after=`` with which another call continues behind these jobs; None if no jobs are left."""
    searched: int = 0
    """Jobs that were examined, including those that earlier calls examined before the cursor."""
    changes: Sequence[JobChange] = field(default=(), repr=False)
    """The jobs of the latest batch."""
    children: int = 0
    """Children that were changed with their jobs, if the action includes them. A dry run counts none."""

    @property
    def summary(self) -> str:
        """The numbers of changed, refused, skipped and searched jobs in one line, as in every front end."""
        children = f" with {counted(self.children, 'child job')}" if self.children else ""
        counts = f"{self.done:,} done{children}, {self.refused:,} refused, {self.skipped:,} skipped"
        extent = extent_of(self.searched, self.total_estimate, is_complete=self.cursor is None)
        return f"{counts}; searched {extent}"


class _BatchJobs(NamedTuple):
    """The jobs of the next batch.

    Attributes:
        progress: The progress after the jobs were read, before any of them is changed.
        job_ids: The ids of the jobs.
        conditions: The conditions that the jobs must still fulfil when they are locked.
        jobs: The jobs that exist and match, by id. Listed jobs are read only for a dry run.
    """

    progress: Progress
    job_ids: Sequence[str]
    conditions: Sequence[Condition]
    jobs: dict[str, Job]


@dataclass(frozen=True, slots=True)
class BulkRun:
    """A bulk action on the jobs of a list or of a search."""

    store: InspectionStore
    """The tables for the changes."""
    reads: InspectionStore
    """The tables in which the jobs are searched, which may be those of a standby."""
    author: Author
    batch: Batch
    """What all batches share: the action and its values, without the jobs."""
    job_ids: Sequence[str] | None
    """The ids of a list; None if the jobs are those of the search ``wanted``."""
    wanted: Wanted
    limit: int | None = None
    """The number of jobs to change; None for no limit."""
    rate: float | None = None
    """Jobs per second; None for no limit."""
    is_dry: bool = False
    """Whether the outcomes are only estimated, and no job is changed."""
    after: str | None = None
    """The cursor behind which the action begins; None for the first job."""
    clock: Callable[[], float] = field(default=monotonic)

    async def steps(self) -> AsyncGenerator[Progress, None]:
        """Change the jobs batch by batch, and yield the progress so far after each batch."""
        progress = Progress(0, 0, 0, None, self.after)
        while True:
            started_at_s = self.clock()
            previous_cursor = progress.cursor
            size = self._size(progress.done)
            read = self._read_ids if self.job_ids is not None else self._search
            progress, job_ids, conditions, jobs = await read(progress, size)
            if self.is_dry:
                progress = _added(progress, [self._judge(job_id, jobs.get(job_id)) for job_id in job_ids])
            # A background run is the subject of its batches. Each of them moves the cursor in the row of the
            # run, so it is written even if it has no job.
            elif job_ids or self.batch.subject is not None:
                batch = replace(
                    self.batch,
                    job_ids=job_ids,
                    conditions=conditions,
                    after=previous_cursor,
                    next=progress.cursor,
                    searched=progress.searched,
                    total_estimate=progress.total_estimate,
                )
                # The rows that the batch writes name the author of the context. A task keeps the context in
                # which it is created. The consumer of the steps may be another author.
                with acting_as(self.author):
                    task = asyncio.ensure_future(self.store.bulk.change(batch))
                changes = await _finish(task)
                progress = _added(progress, changes.jobs, children=changes.children)
            yield progress
            if progress.cursor is None or progress.done == self.limit:
                return
            # The next batch begins when the jobs of this one have taken their time at the rate. The time in
            # which the consumer of the steps handled this one counts too.
            if self.rate is not None and not self.is_dry:
                next_batch_at_s = started_at_s + len(job_ids) / self.rate
                await asyncio.sleep(next_batch_at_s - self.clock())

    def _size(self, done: int) -> int:
        """Return the maximum number of jobs of the next batch: with a rate, the jobs of one second."""
        sizes = [BATCH_SIZE]
        if self.limit is not None:
            sizes.append(self.limit - done)
        if self.rate is not None and not self.is_dry:
            sizes.append(max(int(self.rate), 1))
        return min(sizes)

    async def _read_ids(self, progress: Progress, size: int) -> _BatchJobs:
        """Return the next of the listed jobs. Their rows are read only for a dry run.

        The cursor of a list is the last id of a batch.
        """
        job_ids = self.job_ids or ()
        start = 0 if progress.cursor is None else job_ids.index(progress.cursor) + 1
        batch_ids = job_ids[start : start + size]
        jobs = await self._read_matching(batch_ids) if self.is_dry else {}
        end = start + len(batch_ids)
        cursor = batch_ids[-1] if end < len(job_ids) else None
        next_progress = replace(
            progress, cursor=cursor, searched=end, total_estimate=len(job_ids), changes=()
        )
        return _BatchJobs(next_progress, batch_ids, self.batch.conditions, jobs)

    async def _read_matching(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """Return the jobs of these ids that fulfil the conditions, by id."""
        # All of these ids are examined, and all of them may match.
        scan = Scan(self.batch.conditions, limit=len(job_ids), rows=len(job_ids))
        async with self.reads.searches.transaction() as connection:
            examined = await self.reads.searches.ids(job_ids, scan, on=connection)
        return self._matching(job for job, _ in examined.jobs)

    async def _search(self, progress: Progress, size: int) -> _BatchJobs:
        """Return the jobs of the next page of the search."""
        page, conditions = await find_page(self.reads, self.wanted, limit=size, after=progress.cursor)
        jobs = self._matching(page.items)
        next_progress = replace(
            progress,
            cursor=page.next,
            searched=page.searched,
            total_estimate=page.total_estimate,
            changes=(),
        )
        return _BatchJobs(next_progress, list(jobs), conditions, jobs)

    def _matching(self, jobs: Iterable[Job]) -> dict[str, Job]:
        """Return the jobs that fulfil the further condition of the batch, by id."""
        return {job.job_id: job for job in jobs if self.batch.matches is None or self.batch.matches(job)}

    def _judge(self, job_id: str, job: Job | None) -> JobChange:
        """Return the probable outcome for a job; ``job`` is None if it does not exist or does not match."""
        if job is None:
            return JobChange(job_id, None, None, ChangeOutcome.SKIPPED)
        is_allowed = job.status in ALLOWED[self.batch.action]
        outcome = ChangeOutcome.DONE if is_allowed else ChangeOutcome.REFUSED
        return JobChange(job_id, job.job_name, job.status, outcome)


def _added(progress: Progress, changes: Sequence[JobChange], *, children: int = 0) -> Progress:
    """Return the progress after a batch: the numbers so far plus those of these changes."""
    counts = Counter(change.outcome for change in changes)
    return replace(
        progress,
        done=progress.done + counts[ChangeOutcome.DONE],
        skipped=progress.skipped + counts[ChangeOutcome.SKIPPED],
        refused=progress.refused + counts[ChangeOutcome.REFUSED],
        changes=tuple(changes),
        children=progress.children + children,
    )


async def _finish(task: asyncio.Task[T]) -> T:
    """Return the result of the task, even if the caller is cancelled while it waits for the result.

    The cancellation then follows at the next await of the caller. If it came at once, it would be unknown
    whether the transaction was committed, and where to continue.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # Without this, a task that was cancelled itself would look like a cancelled caller.
        if task.cancelled():
            raise
        caller = asyncio.current_task()
        result = await task
        if caller is not None:
            # The cancellation was delivered above, so it is requested again. uncancel() keeps the number of
            # requests that the task counts.
            caller.uncancel()
            caller.cancel()
        return result
