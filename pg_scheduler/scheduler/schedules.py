"""The facet ``scheduler.schedules``, which adds, changes and reads schedules at run time."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeVar

from pg_scheduler.base.messages import PERIODIC
from pg_scheduler.database.callers.adapter import AnyConnection
from pg_scheduler.database.session import Connection
from pg_scheduler.database.statements import Transaction
from pg_scheduler.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    ScheduleConflictError,
    ScheduleNotFoundError,
)
from pg_scheduler.events import (
    Event,
    ScheduleAdded,
    SchedulePaused,
    ScheduleRemoved,
    ScheduleResumed,
    ScheduleUpdated,
)
from pg_scheduler.jobs.model import (
    UNSET,
    Call,
    ConflictResolution,
    JobFunction,
    JobPriority,
    Page,
    Unset,
    stand_in_of,
)
from pg_scheduler.jobs.naming import FUNCTIONS, check_name
from pg_scheduler.jobs.payload import decode, encode_object
from pg_scheduler.jobs.task import JOB_OPTIONS
from pg_scheduler.jobs.validation import check_count, check_execution_time, check_kind, check_text
from pg_scheduler.queue.prepare import new_job_id
from pg_scheduler.scheduler.jobs import MAX_PAGE_LENGTH, Jobs
from pg_scheduler.scheduler.parts import Parts
from pg_scheduler.schedules.calls import ScheduleCalls
from pg_scheduler.schedules.definition import Definition, check_end, check_schedule_id, check_start
from pg_scheduler.schedules.policies import LATEST, CatchUp, Overlap
from pg_scheduler.schedules.schedule import Schedule, schedule_from_row
from pg_scheduler.triggers.base import Trigger
from pg_scheduler.triggers.cron import warn_of_seconds
from pg_scheduler.triggers.search import INSTANT

MAX_BACKFILL: Final = 100_000

T = TypeVar("T")


class Schedules:
    """The schedules of the database, as ``scheduler.schedules``. The Scheduler need not be started.

    Example::

        from pg_scheduler.triggers import Cron

        await scheduler.schedules.add(
            send_mail,
            Cron("0 8 * * 1-5", timezone="Europe/Berlin"),
            schedule_id="report:7",
            args=("ada@example.org",),
            metadata={"tenant": 7},
        )
        await scheduler.schedules.pause("report:7", note="contract ended")
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._store = parts.store
        self._jobs = Jobs(parts)
        self._calls = ScheduleCalls(
            parts.store,
            parts.store.schedules,
            parts.job_builders,
            max_payload_bytes=parts.config.max_payload_bytes,
        )

    async def add(
        self,
        func: JobFunction | Call[Any] | str,
        trigger: Trigger,
        *,
        schedule_id: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        max_runs: int | None = None,
        jitter: float | timedelta = 0,
        run_now: bool = False,
        paused: bool = False,
        overlap: Overlap = Overlap.QUEUE_ONE,
        catch_up: CatchUp = LATEST,
        pause_after_failures: int | None = None,
        priority: JobPriority | Unset = UNSET,
        max_retries: int | Unset = UNSET,
        timeout: float | timedelta | Unset | None = UNSET,
        misfire_grace_time: int | Unset | None = UNSET,
        keep_result: timedelta | Unset | None = UNSET,
        deadline: float | timedelta | Unset | None = UNSET,
        metadata: Mapping[str, Any] | None = None,
        conflict_resolution: ConflictResolution = ConflictResolution.RAISE,
        connection: AnyConnection | None = None,
    ) -> Schedule:
        """Store a schedule. Nodes that have registered the task and the kind of the trigger plan it.

        Args:
            func: The function, a ``call()`` with its arguments, or the name of a task, which need not be
                registered in this process.
            trigger: Computes the fire times.
            schedule_id: Your own id, 1 to 200 characters; None to generate one.
            args: Positional arguments of each job that JSON can represent.
            kwargs: Keyword arguments of each job that JSON can represent.
            start: No fire time precedes this timezone-aware time. `Every` and `CalendarInterval` count from
                this time, and fire at it first. With None they count from now, and fire first one interval
                later.
            end: No fire time follows this timezone-aware time. A time after the year 9000 counts as None.
            max_runs: The maximum number of fire times that become jobs. After the last one the schedule has
                finished, and ``VacuumConfig(schedules=)`` deletes it.
            jitter: Each job is due up to this much later than its fire time; seconds or a timedelta.
            run_now: Enqueue a job at once, in addition to the fire times. Those of a `FixedDelay` follow its
                end. No job is enqueued if the schedule exists and stays unchanged, or if the task is unique
                and another job has the key. It has the options of the task as in ``trigger()``.
            paused: Whether the schedule is paused when it is added.
            overlap: The behaviour at a fire time while the last job is unfinished.
            catch_up: Which missed fire times get a job.
            pause_after_failures: How many final failures in a row pause the schedule; None for never.
            priority: The priority of its jobs. Default: the task's at each fire time.
            max_retries: Retries of its jobs. Default: the task's at each fire time.
            timeout: Time limit of one attempt, in seconds or as a timedelta; None for no limit. Default: the
                task's at each fire time.
            misfire_grace_time: Seconds after its due time, or after it was enqueued if that is later, within
                which a job may start; None for no limit. Default: the task's at each fire time, else the
                Scheduler's.
            keep_result: How long the results of its jobs are kept; None for not at all. Default: the task's
                at each fire time.
            deadline: The time from its due time within which a job must have ended, in seconds or as a
                timedelta; None for no deadline. Default: the task's at each fire time.
            metadata: Labels for people and filters: a JSON object.
            conflict_resolution: The behaviour when the id exists. If the trigger is equal, REPLACE keeps the
                timing, the counters and a pause, so you can call it at every start. A finished schedule is
                added again, whatever the resolution is.
            connection: A connection of yours, in a transaction; see ``Scheduler.schedule()``.

        Returns:
            The schedule as stored.

        Raises:
            TypeError: ``func`` is not a coroutine function or cannot be called with the arguments, or a value
                has the wrong type.
            ValueError: A time is naive, ``end`` is before ``start``, no fire time is in ``start..end`` or up
                to the year 9000, or another value is out of range.
            PayloadError: JSON cannot represent an argument, or the arguments exceed ``max_payload_bytes``.
            ConfigurationError: ``run_now``, and the task has options as in ``trigger()``; a ValueError.
            ScheduleConflictError: The id exists and the resolution is RAISE; a ValueError.
            ScheduleOwnedByCodeError: The id belongs to a function with ``@periodic``; a ValueError.

        Example::

            from pg_scheduler.triggers import Every

            await scheduler.schedules.add(send_mail, Every(minutes=15), args=("ada@example.org",))
        """
        usable_connection = await self._store.connections.check_call(connection)
        check_kind("conflict_resolution", conflict_resolution, ConflictResolution)
        check_kind("run_now", run_now, bool)
        check_kind("paused", paused, bool)
        warn_of_seconds(trigger)
        if isinstance(func, Call):
            func, args, kwargs = _parts_of_call(func, args, kwargs)
        task_name = self._task_name(func)
        args, kwargs = self._json_arguments(task_name, args, kwargs)
        definition = Definition(
            task=task_name,
            trigger=trigger,
            args=args,
            kwargs=kwargs,
            start=start,
            end=end,
            max_runs=max_runs,
            jitter=jitter,
            overlap=overlap,
            catch_up=catch_up,
            pause_after_failures=pause_after_failures,
            priority=priority,
            max_retries=max_retries,
            timeout=timeout,
            misfire_grace_time=misfire_grace_time,
            keep_result=keep_result,
            deadline=deadline,
            metadata=metadata,
        )
        definition = _with_options_of(func, definition)
        schedule_id = new_job_id() if schedule_id is None else check_schedule_id(schedule_id)
        with self._announcing_lost_calls(usable_connection):
            row, change = await self._calls.add(
                schedule_id,
                definition,
                run_now=run_now,
                paused=paused,
                conflict_resolution=conflict_resolution,
                connection=usable_connection,
            )
            if change != "kept":
                kind = ScheduleAdded if change == "added" else ScheduleUpdated
                event = kind(row.schedule_id, task_name=row.task)
                # The additional job is due at the time at which the schedule was written.
                due = row.updated_at if run_now else None
                await self._announce(event, connection=usable_connection, due=due)
        return schedule_from_row(row, self._store.statements.codec)

    async def update(
        self,
        schedule_id: str,
        *,
        if_version: int | None = None,
        func: JobFunction | str | Unset = UNSET,
        trigger: Trigger | Unset = UNSET,
        args: Sequence[Any] | Unset = UNSET,
        kwargs: Mapping[str, Any] | Unset | None = UNSET,
        start: datetime | Unset | None = UNSET,
        end: datetime | Unset | None = UNSET,
        max_runs: int | Unset | None = UNSET,
        jitter: float | timedelta | Unset = UNSET,
        overlap: Overlap | Unset = UNSET,
        catch_up: CatchUp | Unset = UNSET,
        pause_after_failures: int | Unset | None = UNSET,
        priority: JobPriority | Unset = UNSET,
        max_retries: int | Unset = UNSET,
        timeout: float | timedelta | Unset | None = UNSET,
        misfire_grace_time: int | Unset | None = UNSET,
        keep_result: timedelta | Unset | None = UNSET,
        deadline: float | timedelta | Unset | None = UNSET,
        metadata: Mapping[str, Any] | Unset | None = UNSET,
        connection: AnyConnection | None = None,
    ) -> Schedule:
        """Change the given fields of a schedule. The others keep their values.

        With another trigger or another start, the schedule fires next at its first fire time after now. If
        you remove the start, intervals count from the creation of the schedule. The other fields leave the
        timing as it is.

        Args:
            schedule_id: The schedule.
            if_version: Change it only if it has this ``version``.
            func: The function or the name of a task, as in ``add()``.
            trigger: See ``add()``.
            args: See ``add()``.
            kwargs: See ``add()``.
            start: See ``add()``.
            end: See ``add()``.
            max_runs: See ``add()``.
            jitter: See ``add()``.
            overlap: See ``add()``.
            catch_up: See ``add()``.
            pause_after_failures: See ``add()``.
            priority: See ``add()``.
            max_retries: See ``add()``.
            timeout: See ``add()``.
            misfire_grace_time: See ``add()``.
            keep_result: See ``add()``.
            deadline: See ``add()``.
            metadata: See ``add()``.
            connection: A connection of yours in a transaction, as in ``add()``. The schedule is changed if
                and only if that transaction commits. Its row is locked until then, so it does not fire
                meanwhile.

        Returns:
            The schedule as stored.

        Raises:
            ScheduleNotFoundError: The id is unknown; a LookupError.
            ScheduleConflictError: The version differs from ``if_version``; a ValueError.
            ScheduleOwnedByCodeError: The schedule is declared with ``@periodic``; a ValueError.
            TypeError: The function, if it is registered here, cannot be called with the arguments that the
                schedule then has, or a value has the wrong type.
            ValueError: A value is out of range, as in ``add()``.
            PayloadError: As in ``add()``.

        Example::

            from pg_scheduler.triggers import Every

            schedule = await scheduler.schedules.add(send_mail, Every(minutes=15), schedule_id="mail")
            await scheduler.schedules.update("mail", trigger=Every(minutes=5), if_version=schedule.version)
        """
        usable_connection = await self._store.connections.check_call(connection)
        warn_of_seconds(trigger)
        definition = Definition(
            task=UNSET if isinstance(func, Unset) else self._task_name(func),
            trigger=trigger,
            args=args,
            kwargs=kwargs,
            start=start,
            end=end,
            max_runs=max_runs,
            jitter=jitter,
            overlap=overlap,
            catch_up=catch_up,
            pause_after_failures=pause_after_failures,
            priority=priority,
            max_retries=max_retries,
            timeout=timeout,
            misfire_grace_time=misfire_grace_time,
            keep_result=keep_result,
            deadline=deadline,
            metadata=metadata,
        )
        definition = _with_options_of(func, definition)
        if if_version is not None:
            check_count("if_version", if_version, least=1)
        with self._announcing_lost_calls(usable_connection):
            row = await self._calls.update(
                check_schedule_id(schedule_id), definition, if_version, usable_connection
            )
            await self._announce(
                ScheduleUpdated(row.schedule_id, task_name=row.task), connection=usable_connection
            )
        return schedule_from_row(row, self._store.statements.codec)

    async def get(self, schedule_id: str, *, connection: AnyConnection | None = None) -> Schedule | None:
        """Return the schedule, or None if it does not exist.

        Args:
            schedule_id: The schedule.
            connection: A connection of yours, as in ``Scheduler.schedule()``; the call sees what its
                transaction has changed.
        """
        usable_connection = await self._store.connections.check_call(connection)
        row = await self._store.schedules.get(check_schedule_id(schedule_id), on=usable_connection)
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
            owner: Only schedules that ``@periodic`` declares ("code"), or only schedules that calls added
                ("api"); None for both.
            paused: True for paused schedules only, False for the other ones only; None for both.
            task: Only schedules of this function or task name. If the task is registered here, schedules with
                its former names and aliases are found too. None for all.
            metadata: Only schedules whose metadata contains this object; None for all.
            due_before: Only schedules whose next fire time is before this timezone-aware time; None for all.
            after: ``next`` of the previous page; None for the first page.
            limit: Schedules per page, 1 to 10,000.
            connection: A connection of yours, as in ``get()``.

        Raises:
            ValueError: A time is naive, or another value is out of range.
            PayloadError: JSON cannot represent the metadata; a ValueError.
        """
        usable_connection = await self._store.connections.check_call(connection)
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
            # One more than the page has: if it exists, another page follows.
            limit=limit + 1,
            on=usable_connection,
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
                lasts until ``resume()``. A fire time at this instant becomes a job. A time after the year
                9000 counts as None.
            resume_from: What becomes of the fire times before ``until``: ``"now"`` discards them, ``"pause"``
                makes them missed, as in ``resume()``.
            connection: A connection of yours, as in ``Scheduler.schedule()``: the schedule is paused if and
                only if its transaction commits. The row is locked until then, so it does not fire meanwhile.

        Returns:
            False if the id is unknown. Pausing a paused schedule changes nothing, unless ``until`` or
            ``resume_from`` differs from that of its pause.

        Raises:
            ValueError: ``until`` is naive or has passed, ``resume_from`` is another text, or is given without
                ``until``.

        Example::

            await scheduler.schedules.pause("report:7", until=datetime(2027, 1, 4, tzinfo=UTC))
        """
        usable_connection = await self._store.connections.check_call(connection)
        check_schedule_id(schedule_id)
        checked_note = None if note is None else check_text("note", note)
        if resume_from not in ("now", "pause"):
            raise ConfigurationError(f"resume_from must be 'now' or 'pause', not {resume_from!r}")
        if until is None and resume_from != "now":
            raise ConfigurationError("resume_from concerns the end of a pause: pass until= too, or resume()")
        if until is not None:
            until = check_end("until", until)
        if until is not None:
            now = await self._store.statements.read_clock(on=usable_connection)
            if until <= now:
                raise ConfigurationError(
                    f"until {until.isoformat()} has passed; it must be after {now.isoformat()}"
                )
        change = await self._store.schedules.pause(
            schedule_id,
            checked_note,
            until=until,
            keeps_fire_times=until is not None and resume_from == "pause",
            on=usable_connection,
        )
        if change is not None and change.changed:
            event = SchedulePaused(schedule_id, checked_note, until, task_name=change.task)
            await self._announce(event, connection=usable_connection)
        return change is not None

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
            resume_from: What becomes of the fire times of the pause. ``"now"`` discards them. ``"pause"``
                makes all of them missed, and a timezone-aware datetime makes those from that time on missed.
                A time in the future discards all of them, and the schedule fires again from that time on.
                ``catch_up`` decides which missed ones get a job. If the job of a `FixedDelay` ended during
                the pause, its delay begins now with ``"now"``.
            connection: A connection of yours, as in ``pause()``: the schedule is resumed if and only if its
                transaction commits.

        Returns:
            False if the id is unknown. Resuming a schedule that is not paused changes nothing.

        Raises:
            ValueError: ``resume_from`` is naive, out of range or another text.
        """
        usable_connection = await self._store.connections.check_call(connection)
        # Fire times after this instant are missed ones; None for all fire times of the pause.
        since = None
        if isinstance(resume_from, str):
            if resume_from not in {"now", "pause"}:
                raise ConfigurationError(
                    f"resume_from must be 'now', 'pause' or a datetime, not {resume_from!r}"
                )
        else:
            # This is just before resume_from, so that a fire time at resume_from itself is missed too.
            since = check_start("resume_from", resume_from) - INSTANT
        check_schedule_id(schedule_id)
        with self._announcing_lost_calls(usable_connection):
            change = await self._store.schedules.resume(
                schedule_id, from_now=resume_from == "now", since=since, on=usable_connection
            )
            if change is not None and change.changed:
                event = ScheduleResumed(schedule_id, task_name=change.task)
                await self._announce(event, connection=usable_connection)
        return change is not None

    async def remove(
        self, schedule_id: str, *, cancel_jobs: bool = False, connection: AnyConnection | None = None
    ) -> bool:
        """Delete a schedule. If ``@periodic`` declares it, pause it instead: the next start writes it again.

        To change a schedule, call ``update()``, or ``add()`` with REPLACE. If you delete it and add another
        one with the same id, the jobs of the new schedule do not wait for unfinished jobs of the old one.

        Args:
            schedule_id: The schedule.
            cancel_jobs: Whether its pending jobs are cancelled too; otherwise they still run. The schedule is
                paused and its jobs are cancelled before it is deleted, so repeat a call that fails in
                between. If a schedule is added again under the id, its fire times get jobs in place of these.
            connection: A connection of yours in a transaction, as in ``pause()``. The schedule is deleted,
                and its jobs are cancelled, if and only if that transaction commits.

        Returns:
            False if the id is unknown.

        Raises:
            TypeError: ``connection`` is no connection of a supported library.
            ValueError: ``connection`` is not in a transaction that the call needs.
        """
        usable_connection = await self._store.connections.check_call(connection)
        check_schedule_id(schedule_id)
        cancels = check_kind("cancel_jobs", cancel_jobs, bool)
        if usable_connection is not None and cancels:
            # The savepoint undoes the pause and the cancellations of a call that fails in between.
            async with self._store.statements.transaction(within=usable_connection):
                task = await self._remove(schedule_id, usable_connection, cancels=True)
        else:
            task = await self._remove(schedule_id, usable_connection, cancels=cancels)
        if task is not None:
            await self._announce(ScheduleRemoved(schedule_id, task_name=task), connection=usable_connection)
        return task is not None

    async def _remove(self, schedule_id: str, connection: Connection | None, *, cancels: bool) -> str | None:
        """Delete a schedule; return its task, or None if it does not exist.

        If ``cancels`` is true, the schedule is paused first, and its pending jobs are cancelled.
        """
        schedules = self._store.schedules
        if cancels:
            # The pause prevents that fire times add further jobs meanwhile.
            await schedules.pause(schedule_id, "is being removed", on=connection)
            # A schedule may have more pending jobs than one statement returns.
            while job_ids := await schedules.pending_jobs(schedule_id, on=connection):
                for job_id in job_ids:
                    await self._jobs.cancel(job_id, connection)
        return await schedules.remove(schedule_id, on=connection)

    async def trigger(self, schedule_id: str, *, connection: AnyConnection | None = None) -> str | None:
        """Enqueue one job now, also if the schedule is paused or has finished. Its fire times do not change.

        Only those of a `FixedDelay` change: the next one follows the end of this job.

        Like a job of ``enqueue()``, it expires only if the schedule or the task has a misfire grace time.

        If the task is not registered in this process, the job has the options of the task that the live
        worker reports which started last. If none reports the task, it has the defaults, and a WARNING is
        logged.

        Args:
            schedule_id: The schedule.
            connection: A connection of yours in a transaction, as in ``schedule()``. The job exists if and
                only if that transaction commits. The row of the schedule is locked until then.

        Returns:
            The id of the job, or None if the id of the schedule is unknown.

        Raises:
            ConfigurationError: The task is not registered in this process, and has options that only its
                code can apply, such as ``unique``; a ValueError.
            JobConflictError: The task is unique, and another job has the key; a ValueError.
            TypeError: ``connection`` is no connection of a supported library.
            ValueError: ``connection`` is not in a transaction.
        """
        usable_connection = await self._parts.store.connections.check_call(connection)
        job = await self._calls.trigger(check_schedule_id(schedule_id), usable_connection)
        if job is None:
            return None
        await self._parts.outbox.notify_due(job.execution_time, usable_connection)
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
        """Enqueue one job for each fire time in a span, in order. Fire times whose job still exists get none.

        Args:
            schedule_id: The schedule.
            start: The first instant of the span, timezone-aware.
            end: The end of the span, which is excluded. If it is in the future, the last job of the span is
                due later than fire times that come before it. Unless the overlap policy is ``ALLOW``, these
                fire times are dropped, wait for that job, or cancel it, since it counts as the last job of
                the schedule.
            limit: The maximum number of fire times, 1 to 100,000.
            connection: A connection of yours in a transaction, as in ``trigger()``.

        Returns:
            The ids of the enqueued jobs. A job of a unique task whose key is taken is left out.

        Raises:
            ValueError: A time is naive, ``end`` is before ``start``, the span has more than ``limit`` fire
                times, or the trigger is a `FixedDelay`, whose fire times follow the ends of jobs.
            ConfigurationError: As in ``trigger()``.
            ScheduleNotFoundError: The id is unknown; a LookupError.
        """
        usable_connection = await self._store.connections.check_call(connection)
        jobs = await self._calls.backfill(
            check_schedule_id(schedule_id),
            check_execution_time(start, name="start"),
            check_execution_time(end, name="end"),
            check_count("limit", limit, least=1, most=MAX_BACKFILL),
            usable_connection,
        )
        if jobs:
            await self._parts.outbox.notify_due(min(job.execution_time for job in jobs), usable_connection)
        return [job.job_id for job in jobs]

    def _task_name(self, func: JobFunction | str) -> str:
        """Return the name of the task that a call gives as a name, a function, or an object in its place.

        Such an object is a task of Django, for example. A function that is not registered yet is registered.
        """
        if isinstance(func, str):
            return check_name(func)
        stand_in = None if isinstance(func, FUNCTIONS) else stand_in_of(func)
        if stand_in is not None:
            return stand_in.name
        return self._parts.tasks.adopt(func).name

    def _json_arguments(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments as JSON carries them, after the task has validated them.

        The arguments of a task that is not registered here are returned unchanged.
        """
        task = self._parts.tasks.resolve(name)
        if task is None:
            return args, kwargs
        return decode(task.encode(args, kwargs))

    @contextmanager
    def _announcing_lost_calls(self, connection: Connection | None) -> Iterator[None]:
        """Wake the planners of all nodes if the call in this block is cancelled or loses its connection.

        The transaction of the call may have been committed. Unless they were woken, the planners would find
        the new fire times two minutes later.
        """
        try:
            yield
        except (asyncio.CancelledError, DatabaseUnavailableError):
            # In the transaction of a caller nothing is committed yet, and its commit wakes the planners.
            if connection is None:
                self._parts.announce_schedules_later()
            raise

    async def _announce(
        self, event: Event, *, connection: Connection | None = None, due: datetime | None = None
    ) -> None:
        """Publish the event of a change, and wake the planners of all nodes, which read the schedules.

        If the call has also enqueued a job, ``due`` is its due time, of which workers are notified.
        """
        # In the transaction of a caller, the commit notifies the planners. No event is published, because it
        # is unknown whether the transaction commits.
        if connection is not None:
            await self._store.locks.notify([PERIODIC], connection=connection)
            return
        self._parts.events.publish(event)
        if due is not None:
            await self._parts.outbox.notify_due(due)
        await self._parts.announce_schedules()


