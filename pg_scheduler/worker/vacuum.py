"""Delete finished jobs past their retention.

It walks over the table in steps of some thousand blocks, each a short transaction. So it needs no index on
finished jobs, and holds no lock for long. One worker makes a pass for all that have the same policies; the
table ``scheduler_vacuum_passes`` records which worker has its turn. The table ``scheduler_vacuum_ranges``
records when a range of blocks may first have a job to delete, and a pass reads no range before that time. A
pass that a person requests reads all ranges.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import ClassVar, Final, NamedTuple, Protocol
from uuid import UUID

from pg_scheduler.base.settings import VacuumConfig, VacuumPolicy, VacuumTrigger
from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.author import logging_refusal_of
from pg_scheduler.database.refused_rows import MAX_REFUSALS
from pg_scheduler.events import EventBus, JobsVacuumed
from pg_scheduler.worker.retention import BlockRange, Cutoffs
from pg_scheduler.worker.service import Service
from pg_scheduler.worker.store import WorkerStore

SCHEDULES_BATCH_SIZE: Final = 1000
AUDIT_BATCH_SIZE: Final = 1000

STATISTICS_DAYS: Final = ((60, 600, 0.25), (600, 3600, 7.0), (3600, None, 90.0))
"""For each span of statistics in seconds: the longer span that its rows are merged into, None to delete them,
and their age in days at that time."""


class OldSchedules(Protocol):
    """The schedules that a pass may delete; see ``schedules/statements.py``."""

    async def vacuum(self, before: datetime, limit: int) -> int:
        """Delete at most ``limit`` schedules that finished before an instant; return how many."""


class OldStatistics(Protocol):
    """The statistics that a pass may merge; see ``statistics/statements.py``."""

    async def fold(self, span_s: int, longer_s: int | None, days: float, limit: int) -> int:
        """Merge rows of a span that are older than ``days`` into rows of a longer span, and delete them.

        Both spans are in seconds. If ``longer_s`` is None, only delete the rows. Merge or delete at most
        ``limit`` rows, and return how many these were.
        """


class OldStreams(Protocol):
    """What jobs have published that have no row any more; see ``streams/statements.py``."""

    async def vacuum(self, after: str) -> tuple[str | None, bool]:
        """Delete a batch of rows of the jobs with ids after this one.

        Return the last id of the batch, None at the end; and whether more rows of the batch are left.
        """


class VacuumStep(NamedTuple):
    """A step of a pass over the table.

    Attributes:
        done: The blocks that were read so far.
        blocks: The blocks of the table.
        jobs: The number of jobs that the step deleted, by status.
    """

    done: int
    blocks: int
    jobs: Counter[JobStatus]


class Vacuum(Service):
    """Delete finished jobs past their retention."""

    name: ClassVar[str] = "vacuum"
    interval_jitter = 0.1
    """The random share of the interval between two passes."""
    check_interval_s = 600.0
    """Seconds after which a worker checks again whether the worker that makes the pass still runs."""
    step_blocks = 2000
    """Blocks of the table that one step walks over."""
    pause_s = 0.1
    """Seconds between two steps, several times as long as a step takes: jobs come first."""
    surplus_batch_size = 10_000
    """Rows that one statement deletes beyond ``keep_last``."""
    statistics_batch_size = 500
    """Rows of statistics that one statement merges or deletes."""

    def __init__(
        self,
        store: WorkerStore,
        events: EventBus,
        config: VacuumConfig,
        worker_id: str,
        *,
        schedules: OldSchedules,
        statistics: OldStatistics,
        streams: OldStreams,
        deleted: Counter[JobStatus] | None = None,
    ) -> None:
        super().__init__(events)
        self._store = store
        self._schedules = schedules
        self._statistics = statistics
        self._streams = streams
        self._config = config
        self._worker_id = worker_id
        self._walk: AsyncIterator[VacuumStep] | None = None
        self._walked_until = -1
        """The first block of the range that the walk read last; -1 before a walk."""
        self._key = _key(config)
        self._deleted: Counter[JobStatus] = Counter() if deleted is None else deleted
        """Jobs that were deleted since the last report. The completer may count what it deletes, too."""
        self._policies: Mapping[JobStatus, VacuumPolicy] = {
            JobStatus.COMPLETED: config.completed,
            JobStatus.FAILED: config.failed,
            JobStatus.CANCELLED: config.cancelled,
            JobStatus.EXPIRED: config.expired,
        }

    async def run_once(self) -> float:
        """Make one step of the pass over the table, if it is this worker's turn.

        One worker makes a pass for all workers with the same policies. Return the seconds until the next step
        of this pass, or until this worker asks again whether it is to begin a pass.
        """
        if self._walk is None:
            interval = self._config.interval_minutes * 60
            jitter = self.interval_jitter * interval
            due_in = await self._store.retention.begin_pass(
                self._key, self._worker_id, after_s=interval - jitter, within_s=interval
            )
            # Another worker makes the pass, or none is due yet.
            if due_in != 0:
                # Without a pass, there may be jobs to report too, because the completer counts those that it
                # deletes.
                await self.drain()
                later = random.uniform(0, 2 * jitter)  # noqa: S311 - jitter, no secret
                # None: another worker makes the pass, and may end in the middle of it.
                return self.check_interval_s if due_in is None else min(due_in + later, self.check_interval_s)
            self._walk = self.steps(skip=True)
        # A pass of this service takes one step of the walk. If there is no step, the walk has ended.
        try:
            async for step in self._walk:
                self._deleted.update(step.jobs)
                return self.pause_s
        except Exception:
            # The error has ended the generator. The next pass makes another one, which continues the walk.
            self._walk = None
            raise
        self._walk, self._walked_until = None, -1
        await self._store.retention.end_pass(self._key, self._worker_id)
        return 0

    async def drain(self) -> None:
        """Report what was deleted since the last report."""
        deleted = self._deleted.copy()
        await self.report(deleted)
        # A subtraction, because more may have been counted while the report was written.
        self._deleted -= deleted

    async def run(self) -> dict[JobStatus, int]:
        """Apply every policy now; return the number of deleted jobs of each status."""
        deleted = Counter(dict.fromkeys(self._policies, 0))
        async for step in self.steps():
            deleted.update(step.jobs)
        await self.report(deleted)
        return dict(deleted)

    async def preview(self) -> AsyncIterator[VacuumStep]:
        """Yield steps with the numbers of jobs that ``run()`` would delete, and delete nothing.

        Policies that keep a number of jobs are not counted: that would read the whole table at once.
        """
        cutoffs = await self._cutoffs()
        blocks = await self._store.retention.table_blocks() if cutoffs else 0
        step = self.step_blocks
        for first_block in range(0, blocks, step):
            counts = await self._store.retention.count_in_blocks(first_block, step, cutoffs)
            yield VacuumStep(min(first_block + step, blocks), blocks, Counter(counts))

    async def _cutoffs(self) -> Cutoffs:
        """Return by status the instant before which jobs must have ended to be deleted by their age."""
        ages: dict[JobStatus, timedelta] = {}
        for status, policy in self._policies.items():
            age = _age(policy)
            if age is not None:
                ages[status] = age
        if not ages:
            return {}
        now = await self._store.statements.read_clock()
        return {status: now - age for status, age in ages.items()}

    async def steps(self, *, skip: bool = False) -> AsyncIterator[VacuumStep]:
        """Apply every policy, and yield after each step what it deleted.

        Args:
            skip: Whether to leave out the ranges of blocks that cannot have a job to delete.
        """
        cutoffs = await self._cutoffs()
        step = self.step_blocks
        # Without a policy by age, the table is not walked over.
        blocks = await self._store.retention.table_blocks() if cutoffs else 0
        ranges = await self._store.retention.read_ranges(step, cutoffs) if cutoffs else []
        if skip:
            ranges = [block_range for block_range in ranges if block_range.may_have_due]
            # If an error ended the last walk in a range, the ranges behind it come first. False sorts before
            # True, and the order is kept otherwise.
            ranges.sort(key=lambda block_range: block_range.first <= self._walked_until)
        for block_range in ranges:
            self._walked_until = block_range.first
            deleted = await self._vacuum_range(block_range, cutoffs)
            yield VacuumStep(min(block_range.first + step, blocks), blocks, deleted)
        async for deleted in self._delete_others():
            yield VacuumStep(blocks, blocks, deleted)

    async def _vacuum_range(self, blocks: BlockRange, cutoffs: Cutoffs) -> Counter[JobStatus]:
        """Delete the jobs of a range of blocks that have to be deleted.

        The statuses that the last reading of the range found come first. The range is then read again, and
        jobs of the statuses that this reading finds are deleted too.
        """
        retention, deleted, due_statuses = self._store.retention, Counter[JobStatus](), blocks.due
        # The first round deletes what the last reading found, and the second one what this reading finds.
        for _ in range(2):
            due_cutoffs = {status: cutoffs[status] for status in due_statuses}
            deleted.update(await retention.vacuum_blocks(blocks.first, self.step_blocks, due_cutoffs))
            known_statuses = await retention.note_range(blocks.first, self.step_blocks, cutoffs)
            # The reading found no further status. If jobs are left, their consequences are not applied yet,
            # or their rows are locked. A second round would not delete them either.
            if known_statuses <= due_statuses:
                break
            due_statuses = known_statuses
        return deleted

    async def _delete_others(self) -> AsyncIterator[Counter[JobStatus]]:
        """Delete what no walk over the table finds, and yield after each batch how many jobs it has deleted.

        It yields after batches of other rows too, with no jobs, so that the caller can pause.
        """
        await self._delete_schedules()
        with logging_refusal_of("the deletion of old records"):
            await self._delete_audit()
        with logging_refusal_of("to merge old statistics"):
            size = self.statistics_batch_size
            for span_s, longer_s, days in STATISTICS_DAYS:
                # As long as a batch is full, there may be more.
                while await self._statistics.fold(span_s, longer_s, days, size) == size:
                    yield Counter()
        batch_size = self.surplus_batch_size
        # Results of jobs that are past their lifetime.
        while await self._store.kept_results.vacuum(batch_size) >= batch_size:
            yield Counter()
        # Steps without a job that reads them, in the order of the ids of their jobs.
        after = ""
        while (last_id := await self._store.retention.vacuum_steps(after, batch_size)) is not None:
            after = last_id
            yield Counter()
        # Entries about deadlines that no unfinished job has, in the order of their random ids.
        entry_id: UUID | None = None
        while (entry_id := await self._store.jobs.vacuum_deadlines(entry_id, batch_size)) is not None:
            yield Counter()
        # What jobs have published that were deleted or replaced since, in the order of their ids.
        next_id: str | None = ""
        while next_id is not None:
            last_id, has_more = await self._streams.vacuum(next_id)
            next_id = next_id if has_more else last_id
            if next_id is not None:
                yield Counter()
        for status, policy in self._policies.items():
            if policy.keep_count is None:
                continue
            has_more = True
            while has_more:
                # The surplus is the jobs of each name beyond the newest ``keep_count``.
                surplus = await self._store.retention.vacuum_surplus(status, policy.keep_count, batch_size)
                yield Counter({status: surplus.deleted})
                # The rest is left to the next pass if the application refuses more of it than it accepts.
                is_worth_it = surplus.size - surplus.deleted <= surplus.deleted + MAX_REFUSALS
                has_more = is_worth_it and surplus.size >= batch_size

    async def _delete_schedules(self) -> None:
        """Delete schedules that have finished."""
        age = _age(self._config.schedules)
        if age is None:
            return
        finished_before = await self._store.statements.read_clock() - age
        while await self._schedules.vacuum(finished_before, SCHEDULES_BATCH_SIZE) >= SCHEDULES_BATCH_SIZE:
            pass

    async def _delete_audit(self) -> None:
        """Delete records of changes, and bulk runs."""
        age = _age(self._config.audit)
        if age is None:
            return
        recorded_before = await self._store.statements.read_clock() - age
        while await self._store.audit.vacuum(recorded_before, AUDIT_BATCH_SIZE) == AUDIT_BATCH_SIZE:
            pass

    async def report(self, deleted: Counter[JobStatus]) -> None:
        """Count deletions in the statistics of the day, and publish them."""
        if not deleted.total():
            return
        if self._config.track_metrics:
            with logging_refusal_of("the number of deleted jobs"):
                await self._store.retention.record_vacuum(deleted, self._worker_id)
        self._events.publish(JobsVacuumed(**{status.value: deleted[status] for status in self._policies}))


def _age(policy: VacuumPolicy) -> timedelta | None:
    """Return the age at which a policy deletes jobs or other rows; None if it does not delete by age."""
    if policy.trigger is VacuumTrigger.IMMEDIATE:
        return timedelta(0)
    return None if policy.days is None else timedelta(days=policy.days)


def _key(config: VacuumConfig) -> str:
    """Return the policies of a vacuum as text, which is the same for all workers with the same policies."""
    values = asdict(config)
    del values["interval_minutes"]
    return json.dumps(values, default=lambda trigger: trigger.value, sort_keys=True)
