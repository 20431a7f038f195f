"""Write the schedules declared in code to the database, and enqueue jobs at the fire times of all schedules.

Every node whose role plans has a planner. It plans the schedules that its code declares, and those whose task
and trigger it has registered. One transaction locks due rows, inserts the jobs of their fire times, notifies
workers and advances the rows; rows that another planner has locked are skipped. The fire time is part of the
job's id, so even a row that was set back by hand cannot enqueue a fire time twice while its job exists. Only
a job that was cancelled before it started, with an earlier schedule of the same id, gives way to a new one.

If older time zone data gave a next fire time, the first pass computes it again. So does one pass in each poll
interval, since nodes with older data may advance or add schedules. A fire time that has passed by the newer
data is planned as after a downtime. If the server's clock was set back, the same passes, and one right after
that step, compute the fire times again that the clock gave before. These passes also restore schedules that a
worker of another release moved before it ended, and mark those whose functions were removed from the code.

A schedule whose time zone this machine does not know is left to nodes that know it.

An error of one trigger pauses its own schedule only. Triggers of the application, which may take any time,
are called in a thread, and planned in a transaction without the others. It keeps their rows locked, so no
other node calls a trigger that hangs here.

A lock of the application delays the schedules that need it only: rows of schedules and of their last jobs are
skipped, and a transaction that waits for anything else, such as the unique key of a job that another one has
inserted, gives up after a moment. Its schedules then have turns of their own, until the lock is free. So have
those of a transaction in which a trigger or a constraint of the application refuses a row.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import ClassVar, Final, NamedTuple

from pg_scheduler.base.batches import BatchRoom
from pg_scheduler.database.blockers import Blocker
from pg_scheduler.database.faults import (
    REFUSALS,
    REFUSED_PAUSE_S,
    is_locked_out,
    is_refusal,
    may_be_of_one_change,
)
from pg_scheduler.database.session import Connection
from pg_scheduler.database.statements import Transaction
from pg_scheduler.errors import DatabaseUnavailableError, JobConflictError
from pg_scheduler.events import (
    Event,
    JobCancelled,
    PeriodicJobBroken,
    PeriodicJobPlanned,
    ScheduleBroken,
    ScheduleFinished,
    ScheduleFired,
    ScheduleMissed,
    ScheduleResumed,
    ScheduleSkipped,
)
from pg_scheduler.events.log import log_refusal, logger, record_fields
from pg_scheduler.jobs.outcome import describe
from pg_scheduler.jobs.rows import ExtendedJob
from pg_scheduler.queue.writer import JobWriter, Queue
from pg_scheduler.schedules.declarations import DeclaredSchedules
from pg_scheduler.schedules.job_builder import JobBuilders
from pg_scheduler.schedules.late_schedules import REPORT_INTERVAL_S, LateGroup, LateSchedules
from pg_scheduler.schedules.own_thread import search_in_own_thread
from pg_scheduler.schedules.policies import Overlap
from pg_scheduler.schedules.row import ScheduleRow, has_built_in_trigger
from pg_scheduler.schedules.statements import (
    MAX_NOTE_LENGTH,
    LastJob,
    Plannable,
    ScheduleChange,
    ScheduleRepository,
)
from pg_scheduler.schedules.timing import (
    Advance,
    after_insertion,
    fire_time_job_id,
    is_ahead,
    pass_time,
    with_spare,
    zone_data_of,
)
from pg_scheduler.triggers.serialization import registered_kinds
from pg_scheduler.triggers.zones import UnknownZoneError, data_version
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import Service

POLL_INTERVAL_S: Final = 120.0
"""Seconds between two reads of the schedules while notifications arrive: rows written by hand send none."""

FAST_POLL_INTERVAL_S: Final = 0.5
"""Seconds between two reads while none arrive: a schedule disabled elsewhere is disabled within a second."""

SLOW_POLL_INTERVAL_S: Final = 2.0
"""Seconds between two reads while no notifications arrive and there are no schedules: one that is added
elsewhere is found within 2 seconds. Also the seconds between two passes while nothing is registered: these
read nothing, but a module may be imported at any time."""

LOCKED_RETRY_S: Final = 0.05
"""Seconds until the next pass if no due row could be planned: all are locked, or wait for ends of jobs."""

LOCK_TIMEOUT_MS: Final = 50
"""Longest wait for a lock of a transaction that plans all due schedules."""

TURN_TIMEOUT_MS: Final = 10
"""Longest wait for a lock of a transaction that plans schedules which have met a lock before."""

REPORT_TIMEOUT_MS: Final = 100
"""Longest wait for a lock of a transaction in which the holder of the lock is looked up."""

MAX_TURNS: Final = 5
"""Turns of one pass, so that those that meet locks do not delay other schedules."""

LATE: Final = (
    "schedule %r of %s is %d s late, because it needs a lock that an open transaction holds: %s; end that "
    "transaction"
)

AHEAD: Final = (
    "the server's clock was set back since schedule %r of %s fired; its next fire time is computed again: %s"
)

STALLED: Final = (
    "schedule %r of %s waited for the end of its last job, which does not exist any more, as after a DELETE; "
    "its delay begins now"
)

MAX_ROWS: Final = 500
"""Schedules that one transaction plans."""

TIME_LIMIT_S: Final = 0.5
"""Seconds of computing in one transaction; the remaining schedules wait for the next one. So do those that
follow large arguments."""

BY_SCHEDULE: Final = "cancelled by the next fire time of its schedule"
"""The reason of a JobCancelled under Overlap.CANCEL."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The due fire times of one schedule, and the jobs that are to be inserted for them.

    If the task is unique (only one of its jobs may wait or run under a key), the database decides at the
    insert which of the jobs are enqueued.
    """

    row: ScheduleRow
    advance: Advance
    queue: Queue


class PlanningResult(NamedTuple):
    """How many schedules one planning transaction handled, and how many due ones it left to another.

    Schedules with built-in triggers and those with triggers of the application are planned in separate
    transactions.

    Attributes:
        handled: Those that it has changed or postponed.
        others_due: Those with triggers of the other kind that are due as well.
    """

    handled: int
    others_due: int


@dataclass(slots=True)
class PlannedChanges:
    """The changes that one transaction writes, and the events that follow its commit.

    Attributes:
        replaced_ids: The last jobs that new ones replace.
    """

    plans: list[Plan] = field(default_factory=list)
    changes: list[ScheduleChange] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    replaced_ids: list[str] = field(default_factory=list)


class Planner(Service):
    """Enqueue the jobs of due fire times.

    A service: it runs in passes, each of which is a call of ``run_once()``, and sleeps between them.
    """

    name: ClassVar[str] = "planner"

    def __init__(
        self, node: Node, schedules: ScheduleRepository, declared: DeclaredSchedules, builders: JobBuilders
    ) -> None:
        super().__init__(node.events)
        self._store = node.store
        self._schedules = schedules
        self._writer = JobWriter(node.store)
        self.declared = declared
        self.declared.worker_id = node.worker_id
        self._tasks = node.tasks
        self._builders = builders
        self._outbox = node.outbox
        self._signals = node.signals
        self._meter = node.meter
        self.next_fire_in: float | None = None
        """Seconds from the last pass to the next fire time, for the test kit; None if there is none."""
        self.jobs_planned = 0
        """How many jobs it has enqueued, for the test kit."""
        self._check_fire_times_at = 0.0
        """When a pass next looks for fire times to compute again, by the monotonic clock."""
        self._has_checked = False
        """Whether a pass has looked for them since the start."""
        self._late = LateSchedules()
        self._unknown_zones = node.unknown_zones
        self._late_tasks: dict[str, str] = {}
        """The tasks of the schedules that have turns of their own."""

    def declare_again(self) -> None:
        """Write the schedules of the code again: the row of this worker was lost, and theirs may be too."""
        self.declared.forget_sync()
        self.wake()

    def check_fire_times(self) -> None:
        """Let the next pass compute fire times again that the server's clock gave before it was set back."""
        self._check_fire_times_at = 0.0
        self.wake()

    async def prepare(self) -> None:
        """Make the first pass write the schedules declared in code."""
        self.declared.forget_sync()
        self._has_checked = False

    async def run_once(self) -> float:
        """Write the schedules that this process changed, then enqueue the jobs of due schedules.

        Returns the seconds after which the next pass should run, unless a signal wakes the planner earlier.
        """
        # This does nothing unless the schedules of the code have changed since the last pass.
        await self._write_declared()
        declared_ids = self.declared.ids
        zone_data = self._next_zone_data()
        plannable = Plannable(declared_ids, self._tasks.lists.names, sorted(registered_kinds), zone_data)
        self.next_fire_in = None
        # Without any schedule of the code and without any task, there is nothing that this node could plan.
        if not declared_ids and not plannable.tasks:
            return SLOW_POLL_INTERVAL_S
        late_ids_before = self._late.ids
        # The seconds until the next fire time, 0 or less if one is due; None if there is none.
        next_in = await self._schedules.next_fire_in(plannable, self._left_out)
        # The seconds that the next pass waits at least, so that locked rows do not keep this node busy.
        shortest_sleep_s = 0.0
        change_count = 0
        if next_in is not None and next_in <= 0:
            left_out = self._left_out
            result = await self._plan(plannable, built_in=True, left_out=left_out)
            change_count = result.handled
            # Triggers of the application may take any time, so their schedules have a transaction of their
            # own, which cannot delay the schedules with built-in triggers.
            if result.others_due:
                result = await self._plan(plannable, built_in=False, left_out=left_out)
                change_count += result.handled
            shortest_sleep_s = 0.0 if change_count else LOCKED_RETRY_S
        if self._late.ids:
            await self._take_turns(plannable)
        # The next fire time is read again if this pass has changed it: schedules that were planned have other
        # fire times now, postponed ones are left out of it, and a late one that had its turn counts again.
        if late_ids_before != self._late.ids or (next_in is not None and next_in <= 0):
            next_in = await self._schedules.next_fire_in(plannable, self._left_out)
        await self.declared.refresh()
        # While more schedules are due, these checks are left to a later pass. They need not wait for due
        # schedules of which this pass could change none, because their rows are locked.
        has_more = bool(change_count) and next_in is not None and next_in <= 0
        if zone_data is not None and not has_more:
            self._check_fire_times_at = time.monotonic() + POLL_INTERVAL_S
            # First the rows that a worker of another release changed get the values of the code again. Only
            # when all of them have these, schedules whose functions were removed are marked.
            if await self.declared.restore():
                await self.declared.retire()
            # A stalled schedule waits for the end of a job that no longer exists. The first check after a
            # start saves this statement, since such a schedule may wait for the next check.
            if self._has_checked and await self._continue_stalled(plannable):
                next_in = await self._schedules.next_fire_in(plannable, self._left_out)
            self._has_checked = True
        self.next_fire_in = next_in
        longest_sleep_s = self._longest_sleep_s(
            is_notified=self._signals.notifications_up.is_set,
            has_schedules=next_in is not None or bool(declared_ids),
        )
        if next_in is None:
            return longest_sleep_s
        return min(max(next_in, shortest_sleep_s), longest_sleep_s)

    def _longest_sleep_s(self, *, is_notified: bool, has_schedules: bool) -> float:
        """Return the seconds after which the next pass runs at the latest, even if no fire time is due.

        Without notifications (``is_notified``), a pass has to find the changes of other nodes soon.
        """
        if is_notified:
            longest_sleep_s = POLL_INTERVAL_S
        else:
            longest_sleep_s = FAST_POLL_INTERVAL_S if has_schedules else SLOW_POLL_INTERVAL_S
        turn_in = self._late.next_turn_in()
        if turn_in is not None:
            longest_sleep_s = min(longest_sleep_s, turn_in)
        # What another transaction has kept from being written is attempted again soon.
        if not self.declared.is_written:
            longest_sleep_s = min(longest_sleep_s, FAST_POLL_INTERVAL_S)
        return longest_sleep_s

    def _next_zone_data(self) -> str | None:
        """Return the version of the time zone data if this pass computes outdated fire times again.

        Once in each poll interval, a pass does so for fire times that older time zone data gave, or that the
        server's clock gave before it was set back. For all other passes this returns None. Such a pass also
        tries the schedules again that were left to other nodes because this machine lacks their time zone.
        """
        if time.monotonic() < self._check_fire_times_at:
            return None
        self._unknown_zones.try_again()
        # If the version is unknown, the empty text compares as older than every stored version. So this pass
        # computes again only the fire times that a clock gave which was set back.
        return data_version() or ""

    async def drain(self) -> None:
        """Before the planner stops, write the schedules that were enabled or disabled in its last pass."""
        await self._write_switches()

    @property
    def _left_out(self) -> list[str]:
        """The due schedules that have turns of their own, or a time zone that this machine does not know."""
        return [*self._late.ids, *sorted(self._unknown_zones.left_out)]

    async def _write_declared(self) -> None:
        """Write the schedules that this process declares, enables or disables since the last pass."""
        if self.declared.is_written:
            return
        if self.declared.has_more:
            # A heartbeat writes which schedules the code declares to the row of this worker. Until it does,
            # planners of other releases may retire or change them.
            self._signals.heartbeat_requested()
        await self.declared.sync()
        await self._write_switches()

    async def _write_switches(self) -> None:
        """Write which schedules this process has enabled or disabled; notify other nodes of a change."""
        if await self.declared.write_switches():
            self._signals.switches_written()

    async def _plan(
        self,
        plannable: Plannable,
        *,
        built_in: bool,
        left_out: Sequence[str] = (),
        group: LateGroup | None = None,
    ) -> PlanningResult:
        """Plan due schedules in one transaction: lock them, insert their jobs, and advance their rows.

        Args:
            plannable: What this node can plan.
            built_in: Whether to plan the schedules with built-in triggers, or those with triggers of the
                application.
            left_out: Schedules to leave: they have turns of their own, or an unknown time zone.
            group: Schedules that met a lock before, and whose turn it is; None for all others that are due.
        """
        schedules = self._schedules
        # What is to be written. It is empty if an error occurs before the schedules are planned below.
        planned = PlannedChanges()
        # The earliest due time among the new jobs, by the server's clock.
        first_due: datetime | None = None
        try:
            async with self._transaction(group) as transaction:
                connection, events = transaction
                only = None if group is None else group.schedule_ids
                locked_rows, now = await schedules.lock_due(
                    plannable, MAX_ROWS, left_out=left_out, only=only, on=connection
                )
                # Without a locked row, the statement gives no time either.
                if now is None:
                    return PlanningResult(handled=0, others_due=0)
                rows = [row for row in locked_rows if _is_built_in(row) == built_in]
                # Whether the last job has ended matters only if jobs of the schedule must not overlap.
                last_job_ids = [
                    row.last_job_id for row in rows if row.last_job_id and row.overlap != Overlap.ALLOW
                ]
                unfinished_jobs: dict[str, LastJob] = {}
                if last_job_ids:
                    unfinished_jobs = await schedules.lock_last_jobs(last_job_ids, on=connection)
                planned = await self._plan_rows(rows, now, unfinished_jobs, connection, built_in=built_in)
                due_times = (due for plan in planned.plans for due in plan.advance.due_times)
                first_due = min(due_times, default=None)
                # Normally the insert itself notifies workers. A commit that notifies waits for a lock of
                # the server, for which the turn of a late group is too short. So a group notifies after the
                # commit.
                message = None
                if first_due is not None and group is None:
                    message = self._outbox.message_to_carry(first_due)
                # The message covers jobs that were committed before this time of the monotonic clock.
                message_made_at = time.monotonic()
                queues = [plan.queue for plan in planned.plans]
                inserted_queues = await self._writer.insert_queues(
                    queues, transaction, message=message, planned_at=now
                )
                for plan, inserted in zip(planned.plans, inserted_queues, strict=True):
                    _add_change(planned, plan, inserted.jobs, inserted.conflict)
                if planned.changes:
                    await schedules.advance(planned.changes, on=connection)
                notified_worker_ids = await self._cancel_replaced(planned.replaced_ids, transaction)
                # The events of fire times precede those of the jobs that insert_queues() has blocked.
                events[:0] = planned.events
        except (DatabaseUnavailableError, *REFUSALS) as error:
            # Only an error that one schedule may have caused, such as a lock or a refused row, postpones
            # schedules. Without plans, there are no schedules to postpone.
            if not planned.plans or not may_be_of_one_change(error):
                raise
            postponed_count = self._postpone(planned.plans, group, error, built_in=built_in)
            return PlanningResult(postponed_count, others_due=0)
        job_count = sum(len(inserted.jobs) for inserted in inserted_queues)
        if job_count and first_due is not None:
            self.jobs_planned += job_count
            if group is None:
                self._outbox.carried(message_made_at, first_due)
            else:
                await self._outbox.notify_due(first_due)
        for worker_id in notified_worker_ids:
            await self._outbox.notify_worker(worker_id)
        self._count_fire_times(planned.changes)
        return PlanningResult(len(planned.changes), others_due=len(locked_rows) - len(rows))

    def _count_fire_times(self, changes: Sequence[ScheduleChange]) -> None:
        """Count the planned fire times of each schedule, if this process has metrics."""
        if self._meter is not None:
            for change in changes:
                if change.runs:
                    self._meter.count("fire_times_planned", change.schedule_id, by=change.runs)

    def _postpone(
        self, plans: Sequence[Plan], group: LateGroup | None, error: Exception, *, built_in: bool
    ) -> int:
        """Let the schedules of a failed transaction be planned later, in transactions of their own (turns).

        The transaction met a lock, or the database refused a row. Returns how many schedules this postpones;
        0 for a group, whose schedules were postponed before.
        """
        if group is not None:
            is_alone = len(group.schedule_ids) == 1
            # If the group has one schedule, that is the one whose row is refused, so it is named in the log.
            # A refusal does not end as soon as a lock, so its next turn is later.
            if is_alone and is_refusal(error):
                problem = f"schedule {group.schedule_ids[0]!r} not planned"
                log_refusal(problem, error, pause_s=REFUSED_PAUSE_S)
                self._late.postpone(group, pause_s=REFUSED_PAUSE_S)
            else:
                self._late.postpone(group)
            return 0
        # Forget the tasks of schedules that have no turns any more.
        self._late_tasks = {
            schedule_id: self._late_tasks[schedule_id]
            for schedule_id in self._late.ids
            if schedule_id in self._late_tasks
        }
        self._late_tasks |= {plan.row.schedule_id: plan.row.task for plan in plans}
        # Most often, the lock is that of another transaction that has inserted the key of a unique job. So
        # schedules of unique tasks get a group of their own, and do not delay the others further.
        for is_unique in (False, True):
            ids = [plan.row.schedule_id for plan in plans if plan.queue.is_unique == is_unique]
            self._late.put_apart(ids, is_built_in=built_in)
        return len(plans)

    async def _take_turns(self, plannable: Plannable) -> None:
        """Plan some of the groups of schedules that have met a lock, the longest due turns first."""
        for _ in range(MAX_TURNS):
            group = self._late.take_next()
            if group is None:
                return
            await self._plan(plannable, built_in=group.is_built_in, group=group)

    @asynccontextmanager
    async def _transaction(self, group: LateGroup | None) -> AsyncIterator[Transaction]:
        """Yield a transaction that does not wait long for a lock; log who has held one for long.

        The log names the sessions that hold the lock, if the group has a single schedule and its report is
        due.
        """
        statements = self._store.statements
        must_report = (
            group is not None and len(group.schedule_ids) == 1 and time.monotonic() > group.report_at
        )
        # Type checkers need the first condition, which the second one implies.
        if group is None or not must_report:
            timeout_ms = LOCK_TIMEOUT_MS if group is None else TURN_TIMEOUT_MS
            async with statements.transaction(savepoints=False, lock_timeout_ms=timeout_ms) as transaction:
                yield transaction
            return
        blockers: list[Blocker] = []
        try:
            async with (
                statements.transaction(lock_timeout_ms=REPORT_TIMEOUT_MS) as transaction,
                self._store.locks.watching(transaction.connection, blockers),
            ):
                yield transaction
        except DatabaseUnavailableError as fault:
            if is_locked_out(fault):
                now = time.monotonic()
                group.report_at = now + REPORT_INTERVAL_S
                late_id = group.schedule_ids[0]
                # The holder may have ended its transaction before it was looked up.
                holders = " and ".join(map(str, blockers)) or "which pg_stat_activity may show"
                late_s = now - group.since
                logger.warning(
                    LATE, late_id, self._late_tasks.get(late_id), late_s, holders, extra=record_fields()
                )
            raise

    async def _continue_stalled(self, plannable: Plannable) -> bool:
        """Let schedules continue that wait for the end of a deleted job; return whether there were any."""
        stalled_schedules = await self._schedules.continue_stalled(plannable)
        for schedule_id, task in stalled_schedules:
            logger.warning(STALLED, schedule_id, task, extra=record_fields())
        return bool(stalled_schedules)

    async def _cancel_replaced(self, job_ids: Sequence[str], transaction: Transaction) -> list[str]:
        """Cancel the last jobs that new ones replace (`Overlap.CANCEL`); return the workers that run them.

        This is done in the transaction that enqueues the new jobs. If the process ended between two
        transactions, no one would know that the last jobs are to be cancelled.
        """
        worker_ids: list[str] = []
        for job_id in sorted(job_ids):  # the order in which all transactions lock jobs
            change = await self._store.jobs.cancel_within(transaction, job_id, BY_SCHEDULE)
            # The worker that runs the job publishes the event.
            if change.worker_id is not None:
                worker_ids.append(change.worker_id)
            elif change.changed:
                transaction.events.append(
                    JobCancelled(job_id, change.job_name, change.attempt, reason=BY_SCHEDULE)
                )
        return worker_ids

    async def _plan_rows(
        self,
        rows: Sequence[ScheduleRow],
        now: datetime,
        unfinished_jobs: Mapping[str, LastJob],
        connection: Connection,
        *,
        built_in: bool,
    ) -> PlannedChanges:
        """Return the plans of due schedules, and the changes and events of those that cannot be planned.

        A schedule whose trigger fails gets a change that pauses it. One whose time zone is unknown on this
        machine, or that has to wait, is left unchanged.
        """
        planned = PlannedChanges()
        # It bounds the transaction by the number of schedules and the size of their jobs.
        room = BatchRoom(MAX_ROWS)
        began = time.monotonic()
        for row in rows:
            plan = None
            try:
                plan = await self._plan_row(row, now, unfinished_jobs, connection, built_in=built_in)
            except DatabaseUnavailableError:
                raise
            except UnknownZoneError as error:
                self._unknown_zones.add(row.schedule_id, row.task, error.zone)
            except Exception as error:  # noqa: BLE001 - user code: a trigger of the application, and its row
                planned.changes.append(
                    ScheduleChange(row.schedule_id, error=describe(error)[:MAX_NOTE_LENGTH])
                )
                kind = PeriodicJobBroken if row.owner == "code" else ScheduleBroken
                planned.events.append(kind(row.schedule_id, error, task_name=row.task))
            else:
                if plan is not None:
                    planned.plans.append(plan)
            # Other tasks of the event loop get their turn between two schedules.
            await asyncio.sleep(0)
            characters = 0 if plan is None else sum(job.characters for job in plan.queue.jobs)
            # The remaining schedules wait for the next transaction.
            if time.monotonic() > began + TIME_LIMIT_S or not room.take(characters):
                break
        return planned

    async def _plan_row(
        self,
        row: ScheduleRow,
        now: datetime,
        unfinished_jobs: Mapping[str, LastJob],
        connection: Connection,
        *,
        built_in: bool,
    ) -> Plan | None:
        """Return the plan of a due schedule; None to leave it to the next pass, here or on another node."""
        last_job = None if row.last_job_id is None else unfinished_jobs.get(row.last_job_id)
        # A busy schedule drops the fire time: its last job is unfinished and the policy is SKIP, or that job
        # waits for its first start and the policy allows a single waiting job.
        is_busy = last_job is not None and (
            row.overlap == Overlap.SKIP or (row.overlap == Overlap.QUEUE_ONE and last_job.waits)
        )
        # New jobs of a schedule that is not busy have to wait for the last one. If this transaction could not
        # lock that job, it may be about to end. The next pass finds out.
        if last_job is not None and not is_busy and not last_job.is_locked:
            return None
        builder = self._builders.builder(row)
        # The unique key follows from arguments that only a node with the codec can read, so such a node plans
        # the schedule. An error here would pause the schedule for that node too.
        if builder.lacks_unique_key:
            return None
        search = partial(
            pass_time,
            row,
            now,
            grace_s=builder.common_row.misfire_grace_time,
            is_busy=is_busy,
            is_unique=builder.is_unique,
        )
        # A trigger of the application may block for any time, so it is not called in the event loop.
        advance = search() if built_in else await search_in_own_thread(row.trigger, search)
        # Jobs of some fire times may exist, for example by a backfill. Spare fire times take their places.
        if advance.spare:
            advance = with_spare(row, advance, await self._enqueued(row, advance, connection))
        # The schedule has fired at a time that the clock has not reached again, so the clock was set back.
        if is_ahead(row, now) and not advance.fire_times:
            self._signals.schedule_was_ahead()
            logger.warning(
                AHEAD,
                row.schedule_id,
                row.task,
                advance.next_fire_at,
                extra=record_fields(),
            )
        jobs = [
            builder.fire_time_job(fire_time, due_time, now)
            for fire_time, due_time in zip(advance.fire_times, advance.due_times, strict=True)
        ]
        queue = Queue(
            row.schedule_id,
            jobs,
            last_job_id=None if last_job is None else row.last_job_id,
            is_ordered=row.overlap != Overlap.ALLOW,
            is_unique=builder.is_unique,
            added_at=row.created_at,
        )
        return Plan(row, advance, queue)

    async def _enqueued(self, row: ScheduleRow, advance: Advance, connection: Connection) -> set[datetime]:
        """Return the fire times for which a job of the schedule exists already.

        Jobs that were cancelled with an earlier schedule of this id do not count: their ids are freed first.
        """
        fire_times_by_job_id = {
            fire_time_job_id(row.schedule_id, fire_time, owner=row.owner): fire_time
            for fire_time in (*advance.fire_times, *advance.spare)
        }
        jobs = self._store.jobs
        added_at = {row.schedule_id: row.created_at}
        await jobs.free_fire_times(fire_times_by_job_id, added_at, connection)
        existing_ids = await jobs.statuses_of(fire_times_by_job_id, connection=connection)
        return {fire_times_by_job_id[job_id] for job_id in existing_ids}