async def change_as_seen(
    parts: Parts,
    schedule_id: str,
    is_as_seen: Callable[[Schedule], bool],
    change: Callable[[Connection], Awaitable[T]],
) -> T:
    """Change a schedule if it is as a person has seen it; return what the change returns.

    The schedule is compared while its row is locked, in the transaction of the change.

    Args:
        parts: The parts of a Scheduler.
        schedule_id: The schedule.
        is_as_seen: Returns whether the locked schedule is as it was seen.
        change: Calls a method of ``scheduler.schedules`` with this connection.

    Raises:
        ScheduleNotFoundError: The schedule does not exist any more.
        ScheduleConflictError: It has changed.
    """
    store = parts.store

    async def compare_and_change(transaction: Transaction) -> T:
        """Lock the schedule, compare and change it. After a deadlock this is called again."""
        locked_schedules = await store.schedules.lock([schedule_id], on=transaction.connection)
        if schedule_id not in locked_schedules:
            raise ScheduleNotFoundError(schedule_id)
        row, _ = locked_schedules[schedule_id]
        if not is_as_seen(schedule_from_row(row, store.statements.codec)):
            raise ScheduleConflictError(schedule_id, row.version)
        return await change(transaction.connection)

    return await store.statements.run_retrying(compare_and_change)


