"""Validate jobs and turn them into rows, without I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import is_not
from typing import Any, cast

from pg_scheduler.enqueue.dependents import extended
from pg_scheduler.enqueue.unique import made_unique, rule_of
from pg_scheduler.jobs.ids import new_job_id, new_job_ids
from pg_scheduler.jobs.metadata import NO_METADATA, with_metadata
from pg_scheduler.jobs.model import DEFAULT_TIMEOUT, JobFunction, JobPriority, JobSpec
from pg_scheduler.jobs.payload import check_size, encode
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.rows import ExtendedJob, Extras, GeneratedIdJob, NewJob
from pg_scheduler.jobs.task import Task
from pg_scheduler.jobs.unique import Unique, Uniqueness
from pg_scheduler.jobs.unset import UNSET, Unset
from pg_scheduler.jobs.validation import (
    check_count,
    check_execution_time,
    check_grace,
    check_job_id,
    check_keep_result,
    check_kind,
    check_timeout,
)

JobDefaults = tuple[str, int, int, int | None, float | None]
"""The values that many jobs of a call share: the fields of NewJob after the execution time."""

Shared = tuple[JobDefaults, Extras | None, Uniqueness | None]
"""Those, what a plain job lacks, and which jobs exclude one another."""


class JobPreparer:
    """Validates jobs and turns them into rows."""

    def __init__(
        self, tasks: TaskRegistry, *, misfire_grace_time: int | None, max_payload_bytes: int | None
    ) -> None:
        self._tasks = tasks
        self._grace = misfire_grace_time
        self._max_payload_bytes = max_payload_bytes
        self._last: tuple[tuple[object, ...], Shared] = (
            (None,) * 7,
            (("", 0, 0, None, None), None, None),
        )

    def prepare(self, specs: Sequence[JobSpec]) -> list[NewJob]:
        """Return the rows of jobs, in their order, and register their functions.

        Raises:
            TypeError: A value has the wrong type, or a function cannot be called with the arguments.
            ValueError: A value is out of range.
            PayloadError: JSON cannot represent an argument, or the arguments are too large.
        """
        if not specs:
            return []
        ids = new_job_ids(len(specs))
        jobs: list[NewJob] = []
        limit = self._max_payload_bytes
        last = check_kind("a job", specs[0], JobSpec)
        due = check_execution_time(last.execution_time)
        task, (defaults, extras, unique) = self._defaults_of(last)
        for spec in specs:
            # A value that is the same object as in the spec before has been validated.
            if spec is not last and (
                check_kind("a job", spec, JobSpec).func is not last.func
                or spec.priority is not last.priority
                or spec.max_retries is not last.max_retries
                or spec.misfire_grace_time is not last.misfire_grace_time
                or spec.timeout is not last.timeout
                or spec.keep_result is not last.keep_result
                or spec.unique is not last.unique
            ):
                task, (defaults, extras, unique) = self._defaults_of(spec)
            if spec.execution_time is not last.execution_time:
                due = check_execution_time(spec.execution_time)
            task_data = task.encode(spec.args, spec.kwargs)
            if spec.metadata is not None or task.metadata:
                task_data = with_metadata(task_data, task.metadata, spec.metadata)
            if limit is not None and len(task_data) > limit:
                check_size(task_data, limit)
            if spec.job_id is None:
                job: NewJob = GeneratedIdJob(next(ids), task_data, due, *defaults)
            else:
                job = NewJob(check_job_id(spec.job_id), task_data, due, *defaults)
            if extras is not None:
                job = ExtendedJob.of(job, extras)
            if unique is not None:
                job = made_unique(job, unique, task, has_id=spec.job_id is not None)
            if spec.after != () or spec.after_outcome != "completed":
                job = extended(job, after=spec.after, after_outcome=spec.after_outcome)
            jobs.append(job)
            last = spec
        return jobs

    def prepare_named(
        self,
        name: str,
        execution_time: datetime,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        *,
        priority: JobPriority | Unset,
        max_retries: int | Unset,
        job_id: str | None,
        misfire_grace_time: int | Unset | None,
        timeout: float | timedelta | Unset | None,
        keep_result: timedelta | Unset | None = UNSET,
        metadata: Mapping[str, Any] | None = None,
        after: Iterable[str | None] = (),
        after_outcome: str = "completed",
        unique: Unique | str | Unset | None = UNSET,
        allows_trace: bool = False,
    ) -> NewJob:
        """Return the row of a job whose function is given by name.

        Raises:
            TypeError: A value has the wrong type, or the function, if it is registered here, cannot be
                called with the arguments.
            ValueError: A value is out of range.
            PayloadError: JSON cannot represent an argument, or the arguments are too large.
        """
        task = self._tasks.resolve(name)
        defaults = self._defaults(
            name,
            task,
            priority=priority,
            max_retries=max_retries,
            misfire_grace_time=misfire_grace_time,
            timeout=timeout,
        )
        due = check_execution_time(execution_time)
        task_data = encode(args, kwargs) if task is None else task.encode(args, kwargs)
        inherited = NO_METADATA if task is None else task.metadata
        task_data = with_metadata(task_data, inherited, metadata, allows_trace=allows_trace)
        check_size(task_data, self._max_payload_bytes)
        if job_id is None:
            job: NewJob = GeneratedIdJob(new_job_id(), task_data, due, *defaults)
        else:
            job = NewJob(check_job_id(job_id), task_data, due, *defaults)
        extras = _extras(task, keep_result)
        if extras is not None:
            job = ExtendedJob.of(job, extras)
        if (rule := rule_of(unique, task)) is not None:
            job = made_unique(job, rule, task, has_id=job_id is not None)
        return extended(job, after=after, after_outcome=after_outcome)

    def prepare_alert(
        self, name: str, due: datetime, kwargs: Mapping[str, Any], *, job_id: str, failed_tasks: Sequence[str]
    ) -> NewJob:
        """Return the row of a job that follows the failure of another one, with the defaults of its task.

        Its arguments are not checked: an error here would undo the failure, so the attempt reports it.

        Args:
            name: The task.
            due: When it is due.
            kwargs: Its arguments.
            job_id: Its id.
            failed_tasks: The tasks of the alerts that failed before it. None of them follows its own failure.
        """
        task = self._tasks.resolve(name)
        defaults = self._defaults(
            name, task, priority=UNSET, max_retries=UNSET, misfire_grace_time=UNSET, timeout=UNSET
        )
        task_data = encode((), kwargs)
        if task is not None:
            task_data = with_metadata(task_data, task.metadata, None)
        job = NewJob(job_id, task_data, due, *defaults)
        extras = _extras(task, UNSET) or Extras()
        chain = [*failed_tasks, name]
        next_alert = None if task is None else task.on_failure
        on_end = None
        if next_alert is not None and next_alert not in chain:
            on_end = json.dumps({"on_failure": next_alert, "failed_tasks": chain})
        extras = extras._replace(on_end=on_end)
        return job if extras == Extras() else ExtendedJob.of(job, extras)

    def _defaults_of(self, spec: JobSpec) -> tuple[Task, Shared]:
        task = self._tasks.adopt(cast("JobFunction", spec.func))  # a JobSpec takes a call() apart
        given = (
            task,
            spec.priority,
            spec.max_retries,
            spec.misfire_grace_time,
            spec.timeout,
            spec.keep_result,
            spec.unique,
        )
        last, shared = self._last
        # The same objects as in the call before have been validated.
        if any(map(is_not, given, last)):
            defaults = self._defaults(
                task.name,
                task,
                priority=spec.priority,
                max_retries=spec.max_retries,
                misfire_grace_time=spec.misfire_grace_time,
                timeout=spec.timeout,
            )
            shared = defaults, _extras(task, spec.keep_result), rule_of(spec.unique, task)
            self._last = given, shared
        return task, shared

    def _defaults(
        self,
        name: str,
        task: Task | None,
        *,
        priority: JobPriority | Unset,
        max_retries: int | Unset,
        misfire_grace_time: int | Unset | None,
        timeout: float | timedelta | Unset | None,
    ) -> JobDefaults:
        """Return the validated values. An unset one defaults to that of the task, then of the Scheduler."""
        if isinstance(priority, Unset):
            priority = task.priority if task is not None else JobPriority.NORMAL
        if isinstance(max_retries, Unset):
            max_retries = task.max_retries if task is not None else 0
        if isinstance(misfire_grace_time, Unset) and task is not None:
            misfire_grace_time = task.misfire_grace_time
        if isinstance(timeout, Unset):
            timeout = task.timeout if task is not None else DEFAULT_TIMEOUT
        return (
            name,
            check_kind("priority", priority, JobPriority).db_value,
            check_count("max_retries", max_retries),
            self._grace if isinstance(misfire_grace_time, Unset) else check_grace(misfire_grace_time),
            check_timeout(timeout),
        )


def _extras(task: Task | None, keep_result: timedelta | Unset | None) -> Extras | None:
    """Return what a plain job lacks; None for a plain one. An unset option defaults to that of the task."""
    if isinstance(keep_result, Unset):
        seconds = task.keep_result if task is not None else None
    else:
        seconds = check_keep_result(keep_result)
    on_failure = task.on_failure if task is not None else None
    if seconds is None and on_failure is None:
        return None
    return Extras(
        options=None if seconds is None else json.dumps({"keep_result": seconds}),
        on_end=None if on_failure is None else json.dumps({"on_failure": on_failure}),
    )
