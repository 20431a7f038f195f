"""Read, write and advance schedules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import astuple
from datetime import datetime
from typing import Any, Final, NamedTuple

from pg_scheduler.base.messages import PERIODIC
from pg_scheduler.database.faults import SuppressedChangeError
from pg_scheduler.database.refused_rows import RefusedRows
from pg_scheduler.database.session import Connection
from pg_scheduler.database.statements import Statements, Transaction
from pg_scheduler.events import SchedulePaused
from pg_scheduler.jobs.payload import object_from
from pg_scheduler.jobs.worker_report import (
    DECLARED,
    LEFT_OUT,
    TASK_METADATA,
    ReportedOptions,
    ReportedSettings,
)
from pg_scheduler.queue.consequences import EndedJob
from pg_scheduler.schedules.row import ScheduleRow

MAX_NOTE_LENGTH: Final = 1000
"""Characters of an error that are stored as the note of the schedule."""


class Plannable(NamedTuple):
    """The schedules that a node can plan.

    Attributes:
        declared: The ids of those that its code declares.
        tasks: The names of its tasks.
        kinds: The kinds of triggers that it has registered.
        zone_data: The version of its time zone data. Next fire times that older data gave count as due, so
            that they are computed again; None to leave such fire times.
    """

    declared: list[str]
    tasks: list[str]
    kinds: list[str]
    zone_data: str | None = None


class Switched(NamedTuple):
    """The result of pausing or resuming a schedule.

    Attributes:
        changed: Whether the call changed it; False if it was paused or running as wanted before.
        task: The name of its task.
    """

    changed: bool
    task: str


class LastJob(NamedTuple):
    """The unfinished last job of a schedule.

    Attributes:
        waits: Whether it waits for its first start.
        is_locked: Whether this transaction has locked it; otherwise it may be about to end.
    """

    waits: bool
    is_locked: bool


class ScheduleChange(NamedTuple):
    """How a pass of the planner changes one row.

    Attributes:
        next_fire_at: The next fire time.
        last_fire_at: The latest fire time that was planned; None keeps the stored one.
        last_job_id: The job that was enqueued last; None keeps the stored one.
        runs: Added to the runs; ``skipped`` and ``missed`` likewise.
        searched_from: The next fire time is the first one after this instant.
        tzdata: The version of the time zone data that gave it; None if none did, or it is unknown.
        is_finished: Whether there is no further fire time.
        error: Pauses the schedule with this note; None for no error.
    """

    schedule_id: str
    next_fire_at: datetime | None = None
    last_fire_at: datetime | None = None
    last_job_id: str | None = None
    runs: int = 0
    skipped: int = 0
    missed: int = 0
    searched_from: datetime | None = None
    tzdata: str | None = None
    is_finished: bool = False
    error: str | None = None


class _JobEnd(NamedTuple):
    """The end of a job, to be noted in the row of a schedule.

    Attributes:
        schedule_id: The id of the schedule, as the row of the job has it; any value if written by hand.
        job: The job that has ended.
        outcome: The status in which it ended, by which the schedule counts failures; None if the job does not
            count for the schedule.
    """

    schedule_id: object
    job: EndedJob
    outcome: str | None


IS_FINISHED: Final = ScheduleChange._fields.index("is_finished")
"""The place of this field, whose values the statement ``advance_schedules`` takes as numbers."""


def schedule_from(row: Any) -> ScheduleRow:
    """Return a `ScheduleRow` from a row of a statement, which may have the time as a further column."""
    values = dict(row)
    values.pop("now", None)
    # The array of the database arrives as a list.
    names = values.pop("names", None)
    return ScheduleRow(**values, names=None if names is None else tuple(names))


class ScheduleRepository:
    """The statements that read and write schedules."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        # These leave out rows that the database has refused to change, and log each of them.
        self._refused_changes = RefusedRows("schedule {!r} not retired or continued", are_jobs=False)
        self._refused_deletions = RefusedRows(
            "finished schedule {!r} not deleted", are_jobs=False, by_pass=True
        )

    # -- one schedule ----------------------------------------------------------------------------------

    async def get(self, schedule_id: str, *, on: Connection | None = None) -> ScheduleRow | None:
        """Return a schedule, or None if it does not exist."""
        rows = await self._statements.fetch("get_schedule", schedule_id, on=on)
        return schedule_from(rows[0]) if rows else None

    async def reported_options(self, name: str, *, on: Connection) -> ReportedOptions | None:
        """Return the options of a task as the last live worker reports them; None if no live worker does.

        ``name`` may be another name of the task.
        """
        rows = await self._statements.fetch("read_reported_options", name, self._statements.now, on=on)
        if not rows:
            return None
        task, options, metadata = rows[0]
        # ReportedSettings checks a whole report of a worker, as its row stores it. The statement has read the
        # parts about this task only, so they are put into that form.
        report = {"options": {task: object_from(options)}, TASK_METADATA: {task: object_from(metadata)}}
        return ReportedSettings(report).options_of(task)

    async def list_page(
        self,
        *,
        after: str | None,
        owner: str | None,
        paused: bool | None,
        tasks: Sequence[str] | None,
        metadata: str | None,
        due_before: datetime | None,
        limit: int,
        on: Connection | None = None,
    ) -> list[ScheduleRow]:
        """Return a page of schedules in the order of their ids."""
        rows = await self._statements.fetch(
            "list_schedules", after, owner, paused, tasks, metadata, due_before, limit, on=on
        )
        return [schedule_from(row) for row in rows]

    async def lock(
        self, schedule_ids: Collection[str], *, skip_locked: bool = False, on: Connection
    ) -> dict[str, tuple[ScheduleRow, datetime]]:
        """Lock schedules and return those that exist by id, each with the current time of the database.

        With ``skip_locked``, those that another transaction has locked are left out.
        """
        args = list(schedule_ids), self._statements.now
        if skip_locked:
            rows = await self._statements.fetch("lock_free_schedules", *args, on=on)
        else:
            rows = await self._statements.fetch("lock_schedules", *args, on=on)
        return {row["schedule_id"]: (schedule_from(row), row["now"]) for row in rows}

    async def insert(
        self, row: ScheduleRow, kinds: Sequence[str], *, on: Connection | None = None, via: str | None = None
    ) -> bool:
        """Insert a schedule if its id is free; return whether it was.

        Args:
            row: The schedule.
            kinds: The kinds of its trigger and of the triggers in it. A node that lacks one cannot plan it.
            on: The connection of a transaction.
            via: How the change was made, for its record in the audit, such as ``code``; None for the way that
                the current author has.
        """
        values = *astuple(row), list(kinds), *self._statements.author.values(via), self._statements.now
        return bool(await self._statements.fetch("insert_schedule", *values, on=on))

    async def write(
        self, row: ScheduleRow, kinds: Sequence[str], *, on: Connection, via: str | None = None
    ) -> None:
        """Overwrite the row of a schedule, which the caller has locked. Arguments are as in ``insert()``."""
        values = *astuple(row), list(kinds), *self._statements.author.values(via), self._statements.now
        await self._statements.fetch("write_schedule", *values, on=on)

    async def remove(
        self, schedule_id: str, *, on: Connection | None = None, via: str | None = None
    ) -> str | None:
        """Delete a schedule; return its task, None if it did not exist."""
        author, now = self._statements.author.values(via), self._statements.now
        task: str | None = await self._statements.value("remove_schedule", schedule_id, *author, now, on=on)
        return task

    async def pause(
        self,
        schedule_id: str,
        note: str | None,
        *,
        until: datetime | None = None,
        keeps_fire_times: bool = False,
        on: Connection | None = None,
    ) -> Switched | None:
        """Pause a schedule; return None if it does not exist.

        Args:
            schedule_id: The schedule.
            note: The reason.
            until: When the pause ends by itself; None if it does not.
            keeps_fire_times: Whether its fire times are missed ones then; otherwise they are discarded.
            on: The connection of a transaction.
        """
        # What the record of the change has besides the note.
        end_details: dict[str, Any] = {}
        if until is not None:
            end_details = {"until": until.isoformat(), "from_now": not keeps_fire_times}
        author = self._statements.author.values(note=note, **end_details)
        rows = await self._statements.fetch(
            "pause_schedule", schedule_id, note, until, keeps_fire_times, self._statements.now, *author, on=on
        )
        return Switched(*rows[0]) if rows else None

    async def resume(
        self,
        schedule_id: str,
        *,
        from_now: bool,
        since: datetime | None = None,
        on: Connection | None = None,
    ) -> Switched | None:
        """Resume a schedule; return None if it does not exist.

        Args:
            schedule_id: The schedule.
            from_now: Whether the fire times of the pause are discarded.
            since: Fire times after this instant are missed; None for all of the pause.
            on: The connection of a transaction.
        """
        since_text = None if since is None else since.isoformat()
        author = self._statements.author.values(from_now=from_now, since=since_text)
        rows = await self._statements.fetch(
            "resume_schedule", schedule_id, from_now, since, self._statements.now, *author, on=on
        )
        return Switched(*rows[0]) if rows else None

    async def note_last_job(self, schedule_id: str, job_id: str, *, on: Connection) -> bool:
        """Record the last job of a schedule; do not advance the schedule.

        Returns whether the schedule waits for the end of the job, and has no next fire time until then.
        """
        awaits_end = await self._statements.value(
            "note_last_job", schedule_id, job_id, self._statements.now, on=on
        )
        return bool(awaits_end)

    # -- declarations in code --------------------------------------------------------------------------

    async def declared(
        self, schedule_ids: Collection[str], *, on: Connection | None = None
    ) -> tuple[dict[str, ScheduleRow], datetime | None]:
        """Return by id the schedules that any code declares and those with these ids, and the time.

        The time is that of the database. It is None if there is no such schedule.
        """
        rows = await self._statements.fetch(
            "declared_schedules", self._statements.now, list(schedule_ids), on=on
        )
        now = rows[0]["now"] if rows else None
        return {row["schedule_id"]: schedule_from(row) for row in rows}, now

    async def declared_later(
        self, schedule_ids: Collection[str], worker_id: str | None, *, on: Connection | None = None
    ) -> set[str]:
        """Return those of the schedules that the code of a later worker declares, or may declare.

        A later worker is a live one that has started after the worker with this id. If the id is None, all
        live workers count.
        """
        args = list(schedule_ids), worker_id, DECLARED, LEFT_OUT, self._statements.now
        rows = await self._statements.fetch("declared_later", *args, on=on)
        return {row["schedule_id"] for row in rows}

    async def undeclared_modules(self, schedule_ids: Collection[str]) -> list[str]:
        """Return the modules of all schedules that code declares, except the given ones and retired ones.

        They are texts of the column ``module``, which may have the mark of a service behind the name.
        """
        rows = await self._statements.fetch("undeclared_modules", list(schedule_ids))
        return [row["module"] for row in rows]

    async def retire(
        self, schedule_ids: Collection[str], modules: Sequence[str], moving: Collection[str] = ()
    ) -> list[tuple[str, str]]:
        """Mark schedules as retired that no live worker declares; return their ids, each with its task.

        Args:
            schedule_ids: What the code of this process declares.
            modules: The modules that it has imported, as in the column ``module``.
            moving: The ids of schedules that a live worker will move to keys of its code.
        """
        args = list(schedule_ids), modules, DECLARED, LEFT_OUT, self._statements.now, list(moving)
        rows = await self._refused_changes.fetch("retire_schedules", *args, statements=self._statements)
        return [(row["schedule_id"], row["task"]) for row in rows]

    async def continue_stalled(self, plannable: Plannable) -> list[tuple[str, str]]:
        """Let schedules continue that wait for the end of a deleted job; return their ids and tasks.

        Args:
            plannable: What the node can plan.
        """
        args = self._statements.now, plannable.declared, plannable.tasks
        rows = await self._refused_changes.fetch("continue_schedules", *args, statements=self._statements)
        return [(row["schedule_id"], row["task"]) for row in rows]

    async def read(self, schedule_ids: Collection[str]) -> dict[str, ScheduleRow]:
        """Return those of the schedules that exist, by id."""
        rows = await self._statements.fetch("read_schedules", list(schedule_ids))
        return {row["schedule_id"]: schedule_from(row) for row in rows}

    @asynccontextmanager
    async def declaring(self, *, lock_timeout_ms: int | None = None) -> AsyncIterator[Transaction]:
        """Yield a transaction that excludes other processes which write the schedules of their code.

        Its statements fail if they wait longer than ``lock_timeout_ms``; None for the limit of the session.
        """
        async with self._statements.transaction(lock_timeout_ms=lock_timeout_ms) as transaction:
            await self._statements.execute("lock_declarations", on=transaction.connection)
            yield transaction

    async def chain_due_times(self, dedup_keys: Sequence[str], *, on: Connection) -> dict[str, datetime]:
        """Return when the pending jobs of the chains of pg_scheduler 0.2 are due, by dedup key.

        In that release each job of a schedule enqueued the next one, so a chain has one pending job.
        """
        due_times = {}
        for key in dedup_keys:
            due_at = await self._statements.value("last_chained_run", key, on=on)
            if due_at is not None:
                due_times[key] = due_at
        return due_times

    # -- planning --------------------------------------------------------------------------------------

    async def lock_due(
        self,
        plannable: Plannable,
        limit: int,
        *,
        left_out: Sequence[str] = (),
        only: Sequence[str] | None = None,
        on: Connection,
    ) -> tuple[list[ScheduleRow], datetime | None]:
        """Lock due schedules that no other process has locked; return them, and the time of the database.

        The time is None if there are none.

        Args:
            plannable: What the node can plan.
            limit: The maximum number of schedules.
            left_out: Schedules to leave.
            only: The schedules to lock; None for all others.
            on: The connection of the transaction.
        """
        args = *plannable, limit, left_out, only
        rows = await self._statements.fetch("due_schedules", self._statements.now, *args, on=on)
        now = rows[0]["now"] if rows else None
        return [schedule_from(row) for row in rows], now

    async def next_fire_in(self, plannable: Plannable, left_out: Sequence[str] = ()) -> float | None:
        """Return the seconds until the next fire time, negative if it has passed; None if there is none.

        Schedules that are ``left_out`` do not count.
        """
        args = *plannable, left_out
        seconds: float | None = await self._statements.value("next_fire", self._statements.now, *args)
        return seconds

    async def advance(self, changes: Sequence[ScheduleChange], *, on: Connection) -> None:
        """Write the changes of a pass of the planner to the rows of schedules that it has locked.

        Raises:
            SuppressedChangeError: One was not advanced. Its fire times would come again and again.
        """
        # The statement takes one array for each field, with the values of all changes.
        columns = list(zip(*changes, strict=True))
        columns[IS_FINISHED] = tuple(map(int, columns[IS_FINISHED]))
        rows = await self._statements.fetch("advance_schedules", *columns, self._statements.now, on=on)
        if len(rows) < len(changes):
            raise SuppressedChangeError

    async def lock_last_jobs(self, job_ids: Collection[str], *, on: Connection) -> dict[str, LastJob]:
        """Return by id those of the last jobs that are unfinished; lock them unless others have.

        Each result states whether this transaction has locked the job.
        """
        rows = await self._statements.fetch("lock_last_jobs", list(job_ids), on=on)
        return {row["job_id"]: LastJob(row["waits"], row["is_locked"]) for row in rows}

    async def note_ends(self, jobs: Sequence[EndedJob], transaction: Transaction) -> Sequence[str]:
        """Note in schedules that their jobs have ended: begin a fixed delay, and count failures.

        This handles a consequence of ended jobs, as ``note_ends_of_replacements()`` does. Such a handler
        returns the ids of jobs that it ends in turn. These two handlers end none.
        """
        return await self._note_ends(
            [_JobEnd(job.options.get("schedule_id"), job, job.status.value) for job in jobs], transaction
        )

    async def note_ends_of_replacements(
        self, jobs: Sequence[EndedJob], transaction: Transaction
    ) -> Sequence[str]:
        """Begin the fixed delay of schedules when the jobs that replaced their last jobs have ended.

        A call with REPLACE may replace the definition of a schedule's last job by a job of the application.
        The schedule still counts its delay from the end of that job, but not its outcome as one of its own.
        """
        # A job of a schedule has "schedule" in what its end causes. Its end is noted by note_ends().
        replacements = [job for job in jobs if "schedule" not in job.on_end]
        return await self._note_ends(
            [_JobEnd(job.on_end["fixed_delay"], job, outcome=None) for job in replacements], transaction
        )

    async def _note_ends(self, ends: Sequence[_JobEnd], transaction: Transaction) -> Sequence[str]:
        """Note the ends of jobs in the rows of schedules. This ends no further job, so it returns none."""
        on, events = transaction
        must_notify_planners = False
        # All transactions lock schedules in the order of their ids, so they cannot wait for one another in a
        # circle.
        ordered_ends = sorted(ends, key=lambda end: (str(end.schedule_id), end.job.job_id))
        for schedule_id, job, outcome in ordered_ends:
            # The options of a job, which have the id, may have been written by hand.
            if not isinstance(schedule_id, str):
                continue
            note = (job.error or "")[:MAX_NOTE_LENGTH]
            rows = await self._statements.fetch(
                "note_job_end", schedule_id, job.job_id, outcome, note, self._statements.now, on=on
            )
            for row in rows:
                # The schedule has a next fire time now, which planners do not know yet.
                if row["continues"]:
                    must_notify_planners = True
                # It has failed as often in a row as its pause_after_failures states.
                if row["paused"]:
                    events.append(SchedulePaused(schedule_id, note, task_name=row["task"]))
        if must_notify_planners:
            await self._statements.fetch("notify", [PERIODIC], on=on)
        return ()

    async def pending_jobs(
        self, schedule_id: str, *, limit: int = 1000, on: Connection | None = None
    ) -> list[str]:
        """Return the ids of pending jobs of a schedule, at most ``limit``."""
        rows = await self._statements.fetch("pending_schedule_jobs", schedule_id, limit, on=on)
        return [row["job_id"] for row in rows]

    async def vacuum(self, finished_before: datetime, limit: int) -> int:
        """Delete at most ``limit`` schedules that calls added and that finished before an instant.

        Returns how many were deleted.
        """
        args = finished_before, limit
        return await self._refused_deletions.number("vacuum_schedules", *args, statements=self._statements)
