"""Validate jobs and turn them into rows with ids, without I/O.

Generated ids sort by the time of their creation (UUID version 7, RFC 9562 section 5.7). Ids created together
are adjacent in the index, so inserts touch few pages. On a large table they write half the WAL of random ids.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from operator import attrgetter
from types import FunctionType, MethodType
from typing import Any, Final, NamedTuple, cast

from pg_scheduler.errors import ConfigurationError, PayloadError
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.keys import KeyFunctionError
from pg_scheduler.jobs.metadata import NO_METADATA, with_metadata
from pg_scheduler.jobs.model import UNSET, JobFunction, JobPriority, TaskName, Unset
from pg_scheduler.jobs.naming import check_name
from pg_scheduler.jobs.payload import check_size, encode
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.rows import (
    EPOCH,
    NO_EXTRAS,
    AnyJob,
    ExtendedJob,
    Extras,
    GeneratedIdJob,
    PlainJob,
    Span,
)
from pg_scheduler.jobs.step_values import DEFINITION, MARK, new_definition
from pg_scheduler.jobs.task import JOB_OPTIONS, JobSpec, Task, as_stored, have_common_options
from pg_scheduler.jobs.unique import Uniqueness, check_unique, check_unique_names, unique_text
from pg_scheduler.jobs.validation import check_execution_time, check_job_id, check_kind

OUTCOMES: Final = ("completed", "ended")

COMPARED_TYPES: Final = frozenset(
    {FunctionType, MethodType, JobPriority, Unset, float, int, str, timedelta, type(None)}
)
"""Types of values that are compared with those of the call before. A subclass may define equality anyhow."""

_common_values = attrgetter("func", *JOB_OPTIONS)
"""Returns the values of a JobSpec that many jobs of a call have in common."""


class Common(NamedTuple):
    """What follows from the function and the options that many jobs of a call have in common.

    Attributes:
        task: The task; None if the name is not registered here.
        encode: Encodes the arguments.
        metadata: That of the task.
        columns: The fields of PlainJob after the due time.
        extras: The columns that plain jobs lack; None if they are NULL.
        unique: That of the task: which jobs exclude one another; None if they do not.
    """

    task: Task | None
    encode: Callable[[Sequence[Any], Mapping[str, Any] | None], str]
    metadata: Mapping[str, Any]
    columns: tuple[Any, ...]
    extras: Extras | None
    unique: Uniqueness | None


class _Derivation(NamedTuple):
    """The function and the options of the last job of a task, and what follows from them."""

    task: Task | None
    kinds: list[type]
    values: tuple[object, ...]
    common: Common


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
            allows_now: Whether jobs may have no time. Their due time is ``EPOCH``: they have no delay.

        Raises:
            TypeError: A value has the wrong type, or a function cannot be called with the arguments.
            ValueError: A value is out of range, or the key function of a share rejects the arguments.
            PayloadError: JSON cannot represent an argument, the codec failed, or the arguments are too large.
        """
        if not specs:
            return []
        ids = new_job_ids(len(specs))
        limit, codec = self._max_payload_bytes, self._codec
        jobs: list[AnyJob] = []
        last = check_kind("a job", specs[0], JobSpec)
        time = last.execution_time
        due = EPOCH if time is None and allows_now else check_execution_time(time)
        task, encode_args, inherited, columns, extras, unique = self._common(last, allows_names=allows_names)
        for spec in specs:
            # A value that is the same object as in the spec before has been validated.
            if spec is not last:
                is_alike = have_common_options(check_kind("a job", spec, JobSpec), last)
                if (time := spec.execution_time) is not last.execution_time:
                    due = EPOCH if time is None and allows_now else check_execution_time(time)
                    is_alike = is_alike and time is not None and last.execution_time is not None
                if not is_alike:
                    task, encode_args, inherited, columns, extras, unique = self._common(
                        spec, allows_names=allows_names
                    )
                last = spec
            task_data = arguments = encode_args(spec.args, spec.kwargs)
            if codec is not None:
                task_data = codec.encode_arguments(arguments, columns[0])
            if spec.metadata is not None or inherited:
                task_data = with_metadata(task_data, inherited, spec.metadata, allows_trace=allows_trace)
            if limit is not None and len(task_data) > limit:
                check_size(task_data, limit)
            if spec.job_id is None:
                row: PlainJob = GeneratedIdJob(next(ids), task_data, due, *columns)
            else:
                row = PlainJob(check_job_id(spec.job_id), task_data, due, *columns)
            after: tuple[str, ...] = ()
            if spec.after != () or spec.after_outcome != "completed" or spec.pass_results is not False:
                after = _check_after(spec)
            rule = unique if spec.unique is UNSET else rule_of(spec.unique, task)
            share = None if task is None or task.share is None else task.share_key(arguments)
            if extras is None and rule is None and not after and share is None:
                jobs.append(row)
                continue
            jobs.append(
                build(
                    row,
                    task,
                    extras or NO_EXTRAS,
                    unique=rule,
                    arguments=arguments,
                    has_id=spec.job_id is not None,
                    after=after,
                    after_outcome=spec.after_outcome,
                    passes_results=spec.pass_results,
                    share=share,
                )
            )
        return jobs

    def prepare_alert(
        self, name: str, due: datetime, kwargs: Mapping[str, Any], *, job_id: str, failed_tasks: Sequence[str]
    ) -> AnyJob:
        """Return the row of a job that follows the failure of another one, with the defaults of its task.

        If the task is unique with a time span, the id is that of the span. The arguments are not checked: an
        error here would undo the failure, so the attempt reports it.

        Args:
            name: The task.
            due: When it is due.
            kwargs: Its arguments.
            job_id: Its id.
            failed_tasks: The tasks of the alerts that failed before it. None of them follows its own failure.
        """
        task = self._tasks.resolve(name)
        common = self._derive(name, task, JobSpec(name))  # type: ignore[arg-type] # a name
        task_data = arguments = encode((), kwargs)
        if self._codec is not None:
            with suppress(PayloadError):  # the row of the failed job has these values too, unencoded
                task_data = self._codec.encode_arguments(arguments, name)
        share = None
        with suppress(KeyFunctionError):  # it starts without taking turns
            share = None if task is None else task.share_key(arguments)
        task_data = with_metadata(task_data, common.metadata, None)
        row = PlainJob(job_id, task_data, due, *common.columns)
        chain = [*failed_tasks, name]
        next_alert = None if task is None else task.on_failure
        on_end = None
        if next_alert is not None and next_alert not in chain:
            on_end = json.dumps({"on_failure": next_alert, "failed_tasks": chain})
        extras = (common.extras or NO_EXTRAS)._replace(on_end=on_end)
        unique = common.unique
        if extras == NO_EXTRAS and unique is None and share is None:
            return row
        return build(row, task, extras, unique=unique, arguments=arguments, share=share)

    def _common(self, spec: JobSpec, *, allows_names: bool) -> Common:
        """Return what follows from the function and options of a job. An alias stays the name of the job."""
        func: object = spec.func
        if isinstance(func, str) and (allows_names or isinstance(func, TaskName)):
            name, task = check_name(func), self._tasks.resolve(func)
        else:
            function = cast("JobFunction", func)  # a JobSpec takes a call() apart
            adopted = self._tasks.adopted.get(function) if isinstance(function, FunctionType) else None
            task = adopted or self._tasks.adopt(function)
            name = task.name
        values = _common_values(spec)
        kinds = [*map(type, values)]
        key = None if task is None else task.name, spec.execution_time is None
        derivation = self._derivations.get(key)
        # The values of the call of this task before have been validated. True equals 1, but is none.
        if (
            derivation is None
            or task is not derivation.task
            or kinds != derivation.kinds
            or values != derivation.values
        ):
            derivation = _Derivation(task, kinds, values, self._derive(name, task, spec))
            if COMPARED_TYPES.issuperset(kinds):
                self._derivations[key] = derivation
        return derivation.common

    def _derive(self, name: str, task: Task | None, spec: JobSpec) -> Common:
        values = {
            option: declared.check(value)
            for option, declared in JOB_OPTIONS.items()
            if not isinstance(value := getattr(spec, option), Unset)
        }
        grace = None if spec.execution_time is None else self._grace  # "now" has no due time to miss
        columns, options = resolve_options(values, task, misfire_grace_time=grace)
        on_failure = None if task is None else task.on_failure
        extras = Extras(
            options=json.dumps(options) if options else None,
            on_end=None if on_failure is None else json.dumps({"on_failure": on_failure}),
        )
        return Common(
            task,
            encode if task is None else task.encode,
            NO_METADATA if task is None else task.metadata,
            (name, *columns),
            None if extras == NO_EXTRAS else extras,
            None if task is None else task.unique,
        )


