"""Build the jobs of schedules: options that a schedule does not set take the values of its task."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from pg_scheduler.enqueue.headers import Sender
from pg_scheduler.enqueue.prepare import build
from pg_scheduler.jobs.ids import new_job_id
from pg_scheduler.jobs.metadata import NO_METADATA, with_metadata
from pg_scheduler.jobs.model import DEFAULT_TIMEOUT, JobPriority
from pg_scheduler.jobs.payload import decode, encode
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.rows import ExtendedJob, Extras, NewJob
from pg_scheduler.jobs.task import Task
from pg_scheduler.jobs.unset import Unset
from pg_scheduler.jobs.validation import MAX_INTEGER, check_count, check_grace, check_timeout
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
    template: NewJob
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

    def _build(self, row: NewJob, options: Mapping[str, Any]) -> ExtendedJob:
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
        priority = options.get("priority", (task.priority if task else JobPriority.NORMAL).db_value)
        if priority not in {each.db_value for each in JobPriority}:
            raise ValueError(f"options.priority must be 1, 3, 5 or 8, not {priority!r}")
        grace: int | Unset | None = task.misfire_grace_time if task else self._grace
        if isinstance(grace, Unset):
            grace = self._grace
        if "misfire_grace_time" in options:
            grace = check_grace(options["misfire_grace_time"])
        timeout = task.timeout if task else DEFAULT_TIMEOUT.total_seconds()
        if "timeout" in options:
            timeout = check_timeout(options["timeout"])
        keep = options.get("keep_result", task.keep_result if task else None)
        retries = check_count("max_retries", options.get("max_retries", task.max_retries if task else 0))
        of_jobs: dict[str, Any] = {"schedule_id": row.schedule_id}
        if keep is not None:
            of_jobs["keep_result"] = to_seconds("keep_result", keep)
        template = NewJob(
            job_id="",
            task_data=_task_data(row, task),
            execution_time=row.anchor,
            job_name=row.task if row.job_name is None else row.job_name,
            priority=priority,
            max_retries=retries,
            misfire_grace_time=grace,
            timeout_seconds=timeout,
            function=None if row.job_name is None else row.task,
            lock_key=advisory_lock_key(row.schedule_id) if row.use_advisory_lock else None,
        )
        return JobBuilder(row, template, of_jobs, _on_end(row, task), task, self.sender)


def advisory_lock_key(schedule_id: str) -> int:
    """Return the key of a schedule's advisory lock, a signed 64-bit integer."""
    return int.from_bytes(hashlib.sha256(schedule_id.encode()).digest()[:8], signed=True)


def in_order(jobs: Sequence[ExtendedJob], last_job_id: str | None) -> list[ExtendedJob]:
    """Return the jobs, each blocked until the one before has ended."""
    found: list[ExtendedJob] = []
    for job in jobs:
        found.append(job if last_job_id is None else _queued(job, last_job_id))
        last_job_id = job.job_id
    return found


def _queued(job: ExtendedJob, parent: str) -> ExtendedJob:
    """Return the job, blocked until another one has ended."""
    extras = job.extras._replace(blocked_on="after")
    return replace(job, extras=extras, after=(parent,), after_outcome="ended")


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
        return with_metadata(encode(args, kwargs), NO_METADATA, metadata)
    return with_metadata(task.encode(args, kwargs), task.metadata, metadata)
