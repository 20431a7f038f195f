"""The public value of a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pg_scheduler.base.public import public
from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.model import UNSET, JobPriority, Unset
from pg_scheduler.jobs.payload import decode, object_from
from pg_scheduler.jobs.validation import duration_from
from pg_scheduler.schedules.policies import CatchUp, Overlap
from pg_scheduler.schedules.row import LAST_FIRE, Owner, ScheduleRow, catch_up_of, read_trigger
from pg_scheduler.schedules.timing import first_to_plan, not_before
from pg_scheduler.triggers.base import Trigger, is_fixed_delay
from pg_scheduler.triggers.search import INSTANT, SearchLimitError, to_utc
from pg_scheduler.triggers.serialization import is_built_in


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule as read from its row."""

    schedule_id: str
    """The id; of a function decorated with ``@periodic``, the dedup key."""
    owner: Owner
    """``"code"`` if ``@periodic`` declares it, ``"api"`` if a call added it."""
    task: str
    """The name of the function."""
    trigger: Trigger | None
    """Computes the fire times; None if this process has not registered its kind, or the row is invalid."""
    described: str
    """The trigger in words."""
    args: tuple[Any, ...]
    """The positional arguments of its jobs. Empty if those of the row cannot be decoded."""
    kwargs: Mapping[str, Any]
    """The keyword arguments of its jobs."""
    start: datetime | None
    """No fire time precedes it; None for no bound."""
    end: datetime | None
    """No fire time follows it; None for no bound."""
    max_runs: int | None
    """The maximum number of fire times that become jobs; None for no limit."""
    jitter: timedelta
    """Each job is due up to this much later than its fire time."""
    overlap: Overlap
    """The behaviour at a fire time while the last job is unfinished."""
    catch_up: CatchUp
    """The jobs for missed fire times."""
    pause_after_failures: int | None
    """The number of final failures in a row that pauses it; None for never."""
    priority: JobPriority | Unset
    """The priority of its jobs; UNSET for that of the task."""
    max_retries: int | Unset
    """Retries of its jobs; UNSET for those of the task."""
    timeout: timedelta | Unset | None
    """The time limit of an attempt, None for no limit; UNSET for that of the task."""
    misfire_grace_time: int | Unset | None
    """Seconds of grace, None for no limit; UNSET for those of the task."""
    keep_result: timedelta | Unset | None
    """How long results are kept, None for not at all; UNSET for the task's value."""
    deadline: timedelta | Unset | None
    """The time from its due time within which a job must have ended, None for no deadline; UNSET for the
    task's value."""
    metadata: Mapping[str, Any]
    """Labels for people and filters; merged into those of its jobs."""
    anchor: datetime
    """The instant from which intervals are counted."""
    next_fire_at: datetime | None
    """The next fire time, as if the schedule were not paused; None if it has finished, or until the last job
    has ended under a `FixedDelay`."""
    last_fire_at: datetime | None
    """The latest fire time that was planned, with or without a job; None before the first."""
    last_job_id: str | None
    """The job that was enqueued last; None before the first."""
    paused_at: datetime | None
    """When it was paused; None unless it is paused."""
    paused_until: datetime | None
    """When the pause ends by itself; None if it lasts until ``resume()``, or unless it is paused."""
    keeps_fire_times: bool
    """Whether the fire times of a pause that ends by itself are missed then; otherwise they are discarded."""
    note: str | None
    """The note of ``pause()``, or the error that paused it."""
    runs: int
    """Fire times that became jobs."""
    skipped: int
    """Fire times that were dropped because of ``overlap``."""
    missed: int
    """Missed fire times without a job; a lower bound beyond 1,000 at once, except for `Every`."""
    failures: int | None
    """Final failures in a row; None without ``pause_after_failures``."""
    created_at: datetime
    """When it was added first."""
    updated_at: datetime
    """When its row changed last."""
    finished_at: datetime | None
    """When its last fire time was planned; None before."""
    version: int
    """Grows with each edit; for ``update(if_version=)``."""
    retired_at: datetime | None = None
    """When workers found that their code declares it no longer, so that it fires no more; None before."""
    no_args_reason: str | None = None
    """Why there are no arguments, such as ``encrypted with fernet, key 3fa9c210; ...``; None if there are."""

    def upcoming(self, n: int = 10, *, after: datetime | None = None) -> list[datetime]:
        """Return the next fire times within ``start`` and ``end``, as if the schedule were not paused.

        Args:
            n: How many.
            after: The first one is strictly after this timezone-aware instant; None for the schedule's next
                fire times.

        Raises:
            ValueError: ``after`` is naive, or this process cannot interpret the trigger.
        """
        if self.trigger is None:
            raise ValueError(
                f"schedule {self.schedule_id!r} has a trigger that this process cannot interpret: "
                f"{self.described}; import the module that registers its kind"
            )
        count = n
        if self.max_runs is not None:
            runs_left = max(self.max_runs - self.runs, 0)
            count = min(n, runs_left)
        first_fires: list[datetime] = []
        if after is None:
            if self.next_fire_at is None or count < 1:
                return []
            after = self.next_fire_at
            # The next fire time is the first of the result. A search from just before finds it again, except
            # for a `FixedDelay`, which counts from any instant.
            if is_fixed_delay(self.trigger):
                first_fires = [after]
            else:
                after -= INSTANT
        if self.start is not None:
            after = max(to_utc(after), not_before(self.trigger, self.start))
        further_count = count - len(first_fires)
        fires = first_fires + self.trigger.upcoming(further_count, after=after, anchor=self.anchor)
        last_fire = LAST_FIRE if self.end is None else self.end
        return [fire for fire in fires if fire <= last_fire]

    def __str__(self) -> str:
        return f"{self.task}: {self.described}"


