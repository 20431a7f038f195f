"""Validate what a caller or the code gives for a schedule, and turn it into a row."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeAlias

from pg_scheduler.errors import ConfigurationError, PayloadError
from pg_scheduler.jobs.call_errors import call_error
from pg_scheduler.jobs.codec import PayloadCodec, is_encoded
from pg_scheduler.jobs.metadata import check_metadata
from pg_scheduler.jobs.model import UNSET, JobPriority, Unset
from pg_scheduler.jobs.payload import check_size, decode, encode, encode_object, is_equal_json, object_from
from pg_scheduler.jobs.task import COMMON_CHECKS, as_stored
from pg_scheduler.jobs.validation import (
    check_count,
    check_execution_time,
    check_kind,
    check_seconds,
    check_text,
)
from pg_scheduler.schedules.policies import MAX_SPAN, CatchUp, Overlap, check_policies
from pg_scheduler.schedules.row import (
    FIRST_FIRE,
    LAST_FIRE,
    ScheduleRow,
    blank_row,
    catch_up_of,
    read_trigger,
)
from pg_scheduler.triggers.base import Trigger

Encode: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any] | None], str]
"""Returns arguments as the text of the ``task_data`` column, if the task accepts them."""

MAX_ID_LENGTH: Final = 200
MAX_DESCRIPTION: Final = 1000
"""Characters of a trigger in words that are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The values that a caller or the code gives for a schedule; UNSET for those not given."""

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
    deadline: float | timedelta | Unset | None = UNSET
    metadata: Mapping[str, Any] | Unset | None = UNSET

    def new_row(
        self,
        schedule_id: str,
        *,
        now: datetime,
        max_bytes: int | None = None,
        codec: PayloadCodec | None = None,
    ) -> ScheduleRow:
        """Return the row of a new schedule with the given values, validated, but without a fire time.

        The arguments and errors are those of ``applied_to()``.
        """
        return self.applied_to(blank_row(schedule_id, now), max_bytes=max_bytes, codec=codec)

    def applied_to(
        self,
        old: ScheduleRow,
        *,
        max_bytes: int | None = None,
        encoder_of: Callable[[str], Encode] = lambda _: encode,
        codec: PayloadCodec | None = None,
        resets_options: bool = False,
    ) -> ScheduleRow:
        """Return the row with the given values, validated; its fire times are unchanged.

        If a trigger or JSON has the same value as before, the text of the row is kept: the database writes
        JSON in its own way, so the row would seem to be changed.

        Args:
            old: The row.
            max_bytes: The maximum size of the arguments; None for no limit.
            encoder_of: Returns the encoder of the arguments of a task.
            codec: Encodes the arguments, and decodes those of the row; None for none.
            resets_options: Whether options of jobs that are UNSET take the values of the task again;
                otherwise they keep those of the row.

        Raises:
            TypeError: A value has the wrong type, or the task cannot be called with the arguments.
            ValueError: A value is out of range, or contradicts another.
            PayloadError: JSON cannot represent an argument or a field of the trigger, the codec failed, or
                the arguments are too large.
        """
        all_values = {field.name: getattr(self, field.name) for field in fields(self)}
        # The values that are given, by the names of the fields.
        values = {name: value for name, value in all_values.items() if not isinstance(value, Unset)}
        # The new values of columns of the row.
        changes: dict[str, Any] = {}
        for name, (column, check) in _COLUMNS.items():
            if name in values:
                changes[column] = check(values[name])
        # If the start is removed, intervals count from the creation of the schedule instead.
        if old.start_at is not None and changes.get("start_at", old.start_at) is None:
            changes["anchor"] = old.created_at
        if "trigger" in values:
            trigger = check_trigger(self.trigger)
            text = encode_object("trigger", trigger.to_json())
            changes |= {"trigger": _kept_trigger(text, old), "described": _described(trigger)}
        if "catch_up" in values:
            policy = check_kind("catch_up", self.catch_up, CatchUp)
            within = None if policy.within is None else policy.within.total_seconds()
            changes |= {
                "catch_up": policy.selection,
                "catch_up_limit": policy.limit,
                "catch_up_seconds": within,
            }
        if values.keys() & {"task", "args", "kwargs"}:
            # Arguments that are not given stay as they are in the row. If both are given, the row is not
            # decoded.
            are_both_given = values.keys() >= {"args", "kwargs"}
            old_args, old_kwargs = ((), {}) if are_both_given else decode(old.task_data, codec, old.task)
            task = values.get("task", old.task)
            task_data = encoder_of(task)(values.get("args", old_args), values.get("kwargs", old_kwargs))
            if codec is not None:
                task_data = _kept_encoded(task_data, task, old, codec)
            changes["task_data"] = _kept(check_size(task_data, max_bytes), old.task_data)
        if "metadata" in values:
            metadata = "{}" if self.metadata is None else json.dumps(check_metadata(values["metadata"]))
            changes["metadata"] = _kept(check_size(metadata, max_bytes), old.metadata)
        options = {
            name: as_stored(check(values[name])) for name, check in COMMON_CHECKS.items() if name in values
        }
        # Options that are not given stay as they are in the row, unless they are to follow the task again.
        if options or resets_options:
            row_options = {} if resets_options else object_from(old.options)
            changes["options"] = _kept(json.dumps(row_options | options), old.options)
        row = replace(old, **changes)
        if values.keys() & {"overlap", "catch_up"}:
            check_policies(Overlap(row.overlap), catch_up_of(row))
        if row.start_at is not None and row.end_at is not None and row.end_at < row.start_at:
            raise call_error(
                ConfigurationError,
                f"end {row.end_at} is before start {row.start_at}",
                "bounds",
                "pass a later end=",
            )
        return row


def check_schedule_id(schedule_id: object) -> str:
    """Return the id if it has 1 to 200 characters that PostgreSQL can store; else raise a ValueError."""
    text = check_text("schedule_id", schedule_id)
    if not 0 < len(text) <= MAX_ID_LENGTH:
        raise ConfigurationError(
            f"schedule_id must have 1 to {MAX_ID_LENGTH} characters, not {len(text)}: {text[:80]!r}"
        )
    return text


def check_trigger(trigger: object) -> Trigger:
    """Return the value if it is a trigger; else raise TypeError."""
    if not isinstance(trigger, Trigger):
        raise TypeError(
            f"trigger must be a Trigger, such as Every(hours=1) or Cron('0 9 * * *'), not {trigger!r}"
        )
    return trigger


def _described(trigger: Trigger) -> str:
    """Return the trigger in words, as its row stores them: without NUL, lone surrogates and great length."""
    text = str(trigger).replace("\x00", "").encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_DESCRIPTION else f"{text[:MAX_DESCRIPTION]}..."


def to_seconds(name: str, value: object) -> float:
    """Return a length of time in seconds; raise ConfigurationError if it is not from 0 to ten years."""
    seconds = check_seconds(name, value, "seconds or a timedelta")
    if not 0 <= seconds <= MAX_SPAN.total_seconds():
        raise ConfigurationError(f"{name} must be between 0 and {MAX_SPAN.days} days, not {seconds} seconds")
    return float(seconds)


def check_start(name: str, value: object) -> datetime:
    """Return an instant from which a schedule fires; raise ConfigurationError if no schedule fires then."""
    instant = check_execution_time(value, name=name)
    if not FIRST_FIRE <= instant <= LAST_FIRE:
        raise ConfigurationError(
            f"{name} {instant.isoformat()} is out of range: schedules fire from {FIRST_FIRE.date()} to "
            f"{LAST_FIRE.date()}; pass a time between them"
        )
    return instant


def check_end(name: str, value: object) -> datetime | None:
    """Return an instant that ends something; None, as for no end, if no schedule fires after it.

    Code may write the last day of the calendar for no end.
    """
    instant = check_execution_time(value, name=name)
    return None if instant > LAST_FIRE else check_start(name, instant)


def _count(name: str) -> Callable[[Any], int | None]:
    """Return a function that checks a number which may be None; ``name`` is for its error."""
    return lambda value: None if value is None else check_count(name, value, least=1)


def _kept(new: str, old: str) -> str:
    """Return the new JSON, or the text of the row if it has the same value, so that the row is unchanged."""
    return old if is_equal_json(new, old) else new


def _kept_encoded(task_data: str, task: str, old: ScheduleRow, codec: PayloadCodec) -> str:
    """Return the new arguments encoded by the codec, or those of the row if these are equal.

    Those of the row are returned only if they were encoded with the key that the codec uses now. Each
    encoding may give another text, with which an unchanged schedule would look changed. A codec without an
    encryption key only decodes. It keeps equal arguments with whichever key they were encoded, because it
    would store the new ones in plain text.
    """
    encoded_args = object_from(old.task_data).get("args")
    if task == old.task and is_encoded(encoded_args) and codec.key_id in {None, encoded_args["key"]}:
        # Arguments that cannot be decoded count as different.
        with suppress(PayloadError):
            if is_equal_json(task_data, encode(*decode(old.task_data, codec, task))):
                return old.task_data
    return codec.encode_arguments(task_data, task)


def _kept_trigger(text: str, old: ScheduleRow) -> str:
    """Return the new trigger as JSON, or the text of the row if the triggers are equal."""
    try:
        are_equal = read_trigger(old.trigger) == read_trigger(text)
    # Another process, or a person, has written a trigger that this process cannot interpret.
    except ValueError:
        are_equal = False
    return old.trigger if are_equal else text


_COLUMNS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "task": ("task", str.__str__),  # str() of a member of a str Enum is not its value
    "start": ("start_at", lambda value: None if value is None else check_start("start", value)),
    "end": ("end_at", lambda value: None if value is None else check_end("end", value)),
    "max_runs": ("max_runs", _count("max_runs")),
    "pause_after_failures": ("pause_after_failures", _count("pause_after_failures")),
    "jitter": ("jitter_seconds", partial(to_seconds, "jitter")),
    "overlap": ("overlap", lambda value: check_kind("overlap", value, Overlap).value),
}
"""The fields that are converted without regard to others: for each, its column and the function that checks
and converts its value."""