def resolve_options(
    values: Mapping[str, Any], task: Task | None, *, misfire_grace_time: int | None
) -> tuple[list[Any], dict[str, Any]]:
    """Return the options of a job as its row stores them: those in columns, and those in ``options``.

    Args:
        values: The checked values that the call or the schedule gives. The others are those of the task.
        task: The task; None if it is not registered here.
        misfire_grace_time: That of a job for which neither gives one.
    """
    columns: list[Any] = []
    options: dict[str, Any] = {}
    for name, option in JOB_OPTIONS.items():
        value = values[name] if name in values else option.default if task is None else getattr(task, name)
        if isinstance(value, Unset):
            value = misfire_grace_time
        if option.is_column:
            columns.append(as_stored(value))
        elif value is not None:
            options[name] = as_stored(value)
    return columns, options


def build(
    row: PlainJob,
    task: Task | None,
    extras: Extras,
    *,
    unique: Uniqueness | None = None,
    arguments: str | None = None,
    has_id: bool = False,
    after: tuple[str, ...] = (),
    after_outcome: str = "completed",
    passes_results: bool = False,
    share: str | None = None,
) -> ExtendedJob:
    """Return a job with the values that plain jobs lack, and with its final id.

    Args:
        row: The columns of a plain job.
        task: Its task; None if it is not registered here.
        extras: Its other columns, except for those that follow from the arguments below.
        unique: Which jobs exclude one another: gives the job a unique key, or the id of its time span.
        arguments: The arguments before a codec encoded them, for a rule; None for those of the row.
        has_id: Whether the caller gave the job its id.
        after: Ids of jobs that must end before; each once.
        after_outcome: ``completed`` or ``ended``.
        passes_results: Whether their results are passed to it, if there are any.
        share: The share and the tenant of the job; None without a share.

    Raises:
        ValueError: The id would be derived, and one was given; the signature is unknown; or the job would
            wait for itself.
    """
    span = None
    if isinstance(unique, str):
        extras = extras._replace(unique_key=unique)
    elif unique is not None:
        if unique.per is not None and has_id:
            raise ConfigurationError(
                f"job_id {row.job_id!r} and unique with per= exclude each other: the id is derived from the "
                "time span; omit job_id=, or pass unique=None or a Unique() without per="
            )
        if task is None:
            raise ConfigurationError(
                f"task {row.job_name!r} is not registered in this process, so the arguments of Unique() have "
                "no names; register the function, or pass a key such as unique='import:7'"
            )
        text = unique_text(unique, task.name, task.arity.signature, arguments or row.task_data)
        if unique.per is None:
            extras = extras._replace(unique_key=text)
        else:
            span = Span(text, unique.per)
    if share is not None:
        extras = extras._replace(blocked_on=share)
    passes_results = passes_results and bool(after)
    if after:
        mark = {MARK: 0, DEFINITION: new_definition()} if passes_results else {}
        extras = extras.waiting_for_others(**mark)
    job = ExtendedJob(row, extras, after, after_outcome, span, passes_results=passes_results)
    if span is not None:
        job = job.due_at(row.execution_time)
    if after and job.job_id in after:
        raise ValueError(f"after contains {job.job_id!r}, the id of the job itself; remove it")
    return job