def _with_options_of(func: object, definition: Definition) -> Definition:
    """Return a definition with the options of ``func``, if that is an object that stands for a task.

    A task of Django is such an object, for example. Options that the definition has already stay. The
    metadata of both are merged. For any other object, the definition is returned unchanged.

    Raises:
        ConfigurationError: The object has an option that only a single job can have.
    """
    stand_in = stand_in_of(func)
    if stand_in is None:
        return definition
    options = dict(stand_in.options)
    metadata = options.pop("metadata", {})
    single_job_options = sorted(options.keys() - JOB_OPTIONS.keys())
    if single_job_options:
        raise ConfigurationError(
            f"the task {stand_in.name} has {', '.join(single_job_options)}, which only a single job can "
            "have; pass the task without it"
        )
    changes = {name: value for name, value in options.items() if getattr(definition, name) is UNSET}
    # An update() without metadata leaves those of the schedule as they are.
    if metadata and not isinstance(definition.metadata, Unset):
        own_metadata = definition.metadata or {}
        changes["metadata"] = {**metadata, **own_metadata}
    return replace(definition, **changes)


def _parts_of_call(
    call: Call[Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[JobFunction, Sequence[Any], Mapping[str, Any]]:
    """Return the function, the positional and the keyword arguments of a ``call()``.

    It is a TypeError if ``args`` or ``kwargs`` of the method are given too.
    """
    if args or kwargs:
        raise TypeError("a call() has its arguments; pass no args= and kwargs= with it")
    return call.func, call.args, call.kwargs