def schedule_from_row(row: ScheduleRow, codec: PayloadCodec | None = None) -> Schedule:
    """Return the public value of a row, with decoded arguments.

    A row that was written by hand, or by another release, may have values that cannot be read. They are
    replaced by None, UNSET or empty values.
    """
    try:
        trigger = read_trigger(row.trigger)
    except ValueError:
        trigger = None
    no_args_reason = None
    try:
        args, kwargs = decode(row.task_data, codec, row.job_name or row.task)
    except PayloadError as error:
        args, kwargs, no_args_reason = (), {}, str(error)
    options = object_from(row.options)
    priority, retries = options.get("priority"), options.get("max_retries")
    # None is a value of this option, so an option that is missing is UNSET.
    grace = options.get("misfire_grace_time", UNSET)
    if not _is_grace(grace):
        grace = UNSET
    return Schedule(
        schedule_id=row.schedule_id,
        owner="code" if row.owner == "code" else "api",
        task=row.task,
        trigger=trigger,
        described=row.described,
        args=args,
        kwargs=kwargs,
        no_args_reason=no_args_reason,
        start=row.start_at,
        end=row.end_at,
        max_runs=row.max_runs,
        jitter=timedelta(seconds=row.jitter_seconds),
        overlap=Overlap(row.overlap),
        catch_up=catch_up_of(row),
        pause_after_failures=row.pause_after_failures,
        priority=JobPriority.from_db_value(priority) if isinstance(priority, int) else UNSET,
        max_retries=retries if isinstance(retries, int) else UNSET,
        timeout=_span(options, "timeout"),
        misfire_grace_time=grace,
        keep_result=_span(options, "keep_result"),
        deadline=_span(options, "deadline"),
        metadata=object_from(row.metadata),
        anchor=row.anchor,
        next_fire_at=_next_fire_at(row, trigger),
        last_fire_at=row.last_fire_at,
        last_job_id=row.last_job_id,
        paused_at=row.paused_at,
        paused_until=row.paused_until,
        keeps_fire_times=row.keeps_fire_times,
        note=row.note,
        runs=row.runs,
        skipped=row.skipped,
        missed=row.missed,
        failures=None if row.pause_after_failures is None else row.failures,
        created_at=row.created_at,
        updated_at=row.updated_at,
        finished_at=row.finished_at,
        version=row.version,
        retired_at=row.retired_at,
    )


def _next_fire_at(row: ScheduleRow, trigger: Trigger | None) -> datetime | None:
    """Return the next fire time of a schedule, for people.

    After a resumption or an edit, the planner searches for it in its next pass. The search is made here
    already, so that the caller sees the result.
    """
    # A trigger of the application may take any time, so it is not called here.
    if row.resume_from is None or trigger is None or not is_built_in(trigger):
        return row.next_fire_at
    try:
        return first_to_plan(row)
    # The next pass of the planner reports this error.
    except SearchLimitError:
        return row.next_fire_at


def _is_grace(value: object) -> bool:
    """Return whether a value can be a misfire grace time: None for no limit, or seconds."""
    return value is None or isinstance(value, int)


def _span(options: Mapping[str, Any], name: str) -> timedelta | Unset | None:
    """Return a duration in the options of a row; UNSET if there is none, or no valid one."""
    value = options.get(name, UNSET)
    if value is None:
        return None
    return duration_from(value) if isinstance(value, int | float) and value >= 0 else UNSET
