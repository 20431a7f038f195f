"""Validate jobs and turn them into rows with ids, without I/O.

Generated ids sort by the time of their creation (UUID version 7, RFC 9562 section 5.7). Ids created together
are adjacent in the index, so inserts touch few pages. On a large table they write half the WAL of random ids.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from operator import attrgetter
from types import FunctionType, MethodType
from typing import Any, Final, NamedTuple, cast

from pg_scheduler.errors import ConfigurationError, PayloadError
from pg_scheduler.jobs.call_errors import call_error
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.keys import KeyFunctionError
from pg_scheduler.jobs.metadata import with_metadata
from pg_scheduler.jobs.model import UNSET, JobFunction, JobPriority, TaskName, Unset
from pg_scheduler.jobs.naming import check_name
from pg_scheduler.jobs.payload import MAX_JSON_BYTES, check_size, encode
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.rows import EPOCH, AnyJob, GeneratedIdJob, PlainJob
from pg_scheduler.jobs.task import JOB_OPTIONS, JobSpec, Task, have_common_options
from pg_scheduler.jobs.unique import Unique, Uniqueness, check_unique, check_unique_names
from pg_scheduler.jobs.validation import check_execution_time, check_job_id, check_kind
from pg_scheduler.queue.job_template import NO_PARENTS, JobTemplate, Parents

OUTCOMES: Final = ("completed", "ended")

COMPARED_TYPES: Final = frozenset(
    {FunctionType, MethodType, JobPriority, Unset, float, int, str, timedelta, type(None)}
)
"""Types of functions and options that are compared with those of the last call. Their subclasses are not,
because a subclass may define equality in any way."""

_common_values = attrgetter("func", *JOB_OPTIONS)
"""Returns the values of a JobSpec that many jobs of a call have in common."""


class _Derivation(NamedTuple):
    """The function and the options of the last job of a task, and the template that follows from them.

    Attributes:
        task: The task; None if it is not registered in this process.
        kinds: The types of the values, in their order.
        values: The function and the options.
        template: The template.
    """

    task: Task | None
    kinds: list[type]
    values: tuple[object, ...]
    template: JobTemplate


class JobPreparer:
    """Validates jobs and turns them into rows."""

    def __init__(
        self,
        tasks: TaskRegistry,
        *,
        misfire_grace_time: int | None,
        max_payload_bytes: int | None,
        codec: PayloadCodec | None = None,
    ) -> None:
        self._tasks = tasks
        self._codec = codec
        self._grace = misfire_grace_time
        self._max_payload_bytes = max_payload_bytes
        # The arguments are escaped ASCII. A text of at most this length is not too large under either limit.
        self._safe_length = min(max_payload_bytes or MAX_JSON_BYTES, MAX_JSON_BYTES)
        # By the name of the task, and whether the job has no due time.
        self._derivations: dict[tuple[str | None, bool], _Derivation] = {}

    def prepare(
        self,
        specs: Sequence[JobSpec],
        *,
        allows_names: bool = False,
        allows_trace: bool = False,
        allows_now: bool = False,
    ) -> list[AnyJob]:
        """Return the rows of jobs, in their order, and register their functions.

        Args:
            specs: The jobs.
            allows_names: Whether ``func`` may be the name of a task, which need not be registered here.
            allows_trace: Whether their metadata may have trace context.
            allows_now: Whether jobs may have no due time. They get ``EPOCH``, which stands for no delay.

        Raises:
            TypeError: A value has the wrong type, or a function cannot be called with the arguments.
            ValueError: A value is out of range, or the key function of a share rejects the arguments.
            PayloadError: JSON cannot represent an argument, the codec failed, or the arguments are too large.
        """
        if not specs:
            return []
        ids = new_job_ids(len(specs))
        jobs: list[AnyJob] = []
        previous_spec = check_kind("a job", specs[0], JobSpec)
        due_time = previous_spec.execution_time
        due = EPOCH if due_time is None and allows_now else check_execution_time(due_time)
        template = self._template(previous_spec, allows_names=allows_names)
        for spec in specs:
            # A value that is the same object as in the job before has been validated. If all common values
            # are, the job has the same template.
            if spec is not previous_spec:
                # Whether the job has the same function and options as the job before.
                is_alike = have_common_options(check_kind("a job", spec, JobSpec), previous_spec)
                if (due_time := spec.execution_time) is not previous_spec.execution_time:
                    due = EPOCH if due_time is None and allows_now else check_execution_time(due_time)
                    # Only a job with a due time gets the default of the misfire grace time, which is a part
                    # of the template.
                    is_alike = is_alike and due_time is not None and previous_spec.execution_time is not None
                if not is_alike:
                    template = self._template(spec, allows_names=allows_names)
                previous_spec = spec
            jobs.append(self._job(spec, template, due, ids, allows_trace=allows_trace))
        return jobs

    def _job(
        self, spec: JobSpec, template: JobTemplate, due: datetime, ids: Iterator[str], *, allows_trace: bool
    ) -> AnyJob:
        """Return the row of a job, with the next of the ids if the caller gave it none.

        ``allows_trace`` is whether its metadata may have the key that is reserved for traces.
        """
        task = template.task
        # The unique key and the share of a job follow from its arguments before a codec encodes them.
        task_data = arguments = template.encode(spec.args, spec.kwargs)
        if self._codec is not None:
            task_data = self._codec.encode_arguments(arguments, template.name)
        # A row has the arguments and the metadata in one text.
        if spec.metadata is not None or template.metadata:
            task_data = with_metadata(task_data, template.metadata, spec.metadata, allows_trace=allows_trace)
        # A shorter text cannot exceed the maximum, however many bytes its characters have.
        if len(task_data) > self._safe_length:
            check_size(task_data, self._max_payload_bytes)
        unique = template.unique if spec.unique is UNSET else rule_of(spec.unique, task)
        debouncing = None
        if isinstance(unique, Unique) and (debouncing := unique.debouncing) is not None:
            _check_debounced(spec, template.name)
            due = EPOCH + debouncing.delay
        # A job without an id of the caller gets a class of its own, by which later code knows that no other
        # job has its id.
        if (job_id := spec.job_id) is None:
            row: PlainJob = GeneratedIdJob(next(ids), task_data, due, *template.columns)
        else:
            row = PlainJob(check_job_id(job_id), task_data, due, *template.columns)
        share = None if task is None or task.share is None else task.share_key(arguments)
        parents = NO_PARENTS
        # Most jobs have the defaults, which need no check.
        if spec.after != () or spec.after_outcome != "completed" or spec.pass_results is not False:
            parents = _parents_of(spec)
        sequence = None if task is None or task.sequence is None else task.sequence_place(arguments)
        return template.finish(
            row,
            arguments,
            unique,
            share,
            parents,
            sequence=sequence,
            has_id=job_id is not None,
            debouncing=debouncing,
        )

    def prepare_follower(
        self,
        name: str,
        due: datetime,
        kwargs: Mapping[str, Any],
        *,
        job_id: str,
        failed_tasks: Sequence[str] = (),
        readable_kwargs: Mapping[str, Any] | None = None,
    ) -> AnyJob:
        """Return the row of a job that follows the end of another one, with the defaults of its task.

        The arguments are not checked here, because the caller writes the end in the same transaction, and an
        error would undo it. So the attempt of the follower reports wrong arguments.

        Args:
            name: The task.
            due: When it is due.
            kwargs: Its arguments.
            job_id: Its id. If the task is unique with a time span, the job gets the id of the span instead.
            failed_tasks: The tasks of the alerts that failed before it; none for a clean-up. If this one
                fails too, none of them is enqueued again.
            readable_kwargs: The arguments that are stored instead if the codec fails to encode them; None for
                the same ones.
        """
        task = self._tasks.resolve(name)
        template = JobTemplate.of(name, task, {}, misfire_grace_time=None, failed_tasks=(*failed_tasks, name))
        task_data = arguments = encode((), kwargs)
        if self._codec is not None:
            # If the codec fails, the arguments of an alert are stored readable. They are the id, the name,
            # the error and the number of attempts of the failed job, which are readable in its row too.
            try:
                task_data = self._codec.encode_arguments(arguments, name)
            except PayloadError:
                if readable_kwargs is not None:
                    task_data = arguments = encode((), readable_kwargs)
        share, sequence = None, None
        if task is not None:
            # If the key function fails, the job is in no share and in no sequence, and starts without
            # waiting.
            with suppress(KeyFunctionError):
                share, sequence = task.share_key(arguments), task.sequence_place(arguments)
        row = PlainJob(job_id, with_metadata(task_data, template.metadata, None), due, *template.columns)
        return template.finish(row, arguments, template.unique, share, NO_PARENTS, sequence=sequence)

    def _template(self, spec: JobSpec, *, allows_names: bool) -> JobTemplate:
        """Return the template of a job's function and options.

        A job that is given by an alias of its task keeps the alias as its name.
        """
        func: object = spec.func
        # A job is given by the name of its task, or by a function, which is registered if it is not yet.
        if isinstance(func, str) and (allows_names or isinstance(func, TaskName)):
            name, task = check_name(func), self._tasks.resolve(func)
        else:
            function = cast("JobFunction", func)  # a JobSpec has taken the function out of a call()
            adopted = self._tasks.adopted.get(function) if isinstance(function, FunctionType) else None
            task = adopted or self._tasks.adopt(function)
            name = task.name
        # The function and all options of the job.
        values = _common_values(spec)
        kinds = [*map(type, values)]
        key = None if task is None else task.name, spec.execution_time is None
        derivation = self._derivations.get(key)
        # If the values are those of the last call of this task, they have been validated. Their types are
        # compared too, because True equals 1.
        if (
            derivation is None
            or task is not derivation.task
            or kinds != derivation.kinds
            or values != derivation.values
        ):
            derivation = _Derivation(task, kinds, values, self._new_template(name, task, spec))
            # Values of other types may be equal in any way, so they are checked for each job.
            if COMPARED_TYPES.issuperset(kinds):
                self._derivations[key] = derivation
        return derivation.template

    def _new_template(self, name: str, task: Task | None, spec: JobSpec) -> JobTemplate:
        """Check the options that a job gives, and return the template of jobs with these options."""
        options: dict[str, Any] = {}
        for name_of_option, option in JOB_OPTIONS.items():
            value = getattr(spec, name_of_option)
            # An option that the job does not give is that of its task.
            if not isinstance(value, Unset):
                options[name_of_option] = option.check(value)
        # A job without a due time is due when it is inserted, so it has no default by which it could expire.
        grace = None if spec.execution_time is None else self._grace
        return JobTemplate.of(name, task, options, misfire_grace_time=grace)


def _check_debounced(spec: JobSpec, name: str) -> None:
    """Raise ConfigurationError if a debounced job of this name was given a due time, a delay or an id."""
    if spec.execution_time is not None:
        raise call_error(
            ConfigurationError,
            f"the unique of this job of {name!r} has debounce=, so its due time follows from its calls, but "
            "it was given one",
            "due time",
            "call enqueue() without delay=, use a JobSpec without execution_time, or pass unique=None or a "
            "Unique() without debounce=",
        )
    if spec.job_id is not None:
        raise call_error(
            ConfigurationError,
            f"the unique of this job of {name!r} has debounce=, so it has the id of the first call, but it "
            f"was given the id {spec.job_id!r}",
            "id",
            "omit job_id=, or pass unique=None or a Unique() without debounce= (a child has the id of its "
            "step: pass unique=None to child(); gather() takes no unique=, so start such children by "
            "child())",
        )


def _parents_of(spec: JobSpec) -> Parents:
    """Return the jobs that a job waits for.

    Raises:
        TypeError: ``after`` is not a collection of ids, or ``pass_results`` is not a bool.
        ValueError: ``after_outcome`` is unknown, or ``pass_results`` is given without ``after``.
    """
    after, after_outcome = spec.after, spec.after_outcome
    if check_kind("pass_results", spec.pass_results, bool) and after == ():
        raise ValueError(
            "pass_results=True needs the jobs whose results are passed; pass their ids as after=[job_id], "
            "or omit pass_results="
        )
    if after_outcome not in OUTCOMES:
        raise ValueError(f"after_outcome must be 'completed' or 'ended', not {after_outcome!r}")
    # A text is iterable too, but its characters are no ids.
    if isinstance(after, str) or not isinstance(after, Iterable):
        raise TypeError(
            f"after must be a list of job ids, not {type(after).__name__}: {after!r}; pass after=[job_id]"
        )
    # A dict keeps the order and each id once. An id of None stands for a job that was not inserted.
    job_ids = tuple(dict.fromkeys(check_job_id(parent) for parent in after if parent is not None))
    return Parents(job_ids, after_outcome, spec.pass_results) if job_ids else NO_PARENTS


def rule_of(unique: object, task: Task | None) -> Uniqueness | None:
    """Return which jobs a job excludes, from the value of its ``unique``; None if it excludes none.

    Raises:
        TypeError: The value is neither a text nor a rule.
        ValueError: The text is not a key, or the rule names an argument that the function lacks.
    """
    rule = check_unique(unique)
    if task is not None:
        check_unique_names(rule, task.arity.signature, task.func.__qualname__)
    return rule


# -- generated ids -------------------------------------------------------------------------------------

VARIANTS: Final = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
"""The digit with the variant, by a random digit: the RFC fixes two of its bits, the others stay random."""

_last_timestamp = 0


def new_job_id() -> str:
    """Return a new id. It sorts after all earlier ids of this process."""
    return next(new_job_ids(1))


def new_job_ids(count: int) -> Iterator[str]:
    """Yield ``count`` new ids (UUID version 7), with one read of the clock and of the entropy source."""
    global _last_timestamp  # noqa: PLW0603 - the counter that keeps ids of one tick in order
    # A timestamp has 48 bits of milliseconds and 12 of their fractions: 15 hexadecimal digits.
    now = time.time_ns() * 4096 // 1_000_000
    # The random part of an id has 8 bytes, which are 16 hexadecimal digits.
    noise = os.urandom(8 * count).hex()
    for start in range(0, 16 * count, 16):
        # An id of the same tick as the previous one, or after the clock was set back, gets the next number.
        _last_timestamp = timestamp = max(_last_timestamp + 1, now)
        time_digits, random_digits = f"{timestamp:015x}", noise[start : start + 16]
        yield (
            f"{time_digits[:8]}-{time_digits[8:12]}-7{time_digits[12:]}"
            f"-{VARIANTS[random_digits[0]]}{random_digits[1:4]}-{random_digits[4:]}"
        )