def _check_after(spec: JobSpec) -> tuple[str, ...]:
    """Return the ids of the jobs that one waits for, each once.

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
    if isinstance(after, str) or not isinstance(after, Iterable):
        raise TypeError(
            f"after must be a list of job ids, not {type(after).__name__}: {after!r}; pass after=[job_id]"
        )
    return tuple(dict.fromkeys(check_job_id(parent) for parent in after if parent is not None))


def rule_of(unique: object, task: Task | None) -> Uniqueness | None:
    """Return which jobs a job excludes; None for no others.

    Raises:
        TypeError: It is neither a text nor a rule.
        ValueError: It is not a key, or it names an argument that the function lacks.
    """
    rule = check_unique(unique)
    if task is not None:
        check_unique_names(rule, task.arity.signature, task.func.__qualname__)
    return rule


# -- generated ids -------------------------------------------------------------------------------------

VARIANTS: Final = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
"""The digit of the variant, two bits of which the RFC fixes."""

_last_stamp = 0


def new_job_id() -> str:
    """Return a new id. It sorts after all earlier ids of this process."""
    return next(new_job_ids(1))


def new_job_ids(count: int) -> Iterator[str]:
    """Yield ``count`` new ids, with one read of the clock and of the entropy source."""
    global _last_stamp  # noqa: PLW0603 - the counter that keeps ids of one tick in order
    now = time.time_ns() * 4096 // 1_000_000
    noise = os.urandom(8 * count).hex()
    for at in range(0, 16 * count, 16):
        _last_stamp = stamp = max(_last_stamp + 1, now)
        high = f"{stamp:015x}"
        yield (
            f"{high[:8]}-{high[8:12]}-7{high[12:]}-{VARIANTS[noise[at]]}{noise[at + 1 : at + 4]}"
            f"-{noise[at + 4 : at + 16]}"
        )
