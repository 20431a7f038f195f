"""Validate what a caller gives for a schedule, and turn it into a row."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.metadata import check_metadata
from pg_scheduler.jobs.model import JobPriority
from pg_scheduler.jobs.payload import check_size, encode
from pg_scheduler.jobs.stored_json import object_from
from pg_scheduler.jobs.unset import UNSET, Unset
from pg_scheduler.jobs.validation import (
    check_count,
    check_execution_time,
    check_grace,
    check_keep_result,
    check_kind,
    check_seconds,
    check_text,
    check_timeout,
)
from pg_scheduler.schedules.advance import first_allowed, not_before
from pg_scheduler.schedules.policies import MAX_SPAN, CatchUp, Overlap, check_policies
from pg_scheduler.schedules.row import ScheduleRow, read_trigger
from pg_scheduler.triggers.base import Trigger, first_fire_time, restricted_trigger
from pg_scheduler.triggers.calendar_interval import CalendarInterval

Encode: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any] | None], str]
"""Returns arguments as the text of the ``task_data`` column, if the task accepts them."""

MAX_ID_LENGTH: Final = 200
MAX_DESCRIPTION: Final = 1000
"""Characters of a trigger in words that are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a caller gives for a schedule; UNSET where ``update()`` keeps the stored value."""

    task: str | Unset = UNSET
    trigger: Trigger | Unset = UNSET
    args: Any = UNSET
    kwargs: Any = UNSET
    start: datetime | Unset | None = UNSET
    end: datetime | Unset | None = UNSET
    max_runs: int | Unset | None = UNSET
    jitter: float | timedelta | Unset = UNSET
    overlap: Overlap | Unset = UNSET
    catch_up: CatchUp | Unset = UNSET
    pause_after_failures: int | Unset | None = UNSET
    priority: JobPriority | Unset = UNSET
    max_retries: int | Unset = UNSET
    timeout: float | timedelta | Unset | None = UNSET
    misfire_grace_time: int | Unset | None = UNSET
    keep_result: timedelta | Unset | None = UNSET
    metadata: Mapping[str, Any] | Unset | None = UNSET

    def given(self) -> set[str]:
        """Return the names of the fields that are not UNSET."""
        return {each.name for each in fields(self) if not isinstance(getattr(self, each.name), Unset)}

    def applied_to(
        self,
        row: ScheduleRow,
        *,
        max_bytes: int | None,
        encoder_of: Callable[[str], Encode] = lambda _: encode,
    ) -> ScheduleRow:
        """Return the row with the given values, validated; its timing is unchanged.

        Args:
            row: The row.
            max_bytes: The maximum size of the arguments; None for no limit.
            encoder_of: Returns the encoder of the arguments of a task.

        Raises:
            TypeError: A value has the wrong type, or the task cannot be called with the arguments.
            ValueError: A value is out of range, or contradicts another.
            PayloadError: JSON cannot represent an argument, or the arguments are too large.
        """
        changes: dict[str, Any] = {}
        given = self.given()
        if not isinstance(self.task, Unset):
            changes["task"] = self.task
        if not isinstance(self.trigger, Unset):
            trigger = check_trigger(self.trigger)
            changes |= {"trigger": json.dumps(trigger.to_json()), "described": described(trigger)}
        if given & {"task", "args", "kwargs"}:
            encode_for_task = encoder_of(changes.get("task", row.task))
            changes["task_data"] = check_size(self._task_data(row, encode_for_task), max_bytes)
        for name, column in (("start", "start_at"), ("end", "end_at")):
            if name in given:
                value = getattr(self, name)
                changes[column] = None if value is None else check_execution_time(value, name=name)
        for name in ("max_runs", "pause_after_failures"):
            if name in given:
                value = getattr(self, name)
                changes[name] = None if value is None else check_count(name, value, least=1)
        changes |= self._policies()
        if not isinstance(self.metadata, Unset):
            changes["metadata"] = check_size(_metadata_text(self.metadata), max_bytes)
        if options := self._options():
            changes["options"] = json.dumps(object_from(row.options) | options)
        new = replace(row, **changes)
        if given & {"overlap", "catch_up"}:
            within = None if new.catch_up_seconds is None else timedelta(seconds=new.catch_up_seconds)
            catch_up = CatchUp(new.catch_up, new.catch_up_limit, within)  # type: ignore[arg-type] # checked
            check_policies(Overlap(new.overlap), catch_up)
        if new.start_at is not None and new.end_at is not None and new.end_at < new.start_at:
            raise ConfigurationError(f"end {new.end_at} is before start {new.start_at}; pass a later end=")
        return new

    def _policies(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if not isinstance(self.jitter, Unset):
            found["jitter_seconds"] = to_seconds("jitter", self.jitter)
        if not isinstance(self.overlap, Unset):
            found["overlap"] = check_kind("overlap", self.overlap, Overlap).value
        if not isinstance(self.catch_up, Unset):
            policy = check_kind("catch_up", self.catch_up, CatchUp)
            found |= {
                "catch_up": policy.selection,
                "catch_up_limit": policy.limit,
                "catch_up_seconds": None if policy.within is None else policy.within.total_seconds(),
            }
        return found

    def _task_data(self, row: ScheduleRow, encode_for_task: Encode) -> str:
        stored = object_from(row.task_data)
        args = stored.get("args", ()) if isinstance(self.args, Unset) else self.args
        kwargs = stored.get("kwargs") if isinstance(self.kwargs, Unset) else self.kwargs
        return encode_for_task(args, kwargs)

    def _options(self) -> dict[str, Any]:
        """Return the given options of jobs, validated, as the row stores them."""
        found: dict[str, Any] = {}
        if not isinstance(self.priority, Unset):
            found["priority"] = check_kind("priority", self.priority, JobPriority).db_value
        if not isinstance(self.max_retries, Unset):
            found["max_retries"] = check_count("max_retries", self.max_retries)
        if not isinstance(self.timeout, Unset):
            found["timeout"] = check_timeout(self.timeout)
        if not isinstance(self.misfire_grace_time, Unset):
            found["misfire_grace_time"] = check_grace(self.misfire_grace_time)
        if not isinstance(self.keep_result, Unset):
            keep = self.keep_result
            found["keep_result"] = check_keep_result(keep)
        return found


def check_schedule_id(schedule_id: object) -> str:
    """Return the id if it has 1 to 200 characters that PostgreSQL can store."""
    text = check_text("schedule_id", schedule_id)
    if not 0 < len(text) <= MAX_ID_LENGTH:
        raise ConfigurationError(
            f"schedule_id must have 1 to {MAX_ID_LENGTH} characters, not {len(text)}: {text[:80]!r}"
        )
    return text


def check_trigger(trigger: object) -> Trigger:
    """Return the trigger if it is one."""
    if not isinstance(trigger, Trigger):
        raise TypeError(
            f"trigger must be a Trigger, such as Every(hours=1) or Cron('0 9 * * *'), not {trigger!r}"
        )
    return trigger


def described(trigger: Trigger) -> str:
    """Return the trigger in words that PostgreSQL can store."""
    text = str(trigger).replace("\x00", "").encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_DESCRIPTION else f"{text[:MAX_DESCRIPTION]}..."


def restarted(row: ScheduleRow, *, now: datetime) -> ScheduleRow:
    """Return a new schedule with its anchor and first fire time.

    The anchor is ``start``, which is then the first fire time; else ``now``.

    Raises:
        ValueError: No fire time is in ``start..end``.
    """
    trigger = read_trigger(row.trigger)
    anchor, after = anchor_for(trigger, start=row.start_at, now=now), now
    if row.start_at is not None:
        after = not_before(trigger, row.start_at)
    if row.last_fire_at is not None:
        after = max(after, row.last_fire_at)
    first = _first(trigger, row, after, anchor)
    return replace(row, anchor=anchor, next_fire_at=first, resume_from=None, finished_at=None)


def retimed(row: ScheduleRow, *, now: datetime) -> ScheduleRow:
    """Return a stored schedule with another trigger or bounds: its first fire time that is still to come.

    Raises:
        ValueError: No fire time is left in ``start..end``.
    """
    trigger = read_trigger(row.trigger)
    anchor = row.anchor if row.start_at is None else anchor_for(trigger, start=row.start_at, now=now)
    after = max(now, row.last_fire_at or now)
    if row.start_at is not None:
        after = max(after, not_before(trigger, row.start_at))
    first = _first(trigger, row, after, anchor)
    return replace(row, anchor=anchor, next_fire_at=first, resume_from=None, finished_at=None)


def _first(trigger: Trigger, row: ScheduleRow, after: datetime, anchor: datetime) -> datetime:
    first = first_fire_time(trigger, after=after, anchor=anchor)
    if first_allowed(trigger, after=after, anchor=anchor, end=row.end_at) is None:
        raise ConfigurationError(
            f"'{trigger}' has no fire time between {row.start_at or 'now'} and end {row.end_at}; "
            f"the next one is {first}"
        )
    return first


def anchor_for(trigger: Trigger, *, start: datetime | None, now: datetime) -> datetime:
    """Return the anchor of a new schedule. An interval of dates begins on the day of ``start``."""
    if start is None:
        return now
    inner = restricted_trigger(trigger)
    if isinstance(inner, CalendarInterval) and inner.first is None:
        return inner.wall_time_on_day_of(start) or start
    return start


def to_seconds(name: str, value: object) -> float:
    """Return a length of time in seconds, from 0 to ten years."""
    seconds = check_seconds(name, value, "seconds or a timedelta")
    if not 0 <= seconds <= MAX_SPAN.total_seconds():
        raise ConfigurationError(f"{name} must be between 0 and {MAX_SPAN.days} days, not {seconds} seconds")
    return float(seconds)


def _metadata_text(metadata: Mapping[str, Any] | None) -> str:
    return "{}" if metadata is None else json.dumps(check_metadata(metadata))
