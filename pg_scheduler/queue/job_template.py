"""The one builder of jobs: what many jobs have in common, and the row of each.

Jobs enter the queue in several ways: by calls, by names, by bulk calls, as children and as alerts
(`prepare.py`), and by fire times and manual runs (`schedules/job_builder.py`). Each way makes a template, and
finishes its jobs with the template. So an option of a task has the same effect in each of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.call_errors import call_error
from pg_scheduler.jobs.deadlines import DEADLINE, instant_of
from pg_scheduler.jobs.metadata import NO_METADATA
from pg_scheduler.jobs.model import Unset
from pg_scheduler.jobs.payload import encode
from pg_scheduler.jobs.rows import NO_EXTRAS, AnyJob, Debouncing, ExtendedJob, Extras, PlainJob, Span
from pg_scheduler.jobs.step_values import DEFINITION, MARK, new_definition
from pg_scheduler.jobs.task import JOB_OPTIONS, Task, as_stored
from pg_scheduler.jobs.unique import Unique, Uniqueness, json_form, unique_text


class Parents(NamedTuple):
    """The jobs that must end before a job may start.

    Attributes:
        job_ids: Their ids, each once.
        outcome: ``completed`` or ``ended``.
        passes_results: Whether their results are passed to the job, if there are any.
    """

    job_ids: tuple[str, ...] = ()
    outcome: str = "completed"
    passes_results: bool = False


NO_PARENTS: Final = Parents()

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class JobTemplate(NamedTuple):
    """What many jobs have in common: all that follows from their task and their options.

    Attributes:
        task: The task; None if it is not registered in this process.
        columns: The fields of ``PlainJob`` after the due time, of which the first is the name.
        extras: The columns that are NULL in a plain job.
        unique: Which jobs of the task exclude one another; None if they do not.
        metadata: The metadata of the task, into which those of a job are merged.
        encode: Checks the arguments of a job and encodes them.
        deadline: When each job must have ended, as its options have it; None for no deadline.
    """

    task: Task | None
    columns: tuple[Any, ...]
    extras: Extras
    unique: Uniqueness | None
    metadata: Mapping[str, Any]
    encode: Callable[[Sequence[Any], Mapping[str, Any] | None], str]
    deadline: str | float | None = None

    @property
    def name(self) -> str:
        """The name of the jobs."""
        name: str = self.columns[0]
        return name

    @classmethod
    def of(
        cls,
        name: str,
        task: Task | None,
        options: Mapping[str, Any],
        *,
        misfire_grace_time: int | None,
        marks: Mapping[str, Any] = NOTHING,
        consequences: Mapping[str, Any] = NOTHING,
        failed_tasks: Sequence[str] = (),
    ) -> JobTemplate:
        """Return the template of the jobs of a task.

        Args:
            name: The name of the jobs, which may be an alias of the task.
            task: The task; None if it is not registered in this process.
            options: The checked options that a call or a schedule gives. The others are those of the task.
            misfire_grace_time: The seconds for jobs to which neither the call nor the task gives any.
            marks: What else is in the JSON of their options, such as the id of a schedule.
            consequences: What follows their ends besides the alert and the clean-up of the task.
            failed_tasks: For an alert: the tasks of the alerts that failed before it, and its own task. If
                the alert fails too, no task among these is enqueued again, or alerts would never end.
        """
        # Some options have columns of their own. The others are in one column, as JSON.
        columns, other_options = resolve_options(options, task, misfire_grace_time=misfire_grace_time)
        other_options |= marks
        on_end = dict(consequences)
        if task is not None and task.on_failure is not None and task.on_failure not in failed_tasks:
            on_end["on_failure"] = task.on_failure
            if failed_tasks:
                on_end["failed_tasks"] = [*failed_tasks]
        if task is not None and task.on_cancel is not None:
            on_end["on_cancel"] = task.on_cancel
        extras = NO_EXTRAS
        if other_options or on_end:
            extras = Extras(
                options=json.dumps(other_options) if other_options else None,
                on_end=json.dumps(on_end) if on_end else None,
            )
        return cls(
            task,
            (name, *columns),
            extras,
            None if task is None else task.unique,
            NO_METADATA if task is None else task.metadata,
            encode if task is None else task.encode,
            other_options.get(DEADLINE),
        )

    def with_options(self, **options: object) -> JobTemplate:
        """Return the template with further values in the JSON of the options."""
        return self._replace(extras=self.extras.with_options(**options))

    def finish(
        self,
        row: PlainJob,
        arguments: str,
        unique: Uniqueness | None,
        share: str | None,
        parents: Parents,
        *,
        sequence: Mapping[str, Any] | None = None,
        has_id: bool = False,
        debouncing: Debouncing | None = None,
    ) -> AnyJob:
        """Return the job of a row: a plain job, which is the row itself, unless it has further values.

        The parameters are those of ``extend()``.
        """
        if (
            self.extras is NO_EXTRAS
            and unique is None
            and share is None
            and parents is NO_PARENTS
            and sequence is None
        ):
            return row
        return self.extend(
            row, arguments, unique, share, parents, sequence=sequence, has_id=has_id, debouncing=debouncing
        )

    def extend(
        self,
        row: PlainJob,
        arguments: str | None,
        unique: Uniqueness | None,
        share: str | None,
        parents: Parents = NO_PARENTS,
        *,
        sequence: Mapping[str, Any] | None = None,
        has_id: bool = False,
        debouncing: Debouncing | None = None,
    ) -> ExtendedJob:
        """Return the job of a row, with all values that plain jobs lack and with its final id.

        Args:
            row: The columns of a plain job.
            arguments: The arguments before a codec encoded them; None for those of the row.
            unique: Which jobs the job excludes: a text is its unique key, and a rule gives it a key or the id
                of a time span; None if it excludes none.
            share: The key of the share and the tenant of the job; None without a share.
            parents: The jobs that must end before.
            sequence: The place of the job in a sequence; None without one.
            has_id: Whether the caller gave the job its id.
            debouncing: How further calls postpone the job; None if they do not. The jobs of schedules and
                alerts have due times of their own, so they are not postponed, whatever the rule is.

        Raises:
            ConfigurationError: The id would be derived from a time span, but the caller gave one; the task
                is not registered here, so that a rule cannot name its arguments; or a job in a sequence would
                wait for other jobs too.
            ValueError: The job would wait for itself, or its deadline is not after its due time.
        """
        extras, span = self.extras, None
        # A text is a unique key itself, and a rule gives the job one, or the id of a time span.
        if isinstance(unique, str):
            extras = extras._replace(unique_key=unique)
        elif unique is not None:
            text = self._unique_text(unique, row, arguments, has_id=has_id)
            if unique.per is None:
                extras = extras._replace(unique_key=text)
            else:
                span = Span(text, unique.per)
        if share is not None:
            extras = extras._replace(blocked_on=share)
        if sequence is not None:
            if parents.job_ids:
                raise ConfigurationError(
                    f"a job of {self.name!r} waits for its place in a sequence, so it cannot wait for other "
                    "jobs by after=; omit after=, or schedule it by a task without a sequence"
                )
            extras = extras.in_sequence(sequence)
        if parents.job_ids:
            # The results are stored as steps of the job, so it gets the mark of a job that has stored steps.
            mark = {MARK: 0, DEFINITION: new_definition()} if parents.passes_results else {}
            extras = extras.waiting_for_others(**mark)
        job = ExtendedJob(
            row,
            extras,
            parents.job_ids,
            parents.outcome,
            span,
            passes_results=parents.passes_results,
            debouncing=debouncing,
        )
        if isinstance(self.deadline, float):
            job = replace(job, deadline_s=self.deadline)
        elif self.deadline is not None:
            job = replace(job, given_deadline=instant_of(self.deadline))
        # The due time decides the time span, and so the id of the job. It also decides when the job must have
        # ended, unless the caller has given an instant, which is compared with it.
        if span is not None or self.deadline is not None:
            job = job.due_at(row.execution_time)
        if job.job_id in parents.job_ids:
            raise ValueError(f"after contains {job.job_id!r}, the id of the job itself; remove it")
        return job

    def _unique_text(self, unique: Unique, row: PlainJob, arguments: str | None, *, has_id: bool) -> str:
        """Return the unique key of a job by a rule; with ``per=``, the text before the time span in its id.

        ``has_id`` is whether the caller gave the job its id.
        """
        if unique.per is not None and has_id:
            raise call_error(
                ConfigurationError,
                "the id of a job with unique and per= is derived from its time span, but this job has the id "
                f"{row.job_id!r}",
                "id",
                "omit job_id=, or pass unique=None or a Unique() without per= (a child has the id of its "
                "step: pass unique=None to child(); gather() takes no unique=, so start such children by "
                "child(), or give the task a Unique() without per=)",
            )
        if self.task is None:
            raise ConfigurationError(
                f"task {row.job_name!r} is not registered in this process, so the arguments of Unique() have "
                "no names; register the function, or pass a key such as unique='import:7'"
            )
        return unique_text(
            unique,
            self.task.name,
            self.task.arity.naming_signature,
            arguments or row.task_data,
            json_form if self.task.typed is None else self.task.typed.form_of_default,
        )


def resolve_options(
    values: Mapping[str, Any], task: Task | None, *, misfire_grace_time: int | None
) -> tuple[list[Any], dict[str, Any]]:
    """Return the options of a job as its row stores them: those with columns, and those in ``options``.

    Args:
        values: The checked values that the call or the schedule gives. The others are those of the task.
        task: The task; None if it is not registered here. Then the others are the defaults of the options.
        misfire_grace_time: The seconds for a job to which neither the call nor the task gives any.
    """
    columns: list[Any] = []
    options: dict[str, Any] = {}
    for name, option in JOB_OPTIONS.items():
        default = option.default if task is None else getattr(task, name)
        value = values.get(name, default)
        # Only the misfire grace time has no default of its own.
        if isinstance(value, Unset):
            value = misfire_grace_time
        if option.is_column:
            columns.append(as_stored(value))
        elif value is not None:
            options[name] = as_stored(value)
    return columns, options
