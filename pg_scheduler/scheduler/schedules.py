"""The facet ``scheduler.schedules``: schedules that are added, changed and read at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from pg_scheduler.database.callers.adapter import AnyConnection
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.events import ScheduleAdded, ScheduleUpdated
from pg_scheduler.jobs.model import (
    UNSET,
    Call,
    ConflictResolution,
    JobFunction,
    JobPriority,
    Unset,
    stand_in_of,
)
from pg_scheduler.jobs.task import JOB_OPTIONS
from pg_scheduler.jobs.validation import check_count, check_kind
from pg_scheduler.queue.prepare import new_job_id
from pg_scheduler.scheduler.schedule_control import ScheduleControl
from pg_scheduler.schedules.definition import Definition, check_schedule_id
from pg_scheduler.schedules.policies import LATEST, CatchUp, Overlap
from pg_scheduler.schedules.schedule import Schedule, schedule_from_row
from pg_scheduler.triggers.base import Trigger
from pg_scheduler.triggers.cron import warn_of_seconds


class Schedules(ScheduleControl):
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
                it, and fire at it first. None: they count from now, and fire first one interval later.
            end: No fire time follows this timezone-aware time.
            max_runs: The maximum number of fire times that become jobs. After the last one the schedule has
                finished, and ``VacuumConfig(schedules=)`` deletes it.
            jitter: Each job is due up to this much later than its fire time; seconds or a timedelta.
            run_now: Enqueue a job at once, in addition to the fire times; not if the schedule exists and is
                unchanged, nor if the task is unique and another job has the key.
            paused: Add it paused.
            overlap: The behaviour at a fire time while the last job is unfinished.
            catch_up: The jobs for missed fire times.
            pause_after_failures: The number of final failures in a row that pauses it; None for never.
            priority: The priority of its jobs. Default: the task's at each fire time.
            max_retries: Retries of its jobs. Default: the task's at each fire time.
            timeout: Time limit of one attempt, in seconds or as a timedelta; None for no limit. Default: the
                task's at each fire time.
            misfire_grace_time: Seconds after it was enqueued within which a job may start; None for no limit.
                Default: the task's at each fire time, else the Scheduler's.
            keep_result: How long the results of its jobs are kept; None for not at all.
            metadata: Labels for people and filters: a JSON object.
            conflict_resolution: The behaviour when the id exists. REPLACE keeps the timing, the counters and
                a pause if the trigger is equal, so it is harmless at every start. A finished schedule is
                added again with each of them.
            connection: A connection of yours, in a transaction; see ``Scheduler.schedule()``.

        Returns:
            The schedule as stored.

        Raises:
            TypeError: ``func`` is not a coroutine function or cannot be called with the arguments, or a value
                has the wrong type.
            ValueError: A time is naive, ``end`` is before ``start``, no fire time is in ``start..end``, or
                another value is out of range.
            PayloadError: JSON cannot represent an argument, or the arguments exceed ``max_payload_bytes``.
            ScheduleConflictError: The id exists and the resolution is RAISE; a ValueError.
            ScheduleOwnedByCodeError: The id belongs to a function with ``@periodic``; a ValueError.

        Example::

            from pg_scheduler.triggers import Every

            await scheduler.schedules.add(send_mail, Every(minutes=15), args=("ada@example.org",))
        """
        checked = await self._store.connections.check_call(connection)
        check_kind("conflict_resolution", conflict_resolution, ConflictResolution)
        for name, flag in (("run_now", run_now), ("paused", paused)):
            check_kind(name, flag, bool)
        warn_of_seconds(trigger)
        if isinstance(func, Call):
            func, args, kwargs = _taken_apart(func, args, kwargs)
        name = self._task_name(func)
        args, kwargs = self._json_arguments(name, args, kwargs)
        definition = Definition(
            task=name,
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
            metadata=metadata,
        )
        definition = _with_options_of(func, definition)
        row, change = await self._writer.add(
            new_job_id() if schedule_id is None else check_schedule_id(schedule_id),
            definition,
            run_now=run_now,
            paused=paused,
            conflict_resolution=conflict_resolution,
            connection=checked,
        )
        if change != "kept":
            event = (ScheduleAdded if change == "added" else ScheduleUpdated)(
                row.schedule_id, task_name=row.task
            )
            await self._announce(event, connection=checked, due=row.updated_at if run_now else None)
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
        metadata: Mapping[str, Any] | Unset | None = UNSET,
        connection: AnyConnection | None = None,
    ) -> Schedule:
        """Change the given fields of a schedule. The others keep their values.

        With another trigger or start, it fires next at its first fire time after now; without its start,
        intervals count from its creation. The other fields leave the timing as it is.

        Args:
            schedule_id: The schedule.
            if_version: Change it only if it has this ``version``.
            func: As in ``add()``, as are all further parameters.
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
            metadata: See ``add()``.
            connection: A connection of yours in a transaction, as in ``add()``: the schedule is changed if
                and only if that commits. The row is locked until then, so it does not fire meanwhile.

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
        checked = await self._store.connections.check_call(connection)
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
            metadata=metadata,
        )
        definition = _with_options_of(func, definition)
        if if_version is not None:
            check_count("if_version", if_version, least=1)
        row = await self._writer.update(check_schedule_id(schedule_id), definition, if_version, checked)
        await self._announce(ScheduleUpdated(row.schedule_id, task_name=row.task), connection=checked)
        return schedule_from_row(row, self._store.statements.codec)


def _with_options_of(func: object, definition: Definition) -> Definition:
    """Return a definition with the options of an object that stands for a task, unless it gives others.

    Raises:
        ConfigurationError: The object has an option that only a single job can have.
    """
    stand_in = stand_in_of(func)
    if stand_in is None:
        return definition
    options = dict(stand_in.options)
    metadata = options.pop("metadata", {})
    if single := sorted(options.keys() - JOB_OPTIONS.keys()):
        raise ConfigurationError(
            f"the task {stand_in.name} has {', '.join(single)}, which only a single job can have; "
            "pass the task without it"
        )
    changes = {name: value for name, value in options.items() if getattr(definition, name) is UNSET}
    if metadata and not isinstance(definition.metadata, Unset):
        changes["metadata"] = {**metadata, **(definition.metadata or {})}
    return replace(definition, **changes)


def _taken_apart(
    call: Call[Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[JobFunction, Sequence[Any], Mapping[str, Any]]:
    """Return the function and the arguments of a call, with which no others may be given."""
    if args or kwargs:
        raise TypeError("a call() has its arguments; pass no args= and kwargs= with it")
    return call.func, call.args, call.kwargs
