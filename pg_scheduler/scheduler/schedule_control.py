"""Read, pause, resume, remove and trigger schedules."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal

from pg_scheduler.base.messages import PERIODIC
from pg_scheduler.database.callers.adapter import AnyConnection
from pg_scheduler.database.session import Connection
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.events import Event, SchedulePaused, ScheduleRemoved, ScheduleResumed
from pg_scheduler.jobs.model import JobFunction, Page, stand_in_of
from pg_scheduler.jobs.naming import FUNCTIONS, check_name
from pg_scheduler.jobs.payload import decode, encode_object
from pg_scheduler.jobs.validation import check_count, check_execution_time, check_kind, check_text
from pg_scheduler.scheduler.control import cancel_job
from pg_scheduler.scheduler.parts import Parts
from pg_scheduler.schedules.definition import check_schedule_id
from pg_scheduler.schedules.schedule import Schedule, schedule_from_row
from pg_scheduler.schedules.writer import ScheduleWriter
from pg_scheduler.triggers.search import INSTANT

MAX_PAGE_LENGTH: Final = 10_000
MAX_BACKFILL: Final = 100_000


class ScheduleControl:
    """The methods of ``scheduler.schedules`` that do not change a definition."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._store = parts.store
        self._writer = ScheduleWriter(
            parts.store,
            parts.store.schedules,
            parts.schedule_jobs,
            max_payload_bytes=parts.config.max_payload_bytes,
        )

    async def get(self, schedule_id: str, *, connection: AnyConnection | None = None) -> Schedule | None:
        """Return the schedule, or None if it does not exist.

        Args:
            schedule_id: The schedule.
            connection: A connection of yours, as in ``Scheduler.schedule()``; the call sees what its
                transaction has changed.
        """
        checked = await self._store.connections.check_call(connection)
        row = await self._store.schedules.get(check_schedule_id(schedule_id), on=checked)
        return None if row is None else schedule_from_row(row, self._store.statements.codec)

    async def list(
        self,
        *,
        owner: Literal["code", "api"] | None = None,
        paused: bool | None = None,
        task: JobFunction | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        due_before: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
        connection: AnyConnection | None = None,
    ) -> Page[Schedule]:
        """Return a page of schedules, ordered by id.

        Args:
            owner: Only those that ``@periodic`` declares ("code") or that calls added ("api").
            paused: Only those that are paused, or only the others.
            task: Only those of this function or task name. If the task is registered here, its former names
                and aliases are found too.
            metadata: Only those whose metadata contains this object.
            due_before: Only those whose next fire time is before this timezone-aware time.
            after: ``next`` of the previous page; None for the first page.
            limit: Schedules per page, 1 to 10,000.
            connection: A connection of yours, as in ``get()``.

        Raises:
            ValueError: A time is naive, or another value is out of range.
            PayloadError: JSON cannot represent the metadata; a ValueError.
        """
        checked = await self._store.connections.check_call(connection)
        check_count("limit", limit, least=1, most=MAX_PAGE_LENGTH)
        if owner not in (None, "code", "api"):
            raise ConfigurationError(f"owner must be 'code', 'api' or None, not {owner!r}")
        rows = await self._store.schedules.list_page(
            after=None if after is None else check_text("after", after),
            owner=owner,
            paused=None if paused is None else check_kind("paused", paused, bool),
            tasks=None if task is None else self._parts.tasks.names_like(self._task_name(task)),
            metadata=None if metadata is None else encode_object("metadata", metadata),
            due_before=None if due_before is None else check_execution_time(due_before, name="due_before"),
            limit=limit + 1,
            on=checked,
        )
        page = rows[:limit]
        following = page[-1].schedule_id if len(rows) > limit else None
        codec = self._store.statements.codec
        return Page((schedule_from_row(row, codec) for row in page), next=following)

    async def pause(
        self,
        schedule_id: str,
        *,
        note: str | None = None,
        until: datetime | None = None,
        resume_from: Literal["now", "pause"] = "now",
        connection: AnyConnection | None = None,
    ) -> bool:
        """Pause a schedule: no fire time becomes a job until it is resumed. Enqueued jobs still run.

        Args:
            schedule_id: The schedule.
            note: The reason, for people.
            until: When the pause ends by itself, timezone-aware, by the clock of the database; None if it
                lasts until ``resume()``. A fire time at this instant becomes a job.
            resume_from: What becomes of the fire times before ``until``: ``"now"`` discards them, ``"pause"``
                makes them missed, as in ``resume()``.
            connection: A connection of yours, as in ``Scheduler.schedule()``: the schedule is paused if and
                only if its transaction commits. The row is locked until then, so it does not fire meanwhile.

        Returns:
            False if the id is unknown. Pausing a paused schedule changes nothing, unless its pause ends at
            another time, or with another ``resume_from``.

        Raises:
            ValueError: ``until`` is naive or has passed, ``resume_from`` is another text, or is given without
                ``until``.

        Example::

            await scheduler.schedules.pause("report:7", until=datetime(2027, 1, 4, tzinfo=UTC))
        """
        checked = await self._store.connections.check_call(connection)
        check_schedule_id(schedule_id)
        text = None if note is None else check_text("note", note)
        if resume_from not in ("now", "pause"):
            raise ConfigurationError(f"resume_from must be 'now' or 'pause', not {resume_from!r}")
        if until is None and resume_from != "now":
            raise ConfigurationError("resume_from concerns the end of a pause: pass until= too, or resume()")
        if until is not None:
            until = check_execution_time(until, name="until")
            now = await self._store.schedules.now(on=checked)
            if until <= now:
                raise ConfigurationError(
                    f"until {until.isoformat()} has passed; it must be after {now.isoformat()}"
                )
        switched = await self._store.schedules.pause(
            schedule_id, text, until=until, keeps_fire_times=resume_from == "pause", on=checked
        )
        if switched is not None and switched.changed:
            event = SchedulePaused(schedule_id, text, until, task_name=switched.task)
            await self._announce(event, connection=checked)
        return switched is not None

    async def resume(
        self,
        schedule_id: str,
        *,
        resume_from: datetime | Literal["now", "pause"] = "now",
        connection: AnyConnection | None = None,
    ) -> bool:
        """Resume a paused schedule.

        Args:
            schedule_id: The schedule.
            resume_from: ``"now"`` discards the fire times of the pause, ``"pause"`` makes all of them missed,
                and a timezone-aware datetime those since then. ``catch_up`` decides what missed ones become.
                The delay of a `FixedDelay` whose job ended during the pause begins now with ``"now"``.
            connection: A connection of yours, as in ``pause()``: the schedule is resumed if and only if its
                transaction commits.

        Returns:
            False if the id is unknown. Resuming a schedule that is not paused changes nothing.

        Raises:
            ValueError: ``resume_from`` is naive or another text.
        """
        checked = await self._store.connections.check_call(connection)
        since = None
        if isinstance(resume_from, str):
            if resume_from not in {"now", "pause"}:
                raise ConfigurationError(
                    f"resume_from must be 'now', 'pause' or a datetime, not {resume_from!r}"
                )
        else:
            since = check_execution_time(resume_from, name="resume_from") - INSTANT
        switched = await self._store.schedules.resume(
            check_schedule_id(schedule_id), from_now=resume_from == "now", since=since, on=checked
        )
        if switched is not None and switched.changed:
            event = ScheduleResumed(schedule_id, task_name=switched.task)
            await self._announce(event, connection=checked)
        return switched is not None

    async def remove(
        self, schedule_id: str, *, cancel_jobs: bool = False, connection: AnyConnection | None = None
    ) -> bool:
        """Delete a schedule. The next start writes one declared in code again: pause it instead.

        Unfinished jobs of a deleted schedule do not delay those of one that is added with its id: to change a
        schedule, call ``update()``, or ``add()`` with REPLACE.

        Args:
            schedule_id: The schedule.
            cancel_jobs: Whether its pending jobs are cancelled too; otherwise they still run. The schedule is
                paused and its jobs are cancelled before it is deleted: repeat a call that fails in between.
            connection: A connection of yours in a transaction, as in ``pause()``: the schedule is deleted,
                and its jobs are cancelled, if and only if that commits.

        Returns:
            False if the id is unknown.

        Raises:
            TypeError: ``connection`` is no connection of a supported library.
            ValueError: ``connection`` is not in a transaction that the call needs.
        """
        checked = await self._store.connections.check_call(connection)
        check_schedule_id(schedule_id)
        cancels = check_kind("cancel_jobs", cancel_jobs, bool)
        if checked is not None and cancels:
            # The savepoint undoes the pause and the cancellations of a call that fails in between.
            async with self._store.statements.transaction(within=checked):
                task = await self._remove(schedule_id, checked, cancels=True)
        else:
            task = await self._remove(schedule_id, checked, cancels=cancels)
        if task is not None:
            await self._announce(ScheduleRemoved(schedule_id, task_name=task), connection=checked)
        return task is not None

    async def _remove(self, schedule_id: str, connection: Connection | None, *, cancels: bool) -> str | None:
        """Delete a schedule, after a pause and the cancellation of its jobs if wanted; return its task."""
        schedules = self._store.schedules
        if cancels:
            await schedules.pause(schedule_id, "is being removed", on=connection)
            while job_ids := await schedules.pending_jobs(schedule_id, on=connection):
                for job_id in job_ids:
                    await cancel_job(self._parts, job_id, connection)
        return await schedules.remove(schedule_id, on=connection)

    async def trigger(self, schedule_id: str, *, connection: AnyConnection | None = None) -> str | None:
        """Enqueue one job now, also if the schedule is paused or has finished. Its fire times do not change.

        As a job of ``enqueue()``, it expires only if the schedule or the task gives a misfire grace time.

        Args:
            schedule_id: The schedule.
            connection: A connection of yours in a transaction, as in ``schedule()``: the job exists if and
                only if that commits. The row of the schedule is locked until then.

        Returns:
            The id of the job, or None if the id of the schedule is unknown.

        Raises:
            JobConflictError: The task is unique, and another job has the key; a ValueError.
            TypeError: ``connection`` is no connection of a supported library.
            ValueError: ``connection`` is not in a transaction.
        """
        checked = await self._parts.store.connections.check_call(connection)
        job = await self._writer.trigger(check_schedule_id(schedule_id), checked)
        if job is None:
            return None
        await self._parts.outbox.notify_due(job.execution_time, checked)
        return job.job_id

    async def backfill(
        self,
        schedule_id: str,
        start: datetime,
        end: datetime,
        *,
        limit: int = 1000,
        connection: AnyConnection | None = None,
    ) -> builtins.list[str]:
        """Enqueue one job for each fire time in a span, in order, unless its row still exists.

        Args:
            schedule_id: The schedule.
            start: The first instant of the span, timezone-aware.
            end: The end of the span, which is excluded.
            limit: The number of fire times at most, up to 100,000.
            connection: A connection of yours in a transaction, as in ``trigger()``.

        Returns:
            The ids of the enqueued jobs. A job of a unique task whose key is taken is left out.

        Raises:
            ValueError: A time is naive, ``end`` is before ``start``, the span has more than ``limit`` fire
                times, or they follow the ends of jobs.
            ScheduleNotFoundError: The id is unknown; a LookupError.
        """
        checked = await self._store.connections.check_call(connection)
        jobs = await self._writer.backfill(
            check_schedule_id(schedule_id),
            check_execution_time(start, name="start"),
            check_execution_time(end, name="end"),
            check_count("limit", limit, least=1, most=MAX_BACKFILL),
            checked,
        )
        if jobs:
            await self._parts.outbox.notify_due(min(job.execution_time for job in jobs), checked)
        return [job.job_id for job in jobs]

    def _task_name(self, func: JobFunction | str) -> str:
        if isinstance(func, str):
            return check_name(func)
        if not isinstance(func, FUNCTIONS) and (stand_in := stand_in_of(func)) is not None:
            return stand_in.name
        return self._parts.tasks.adopt(func).name

    def _json_arguments(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments as JSON carries them; a task that is registered here validates them."""
        task = self._parts.tasks.resolve(name)
        return (args, kwargs) if task is None else decode(task.encode(args, kwargs))

    async def _announce(
        self, event: Event, *, connection: Connection | None = None, due: datetime | None = None
    ) -> None:
        """Publish an event, and wake the planners of all nodes."""
        if connection is not None:  # sent by the caller's commit, or never
            await self._store.locks.notify([PERIODIC], connection=connection)
            return
        self._parts.events.publish(event)
        if due is not None:
            await self._parts.outbox.notify_due(due)
        await self._parts.announce_schedules()