def _add_change(
    planned: PlannedChanges, plan: Plan, new_jobs: Sequence[ExtendedJob], conflict: JobConflictError | None
) -> None:
    """Add to ``planned`` the change of a schedule and its events, after its jobs were inserted.

    ``new_jobs`` may lack some of the plan's jobs. The database rejects a job of a unique task while another
    job has the key, which ``conflict`` describes. Other jobs exist already: by a backfill, from before the
    server's clock was set back, or of an earlier schedule with this id that left them to run.
    """
    row = plan.row
    advance = after_insertion(row, plan.advance, len(new_jobs), is_unique=plan.queue.is_unique)
    schedule_id, task = row.schedule_id, row.task
    if row.overlap == Overlap.CANCEL and new_jobs and plan.queue.last_job_id is not None:
        planned.replaced_ids.append(plan.queue.last_job_id)
    kind = PeriodicJobPlanned if row.owner == "code" else ScheduleFired
    events: list[Event] = []
    # A paused schedule is due only when its pause has ended by itself, so planning it resumes it.
    if row.paused_at is not None:
        events.append(ScheduleResumed(schedule_id, task_name=task))
    events += [kind(schedule_id, job.row.job_id, advance.next_fire_at, task_name=task) for job in new_jobs]
    if advance.skipped:
        # The job because of which fire times were dropped: the last one, or the one that has the unique key.
        unfinished_id = row.last_job_id if conflict is None else conflict.job_id
        events.append(ScheduleSkipped(schedule_id, advance.skipped, unfinished_id or "", task_name=task))
    if advance.missed:
        events.append(ScheduleMissed(schedule_id, advance.missed, advance.is_exact, task_name=task))
    if advance.is_finished and row.finished_at is None:
        events.append(ScheduleFinished(schedule_id, task_name=task))
    planned.events += events
    planned.changes.append(
        ScheduleChange(
            schedule_id,
            next_fire_at=advance.next_fire_at,
            last_fire_at=advance.last_fire_at,
            last_job_id=new_jobs[-1].row.job_id if new_jobs else None,
            runs=len(new_jobs),
            skipped=advance.skipped,
            missed=advance.missed,
            searched_from=advance.searched_from,
            tzdata=zone_data_of(row),
            is_finished=advance.is_finished,
        )
    )


def _is_built_in(row: ScheduleRow) -> bool:
    """Return whether the trigger of a schedule is one of this package, so that no user code is called.

    A trigger that cannot be read counts as built in. Planning the schedule then reports the error.
    """
    try:
        return has_built_in_trigger(row.trigger)
    except ValueError:
        return True
