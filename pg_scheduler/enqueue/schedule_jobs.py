"""Build the jobs of schedules: options that a schedule does not set take the values of its task."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pg_scheduler.enqueue.headers import Sender
from pg_scheduler.enqueue.prepare import build, resolve_options
from pg_scheduler.jobs.metadata import NO_METADATA, with_metadata
from pg_scheduler.jobs.model import JobPriority
from pg_scheduler.jobs.payload import decode, encode
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.rows import ExtendedJob, Extras, PlainJob, new_job_id
from pg_scheduler.jobs.task import JOB_OPTIONS, Task
from pg_scheduler.jobs.validation import MAX_INTEGER
from pg_scheduler.schedules.definition import Encode, to_seconds
from pg_scheduler.schedules.row import ScheduleRow, read_trigger
from pg_scheduler.schedules.timing import fire_time_job_id, job_id_prefix
from pg_scheduler.triggers.base import is_fixed_delay


@dataclass(frozen=True, slots=True)
class JobBuilder:
    """Builds the jobs of one schedule.

    Attributes:
        template: A job with the values that all of them have, and the misfire grace time of one on time.
        options: The options that all of them have.
        task: Its task; None if it is not registered here.
        sender: Calls the middleware; None without any.
    """

    row: ScheduleRow
    template: PlainJob
    options: Mapping[str, Any]
    on_end: str | None
    task: Task | None
    sender: Sender | None

    @property
    def is_unique(self) -> bool:
        """Whether a job may be rejected since another one has its unique key."""
        return self.task is not None and self.task.unique is not None

    def fire_time_job(self, fire_time: datetime, due: datetime, now: datetime) -> ExtendedJob:
        """Return the job of a fire time.

        Its misfire grace time counts from now, so a fire time that was missed while no node ran still runs.
        """
        job_id = fire_time_job_id(self.row.schedule_id, fire_time, owner=self.row.owner)
        grace = self.template.misfire_grace_time
        if grace is not None:
            late_s = max(math.ceil((now - due) / timedelta(seconds=1)), 0)
            grace = min(grace + late_s, MAX_INTEGER)
        row = self.template._replace(job_id=job_id, execution_time=due, misfire_grace_time=grace)
        return self._build(row, {**self.options, "fire_time": fire_time.isoformat()})

    def manual_job(self, now: datetime) -> ExtendedJob:
        """Return a job without a fire time that is due now."""
        job_id = f"{job_id_prefix(self.row.schedule_id, self.row.owner)}manual:{new_job_id()}"
        return self._build(self.template._replace(job_id=job_id, execution_time=now), self.options)

    def _build(self, row: PlainJob, options: Mapping[str, Any]) -> ExtendedJob:
        extras = Extras(options=json.dumps(options), on_end=self.on_end)
        job = build(row, self.task, extras, unique=None if self.task is None else self.task.unique)
        return job if self.sender is None else self.sender.add_to_planned(job, self.row.schedule_id)


class ScheduleJobs:
    """Resolves the options of the jobs of schedules when they are enqueued.

    Attributes:
        sender: Calls the middleware; None without any.
    """

    def __init__(self, tasks: TaskRegistry, *, misfire_grace_time: int | None) -> None:
        self._tasks = tasks
        self._grace = misfire_grace_time
        self.sender: Sender | None = None

    def encoder_of(self, name: str) -> Encode:
        """Return the encoder of the arguments of a task, which checks them if it is registered here."""
        task = self._tasks.resolve(name)
        return encode if task is None else task.encode

    def builder(self, row: ScheduleRow) -> JobBuilder:
        """Return the builder of a schedule's jobs.

        Raises:
            ValueError: The row contains an invalid option; a TypeError if it has another type.
        """
        task = self._tasks.resolve(row.task)
        options = json.loads(row.options)
        if not isinstance(options, dict):
            raise ValueError(f"options must be a JSON object, not {row.options[:80]}")  # noqa: TRY004
        given = {name: read(options[name]) for name, read in _READ.items() if name in options}
        columns, of_jobs = resolve_options(given, task, misfire_grace_time=self._grace)
        template = PlainJob(
            "",
            _task_data(row, task),
            row.anchor,
            row.task if row.job_name is None else row.job_name,
            *columns,
        )._replace(
            function=None if row.job_name is None else row.task,
            lock_key=advisory_lock_key(row.schedule_id) if row.use_advisory_lock else None,
        )
        of_jobs["schedule_id"] = row.schedule_id
        return JobBuilder(row, template, of_jobs, _on_end(row, task), task, self.sender)


def _read_priority(number: object) -> JobPriority:
    for priority in JobPriority:
        if priority.db_value == number:
            return priority
    raise ValueError(f"options.priority must be 1, 3, 5 or 8, not {number!r}")


_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    **{name: option.check for name, option in JOB_OPTIONS.items()},
    "priority": _read_priority,
    "keep_result": lambda seconds: None if seconds is None else to_seconds("keep_result", seconds),
}
"""The checks of the options in a row, where priorities are numbers and durations are seconds."""


def advisory_lock_key(schedule_id: str) -> int:
    """Return the key of a schedule's advisory lock, a signed 64-bit integer."""
    return int.from_bytes(hashlib.sha256(schedule_id.encode()).digest()[:8], signed=True)


def _on_end(row: ScheduleRow, task: Task | None) -> str | None:
    """Return the consequences of the end of a job as JSON; None for none."""
    on_end: dict[str, Any] = {}
    if row.pause_after_failures is not None or is_fixed_delay(read_trigger(row.trigger)):
        on_end["schedule"] = True
    if task is not None and task.on_failure is not None:
        on_end["on_failure"] = task.on_failure
    return json.dumps(on_end) if on_end else None


def _task_data(row: ScheduleRow, task: Task | None) -> str:
    """Return the arguments of the jobs, which must still fit the task, with all metadata."""
    metadata = json.loads(row.metadata)
    if not isinstance(metadata, dict):
        raise ValueError(f"metadata must be a JSON object, not {row.metadata[:80]}")  # noqa: TRY004
    args, kwargs = decode(row.task_data)
    if task is None:
        return with_metadata(encode(args, kwargs), NO_METADATA, metadata or None)
    return with_metadata(task.encode(args, kwargs), task.metadata, metadata or None)
